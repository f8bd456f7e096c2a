"""Drafts: greedy search writes the same tokens with one, sampling has the same distribution, in fewer steps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import prod

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

import test_networks_fast
from atento.base.errors import CapabilityError
from atento.config.presets import preset
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import MaskConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import Beam, Greedy, Hypothesis, Sample, generate
from atento.decoding.choosing import apply_rules
from atento.decoding.contract import Request
from atento.decoding.draft_proposals import Draft, PromptLookup
from atento.decoding.filters import shaped
from atento.decoding.rules import Banned, Forced, ForcedLast, NoRepeatNGrams, RepetitionPenalty
from atento.decoding.stream import stream
from atento.decoding.trace import Trace
from atento.inference.choose import step_function
from atento.inference.prefix_steps import PrefixStepFunction
from atento.networks import build_network
from failing import fails

V = 37
SIZES = {"vocab_size": V, "d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 2, "max_len": 40, "dropout": 0.0}
LEARNED, ROTARY = (NetworkConfig(**SIZES, positions=PositionConfig(kind)) for kind in ("learned", "rotary"))
NETWORKS = {
    "transformer": NetworkConfig(**SIZES),
    "learned, untied": changed(LEARNED, output={"tied": False}, embedding={"shared": False}),
    "t5": changed(preset("t5-small"), **SIZES, attention={"d_head": 8}),
    "marian": changed(preset("marian"), **SIZES, ids={"pad": 0, "unk": 1, "bos": 2, "eos": 3, "start": 2}),
    "shaw": NetworkConfig(**SIZES, positions=PositionConfig("shaw")),
    "rotary, grouped heads": changed(ROTARY, attention={"n_kv_heads": 1}),
    "gpt2": replace(preset("gpt2"), **SIZES),
    "llama": changed(preset("llama3-8b"), **SIZES, attention={"n_kv_heads": 1, "d_head": 8}),
    "alibi": NetworkConfig(**SIZES, architecture="decoder", positions=PositionConfig("alibi")),
    "window": replace(ROTARY, architecture="decoder", mask=MaskConfig("window", left=3)),
}
PLAIN_ONLY = ("shaw", "window")
SOURCES = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 3], [9, 4, 9, 4, 9, 3, 0, 0], [12, 5, 14, 3, 0, 0, 0, 0]])
REAL = SOURCES > 0


network_of = partial(test_networks_fast.network_of, dtype=torch.float32, scale=1.6)


def assert_same(mine: list[list[Hypothesis]], its: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in row] for row in mine] == [[h.ids for h in row] for row in its]
    for first, second in zip((h for row in mine for h in row), (h for row in its for h in row)):
        assert first.finished == second.finished
        assert first.token_scores == pytest.approx(second.token_scores, abs=1e-4)


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["plain", "fast"])
@pytest.mark.parametrize("name", NETWORKS)
def test_greedy_search_writes_the_same_tokens_with_any_draft(name: str, kind: str) -> None:
    if kind == "fast" and name in PLAIN_ONLY:
        pytest.skip("has no fast steps")
    network = network_of(NETWORKS[name])
    steps = step_function(network, kind=kind)
    itself = Draft(ngrams=False, network=network, tokens=5, longest=SIZES["max_len"])
    settings = {"max_new_tokens": [14, 20, 9], "token_mask": REAL, "eos_id": ()}
    plain = generate(steps, SOURCES, Greedy(), **settings)
    for draft in (Draft(), itself, Draft(network=network_of(NETWORKS[name], seed=1), tokens=3)):
        outputs = generate(steps, SOURCES, Greedy(), draft=draft, **settings)
        assert_same(outputs, plain)
        assert all(0 <= row[0].accepted <= row[0].proposed for row in outputs)
        if draft is itself:  # all that it proposes is right
            assert all(row[0].accepted == row[0].proposed > len(row[0].ids) // 2 for row in outputs)
    alone = generate(steps, SOURCES[:1], Greedy(), max_new_tokens=14, eos_id=(), draft=Draft())
    assert alone[0][0].ids == plain[0][0].ids


def test_all_rules_hold_with_a_draft() -> None:
    steps, small = step_function(network_of(NETWORKS["gpt2"])), network_of(NETWORKS["gpt2"], seed=1)
    for rules, settings in (
        ((RepetitionPenalty(1.3, True), NoRepeatNGrams(2)), {}),
        ((Banned([[7], [5, 6]]), ForcedLast(3, [9, 12, 12])), {"min_new_tokens": 4}),
        ((Forced({0: 8, 2: 9}),), {"eos_id": (3, 8, 11)}),
        ((), {"stop": lambda ids: len(ids) > 3 and ids[-1] == ids[-2], "eos_id": (11,)}),
        ((), {"prefix_ids": torch.tensor([[5, 6], [6, 7], [9, 4]])}),
        ((lambda scores, _: torch.full_like(scores, -torch.inf) if _.ids.shape[1] == 3 else scores,), {}),
    ):
        arguments = {"max_new_tokens": [9, 12, 12], "token_mask": REAL, "rules": rules, "eos_id": 3} | settings
        plain = generate(steps, SOURCES, Greedy(), **arguments)
        for draft in (Draft(), Draft(network=small, tokens=4)):
            assert_same(generate(steps, SOURCES, Greedy(), draft=draft, **arguments), plain)


@pytest.mark.parametrize("count", [256, pytest.param(4096, marks=pytest.mark.slow)])
def test_many_prompts_have_the_same_tokens_and_in_reduced_precision_too(count: int) -> None:
    network = network_of(replace(NETWORKS["gpt2"], n_layers=1))
    generator = torch.Generator().manual_seed(7)
    for precision, batches in (("float32", count // 64), ("bfloat16", count // 128), ("int8", count // 128)):
        steps = step_function(network, precision=precision)
        for _ in range(batches):
            ids = torch.randint(4, V, (64, 12), generator=generator)
            real = torch.arange(12) < torch.randint(1, 13, (64, 1), generator=generator)
            # one by one in reduced precision, in which the digits of a row depend on its neighbours
            size = 64 if precision == "float32" else 1
            for row in range(0, 64 if size > 1 else 3, size):
                batch = slice(row, row + size)
                settings = {"max_new_tokens": 10, "token_mask": real[batch], "eos_id": ()}
                plain = generate(steps, ids[batch], Greedy(), **settings)
                outputs = generate(steps, ids[batch], Greedy(), draft=Draft(), **settings)
                assert [output[0].ids for output in outputs] == [output[0].ids for output in plain]


def test_a_stream_and_a_trace_with_a_draft() -> None:
    steps = step_function(network_of(NETWORKS["gpt2"]))
    ((plain,),) = generate(steps, SOURCES[:1], Greedy(), max_new_tokens=12, eos_id=())
    tokens = list(stream(steps, SOURCES[:1], Greedy(), max_new_tokens=12, eos_id=(), draft=Draft()))
    assert [token.id for token in tokens] == plain.ids and tokens[-1].end == "limit"
    trace, other = Trace(), Trace()
    settings = {"max_new_tokens": 12, "eos_id": ()}
    ((drafted_output,),) = generate(steps, SOURCES[:1], Greedy(), draft=Draft(), trace=trace, **settings)
    generate(steps, SOURCES[:1], Greedy(), trace=other, **settings)
    assert drafted_output.ids == plain.ids
    assert [step.live for step in trace.runs[0].steps] == [step.live for step in other.runs[0].steps]
    assert [c.token for step in trace.runs[0].steps for c in step.candidates if c.alive] == plain.ids
    counts = {"proposed": drafted_output.proposed, "accepted": drafted_output.accepted}
    assert trace.notes["draft"] == [{"row": 0, "number": 0} | counts]


@dataclass
class ChainState:
    """What each row has read."""

    read: list[list[int]]

    def select(self, rows: Tensor) -> "ChainState":
        return ChainState([list(self.read[row]) for row in rows.tolist()])


class Chain:
    """Logits (V,) of the last two tokens, `table` (V,V,V); steps over several tokens alone add `noise`."""

    start_id, eos_id, pad_id = 0, 0, 0

    def __init__(self, table: Tensor, noise: Tensor | None = None, rounding: float = 1e-5) -> None:
        self.table, self.noise, self.rounding, self.steps = table, noise, rounding, 0

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        return ids[:, -1]

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> ChainState:
        return ChainState([row[:-1] for row in ids.tolist()])

    def step(self, tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        logits, state = self._read(tokens.view(len(tokens), -1).tolist(), state)
        return torch.stack([row[-1] for row in logits]), state

    def rewindable(self, state: ChainState) -> ChainState:
        return state.select(torch.arange(len(state.read)))

    def step_all(self, tokens: Tensor, counts: Sequence[int], state: ChainState) -> tuple[Tensor, ChainState]:
        self.steps += 1
        rows = [row[:count] for row, count in zip(tokens.tolist(), counts)]
        logits, state = self._read(rows, state)
        out = torch.full((*tokens.shape, len(self.table)), torch.nan)  # no use is made of padding
        for row, values in enumerate(logits):
            if values:
                out[row, : len(values)] = torch.stack(values) + (0.0 if self.noise is None else self.noise)
        return out, state

    def crop(self, state: ChainState, counts: Sequence[int]) -> ChainState:
        return ChainState([row[: len(row) - count] for row, count in zip(state.read, counts)])

    def _read(self, rows: Sequence[Sequence[int]], state: ChainState) -> tuple[list[list[Tensor]], ChainState]:
        read = [list(before) for before in state.read]
        logits: list[list[Tensor]] = [[] for _ in rows]
        for row, ids in enumerate(rows):
            for token in ids:
                read[row].append(token)
                before = read[row][-2] if len(read[row]) > 1 else 0
                logits[row].append(self.table[before, token])
        return logits, ChainState(read)


def random_chain(seed: int, size: int = 4) -> Chain:
    return Chain(1.5 * torch.randn(size, size, size, generator=torch.Generator().manual_seed(seed)))


PROMPT = [1, 2, 3, 1, 2]  # its last n-gram was followed by 3
STRATEGIES = {
    "all": (Sample(), ()),
    "temperature, top-k": (Sample(temperature=0.7, top_k=3), ()),
    "top-p, min-p": (Sample(top_p=0.8, min_p=0.05), ()),
    "rules": (Sample(), (RepetitionPenalty(1.5), NoRepeatNGrams(2, True))),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_samples_with_a_draft_have_the_same_distribution_and_with_copied_tokens_are_the_same(name: str) -> None:
    """χ² of 500 outputs of three tokens against the probability of every one, by multiplication."""
    (strategy, rules), chain = STRATEGIES[name], random_chain(1)
    request = Request([3], 0, (), rules, prompts=[PROMPT])

    @cache  # outputs begin alike
    def next_token(begun: tuple[int, ...]) -> list[float]:
        logits = chain.table[(*PROMPT, *begun)[-2:]].unsqueeze(0)
        scores = apply_rules(logits, request, [0], torch.tensor(begun).view(1, -1).long(), len(begun))
        return shaped(scores, strategy)[0].exp().tolist()

    outcomes = list(product(range(4), repeat=3))
    means = [500 * prod(next_token(output[:n])[token] for n, token in enumerate(output)) for output in outcomes]
    settings = {"max_new_tokens": 3, "eos_id": (), "rules": rules, "seed": 5}
    for draft in (Draft(ngrams=False, network=random_chain(2), tokens=2), Draft(tokens=2)):
        outputs = generate(chain, torch.tensor([PROMPT]), replace(strategy, n=500), draft=draft, **settings)
        seen = Counter(tuple(output.ids) for output in outputs[0])
        possible = [(seen[output], mean) for output, mean in zip(outcomes, means) if mean > 0 or seen[output]]
        assert all(mean > 0 for _, mean in possible)
        pairs, others = ([pair for pair in possible if (pair[1] >= 5) == many] for many in (True, False))
        pairs += [tuple(map(sum, zip(*others)))] if others else []
        assert chisquare([n for n, _ in pairs], [p for _, p in pairs], sum_check=False).pvalue > 0.01
    settings = {"max_new_tokens": 6, "eos_id": (), "rules": rules, "seed": 3}
    ids, several = torch.tensor([PROMPT, [3, 3, 3, 0, 1]]), replace(strategy, n=20)
    plain = generate(chain, ids, several, **settings)
    assert_same(generate(chain, ids, several, draft=Draft(), **settings), plain)
    assert generate(chain, ids, several, draft=Draft(), **settings) == plain


def test_a_seed_gives_the_same_samples_with_a_draft_by_a_network_in_any_batch() -> None:
    chain, draft = random_chain(1), Draft(network=random_chain(2), tokens=3)
    ids = torch.tensor([PROMPT, [3, 3, 3, 0, 1], [2, 1, 0, 1, 2]])
    outputs = generate(chain, ids, Sample(n=3), max_new_tokens=[8, 3, 5], eos_id=(2,), seed=[4, 5, 6], draft=draft)
    for row, limit in enumerate((8, 3, 5)):
        settings = {"max_new_tokens": limit, "eos_id": (2,), "seed": [4 + row], "draft": draft}
        assert generate(chain, ids[row : row + 1], Sample(n=3), **settings)[0] == outputs[row]


def test_a_near_tie_is_decided_by_steps_over_one_token_and_equal_logits_give_the_first() -> None:
    table = torch.zeros(4, 4, 4)
    table[..., 1], table[..., 2] = 2.0, 2.0 - 1e-6  # one by one, token 1 is the best
    noise = torch.tensor([0.0, 0.0, 2e-6, 0.0])  # in steps over several, token 2
    settings = {"max_new_tokens": 6, "eos_id": (), "draft": Draft()}
    ids = torch.tensor([PROMPT])
    assert generate(Chain(table, noise), ids, Greedy(), **settings)[0][0].ids == [1] * 6
    assert generate(Chain(table, noise, rounding=0.0), ids, Greedy(), **settings)[0][0].ids == [2] * 6
    flat = Chain(torch.zeros(4, 4, 4))
    assert_same(generate(flat, ids, Greedy(), **settings), generate(flat, ids, Greedy(), **settings | {"draft": None}))


@pytest.mark.parametrize("name", ["gpt2", "t5", "window"])
def test_steps_over_several_tokens_are_as_near_as_the_bound_says(name: str) -> None:
    network = network_of(NETWORKS[name])
    for kind in ("plain",) if name in PLAIN_ONLY else ("plain", "fast"):
        steps = step_function(network, kind=kind)
        state = steps.rewindable(steps.begin(SOURCES, REAL))
        tokens, counts = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0], [6, 6, 6, 0]]), [4, 2, 3]
        logits, state = steps.step_all(tokens, counts, state)
        state = steps.crop(state, [2, 0, 1])  # 2 tokens of each row remain
        again, _ = steps.step_all(tokens[:, 2:3], [1, 1, 1], state)
        for row in range(3):
            alone = steps.begin(SOURCES[row : row + 1], REAL[row : row + 1])
            for column in range(counts[row]):
                one, alone = steps.step(tokens[row : row + 1, column], alone)
                bound = steps.rounding * max(1.0, float(one.max().abs()))
                assert float((one[0] - logits[row, column]).abs().max()) <= bound
                if column == 2:
                    assert float((one[0] - again[row, 0]).abs().max()) <= bound


def test_ngrams_continue_as_the_longest_did_and_a_right_draft_needs_fewer_steps() -> None:
    draft = PromptLookup([[[4, 5, 6, 7, 8, 5, 6, 9], []], [[1, 2, 3, 1, 2]], [[], []]])
    for rows, written, most, expected in (
        ([0, 1, 2], [[5], [], [7]], [3, 4, 3], [[6, 9], [3, 1, 2, 3], []]),  # a loop goes on with itself
        ([0, 1, 2], [[5, 6], [9], [7, 8]], [3, 4, 3], [[9], [], []]),  # the last of both; no copy beyond the source
        ([0, 2], [[5, 6, 7, 5, 6], [7, 8, 7, 8]], [4, 3], [[7, 5, 6, 7], [7, 8, 7]]),
        ([0], [[5, 6, 7, 5, 6, 4, 5, 6]], [2], [[7, 8]]),  # 4 5 6 is longer than 5 6
    ):
        assert [proposal.ids for proposal in draft.propose(rows, written, most)] == expected
    table = torch.full((5, 5, 5), -5.0)
    for token in range(5):
        table[:, token, (token + 1) % 5] = 5.0  # 0 1 2 3 4 0 1 ...
    chain, ids = Chain(table), torch.tensor([[0, 1, 2, 3, 4, 0, 1]])
    ((output,),) = generate(chain, ids, Greedy(), max_new_tokens=30, eos_id=(), draft=Draft(tokens=8))
    assert output.ids == [(2 + n) % 5 for n in range(30)]
    # 5 tokens with the first step, which verifies 4, then 9 a step; the last step writes what is missing
    assert chain.steps == 4 and output.proposed == output.accepted == 26
    chain.steps = 0
    generate(chain, ids, Greedy(), max_new_tokens=30, eos_id=(), draft=Draft(tokens=1))
    assert chain.steps == 15


def test_prompts_read_in_both_directions_and_a_network_without_room_that_proposes_nothing_more() -> None:
    small = network_of(replace(NETWORKS["gpt2"], max_len=10))
    for steps, draft, most in (
        (step_function(network_of(NETWORKS["gpt2"])), Draft(ngrams=False, network=small, tokens=4, longest=10), 20),
        (PrefixStepFunction(build_network(replace(NETWORKS["gpt2"], n_layers=1)).eval()), Draft(tokens=3), 9),
    ):
        settings = {"max_new_tokens": most, "token_mask": REAL, "eos_id": ()}
        plain = generate(steps, SOURCES, Greedy(), **settings)
        assert_same(generate(steps, SOURCES, Greedy(), draft=draft, **settings), plain)


def test_what_is_refused() -> None:
    steps, ids = step_function(network_of(NETWORKS["gpt2"])), SOURCES[:1]
    for error, said, strategy, draft in (
        (ValueError, "`draft` needs greedy search or sampling: got Beam", Beam(2), Draft()),
        (TypeError, "`draft` must be a Draft: got str", Greedy(), "ngrams"),
    ):
        fails(error, said, generate, steps, ids, strategy, max_new_tokens=4, draft=draft)
    fails(ValueError, "`tokens` must be at least 1: got 0", Draft, tokens=0)
    fails(ValueError, "got neither", Draft, ngrams=False)
    recurrent = NetworkConfig(**SIZES, architecture="recurrent-lm", recurrent=RecurrentConfig())
    for draft, function in ((Draft(), build_network(recurrent)), (Draft(network=build_network(recurrent)), steps)):
        with pytest.raises(CapabilityError, match=r"taken? back|take tokens back|takes tokens back"):
            generate(function, ids, Greedy(), max_new_tokens=4, draft=draft)
