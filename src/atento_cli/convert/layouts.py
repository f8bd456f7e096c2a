"""Conversion of a model folder to a layout, Atento's own or Hugging Face's, and fixed scales of int8."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.base.errors import AtentoWarning, CapabilityError, DataError, UsageError
from atento.data.files.source_lines import read_lines
from atento.inference.fast_reader import why_no_fast_reading
from atento.model import Model
from atento.models.model_folder import CALIBRATION
from atento.models.weight_files import MAX_SHARD_SIZE, TYPES
from atento.models.write import LAYOUTS
from atento.networks.int8_projection import LEVELS, Int8Projection
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack import linear_maps
from atento.tasks.task_model import tokenizer_of
from atento.tasks.text_embedding import token_rows
from atento_cli.convert.comet_checkpoint import convert_comet, is_comet
from atento_cli.convert.source_model import model_to_convert

_ROWS = 256  # of each input, by which ranges are chosen
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)  # of the whole range
_STRENGTHS = (0.5, 0.7, 0.85)  # of smoothing, the exponent alpha
_HELPS = 0.5  # smoothing, which costs a pass over each input, must leave less than this share of the squared error
_BATCH_TOKENS = 1024
_TEXTS = 300  # at most, from the whole file
_TOKENS = 1000  # at least


@dataclass
class _Inputs:
    """What the inputs of a linear map were: the range (D,) of each channel, and some rows (R,D)."""

    low: Tensor
    high: Tensor
    rows: list[Tensor] = field(default_factory=list)

    def sample(self) -> Tensor:
        """Up to `_ROWS` rows, from all batches."""
        rows = torch.cat(self.rows)
        return rows[:: math.ceil(len(rows) / _ROWS)]


def calibrate_model(model: Model, file: Path) -> None:
    """Give an encoder linear maps of 8 bits, with scales that fit the texts of a file, one a line.
    Raises CapabilityError: the network has no such maps; names the part. DataError: the file has too few texts, or most
    tokens are unknown to the tokenizer of the model.
    """
    network = model.network
    tokenizer_of(model)  # refuses a model without one
    reason = why_no_fast_reading(network) if isinstance(network, Encoder) else f"type {type(network).__name__}"
    if not isinstance(network, Encoder) or reason is not None:
        raise CapabilityError(
            f"int8 with fixed scales is for encoders, not for {reason}; `--precision int8` of other commands finds "
            "scales as they run, for networks that write too"
        )
    texts = [line for line in read_lines(file) if line.strip()]
    if not texts:
        raise DataError(f"{file} has no text")
    count = min(_TEXTS, len(texts))
    texts = [texts[number * len(texts) // count] for number in range(count)]  # spread over the whole file
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # long texts are cut
        rows = token_rows(model, texts)
    tokens = sum(map(len, rows))
    if tokens < _TOKENS:
        raise DataError(f"{file} has too little text to fix scales by: {tokens} tokens, and {_TOKENS:,} are needed")
    unknown = sum(row.count(network.config.unk_id) for row in rows) / tokens
    if unknown > 0.5:
        name = model.config.get("name")
        raise DataError(f"{file} is not of the kind that {name} reads: {unknown:.0%} of its tokens are unknown")
    calibrate(network, rows)
    model.config[CALIBRATION] = {"precision": "int8", "texts": len(texts), "tokens": tokens}


@torch.no_grad()
def calibrate(network: Encoder, rows: Sequence[Sequence[int]]) -> None:
    """Replace the linear maps of an encoder's layers by maps of 8 bits, with scales that fit texts.

    Args:
        network: in evaluation mode, float32 on the CPU; its linear maps change.
        rows: ids of texts with their special tokens.
    """
    inputs: dict[int, _Inputs] = {}
    maps = [(owner, name, getattr(owner, name)) for owner, name in linear_maps(network.stack)]
    by_length: dict[int, list[Sequence[int]]] = {}  # batches of equal length, so that no padding is among the inputs
    for row in rows:
        by_length.setdefault(len(row), []).append(row)
    batches: list[Tensor] = []  # of ids (B,L)
    for length, equal in by_length.items():
        size = max(1, _BATCH_TOKENS // max(1, length))
        batches += [torch.tensor(equal[start : start + size]) for start in range(0, len(equal), size)]
    kept = math.ceil(2 * _ROWS / len(batches))  # rows of each batch
    hooks = [linear.register_forward_pre_hook(partial(_record, inputs, kept)) for *_, linear in maps]
    for ids in batches:
        network.features(ids)
    for hook in hooks:
        hook.remove()
    made: list[Int8Projection] = []
    for owner, name, linear in maps:
        uniform = name == "outer" and not getattr(owner, "gated", False)  # the activation before it hands on codes
        least = 1.0 if name == "output" else _HELPS
        new = int8_map(linear, inputs[id(linear)], uniform=uniform, least=least)
        setattr(owner, name, new)
        if name == "output" and owner.n_kv_heads == owner.n_heads:
            # the map before, whose last outputs are the values, also applies the rates of this one's inputs
            values, step, width = made[-1], new.rates.max(), new.in_features
            values.scales[-width:] *= new.rates / step
            if values.bias is not None:
                values.bias[-width:] *= new.rates / step
            new.rates = nn.Parameter(step.reshape(1), requires_grad=False)
        made.append(new)


def _record(inputs: dict[int, _Inputs], kept: int, linear: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    x = arguments[0].flatten(0, -2)  # (rows,D)
    low, high = x.amin(dim=0), x.amax(dim=0)  # (D,) each
    own = inputs.setdefault(id(linear), _Inputs(low, high))
    own.low, own.high = torch.minimum(own.low, low), torch.maximum(own.high, high)
    own.rows.append(x[:: math.ceil(len(x) / kept)].clone())  # every n-th row


def int8_map(linear: nn.Linear, inputs: _Inputs, *, uniform: bool, least: float = _HELPS) -> Int8Projection:
    """The map of 8 bits whose products with the rows are nearest to those of `linear`.

    `uniform` as there. Smoothing must leave less than the share `least` of the squared error.
    """
    x = inputs.sample()
    expected = F.linear(x, linear.weight, linear.bias)  # (rows,N)

    def tried(strength: float, share: float) -> tuple[float, Int8Projection]:
        new = _rounded(linear, inputs, strength, share)
        error = expected - new(x)
        mean = error.mean(dim=0)  # (N,)
        if new.bias is not None:  # rounding moves the mean of an output: Nagel et al. 2019, arXiv:1906.04721, 4.2
            new.bias.add_(mean)
            error -= mean
        return float(error.square().sum()), new

    plain = min((tried(0.0, share) for share in _SHARES), key=itemgetter(0))
    if uniform:
        return plain[1]
    smooth = min((tried(strength, share) for strength in _STRENGTHS for share in _SHARES[:3]), key=itemgetter(0))
    return (smooth if smooth[0] < least * plain[0] else plain)[1]


def _rounded(linear: nn.Linear, inputs: _Inputs, strength: float, share: float) -> Int8Projection:
    """The map with that strength of smoothing, whose codes span that share of the range of the inputs."""
    smooth = torch.ones(1)
    if strength:
        # wide channels are divided by more, and the weights take their factors over
        largest = torch.maximum(-inputs.low, inputs.high).clamp_min(1e-5)  # (D,), the largest |x|
        smooth = largest**strength / linear.weight.abs().amax(dim=0).clamp_min(1e-5) ** (1 - strength)
    low = min(0.0, float((inputs.low / smooth).min())) * share  # zero must have a code
    high = max(0.0, float((inputs.high / smooth).max())) * share
    step = max(high - low, 1e-8) / LEVELS  # inputs between two codes
    new = Int8Projection(linear.in_features, linear.out_features, bias=linear.bias is not None, uniform=not strength)
    new.rates.copy_(1 / (smooth * step))
    new.zero.fill_(round(-low / step))  # the code of zero
    weight = linear.weight / new.rates  # of codes instead of inputs
    new.scales.copy_(weight.abs().amax(dim=1).clamp_min(1e-12) / 127)  # (N,)
    new.codes.copy_((weight / new.scales.unsqueeze(1)).round())
    if new.bias is not None:
        new.bias.copy_(linear.bias)
    return new


def convert(
    model: str | Path,
    out: Path,
    to: str,
    *,
    precision: str | None = None,
    calibrate: Path | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    allow_missing: bool = False,
    allow_unused: bool = False,
    head: str | None = None,
) -> str:
    """Write a model to another folder.

    Args:
        model: a run, a model folder or a hub name.
        out: the folder to write; it must be empty or not exist.
        to: "atento" or "huggingface".
        precision: "float32", "bfloat16", "float16" or "float64" for every tensor; None: the type that each has in the
            file. "int8", to the layout atento: all matrices are stored in 8 bits, and read back in float32.
        calibrate: texts, one a line, of the kind that the model will read; with int8, for an encoder: the linear maps
            of its layers have 8 bits and fixed scales, and are multiplied so.
        max_shard_size: bytes, or text such as "5GB"; larger weights are split into several files.
        allow_missing, allow_unused: as in `atento.load`. head: the only head that is taken along; None: all.

    Returns:
        The load report of a model of another layout as text; "" for one of ours.

    Raises UsageError: no such layout or type, or `out` is not empty. ModelError: weights are missing or unused, or a
    file holds more than weights. CapabilityError: the layout cannot represent the network. DataError: too few texts, or
    texts of another kind.
    """
    if to not in LAYOUTS:
        raise UsageError(f"`--to` must be one of {', '.join(LAYOUTS)}: got {to!r}")
    in_8_bits = precision == "int8" and to == "atento"
    if calibrate is not None and not in_8_bits:
        raise UsageError("`--calibrate FILE` is for `--to atento --precision int8`")
    if not in_8_bits and precision is not None and precision not in TYPES:
        raise UsageError(f"`--precision` must be one of {', '.join(TYPES)}: got {precision!r}")
    if is_comet(model) and to == "atento" and calibrate is None:
        convert_comet(Path(model), out, precision=precision, max_shard_size=max_shard_size)
        return ""
    read_in = "auto" if calibrate is None else "float32"
    with model_to_convert(model, read_in, allow_missing=allow_missing, allow_unused=allow_unused, head=head) as loaded:
        if calibrate is not None:
            calibrate_model(loaded, calibrate)
            precision = None  # the maps have 8 bits by now
        loaded.save(out, layout=to, precision=precision, max_shard_size=max_shard_size)
    return "" if loaded.load_report is None else str(loaded.load_report)
