"""The decoder-only language model: GPT-1, GPT-2, Llama, prefix LM, as configurations of the one stack.

See docs/notes.md#c9, #c10.
"""

from __future__ import annotations

from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig
from atento.networks.frozen import current
from atento.networks.heads import make_heads
from atento.networks.interface import Network, layer_count
from atento.networks.layers import LayerMix, TokenEmbedding, initialise
from atento.networks.output import Output
from atento.networks.stack.stack import MaskArgument, Stack, StackState, within_window
from atento.networks.stack.stack_positions import InputLayer, total_cost


class Decoder(Network):
    """Decodes a text under a causal mask; `mask` replaces it, as for a prefix LM."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1: got {config.vocab_size}")
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=config.embedding.scaled)
        self.inputs = InputLayer(config)
        self.stack = Stack(config, kind="decoder", n_layers=config.n_layers)
        self.mix = LayerMix(config.n_layers + 1, norm=config.norm == "pre") if config.layer_mix else None
        self.heads = make_heads(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights with `initialise`."""
        initialise(self, self.config)

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

        def compute() -> Tensor:
            x = self.inputs(
                self.embedding(ids),
                0 if state is None else state.length,
                position_ids=position_ids,
                token_mask=None if token_mask is None else token_mask[:, -ids.shape[1] :],
                random=random,
            )
            layers: list[Tensor] = []
            states: Tensor = self.stack(
                x,
                mask=mask,
                token_mask=token_mask,
                position_ids=position_ids,
                state=state,
                random=random,
                layers=None if self.mix is None else layers,
            )
            return states if self.mix is None else self.mix.joined(layers)

        # hidden vectors of a frozen network are computed once; a mask, positions or a state would change them
        vectors = current() if mask is None and position_ids is None and state is None else None
        if vectors is None:
            hidden = compute()
        else:
            hidden = vectors.hidden(compute, ids, token_mask, None).to(next(self.parameters()).dtype)
        if self.mix is not None:
            hidden = self.mix.of_joined(hidden)
        return Output(hidden, self.project(hidden) if project else None, state=state)

    def in_place_of_its_mask(self, mask: Mask) -> Mask | list[Mask]:
        """As `Network.in_place_of_its_mask`."""
        return within_window(mask, self.config)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`, under the causal mask."""
        depth = layer_count(layer, self.config.n_layers)
        x = self.inputs(self.embedding(ids), token_mask=token_mask)
        hidden: Tensor = self.stack(x, token_mask=token_mask, depth=depth)
        return hidden

    def cost(self) -> Tensor | None:
        """The cost of learned sparsity, added to the loss, in nats a target; None: no cost (docs/notes.md#a17)."""
        return total_cost(self)

    def begin(self) -> StackState:
        """An empty decode state for `forward(..., state=...)`."""
        return self.stack.begin()

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of tokens."""
        return self.embedding
