"""Utilities of minimum Bayes risk: N candidates against M pieces of evidence, as matrices (N,M) in 0-1.

The candidate is the hypothesis and the evidence is the reference; BLEU and chrF are not symmetric (error 40,
docs/notes.md#h10). Each text is tokenized once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from atento.base.errors import UsageError, nearest
from atento.metrics.bleu import is_unsegmented, sacrebleu_tokenizer, split_words
from atento.metrics.ngrams import (
    Floats,
    Ints,
    Tokens,
    characters,
    clipped_matches,
    clipped_matches_with_mean,
    common_subsequences,
    count_ngrams,
    words,
)
from atento.metrics.rouge import word_finder

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

Texts = Sequence[str]


class Utility(Protocol):
    """The utility of each candidate with each piece of evidence as reference: two lists of texts -> (N,M) in 0-1."""

    def __call__(self, candidates: list[str], evidence: list[str], /) -> object:
        """-> an array (N,M), or what numpy makes one of."""


class Aggregable(Utility, Protocol):
    """A utility with an approximation against all the evidence at once, in time linear in N + M."""

    def aggregated(self, candidates: list[str], evidence: list[str], weights: Floats, left_out: Floats) -> Floats:
        """weights (M) and left_out (N), the weight of a candidate's own copy to leave out -> (N)."""


@dataclass(frozen=True)
class NGramUtility:
    """A utility that is a function of clipped n-gram matches and of the number of n-grams on both sides."""

    tokens: Callable[[Texts], Tokens]  # the tokenizer
    max_order: int  # the longest n-gram
    # (matches, ours, theirs) -> values; order n is at index n - 1 of the first axis, other axes broadcast
    score: Callable[[Floats, Floats, Floats], Floats]

    def __call__(self, candidates: list[str], evidence: list[str]) -> Floats:
        """The utility of each candidate with each piece of evidence, (N,M)."""
        texts, rows, columns = _different(candidates, evidence)  # equal texts are counted once; which of them each is
        orders = count_ngrams(self.tokens(texts), self.max_order)
        ours, row = np.unique(rows, return_inverse=True)  # each text once; `row`: of each candidate
        theirs, column = np.unique(columns, return_inverse=True)
        matches = np.stack([clipped_matches(ngrams, ours, theirs) for ngrams in orders])  # (orders,N',M')
        totals = np.stack([ngrams.total for ngrams in orders]).astype(np.float64)  # (orders,U)
        values = np.empty(matches.shape[1:])  # (N',M') of different texts
        step = max(1, 200_000 // max(1, len(theirs)))  # for memory
        for begin in range(0, len(ours), step):
            part = slice(begin, begin + step)
            values[part] = self.score(matches[:, part], totals[:, ours[part], None], totals[:, None, theirs])
        return values[row][:, column]  # back to all of them

    def aggregated(self, candidates: list[str], evidence: list[str], weights: Floats, left_out: Floats) -> Floats:
        """The utility of each candidate with the mean n-gram counts of the evidence, (N).

        Args:
            candidates: N texts.
            evidence: M texts.
            weights: (M), the weight of each piece of evidence, 0 or more.
            left_out: (N), the weight of a candidate's own copy in the evidence to leave out; 0 for none.

        Paper: DeNero et al. 2009, Fast Consensus Decoding over Translation Forests; Vamvas and Sennrich 2024,
        Linear-time Minimum Bayes Risk Decoding with Reference Aggregation.
        """
        number = len(candidates)
        if candidates == evidence:
            texts, mass, own_weight = candidates, weights, left_out
        else:
            texts = [*candidates, *evidence]
            mass = np.concatenate([np.zeros(number), weights])  # candidates have no weight in the mean
            own_weight = np.concatenate([left_out, np.zeros(len(evidence))])
        orders = count_ngrams(self.tokens(texts), self.max_order)
        pairs = [clipped_matches_with_mean(ngrams, mass, own_weight) for ngrams in orders]
        matches = np.stack([counts[:number] for counts, _ in pairs])  # of the candidates alone
        theirs = np.stack([counts[:number] for _, counts in pairs])
        ours = np.stack([ngrams.total[:number] for ngrams in orders]).astype(np.float64)
        return self.score(matches, ours, theirs)


@dataclass(frozen=True)
class SubsequenceUtility:
    """ROUGE-L: the F-score of the longest common subsequence of words."""

    split: Callable[[str], list[str]]

    def __call__(self, candidates: list[str], evidence: list[str]) -> Floats:
        """The utility of each candidate with each piece of evidence, (N,M)."""
        texts, rows, columns = _different(candidates, evidence)
        lists = [self.split(text) for text in texts]  # words of each text
        ours, row = np.unique(rows, return_inverse=True)
        theirs, column = np.unique(columns, return_inverse=True)
        common = common_subsequences([lists[i] for i in ours], [lists[i] for i in theirs])  # (N',M')
        lengths = np.array([len(text_words) for text_words in lists], dtype=np.float64)
        return _f_score(common[None], lengths[None, ours, None], lengths[None, None, theirs])[row][:, column]


@dataclass(frozen=True)
class EmbeddingUtility:
    """(1 + cosine) / 2 of the vectors of two texts; its aggregation is exact, since the cosine is linear."""

    embed: Callable[[list[str]], object]

    def __call__(self, candidates: list[str], evidence: list[str]) -> Floats:
        """The utility of each candidate with each piece of evidence, (N,M)."""
        texts, rows, columns = _different(candidates, evidence)
        vectors = self._vectors(texts)
        return (1 + np.clip(vectors[rows] @ vectors[columns].T, -1, 1)) / 2  # -1 to 1 becomes 0 to 1

    def aggregated(self, candidates: list[str], evidence: list[str], weights: Floats, left_out: Floats) -> Floats:
        """The utility of each candidate with the mean vector of the evidence, (N)."""
        texts, rows, columns = _different(candidates, evidence)
        vectors = self._vectors(texts)
        ours = vectors[rows]
        remaining = weights.sum() - left_out
        cosine = ours @ (weights @ vectors[columns]) - left_out * (ours * ours).sum(axis=1)  # without its own copy
        mean = np.divide(cosine, remaining, out=np.zeros_like(remaining), where=remaining > 0)  # (N,)
        return np.where(remaining > 0, (1 + np.clip(mean, -1, 1)) / 2, 0.0)

    def _vectors(self, texts: list[str]) -> Floats:
        """The vectors (U,D), normalised to length 1; zero vectors are unchanged."""
        vectors = np.asarray(self.embed(texts), dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise UsageError(
                f"`embed` must give a vector for each text: got shape {vectors.shape} for {len(texts)} texts"
            )
        if not np.isfinite(vectors).all():
            raise UsageError("`embed` must give finite numbers: got NaN or infinity")
        length = np.linalg.norm(vectors, axis=1, keepdims=True)  # (U,1)
        unit: Floats = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
        return unit


# The utilities -------------------------------------------------------------------------------------------------------


def bleu_utility(*, tokenize: str | None = None, lowercase: bool = False, max_order: int = 4) -> NGramUtility:
    """Sentence BLEU with effective order and "exp" smoothing (sacrebleu's `BLEU(effective_order=True)`), over 100.

    Without `tokenize` the tokenizer goes by the script of the texts, as in `atento.metrics.bleu`.
    """

    def tokens(texts: Texts) -> Tokens:
        metric = _sacrebleu(tokenize or sacrebleu_tokenizer(texts), lowercase)
        # the preprocessing of sacrebleu; tests compare with its public results
        return words([metric._preprocess_segment(text).split() for text in texts])

    return NGramUtility(tokens, max_order, _bleu)


def chrf_utility(*, char_order: int = 6, beta: int = 2, lowercase: bool = False) -> NGramUtility:
    """chrF of two sentences, as sacrebleu's `CHRF()`, over 100."""

    def tokens(texts: Texts) -> Tokens:
        return characters([text.lower() for text in texts] if lowercase else texts)

    def score(matches: Floats, ours: Floats, theirs: Floats) -> Floats:
        shared = np.minimum((ours > 0).sum(axis=0), (theirs > 0).sum(axis=0))  # a text has all orders up to its length
        orders = np.maximum(shared, 1)
        precision = (matches / np.maximum(ours, 1)).sum(axis=0) / orders
        recall = (matches / np.where(theirs > 0, theirs, 1)).sum(axis=0) / orders
        below = beta**2 * precision + recall  # β² P + R
        values: Floats = (1 + beta**2) * precision * recall / np.where(below > 0, below, 1)
        return values

    return NGramUtility(tokens, char_order, score)


def rouge_utility(kind: str = "L", *, tokenize: str = "unicode", stem: str = "none") -> Utility:
    """The F-score of ROUGE-1, ROUGE-2 ... or ROUGE-L for a pair, as in `atento.metrics.rouge`, divided by 100.

    Args:
        kind: "1" to "9", or "L".
        tokenize: as in `atento.metrics.rouge`.
        stem: as in `atento.metrics.rouge`.
    """
    split = word_finder(tokenize, stem)
    if kind == "L":
        return SubsequenceUtility(split)
    if kind not in set("123456789"):
        raise UsageError(f"`kind` must be 'L' or a digit from '1' to '9': got {kind!r}")
    return NGramUtility(lambda texts: words([split(text) for text in texts]), int(kind), _f_score)


def token_f1_utility() -> NGramUtility:
    """The token F1 of a pair, as in `atento.metrics.token_f1`, divided by 100."""

    def tokens(texts: Texts) -> Tokens:
        return words([*map(split_words if is_unsegmented(texts) else str.split, texts)])

    return NGramUtility(tokens, 1, _token_f1)


def embedding_utility(embed: Callable[[list[str]], object]) -> EmbeddingUtility:
    """The similarity of texts by an embedding function: texts -> (N,D), an array or a CPU tensor.

    The utility is (1 + cosine) / 2, which has the order of the cosine and is in 0-1. A zero vector has cosine 0.
    """
    return EmbeddingUtility(embed)


# From statistics to values -------------------------------------------------------------------------------------------


@cache
def _sacrebleu(tokenize: str, lowercase: bool) -> "BLEU":
    """A sacrebleu tokenizer, which caches texts, since pruning needs them again."""
    from sacrebleu.metrics.bleu import BLEU  # late: 0.1 s

    return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)


def _bleu(matches: Floats, ours: Floats, theirs: Floats) -> Floats:
    """BP · exp(mean of log p_n) over the orders up to the length of the candidate; orders are on the first axis.

    The first order without a match counts as 1/2 match, the next as 1/4, and so on; without any match the value is 0.
    """
    present = ours > 0  # orders that the candidate has
    missed = present & (matches <= 0)
    precision = np.where(missed, 0.5 ** np.cumsum(missed, axis=0), matches) / np.maximum(ours, 1)
    logs = np.log(precision, out=np.zeros_like(precision), where=precision > 0).sum(axis=0)  # log of the product
    orders = np.maximum(present.sum(axis=0), 1)
    shorter = np.minimum(0.0, 1 - theirs[0] / np.maximum(ours[0], 1))  # log of the brevity penalty
    return np.where((matches > 0).any(axis=0), np.exp(shorter + logs / orders), 0.0)


def _f_score(matches: Floats, ours: Floats, theirs: Floats) -> Floats:
    """F-score 2PR / (P + R) of the last order: twice the matches over the sum of both sides; 0 if both are empty."""
    below = ours[-1] + theirs[-1]
    values: Floats = 2 * matches[-1] / np.where(below > 0, below, 1)
    return values


def _token_f1(matches: Floats, ours: Floats, theirs: Floats) -> Floats:
    """Two empty texts agree, as in SQuAD's script."""
    return np.where((ours[0] == 0) & (theirs[0] == 0), 1.0, _f_score(matches, ours, theirs))


def _different(candidates: list[str], evidence: list[str]) -> tuple[list[str], Ints, Ints]:
    """The distinct texts, and the index of each candidate (N) and of each piece of evidence (M) among them."""
    index: dict[str, int] = {}
    rows = [index.setdefault(text, len(index)) for text in candidates]
    columns = [index.setdefault(text, len(index)) for text in evidence]
    return list(index), np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)


# By name -------------------------------------------------------------------------------------------------------------


UTILITIES: dict[str, Utility] = {
    "bleu": bleu_utility(),
    "chrf": chrf_utility(),
    "rouge": rouge_utility("L"),
    "rouge1": rouge_utility("1"),
    "rouge2": rouge_utility("2"),
    "f1": token_f1_utility(),
}


def utility_named(name: str) -> Utility:
    """The utility of this name. Raises UsageError: there is no such utility; the message lists the utilities."""
    if name not in UTILITIES:
        raise UsageError(
            f"unknown utility {name!r}{nearest(name, list(UTILITIES))}; embeddings:MODEL compares a model's vectors"
        )
    return UTILITIES[name]
