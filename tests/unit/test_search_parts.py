"""The parts of a search: its space, its draws, its rungs, what its keys explain, and where a run pauses."""

import json
import math
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.inspection.figures.svg import axis_ticks
from atento.metrics.metric_table import quality
from atento.training.optimizer import pause_step
from atento_cli.search import worker
from atento_cli.search.process import TrialWorker, run_trial
from atento_cli.search.result import RungScore, SearchResult, Trial, importance
from atento_cli.search.score_panels import Panel, Point, scores_svg
from atento_cli.search.search_folder import differences, open_search
from atento_cli.search.search_strategies import drawn, grid, rungs_of, trials_of
from atento_cli.search.space import read_space, size
from failing import fails

RATE = {"training.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}
MIXED: dict[str, Any] = {
    **RATE,
    "network.dropout": [0, 0.1, 0.3],
    "network.n_layers": {"low": 1, "high": 4},
    "training.label_smoothing": {"low": 0.0, "high": 0.3, "step": 0.1},
}


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("out of memory: 9 GiB"), KeyError("nothing foreseen")])
def test_a_trial_that_ends_in_any_error_fails_alone(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def train(*_: object, **more: object) -> None:
        raise error

    request: dict[str, Any] = dict.fromkeys(("recipe", "overrides", "folder", "precision", "threads"))
    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr(TrialWorker, "ask", lambda self, request: (worker.trained(request), 0))
    trainer = TrialWorker(None, None)  # type: ignore[arg-type]
    trial = Trial(1, {})
    failure = run_trial(trainer, trial, request | {"device": "cpu", "share": "1"}, data_varies=False)
    assert failure and trial.score is None and ("out of memory" in failure) == ("nothing" not in str(error))


def plain(trials: Any) -> list[dict[str, Any]]:
    return [{key: node.bare() for key, node in values.items()} for values in trials]


def test_a_grid_is_every_combination_and_random_trials_a_function_of_seed_and_number_within_their_ranges() -> None:
    space = read_space({"network.n_layers": [1, 2], "training.label_smoothing": {"low": 0, "high": 0.3, "step": 0.1}})
    layers_and_smoothing = [tuple(values.values()) for values in plain(grid(space))]
    assert layers_and_smoothing == [(n, p) for n in (1, 2) for p in (0.0, 0.1, 0.2, 0.3)] and size(space) == 8
    assert plain(trials_of("grid", space, 3, 1)) == plain(islice(grid(space), 3))
    # Until it is used up a finite space is drawn without repetition
    space = read_space({"network.n_layers": [1, 2], "network.dropout": [0, 0.1, 0.3]})
    assert sorted(map(str, plain(trials_of("random", space, 50, 1)))) == sorted(map(str, plain(grid(space))))
    # Integers of a logarithmic range reach both ends
    space = read_space({"training.warmup": {"low": 1, "high": 8, "log": True}})
    assert {values["training.warmup"] for values in plain(islice(drawn(space, 3), 8))} == set(range(1, 9))
    space = read_space(MIXED)
    first = plain(trials_of("random", space, 40, 7))
    assert first == plain(trials_of("random", space, 40, 7)) and first[:10] == plain(trials_of("halving", space, 10, 7))
    assert first != plain(trials_of("random", space, 40, 8)) and len({str(values) for values in first}) == 40
    trials = plain(islice(drawn(read_space(MIXED), 1), 400))
    rates = [math.log10(values["training.learning_rate"]) for values in trials]
    assert min(rates) >= -5 and max(rates) <= -2
    counts = [sum(low <= rate < low + 1 for rate in rates) for low in (-5, -4, -3)]
    assert all(100 <= count <= 170 for count in counts), counts  # 133 each, in the logarithm
    assert {values["network.n_layers"] for values in trials} == {1, 2, 3, 4}
    assert all(type(values["network.n_layers"]) is int for values in trials)
    assert {values["training.label_smoothing"] for values in trials} == {0.0, 0.1, 0.2, 0.3}
    assert {values["network.dropout"] for values in trials} == {0, 0.1, 0.3}


def test_wrong_spaces_grids_and_trials_are_refused(tmp_path: Path) -> None:
    for text, message in (
        ("", "space.yaml:1:1: the space is empty"),
        ("- 1\n", "space.yaml:1:1: a space is a mapping of recipe keys: got a list of 1"),
        ("\ntraining.stepz: [1]\n", "space.yaml:2:1: unknown key 'stepz' in training; did you mean 'steps'?"),
        ("training.steps: []\n", "training.steps has no choices"),
        ("training.steps: 5\n", "training.steps must have a list of choices"),
        ("training: {steps: [1]}\n", "training is a section: write its keys with dots, such as training.steps"),
        ("training.steps: {low: 1}\n", "space.yaml:1:17: training.steps: `high` is missing"),
        ("training.steps: {low: 2, high: 2}\n", "`low` must be below `high`: got 2 and 2"),
        ("training.steps: {low: 0, high: 9, log: true}\n", "`log` needs a `low` above 0: got 0"),
        ("training.steps: {low: 1, high: .nan}\n", "`high` must be a finite number: got nan"),
        ("training.steps: {low: 1, high: 9, integer: false}\n", "takes integers only: `integer` is false"),
        ("training.steps: {low: 1, high: 9, stp: 2}\n", "unknown key 'stp' in training.steps; did you mean 'step'?"),
        ("training.steps: {low: 1, high: 9, step: 2.5}\n", "`step` must be an integer: got 2.5"),
        ("training.schedule: {low: 1, high: 9}\n", "so it has no range; list its choices"),
        ("training.seed: [1, 2, 1]\n", "space.yaml:1:23: training.seed has the choice 1 twice"),
        ("metrics: [[bleu]]\n", "metrics cannot be searched: scores of different metrics cannot be compared"),
        ("data.valid.0.count: [1]\n", "scores on different validation data cannot be compared"),
        ("network: [gpt2]\nnetwork.dropout: [0]\n", "space.yaml:2:1: network.dropout is part of network"),
    ):
        path = tmp_path / "space.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RecipeError) as refusal:
            read_space(path)
        assert str(tmp_path) in str(refusal.value) and message in str(refusal.value)
    with pytest.raises(RecipeError, match=r"space: training.learning_rate is a range without `step`"):
        trials_of("grid", read_space(RATE), 3, 1)
    with pytest.raises(RecipeError, match="has 1,000,000 values, and strategy grid takes at most 100,000"):
        trials_of("grid", read_space({"training.steps": {"low": 1, "high": 1_000_000}}), 3, 1)
    fails(UsageError, "--trials is missing: strategy random", trials_of, "random", read_space(RATE), None, 1)
    with pytest.raises(UsageError, match="--strategy must be one of random, grid, halving: got 'bayes'"):
        trials_of("bayes", read_space(RATE), 2, 1)
    fails(UsageError, "--eta must be at least 2: got 1", rungs_of, "halving", 9, 1)


def test_rungs_of_successive_halving_and_the_best_trial_by_the_scores_that_decide() -> None:
    """27 trials with eta 3: the bracket of the paper, from 1/27 of the steps."""
    assert [(rung.n_trials, rung.share) for rung in rungs_of("halving", 27, 3)] == [
        *((27, Fraction(1, 27)), (9, Fraction(1, 9)), (3, Fraction(1, 3)), (1, Fraction(1)))
    ]
    assert [(rung.n_trials, rung.share) for rung in rungs_of("halving", 11, 2)] == [
        *((11, Fraction(1, 8)), (5, Fraction(1, 4)), (2, Fraction(1, 2)), (1, Fraction(1)))
    ]
    assert rungs_of("random", 11, 2) == [(11, 1)] and rungs_of("halving", 2, 3) == [(2, 1)]
    assert [pause_step(2000, Fraction(1, 3**k), 100) for k in range(4)] == [2000, 700, 300, 100]
    assert pause_step(2000, Fraction(1, 9), 1500) == 1500 and pause_step(10, Fraction(1, 2), 50) == 10
    assert [trial.number for trial in result("bleu").ranked] == [2, 4, 3, 1]
    assert [trial.number for trial in result("nll").ranked] == [4, 2, 3, 1]
    best = result("ter").best
    assert best is not None and best.number == 4 and result("ter").recipe == Path("x/best.yaml")
    text = str(result("bleu")).splitlines()
    assert text[1].split() == ["trial-0002", "3", "9", "1", "s", "finished", "2"] and text[-1].split()[-1] == "25%"
    assert all(Trial.from_dict(trial.to_dict()) == trial for trial in result("bleu").trials)
    ties = {1: (13.0, -2.0), 2: (99.0, -0.2), 3: (99.0, -0.1), 4: (99.0, -0.1)}
    trials = [Trial(number, {"a": 1}, "finished", "bleu", 0.0, ties=of) for number, of in ties.items()]
    assert [trial.number for trial in SearchResult(Path("x"), "random", "bleu", trials, {}).ranked] == [3, 4, 2, 1]
    assert Trial.from_dict(json.loads(json.dumps(trials[0].to_dict()))).quality == [0.0, 13.0, -2.0]
    old = {name: value for name, value in trials[0].to_dict().items() if name != "ties"}
    assert Trial.from_dict(old).quality == [0.0]  # of an earlier version
    # In the order of the recipe, errors turned round; one that is missing or no number is the worst
    names = ("ter", "chrf", "nll")
    assert quality({"nll": 2.0, "chrf": 30.0, "ter": 70.0, "loss": 9.0}, names) == (-70.0, 30.0, -2.0)
    assert quality({"nll": 2.0, "ter": math.inf}, names) < quality({"nll": 9.0, "chrf": 0.0, "ter": 1e9}, names)
    worst = quality({"ter": 1.0, "chrf": math.nan, "nll": 1.0}, names)
    assert worst < quality({"ter": 1.0, "chrf": 0.0, "nll": 9.0}, names)


def test_importance_of_a_case_by_hand_and_the_picture_of_scores_on_its_axes() -> None:
    """Scores 10, 12 and 20, 22: between the groups 100, within 4, so (100 - 4 / 2) / 104; the other key 0."""
    scores = [10.0, 12.0, 20.0, 22.0]
    assert importance([1, 1, 2, 2], scores, is_range=False) == pytest.approx(98 / 104)
    assert importance([1, 2, 1, 2], scores, is_range=False) == 0.0
    assert importance([0.1, 0.1, 0.4, 0.4], scores, is_range=True) == pytest.approx(98 / 104)
    assert importance([1, 2, 3, 4], scores, is_range=False) is importance([1] * 4, scores, is_range=True) is None
    assert importance([1, 1, 2, 2], [3.0] * 4, is_range=False) is None
    # Eight values in four groups of two: the groups' means are 1, 2, 3, 4; within each, half a unit on both sides
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    scores = [0.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5, 4.5]
    between, within = 2 * (1.5**2 + 0.5**2) * 2, 8 * 0.5**2
    expected = (between - 3 * within / 4) / (between + within)
    assert importance(values, scores, is_range=True) == pytest.approx(expected)
    assert importance(values[::-1], scores[::-1], is_range=True) == pytest.approx(expected)
    points = [Point(0.001, 10.0, "trial-0001"), Point(0.01, 20.0, "trial-0002"), Point(0.1, 30.0, "<3>")]
    svg = scores_svg([Panel("training.learning_rate", points, True, "9%"), Panel("x", points[:1], False, "")], "bleu")
    centers = [float(part.split('"')[0]) for part in svg.split('cx="')[1:4]]
    assert centers[1] - centers[0] == pytest.approx(centers[2] - centers[1], abs=0.11)  # equal steps in the logarithm
    heights = [float(part.split('"')[0]) for part in svg.split('cy="')[1:4]]
    assert heights == [150.0, 75.0, 0.0] and axis_ticks(10, 30) == [10, 20, 30]
    assert "&lt;3&gt;" in svg and "<3>" not in svg
    assert scores_svg([Panel("x", [], False, "")], "bleu").startswith("<svg")


def result(metric: str) -> SearchResult:
    rung = [RungScore("1", 9, 1.0)]
    trials = [
        Trial(1, {"training.seed": 1}, "failed", error="it broke"),
        Trial(2, {"training.seed": 2}, "finished", metric, 3.0, 9, 9, 1.0, rung),
        Trial(3, {"training.seed": 3}, "dropped", metric, 2.0, 3, 9, 1.0, rung),
        Trial(4, {"training.seed": 4}, "finished", metric, 2.5, 9, 9, 1.0, rung),
    ]
    return SearchResult(Path("x"), "random", metric, trials, {"training.seed": 0.25})


def test_a_changed_search_is_refused_with_the_difference(tmp_path: Path) -> None:
    identity = {"strategy": "random", "seed": 1, "trials": 4, "space": {"a": [1, 2]}, "recipe": {"task": "x"}}
    assert not open_search(tmp_path, identity) and open_search(tmp_path, identity)
    assert differences(identity, identity | {"trials": 9}) == []  # more trials extend a search
    assert differences(identity, identity | {"trials": 3}) == ["trials: 4 -> 3"]
    halving = identity | {"strategy": "halving"}
    assert differences(halving, halving | {"trials": 9}) == ["trials: 4 -> 9"]
    with pytest.raises(UsageError, match=r"is another search: space a: \[1, 2\] -> \[1, 3\]; recipe task: x -> y"):
        open_search(tmp_path, identity | {"space": {"a": [1, 3]}, "recipe": {"task": "y"}})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    fails(UsageError, "holds files and is not a search", open_search, tmp_path / "other", identity)
    path = tmp_path / "space.yaml"
    path.write_text("network.n_heads: [2, 3]\n", encoding="utf-8")
    two, three = (values.items() for values in grid(read_space(path)))
    sizes = {"network.d_model": 16, "network.n_heads": 4}
    assert load_recipe("micro-world-en-pt", sizes, searched=two).recipe.network.n_heads == 2
    with pytest.raises(RecipeError, match=r"space\.yaml:1:22: `n_heads` must divide `d_model`: got 3 and 16"):
        load_recipe("micro-world-en-pt", sizes, searched=three)
