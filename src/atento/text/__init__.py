"""Tokenizers of six kinds, normalisation, words and sentences. Does not need torch."""

from atento.text.encoded import Encoded, Normalized, normalize_with_spans
from atento.text.read_tokenizer import has_tokenizer
from atento.text.specials import STANDARD, SpecialTokens, sentinels, standard_specials
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import TokenizerSettings, train_tokenizer
from atento.text.words import Words, align_words, merge_labels, split_sentences, spread_labels, word_spans

__all__ = [
    "STANDARD",
    "Encoded",
    "Normalized",
    "SpecialTokens",
    "Tokenizer",
    "TokenizerSettings",
    "Words",
    "align_words",
    "has_tokenizer",
    "merge_labels",
    "normalize_with_spans",
    "sentinels",
    "split_sentences",
    "spread_labels",
    "standard_specials",
    "train_tokenizer",
    "word_spans",
]
