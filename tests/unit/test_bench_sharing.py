"""Smaller benches: sharing a machine, parsers, labelling, words, and the sizes that `recurrence` tells (W20)."""

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.start_up import LONG_WAITS, SHORT_WAITS, machine_environment
from atento.networks import build_network, parameter_count
from atento_lab.studies.recurrence import readers, translators
from atento_world import lexicon
from benchmarks import parsers, sharing
from benchmarks import words as bench
from benchmarks.encoding import SIZES, natural_sentences
from benchmarks.labelling import VERBS, OurVerb, Transformers, _rows, write_labeller
from benchmarks.processes import Contender, Measurement
from benchmarks.sharing import SITUATIONS, Job, jobs_in, measure_sharing
from benchmarks.words import Gensim, OurVectors, measure_words, similar_kinds

NAMES = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")


class Toy:
    """Returns the variables of OpenMP and the threads of its process."""

    def load(self, *arguments: Any) -> None:
        """Do nothing."""

    def run(self, work: Any) -> tuple[dict[str, str], int]:
        return {name: os.environ[name] for name in NAMES if name in os.environ}, torch.get_num_threads()


class Other(Toy):
    """The same, as another library."""

    other_library = True


TOYS = Job(Toy, Other, (), (), "work", 7)


def test_each_setting_has_its_variables_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(sharing, "Side", lambda kind, **options: made.append(options))
    names = [name for name, _ in sharing._sides(TOYS)]
    theirs = machine_environment()
    assert dict(zip(names, made)) == {
        "default": {"environment": theirs | SHORT_WAITS, "threads": None},
        "long waits": {"environment": theirs | LONG_WAITS, "threads": None},
        "no waits": {"environment": theirs | {"OMP_WAIT_POLICY": "passive"}, "threads": None},
        "one thread": {"environment": theirs | SHORT_WAITS, "threads": 1},
        "transformers": {},
    }


@pytest.mark.slow  # four processes that import torch
def test_the_processes_have_the_variables_and_threads_of_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"default": (SHORT_WAITS, None), "long waits": (LONG_WAITS, 1)}
    monkeypatch.setattr(sharing, "SETTINGS", few)
    monkeypatch.setattr(sharing, "jobs_in", lambda folder: {"toy": TOYS})
    monkeypatch.setattr(sharing.time, "sleep", lambda seconds: None)
    seen: dict[str, Any] = {}
    before = sharing.alternate

    def alternate(sides: Any, work: Any, seconds: float, rounds: int) -> Any:
        measured = before(sides, work, seconds, rounds)
        seen.update({name: runs[0].result for name, runs in measured.items()})
        return measured

    monkeypatch.setattr(sharing, "alternate", alternate)
    rows = list(measure_sharing(0.0, situations=("nothing",), rounds=1))
    threads = torch.get_num_threads()
    theirs = {name: value for name, value in machine_environment().items() if name in NAMES}
    assert seen["default"] == (theirs | SHORT_WAITS, threads) and seen["transformers"] == (theirs, threads)
    assert seen["long waits"] == (theirs | LONG_WAITS, 1)
    assert [row["who"] for row in rows[1:-1]] == [*few, "transformers"]
    assert rows[-1]["goal"] == 1.15 and rows[-1]["beside"] == "nothing"


def test_programs_run_beside_and_end_and_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"default": 80.0, "long waits": 20.0, "no waits": 100.0, "one thread": 50.0, "transformers": 10.0}
    row = sharing._ratio("toy", "nothing", rates, 1.15)
    assert (row["best"], row["time_to_that_of_the_best_setting"]) == ("no waits", 1.25)
    assert (row["speed_to_long_waits"], row["speed_to_transformers"]) == (4.0, 8.0)
    monkeypatch.setattr(sharing.time, "sleep", lambda seconds: None)
    started: list[Any] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(sharing.subprocess, "Popen", start)
    with sharing._beside(SITUATIONS["two programs of one thread"]):
        assert [program.poll() for program in started] == [None, None]
    assert all(program.poll() is not None for program in started)


@pytest.mark.slow  # writes models of full size
def test_the_jobs_are_those_that_are_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sharing.finetuning_sides, "write_classifier"), (sharing.decoding_sides, "write_weights")):
        monkeypatch.setattr(module, name, lambda *arguments: None)
    monkeypatch.setattr(sharing.encoding_sides, "write_encoder", lambda *arguments: None)
    jobs = jobs_in(tmp_path)
    assert {"training tiny", "training MiniLM", "training Transformer-base", "reading"} <= jobs.keys()
    assert jobs["decoding one sentence"].goal == 1.2 and jobs["decoding 16 sentences"].units == 16 * 24
    ours = jobs["training tiny"].ours()
    ours.load(*jobs["training tiny"].arguments)
    theirs = jobs["training tiny"].theirs()
    theirs.load(*jobs["training tiny"].theirs_arguments)
    assert ours.run(1) == pytest.approx(4096, rel=0.1) and theirs.run(1) == pytest.approx(4096, rel=0.1)


def test_each_parser_has_a_time_for_both_texts_of_the_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "_BYTES", 2_000)
    clock = iter(range(10_000))
    monkeypatch.setattr(parsers.time, "process_time", lambda: float(next(clock)))
    head, *rows = parsers.measure_parsers(0.0)
    assert head["bench"] == "parsers"
    assert {row["parser"] for row in rows} >= {*parsers._OF_TEXT, "bpe ids", "byte offsets"}
    assert all(row["ordinary"] == row["hardest"] == 1 for row in rows)  # two looks at the clock, one run between
    looks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 24.0])
    monkeypatch.setattr(parsers.time, "process_time", lambda: next(looks))
    monotonic = iter([0.0, 0.1, 0.2, 9.0])
    monkeypatch.setattr(parsers.time, "monotonic", lambda: next(monotonic))
    texts: list[str] = []
    assert parsers._fastest(texts.append, "ab", 60.0) == 2 and texts == ["ab"] * 3


@pytest.mark.parametrize("verb", VERBS)
def test_both_sides_give_the_same_outputs(verb: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    write_labeller(tmp_path, SIZES["tiny"], verb)
    texts = natural_sentences(20, SIZES["tiny"])
    ours, peer = OurVerb(), Transformers()
    ours.load(tmp_path, verb, "float32")
    peer.load(tmp_path, verb)
    expected = peer.run(texts)
    assert ours.run(texts) == expected and len(set(map(str, expected))) > 1
    count = len(expected)
    sides = {"atento float32": ours.run(texts), "transformers float32": expected}
    rows = list(_rows(verb, count, {who: [Measurement(0.5, result, None, 0.25)] for who, result in sides.items()}))
    assert [row.get("same_labels") for row in rows] == [1.0, 1.0, None] and rows[2]["ratio"] == 1.0
    assert rows[0]["texts_per_second"] == count * 2


class InThisProcess(nullcontext["InThisProcess"]):
    """A side without a process of its own, and without a pause between its runs."""

    here = True

    def __init__(self, kind: type[Contender], *arguments: Any) -> None:
        super().__init__(self)
        self.contender = kind()
        self.contender.load(*arguments)

    def run(self, work: Any) -> Measurement:
        return Measurement(0.0, self.contender.run(work), None)


def test_the_probe_is_the_share_of_nouns_next_to_one_of_their_kind() -> None:
    nouns = [noun for noun in lexicon.NOUNS if set(noun.kinds) <= {"A", "F"}]
    words = ["xyz", *(noun.portuguese for noun in nouns)]
    by_kind = np.array([[1.0, 0.9], *([1.0, 0.0] if noun.kinds == "A" else [0.0, 1.0] for noun in nouns)])
    assert similar_kinds(words, by_kind.astype(np.float32)) == 1.0
    mixed = np.zeros((5, 2), dtype=np.float32)
    mixed[:, 0] = 1.0
    mixed[3:, 1] = 1.0  # gato and pão, cachorro and maçã: each beside one of the other kind
    assert similar_kinds(["xyz", "gato", "pão", "cachorro", "maçã"], mixed) == 0.0


@pytest.mark.slow  # trains both sides
def test_both_sides_train_on_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gensim")
    monkeypatch.setattr(bench, "Side", InThisProcess)
    monkeypatch.setattr(bench, "_EPOCHS_A_SECOND", 300)
    about, *rows = measure_words(0.01, count=300)
    assert about["bench"] == "words" and "300 sentences" in about["size"]
    for mode, (ours, peer, ratio) in zip(("cbow", "skip-gram"), (rows[:3], rows[3:])):
        assert (ours["mode"], ours["library"], peer["library"]) == (mode, "atento", "gensim")
        assert ratio["ratio"] == pytest.approx(ours["words_per_second"] / peer["words_per_second"], abs=0.01)
        assert 0 <= ours["similar"] <= 1 and 0 <= peer["similar"] <= 1
    sentences = bench._sentences(100)
    sides = OurVectors(), Gensim()
    for side in sides:
        side.load(sentences, "cbow")
    vectors = [side.run(1)[1] for side in sides]
    assert vectors[0].shape == vectors[1].shape == (len(sides[0].windows.words), 100)


def test_w20_sizes_are_told_as_they_are() -> None:
    """They are of one width and not of one size: 74,240 to 272,384 parameters."""
    with torch.device("meta"):
        sizes = {name: parameter_count(build_network(config)) for name, config in readers().items()}
    told = readers.__doc__ or ""
    assert all(f"{size:,}" in told for size in sizes.values())
    assert len({config.d_model for config in readers().values()}) == 1
    for made in (readers, translators):
        assert "equal size" not in (made.__doc__ or "").replace("not equal size", "")
