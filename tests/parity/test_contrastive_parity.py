"""Contrastive losses, a few steps and the saved folder of a sentence encoder, beside sentence-transformers'."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.attention.dropout import Randomness
from atento.data.batches.batch import Batch, Batches
from atento.data.objectives.multiple_negatives import PairBatches
from atento.model import Model
from atento.training import vector_losses
from atento.training.losses import Call, losses
from atento.training.teacher_losses import soft_classes, soft_numbers
from fine_tuning import STILL, batches_of, loss_of, same_gradients, their_loop, training, write_encoder

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra dev)")
from sentence_transformers.sentence_transformer import losses as their_losses  # noqa: E402

WORDS = [
    *("the dog sleeps", "o cão dorme", "the cat eats fish"),
    *("o gato come peixe", "the house is big", "a casa é grande"),
    *("Maria reads", "a Maria lê o livro todo de noite", "the child sees the moon"),
    *("a criança vê a lua", "we sing", "nós cantamos"),
]
PAIRS = list(zip(WORDS[::2], WORDS[1::2]))
TRIPLES = [(text, pair, WORDS[(2 * n + 5) % 12]) for n, (text, pair) in enumerate(PAIRS)]
SCORED = [(*pair, n / 5) for n, pair in enumerate(PAIRS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("contrast"), pooling="mean", normalize=True)


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return library.SentenceTransformer(str(folder), device="cpu").train()


def recipe_of(folder: Path, objective: Any, settings: dict[str, Any]) -> dict[str, Any]:
    made = {"task": "embedding", "data": {"train": {"memory": "train"}}, "init": str(folder), "network": STILL}
    return made | {"objective": objective, "training": settings}


def batches(folder: Path, records: Sequence[tuple[Any, ...]], **keys: Any) -> Batches:
    """The training batches of these records, all in one update."""
    recipe = recipe_of(folder, keys.pop("objective", "multiple-negatives"), {"batch_tokens": len(records)} | keys)
    return batches_of(recipe | {"embedding": {"normalize": True}}, records)[0]


def only(batches: Batches, pieces: int = 1) -> Batch:
    (part,) = batches.parts(0, pieces)
    return part.batch


def encoder(folder: Path) -> Model:
    model = atento.load(folder)
    model.network.train().requires_grad_(True)
    return model


def ours(model: Model, batch: Batch) -> torch.Tensor:
    return loss_of(model.network, batch)


def features(peer: Any, records: Sequence[tuple[Any, ...]]) -> list[dict[str, torch.Tensor]]:
    """The texts of each side as sentence-transformers reads them."""
    return [peer.preprocess(list(side)) for side in zip(*records) if isinstance(side[0], str)]


CASES: dict[str, tuple[list[Any], Any, Any]] = {
    "pairs": (PAIRS, "multiple-negatives", their_losses.MultipleNegativesRankingLoss),
    "triples": (TRIPLES, "multiple-negatives", their_losses.MultipleNegativesRankingLoss),
    "symmetric": (
        PAIRS,
        {"kind": "multiple-negatives", "symmetric": True, "scale": 7.0},
        lambda peer: their_losses.MultipleNegativesSymmetricRankingLoss(peer, scale=7.0),
    ),
    "scored": (SCORED, "cosine", their_losses.CosineSimilarityLoss),
    "ordered": (SCORED + SCORED[1:3], "cosent", their_losses.CoSENTLoss),
    "triplets": (TRIPLES, "triplet", their_losses.TripletLoss),
    "triplets by cosine": (
        TRIPLES,
        {"kind": "triplet", "distance": "cosine", "margin": 0.3},
        lambda peer: their_losses.TripletLoss(peer, their_losses.TripletDistanceMetric.COSINE, triplet_margin=0.3),
    ),
    **{
        f"{kind}, nested": (
            records,
            {"kind": kind, "matryoshka": [16, 5, 8]},
            lambda peer, inner=inner: their_losses.MatryoshkaLoss(peer, inner(peer), [16, 5, 8]),
        )
        for kind, records, inner in (
            ("multiple-negatives", PAIRS, their_losses.MultipleNegativesRankingLoss),
            ("cosent", SCORED, their_losses.CoSENTLoss),
            ("cosine", SCORED, their_losses.CosineSimilarityLoss),
            ("triplet", TRIPLES, their_losses.TripletLoss),
        )
    },
}


@pytest.mark.parametrize("name", CASES)
def test_g8_losses_and_gradients_are_those_of_sentence_transformers(name: str, folder: Path) -> None:
    records, objective, make = CASES[name]
    if name == "triples":
        objective = {"kind": "multiple-negatives", "mask_duplicates": False}  # theirs has no mask
    peer, model = theirs(folder), encoder(folder)
    scores = torch.tensor([record[-1] for record in records]) if isinstance(records[0][-1], float) else None
    expected = make(peer)(features(peer, records), scores)
    same_gradients(model.network, ours(model, only(batches(folder, records, objective=objective))), peer, expected)


def test_g8_a_few_steps_are_those_of_a_plain_loop(folder: Path, tmp_path: Path) -> None:
    """Both trained on equal batches; the saved folder then encodes as their trained model does."""
    records = PAIRS * 2
    settings = training(6, 1e-3, batch_tokens=4, warmup=2)
    recipe = recipe_of(folder, {"kind": "multiple-negatives", "mask_duplicates": False}, settings)
    run = atento.train(recipe, data={"train": records}, out=tmp_path / "run", threads=1)
    made = batches(folder, records, batch_tokens=4)
    assert isinstance(made, PairBatches) and made.updates_per_epoch == 3
    peer = theirs(folder)
    ranking = their_losses.MultipleNegativesRankingLoss(peer)

    class Loop(torch.nn.Module):
        """Called as the plain loop calls a network."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = peer

        def forward(self, rows: list[int]) -> Any:
            return type("Output", (), {"loss": ranking(features(peer, [records[row] for row in rows]), None)})

    their_loop(Loop(), [{"rows": made.rows(update).tolist()} for update in range(6)], 1e-3, warmup=2)
    trained = atento.load(run.folder)
    settings = {"layer": -1, "pooling": "mean", "normalize": True, "max_len": 40}
    plain = {"prompt": "", "pool_prompt": True, "lowercase": False, "prompts": {}, "field_prompts": {}}
    assert trained.config["embedding"] == settings | plain
    vectors = trained.embed(WORDS)
    assert np.abs(vectors - atento.load(folder).embed(WORDS)).max() > 1e-2
    np.testing.assert_allclose(vectors, peer.eval().encode(WORDS), atol=2e-4)
    saved = theirs(trained.save(tmp_path / "saved", layout="huggingface"))
    np.testing.assert_allclose(vectors, saved.eval().encode(WORDS), atol=1e-5)


def test_g8_micro_batches_change_nothing_but_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal losses and gradients in pieces; the pass that is computed again drops the same elements out."""
    made = batches(folder, PAIRS)
    gradients = []
    for pieces in (1, 5):
        model = encoder(folder)
        ours(model, only(made, pieces)).backward()
        gradients.append([value.grad for value in model.network.parameters() if value.grad is not None])
    for first, second in zip(*gradients):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)

    batch, in_pieces = only(made, 5), []
    for compute in (vector_losses.checkpoint, lambda read, *arguments, **options: read(*arguments)):
        monkeypatch.setattr(vector_losses, "checkpoint", compute)
        model = encoder(folder)
        for module in model.network.modules():
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.3
        ((loss, _),) = losses(model.network, batch, Call(random=Randomness(1))).values()
        loss.backward()
        in_pieces.append((float(loss.detach()), [v.grad for v in model.network.parameters() if v.grad is not None]))
    without = float(ours(encoder(folder), batch).detach()) * 6
    assert in_pieces[0][0] == in_pieces[1][0] != pytest.approx(without, rel=1e-6)
    assert all(torch.equal(first, second) for first, second in zip(in_pieces[0][1], in_pieces[1][1]))


def test_g8_a_text_of_several_records_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a record has it on two sides, which dropout tells apart."""
    read, rows = vector_losses._read, list[int]()

    def counted(network: Any, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows.append(len(ids))
        return read(network, ids, *rest)

    monkeypatch.setattr(vector_losses, "_read", counted)
    every = [(first, second, 1.0) for n, first in enumerate(WORDS) for second in WORDS[:n]]
    for records, texts in ((every, len(WORDS)), ([*every, (WORDS[0], WORDS[0], 1.0)], 2 * len(every) + 2)):
        ours(encoder(folder), only(batches(folder, records, objective="cosine")))
        assert sum(rows) == texts
        rows.clear()


def test_losses_against_teachers_are_those_of_the_library() -> None:
    """Of the vectors of two sides, and of scores of three documents at a temperature; theirs are means."""
    draw = torch.Generator().manual_seed(3)
    ours, teachers = torch.randn(2, 5, 8, generator=draw), torch.randn(2, 5, 8, generator=draw)
    given: Any = theirs_of(their_losses.MSELoss)
    expected = 5 * given.compute_loss_from_embeddings(list(ours), list(teachers))
    found = soft_numbers(torch.cat(list(ours), dim=-1), torch.cat(list(teachers), dim=-1).unsqueeze(1), 9.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    sides, scores = torch.randn(4, 5, 8, generator=draw), torch.randn(5, 3, generator=draw)
    given = theirs_of(their_losses.DistillKLDivLoss, temperature=3.0)
    expected = 5 * given.compute_loss_from_embeddings(list(sides), scores)
    found = soft_classes(torch.einsum("bd,sbd->bs", sides[0], sides[1:]), scores.unsqueeze(1), 3.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def theirs_of(loss: Any, **options: Any) -> Any:
    """A loss of theirs, which is given vectors and needs no model."""
    return loss(torch.nn.Module(), **options)
