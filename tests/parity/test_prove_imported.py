"""The leak prover on imported networks, at random weights: BERT, GPT-2, T5 and torch.nn's encoder."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from atento.attention.masks import Mask, bidirectional, causal, documents, lookahead, padding
from atento.attention.prove import Proof, prove

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [4, 6, 5, 8, 0, 0]])
REAL = IDS != 0
TARGET = torch.tensor([[0, 5, 6, 7], [0, 8, 9, 4]])
KERNELS = pytest.mark.parametrize("kernel", ["eager", "sdpa"])
_BERT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
_BERT |= {"max_position_embeddings": 16, "initializer_range": 0.3}
_GPT2 = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16, "initializer_range": 0.3}
_T5 = {"d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 3}
_T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}


def made(name: str, kernel: str) -> nn.Module:
    """In evaluation mode, with that way of computing attention."""
    torch.manual_seed(0)
    model: Any = {
        "bert": lambda: hf.BertModel(hf.BertConfig(vocab_size=23, **_BERT), add_pooling_layer=False),
        "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(vocab_size=23, bos_token_id=0, eos_token_id=0, **_GPT2)),
        "t5": lambda: hf.T5Model(hf.T5Config(vocab_size=23, **_T5)),
    }[name]()
    model.set_attn_implementation(kernel)
    assert model.config._attn_implementation == kernel
    out: nn.Module = model.eval()
    return out


def proved(model: nn.Module, ids: Tensor, mask: Mask, *, real: Any = None, cross: bool = False, **given: Any) -> Proof:
    """The proof of what the model computes with these arguments besides the ids."""
    return prove(model, ids, mask, call=lambda ids: hidden(model, input_ids=ids, **given), real=real, cross=cross)


def hidden(model: nn.Module, **given: Any) -> Tensor:
    out: Tensor = model(**given).last_hidden_state
    return out


@KERNELS
def test_a6_bert_sees_all_but_padding(kernel: str) -> None:
    model = made("bert", kernel)
    proof = proved(model, IDS, padding(REAL), real=REAL, attention_mask=REAL.long())
    assert proof.ok and proof.missing == [] and not proof.may_cache
    forgotten = proved(model, IDS, padding(REAL), real=REAL)
    assert forgotten.leaks == [(1, i, j) for i in range(4) for j in (4, 5)]
    assert forgotten.across == [] and forgotten.broken == []


def test_bert_is_no_decoder() -> None:
    """Declared causal, every later position is a leak; ids that look like positions change nothing."""
    proof = proved(made("bert", "sdpa"), torch.arange(6)[None], causal())
    assert proof.leaks == [(0, i, j) for i in range(6) for j in range(i + 1, 6)]


@KERNELS
def test_a7_gpt2_may_cache(kernel: str) -> None:
    """Padded to the left too, where outputs at padding, which may see nothing, are not judged."""
    model = made("gpt2", kernel)
    proof = proved(model, IDS, causal())
    assert torch.equal(proof.measured, torch.ones(6, 6).tril().bool().expand(2, 6, 6)) and proof.may_cache
    left, real = IDS.flip(1), REAL.flip(1)
    padded = proved(model, left, causal() & padding(real), real=real, attention_mask=real.long())
    assert padded.ok and padded.may_cache and padded.missing == []
    forgotten = proved(model, left, causal() & padding(real), real=real)
    assert forgotten.leaks == [(1, i, j) for i in range(2, 6) for j in (0, 1)] and forgotten.may_cache


@KERNELS
def test_m3_leaks_planted_in_gpt2_are_found(kernel: str) -> None:
    """An off-by-one mask of one's own, and documents packed with nothing to keep them apart."""
    model = made("gpt2", kernel)
    ahead = torch.zeros(1, 1, 6, 6).masked_fill(~lookahead(1).dense(6), torch.finfo(torch.float32).min)
    late = proved(model, IDS, causal(), attention_mask=ahead)
    assert late.leaks == [(b, i, j) for b in range(2) for i in range(6) for j in range(i + 1, min(i + 3, 6))]
    assert not late.may_cache
    packed = documents(torch.tensor([[0, 0, 1, 1, 1, 1]]))
    joined = proved(model, IDS, causal() & packed)
    assert joined.leaks == [(b, i, j) for b in range(2) for i in range(2, 6) for j in (0, 1)]
    apart = torch.zeros(1, 1, 6, 6).masked_fill(~(causal() & packed).dense(6), torch.finfo(torch.float32).min)
    right = proved(model, IDS, causal() & packed, attention_mask=apart)
    assert right.ok and right.missing == []


@pytest.mark.parametrize("kernel", [pytest.param("eager", marks=pytest.mark.slow), "sdpa"])
def test_t5_encoder_decoder_and_what_the_decoder_reads_of_the_source(kernel: str) -> None:
    model = made("t5", kernel)
    mask = REAL.long()
    encoder = proved(model.get_submodule("encoder"), IDS, padding(REAL), real=REAL, attention_mask=mask)
    assert encoder.ok and encoder.missing == []
    read = {"input_ids": IDS, "attention_mask": mask}
    decoder = prove(model, TARGET, causal(), call=lambda ids: hidden(model, decoder_input_ids=ids, **read))
    assert decoder.ok and decoder.missing == [] and decoder.may_cache
    right = proved(model, IDS, padding(REAL), real=REAL, cross=True, attention_mask=mask, decoder_input_ids=TARGET)
    assert torch.equal(right.measured, REAL[:, None].expand(2, 4, 6)) and right.ok
    forgotten = proved(model, IDS, padding(REAL), real=REAL, cross=True, decoder_input_ids=TARGET)
    assert forgotten.leaks == [(1, i, j) for i in range(4) for j in (4, 5)]


def test_t5_source_copied_as_target() -> None:
    """Encoder and decoder read equal ids with tied weights; only the encoder's are the input."""
    model = made("t5", "sdpa")
    read = {"attention_mask": REAL.long(), "decoder_input_ids": IDS}
    proof = proved(model, IDS, padding(REAL), real=REAL, cross=True, **read)
    assert proof.ok and proof.missing == []


def test_torch_encoder_in_training_mode_and_on_its_fast_path() -> None:
    """nn.TransformerEncoder takes another way, over nested tensors, when nothing is differentiated: both are proved."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 20, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(2, 6, 12)
    for training in (True, False):
        model.train(training)
        proof = prove(model, x, padding(REAL), call=lambda x: model(x, src_key_padding_mask=~REAL), real=REAL)
        assert proof.ok and proof.missing == []
        assert prove(model, x, bidirectional()).ok
        later = [(b, i, j) for b in range(2) for i in range(6) for j in range(i + 1, 6)]
        assert prove(model, x, causal()).leaks == later
