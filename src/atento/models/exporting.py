"""A model as a folder in the Hugging Face layout: what its stock entry points need beside weights to give what we give.

`AutoTokenizer`, `pipeline` and `generate` of transformers and `SentenceTransformer` read the files written here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atento.config.decoding import DecodingConfig
from atento.config.network import NetworkConfig
from atento.data.special_tokens import WITH_SOURCE, special_tokens_of
from atento.errors import CapabilityError
from atento.tasks.embedding import EmbeddingConfig
from atento.tasks.writing import GOING_ON
from atento.text.exporting import exported_files
from atento.text.tokenizer import Tokenizer

KEPT = ("name", "task", "decoding", "embedding")
"""Keys of our `config.json` that theirs has no place for: they stand there under "atento", for `atento.load`."""

GENERATION = "generation_config.json"
_MOST = 256  # new tokens, where the model does not say; ours hang on the source's length, which the layout cannot say
_NO_SPACES = ("word", "wordpiece")
_POOLINGS = {"first": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
_LEGACY = (  # keys of decoding that older folders have in `config.json`
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "num_beams", "length_penalty", "early_stopping"),
    *("no_repeat_ngram_size", "min_length", "max_length", "suppress_tokens", "begin_suppress_tokens"),
)


def tokenizer_files(network: NetworkConfig, config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer's files, special tokens and lengths as this model uses them.

    Args:
        network: the network.
        config: the model's configuration, ours.
        tokenizer: its tokenizer.

    Raises:
        CapabilityError: the layout cannot say what the tokenizer is.
    """
    writes = network.architecture != "encoder"
    if writes and tokenizer.own and tokenizer.kind in _NO_SPACES:
        raise CapabilityError(
            f"the Hugging Face layout cannot say where a {tokenizer.kind} tokenizer puts spaces when it decodes; "
            "a model that writes needs one of kind unigram, bpe, character or byte there"
        )
    inputs = ["input_ids", "attention_mask"]
    if network.n_segments > 1:
        inputs.insert(1, "token_type_ids")
    settings: dict[str, Any] = {"model_input_names": inputs}
    if _places(network) is not None:
        settings["model_max_length"] = _places(network)
    if network.architecture == "decoder" and "embedding" not in config:
        settings["padding_side"] = "left"  # so that `generate` goes on from each prompt's last token
    template = special_tokens_of(network, tokenizer, config.get("template"))
    return exported_files(tokenizer, template, network.family, settings)


def _places(network: NetworkConfig) -> int | None:
    """How many positions the network has there; None: any number."""
    tabled = ("learned", "sinusoidal")  # theirs keep a table of sinusoids too
    return network.max_len if any(scheme.kind in tabled for scheme in network.schemes) else None


def generation_files(
    network: NetworkConfig, decoding: DecodingConfig | None, source: Mapping[str, Any]
) -> dict[str, bytes]:
    """`generation_config.json` of a network that writes, so that `generate()` decodes as `atento.load` does.

    Args:
        network: the network.
        decoding: how the model decodes unless told otherwise; None: it does not say.
        source: the `config.json` of the folder that the model was read from, for decoding keys of older folders.
    """
    if network.architecture == "encoder":
        return {}
    seq2seq = network.architecture in WITH_SOURCE
    data: dict[str, Any] = {name: source[name] for name in _LEGACY if source.get(name) is not None}
    data |= {
        "bos_token_id": network.bos_id if seq2seq else network.start_id,
        "eos_token_id": network.eos_id,
        "pad_token_id": network.pad_id,
    }
    if seq2seq:
        data["decoder_start_token_id"] = network.start_id
    if decoding is not None:
        data |= _decoding(network, decoding, seq2seq)
    return {GENERATION: _json(data)}


def _decoding(network: NetworkConfig, decoding: DecodingConfig, seq2seq: bool) -> dict[str, Any]:
    """How to decode, in their words; least risk, a shrinking beam and stop strings have none, and are left out."""
    data: dict[str, Any] = {"do_sample": decoding.samples, "num_beams": 1}
    if decoding.samples:
        data |= {name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")}
    elif decoding.mbr is None and decoding.beam > 1:
        data |= {"num_beams": decoding.beam, "length_penalty": decoding.length_penalty, "early_stopping": True}
    if decoding.repetition_penalty != 1.0:
        data["repetition_penalty"] = decoding.repetition_penalty
    if decoding.no_repeat_ngrams:
        data["no_repeat_ngram_size"] = decoding.no_repeat_ngrams
    if decoding.min_new_tokens:
        data["min_new_tokens"] = decoding.min_new_tokens
    usual = _MOST if seq2seq else GOING_ON
    return data | {"max_new_tokens": min(decoding.max_new_tokens or usual, _places(network) or usual)}


def sentence_files(network: NetworkConfig, embedding: EmbeddingConfig) -> dict[str, bytes]:
    """The files that tell sentence-transformers how the model pools, so that `encode` gives what `embed` gives.

    Raises:
        CapabilityError: the vectors are those of another layer than the last.
    """
    if embedding.layer not in (-1, network.n_layers - 1):
        raise CapabilityError(f"sentence-transformers pools the last layer only: got layer {embedding.layer}")
    pooling = {f"pooling_mode_{theirs}": embedding.pooling == ours for ours, theirs in _POOLINGS.items()}
    limits = [limit for limit in (embedding.max_len, _places(network)) if limit is not None]
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Normalize", "2_Normalize")] if embedding.normalize else []
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    return {
        "modules.json": _json(rows),
        "1_Pooling/config.json": _json({"word_embedding_dimension": network.d_model, **pooling}),
        "sentence_bert_config.json": _json({"max_seq_length": min(limits, default=None), "do_lower_case": False}),
    }


def read_config(folder: Path | None) -> dict[str, Any]:
    """The `config.json` of a folder in the Hugging Face layout, empty where there is none."""
    try:
        data = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) and data.get("model_type") != "atento" else {}


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
