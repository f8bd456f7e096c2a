"""Recurrent layers: cells as equations, sequences with torch.nn; padding never changes a state.

See docs/notes.md#c11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from atento.attention.dropout import Randomness, dropout

LayerState = tuple[Tensor, ...]  # (h,) or, for an LSTM, (h, c), each (B,D)
Weights = list[Tensor]  # input (G·D,Din), recurrent (G·D,D) and their biases, the G gates one after the other


def lstm_cell(weights: Weights, x: Tensor, state: LayerState) -> LayerState:
    """c = σ(f) c + σ(i) tanh(g), h = σ(o) tanh(c), gates affine in x and h (Hochreiter & Schmidhuber 1997)."""
    h, c = state
    i, f, g, o = (F.linear(x, weights[0], weights[2]) + F.linear(h, weights[1], weights[3])).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)  # forget, input, candidate
    return torch.sigmoid(o) * torch.tanh(c), c  # h, then c


def gru_cell(weights: Weights, x: Tensor, state: LayerState) -> LayerState:
    """h = (1 - σ(z)) n + σ(z) h with n = tanh(W x + σ(r) (U h)) (Cho et al. 2014; r after the product U h)."""
    (h,) = state
    r, z, n = F.linear(x, weights[0], weights[2]).chunk(3, dim=-1)  # reset, update, new: the order of PyTorch's weights
    r_h, z_h, n_h = F.linear(h, weights[1], weights[3]).chunk(3, dim=-1)
    new = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)  # the reset gate after the product U h
    update = torch.sigmoid(z + z_h)
    return ((1 - update) * new + update * h,)  # z near 1 keeps the old state


def rnn_cell(weights: Weights, x: Tensor, state: LayerState) -> LayerState:
    """h = tanh(W x + U h + b) (Elman 1990)."""
    (h,) = state
    return (torch.tanh(F.linear(x, weights[0], weights[2]) + F.linear(h, weights[1], weights[3])),)


@dataclass(frozen=True)
class Cell:
    """One recurrence: its equation, torch.nn's layer for sequences, the number of vectors of its state."""

    step: Callable[[Weights, Tensor, LayerState], LayerState]
    layer: Callable[..., nn.RNNBase]
    parts: int = 1


CELLS = {"lstm": Cell(lstm_cell, nn.LSTM, 2), "gru": Cell(gru_cell, nn.GRU), "rnn": Cell(rnn_cell, nn.RNN)}


@dataclass(frozen=True)
class PackedRows:
    """Padded rows with their real tokens moved to the left, so that a recurrence runs over them without gaps.

    Padding may be on either side, or between: it changes no state. `lengths` (B,) are on the CPU, where
    `pack_padded_sequence` needs them; `order` (B,L) are the positions in their new order, None if rows are padded on
    the right.
    """

    token_mask: Tensor
    lengths: Tensor
    order: Tensor | None

    @staticmethod
    def from_mask(token_mask: Tensor | None) -> PackedRows | None:
        """From a token mask (B,L), True = a real token; None if nothing is padded."""
        if token_mask is None or bool(token_mask.all()):
            return None
        on_the_right = bool((token_mask[:, 1:] <= token_mask[:, :-1]).all())  # real tokens are never behind padding
        order = None if on_the_right else (~token_mask).to(torch.uint8).argsort(dim=1, stable=True)
        return PackedRows(token_mask, token_mask.sum(dim=1).cpu(), order)

    def pack(self, x: Tensor) -> Tensor:
        """(B,L,D), real tokens first, in their order."""
        return x if self.order is None else x.gather(1, self.order.unsqueeze(-1).expand_as(x))

    def unpack(self, x: Tensor) -> Tensor:
        """The inverse of `pack`, with zeros at padding."""
        if self.order is not None:
            x = x.gather(1, self.order.argsort(dim=1).unsqueeze(-1).expand_as(x))  # (B,L,D), the inverse order
        return x.masked_fill(~self.token_mask.unsqueeze(-1), 0.0)


class RecurrentStack(nn.Module):
    """Recurrent layers, each reading the states of the one below; dropout between them (Zaremba et al. 2014).

    A bidirectional layer has D/2 units a direction; its state at a position is [forward; backward], D wide.
    """

    def __init__(
        self, cell: str, d_input: int, d_model: int, n_layers: int, *, bidirectional: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.cell, self.d_model, self.dropout = CELLS[cell], d_model, dropout
        width = d_model // 2 if bidirectional else d_model  # two directions make D together
        self.layers = nn.ModuleList(
            self.cell.layer(d_model if index else d_input, width, batch_first=True, bidirectional=bidirectional)
            for index in range(n_layers)
        )

    def forward(
        self,
        x: Tensor,
        states: list[LayerState] | None = None,
        *,
        token_mask: Tensor | None = None,
        random: Randomness | None = None,
    ) -> tuple[Tensor, list[LayerState]]:
        """Run the layers over a sequence: x (B,L,Din) -> the top layer's states (B,L,D) and every layer's last state.

        `states` are the initial states of the layers (None: zeros, as always if bidirectional); `token_mask` (B,L) is
        True for real tokens. Padded positions give zeros; a row of padding alone does not change its state.
        """
        initial = [None] * len(self.layers) if states is None else states
        if x.shape[1] == 0:  # torch.nn refuses a text without tokens
            return x.new_zeros(x.shape[0], 0, self.d_model), [before or self.zeros(x) for before in initial]
        packed = PackedRows.from_mask(token_mask)
        x = x if packed is None else packed.pack(x)
        lengths = None if packed is None else packed.lengths
        ends = []
        for index, (layer, before) in enumerate(zip(self.layers, initial)):
            x, end = self._run(layer, self._between(index, x, random), before, lengths)
            ends.append(end)
        return x if packed is None else packed.unpack(x), ends

    def step(self, x: Tensor, states: list[LayerState], random: Randomness | None = None) -> list[LayerState]:
        """One token by the equations: x (B,Din) and every layer's state -> every layer's next state."""
        after: list[LayerState] = []
        for index, (layer, before) in enumerate(zip(self.layers, states)):
            assert isinstance(layer, nn.RNNBase)
            after.append(self.cell.step(list(layer.all_weights[0]), self._between(index, x, random), before))
            x = after[-1][0]
        return after

    def zeros(self, like: Tensor) -> LayerState:
        """The initial state of a layer, with the rows, dtype and device of `like`."""
        return tuple(like.new_zeros(like.shape[0], self.d_model) for _ in range(self.cell.parts))  # h, and c of an LSTM

    def _between(self, index: int, x: Tensor, random: Randomness | None) -> Tensor:
        """The input of layer `index`, with dropout if it is the output of another layer."""
        return dropout(x, self.dropout, random) if index and self.training else x

    def _run(
        self, layer: nn.Module, x: Tensor, before: LayerState | None, lengths: Tensor | None
    ) -> tuple[Tensor, LayerState]:
        """One layer over rows whose real tokens are on the left: (B,L,D) -> (B,L,D) and its last state."""
        begin: LayerState | Tensor | None = None
        if before is not None:
            begin = tuple(part.unsqueeze(0).contiguous() for part in before)  # (1,B,D)
            begin = begin if len(begin) == 2 else begin[0]  # torch.nn takes a pair for an LSTM, else a tensor
        if lengths is None:
            x, last = layer(x, begin)
        else:
            length = x.shape[1]
            packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
            packed, last = layer(packed, begin)
            x, _ = pad_packed_sequence(packed, batch_first=True, total_length=length)  # (B,L,D), zeros behind the ends
        parts = last if isinstance(last, tuple) else (last,)
        after = tuple(part.transpose(0, 1).flatten(1) for part in parts)  # (directions,B,D/directions) -> (B,D)
        if lengths is not None and bool((lengths == 0).any()):
            not_empty = (
                (lengths > 0).to(x.device).unsqueeze(1)
            )  # packing reads a token of an empty row too: undone here
            after = tuple(torch.where(not_empty, new, old) for new, old in zip(after, before or self.zeros(x)))
        return x, after


def joined_layers(states: Sequence[list[LayerState] | None]) -> list[LayerState] | None:
    """The rows of several states of the same layers, in their order; None before the first token."""
    known = [layers for layers in states if layers is not None]
    return [tuple(torch.cat(parts) for parts in zip(*layer)) for layer in zip(*known)] if known else None


@torch.no_grad()
def reset_recurrent(network: nn.Module, d_model: int) -> None:
    """Fresh weights from PyTorch's global generator.

    Embeddings are normal with deviation 1/√D; recurrent matrices orthogonal gate by gate, so that a state neither
    grows nor fades at first (Saxe et al. 2014; Bahdanau et al. 2015, B.1); other matrices uniform within ±1/√D; biases
    and transitions between tags zero, but 1 for an LSTM's forget gate (Jozefowicz et al. 2015).
    """
    for name, parameter in network.named_parameters():
        if "embedding" in name or name == "heads.vocabulary.output.weight":
            nn.init.normal_(parameter, std=d_model**-0.5)
        elif ".weight_hh_" in name:
            for gate in parameter.split(parameter.shape[1]):  # a gate each
                nn.init.orthogonal_(gate)
        elif parameter.dim() > 1 and not name.endswith(".transitions"):
            nn.init.uniform_(parameter, -(d_model**-0.5), d_model**-0.5)
        elif not name.endswith(".weight"):  # one of one dimension is the gain of a norm, and begins as that
            nn.init.zeros_(parameter)
    for layer in network.modules():
        if isinstance(layer, nn.LSTM):
            for weights in layer.all_weights:
                weights[2][layer.hidden_size : 2 * layer.hidden_size] = 1.0  # one bias of gate f
