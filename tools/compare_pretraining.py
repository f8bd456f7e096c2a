"""Pretrains a small network on a text for some processor time: `compare_pretraining.py TEXT --objective causal`.

One side of a comparison, Atento or a class of `transformers` in a plain loop (`nn.LSTM` for ELMo, which that library
has not). Both begin with the same weights and read the same examples; Atento's code computes the validation loss of
both. Prints a line of JSON for each validation. Run it with `OMP_NUM_THREADS=1`: the seconds are those of the
processor, for updates and their batches alone.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from atento.base.precision import best_precision
from atento.config.reading.loading import load_recipe
from atento.config.recipe import Recipe
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch
from atento.data.batches.planning import PlannedBatches
from atento.models.load import read_model
from atento.networks import Network, build_network, parameter_count
from atento.networks.recurrent.elmo import ELMo, ProjectedLSTM
from atento.released import release
from atento.runs.prepare import network_for, new_tokenizer, read_data, training_batches
from atento.runs.run_plan import new_shapes
from atento.tasks.split_evaluation import held_out_batches, mean_losses
from atento.training.allocator import KERNELS, KERNELS_OF_NEW_SHAPES, raise_trim_threshold, set_kernel_cache_size
from atento.training.optimizer import learning_rate
from atento.training.step import Updater

_ROWS = 8  # texts of a forward pass of the plain loop
_HELD_OUT, _VALIDATION_TOKENS = 500, 2048  # texts that are validated; target tokens of a batch of them
_LONGEST = 256  # tokens of a row
_SIZES = {"d_model": 256, "d_ff": 1024, "n_heads": 4, "n_layers": 4, "max_len": _LONGEST}
_HALVES = {
    "d_model": 256,
    "d_ff": 1024,
    "n_heads": 4,
    "n_layers": 3,
    "n_decoder_layers": 3,
    "attention": {"d_head": 64},
}
_CHARACTERS = {"d_char": 16, "filters": [[1, 32], [2, 32], [3, 64], [4, 128]], "n_highway": 1, "max_characters": 24}
_CELLS = {"d_cell": 512, "cell_clip": None, "projection_clip": None}  # `nn.LSTM` has no bounds
_IGNORED = -100  # no label, in the plain loop

OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked-next": {
        "task": "masked-language-modeling",
        "objective": "next-sentence",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 8000},
        "network": {"preset": "bert-base-pretraining", **_SIZES},
    },
    "causal": {
        "task": "language-modeling",
        "tokenizer": {"kind": "bpe", "vocab_size": 8000},
        "network": {"preset": "gpt2", **_SIZES},
    },
    "span": {
        "task": "span-corruption",
        "tokenizer": {"kind": "unigram", "vocab_size": 8000},
        "network": {"preset": "t5-small", **_HALVES},
    },
    "elmo": {
        "task": "bidirectional-language-modeling",
        "tokenizer": {"kind": "word", "vocab_size": 12000},
        "network": {"d_model": 256, "n_layers": 2, "elmo": {**_CELLS, "characters": _CHARACTERS}},
    },
    "bert": {
        "task": "masked-language-modeling",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 8000},
        "network": {"preset": "bert-base", "pooler": False, **_SIZES},
    },
    "modern": {  # ModernBERT's choices, and BERT's number of weights
        "task": "masked-language-modeling",
        "objective": {"kind": "masked", "rate": 0.3},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 8000},
        "network": {"preset": "modernbert-base", **(_SIZES | {"d_ff": 672})},
    },
}
_TRAINING = {
    "learning_rate": 1e-3,
    "warmup": 100,
    "schedule": "constant",
    "betas": [0.9, 0.999],
    "weight_decay": 0.01,
    "clip": 1.0,
    "label_smoothing": 0.0,
}


class Side(Protocol):
    """One side: updates a network, and says what it has learned."""

    about: dict[str, Any]

    def update(self, number: int) -> list[Batch]:
        """Take an update, counted from 0, and return the batches that it computed."""

    def weights(self) -> Network:
        """Return a network of Atento's with the present weights."""


class Ours:
    """Atento as it comes: batches of like lengths, mixed precision."""

    def __init__(self, network: Network, batches: PlannedBatches, recipe: Recipe) -> None:
        raise_trim_threshold()
        is_new = new_shapes(batches, recipe.training.micro_batches)
        set_kernel_cache_size(KERNELS_OF_NEW_SHAPES if is_new else KERNELS)
        chosen = recipe.training.precision
        precision = best_precision("cpu") if chosen == "auto" else chosen
        self.batches, self.training = batches, recipe.training
        self.updater = Updater(network, recipe.training, precision)
        self.about = {"precision": precision}

    def update(self, number: int) -> list[Batch]:
        """Take the planned update."""
        self.updater.compute_network.train()
        parts = list(self.batches.parts(number))
        self.updater.update(parts, number + 1, learning_rate(self.training, number + 1, 1))
        return [part.batch for part in parts]

    def weights(self) -> Network:
        """Return the network that is trained."""
        return self.updater.network


class Theirs:
    """Another's class in a plain loop: shuffled texts, a few at a time, padded to the longest; float32."""

    def __init__(self, network: Network, batches: PlannedBatches, recipe: Recipe, tokens: int) -> None:
        plain = isinstance(network, ELMo)
        self.model: Any = (PlainELMo(network) if isinstance(network, ELMo) else their_class(network)).train()
        self.network, self.batches, self.training = network, batches, recipe.training
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=recipe.training.weight_decay)
        self.shifted = recipe.task == "language-modeling"
        self.texts = max(1, round(tokens * len(batches) / tokens_of(batches)))  # of an update
        version = metadata.version("torch" if plain else "transformers")
        self.about = {"class": type(self.model).__name__, "precision": "float32", "version": version}

    def update(self, number: int) -> list[Batch]:
        """Take the next shuffled texts; losses count by the tokens that they are means of."""
        epoch, index = divmod(number, len(self.batches) // self.texts)
        shuffled = np.random.default_rng((self.training.seed, epoch)).permutation(len(self.batches))
        rows = shuffled[index * self.texts :][: self.texts]
        batches = [self.batches.batch(rows[at : at + _ROWS], epoch) for at in range(0, len(rows), _ROWS)]
        counts = [batch.counts()[next(iter(batch.labels))] for batch in batches]  # of the vocabulary
        for batch, count in zip(batches, counts):
            (self.model(**arguments(batch, self.shifted)).loss * (count / sum(counts))).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.training, number + 1, 1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return batches

    def weights(self) -> Network:
        """Read the weights into Atento's network, as `atento.load` reads them."""
        if isinstance(self.model, PlainELMo):
            return self.network  # the weights are its own
        with TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            self.network.load_state_dict(read_model(folder).weights)
        return self.network


def their_class(network: Network) -> nn.Module:
    """Return the class of `transformers` that holds a network, with its weights."""
    import transformers

    config, tensors = release(network.config, network.state_dict())
    name = config["architectures"][0]
    model: nn.Module = getattr(transformers, name)(transformers.AutoConfig.for_model(**config))
    refused = model.load_state_dict(tensors, strict=False).unexpected_keys
    if refused:
        raise SystemExit(f"{name} has no {', '.join(refused)}")
    return model


class PlainELMo(nn.Module):
    """ELMo's language model as PyTorch alone would write it: `nn.LSTM` on padded rows, reversed for the way back.

    Characters, output and all weights are those of `network`.
    """

    def __init__(self, network: ELMo) -> None:
        super().__init__()
        self.network = network
        self.dropout = nn.Dropout(network.config.dropout)
        self.ways = nn.ModuleList(
            nn.ModuleList(map(as_lstm, way)) for way in (network.forward_layers, network.backward_layers)
        )

    def forward(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> SimpleNamespace:
        """Characters (B,L,C), words of each row (B,), both neighbours' ids (B,L,2) -> `loss`, mean nats of a target."""
        words, places = self.network.characters(ids), torch.arange(ids.shape[1]).expand(ids.shape[:2])
        turned = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)  # padding stays behind
        losses = []
        for lstms, order, label in zip(self.ways, (places, turned), labels.unbind(-1)):
            states = words.gather(1, order[..., None].expand_as(words))
            for number, lstm in enumerate(lstms):
                states = self.dropout(states)
                states = lstm(states)[0] + (states if number else 0)
            logits = self.network.project(self.dropout(states))
            losses.append(nn.functional.cross_entropy(logits.flatten(0, 1), label.gather(1, order).flatten()))
        return SimpleNamespace(loss=torch.stack(losses).mean())  # both ways have as many targets


def as_lstm(layer: ProjectedLSTM) -> nn.LSTM:
    """Return PyTorch's layer on the weights of Atento's, which has one bias."""
    width, cells = layer.projection.weight.shape
    lstm = nn.LSTM(width, cells, proj_size=width, batch_first=True)
    lstm.weight_ih_l0, lstm.bias_ih_l0 = layer.input.weight, layer.input.bias
    lstm.weight_hh_l0, lstm.weight_hr_l0 = layer.recurrent.weight, layer.projection.weight
    nn.init.zeros_(lstm.bias_hh_l0.requires_grad_(False))
    return lstm


def arguments(batch: Batch, shifted: bool) -> dict[str, Tensor]:
    """Return the arguments of another's class for a batch; `shifted`: labels are the next tokens (causal)."""
    if "bidirectional" in batch.labels:
        labels = batch.labels["bidirectional"]
        labels = labels.masked_fill(labels < 0, _IGNORED)
        return {"ids": batch.inputs["ids"], "lengths": batch.lengths["ids"], "labels": labels}
    name = "source_ids" if "source_ids" in batch.inputs else "ids"
    labels = batch.labels["vocabulary"]
    given = {
        "input_ids": batch.inputs[name],
        "attention_mask": batch.real(name).long(),
        "labels": labels.masked_fill(labels < 0, _IGNORED),
    }
    if shifted:
        given["shift_labels"] = given["labels"]  # else the class shifts them, and needs one position more
    if "segment_ids" in batch.inputs:
        given["token_type_ids"] = batch.inputs["segment_ids"]
    if "next-sentence" in batch.labels:
        given["next_sentence_label"] = batch.labels["next-sentence"]
    return given


def made(given: argparse.Namespace) -> tuple[Side, dict[str, list[Batch]]]:
    """Read the text; return the side that is measured, and the batches that it is validated on, by name."""
    data = {
        "train": {"file": str(given.text.resolve()), "paragraphs": given.paragraphs},
        "held_out": _HELD_OUT,
        "max_len": _LONGEST,
    }
    written = {**OBJECTIVES[given.objective], "data": data, "training": {**_TRAINING, "seed": given.seed}}
    loaded = load_recipe(written, given.changes)
    recipe, texts = loaded.recipe, read_data(loaded.recipe, loaded.folder, note)
    tokenizer = new_tokenizer(recipe, loaded.home, texts.train, note)
    config = network_for(recipe, tokenizer, texts.train)
    batches = training_batches(recipe, config, tokenizer, texts.train, note)
    assert isinstance(batches, PlannedBatches)
    targets = max(1, round(given.tokens * batches.targets / tokens_of(batches)))  # among so many tokens of an update
    batches = PlannedBatches(batches.stores, batches.objective, budget=targets, seed=given.seed)
    assert texts.valid is not None
    valid = {}
    for name, asked in validations(given.objective, recipe).items():
        held_out = held_out_batches(replace(recipe, objective=asked), config, tokenizer, texts.valid)
        valid[name] = list(held_out.in_order(_VALIDATION_TOKENS))
    torch.manual_seed(given.seed)
    network = build_network(config)
    about = {
        "parameters": parameter_count(network),
        "texts": len(batches),
        "tokens of an epoch": tokens_of(batches),
        "tokenizer": tokenizer.fingerprint,
    }
    side: Side = (
        Ours(network, batches, recipe) if given.side == "atento" else Theirs(network, batches, recipe, given.tokens)
    )
    side.about |= about
    return side, valid


def tokens_of(batches: PlannedBatches) -> int:
    """Return the tokens of an epoch, of sources and targets."""
    lengths = batches.objective.lengths(batches.stores.first)
    return sum(int(side.sum()) for side in (lengths[:1] if lengths[0] is lengths[1] else lengths))


def validations(objective: str, recipe: Recipe) -> dict[str, tuple[ObjectiveConfig, ...]]:
    """Return what is validated, by name: the objective itself; BERT and the modern encoder are asked the same."""
    if objective in ("bert", "modern"):
        return {f"loss at {rate}": (ObjectiveConfig("masked", rate=rate),) for rate in (0.15, 0.3)}
    return {"loss": recipe.objective}


def measured(side: Side, valid: Mapping[str, list[Batch]], seconds: float, every: int = 25) -> Iterator[dict[str, Any]]:
    """Yield a row for each validation: before the first update, at the end, and between them ever more rarely.

    Every `every` updates at first, then after half as many updates again: both sides are validated after equal updates.
    """
    spent, number, real, computed, due = 0.0, 0, 0, 0, 0
    while True:
        if number == due or spent >= seconds:
            due = number + max(every, number // 2)
            yield {
                "updates": number,
                "seconds": round(spent, 1),
                **losses_of(side.weights(), valid),
                "tokens": real,
                "padding": round(1 - real / max(1, computed), 3),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        if spent >= seconds:
            return
        begun = time.process_time()
        batches = side.update(number)
        spent += time.process_time() - begun
        number += 1
        for batch in batches:
            real += sum(int(lengths.sum()) for lengths in batch.lengths.values())
            computed += sum(batch.inputs[name].shape[:2].numel() for name in batch.lengths)


def losses_of(network: Network, valid: Mapping[str, list[Batch]]) -> dict[str, float]:
    """Return the validation losses in nats a target, without dropout; of several heads their sum, and each."""
    network.eval()
    losses: dict[str, float] = {}
    for name, batches in valid.items():
        means = mean_losses(network, batches)
        losses[name] = round(sum(means.values()), 4)
        if len(means) > 1:
            losses |= {f"{name} of {head}": round(mean, 4) for head, mean in means.items()}
    return losses


def note(line: str) -> None:
    """Write a line that is no result."""
    print(line, file=sys.stderr)


def main() -> None:
    """Run one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a text file, one text a line; .gz too")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="keys of the recipe, as of `atento train`")
    parser.add_argument("--objective", choices=OBJECTIVES, required=True)
    parser.add_argument("--side", choices=("atento", "transformers"), default="atento")
    parser.add_argument("--paragraphs", action="store_true", help="the lines are wrapped: join those of a paragraph")
    parser.add_argument("--seconds", type=float, default=1200.0, help="processor time of updates and their batches")
    parser.add_argument("--tokens", type=int, default=4096, help="about how many an update reads")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    side, valid = made(given)
    torch.manual_seed(given.seed)  # of the plain loop's dropout
    about = {"objective": given.objective, "side": given.side, "text": given.text.name, "seed": given.seed}
    print(json.dumps(about | {"changes": given.changes} | side.about), flush=True)
    for row in measured(side, valid, given.seconds):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
