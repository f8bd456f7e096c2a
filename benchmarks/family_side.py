"""A program that `families` runs: one contender of a comparison, which prints its time and peak memory as JSON."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from atento.config import presets
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches import batch as batches
from atento.networks import build_network
from atento.released import FAMILIES
from atento.training.allocator import raise_trim_threshold
from atento.training.step import Updater
from benchmarks.devices import PlainLoop

_CLASSES = HeadConfig("classification", labels=("a", "b"))
_DROPOUT: dict[str, object] = {"dropout": 0.1, "attention": {"dropout": 0.1}}
# the sizes of the released models with the same dropout; Llama's block at GPT-2's size
CASES: dict[str, NetworkConfig] = {
    "bert": presets.bert_base(heads=(_CLASSES,)),
    "roberta": presets.roberta_base(heads=(HeadConfig("masked-language-model"),), pooler=False),
    "gpt2": presets.gpt2(),
    "llama": presets.llama3_8b(
        d_model=768,
        d_ff=2048,
        n_heads=12,
        n_layers=12,
        vocab_size=50257,
        max_len=1024,
        attention={"n_kv_heads": 4},
        ids={"pad": 0, "bos": 1, "eos": 2, "unk": 0, "start": 1},
    ),
    "t5": presets.t5_small(),
    "marian": presets.marian(attention={"dropout": 0.1}),
    "bart": presets.bart_base(attention={"dropout": 0.1}),
}
SHAPES = {"natural": (24, 0.5), "dense": (128, 0.0)}  # median length and spread of 16 or 8 rows


@dataclass
class Batch:
    """ids (B,L) with their token mask; `decoder_ids` (B,T) is the input of a decoder; labels (B,), (B,L) or (B,T)."""

    ids: Any
    token_mask: Any
    decoder_ids: Any
    labels: Any

    @property
    def targets(self) -> int:
        """The number of real targets."""
        return int((self.labels >= 0).sum())

    def to(self, device: object) -> "Batch":
        """Return the batch on another device."""
        return Batch(*(getattr(self, part.name).to(device) for part in fields(self)))


def batch_of(config: NetworkConfig, shape: str) -> Batch:
    """Return a random batch, the same for both contenders."""
    median, spread = SHAPES[shape]
    rng = np.random.default_rng(0)
    count = 16 if spread else 8  # rows
    lengths = np.clip(median * rng.lognormal(0, spread, count), 4, 128).astype(int)  # (B,)
    ids = torch.from_numpy(rng.integers(300, config.vocab_size - 200, (count, lengths.max())))  # (B,L)
    token_mask = torch.arange(lengths.max()) < torch.from_numpy(lengths)[:, None]  # (B,L), True = a real token
    ids = torch.where(token_mask, ids, torch.full_like(ids, config.pad_id))
    decoder_ids = ids.roll(1, 1)  # shifted to the right by one
    if config.architecture == "encoder" and config.heads[0].kind == "classification":
        labels = torch.arange(count) % 2  # (B,)
    elif config.architecture == "encoder":  # every seventh token is a target, about the 15 % of masked language models
        labels = torch.where(token_mask & (torch.arange(ids.shape[1]) % 7 == 0), ids, torch.full_like(ids, -1))
    else:
        labels = torch.where(token_mask, ids, torch.full_like(ids, -1))  # (B,L)
    return Batch(ids, token_mask, decoder_ids, labels)


def laid_out(config: NetworkConfig, batch: Batch) -> batches.Batch:
    """Return the batch in the form of our updates."""
    if config.architecture == "encoder-decoder":
        inputs = {"source_ids": batch.ids, "target_ids": batch.decoder_ids, "source_token_mask": batch.token_mask}
    else:
        inputs = {
            "ids": batch.decoder_ids if config.architecture == "decoder" else batch.ids,
            "token_mask": batch.token_mask,
        }
    head = "vocabulary" if batch.labels.dim() == 2 else config.heads[0].kind
    return batches.Batch(inputs, {head: batch.labels})


def ours(config: NetworkConfig, batch: Batch, work: str, precision: str) -> Callable[[], object]:
    """Return a function for one forward pass or one update."""
    raise_trim_threshold()
    network = build_network(config)
    if work == "training":
        updater = Updater(network, TrainingConfig(label_smoothing=0.0), precision)
        part = batches.Part(laid_out(config, batch))
        return lambda: updater.update([part], 1, 1e-5)
    network = network.eval().requires_grad_(False).to(getattr(torch, precision))

    def forward() -> object:
        with torch.inference_mode():
            if config.architecture == "encoder-decoder":
                return network(batch.ids, batch.decoder_ids, source_token_mask=batch.token_mask)
            return network(batch.ids, token_mask=batch.token_mask)

    return forward


def their_network(config: NetworkConfig) -> Any:
    """A network of the class of `transformers` for the family, of the configuration that we write for ours."""
    import transformers

    data = FAMILIES[config.family].write(config)
    return getattr(transformers, data["architectures"][0])(transformers.AutoConfig.for_model(**data))


def theirs(config: NetworkConfig, batch: Batch, work: str, precision: str) -> Callable[[], object]:
    """Return the same for `transformers`. Training in bfloat16 uses autocast."""
    network = their_network(config)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.token_mask.long()}
    if config.architecture == "encoder-decoder":
        inputs["decoder_input_ids"] = batch.decoder_ids
    elif config.architecture == "decoder":
        inputs["input_ids"] = batch.decoder_ids
    if work == "forward":
        network = network.eval().requires_grad_(False).to(getattr(torch, precision))

        def forward() -> object:
            with torch.inference_mode():
                return network(**inputs)

        return forward
    network.train()
    loop = PlainLoop(network, 1e-5, precision)

    def update() -> None:
        with loop.autocast():
            logits = network(**inputs, **({"use_cache": False} if config.architecture != "encoder" else {})).logits
        loop.backward(F.cross_entropy(logits.float().flatten(0, -2), batch.labels.flatten(), ignore_index=-1))
        loop.step()

    return update


def main(who: str, family: str, shape: str, work: str, precision: str, seconds: float, threads: int) -> None:
    """Measure and print {"milliseconds": the median, "peak_mib": the process's peak}."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = changed(CASES[family], _DROPOUT)
    batch = batch_of(config, shape)
    run = (ours if who == "atento" else theirs)(config, batch, work, precision)
    times: list[float] = []
    for _ in range(2):  # warm-up
        run()
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        run_start = time.perf_counter()
        run()
        times.append(time.perf_counter() - run_start)
    peak = next(
        line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmHWM")
    )
    row = {"milliseconds": round(1e3 * float(np.median(times)), 2), "peak_mib": int(peak.split()[1]) // 1024}
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    who, family, shape, work, precision, seconds, threads = sys.argv[1:]
    main(who, family, shape, work, precision, float(seconds), int(threads))
