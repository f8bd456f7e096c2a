"""The table of all rows of the lecture notes, and the runner of their checks.

The rows follow five Portuguese lecture notes (`CREDIT` of `atento_lab.notes.wording`).
`atento_lab.notes.errata` numbers their errors.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from atento.base.errors import UsageError, nearest
from atento.config.recipe import SourceConfig
from atento.data.records.reader import SOURCE_AND_TARGET, read_records
from atento.storage.atomic_files import write_output
from atento_lab.notes.checks import (
    arrangements,
    attention,
    blocks,
    cost,
    decoding,
    diagrams,
    examples,
    exposure_bias,
    families,
    figures,
    fine_tuned,
    heads,
    hybrid_positions,
    labels,
    learned,
    lengths,
    listings,
    mbr,
    metrics,
    mixtures,
    modes,
    objectives,
    partly_trained,
    positions,
    pretraining,
    pretraining_drawn,
    questions,
    relative,
    reordering,
    sampling,
    scores,
    search,
    sparse,
    suites,
    summaries,
    text_to_text,
    tokens,
    training,
    transfer_learning,
    word_models,
)
from atento_lab.notes.finding import Finding, Row
from atento_lab.notes.wording import ENGLISH, Wording

ROWS: dict[str, Row] = {
    row.id: row
    for row in (
        Row("A1", "unprojected causal self-attention", attention.unprojected_causal),
        Row("A2", "queries, keys and values, and their two conventions", attention.roles),
        Row("A3", "scaled dot-product attention", attention.scaled_dot_product),
        Row("A4", "plain dot-product score", attention.plain_dot_product),
        Row("A5", "additive alignment", scores.alignment_scores),
        Row("A6", "bidirectional attention sees every position", attention.sees_everything),
        Row("A7", "causal attention sees the past only", attention.sees_the_past),
        Row("A8", "many heads", attention.many_heads),
        Row("A9", "cross-attention", attention.cross),
        Row("A10", "attention of a recurrent decoder", scores.recurrent_attention),
        Row("A11", "three uses of attention in one model", attention.three_uses),
        Row("A12", "parallel computation equals token by token", attention.vectorised),
        Row("A13", "attention without positions ignores word order", attention.order_blind),
        Row("A14", "why scores are scaled", attention.why_scale),
        Row("A15", "heads learn different functions", heads.heads_differ),
        Row("A16", "some future tokens allowed", attention.partly_causal),
        Row("A17", "sparse attention", sparse.learns_its_links),
        Row("A18", "one checkpoint, bidirectional and causal", modes.one_checkpoint),
        Row("A19", "very long texts", cost.long_texts),
        Row("B1", "sinusoidal positions", positions.sinusoidal),
        Row("B2", "learned positions", learned.learned_table),
        Row("B3", "late positions get few updates", learned.late_rows),
        Row("B4", "relative matrix in the score", relative.relative_matrix),
        Row("B5", "vectors of the distance in keys and values", relative.shaw),
        Row("B6", "relative module called with (q, k, v, length)", relative.relative_module),
        Row("B7", "absolute and relative positions together", hybrid_positions.hybrid),
        Row("B8", "translation invariance", relative.translation_invariance),
        Row("B9", "texts longer than in training", lengths.longer_texts),
        Row("B10", "the cost of relative positions", cost.cost_of_positions),
        Row("B11", "properties of sinusoids", positions.sinusoid_properties),
        Row("B12", "positions in summaries of long documents", summaries.summaries_by_scheme, summaries.own_documents),
        Row("B13", "a score decomposed into content and position", relative.score_split),
        Row("B14", "alignment between languages with different word order", reordering.alignment_by_scheme),
        Row("C1", "residual and layer norm", blocks.residual_and_norm),
        Row("C2", "feed-forward network", blocks.feed_forward),
        Row("C3", "a stack of equal blocks", blocks.equal_blocks),
        Row("C4", "input: token + position", blocks.input_sum),
        Row("C5", "output: linear and softmax", blocks.output_probabilities),
        Row("C6", "Transformer encoder", blocks.encoder),
        Row("C7", "Transformer decoder", blocks.decoder),
        Row("C8", "encoder-decoder", blocks.encoder_decoder),
        Row("C9", "decoder-only language model", families.decoder_only),
        Row("C10", "prefix mask", modes.prefix_mask),
        Row("C11", "recurrent encoder", families.recurrent_encoder),
        Row("C12", "recurrent decoder", families.recurrent_decoder),
        Row("C13", "with and without attention", families.with_and_without_attention),
        Row("C14", "ELMo", word_models.elmo),
        Row("C15", "word vectors by CBOW and skip-gram", word_models.word_vectors),
        Row("C16", "published sizes", families.published_sizes),
        Row("C17", "RNN against Transformer", families.gradient_against_distance),
        Row("C17b", "recurrent language model", families.recurrent_language_model),
        Row("C18", "three arrangements", arrangements.three_arrangements),
        Row("D1", "WordPiece", tokens.word_piece),
        Row("D2", "Unigram language model", tokens.unigram),
        Row("D3", "a vocabulary of whole words", tokens.word_level),
        Row("D4", "from subwords back to words", tokens.back_to_words),
        Row("D5", "special tokens", tokens.special_tokens),
        Row("D6", "batches of tokens", tokens.padded_batches),
        Row("E1", "causal language modelling", objectives.next_token),
        Row("E2", "which tokens a masked language model predicts", objectives.masking_rates),
        Row("E3", "the loss of a masked language model", objectives.masked_tokens),
        Row("E4", "next-sentence prediction", pretraining.next_sentences),
        Row("E5", "span masking and the boundary objective", pretraining.masked_spans),
        Row("E6", "span corruption", pretraining.corrupted_spans),
        Row("E7", "prefix language modelling", pretraining.after_the_prefix),
        Row("E8", "maximum likelihood with teacher forcing", training.maximum_likelihood),
        Row("E9", "bidirectional and windowed language models", objectives.both_neighbours),
        Row("F1", "training with and without teacher forcing", training.teacher_forcing),
        Row("F2", "scheduled sampling", exposure_bias.scheduled_sampling),
        Row("F3", "exposure bias", exposure_bias.exposure_bias),
        Row("F4", "the trainer's arguments", training.trainer_arguments),
        Row("F5", "save and load", training.save_and_load),
        Row("F6", "features of a frozen network", transfer_learning.frozen_features),
        Row("F7", "fine-tuning all weights or some", partly_trained.fine_tuning),
        Row("F8", "all positions trained in parallel", training.all_positions_at_once),
        Row("F9", "many tasks as text, named by a prefix", text_to_text.tasks_by_prefix),
        Row("F10", "mixtures of data", mixtures.mixtures),
        Row("F11", "search for hyper-parameters", suites.hyper_parameters),
        Row("G1", "labels of texts", transfer_learning.texts_classified),
        Row("G2", "filling masks", transfer_learning.filled_masks),
        Row("G3", "answering questions", transfer_learning.questions_answered),
        Row("G4", "tags of words", transfer_learning.words_tagged),
        Row("G5", "inference and similarity of pairs", transfer_learning.pairs_and_numbers),
        Row("G6", "translation learned from pairs", training.translation),
        Row("G7", "summarisation", suites.summaries),
        Row("G8", "vectors of texts", transfer_learning.vectors_of_texts),
        Row("G9", "GLUE", suites.glue_table),
        Row("H1", "greedy search", decoding.greedy_search),
        Row("H2", "ancestral sampling", sampling.ancestral_sampling),
        Row("H3", "temperature, both formulas", sampling.temperatures),
        Row("H4", "top-k sampling", sampling.top_k_sampling),
        Row("H5", "nucleus sampling", sampling.nucleus_sampling),
        Row("H6", "beam search", decoding.beam_search),
        Row("H7", "two rules for stopping a beam", decoding.two_stopping_rules),
        Row("H8", "the bias of sums towards short outputs", decoding.length_bias),
        Row("H9", "several outputs and their scores", decoding.n_best),
        Row("H10", "minimum Bayes risk", mbr.minimum_risk),
        Row("H11", "the probability of a sentence", decoding.sentence_probability),
        Row("H12", "the autoregressive loop and its cache", decoding.cached_loop),
        Row("I1", "BLEU", metrics.bleu_score),
        Row("I2", "ROUGE", metrics.rouge_score),
        Row("I3", "F1 of BLEU and ROUGE", metrics.f1_of_both),
        Row("I4", "accuracy, F1, Matthews, Pearson, Spearman", labels.label_scores),
        Row("I5", "classification report", labels.classification_report),
        Row("I6", "cross-entropy and perplexity", labels.weighted_perplexity),
        Row("J1", "figure: all-to-all attention", figures.all_to_all),
        Row("J2", "figure: one causal output", figures.causal_output),
        Row("J4", "figure: positions", figures.positions_drawn),
        Row("J3", "figure: a block, its heads and residual sums", diagrams.block_drawn),
        Row("J5", "figure: teacher forcing and free running", exposure_bias.exposure_drawn),
        Row("J6", "figure: the tokens that top-k keeps", sampling.what_k_keeps),
        Row("J7", "figure: greedy misses the best path", search.paths_drawn),
        Row("J8", "figure: recurrent encoder-decoder and its alignment", diagrams.recurrent_drawn),
        Row("J9", "figure: the whole architecture", diagrams.whole_drawn),
        Row("J10", "figure: families side by side", pretraining_drawn.families_drawn),
        Row("J11", "figure: heads, span corruption, masks, prefixes", pretraining_drawn.heads_spans_and_masks_drawn),
        Row("J12", "figure: F1 of BLEU and ROUGE", metrics.combined_scores_drawn),
        Row("K1", "listing: self_attention", listings.self_attention_listing),
        Row("K2", "listing: attention", listings.attention_listing),
        Row("K3", "listings: PositionalEncoding, RelativePositionalEncoding", listings.position_listings),
        Row(
            "K4",
            "listings: greedy_decoding, random_sampling_with_temperature, beam_search, minimum_bayes_risk",
            listings.decoding_listings,
        ),
        Row("K5", "listings: sentence_bleu, corpus_bleu, RougeScorer", listings.metric_listings),
        Row("K6", "listings: from a data set to predictions", fine_tuned.from_data_to_predictions),
        Row("L1", "three one-hot tokens", examples.three_one_hot_tokens),
        Row("L2", "which words a word sees", examples.what_pulou_sees),
        Row("L3", "words and subwords", examples.words_and_subwords),
        Row("L4", "a beam of two, step by step", search.beam_step_by_step),
        Row("L5", "a mistake under teacher forcing", examples.corrected_by_the_teacher),
        Row("L6", "a masked sentence and a next sentence", transfer_learning.masked_and_next_sentence),
        Row("L7", "two sentences translated", examples.translated),
        Row("L8", "the sentiment of two sentences", fine_tuned.sentiment),
        Row("L9", "the notes' own questions", questions.own_questions),
    )
}


@dataclass(frozen=True)
class Result:
    """The finding of a row that was run, and its duration."""

    row: Row
    finding: Finding
    seconds: float

    def record(self, words: Wording = ENGLISH) -> dict[str, Any]:
        """Return plain data; `notes`, `remark` and `drawing` are present only if they are not empty.

        Title, remark and drawing are in the language; labels of values are names, and stay English.
        """
        finding = self.finding
        optional = {
            "notes": finding.notes,
            "remark": words.remark(finding.remark),
            "drawing": finding.drawing if finding.answers else words.drawing(finding.drawing),
        }
        return {
            "row": self.row.id,
            "title": self.row.titled(words),
            "passed": finding.passed,
            "value": finding.value,
            "expected": finding.expected,
            "seconds": round(self.seconds, 3),
        } | {key: text for key, text in optional.items() if text not in (None, "")}

    def save_figures(self, folder: Path, words: Wording = ENGLISH) -> list[Path]:
        """Write the figure into a folder as `ROW.svg`, and those of its answers as `ROW-1.svg`; return the paths."""
        named = {self.row.id: self.finding.figure}
        named |= {f"{self.row.id}-{n}": answer.figure for n, answer in enumerate(self.finding.answers, start=1)}
        paths = {folder / f"{name}.svg": figure for name, figure in named.items() if figure}
        for path, figure in paths.items():
            write_output(path, words.figure(figure))
        return list(paths)


def rows_named(names: Iterable[str]) -> list[Row]:
    """Return the rows with these names, in any case and in the given order; all rows for no name.

    Raises:
        UsageError: no such row; the message suggests near names.
    """
    known = {name.upper(): name for name in ROWS}
    requested = [known.get(name.upper(), name.upper()) for name in names] or list(ROWS)
    for name in requested:
        if name not in ROWS:
            raise UsageError(f"unknown row {name!r}{nearest(name, list(ROWS))}")
    return [ROWS[name] for name in requested]


def with_documents(rows: Iterable[Row], file: Path) -> list[Row]:
    """Return the rows with checks on the documents and summaries of a file.

    Args:
        rows: rows with `own_documents`.
        file: JSONL, JSON or CSV with the columns `source` and `target`, or a TSV of two columns.

    Raises:
        DataError, RecipeError: the file; it names the line. UsageError: a row that takes no documents.
    """
    for row in (row for row in rows if row.own_documents is None):
        able = ", ".join(other.id for other in ROWS.values() if other.own_documents is not None)
        raise UsageError(f"row {row.id} takes no documents: those that do are {able}")
    columns = (0, 1) if ".tsv" in file.suffixes else ("source", "target")
    source = SourceConfig(file=str(file), source=columns[0], target=columns[1])
    pairs = list(read_records(source, SOURCE_AND_TARGET, Path()))
    return [replace(row, check=row.own_documents(pairs)) for row in rows if row.own_documents is not None]


def run(rows: Iterable[Row], seed: int = 1) -> Iterator[Result]:
    """Run each row with random numbers from `seed`, whichever rows ran before. A check that raises is a failed row."""
    for row in rows:
        start = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                finding = row.check()
            except Exception as error:  # one broken row must not hide the others
                finding = Finding(f"{type(error).__name__}: {error}", "a finding", False)
        yield Result(row, finding, time.perf_counter() - start)
