"""Training throughput compared with Marian in `transformers`: same sizes and sentences, target tokens per second."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.network import NetworkConfig
from atento.config.training import TrainingConfig
from atento.data.objectives.sequence_to_sequence import HEAD, parallel
from atento.data.store import Ragged
from atento.networks import build_network
from atento.precision import best_precision
from atento.training.allocator import keep_freed_memory
from atento.training.step import Updater

SIZES = {
    "transformer-base": NetworkConfig(vocab_size=32000),
    "small": NetworkConfig(vocab_size=8000, d_model=256, d_ff=1024, n_heads=4, n_layers=3),
}
_TOKENS = 4096  # real target tokens per update


def natural_lengths(count: int, vocab_size: int, seed: int = 1) -> tuple[Ragged, Ragged]:
    """Return random ids in pairs with lengths as in caption corpora: log-normal, median 13, similar on both sides."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.lognormal(np.log(13), 0.35, count), 3, 60).astype(int)
    target = np.clip(source * rng.lognormal(0, 0.15, count), 3, 60).astype(int)
    ids = [[rng.integers(5, vocab_size, int(n)).tolist() for n in side] for side in (source, target)]
    return Ragged(ids[0]), Ragged(ids[1])


def measure_training(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield rows of tokens per second, ours and theirs, float32 and bfloat16; the last rows are the ratios."""
    best = best_precision("cpu")
    for name, config in SIZES.items():
        source, target = natural_lengths(6000, config.vocab_size)
        rows: dict[tuple[str, str], float] = {}
        rows["atento", best] = _ours(config, source, target, best, seconds)
        rows["transformers", "float32"] = _theirs(config, source, target, "float32", seconds)
        if best != "float32":
            rows["transformers", best] = _theirs(config, source, target, best, seconds)
            rows["atento", "float32"] = _ours(config, source, target, "float32", seconds)
        for (who, precision), rate in rows.items():
            yield {
                "bench": "training",
                "size": name,
                "who": who,
                "precision": precision,
                "target_tokens_per_second": round(rate),
            }
        ours = rows["atento", best]
        yield {
            "bench": "training",
            "size": name,
            "ratio_to_transformers_as_it_comes": round(ours / rows["transformers", "float32"], 2),
            "ratio_at_the_same_precision": round(ours / rows["transformers", best], 2),
        }


def _rate(update: Callable[[int], int], seconds: float) -> float:
    """Return the real target tokens per second of repeated updates, after a warm-up."""
    update(0)
    start, tokens, number = time.perf_counter(), 0, 1
    while time.perf_counter() - start < seconds:
        tokens += update(number)
        number += 1
    return tokens / (time.perf_counter() - start)


def _ours(config: NetworkConfig, source: Ragged, target: Ragged, precision: str, seconds: float) -> float:
    keep_freed_memory()
    torch.manual_seed(1)
    network = build_network(config)
    updater = Updater(network, TrainingConfig(learning_rate=1e-4), precision)
    batches = parallel(source, target, budget=_TOKENS, seed=1, pad_id=0, start_id=2, eos_id=3)
    return _rate(lambda number: updater.update(batches.parts(number), number + 1, 1e-4)[0][HEAD].targets, seconds)


def _theirs(config: NetworkConfig, source: Ragged, target: Ragged, precision: str, seconds: float) -> float:
    """Measure the usual loop: shuffled sentences, padded to the longest of the batch, AdamW, label smoothing."""
    torch.manual_seed(1)
    model = marian(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    permutation = np.random.default_rng(1).permutation(len(source))
    size = pairs_of(target, _TOKENS)

    def update(number: int) -> int:
        rows = permutation[(number * size) % (len(permutation) - size) :][:size].astype(np.int64)
        inputs = padded(source, target, rows)
        marian_loss(model, inputs, precision).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return int((inputs["labels"] >= 0).sum())

    return _rate(update, seconds)


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
    """Return the mean loss of the real targets, with label smoothing; in bfloat16 by autocast."""
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(**inputs).logits
    labels = inputs["labels"].flatten()
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, label_smoothing=0.1)
