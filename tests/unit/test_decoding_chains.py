"""Decoding toy chains: exhaustive search, a slow reference, hand-worked examples, limits, independence of rows."""

import math
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.decoding import Beam, Greedy, Hypothesis, generate
from failing import fails

EOS, START = 1, 0
STATES, LONGEST = 97, 12


@dataclass
class ChainState:
    """Which sentence each row is of, a code of the whole history of each row, and its length."""

    sentence: Tensor
    code: Tensor
    length: int

    def select(self, rows: Tensor) -> "ChainState":
        return ChainState(self.sentence[rows], self.code[rows], self.length)


class Chain:
    """A toy whose next logits depend on sentence, length and whole history by a code, so that no two outputs tie."""

    start_id, eos_id, pad_id = START, EOS, 0

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits  # (sentences, LONGEST, STATES, V)

    @classmethod
    def random(cls, seed: int, sentences: int, vocab_size: int, spread: float = 1.5) -> "Chain":
        g = torch.Generator().manual_seed(seed)
        return cls(spread * torch.randn(sentences, LONGEST, STATES, vocab_size, generator=g, dtype=torch.float64))

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> ChainState:
        return ChainState(ids[:, 0], torch.zeros(ids.shape[0], dtype=torch.long), 0)

    def step(self, tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        code, length = state.code, state.length
        for column in tokens.view(len(code), -1).unbind(1):
            code, length = (code * 31 + column + 1) % STATES, length + 1
        return self.logits[state.sentence, length, code], ChainState(state.sentence, code, length)

    def log_probs(self, sentence: int, history: list[int]) -> list[float]:
        """The same in plain Python."""
        code = 0
        for token in history:
            code = (code * 31 + token + 1) % STATES
        row = self.logits[sentence, len(history), code].tolist()
        log_z = math.log(sum(math.exp(value) for value in row))
        return [value - log_z for value in row]


def ids(*sentences: int) -> Tensor:
    return torch.tensor(sentences)[:, None]


def entry(tokens: list[int], scores: list[float], finished: bool, penalty: float) -> Hypothesis:
    total = sum(scores)
    return Hypothesis(tokens, total / max(1, len(scores)) ** penalty, total, scores, finished)


def assert_same(got: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [(h.ids, h.finished) for h in got] == [(h.ids, h.finished) for h in expected]
    for one, other in zip(got, expected):
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-9)
        assert one.score == pytest.approx(other.score, abs=1e-9)
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-9)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("vocab_size", "most"), [(3, 3), (3, 4), (4, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_h6_a_full_beam_finds_the_true_optimum(seed: int, vocab_size: int, most: int, penalty: float) -> None:
    """k = V^T: the best and the n-best of all outputs there are, for every length penalty."""
    chain = Chain.random(seed, 2, vocab_size)
    words = [token for token in range(vocab_size) if token != EOS]
    strategy = Beam(vocab_size**most, penalty, n_best=5)
    found = generate(chain, ids(0, 1), strategy, max_new_tokens=most)
    for sentence in (0, 1):
        everything = []
        for length in range(most):
            for tokens in product(words, repeat=length):
                scores = [chain.log_probs(sentence, [START, *tokens[:n]])[t] for n, t in enumerate((*tokens, EOS))]
                everything.append(entry(list(tokens), scores, True, penalty))
        everything.sort(key=lambda hypothesis: -hypothesis.score)
        assert_same(found[sentence], everything[:5])


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=7),
    strategy=st.sampled_from([Greedy(), Beam(1), Beam(3, 1.0, 2), Beam(4, 0.5, 4, "shrinking")]),
    limit=st.integers(1, 8),
)
def test_h6_v9_a_row_is_the_same_in_any_batch(seed: int, order: list[int], strategy: Greedy | Beam, limit: int) -> None:
    """Bit for bit: sentences that end earlier leave, and the rest do not notice."""
    chain = Chain.random(seed, 5, 4)
    together = generate(chain, ids(*order), strategy, max_new_tokens=limit)
    for row, sentence in enumerate(order):
        assert together[row] == generate(chain, ids(sentence), strategy, max_new_tokens=limit)[0]


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), penalty=st.sampled_from([0.0, 0.6, 1.0]), width=st.integers(1, 5))
def test_h9_h11_scores_are_recomputable_by_forced_decoding(seed: int, penalty: float, width: int) -> None:
    """log_prob sums the steps of that very output; score divides by length ** penalty, EOS counted; best first."""
    chain = Chain.random(seed, 2, 5)
    for sentence, found in enumerate(generate(chain, ids(0, 1), Beam(width, penalty, width), max_new_tokens=6)):
        assert 1 <= len(found) <= width
        assert len({(tuple(h.ids), h.finished) for h in found}) == len(found)  # no output twice
        for h in found:
            forced = [*h.ids, EOS] if h.finished else h.ids
            steps = [chain.log_probs(sentence, [START, *forced[:t]])[token] for t, token in enumerate(forced)]
            assert h.token_scores == pytest.approx(steps, abs=1e-9) and EOS not in h.ids
            assert h.log_prob == pytest.approx(sum(steps), abs=1e-9)
            assert h.score == pytest.approx(sum(steps) / len(forced) ** penalty, abs=1e-9)
        for kind in (True, False):  # finished ones first, each kind by score
            scores = [h.score for h in found if h.finished is kind]
            assert scores == sorted(scores, reverse=True)
        assert [h.finished for h in found] == sorted((h.finished for h in found), reverse=True)


class Written:
    """A chain written by hand: history -> probabilities; a history that is not written ends at once."""

    start_id, eos_id, pad_id = START, EOS, 0

    def __init__(self, vocab_size: int, rules: dict[tuple[int, ...], dict[int, float]]) -> None:
        self.vocab_size, self.rules = vocab_size, rules

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> "Histories":
        return Histories([()] * ids.shape[0])

    def step(self, tokens: Tensor, state: "Histories") -> tuple[Tensor, "Histories"]:
        new = tokens.view(len(state.histories), -1).tolist()
        histories = [(*history, *read) for history, read in zip(state.histories, new)]
        out = torch.full((len(histories), self.vocab_size), float("-inf"), dtype=torch.float64)
        for row, history in enumerate(histories):
            for token, p in self.rules.get(history[1:], {EOS: 1.0}).items():
                out[row, token] = math.log(p)
        return out, Histories(histories)


@dataclass
class Histories:
    histories: list[tuple[int, ...]]

    def select(self, rows: Tensor) -> "Histories":
        return Histories([self.histories[row] for row in rows.tolist()])


A, C = 2, 3


def test_h7_h8_j7_stopping_rules_ends_penalties_and_the_greedy_miss() -> None:
    """k = 2. The end (.4) and "a" (.35) lead. Fixed keeps "c" (.25) in the freed place, and "c" ends surely.

    Shrinking goes on with "a" alone: a a </s> is .35·.45·.6, -2.36 in three, -.785 each, better than -.916 for the
    end at once; "c </s>" has -1.386 in two, -.693 each, and only the fixed rule sees it.
    """
    rules = {(): {EOS: 0.4, A: 0.35, C: 0.25}, (A,): {EOS: 0.1, A: 0.45, C: 0.45}, (A, A): {EOS: 0.6, A: 0.4}}
    toy = Written(4, rules)
    [[fixed]] = generate(toy, ids(0), Beam(2), max_new_tokens=5)
    [[shrinking]] = generate(toy, ids(0), Beam(2, stopping="shrinking"), max_new_tokens=5)
    assert fixed.ids == [C] and fixed.score == pytest.approx(math.log(0.25) / 2)
    assert shrinking.ids == [A, A] and shrinking.score == pytest.approx(math.log(0.35 * 0.45 * 0.6) / 3)
    # then the shrunk beam is empty, and nothing goes on (S2: until k = 0)
    toy = Written(4, {(): {A: 0.6, C: 0.4}, (A,): {EOS: 0.9, A: 0.1}, (C,): {EOS: 0.9, A: 0.1}})
    [found] = generate(toy, ids(0), Beam(2, 0.0, 2, "shrinking"), max_new_tokens=5)
    assert [(h.ids, h.finished) for h in found] == [([A], True), ([C], True)]
    assert [h.log_prob for h in found] == pytest.approx([math.log(0.54), math.log(0.36)])
    # k = 2, three ends (.27, .26, .08) between "c c" (.32) and "a a" (.06), which has the second slot all the same
    rules = {(): {A: 0.6, C: 0.4}, (A,): {EOS: 0.46, 4: 0.44, A: 0.1}, (C,): {C: 0.8, EOS: 0.2}, (A, A): {EOS: 1.0}}
    toy = Written(5, rules | {(C,) * n: {C: 1.0} for n in (2, 3, 4)})
    [found] = generate(toy, ids(0), Beam(2, 0.0, 2), max_new_tokens=5, eos_id=(EOS, 4))
    assert [(h.ids, h.finished) for h in found] == [([A], True), ([A, A], True)]
    # "</s>" has .4, "a a </s>" .6·.8·.8 = .384: short wins by sum, long by mean
    toy = Written(3, {(): {EOS: 0.4, A: 0.6}, (A,): {EOS: 0.2, A: 0.8}, (A, A): {EOS: 0.8, A: 0.2}})
    [[short]] = generate(toy, ids(0), Beam(3, length_penalty=0.0), max_new_tokens=4)
    [[long]] = generate(toy, ids(0), Beam(3, length_penalty=1.0), max_new_tokens=4)
    assert short.ids == [] and short.score == pytest.approx(math.log(0.4))
    assert long.ids == [A, A] and long.score == pytest.approx(math.log(0.384) / 3)
    toy = Written(5, {(): {A: 0.6, C: 0.4}, (A,): {EOS: 0.4, A: 0.3, 4: 0.3}, (C,): {EOS: 0.9, A: 0.1}})
    [[greedy]] = generate(toy, ids(0), Greedy(), max_new_tokens=3)
    [[beam]] = generate(toy, ids(0), Beam(2, 0.0), max_new_tokens=3)
    assert greedy.ids == [A] and math.exp(greedy.log_prob) == pytest.approx(0.24)
    assert beam.ids == [C] and math.exp(beam.log_prob) == pytest.approx(0.36)


def test_l4_the_beam_of_the_notes_step_by_step() -> None:
    """ "Je −1.2 / Tu −1.5 → Je suis −2.0 / Je vais −2.3"."""
    je, tu, suis, vais = 2, 3, 4, 5
    rest = (1 - math.exp(-1.2) - math.exp(-1.5)) / 3
    first = {je: math.exp(-1.2), tu: math.exp(-1.5), 6: rest, 7: rest, 8: rest}
    rest = (1 - math.exp(-0.8) - math.exp(-1.1)) / 3
    after_je = {suis: math.exp(-0.8), vais: math.exp(-1.1), 6: rest, 7: rest, 8: rest}
    toy = Written(9, {(): first, (je,): after_je, (tu,): dict.fromkeys(range(2, 9), 1 / 7)})
    for steps, expected in ((1, {(je,): -1.2, (tu,): -1.5}), (2, {(je, suis): -2.0, (je, vais): -2.3})):
        [found] = generate(toy, ids(0), Beam(2, 0.0, 2), max_new_tokens=steps)
        assert [tuple(h.ids) for h in found] == list(expected)
        assert [h.log_prob for h in found] == pytest.approx(list(expected.values()), abs=1e-9)
        assert not any(h.finished for h in found)


def test_unfinished_outputs_only_fill_up_and_there_may_be_fewer_than_asked_for() -> None:
    """A finished output stands before any that the limit cut off, however likely that one was."""
    toy = Written(3, {(): {EOS: 0.1, A: 0.9}, (A,): {A: 1.0}, (A, A): {A: 1.0}})
    [found] = generate(toy, ids(0), Beam(2, 0.0, 2), max_new_tokens=2)
    assert [(h.ids, h.finished) for h in found] == [([], True), ([A, A], False)]
    toy = Written(3, {(): {A: 1.0}})
    [found] = generate(toy, ids(0), Beam(4, 1.0, 4), max_new_tokens=5)
    assert [h.ids for h in found] == [[A]] and found[0].log_prob == 0.0


@pytest.mark.parametrize("strategy", [Greedy(), Beam(2, n_best=2)])
def test_limits_of_each_row(strategy: Greedy | Beam) -> None:
    """EOS counts as one of the new tokens; 0 writes nothing; without an end token every row runs to its limit."""
    chain = Chain.random(3, 4, 4)
    found = generate(chain, ids(0, 1, 2, 3), strategy, max_new_tokens=[0, 1, 5, 3], eos_id=())
    assert [len(row[0].ids) for row in found] == [0, 1, 5, 3] and not any(row[0].finished for row in found)
    assert found[0] == [Hypothesis([], 0.0, 0.0, [], False)]
    ended = generate(chain, ids(0, 1, 2, 3), strategy, max_new_tokens=4)
    assert all(len(h.token_scores) == len(h.ids) + h.finished <= 4 for row in ended for h in row)
    assert generate(chain, ids(0)[:0], strategy, max_new_tokens=3) == []
    assert generate(chain, ids(0, 1), strategy, max_new_tokens=[0, 0])[1][0].ids == []


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3)])
def test_any_of_several_end_tokens_ends_and_a_prefix_is_not_repeated(strategy: Greedy | Beam) -> None:
    toy = Written(5, {(): {A: 0.9, C: 0.1}, (A,): {4: 0.8, C: 0.2}, (A, 4): {C: 1.0}, (A, 4, C): {EOS: 1.0}})
    [[usual]] = generate(toy, ids(0), strategy, max_new_tokens=6)
    [[early]] = generate(toy, ids(0), strategy, max_new_tokens=6, eos_id=(EOS, 4))
    [[other]] = generate(toy, ids(0), strategy, max_new_tokens=6, eos_id=C)
    assert usual.ids == [A, 4, C] and early.ids == [A] and other.ids in ([A, 4], [])
    assert usual.finished and early.finished and other.finished
    # each row may have its own; what is written is what follows it
    toy = Written(5, {(): {A: 1.0}, (A,): {A: 1.0}, (C, C): {4: 1.0}, (A, C): {A: 0.6, C: 0.4}})
    found = generate(toy, ids(0, 0), strategy, max_new_tokens=4, prefix_ids=torch.tensor([[C, C], [A, C]]))
    assert [row[0].ids for row in found] == [[4], [A]]
    assert found[1][0].log_prob == pytest.approx(math.log(0.6))


@pytest.mark.parametrize("strategy", [Greedy(), Beam(4, 0.0)])
def test_a_minimum_forbids_the_end_until_then(strategy: Greedy | Beam) -> None:
    toy = Written(3, {(): {EOS: 0.9, A: 0.1}, (A,): {EOS: 0.9, A: 0.1}, (A, A): {EOS: 0.9, A: 0.1}})
    for least in range(3):
        [[best]] = generate(toy, ids(0), strategy, max_new_tokens=6, min_new_tokens=least)
        assert best.ids == [A] * least and best.finished
        assert best.token_scores == pytest.approx([math.log(0.1)] * least + [math.log(0.9)])


def test_what_cannot_be_is_refused() -> None:
    for bad, message in (
        ({"width": 0}, "`width` must be at least 1: got 0"),
        ({"width": 2, "n_best": 3}, "`n_best` must lie between 1 and `width` 2: got 3"),
        ({"n_best": 0}, "`n_best` must lie between 1 and `width` 4: got 0"),
        ({"stopping": "never"}, "`stopping` must be 'fixed' or 'shrinking': got 'never'"),
    ):
        fails(ValueError, message, replace, Beam(), **bad)
    chain = Chain.random(0, 2, 4)
    fails(ValueError, "`max_new_tokens` .* 3 for 2", generate, chain, ids(0, 1), Greedy(), max_new_tokens=[1, 2, 3])
    fails(ValueError, r"unknown strategy 'int'\. Known: Beam, Greedy", generate, chain, ids(0), 3, max_new_tokens=1)
