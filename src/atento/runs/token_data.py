"""Training texts as a store of token ids on disk: when it is used, how it is made, and when it no longer fits."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from atento.base.errors import DataError, RecipeError, TokenizerError, counted
from atento.base.precision import available_cores
from atento.base.splitmix import hashes_of
from atento.config.reading.loading import LoadedRecipe
from atento.config.reading.sizes_by_data import FITTED, fitted
from atento.config.reading.task_defaults import has_own_tokenizer
from atento.config.recipe import Recipe
from atento.config.tables.formats import COMPRESSED
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import TASKS, objectives_of
from atento.data.files.paragraphs import wrapped_sentence
from atento.data.files.several_files import source_files
from atento.data.files.text_sources import reading_options, texts_of, wrapped_file
from atento.data.records.memory import MemoryRecords
from atento.data.records.reader import fingerprint
from atento.data.records.splits import Split, held_out_lines, held_out_rows, split_of
from atento.data.store.token_store import FORMAT, MANIFEST, PLAN, TokenStore, equal_texts, read_json, sha256_of
from atento.data.store.token_writer import SHARD_TOKENS, TokenWriter
from atento.models.initial_model import initial_model
from atento.runs.multilingual import tokenizer_of_run
from atento.runs.prepare import Data, files_by_source, fingerprint_of, read_data, read_sources
from atento.runs.run_identity import data_fingerprint, has_begun
from atento.runs.run_tokenizer import tokenizer_for
from atento.runs.setup import Setup
from atento.runs.token_changes import compare_files, compare_plans, training_files
from atento.storage.atomic_files import NewFolder, write_atomically
from atento.storage.lock import RunLock
from atento.text.bulk import EncodingPool, TextWorkers, id_type
from atento.text.tokenizer import Tokenizer

Report = Callable[[str], None]

LARGE = 256 << 20  # bytes of text from which on `data.store: auto` is disk
LEARNED_FROM = 128 << 20  # bytes of text that a tokenizer is trained on; of more, an even sample
_UNPACKED = 4  # how many times compressed text grows, about
_FEW = 16 << 20  # bytes of text that one process encodes
_SAMPLE = 64  # neighbouring texts that are sampled together
_SAMPLE_KEY = 34  # keeps these hashes apart from those of splits and shuffles
_TOKENIZER = "tokenizer"  # folder in the store


@dataclass(frozen=True)
class StoredTexts:
    """A complete store, and the texts that are held out of it for validation."""

    store: TokenStore  # the training texts; those held out, and those equal to one of them, are omitted
    held_out: tuple[str, ...] = ()  # the texts for validation
    equal: int = 0  # how many texts equal one that is held out


def store_folder(loaded: LoadedRecipe) -> Path:
    """Return the folder of a recipe's store: `data.store_folder`, by default `stores/NAME`."""
    stated = loaded.recipe.data.store_folder
    return Path("stores") / loaded.recipe.name if stated is None else loaded.home / stated


def is_stored(loaded: LoadedRecipe, begun: str | None = None) -> bool:
    """Whether training reads the texts of a recipe from a store.

    Args:
        begun: the fingerprint of the data of a run that has begun, which goes on as it began.

    Raises RecipeError: `data.store` is disk, and the recipe cannot be read from one.
    """
    recipe = loaded.recipe
    obstacle = _obstacle(recipe)
    if recipe.data.store == "memory" or (obstacle is not None and recipe.data.store == "auto"):
        return False
    if obstacle is not None:
        raise RecipeError(f"`data.store` disk {obstacle}")
    if recipe.data.store == "disk":
        return True
    if begun is not None:
        return begun.startswith("tokens:")
    return (store_folder(loaded) / MANIFEST).exists() or text_bytes(loaded) >= LARGE


def _obstacle(recipe: Recipe) -> str | None:
    """Return why the training data of a recipe cannot be read from a store; None: it can."""
    if [field.name for field in TASKS[recipe.task].fields] != ["text"]:
        return f"is for tasks that read texts: got {recipe.task}"
    for objective in objectives_of(recipe.task, recipe.objective):
        if not OBJECTIVES[objective.kind].reads_ids:
            return f"is for objectives that read token ids alone: got {objective.kind}, which reads text"
    if any(source.memory is not None for source in recipe.data.train):
        return "is for files and data sets: got records in memory"
    return "cannot be combined with `data.folds`" if recipe.data.folds else None


def text_bytes(loaded: LoadedRecipe) -> int:
    """Return about how many bytes of text the training files hold; data sets and the micro-world count nothing."""
    sources = [source for source in loaded.recipe.data.train if source.file is not None]
    names = [name for source in sources for name in source_files(source, loaded.folder)]
    paths = [path for path in (loaded.folder / Path(name).expanduser() for name in names) if path.exists()]
    return sum(path.stat().st_size * (_UNPACKED if path.suffix in COMPRESSED else 1) for path in paths)


def make_store(
    loaded: LoadedRecipe,
    report: Report,
    *,
    tokenizer_from: Path | None = None,
    force: bool = False,
    processes: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: Callable[[Path], TextWorkers] | None = None,
) -> StoredTexts:
    """Return the store of a recipe's training texts; make it, or what is missing of it, if needed.

    Args:
        report: called with a line about the progress.
        tokenizer_from: folder of the tokenizer, instead of the recipe's.
        force: delete a store that was made from something else.
        processes: number of processes that encode text; None: one for each CPU, or none for little text.
        shard_tokens: tokens of a shard.
        workers: starts workers that encode text, given the folder of the tokenizer, in place of processes.

    Raises DataError: the store was made from other text, another tokenizer or with other options, or it is damaged.
    AtentoError: the disk is full.
    """
    obstacle = _obstacle(loaded.recipe)
    if obstacle is not None:
        raise RecipeError(f"a token store {obstacle}")
    folder = store_folder(loaded)
    new = NewFolder(folder, lambda: any(folder.glob("shard-*")))  # refused before a shard is written: nothing remains
    with RunLock(folder, "token store"), new:
        if force:
            for path in folder.iterdir():
                if path.name != ".lock":  # which this process holds
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        tokenizer, origin = _tokenizer(loaded, folder, tokenizer_from, report)
        plan: dict[str, Any] = {
            "format": FORMAT,
            "dtype": id_type(tokenizer.vocab_size).str,
            "tokenizer": tokenizer.fingerprint,
            "tokenizer_from": origin,
            "sources": [dict(reading_options(source)) for source in loaded.recipe.data.train],
            "skip_bad": loaded.recipe.data.skip_bad,
            "files": training_files(loaded),
        }
        manifest = read_json(folder / MANIFEST)
        # a manifest: it is whole; a plan alone: it was interrupted
        before = read_json(folder / PLAN) if manifest is None else manifest["plan"]
        if before is not None:
            compare_plans(folder, before, plan)
        if manifest is None:
            for name in filter(None, (wrapped_file(source, loaded.folder) for source in loaded.recipe.data.train)):
                report(f"warning: {wrapped_sentence(name)}")
            _write(loaded, folder, plan, processes, shard_tokens, report, workers)
        else:
            compare_files(loaded, folder, manifest["files"], plan["files"])
        store = TokenStore(folder)
        if manifest is not None:  # what was just written need not be
            store.verify()
        return _held_out(loaded, store, tokenizer) if loaded.recipe.data.held_out else StoredTexts(store)


def data_of(
    loaded: LoadedRecipe,
    report: Report,
    memory: Mapping[str, MemoryRecords] | None = None,
    *,
    begun: str | None = None,
    tokenizer_from: Path | None = None,
) -> Data:
    """Return the splits of a recipe; its training texts are read from a store, or all records into memory.

    Args:
        report: called with each warning.
        memory: the records passed in Python, by name.
        begun: the fingerprint of the data of a run that has begun.
        tokenizer_from: folder of the tokenizer of a store, instead of the recipe's.

    Raises DataError, RecipeError: before any long work, naming file, line and rule.
    """
    if not is_stored(loaded, begun):  # a run keeps the way its data were read in
        return read_data(loaded.recipe, loaded.folder, report, memory)
    recipe = loaded.recipe
    splits: dict[str, Split | None] = {}
    for name in ("valid", "test"):
        parts = read_sources(recipe, name, loaded.folder, memory)
        for warning in (text for part in parts for text in part.warnings()):
            report(f"warning: {warning}")
        splits[name] = split_of(parts, files_by_source(recipe, name, loaded.folder))
    stored = make_store(loaded, report, tokenizer_from=tokenizer_from)
    store, valid = stored.store, splits["valid"]
    if valid is not None:
        ids = Tokenizer.load(store.folder / _TOKENIZER).encode_batch(valid["text"])
        also = sum(map(bool, equal_texts(store, [np.array(row, dtype=np.int64) for row in ids])))
        if also:
            report(f"warning: {also} of {len(valid)} validation texts are also in the training data")
    elif stored.held_out:
        columns = {"text": list(stored.held_out)}
        valid = Split(columns, fingerprint(*columns.values()))
        for line in held_out_lines(len(valid), store.texts, "texts", recipe.data.held_out, stored.equal):
            report(line)
    names = [str(source.file or source.dataset or f"the micro-world's {source.world}") for source in recipe.data.train]
    sources = tuple((name, len(store.of_source(number))) for number, name in enumerate(names))
    train = Split({"text": []}, store.fingerprint, sources=sources, tokens=store)  # the texts stay on the disk
    report(f"{store.folder}: {len(store):,} texts of {store.tokens:,} tokens")
    return Data(train, valid, splits["test"], f"tokens:{fingerprint_of(train, valid)}")


def data_of_run(setup: Setup) -> tuple[LoadedRecipe, Data]:
    """Return the splits of a run, as `data_of`, and its recipe with the folder of the store.
    Raises TokenizerError: the run has another tokenizer than the store.
    """
    loaded, folder, branch = setup.loaded, setup.folder, setup.branch
    begun = data_fingerprint(folder) if has_begun(folder) else None
    tokenizer = None
    if begun is not None and (branch is not None or loaded.recipe.init is not None):  # it is not the recipe's
        tokenizer = folder / _TOKENIZER
    elif branch is not None:
        tokenizer = branch.path
    data = data_of(loaded, setup.report, setup.memory, begun=begun, tokenizer_from=tokenizer)
    saved, tokens = folder / _TOKENIZER, data.train.tokens
    if tokens is not None and saved.exists() and Tokenizer.load(saved).fingerprint != tokens.plan["tokenizer"]:
        raise TokenizerError(f"{tokens.folder} was made with another tokenizer than {saved} is: use --out or --force")
    if tokens is not None:  # a run that is resumed in another directory reads the same store
        recipe = replace(loaded.recipe, data=replace(loaded.recipe.data, store_folder=str(tokens.folder.resolve())))
        loaded = replace(loaded, recipe=recipe)
    return loaded, data


def _tokenizer(
    loaded: LoadedRecipe, folder: Path, tokenizer_from: Path | None, report: Report
) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer of a store, saved in its folder, and how it came to be."""
    recipe, saved = loaded.recipe, folder / _TOKENIZER
    if tokenizer_from is None and recipe.init is not None and not has_own_tokenizer(recipe):
        tokenizer_from = initial_model(recipe.init.model, loaded.home).path
    if tokenizer_from is None and recipe.tokenizer.path is not None:
        tokenizer_from = loaded.home / recipe.tokenizer.path
    if tokenizer_from is not None:
        tokenizer = tokenizer_of_run(loaded, Tokenizer.load(tokenizer_from, markers=recipe.tokenizer.markers))
        if not saved.exists():
            _save(tokenizer, saved)
        return tokenizer, {}
    sentinels = max(OBJECTIVES[one.kind].sentinels for one in objectives_of(recipe.task, recipe.objective))
    fit = [key for key, origin in loaded.origins.items() if origin == FITTED and key.startswith("tokenizer.")]
    settings = recipe.tokenizer
    origin: dict[str, object] = {"kind": settings.kind, "lowercase": settings.lowercase, "sentinels": sentinels}
    origin["vocab_size"] = "fitted" if fit else settings.vocab_size
    if saved.exists():
        return Tokenizer.load(saved), origin
    # of more text a sample is read; two passes over all of it would find few of the texts that are held out there
    left_out = frozenset(_texts_held_out(loaded) if text_bytes(loaded) <= LEARNED_FROM else ())
    if fit:
        report("counting the characters of the text, by which the vocabulary is chosen")
        characters = sum(len(text) for text in _texts(loaded) if text not in left_out)
        recipe = fitted(recipe, fit, characters, characters)[0]
    tokenizer = tokenizer_for(recipe, loaded.home, _sample(loaded, left_out, report), report)
    _save(tokenizer, saved)
    return tokenizer, origin


def _save(tokenizer: Tokenizer, saved: Path) -> None:
    partial_folder = saved.with_name(f".{saved.name}-{os.getpid()}")
    tokenizer.save(partial_folder)
    partial_folder.rename(saved)


def _sample(loaded: LoadedRecipe, left_out: frozenset[str], report: Report) -> Iterator[str]:
    """Yield the texts that a tokenizer is trained on: all that are not left out, or of much text an even sample."""
    size = text_bytes(loaded)
    texts = (text for text in _texts(loaded) if text not in left_out)
    if size <= LEARNED_FROM:
        yield from texts
        return
    share = LEARNED_FROM / size
    report(f"training the tokenizer on {share:.1%} of the text, about {LEARNED_FROM >> 20} MiB of {size >> 20}")
    limit, chosen = np.uint64(int(share * 2.0**64)), False
    for number, text in enumerate(texts):
        if number % _SAMPLE == 0:
            chosen = bool(hashes_of(np.array([number], dtype=np.uint64), _SAMPLE_KEY)[0] < limit)
        if chosen:
            yield text


def _texts(loaded: LoadedRecipe) -> Iterator[str]:
    """Yield the texts of all sources; with `data.skip_bad`, without the broken records."""
    refused: Callable[[DataError], None] | None = (lambda error: None) if loaded.recipe.data.skip_bad else None
    return chain.from_iterable(texts_of(source, loaded.folder, refused) for source in loaded.recipe.data.train)


def _texts_held_out(loaded: LoadedRecipe, texts: int | None = None) -> list[str]:
    """Return the texts that `data.held_out` holds out, in order; `texts` is how many there are, if it is known."""
    count = loaded.recipe.data.held_out
    if not count:
        return []
    rows = held_out_rows(sum(1 for _ in _texts(loaded)) if texts is None else texts, count)
    chosen = set(rows)
    return list(islice((text for number, text in enumerate(_texts(loaded)) if number in chosen), len(rows)))


def _write(
    loaded: LoadedRecipe,
    folder: Path,
    plan: Mapping[str, Any],
    processes: int | None,
    shard_tokens: int,
    report: Report,
    workers: Callable[[Path], TextWorkers] | None = None,
) -> None:
    """Write the missing shards and the manifest."""
    if processes is None:
        processes = available_cores()
        processes = processes if text_bytes(loaded) > _FEW else 0
    errors: list[DataError] = []
    refused = errors.append if loaded.recipe.data.skip_bad else None
    writer = TokenWriter(folder, plan, shard_tokens)
    if writer.resumed:
        report(f"{folder}: {counted(writer.resumed, 'shard')} written before; continuing")

    def progress(texts: int, characters: int) -> None:
        report(f"{folder}: {texts:,} texts, {characters:,} characters")

    started = None if workers is None else workers(folder / _TOKENIZER)
    with EncodingPool(folder / _TOKENIZER, processes, started) as pool:
        sources = [partial(texts_of, source, loaded.folder, refused) for source in loaded.recipe.data.train]
        writer.write(sources, pool, progress)
    now = training_files(loaded)
    if now != plan["files"]:
        changed = next(str(new["name"]) for old, new in zip(plan["files"], now) if old != new)
        raise DataError(f"{changed}: changed while it was read; make the store again when it no longer changes")
    if errors:
        report(f"warning: {counted(len(errors), 'bad record')} left out, first {errors[0]}")
    files = [{**one, "sha256": sha256_of(loaded.folder / Path(str(one["name"])).expanduser())} for one in plan["files"]]
    writer.finish(files)


def _held_out(loaded: LoadedRecipe, store: TokenStore, tokenizer: Tokenizer) -> StoredTexts:
    """Hold out the texts for validation, those that `data.held_out` holds out in memory; they are kept in a file.
    Raises DataError: nothing is left to train on.
    """
    count = loaded.recipe.data.held_out
    path = store.folder / f"held-out-{count}.json"
    saved = read_json(path)  # the rows are drawn once: all runs hold out the same
    if saved is None or saved.get("fingerprint") != store.fingerprint:
        rows = held_out_rows(store.texts, count)
        texts = _texts_held_out(loaded, store.texts)
        ids = [np.array(row, dtype=np.int64) for row in tokenizer.encode_batch(texts)]
        equal = sorted(set().union(*equal_texts(store, ids)) - set(rows))  # nor may equal texts be trained on
        saved = {"fingerprint": store.fingerprint, "rows": rows, "equal": equal, "texts": texts}
        write_atomically(path, json.dumps(saved, ensure_ascii=False))
    omitted = store.without([*saved["rows"], *saved["equal"]])
    if not len(omitted):
        raise DataError(
            f"`data.held_out` {count} leaves nothing to train on of {counted(store.texts, 'training record')}; give "
            "more data, or `data.valid`"
        )
    return StoredTexts(omitted, tuple(saved["texts"]), len(saved["equal"]))
