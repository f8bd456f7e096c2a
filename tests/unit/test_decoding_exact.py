"""Exact search: all outputs tried, certificates; forced scores; logits that are no numbers end every search (W9)."""

import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.base.errors import AtentoError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import MBR, Beam, Greedy, Hypothesis, Sample, generate
from atento.decoding.exact import Exact, exact_outputs, exact_search, search_error
from atento.decoding.forced import forced_scores
from atento.decoding.generate import prepare
from atento.decoding.mask_predict import mask_predict
from atento.decoding.rules import NoRepeatNGrams, RepetitionPenalty
from atento.decoding.stream import stream
from atento.decoding.trace import BOUND, FINISHED, KEPT, Trace
from atento.inference.fast import FastStepFunction
from atento.inference.graphs import GraphStepFunction
from atento.networks import EncoderDecoder, build_network
from atento_lab.notes.checks.tiny import tiny_network
from failing import fails
from test_batch_proof import FAMILIES as SHALLOW
from test_decoding_beam_rules import dearer, dearer_by_hand
from test_decoding_chains import EOS, START, Chain, Written, entry, ids

A, C = 2, 3
LOSING = Written(5, {(): {A: 0.6, C: 0.4}, (A,): {EOS: 0.4, A: 0.3, 4: 0.3}, (C,): {EOS: 0.9, A: 0.1}})


def everything(
    chain: Chain, sentence: int, vocab_size: int, most: int, least: int, penalty: float, eos: tuple[int, ...]
) -> list[Hypothesis]:
    """Every output that ends within the limit, the best first; without an end, all of that length."""
    words = [token for token in range(vocab_size) if token not in eos]
    outputs = []
    for length in range(most + 1):
        for tokens in product(words, repeat=length):
            wholes = [[*tokens, end] for end in eos] if eos else [list(tokens)]
            for whole in wholes:
                if (eos and least <= length < most) or (not eos and length == most):
                    scores = [chain.log_probs(sentence, [START, *whole[:n]])[t] for n, t in enumerate(whole)]
                    outputs.append(entry(list(tokens), scores, bool(eos), penalty))
    return sorted(outputs, key=lambda one: -one.score)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(2, 4),
    most=st.integers(1, 5),
    least=st.integers(0, 3),
    penalty=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    eos=st.sampled_from([(EOS,), (), (EOS, 0)]),
)
def test_m7_exact_search_is_exhaustive_search(
    seed: int, vocab_size: int, most: int, least: int, penalty: float, eos: tuple[int, ...]
) -> None:
    chain = Chain.random(seed, 2, vocab_size)
    options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": least, "eos_id": eos}
    found = exact_search(chain, ids(0, 1), length_penalty=penalty, **options)
    for sentence, one in enumerate(found):
        outputs = everything(chain, sentence, vocab_size, most, least, penalty, eos)
        assert one.optimal and (one.best is None) == (not outputs)
        if one.best is not None:
            assert one.best.score == pytest.approx(outputs[0].score, abs=1e-9)
            same = [other.token_scores for other in outputs if other.ids == one.best.ids]
            assert any(scores == pytest.approx(one.best.token_scores, abs=1e-9) for scores in same)
            assert one.bound == pytest.approx(one.best.score)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), limit=st.integers(1, 30), penalty=st.sampled_from([0.0, 1.0]))
def test_m7_a_search_given_up_bounds_the_optimum(seed: int, limit: int, penalty: float) -> None:
    """What was found is not better than the optimum, which is not better than the bound."""
    chain = Chain.random(seed, 1, 4)
    [one] = exact_search(chain, ids(0), max_new_tokens=5, length_penalty=penalty, limit=limit)
    optimum = everything(chain, 0, 4, 5, 0, penalty, (EOS,))[0].score
    assert one.bound >= optimum - 1e-9
    if one.best is not None:
        assert one.best.score <= optimum + 1e-9
    if one.optimal:
        assert one.best is not None and one.best.score == pytest.approx(optimum)
    else:
        assert one.read >= limit


def test_m7_each_row_continues_its_own_prefix() -> None:
    chain, prefix_ids = Chain.random(3, 2, 4), torch.tensor([[A], [C]])
    prepared = prepare(chain, ids(0, 1), None, 4, prefix_ids=prefix_ids)
    alone = [prepare(chain, ids(row), None, 4, prefix_ids=prefix_ids[row : row + 1]) for row in (0, 1)]
    assert exact_outputs(prepared, 0.0, 99, None) == [exact_outputs(one, 0.0, 99, None)[0] for one in alone]


def test_m7_the_limit_is_met_and_what_a_beam_lost_is_certified() -> None:
    [one] = exact_search(Chain.random(1, 1, 6, spread=0.1), ids(0), max_new_tokens=8, length_penalty=2.0, limit=40)
    assert not one.optimal and 40 <= one.read < 40 + 16 + 1
    # "2" has .6 but ends with .4 (.24); "3" has .4 and ends with .9 (.36): greedy loses log 1.5, a beam of 2 none
    [exact] = exact_search(LOSING, ids(0), max_new_tokens=4)
    [[one]] = generate(LOSING, ids(0), Greedy(), max_new_tokens=4)
    [[two]] = generate(LOSING, ids(0), Beam(2, 0.0), max_new_tokens=4)
    assert exact.optimal and exact.best is not None and exact.best.ids == [C]
    assert search_error(one, exact) == pytest.approx(math.log(1.5)) and search_error(two, exact) == 0.0
    given_up = Exact(exact.best, False, -0.1, 3)
    assert search_error(one, given_up) == pytest.approx(math.log(1.5)) and search_error(two, given_up) is None
    assert search_error(one, Exact(None, False, -0.1, 3)) is None
    assert search_error(entry([A, A], [-0.1, -0.1], False, 0.0), exact) is None


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 3), penalty=st.sampled_from([0.0, 0.6, 1.0]))
def test_m7_what_is_known_need_only_be_beaten(seed: int, width: int, penalty: float) -> None:
    """From a beam's output on the same optimum is found, and less is read."""
    chain = Chain.random(seed, 2, 5)
    beams = [found[0] for found in generate(chain, ids(0, 1), Beam(width, penalty), max_new_tokens=5)]
    options: dict[str, Any] = {"max_new_tokens": 5, "length_penalty": penalty}
    alone, helped = exact_search(chain, ids(0, 1), **options), exact_search(chain, ids(0, 1), known=beams, **options)
    for one, other, beam in zip(alone, helped, beams):
        assert one.best is not None and other.best is not None and one.optimal and other.optimal
        assert one.best.score == pytest.approx(other.best.score) and other.read <= one.read
        lost = search_error(beam, other)
        assert lost is None if not beam.finished else lost == pytest.approx(one.best.score - beam.score, abs=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_m7_rules_change_what_is_best(seed: int) -> None:
    chain = Chain.random(seed, 1, 4)
    [one] = exact_search(chain, ids(0), max_new_tokens=4, length_penalty=1.0, rules=[dearer])
    best = -math.inf
    for length in range(4):
        for tokens in product((0, 2, 3), repeat=length):
            whole = [*tokens, EOS]
            begun = [(whole[:n], token) for n, token in enumerate(whole)]
            total = sum(dearer_by_hand(chain.log_probs(0, [START, *read]), read)[token] for read, token in begun)
            best = max(best, total / len(whole))
    assert one.optimal and one.best is not None and one.bound == pytest.approx(best)
    assert one.best.log_prob == pytest.approx(sum(one.best.token_scores))


def test_m7_a_real_network_agrees_with_a_full_beam_and_a_trace_tells_the_bound() -> None:
    torch.manual_seed(0)
    network: EncoderDecoder = tiny_network(vocab_size=6, output={"tied": False})
    source = torch.tensor([[4, 5, 4], [5, 4, 0]])
    real = source > 0
    for penalty in (0.0, 1.0):
        found = exact_search(network, source, max_new_tokens=4, token_mask=real, length_penalty=penalty)
        wide = generate(network, source, Beam(6**4, penalty), max_new_tokens=4, token_mask=real)
        for one, [other] in zip(found, wide):
            assert one.optimal and one.best is not None
            assert one.best.ids == other.ids and one.best.token_scores == pytest.approx(other.token_scores, abs=1e-9)
    trace = Trace()
    exact_search(LOSING, ids(0), max_new_tokens=4, trace=trace)
    told = {(*s.live[c.parent], c.token): c.fate for s in trace.runs[0].steps for c in s.candidates}
    assert told[(A,)] == told[(C,)] == KEPT and told[(C, EOS)] == FINISHED and told[(A, EOS)] == BOUND
    assert told[(C, A)] == BOUND and trace.runs[0].stopped == {0: "nothing that was open could be better"}
    assert trace.runs[0].hypotheses[0][0].ids == [C]
    chain = Chain.random(0, 1, 4)
    with pytest.raises(ValueError, match="needs scores of at most 0, and a rule brought one above"):
        exact_search(chain, ids(0), max_new_tokens=3, rules=[lambda scores, written: scores + 100])
    fails(ValueError, "`max_new_tokens` and `limit` .*3 and 0", exact_search, chain, ids(0), max_new_tokens=3, limit=0)


FAMILIES = {name: replace(config, n_layers=2) for name, config in SHALLOW.items()}
IDS = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0], [0, 0, 0, 7]])
REAL = IDS > 0


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    targets=st.lists(st.lists(st.sampled_from([0, 2, 3]), max_size=6), min_size=3, max_size=3),
    finished=st.lists(st.booleans(), min_size=3, max_size=3),
    prefix=st.sampled_from([(), (0,), (2, 2)]),
)
def test_h11_forced_scores(seed: int, targets: list[list[int]], finished: list[bool], prefix: tuple[int, ...]) -> None:
    chain = Chain.random(seed, 3, 4)
    prefix_ids = torch.tensor([prefix] * 3, dtype=torch.long) if prefix else None
    found = forced_scores(chain, ids(0, 1, 2), targets, finished=finished, prefix_ids=prefix_ids)
    for row, scores in enumerate(found):
        whole = [*targets[row], *([EOS] if finished[row] else [])]
        wanted = [chain.log_probs(row, [START, *prefix, *whole[:n]])[token] for n, token in enumerate(whole)]
        assert scores == pytest.approx(wanted, abs=1e-12)


@cache
def ending(family: str) -> Any:
    """The first of some random networks of which some outputs end and some are cut off."""
    for seed in range(50):
        torch.manual_seed(seed)
        network: Any = build_network(FAMILIES[family]).double().eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(std=0.7)
        found = generate(network, IDS, Beam(4, n_best=4), max_new_tokens=6, token_mask=REAL)
        if len({h.finished for row in found for h in row}) == 2:
            return network
    raise AssertionError("no random network of fifty ends some of its outputs")


@pytest.mark.parametrize("strategy", [Greedy(), Beam(4, 0.6, 4), Beam(4, 1.0, 4, groups=2, diversity=0.5)], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_h9_h11_a_beams_scores_are_recomputed(family: str, strategy: Any) -> None:
    """Every output of an n-best list, token by token, on every family; they sum to its log-probability."""
    network = ending(family)
    found = generate(network, IDS, strategy, max_new_tokens=6, token_mask=REAL)
    for rank in range(max(map(len, found))):
        rows = [row for row in range(3) if rank < len(found[row])]
        some = [found[row][rank] for row in rows]
        ended = [h.finished for h in some]
        scores = forced_scores(network, IDS[rows], [h.ids for h in some], token_mask=REAL[rows], finished=ended)
        for one, forced in zip(some, scores):
            assert forced == pytest.approx(one.token_scores, abs=1e-9)
            assert sum(forced) == pytest.approx(one.log_prob, abs=1e-9)


def test_h11_what_does_not_fit_is_refused() -> None:
    chain = Chain.random(0, 2, 4)
    for said, targets, finished in (
        ("`targets` gives one output a row: got 1 for 2 rows", [[2]], False),
        ("`finished` must give one value a row: got 1 for 2 rows", [[2], [2]], [True]),
        ("`targets` hold ids from 0 to 3, the vocabulary: got 9", [[2], [9]], False),
    ):
        fails(ValueError, said, forced_scores, chain, ids(0, 1), targets, finished=finished)
    assert forced_scores(chain, ids(0, 1), [[], []], finished=False) == [[], []]


CONFIG = NetworkConfig(vocab_size=23, d_model=16, d_ff=24, n_heads=2, n_layers=1, dropout=0.0)
RECURRENT = replace(CONFIG, architecture="recurrent-seq2seq", recurrent=RecurrentConfig())
STRATEGIES: list[Any] = [Greedy(), Beam(3), Beam(4, groups=2, diversity=0.5), Sample(), Sample(temperature=0.0)]
STRATEGIES += [Sample(top_k=4, n=2), MBR("chrf", Sample(n=3)), MBR("chrf", Beam(3, n_best=3))]
SOURCE = torch.tensor([[5, 6, 7], [8, 9, 4]])


def broken(config: NetworkConfig) -> Any:
    """A network with one NaN in one weight."""
    torch.manual_seed(0)
    network = build_network(config).eval()
    matrices = [one for one in network.parameters() if one.dim() > 1]
    with torch.no_grad():
        matrices[-1].view(-1)[3] = torch.nan
    return network


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("how", ["plain", "fast", "graph", "decoder", "recurrent"])
def test_w9_a_network_with_a_nan_weight_is_refused_by_every_strategy(strategy: Any, how: str) -> None:
    config = {"decoder": replace(CONFIG, architecture="decoder"), "recurrent": RECURRENT}.get(how, CONFIG)
    network = broken(config)
    step_function = {"fast": FastStepFunction, "graph": GraphStepFunction}.get(how, lambda one: one)(network)
    with pytest.raises(AtentoError, match=r"gave no distribution over token 1 of output . of the batch"):
        generate(step_function, SOURCE, strategy, max_new_tokens=6, seed=1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_w9_the_message_names_the_step_and_the_output(strategy: Any, place: int, bad: float) -> None:
    """The second sentence breaks at its third token; one bad logit is enough, or a row of nothing but -inf."""
    chain = Chain.random(3, 2, 6)
    chain.logits[:, :, :, chain.eos_id] = -50.0  # no output ends before
    if bad == -float("inf"):
        chain.logits[1, 3] = bad
    else:
        chain.logits[1, 3, :, place] = bad
    with pytest.raises(AtentoError, match="no distribution over token 3 of output 2 of the batch"):
        generate(chain, torch.tensor([[0], [1]]), strategy, max_new_tokens=6, seed=1)


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3), Sample()], ids=repr)
@pytest.mark.parametrize("rule", [RepetitionPenalty(1.3), NoRepeatNGrams(1)])
def test_w9_rules_do_not_hide_it(strategy: Any, rule: Any) -> None:
    with pytest.raises(AtentoError, match="a logit is NaN or infinite"):
        generate(broken(CONFIG), SOURCE, strategy, max_new_tokens=6, seed=1, rules=[rule])


def test_w9_what_is_not_a_search_and_the_last_step_say_it_too() -> None:
    network = broken(CONFIG)
    fails(AtentoError, "token 1 of output 1", next, stream(network, SOURCE[:1], Greedy(), max_new_tokens=3))
    for step_function in (network, FastStepFunction(network)):
        fails(AtentoError, "token 1 of output 1", forced_scores, step_function, SOURCE, [[5, 6], [7]])
    fails(AtentoError, "token 1 of output 1", exact_search, network, SOURCE[:1], max_new_tokens=3)

    def predict(ids: Tensor) -> Tensor:
        logits = nn.functional.one_hot(ids, 23).double()
        logits[1, 2, 4] = torch.nan
        return logits

    fails(AtentoError, "token 3 of output 2", mask_predict, predict, torch.full((2, 4), 22), 22, iterations=2)
    chain = Chain.random(3, 1, 6)
    chain.logits[:, :, :, chain.eos_id] = -50.0
    chain.logits[0, 2] = float("nan")  # a start token and one more behind it
    for strategy in STRATEGIES:
        generate(chain, torch.tensor([[0]]), strategy, max_new_tokens=1, seed=1)
        with pytest.raises(AtentoError, match="token 2 of output 1"):
            generate(chain, torch.tensor([[0]]), strategy, max_new_tokens=2, seed=1)
