"""The encoder: BERT, RoBERTa, XLM-R, SpanBERT and T5's reading half, as configurations of the one stack.

See docs/notes.md#c6, #a6.
"""

from __future__ import annotations

from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.masks import bidirectional
from atento.attention.sparse import total_cost
from atento.config.network import NetworkConfig
from atento.errors import CapabilityError, nearest
from atento.networks.heads import LinearHead, MaskedLanguageHead, Pooler, first_token, make_head, mean_token
from atento.networks.initial import initialise
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.stack.inputs import InputLayer
from atento.networks.stack.stack import MaskArgument, Stack


class Encoder(nn.Module):
    """Reads a text with every token seeing every other; its heads say what is read off it."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1: got {config.vocab_size}")
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=config.scale_embedding)
        self.inputs = InputLayer(config)
        self.stack = Stack(config, kind="encoder", n_layers=config.n_layers, own_mask=bidirectional())
        self.pooler = Pooler(config.d_model) if config.pooler else None
        self.heads = nn.ModuleDict({head.kind: make_head(config, head) for head in config.heads})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh weights, as `initialise` says."""
        initialise(self, self.config)

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        mask: MaskArgument = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass.

        Args:
            ids: (B,L). token_mask: boolean (B,L), True = a real token.
            segment_ids: (B,L), 0 where not given. position_ids: (B,L), 0 to L-1 where not given.
            mask: replaces the bidirectional mask (a list: one a layer); the padding mask is always joined to it.
            random: where dropout draws from while training.
            project: False leaves `logits` None.

        Returns:
            Output with hidden (B,L,D), pooled (B,D) where there is a pooler, logits of the first head.
        """
        x = self.inputs(
            self.embedding(ids),
            position_ids=position_ids,
            segment_ids=segment_ids,
            token_mask=token_mask,
            random=random,
        )
        hidden = self.stack(x, mask=mask, token_mask=token_mask, position_ids=position_ids, random=random)
        pooled = None if self.pooler is None else self.pooler(hidden, token_mask)
        output = Output(hidden, pooled=pooled)
        first = next((kind for kind in self.heads if kind != "span-boundary"), None)
        if project and first is not None:
            output.logits = self.read(first, output, token_mask, random)
        return output

    def read(
        self, kind: str, output: Output, token_mask: Tensor | None = None, random: Randomness | None = None
    ) -> Tensor:
        """What the head of that kind reads off an output: (B,L,V), (B,L,C) or (B,C).

        Raises:
            CapabilityError: there is no such head, or it reads chosen positions (`network.heads[kind]` then).
        """
        if kind not in self.heads:
            raise CapabilityError(f"this network has no {kind!r} head{nearest(kind, list(self.heads))}")
        head = self.heads[kind]
        if isinstance(head, MaskedLanguageHead):
            logits: Tensor = head(output.hidden, self.embedding)
            return logits
        if not isinstance(head, LinearHead):
            raise CapabilityError(f"the {kind} head reads chosen positions; call it itself")
        x = output.hidden
        if head.pools and head.config.pooling == "pooler" and output.pooled is not None:
            x = output.pooled
        elif head.pools:
            x = (mean_token if head.config.pooling == "mean" else first_token)(x, token_mask)
        out: Tensor = head(x, random)
        return out

    def cost(self) -> Tensor | None:
        """What learned sparsity asks the loss to count, nats a target; None where there is none (docs/notes.md#a17)."""
        return total_cost(self)
