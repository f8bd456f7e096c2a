"""Conversion of a model folder to a layout, Atento's own or Hugging Face's."""

from pathlib import Path

from atento.convert.comet_checkpoint import convert_comet, is_comet
from atento.convert.int8_scales import calibrate_model
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
    calibrate: Path | None = None,
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
            file. "int8", to the layout atento: the linear maps of an encoder's layers have 8 bits, and fixed scales.
        calibrate: texts, one a line, of the kind that the model will read; for int8, which needs it.
        max_shard_size: bytes, or text such as "5GB"; larger weights are split into several files.
        allow_missing, allow_unused: as in `atento.load`.

    Returns:
        The load report of a model of another layout as text; "" for one of ours.

    Raises UsageError: no such layout or type, or `out` is not empty. ModelError: weights are missing or unused, or a
    file holds more than weights. CapabilityError: the layout cannot represent the network. DataError: too few texts, or
    texts of another kind.
    """
    if to not in LAYOUTS:
        raise UsageError(f"`--to` must be one of {', '.join(LAYOUTS)}: got {to!r}")
    if (precision == "int8" and to == "atento") != (calibrate is not None):  # one without the other
        raise UsageError(
            "`--to atento --precision int8` and `--calibrate FILE` go together: the file has texts, one a line, of the "
            "kind that the model will read"
        )
    if calibrate is None and precision is not None and precision not in TYPES:
        raise UsageError(f"`--precision` must be one of {', '.join(TYPES)}: got {precision!r}")
    if is_comet(model) and to == "atento" and calibrate is None:
        convert_comet(Path(model), out, precision=precision, max_shard_size=max_shard_size)
        return ""
    with model_to_convert(
        model, "auto" if calibrate is None else "float32", allow_missing=allow_missing, allow_unused=allow_unused
    ) as loaded:
        if calibrate is not None:
            calibrate_model(loaded, calibrate)
            precision = None  # the maps have 8 bits by now
        loaded.save(out, layout=to, precision=precision, max_shard_size=max_shard_size)
    return "" if loaded.load_report is None else str(loaded.load_report)
