"""Replaced-token detection against transformers' ELECTRA: generator and discriminator on the same sampled tokens."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from scipy.stats import chisquare

import atento
from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig, changed
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch
from atento.networks import Encoder, build_network
from atento.networks.electra_generator import Generator, sampled
from atento.networks.output import Replaced
from atento.released.write_layout import release
from atento.training.losses import Call, losses

V, PAD, MASK = 31, 0, 4


def their_models() -> tuple[transformers.ElectraForMaskedLM, transformers.ElectraForPreTraining]:
    """A generator half as large as the discriminator, with the same embeddings."""
    torch.manual_seed(5)
    sizes = {"vocab_size": V, "embedding_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 16}
    sizes |= {"initializer_range": 0.4, "hidden_act": "gelu", "pad_token_id": PAD}
    small = transformers.ElectraConfig(hidden_size=8, num_attention_heads=1, intermediate_size=16, **sizes)
    large = transformers.ElectraConfig(hidden_size=16, num_attention_heads=2, intermediate_size=32, **sizes)
    generator, discriminator = transformers.ElectraForMaskedLM(small), transformers.ElectraForPreTraining(large)
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    return generator.eval(), discriminator.eval()


def our_network(folder: Path, generator: torch.nn.Module, discriminator: torch.nn.Module) -> Encoder:
    """The same weights in one network."""
    for name, model in (("generator", generator), ("discriminator", discriminator)):
        model.save_pretrained(folder / name)  # type: ignore[operator]
    small, large = (atento.load(folder / name).network for name in ("generator", "discriminator"))
    heads = (HeadConfig("generator", size=0.5, activation="gelu"), *large.config.heads)
    network = build_network(changed(large.config, heads=heads)).eval()
    assert isinstance(network, Encoder) and isinstance(small, Encoder)
    missing, unexpected = network.load_state_dict(large.state_dict(), strict=False)
    assert not unexpected and all(name.startswith("heads.generator.") for name in missing)
    inner, head = network.heads["generator"], small.vocabulary_head
    assert isinstance(inner, Generator) and small.inputs.projection is not None and head.transform is not None
    inner.stack.load_state_dict(small.stack.state_dict())
    inner.projection.load_state_dict(small.inputs.projection.state_dict())
    inner.vocabulary.load_state_dict(head.state_dict(), strict=False)
    return network


def masked_batch() -> Batch:
    original = torch.randint(5, V, (3, 9), generator=torch.Generator().manual_seed(2))
    labels, ids = torch.full_like(original, -1), original.clone()
    labels[:, [2, 5, 6]] = original[:, [2, 5, 6]]
    ids[labels >= 0] = MASK
    real = torch.arange(9) < torch.tensor([9, 7, 8])[:, None]
    ids[~real], labels[~real], original[~real] = PAD, -1, -1
    return Batch({"ids": ids, "token_mask": real}, {"generator": labels, "replaced-token": original})


def test_losses_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    generator, discriminator = their_models()
    network = our_network(tmp_path, generator, discriminator)
    batch, call = masked_batch(), Call(Randomness(1))
    state = network.replaced("generator", batch.inputs, batch.labels["generator"], Randomness(1)).state
    assert isinstance(state, Replaced)
    sums = losses(network, batch, call)
    labels, original, real = batch.labels["generator"], batch.labels["replaced-token"], batch.inputs["token_mask"]
    chosen = labels >= 0
    assert torch.equal(state.ids[~chosen & real], original[~chosen & real])  # samples stand for masks alone
    logits = generator(batch.inputs["ids"], attention_mask=real.long()).logits
    theirs_generator = F.cross_entropy(logits[chosen], labels[chosen], reduction="sum")
    wrong = (state.ids != original).long()
    assert 0 < int(wrong[chosen].sum()) <= int(chosen.sum())
    theirs_detector = discriminator(state.ids, attention_mask=real.long(), labels=wrong).loss * int(real.sum())
    torch.testing.assert_close(sums["generator"][0].float(), theirs_generator, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums["replaced-token"][0], theirs_detector, rtol=1e-4, atol=1e-4)
    ours = sums["generator"][0] + 50 * sums["replaced-token"][0]
    (gradient,) = torch.autograd.grad(ours, [network.embedding.weight], retain_graph=True)
    table = discriminator.electra.embeddings.word_embeddings.weight
    (expected,) = torch.autograd.grad(theirs_generator + 50 * theirs_detector, [table])
    expected[PAD] = gradient[PAD] = 0  # transformers gives padding no gradient from its input
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)
    inner = network.heads["generator"]
    nothing = torch.autograd.grad(sums["replaced-token"][0], list(inner.parameters()), allow_unused=True)
    assert all(value is None for value in nothing)  # no gradient passes through the samples


def test_the_discriminator_is_exported_without_its_generator(tmp_path: Path) -> None:
    generator, discriminator = their_models()
    network = our_network(tmp_path, generator, discriminator)
    data, tensors = release(network.config, network.state_dict())
    assert data["architectures"] == ["ElectraForPreTraining"] and not any("generator" in name for name in tensors)
    before = discriminator.state_dict()
    assert all(torch.equal(before[name], value) for name, value in tensors.items())


def test_samples_follow_the_generators_distribution_and_its_randomness() -> None:
    torch.manual_seed(1)
    weight, bias = torch.randn(7, 3), torch.randn(7)
    vectors = torch.randn(1, 3).expand(20_000, 3)
    ids = sampled(vectors, weight, bias, Randomness(3))
    law = F.linear(vectors[0], weight, bias).double().softmax(dim=-1).numpy()
    assert chisquare(torch.bincount(ids, minlength=7).numpy(), law * len(ids)).pvalue > 1e-3
    assert torch.equal(ids, sampled(vectors, weight, bias, Randomness(3)))
    assert not torch.equal(ids, sampled(vectors, weight, bias, Randomness(3, step=1)))


def test_a_generator_shares_the_embedding_and_scales_its_layers() -> None:
    heads = (HeadConfig("generator", size=0.25), HeadConfig("replaced-token", hidden=True))
    config = NetworkConfig("encoder", vocab_size=V, d_model=32, d_ff=64, n_heads=8, n_layers=2, heads=heads)
    shapes = {name: tuple(value.shape) for name, value in build_network(config).state_dict().items()}
    assert [name for name, shape in shapes.items() if V in shape and len(shape) == 2] == ["embedding.weight"]
    assert shapes["heads.generator.projection.weight"] == (8, 32)
    assert shapes["heads.generator.stack.blocks.0.feed_forward.inner.weight"] == (16, 8)
    with pytest.raises(atento.AtentoError, match="a generator head belongs to an encoder"):
        NetworkConfig("decoder", vocab_size=V, heads=(HeadConfig("generator"),))
