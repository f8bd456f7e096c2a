"""The recurrent encoder-decoder, without and with attention (docs/notes.md#a5, #a10, #c11, #c12, #c13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.additive import AdditiveScore, BilinearScore, DotScore, attend_scored
from atento.attention.dropout import Randomness, fresh
from atento.attention.masks import Mask, padding
from atento.attention.multihead import Selectable
from atento.attention.observe import record_weights
from atento.attention.prepared_mask import PreparedMask, joined_masks, prepare_mask
from atento.base.errors import CapabilityError, RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import ASKED_BEFORE, RecurrentConfig
from atento.networks.heads import make_heads
from atento.networks.interface import Network, of_new_tokens, refuse_inner_layer
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.recurrent.cells import (
    LayerState,
    RecurrentStack,
    joined_layers,
    reset_recurrent,
)


@dataclass(frozen=True)
class Memory:
    """The encoded source: context C (B,D), keys projected for the score, values (B,S,D), and the mask."""

    context: Tensor
    ready: Tensor
    values: Tensor
    mask: PreparedMask

    def select(self, rows: Tensor) -> Memory:
        """Only those batch rows, in that order."""
        values = self.values.index_select(0, rows)  # (B,S,D)
        ready = values if self.ready is self.values else self.ready.index_select(0, rows)
        return Memory(self.context.index_select(0, rows), ready, values, self.mask.select(rows))

    def joined(self, others: Sequence[Memory]) -> Memory:
        """The rows of this source, then those of the others, padded on the right to the longest."""
        memories = [self, *others]
        longest = max(memory.values.shape[1] for memory in memories)

        def cat(parts: Sequence[Tensor]) -> Tensor:
            return torch.cat([F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])

        values = cat([memory.values for memory in memories])
        ready = values if self.ready is self.values else cat([memory.ready for memory in memories])
        masks = joined_masks([memory.mask for memory in memories], [len(memory.values) for memory in memories])
        return Memory(torch.cat([memory.context for memory in memories]), ready, values, masks)


@dataclass
class Seq2SeqState(Selectable):
    """The state of the decoder between steps; `memory` None: it has not read the source yet.

    `layers` are the states of its layers; `fed` (B,D) is the last attentional vector, with input feeding; `length` is
    the number of tokens that it has read.
    """

    memory: Memory | None = None
    layers: list[LayerState] | None = None
    fed: Tensor | None = None
    length: int = 0

    def joined(self, others: Sequence[Seq2SeqState]) -> Seq2SeqState:
        """The rows of this state, then those of the others, which may have read more or fewer tokens."""
        states = [self, *others]
        memories = [state.memory for state in others if state.memory is not None]
        fed = [state.fed for state in states if state.fed is not None]  # (B,D) each
        return Seq2SeqState(
            None if self.memory is None else self.memory.joined(memories),
            joined_layers([state.layers for state in states]),
            torch.cat(fed) if fed else None,
            max(state.length for state in states),
        )


class SourceAttention(nn.Module):
    """One head: the decoder's state is the query, the encoder's states are keys and values (docs/notes.md#a10).

    c_i = Σ_j α_ij v_j, α = softmax over j of score(s_i, h_j). Observed as ("cross", 0).
    """

    kind, layer = "cross", 0

    def __init__(self, d_model: int, *, score: str, values: str) -> None:
        super().__init__()
        scores: dict[str, AdditiveScore | BilinearScore | DotScore] = {"dot": DotScore()}
        if score == "additive":
            scores[score] = AdditiveScore(d_model, d_model, d_model)
        elif score == "bilinear":
            scores[score] = BilinearScore(d_model, d_model)
        self.score = scores[score]
        self.value = nn.Linear(d_model, d_model, bias=False) if values == "projected" else None

    def forward(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """queries (B,T,D) -> context (B,T,D), weights (B,T,S); padded source positions weigh exactly 0."""
        return attend_scored(self.score(queries, memory.ready), memory.values, memory.mask)  # keys come projected


class RecurrentDecoder(nn.Module):
    """Computes the next state, and the vector that is projected to the vocabulary, from state, token and context.

    See docs/notes.md#c12.

    Without attention the context is C, the source's last state, at every step (Cho et al. 2014). The query of
    additive attention is the state before the step, and the cell reads the context (Bahdanau et al. 2015). In both, the
    output is a maxout of state, token and context, and the first state is tanh(V C). The query of bilinear and dot
    attention is the state after the step, and the output is tanh(W [context; state]) (Luong et al. 2015), fed to the
    next step with `input_feeding`.
    """

    def __init__(self, config: NetworkConfig, recurrent: RecurrentConfig) -> None:
        super().__init__()
        width, self.recurrent = config.d_model, recurrent
        self.queries_before_step = recurrent.attention in ASKED_BEFORE
        reads_context = self.queries_before_step or recurrent.input_feeding  # beside the token, one more vector
        sizes = (2 * width if reads_context else width, width, config.decoder_layers)
        self.stack = RecurrentStack(recurrent.cell, *sizes, dropout=config.dropout)
        self.bridge = nn.Linear(width, config.decoder_layers * self.stack.cell.parts * width)
        self.attention = None
        if recurrent.attention != "none":
            self.attention = SourceAttention(width, score=recurrent.attention, values=recurrent.values)
        before = self.queries_before_step
        self.join = nn.Linear(3 * width, 2 * width) if before else nn.Linear(2 * width, width, bias=False)

    def begin(self, encoded: Tensor, token_mask: Tensor | None) -> Seq2SeqState:
        """The decode state after the source: encoded (B,S,D), token mask (B,S)."""
        context = last_state(encoded, token_mask, bidirectional=self.recurrent.bidirectional)  # (B,D)
        parts = self.stack.cell.parts
        first = torch.tanh(self.bridge(context)).chunk(len(self.stack.layers) * parts, dim=-1)
        layers: list[LayerState] = [first[at : at + parts] for at in range(0, len(first), parts)]  # (h,) or (h, c) each
        ready = values = encoded
        if self.attention is not None:  # keys and values are projected once for all steps
            ready = self.attention.score.project(encoded)
            values = encoded if self.attention.value is None else self.attention.value(encoded)
        real = None if token_mask is None or bool(token_mask.all()) else padding(token_mask)
        mask = prepare_mask(real, 1, encoded.shape[1], encoded.device)  # the same for every query: one row is enough
        fed = torch.zeros_like(context) if self.recurrent.input_feeding else None  # (B,D): nothing has been fed yet
        return Seq2SeqState(Memory(context, ready, values, mask), layers, fed)

    def forward(
        self, x: Tensor, state: Seq2SeqState, *, token_mask: Tensor | None = None, random: Randomness | None = None
    ) -> Tensor:
        """x (B,T,D), the embedded previous tokens -> (B,T,D); `state` is updated in place.

        Tokens that are not `token_mask` (B,T) change no state; the output at their positions has no meaning.
        """
        assert state.memory is not None and state.layers is not None
        depends_on_context = self.attention is not None and (self.queries_before_step or self.recurrent.input_feeding)
        if depends_on_context and x.shape[1]:
            hidden, weights = self._step_by_step(x, state, token_mask, random)
        else:
            # attention comes after the step, without input feeding: all states first, then all contexts
            context = state.memory.context.unsqueeze(1).expand(-1, x.shape[1], -1)  # C, the same at every step
            inputs = torch.cat([x, context], dim=-1) if self.queries_before_step else x
            states, state.layers = self.stack(inputs, state.layers, token_mask=token_mask, random=random)
            weights = x.new_zeros(x.shape[0], x.shape[1], 0)  # (B,T,0), without attention
            if self.attention is not None:
                context, weights = self.attention(states, state.memory)
            hidden, weights = self._join(states, x, context), weights
        if self.attention is not None:
            record_weights(self.attention, self.attention.kind, self.attention.layer, weights)
        state.length += x.shape[1]
        return hidden

    def _step_by_step(
        self, x: Tensor, state: Seq2SeqState, token_mask: Tensor | None, random: Randomness | None
    ) -> tuple[Tensor, Tensor]:
        """For a step that depends on the context of the step before."""
        assert self.attention is not None and state.memory is not None and state.layers is not None
        states, contexts, weights, fed = [], [], [], []
        for t, token in enumerate(x.unbind(dim=1)):  # (B,D)
            before = state.layers
            if self.queries_before_step:
                context, row = self.attention(before[-1][0].unsqueeze(1), state.memory)  # (B,1,D), (B,1,S)
                after = self.stack.step(torch.cat([token, context.squeeze(1)], dim=-1), before, random)
            else:
                assert state.fed is not None
                after = self.stack.step(torch.cat([token, state.fed], dim=-1), before, random)
                context, row = self.attention(after[-1][0].unsqueeze(1), state.memory)
                fed.append(self._join(after[-1][0], token, context.squeeze(1)))  # Luong's output, (B,D)
                state.fed = fed[-1] if token_mask is None else torch.where(token_mask[:, t, None], fed[-1], state.fed)
            state.layers = after
            if token_mask is not None:  # rows whose token is padding keep their states
                real, pairs = token_mask[:, t, None], [zip(*layer) for layer in zip(after, before)]  # (B,1)
                state.layers = [tuple(torch.where(real, new, old) for new, old in layer) for layer in pairs]
            states.append(after[-1][0])  # h of the last layer, (B,D)
            contexts.append(context)
            weights.append(row)
        if fed:
            return torch.stack(fed, dim=1), torch.cat(weights, dim=1)  # (B,T,D), (B,T,S)
        hidden = self._join(torch.stack(states, dim=1), x, torch.cat(contexts, dim=1))
        return hidden, torch.cat(weights, dim=1)

    def _join(self, state: Tensor, token: Tensor, context: Tensor) -> Tensor:
        """The vector that is projected, (...,D): maxout of state, token and context, or Luong's tanh of context and
        state."""
        if not self.queries_before_step:
            return torch.tanh(self.join(torch.cat([context, state], dim=-1)))  # W [c; s]
        pieces: Tensor = self.join(torch.cat([state, token, context], dim=-1))  # (...,2D)
        return pieces.view(*pieces.shape[:-1], -1, 2).amax(dim=-1)  # the larger of each pair


def last_state(encoded: Tensor, token_mask: Tensor | None, *, bidirectional: bool) -> Tensor:
    """C, the last state of the encoder: encoded (B,S,D) -> (B,D); a row without a real token gives zeros, so S may be
    0.

    Reading forward ends at the last real token; reading backward, the second half of D, ends at the first.
    """
    if encoded.shape[1] == 0:
        return encoded.new_zeros(encoded.shape[0], encoded.shape[2])
    if token_mask is None:
        first, last = encoded[:, 0], encoded[:, -1]
    else:
        rows = torch.arange(encoded.shape[0], device=encoded.device)
        real = token_mask.to(torch.uint8)
        first = encoded[rows, real.argmax(dim=1)]  # argmax of 0 and 1 is the first 1
        last = encoded[rows, encoded.shape[1] - 1 - real.flip(1).argmax(dim=1)]  # the last 1, as the first from behind
    if not bidirectional:
        return last
    half = encoded.shape[-1] // 2
    return torch.cat([last[:, :half], first[:, half:]], dim=-1)  # each direction where it ends


class RecurrentSeq2Seq(Network):
    """Encodes a source with a recurrent network, in one or both directions, and decodes a target with another one.

    It has the signature and the embeddings of `EncoderDecoder`: one table for source and target, tied to the output, or
    not.
    """

    stepwise = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        recurrent = config.recurrent or RecurrentConfig()
        if recurrent.bidirectional and config.d_model % 2:
            raise RecipeError(f"`d_model` must be even for a bidirectional encoder: got {config.d_model}")
        self.config = config
        scale = config.embedding.scaled
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=scale)
        self.target_embedding = (
            None if config.embedding.shared else TokenEmbedding(config.target_vocab_size, config.d_model, scale=scale)
        )
        sizes, both = (config.d_model, config.d_model, config.n_layers), recurrent.bidirectional
        self.encoder = RecurrentStack(recurrent.cell, *sizes, bidirectional=both, dropout=config.dropout)
        self.decoder = RecurrentDecoder(config, recurrent)
        self.heads = make_heads(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights with `reset_recurrent`."""
        reset_recurrent(self, self.config.d_model)

    def encode(
        self, source_ids: Tensor, *, source_token_mask: Tensor | None = None, random: Randomness | None = None
    ) -> Tensor:
        """source_ids (B,S), token mask (B,S) True = real -> the states h_j (B,S,D), zeros at padded positions."""
        x = self.dropped(self.embedding(source_ids), random)
        states: Tensor = self.encoder(x, token_mask=source_token_mask, random=random)[0]
        return states

    def forward(
        self,
        source_ids: Tensor | None,
        target_ids: Tensor | None = None,
        *,
        source_token_mask: Tensor | None = None,
        target_token_mask: Tensor | None = None,
        mask: object = None,
        encoded: Tensor | None = None,
        state: Seq2SeqState | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass, or one cached step of it; arguments and result as in `EncoderDecoder.forward`.

        Padding is on either side. With a `state`, `target_token_mask` may also cover what was read before.

        Raises:
            CapabilityError: a mask is given; a recurrent decoder has none to replace.
        """
        if mask is not None:
            description = repr(mask) if isinstance(mask, Mask) else f"a {type(mask).__name__}"
            raise CapabilityError(
                f"a recurrent network takes no `mask`, its order is fixed; use token masks for padding: got "
                f"{description}"
            )
        random = fresh(random) if self.training and self.config.dropout else random
        current = self.begin() if state is None else state
        if encoded is None and (target_ids is None or current.memory is None):
            if source_ids is None:
                raise ValueError("give `source_ids`, or `encoded`, or a `state` that has seen the source")
            encoded = self.encode(source_ids, source_token_mask=source_token_mask, random=random)
        if target_ids is None:
            assert encoded is not None
            return Output(encoded, encoded=encoded)
        if current.memory is None:
            assert encoded is not None
            fresh_state = self.decoder.begin(encoded, source_token_mask)
            current.memory, current.layers, current.fed = fresh_state.memory, fresh_state.layers, fresh_state.fed
        x = self.dropped(self.table(target_ids), random)
        real = of_new_tokens(target_token_mask, target_ids)
        hidden = self.dropped(self.decoder(x, current, token_mask=real, random=random), random)
        return Output(hidden, self.project(hidden) if project else None, encoded=encoded, state=state)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`, of the source and of the last layer alone."""
        refuse_inner_layer(layer, self.config.n_layers, "a recurrent network")
        return self.encode(ids, source_token_mask=token_mask)

    def begin(self) -> Seq2SeqState:
        """An empty decode state for `forward(..., state=...)`."""
        return Seq2SeqState()

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of target tokens."""
        return self.embedding if self.target_embedding is None else self.target_embedding
