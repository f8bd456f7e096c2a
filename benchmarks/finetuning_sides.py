"""The contenders of the fine-tuning benchmark on the same labelled texts: Atento, and a loop of transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from atento.base.precision import threads
from atento.config import presets
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import task_of
from atento.data.batches.batch import MemoryStore, Ragged
from atento.data.batches.planning import GPU_PARTS, PlannedBatches
from atento.data.objectives.labels import KIND, Labels, network_head
from atento.model import load
from atento.models.write import write_model
from atento.networks import build_network
from atento.networks.adapters import adapt
from atento.networks.stack.stack import without_padding
from atento.training.allocator import raise_trim_threshold
from atento.training.selected_weights import trained_weights
from atento.training.step import Updater
from benchmarks.devices import SDPA, PlainLoop, attend_by

_HEADS = (HeadConfig(KIND, labels=("a", "b"), dropout=0.1),)
SIZES: dict[str, NetworkConfig] = {
    "bert-base": presets.bert_base(heads=_HEADS),
    "minilm": presets.bert_base(heads=_HEADS, d_model=384, d_ff=1536, n_layers=6),
    "tiny": presets.bert_tiny(
        heads=(HeadConfig(KIND, labels=("a", "b"), dropout=0.0),),
        vocab_size=300,
        d_model=32,
        d_ff=64,
        n_layers=3,
        dropout=0.0,
        attention={"dropout": 0.0},
    ),
}
_SETTINGS = TrainingConfig(learning_rate=2e-5, betas=(0.9, 0.999), label_smoothing=0.0)


@dataclass(frozen=True)
class Texts:
    """Labelled texts: ids with special tokens, a label (0 or 1) for each, and how many are in an update."""

    ids: list[list[int]]
    labels: list[int]
    per_update: int

    @property
    def tokens(self) -> int:
        """The number of real tokens."""
        return sum(len(ids) for ids in self.ids)


def natural_texts(size: str, updates: int, per_update: int, seed: int = 1) -> Texts:
    """Return texts of random ids for that many updates, with log-normal lengths of median 24, as sentences have."""
    rng = np.random.default_rng(seed)
    count, config = updates * per_update, SIZES[size]
    lengths = np.clip(24 * rng.lognormal(0, 0.5, count), 3, config.max_len - 2).astype(int)
    ids = [[101, *rng.integers(104, config.vocab_size, length).tolist(), 102] for length in lengths]
    return Texts(ids, rng.integers(0, 2, count).tolist(), per_update)


@torch.no_grad()
def write_classifier(folder: Path, size: str, seed: int = 1) -> None:
    """Write a BERT with a classifier and random weights, in the layout that both libraries read."""
    torch.manual_seed(seed)
    config = SIZES[size]
    network = build_network(config)
    about = {"model_type": "atento", "name": "random", "task": task_of(config), "network": network_to_dict(config)}
    write_model(folder, about, network.state_dict(), {}, layout="huggingface")


class OurTuning:
    """The updates of `atento train` with `init.train`: all, last-2 or lora."""

    def load(self, folder: Path, precision: str, train: str = "all", device: str = "cpu") -> None:
        """Load a folder of `write_classifier`; precision is float32, bfloat16 or float16."""
        raise_trim_threshold()
        torch.manual_seed(1)
        network, init = load(folder, device=device).network.requires_grad_(True), InitConfig(str(folder), train=train)
        if init.adapters is not None:
            adapt(network, init.adapters)
        self.updater = Updater(network, _SETTINGS, precision, trained_weights(network, init, 1.0))
        self.step = 0

    def run(self, texts: Texts) -> list[float]:
        """Train on each text once; return the mean loss of each update."""
        losses = []
        batches = self.batches(texts)
        for _ in range(batches.updates_per_epoch):
            sums, _ = self.updater.update(batches.parts(self.step), self.step + 1, _SETTINGS.learning_rate)
            if sums:  # else the gradient overflowed in float16
                losses.append(sums[KIND].loss / sums[KIND].targets)
            self.step += 1
        return losses

    def batches(self, texts: Texts) -> PlannedBatches:
        """Return the updates of these texts."""
        columns = {
            "ids": Ragged(texts.ids),
            "segments": Ragged([[0] * len(ids) for ids in texts.ids]),
            "label": Ragged([[label] for label in texts.labels]),
        }
        config = self.updater.network.config
        objective, seed = Labels(config, network_head(config)), _SETTINGS.seed
        store = MemoryStore(columns)
        batches = PlannedBatches(store, objective, budget=texts.per_update, seed=seed, equal_examples=True)
        if self.updater.device.type != "cpu":  # as a run has them
            half = next(self.updater.compute_network.parameters()).dtype != torch.float32
            batches.resize(GPU_PARTS._replace(padded=not (half and without_padding(config))))
        return batches


class Operations(OurTuning):
    """Counts the floating-point operations of the matrix products of the same updates."""

    def run(self, texts: Texts) -> Any:
        """Return their number over all texts."""
        with threads(1), FlopCounterMode(display=False) as counter:  # it counts in one thread only
            super().run(texts)
        return counter.get_total_flops()


class TransformersLoop:
    """The loop of the library's examples: shuffled texts, padded to the longest of a batch, AdamW, clipping."""

    other_library = True

    def __init__(self) -> None:
        import transformers

        self.library: Any = transformers

    def load(self, folder: Path, precision: str, device: str = "cpu", attention: str = SDPA) -> None:
        """Load a folder of `write_classifier`; bfloat16 and float16 use autocast."""
        torch.manual_seed(1)
        self.library.logging.set_verbosity_error()
        self.library.logging.disable_progress_bar()
        model = self.library.AutoModelForSequenceClassification.from_pretrained(folder).train()
        attend_by(model, attention)
        self.loop = PlainLoop(model, _SETTINGS.learning_rate, precision, device)
        self.epoch = 0

    def run(self, texts: Texts) -> list[float]:
        """Train on each text once; return the loss of each update."""
        order = np.random.default_rng(self.epoch).permutation(len(texts.ids))
        self.epoch += 1
        return [self._update(texts, rows) for rows in np.split(order, len(order) // texts.per_update)]

    def _update(self, texts: Texts, rows: Any) -> float:
        ids = [torch.tensor(texts.ids[row]) for row in rows.tolist()]
        inputs = {
            "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),  # (B,L)
            "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        }
        labels = torch.tensor([texts.labels[row] for row in rows.tolist()]).to(self.loop.device)
        with self.loop.autocast():
            logits = self.loop.model(**self.loop.inputs(inputs)).logits  # (B,C)
        loss = F.cross_entropy(logits.float(), labels)
        self.loop.backward(loss)
        self.loop.step()
        return float(loss.detach())
