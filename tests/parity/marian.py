"""A tiny random `MarianMTModel` and the same network here: the map from their weights to ours, for parity tests."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from atento.attention.multihead import MultiHeadAttention
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import FeedForwardConfig, SpecialIds
from atento.networks import EncoderDecoder

PAD, EOS = 1, 3


class Pair(EncoderDecoder):
    """Our network, with the order of its dimensions in terms of theirs."""

    order: Tensor


def marian_pair(
    activation: str = "relu", *, spread: float = 0.3, ends: float = 1.0, seed: int = 0
) -> tuple[Pair, MarianMTModel]:
    """Both in evaluation mode, float32, with equal weights.

    Marian's sinusoids are all the sines, then all the cosines; ours take turns, so every matrix is taken over with its
    model dimensions in another order. The larger `spread`, the deviation of the matrices, the more an output depends on
    its source; `ends` is how much longer the vector of </s> is than others, so that outputs end here and there.
    """
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 64}
    sizes |= {f"{side}_attention_heads": 3 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0, "decoder_start_token_id": PAD}
    plain = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0) | {"forced_eos_token_id": None}
    one = dict.fromkeys(("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings"), True)
    config = MarianConfig(vocab_size=23, activation_function=activation, **sizes, **ids, **plain, **one)
    theirs = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=spread if parameter.dim() > 1 else 0.1)
            if "layer_norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        theirs.model.shared.weight[EOS].mul_(ends)
    own: dict[str, Any] = {"d_model": 12, "d_ff": 20, "n_heads": 3, "n_layers": 2, "n_decoder_layers": 3}
    own |= {"feed_forward": FeedForwardConfig(activation=activation), "ids": SpecialIds(pad=PAD, eos=EOS, start=PAD)}
    ours = Pair(NetworkConfig(vocab_size=23, norm="post", dropout=0.0, **own)).eval()
    ours.order = torch.arange(12).view(2, 6).t().flatten()  # our dimension 2i is their sine i, 2i + 1 their cosine i
    _copy(ours, theirs)
    return ours, theirs


@torch.no_grad()
def _copy(ours: Pair, theirs: MarianMTModel) -> None:
    order = ours.order
    ours.embedding.weight.copy_(theirs.model.shared.weight[:, order])

    def attention(mine: MultiHeadAttention, other: nn.Module) -> None:
        parts = (other.q_proj, other.k_proj, other.v_proj)
        mine.input.weight.copy_(torch.cat([part.weight for part in parts])[:, order])
        mine.input.bias.copy_(torch.cat([part.bias for part in parts]))
        mine.output.weight.copy_(other.out_proj.weight[order])
        mine.output.bias.copy_(other.out_proj.bias[order])

    for stack, other in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        for block, layer in zip(stack.blocks, other.layers):
            attention(block.self_attention, layer.self_attn)
            norms = [layer.self_attn_layer_norm, layer.final_layer_norm]
            if block.cross_attention is not None:
                attention(block.cross_attention, layer.encoder_attn)
                norms.insert(1, layer.encoder_attn_layer_norm)
            block.feed_forward.inner.weight.copy_(layer.fc1.weight[:, order])
            block.feed_forward.inner.bias.copy_(layer.fc1.bias)
            block.feed_forward.outer.weight.copy_(layer.fc2.weight[order])
            block.feed_forward.outer.bias.copy_(layer.fc2.bias[order])
            residuals = [block.self_attention_residual, block.cross_attention_residual, block.feed_forward_residual]
            for residual, norm in zip((one for one in residuals if one is not None), norms):
                residual.norm.weight.copy_(norm.weight[order])
                residual.norm.bias.copy_(norm.bias[order])
