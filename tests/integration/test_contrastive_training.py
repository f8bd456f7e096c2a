"""The task embedding through recipe, command and Python: pairs, triples and scored pairs, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import atento
from atento.base.errors import AtentoError
from atento.data.objectives.multiple_negatives import candidates
from atento.metrics import METRICS
from atento.runs.train import TrainedRun
from conftest import ForkServer, refused

NETWORK: dict[str, Any] = {"architecture": "encoder", "d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1}
NETWORK |= {"dropout": 0.0, "max_len": 32, "positions": {"kind": "learned"}}
TRAINING = {"steps": 60, "batch_tokens": 12, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"}
TRAINING |= {"validate_every": 30, "checkpoint_every": 30}
WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito"]
ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
PAIRS = [
    (f"{verb} {a}", f"{other} {b}")
    for a, b in zip(WORDS, ENGLISH)
    for verb, other in (("vejo", "I see"), ("há", "here is"))
]


def recipe(**changes: Any) -> dict[str, Any]:
    data = {split: {"file": f"{split}.tsv", "text": "text", "pair": "pair"} for split in ("train", "valid")}
    given = {"task": "embedding", "data": data, "tokenizer": {"kind": "word", "vocab_size": 100}, "network": NETWORK}
    return given | {"embedding": {"normalize": True}, "training": TRAINING} | changes


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Portuguese and English phrases: after training each is nearest to its translation."""
    here = tmp_path_factory.mktemp("embedding")
    for split in ("train", "valid"):
        lines = ["text\tpair\n", *(f"{text}\t{pair}\n" for text, pair in PAIRS)]
        (here / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    file = here / "recipe.json"
    file.write_text(json.dumps(recipe()), encoding="utf-8")
    return atento.train(file, out=here / "run", threads=1)


def test_g8_pairs_are_learned_and_ranked(translated: TrainedRun, server: ForkServer) -> None:
    model = atento.load(translated.folder)
    said = {"layer": -1, "pooling": "mean", "normalize": True, "max_len": None, "prompt": "", "pool_prompt": True}
    assert model.config["embedding"] == said | {"lowercase": False, "prompts": {}, "field_prompts": {}}
    vectors = model.embed([text for pair in PAIRS for text in pair])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(vectors)), abs=1e-5)
    cosines = vectors[::2] @ vectors[1::2].T
    ranks = [1 + sum(row > row[number]) for number, row in enumerate(cosines)]
    scores = atento.evaluate(model, translated.folder.parent / "valid.tsv")
    assert list(scores) == ["mrr", "recall@1"]
    assert scores["mrr"].value == pytest.approx(np.mean([1 / rank for rank in ranks])) and scores["mrr"].value > 0.8
    assert scores["recall@1"].value == pytest.approx(np.mean([rank == 1 for rank in ranks]))
    assert scores["recall@1"].interval()[0] <= scores["recall@1"].value
    floor = ("--fail-under", "recall@1=0.5", "--json")
    done = server.run("evaluate", "run", "valid.tsv", *floor, cwd=translated.folder.parent)
    assert json.loads(done.stdout)["mrr"]["value"] == pytest.approx(scores["mrr"].value) and done.status == 0
    assert model.similarity("vejo um", "I see one") == pytest.approx(float(cosines[0, 0]), abs=1e-5)


def test_g8_scored_pairs_are_learned_as_cosines(tmp_path: Path, server: ForkServer) -> None:
    """Of ASSIN's kind: scores from 1 to 5. The metric is scipy's correlation."""
    scored = [(f"vejo {a}", f"vejo {b}", 1.0 + 4.0 * (a == b)) for a in WORDS[:4] for b in WORDS[:4]]
    objective = {"kind": "cosine", "score_range": [1, 5]}
    data = {split: {"memory": split} for split in ("train", "valid")}
    given = {"train": scored, "valid": scored}
    run = atento.train(recipe(data=data, objective=objective), data=given, out=tmp_path / "run", threads=1)
    model = atento.load(run.folder)
    cosines = model.similarity([text for text, _, _ in scored], [pair for _, pair, _ in scored])
    scores = atento.evaluate(model, scored)
    expected = spearmanr(cosines, [score for *_, score in scored]).statistic
    found = {name: score.value for name, score in scores.items()}
    assert found == {"cosine-spearman": pytest.approx(expected, abs=1e-6)} and expected > 0.5
    lines = ["text\tpair\tscore\n", *(f"{text}\t{pair}\t{score}\n" for text, pair, score in scored)]
    (tmp_path / "test.tsv").write_text("".join(lines), encoding="utf-8")
    assert server.run("evaluate", "run", "test.tsv", cwd=tmp_path).stdout.startswith(f"Spearman {expected:.4f}")
    (tmp_path / "bare.tsv").write_text("".join(lines[1:]), encoding="utf-8")
    said = "has 3 columns: its first line, or `columns`, must name them"
    refused(server.run("evaluate", "run", "bare.tsv", cwd=tmp_path), said)


def test_g8_vectors_are_cut_to_the_sizes_they_were_trained_for(tmp_path: Path, server: ForkServer) -> None:
    """The first numbers alone rank as well as all of them; command and Python cut in one way."""
    records = {"train": PAIRS, "valid": PAIRS}
    data = {split: {"memory": split} for split in records}
    objective = {"kind": "multiple-negatives", "matryoshka": [32, 4]}
    run = atento.train(recipe(data=data, objective=objective), data=records, out=tmp_path / "run", threads=1)
    model = atento.load(run.folder)
    texts, pairs = (model.embed(list(side), dimensions=4) for side in zip(*PAIRS))
    assert texts.shape == (len(PAIRS), 4) and np.linalg.norm(texts, axis=1) == pytest.approx(np.ones(len(PAIRS)))
    whole = model.embed([text for text, _ in PAIRS])[:, :4]
    np.testing.assert_allclose(texts, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)
    assert ((texts @ pairs.T).argmax(axis=1) == np.arange(len(PAIRS))).mean() > 0.8
    (tmp_path / "texts.txt").write_text(PAIRS[0][0] + "\n", encoding="utf-8")
    done = server.run("embed", "run", "texts.txt", "--dimensions", "4", cwd=tmp_path)
    assert [float(number) for number in done.stdout.split()] == pytest.approx(texts[0].tolist(), abs=1e-6)
    for more, message in (
        (("--dimensions", "33"), "`dimensions` must lie in 1 to 32, the length of a vector: got 33"),
        (("--prompt-name", "query"), "unknown prompt 'query': the model has none"),
    ):
        refused(server.run("embed", "run", "texts.txt", *more, cwd=tmp_path), message)


def test_g8_triples_are_validated_by_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores ask for no negative; the other way round, and in any other field, both must have the same columns."""
    monkeypatch.chdir(tmp_path)
    triples = [f"{a}\t{b}\t{PAIRS[(number + 5) % 16][1]}" for number, (a, b) in enumerate(PAIRS)]
    head = "text\tpair\tnegative"
    Path("train.tsv").write_text("\n".join([head, *triples]) + "\n", encoding="utf-8")
    Path("valid.tsv").write_text("text\tpair\n" + "\n".join(map("\t".join, PAIRS[:4])) + "\n", encoding="utf-8")
    given = recipe()
    given["data"]["train"]["negative"] = "negative"
    assert atento.train(given, out=tmp_path / "run", threads=1).best == 1.0
    given["data"] = {"train": given["data"]["valid"], "valid": given["data"]["train"]}
    with pytest.raises(AtentoError, match=r"`data.valid` has `text` and `pair` and `negative`, and `data.train` has"):
        atento.train(given, out=tmp_path / "other", threads=1)


def test_g8_a_text_is_no_negative_of_its_own_and_equal_second_texts_are_one_document() -> None:
    """Texts 0 to 9 as numbers: every rule by a search over all rows and candidates."""
    drawn = np.random.default_rng(2).integers(0, 10, size=(12, 3))
    mask = candidates(drawn)
    for row, (text, pair, _) in enumerate(drawn):
        for number in range(24):
            owner, side = number % 12, 1 + number // 12
            same = drawn[owner, side] in (text, pair) or (side == 1 and drawn[owner, 0] == text)
            assert mask[row, number] == (number == row or not same)
    assert 24 < mask.sum() < mask.size
    pairs = [np.array([[1.0, 0.0], [1.0, 0.1]]), np.array([[0.9, 0.1], [1.0, 0.1]]), np.array([[0.0, 1.0], [0.5, 1.0]])]
    assert METRICS["mrr"].score(pairs, [("a", None), ("a", None), ("b", None)]).value == 1.0
    with pytest.raises(AtentoError, match="these pairs have scores: use cosine-spearman"):
        METRICS["mrr"].score(pairs, [("a", 1.0), ("a", 0.5), ("b", 0.0)])
    with pytest.raises(AtentoError, match="each pair needs a score: use mrr"):
        METRICS["cosine-spearman"].score(pairs, [("a", None), ("a", None), ("b", None)])


MISSPELT = {"prompts": {"query": "q"}, "field_prompts": {"pair": "querry"}}


@pytest.mark.parametrize(
    ("records", "changes", "message"),
    [
        (PAIRS[:1], {}, "one pair alone, and nothing to contrast it with"),
        (PAIRS, {"training": {"batch_tokens": 1}}, "a batch of one pair has nothing to contrast it with; got 1"),
        ([("a", "a"), ("b", "b")], {}, "each text equals its pair, so there is nothing to learn"),
        ([("a", "b"), ("b",)], {}, r"data\['train'\]\[1\]: give"),
        ([("a", "b", "b"), ("b", "c", "d")], {}, "the negative must differ from the text and its pair: got 'b'"),
        ([("a", "b", 0.5), ("b", "c", 0.1)], {}, "a score, which objective multiple-negatives does not read"),
        (PAIRS, {"objective": "cosine"}, "objective cosine needs a `score` for each pair"),
        ([("a", "b", 3.0)], {"objective": "cosine"}, r"the score must lie in -1 to 1, as a cosine .*: got 3"),
        (PAIRS, {"objective": "cosent"}, "objective cosent needs a `score` for each pair"),
        ([("a", "b", 3.0)] * 2, {"objective": "cosent"}, "which pair has the higher score, and all are 3"),
        (PAIRS, {"objective": "triplet"}, "triplet needs records of `text`, `pair` and `negative`, .*: got text, pair"),
        (PAIRS, {"objective": {"kind": "triplet", "margin": 0}}, "`margin` must be finite and above 0: got 0"),
        (PAIRS, {"objective": {"kind": "cosine", "margin": 1}}, "`margin` has no effect on the objective cosine"),
        (PAIRS, {"objective": {"kind": "cosine", "distance": "cosine"}}, "`distance` has no effect on the objective"),
        (PAIRS, {"objective": {"kind": "multiple-negatives", "matryoshka": [64, 8]}}, "at most 32, that of a vector"),
        (PAIRS, {"objective": {"kind": "multiple-negatives", "matryoshka": [8, 8]}}, "must name different lengths"),
        (PAIRS, {"embedding": {"field_prompts": {"pair": "q"}}}, "unknown prompt 'q': the model has none"),
        (PAIRS, {"embedding": {"field_prompts": {"pare": "q"}}}, "field_prompts: unknown field 'pare'.*pair"),
        (PAIRS, {"embedding": MISSPELT}, "'querry'; did you mean"),
        (PAIRS, {"objective": {"kind": "cosine", "scale": 2.0}}, "`scale` has no effect on the objective cosine"),
        (PAIRS, {"embedding": {"pooling": "sum"}}, "unknown embedding.pooling 'sum'"),
        (PAIRS, {"embedding": {"layer": 0}}, "embedding.layer must be -1, the last layer, in training: got 0"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(
    records: list[Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AtentoError, match=message) as error:
        given = recipe(data={"train": {"memory": "train"}}, **changes)
        atento.train(given, data={"train": records}, out=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_missing_column_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tother\na\tb\n", encoding="utf-8")
    data = {"train": {"file": str(tmp_path / "train.tsv"), "text": "text", "pair": "pair"}}
    with pytest.raises(AtentoError, match=r"train.tsv:1: column 'pair' is not in the header"):
        atento.train(recipe(data=data), out=tmp_path / "run")
