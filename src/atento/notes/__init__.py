"""The listings of the lecture notes as functions, corrected; `atento_lab.notes.table` runs the rows of the notes."""

from atento.notes.listing_attention import attention, self_attention
from atento.notes.listing_bleu import corpus_bleu, sentence_bleu
from atento.notes.listing_mbr import minimum_bayes_risk
from atento.notes.listing_positions import PositionalEncoding, RelativePositionalEncoding
from atento.notes.listing_rouge import RougeScorer
from atento.notes.listing_sampling import random_sampling_with_temperature
from atento.notes.listing_search import beam_search, greedy_decoding

__all__ = [
    "PositionalEncoding",
    "RelativePositionalEncoding",
    "RougeScorer",
    "attention",
    "beam_search",
    "corpus_bleu",
    "greedy_decoding",
    "minimum_bayes_risk",
    "random_sampling_with_temperature",
    "self_attention",
    "sentence_bleu",
]
