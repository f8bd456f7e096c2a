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
from atento.metrics import answers, correlation, label_counts
from atento.networks import ELMo
from atento.networks.recurrent.elmo import BidirectionalLoss
from atento.notes import listing_bleu, listing_rouge
from atento.text import Tokenizer, lengths, specials, words
from atento.training import losses
from planting import Fault, Patch, around, assert_seen, by_row, everywhere, instead, put

# the room has functions of these names
perplexity_of_texts: Any = import_module("atento.metrics.perplexity")
rouge: Any = import_module("atento.metrics.rouge")
tasks_perplexity: Any = import_module("atento.tasks.text_perplexity")


def labels_not_shifted(right: Any, self: Any, *arguments: Any) -> Any:
    found = right(self, *arguments)
    return replace(found, labels={"vocabulary": torch.where(found.real("ids"), found.inputs["ids"], -1)})


def loss_is_a_mean(right: Any, network: Any, head: str, forward: Any, batch: Any, call: Any) -> Any:
    return tuple(one / batch.counts()[head] for one in right(network, head, forward, batch, call))


def every_choice_hidden(right: Any, self: Any, *arguments: Any) -> Any:
    found = right(self, *arguments)
    hidden = found.inputs["ids"].masked_fill(found.labels["vocabulary"] >= 0, self.masking.mask_id)
    return replace(found, inputs={**found.inputs, "ids": hidden})


def every_token_asked(right: Any, network: Any, batch: Any, call: Any) -> Any:
    labels = batch.labels["vocabulary"]
    labels = torch.where(labels < 0, batch.inputs["ids"], labels)
    return right(network, replace(batch, labels={"vocabulary": labels}), call)


def chosen_tokens_alone_read(right: Any, network: Any, batch: Any, call: Any) -> Any:
    chosen = {"token_mask": batch.labels["vocabulary"] >= 0}
    return right(network, replace(batch, inputs={**batch.inputs, **chosen}), call)


def both_directions_forward(right: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    found = right(self, *arguments, **named)
    return replace(found, backward=found.forward)


PERPLEXITIES = BidirectionalLoss.perplexities.fget


def one_token_more(patch: Patch) -> None:
    for right in (filters.top_k, filters.best):
        instead(right, lambda right, scores, k: right(scores, k + 1 if k else k))(patch)


def ends_unseen(right: Any, output: token_loop.Output, *chosen: Any) -> Any:
    output.request = replace(output.request, eos_ids=())
    return right(output, *chosen)


def ends_not_counted(right: Any, ids: Any, scores: Any, finished: bool, penalty: float) -> Any:
    found = right(ids, scores, finished, penalty)
    return replace(found, score=found.log_prob / max(1, len(ids)) ** penalty)


def candidate_as_reference(self: Any, rows: Any, columns: Any) -> Any:
    candidates, evidence = [self.candidates[i] for i in rows], [self.evidence[j] for j in columns]
    return torch.tensor(self.utility(evidence, candidates)).T.double().numpy()


def no_penalty_for_brevity(patch: Patch) -> None:
    right = BLEU.compute_bleu

    def compute(*arguments: Any, **named: Any) -> Any:
        return right(*arguments, **named | {"ref_len": min(named["sys_len"], named["ref_len"])})

    patch.setattr(BLEU, "compute_bleu", staticmethod(compute))


def bleu_unclipped(right: Any, references: Any, hypothesis: Any, order: int) -> Any:
    counts = listing_bleu._ngrams(hypothesis, order)
    known = {gram for reference in references for gram in listing_bleu._ngrams(reference, order)}
    return sum(count for gram, count in counts.items() if gram in known), counts.total()


def longest_reference(patch: Patch) -> None:
    def least(*values: Any, **named: Any) -> Any:
        return max(values[0]) if named else builtins.min(*values)

    patch.setattr(listing_bleu, "min", least, raising=False)


def mean_for_f(right: Any, common: float, ours: int, theirs: int) -> Any:
    precision, recall, _ = right(common, ours, theirs)
    return precision, recall, (precision + recall) / 2


def rouge_unclipped(ours: Any, theirs: Any, order: int) -> Any:
    a, b = (Counter(tuple(side[i : i + order]) for i in range(len(side) - order + 1)) for side in (ours, theirs))
    return rouge.sides_of(sum(count for gram, count in a.items() if gram in b), a.total(), b.total())


def sentences_not_united(predicted: Any, reference: Any) -> int:
    return sum(max(rouge.subsequence_length(one, other) for other in predicted) for one in reference)


def averages_by_support(right: Any, total: Any, average: str) -> Any:
    return right(total, "weighted" if average == "macro" else average)


def mean_of_perplexities(right: Any, log_probs: Any, counts: Any) -> Any:
    score = right(log_probs, counts)
    values = score.per_sentence()
    return replace(score, value=sum(values) / len(values))


def end_not_scored(right: Any, network: Any, pieces: Any, *rest: Any) -> Any:
    return right(network, [replace(piece, targets=piece.targets[:-1]) for piece in pieces], *rest)


def rouge_precision_joined(patch: Patch) -> None:
    other = {"rouge1_precision": "rouge1_recall", "rouge1_recall": "rouge1_precision"}
    everywhere(patch, rouge.PARTS, tuple(other.get(name, name) for name in rouge.PARTS))


def longest_piece_lost(right: Any, kind: str, pieces: Any, **named: Any) -> Any:
    if kind == "wordpiece":
        pieces = ["<lost>" if piece == "gat" else piece for piece in pieces] + ["g", "##at"]
    return right(kind, pieces, **named)


def pieces_of_one_score(right: Any, kind: str, pieces: Any, scores: Any = None, **named: Any) -> Any:
    return right(kind, pieces, **named, **({} if scores is None else {"scores": [-3.0] * len(scores)}))


def second_text_cut_first(right: Any, ids: Any, pair: Any, room: int, **named: Any) -> Any:
    kept = pair[: max(0, room - len(ids))]
    return list(ids[:room]), list(kept), len(ids) + len(pair) - min(room, len(ids)) - len(kept)


FAULTS: dict[str, Fault] = {
    "labels_not_shifted E1": around(Causal, "batch", labels_not_shifted),
    "loss_is_a_mean E1 E8": instead(losses.vocabulary_loss, loss_is_a_mean),
    "packed_texts_see_each_other E1": around(
        PackedCausal, "batch", lambda right, self, *arguments: right(replace(self, isolated=False), *arguments)
    ),
    "one_token_in_five E2": around(Masking, "share", lambda right, self, n: right(replace(self, rate=0.2), n)),
    "every_choice_hidden E2": around(Masked, "batch", every_choice_hidden),
    "every_epoch_alike E2": around(
        Masked, "batch", lambda right, self, store, rows, draw: right(self, store, rows, replace(draw, epoch=0))
    ),
    "every_token_asked E3": instead(losses.losses, every_token_asked),
    "chosen_tokens_alone_read E3": instead(losses.losses, chosen_tokens_alone_read),
    "masks_filled_at_once E3": instead(
        mask_predict.mask_predict,
        lambda right, *arguments, iterations, **named: right(*arguments, iterations=1, **named),
    ),
    "both_directions_forward E9": around(ELMo, "loss", both_directions_forward),
    "perplexity_of_two E9": put(
        BidirectionalLoss, "perplexities", property(lambda self: tuple(2 ** math.log(p) for p in PERPLEXITIES(self)))
    ),
    "one_token_more H4": one_token_more,
    "nucleus_without_the_last H5": instead(filters.top_p, lambda right, scores, p: right(scores, 0.7 * p)),
    "temperature_turned_round H3": instead(
        filters.temperature, lambda right, scores, value: right(scores, 1 / value if value else 0.0)
    ),
    "draws_by_place_in_the_batch H2": instead(
        choosing.uniform, lambda right, keys, position: (right(keys, position) + 0.37 * torch.arange(len(keys))) % 1
    ),
    "draws_not_even H2": instead(choosing.uniform, lambda right, keys, position: right(keys, position) ** 2),
    "ends_unseen H1": around(token_loop.Output, "append", ends_unseen),
    "ends_not_counted H6 H8": around(beam, "hypothesis", ends_not_counted),
    "worst_first H6 H9": around(
        beam, "_best", lambda right, ranked, count: right([(-rank, *rest) for rank, *rest in ranked], count)
    ),
    "scores_halved H11": around(
        token_loop, "hypothesis", lambda right, ids, scores, *rest: right(ids, [score / 2 for score in scores], *rest)
    ),
    "candidate_as_reference H10": put(risk._Problem, "utilities", candidate_as_reference),
    "all_weigh_alike H10": put(mbr, "_probabilities", lambda pool: [1.0] * len(pool)),
    "always_against_itself H10": around(
        risk, "_checked_problem", lambda right, *arguments: right(*arguments[:-1], True)
    ),
    "three_orders I1": around(
        import_module("atento.metrics.bleu"),
        "_bleu",
        lambda right, tokenize, lowercase, smooth, max_order, **named: right(tokenize, lowercase, smooth, 3, **named),
    ),
    "no_penalty_for_brevity I1": no_penalty_for_brevity,
    "bleu_unclipped I1": instead(listing_bleu.clipped, bleu_unclipped),
    "longest_reference I1": longest_reference,
    "weights_ignored I1": around(
        listing_bleu, "corpus_bleu", lambda right, references, hypotheses, weights: right(references, hypotheses)
    ),
    "precision_for_recall I2 K5": instead(
        rouge.sides_of, lambda right, common, ours, theirs: right(common, theirs, ours)
    ),
    "mean_for_f I2": instead(rouge.sides_of, mean_for_f),
    "rouge_unclipped I2": put(rouge, "_by_ngrams", rouge_unclipped),
    "subsequence_in_any_order I2": instead(
        rouge.subsequence_length, lambda right, ours, theirs: (Counter(ours) & Counter(theirs)).total()
    ),
    "accents_cut_away I2": lambda patch: everywhere(patch, rouge.unicode_words, rouge.rouge_score_words),
    "first_reference_alone I2": around(rouge, "reference_streams", lambda right, *texts: right(*texts)[:1]),
    "sentences_not_united I2": put(rouge, "_union_of_subsequences", sentences_not_united),
    "worse_reference K5": around(
        listing_rouge.RougeScorer,
        "score_multi",
        lambda right, self, targets, prediction: right(self, targets[:1], prediction),
    ),
    "mean_of_both I3 J12": instead(rouge.harmonic_mean, lambda right, a, b: (a + b) / 2),
    "nothing_by_nothing I3": instead(rouge.harmonic_mean, lambda right, a, b: 2 * a * b / (a + b)),
    "rouge_precision_joined I3": rouge_precision_joined,
    "articles_count G3": instead(
        answers.normalized, lambda right, text, articles, *rest, **options: right(text, (), *rest, **options)
    ),
    "averages_by_support I4": instead(label_counts.averaged, averages_by_support),
    "ties_in_order I4": around(
        correlation,
        "_ranks",
        lambda right, values, counts: right(values + 1e-9 * torch.arange(len(values)).numpy(), counts),
    ),
    "recall_for_precision I5": instead(
        label_counts.precision_recall_f1, lambda right, hits, predicted, expected: right(hits, expected, predicted)
    ),
    "mean_of_perplexities I6": instead(perplexity_of_texts.perplexity, mean_of_perplexities),
    "end_not_scored I6": around(tasks_perplexity, "_predicted", end_not_scored),
    "pieces_not_joined L3": around(
        Tokenizer, "decode", lambda right, self, ids, *rest: " ".join(right(self, [i], *rest) for i in ids)
    ),
    "longest_piece_lost D1": around(Tokenizer, "from_vocabulary", longest_piece_lost),
    "pieces_of_one_score D2": around(Tokenizer, "from_vocabulary", pieces_of_one_score),
    "nothing_drawn D2": around(Tokenizer, "encode_batch", lambda right, self, texts, **named: right(self, texts)),
    "labels_of_the_next_word D4": instead(
        words.spread_labels, lambda right, labels, index, **named: right([*labels[1:], labels[0]], index, **named)
    ),
    "second_text_cut_first D6": instead(lengths.truncate, second_text_cut_first),
    "sentinels_first D5": instead(specials.standard_specials, lambda right, extra=(): right(list(extra)[::-1])),
}


@pytest.mark.covering(of=lambda fault, row: {"row": row})
@by_row(FAULTS)
def test_w20_a_planted_fault_is_seen_by_its_row(monkeypatch: Patch, fault: Fault, row: str) -> None:
    fault(monkeypatch)
    assert_seen(fault, row, breaks=(FAULTS["nothing_by_nothing I3"],))  # it divides by 0
