"""The decoder-only language model: GPT-1, GPT-2, Llama, prefix LM, as configurations of the one stack.

See docs/notes.md#c9, #c10.
"""

from __future__ import annotations

from torch import Tensor

from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig
from atento.networks.heads import make_heads
from atento.networks.output import Output
from atento.networks.stack.stack import MaskArgument, OneStack, StackState


class Decoder(OneStack):
    """Decodes a text under a causal mask; `mask` replaces it, as for a prefix LM."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config, kind="decoder")
        self.heads = make_heads(config)
        self.reset_parameters()

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        mask: MaskArgument = None,
        state: StackState | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass, or one cached step of it.

        Args:
            ids: (B,T); with a `state` only the new ones.
            token_mask: boolean (B,T), True = a real token; with a `state` it covers the cached positions too.
            position_ids: (B,T); None: they continue from the state's length.
            mask: None = causal (a list: one a layer); the padding mask is always joined to it.
            state: from `begin()`; updated in place and returned.
            random: the random numbers of dropout in training.
            project: False leaves `logits` None, for losses that do their own projection.

        Returns:
            Output with hidden (B,T,D), of the last layer or the mix of layers, logits (B,T,V) and state.

        Raises:
            CapabilityError: a mask that looks ahead, with a state: cached keys and values are not recomputed.
        """
        hidden = self.hidden(
            ids, token_mask=token_mask, position_ids=position_ids, mask=mask, random=random, state=state
        )
        return Output(hidden, self.project(hidden) if project else None, state=state)

    def begin(self) -> StackState:
        """An empty decode state for `forward(..., state=...)`."""
        return self.stack.begin()
