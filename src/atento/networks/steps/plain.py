"""Plain step functions: a network's own forward pass, one token at a time, with a decode state.

A step function holds a network and no state of a call: the result of `begin` is in the state that it returns, and
`show` gets the arguments of `begin` again. So threads can share one step function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.observe import observing, unobserved
from atento.config.sections.network import NetworkConfig
from atento.networks.output import Output
from atento.networks.stack.positions import real_positions
from atento.networks.stack.stack import StackState
from atento.networks.steps.plain_state import PromptState, joined
from atento.networks.steps.rows import StackRows


class DecodeState(Protocol):
    """The state of a network after the tokens that it has read."""

    def select(self, rows: Tensor) -> Self:
        """Only those batch rows, in that order."""

    def joined(self, others: Sequence[Self]) -> Self:
        """The rows of this state, then those of the others, which may have read more or fewer tokens."""


StateT = TypeVar("StateT", bound=DecodeState)
StateT_co = TypeVar("StateT_co", covariant=True)
AnyStateT = TypeVar("AnyStateT")


class PredictingNetwork(Protocol):
    """What a step function needs of any network.

    The networks satisfy these protocols; they are not imported here, because each of them makes its own step function.
    """

    @property
    def config(self) -> NetworkConfig: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Output: ...
    def project(self, hidden: Tensor) -> Tensor: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


class LanguageModel(PredictingNetwork, Protocol[StateT_co]):
    """A network that continues a prompt, such as `Decoder` and `RecurrentLM`."""

    def begin(self) -> StateT_co: ...


class SourceReader(Protocol[StateT_co]):
    """The half of an encoder-decoder that writes."""

    def begin(self, encoded: Tensor, token_mask: Tensor | None, /) -> StateT_co: ...


class Seq2SeqNetwork(PredictingNetwork, Protocol[StateT_co]):
    """A network that reads a source and writes a target: `EncoderDecoder` and `RecurrentSeq2Seq`."""

    @property
    def decoder(self) -> SourceReader[StateT_co]: ...
    def encode(self, source_ids: Tensor, *, source_token_mask: Tensor | None) -> Tensor: ...


def last_tokens(ids: Tensor, token_mask: Tensor | None, start_id: int) -> Tensor:
    """Each row's last real token of ids (B,T), padded on either side, -> (B,); the start token for an empty row."""
    known = F.pad(ids, (1, 0), value=start_id)  # (B,1+T)
    if token_mask is None:
        return known[:, -1]
    positions = torch.arange(known.shape[1], device=ids.device)
    last = torch.where(F.pad(token_mask, (1, 0), value=True), positions, 0).amax(dim=1)
    return known.gather(1, last.unsqueeze(1)).squeeze(1)


def moved_to_front(ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """ids and token mask (B,S) with the real tokens first in each row, their order kept."""
    if token_mask is None or not bool((token_mask[:, 1:] & ~token_mask[:, :-1]).any()):
        return ids, token_mask
    order = torch.argsort(token_mask.int(), dim=1, descending=True, stable=True)
    return ids.gather(1, order), token_mask.gather(1, order)


def all_but_last(ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Prompts without their last real token, and their token mask, both (B,T-1); real tokens are last in each row."""
    real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
    order = torch.argsort(real.int(), dim=1, stable=True)  # padding first, the order of real tokens kept
    return ids.gather(1, order)[:, :-1], real.gather(1, order)[:, :-1]


ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""How far logits of a step over several tokens may be from those of steps over one, as a share of the highest."""
ROUNDING_INT8 = 2.0**-4  # the rows of a product share a scale


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precisions as float32, because log-probabilities are summed."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def padded(rows: list[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B,T), padded on the right, and its token mask."""
    length = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad_id] * (length - len(row))] for row in rows], device=device)
    real = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in rows], device=device)
    return ids, real


class DecoderStepFunction:
    """The step function of a `Decoder`: it reads prompts (B,T) at once, then a token at a time with cached keys and
    values (docs/notes.md#h12).

    Prompts may be padded on either side. They are moved to end at the same column, and each counts its own positions.
    """

    def __init__(self, network: LanguageModel[StackState]) -> None:
        self.network = network
        config = network.config
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """What the first step reads: the last real token of each row of ids (B,T); the start token of an empty one."""
        return last_tokens(ids, token_mask, self.start_id)

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> PromptState:
        """The state after all of each prompt in ids (B,T) but its last real token."""
        *_, state = self.begin_in_parts(ids, token_mask, max(1, ids.shape[1]))
        assert state is not None
        return state

    @torch.inference_mode()
    def begin_in_parts(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[PromptState | None]:
        """As `begin`, where a prompt is read `size` tokens at a time: None after each part, and the state at last."""
        ids, real = all_but_last(ids, token_mask)
        state, columns, is_level = self.network.begin(), ids.shape[1], bool(real.all())
        positions = None if is_level else real_positions(real)
        for first in range(0, columns, size):
            part = slice(first, first + size)
            with unobserved():
                self.network(
                    ids[:, part],
                    token_mask=None if is_level else real[:, : first + size],
                    position_ids=None if positions is None else positions[:, part],
                    state=state,
                    project=False,
                )
            if first + size < columns:
                yield None
        yield PromptState(state, len(ids)) if is_level else PromptState(state, len(ids), real, real.sum(dim=1))

    @torch.inference_mode()
    def joined(self, states: Sequence[PromptState]) -> PromptState:
        """The rows of all states in their order, in new memory (`plain_state.joined`)."""
        return joined(states)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """tokens (R,) or several (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        real, positions = state.next(tokens)
        with unobserved():
            output = self.network(tokens, token_mask=real, position_ids=positions, state=state.stack, project=False)
        logits = at_least_float32(self.network.project(output.hidden[:, -1]))
        return logits, state.after(output.state, real, tokens.shape[1])

    @property
    def rounding(self) -> float:
        """As `decoding.contract.Rewinding.rounding`."""
        return ROUNDING[next(self.network.parameters()).dtype]

    def rewindable(self, state: PromptState) -> StackRows:
        """As `decoding.contract.Rewinding.rewindable`."""
        return StackRows.of(state)

    @torch.inference_mode()
    def step_all(self, tokens: Tensor, counts: Sequence[int], state: StackRows) -> tuple[Tensor, StackRows]:
        """As `decoding.contract.Rewinding.step_all`."""
        real, positions = state.before(counts, tokens.device)
        with unobserved():
            output = self.network(tokens, token_mask=real, position_ids=positions, state=state.stack, project=False)
        return at_least_float32(self.network.project(output.hidden)), state.changed(counts)

    def take_back(self, state: StackRows, counts: Sequence[int]) -> StackRows:
        """As `decoding.contract.Rewinding.take_back`."""
        return state.changed([-count for count in counts])

    @torch.inference_mode()
    def show(self, ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
        """Show observers one pass over each prompt in ids (B,T) and the output that was read, without its last token.

        In a prompt of P tokens (the start token alone if it is empty), row P - 1 + t is the input that token t was
        predicted from.
        """
        if not observing(self.network):
            return
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        prompts = [row[keep].tolist() or [self.start_id] for row, keep in zip(ids, real)]
        rows = [[*prompt, *after] for prompt, after in zip(prompts, written)]
        read_ids, real = padded(rows, self.pad_id, ids.device)
        self.network(read_ids, token_mask=real, project=False)


class RecurrentStepFunction(Generic[StateT]):
    """The step function of a `RecurrentLM`: it reads prompts (B,T) at once, then a token at a time.

    See docs/notes.md#h12. There is no attention to show.
    """

    def __init__(self, network: LanguageModel[StateT]) -> None:
        self.network = network
        config = network.config
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """What the first step reads: the last real token of each row of ids (B,T); the start token of an empty one."""
        return last_tokens(ids, token_mask, self.start_id)

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> StateT:
        """The state after all of each row's real tokens but the last; padding may be on either side."""
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        after = real.flip(1).cumsum(dim=1).flip(1)  # the number of real tokens from here to the right
        read = self.network(ids, token_mask=real & (after > 1), state=self.network.begin(), project=False)
        state: StateT = read.state
        return state

    @torch.inference_mode()
    def begin_in_parts(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[StateT | None]:
        """As `begin`, which reads a prompt at once: gives its state."""
        yield self.begin(ids, token_mask)

    @torch.inference_mode()
    def joined(self, states: Sequence[StateT]) -> StateT:
        """The rows of all states in their order, in new memory."""
        return states[0].joined(states[1:])

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: StateT) -> tuple[Tensor, StateT]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        output = self.network(tokens, state=state, project=False)
        return at_least_float32(self.network.project(output.hidden[:, -1])), output.state


class EncoderDecoderStepFunction:
    """The step function of an `EncoderDecoder`: it encodes sources (B,S) once, then writes a token at a time with
    cached keys and values (docs/notes.md#h12)."""

    def __init__(self, network: Seq2SeqNetwork[StackState]) -> None:
        self.network = network
        config = network.config
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> PromptState:
        """Encode sources (B,S), and compute the keys and values of the cross-attention, once for all steps."""
        return PromptState(_encoded(self.network, ids, token_mask), len(ids))

    @torch.inference_mode()
    def begin_in_parts(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[PromptState | None]:
        """As `begin`, which encodes a source at once: gives its state."""
        yield self.begin(ids, token_mask)

    @torch.inference_mode()
    def joined(self, states: Sequence[PromptState]) -> PromptState:
        """The rows of all states in their order, in new memory (`plain_state.joined`)."""
        return joined(states)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        real, positions = state.next(tokens)
        with unobserved():
            output = self.network(
                None,
                tokens,
                target_token_mask=real,
                target_position_ids=positions,
                state=state.stack,
                project=False,
            )
        logits = at_least_float32(self.network.project(output.hidden[:, -1]))
        return logits, state.after(output.state, real, tokens.shape[1])

    @property
    def rounding(self) -> float:
        """As `decoding.contract.Rewinding.rounding`."""
        return ROUNDING[next(self.network.parameters()).dtype]

    def rewindable(self, state: PromptState) -> StackRows:
        """As `decoding.contract.Rewinding.rewindable`."""
        return StackRows.of(state)

    @torch.inference_mode()
    def step_all(self, tokens: Tensor, counts: Sequence[int], state: StackRows) -> tuple[Tensor, StackRows]:
        """As `decoding.contract.Rewinding.step_all`."""
        real, positions = state.before(counts, tokens.device)
        with unobserved():
            output = self.network(
                None,
                tokens,
                target_token_mask=real,
                target_position_ids=positions,
                state=state.stack,
                project=False,
            )
        return at_least_float32(self.network.project(output.hidden)), state.changed(counts)

    def take_back(self, state: StackRows, counts: Sequence[int]) -> StackRows:
        """As `decoding.contract.Rewinding.take_back`."""
        return state.changed([-count for count in counts])

    @torch.inference_mode()
    def show(self, ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
        """As `Seq2SeqStepFunction.show`."""
        _show(self.network, ids, token_mask, written)


class Seq2SeqStepFunction(Generic[StateT]):
    """The step function of a `RecurrentSeq2Seq`: it encodes sources (B,S) once, then writes a token at a time.

    See docs/notes.md#h12.
    """

    def __init__(self, network: Seq2SeqNetwork[StateT]) -> None:
        self.network = network
        config = network.config
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> StateT:
        """Encode sources (B,S), and compute the keys of the attention, once for all steps."""
        return _encoded(self.network, ids, token_mask)

    @torch.inference_mode()
    def begin_in_parts(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[StateT | None]:
        """As `begin`, which encodes a source at once: gives its state."""
        yield self.begin(ids, token_mask)

    @torch.inference_mode()
    def joined(self, states: Sequence[StateT]) -> StateT:
        """The rows of all states in their order, in new memory."""
        return states[0].joined(states[1:])

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: StateT) -> tuple[Tensor, StateT]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        with unobserved():
            output = self.network(None, tokens, state=state, project=False)
        return at_least_float32(self.network.project(output.hidden[:, -1])), output.state

    @torch.inference_mode()
    def show(self, ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
        """Show observers one pass over each source in ids (B,S) and the output that was read.

        `written` has neither the start token nor the last token of the output. Rows past an output's end have no
        meaning.
        """
        _show(self.network, ids, token_mask, written)


def _encoded(network: Seq2SeqNetwork[AnyStateT], ids: Tensor, token_mask: Tensor | None) -> AnyStateT:
    """The state of the decoder after sources (B,S).

    Sources padded on the left are moved to the front, so that tokens have the same positions on either side.
    """
    ids, token_mask = moved_to_front(ids, token_mask)
    with unobserved():
        encoded = network.encode(ids, source_token_mask=token_mask)
        return network.decoder.begin(encoded, token_mask)


def _show(network: Seq2SeqNetwork[Any], ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
    """One pass over each source and its output, if the network is observed."""
    if not observing(network):
        return
    ids, token_mask = moved_to_front(ids, token_mask)
    target, _ = padded([[network.config.start_id, *row] for row in written], network.config.pad_id, ids.device)
    network(ids, target, source_token_mask=token_mask, project=False)
