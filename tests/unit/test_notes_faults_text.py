"""Faults planted in losses, decoding, metrics and tokens: the row that is about each must report a failure (W20)."""

import builtins
import math
from collections import Counter
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU

from atento.data.objectives.causal import Causal, PackedCausal
from atento.data.objectives.masked import Masked, Masking
from atento.decoding import choosing, filters, mask_predict, mbr, risk, token_loop
from atento.decoding.beam import groups as beam
from atento.metrics import answers, correlation, label_counts, token_overlap
from atento.networks import ELMo
from atento.networks.recurrent.elmo import BidirectionalLoss
from atento.notes import listing_bleu, listing_rouge
from atento.text import Tokenizer, lengths, specials, words
from atento.training import losses
from planting import Fault, Patch, assert_seen, everywhere, wrapped

# the room has functions of these names
perplexity_of_texts: Any = import_module("atento.metrics.perplexity")
rouge: Any = import_module("atento.metrics.rouge")
tasks_perplexity: Any = import_module("atento.tasks.text_perplexity")


# Objectives ----------------------------------------------------------------------------------------------------------


def labels_not_shifted(patch: Patch) -> None:
    def batch(right: Any, self: Any, *arguments: Any) -> Any:
        found = right(self, *arguments)
        return replace(found, labels={"vocabulary": torch.where(found.real("ids"), found.inputs["ids"], -1)})

    wrapped(patch, Causal, "batch", batch)


def loss_is_a_mean(patch: Patch) -> None:
    def loss(network: Any, head: str, forward: Any, batch: Any, call: Any) -> Any:
        return tuple(one / batch.counts()[head] for one in VOCABULARY_LOSS(network, head, forward, batch, call))

    everywhere(patch, VOCABULARY_LOSS, loss)


VOCABULARY_LOSS = losses.vocabulary_loss


def packed_texts_see_each_other(patch: Patch) -> None:
    def batch(right: Any, self: Any, *arguments: Any) -> Any:
        return right(replace(self, isolated=False), *arguments)

    wrapped(patch, PackedCausal, "batch", batch)


def one_token_in_five(patch: Patch) -> None:
    wrapped(patch, Masking, "share", lambda right, self, tokens: right(replace(self, rate=0.2), tokens))


def every_choice_hidden(patch: Patch) -> None:
    def batch(right: Any, self: Any, *arguments: Any) -> Any:
        found = right(self, *arguments)
        hidden = found.inputs["ids"].masked_fill(found.labels["vocabulary"] >= 0, self.masking.mask_id)
        return replace(found, inputs={**found.inputs, "ids": hidden})

    wrapped(patch, Masked, "batch", batch)


def every_epoch_alike(patch: Patch) -> None:
    def batch(right: Any, self: Any, store: Any, rows: Any, draw: Any) -> Any:
        return right(self, store, rows, replace(draw, epoch=0))

    wrapped(patch, Masked, "batch", batch)


def every_token_asked(patch: Patch) -> None:
    def all_heads(network: Any, batch: Any, call: Any) -> Any:
        labels = batch.labels["vocabulary"]
        labels = torch.where(labels < 0, batch.inputs["ids"], labels)
        return LOSSES_OF(network, replace(batch, labels={"vocabulary": labels}), call)

    everywhere(patch, LOSSES_OF, all_heads)


LOSSES_OF = losses.losses


def chosen_tokens_alone_read(patch: Patch) -> None:
    def all_heads(network: Any, batch: Any, call: Any) -> Any:
        chosen = {"token_mask": batch.labels["vocabulary"] >= 0}
        return LOSSES_OF(network, replace(batch, inputs={**batch.inputs, **chosen}), call)

    everywhere(patch, LOSSES_OF, all_heads)


def masks_filled_at_once(patch: Patch) -> None:
    right = mask_predict.mask_predict
    everywhere(patch, right, lambda *arguments, iterations, **named: right(*arguments, iterations=1, **named))


def both_directions_forward(patch: Patch) -> None:
    def loss(right: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        found = right(self, *arguments, **named)
        return replace(found, backward=found.forward)

    wrapped(patch, ELMo, "loss", loss)


def perplexity_of_two(patch: Patch) -> None:
    right = BidirectionalLoss.perplexities.fget
    patch.setattr(
        BidirectionalLoss, "perplexities", property(lambda self: tuple(2 ** math.log(p) for p in right(self)))
    )


# Decoding ------------------------------------------------------------------------------------------------------------


def one_token_more(patch: Patch) -> None:
    first, second = filters.top_k, filters.best
    everywhere(patch, first, lambda scores, k: first(scores, k + 1 if k else k))
    everywhere(patch, second, lambda scores, k: second(scores, k + 1))


def nucleus_without_the_last(patch: Patch) -> None:
    right = filters.top_p
    everywhere(patch, right, lambda scores, p: right(scores, 0.7 * p))


def temperature_turned_round(patch: Patch) -> None:
    right = filters.temperature
    everywhere(patch, right, lambda scores, value: right(scores, 1 / value if value else 0.0))


def draws_by_place_in_the_batch(patch: Patch) -> None:
    right = choosing.uniform
    everywhere(patch, right, lambda keys, position: (right(keys, position) + 0.37 * torch.arange(len(keys))) % 1)


def draws_not_even(patch: Patch) -> None:
    right = choosing.uniform
    everywhere(patch, right, lambda keys, position: right(keys, position) ** 2)


def ends_unseen(patch: Patch) -> None:
    def append(right: Any, output: token_loop.Output, *chosen: Any) -> Any:
        output.request = replace(output.request, eos_ids=())
        return right(output, *chosen)

    wrapped(patch, token_loop.Output, "append", append)


def ends_not_counted(patch: Patch) -> None:
    def hypothesis(right: Any, ids: Any, scores: Any, finished: bool, penalty: float) -> Any:
        found = right(ids, scores, finished, penalty)
        return replace(found, score=found.log_prob / max(1, len(ids)) ** penalty)

    wrapped(patch, beam, "hypothesis", hypothesis)


def worst_first(patch: Patch) -> None:
    wrapped(patch, beam, "_best", lambda right, ranked, count: right([(-rank, *rest) for rank, *rest in ranked], count))


def scores_halved(patch: Patch) -> None:
    def hypothesis(right: Any, ids: Any, scores: Any, finished: bool, penalty: float) -> Any:
        return right(ids, [score / 2 for score in scores], finished, penalty)

    wrapped(patch, token_loop, "hypothesis", hypothesis)


def candidate_as_reference(patch: Patch) -> None:
    def utilities(self: Any, rows: Any, columns: Any) -> Any:
        candidates, evidence = [self.candidates[i] for i in rows], [self.evidence[j] for j in columns]
        return torch.tensor(self.utility(evidence, candidates)).T.double().numpy()

    patch.setattr(risk._Problem, "utilities", utilities)


def all_weigh_alike(patch: Patch) -> None:
    patch.setattr(mbr, "_probabilities", lambda pool: [1.0] * len(pool))


def always_against_itself(patch: Patch) -> None:
    wrapped(patch, risk, "_checked_problem", lambda right, *arguments: right(*arguments[:-1], True))


# Metrics -------------------------------------------------------------------------------------------------------------


def three_orders(patch: Patch) -> None:
    def made(right: Any, tokenize: str, lowercase: bool, smooth: str, max_order: int, **named: Any) -> Any:
        return right(tokenize, lowercase, smooth, 3, **named)

    wrapped(patch, import_module("atento.metrics.bleu"), "_bleu", made)


def no_penalty_for_brevity(patch: Patch) -> None:
    def compute(right: Any, *arguments: Any, **named: Any) -> Any:
        named["ref_len"] = min(named["sys_len"], named["ref_len"])
        return right(*arguments, **named)

    right = BLEU.compute_bleu
    patch.setattr(BLEU, "compute_bleu", staticmethod(lambda *arguments, **named: compute(right, *arguments, **named)))


def bleu_unclipped(patch: Patch) -> None:
    def clipped(references: Any, hypothesis: Any, order: int) -> Any:
        counts = listing_bleu._ngrams(hypothesis, order)
        known = {gram for reference in references for gram in listing_bleu._ngrams(reference, order)}
        return sum(count for gram, count in counts.items() if gram in known), counts.total()

    everywhere(patch, listing_bleu.clipped, clipped)


def longest_reference(patch: Patch) -> None:
    def least(*values: Any, **named: Any) -> Any:
        return max(values[0]) if named else builtins.min(*values)

    patch.setattr(listing_bleu, "min", least, raising=False)


def weights_ignored(patch: Patch) -> None:
    wrapped(
        patch, listing_bleu, "corpus_bleu", lambda right, references, hypotheses, weights: right(references, hypotheses)
    )


def precision_for_recall(patch: Patch) -> None:
    right = rouge.sides_of
    everywhere(patch, right, lambda common, ours, theirs: right(common, theirs, ours))


def mean_for_f(patch: Patch) -> None:
    right = rouge.sides_of

    def sides(common: float, ours: int, theirs: int) -> Any:
        precision, recall, _ = right(common, ours, theirs)
        return precision, recall, (precision + recall) / 2

    everywhere(patch, right, sides)


def rouge_unclipped(patch: Patch) -> None:
    def by_ngrams(ours: Any, theirs: Any, order: int) -> Any:
        a, b = (Counter(tuple(side[i : i + order]) for i in range(len(side) - order + 1)) for side in (ours, theirs))
        return rouge.sides_of(sum(count for gram, count in a.items() if gram in b), a.total(), b.total())

    patch.setattr(rouge, "_by_ngrams", by_ngrams)


def subsequence_in_any_order(patch: Patch) -> None:
    everywhere(patch, rouge.subsequence_length, lambda ours, theirs: (Counter(ours) & Counter(theirs)).total())


def accents_cut_away(patch: Patch) -> None:
    everywhere(patch, rouge.unicode_words, rouge.rouge_score_words)


def first_reference_alone(patch: Patch) -> None:
    wrapped(patch, rouge, "reference_streams", lambda right, *texts: right(*texts)[:1])


def sentences_not_united(patch: Patch) -> None:
    def common(predicted: Any, reference: Any) -> int:
        return sum(max(rouge.subsequence_length(one, other) for other in predicted) for one in reference)

    patch.setattr(rouge, "_union_of_subsequences", common)


def articles_count(patch: Patch) -> None:
    right = answers.normalized
    everywhere(patch, right, lambda text, articles, *rest, **options: right(text, (), *rest, **options))


def averages_by_support(patch: Patch) -> None:
    right = label_counts.averaged
    everywhere(patch, right, lambda total, average: right(total, "weighted" if average == "macro" else average))


def ties_in_order(patch: Patch) -> None:
    def ranks(right: Any, values: Any, counts: Any) -> Any:
        return right(values + 1e-9 * torch.arange(len(values)).numpy(), counts)

    wrapped(patch, correlation, "_ranks", ranks)


def recall_for_precision(patch: Patch) -> None:
    right = label_counts.precision_recall_f1
    everywhere(patch, right, lambda hits, predicted, expected: right(hits, expected, predicted))


def mean_of_perplexities(patch: Patch) -> None:
    def scored(right: Any, log_probs: Any, counts: Any) -> Any:
        score = right(log_probs, counts)
        values = score.per_sentence()
        return replace(score, value=sum(values) / len(values))

    right = perplexity_of_texts.perplexity
    everywhere(patch, right, lambda log_probs, counts: scored(right, log_probs, counts))


def end_not_scored(patch: Patch) -> None:
    wrapped(
        patch,
        tasks_perplexity,
        "_predicted",
        lambda right, network, pieces, *rest: right(
            network, [replace(piece, targets=piece.targets[:-1]) for piece in pieces], *rest
        ),
    )


def worse_reference(patch: Patch) -> None:
    def multi(right: Any, self: Any, targets: Any, prediction: str) -> Any:
        return right(self, targets[:1], prediction)

    wrapped(patch, listing_rouge.RougeScorer, "score_multi", multi)


def mean_of_both(patch: Patch) -> None:
    everywhere(patch, token_overlap.harmonic_mean, lambda a, b: (a + b) / 2)


def nothing_by_nothing(patch: Patch) -> None:
    everywhere(patch, token_overlap.harmonic_mean, lambda a, b: 2 * a * b / (a + b))


def rouge_precision_joined(patch: Patch) -> None:
    everywhere(
        patch,
        rouge.PARTS,
        tuple(
            {"rouge1_precision": "rouge1_recall", "rouge1_recall": "rouge1_precision"}.get(n, n) for n in rouge.PARTS
        ),
    )


# Tokens --------------------------------------------------------------------------------------------------------------


def pieces_not_joined(patch: Patch) -> None:
    wrapped(patch, Tokenizer, "decode", lambda right, self, ids, *rest: " ".join(right(self, [i], *rest) for i in ids))


def longest_piece_lost(patch: Patch) -> None:
    def made(right: Any, kind: str, pieces: Any, **named: Any) -> Any:
        if kind == "wordpiece":
            pieces = ["<lost>" if piece == "gat" else piece for piece in pieces] + ["g", "##at"]
        return right(kind, pieces, **named)

    wrapped(patch, Tokenizer, "from_vocabulary", made)


def pieces_of_one_score(patch: Patch) -> None:
    def made(right: Any, kind: str, pieces: Any, scores: Any = None, **named: Any) -> Any:
        return right(kind, pieces, **named, **({} if scores is None else {"scores": [-3.0] * len(scores)}))

    wrapped(patch, Tokenizer, "from_vocabulary", made)


def nothing_drawn(patch: Patch) -> None:
    wrapped(patch, Tokenizer, "encode_batch", lambda right, self, texts, **named: right(self, texts))


def labels_of_the_next_word(patch: Patch) -> None:
    right = words.spread_labels
    everywhere(patch, right, lambda labels, index, **named: right([*labels[1:], labels[0]], index, **named))


def second_text_cut_first(patch: Patch) -> None:
    def truncate(ids: Any, pair: Any, room: int, **named: Any) -> Any:
        kept = pair[: max(0, room - len(ids))]
        return list(ids[:room]), list(kept), len(ids) + len(pair) - min(room, len(ids)) - len(kept)

    everywhere(patch, lengths.truncate, truncate)


def sentinels_first(patch: Patch) -> None:
    right = specials.standard_specials

    def standard(extra: Any = ()) -> Any:
        return right(list(extra)[::-1])

    everywhere(patch, right, standard)


FAULTS: list[tuple[Fault, str]] = [
    (labels_not_shifted, "E1"),
    (loss_is_a_mean, "E1"),
    (packed_texts_see_each_other, "E1"),
    (loss_is_a_mean, "E8"),
    (one_token_in_five, "E2"),
    (every_choice_hidden, "E2"),
    (every_epoch_alike, "E2"),
    (every_token_asked, "E3"),
    (chosen_tokens_alone_read, "E3"),
    (masks_filled_at_once, "E3"),
    (both_directions_forward, "E9"),
    (perplexity_of_two, "E9"),
    (one_token_more, "H4"),
    (nucleus_without_the_last, "H5"),
    (temperature_turned_round, "H3"),
    (draws_by_place_in_the_batch, "H2"),
    (draws_not_even, "H2"),
    (ends_unseen, "H1"),
    (ends_not_counted, "H6"),
    (ends_not_counted, "H8"),
    (worst_first, "H6"),
    (worst_first, "H9"),
    (scores_halved, "H11"),
    (candidate_as_reference, "H10"),
    (all_weigh_alike, "H10"),
    (always_against_itself, "H10"),
    (three_orders, "I1"),
    (no_penalty_for_brevity, "I1"),
    (bleu_unclipped, "I1"),
    (longest_reference, "I1"),
    (weights_ignored, "I1"),
    (precision_for_recall, "I2"),
    (precision_for_recall, "K5"),
    (mean_for_f, "I2"),
    (rouge_unclipped, "I2"),
    (subsequence_in_any_order, "I2"),
    (accents_cut_away, "I2"),
    (first_reference_alone, "I2"),
    (sentences_not_united, "I2"),
    (worse_reference, "K5"),
    (mean_of_both, "I3"),
    (nothing_by_nothing, "I3"),
    (mean_of_both, "J12"),
    (rouge_precision_joined, "I3"),
    (articles_count, "G3"),
    (averages_by_support, "I4"),
    (ties_in_order, "I4"),
    (recall_for_precision, "I5"),
    (mean_of_perplexities, "I6"),
    (end_not_scored, "I6"),
    (pieces_not_joined, "L3"),
    (longest_piece_lost, "D1"),
    (pieces_of_one_score, "D2"),
    (nothing_drawn, "D2"),
    (labels_of_the_next_word, "D4"),
    (second_text_cut_first, "D6"),
    (sentinels_first, "D5"),
]


@pytest.mark.covering(of=lambda fault, row: {"row": row})
@pytest.mark.parametrize(("fault", "row"), FAULTS, ids=[f"{fault.__name__}-{row}" for fault, row in FAULTS])
def test_w20_a_planted_fault_is_seen_by_its_row(monkeypatch: Patch, fault: Fault, row: str) -> None:
    fault(monkeypatch)
    assert_seen(fault, row, breaks=(nothing_by_nothing,))  # it divides by 0
