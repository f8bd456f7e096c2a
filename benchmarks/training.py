"""Training throughput compared with Marian in `transformers`: same sizes and sentences, target tokens per second."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.batches.planning import GPU_PARTS
from atento.data.objectives.sequence_to_sequence import HEAD, parallel
from atento.networks import build_network
from atento.training.allocator import raise_trim_threshold
from atento.training.step import Updater
from benchmarks.devices import (
    SDPA,
    PlainLoop,
    attend_by,
    autocast,
    device_of,
    forget_peak,
    peak_row,
    peers_of,
    precisions_of,
    wait,
)

SIZES = {
    "transformer-base": NetworkConfig(vocab_size=32000),
    "small": NetworkConfig(vocab_size=8000, d_model=256, d_ff=1024, n_heads=4, n_layers=3),
    "tiny": NetworkConfig(vocab_size=200, d_model=32, d_ff=64, n_heads=4, n_layers=1),
}
_TOKENS = 4096  # real target tokens per update
_SENTENCES = 6000


def natural_lengths(count: int, vocab_size: int, seed: int = 1) -> tuple[Ragged, Ragged]:
    """Return random ids in pairs with lengths as in caption corpora: log-normal, median 13, similar on both sides."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.lognormal(np.log(13), 0.35, count), 3, 60).astype(int)
    target = np.clip(source * rng.lognormal(0, 0.15, count), 3, 60).astype(int)
    ids = [[rng.integers(5, vocab_size, int(n)).tolist() for n in side] for side in (source, target)]
    return Ragged(ids[0]), Ragged(ids[1])


def measure_training(seconds: float, *, device: str = "cpu", size: str | None = None) -> Iterator[dict[str, object]]:
    """Yield rows of tokens per second, ours and theirs, by precision; the last rows are the ratios.

    Args:
        seconds: how long each contender is measured.
        device: "auto", "cpu" or "cuda".
        size: a name of `SIZES`; None: transformer-base, then small.
    """
    device = device_of(device)
    best, *others = precisions_of(device)
    for name in ("transformer-base", "small") if size is None else (size,):
        rates: dict[tuple[str, str], float] = {}
        for precision in (best, *others):
            for who, attention in [("atento", ""), *peers_of(device, precision)]:
                row: dict[str, object] = {"bench": "training", "size": name, "who": who, "precision": precision}
                contender = MarianLoop(attention) if attention else OurUpdates()
                forget_peak()
                try:
                    contender.load(SIZES[name], precision, device)
                except CapabilityError as error:
                    yield row | {"skipped": str(error)}
                    continue
                rates[who, precision] = _rate(contender, seconds)
                yield row | {"target_tokens_per_second": round(rates[who, precision])} | peak_row()
                del contender
        yield {
            "bench": "training",
            "size": name,
            "ratio_to_transformers_as_it_comes": round(rates["atento", best] / rates["transformers", "float32"], 2),
            "ratio_at_the_same_precision": round(rates["atento", best] / rates["transformers", best], 2),
        }
        for (who, precision), rate in rates.items():
            if device != "cpu" and who != "atento":
                ratio = round(rates["atento", precision] / rate, 2)
                yield {"bench": "training", "size": name, "ratio_to": f"{who} {precision}", "ratio": ratio}


def _rate(who: "OurUpdates | MarianLoop", seconds: float) -> float:
    """Return the real target tokens per second of repeated updates, after a warm-up."""
    who.run(1)
    wait()
    start, tokens = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        tokens += who.run(1)
    wait()
    return tokens / (time.perf_counter() - start)


class OurUpdates:
    """The updates of `atento train` for a translator of random sentences with natural lengths."""

    def load(self, config: NetworkConfig, precision: str, device: str = "cpu") -> None:
        """Build a network with random weights; precision is float32, bfloat16 or float16."""
        raise_trim_threshold()
        torch.manual_seed(1)
        self.updater = Updater(build_network(config).to(device), TrainingConfig(learning_rate=1e-4), precision)
        source, target = natural_lengths(_SENTENCES, config.vocab_size)
        self.batches = parallel(source, target, budget=_TOKENS, seed=1, pad_id=0, start_id=2, eos_id=3)
        if device != "cpu":  # as a run has them
            self.batches.resize(GPU_PARTS._replace(tokens=2 * GPU_PARTS.tokens))
        self.number = 0

    def run(self, updates: int) -> int:
        """Train for so many updates; return their real target tokens."""
        tokens = 0
        for _ in range(updates):
            parts = self.batches.parts(self.number)
            sums, _ = self.updater.update(parts, self.number + 1, 1e-4)
            tokens += sums[HEAD].targets if sums else 0  # none: a skipped update, whose gradient overflowed
            self.number += 1
        return tokens


class MarianLoop:
    """The usual loop: shuffled sentences, padded to the longest of the batch, AdamW, label smoothing, clipping."""

    other_library = True

    def __init__(self, attention: str = SDPA) -> None:
        self.attention = attention

    def load(self, config: NetworkConfig, precision: str, device: str = "cpu") -> None:
        """Build Marian with random weights; bfloat16 and float16 use autocast."""
        torch.manual_seed(1)
        model = marian(config)
        attend_by(model, self.attention)
        self.loop = PlainLoop(model, 1e-4, precision, device)
        self.source, self.target = natural_lengths(_SENTENCES, config.vocab_size)
        self.permutation = np.random.default_rng(1).permutation(len(self.source))
        self.size = pairs_of(self.target, _TOKENS)
        self.number = 0

    def run(self, updates: int) -> int:
        """Train for so many updates; return their real target tokens."""
        return sum(self._update() for _ in range(updates))

    def _update(self) -> int:
        at = (self.number * self.size) % (len(self.permutation) - self.size)
        self.number += 1
        inputs = padded(self.source, self.target, self.permutation[at : at + self.size].astype(np.int64))
        self.loop.backward(marian_loss(self.loop.model, self.loop.inputs(inputs), self.loop.precision))
        self.loop.step()
        return int((inputs["labels"] >= 0).sum())


def marian(config: NetworkConfig) -> Any:
    """Return Marian of `transformers` with the sizes of a network and random weights."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.n_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.n_heads,
            decoder_attention_heads=config.n_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            dropout=config.dropout,
            attention_dropout=config.attention.dropout,
            activation_dropout=config.feed_forward.dropout,
            max_position_embeddings=config.max_len,
            scale_embedding=True,
            pad_token_id=0,
            eos_token_id=3,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
        )
    ).train()


def pairs_of(target: Ragged, tokens: int) -> int:
    """Return the number of pairs with about so many real target tokens."""
    return max(1, round(tokens / float(target.lengths.mean() + 1)))


def padded(source: Ragged, target: Ragged, rows: NDArray[np.int64]) -> dict[str, Tensor]:
    """Return some pairs as Marian reads them, padded to the longest: ids, mask and labels, each (rows, length)."""
    ids, labels = source.padded(rows, 0, after=3), target.padded(rows, -100, after=3)
    token_mask = torch.from_numpy(np.arange(ids.shape[1]) < (source.lengths[rows] + 1)[:, None])
    return {"input_ids": ids, "attention_mask": token_mask.long(), "labels": labels}


def marian_loss(model: Any, inputs: Mapping[str, Tensor], precision: str) -> Tensor:
    """Return the mean loss of the real targets, with label smoothing; in 16 bits by autocast."""
    with autocast(inputs["labels"].device.type, precision):
        logits = model(**inputs).logits
    labels = inputs["labels"].flatten()
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, label_smoothing=0.1)
