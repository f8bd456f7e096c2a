"""Faults planted in attention, positions, networks and training: the row that is about each must fail (W20)."""

import math
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
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
from atento.config.sections.mixing import MixingConfig
from atento.data.batches import masking, windows
from atento.data.objectives.causal import Prefix
from atento.data.objectives.masked import FOLLOWS, NextSentence, SpanBoundary
from atento.decoding.beam import groups
from atento.decoding.beam import groups as beam
from atento.inspection import ablation, decompose
from atento.networks import ELMo, EncoderDecoder, describe, layers
from atento.networks.layers import FeedForward, Residual
from atento.networks.rare_layers import LayerMix
from atento.networks.recurrent import cells as recurrent
from atento.networks.recurrent import seq2seq as recurrent_seq2seq
from atento.networks.recurrent.cells import RecurrentStack
from atento.networks.recurrent.elmo import ProjectedLSTM
from atento.networks.stack import stack
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_positions import InputLayer
from atento.networks.words import cbow
from atento.notes import listing_attention
from atento.training import scheduled_sampling
from atento_cli.plans import position_report
from atento_cli.suites.scores import SuiteResult
from atento_lab.notes.checks import partly_trained, pretraining_drawn
from atento_lab.notes.checks.text_to_text import NEW, PREFIXES, UNSEEN
from atento_lab.notes.table import ROWS
from planting import Fault, Patch, around, assert_seen, by_row, instead, put
from test_notes_faults_text import FAULTS as FAULTS_OF_TEXT
from test_notes_rows import SABOTAGE

span_corruption: Any = import_module("atento.data.objectives.denoising")  # a function of the package has its name


def elmo_without_skips(right: Any, self: Any, config: Any) -> None:
    right(self, config)
    self.skip = False


def negatives_hit_the_target(self: Any, pooled: Any, targets: Any, negatives: Any) -> Any:
    right = (pooled * F.embedding(targets, self.output_weight)).sum(dim=-1)
    wrong = torch.einsum("nd,nkd->nk", pooled, F.embedding(negatives, self.output_weight))
    return -F.logsigmoid(right).sum() - F.logsigmoid(-wrong).sum()


def sure_as_likely(right: Any, self: Any, strategy: Any, request: Any) -> None:
    right(self, replace(strategy, until="likely" if strategy.until == "sure" else strategy.until), request)


def queries_and_keys_exchanged(right: Any, self: Any, weights: Any) -> None:
    right(self, {**weights, "query": weights["key"], "key": weights["query"]})


def listing_multiplies_twice(right: Any, q: Any, k: Any, v: Any) -> Any:
    context, weights = right(q, k, v)
    return weights[:, : len(context)] @ context if len(context) <= weights.shape[1] else context, weights


def turned(part: Any) -> Any:
    return replace(part, parts=tuple(turned(one) for one in reversed(part.parts)))


def prefix_one_too_short(right: Any, n: Any) -> Any:
    return right((n - 1).clamp(min=0) if isinstance(n, torch.Tensor) else max(0, n - 1))


ALPHA, LAST = Entmax.alpha.fget, InitConfig.last.fget


def alibi_slopes_of_another_count(right: Any, n: int) -> Any:
    return torch.tensor([2 ** (-8 * (head + 1) / n) for head in range(n)])


def matrix_outside_the_scaling(right: Any, self: Any, *arguments: Any, **named: Any) -> None:
    right(self, *arguments, **named)
    self.scaled = False


def schemes_in_every_head(self: Any, like: Any) -> Any:
    every = torch.ones(self.n_heads) if self.gate is None else self.gate
    return every.to(like).view(-1, 1, 1)


def pieces_averaged(right: Any, of: Any, like: Any) -> Any:
    found = right(of, like)
    return found / found.sum(dim=1, keepdim=True)


def past_the_table_the_last_row(self: Any, length: int, offset: int = 0, *rest: Any) -> Any:
    return self.weight[torch.arange(offset, offset + length).clamp(max=self.max_len - 1)]


def padding_counted_as_tokens(right: Any, batch: Any) -> Any:
    inputs = {name: value for name, value in batch.inputs.items() if name != "source_token_mask"}
    return right(replace(batch, inputs=inputs, lengths={}))


def segments_exchanged(right: Any, self: Any, x: Any, offset: int = 0, **named: Any) -> Any:
    if named.get("segment_ids") is None and self.segments is not None:
        named["segment_ids"] = torch.ones(x.shape[:2], dtype=torch.long)
    return right(self, x, offset, **named)


def gru_resets_its_input(weights: Any, x: Any, state: Any) -> Any:
    (h,) = state
    r, z, n = F.linear(x, weights[0], weights[2]).chunk(3, dim=-1)
    r_h, z_h, n_h = F.linear(h, weights[1], weights[3]).chunk(3, dim=-1)
    new, update = torch.tanh(torch.sigmoid(r + r_h) * n + n_h), torch.sigmoid(z + z_h)
    return ((1 - update) * new + update * h,)


def lstm_keeps_too_much(weights: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, _, g, o = (F.linear(x, weights[0], weights[2]) + F.linear(h, weights[1], weights[3])).chunk(4, dim=-1)
    c = c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def windows_to_the_left(right: Any, ids: Any, sentence: Any, window: int) -> Any:
    found = right(ids, sentence, window)
    found[:, window:] = found[:, :window]
    return found


def cell_of(kind: str, step: Any) -> Fault:
    return lambda patch: patch.setitem(recurrent.CELLS, kind, replace(recurrent.CELLS[kind], step=step))


def own_token_of_the_next_position(right: Any, self: Any, network: Any, hidden: Any, *rest: Any, **named: Any) -> Any:
    return right(self, network, hidden.roll(-1, dims=1), *rest, **named)


one_layer_more_is_trained = put(
    InitConfig, "last", property(lambda self: None if LAST(self) is None else LAST(self) + 1)
)


def outputs_centred_over_tokens(right: Any, *arguments: Any, **named: Any) -> Any:
    output, weights = right(*arguments, **named)
    return output - output.mean(dim=1, keepdim=True), weights


def steps_forget_the_state(right: Any, self: Any, x: Any, layers: Any, *rest: Any) -> Any:
    return right(self, x, [tuple(torch.zeros_like(part) for part in layer) for layer in layers], *rest)


def next_and_random_exchanged(right: Any, *arguments: Any) -> Any:
    found = right(*arguments)
    return replace(found, labels={**found.labels, FOLLOWS: 1 - found.labels[FOLLOWS]})


def boundaries_exchanged(right: Any, *arguments: Any) -> Any:
    extras = (found := right(*arguments)).extras
    return replace(found, extras={**extras, "span left": extras["span right"], "span right": extras["span left"]})


def no_last_sentinel(right: Any, *arguments: Any) -> Any:
    source, target = right(*arguments)
    return source, target[:-1]


def loss_within_the_prefix(right: Any, *arguments: Any) -> Any:
    found = right(*arguments)
    labels, following = found.labels["vocabulary"], found.inputs["ids"].roll(-1, dims=1)
    return replace(found, labels={"vocabulary": labels.where(labels >= 0, following)})


def temperature_ignored(right: Any, self: Any, sizes: Any) -> Any:
    return right(replace(self, temperature=1.0) if self.kind == "temperature" else self, sizes)


def segments_forgotten(right: Any, self: Any, x: Any, offset: int = 0, **named: Any) -> Any:
    return right(self, x, offset, **named | {"segment_ids": None})


def losses_averaged_over_heads(right: Any, *arguments: Any) -> Any:
    return {head: tuple(part / 2 for part in parts) for head, parts in right(*arguments).items()}


def untrained_texts_to_texts(patch: Patch) -> None:
    """The two networks of J11, which take seconds to train, say what they would."""
    pair = " ".join(UNSEEN[0])
    right = {f"{prefix}{pair}": answer(*UNSEEN[0]) for prefix, answer in PREFIXES.items()}

    def model(of_new: str) -> Any:
        said = right | {NEW + pair: of_new}
        return SimpleNamespace(
            generate=lambda texts: said[texts] if isinstance(texts, str) else [said[t] for t in texts]
        )

    patch.setattr(pretraining_drawn, "prefixed", lambda: model("praia"))
    patch.setattr(pretraining_drawn, "fine_tuned", lambda: model(pair))


FAULTS: dict[str, Fault] = {
    "own_token_of_the_next_position F2": around(scheduled_sampling.OwnTokens, "tokens", own_token_of_the_next_position),
    "alibi_slopes_of_another_count B4": instead(relative.alibi_slopes, alibi_slopes_of_another_count),
    "sure_as_likely H7": around(groups.BeamRequest, "__init__", sure_as_likely),
    "elmo_without_skips C14": around(ELMo, "__init__", elmo_without_skips),
    "alpha_too_small A17": put(Entmax, "alpha", property(lambda self: 1 + 0.9 * (ALPHA(self) - 1))),
    "negatives_hit_the_target C15": put(cbow.CBOW, "_nats", negatives_hit_the_target),
    "alpha_of_the_call_too_small A17": instead(
        entmax.entmax, lambda right, scores, alpha, dim=-1: right(scores, 1 + 0.9 * (alpha - 1), dim)
    ),
    "spans_without_their_ramp A17": instead(entmax.soft_span, lambda right, *arguments: right(*arguments).round()),
    "scaled_dot_score A5": around(
        scored.DotScore, "forward", lambda right, self, q, k: right(self, q, k) / math.sqrt(q.shape[-1])
    ),
    "context_is_the_mean A10": instead(
        scored.attend_scored, lambda right, scores, *rest: right(torch.zeros_like(scores), *rest)
    ),
    "queries_and_keys_exchanged A8": around(MultiHeadAttention, "load_head_weights", queries_and_keys_exchanged),
    "another_layer_is_shown A11": around(
        Observation, "__getitem__", lambda right, self, where: right(self, (where[0], 0))
    ),
    "heads_shown_in_reverse A11": around(
        Observation, "__getitem__", lambda right, self, where: right(self, where).flip(1)
    ),
    "listing_multiplies_twice K2": instead(listing_attention.attention, listing_multiplies_twice),
    "eight_tokens_of_the_past C17": put(stack, "causal", lambda: masks.causal() & masks.window(8, 0)),
    "boxes_in_reverse J9 J3": instead(
        describe.describe, lambda right, network: [turned(part) for part in right(network)]
    ),
    "sines_beside_sines B11": instead(
        positions.sinusoids, lambda right, places, width, *rest, **named: right(places, width, *rest, interleaved=False)
    ),
    # rotations that grow with the square of the place depend on more than the distance
    "turned_by_the_square B8": around(Rotary, "at", lambda right, self, places, *rest: right(self, places**2, *rest)),
    "embedding_doubled C17b": around(layers.TokenEmbedding, "forward", lambda right, self, ids: 2 * right(self, ids)),
    "prefix_one_too_short C18 C10 J11": instead(masks.prefix, prefix_one_too_short),
    "looks_one_further_ahead A16": instead(masks.lookahead, lambda right, k: right(k + 1)),
    "window_one_too_wide A16": instead(masks.window, lambda right, left, ahead: right(left + 1, ahead)),
    "documents_see_each_other A16": instead(masks.documents, lambda right, ids: bidirectional()),
    "listing_without_its_mask K1": around(
        listing_attention, "attention_weights", lambda right, q, k, mask=None: right(q, k)
    ),
    "language_model_sees_ahead C9": put(stack, "causal", bidirectional),
    "one_way_buckets_both_ways B4": instead(
        relative.t5_buckets, lambda right, distance, n, most, both: right(distance, n, most, False)
    ),
    "matrix_outside_the_scaling B4": around(RelativeMatrix, "__init__", matrix_outside_the_scaling),
    "values_without_distances B5 B6": around(
        Shaw, "values", lambda right, self, weights, places: 0 * right(self, weights, places)
    ),
    "schemes_in_every_head B7": put(Gated, "_factor", schemes_in_every_head),
    "schemes_stay B7": instead(ablation.without_scheme, lambda right, network, name: nullcontext()),
    "pieces_averaged B13": around(decompose, "_membership", pieces_averaged),
    "steps_begin_at_position_0 H12": around(
        Sinusoidal, "vectors", lambda right, self, length, offset=0, *rest: right(self, length, 0, *rest)
    ),
    "learned_offset_ignored B2": around(
        Learned, "vectors", lambda right, self, length, offset=0, *rest: right(self, length, 0, *rest)
    ),
    "past_the_table_the_last_row B2": put(Learned, "vectors", past_the_table_the_last_row),
    "padding_counted_as_tokens B3": around(position_report, "_real_positions", padding_counted_as_tokens),
    "another_base C4": around(Sinusoidal, "vectors", lambda right, *arguments: right(*arguments) * 0.99),
    "stream_counted_twice C1": around(
        Residual, "after", lambda right, self, x, fx, random: right(self, 2 * x, fx, random)
    ),
    "pre_norm_forgotten C1": put(Residual, "before", lambda self, x: x),
    "epsilon_too_large C1": around(F, "layer_norm", lambda right, *arguments: right(*arguments[:-1], 1e-2)),
    "gelu_by_tanh C2": lambda patch: patch.setitem(layers.ACTIVATIONS, "gelu", layers.ACTIVATIONS["gelu-tanh"]),
    "second_bias_forgotten C2": around(
        FeedForward, "forward", lambda right, self, x, random=None: right(self, x, random) - self.outer.bias
    ),
    "segments_exchanged C4": around(InputLayer, "forward", segments_exchanged),
    "decoder_reads_nothing C8": around(
        EncoderDecoder, "encode", lambda right, self, *ids, **named: 0 * right(self, *ids, **named)
    ),
    "gru_resets_its_input C11": cell_of("gru", gru_resets_its_input),
    "lstm_keeps_too_much C11": cell_of("lstm", lstm_keeps_too_much),
    "padding_is_read C11": put(recurrent.PackedRows, "from_mask", staticmethod(lambda real: None)),
    "context_from_the_front C11": put(
        recurrent_seq2seq, "last_state", lambda encoded, token_mask, bidirectional: encoded[:, 0]
    ),
    "elmo_forgets_more C14": around(
        ProjectedLSTM, "step", lambda right, self, gates, hidden, cell: right(self, gates, hidden, 0.9 * cell)
    ),
    "mix_not_a_softmax C14": put(
        LayerMix, "forward", lambda self, layers: self.gamma * torch.tensordot(self.weights, layers, dims=1)
    ),
    "windows_to_the_left C15": around(windows, "_contexts", windows_to_the_left),
    "eight_heads C16": around(presets, "bert_base", lambda right, **changes: right(**{"n_heads": 8} | changes)),
    "keys_given_for_queries A2": around(
        MultiHeadAttention, "head_weights", lambda right, self: (named := right(self)) | {"query": named["key"]}
    ),
    "outputs_centred_over_tokens A12": around(MultiHeadAttention, "forward", outputs_centred_over_tokens),
    "texts_cut_at_256 C3": around(
        Stack, "forward", lambda right, *arguments, **named: right(*arguments, **named)[:, :256]
    ),
    "steps_forget_the_state C12": around(RecurrentStack, "step", steps_forget_the_state),
    "next_and_random_exchanged E4": around(NextSentence, "batch", next_and_random_exchanged),
    "spans_shorter E5": put(masking, "_SPAN_LENGTHS", np.cumsum(0.7 ** np.arange(10))),
    "boundaries_exchanged E5": around(SpanBoundary, "batch", boundaries_exchanged),
    "no_last_sentinel E6 J11": instead(span_corruption.corrupt, no_last_sentinel),
    "loss_within_the_prefix E7": around(Prefix, "batch", loss_within_the_prefix),
    "temperature_ignored F10": around(MixingConfig, "rates", temperature_ignored),
    "without_wnli_always G9": around(
        SuiteResult, "_average", lambda right, self, seed, without=None: right(self, seed, "WNLI")
    ),
    "one_hypothesis J7": put(beam.Group, "slots", property(lambda group: 1)),
    "segments_forgotten J10": around(InputLayer, "forward", segments_forgotten),
    "losses_averaged_over_heads J10": instead(pretraining_drawn.losses, losses_averaged_over_heads),
}
_TRAINS = "trains its own networks for seconds; "
UNPLANTED = {
    "B12": _TRAINS + "positions are those of B1 and B8, padding that of test_notes_findings.py",
    "B14": _TRAINS + "positions are those of B1, B5 and B8",
    "C13": _TRAINS + "the attention is that of A5 and A10",
    "F4": "its numbers are read from the journal of one shared run; test_schedule.py has the schedules by formula",
    "F6": _TRAINS + "layer mixes are those of C14",
    "F7": "`test_w20_one_layer_more_is_seen_by_f7` plants one in its part on chosen layers",
    "F9": _TRAINS + "the loss is that of E8",
    "F11": _TRAINS + "test_search_parts.py has the strategies",
    "G1": _TRAINS + "the report is that of I5",
    "G2": _TRAINS + "test_filling.py of parity has the candidates of transformers",
    "G4": _TRAINS + "test_metrics_seqeval.py has the scores",
    "G5": _TRAINS + "its scores are those of I4",
    "G7": _TRAINS + "ROUGE is that of I2",
    "G8": _TRAINS + "test_embedding.py has the poolings by hand",
    "J6": "drawn from one shared network; top-k is that of H4",
    "J8": _TRAINS + "the alignment is that of A10",
    "K6": _TRAINS + "the report is that of I5",
    "L6": _TRAINS + "the objective is that of E4",
    "L8": _TRAINS + "it is the classifier of K6",
}


def test_w20_one_layer_more_is_seen_by_f7(monkeypatch: Patch) -> None:
    """By the part of the row on `last-1`; the whole row trains five networks."""
    assert partly_trained.layers_changed("last-1") == ["1"]
    one_layer_more_is_trained(monkeypatch)
    assert partly_trained.layers_changed("last-1") == ["0", "1"]


@by_row(FAULTS)
def test_w20_a_planted_fault_is_seen_by_its_row(monkeypatch: Patch, fault: Fault, row: str) -> None:
    if row == "J11":
        untrained_texts_to_texts(monkeypatch)
        assert ROWS[row].check().passed
    fault(monkeypatch)
    assert_seen(fault, row, breaks=(FAULTS["language_model_sees_ahead C9"],))  # such a mask refuses a cache


def test_w20_every_row_has_a_planted_fault_or_says_why_not() -> None:
    planted = {row for names in [*FAULTS, *FAULTS_OF_TEXT, *SABOTAGE] for row in names.split()[1:]}
    assert planted | UNPLANTED.keys() == ROWS.keys() and not planted & UNPLANTED.keys() and all(UNPLANTED.values())
