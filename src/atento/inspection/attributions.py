"""Attributions: how much of a number that a network computes comes from each group (word) that it reads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atento.attention.observe import observe
from atento.base.errors import CapabilityError
from atento.networks.int8_projection import Int8Table
from atento.networks.interface import Network
from atento.networks.layers import TokenEmbedding
from atento.networks.recurrent.elmo import CharacterCNN

Inputs = Mapping[str, Tensor]
Scores = NDArray[np.float64]
_TOKENS, _LOGITS = 1024, 1 << 24  # computed at a time: tokens read (a gradient keeps every layer), numbers written
_STEPS, _MOST_STEPS = 32, 512  # of integrated gradients: the first trial, the last one
_TOLERANCE = 0.01  # of the largest total: a larger error of the integral takes twice the steps


@dataclass(frozen=True)
class AttributedInput:
    """One row that a network reads, and the O numbers that are explained."""

    # tensors of one row by name, as `values` takes them: ids (1,L) or characters (1,L,C), and others
    inputs: dict[str, Tensor]
    # for each input of ids, the group of each of its columns: numbers from 0, the same for all inputs
    groups: dict[str, list[int]]
    fixed: list[bool]  # whether each group is special: it is in the baseline, and never left out
    values: Callable[[Network, Inputs], Tensor]  # (network, inputs of B rows) -> (B,O)
    # for each input of ids, (O,L): the weights with which each number reads the last layer's vectors at its columns; of
    # the inputs of decoders, where there are any
    reads: dict[str, Scores]
    # inputs with the columns of an input of ids -> that input, such as segments
    follows: dict[str, str] = field(default_factory=dict)
    # inputs (1,P) of columns, whose vectors are read -> the input of ids that they are columns of
    positions: dict[str, str] = field(default_factory=dict)
    # whether a number is read at the words themselves (tags, answers), which cannot be removed then
    own_words: bool = False
    width: int = 1  # how many numbers the network writes for a row at a time, for the limit of memory

    @property
    def rows_at_a_time(self) -> int:
        """How many rows are computed at a time."""
        tokens = sum(self.inputs[name].shape[1] for name in self.groups)
        return max(1, min(_TOKENS // max(1, tokens), _LOGITS // max(1, self.width)))  # by both limits, at least one row

    def by_group(self, columns: Mapping[str, Scores]) -> Scores:
        """The sums of scores (O,L) of columns over the columns of each group: (O,G)."""
        count = len(next(iter(columns.values())))  # O
        summed = np.zeros((count, len(self.fixed)))  # (O,G)
        for name, scores in columns.items():
            for column, group in enumerate(self.groups[name]):
                summed[:, group] += scores[:, column]  # columns of a word add up
        return summed

    def is_fixed(self, name: str) -> list[bool]:
        """Whether each column of an input is special."""
        return [self.fixed[group] for group in self.groups[name]]


@dataclass(frozen=True)
class Attribution:
    """The scores of groups for numbers."""

    scores: Scores  # (O,G)
    totals: Scores  # (O,) what the scores of each number should add up to: of integrated gradients, f(x) - f(baseline)
    values: Scores  # (O,) the numbers
    error: float = 0.0  # the largest difference between a total and the sum of its scores
    steps: int = 0  # steps of integrated gradients, else 0


class EmbeddedNetwork:
    """A copy of a network that shares its weights, and whose token vectors can be read and replaced.

    The network itself gets no hook, so that threads can share it. Vectors are those that an embedding returns for a
    tensor of ids, which is known by its identity: an encoder-decoder embeds source and target by one table.
    """

    def __init__(self, network: Network) -> None:
        shared: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters()}
        shared |= {id(buffer): buffer for buffer in network.buffers()}
        self.network: Network = deepcopy(network, shared).eval()
        self._given: dict[int, Tensor] = {}
        self._seen: dict[int, Tensor] = {}
        for module in self.network.modules():
            if isinstance(module, TokenEmbedding | Int8Table | CharacterCNN):
                module.register_forward_hook(self._hook)
            elif isinstance(module, nn.RNNBase):  # without dropout; cuDNN has no gradients in evaluation mode
                module.train()

    def _hook(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        self._seen[id(inputs[0])] = output  # by the ids that it was given
        return self._given.get(id(inputs[0]))  # None: the output as it is

    def run(self, reading: AttributedInput, inputs: Inputs, vectors: Mapping[str, Tensor]) -> Tensor:
        """The values (B,O) for inputs of B rows, with vectors (B,L,E) in place of those of the ids of some inputs."""
        self._given, self._seen = {id(inputs[name]): value for name, value in vectors.items()}, {}
        return reading.values(self.network, inputs)

    @torch.no_grad()
    def vectors(self, reading: AttributedInput, inputs: Inputs) -> dict[str, Tensor]:
        """The vectors (1,L,E) of each input of ids, of one row.
        Raises CapabilityError: the network does not embed them.
        """
        self.run(reading, inputs, {})
        if any(id(inputs[name]) not in self._seen for name in reading.groups):
            raise CapabilityError(f"a network of type {type(self.network).__name__} has no vectors to differentiate by")
        return {name: self._seen[id(inputs[name])] for name in reading.groups}


def integrated_gradients(
    network: Network, reading: AttributedInput, baseline_id: int | None = None, steps: int | None = None
) -> Attribution:
    """Integrated gradients: (x - x') · ∫ ∂f/∂x (x' + α (x - x')) dα over 0 to 1 (Sundararajan et al. 2017).

    x are the vectors of the tokens, without positions and segments. The baseline x' has one vector in place of those
    of all words, and the same vectors for special tokens. By completeness the scores add up to f(x) - f(x'), up to the
    error of the integral, which is computed by the Gauss-Legendre rule.

    Args:
        network: in evaluation mode.
        reading: what it reads.
        baseline_id: the token whose vector is the baseline of words; None: the zero vector, near which a network whose
            norm reads the token vectors alone has gradients without limit.
        steps: points of the rule; None: 32, and twice as many up to 512 until the error is at most 1 % of the largest
            total, or 0.001.
    """
    embedded = EmbeddedNetwork(network)
    vectors = embedded.vectors(reading, reading.inputs)
    start = {name: _zeroed(value, reading.is_fixed(name)) for name, value in vectors.items()}  # special tokens stay
    if baseline_id is not None:
        fixed = {name: reading.is_fixed(name) for name in reading.groups}
        start = embedded.vectors(reading, _masked(reading, fixed, baseline_id))
    with torch.no_grad():
        values = _numbers(embedded.run(reading, reading.inputs, {}))[0]  # (O,)
        baseline = _numbers(embedded.run(reading, reading.inputs, start))[0]  # (O,), of the baseline
    totals = values - baseline
    allowed = _TOLERANCE * max(0.1, float(np.abs(totals).max(initial=0.0)))  # 0.001 at least
    count = steps or _STEPS
    while True:
        nodes, weights = np.polynomial.legendre.leggauss(count)  # on -1 to 1, below on 0 to 1
        columns = _along_path(embedded, reading, vectors, start, (nodes + 1) / 2, weights / 2)
        scores = reading.by_group(columns)
        error = float(np.abs(scores.sum(axis=1) - totals).max(initial=0.0))
        if steps is not None or error <= allowed or count >= _MOST_STEPS:
            return Attribution(scores, totals, values, error, count)
        count *= 2  # twice the points


def gradient_input(network: Network, reading: AttributedInput) -> Attribution:
    """Gradient times input: x · ∂f/∂x, for special tokens too (Shrikumar et al. 2016)."""
    embedded = EmbeddedNetwork(network)
    vectors = embedded.vectors(reading, reading.inputs)
    with torch.no_grad():
        values = _numbers(embedded.run(reading, reading.inputs, {}))[0]
    start = {name: torch.zeros_like(value) for name, value in vectors.items()}  # the baseline is zero
    return _shares(reading, _along_path(embedded, reading, vectors, start, np.ones(1), np.ones(1)), values)


def _zeroed(vectors: Tensor, kept: Sequence[bool]) -> Tensor:
    """Vectors (1,L,E) with zeros at the columns that are not kept."""
    return vectors * torch.tensor(kept, dtype=vectors.dtype, device=vectors.device)[None, :, None]


def _along_path(
    embedded: EmbeddedNetwork,
    reading: AttributedInput,
    vectors: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    alphas: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> dict[str, Scores]:
    """Σ weight · gradient · (x - start) over points start + α (x - start), (O,L) for each input of ids."""
    summed: dict[str, Scores] = {}
    change = {name: value - start[name] for name, value in vectors.items()}  # x - x', (1,L,E)
    for begin in range(0, len(alphas), reading.rows_at_a_time):
        part = slice(begin, begin + reading.rows_at_a_time)
        like = next(iter(vectors.values()))
        alpha = torch.from_numpy(alphas[part]).to(like)[:, None, None]  # (B,1,1), points on the path
        weight = torch.from_numpy(weights[part]).to(like.device)[:, None]  # (B,1)
        path = {name: (start[name] + alpha * change[name]).detach().requires_grad_() for name in vectors}
        with torch.enable_grad():
            rows = {name: row.expand(len(alpha), *row.shape[1:]).clone() for name, row in reading.inputs.items()}
            values = embedded.run(reading, rows, path)  # (B,O)
        for number in range(values.shape[1]):
            more = number + 1 < values.shape[1]
            leaves = list(path.values())
            gradients = torch.autograd.grad(values[:, number].sum(), leaves, retain_graph=more, allow_unused=True)
            for name, gradient in zip(path, gradients):  # None: the number does not depend on it
                sums = summed.setdefault(name, np.zeros((values.shape[1], vectors[name].shape[1])))
                if gradient is not None:
                    products = (gradient.double() * change[name].double()).sum(dim=-1)  # (B,L)
                    sums[number] += (weight * products).sum(dim=0).cpu().numpy()  # Σ over points, (L,)
    return summed


def _numbers(values: Tensor) -> Scores:
    numbers: Scores = values.detach().double().cpu().numpy()
    return numbers


@torch.no_grad()
def leave_out(network: Network, reading: AttributedInput, mask_id: int | None = None) -> Attribution:
    """What each number loses when a group is left out: f(x) - f(x without it).

    Args:
        network: in evaluation mode.
        reading: what it reads.
        mask_id: the id that a group's tokens become; None: they are removed, or, where the number is read at the word
            itself, have the zero vector.
    """
    embedded = EmbeddedNetwork(network)
    values = _numbers(embedded.run(reading, reading.inputs, {}))[0]
    scores = np.zeros((len(values), len(reading.fixed)))  # (O,G)
    # by their lengths: inputs of equal shapes are computed together
    variants: dict[tuple[int, ...], list[tuple[int, dict[str, Tensor]]]] = {}
    for group in [number for number, fixed in enumerate(reading.fixed) if not fixed]:
        columns = {name: [other != group for other in groups] for name, groups in reading.groups.items()}  # True: stays
        if mask_id is not None or _removable(reading, columns):
            inputs = _removed(reading, columns) if mask_id is None else _masked(reading, columns, mask_id)
            variants.setdefault(tuple(value.shape[1] for value in inputs.values()), []).append((group, inputs))
        else:  # the number is read at the word itself
            vectors = embedded.vectors(reading, reading.inputs)
            vectors = {name: _zeroed(value, columns[name]) for name, value in vectors.items()}
            scores[:, group] = values - _numbers(embedded.run(reading, reading.inputs, vectors))[0]
    for same in variants.values():
        for begin in range(0, len(same), reading.rows_at_a_time):
            part = same[begin : begin + reading.rows_at_a_time]
            rows = {name: torch.cat([inputs[name] for _, inputs in part]) for name in part[0][1]}
            scores[:, [group for group, _ in part]] = (values - _numbers(embedded.run(reading, rows, {}))).T
    return Attribution(scores, scores.sum(axis=1), values)


def _masked(reading: AttributedInput, columns: Mapping[str, Sequence[bool]], mask_id: int) -> dict[str, Tensor]:
    """The inputs with the mask in place of the ids of the columns that are False."""
    inputs = dict(reading.inputs)
    for name, kept in columns.items():
        inputs[name] = torch.where(torch.tensor(kept, device=inputs[name].device), inputs[name], mask_id)
    return inputs


def _removable(reading: AttributedInput, columns: Mapping[str, Sequence[bool]]) -> bool:
    """Whether the columns that are False can be removed: a token remains, before each position that is read."""
    for name, of in reading.positions.items():
        positions = reading.inputs[name][0].tolist()  # of the only row
        with_own = not reading.own_words or all(columns[of][position] for position in positions)
        if not with_own or not all(any(columns[of][: position + 1]) for position in positions):
            return False
    return all(any(kept) for kept in columns.values())


def _removed(reading: AttributedInput, columns: Mapping[str, Sequence[bool]]) -> dict[str, Tensor]:
    """The inputs without the columns that are False; positions move with their columns."""
    inputs = dict(reading.inputs)
    for name in (*columns, *reading.follows):
        kept = torch.tensor(columns[reading.follows.get(name, name)], device=inputs[name].device)
        inputs[name] = inputs[name][:, kept]
    for name, of in reading.positions.items():
        removed = torch.tensor([not kept for kept in columns[of]], device=inputs[name].device).cumsum(dim=0)
        inputs[name] = inputs[name] - removed[inputs[name]]  # by what is removed before
    return inputs


def rollout(network: Network, reading: AttributedInput) -> Attribution:
    """Attention rollout: the weights of all layers multiplied, each half residual connection (Abnar & Zuidema 2020).

    A layer is ½ A + ½ I with A the mean of its heads, each row divided by its sum. In a decoder that reads a source,
    self-attention and cross-attention are a layer each, and the source is what the encoder's rollout says it is. The
    scores of a number add up to 1.
    Raises CapabilityError: the network has layers without self-attention.
    """
    with torch.no_grad(), observe(network) as seen:
        values = _numbers(reading.values(network, reading.inputs))[0]
    calls: dict[str, list[list[Scores]]] = {}
    for kind, depth in seen.n_layers.items():
        recorded = [seen.weights[kind, layer] for layer in range(depth) if (kind, layer) in seen.weights]
        means = [[weights[0].double().mean(dim=0).cpu().numpy() for weights in one] for one in zip(*recorded)]
        calls[kind] = means  # of the heads: (1,H,T,S) -> (T,S)
    names = list(reading.groups)
    if not calls.get("encoder") and not (calls.get("decoder") and "cross" not in calls):
        raise CapabilityError(
            f"attention rollout is of networks with self-attention in every layer, and {type(network).__name__} has "
            "layers without it: take integrated-gradients, gradient-input or leave-out"
        )
    if calls.get("cross"):
        encoded, own = rolled_out(calls["encoder"][0]), calls["decoder"][0]
        of_source, of_target = np.zeros((len(own[0]), encoded.shape[1])), np.eye(len(own[0]))  # (T,S), (T,T) of itself
        for self_weights, source_weights in zip(own, calls["cross"][0], strict=True):
            mixed = _half_residual(self_weights)
            of_source, of_target = mixed @ of_source, mixed @ of_target  # through self-attention
            of_source, of_target = (source_weights @ encoded + of_source) / 2, of_target / 2  # with its residual
        reads = reading.reads[names[1]]  # (O,T)
        return _shares(reading, {names[0]: reads @ of_source, names[1]: reads @ of_target}, values)
    texts = calls.get("encoder") or calls["decoder"]  # the calls are in the order of the inputs
    read = {name: reading.reads[name] @ rolled_out(layers) for name, layers in zip(names, texts)}
    return _shares(reading, read, values)


def rolled_out(layers: Iterable[Scores]) -> Scores:
    """The rollout (L,L) of layers (L,L), the first one first: the product of ½ A + ½ I."""
    joint: Scores = np.eye(0)  # empty until the length is known
    for weights in layers:
        joint = joint if joint.size else np.eye(len(weights))
        joint = _half_residual(weights) @ joint  # the layers below are on the right
    return joint


def _half_residual(weights: Scores) -> Scores:
    mixed = (weights + np.eye(len(weights))) / 2  # A and the residual, half each
    shares: Scores = mixed / mixed.sum(axis=1, keepdims=True)
    return shares


def _shares(reading: AttributedInput, columns: Mapping[str, Scores], values: Scores) -> Attribution:
    scores = reading.by_group(columns)
    return Attribution(scores, scores.sum(axis=1), values)
