"""From text to batches: how fast each part is, and the share of a training step that reading takes."""

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from atento.base.precision import available_cores
from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento.config.tables.tasks import TASKS
from atento.data.files.text_sources import texts_of
from atento.networks import build_network
from atento.runs.fine_tuning import tune
from atento.runs.prepare import network_for, training_batches
from atento.runs.token_data import data_of, make_store
from atento.text.bulk import BulkEncoder, EncodingPool
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento.training.step import Updater
from benchmarks.processes import about

T = TypeVar("T")
_MEGABYTES = 2  # of text for each second of the measurement
_LEARNED_FROM = 4_000_000  # bytes that the tokenizer is trained on
_WORDS, _EXPONENT = 100_000, 1.05  # of the generated language: words, and how their frequencies fall
_UPDATES = 2  # of training
_BLOCK = 4_000  # texts that are encoded together


def measure_data(seconds: float) -> Iterator[dict[str, object]]:
    """Yield the rate of each part on generated text whose word frequencies follow Zipf's law.

    Args:
        seconds: about how long each part takes; the text has 2 MB for each.
    """
    processes = available_cores()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = _write_text(folder / "text.txt", round(seconds * _MEGABYTES * 1e6))  # bytes
        loaded = _recipe(folder)
        yield about("data", f"{size / 1e6:.0f} MB of text, BPE of 16,000, {processes} processes", ["tokenizers"])
        yield from chain(_encoding(folder, loaded, size, processes), _reading(loaded, size, processes))


def _encoding(folder: Path, loaded: LoadedRecipe, size: int, processes: int) -> Iterator[dict[str, object]]:
    """Yield the rates of the parts of making a store, in MB of text a second."""
    source = loaded.recipe.data.train[0]
    texts, duration = _timed(lambda: list(texts_of(source, folder)))
    yield _megabytes("reading", size, duration)
    learned, duration = _timed(
        lambda: train_tokenizer(loaded.recipe.tokenizer, islice(texts, round(len(texts) * _LEARNED_FROM / size)))
    )
    yield _megabytes("training the tokenizer", min(size, _LEARNED_FROM), duration)
    learned.save(folder / "pieces")
    part = texts[: max(1, len(texts) // 10)]  # the library is slow
    of_part = sum(len(text.encode()) for text in part)
    _, duration = _timed(lambda: [learned.normalize(text) for text in part])
    yield _megabytes("normalizing, one thread", of_part, duration)
    _, duration = _timed(lambda: learned.encode_batch(part))
    yield _megabytes("encoding by tokenizers", of_part, duration)
    blocks = [texts[begin : begin + _BLOCK] for begin in range(0, len(texts), _BLOCK)]
    encoder = BulkEncoder(learned)
    _, duration = _timed(lambda: [encoder.encode(block) for block in blocks])
    yield _megabytes("encoding by looked-up words, one process", size, duration)
    with EncodingPool(folder / "pieces", processes) as pool:
        list(pool.encode(iter(blocks[:processes])))  # the processes have started
        _, duration = _timed(lambda: sum(len(encoded.ids) for _, encoded in pool.encode(iter(blocks))))
    yield _megabytes(f"encoding by looked-up words, {processes} processes", size, duration)


def _reading(loaded: LoadedRecipe, size: int, processes: int) -> Iterator[dict[str, object]]:
    """Yield the rates of making a store, of reading it and of training on it."""
    stored, duration = _timed(lambda: make_store(loaded, lambda line: None, processes=processes))
    yield _megabytes("text to store", size, duration)
    store = stored.store
    _, duration = _timed(store.verify)
    yield _tokens("verifying", store.tokens, duration)
    rows, duration = _timed(lambda: store.rows(range(store.n_blocks)))
    yield _tokens("reading the store", sum(map(len, rows)), duration)
    tokenizer = Tokenizer.load(store.folder / "tokenizer")
    train = data_of(loaded, lambda line: None).train
    network = network_for(loaded.recipe, tokenizer, train)

    batches, duration = _timed(lambda: training_batches(loaded.recipe, network, tokenizer, train, lambda line: None))
    yield {"part": "preparing the first window", "seconds": round(duration, 3)}
    count, duration = _timed(
        lambda: sum(part.batch.targets for update in range(batches.updates_per_epoch) for part in batches.parts(update))
    )
    yield _tokens("batches of an epoch", count, duration)
    per_token = duration / count  # seconds
    torch.manual_seed(1)
    model = build_network(network)
    updater = Updater(model, loaded.recipe.training, "float32", tune(loaded.recipe, model, batches.updates_per_epoch))
    updater.update(batches.parts(0), 1, 1e-4, 0.0)
    targets, begin = 0, time.perf_counter()
    for update in range(1, 1 + _UPDATES):
        sums, _ = updater.update(batches.parts(update), update + 1, 1e-4, 0.0)
        targets += sum(head.targets for head in sums.values())
    duration = time.perf_counter() - begin  # seconds
    yield _tokens("training, 12 layers of 768", targets, duration)
    yield {"part": "share of a step that reading takes", "percent": round(100 * per_token * targets / duration, 3)}


def _recipe(folder: Path) -> LoadedRecipe:
    """The recipe: a network of the size of GPT-2 small on packed rows."""
    return load_recipe(
        {
            "task": next(name for name, spec in TASKS.items() if spec.objective == "causal"),
            "name": "bench",
            "data": {
                "train": "text.txt",
                "folder": str(folder),
                "store": "disk",
                "store_folder": str(folder / "store"),
                "pack": "isolated",
            },
            "tokenizer": {"path": str(folder / "pieces"), "kind": "bpe", "vocab_size": 16_000},
            "network": {"architecture": "decoder", "d_model": 768, "n_heads": 12, "d_ff": 3072, "n_layers": 12},
            "training": {"batch_tokens": 2048},
        }
    )


def _write_text(path: Path, size: int) -> int:
    """Write generated text of about so many bytes and return its size; a line has 5 to 60 words."""
    random = np.random.default_rng(1)
    syllables = [consonant + vowel for consonant in "bcdfglmnprstv" for vowel in "aeiouãéí"]
    words = ["".join(random.choice(syllables, count)) for count in random.integers(1, 5, _WORDS)]
    shares = np.cumsum(np.arange(1, _WORDS + 1) ** -_EXPONENT)  # Zipf: rank to the power -_EXPONENT
    marks = np.array([""] * 8 + [",", "."], dtype=object)  # one word in ten has a comma, one a full stop
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            chosen = np.searchsorted(shares, random.random(40_000) * shares[-1])  # (40000,) ranks
            spelled = np.array(words, dtype=object)[chosen] + marks[random.integers(0, len(marks), len(chosen))]
            lines = np.split(spelled, np.cumsum(random.integers(5, 60, 1_200)))
            text = "".join(" ".join(line) + "\n" for line in lines if len(line))
            written += len(text.encode())  # bytes, not characters
            file.write(text)
    return written


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def _megabytes(part: str, size: int, duration: float) -> dict[str, object]:
    return {"part": part, "mb_per_second": round(size / 1e6 / duration, 2)}


def _tokens(part: str, count: int, duration: float) -> dict[str, object]:
    return {"part": part, "tokens_per_second": round(count / duration)}
