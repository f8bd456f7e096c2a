"""The greedy and beam search listings of the notes, with the search of the library (docs/notes.md#k4).

Errors of the listings in the notes (38 and 39): they take the best token over all positions, process one sentence,
add the decoder's output as if it were log-probabilities, never stop early and keep EOS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import UsageError
from atento.decoding import Beam, Greedy, generate
from atento.decoding.source import NetworkOrModel

_NO_TOKEN = -1  # the start token of a model without one


def greedy_decoding(model: Any, input_seq: Tensor, max_length: int) -> list[int] | list[list[int]]:
    """Return the most probable token at every step until EOS, or `max_length` tokens including EOS (H1).

    Args:
        model: a language model: a callable from ids (B,L) to logits or log-probabilities, (B,L,V) or (B,V), with
            `eos_token`; or a network of this library, whose source is `input_seq`.
        input_seq: the prompt, (L,) or (1,L); or (B,L), B prompts of the same length.
        max_length: the maximum number of new tokens.

    Returns:
        The new ids without EOS: one list for (L,) and (1,L), as in the notes; B lists for (B,L) with B > 1.

    Raises:
        UsageError: a model without `eos_token`, or ids of another shape.
    """
    ids = input_seq.unsqueeze(0) if input_seq.dim() == 1 else input_seq
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise UsageError(f"`input_seq` must be ids of shape (L,), (1,L) or (B,L): got {tuple(input_seq.shape)}")
    steps = model if isinstance(model, NetworkOrModel) else LanguageModelSteps(model, token_named(model, "eos_token"))
    outputs = [hypotheses[0].ids for hypotheses in generate(steps, ids, Greedy(), max_new_tokens=max_length)]
    return outputs[0] if len(outputs) == 1 else outputs


def beam_search(
    model: Any, src: Tensor, beam_width: int = 3, max_len: int = 20, *, length_penalty: float = 1.0
) -> list[int] | list[list[int]]:
    """Return the best output of a beam search (H6), scored by log-probability / length ** length_penalty.

    Args:
        model: a sequence-to-sequence model with `sos_token` and `eos_token`, `encoder(src (B,S))` -> (encoder_outputs
            (B,S,D), hidden, cell) and `decoder(token (B,1), hidden, cell, encoder_outputs)` -> (logits or
            log-probabilities (B,V) or (B,1,V), hidden, cell); hidden and cell are (layers,B,D) as in `torch.nn.LSTM`,
            or (B,D), or None. Or a network of this library.
        src: (S,), or (B,S), sources of one length.
        beam_width: the number of prefixes kept at every step.
        max_len: the maximum number of tokens, including EOS.
        length_penalty: 0 is the notes' plain sum, which favours short outputs (error 28).

    Returns:
        The ids without EOS: one list for (S,), as in the notes; B lists for (B,S).

    Raises:
        UsageError: a model without `sos_token` or `eos_token`, or a source of another shape.
    """
    ids = src.unsqueeze(0) if src.dim() == 1 else src
    if ids.dim() != 2:
        raise UsageError(f"`src` must be ids of shape (S,) or (B,S): got {tuple(src.shape)}")
    steps = model
    if not isinstance(model, NetworkOrModel):
        steps = EncoderDecoderSteps(model, token_named(model, "sos_token"), token_named(model, "eos_token"))
    strategy = Beam(beam_width, length_penalty=length_penalty)
    outputs = [hypotheses[0].ids for hypotheses in generate(steps, ids, strategy, max_new_tokens=max_len)]
    return outputs[0] if src.dim() == 1 else outputs


def token_named(model: Any, name: str) -> int:
    """Return the id of a special token, an attribute of the model.

    Raises:
        UsageError: the model has no such attribute.
    """
    token = getattr(model, name, None)
    if token is None:
        raise UsageError(f"the model must have the attribute `{name}`, an id: {type(model).__name__} does not")
    return int(token)


def _last(scores: Tensor) -> Tensor:
    """Return the scores after the last position: (B,L,V) or (B,V) -> (B,V)."""
    return scores[:, -1] if scores.dim() == 3 else scores


@dataclass
class _Written:
    """The ids of each row so far, (R,L); `fresh` until the first step."""

    ids: Tensor
    fresh: bool = True

    def select(self, rows: Tensor) -> "_Written":
        return _Written(self.ids[rows], self.fresh)


class LanguageModelSteps:
    """A step function that calls a language model on the whole prefix at every step."""

    def __init__(self, model: Callable[[Tensor], Tensor], eos_id: int) -> None:
        self.model = model
        self.start_id, self.eos_id, self.pad_id = _NO_TOKEN, eos_id, _NO_TOKEN

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> _Written:
        return _Written(ids)

    def step(self, tokens: Tensor, state: _Written) -> tuple[Tensor, _Written]:
        ids = state.ids if state.fresh else torch.cat([state.ids, tokens.unsqueeze(1)], dim=1)
        return _last(self.model(ids)), _Written(ids, fresh=False)


@dataclass
class _Recurrent:
    """The decoder's state of each row, and the encoder outputs that its attention reads."""

    encoder_outputs: Tensor
    hidden: Tensor | None
    cell: Tensor | None

    def select(self, rows: Tensor) -> "_Recurrent":
        return _Recurrent(self.encoder_outputs[rows], _rows(self.hidden, rows), _rows(self.cell, rows))


def _rows(state: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if state is None else state.index_select(1 if state.dim() == 3 else 0, rows)


class EncoderDecoderSteps:
    """A step function of the notes' encoder and decoder; one call advances every beam of every sentence."""

    def __init__(self, model: Any, start_id: int, eos_id: int) -> None:
        self.model = model
        self.start_id, self.eos_id, self.pad_id = start_id, eos_id, _NO_TOKEN

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> _Recurrent:
        return _Recurrent(*self.model.encoder(ids))

    def step(self, tokens: Tensor, state: _Recurrent) -> tuple[Tensor, _Recurrent]:
        scores, hidden, cell = self.model.decoder(tokens.unsqueeze(1), state.hidden, state.cell, state.encoder_outputs)
        return _last(scores), _Recurrent(state.encoder_outputs, hidden, cell)
