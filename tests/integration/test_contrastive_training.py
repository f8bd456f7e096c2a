"""The tasks embedding and ranking: pairs, triples, scores and grades, files of TREC, mining, and what is refused."""

import json
from itertools import product
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
from atento.tasks.hard_negatives import Mining, mined
from conftest import ForkServer, refused
from test_classification import ENCODER

TRAINING = {"steps": 60, "batch_tokens": 12, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"}
TRAINING |= {"validate_every": 30, "checkpoint_every": 30}
WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito"]
ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
PAIRS = [
    (f"{verb} {a}", f"{other} {b}")
    for a, b in zip(WORDS, ENGLISH)
    for verb, other in (("vejo", "I see"), ("há", "here is"))
]


def write(path: Path, names: str, records: list[Any]) -> None:
    rows = "\n".join([names.replace(" ", "\t"), *("\t".join(map(str, row)) for row in records)])
    path.write_text(rows + "\n", encoding="utf-8")


def recipe(**changes: Any) -> dict[str, Any]:
    data = {split: {"file": f"{split}.tsv", "text": "text", "pair": "pair"} for split in ("train", "valid")}
    given = {"task": "embedding", "data": data, "tokenizer": {"kind": "word", "vocab_size": 100}, "network": ENCODER}
    return given | {"embedding": {"normalize": True}, "training": TRAINING} | changes


def test_g8_pairs_are_learned_and_ranked(tmp_path: Path, server: ForkServer) -> None:
    """Portuguese and English phrases: after training each is nearest to its translation."""
    for split in ("train", "valid"):
        write(tmp_path / f"{split}.tsv", "text pair", PAIRS)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe()), encoding="utf-8")
    model = atento.load(atento.train(tmp_path / "recipe.json", out=tmp_path / "run", threads=1).folder)
    said = {"layer": -1, "pooling": "mean", "normalize": True, "max_len": None, "prompt": "", "pool_prompt": True}
    assert model.config["embedding"] == said | {"lowercase": False, "prompts": {}, "field_prompts": {}}
    vectors = model.embed([text for pair in PAIRS for text in pair])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(vectors)), abs=1e-5)
    cosines = vectors[::2] @ vectors[1::2].T
    ranks = [1 + sum(row > row[number]) for number, row in enumerate(cosines)]
    scores = atento.evaluate(model, tmp_path / "valid.tsv")
    assert list(scores) == ["mrr", "recall@1"]
    assert scores["mrr"].value == pytest.approx(np.mean([1 / rank for rank in ranks])) and scores["mrr"].value > 0.8
    assert scores["recall@1"].value == pytest.approx(np.mean([rank == 1 for rank in ranks]))
    assert scores["recall@1"].interval()[0] <= scores["recall@1"].value
    floor = ("--fail-under", "recall@1=0.5", "--json")
    done = server.run("evaluate", "run", "valid.tsv", *floor, cwd=tmp_path)
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
    write(tmp_path / "test.tsv", "text pair score", scored)
    assert server.run("evaluate", "run", "test.tsv", cwd=tmp_path).stdout.startswith(f"Spearman {expected:.4f}")
    bare = (tmp_path / "test.tsv").read_text(encoding="utf-8").partition("\n")[2]
    (tmp_path / "bare.tsv").write_text(bare, encoding="utf-8")
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
    write(Path("train.tsv"), "text pair negative", [(*two, PAIRS[(n + 5) % 16][1]) for n, two in enumerate(PAIRS)])
    write(Path("valid.tsv"), "text pair", PAIRS[:4])
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
        (PAIRS, {"embedding": {"pooling": "sum"}}, "unknown embedding.pooling 'sum'"),
        (PAIRS, {"embedding": {"layer": 0}}, "embedding.layer must be -1, the last layer, in training: got 0"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(records: Any, changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(AtentoError, match=message) as error:
        given = recipe(data={"train": {"memory": "train"}}, **changes)
        atento.train(given, data={"train": records}, out=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_missing_column_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tother\na\tb\n", encoding="utf-8")
    data = {"train": {"file": str(tmp_path / "train.tsv"), "text": "text", "pair": "pair"}}
    with pytest.raises(AtentoError, match=r"train.tsv:1: column 'pair' is not in the header"):
        atento.train(recipe(data=data), out=tmp_path / "run")


OFTEN = {"steps": 60, "batch_tokens": 16, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"}
ANIMALS, DOINGS = ("cat", "dog", "bird", "fish"), ("sleeps", "eats", "sings", "swims")
GRADED = [
    (f"who {doing}", f"the {animal} {other}", int(doing == other) * (1 + (animal in ("cat", "dog"))))
    for doing, animal, other in product(DOINGS, ANIMALS, DOINGS)
    if doing == other or animal != "bird"
]
TRIPLES = [
    (f"who {doing}", f"the {animal} {doing}", f"the {animal} {other}")
    for doing, animal, other in product(DOINGS, ANIMALS, DOINGS)
    if other != doing
]


def ranker(**changes: Any) -> dict[str, Any]:
    given = {"task": "ranking", "data": {"train": {"memory": "train"}}, "training": OFTEN}
    return given | {"tokenizer": {"kind": "word", "vocab_size": 100}, "network": ENCODER} | changes


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    here = tmp_path_factory.mktemp("ranking")
    for split in ("train", "valid"):
        write(here / f"{split}.tsv", "query document grade", GRADED)
    fields = {"query": "query", "document": "document", "grade": "grade"}
    data = {split: {"file": f"{split}.tsv", **fields} for split in ("train", "valid")}
    (here / "ranker.json").write_text(json.dumps(ranker(data=data)))
    return atento.train(here / "ranker.json", out=here / "run", threads=1)


def test_grades_are_learned_and_scored(ranked: TrainedRun, server: ForkServer) -> None:
    """`evaluate` has the scores of the files that a user writes of the model's numbers, in both forms."""
    here, model = ranked.folder.parent, atento.load(ranked.folder)
    assert ranked.best is not None and ranked.best > 0.8
    assert "baseline on valid: ndcg@10 " in next(ranked.folder.glob("*.log")).read_text("utf-8")
    scores = atento.evaluate(model, here / "valid.tsv")
    assert list(scores) == ["ndcg@10", "map", "mrr"] and scores["ndcg@10"].value == pytest.approx(ranked.best)
    assert scores["map"].interval()[0] <= scores["map"].value
    numbers = model.similarity([query for query, _, _ in GRADED], [document for _, document, _ in GRADED])
    names = {document: f"d{n}" for n, (_, document, _) in enumerate(GRADED)}
    run, qrels = [], []
    for (query, document, grade), number in zip(GRADED, numbers):
        topic = query.replace(" ", "-")
        run.append(f"{topic} Q0 {names[document]} 1 {number!r} atento")
        qrels.append(f"{topic} 0 {names[document]} {grade}")
    (here / "my.run").write_text("\n".join(run) + "\nextra Q0 d1 1 0.5 atento\n")
    (here / "right.qrels").write_text("\n".join(qrels) + "\n")
    rows = [{"query": query, "document": document, "score": n} for (query, document, _), n in zip(GRADED, numbers)]
    (here / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"query": query, "document": document, "grade": grade} for query, document, grade in GRADED]
    (here / "qrels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for metric in ("ndcg@10", "map", "mrr"):
        for files in (("my.run", "right.qrels"), ("run.jsonl", "qrels.jsonl")):
            done = server.run("score", metric, *files, "--json", "--interval", cwd=here)
            found = json.loads(done.stdout)
            assert found["value"] == pytest.approx(scores[metric].value, abs=1e-6)
            assert found["interval"]["low"] <= found["value"] <= found["interval"]["high"]
            assert ("1 query without grades left out, first 'extra'" in done.stderr) == (files[0] == "my.run")
    done = server.run("score", "map", "my.run", "right.qrels", "--against", "my.run", "--samples", "50", cwd=here)
    assert "p = 1" in done.stdout, done.stdout


@pytest.mark.parametrize("objective", ["pointwise", "ranknet", "listnet"])
def test_triples_are_learned_by_every_objective(objective: str, tmp_path: Path) -> None:
    """Whole queries are held out, so that no query is in both parts."""
    data = {"train": {"memory": "train"}, "held_out": 12}
    run = atento.train(ranker(data=data, objective=objective), data={"train": TRIPLES}, out=tmp_path / "run", threads=1)
    model = atento.load(run.folder)
    (head,) = model.network.config.heads
    assert (head.center == 0) == (objective != "pointwise"), "the log-odds of the grades, where they are probabilities"
    score = atento.evaluate(model, TRIPLES, metrics="ndcg@10,recall@3")
    assert score["ndcg@10"].value > 0.75
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"ndcg@10"' in log and [float(n) for n in score["recall@3"].per_sentence()]


def test_negatives_are_mined_within_margins(ranked: TrainedRun, tmp_path: Path, server: ForkServer) -> None:
    """As a search over all documents finds them; a ranker scores in place of the encoder."""
    prompts = {"query": "who ", "passage": "the "}
    encoder = ranker(task="embedding", training=OFTEN | {"steps": 15}, embedding={"prompts": prompts})
    pairs = [(query, document) for query, document, grade in GRADED if grade == 2]
    related = [(query, document) for query, document, grade in GRADED if grade]
    made = atento.train(encoder, data={"train": related}, out=tmp_path / "encoder", threads=1)
    write(tmp_path / "pairs.tsv", "query positive", pairs)
    corpus = list(dict.fromkeys(document for _, document, _ in GRADED))
    (tmp_path / "corpus.txt").write_text("\n".join(corpus) + "\n")
    more = ("--corpus", "corpus.txt", "--negatives", "2", "--margin", "0.1", "--within", "9", "--out")
    done = server.run("data", "mine", "pairs.tsv", "--encoder", "encoder", *more, "found.jsonl", cwd=tmp_path)
    model, lines = atento.load(made.folder), (tmp_path / "found.jsonl").read_text().splitlines()
    queries = model.embed([query for query, _ in pairs], normalize=True, prompt_name="query")
    documents = model.embed(corpus, normalize=True, prompt_name="passage")
    expected = []
    for (query, positive), cosines in zip(pairs, queries @ documents.T):
        right = {document for own, document in pairs if own == query}
        order = [corpus[n] for n in np.argsort(-cosines) if corpus[n] not in right][:9]
        score = dict(zip(corpus, cosines))
        found = [document for document in order if score[document] <= score[positive] - 0.1][:2]
        expected += [{"query": query, "positive": positive, "negative": document} for document in found]
    assert [json.loads(line) for line in lines] == expected and expected
    assert done.stdout.startswith(f"{len(expected)} triples of {len(pairs)} pairs")
    mine = ("data", "mine", "pairs.tsv", "--encoder", "encoder", "--ranker", str(ranked.folder))
    judged, judge = server.run(*mine, *more, "found.tsv", cwd=tmp_path), atento.load(ranked.folder)
    rows = [line.split("\t") for line in (tmp_path / "found.tsv").read_text().splitlines()[1:]]
    given = [np.array(judge.similarity([r[0] for r in rows], [r[n] for r in rows])) for n in (1, 2)]
    logistic = [1 / (1 + np.exp(-numbers)) for numbers in given]
    assert rows and (logistic[0] - logistic[1] >= 0.1 - 1e-6).all(), judged.stderr
    write(tmp_path / "wrong.tsv", "query negative", pairs)
    for files, message in (
        (("pairs.txt", "x.tsv"), "PAIRS must end in one of"),
        (("pairs.tsv", "x.txt"), "--out must end in .tsv or .jsonl"),
        (("pairs.tsv", "x.tsv", "--relative-margin", "1"), "`relative_margin` lie in [0, 1): got 0 and 1"),
    ):
        source, *target = files
        refused(server.run("data", "mine", source, "--encoder", "encoder", "--out", *target, cwd=tmp_path), message)


def test_twins_of_a_right_document_are_no_negatives(tmp_path: Path) -> None:
    """In other code points, case or signs, with white space, or with an equal score; of a query with a blank too."""
    given = ranker(task="embedding", training=OFTEN | {"steps": 1})
    texts = [("o gato dorme", "o gato"), ("não", "o cão come")]
    model = atento.load(atento.train(given, data={"train": texts}, out=tmp_path / "encoder", threads=1).folder)
    pairs = [("o gato dorme", "não, o gato dorme")]
    corpus = ["na\u0303o, o gato dorme", " não, o gato dorme ", "não, o gato dorme", "o cão come"]
    corpus += ["não, o gato dorme.", "Não, o gato  dorme!"]
    same = [("não, o gato dorme", "não, o gato dorme")]  # every other document scores lower
    for given, within in ((pairs, 9), (same, 1)):
        ((_, _, found),) = mined(model, given, corpus, Mining(9, within, 0, 0.0, 0.0))
        assert set(found) <= {"o cão come"} and (given is pairs or found)
    blank = [("o gato dorme", "não, o gato dorme"), ("o gato dorme ", "o cão come")]  # one query, two right documents
    assert all(not found for _, _, found in mined(model, blank, corpus, Mining(9, 9, 0, 0.0, 0.0)))
    ((_, _, found),) = mined(model, [("o gato", "zzz")], ["yyy", "o cão come"], Mining(9, 9, 0, 0.0, 0.0))
    assert "yyy" not in found  # both are one unknown word, so that their scores are equal
    assert [*mined(model, [], corpus, Mining())] == []


@pytest.mark.parametrize(
    ("records", "changes", "message"),
    [
        ([("a", "b", 1), ("a", "", 0)], {}, r"data\['train'\]:1: query 'a' without a document: `document` is blank"),
        ([("a", "b", 1), ("a", "c", 1)], {}, "grades of one kind only: every document has the grade 1"),
        ([("a", "b", 1), ("c", "d", 0)], {}, "no query has documents of two grades, which objective lambda-loss"),
        ([("a", "b", 1), ("a", "b", 0)], {}, "'b' of query 'a' has the grade 0, and 1 in"),
        ([("a", "b", "b")], {}, "'b' of query 'a' has the grade 0, and 1 in"),
        ([("a", "b", -1), ("a", "c", 1)], {}, "the grade must lie in 0 to 30: got -1"),
        ([("a", "b", 0), ("a", "c", 3)], {"objective": "pointwise"}, r"must lie in 0 to 1, a probability .*: got 3"),
        ([{"query": "a", "document": "b"}], {}, "has query, document, grade, or query, positive, negative: got query"),
        (GRADED, {"metrics": ["bleu"]}, "unknown metric 'bleu'"),
        (GRADED, {"objective": "cosine"}, "objective cosine .*"),
    ],
)  # fmt: skip
def test_what_cannot_be_ranked_is_said(records: Any, changes: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(AtentoError, match=message) as error:
        atento.train(ranker(**changes), data={"train": records}, out=tmp_path / "run")
    assert "\n" not in str(error.value) and "every `grade`" not in capsys.readouterr().err


def test_an_unknown_field_names_file_and_line(tmp_path: Path) -> None:
    source = "task: ranking\ndata:\n  train: {file: train.tsv, query: query, documnet: d, grade: grade}\n"
    (tmp_path / "my.yaml").write_text(source)
    with pytest.raises(AtentoError, match=r"my.yaml:3:\d+: .*'?documnet.*document"):
        atento.train(tmp_path / "my.yaml", out=tmp_path / "run")
    write(tmp_path / "train.tsv", "query document grade", [("who sleeps", "the cat", 1), ("who eats", "", 0)])
    (tmp_path / "my.yaml").write_text(source.replace("documnet: d", "document: document"))
    with pytest.raises(AtentoError, match=r"train.tsv:3: query 'who eats' without a document: `document` is blank"):
        atento.train(tmp_path / "my.yaml", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        ("q1 Q0 d1 1 0.5 t\n", "q1 0 d1 1\nq2 0 d1 1\n", "right.qrels:2: query 'q2' has no documents in my.run"),
        ("q1 Q0 d1 1 0.5\n", "q1 0 d1 1\n", "my.run:1: must be `query Q0 document rank score tag`"),
        ("q1 Q0 d1 1 x t\n", "q1 0 d1 1\n", "my.run:1: the score must be a finite number: got 'x'"),
        ("q1 Q0 d1 1 1 t\nq1 Q0 d1 2 1 t\n", "q1 0 d1 1\n", "my.run:2: query 'q1' has the document 'd1' twice"),
        ("q1 Q0 d1 1 0.5 t\n", "q1 0 d1 0\n", "right.qrels: no document is right: a grade must be above 0"),
        ("", "q1 0 d1 1\n", "my.run: holds no documents"),
    ],
)  # fmt: skip
def test_files_of_rankings_are_strict(run: str, qrels: str, message: str, tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "my.run").write_text(run)
    (tmp_path / "right.qrels").write_text(qrels)
    refused(server.run("score", "ndcg", "my.run", "right.qrels", cwd=tmp_path), message)


def test_one_ranking_by_hand() -> None:
    """Grades 0, 3, 1 in this order, and a right document that was not found."""
    references = [("q", "a", 0), ("q", "b", 3), ("q", "c", 1), ("q", "d", 2)]
    scores = [3.0, 2.0, 1.0, None]
    dcg, best = 3 / np.log2(3) + 1 / np.log2(4), 3 + 2 / np.log2(3) + 1 / np.log2(4)
    assert METRICS["ndcg"].score(scores, references).value == pytest.approx(dcg / best)
    assert METRICS["map"].score(scores, references).value == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert METRICS["mrr"].score(scores, references).value == 0.5
    assert METRICS["recall@3"].score(scores, references).value == pytest.approx(2 / 3)
