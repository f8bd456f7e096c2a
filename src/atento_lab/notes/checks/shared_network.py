"""The network that several rows share; the code of `atento train` trains it in a few seconds."""

import io
import json
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atento.model import Model, load
from atento.runs.train import TrainedRun, train
from atento_world import Pair, notes_sentences, write

EPOCHS, WARMUP, PEAK, WEIGHT_DECAY, VALIDATE_EVERY = 110, 40, 3e-3, 0.01, 100
LONGEST = 4  # words; the notes' sentences are included at any length

RECIPE = f"""
task: translation
data:
  train: {{source: train.en, target: train.pt}}
  valid: {{source: valid.en, target: valid.pt}}
tokenizer: {{kind: word, vocab_size: 2000}}
network: {{preset: transformer-tiny, d_model: 64, d_ff: 128, n_heads: 2, n_layers: 1}}
training:
  epochs: {EPOCHS}
  batch_tokens: 400
  learning_rate: {PEAK}
  warmup: {WARMUP}
  weight_decay: {WEIGHT_DECAY}
  precision: float32
  validate_every: {VALIDATE_EVERY}
  checkpoint_every: 1000
  log_every: 20
decoding: {{beam: 1}}
metrics: [bleu]
"""


@dataclass(frozen=True)
class Trained:
    """The model, its training pairs, unseen pairs, and the result and events of its run."""

    model: Model
    pairs: list[Pair]
    unseen: list[Pair]
    run: TrainedRun
    events: list[dict[str, Any]]


def short(pairs: list[Pair]) -> list[Pair]:
    """Return the pairs of at most `LONGEST` English words."""
    return [pair for pair in pairs if len(pair.source_words) <= LONGEST]


@cache
def trained() -> Trained:
    """Train a network of one layer on about 150 short pairs of the micro-world, including the notes' sentences."""
    pairs = list(dict.fromkeys([*notes_sentences(), *short(write("train", 2000))]))
    unseen = short(write("valid", 1000))
    with TemporaryDirectory() as name:
        folder = Path(name)
        for split, part in (("train", pairs), ("valid", unseen)):
            for suffix, side in (("en", "source"), ("pt", "target")):
                lines = "".join(f"{getattr(pair, side)}\n" for pair in part)
                (folder / f"{split}.{suffix}").write_text(lines, encoding="utf-8", newline="\n")
        (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8", newline="\n")
        with redirect_stderr(io.StringIO()):  # keeps its progress out of the output of the rows
            run = train(folder / "recipe.yaml", out=folder / "run", device="cpu")
        journal = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8")
        model = load(folder / "run", device="cpu")
    return Trained(model, pairs, unseen, run, [json.loads(line) for line in journal.splitlines()])
