"""CTranslate2 in the decoding benchmark: a model converted from our tensors, and its translator."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from atento.attention.positions import sinusoids
from atento.bench.decoding_sides import Work
from atento.config.network import NetworkConfig

_FIRST = ("<pad>", "<unk>", "<s>", "</s>")  # ids 0 to 3 of the benchmark's networks; the others are numbers


class Conversion:
    """Makes CTranslate2's folder; a separate contender, so that its memory does not count for the translator."""

    def load(self, *arguments: Any) -> None:
        """Do nothing."""

    def run(self, work: tuple[Path, Path, NetworkConfig, str]) -> None:
        """Convert (folder of `write_weights`, folder to create, configuration, float32 or int8)."""
        source, target, config, quantization = work
        specification = specify(_bare(load_file(source / "model.safetensors")), config)
        specification.validate()
        specification.optimize(quantization=quantization)
        target.mkdir()
        specification.save(str(target))


class CTranslate2:
    """Its `translate_batch` with all sentences in one batch, at a compute type."""

    def __init__(self) -> None:
        import ctranslate2

        self.library = ctranslate2

    def load(self, folder: Path, compute_type: str) -> None:
        """Load a folder of `Conversion`; the compute type is float32 or int8."""
        self.translator = self.library.Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
        )
        self.vocab_size = len(json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8")))

    def run(self, work: Work) -> list[list[int]]:
        """Return the output ids of each row."""
        results = self.translator.translate_batch(
            [[_name(token) for token in row] for row in work.rows(self.vocab_size)],
            beam_size=work.beam,
            max_decoding_length=work.new_tokens,
        )
        return [[_id(token) for token in result.hypotheses[0]] for result in results]


def _name(token: int) -> str:
    return _FIRST[token] if token < len(_FIRST) else str(token)


def _id(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else int(name)


def _bare(weights: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return the weights by their names in the model without a head."""
    return {name.removeprefix("model."): value for name, value in weights.items()}


def specify(weights: dict[str, NDArray[np.float32]], config: NetworkConfig) -> Any:
    """Convert Marian's tensors, by their published names, to a specification of CTranslate2's Transformer.

    Its own converter removes the last row of the vocabulary and starts with a zero vector, as published Marian models
    do; here the vocabulary is complete and decoding starts with the start token, as for the other contenders.
    """
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    specification = TransformerSpec.from_config(
        (config.n_layers, config.decoder_layers), config.n_heads, pre_norm=False, activation=Activation.RELU
    )
    positions = sinusoids(torch.arange(config.max_len), config.d_model, 10000.0, interleaved=False).float().numpy()
    shared = weights["shared.weight"]
    for name in ("encoder", "decoder"):
        part = getattr(specification, name)
        table = part.embeddings[0] if isinstance(part.embeddings, list) else part.embeddings
        table.weight = shared.copy()
        part.scale_embeddings = math.sqrt(config.d_model)
        part.position_encodings.encodings = positions
        for number, layer in enumerate(part.layer):
            _set_layer(layer, weights, f"{name}.layers.{number}")
    specification.decoder.projection.weight = shared.copy()
    specification.decoder.projection.bias = weights["final_logits_bias"].flatten()
    tokens = [_name(token) for token in range(config.vocab_size)]
    specification.register_source_vocabulary(tokens)
    specification.register_target_vocabulary(tokens)
    specification.config.decoder_start_token = _name(config.start_id)
    specification.config.eos_token = _name(config.eos_id)
    return specification


def _set_layer(layer: Any, weights: dict[str, NDArray[np.float32]], name: str) -> None:
    def stacked(attention: str, letters: str, kind: str) -> NDArray[np.float32]:
        return np.concatenate([weights[f"{name}.{attention}.{letter}_proj.{kind}"] for letter in letters])

    def norm(module: Any, source: str) -> None:
        module.gamma, module.beta = weights[f"{name}.{source}.weight"], weights[f"{name}.{source}.bias"]

    def linear(module: Any, source: str) -> None:
        module.weight, module.bias = weights[f"{name}.{source}.weight"].copy(), weights[f"{name}.{source}.bias"]

    parts: list[tuple[Any, str, tuple[str, ...]]] = [(layer.self_attention, "self_attn", ("qkv",))]
    if hasattr(layer, "attention"):
        parts.append((layer.attention, "encoder_attn", ("q", "kv")))
    for attention, source, groups in parts:
        for target, letters in zip(attention.linear, groups):
            target.weight, target.bias = stacked(source, letters, "weight"), stacked(source, letters, "bias")
        linear(attention.linear[-1], f"{source}.out_proj")
        norm(attention.layer_norm, f"{source}_layer_norm")
    linear(layer.ffn.linear_0, "fc1")
    linear(layer.ffn.linear_1, "fc2")
    norm(layer.ffn.layer_norm, "final_layer_norm")
