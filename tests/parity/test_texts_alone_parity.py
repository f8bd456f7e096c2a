"""SimCSE and TSDAE at equal weights, beside the losses of sentence-transformers."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.config.sections.network import changed
from atento.data.batches.batch import Batch
from atento.model import Model
from atento.models.initial_model import initial_model, pretrained_weights
from atento.networks import build_network
from fine_tuning import STILL, batches_of, loss_of, same_gradients, write_encoder

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra dev)")
from sentence_transformers.sentence_transformer import losses as their_losses  # noqa: E402

TEXTS = [
    *("the dog sleeps on the mat", "o cão dorme", "the cat eats fish every day", "o gato come peixe"),
    *("the house is big and blue", "a Maria lê o livro todo de noite"),
]
RATES = {"dropout": 0.1, "attention": {"dropout": 0.1}, "feed_forward": {"dropout": 0.1}}


@pytest.fixture(scope="module", params=["mean", "first"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    is_mean = request.param == "mean"
    return write_encoder(tmp_path_factory.mktemp("texts"), pooling=request.param, normalize=is_mean)


def batch_and_network(folder: Path, objective: dict[str, Any]) -> tuple[Batch, Any]:
    """The one batch of a recipe on the texts, and its network with the weights of the folder and without dropout."""
    recipe: dict[str, Any] = {"task": "embedding", "objective": objective, "init": str(folder)}
    recipe |= {"embedding": atento.load(folder).config["embedding"] | {"max_len": 40}}
    recipe |= {"network": RATES}  # SimCSE asks for some
    recipe |= {"data": {"train": {"memory": "train"}}, "training": {"batch_tokens": len(TEXTS)}}
    batches, config, _ = batches_of(recipe, TEXTS)
    (part,) = batches.parts(0)
    network = build_network(changed(config, STILL))
    pretrained_weights(network, initial_model(str(folder), Path()), network.config)
    return part.batch, network.train()


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return library.SentenceTransformer(str(folder), device="cpu").train()


def features(ids: torch.Tensor, real: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)}


@pytest.mark.parametrize("scale", [20.0, 5.0])
def test_simcse_is_multiple_negatives_of_a_text_and_itself(folder: Path, scale: float) -> None:
    batch, network = batch_and_network(folder, {"kind": "simcse", "scale": scale, "mask_duplicates": False})
    assert torch.equal(batch.inputs["ids"], batch.inputs["pair_ids"]) and len(batch.labels["simcse"]) == len(TEXTS)
    peer = theirs(folder)
    sides = [features(batch.inputs["ids"], batch.real("ids")) for _ in range(2)]
    expected = their_losses.MultipleNegativesRankingLoss(peer, scale=scale)(sides, None)
    same_gradients(network, loss_of(network, batch), peer, expected)


def test_tsdae_is_their_denoising_auto_encoder_loss(folder: Path) -> None:
    """Loss and the gradients of tied and of other weights; the decoder's first weights are theirs, which are random."""
    batch, network = batch_and_network(folder, {"kind": "tsdae"})
    peer = theirs(folder)
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
    expected = criterion([features(ids, real), features(whole, whole > 0)], None)
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


def test_the_decoder_is_left_out_of_what_is_exported(folder: Path, tmp_path: Path) -> None:
    batch, network = batch_and_network(folder, {"kind": "tsdae"})
    source = atento.load(folder)
    model = Model(network.eval(), source.tokenizer, source.config, path=tmp_path)
    vectors = theirs(model.save(tmp_path / "saved", layout="huggingface")).eval().encode(TEXTS)
    torch.testing.assert_close(torch.from_numpy(vectors), torch.from_numpy(source.embed(TEXTS)), rtol=0, atol=1e-5)
    assert len(batch.examples().__next__()["ids"]) < len(batch.examples().__next__()["target_ids"]) + 1
