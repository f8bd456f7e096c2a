"""Blocks and whole networks against torch.nn and `transformers`, by copying random weights."""

from typing import Any

import pytest
import torch
from torch import nn

from atento.attention.masks import causal
from atento.config.sections.network import NetworkConfig, changed
from atento.networks import EncoderDecoder, build_network
from atento.networks.layers import Block
from marian import marian_pair

CONFIG = NetworkConfig(vocab_size=23, d_model=12, d_ff=20, n_heads=3, n_layers=2, n_decoder_layers=3, dropout=0.0)
REAL = torch.tensor([[True] * 5, [True, True, True, False, False]])


@torch.no_grad()
def shake(module: nn.Module) -> None:
    """Norms and biases away from ones and zeros, so that a swapped one shows."""
    for parameter in module.parameters():
        if parameter.dim() < 2:
            parameter.add_(torch.randn_like(parameter) * 0.2)


@torch.no_grad()
def copy_block(ours: Block, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    """torch.nn's layer into our block: self, cross, feed-forward, and the norms in that order."""
    parts = [(ours.self_attention, theirs.self_attn)]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        assert ours.cross_attention is not None
        parts.append((ours.cross_attention, theirs.multihead_attn))
    for mine, other in parts:
        mine.input.weight.copy_(other.in_proj_weight)
        mine.input.bias.copy_(other.in_proj_bias)
        mine.output.load_state_dict(other.out_proj.state_dict())
    ours.feed_forward.inner.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.outer.load_state_dict(theirs.linear2.state_dict())
    residuals = [ours.self_attention_residual, ours.cross_attention_residual, ours.feed_forward_residual]
    for index, residual in enumerate(one for one in residuals if one is not None):
        residual.norm.load_state_dict(getattr(theirs, f"norm{index + 1}").state_dict())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_c1_c2_c3_c6_c7_c8_stacks_with_gradients_against_nn_transformer(norm: str, activation: str) -> None:
    """The whole of nn.Transformer, whose stacks end with a norm only where ours do: pre-norm."""
    config = changed(CONFIG, norm=norm, feed_forward={"activation": activation})
    torch.manual_seed(0)
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "activation": activation}
    options["norm_first"] = norm == "pre"
    lasts = [nn.LayerNorm(12) if norm == "pre" else None for _ in range(2)]
    layer = nn.TransformerEncoderLayer(12, 3, 20, **options)
    encoder = nn.TransformerEncoder(layer, 2, lasts[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 20, **options), 3, lasts[1])
    theirs = nn.Transformer(12, 3, custom_encoder=encoder, custom_decoder=decoder, batch_first=True).double()
    shake(theirs)
    ours = build_network(config).double()
    for stack, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for block, layer in zip(stack.blocks, other.layers):
            copy_block(block, layer)
        if stack.norm is not None:
            stack.norm.load_state_dict(other.norm.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 4, 12, dtype=torch.float64, requires_grad=True)
    future = ~causal().dense(4)[0, 0]
    expected = theirs(x, y, tgt_mask=future, src_key_padding_mask=~REAL, memory_key_padding_mask=~REAL)
    out = ours.decoder(y, memory=ours.encoder(x, token_mask=REAL), memory_token_mask=REAL)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    upstream = torch.randn_like(out)
    for got, wanted in zip(torch.autograd.grad(out, [x, y], upstream), torch.autograd.grad(expected, [x, y], upstream)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


SOURCE = torch.tensor([[5, 6, 7, 8, 3, 9, 21], [9, 4, 3, 1, 1, 1, 1], [22, 20, 11, 4, 3, 1, 1]])
TARGET = torch.tensor([[1, 5, 6, 7, 9], [1, 8, 9, 4, 4], [1, 15, 3, 4, 2]])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_c6_c7_c8_marian(activation: str) -> None:
    """`MarianMTModel` at random weights, padded source: encoder states, logits, attention weights; float32 2e-5."""
    ours, theirs = marian_pair(activation=activation)
    real = SOURCE != 1
    with torch.no_grad():
        expected = theirs(input_ids=SOURCE, attention_mask=real.long(), decoder_input_ids=TARGET)
        out = ours(SOURCE, TARGET, source_token_mask=real)
    states = expected.encoder_last_hidden_state[:, :, ours.order]
    torch.testing.assert_close(out.encoded[real], states[real], rtol=0, atol=2e-5)
    torch.testing.assert_close(out.logits, expected.logits, rtol=0, atol=2e-5)


def test_c8_marian_gradients_of_the_embedding() -> None:
    """The tied matrix is read in three places; its gradient adds up the same."""
    ours, theirs = marian_pair(activation="relu")
    ours, theirs = ours.double(), theirs.double()
    real = SOURCE != 1
    labels = TARGET.roll(-1, 1)
    expected = theirs(input_ids=SOURCE, attention_mask=real.long(), decoder_input_ids=TARGET).logits
    nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten()).backward()
    out = ours(SOURCE, TARGET, source_token_mask=real).logits
    nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten()).backward()
    grad = theirs.model.shared.weight.grad
    assert isinstance(ours, EncoderDecoder) and grad is not None
    rows = [row for row in range(23) if row != 1]  # theirs keeps the padding row's share of the embedding out
    torch.testing.assert_close(ours.embedding.weight.grad[rows], grad[:, ours.order][rows], rtol=0, atol=1e-6)
