"""Conversion of a model folder to a layout, Atento's own or Hugging Face's."""

from pathlib import Path

from atento.convert.source_model import model_to_convert
from atento.errors import UsageError
from atento.models.weight_files import MAX_SHARD_SIZE, TYPES
from atento.models.write import LAYOUTS


def convert(
    model: str | Path,
    out: Path,
    to: str,
    *,
    precision: str | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    allow_missing: bool = False,
    allow_unused: bool = False,
) -> str:
    """Write a model to another folder.

    Args:
        model: a run, a model folder or a hub name.
        out: the folder to write; it must be empty or not exist.
        to: "atento" or "huggingface".
        precision: "float32", "bfloat16", "float16" or "float64" for every tensor; None: the type that each has in the
            file.
        max_shard_size: bytes, or text such as "5GB"; larger weights are split into several files.
        allow_missing, allow_unused: as in `atento.load`.

    Returns:
        The load report of a model of another layout as text; "" for one of ours.

    Raises:
        UsageError: no such layout or type, or `out` is not empty. ModelError: weights are missing or unused, or a file
            holds more than weights. CapabilityError: the layout cannot represent the network.
    """
    if to not in LAYOUTS:
        raise UsageError(f"`--to` must be one of {', '.join(LAYOUTS)}: got {to!r}")
    if precision is not None and precision not in TYPES:
        raise UsageError(f"`--precision` must be one of {', '.join(TYPES)}: got {precision!r}")
    with model_to_convert(model, "auto", allow_missing=allow_missing, allow_unused=allow_unused) as loaded:
        loaded.save(out, layout=to, precision=precision, max_shard_size=max_shard_size)
    return "" if loaded.load_report is None else str(loaded.load_report)
