"""A model written for CTranslate2 computes what the network computes, in every family that the engine holds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.precision import cpu_features
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import MaskConfig
from atento.config.sections.position_scheme import PositionConfig, StretchConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.text import Tokenizer
from atento_cli.convert import ctranslate2_engine
from atento_cli.convert.ctranslate2_engine import why_not_held
from atento_cli.convert.token_names import vocabulary_of
from tiny_families import VOCABULARY, tiny_config, tiny_model, tiny_network

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra ctranslate2)")

OWN = NetworkConfig(vocab_size=VOCABULARY, d_model=16, d_ff=24, n_heads=4, n_layers=2, max_len=64, initializer="normal")
LLAMA = tiny_config("llama3-8b")
FAMILIES = (
    *("transformer-tiny", "marian", "bart-base", "mbart-large-50", "pegasus-large", "nllb-200-600m"),
    *("t5-small", "t5-11-small", "mt5-small", "gpt1", "gpt2", "llama3-8b", "mistral-7b", "qwen2-0-5b"),
    *("qwen3-0-6b", "gemma-2b", "bert-base", "roberta-base", "xlm-roberta-base", "distilbert-base"),
    *("electra-base", "spanbert-base"),
)
LEARNED, ROTARY, UNTIED = PositionConfig("learned"), PositionConfig("rotary"), {"tied": False, "bias": True}
GATED = (PositionConfig("sinusoidal", gate=True), LEARNED)
NORMED = {"norm_bias": False, "norm": "pre", "attention": {"norm": True, "n_kv_heads": 2}}
HELD: dict[str, NetworkConfig] = {name: tiny_config(name) for name in FAMILIES} | {
    "own, pre-norm, gelu, learned positions, untied": changed(
        OWN, norm="pre", feed_forward={"activation": "gelu"}, positions=LEARNED, output=UNTIED, n_decoder_layers=1
    ),
    "own, two tables, gated positions, shared heads, a norm of the input": changed(
        OWN, embedding={"shared": False, "norm": True}, attention={"n_kv_heads": 2}, positions=GATED
    ),
    "own, rotary, shared layers": changed(OWN, positions=ROTARY, shared_layers=True),
    "own, rotary neighbours of half": changed(OWN, positions=PositionConfig("rotary", interleaved=True, fraction=0.5)),
    "own, Shaw's positions": changed(OWN, positions=PositionConfig("shaw", max_distance=4)),
    "own, no positions": changed(OWN, positions=PositionConfig("none")),
    "decoder, ALiBi": changed(LLAMA, positions=PositionConfig("alibi")),
    "decoder, linear stretch": changed(LLAMA, positions=PositionConfig("rotary", stretch=StretchConfig(2.5))),
    "decoder, Llama 3": changed(LLAMA, positions=PositionConfig("rotary", stretch=StretchConfig(8.0, trained_len=16))),
    "encoder of T5": changed(tiny_config("t5-11-small"), architecture="encoder", output={"tied": True}),
    "encoder, rotary, norms without bias": changed(tiny_config("bert-base"), NORMED, positions=ROTARY),
}
YARN = PositionConfig("rotary", stretch=StretchConfig(4.0, trained_len=16, yarn=True))
DYNAMIC = PositionConfig("rotary", stretch=StretchConfig(2.0, trained_len=16, dynamic=True))
NOT_HELD: dict[str, tuple[NetworkConfig, str]] = {
    "LSTM": (NetworkConfig("recurrent-seq2seq", vocab_size=20), "networks of architecture recurrent-seq2seq"),
    "ALiBi": (changed(OWN, positions=PositionConfig("alibi")), "ALiBi positions in an encoder"),
    "DeBERTa": (tiny_config("deberta-v3-base"), "disentangled positions"),
    "DeBERTa v2": (tiny_config("deberta-v2-xlarge"), "a convolution over the input"),
    "ModernBERT": (tiny_config("modernbert-base"), "a first layer without a norm"),
    "ALBERT": (tiny_config("albert-base"), "embeddings narrower than the layers"),
    "MPNet": (tiny_config("mpnet-base"), "several position schemes together"),
    "a window in an encoder": (tiny_config("bert-base", mask=MaskConfig("window", left=8, right=8)), "a window mask"),
    "a window in a decoder": (tiny_config("mistral-7b", mask=MaskConfig("window", left=8)), "a window mask"),
    "a matrix": (changed(OWN, positions=PositionConfig("matrix")), "matrix positions"),
    "norms in heads": (changed(OWN, attention={"norm": True}), "normalised queries and keys in an encoder-decoder"),
    "single layers": (changed(OWN, positions=PositionConfig("learned", layers=(0,))), "positions in single layers"),
    "YaRN": (changed(LLAMA, positions=YARN), "rotary positions that scale queries and keys (YaRN)"),
    "lengths": (changed(LLAMA, positions=DYNAMIC), "rotary positions that go by the length of a text"),
    "classes": (tiny_config("bert-base", heads=(HeadConfig("classification", ("a", "b")),)), "a classification head"),
}

IN_THE_GATE = (
    *("transformer-tiny", "bart-base", "t5-11-small", "gpt2", "llama3-8b", "qwen3-0-6b", "bert-base"),
    *("own, two tables, gated positions, shared heads, a norm of the input", "own, Shaw's positions"),
    *("decoder, ALiBi", "decoder, Llama 3"),
)


def converted(config: NetworkConfig, folder: Path, precision: str) -> Any:
    model = tiny_model(config)
    assert ctranslate2_engine.why_not(model) is None
    ctranslate2_engine.write(model, folder, precision)
    return ctranslate2_engine.compare(model, folder, 1)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in IN_THE_GATE else pytest.mark.slow) for n in HELD])
def test_every_family_that_it_holds_computes_the_same(name: str, tmp_path: Path) -> None:
    result = converted(HELD[name], tmp_path, "float32")
    assert result.max_difference < 1e-4 and result.agreement > 0.99999 and result.before > 0 and result.after > 0


@pytest.mark.parametrize(
    "name, precision", [("transformer-tiny", "int8"), ("gpt2", "bfloat16"), ("bert-base", "float16"), ("gpt2", "int8")]
)
def test_lower_precisions_are_near(name: str, precision: str, tmp_path: Path) -> None:
    """They differ, and by little: nothing is compared with itself."""
    result = converted(HELD[name], tmp_path, precision)
    limit = 3.0 if precision == "int8" and not cpu_features()["vnni"] else 0.5  # 8-bit sums saturate without VNNI
    assert 1e-5 < result.max_difference < limit and result.agreement > 0.5


@pytest.mark.parametrize("name", NOT_HELD)
def test_what_it_does_not_hold_is_named(name: str) -> None:
    config, part = NOT_HELD[name]
    assert why_not_held(config) == part


def test_the_pooler_segments_and_names_of_tokens_are_converted_and_weights_kept(tmp_path: Path) -> None:
    network = tiny_network(tiny_config("bert-base", pooler=True))
    ctranslate2_engine.write_network(network, vocabulary_of(None, VOCABULARY), tmp_path, "float32")
    encoder = ctranslate2.Encoder(str(tmp_path))
    output = encoder.forward_batch([["5", "6", "7"]])
    assert np.abs(np.array(output.pooler_output) - network(torch.tensor([[5, 6, 7]])).pooled.numpy()).max() < 1e-5
    segments = [[0, 1, 1]]
    output = encoder.forward_batch([["5", "6", "7"]], token_type_ids=segments)
    expected = network(torch.tensor([[5, 6, 7]]), segment_ids=torch.tensor(segments)).hidden
    assert np.abs(np.array(output.last_hidden_state) - expected.numpy()).max() < 1e-5
    # the library quantises its arrays in place
    model = tiny_model(HELD["transformer-tiny"])
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    ctranslate2_engine.write(model, tmp_path, "int8")
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
    # where the embedding has more rows than the tokenizer has pieces, too
    tokenizer = Tokenizer.from_vocabulary("word", ["o", "gato", "<unused_8>"])
    names = vocabulary_of(tokenizer, 12).source
    assert names[:8] == ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "o", "gato", "<unused_8>")
    assert names[8:] == ("<atento_unused_8>", "<unused_9>", "<unused_10>", "<unused_11>")
    network = tiny_network(changed(OWN, vocab_size=12))
    ctranslate2_engine.write_network(network, vocabulary_of(tokenizer, 12), tmp_path, "float32")
    assert json.loads((tmp_path / "shared_vocabulary.json").read_text()) == list(names)
