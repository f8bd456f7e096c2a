"""Position schemes against `transformers`: Llama, GPT-J and GPT-NeoX rotations, T5, Bloom, RoBERTa, Wav2Vec2-BERT."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from atento.attention import attend, attention_weights
from atento.attention.masks import causal, padding
from atento.attention.positions import Learned, Rotary
from atento.attention.relative import ALiBi, Shaw, T5Bias, alibi_slopes, t5_buckets
from atento.attention.relative_disentangled import log_buckets
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms

B, H, L, K = 2, 4, 7, 8
IDS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [40, 41, 0, 1, 2, 300, 7]])


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def by_head(x: Tensor) -> Tensor:
    split: Tensor = x.unflatten(-1, (H, -1))
    return split.transpose(1, 2)


@torch.no_grad()
def shaken(module: nn.Module) -> Any:
    """All its numbers random and of size 1, so that nothing hides behind zeros."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.copy_(random(*parameter.shape, seed=seed) / parameter.shape[-1] ** 0.5)
    return module.eval()


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rotary_halves_as_llama_has_them(base: float) -> None:
    rope = {"rope_type": "default", "rope_theta": base}
    config = transformers.LlamaConfig(hidden_size=H * K, num_attention_heads=H, rope_parameters=rope)
    q, k = random(B, H, L, K), random(B, H, L, K, seed=1)
    expected = llama.apply_rotary_pos_emb(q, k, *llama.LlamaRotaryEmbedding(config)(q, IDS))
    part = Rotary(K, base)
    for one, other in zip((q, k), expected):
        torch.testing.assert_close(part(one, position_ids=IDS), other, rtol=0, atol=5e-5)  # their angles are float32
        torch.testing.assert_close(part(one)[0], other[0], rtol=0, atol=2e-6)


def test_rotary_neighbours_as_gpt_j_has_them() -> None:
    q = random(B, H, L, K)
    sin, cos = gptj.create_sinusoidal_positions(301, K)[IDS].chunk(2, dim=-1)  # (B,L,K/2)
    expected = gptj.apply_rotary_pos_emb(q.transpose(1, 2), sin, cos).transpose(1, 2)
    torch.testing.assert_close(Rotary(K, interleaved=True)(q, position_ids=IDS), expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_rotary_part_of_a_head_as_gpt_neox_has_it(fraction: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
    config = transformers.GPTNeoXConfig(hidden_size=H * K, num_attention_heads=H, rope_parameters=rope)
    q, k = random(B, H, L, K), random(B, H, L, K, seed=1)
    cos, sin = gpt_neox.GPTNeoXRotaryEmbedding(config)(q, IDS)
    assert cos.shape[-1] == K * fraction
    part = Rotary(K, fraction=fraction)
    for one, other in zip((q, k), gpt_neox.apply_rotary_pos_emb(q, k, cos, sin)):  # type: ignore[no-untyped-call]
        torch.testing.assert_close(part(one, position_ids=IDS), other, rtol=0, atol=5e-5)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("n", "far"), [(32, 128), (16, 20), (64, 1000)])
def test_t5_buckets(n: int, far: int, both: bool) -> None:
    distances = torch.arange(-1500, 1501)
    expected = T5Attention._relative_position_bucket(distances, both, n, far)  # type: ignore[no-untyped-call]
    assert torch.equal(t5_buckets(distances, n, far, both), expected)


@torch.no_grad()
@pytest.mark.parametrize("seen", [0, 5])
@pytest.mark.parametrize("both", [True, False])
def test_t5_attention(both: bool, seen: int) -> None:
    """The bias alone, then the whole unscaled attention, encoder and decoder; cached queries stand behind."""
    sizes = {"d_model": H * K, "d_kv": K, "num_heads": H, "relative_attention_max_distance": 40}
    config = transformers.T5Config(**sizes, is_decoder=not both)
    theirs = shaken(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    bias = T5Bias(H, 32, 40, bidirectional=both)
    bias.weight.copy_(theirs.relative_attention_bias.weight)
    length = 60
    places = QueryKeyPositions.arange(length - seen, length)
    expected = theirs.compute_bias(length - seen, length, past_seen_tokens=seen)
    assert torch.equal(bias.scores(random(1), random(1), places, 1.0), expected)
    if seen:
        return
    x = random(B, length, H * K, seed=100)
    allowed = None if both else causal().dense(length)
    hidden = None if allowed is None else torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)
    q, k, v = (by_head(part(x)) for part in (theirs.q, theirs.k, theirs.v))
    out = attend(q, k, v, mask=allowed, scale=1.0, relative=RelativeTerms((bias,), places))
    torch.testing.assert_close(theirs.o(out.transpose(1, 2).flatten(2)), theirs(x, mask=hidden)[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("n_heads", [*range(1, 17), 24, 32, 48, 112])
def test_alibi_slopes_as_bloom_has_them(n_heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), n_heads, torch.float32)  # (H,1,S): slope · j
    torch.testing.assert_close(alibi_slopes(n_heads), theirs[:, 0, 1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("n_heads", [8, 12, 6, 3])
def test_alibi_attention_as_bloom_has_it(n_heads: int) -> None:
    """Theirs adds slope · j instead of −slope · (i − j): the same softmax where no query looks ahead."""
    real = torch.arange(L) < torch.tensor([[L], [4]])
    theirs = build_alibi_tensor(real.long(), n_heads, torch.float32).view(B, n_heads, 1, L)
    q, k = random(B, n_heads, L, K), random(B, n_heads, L, K, seed=1)
    mask = causal() & padding(real)
    expected = attention_weights(q, k, mask=mask, bias=theirs.expand(B, n_heads, L, L))
    relative = RelativeTerms((ALiBi(n_heads),), QueryKeyPositions.arange(L, L))
    torch.testing.assert_close(attention_weights(q, k, mask=mask, relative=relative), expected, rtol=0, atol=2e-6)


@torch.no_grad()
def test_learned_positions_shifted_as_roberta_has_them() -> None:
    """Its positions begin two rows in, behind the row of the padding."""
    config = transformers.RobertaConfig(vocab_size=20, hidden_size=K, max_position_embeddings=12)
    theirs = shaken(RobertaEmbeddings(config))  # type: ignore[no-untyped-call]
    table = Learned(10, K, shift=2)
    table.weight.copy_(theirs.position_embeddings.weight)
    ids = torch.randint(4, 20, (B, L), generator=torch.Generator().manual_seed(0))
    tokens = theirs.word_embeddings(ids) + theirs.token_type_embeddings.weight[0]
    torch.testing.assert_close(theirs.LayerNorm(table(tokens)), theirs(ids), rtol=0, atol=1e-6)
    later = theirs(ids[:, :2], position_ids=torch.tensor([[5, 6]]))  # the fourth and fifth token, two rows in
    torch.testing.assert_close(theirs.LayerNorm(table(tokens[:, :2], 3)), later)


@torch.no_grad()
@pytest.mark.parametrize("limit", [2, 10])
def test_b5_shaw_keys_as_wav2vec2_bert_has_them(limit: int) -> None:
    """Its "relative_key" is Shaw's a_ij, clipped to either side; it has no b_ij."""
    limits = {f"{side}_max_position_embeddings": limit for side in ("left", "right")}
    kind = {"position_embeddings_type": "relative_key", "attn_implementation": "eager"}
    config = transformers.Wav2Vec2BertConfig(hidden_size=H * K, num_attention_heads=H, **kind, **limits)
    theirs = shaken(Wav2Vec2BertSelfAttention(config))  # type: ignore[no-untyped-call]
    shaw = Shaw(K, limit, values=False)
    shaw.keys.copy_(theirs.distance_embedding.weight)
    x = random(B, L, H * K, seed=100)
    expected, weights = theirs(x, output_attentions=True)
    q, k, v = (by_head(part(x)) for part in (theirs.linear_q, theirs.linear_k, theirs.linear_v))
    relative = RelativeTerms((shaw,), QueryKeyPositions.arange(L, L))
    out = attend(q, k, v, relative=relative).transpose(1, 2).flatten(2)
    torch.testing.assert_close(theirs.linear_out(out), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(attention_weights(q, k, relative=relative), weights, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(256, 512), (8, 20), (4, 5), (6, 128)])
def test_the_buckets_are_those_of_transformers(n_buckets: int, max_distance: int) -> None:
    distances = torch.arange(-3 * max_distance, 3 * max_distance + 1)
    expected = make_log_bucket_position(distances, n_buckets, max_distance).long()
    assert torch.equal(log_buckets(distances, n_buckets, max_distance), expected)
