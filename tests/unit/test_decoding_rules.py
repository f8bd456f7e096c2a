"""Rules on scores, each against plain lists and hand-worked cases; strings that stop an output."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.contract import Rule, Written
from atento.decoding.rules import (
    Banned,
    CountPenalty,
    Forced,
    ForcedLast,
    NoRepeatNGrams,
    RepetitionPenalty,
    StopStrings,
    SuppressedAt,
    SuppressedBehind,
)
from atento_lab.notes.checks.toys import EOS
from failing import fails
from test_decoding_sampling import chain, ids

INF = float("inf")
V = 5
FEW = st.sampled_from([0, 1, 1, 2, V - 1])  # so that much repeats
BATCHES = st.integers(0, 6).flatmap(lambda n: st.lists(st.lists(FEW, min_size=n, max_size=n), min_size=1, max_size=4))
PROMPTS = st.lists(st.lists(FEW | st.just(V + 2), max_size=5), min_size=4, max_size=4)  # a source may hold ids past V


def standing(rows: list[list[int]], prompts: Sequence[Sequence[int]] = ()) -> Written:
    return Written(torch.tensor(rows, dtype=torch.long).view(len(rows), -1), list(range(len(rows))), prompts)


def some_scores(count: int) -> Tensor:
    scores = torch.randn(count, V, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    scores[0, 1] = -INF
    return scores


@settings(max_examples=50)
@given(rows=BATCHES, prompts=PROMPTS, penalty=st.sampled_from([0.5, 1.0, 1.7]), prompt=st.booleans())
def test_penalties_equal_loops(rows: list[list[int]], prompts: list[list[int]], penalty: float, prompt: bool) -> None:
    scores = some_scores(len(rows))
    found = RepetitionPenalty(penalty, prompt)(scores, standing(rows, prompts))
    for row, written in enumerate(rows):
        for token in range(V):
            score = float(scores[row, token])
            if token in written or (prompt and token in prompts[row]):
                score = score * penalty if score < 0 else score / penalty
            assert float(found[row, token]) == score


def test_count_penalty_by_hand() -> None:
    """OpenAI's definition: the frequency penalty for each occurrence, the presence penalty once."""
    scores = torch.tensor([[2.0, -1.0, 0.0, -INF, 3.0], [2.0, -1.0, 0.0, -INF, 3.0]])
    penalised = CountPenalty(0.5, 0.25)(scores, standing([[0, 1, 0, 3], [4, 4, 4, 4]]))
    assert penalised.tolist() == [[1.0, -1.75, 0.0, -INF, 3.0], [2.0, -1.0, 0.0, -INF, 1.5]]
    assert scores.tolist()[0] == [2.0, -1.0, 0.0, -INF, 3.0]
    assert CountPenalty(-1.0)(scores[:1], standing([[1, 1]])).tolist() == [[2.0, 0.0, 0.0, -INF, 3.0]]


@settings(max_examples=75)
@given(rows=BATCHES, prompts=PROMPTS, n=st.integers(1, 4), prompt=st.booleans())
@example(rows=[[2, 1], [0, 0]], prompts=[[1], [0, 1, 2]], n=2, prompt=True)
def test_no_gram_twice_equals_loops(rows: list[list[int]], prompts: list[list[int]], n: int, prompt: bool) -> None:
    scores = some_scores(len(rows))
    found = NoRepeatNGrams(n, prompt)(scores, standing(rows, prompts))
    for row, written in enumerate(rows):
        before = [*(prompts[row] if prompt else []), *written]
        grams = {tuple(before[i : i + n]) for i in range(len(before) - n + 1)}
        for token in range(V):
            again = (*before[len(before) - n + 1 :], token) in grams if len(before) >= n else False
            assert float(found[row, token]) == (-INF if again else float(scores[row, token]))


@settings(max_examples=50)
@given(rows=BATCHES, sequences=st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=4), max_size=5))
def test_banned_sequences_equal_loops(rows: list[list[int]], sequences: list[list[int]]) -> None:
    scores = some_scores(len(rows))
    found = Banned(sequences)(scores, standing(rows))
    for row, written in enumerate(rows):
        for token in range(V):
            tokens = [*written, token]
            hit = any(tokens[-len(s) :] == s for s in sequences)
            assert float(found[row, token]) == (-INF if hit else float(scores[row, token]))


def test_forced_tokens_keep_their_score_and_come_at_each_rows_own_limit() -> None:
    scores = some_scores(2)
    rule = Forced({1: 3, 2: 1})
    assert rule(scores, standing([[], []])) is scores
    there = rule(scores, standing([[0], [2]]))
    assert torch.equal(there[:, 3], scores[:, 3]) and int((there > -INF).sum()) == 2
    lifted = rule(scores, standing([[0, 0], [0, 0]]))
    assert lifted[0].tolist() == [-INF, 0.0, -INF, -INF, -INF] and float(lifted[1, 1]) == float(scores[1, 1])
    certain = Forced({1: 3, 2: 1}, certain=True)  # the first of its steps alone
    assert certain(scores, standing([[0], [2]]))[:, 3].tolist() == [0.0, 0.0]
    assert torch.equal(certain(scores, standing([[0, 0], [0, 0]])), lifted)
    each = Forced([{0: 2, 1: 3}, {1: 3}], certain=True)(scores, standing([[2], [4]]))  # the first step of each row
    assert each[:, 3].tolist() == [float(scores[0, 3]), 0.0]
    scores = some_scores(3)
    found = ForcedLast(2, [3, 4, 3])(scores, standing([[0, 0], [1, 1], [0, 1]]))
    assert torch.equal(found[1], scores[1])
    assert [(row > -INF).nonzero().flatten().tolist() for row in found[::2]] == [[2], [2]]
    assert ForcedLast(2, 9)(scores, standing([[0], [1], [0]])) is scores


def test_rows_with_rules_of_their_own_are_as_each_row_alone() -> None:
    """Also in another order than that of the request, and twice, as the rows of a beam are."""
    scores, steps = some_scores(5), [1, -1, 0]
    at: list[dict[int, int]] = [{0: 1, 1: 3}, {}, {1: 4}]
    rows = [2, 0, 1, 0, 2]
    for length in range(3):
        written = torch.zeros(5, length, dtype=torch.long)
        several = Written(written, rows, [[]] * 3)
        forced, suppressed = Forced(at)(scores, several), SuppressedAt(steps, [0, 2])(scores, several)
        assert SuppressedBehind([[[]]], [0])(scores, several) is scores  # behind no word
        for place, row in enumerate(rows):
            own, alone = scores[place : place + 1], Written(written[:1], [0], [[]])
            assert torch.equal(forced[place : place + 1], Forced(at[row])(own, alone))
            assert torch.equal(suppressed[place : place + 1], SuppressedAt(steps[row], [0, 2])(own, alone))


SEARCHES = [Greedy(), Sample(temperature=1.5, n=3), Beam(3, n_best=3)]


@pytest.mark.parametrize("strategy", SEARCHES, ids=str)
def test_searches_obey_what_is_forbidden_and_forced(strategy: Greedy | Sample | Beam) -> None:
    """Rows leave the batch as they end: what is counted must be each row's own."""
    rules: list[Rule] = [NoRepeatNGrams(2), Banned([[4], [2, 3]])]
    settings: dict[str, Any] = {"max_new_tokens": 9, "rules": rules}
    found = [row for n in range(5) for row in generate(chain(n), ids(*range(8)), strategy, seed=n, **settings)]
    outputs = [one.ids for row in found for one in row]
    assert max(map(len, outputs)) > 5
    for written in outputs:
        pairs = list(pairwise(written))
        assert len(set(pairs)) == len(pairs) and 4 not in written and (2, 3) not in pairs
    free = [row[0].ids for row in generate(chain(0), ids(*range(8)), strategy, max_new_tokens=9, seed=0)]
    assert any(4 in written or (2, 3) in pairwise(written) for written in free)
    most = [6, 4, 5, 6]
    rules = [Forced({0: 2, 2: 3}), ForcedLast(EOS, most)]
    found = generate(chain(1), ids(*range(4)), strategy, max_new_tokens=most, min_new_tokens=3, rules=rules, seed=1)
    for row in found:
        for one in row:
            assert one.finished and one.ids[0] == 2 and one.ids[2] == 3


def test_the_prompt_counts_where_it_is_asked_to() -> None:
    """The request hands over the real tokens of each row: padding on either side is not among them."""
    seen: list[list[list[int]]] = []

    def spy(scores: Tensor, written: Written) -> Tensor:
        seen.append([list(written.prompts[row]) for row in written.rows])
        return scores

    source = torch.tensor([[5, 3, 0], [4, 0, 0], [0, 1, 2]])
    real = torch.tensor([[True, True, False], [True, False, False], [False, True, True]])
    generate(chain(2), source, Greedy(), max_new_tokens=1, token_mask=real, rules=[spy])
    generate(chain(2), source, Sample(n=2), max_new_tokens=[1, 0, 1], token_mask=real, rules=[spy], seed=1)
    assert seen == [[[5, 3], [4], [1, 2]], [[5, 3], [5, 3], [1, 2], [1, 2]]]
    assert Banned([[EOS]])(torch.zeros(1, 6), standing([[1]], [[EOS]])).tolist() == [[-INF, 0, 0, 0, 0, 0]]


def words(tokens: list[int]) -> str:
    return "".join(" abcde"[token] for token in tokens)


@pytest.mark.parametrize("strategy", [Greedy(), Sample(n=2)], ids=str)
def test_an_output_ends_with_the_token_that_completes_a_stop_string(strategy: Greedy | Sample) -> None:
    stop = StopStrings(words, ["bb", "ca", "e"])
    met = 0
    for seed in range(6):
        options = {"max_new_tokens": 10, "eos_id": (), "seed": seed}
        found = generate(chain(seed), ids(*range(6)), strategy, stop=stop, **options)  # type: ignore[arg-type]
        free = generate(chain(seed), ids(*range(6)), strategy, **options)  # type: ignore[arg-type]
        for row, other in zip(found, free):
            for one, whole in zip(row, other):
                text = words(whole.ids)
                ends = [text.find(string) + len(string) for string in stop.strings if string in text]
                assert one.ids == whole.ids[: min(ends, default=10)] and one.finished == bool(ends)
                assert one.token_scores == whole.token_scores[: len(one.ids)]
                assert stop.cut(words(one.ids)) == min((text.split(string)[0] for string in stop.strings), key=len)
                met += bool(ends)
    assert met > 10


def test_of_two_stop_strings_the_one_complete_first_counts_and_eos_still_ends() -> None:
    stop = StopStrings(words, ["bc", "abcd", "abc"])
    assert stop([1, 2, 3]) and not stop([1, 2]) and not stop([])
    assert StopStrings(words, ["bc", "abcd"]).cut("eabcd") == "ea"  # completed first, though it begins later
    assert stop.cut("eabcd") == "e" and stop.cut("eebc") == "ee" and stop.cut("aab") == "aab"
    found = generate(chain(3), ids(*range(9)), Greedy(), max_new_tokens=9, stop=StopStrings(words, ["zz"]))
    assert found == generate(chain(3), ids(*range(9)), Greedy(), max_new_tokens=9)
    assert any(one.finished for (one,) in found)


def test_rules_that_cannot_be_are_refused() -> None:
    for make, message in (
        (lambda: RepetitionPenalty(0.0), "`penalty` must be above 0 and finite: got 0.0"),
        (lambda: RepetitionPenalty(INF), "`penalty` must be above 0 and finite: got inf"),
        (lambda: CountPenalty(frequency=INF), "`frequency` must be finite: got inf"),
        (lambda: NoRepeatNGrams(0), "`n` must be at least 1: got 0"),
        (lambda: Banned([[1], []]), r"a banned sequence must hold ids, one at least, such as \[\[17\]\]: got \[\]"),
        (lambda: Banned([17]), r"a banned sequence must hold ids, one at least, such as \[\[17\]\]: got 17"),
        (lambda: Banned([[1, -2]]), r"a banned sequence must hold ids, .*: got \[1, -2\]"),
        (lambda: Banned([[7]])(torch.zeros(1, V), standing([[1]])), "a banned id must be below 5, .*: got 7"),
        (lambda: Forced({1: 9})(torch.zeros(1, V), standing([[1]])), "a forced id must lie below 5, the vocabulary"),
        (lambda: StopStrings(words, [""]), "`strings` must be a list of strings, none of them empty"),
        (lambda: StopStrings(words, "ab"), "`strings` must be a list of strings, none of them empty: got 'ab'"),
    ):
        fails(ValueError, message, make)
