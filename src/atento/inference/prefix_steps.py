"""The step function of networks that read a prompt in both directions, as in prefix language modelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor

from atento.attention.masks import prefix
from atento.attention.multihead import Selectable
from atento.attention.observe import observing, unobserved
from atento.inference.plain import ROUNDING, last_tokens, padded, without_last_token
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack_decoders import Decoder
from atento.networks.stack.stack_positions import real_positions
from atento.networks.vocabulary import at_least_float32

Prompt = Literal["causal", "prefix"]


@dataclass
class TextState(Selectable):
    """The texts so far, padded on the left: ids (R,T), the real ones (R,T), the columns of the prefix (R,)."""

    ids: Tensor
    real: Tensor
    prefix: Tensor

    def ending_together(self) -> TextState:
        """The same texts with their last real tokens in one column, without columns that no text needs."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        last = torch.where(self.real, columns, -1).amax(dim=1)
        shift = last - int(last.max())  # (R,): at most 0
        source = columns[: int(last.max()) + 1] + shift.unsqueeze(1)  # the column that each comes from
        inside, source = source >= 0, source.clamp_min_(0)
        prefix = torch.where(self.prefix > 0, self.prefix - shift, self.prefix)
        return TextState(self.ids.gather(1, source), self.real.gather(1, source) & inside, prefix)


class PrefixStepFunction:
    """Continues prompts with an `Encoder` or a `Decoder`, under the mask that it was trained with.

    The tokens of a prompt before the last one attend to each other in both directions; the last one and those that
    follow attend to all tokens before them. Under the causal mask no token attends to later ones. A window of the
    network holds under both. Each step reads the text again: nothing is cached.

    Args:
        network: in evaluation mode; with a vocabulary head.
        prompt: "prefix", or "causal" for an encoder that was trained with a causal mask.
    """

    def __init__(self, network: Encoder | Decoder, prompt: Prompt = "prefix") -> None:
        self.network, self.prompt = network, prompt
        config = network.config
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids
        self.first_tokens = partial(last_tokens, start_id=config.start_id)  # what the first step reads

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> TextState:
        """The state after all of each prompt in ids (B,T) but its last real token."""
        ids, real = without_last_token(ids, token_mask)
        columns = ids.shape[1] if self.prompt == "prefix" else 0
        return TextState(ids, real, torch.full((len(ids),), columns, device=ids.device))

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: TextState) -> tuple[Tensor, TextState]:
        """tokens (R,) or several (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        ids = torch.cat([state.ids, tokens], dim=1)
        real = torch.cat([state.real, torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        with unobserved():
            hidden = self._read(ids, real, state.prefix)
        return at_least_float32(self.network.project(hidden[:, -1])), TextState(ids, real, state.prefix)

    @property
    def rounding(self) -> float:
        """As `decoding.contract.Rewinding.rounding`."""
        return ROUNDING[next(self.network.parameters()).dtype]

    def rewindable(self, state: TextState) -> TextState:
        """As `decoding.contract.Rewinding.rewindable`."""
        return state

    @torch.inference_mode()
    def step_all(self, tokens: Tensor, counts: Sequence[int], state: TextState) -> tuple[Tensor, TextState]:
        """As `decoding.contract.Rewinding.step_all`."""
        count = tokens.shape[1]
        steps = torch.arange(count, device=tokens.device)  # (T,)
        is_new = steps < torch.tensor(counts, device=tokens.device).unsqueeze(1)  # (R,T), no padding
        ids, real = torch.cat([state.ids, tokens], dim=1), torch.cat([state.real, is_new], dim=1)
        with unobserved():
            hidden = self._read(ids, real, state.prefix)  # (R,L+T,D)
        logits = at_least_float32(self.network.project(hidden[:, -count:]))  # (R,T,V)
        return logits, TextState(ids, real, state.prefix).ending_together()

    def crop(self, state: TextState, counts: Sequence[int]) -> TextState:
        """As `decoding.contract.Rewinding.crop`."""
        columns = torch.arange(state.ids.shape[1], device=state.ids.device)
        remaining = columns < len(columns) - torch.tensor(counts, device=columns.device).unsqueeze(1)
        return TextState(state.ids, state.real & remaining, state.prefix).ending_together()

    def _read(self, ids: Tensor, real: Tensor, columns: Tensor) -> Tensor:
        """One forward pass over texts (R,T) -> (R,T,D)."""
        padding = {} if bool(real.all()) else {"token_mask": real, "position_ids": real_positions(real)}
        mask = self.network.with_own_window(prefix(columns))
        return cast(Tensor, self.network(ids, mask=mask, project=False, **padding).hidden)

    @torch.inference_mode()
    def show(self, ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
        """Show observers one pass over each prompt in ids (B,T) and the output that was read, without its last token.

        Rows are those of `PlainStepFunction.show`.
        """
        if not observing(self.network):
            return
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        prompts = [row[keep].tolist() or [self.start_id] for row, keep in zip(ids, real)]
        texts, real = padded([[*p, *after] for p, after in zip(prompts, written)], self.pad_id, ids.device)
        lengths = [len(prompt) - 1 if self.prompt == "prefix" else 0 for prompt in prompts]
        self._read(texts, real, torch.tensor(lengths, device=ids.device))
