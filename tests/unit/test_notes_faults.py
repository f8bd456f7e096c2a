"""Faults planted in attention, positions and networks: the row that is about each must report a failure (W20)."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from atento.attention import additive as scored
from atento.attention import entmax, masks, positions, relative
from atento.attention.entmax import Entmax
from atento.attention.masks import bidirectional
from atento.attention.multihead import MultiHeadAttention
from atento.attention.observe import Observation
from atento.attention.positions import Learned, Rotary, Sinusoidal
from atento.attention.relative import Gated, RelativeMatrix, Shaw
from atento.config import presets
from atento.config.sections.initial import InitConfig
from atento.data.batches import windows
from atento.decoding.beam import groups
from atento.inspection import ablation, decompose, head_statistics
from atento.networks import ELMo, EncoderDecoder, describe, layers
from atento.networks.layers import FeedForward, Residual
from atento.networks.rare_layers import LayerMix
from atento.networks.recurrent import cells as recurrent
from atento.networks.recurrent import seq2seq as recurrent_seq2seq
from atento.networks.recurrent.elmo import ProjectedLSTM
from atento.networks.stack import stack
from atento.networks.stack.stack_positions import InputLayer
from atento.networks.words import cbow
from atento.notes import listing_attention
from atento.training import scheduled_sampling
from atento_cli.plans import position_report
from atento_lab.notes.checks import partly_trained
from planting import Fault, Patch, assert_seen, everywhere, wrapped

# The five that went unseen ------------------------------------------------------------------------------------------


def alibi_slopes_of_another_count(patch: Patch) -> None:
    everywhere(patch, relative.alibi_slopes, lambda n: torch.tensor([2 ** (-8 * (head + 1) / n) for head in range(n)]))


def sure_as_likely(patch: Patch) -> None:
    def begin(right: Any, self: Any, strategy: Any, request: Any) -> None:
        right(self, replace(strategy, until="likely" if strategy.until == "sure" else strategy.until), request)

    wrapped(patch, groups.BeamRequest, "__init__", begin)


def elmo_without_skips(patch: Patch) -> None:
    def begin(right: Any, self: Any, config: Any) -> None:
        right(self, config)
        self.skip = False

    wrapped(patch, ELMo, "__init__", begin)


def alpha_too_small(patch: Patch) -> None:
    right = Entmax.alpha.fget
    patch.setattr(Entmax, "alpha", property(lambda self: 1 + 0.9 * (right(self) - 1)))


def negatives_hit_the_target(patch: Patch) -> None:
    def nats(self: Any, pooled: Any, targets: Any, negatives: Any) -> Any:
        right = (pooled * F.embedding(targets, self.output_weight)).sum(dim=-1)
        wrong = torch.einsum("nd,nkd->nk", pooled, F.embedding(negatives, self.output_weight))
        return -F.logsigmoid(right).sum() - F.logsigmoid(-wrong).sum()

    patch.setattr(cbow.CBOW, "_nats", nats)


# Attention and masks -------------------------------------------------------------------------------------------------


def alpha_of_the_call_too_small(patch: Patch) -> None:
    right = entmax.entmax
    everywhere(patch, right, lambda scores, alpha, dim=-1: right(scores, 1 + 0.9 * (alpha - 1), dim))


def spans_without_their_ramp(patch: Patch) -> None:
    right = entmax.soft_span
    everywhere(patch, right, lambda d, behind, ahead, ramp: right(d, behind, ahead, ramp).round())


def scaled_dot_score(patch: Patch) -> None:
    wrapped(patch, scored.DotScore, "forward", lambda right, self, q, k: right(self, q, k) / math.sqrt(q.shape[-1]))


def context_is_the_mean(patch: Patch) -> None:
    right = scored.attend_scored
    everywhere(patch, right, lambda scores, *rest: right(torch.zeros_like(scores), *rest))


def queries_and_keys_exchanged(patch: Patch) -> None:
    def load(right: Any, self: Any, weights: Any) -> None:
        right(self, {**weights, "query": weights["key"], "key": weights["query"]})

    wrapped(patch, MultiHeadAttention, "load_head_weights", load)


def another_layer_is_shown(patch: Patch) -> None:
    def weights(right: Any, self: Any, where: Any) -> Any:
        return right(self, (where[0], 0))

    wrapped(patch, Observation, "__getitem__", weights)


def heads_shown_in_reverse(patch: Patch) -> None:
    wrapped(patch, Observation, "__getitem__", lambda right, self, where: right(self, where).flip(1))


def listing_multiplies_twice(patch: Patch) -> None:
    right = listing_attention.attention

    def attention(q: Any, k: Any, v: Any) -> Any:
        context, weights = right(q, k, v)
        return weights[:, : len(context)] @ context if len(context) <= weights.shape[1] else context, weights

    everywhere(patch, right, attention)


def eight_tokens_of_the_past(patch: Patch) -> None:
    right = masks.causal
    patch.setattr(stack, "causal", lambda: right() & masks.window(8, 0))


def boxes_in_reverse(patch: Patch) -> None:
    right = describe.describe

    def turned(part: Any) -> Any:
        return replace(part, parts=tuple(turned(one) for one in reversed(part.parts)))

    everywhere(patch, right, lambda network: [turned(part) for part in right(network)])


def looks_one_further_ahead(patch: Patch) -> None:
    right = masks.lookahead
    everywhere(patch, right, lambda k: right(k + 1))


def window_one_too_wide(patch: Patch) -> None:
    right = masks.window
    everywhere(patch, right, lambda left, ahead: right(left + 1, ahead))


def documents_see_each_other(patch: Patch) -> None:
    everywhere(patch, masks.documents, lambda ids: bidirectional())


def prefix_one_too_short(patch: Patch) -> None:
    right = masks.prefix
    everywhere(patch, right, lambda n: right((n - 1).clamp(min=0) if isinstance(n, torch.Tensor) else max(0, n - 1)))


def listing_without_its_mask(patch: Patch) -> None:
    wrapped(patch, listing_attention, "attention_weights", lambda right, q, k, mask=None: right(q, k))


def language_model_sees_ahead(patch: Patch) -> None:
    patch.setattr(stack, "causal", bidirectional)


def entropy_in_bits(patch: Patch) -> None:
    right = head_statistics.describe_head

    def describe(*arguments: Any, **named: Any) -> Any:
        found = right(*arguments, **named)
        return replace(found, entropy=found.entropy / math.log(2))

    everywhere(patch, right, describe)


# Positions -----------------------------------------------------------------------------------------------------------


def one_way_buckets_both_ways(patch: Patch) -> None:
    right = relative.t5_buckets
    everywhere(patch, right, lambda distance, n, most, both: right(distance, n, most, False))


def matrix_outside_the_scaling(patch: Patch) -> None:
    def begin(right: Any, self: Any, *arguments: Any, **named: Any) -> None:
        right(self, *arguments, **named)
        self.scaled = False

    wrapped(patch, RelativeMatrix, "__init__", begin)


def values_without_distances(patch: Patch) -> None:
    wrapped(patch, Shaw, "values", lambda right, self, weights, places: 0 * right(self, weights, places))


def schemes_in_every_head(patch: Patch) -> None:
    def factor(self: Any, like: Any) -> Any:
        every = torch.ones(self.n_heads) if self.gate is None else self.gate
        return every.to(like).view(-1, 1, 1)

    patch.setattr(Gated, "_factor", factor)


def sines_beside_sines(patch: Patch) -> None:
    right = positions.sinusoids
    everywhere(patch, right, lambda places, width, *rest, **named: right(places, width, *rest, interleaved=False))


def turned_by_the_square(patch: Patch) -> None:
    """Rotations that grow with the square of the place depend on more than the distance."""
    wrapped(patch, Rotary, "at", lambda right, self, places, *rest: right(self, places**2, *rest))


def embedding_doubled(patch: Patch) -> None:
    wrapped(patch, layers.TokenEmbedding, "forward", lambda right, self, ids: 2 * right(self, ids))


def schemes_stay(patch: Patch) -> None:
    everywhere(patch, ablation.without_scheme, lambda network, name: nullcontext())


def pieces_averaged(patch: Patch) -> None:
    def membership(right: Any, of: Any, like: Any) -> Any:
        found = right(of, like)
        return found / found.sum(dim=1, keepdim=True)

    wrapped(patch, decompose, "_membership", membership)


def steps_begin_at_position_0(patch: Patch) -> None:
    wrapped(patch, Sinusoidal, "vectors", lambda right, self, length, offset=0, *rest: right(self, length, 0, *rest))


def learned_offset_ignored(patch: Patch) -> None:
    wrapped(patch, Learned, "vectors", lambda right, self, length, offset=0, ids=None: right(self, length, 0, ids))


def past_the_table_the_last_row(patch: Patch) -> None:
    def vectors(self: Any, length: int, offset: int = 0, position_ids: Any = None) -> Any:
        return self.weight[torch.arange(offset, offset + length).clamp(max=self.max_len - 1)]

    patch.setattr(Learned, "vectors", vectors)


def padding_counted_as_tokens(patch: Patch) -> None:
    def places(right: Any, batch: Any) -> Any:
        inputs = {name: value for name, value in batch.inputs.items() if name != "source_token_mask"}
        return right(replace(batch, inputs=inputs, lengths={}))

    wrapped(patch, position_report, "_real_positions", places)


def another_base(patch: Patch) -> None:
    wrapped(patch, Sinusoidal, "_rows", lambda right, *arguments: right(*arguments) * 0.99)


# Blocks and networks -------------------------------------------------------------------------------------------------


def stream_counted_twice(patch: Patch) -> None:
    wrapped(patch, Residual, "after", lambda right, self, x, fx, random: right(self, 2 * x, fx, random))


def pre_norm_forgotten(patch: Patch) -> None:
    patch.setattr(Residual, "before", lambda self, x: x)


def epsilon_too_large(patch: Patch) -> None:
    wrapped(patch, F, "layer_norm", lambda right, x, shape, weight, bias, eps: right(x, shape, weight, bias, 1e-2))


def gelu_by_tanh(patch: Patch) -> None:
    patch.setitem(layers.ACTIVATIONS, "gelu", layers.ACTIVATIONS["gelu-tanh"])


def second_bias_forgotten(patch: Patch) -> None:
    wrapped(patch, FeedForward, "forward", lambda right, self, x, random=None: right(self, x, random) - self.outer.bias)


def segments_exchanged(patch: Patch) -> None:
    def forward(right: Any, self: Any, x: Any, offset: int = 0, **named: Any) -> Any:
        if named.get("segment_ids") is None and self.segments is not None:
            named["segment_ids"] = torch.ones(x.shape[:2], dtype=torch.long)
        return right(self, x, offset, **named)

    wrapped(patch, InputLayer, "forward", forward)


def decoder_reads_nothing(patch: Patch) -> None:
    wrapped(patch, EncoderDecoder, "encode", lambda right, self, *ids, **named: 0 * right(self, *ids, **named))


def gru_resets_its_input(patch: Patch) -> None:
    def cell(weights: Any, x: Any, state: Any) -> Any:
        (h,) = state
        r, z, n = F.linear(x, weights[0], weights[2]).chunk(3, dim=-1)
        r_h, z_h, n_h = F.linear(h, weights[1], weights[3]).chunk(3, dim=-1)
        new, update = torch.tanh(torch.sigmoid(r + r_h) * n + n_h), torch.sigmoid(z + z_h)
        return ((1 - update) * new + update * h,)

    patch.setitem(recurrent.CELLS, "gru", replace(recurrent.CELLS["gru"], step=cell))


def lstm_keeps_too_much(patch: Patch) -> None:
    def cell(weights: Any, x: Any, state: Any) -> Any:
        h, c = state
        i, _, g, o = (F.linear(x, weights[0], weights[2]) + F.linear(h, weights[1], weights[3])).chunk(4, dim=-1)
        c = c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    patch.setitem(recurrent.CELLS, "lstm", replace(recurrent.CELLS["lstm"], step=cell))


def padding_is_read(patch: Patch) -> None:
    patch.setattr(recurrent.PackedRows, "from_mask", staticmethod(lambda real: None))


def context_from_the_front(patch: Patch) -> None:
    patch.setattr(recurrent_seq2seq, "last_state", lambda encoded, token_mask, bidirectional: encoded[:, 0])


def elmo_forgets_more(patch: Patch) -> None:
    wrapped(
        patch, ProjectedLSTM, "step", lambda right, self, gates, hidden, cell: right(self, gates, hidden, 0.9 * cell)
    )


def mix_not_a_softmax(patch: Patch) -> None:
    patch.setattr(LayerMix, "forward", lambda self, layers: self.gamma * torch.tensordot(self.weights, layers, dims=1))


def windows_to_the_left(patch: Patch) -> None:
    def contexts(right: Any, ids: Any, sentence: Any, window: int) -> Any:
        found = right(ids, sentence, window)
        found[:, window:] = found[:, :window]
        return found

    wrapped(patch, windows, "_contexts", contexts)


def eight_heads(patch: Patch) -> None:
    wrapped(patch, presets, "bert_base", lambda right, **changes: right(**{"n_heads": 8} | changes))


def own_token_of_the_next_position(patch: Patch) -> None:
    def tokens(right: Any, self: Any, network: Any, hidden: Any, *rest: Any, **named: Any) -> Any:
        return right(self, network, hidden.roll(-1, dims=1), *rest, **named)

    wrapped(patch, scheduled_sampling.OwnTokens, "tokens", tokens)


def one_layer_more_is_trained(patch: Patch) -> None:
    right = InitConfig.last.fget
    patch.setattr(InitConfig, "last", property(lambda self: None if right(self) is None else right(self) + 1))


FAULTS: list[tuple[Fault, str]] = [
    (own_token_of_the_next_position, "F2"),
    (alibi_slopes_of_another_count, "B4"),
    (sure_as_likely, "H7"),
    (elmo_without_skips, "C14"),
    (alpha_too_small, "A17"),
    (negatives_hit_the_target, "C15"),
    (alpha_of_the_call_too_small, "A17"),
    (spans_without_their_ramp, "A17"),
    (scaled_dot_score, "A5"),
    (context_is_the_mean, "A10"),
    (queries_and_keys_exchanged, "A8"),
    (another_layer_is_shown, "A11"),
    (heads_shown_in_reverse, "A11"),
    (listing_multiplies_twice, "K2"),
    (eight_tokens_of_the_past, "C17"),
    (boxes_in_reverse, "J9"),
    (boxes_in_reverse, "J3"),
    (sines_beside_sines, "B11"),
    (turned_by_the_square, "B8"),
    (embedding_doubled, "C17b"),
    (prefix_one_too_short, "C18"),
    (looks_one_further_ahead, "A16"),
    (window_one_too_wide, "A16"),
    (documents_see_each_other, "A16"),
    (prefix_one_too_short, "C10"),
    (listing_without_its_mask, "K1"),
    (language_model_sees_ahead, "C9"),
    (one_way_buckets_both_ways, "B4"),
    (matrix_outside_the_scaling, "B4"),
    (values_without_distances, "B5"),
    (values_without_distances, "B6"),
    (schemes_in_every_head, "B7"),
    (schemes_stay, "B7"),
    (pieces_averaged, "B13"),
    (steps_begin_at_position_0, "H12"),
    (learned_offset_ignored, "B2"),
    (past_the_table_the_last_row, "B2"),
    (padding_counted_as_tokens, "B3"),
    (another_base, "C4"),
    (stream_counted_twice, "C1"),
    (pre_norm_forgotten, "C1"),
    (epsilon_too_large, "C1"),
    (gelu_by_tanh, "C2"),
    (second_bias_forgotten, "C2"),
    (segments_exchanged, "C4"),
    (decoder_reads_nothing, "C8"),
    (gru_resets_its_input, "C11"),
    (lstm_keeps_too_much, "C11"),
    (padding_is_read, "C11"),
    (context_from_the_front, "C11"),
    (elmo_forgets_more, "C14"),
    (mix_not_a_softmax, "C14"),
    (windows_to_the_left, "C15"),
    (eight_heads, "C16"),
]


def test_w20_one_layer_more_is_seen_by_f7(monkeypatch: Patch) -> None:
    """By the part of the row on `last-1`; the whole row trains five networks."""
    assert partly_trained.layers_changed("last-1") == ["1"]
    one_layer_more_is_trained(monkeypatch)
    assert partly_trained.layers_changed("last-1") == ["0", "1"]


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        pytest.param(fault, row, id=f"{fault.__name__}-{row}", marks=[pytest.mark.slow] * (row == "C18"))  # as the row
        for fault, row in FAULTS
    ],
)
def test_w20_a_planted_fault_is_seen_by_its_row(monkeypatch: Patch, fault: Fault, row: str) -> None:
    fault(monkeypatch)
    assert_seen(fault, row, breaks=(language_model_sees_ahead,))  # such a mask refuses a cache
