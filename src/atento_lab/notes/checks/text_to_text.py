"""Checks of one network for many tasks, named by a prefix of the text (docs/notes.md#f9, #j11)."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from atento.config.tables.tasks import TEXT_TO_TEXT
from atento.model import Model
from atento_lab.notes.checks.transfer_learning import SIZES, TRAINING, trained_model
from atento_lab.notes.finding import Finding, compare

# eight words: with six, rounding decides what the fine-tuned network writes for the pairs it has not seen
_WORDS = ("gato", "casa", "trem", "livro", "peixe", "praia", "barco", "vento")
_PAIRS = [(a, b) for a in _WORDS for b in _WORDS if a != b]
UNSEEN = _PAIRS[-2:]
PREFIXES: Mapping[str, Callable[[str, str], str]] = {
    "first: ": lambda a, b: a,
    "last: ": lambda a, b: b,
    "swap: ": lambda a, b: f"{b} {a}",
}
NEW = "first last: "  # a task that pretraining lacks: both words, in their order


def records_of(tasks: Mapping[str, Callable[[str, str], str]]) -> list[dict[str, str]]:
    """Return sources with the prefix of each task, and their targets; `UNSEEN` is left out."""
    return [
        {"source": f"{prefix}{a} {b}", "target": answer(a, b)}
        for a, b in _PAIRS[: -len(UNSEEN)]
        for prefix, answer in tasks.items()
    ]


@cache
def prefixed() -> Model:
    """Train one encoder-decoder on the three tasks of `PREFIXES` at once."""
    training = TRAINING | {"steps": 200, "batch_tokens": 150}
    network = {"preset": "transformer-tiny", **SIZES}
    return trained_model(TEXT_TO_TEXT, records_of(PREFIXES), network=network, training=training)


@cache
def fine_tuned() -> Model:
    """Train the network of `prefixed` further, on the new task alone."""
    with TemporaryDirectory() as name:
        init = {"model": str(prefixed().save(Path(name) / "base"))}
        records = records_of({NEW: lambda a, b: f"{a} {b}"})
        training = TRAINING | {"steps": 60, "batch_tokens": 90, "learning_rate": 3e-3, "warmup": 5}
        return trained_model(TEXT_TO_TEXT, records, init=init, network={"dropout": 0.0}, training=training)


def tasks_by_prefix() -> Finding:
    """F9: one encoder-decoder learns three tasks."""
    outputs = {prefix.strip(): prefixed().generate([f"{prefix}{a} {b}" for a, b in UNSEEN]) for prefix in PREFIXES}
    return compare(
        outputs,
        {prefix.strip(): [answer(a, b) for a, b in UNSEEN] for prefix, answer in PREFIXES.items()},
        remark="two pairs of words that training lacks",
    )
