"""Work alone on the machine and beside other programs, by how idle threads wait, compared with `transformers`.

Each job runs alone, beside two programs of one thread, and beside two and three PyTorch programs of two threads, whose
own idle threads spin as they do by default. It runs with Atento's waits, with the machine's (long), with none, and on
one thread; each setting is a process of its own, and they take turns.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atento.base.precision import best_precision
from atento.base.start_up import LONG_WAITS, SHORT_WAITS, machine_environment
from atento.config import presets
from atento.config.sections.network import NetworkConfig
from benchmarks import decoding, decoding_sides, encoding, encoding_sides, finetuning_sides, training
from benchmarks.processes import Contender, Measurement, Side, about, alternate, median_seconds

_ALONE = "nothing"
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
_PRODUCTS = """import os, sys, torch
torch.set_num_threads(2)
a, b = torch.randn(256, 512), torch.randn(512, 512)
while os.getppid() == int(sys.argv[1]): a = torch.tanh(a @ b * 0.01)"""
SITUATIONS: dict[str, tuple[str, ...]] = {  # the programs that run beside the measured one
    _ALONE: (),
    "two programs of one thread": (_BUSY,) * 2,
    "two PyTorch programs of two threads": (_PRODUCTS,) * 2,
    "three PyTorch programs of two threads": (_PRODUCTS,) * 3,
}
SETTINGS: dict[str, tuple[dict[str, str], int | None]] = {  # variables of the process, and its threads
    "default": (SHORT_WAITS, None),
    "long waits": (LONG_WAITS, None),
    "no waits": ({"OMP_WAIT_POLICY": "passive"}, None),
    "one thread": (SHORT_WAITS, 1),
}
_TINY = presets.transformer_tiny(vocab_size=4000)
_MINILM = presets.bert_base(d_model=384, d_ff=1536, n_layers=6)


@dataclass(frozen=True)
class Job:
    """A piece of work: our contender, that of transformers, their arguments, the work, and its units.

    `goal` is the most time, relative to the best setting, that the default may take where nothing else runs.
    """

    ours: type[Contender]
    theirs: type[Contender]
    arguments: tuple[object, ...]
    theirs_arguments: tuple[object, ...]
    work: Any
    units: int
    goal: float = 1.15


def measure_sharing(
    seconds: float, *, jobs: Sequence[str] = (), situations: Sequence[str] = tuple(SITUATIONS), rounds: int = 2
) -> Iterator[dict[str, object]]:
    """Yield rows of the units of each job per second and per second of processor time; the last rows are the ratios.

    Args:
        seconds: about how long each setting of a job is measured, over all situations.
        jobs: names of `jobs_in`; all if there are none.
        situations: names of `SITUATIONS`.
        rounds: the least number of rounds in a situation.
    """
    yield about("sharing", "", ("transformers", "sentence_transformers"))
    rates: dict[tuple[str, str], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = jobs_in(Path(folder))
        for name in jobs or made:
            with ExitStack() as stack:
                sides = {who: stack.enter_context(side) for who, side in _sides(made[name])}
                for situation in situations:
                    with _beside(SITUATIONS[situation]):
                        measured = alternate(sides, made[name].work, seconds / len(situations), rounds)
                    rates[name, situation] = {}
                    for who, runs in measured.items():
                        row = _row(name, situation, who, made[name].units, runs)
                        rates[name, situation][who] = row["per_second"]
                        yield row
    for (name, situation), found in rates.items():
        yield _ratio(name, situation, found, made[name].goal if situation == _ALONE else 1.5)


def jobs_in(folder: Path) -> dict[str, Job]:
    """Return the jobs by name, and write the models that they load to a folder."""
    precision = best_precision("cpu")
    finetuning_sides.write_classifier(folder / "classifier", "minilm")
    decoding_sides.write_weights(folder / "translator", decoding.SIZES["transformer-base"])
    encoding_sides.write_encoder(folder / "encoder", _MINILM, ())
    texts = finetuning_sides.natural_texts("minilm", 1, 32)
    sentences = encoding.natural_sentences(64, _MINILM)
    sentence = decoding_sides.Work((32,), 1, 48)
    several = decoding_sides.Work((32,) * 16, 1, 24)

    def updates(config: NetworkConfig, count: int) -> Job:
        arguments = (config, precision)
        return Job(training.OurUpdates, training.MarianLoop, arguments, arguments, count, count)

    def translation(work: decoding_sides.Work, goal: float) -> Job:
        ours, theirs = (folder / "translator", "float32"), (folder / "translator",)
        return Job(decoding_sides.Ours, decoding_sides.Transformers, ours, theirs, work, work.tokens, goal)

    tuned = (folder / "classifier", precision)
    return {
        "training tiny": updates(_TINY, 2),
        "training MiniLM": Job(
            finetuning_sides.OurTuning, finetuning_sides.TransformersLoop, tuned, tuned, texts, texts.tokens
        ),
        "training Transformer-base": updates(training.SIZES["transformer-base"], 1),
        "decoding one sentence": translation(sentence, 1.2),
        "decoding 16 sentences": translation(several, 1.15),
        "reading": Job(
            encoding_sides.OurEncoder,
            encoding_sides.SentenceTransformers,
            (folder / "encoder", "float32"),
            (folder / "encoder",),
            sentences,
            len(sentences),
        ),
    }


def _sides(job: Job) -> Iterator[tuple[str, Side]]:
    for name, (variables, threads) in SETTINGS.items():
        yield name, Side(job.ours, *job.arguments, environment=machine_environment() | variables, threads=threads)
    yield "transformers", Side(job.theirs, *job.theirs_arguments)


@contextmanager
def _beside(programs: Sequence[str]) -> Iterator[None]:
    """Run programs meanwhile, with the waits of the machine; they end with this process, however it ends."""
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(os.getpid())], env=machine_environment())
        for program in programs
    ]
    try:
        time.sleep(5.0 if programs else 0.0)  # until PyTorch is loaded
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def _row(job: str, situation: str, who: str, units: int, runs: Sequence[Measurement]) -> dict[str, Any]:
    return {
        "bench": "sharing",
        "job": job,
        "beside": situation,
        "who": who,
        "per_second": float(f"{units / median_seconds(list(runs)):.3g}"),
        "per_processor_second": float(f"{units / min(run.processor_seconds for run in runs):.3g}"),
        "rounds": len(runs),
    }


def _ratio(job: str, situation: str, rates: Mapping[str, float], goal: float) -> dict[str, object]:
    """How many times as long the default takes as the best setting, and how many times as fast as others it is."""
    best = max(SETTINGS, key=lambda name: rates[name])
    return {
        "bench": "sharing",
        "job": job,
        "beside": situation,
        "time_to_that_of_the_best_setting": round(rates[best] / rates["default"], 2),
        "best": best,
        "goal": goal,
        "speed_to_long_waits": round(rates["default"] / rates["long waits"], 2),
        "speed_to_transformers": round(rates["default"] / rates["transformers"], 2),
        "threads": torch.get_num_threads(),
    }
