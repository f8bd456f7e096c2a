"""A language model as a step function: the prompt read at once, then token by token with cached keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.observe import observing, unobserved
from atento.networks.stack.stack import StackState

if TYPE_CHECKING:
    from atento.networks.stack.decoder import Decoder


@dataclass
class PromptState:
    """What was read so far; where prompts differ in length, also which of it is real and where each row stands."""

    stack: StackState
    real: Tensor | None = None  # (B,S) boolean
    lengths: Tensor | None = None  # (B,): the position of the next token

    def select(self, rows: Tensor) -> PromptState:
        """Only those batch rows, in that order."""
        real = None if self.real is None else self.real.index_select(0, rows)
        lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        return PromptState(self.stack.select(rows), real, lengths)


def last_tokens(ids: Tensor, token_mask: Tensor | None, start_id: int) -> Tensor:
    """Each row's last real token of ids (B,T), padded on either side, -> (B,); the start token for an empty row."""
    known = F.pad(ids, (1, 0), value=start_id)  # (B,1+T)
    if token_mask is None:
        return known[:, -1]
    places = torch.arange(known.shape[1], device=ids.device)
    last = torch.where(F.pad(token_mask, (1, 0), value=True), places, 0).amax(dim=1)
    return known.gather(1, last.unsqueeze(1)).squeeze(1)


class DecoderSteps:
    """begin (B,T) -> a state that has read all of each prompt but its last token; step -> logits (R,V).

    See docs/notes.md#h12.

    Prompts may be padded on either side; inside they are moved to end together, and each counts its own positions.
    """

    def __init__(self, network: Decoder) -> None:
        self.network = network
        config = network.config
        self.start_id, self.eos_id, self.pad_id = config.start_id, config.eos_id, config.pad_id
        self.prompts: list[list[int]] = []

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """The last real token of each row of ids (B,T), which the first step reads; the start token of an empty one."""
        return last_tokens(ids, token_mask, self.start_id)

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> PromptState:
        """Reads ids (B,T), all but each row's last real token."""
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        self.prompts = [row[keep].tolist() or [self.start_id] for row, keep in zip(ids, real)]
        order = torch.argsort(real.int(), dim=1, stable=True)  # padding first, the order of real tokens kept
        ids, real = ids.gather(1, order)[:, :-1], real.gather(1, order)[:, :-1]
        state = self.network.begin()
        if bool(real.all()):
            if ids.shape[1]:
                with unobserved():
                    self.network(ids, state=state, project=False)
            return PromptState(state)
        with unobserved():
            places = (real.long().cumsum(dim=1) - 1).clamp_min_(0)
            self.network(ids, token_mask=real, position_ids=places, state=state, project=False)
        return PromptState(state, real, real.sum(dim=1))

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """tokens (R,) or several (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        count = tokens.shape[1]
        real = places = None
        lengths = state.lengths
        if state.real is not None and lengths is not None:
            real = torch.cat([state.real, torch.ones_like(tokens, dtype=torch.bool)], dim=1)
            places = lengths.unsqueeze(1) + torch.arange(count, device=tokens.device)
            lengths = lengths + count
        with unobserved():
            output = self.network(tokens, token_mask=real, position_ids=places, state=state.stack, project=False)
        logits = self.network.project(output.hidden[:, -1])
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return wide, PromptState(output.state, real, lengths)

    @torch.inference_mode()
    def end(self, written: list[list[int]]) -> None:
        """Told what each row's best output read: prompt and output are shown, whole, to whoever observes.

        Of a prompt of P tokens (the start token alone, if it is empty) row P - 1 + t is what was read to write token t.
        """
        if not observing(self.network):
            return
        rows = [[*prompt, *ids] for prompt, ids in zip(self.prompts, written)]
        longest = max(len(row) for row in rows)
        device = self.network.embedding.weight.device
        ids = torch.tensor([[*row, *[self.pad_id] * (longest - len(row))] for row in rows], device=device)
        real = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows], device=device)
        self.network(ids, token_mask=real, project=False)
