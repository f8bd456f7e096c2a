"""Decoding toy chains: a slow reference, hand-worked examples, limits, rows alone; n best texts are different (W17)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import SpecialIds
from atento.decoding import MBR, Beam, Greedy, Hypothesis, Sample, generate
from atento.tasks.text_generation import GeneratedText, TextGenerator
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


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3)])
def test_any_of_several_end_tokens_ends_and_a_prefix_is_not_repeated(strategy: Greedy | Beam) -> None:
    toy = Written(5, {(): {A: 0.9, C: 0.1}, (A,): {4: 0.8, C: 0.2}, (A, 4): {C: 1.0}, (A, 4, C): {EOS: 1.0}})
    [[usual]] = generate(toy, ids(0), strategy, max_new_tokens=6)
    [[early]] = generate(toy, ids(0), strategy, max_new_tokens=6, eos_id=(EOS, 4))
    [[other]] = generate(toy, ids(0), strategy, max_new_tokens=6, eos_id=C)
    assert usual.ids == [A, 4, C] and early.ids == [A] and other.ids in ([A, 4], [])
    assert usual.finished and early.finished and other.finished
    chain = Chain.random(3, 2, 4)  # no row, and rows that may write nothing
    assert generate(chain, ids(0)[:0], strategy, max_new_tokens=3) == []
    assert generate(chain, ids(0, 1), strategy, max_new_tokens=[0, 0])[1][0].ids == []
    # each row may have a prefix of its own; what is written is what follows it
    toy = Written(5, {(): {A: 1.0}, (A,): {A: 1.0}, (C, C): {4: 1.0}, (A, C): {A: 0.6, C: 0.4}})
    found = generate(toy, ids(0, 0), strategy, max_new_tokens=4, prefix_ids=torch.tensor([[C, C], [A, C]]))
    assert [row[0].ids for row in found] == [[4], [A]]
    assert found[1][0].log_prob == pytest.approx(math.log(0.6))


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


CONFIG = NetworkConfig(vocab_size=6, ids=SpecialIds(eos=EOS))
SOURCES = [[0], [1], [2]]
MOST = 4


def spelled(ids: list[int]) -> str:
    """Tokens 2 and 3 are the letter b, 4 and 5 the letter c, 0 an a: most texts can be spelled in several ways."""
    return "".join("aabbcc"[token] for token in ids)


def written(chain: Chain, text: Callable[[list[int]], str] = spelled, **options: int) -> list[list[GeneratedText]]:
    decoding = DecodingConfig(max_new_tokens=MOST, **options)  # type: ignore[arg-type]
    return TextGenerator(chain, CONFIG, decoding, text, torch.device("cpu")).write(SOURCES)


def ranked_texts(chain: Chain, sentence: int) -> list[str]:
    """Every text that an output of at most `MOST` tokens spells, by its best spelling, found by listing all."""
    scores: dict[str, float] = {}
    for length in range(MOST):
        for ids in product([0, 2, 3, 4, 5], repeat=length):
            history, total = [chain.start_id], 0.0
            for token in (*ids, EOS):
                total += chain.log_probs(sentence, history)[token]
                history.append(token)
            one = total / (length + 1)
            scores[spelled(list(ids))] = max(scores.get(spelled(list(ids)), one), one)
    return sorted(scores, key=lambda text: -scores[text])


def test_w17_no_text_stands_twice_and_the_first_is_that_of_one_output() -> None:
    alike = 0
    for seed in range(20):
        chain = Chain.random(seed, 3, 6)
        plain = generate(chain, torch.tensor(SOURCES), Beam(4, n_best=4), max_new_tokens=MOST)
        for row, outputs in enumerate(written(chain, beam=4, n_best=4)):
            texts = [one.text for one in outputs]
            before = [spelled(one.ids) for one in plain[row]]
            assert len(set(texts)) == len(texts) == 4
            assert texts[0] == before[0] and set(before) <= set(texts)  # what the beam found stays, its best first
            ranks = [(one.hypothesis.finished, one.hypothesis.score) for one in outputs[1:]]
            assert ranks == sorted(ranks, reverse=True)  # the others by their scores, whichever beam found them
            assert [one.text for one in outputs] == [spelled(one.hypothesis.ids) for one in outputs]
            alike += len(set(before)) < 4
        assert [row[0] for row in written(chain, beam=4, n_best=4)] == [row[0] for row in written(chain, beam=4)]
    assert alike > 3  # the beam alone found one text twice


def test_w17_a_wide_beam_and_least_risk_give_different_texts_and_fewer_where_there_are_no_more() -> None:
    for seed in range(4):
        chain = Chain.random(seed, 3, 6)
        for row, outputs in enumerate(written(chain, beam=1024, n_best=10)):
            finished = [one.text for one in outputs if one.hypothesis.finished]
            assert finished == ranked_texts(chain, row)[: len(finished)] and len(finished) == 10
    chain = Chain.random(1, 3, 6)
    for outputs in written(chain, lambda ids: "same", beam=4, n_best=3):
        assert [one.text for one in outputs] == ["same"]
    chain = Chain.random(2, 3, 6)
    outputs = written(chain, beam=4, n_best=12, sample=True)
    drawn = generate(chain, torch.tensor(SOURCES), Sample(n=12), max_new_tokens=MOST, seed=1)
    assert [[one.hypothesis.ids for one in row] for row in outputs] == [[one.ids for one in row] for row in drawn]
    assert any(len({one.text for one in row}) < 12 for row in outputs)
    for weights in ("uniform", "model"):
        chain = Chain.random(3, 3, 6)
        strategy = MBR("chrf", Sample(n=24), text=spelled, n_best=24, weights=weights)  # type: ignore[arg-type]
        for row in generate(chain, torch.tensor(SOURCES), strategy, max_new_tokens=MOST, seed=2):
            texts = [spelled(one.ids) for one in row]
            assert len(set(texts)) == len(texts) > 3
            assert [one.score for one in row] == sorted((one.score for one in row), reverse=True)
