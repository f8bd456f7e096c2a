"""COMET and COMET-Kiwi: a number from the vectors of output, source and reference by a small network on an encoder.

Paper: Rei et al. 2020, COMET: A Neural Framework for MT Evaluation; Rei et al. 2022, CometKiwi.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atento.base.errors import ModelError, reason_of
from atento.base.limits import read_plain_text
from atento.data.batches.special_tokens import special_tokens_of
from atento.metrics.ngrams import Floats
from atento.models.model_folder import find_model
from atento.networks.stack.encoder import Encoder
from atento.storage.tensorfile import TensorFiles
from atento.tasks.metric_vectors import TextReader, Vectors
from atento.tasks.task_model import tokenizer_of

SETTINGS, WEIGHTS = "metric.json", "metric.safetensors"  # files of the head, beside those of the encoder
HPARAMS = "hparams.yaml"  # of a folder as COMET writes it
ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}
POOLINGS = ("avg", "cls", "max")
_TINY = 1e-12


class CometReader(TextReader):
    """An encoder with the head of a metric: its layers are mixed, pooled, and read by a feed-forward network.

    Attributes:
        mix: (N+1,) the weight of the embeddings and each layer.
    """

    batch_tokens = 1024  # the vectors of all layers are in memory
    metric, parts = "", 0  # the name of the metric, and of how many vectors its network reads the concatenation

    def __init__(self, folder: str, device: str = "auto") -> None:
        """As `TextReader`. Raises ModelError: the folder has no head of this metric."""
        if (Path(folder) / HPARAMS).exists():
            raise ModelError(
                f"{folder} is as COMET writes it: `atento convert {folder} --to atento --out DIR` reads it"
            )
        path = find_model(folder)
        if not (path / SETTINGS).exists():
            raise ModelError(
                f"{folder} has no head of {self.metric}: {SETTINGS} is missing, which `atento convert` writes"
            )
        try:
            self.head = json.loads(read_plain_text(path / SETTINGS))
            named = {self.head["activation"], self.head["final"]} - {None}
            known = self.head["pooling"] in POOLINGS and named <= {*ACTIVATIONS} and self.head["layer_norm"] in (0, 1)
            metric = self.head["metric"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path / SETTINGS} is damaged: {reason_of(error)}") from None
        if metric != self.metric:
            raise ModelError(f"{folder} has the head of {metric}, not of {self.metric}")
        super().__init__(folder, device)
        network = self.model.network
        with TensorFiles(path, WEIGHTS) as files:
            tensors = {name: files.read(name).float().to(next(network.parameters()).device) for name in files.entries}
        self.mix = tensors.pop("mix", torch.zeros(0))
        self.layers = [(tensors[f"{n}.weight"], tensors[f"{n}.bias"]) for n in range(len(tensors) // 2)]
        widths = [self.parts * self.config.d_model, *(len(bias) for _, bias in self.layers)]
        shapes = [tuple(weight.shape) for weight, _ in self.layers]
        if (
            not known
            or not isinstance(network, Encoder)
            or shapes != [(out, width) for width, out in pairwise(widths)]
            or widths[-1] != 1
            or len(self.mix) != self.config.n_layers + 1
        ):
            raise ModelError(
                f"{path / WEIGHTS} is not the head of {self.metric} on this encoder, of width {self.config.d_model}"
            )
        self.network = network
        limit = self.config.position_limit
        self.longest = None if limit is None else limit - 2  # as COMET cuts texts

    def ids(self, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
        """As in `TextReader`."""
        return super().ids(texts, self.longest)

    def read(self, ids: Tensor, token_mask: Tensor) -> list[Vectors]:
        """The vector (D,) of each text."""
        layers: list[Tensor] = []
        network = self.network
        network.stack(
            network.inputs(network.embedding(ids), token_mask=token_mask), token_mask=token_mask, layers=layers
        )
        real = token_mask[..., None].float()  # (B,L,1)
        mixed = torch.zeros_like(layers[0], dtype=torch.float32)  # (B,L,D)
        for weight, layer in zip(self.mix.tolist(), layers):
            if not weight:
                continue
            layer = layer.float()
            if self.head["layer_norm"]:  # of mean 0 and variance 1 over the real tokens of each text
                count = real.sum(dim=(1, 2), keepdim=True) * layer.shape[-1]
                mean = (layer * real).sum(dim=(1, 2), keepdim=True) / count
                variance = (((layer - mean) * real) ** 2).sum(dim=(1, 2), keepdim=True) / count
                layer = (layer - mean) / (variance + _TINY).sqrt()
            mixed += weight * layer
        if self.head["pooling"] == "cls":
            pooled = mixed[:, 0]
        elif self.head["pooling"] == "max":
            pooled = mixed.masked_fill(real == 0, -torch.inf).amax(dim=1)
        else:
            pooled = (mixed * real).sum(dim=1) / real.sum(dim=1)
        return list(pooled.cpu().numpy())

    @torch.inference_mode()
    def estimate(self, vectors: Vectors) -> Floats:
        """The scores (N,) of what the network reads, (N,parts·D)."""
        x = torch.from_numpy(vectors).to(self.mix.device)
        for number, (weight, bias) in enumerate(self.layers, 1):
            x = torch.nn.functional.linear(x, weight, bias)
            name = self.head["activation"] if number < len(self.layers) else self.head["final"]
            x = x if name is None else ACTIVATIONS[name](x)
        return x[:, 0].cpu().numpy().astype(np.float64)


class Comet(CometReader):
    """COMET: the network reads output, reference, their product and distance, and those of output and source."""

    metric, parts = "comet", 6

    def rows(self, outputs: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]) -> Floats:
        """The score of each output, (N,1)."""
        vectors = self.vectors([*outputs, *references[0], *sources])
        h, r, s = (np.stack([vectors[text] for text in texts]) for texts in (outputs, references[0], sources))
        return self.estimate(np.hstack([h, r, h * r, abs(h - r), h * s, abs(h - s)]))[:, None]

    def utilities(self, candidates: list[str], evidence: list[str], source: str) -> Floats:
        """The score of each candidate with each piece of evidence as the reference, (N,M)."""
        ours = [candidate for candidate in candidates for _ in evidence]
        scores = self.rows(ours, [evidence * len(candidates)], [source] * len(ours))
        return scores.reshape(-1, len(evidence))


class CometKiwi(CometReader):
    """COMET-Kiwi, without reference: output and source are read as one text."""

    metric, parts = "comet-kiwi", 1

    def rows(self, outputs: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]) -> Floats:
        """The score of each output, (N,1)."""
        pairs = list(dict.fromkeys(zip(outputs, sources)))
        template = special_tokens_of(self.config, tokenizer_of(self.model), self.model.config.get("template"))
        before, behind = template.ends()
        sides = [[ids[before : len(ids) - behind] for ids in self.ids(side)] for side in zip(*pairs)]
        # cut behind, as the authors' program does
        rows = [template.apply(ours, theirs)[0][: self.config.position_limit] for ours, theirs in zip(*sides)]
        scores = dict(zip(pairs, self.estimate(np.stack(self.read_all(rows)))))  # each different pair once
        return np.array([[scores[pair]] for pair in zip(outputs, sources)])

    def utilities(self, candidates: list[str], evidence: list[str], source: str) -> Floats:
        """The score of each candidate, whatever the evidence, (N,M)."""
        return self.rows(candidates, (), [source] * len(candidates)).repeat(len(evidence), axis=1)
