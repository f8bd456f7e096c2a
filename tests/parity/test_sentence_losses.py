"""Losses of sentence encoders and of rankers, a few steps, and folders, beside sentence-transformers; trec_eval."""

import shutil
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.attention.dropout import Randomness
from atento.config.sections.network import changed
from atento.data.batches.batch import Batch, Batches
from atento.data.objectives.multiple_negatives import PairBatches
from atento.metrics import METRICS
from atento.model import Model
from atento.models.initial_model import initial_model, pretrained_weights
from atento.networks import build_network
from atento.training import vector_losses
from atento.training.losses import Call, losses
from atento.training.teacher_losses import soft_classes, soft_numbers
from fine_tuning import STILL, batches_of, loss_of, same_gradients, their_loop, training, write_encoder
from folders import edited
from released_folders import TEXTS, write_released

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra dev)")
from sentence_transformers.cross_encoder import losses as ranking_losses  # noqa: E402
from sentence_transformers.sentence_transformer import losses as their_losses  # noqa: E402

WORDS = ["the dog sleeps", "o cão dorme", "the cat eats fish", "o gato come peixe", "the house is big"]
WORDS += ["a casa é grande", "Maria reads", "a Maria lê o livro todo de noite", "the child sees the moon"]
WORDS += ["a criança vê a lua", "we sing", "nós cantamos"]
PAIRS = list(zip(WORDS[::2], WORDS[1::2]))
TRIPLES = [(text, pair, WORDS[(2 * n + 5) % 12]) for n, (text, pair) in enumerate(PAIRS)]
SCORED = [(*pair, n / 5) for n, pair in enumerate(PAIRS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("contrast"), pooling="mean", normalize=True)


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return library.SentenceTransformer(str(folder), device="cpu").train()


def recipe_of(folder: Path, training: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = {"task": "embedding", "data": {"train": {"memory": "train"}}, "init": str(folder), "network": STILL}
    return made | {"training": training} | more


def batches(folder: Path, records: Sequence[tuple[Any, ...]], **keys: Any) -> Batches:
    """The training batches of these records, all in one update."""
    more = {"objective": keys.pop("objective", "multiple-negatives"), "embedding": {"normalize": True}}
    return batches_of(recipe_of(folder, {"batch_tokens": len(records)} | keys, **more), records)[0]


def only(batches: Batches, pieces: int = 1) -> Batch:
    (part,) = batches.parts(0, pieces)
    return part.batch


def encoder(folder: Path) -> Model:
    model = atento.load(folder)
    model.network.train().requires_grad_(True)
    return model


def features(peer: Any, records: Sequence[tuple[Any, ...]]) -> list[dict[str, torch.Tensor]]:
    """The texts of each side as sentence-transformers reads them."""
    return [peer.preprocess(list(side)) for side in zip(*records) if isinstance(side[0], str)]


_SYMMETRIC = {"kind": "multiple-negatives", "symmetric": True, "scale": 7.0}
_BY_COSINE = {"kind": "triplet", "distance": "cosine", "margin": 0.3}
_THEIRS_BY_COSINE = {"distance_metric": their_losses.TripletDistanceMetric.COSINE, "triplet_margin": 0.3}
CASES: dict[str, tuple[list[Any], Any, Any]] = {
    "pairs": (PAIRS, "multiple-negatives", their_losses.MultipleNegativesRankingLoss),
    "triples": (TRIPLES, "multiple-negatives", their_losses.MultipleNegativesRankingLoss),
    "symmetric": (PAIRS, _SYMMETRIC, partial(their_losses.MultipleNegativesSymmetricRankingLoss, scale=7.0)),
    "scored": (SCORED, "cosine", their_losses.CosineSimilarityLoss),
    "ordered": (SCORED + SCORED[1:3], "cosent", their_losses.CoSENTLoss),
    "triplets": (TRIPLES, "triplet", their_losses.TripletLoss),
    "triplets by cosine": (TRIPLES, _BY_COSINE, partial(their_losses.TripletLoss, **_THEIRS_BY_COSINE)),
}
for _name in ("pairs", "ordered", "scored", "triplets"):
    _records, _kind, _make = CASES[_name]
    CASES[f"{_name}, nested"] = (_records, {"kind": _kind, "matryoshka": [16, 5, 8]}, _make)


@pytest.mark.parametrize("name", CASES)
def test_g8_losses_and_gradients_are_those_of_sentence_transformers(name: str, folder: Path) -> None:
    records, objective, make = CASES[name]
    if name == "triples":
        objective = {"kind": "multiple-negatives", "mask_duplicates": False}  # theirs has no mask
    peer, model = theirs(folder), encoder(folder)
    scores = torch.tensor([record[-1] for record in records]) if isinstance(records[0][-1], float) else None
    loss = make(peer)
    if "nested" in name:
        loss = their_losses.MatryoshkaLoss(peer, loss, [16, 5, 8])
    expected = loss(features(peer, records), scores)
    batch = only(batches(folder, records, objective=objective))
    same_gradients(model.network, loss_of(model.network, batch), peer, expected)


def test_g8_a_few_steps_are_those_of_a_plain_loop(folder: Path, tmp_path: Path) -> None:
    """Both trained on equal batches; the saved folder then encodes as their trained model does."""
    records = PAIRS * 2
    settings = training(6, 1e-3, batch_tokens=4, warmup=2)
    recipe = recipe_of(folder, settings, objective={"kind": "multiple-negatives", "mask_duplicates": False})
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
        loss_of(model.network, only(made, pieces)).backward()
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
    without = float(loss_of(encoder(folder).network, batch).detach()) * 6
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
        loss_of(encoder(folder).network, only(batches(folder, records, objective="cosine")))
        assert sum(rows) == texts
        rows.clear()


def test_losses_against_teachers_are_those_of_the_library() -> None:
    """Of vectors, which need no model, and of scores of three documents at a temperature; theirs are means."""
    draw = torch.Generator().manual_seed(3)
    ours, teachers = torch.randn(2, 5, 8, generator=draw), torch.randn(2, 5, 8, generator=draw)
    given: Any = their_losses.MSELoss(torch.nn.Module())
    expected = 5 * given.compute_loss_from_embeddings(list(ours), list(teachers))
    found = soft_numbers(torch.cat(list(ours), dim=-1), torch.cat(list(teachers), dim=-1).unsqueeze(1), 9.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    sides, scores = torch.randn(4, 5, 8, generator=draw), torch.randn(5, 3, generator=draw)
    given = their_losses.DistillKLDivLoss(torch.nn.Module(), temperature=3.0)
    expected = 5 * given.compute_loss_from_embeddings(list(sides), scores)
    found = soft_classes(torch.einsum("bd,sbd->bs", sides[0], sides[1:]), scores.unsqueeze(1), 3.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


ALONE = ["the dog sleeps on the mat", "o cão dorme", "the cat eats fish every day", "o gato come peixe"]
ALONE += ["the house is big and blue", "a Maria lê o livro todo de noite"]


@pytest.fixture(scope="module", params=["mean", "first"])
def encoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("texts"), pooling=request.param, normalize=request.param == "mean")


def batch_and_network(encoded: Path, objective: dict[str, Any]) -> tuple[Batch, Any]:
    """The one batch of a recipe on the texts, and its network with the weights of the folder and without dropout."""
    some = {"dropout": 0.1}  # SimCSE asks for it
    more = {"network": some | {"attention": some, "feed_forward": some}, "objective": objective}
    more |= {"embedding": atento.load(encoded).config["embedding"] | {"max_len": 40}}
    batches, config, _ = batches_of(recipe_of(encoded, {"batch_tokens": len(ALONE)}, **more), ALONE)
    network = build_network(changed(config, STILL))
    pretrained_weights(network, initial_model(str(encoded), Path()), network.config)
    return only(batches), network.train()


def features_of(ids: torch.Tensor, real: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)}


@pytest.mark.parametrize("scale", [20.0, 5.0])
def test_simcse_is_multiple_negatives_of_a_text_and_itself(encoded: Path, scale: float) -> None:
    batch, network = batch_and_network(encoded, {"kind": "simcse", "scale": scale, "mask_duplicates": False})
    assert torch.equal(batch.inputs["ids"], batch.inputs["pair_ids"]) and len(batch.labels["simcse"]) == len(ALONE)
    peer = theirs(encoded)
    sides = [features_of(batch.inputs["ids"], batch.real("ids")) for _ in range(2)]
    expected = their_losses.MultipleNegativesRankingLoss(peer, scale=scale)(sides, None)
    same_gradients(network, loss_of(network, batch), peer, expected)


def test_tsdae_is_their_denoising_auto_encoder_loss(encoded: Path) -> None:
    """Loss and the gradients of tied and of other weights; the decoder's first weights are theirs, which are random."""
    batch, network = batch_and_network(encoded, {"kind": "tsdae"})
    peer = theirs(encoded)
    with warnings.catch_warnings(action="ignore"):
        criterion = their_losses.DenoisingAutoEncoderLoss(peer).train()
    decoder, head = criterion.decoder, network.heads["reconstruction"]
    predictions = decoder.cls.predictions
    mine = {"vocabulary.transform.dense": predictions.transform.dense}
    mine |= {"vocabulary.transform.norm": predictions.transform.LayerNorm}
    with torch.no_grad():
        predictions.decoder.bias.normal_(std=0.1)
        head.vocabulary.bias.copy_(predictions.decoder.bias)
        for number, layer in enumerate(decoder.bert.encoder.layer):
            cross = layer.crossattention
            own = head.layers[number]
            heads = (cross.self.query, cross.self.key, cross.self.value)
            own.attention.input.weight.copy_(torch.cat([each.weight for each in heads]))
            for each in heads:
                each.bias.normal_(std=0.1)
            own.attention.input.bias.copy_(torch.cat([each.bias for each in heads]))
            mine |= {f"layers.{number}.attention.output": cross.output.dense}
            mine |= {f"layers.{number}.residual.norm": cross.output.LayerNorm}
        for name, module in mine.items():
            head.get_submodule(name).load_state_dict(module.state_dict())
    ids, real = batch.inputs["ids"], batch.real("ids")
    labels = batch.labels["reconstruction"]
    assert int(real.sum()) < int((labels >= 0).sum())  # words are gone
    whole = torch.cat([batch.inputs["target_ids"][:, :1], labels.clamp_min(0)], dim=1)  # padding is 0
    expected = criterion([features_of(ids, real), features_of(whole, whole > 0)], None)
    same_gradients(network, loss_of(network, batch), criterion, expected)
    layer, block = decoder.bert.encoder.layer[0], network.stack.blocks[0]
    query = layer.attention.self.query.weight.grad
    for found, right in (
        (network.embedding.weight.grad, decoder.bert.embeddings.word_embeddings.weight.grad),  # also the output matrix
        (block.self_attention.input.weight.grad[: len(query)], query),
        (block.feed_forward.inner.weight.grad, layer.intermediate.dense.weight.grad),
        (head.layers[0].attention.output.weight.grad, layer.crossattention.output.dense.weight.grad),
    ):
        assert float(right.abs().max()) > 0
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-6)


def test_the_decoder_is_left_out_of_what_is_exported(encoded: Path, tmp_path: Path) -> None:
    batch, network = batch_and_network(encoded, {"kind": "tsdae"})
    source = atento.load(encoded)
    model = Model(network.eval(), source.tokenizer, source.config, path=tmp_path)
    vectors = theirs(model.save(tmp_path / "saved", layout="huggingface")).eval().encode(ALONE)
    torch.testing.assert_close(torch.from_numpy(vectors), torch.from_numpy(source.embed(ALONE)), rtol=0, atol=1e-5)
    assert len(batch.examples().__next__()["ids"]) < len(batch.examples().__next__()["target_ids"]) + 1


GRADES = {TEXTS[0]: [2, 0, 1, 0], TEXTS[1]: [0, 1], TEXTS[2]: [0, 3, 3, 1, 2]}
RECORDS = [(query, TEXTS[3 + n], grade) for query, grades in GRADES.items() for n, grade in enumerate(grades)]
BINARY = [(query, document, min(grade, 1)) for query, document, grade in RECORDS]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their folder of a BERT of random weights with one label."""
    path = tmp_path_factory.mktemp("ranker")
    write_released("bert", path / "bert")
    torch.manual_seed(2)
    with warnings.catch_warnings(action="ignore"):
        library.CrossEncoder(str(path / "bert"), num_labels=1, device="cpu").save_pretrained(str(path / "theirs"))
    return path / "theirs"


def their_ranker(ranker: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return library.CrossEncoder(str(ranker), device="cpu")


RANKING = {
    "pointwise": (BINARY, ranking_losses.BinaryCrossEntropyLoss),
    "listnet": (RECORDS, ranking_losses.ListNetLoss),
    "ranknet": (RECORDS, ranking_losses.RankNetLoss),
    "lambda-loss": (RECORDS, ranking_losses.LambdaLoss),
}


@pytest.mark.parametrize("objective", RANKING)
def test_losses_and_gradients_of_rankers_are_those_of_sentence_transformers(objective: str, ranker: Path) -> None:
    records, make = RANKING[objective]
    peer, model = their_ranker(ranker).eval(), atento.load(ranker)
    model.network.requires_grad_(True)
    recipe = recipe_of(ranker, {"batch_tokens": len(records)}, task="ranking", objective=objective)
    (batch,) = batches_of(recipe, records)[0].in_order(10**6)  # all documents in one update
    queries = list(dict.fromkeys(query for query, _, _ in records))
    if objective == "pointwise":
        sides: list[Any] = [[query for query, _, _ in records], [document for _, document, _ in records]]
        labels: Any = torch.tensor([float(grade) for _, _, grade in records])
    else:
        sides = [queries, [[document for own, document, _ in records if own == query] for query in queries]]
        labels = [torch.tensor([float(grade) for own, _, grade in records if own == query]) for query in queries]
    same_gradients(model.network, loss_of(model.network, batch), peer, make(peer)(sides, labels))


def test_folders_of_a_cross_encoder_go_both_ways(ranker: Path, tmp_path: Path) -> None:
    """Read: its logits, and no task of vectors. Trained and exported: its scores are ours, without an activation."""
    pairs = [(query, document) for query, document, _ in RECORDS]
    model = atento.load(ranker)
    numbers = their_ranker(ranker).predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(similarities(model, pairs), numbers, atol=1e-5)
    assert model.load_report is not None and not model.load_report.unread
    few = {"steps": 3, "batch_tokens": 6, "learning_rate": 1e-2, "warmup": 0, "precision": "float32"}
    recipe = recipe_of(ranker, few, task="ranking")
    trained = atento.load(atento.train(recipe, data={"train": RECORDS}, out=tmp_path / "run", threads=1).folder)
    ours = similarities(trained, pairs)
    assert np.abs(ours - numbers).max() > 1e-3
    again = atento.load(trained.save(tmp_path / "first", layout="huggingface"))  # its task is no longer ranking
    exported = again.save(tmp_path / "exported", layout="huggingface")
    left = shutil.ignore_patterns("MANIFEST.json")  # a folder of theirs
    edited(shutil.copytree(exported, tmp_path / "theirs", ignore=left) / "config.json", "atento")
    copied = atento.load(tmp_path / "theirs").save(tmp_path / "copied", layout="huggingface")
    np.testing.assert_allclose(their_ranker(copied).predict(pairs), ours, atol=1e-5)
    np.testing.assert_allclose(their_ranker(exported).predict(pairs), ours, atol=1e-5)
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
