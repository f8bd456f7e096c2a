"""Conversion of a model for another inference engine, written completely or not at all, and compared with the model."""

import importlib.util
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atento.base.errors import CapabilityError, MissingPartError, UsageError, install_hint
from atento.data.batches.special_tokens import special_tokens_of
from atento.model import Model
from atento.models.card import CARD, model_card
from atento.models.model_folder import reads_prompts_both_ways
from atento.models.write import preserved_files
from atento.storage.atomic_files import atomic_folder
from atento.text.exporting import exported_files, post_processor
from atento.text.released.sentencepiece_ids import TYPES
from atento.text.tokenizer_folder import DEFINITION
from atento_cli.convert import ctranslate2_engine, onnx_engine
from atento_cli.convert.comparison import Comparison, check_exact
from atento_cli.convert.source_model import model_to_convert
from atento_cli.convert.usage import ctranslate2_usage, onnx_usage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    """An inference engine that models can be converted for."""

    name: str  # as people write it
    packages: tuple[str, ...]  # what its conversion imports
    precisions: tuple[str, ...]  # of the weights in its files
    why_not: Callable[[Model], str | None]  # the first part of a model that it does not hold; None if it holds all
    # sentences about what a converted model does not do as the model does
    warnings_of: Callable[[Model], tuple[str, ...]]
    write: Callable[[Model, Path, str], None]  # writes a model to a folder in a precision
    # runs the folder and the model on random ids; the last argument is their seed
    compare: Callable[[Model, Path, int], Comparison]
    usage: Callable[[Model, set[str]], str]  # Python lines that use the folder, which has files of these names


ENGINES = {
    "ctranslate2": Engine(
        "CTranslate2",
        ("ctranslate2",),
        ctranslate2_engine.PRECISIONS,
        ctranslate2_engine.why_not,
        ctranslate2_engine.warnings_of,
        ctranslate2_engine.write,
        ctranslate2_engine.compare,
        ctranslate2_usage,
    ),
    "onnx": Engine(
        "ONNX",
        ("onnx", "onnxruntime"),
        onnx_engine.PRECISIONS,
        onnx_engine.why_not,
        onnx_engine.warnings_of,
        onnx_engine.write,
        onnx_engine.compare,
        onnx_usage,
    ),
}


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote."""

    files: dict[str, int]  # name -> bytes
    load_report: str  # the load report of a model of another layout as text; "" for one of ours
    comparison: Comparison | None  # None if it was not compared


def convert_for(
    model: str | Path,
    out: Path,
    to: str,
    *,
    precision: str = "float32",
    check: bool = True,
    seed: int = 1,
    allow_missing: bool = False,
    allow_unused: bool = False,
    head: str | None = None,
) -> Converted:
    """Write a model for another engine, with its tokenizer, card and licence.

    Args:
        model: a run, a model folder or a hub name.
        out: the folder to write; it must be empty or not exist.
        to: a name in `ENGINES`.
        precision: of the weights: one of the engine's.
        check: compare the outputs of both, and their speed.
        seed: of the random ids that are compared.
        allow_missing, allow_unused: as in `atento.load`. head: the only head that is taken along; None: all.

    Raises UsageError: no such engine or precision, or `out` is not empty. MissingPartError: the engine is not
    installed. CapabilityError: it does not hold the model; names the part. AtentoError: the outputs differ, or the
    folder cannot be written; nothing remains.
    """
    if to not in ENGINES:
        raise UsageError(f"`--to` must be one of {', '.join(ENGINES)}: got {to!r}")
    engine = ENGINES[to]
    if precision not in engine.precisions:
        raise UsageError(
            f"`--precision` of {engine.name} must be one of {', '.join(engine.precisions)}: got {precision!r}"
        )
    if any(importlib.util.find_spec(package) is None for package in engine.packages):
        raise MissingPartError(
            f"conversion for {engine.name} needs {' and '.join(engine.packages)}: {install_hint(to)}"
        )
    with model_to_convert(
        model, "float32", allow_missing=allow_missing, allow_unused=allow_unused, head=head
    ) as loaded:
        part = engine.why_not(loaded) if loaded.words is None else "word vectors"
        if loaded.network.config.architecture == "decoder" and reads_prompts_both_ways(loaded.config, "decoder"):
            part = part or "prompts that are read in both directions"
        if part is not None:
            raise CapabilityError(f"{engine.name} does not hold {part}, which {model} has; nothing was written")
        files = preserved_files(loaded.path) | tokenizer_files(loaded)
        with atomic_folder(out) as folder:
            engine.write(loaded, folder, precision)
            names = {file.name for file in folder.iterdir()} | files.keys()
            card = model_card(
                loaded.config,
                loaded.network.config,
                layout=to,
                existing=files.get(CARD, b"").decode("utf-8", "replace"),
                usage=engine.usage(loaded, names),
            )
            for name, content in {**files, CARD: card.encode()}.items():
                if not (folder / name).exists():  # the engine's own files stay
                    (folder / name).write_bytes(content)
            comparison = engine.compare(loaded, folder, seed) if check else None  # before the folder gets its name
            if comparison is not None:
                check_exact(comparison, engine.name, precision)
        warnings = engine.warnings_of(loaded)
    for sentence in warnings:
        _log.warning("%s: %s", out, sentence)
    sizes = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
    return Converted(sizes, "" if loaded.load_report is None else str(loaded.load_report), comparison)


def tokenizer_files(model: Model) -> dict[str, bytes]:
    """File name -> bytes; none for a model without a tokenizer.

    The package `tokenizers` alone reads `tokenizer.json`, which no padding or cutting is set in. The tokenizers of
    Marian and M2M-100 that run SentencePiece have their original files only.
    """
    tokenizer, config = model.tokenizer, model.network.config
    if tokenizer is None:
        return {}
    template = special_tokens_of(config, tokenizer, model.config.get("template"))
    files = exported_files(tokenizer, template, config.family, {})
    data = json.loads(tokenizer.definition)
    if data["model"].get("type") in TYPES:
        return files
    names = {token: tokenizer.tokens([token])[0] for token in template.ids()}
    data |= {"post_processor": post_processor(template, names), "truncation": None, "padding": None}
    return files | {DEFINITION: (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode()}
