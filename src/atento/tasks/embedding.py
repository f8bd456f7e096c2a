"""Texts as vectors: hidden vectors of any layer, pooled over each text's tokens (docs/notes.md#g8)."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atento.data.special_tokens import special_tokens_of
from atento.errors import AtentoWarning, CapabilityError, ModelError, UsageError, counted, nearest
from atento.networks import Decoder, Encoder, EncoderDecoder, Network
from atento.networks.heads import first_token, mean_token
from atento.tasks.grouping import by_length
from atento.tasks.lengths import warn_of_length
from atento.text.lengths import pad_batch, truncate
from atento.text.tokenizer import Tokenizer


def _max_token(hidden: Tensor, real: Tensor) -> Tensor:
    """The largest of each number over real tokens."""
    return hidden.masked_fill(~real.unsqueeze(-1), float("-inf")).amax(dim=1)


def _last_token(hidden: Tensor, real: Tensor) -> Tensor:
    """The last real token's vector: what a model that reads one way has seen most at."""
    place = torch.arange(real.shape[1], device=real.device)
    last = torch.where(real, place, -1).amax(dim=1).clamp_min(0)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_token,
    "first": first_token,
    "last": _last_token,
    "max": _max_token,
}


@dataclass(frozen=True)
class EmbeddingConfig:
    """How texts become vectors: which layer (-1 the last), pooled how, of length 1 or not, cut to how many tokens."""

    layer: int = -1
    pooling: str = "mean"
    normalize: bool = False
    max_len: int | None = None


class EmbeddingOptions(TypedDict, total=False):
    """The options of `Model.embed`, for type checkers and completion: the fields of `EmbeddingConfig`."""

    layer: int
    pooling: str
    normalize: bool
    max_len: int | None


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The cosine of two vectors (D,), -1 to 1, in float64; 0 where one has no length."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def embed(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: EmbeddingConfig,
    batch_tokens: int = 4096,
    *,
    template: str | None = None,
    trained: int | None = None,
) -> NDArray[np.float32]:
    """texts -> vectors (N,D), float32. Texts of like length share a batch; none depends on its neighbours.

    `template` names the special tokens around a text; None: the tokenizer's own.
    A text longer than `config.max_len` (or the network's learned positions) is cut, with one warning that counts them.
    One longer than the `trained` tokens that the model was trained on is read whole, and counted in one warning.

    Raises:
        UsageError: no such layer or pooling.
    """
    if config.pooling not in POOLINGS:
        raise UsageError(f"unknown pooling {config.pooling!r}{nearest(config.pooling, list(POOLINGS))}")
    longest = _longest(network, config)
    marks = special_tokens_of(network.config, tokenizer, template)
    rows, cut = [], 0
    for ids in tokenizer.encode_batch(list(texts)):
        room = len(ids) if longest is None else max(0, longest - marks.added(False))
        kept, _, lost = truncate(ids, None, room)
        rows.append(marks.apply(kept)[0])
        cut += lost > 0
    warn_of_length([len(row) for row in rows], trained, "vectors")
    if cut:
        warnings.warn(f"{cut} of {counted(len(rows), 'text')} cut to {longest} tokens", AtentoWarning, stacklevel=3)
    device = next(network.parameters()).device
    vectors = np.zeros((len(rows), network.config.d_model), dtype=np.float32)
    for batch in by_length([len(row) for row in rows], batch_tokens):
        padded, real = pad_batch([rows[row] for row in batch], network.config.pad_id)
        token_mask = torch.from_numpy(real).to(device)
        hidden = layer_vectors(network, torch.from_numpy(padded).to(device), token_mask, config.layer)
        pooled = POOLINGS[config.pooling](hidden.float(), token_mask)
        if config.normalize:
            pooled = nn.functional.normalize(pooled, dim=-1)
        vectors[batch] = pooled.cpu().numpy()
    return vectors


@torch.inference_mode()
def layer_vectors(network: Network, ids: Tensor, token_mask: Tensor, layer: int = -1) -> Tensor:
    """ids (B,L) -> the vectors (B,L,D) that a layer hands on: 0 is the first, -1 the last with its final norm.

    Raises:
        UsageError: no such layer. CapabilityError: a recurrent network.
    """
    if not isinstance(network, Encoder | Decoder | EncoderDecoder):
        raise CapabilityError(f"vectors of texts come from a Transformer here: got {type(network).__name__}")
    stack = network.encoder if isinstance(network, EncoderDecoder) else network.stack
    count = len(stack.blocks)
    if not -count <= layer < count:
        raise UsageError(f"`layer` must lie between {-count} and {count - 1}: got {layer}")
    found: dict[str, Tensor] = {}
    hooks = []
    if layer not in (-1, count - 1):
        keep = stack.blocks[layer].register_forward_hook(lambda module, inputs, output: found.update(hidden=output))
        hooks.append(keep)
    try:
        if isinstance(network, EncoderDecoder):
            last = network.encode(ids, source_token_mask=token_mask)
        else:
            last = network(ids, token_mask=token_mask, project=False).hidden
    finally:
        for hook in hooks:
            hook.remove()
    return found.get("hidden", last)


def _longest(network: Network, config: EmbeddingConfig) -> int | None:
    """The most tokens a text may have, None for any number."""
    learned = any(scheme.kind == "learned" for scheme in network.config.schemes)
    limits = [network.config.max_len] if learned else []
    return min([*limits, *([] if config.max_len is None else [config.max_len])], default=None)


_MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


def sentence_folder(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """A sentence-transformers folder: where its network stands and how it pools; None for any other folder.

    Raises:
        ModelError: it is damaged, or pools in a way that is not built here; names the file.
    """
    modules = path / "modules.json"
    if not modules.exists():
        return None
    rows = _json(modules)
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ModelError(f"{modules} is damaged: it must hold a list of modules")
    inside, config = path, {"pooling": "mean", "normalize": False}
    for row in rows:
        kind, place = str(row.get("type", "")).rpartition(".")[2], path / str(row.get("path", ""))
        if kind == "Transformer":
            inside = place
        elif kind == "Pooling":
            config["pooling"] = _pooling(place / "config.json")
        elif kind == "Normalize":
            config["normalize"] = True
        else:
            raise ModelError(f"{modules}: a module of type {row.get('type')!r} is not built here")
    limits = inside / "sentence_bert_config.json"
    if limits.exists():
        given = _json(limits)
        if isinstance(given, Mapping) and isinstance(given.get("max_seq_length"), int):
            config["max_len"] = given["max_seq_length"]
    return inside, config


def _pooling(file: Path) -> str:
    given = _json(file)
    if not isinstance(given, Mapping):
        raise ModelError(f"{file} must hold one JSON object: got {type(given).__name__}")
    chosen = [name for name, on in given.items() if name.startswith("pooling_mode") and on is True]
    named = given.get("pooling_mode")
    if not chosen and isinstance(named, str):  # later versions name the mode
        chosen = [
            {"cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}.get(
                named, f"pooling_mode_{named}_tokens"
            )
        ]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise ModelError(f"{file}: one of {', '.join(_MODES)} must be true: got {', '.join(chosen) or 'none'}")
    return _MODES[chosen[0]]


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is damaged: {error}") from None
