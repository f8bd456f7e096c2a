"""Data for translators: `atento augment` with kills and refusals, and `atento data fetch` with real packages."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.base.errors import AtentoError, DataError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig
from atento.data.records.reader import SOURCE_AND_TARGET, read_records
from atento.data.records.splits import overlap
from atento_cli.corpus.fetch import CATALOGUES, fetch_catalogues, fetch_libreoffice
from atento_world import write
from conftest import ForkServer, refused
from test_cluster import finished, wait_for

TAG = "<back-translated>"
SETTINGS: dict[str, Any] = {
    "task": "translation",
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0},
    "tokenizer": {"kind": "word"},
    "training": {"steps": 20, "batch_tokens": 256, "warmup": 2, "learning_rate": 1e-2, "precision": "float32"}
    | {"baseline": False},
    "decoding": {"max_new_tokens": 20},  # models that have learned little write without end
}
RECIPE = json.dumps(SETTINGS | {"data": {"train": {"file": "real.tsv", "source": 0, "target": 1}}})  # JSON is YAML
ALL = ("--min-score", "-99", "--max-ratio", "99", "--device", "cpu", "--threads", "1", "--sample")
AUGMENT = ("augment", "en-pt.yaml", "--monolingual", "more.pt", "--reverse", "reverse", "--out", "out", *ALL)
AUGMENT += ("--block-lines", "2")


@pytest.fixture(scope="module")
def place(scratch: Path) -> Iterator[Path]:
    """A folder with pairs, texts of the target side, and a model of each direction."""
    folder = scratch / "augment"
    folder.mkdir()
    pairs = write("train", 80, 5)
    texts = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs[:50])
    (folder / "real.tsv").write_text(texts, encoding="utf-8")
    more = [pair.target for pair in pairs[40:]]
    (folder / "more.pt").write_text("".join(f"{text}\n" for text in [*more, "", more[-1]]), encoding="utf-8")
    (folder / "en-pt.yaml").write_text(RECIPE, encoding="utf-8")
    for name, source, target in (("reverse", 1, 0), ("forward", 0, 1)):
        data = {"train": {"file": "real.tsv", "source": source, "target": target}, "folder": str(folder)}
        atento.train(SETTINGS | {"data": data}, out=folder / name, threads=1)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def report(server: ForkServer, place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.good(*AUGMENT, "--json", cwd=place).stdout)
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


@pytest.mark.slow  # downloads tens of megabytes and reads thirty thousand pairs
@pytest.mark.skipif(not shutil.which("dpkg-deb") or not shutil.which("apt-get"), reason="needs apt-get and dpkg-deb")
def test_libreoffice_help_gives_tens_of_thousands_of_pairs(tmp_path: Path) -> None:
    """A data set made in a similar way elsewhere has 33,213 English-Portuguese pairs."""
    try:
        (fetched,) = fetch_libreoffice(["pt-BR"], tmp_path, held_out=500)
    except AtentoError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(str(error))
    assert 28_000 < sum(fetched.files.values()) < 42_000
    train, valid, test = (
        read_records(SourceConfig(file=f"pt-BR{ending}.tsv", source=0, target=1), SOURCE_AND_TARGET, tmp_path)
        for ending in ("", ".valid", ".test")
    )
    assert overlap(train, valid) == overlap(train, test) == overlap(valid, test) == 0
    assert 450 <= len(valid) <= 700 and 450 <= len(test) <= 700
    for text in (train["source"], train["target"]):
        assert not any("\xa0\xa0" in line or line != line.strip() or "</" in line[:2] for line in text)
    assert sum("ção" in line for line in train["target"]) > 1000 > sum("ção" in line for line in train["source"])
    lengths = [len(one) / len(other) for one, other in zip(train["source"], train["target"])]
    assert 0.7 < sorted(lengths)[len(lengths) // 2] < 1.1  # sentences answer each other: Portuguese is a little longer


def test_catalogues_of_this_machine(tmp_path: Path) -> None:
    try:
        fetched = fetch_catalogues("pt-BR", tmp_path, CATALOGUES)
    except DataError as error:
        pytest.skip(str(error))
    assert sum(fetched.files.values()) > 20
    pairs = read_records(SourceConfig(file="pt-BR.catalogues.tsv", source=0, target=1), SOURCE_AND_TARGET, tmp_path)
    assert len(set(zip(pairs["source"], pairs["target"]))) == len(pairs)
