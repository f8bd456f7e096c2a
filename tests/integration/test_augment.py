"""`atento augment`: what is kept of the translations, what a killed command leaves, and the recipe that joins both."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.config.reading.loading import load_recipe
from atento_world import write
from conftest import ForkServer, refused
from test_cluster import finished, wait_for

TAG = "<back-translated>"
SETTINGS: dict[str, Any] = {
    "task": "translation",
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0},
    "tokenizer": {"kind": "word"},
    "training": {"steps": 20, "batch_tokens": 256, "warmup": 2, "learning_rate": 1e-2, "precision": "float32"},
}
SETTINGS["training"]["baseline"] = False
SETTINGS["decoding"] = {"max_new_tokens": 20}  # models that have learned little write without end
RECIPE = json.dumps(SETTINGS | {"data": {"train": {"file": "real.tsv", "source": 0, "target": 1}}})  # JSON is YAML
ALL = ("--min-score", "-99", "--max-ratio", "99", "--device", "cpu", "--threads", "1", "--sample")
AUGMENT = ("augment", "en-pt.yaml", "--monolingual", "more.pt", "--reverse", "reverse", "--out", "out", *ALL)
AUGMENT += ("--block-lines", "2")


@pytest.fixture(scope="module")
def place(scratch: Path) -> Iterator[Path]:
    """A folder with pairs, texts of the target side, and a model of each direction."""
    folder = scratch / "augment"
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    try:
        pairs = write("train", 80, 5)
        Path("real.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs[:50]), encoding="utf-8")
        texts = [pair.target for pair in pairs[40:]]
        Path("more.pt").write_text("".join(f"{text}\n" for text in [*texts, "", texts[-1]]), encoding="utf-8")
        Path("en-pt.yaml").write_text(RECIPE, encoding="utf-8")
        for name, source, target in (("reverse", 1, 0), ("forward", 0, 1)):
            data = {"train": {"file": "real.tsv", "source": source, "target": target}}
            atento.train(SETTINGS | {"data": data}, out=name, threads=1)
    finally:
        os.chdir(before)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def report(server: ForkServer, place: Path) -> dict[str, Any]:
    """What the command says, whose folder is `out`."""
    done = server.good(*AUGMENT, "--json", cwd=place)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def pairs_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "synthetic.jsonl").read_text(encoding="utf-8").splitlines()]


def test_pairs_are_made_and_filtered_for_training(server: ForkServer, place: Path, report: dict[str, Any]) -> None:
    pairs = pairs_of(place / "out")
    known = {line.split("\t")[1] for line in (place / "real.tsv").read_text(encoding="utf-8").splitlines()}
    texts = (place / "more.pt").read_text(encoding="utf-8").splitlines()
    assert report["with a target of the recipe's data"] == sum(text in known for text in texts) >= 10
    assert report["pairs"] == len(pairs) > 0 and report["empty"] >= 1
    assert sum(count for name, count in report.items() if name != "share") == len(texts)
    assert not {pair["target"] for pair in pairs} & known
    model = atento.load(place / "reverse", device="cpu")
    rows = {text: row for row, text in reversed(list(enumerate(texts)))}
    for pair in pairs[:5]:  # the sample of `translate`, by the number of the line, and its score by the model
        ((found,),) = model.translations([pair["target"]], row=rows[pair["target"]], sample=True)
        scores = found.hypothesis.token_scores
        assert (found.text, sum(scores) / len(scores)) == (pair["source"], pytest.approx(pair["score"], abs=1e-4))

    recipe = load_recipe(place / "out" / "recipe.yaml").recipe
    real, synthetic = recipe.data.train
    assert (real.prefix, synthetic.prefix, recipe.tokenizer.markers) == ("", TAG, (TAG,))
    lines = (place / "real.tsv").read_text(encoding="utf-8").splitlines()
    sizes = [sum(len(line.split("\t")[1]) for line in lines), sum(len(pair["target"]) for pair in pairs)]
    assert recipe.data.mixing.weights == pytest.approx([size / sum(sizes) for size in sizes], abs=1e-5)
    trained = server.run("train", "out/recipe.yaml", "training.steps=1", "--out", "joined", cwd=place)
    assert trained.status == 0 and "mixing: real.tsv" in trained.stderr, trained.stderr
    tokenizer = atento.load(place / "joined", device="cpu").tokenizer
    assert tokenizer is not None and tokenizer.markers == (TAG,)
    assert tokenizer.encode(f"{TAG}the red house") == [tokenizer.encode(TAG)[0], *tokenizer.encode("the red house")]
    assert not {"back", "translated"} & set(tokenizer.tokens(tokenizer.ordinary_ids))


def test_other_limits_translate_nothing_again(server: ForkServer, place: Path, report: dict[str, Any]) -> None:
    before, limits = pairs_of(place / "out"), (*AUGMENT, "--out", "limits")
    shutil.copytree(place / "out", place / "limits")
    least = sorted(pair["score"] for pair in before)[len(before) // 2]
    done = server.run(*limits, "--min-score", str(least), "--share", "0.3", "--tag", "", cwd=place)
    assert done.status == 0 and "are there already" in done.stderr and "improbable" in done.stdout
    kept = [pair for pair in before if pair["score"] >= least]
    assert pairs_of(place / "limits") == kept and len(kept) < report["pairs"]
    recipe = load_recipe(place / "limits" / "recipe.yaml").recipe
    assert recipe.data.mixing.weights == (0.7, 0.3) and not recipe.tokenizer.markers
    refused(server.run(*limits, "--seed", "5", cwd=place), "limits has the parts of another run: --seed was 1 and is 5")
    refused(server.run(*limits, "--max-ratio", "1", "--min-score", "0", cwd=place), "no synthetic pair is left: ")
    assert pairs_of(place / "limits") == kept  # as it was


def test_a_killed_command_goes_on_to_the_same_bytes(server: ForkServer, place: Path, report: dict[str, Any]) -> None:
    again = (*AUGMENT, "--out", "killed", "--workers", "1")
    running = server.start(*again, cwd=place)
    wait_for(lambda: finished(place / "killed") > 1)
    os.kill(running.pid, signal.SIGKILL)
    running.end()
    assert 1 < finished(place / "killed") < 21 and not (place / "killed" / "synthetic.jsonl").exists()
    assert server.run(*again, cwd=place).status == 0
    for name in ("synthetic.jsonl", *(f"parts/part-{n:05d}.jsonl" for n in range(21))):
        assert (place / "killed" / name).read_bytes() == (place / "out" / name).read_bytes()


def test_bad_input_is_one_sentence(server: ForkServer, place: Path) -> None:
    (place / "empty.pt").write_text("\n  \n", encoding="utf-8")
    (place / "tagged.yaml").write_text(RECIPE.replace("real.tsv", "tagged.tsv"), encoding="utf-8")
    held = {"train": {"file": "real.tsv", "source": 0, "target": 1}, "held_out": 5}
    (place / "held.yaml").write_text(json.dumps(SETTINGS | {"data": held}), encoding="utf-8")
    (place / "tagged.tsv").write_text(f"a\tb\nc {TAG}\td\n", encoding="utf-8")
    labels = {"task": "classification", "data": {"train": {"file": "real.tsv", "text": 0, "label": 1}}}
    (place / "labels.yaml").write_text(json.dumps(labels), encoding="utf-8")
    shutil.copytree(place / "reverse", place / "stopped")
    journal = place / "stopped" / "metrics.jsonl"
    events = [line for line in journal.read_text(encoding="utf-8").splitlines() if '"end"' not in line]
    journal.write_text("".join(f"{line}\n" for line in events), encoding="utf-8")
    shutil.copytree(place / "stopped", place / "begun", ignore=shutil.ignore_patterns("step-*"))
    (place / "other").mkdir()
    (place / "other" / "notes.txt").touch()
    for arguments, said in (
        (("--monolingual", "none.pt"), "none.pt: no such file"),
        (("--monolingual", "empty.pt"), "--monolingual empty.pt holds no text"),
        (("--reverse", "forward"), "--reverse translates the wrong way: it gives the recipe's targets -"),
        (("--reverse", "stopped"), "--reverse stopped: the run has not ended, it is at step 20 of 20"),
        (("--reverse", "begun"), "the run begun has no checkpoint yet"),
        (("--reverse", "none"), "no model at none"),
        (("--out", "other"), "--out other must be a new or empty folder"),
        (("--tag", "back translated"), "--tag back translated: a special token must look like <name>, without spaces"),
        (("tokenizer.path=reverse/tokenizer",), f"--tag {TAG}: "),
    ):
        refused(server.run(*AUGMENT, "--out", "refused", *arguments, cwd=place), said)
        assert not (place / "refused").exists()
    for recipe, said in (
        ("labels.yaml", "labels.yaml:1:10: augment is for task translation: got classification"),
        ("held.yaml", ": data.held_out would take synthetic pairs too: name a file of pairs as data.valid"),
        ("tagged.yaml", f"tagged.tsv:2: the source has the tag {TAG}"),
    ):
        refused(server.run("augment", recipe, *AUGMENT[2:], "--out", "refused", cwd=place), said)
