"""Sampling: χ² against every shaped distribution, a slow sampler, any batch, limits; random numbers by place."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.decoding import Greedy, Sample, generate
from atento.decoding.choosing import row_seed, stream_key, uniform
from atento.decoding.filters import draw, shaped
from atento.decoding.rules import Banned, NoRepeatNGrams, RepetitionPenalty
from atento.decoding.trace import Trace
from atento.networks import Decoder, EncoderDecoder
from atento_lab.notes.checks.toys import EOS, Chain, random_chain

INF = float("inf")
STRATEGIES = [Sample(), Sample(temperature=0.6), Sample(temperature=1.8), Sample(top_k=3), Sample(top_p=0.7)]
STRATEGIES += [Sample(min_p=0.25), Sample(typical_p=0.6)]
STRATEGIES += [Sample(temperature=1.3, top_k=6, top_p=0.9, min_p=0.1, typical_p=0.95)]


@dataclass
class Rows:
    count: int

    def select(self, rows: Tensor) -> "Rows":
        return Rows(len(rows))


class Constant:
    """A model that says the same of every next token."""

    start_id, eos_id, pad_id = 0, -1, 0

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> Rows:
        return Rows(len(ids))

    def step(self, tokens: Tensor, state: Rows) -> tuple[Tensor, Rows]:
        return self.logits.expand(len(tokens), -1), state


def chain(seed: int, vocab_size: int = 6) -> Chain:
    """A random chain whose distributions do not depend on who asks first: all are drawn now."""
    g = torch.Generator().manual_seed(seed)
    table = 1.5 * torch.randn(101, vocab_size, generator=g, dtype=torch.float64)
    return Chain(lambda source, written: table[hash((source, written)) % 101].log_softmax(dim=0), vocab_size)


def ids(*sources: int) -> Tensor:
    return torch.tensor(sources, dtype=torch.long)[:, None]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_h2_h3_h4_h5_draws_follow_the_shaped_distribution(strategy: Sample) -> None:
    """χ² of 5,000 draws: as many samples of one row, and one sample each of as many rows of one seed."""
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0, -0.4, 0.9, -1.6, 0.5], dtype=torch.float64)
    p = shaped(logits[None], strategy).exp()[0].tolist()
    expected: dict[object, float] = {(token,): share for token, share in enumerate(p)}
    toy, count = Constant(logits), 5_000
    (samples,) = generate(toy, ids(0), Sample(**vars(strategy) | {"n": count}), max_new_tokens=1, eos_id=(), seed=11)
    rows = generate(toy, torch.zeros(count, 1).long(), strategy, max_new_tokens=1, eos_id=(), seed=12)
    for found in (samples, [row[0] for row in rows]):
        assert chance(Counter(tuple(one.ids) for one in found), expected) > SIGNIFICANCE


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    seeds=st.lists(st.integers(-(2**70), 2**70), min_size=3, max_size=3),
    strategy=st.sampled_from(STRATEGIES),
    n=st.integers(1, 3),
    most=st.integers(0, 7),
    least=st.integers(0, 3),
)
def test_h2_equals_a_slow_sampler(seed: int, seeds: list[int], strategy: Sample, n: int, most: int, least: int) -> None:
    """One token after the other: a number from the hash, the first token whose cumulative sum exceeds it."""
    toy, drawn = chain(seed), Sample(**vars(strategy) | {"n": n})
    found = generate(toy, ids(0, 1, 2), drawn, max_new_tokens=most, min_new_tokens=least, seed=seeds)
    for source in range(3):
        for number in range(n):
            key, finished = stream_key(seeds[source], number), False
            written: list[int] = []
            scores: list[float] = []
            while len(scores) < most:
                model = toy.log_probs((source,), tuple(written))
                allowed = model.clone()
                if len(scores) < least:
                    allowed[EOS] = -INF
                p = shaped(allowed[None], strategy).exp()[0].tolist()
                u = (mixed((key + (len(scores) + 1) * 0x9E3779B97F4A7C15) & BITS) >> 11) * 2.0**-53
                left, token = u * math.fsum(p), -1
                while left >= 0:
                    token += 1
                    left -= p[token]
                scores.append(float(model[token]))
                if token == EOS:
                    finished = True
                    break
                written.append(token)
            one = found[source][number]
            assert one.ids == written and one.finished == finished
            assert one.token_scores == pytest.approx(scores, abs=1e-12)  # the model's own, unfiltered
            assert one.log_prob == one.score == pytest.approx(sum(scores), abs=1e-12)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=7),
    strategy=st.sampled_from(STRATEGIES),
    n=st.integers(1, 3),
    limit=st.integers(1, 8),
)
def test_h2_a_row_draws_the_same_in_any_batch(
    seed: int, order: list[int], strategy: Sample, n: int, limit: int
) -> None:
    """Bit for bit, in any order and any company; and its first samples do not depend on how many are asked for."""
    toy, drawn = chain(seed), Sample(**vars(strategy) | {"n": n})
    together = generate(toy, ids(*order), drawn, max_new_tokens=limit, seed=[100 + one for one in order])
    for row, source in enumerate(order):
        assert together[row] == generate(toy, ids(source), drawn, max_new_tokens=limit, seed=[100 + source])[0]
        longer = Sample(**vars(strategy) | {"n": n + 2})
        (more,) = generate(toy, ids(source), longer, max_new_tokens=limit, seed=[100 + source])
        assert more[:n] == together[row]


def test_h2_line_n_of_a_file_has_its_seed_whatever_the_batches() -> None:
    toy = chain(3)
    whole = generate(toy, ids(*range(9)), Sample(n=2), max_new_tokens=6, seed=77)
    for size in (1, 2, 4):
        parts = []
        for lines in (range(start, min(9, start + size)) for start in range(0, 9, size)):
            seeds = [row_seed(77, line) for line in lines]
            parts += generate(toy, ids(*lines), Sample(n=2), max_new_tokens=6, seed=seeds)
        assert parts == whole
    assert whole != generate(toy, ids(*range(9)), Sample(n=2), max_new_tokens=6, seed=78)


def tiny(kind: str) -> EncoderDecoder | Decoder:
    config = NetworkConfig(vocab_size=13, d_model=16, d_ff=24, n_heads=2, n_layers=2, dropout=0.0)
    network = (EncoderDecoder if kind == "encoder-decoder" else Decoder)(config).double().eval()
    g = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return network


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_h2_h12_a_network_draws_the_same_in_any_batch_order_and_padding(kind: str) -> None:
    """float64; sources or prompts of several lengths, padded right or left."""
    network, g = tiny(kind), torch.Generator().manual_seed(7)
    texts = [torch.randint(4, 13, (length,), generator=g) for length in (3, 7, 1, 5, 7)]
    strategy, seeds = Sample(temperature=1.2, top_p=0.95, n=2), [50, 51, 52, 53, 54]

    def written(order: list[int], left: bool) -> list[list[tuple[list[int], bool]]]:
        batch = torch.zeros(len(order), 9, dtype=torch.long)
        real = torch.zeros(len(order), 9, dtype=torch.bool)
        for row, which in enumerate(order):
            place = slice(9 - len(texts[which]), 9) if left else slice(0, len(texts[which]))
            batch[row, place], real[row, place] = texts[which], True
        own = [seeds[which] for which in order]
        found = generate(network, batch, strategy, max_new_tokens=12, token_mask=real, seed=own)
        return [[(one.ids, one.finished) for one in row] for row in found]

    together = written([0, 1, 2, 3, 4], left=False)
    assert len({tuple(ids) for row in together for ids, _ in row}) > 5
    for which in range(5):
        assert written([which], left=False)[0] == together[which]
    assert written([4, 2, 0, 3, 1], left=False) == [together[which] for which in (4, 2, 0, 3, 1)]
    if kind == "decoder":
        assert written([0, 1, 2, 3, 4], left=True) == together


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    most=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    least=st.integers(0, 4),
    eos=st.sampled_from([(EOS,), (), (EOS, 3)]),
    rules=st.sampled_from([(), (NoRepeatNGrams(2),), (RepetitionPenalty(1.5), Banned([[2], [1, 4]]))]),
)
def test_h1_temperature_zero_is_greedy(
    seed: int, most: list[int], least: int, eos: tuple[int, ...], rules: tuple[object, ...]
) -> None:
    toy = chain(seed)
    options = {"max_new_tokens": most, "min_new_tokens": least, "eos_id": eos, "rules": rules}
    greedy = generate(toy, ids(0, 1, 2), Greedy(), **options)  # type: ignore[arg-type]
    cold = generate(toy, ids(0, 1, 2), Sample(temperature=0.0, top_k=4, top_p=0.3, n=2), **options)  # type: ignore[arg-type]
    assert [[one, one] for (one,) in greedy] == cold


def test_h1_temperature_zero_is_greedy_in_float32_and_no_row_gives_nothing() -> None:
    network = tiny("encoder-decoder").float()
    source = torch.randint(4, 13, (12, 6), generator=torch.Generator().manual_seed(8))
    greedy = generate(network, source, Greedy(), max_new_tokens=10)
    assert generate(network, source, Sample(temperature=0.0), max_new_tokens=10) == greedy
    assert generate(chain(4), ids(), Sample(), max_new_tokens=3, seed=1) == []


class Prefixed(Chain):
    """A chain whose first step may read several tokens a row."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        for column in tokens.view(len(tokens), -1).unbind(1):
            scores, state = super().step(column, state)
        return scores, state


def test_a_prefix_is_not_repeated_and_a_row_without_tokens_left_ends_alone() -> None:
    toy, prefix = chain(5), torch.tensor([[1, 2], [3, 3]])
    reader = Prefixed(toy.log_probs, toy.vocab_size)
    found = generate(reader, ids(0, 1), Sample(n=3), max_new_tokens=4, prefix_ids=prefix, seed=2)
    assert len({tuple(one.ids) for row in found for one in row}) > 2
    for source, row in enumerate(found):
        before = tuple(prefix[source].tolist())
        for one in row:
            tokens = (*one.ids, EOS) if one.finished else tuple(one.ids)
            steps = [float(toy.log_probs((source,), (*before, *tokens[:t]))[token]) for t, token in enumerate(tokens)]
            assert one.token_scores == pytest.approx(steps)
    # no token twice, of two: after both are written only EOS is left, and least forbids it
    toy = Constant(torch.zeros(3, dtype=torch.float64))
    rules = [Banned([[0], [1, 2]]), NoRepeatNGrams(1)]
    found = generate(toy, ids(*range(20)), Sample(), max_new_tokens=6, eos_id=0, rules=rules, seed=3)
    written = [row[0].ids for row in found]
    assert {tuple(one) for one in written} == {(1,), (2, 1)}  # after 1 neither 1 nor 2 may come
    assert all(not row[0].finished and len(row[0].token_scores) == len(row[0].ids) for row in found)
    trace = Trace()
    nothing = generate(toy, ids(0, 1), Sample(), max_new_tokens=6, rules=[Banned([[0], [1], [2]])], seed=3, trace=trace)
    assert [row[0].ids for row in nothing] == [[], []]


def test_without_a_seed_chance_decides_and_pytorchs_seed_fixes_it() -> None:
    toy = Constant(torch.zeros(50, dtype=torch.float64))

    def drawn() -> list[int]:
        return generate(toy, ids(0), Sample(), max_new_tokens=8, eos_id=())[0][0].ids

    torch.manual_seed(1)
    one, other = drawn(), drawn()
    torch.manual_seed(1)
    assert one != other and drawn() == one
    torch.manual_seed(2)
    before = torch.get_rng_state()
    generate(chain(6), ids(0), Greedy(), max_new_tokens=3)
    generate(chain(6), ids(0), Sample(), max_new_tokens=3, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_come_from_no_support_of_probability_zero() -> None:
    """A token of probability 0 in front, between and behind the others."""
    toy = Constant(torch.tensor([-INF, 0.0, -INF, -INF, 0.0, -INF]))
    (found,) = generate(toy, ids(0), Sample(n=500), max_new_tokens=1, eos_id=(), seed=4)
    assert {one.ids[0] for one in found} == {1, 4}
    # SplitMix64 hashes 0 to 0: that key's first number is exactly 0
    key = torch.tensor([2**64 - 0x9E3779B97F4A7C15])
    assert float(uniform(key, 0)) == 0
    token = int(draw(torch.tensor([[-INF, -INF, 0.0, 1.0]], dtype=torch.float64), Sample(), key, 0))
    assert token == 2


def test_m7_the_trace_tells_the_distribution_before_and_after_each_filter() -> None:
    toy, trace = chain(7), Trace()
    strategy = Sample(temperature=0.5, top_k=3, n=2)
    found = generate(toy, ids(0), strategy, max_new_tokens=4, rules=[Banned([[2]])], seed=9, trace=trace)
    (run,) = trace.runs
    assert run.strategy == "sample" and run.hypotheses == found
    first = run.steps[0]
    assert [one.filter for one in first.distributions if one.parent == 0] == [
        "model", "banned", "temperature 0.5", "top_k 3"
    ]  # fmt: skip
    assert [one.left for one in first.distributions if one.parent == 0] == [6, 5, 5, 3]
    taken = [one for one in first.candidates if one.alive]
    assert [one.token for one in taken] == [(one.ids or [EOS])[0] for one in found[0]]
    with_none = generate(toy, ids(0), strategy, max_new_tokens=4, rules=[Banned([[2]])], seed=9)
    assert with_none == found


def test_what_cannot_be_sampled_is_refused_and_numbers_of_numpy_are_numbers() -> None:
    for options, message in (
        ({"seed": [1, 2]}, "`seed` gives one number, or one a row: got 2 for 3 rows"),
        ({"max_new_tokens": [1, 2]}, "`max_new_tokens` gives one number a row: got 2 for 3 rows"),
        ({"max_new_tokens": -1}, "`max_new_tokens` must not be negative: got -1"),
        ({"min_new_tokens": -1}, "`min_new_tokens` must not be negative: got -1"),
        ({"required": [[[1]]]}, "`required` needs a beam search: got Sample"),
        ({"rules": ["no"]}, "`rules` must be functions of scores and what is written: got 'no'"),
        ({"token_mask": torch.ones(3, 2).bool()}, r"`token_mask` must be boolean, as large as `ids` \(3, 1\)"),
        ({"token_mask": torch.ones(3, 1)}, "`token_mask` must be boolean, .*: got torch.float32"),
        ({"prefix_ids": torch.ones(2, 1).long()}, r"`prefix_ids` must be of shape \(B,P\), B 3: got \(2, 1\)"),
        ({"prefix_ids": [[1], [1], [1]]}, "`prefix_ids` must be a tensor: got list"),
        ({"token_mask": [[True]] * 3}, "`token_mask` must be a tensor: got list"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            generate(chain(8), ids(0, 1, 2), Sample(), **{"max_new_tokens": 2} | options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"`ids` must be of shape \(B,S\): got \(3,\)"):
            generate(random_chain(4), torch.tensor([1, 2, 3]), Sample(), max_new_tokens=2)
    for bad, message in (
        ({"temperature": -0.1}, "`temperature` must be finite and not negative: got -0.1"),
        ({"top_k": -1}, "`top_k` must be a whole number, 0 or more: got -1"),
        ({"top_p": 0.0}, r"`top_p` must lie in \(0, 1\]: got 0.0"),
        ({"typical_p": 1.5}, r"`typical_p` must lie in \(0, 1\]: got 1.5"),
        ({"min_p": -1.0}, r"`min_p` must lie in \[0, 1\]: got -1.0"),
        ({"n": 0}, "`n` must be at least 1: got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Sample(**bad)  # type: ignore[arg-type]
    given: Any = {"max_new_tokens": np.int64(4), "seed": np.int32(7), "eos_id": np.int64(EOS)}
    plain: Any = {name: int(value) for name, value in given.items()}
    rows = ids(0, 1, 2)
    assert generate(chain(8), rows, Sample(), **given) == generate(chain(8), rows, Sample(), **plain)


BITS = (1 << 64) - 1
SIGNIFICANCE = 1e-3  # of each χ², with the seeds written here


def chance(counts: Counter[object], expected: dict[object, float]) -> float:
    """Pearson's p-value; outcomes that cannot be must not have been."""
    assert all(expected.get(outcome, 0) > 0 for outcome in counts)
    cells = [(counts[outcome], counts.total() * p) for outcome, p in expected.items() if p > 0]
    assert min(mean for _, mean in cells) >= 5, "too few draws for a χ²"
    return float(chisquare(*zip(*cells)).pvalue) if len(cells) > 1 else 1.0


def test_h2_the_numbers_are_those_of_splitmix64() -> None:
    """The first five outputs for seed 1234567, as other implementations print them."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    published.append(16408922859458223821)
    found = [float(uniform(torch.tensor([1234567]), position)) for position in range(5)]
    assert found == [(number >> 11) * 2.0**-53 for number in published]


def mixed(x: int) -> int:
    """SplitMix64's finaliser in Python's integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & BITS
    return x ^ (x >> 31)


@pytest.mark.parametrize("kind", ["positions", "rows", "samples", "seeds"])
def test_numbers_are_uniform_and_neighbours_unrelated(kind: str) -> None:
    """Over positions, over the rows of a batch, over a row's samples and over neighbouring seeds."""
    count = 5000 if kind == "positions" else 20_000  # which are drawn one by one
    if kind == "positions":
        key = torch.tensor([stream_key(row_seed(7, 0), 0)])
        u = torch.cat([uniform(key, position) for position in range(count)])
    else:
        seeds = [{"rows": row_seed(7, i), "samples": row_seed(7, 0)}.get(kind, i) for i in range(count)]
        numbers = range(count) if kind == "samples" else [0] * count
        u = uniform(torch.tensor([stream_key(*place) for place in zip(seeds, numbers)]), 0)
    cells: Counter[object] = Counter((u * 16).long().tolist())
    assert chance(cells, dict.fromkeys(range(16), 1 / 16)) > SIGNIFICANCE
    pairs: Counter[object] = Counter(zip((u[:-1] * 6).long().tolist(), (u[1:] * 6).long().tolist()))
    assert chance(pairs, {(a, b): 1 / 36 for a in range(6) for b in range(6)}) > SIGNIFICANCE


def test_rows_and_streams_have_numbers_of_their_own() -> None:
    rows = {row_seed(seed, row) for seed in (0, 1, -1, 2**64 + 5) for row in range(1000)}
    keys = {stream_key(seed, number) & BITS for seed in (0, 1, -1) for number in range(1000)}
    assert len(rows) == 4000 and len(keys) == 3000 and not rows & keys
    assert all(0 <= seed <= BITS for seed in rows) and row_seed(3, 4) == row_seed(3 + 2**64, 4)
