"""The recurrent language model: predicts each token from the state after those before it (docs/notes.md#c17b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.dropout import Randomness, fresh
from atento.attention.multihead import Selectable
from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.networks.heads import make_heads
from atento.networks.interface import Network, of_new_tokens, refuse_inner_layer
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.recurrent.cells import LayerState, RecurrentStack, joined_layers, reset_recurrent


@dataclass
class LanguageModelState(Selectable):
    """The state of every layer, None before the first token, and the number of positions that were read."""

    layers: list[LayerState] | None = None
    length: int = 0

    def joined(self, others: Sequence[LanguageModelState]) -> LanguageModelState:
        """The rows of this state, then those of the others, which may have read more or fewer tokens."""
        states = [self, *others]
        length = max(state.length for state in states)
        return LanguageModelState(joined_layers([state.layers for state in states]), length)


class RecurrentLM(Network):
    """p(y_t | y_<t) by LSTM, GRU or plain cells, dropout on all but the recurrent links (Zaremba et al. 2014)."""

    stepwise = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        recurrent = config.recurrent or RecurrentConfig()
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=config.embedding.scaled)
        sizes = (config.d_model, config.d_model, config.n_layers)
        self.stack = RecurrentStack(recurrent.cell, *sizes, dropout=config.dropout)
        self.heads = make_heads(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights with `reset_recurrent`."""
        reset_recurrent(self, self.config.d_model)

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        mask: object = None,
        state: LanguageModelState | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass, or the next tokens of a cached one; arguments and result as in `Decoder.forward`.

        The output at position t predicts the token at t + 1. Padding may be on either side and changes no state. With a
        `state`, `token_mask` may also cover the tokens that were read before.

        Raises:
            CapabilityError: a mask is given; a recurrent network reads from left to right.
        """
        if mask is not None:
            description = repr(mask) if isinstance(mask, Mask) else f"a {type(mask).__name__}"
            raise CapabilityError(
                f"a recurrent network reads from left to right and takes no `mask`: got {description}"
            )
        random = fresh(random) if self.training and self.config.dropout else random
        x = self.dropped(self.embedding(ids), random)  # (B,T,D)
        before = None if state is None else state.layers
        hidden, layers = self.stack(x, before, token_mask=of_new_tokens(token_mask, ids), random=random)
        if state is not None:
            state.layers, state.length = layers, state.length + ids.shape[1]
        hidden = self.dropped(hidden, random)
        return Output(hidden, self.project(hidden) if project else None, state=state)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`, of the last layer alone."""
        refuse_inner_layer(layer, self.config.n_layers, "a recurrent network")
        hidden: Tensor = self(ids, token_mask=token_mask, project=False).hidden
        return hidden

    def begin(self) -> LanguageModelState:
        """An empty decode state for `forward(..., state=...)`."""
        return LanguageModelState()

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of tokens."""
        return self.embedding
