"""Vectors learned from texts without labels (SimCSE, TSDAE), and another tokenizer for a trained encoder."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import AtentoError
from atento.config.recipe import TokenizerConfig
from atento.models.load import read_model
from atento.models.vocabulary_transfer import spelled_by, transferred
from atento.text import train_tokenizer
from conftest import ForkServer
from runs import differences, last, tensors

NETWORK: dict[str, Any] = {"architecture": "encoder", "d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 2}
NETWORK |= {"dropout": 0.1, "max_len": 32, "positions": {"kind": "learned"}}
TRAINING: dict[str, Any] = {"batch_tokens": 32, "learning_rate": 3e-3, "warmup": 10, "precision": "float32"}
TRAINING |= {"validate_every": 100, "checkpoint_every": 100, "log_every": 100}
FRAMES = [
    "disse que hoje pela manhã {} e {} estavam ali",
    "ontem ainda havia muita gente com {} perto de {} na rua",
    "segundo a nota do jornal {} não combina com {} por agora",
    "ninguém sabia dizer se {} veio antes de {} nessa lista",
]
NOUNS = ["gato", "casa", "livro", "rio", "pão", "ponte", "lua", "trem", "vinho", "carta", "mesa", "flor"]
TOPICS = [(a, b) for a in NOUNS for b in NOUNS if a < b]
TEXTS = [FRAMES[(n * 7 + k) % 4].format(*topic) for n, topic in enumerate(TOPICS) for k in range(2)]
# the same nouns in two other frames than those of training; the frame says nothing
PLANTED = [(FRAMES[(n * 7 + 2) % 4].format(*t), FRAMES[(n * 7 + 3) % 4].format(*t)) for n, t in enumerate(TOPICS)][::2]
MEMORY = {"memory": "train"}
PORTUGUESE = ["o gato dorme na ação", "a canção é do coração", "não há refeição", "o avião e a estação"] * 6


def recipe(objective: Any, **changes: Any) -> dict[str, Any]:
    data = {"train": {"memory": "train"}, "valid": {"memory": "valid"}}
    tokenizer = {"kind": "word", "vocab_size": 100}
    given = {"task": "embedding", "objective": objective, "data": data, "tokenizer": tokenizer, "network": NETWORK}
    return given | {"training": TRAINING | {"steps": 300}} | changes


def trained(out: Path, objective: Any, share: str = "1", **changes: Any) -> Path:
    data = {"train": TEXTS, "valid": PLANTED}
    return atento.train(recipe(objective, **changes), data=data, out=out, threads=1, share=Fraction(share)).folder


@pytest.mark.parametrize(
    ("objective", "rate", "better"), [("simcse", 3e-3, 0.5), ({"kind": "tsdae", "deletion": 0.3}, 1e-2, 0.1)]
)
def test_planted_paraphrases_are_found(objective: Any, rate: float, better: float, tmp_path: Path) -> None:
    """From texts alone, more of them than after one update; TSDAE, which has to write every word, fewer than SimCSE."""
    scores = {}
    for steps in (1, 300):
        run = trained(tmp_path / f"{steps}", objective, training=TRAINING | {"steps": steps, "learning_rate": rate})
        scores[steps] = atento.evaluate(atento.load(run), PLANTED)["mrr"].value
    assert scores[300] > scores[1] + better, scores


@pytest.mark.parametrize("objective", ["simcse", "tsdae"])
def test_a_run_in_two_parts_is_the_same_run(objective: str, tmp_path: Path) -> None:
    changes = {"training": TRAINING | {"steps": 20, "checkpoint_every": 10, "validate_every": 10, "log_every": 10}}
    whole = trained(tmp_path / "whole", objective, **changes)
    assert last(trained(tmp_path / "parts", objective, "1/2", **changes)).name == "step-00000010"
    assert differences(trained(tmp_path / "parts", objective, **changes), whole) == []


def own(folder: Path, **changes: Any) -> dict[str, Any]:
    """A recipe that gives a model another tokenizer and goes on with masked language modelling."""
    training = {"steps": 4, "batch_tokens": 16, "warmup": 1, "learning_rate": 1e-3, "precision": "float32"}
    given = {"task": "masked-language-modeling", "data": {"train": MEMORY}, "training": training}
    init = {"model": str(folder), "tokenizer": "own"} | changes.pop("init", {})
    return given | {"init": init, "tokenizer": {"kind": "wordpiece", "vocab_size": 90}} | changes


def greedy(vocabulary: dict[str, int], word: str, *, inside: bool) -> list[int]:
    """WordPiece by hand: the longest piece, again and again; nothing if a letter is in no piece."""
    ids: list[int] = []
    while word:
        marks = "##" if ids or inside else ""
        size = next((size for size in range(len(word), 0, -1) if marks + word[:size] in vocabulary), 0)
        if not size:
            return []
        ids.append(vocabulary[marks + word[:size]])
        word = word[size:]
    return ids


def test_rows_of_a_new_vocabulary_are_means_of_old_rows(folders: dict[str, Path], tmp_path: Path) -> None:
    """Each piece by hand, special tokens by role, biases of the output, positions as they were; a line that counts."""
    old, files = atento.Tokenizer.load(folders["bert"]), read_model(folders["bert"])
    new = train_tokenizer(TokenizerConfig(kind="wordpiece", vocab_size=90), PORTUGUESE)
    vocabulary = {old.tokens([token])[0]: token for token in old.ordinary_ids}
    lines: list[str] = []
    weights = transferred(files, new, lines.append).weights
    table, before = weights["embedding.weight"], files.weights["embedding.weight"]
    bias, bias_before = (part["heads.vocabulary.output.bias"] for part in (weights, files.weights))
    kinds = {"copied": len(new.specials.ids), "averaged": 0, "new": 0}
    for token in new.ordinary_ids:
        piece = new.tokens([token])[0]
        ids = greedy(vocabulary, old.normalize(piece.removeprefix("##")), inside=piece.startswith("##"))
        kinds["copied" if len(ids) == 1 else "averaged" if ids else "new"] += 1
        for rows, old_rows in ((table, before), (bias, bias_before)):
            expected = old_rows[ids or old.ordinary_ids].mean(dim=0)
            torch.testing.assert_close(rows[token], expected, rtol=0, atol=1e-6, msg=piece)
    assert kinds["averaged"] > 10 and kinds["copied"] > 10
    counts = f"{kinds['copied']} copied, {kinds['averaged']} averaged, {kinds['new']} new (the mean of all)"
    assert lines == [f"vocabulary: {new.vocab_size} rows in place of {old.vocab_size}: {counts}"]
    for role, text in new.specials.roles.items():
        assert torch.equal(table[new.specials.ids[text]], before[old.specials.id(role)])
    for name in files.weights.keys() - {"embedding.weight", "heads.vocabulary.output.bias"}:
        assert torch.equal(weights[name], files.weights[name]), name


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe", "character", "byte"])
def test_a_piece_inside_a_word_is_spelled_as_such(kind: str, folders: dict[str, Path]) -> None:
    """The old pieces of a text cut by the new tokenizer spell that text, whatever the kind."""
    new = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), PORTUGUESE)
    for name in ("bert", "roberta"):
        old = atento.Tokenizer.load(folders[name])
        spelled = spelled_by(old, new)
        ids = [i for token in new.encode("o gato dorme na refeicao") for i in spelled[token]]
        assert old.decode(ids).replace("##", "").replace(" ", "") == "ogatodormenarefeicao"
        roles = ("pad", "bos", "mask")
        assert [spelled[new.specials.id(role)] for role in roles] == [[old.specials.id(role)] for role in roles]


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_model_with_another_tokenizer_is_exported(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """A run in two parts is the same run; `transformers` reads the saved folder, with equal hidden vectors."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    data = {"train": PORTUGUESE}
    whole = atento.train(own(folders[name]), data=data, out=tmp_path / "whole", threads=1).folder
    for share in (Fraction(1, 2), Fraction(1)):
        parts = atento.train(own(folders[name]), data=data, out=tmp_path / "parts", threads=1, share=share).folder
    assert differences(parts, whole) == []
    model = atento.load(whole)
    assert model.tokenizer.kind == "wordpiece" and model.network.config.vocab_size == model.tokenizer.vocab_size < 100
    saved = model.save(tmp_path / "saved", layout="huggingface")
    theirs = transformers.AutoModel.from_pretrained(saved).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(saved)("o gato dorme", return_tensors="pt")
    with torch.no_grad():
        vectors = theirs(**encoded).last_hidden_state[0].numpy()
    ours = model.features("o gato dorme")
    np.testing.assert_allclose(np.asarray(ours)[-len(vectors) :], vectors[-len(ours) :], atol=1e-5)


def test_the_next_run_keeps_the_tokenizer(folders: dict[str, Path], server: ForkServer, tmp_path: Path) -> None:
    """New vocabulary, then TSDAE on the command line from a text file, then use; the first encoder had no decoder."""
    atento.train(own(folders["bert"]), data={"train": PORTUGUESE}, out=tmp_path / "pieces", threads=1)
    (tmp_path / "texts.txt").write_text("\n".join(PORTUGUESE) + "\nsó\n", encoding="utf-8")
    rows = ["text\tpair\tscore", "o gato dorme\to gato na ação\t4", "não há refeição\to avião\t1", "é\to avião\t2"]
    (tmp_path / "valid.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    written = {"task": "embedding", "objective": "tsdae", "init": "pieces", "data": {"train": {"file": "texts.txt"}}}
    written["data"]["valid"] = {"file": "valid.tsv", "text": "text", "pair": "pair", "score": "score"}
    written["training"] = {"steps": 2, "batch_tokens": 8, "warmup": 1, "learning_rate": 1e-3}
    (tmp_path / "r.yaml").write_text(json.dumps(written), encoding="utf-8")
    assert server.run("config", "check", "r.yaml", cwd=tmp_path).stdout == "ok\n"
    assert "target_ids" in server.good("data", "peek", "r.yaml", cwd=tmp_path).stdout
    done = server.good("train", "r.yaml", "--threads", "1", cwd=tmp_path)
    assert "1 of 25 texts are one word, which is never deleted" in done.stderr and "cosine-spearman" in done.stderr
    weights = tensors(last(tmp_path / "runs" / "r") / "model.safetensors")
    assert {name.split(".")[3] for name in weights if name.startswith("heads.reconstruction.layers.")} == {"0", "1"}
    model = atento.load(tmp_path / "runs" / "r")
    assert model.tokenizer.fingerprint == atento.load(tmp_path / "pieces").tokenizer.fingerprint
    assert model.embed(["o gato"]).shape == (1, model.network.config.d_model)


@pytest.mark.parametrize(
    ("texts", "objective", "changes", "message"),
    [
        (TEXTS, "simcse", {"network": NETWORK | {"dropout": 0.0}}, "`network.dropout` is 0, and nothing tells two"),
        (TEXTS, "simcse", {"training": TRAINING | {"steps": 1, "batch_tokens": 1}}, "a batch of one text has nothing"),
        (TEXTS[:1], "simcse", {}, "there is one text alone, and nothing to contrast it with"),
        ([("a b", "c d")], "simcse", {}, r"data\['train'\]\[0\]: give texts, or dicts .*: got tuple of 2"),
        (TEXTS, "simcse", {"data": {"train": MEMORY, "held_out": 2}}, "texts without a pair to score: .* 2"),
        (["um", "dois", "três"], "tsdae", {}, "every text is one word, of which objective tsdae can delete none"),
        (TEXTS, "tsdae", {"embedding": {"pooling": "first+mean"}}, "as wide as the layers, 32 numbers: .* of 64"),
        (TEXTS, {"kind": "tsdae", "deletion": 1}, {}, r"`deletion` must lie in \[0, 1\): got 1"),
        (TEXTS, {"kind": "tsdae", "matryoshka": [8]}, {}, "`matryoshka` has no effect on the objective tsdae"),
        (TEXTS, "tsdae", {"network": NETWORK | {"architecture": "decoder"}}, "needs network.architecture encoder"),
    ],
)
def test_what_teaches_nothing_is_said(texts: Any, objective: Any, changes: Any, message: str, tmp_path: Path) -> None:
    data = {"data": {"train": {"memory": "train"}}} | changes
    with pytest.raises(AtentoError, match=message) as error:
        atento.train(recipe(objective, **data), data={"train": texts}, out=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_windows_pairs_and_own_without_a_model_are_refused_before_any_reading(tmp_path: Path) -> None:
    windows = recipe("tsdae", data={"train": {"memory": "train"}, "windows": "mean"})
    with pytest.raises(AtentoError, match=r"from one vector .*: got `data.windows` mean"):
        atento.train(windows, data={"train": TEXTS}, out=tmp_path / "run")
    pairs = recipe("simcse", data={"train": {"file": "no.tsv", "text": "text", "pair": "pair"}})
    with pytest.raises(AtentoError, match=r"has a `pair`, and this task reads texts: .*; so does every objective"):
        atento.train(pairs, out=tmp_path / "run")
    with pytest.raises(AtentoError, match=r"init\.model is missing"):
        atento.train(own(tmp_path) | {"init": {"tokenizer": "own"}}, data={"train": PORTUGUESE}, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"tokenizer": None}, "init.tokenizer own is that of the section tokenizer, which is missing"),
        ("bert", {"init": {"tokenizer": "mine"}}, "init.tokenizer must be one of model, own: got 'mine'"),
        ("bert", {"init": {"new_decoder": True}}, "`init.tokenizer: own` replaces the .* that `init.new_decoder`"),
        ("bert", {"init": {"few_shot": True}}, "leave `init.tokenizer` out"),
        ("bert", {"init": {"model": ""}}, "`init.model` must name a model"),
        ("gpt2", {"task": "language-modeling"}, "`init.tokenizer: own` is for encoders .*: got architecture 'decoder'"),
    ],
)
def test_an_impossible_exchange_is_said(name: str, changes: Any, message: str, folders: Any, tmp_path: Path) -> None:
    written = {key: value for key, value in own(folders[name], **changes).items() if value is not None}
    with pytest.raises(AtentoError, match=message) as error:
        atento.train(written, data={"train": PORTUGUESE}, out=tmp_path / "run", threads=1)
    assert "\n" not in str(error.value) and not (tmp_path / "run" / "checkpoints").exists()


def test_embeddings_that_are_not_trained_are_warned_of(folders: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    atento.train(own(folders["bert"], init={"train": "bias"}), data={"train": PORTUGUESE}, out=tmp_path / "run")
    said = capsys.readouterr().err
    assert "`init.train` bias leaves the embeddings of new pieces as they begin" in said and "no effect" not in said
