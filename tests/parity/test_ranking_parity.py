"""Ranking beside sentence-transformers: the losses of its CrossEncoder, and folders in both directions; trec_eval."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.metrics import METRICS
from atento.model import Model
from fine_tuning import STILL, batches_of, loss_of, same_gradients
from released_folders import TEXTS, write_released

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra dev)")
from sentence_transformers.cross_encoder import losses as their_losses  # noqa: E402

GRADES = {TEXTS[0]: [2, 0, 1, 0], TEXTS[1]: [0, 1], TEXTS[2]: [0, 3, 3, 1, 2]}
RECORDS = [(query, TEXTS[3 + n], grade) for query, grades in GRADES.items() for n, grade in enumerate(grades)]
BINARY = [(query, document, min(grade, 1)) for query, document, grade in RECORDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their folder of a BERT of random weights with one label."""
    path = tmp_path_factory.mktemp("ranker")
    write_released("bert", path / "bert")
    torch.manual_seed(2)
    with warnings.catch_warnings(action="ignore"):
        library.CrossEncoder(str(path / "bert"), num_labels=1, device="cpu").save_pretrained(str(path / "theirs"))
    return path / "theirs"


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return library.CrossEncoder(str(folder), device="cpu")


def recipe_of(folder: Path, **training: Any) -> dict[str, Any]:
    made = {"task": "ranking", "data": {"train": {"memory": "train"}}, "init": str(folder), "network": STILL}
    return made | {"training": training}


CASES = {
    "pointwise": (BINARY, their_losses.BinaryCrossEntropyLoss),
    "listnet": (RECORDS, their_losses.ListNetLoss),
    "ranknet": (RECORDS, their_losses.RankNetLoss),
    "lambda-loss": (RECORDS, their_losses.LambdaLoss),
}


@pytest.mark.parametrize("objective", CASES)
def test_losses_and_gradients_are_those_of_sentence_transformers(objective: str, folder: Path) -> None:
    records, make = CASES[objective]
    peer, model = theirs(folder).eval(), atento.load(folder)
    model.network.requires_grad_(True)
    recipe = recipe_of(folder, batch_tokens=len(records)) | {"objective": objective}
    (batch,) = batches_of(recipe, records)[0].in_order(10**6)  # all documents in one update
    queries = list(dict.fromkeys(query for query, _, _ in records))
    if objective == "pointwise":
        sides: list[Any] = [[query for query, _, _ in records], [document for _, document, _ in records]]
        labels: Any = torch.tensor([float(grade) for _, _, grade in records])
    else:
        sides = [queries, [[document for own, document, _ in records if own == query] for query in queries]]
        labels = [torch.tensor([float(grade) for own, _, grade in records if own == query]) for query in queries]
    same_gradients(model.network, loss_of(model.network, batch), peer, make(peer)(sides, labels))


def test_folders_of_a_cross_encoder_go_both_ways(folder: Path, tmp_path: Path) -> None:
    """Read: its logits, and no task of vectors. Trained and exported: its scores are ours, without an activation."""
    pairs = [(query, document) for query, document, _ in RECORDS]
    model = atento.load(folder)
    numbers = theirs(folder).predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(similarities(model, pairs), numbers, atol=1e-5)
    assert model.load_report is not None and not model.load_report.unread
    recipe = recipe_of(folder, steps=3, batch_tokens=6, learning_rate=1e-2, warmup=0, precision="float32")
    trained = atento.load(atento.train(recipe, data={"train": RECORDS}, out=tmp_path / "run", threads=1).folder)
    ours = similarities(trained, pairs)
    assert np.abs(ours - numbers).max() > 1e-3
    again = atento.load(trained.save(tmp_path / "first", layout="huggingface"))  # its task is no longer ranking
    exported = again.save(tmp_path / "exported", layout="huggingface")
    left = shutil.ignore_patterns("MANIFEST.json")  # a folder of theirs
    settings = json.loads(
        (shutil.copytree(exported, tmp_path / "theirs", ignore=left) / "config.json").read_text("utf-8")
    )
    settings.pop("atento")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    copied = atento.load(tmp_path / "theirs").save(tmp_path / "copied", layout="huggingface")
    np.testing.assert_allclose(theirs(copied).predict(pairs), ours, atol=1e-5)
    np.testing.assert_allclose(theirs(exported).predict(pairs), ours, atol=1e-5)
    np.testing.assert_allclose(similarities(atento.load(exported), pairs), ours, atol=1e-6)


def similarities(model: Model, pairs: list[tuple[str, str]]) -> Any:
    return np.array(model.similarity([query for query, _ in pairs], [document for _, document in pairs]))


def test_metrics_are_those_of_trec_eval() -> None:
    """Random runs with many ties, unjudged and negative grades, documents that were not retrieved, empty queries."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier is not installed (extra dev)")
    names = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank"}
    names |= {f"ndcg@{k}": f"ndcg_cut_{k}" for k in (1, 3, 10, 100)}
    names |= {f"recall@{k}": f"recall_{k}" for k in (1, 5, 100)}
    draw = np.random.default_rng(4)
    for _ in range(5):
        run: dict[str, dict[str, float]] = {}
        qrels: dict[str, dict[str, int]] = {}
        for query in map(str, range(12)):
            documents = [f"é{n}" if n % 7 == 0 else f"d{n}" for n in draw.permutation(40)]
            scores = draw.choice([0.5, 0.5 + 1e-9, 0.25, -1.0, 2.0], size=25) + draw.choice([0, 0, 1e-5], size=25)
            run[query] = dict(zip(documents, scores.tolist()))
            grades = draw.choice([-1, 0, 1, 2, 3] if query != "3" else [0], size=20)
            qrels[query] = {document: int(grade) for document, grade in zip(documents[10:], grades)}
        expected = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
        union = [(q, d) for q in qrels for d in dict.fromkeys([*qrels[q], *run[q]])]
        references = [(query, document, qrels[query].get(document)) for query, document in union]
        predictions = [run[query].get(document) for query, document in union]
        for name, theirs_name in names.items():
            score = METRICS[name].score(predictions, references)
            of_queries = [expected[query][theirs_name] for query in qrels]
            assert score.per_sentence() == pytest.approx(of_queries, abs=1e-9), name
            assert score.value == pytest.approx(np.mean(of_queries), abs=1e-9)
