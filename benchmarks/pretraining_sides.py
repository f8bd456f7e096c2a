"""The contenders of the pretraining benchmark on the same documents: Atento, and a plain loop with `transformers`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged
from atento.data.batches.masking import Masking
from atento.data.batches.planning import GPU_PARTS, PlannedBatches
from atento.data.objectives.causal import Causal, PackedCausal, packed
from atento.data.objectives.denoising import SpanCorruption
from atento.data.objectives.masked import Masked
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.networks import build_network
from atento.networks.stack.stack import without_padding
from atento.training.allocator import raise_trim_threshold
from atento.training.step import Updater
from benchmarks.devices import SDPA, PlainLoop, attend_by
from benchmarks.family_side import their_network

_DOCUMENTS = 1500
_LONGEST = 512  # tokens of a row
_PEER_ROWS = 8  # documents of a forward pass of the plain loop, padded to the longest
_HEAD = (HeadConfig("masked-language-model"),)
_SMALL: dict[str, object] = {"vocab_size": 500, "d_model": 32, "d_ff": 64, "n_heads": 4, "n_layers": 2}
SIZES: dict[str, dict[str, NetworkConfig]] = {
    "base": {"bert": presets.bert_base(pooler=False, heads=_HEAD), "gpt2": presets.gpt2(), "t5": presets.t5_small()},
    "tiny": {
        "bert": presets.bert_base(pooler=False, heads=_HEAD, **_SMALL),
        "gpt2": presets.gpt2(**_SMALL, ids={"bos": 499, "eos": 499, "start": 499}),
        "t5": presets.t5_small(**_SMALL, n_decoder_layers=2, attention={"d_head": 8}),
    },
}
OURS: dict[str, tuple[str, ...]] = {"bert": ("",), "gpt2": ("", "packed"), "t5": ("",)}
_SENTINELS = 100
_MASK, _BOS, _EOS = 4, 2, 3  # ids that stand for these tokens, in every size


@dataclass(frozen=True)
class Work:
    """An update: real tokens read, tokens computed with padding, and floating-point operations of real tokens.

    The operations are those of the products with weights, three times the forward pass, on real tokens and targets
    alone: attention is left out, so the share of the matrix rate is a lower bound.
    """

    real: int
    computed: int
    flops: float


def documents(vocab_size: int, seed: int = 1) -> list[list[int]]:
    """Return documents of random ids with log-normal lengths of median 80, 8 to 512 tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(80 * rng.lognormal(0, 0.8, _DOCUMENTS), 8, _LONGEST - 2).astype(int)
    return [rng.integers(5, vocab_size - _SENTINELS, int(length)).tolist() for length in lengths]


def batches_of(kind: str, config: NetworkConfig, packing: str, tokens: int) -> PlannedBatches:
    """Return our batches of the documents, about `tokens` real tokens an update."""
    texts = documents(config.vocab_size)
    if kind == "bert":
        store = MemoryStore({"ids": Ragged([[_BOS, *text, _EOS] for text in texts])})
        masking = Masking(_MASK, np.arange(5, config.vocab_size))
        return PlannedBatches(store, Masked(0, masking), budget=max(1, round(0.15 * tokens)), seed=1)
    if kind == "gpt2" and packing:
        store = packed([[_BOS, *text, _EOS] for text in texts], _LONGEST)
        return PlannedBatches(store, PackedCausal(0, isolated=True), budget=tokens, seed=1)
    if kind == "gpt2":
        store = MemoryStore({"ids": Ragged([[_BOS, *text, _EOS] for text in texts])})
        return PlannedBatches(store, Causal(0), budget=tokens, seed=1)
    sentinels = tuple(range(config.vocab_size - _SENTINELS, config.vocab_size))
    objective = SpanCorruption(SequenceToSequence(0, 0, 1), sentinels)
    store = MemoryStore({"ids": Ragged(texts)})
    sources, targets = objective.lengths(store)
    share = float(targets.sum() / (sources.sum() + targets.sum()))  # of the tokens that are targets
    return PlannedBatches(store, objective, budget=max(1, round(share * tokens)), seed=1)


def flops_of(weights: Mapping[str, int], source: int, target: int, predictions: int) -> float:
    """Return the operations of an update: six for each weight and token that it is applied to."""
    return 6.0 * (weights["encoder"] * source + weights["decoder"] * target + weights["head"] * predictions)


def weights_of(network: nn.Module, config: NetworkConfig) -> dict[str, int]:
    """Return the number of weights in the matrices of the encoder, of the decoder, and of the output layer."""
    counts = {"encoder": 0, "decoder": 0, "head": config.vocab_size * config.d_model}
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2 and ("stack." in name or "blocks" in name):
            counts["decoder" if name.startswith("decoder") else "encoder"] += parameter.numel()
    return counts


class Ours:
    """Batches of like lengths by token budget, or packed rows; one update a run."""

    def load(self, kind: str, size: str, precision: str, packing: str, tokens: int, device: str = "cpu") -> None:
        """Make the network and its batches."""
        raise_trim_threshold()
        torch.manual_seed(1)
        config = SIZES[size][kind]
        network = build_network(config)
        self.weights = weights_of(network, config)
        settings = TrainingConfig(learning_rate=1e-4, label_smoothing=0.0)
        self.updater = Updater(network.to(device), settings, precision)
        self.batches = batches_of(kind, config, packing, tokens)
        if device != "cpu":  # as a run has them
            rows = precision != "float32" and without_padding(config) and not config.reads_source
            self.batches.resize(GPU_PARTS._replace(tokens=2 * GPU_PARTS.tokens, padded=not rows))
        self.update = 0

    def run(self, work: object) -> Work:
        """Take the next update."""
        parts = list(self.batches.parts(self.update))
        self.update += 1
        self.updater.update(parts, self.update, 1e-4)
        return _sum([_work(part.batch, self.weights) for part in parts])


def _work(batch: Batch, weights: Mapping[str, int]) -> Work:
    names = [name for name in batch.inputs if name == "ids" or name in ("source_ids", "target_ids")]
    real = {name: int(batch.real(name).sum()) for name in names}  # tokens without padding
    computed = sum(batch.inputs[name].numel() for name in names)  # with padding
    source, target = real.get("source_ids", real.get("ids", 0)), real.get("target_ids", 0)
    return Work(sum(real.values()), computed, flops_of(weights, source, target, batch.targets))


def _sum(parts: list[Work]) -> Work:
    return Work(
        sum(part.real for part in parts), sum(part.computed for part in parts), sum(part.flops for part in parts)
    )


class Theirs:
    """The usual loop: shuffled documents padded to the longest of a batch, AdamW; one update a run."""

    other_library = True

    def __init__(self) -> None:
        import transformers  # noqa: F401  its memory is not that of the measurement

    def load(
        self, kind: str, size: str, precision: str, tokens: int, device: str = "cpu", attention: str = SDPA
    ) -> None:
        """Make the model and its documents."""
        torch.manual_seed(1)
        config = SIZES[size][kind]
        self.kind, self.tokens = kind, tokens
        self.vocab_size = config.vocab_size
        model = their_network(config).train()
        attend_by(model, attention)
        network = build_network(config)
        self.weights = weights_of(network, config)
        del network
        self.loop = PlainLoop(model, 1e-4, precision, device)
        self.texts = documents(config.vocab_size)
        self.span_corruption = SpanCorruption(
            SequenceToSequence(0, 0, 1), tuple(range(config.vocab_size - _SENTINELS, config.vocab_size))
        )
        self.shuffled = np.random.default_rng(1).permutation(len(self.texts))
        self.at = 0
        self._inputs = {"bert": self._bert, "gpt2": self._gpt2, "t5": self._t5}

    def run(self, work: object) -> Work:
        """Take the next update: batches of a few documents until it has about as many real tokens as ours."""
        parts: list[Work] = []
        while sum(part.real for part in parts) < self.tokens:
            rows = [self.texts[self.shuffled[(self.at + i) % len(self.texts)]] for i in range(_PEER_ROWS)]
            self.at += _PEER_ROWS
            inputs, done = self._inputs[self.kind](rows)
            with self.loop.autocast():
                loss = self.loop.model(**self.loop.inputs(inputs)).loss
            self.loop.backward(loss)
            parts.append(done)
        self.loop.step()
        return _sum(parts)

    def _bert(self, rows: list[list[int]]) -> tuple[dict[str, Tensor], Work]:
        ids = _padded([[_BOS, *row, _EOS] for row in rows], 0)  # (B,L)
        labels, real = torch.full_like(ids, -100), _real(rows, 2)
        chosen = real & (torch.rand(ids.shape) < 0.15) & (ids > _MASK)  # 15 % of the tokens, as in BERT
        labels[chosen] = ids[chosen]
        treatment = torch.rand(ids.shape)
        ids[chosen & (treatment < 0.8)] = _MASK  # 80 % of them are masked
        replaced = chosen & (treatment > 0.9)  # 10 % are replaced, the others stay
        ids[replaced] = torch.randint(5, self.vocab_size, (int(replaced.sum()),))
        count = int(real.sum())  # real tokens
        done = Work(count, ids.numel(), flops_of(self.weights, count, 0, int(chosen.sum())))
        return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}, done

    def _gpt2(self, rows: list[list[int]]) -> tuple[dict[str, Tensor], Work]:
        ids, real = _padded([[_BOS, *row, _EOS] for row in rows], 0), _real(rows, 2)
        count = int(real.sum()) - len(rows)  # the last token of a text is only predicted
        done = Work(count, ids.numel(), flops_of(self.weights, count, 0, count))
        labels = torch.where(real, ids, -100)
        return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}, done

    def _t5(self, rows: list[list[int]]) -> tuple[dict[str, Tensor], Work]:
        store = MemoryStore({"ids": Ragged(rows)})
        batch = self.span_corruption.batch(store, np.arange(len(rows)), Draw(1, self.at))
        labels = batch.labels["vocabulary"]
        done = _work(batch, self.weights)
        inputs = {
            "input_ids": batch.inputs["source_ids"],
            "attention_mask": batch.real("source_ids").long(),
            "labels": labels.masked_fill(labels < 0, -100),
        }
        return inputs, done


def _padded(rows: list[list[int]], pad_id: int) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)


def _real(rows: list[list[int]], special: int) -> Tensor:
    lengths = torch.tensor([len(row) + special for row in rows])
    return torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
