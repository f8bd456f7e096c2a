"""Minimum Bayes risk: the choice among texts, the quick ways to it, the decoder, the notes' listing (H10, K4)."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.errors import AtentoError, UsageError
from atento.decoding import MBR, Beam, Hypothesis, Sample, generate
from atento.decoding.choosing import row_seed
from atento.decoding.mbr import _probabilities, spelled, strategy_seed
from atento.decoding.risk import minimum_bayes_risk_choice as choice
from atento.decoding.trace import Trace
from atento.metrics.mbr_utilities import UTILITIES, embedding_utility
from atento.metrics.rouge import unicode_words
from atento.notes.listing_mbr import calculate_bleu, from_function, minimum_bayes_risk
from atento_lab.notes.checks.mbr import ORDER_EXAMPLE
from atento_lab.notes.checks.toys import ToyLanguageModel, ToySeq2Seq, random_chain, table_chain
from benchmarks.mbr import agreement, measure_mbr, noisy_candidates
from failing import fails

Matrix = list[list[float]]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The chains and models of the toys are drawn from PyTorch's generator."""
    torch.manual_seed(1)


def given_matrix(matrix: Matrix) -> Callable[[list[str], list[str]], Matrix]:
    """A utility that looks up texts named 0, 1, 2 ..."""
    return lambda candidates, evidence: [[matrix[int(i)][int(j)] for j in evidence] for i in candidates]


THREE = [[1.0, 0.2, 0.6], [0.5, 0.9, 0.1], [0.4, 0.3, 0.8]]


def test_h10_expected_utility_weights_and_without_itself_by_hand() -> None:
    found = choice(["0", "1", "2"], None, given_matrix(THREE))
    assert found.expected.tolist() == pytest.approx([0.6, 0.5, 0.5])
    assert found.order == [0, 1, 2] and found.best == 0 and found.compared == 9 and found.exact.all()
    assert found.matrix is not None and found.matrix.risks.tolist() == (1 - np.array(THREE)).tolist()
    assert found.matrix.weights.tolist() == [[pytest.approx(1 / 3)] * 3] * 3
    found = choice(["0", "1", "2"], None, given_matrix(THREE), weights=[1, 6, 3])
    assert found.expected.tolist() == pytest.approx([0.1 + 0.12 + 0.18, 0.05 + 0.54 + 0.03, 0.04 + 0.18 + 0.24])
    assert found.order == [1, 2, 0]
    nothing = choice(["0", "1", "2"], None, given_matrix(THREE), weights=[0, 0, 2e-300])
    assert nothing.expected.tolist() == pytest.approx([0.6, 0.1, 0.8])
    # A copy of the same text is another piece of evidence and counts
    found = choice(["0", "1", "2"], None, given_matrix(THREE), self_comparison=False)
    assert found.expected.tolist() == pytest.approx([0.4, 0.3, 0.35]) and found.order == [0, 2, 1]
    twice = choice(["0", "1", "1"], None, given_matrix(THREE), self_comparison=False)
    assert twice.expected.tolist() == pytest.approx([0.2, 0.7, 0.7])
    weighted = choice(["0", "1", "2"], None, given_matrix(THREE), self_comparison=False, weights=[1, 6, 3])
    assert weighted.expected.tolist() == pytest.approx([(1.2 + 1.8) / 9, (0.5 + 0.3) / 4, (0.4 + 1.8) / 7])


def test_h10_candidates_are_hypotheses_evidence_the_reference_and_ties_go_to_the_more_probable() -> None:
    """Spec error 40: rows are candidates; BLEU the other way round would choose the other."""
    found = choice(["a b c", "a b c d e f"], ["a b c d", "a b c d"], "bleu")
    assert found.expected[0] == pytest.approx(math.exp(-1 / 3))
    assert found.expected[1] == pytest.approx((4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    found = choice(["0", "1"], ["2", "2", "0"], given_matrix(THREE), self_comparison=False)
    assert found.expected.tolist() == pytest.approx([(0.6 + 0.6 + 1) / 3, (0.1 + 0.1 + 0.5) / 3])
    assert found.matrix is not None and found.matrix.utilities.shape == (2, 3)
    flat = given_matrix([[0.1 + 0.2] * 4, [0.3] * 4, [0.3] * 4, [0.3] * 4])  # .1 + .2 is a little more than .3
    assert choice(list("0123"), None, flat).order == [0, 1, 2, 3]
    assert choice(list("0123"), None, flat, log_probs=[-2, -math.inf, -1, -1]).order == [2, 3, 0, 1]


WAYS = [
    (name, method)
    for name, utility in UTILITIES.items()
    for method in ("full", "aggregated", "coarse", "pruned")
    if hasattr(utility, "aggregated") or method in ("full", "pruned")
]


@pytest.mark.parametrize(("name", "method"), WAYS)
@pytest.mark.parametrize("itself", [True, False])
def test_h10_what_is_odd_is_defined(name: str, itself: bool, method: Any) -> None:
    """One candidate, all equal, all empty, blank ones, one with all the weight: numbers, and the rule for ties."""
    for texts in (["um gato"], ["um gato"] * 3, [""], [""] * 3, [" ", "", "\n"], ["", "um gato", "um gato"]):
        for first in (1.0, 0.0, 1e-300, 1e300):
            weights = None if len(texts) == 1 else [first, *[1.0] * (len(texts) - 1)]
            found = choice(texts, None, name, weights=weights, self_comparison=itself, method=method, keep=1)
            assert ((found.expected >= 0) & (found.expected <= 1 + 1e-12)).all()  # so finite
            assert sorted(found.order) == list(range(len(texts)))
            if len(set(texts)) == 1 and (itself or len(texts) > 1) and texts[0] and method != "aggregated":
                assert found.expected.tolist() == pytest.approx([1.0] * len(texts))
    alone = choice(["um gato"], None, name, self_comparison=False, method=method)
    assert alone.expected.tolist() == [0.0]


def test_what_is_refused() -> None:
    for texts, options, said in (
        ([], {}, r"`candidates` .* got \[\]"),
        ("ab", {}, "`candidates` .* got 'ab'"),
        (["a"], {"evidence": []}, r"`evidence` .* got \[\]"),
        (["a", "b"], {"weights": [1]}, "`weights` .* got 1 for 2"),
        *[(["a", "b"], {"weights": [a, b]}, "`weights` must be finite") for a, b in ((0, 0), (1, -1), (1, math.nan))],
        (["a", "b"], {"weights": [1, math.inf]}, "`weights` must be finite and not negative, and one of them at least"),
        (["a", "b"], {"log_probs": [1, 2, 3]}, "`log_probs` .* got 3 for 2"),
        (["a", "b"], {"log_probs": [1, math.nan]}, "`log_probs` .* got NaN"),
        (["a"], {"utility": "comet"}, "unknown utility 'comet'"),
        (["a"], {"method": "coars"}, "unknown method 'coars'; did you mean 'coarse'"),
        (["a"], {"keep": 0}, "`keep` .* got 0"),
        (["a"], {"method": "pruned", "confidence": 1}, "`confidence` .* got 1"),
        (["a", "b"], {"utility": lambda *_: [[1.0]]}, r"got shape \(1, 1\) for 2 and 2"),
        (["a"], {"utility": lambda *_: [[math.nan]]}, "a utility must give finite numbers"),
        (["0"], {"utility": "rouge", "method": "aggregated"}, "cannot be aggregated.* bleu, chrf, rouge1, rouge2, f1"),
        (["0"], {"utility": given_matrix(THREE), "method": "aggregated"}, "cannot be aggregated.* `embedding"),
    ):
        fails(UsageError, said, choice, texts, **options)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "f1"])
def test_h10_coarse_is_exact_for_those_it_keeps_and_no_rest_is_lost_beside_nearly_all_the_weight(name: str) -> None:
    candidates = noisy_candidates(48, seed=1)
    full = choice(candidates, None, name)
    found = choice(candidates, None, name, method="coarse", keep=8)
    kept = np.flatnonzero(found.exact)
    assert len({candidates[i] for i in kept}) == 8 and found.compared == 48 * len(kept)
    assert found.expected[kept].tolist() == pytest.approx(full.expected[kept].tolist(), abs=1e-12)
    assert set(found.order[: len(kept)]) == set(kept.tolist()) and sorted(found.order) == list(range(48))
    everyone = choice(candidates, None, name, method="coarse", keep=48)
    assert everyone.order == full.order
    # 1 against 1e-16 and 2e-16: without itself the first is held against the other two, one to two
    texts = ["o gato dorme", "o gato preto dorme", "um cão dorme"]
    found = choice(texts, None, name, weights=[1, 1e-16, 2e-16], self_comparison=False, method="aggregated")
    right = choice(texts[:1], texts[1:], name, weights=[1, 2], method="aggregated")
    assert 0 < found.expected[0] == pytest.approx(right.expected[0], abs=1e-9)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "rouge2", "f1"])
def test_h10_the_mean_of_the_evidence_is_without_the_candidate_itself(name: str) -> None:
    texts, weights = ["a b c d e", "a b c d", "b c d e f a b", "x y c d e", "a b c d"], [1.0, 2.0, 0.5, 4.0, 1.0]
    found = choice(texts, None, name, weights=weights, self_comparison=False, method="aggregated").expected
    for place, text in enumerate(texts):
        others, left = ([*of[:place], *of[place + 1 :]] for of in (texts, weights))
        alone = choice([text], others, name, weights=left, method="aggregated").expected[0]
        assert found[place] == pytest.approx(alone, abs=1e-12)


def test_h10_pruned_is_exact_for_those_it_keeps() -> None:
    """And asks the utility for no pair twice, nor for all of them."""
    candidates = noisy_candidates(128, seed=2)
    asked: list[tuple[str, str]] = []

    def utility(ours: list[str], theirs: list[str]) -> Any:
        asked.extend((a, b) for a in ours for b in theirs)
        return UTILITIES["chrf"](ours, theirs)

    full = choice(candidates, None, "chrf", self_comparison=False)
    found = choice(candidates, None, utility, method="pruned", keep=4, self_comparison=False)
    kept = np.flatnonzero(found.exact)
    assert 4 <= len(kept) < 64 and found.matrix is not None and found.matrix.utilities.shape == (len(kept), 128)
    assert found.expected[kept].tolist() == pytest.approx(full.expected[kept].tolist(), abs=1e-12)
    assert sorted(found.order) == list(range(128)) and set(found.order[: len(kept)]) == set(kept.tolist())
    assert len(asked) == found.compared < 0.7 * 128 * 128
    again = choice(candidates, None, "chrf", method="pruned", keep=4, self_comparison=False)
    assert again.order == found.order
    sure = choice(candidates, None, "chrf", method="pruned", keep=128, self_comparison=False)
    assert sure.order == full.order


@pytest.mark.parametrize("method", ["aggregated", "coarse", "pruned"])
@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_h10_quick_ways_lose_little(name: str, method: Any) -> None:
    """Over 20 sets of 64: the same choice most times, and nearly the same expected utility always."""
    lost, same = [], 0
    for seed in range(20):
        candidates = noisy_candidates(64, seed=seed)
        full = choice(candidates, None, name)
        found = choice(candidates, None, name, method=method, keep=8)
        lost.append(float(full.expected[full.best] - full.expected[found.best]))
        same += found.best == full.best
    assert min(lost) > -1e-12 and max(lost) < 0.05
    assert same >= (10 if method == "aggregated" else 17)


def test_h10_embeddings_aggregate_exactly() -> None:
    def embed(texts: list[str]) -> Any:
        return np.array([[text.count(letter) for letter in "aeiounst"] for text in texts])

    candidates = noisy_candidates(40, seed=4)
    for itself in (True, False):
        full = choice(candidates, None, embedding_utility(embed), self_comparison=itself)
        quick = choice(candidates, None, embedding_utility(embed), self_comparison=itself, method="aggregated")
        assert quick.expected.tolist() == pytest.approx(full.expected.tolist(), abs=1e-12)


MOST = 8


def sources(count: int) -> torch.Tensor:
    return torch.arange(count).unsqueeze(1)


def test_h10_hypotheses_keep_their_log_probs_and_score_by_utility() -> None:
    chain = random_chain(vocab_size=4)
    found = generate(chain, sources(6), MBR("f1", Sample(n=20), n_best=5), max_new_tokens=MOST, seed=3)
    for row, best in enumerate(found):
        assert 1 <= len(best) <= 5 and len({tuple(one.ids) for one in best}) == len(best)
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
        for one in best:
            whole = (*one.ids, *((0,) if one.finished else ()))
            assert one.log_prob == pytest.approx(chain.log_prob((row,), whole)) == pytest.approx(sum(one.token_scores))
            assert 0 <= one.score <= 1


# "a b c x" etc. share much; "x x" is the single most probable output and shares nothing.
SHARED = {(): {"x": 0.4, "a": 0.6}, ("x",): {"x": 1.0}, ("a",): {"b": 1.0}, ("a", "b"): {"c": 1.0}}
SHARED[("a", "b", "c")] = {"d": 1 / 3, "e": 1 / 3, "f": 1 / 3}


def test_h10_consensus_beats_the_mode() -> None:
    """.4 for "x x" against .2 each for three that agree in three words of four."""
    chain = table_chain(SHARED)
    beam = generate(chain, sources(1), Beam(8, length_penalty=0.0), max_new_tokens=6)[0][0]
    assert chain.text(beam.ids) == "x x"
    for strategy in (
        MBR("bleu", Beam(8, n_best=4), weights="model"),
        MBR("f1", Sample(n=200)),
        MBR("f1", (Beam(8, n_best=4), Sample(n=50)), evidence=Sample(n=200)),
    ):
        best = generate(chain, sources(1), strategy, max_new_tokens=6, seed=1)[0][0]
        assert chain.text(best.ids).startswith("a b c")
    # by hand: Σ p F1 of "a b c d" = .2 · 1 + .4 · 3/4 = .5, of "x x" .4
    scores = generate(chain, sources(1), MBR("f1", Beam(8, n_best=4), weights="model", n_best=4), max_new_tokens=6)[0]
    assert [one.score for one in scores] == pytest.approx([0.5, 0.5, 0.5, 0.4])
    alone = MBR("f1", Beam(8, n_best=4), weights="model", n_best=4, self_comparison=False)
    scores = generate(chain, sources(1), alone, max_new_tokens=6)[0]
    assert [one.score for one in scores] == pytest.approx([0.3 / 0.8] * 3 + [0.0])


def test_h10_candidates_are_those_of_their_strategies_and_evidence_another_draw() -> None:
    chain, trace = random_chain(vocab_size=5), Trace()
    strategy = MBR("bleu", (Sample(n=6), Beam(3, n_best=3), Sample(n=6)), evidence=Sample(n=6))
    generate(chain, sources(3), strategy, max_new_tokens=MOST, seed=[7, 8, 9], trace=trace)
    drawn = generate(chain, sources(3), Sample(n=6), max_new_tokens=MOST, seed=[7, 8, 9])
    beamed = generate(chain, sources(3), Beam(3, n_best=3), max_new_tokens=MOST)
    assert [run.strategy for run in trace.runs].count("sample") == 3 and len(trace.notes["risk"]) == 3
    for row, matrix in enumerate(trace.notes["risk"]):
        first = dict.fromkeys(spelled(one.ids) for one in drawn[row] + beamed[row])
        assert matrix.candidates[: len(first)] == list(first)
        assert len(matrix.evidence) == 6 and matrix.evidence != [spelled(one.ids) for one in drawn[row]]
        assert len(set(matrix.candidates)) == len(matrix.candidates) > len(first)
    json.dumps(trace.to_dict(), allow_nan=False)


def test_h10_rows_do_not_know_their_neighbours_have_streams_limits_and_some_probability() -> None:
    """M10: the same for any batch and order; the seed a row decides."""
    chain = random_chain(vocab_size=5)
    strategy = MBR("chrf", Sample(n=12), evidence=Sample(n=9), n_best=3, method="pruned")
    ids, seeds = sources(5), [3, 1, 4, 1, 5]
    together = generate(chain, ids, strategy, max_new_tokens=MOST, seed=seeds)
    for order in ([4, 2, 0, 1, 3], [1]):
        again = generate(chain, ids[order], strategy, max_new_tokens=MOST, seed=[seeds[i] for i in order])
        assert again == [together[i] for i in order]
    other = generate(chain, ids, strategy, max_new_tokens=MOST, seed=[seed + 1 for seed in seeds])
    assert other != together
    seen = {strategy_seed(seed, side, number) for seed in range(20) for side in (0, 1) for number in range(5)}
    assert len(seen) == 200 and strategy_seed(11, 0, 0) == 11 and strategy_seed(11, 1, 0) == row_seed(11, 1)
    chain = random_chain(vocab_size=4)
    found = generate(chain, sources(3), MBR("bleu", Sample(n=5)), max_new_tokens=[0, 1, 4], seed=1)
    assert found[0][0].ids == [] and found[0][0].score == 0 and len(found[1][0].ids) <= 1
    assert generate(chain, sources(1), MBR("f1", Sample(n=5)), max_new_tokens=0, seed=1)[0][0].score == 1
    # what the model never writes weighs nothing; where all is so, all weigh alike
    one = Hypothesis([1], 0.0, -math.inf, [-math.inf])
    assert _probabilities([one, replace(one, log_prob=-5.0), replace(one, log_prob=-2000.0)]) == [0.0, 1.0, 0.0]
    assert _probabilities([one, one]) == [1.0, 1.0] and _probabilities([]) == []


def test_h10_utilities_read_text_or_ids_in_letters_that_stay_apart() -> None:
    chain = table_chain(SHARED)
    seen: list[str] = []

    def utility(candidates: list[str], evidence: list[str]) -> Any:
        seen.extend(candidates)
        return UTILITIES["f1"](candidates, evidence)

    generate(chain, sources(1), MBR(utility, Sample(n=30), text=chain.text), max_new_tokens=6, seed=1)
    assert set(seen) == {"x x", "a b c d", "a b c e", "a b c f"}
    # one letter a token whatever the utility does to text: no two ids alike, none lost
    ids = [0, 1, 12, 20_975, 20_976, 63_679, 63_680, 250_001]
    text = spelled(ids)
    words = text.split(" ")
    assert len(set(words)) == len(ids) and [len(word) for word in words] == [1] * 6 + [2] * 2
    assert spelled([1, 2]).replace(" ", "") != spelled([12]) and spelled([]) == ""
    assert unicode_words(text) == words
    for name, utility in UTILITIES.items():
        found = np.asarray(utility([spelled([5, 6, 7])], [spelled([5, 6, 7]), spelled([8, 9, 10])]))
        assert found.tolist() == [[pytest.approx(1), 0]], name


def test_strategies_that_cannot_be() -> None:
    for options, said in (
        ({"candidates": ()}, "`candidates` must hold a strategy at least: got none"),
        ({"evidence": []}, "`evidence` must hold a strategy at least: got none"),
        ({"weights": "even"}, "`weights` must be 'uniform' or 'model': got 'even'"),
        ({"method": "fast"}, "`method` must be 'full', 'aggregated', 'coarse' or 'pruned': got 'fast'"),
        ({"n_best": 0}, "`n_best` and `keep` must be at least 1: got 0 and 16"),
        ({"confidence": 0}, "`confidence` must lie between 0 and 1: got 0"),
    ):
        fails(ValueError, said, MBR, **options)


def test_k4_takes_the_notes_models_and_batches() -> None:
    pair = (ToySeq2Seq(), torch.tensor([[3, 4, 5], [6, 2, 3]]))
    for model, ids in (pair, (ToyLanguageModel(), torch.tensor([[3, 4], [5, 1]]))):
        together = minimum_bayes_risk(model, ids, 8, max_len=6, seed=[1, 2])
        assert together == [minimum_bayes_risk(model, ids[i], 8, max_len=6, seed=[i + 1]) for i in (0, 1)]
        assert minimum_bayes_risk(model, ids[:1], 8, max_len=6, seed=[1]) == together[0]
        assert all(len(one) <= 6 and 0 not in one for one in together)
    weighted = minimum_bayes_risk(ToySeq2Seq(), torch.tensor([3, 4]), 8, weights="model", self_comparison=False, seed=1)
    assert isinstance(weighted, list)


def test_k4_own_candidates_come_back_as_they_were_and_what_is_refused() -> None:
    tokens = [["a", "b", "c"], ["a", "b", "c", "d"], ["a", "b", "c", "d"], ["x"]]
    given: Any = {"generate_candidates": lambda model, text, n: tokens[:n], "utility": from_function(calculate_bleu)}
    assert minimum_bayes_risk("m", "this is a test", 4, **given) is tokens[1]
    assert calculate_bleu(["a", "b", "c", "d"], ["a", "b", "c", "d"]) == 1
    assert ORDER_EXAMPLE[1] == "b a b c"
    for said, model, text, options in (
        ("must be ids, a tensor, where no `generate_candidates` is given: got str", ToySeq2Seq(), "A test.", {}),
        (r"must be ids of shape \(S,\) or \(B,S\): got \(1, 0\)", ToySeq2Seq(), torch.zeros(1, 0).long(), {}),
        ("`weights` must be 'uniform'", None, "", {"weights": "model", "generate_candidates": lambda *_: ["a", "b"]}),
        ("unknown utility 'bleau'", ToySeq2Seq(), torch.tensor([3]), {"utility": "bleau"}),
    ):
        fails(UsageError, said, minimum_bayes_risk, model, text, 2, **options)
    requests = pytest.importorskip("atento_serve.engine.requests")
    said = r"rouge, .*, as the service loads no other model for it: got 'comet:comet'"
    fails(UsageError, said, requests.generator_for, None, "translate", '{"mbr": "comet:comet"}', None)


def test_bench_rows_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every side runs and chooses alike; the last rows are the ratios."""
    monkeypatch.setattr("benchmarks.mbr._mbrs_choosers", lambda name: {})  # its processes take seconds to start
    rows = list(measure_mbr(0.01, sizes=(8,), sets=2, rounds=1))
    sides = {(row["utility"], row["who"]) for row in rows if "seconds" in row and "who" in row}
    assert sides == {(name, who) for name in ("bleu", "chrf") for who in ("atento", "sacrebleu")}
    assert [(row["utility"], row["ratio_to_sacrebleu"] > 0) for row in rows[-2:]] == [("bleu", True), ("chrf", True)]
    methods = [(row["utility"], row["method"]) for row in rows if "method" in row]
    assert len(methods) == 2 * (4 * 5 + 2) and ("rouge", "coarse") not in methods
    assert all(row["same_choice"] == 1 for row in rows if row.get("method") == "full")


def test_bench_candidates_are_alike_and_sides_choose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.mbr._mbrs_choosers", lambda name: {})
    monkeypatch.setattr("benchmarks.mbr._pairwise", lambda name: lambda candidates: 0)
    monkeypatch.setattr("benchmarks.mbr.noisy_candidates", lambda count, seed: ["z", *["a b c"] * (count - 1)])
    fails(AtentoError, "candidate than the best: sacrebleu", list, measure_mbr(0.01, sizes=(9,), sets=1, rounds=1))
    monkeypatch.undo()
    candidates = noisy_candidates(64, seed=1)
    assert candidates == noisy_candidates(64, seed=1) != noisy_candidates(64, seed=2)
    assert len(set(candidates)) > 48 and 8 < sum(len(one.split()) for one in candidates) / 64 < 40
    matrix = np.asarray(UTILITIES["chrf"](candidates, candidates))
    assert 0.3 < matrix.mean() < 0.8
    (row,) = [one for one in agreement("chrf", [candidates]) if one["method"] == "full"]
    assert row["utility_lost"] == 0 and row["pairs_compared"] == 1
