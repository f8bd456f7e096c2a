"""The recurrent language model as a step function: the prompt once, then a token at a time (docs/notes.md#h12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atento.networks.steps.decoder import last_tokens

if TYPE_CHECKING:
    from atento.networks.recurrent.language_model import LanguageModelState, RecurrentLM


class RecurrentLMSteps:
    """begin reads a prompt (B,T) but for each row's last token, which `first_tokens` names as the first step's."""

    def __init__(self, network: RecurrentLM) -> None:
        self.network = network
        config = network.config
        self.start_id, self.eos_id, self.pad_id = config.start_id, config.eos_id, config.pad_id

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> LanguageModelState:
        """The state after all of each row's real tokens but the last; padding may stand on either side."""
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        after = real.flip(1).cumsum(dim=1).flip(1)  # how many real tokens stand here and to the right
        state: LanguageModelState = self.network(
            ids, token_mask=real & (after > 1), state=self.network.begin(), project=False
        ).state
        return state

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """Each row's last real token, (B,); the start token for an empty prompt."""
        return last_tokens(ids, token_mask, self.start_id)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: LanguageModelState) -> tuple[Tensor, LanguageModelState]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        output = self.network(tokens, state=state, project=False)
        return _exact(self.network.project(output.hidden[:, -1])), output.state


def _exact(logits: Tensor) -> Tensor:
    """Half precisions as float32: sums of log-probabilities are made of them."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
