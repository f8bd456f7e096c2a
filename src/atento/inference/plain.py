"""Plain step functions: a network's own forward pass, one token at a time, with a decode state (docs/notes.md#h12).

A step function holds a network and no state of a call: the result of `begin` is in the state that it returns, and
`show` gets the arguments of `begin` again. So threads can share one step function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.observe import observing, unobserved
from atento.base.errors import CapabilityError
from atento.inference.plain_state import PromptState
from atento.inference.plain_state import joined as joined_states
from atento.inference.ragged_rows import StackRows
from atento.networks.output import Output
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.stack.stack_positions import real_positions
from atento.networks.vocabulary import at_least_float32

WritingNetwork = EncoderDecoder | Decoder | RecurrentSeq2Seq | RecurrentLM


def last_tokens(ids: Tensor, token_mask: Tensor | None, start_id: int) -> Tensor:
    """Each row's last real token of ids (B,T), padded on either side, -> (B,); the start token for an empty row."""
    known = F.pad(ids, (1, 0), value=start_id)  # (B,1+T)
    if token_mask is None:
        return known[:, -1]
    positions = torch.arange(known.shape[1], device=ids.device)  # (1+T,)
    last = torch.where(F.pad(token_mask, (1, 0), value=True), positions, 0).amax(dim=1)  # (B,), 0: the start token
    return known.gather(1, last.unsqueeze(1)).squeeze(1)


def left_align(ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """ids and token mask (B,S) with the real tokens first in each row, their order kept."""
    if token_mask is None or not bool((token_mask[:, 1:] & ~token_mask[:, :-1]).any()):
        return ids, token_mask
    order = torch.argsort(token_mask.int(), dim=1, descending=True, stable=True)  # (B,S)
    return ids.gather(1, order), token_mask.gather(1, order)


def without_last_token(ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Prompts without their last real token, and their token mask, both (B,T-1); real tokens are last in each row."""
    real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
    order = torch.argsort(real.int(), dim=1, stable=True)  # padding first, the order of real tokens kept
    return ids.gather(1, order)[:, :-1], real.gather(1, order)[:, :-1]


ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""How far logits of a step over several tokens may be from those of steps over one, as a share of the highest."""
ROUNDING_INT8 = 2.0**-4  # the rows of a product share a scale


def padded(rows: list[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B,T), padded on the right, and its token mask."""
    length = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad_id] * (length - len(row))] for row in rows], device=device)
    real = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in rows], device=device)
    return ids, real


class PlainStepFunction:
    """The step function of any network that writes.

    One with an encoder encodes its sources (B,S) once. A language model reads its prompts (B,T) at once, but for the
    last token of each, which the first step reads; then both read a token at a time. Prompts may be padded on either
    side. They are moved to end at the same column, and each counts its own positions.
    """

    def __init__(self, network: WritingNetwork) -> None:
        self.network = network
        config = network.config
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids
        if not isinstance(network, EncoderDecoder | RecurrentSeq2Seq):
            # what the first step reads: the last real token of each row of ids (B,T); the start token of an empty one
            self.first_tokens = partial(last_tokens, start_id=config.start_id)

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> PromptState:
        """The state after sources (B,S), or after all of each prompt (B,T) but its last real token."""
        *_, state = self.prefill_in_chunks(ids, token_mask, max(1, ids.shape[1]))
        assert state is not None
        return state

    @torch.inference_mode()
    def prefill_in_chunks(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[PromptState | None]:
        """As `begin`, where a prompt is read `size` tokens at a time: None after each part, and the state at last."""
        if isinstance(self.network, EncoderDecoder | RecurrentSeq2Seq):
            ids, token_mask = left_align(ids, token_mask)  # so that padding on either side gives the same positions
            with unobserved():
                encoded = self.network.encode(ids, source_token_mask=token_mask)
                source_state = self.network.decoder.begin(encoded, token_mask)
            yield PromptState(source_state, len(ids))
            return
        ids, real = without_last_token(ids, token_mask)  # the last one is read by the first step
        state, columns, equal_lengths = self.network.begin(), ids.shape[1], bool(real.all())
        positions = None if equal_lengths or self.network.stepwise else real_positions(real)
        # a recurrent network also reads no token, because its state has no rows before
        for first in range(0, max(columns, int(self.network.stepwise)), size):
            part = slice(first, first + size)
            part_positions = None if positions is None else positions[:, part]
            self._read(ids[:, part], None if equal_lengths else real[:, : first + size], part_positions, state)
            if first + size < columns:
                yield None
        yield PromptState(state, len(ids)) if positions is None else PromptState(state, len(ids), real, real.sum(dim=1))

    def _read(self, tokens: Tensor, token_mask: Tensor | None, position_ids: Tensor | None, state: object) -> Output:
        """Read new tokens (R,T), of the output or of a prompt; the state is updated in place."""
        inputs = {"token_mask": token_mask, "position_ids": position_ids}
        has_source = isinstance(self.network, EncoderDecoder | RecurrentSeq2Seq)  # which the state has seen
        prefix, ids = ("target_", (None, tokens)) if has_source else ("", (tokens,))
        given = {f"{prefix}{name}": value for name, value in inputs.items() if value is not None}
        with unobserved():
            return cast(Output, self.network(*ids, state=state, project=False, **given))

    joined = staticmethod(joined_states)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """tokens (R,) or several (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        real, positions = state.next(tokens)
        output = self._read(tokens, real, positions, state.stack)
        logits = at_least_float32(self.network.project(output.hidden[:, -1]))  # (R,V)
        return logits, state.after(output.state, real, tokens.shape[1])

    @property
    def rounding(self) -> float:
        """As `decoding.contract.Rewinding.rounding`."""
        return ROUNDING[next(self.network.parameters()).dtype]

    def rewindable(self, state: PromptState) -> StackRows:
        """As `decoding.contract.Rewinding.rewindable`."""
        if self.network.stepwise:
            raise CapabilityError(
                "a draft needs steps over several tokens that can be taken back, which recurrent networks and CUDA "
                f"graphs do not have: got {type(self.network).__name__}"
            )
        return StackRows.of(state)

    @torch.inference_mode()
    def step_all(self, tokens: Tensor, counts: Sequence[int], state: StackRows) -> tuple[Tensor, StackRows]:
        """As `decoding.contract.Rewinding.step_all`."""
        real, positions = state.before(counts, tokens.device)
        output = self._read(tokens, real, positions, state.stack)
        return at_least_float32(self.network.project(output.hidden)), state.changed(counts)

    def crop(self, state: StackRows, counts: Sequence[int]) -> StackRows:
        """As `decoding.contract.Rewinding.crop`."""
        return state.changed([-count for count in counts])

    @torch.inference_mode()
    def show(self, ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
        """Show observers one pass over each source or prompt in ids (B,S) and the output that was read.

        `written` has neither the start token nor the last token of the output. Rows past an output's end have no
        meaning. In a prompt of P tokens (the start token alone if it is empty), row P - 1 + t is the input that token t
        was predicted from.
        """
        if not observing(self.network):
            return
        if isinstance(self.network, EncoderDecoder | RecurrentSeq2Seq):
            ids, token_mask = left_align(ids, token_mask)
            target, _ = padded([[self.start_id, *row] for row in written], self.pad_id, ids.device)
            self.network(ids, target, source_token_mask=token_mask, project=False)
            return
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        prompts = [row[keep].tolist() or [self.start_id] for row, keep in zip(ids, real)]  # never empty
        rows = [[*prompt, *after] for prompt, after in zip(prompts, written)]
        read_ids, real = padded(rows, self.pad_id, ids.device)
        self.network(read_ids, token_mask=real, project=False)
