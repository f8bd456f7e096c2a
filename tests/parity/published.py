"""Folders as they were published: `save_pretrained` writes today's form of a folder; these writers turn it back."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

Tensors = dict[str, Tensor]
SINGLE = "model.safetensors"
_LAST = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def _ends(tensors: Tensors, end: str) -> str:
    """The name that ends so, or "" if there is none."""
    return next((name for name in tensors if name.endswith(end)), "")


def _positions(tensors: Tensors) -> Tensors:
    """The buffer of position ids, which old classes saved beside the embeddings."""
    table = _ends(tensors, "embeddings.word_embeddings.weight")
    return tensors | {table.replace("word_embeddings.weight", "position_ids"): torch.arange(20)[None]}


def _second(bias: str, matrix: str, tensors: Tensors) -> Tensors:
    """The output matrix and its second bias, which old files held although they repeat others."""
    tensors = _positions(tensors)
    if bias not in tensors:
        return tensors
    end = ("word_embeddings.weight", "tok_embeddings.weight")
    table = next(value for name, value in tensors.items() if name.endswith(end))
    return {matrix: table.clone(), matrix.replace("weight", "bias"): tensors[bias].clone()} | tensors


def _bert(tensors: Tensors) -> Tensors:
    """Norms as TensorFlow named them, as in bert-base-uncased."""
    end = {name: next((old for old in _LAST if name.endswith(old)), "") for name in tensors}
    return _positions(
        {name.removesuffix(end[name]) + _LAST.get(end[name], ""): value for name, value in tensors.items()}
    )


_roberta = partial(_second, "lm_head.bias", "lm_head.decoder.weight")


def _distilbert(tensors: Tensors) -> Tensors:
    tensors = _positions(tensors)
    if "vocab_projector.bias" in tensors:
        tensors = {"vocab_projector.weight": tensors[_ends(tensors, "word_embeddings.weight")].clone()} | tensors
    return tensors


def _deberta(tensors: Tensors) -> Tensors:
    """The second head of the pretraining of version 3."""
    width = tensors[_ends(tensors, "word_embeddings.weight")].shape[1]
    return _positions(tensors) | {
        "mask_predictions.dense.weight": torch.ones(width, width),
        "mask_predictions.LayerNorm.weight": torch.ones(width),
        "mask_predictions.classifier.weight": torch.ones(1, width),
    }


def _gpt(tensors: Tensors) -> Tensors:
    """Names without the prefix of the base model, and the causal masks of each layer."""
    plain = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    for layer in range(3):
        plain[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 20, 20).tril()
        plain[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return plain


def _llama(tensors: Tensors) -> Tensors:
    start = _ends(tensors, "embed_tokens.weight").removesuffix("embed_tokens.weight")
    return tensors | {f"{start}layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(2) for n in range(3)}


def _t5(tensors: Tensors) -> Tensors:
    table = tensors.get("shared.weight", tensors.get("transformer.shared.weight"))
    start = "transformer." if "transformer.shared.weight" in tensors else ""
    assert table is not None
    repeated = {f"{start}encoder.embed_tokens.weight": table.clone()}
    if any("decoder.block" in name for name in tensors):
        cross = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        repeated |= {"decoder.embed_tokens.weight": table.clone(), cross: torch.ones(8, 4)}
        repeated |= {} if "lm_head.weight" in tensors else {"lm_head.weight": table.clone()}
    return tensors | repeated


def _bart(tensors: Tensors) -> Tensors:
    """Each name of the shared table, fairseq's version numbers, and sinusoids that are computed."""
    made = {f"model.{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    if "model.shared.weight" in tensors:
        names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        made |= {name: tensors["model.shared.weight"].clone() for name in names}
    return made | tensors


def _marian(tensors: Tensors) -> Tensors:
    return {name: value for name, value in _bart(tensors).items() if not name.endswith(".version")}


def _m2m_100(tensors: Tensors) -> Tensors:
    made = {f"model.{side}.embed_positions.weights": torch.ones(20, 16) for side in ("encoder", "decoder")}
    return _marian(tensors) | made


NAMES: dict[str, Callable[[Tensors], Tensors]] = {  # model_type -> their tensors by the names of published files
    **dict.fromkeys(("bert", "electra"), _bert),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), _roberta),
    "distilbert": _distilbert,
    "albert": partial(_second, "predictions.bias", "predictions.decoder.weight"),
    "deberta-v2": _deberta,
    "modernbert": dict,
    **dict.fromkeys(("openai-gpt", "gpt2"), _gpt),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), _llama),
    **dict.fromkeys(("t5", "mt5"), _t5),
    **dict.fromkeys(("bart", "mbart"), _bart),
    **dict.fromkeys(("marian", "pegasus"), _marian),
    "m2m_100": _m2m_100,
}


def _single(folder: Path, tensors: Tensors, file: str = SINGLE) -> None:
    save_file(tensors, folder / file, {"format": "pt"})


def _shards(folder: Path, tensors: Tensors, variant: str = "") -> None:
    """Two shards and their index, named as `transformers` names them."""
    table, names = {}, sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model{variant}-{number:05d}-of-00002.safetensors"
        _single(folder, {name: tensors[name] for name in part}, file)
        table |= dict.fromkeys(part, file)
    (folder / f"model.safetensors.index{variant}.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


def _half(tensors: Tensors) -> Tensors:
    return {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}


FORMS: dict[str, Callable[[Path, Tensors], None]] = {  # how the tensors lie in the folder
    "one file": _single,
    "shards": _shards,
    "fp16 alone": lambda folder, tensors: _single(folder, _half(tensors), "model.fp16.safetensors"),
    "fp16 shards alone": lambda folder, tensors: _shards(folder, _half(tensors), ".fp16"),
    "pickled": lambda folder, tensors: torch.save(tensors, folder / "pytorch_model.bin"),
}


def published(folder: Path, model_type: str, form: str) -> Path:
    """Turn a folder of `save_pretrained` into the published form of its family."""
    tensors = NAMES[model_type](load_file(folder / SINGLE))
    if model_type in ("marian", "pegasus"):  # which read their sinusoids from the file
        data = json.loads((folder / "config.json").read_text())
        made = MarianSinusoidalPositionalEmbedding(data["max_position_embeddings"], data["d_model"])
        sinusoids = torch.as_tensor(made.create_weight())
        tensors |= {f"model.{side}.embed_positions.weight": sinusoids.clone() for side in ("encoder", "decoder")}
    (folder / SINGLE).unlink()
    FORMS[form](folder, {name: value.contiguous() for name, value in tensors.items()})
    return folder
