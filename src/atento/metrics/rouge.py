"""ROUGE with words of any script (docs/notes.md#i2), token F1, and the lecture notes' F1 of BLEU and ROUGE (#i3)."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import chain

from atento.base.errors import MissingPartError, UsageError, nearest
from atento.base.nfc import nfc
from atento.metrics.bleu import References, Split, bleu, is_unsegmented, reference_streams, split_words
from atento.metrics.score import Score, ratio, warn_score

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SIDES = ("precision", "recall", "f")
PARTS = tuple(f"{kind}_{side}" for kind in KINDS for side in SIDES)


def rouge(
    predictions: Sequence[str], references: References, *, tokenize: str = "unicode", stem: str = "none"
) -> Score:
    """ROUGE, 0-100: common words, bigrams and subsequences of a prediction and its reference.

    Line breaks separate the sentences of a text, for ROUGE-Lsum only. With several references each measure takes the
    one with the best F. The score is the mean over texts, as in the package `rouge-score`.

    Args:
        predictions: the texts.
        references: a list of texts, or a list of reference sets.
        tokenize: "unicode": a word is a run of letters, marks and digits of any script, in lower case and NFC; of
            scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan) a character with its marks.
            "rouge-score": the tokenizer of that package, for equal numbers; only a to z and 0 to 9 are parts of words,
            so "ação" is "a" and "o", and "é" is no word. On ASCII text both agree.
        stem: "none"; "porter", for English, as in that package; "portuguese" (Snowball). Stemmers need nltk.

    Returns:
        A Score whose value is the F of ROUGE-L, and whose parts are every precision, recall and F, from
        `rouge1_precision` to `rougeLsum_f`.

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.
        MissingPartError: nltk is needed and not installed.

    Paper: Lin 2004, ROUGE: a package for automatic evaluation of summaries.
    """
    split = word_finder(tokenize, stem)
    streams = reference_streams(predictions, references)
    rows = []
    for prediction, *answers in zip(predictions, *streams):
        scores = [rouge_of_pair(prediction, answer, split) for answer in answers]
        best = [max((measures[kind] for measures in scores), key=lambda sides: sides[2]) for kind in KINDS]
        rows.append([*(number for sides in best for number in sides), 1.0])  # the 1 counts the text
    total = [sum(column) for column in zip(*rows)]
    if not any(total[:-1]) and any(map(str.strip, streams[0])) and not any(map(split, streams[0])):
        warn_score(f"no reference has a word by the tokenizer {tokenize}: equal texts have ROUGE 0 too")
    parts = {name: 100 * part / len(rows) for name, part in zip(PARTS, total)}
    settings = f"nrefs:{len(streams)}|case:lc|tok:{tokenize}|stem:{stem}"
    mean = partial(ratio, at=PARTS.index("rougeL_f"), times=100)
    return Score("ROUGE-L", mean(total), parts, settings, rows, mean)


def rouge_n(
    order: int, predictions: Sequence[str], references: References, *, tokenize: str = "unicode", stem: str = "none"
) -> Score:
    """The F of ROUGE-1 or ROUGE-2, by `order`; arguments, parts and errors as `rouge`."""
    score = rouge(predictions, references, tokenize=tokenize, stem=stem)
    at = PARTS.index(f"rouge{order}_f")
    mean = partial(ratio, at=at, times=100)
    return replace(score, name=f"ROUGE-{order}", value=score.parts[PARTS[at]], combine=mean)


def rouge_of_pair(prediction: str, reference: str, split: Split) -> dict[str, tuple[float, float, float]]:
    """The four measures of a text: precision, recall and F in 0-1, 0 if one of the texts has no words."""
    ours, theirs = split(prediction), split(reference)
    measures = {f"rouge{order}": _by_ngrams(ours, theirs, order) for order in (1, 2)}
    measures["rougeL"] = sides_of(subsequence_length(ours, theirs), len(ours), len(theirs))
    our_sentences = [split(line) for line in prediction.split("\n") if line]
    their_sentences = [split(line) for line in reference.split("\n") if line]
    common = _union_of_subsequences(our_sentences, their_sentences)
    measures["rougeLsum"] = sides_of(common, sum(map(len, our_sentences)), sum(map(len, their_sentences)))
    return measures


def sides_of(common: float, ours: int, theirs: int) -> tuple[float, float, float]:
    """Precision, recall and F from the number of matches and the sizes of both sides."""
    precision, recall = common / max(1, ours), common / max(1, theirs)
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0


def _by_ngrams(ours: Sequence[str], theirs: Sequence[str], order: int) -> tuple[float, float, float]:
    a, b = (Counter(tuple(side[i : i + order]) for i in range(len(side) - order + 1)) for side in (ours, theirs))
    return sides_of((a & b).total(), a.total(), b.total())  # `&`: the smaller count of each


# Words ---------------------------------------------------------------------------------------------------------------


class _Blanked(dict[int, int]):
    """A table for `str.translate` that replaces characters outside words by spaces, and caches each character."""

    def __missing__(self, code: int) -> int:
        char = chr(code)
        self[code] = code if char.isalnum() or unicodedata.category(char).startswith("M") else 0x20
        return self[code]


_UNICODE = _Blanked()
_ROUGE_SCORE = defaultdict(lambda: 0x20, {code: code for code in b"abcdefghijklmnopqrstuvwxyz0123456789"})


def unicode_words(text: str) -> list[str]:
    """Runs of letters, marks and digits, in lower case and NFC; single characters in scripts without spaces."""
    return split_words(nfc(text.lower()).translate(_UNICODE))


def rouge_score_words(text: str) -> list[str]:
    """Runs of a to z and 0 to 9 in the lower-cased text, as `rouge-score` finds them."""
    return text.lower().translate(_ROUGE_SCORE).split()


TOKENIZERS: dict[str, Split] = {"unicode": unicode_words, "rouge-score": rouge_score_words}


STEMMERS: dict[str, Callable[[], Callable[[str], str]]] = {
    "porter": lambda: import_module("nltk.stem.porter").PorterStemmer().stem,
    "portuguese": lambda: import_module("nltk.stem.snowball").SnowballStemmer("portuguese").stem,
}


def word_finder(tokenize: str, stem: str) -> Split:
    """A function from a text to its words, with a stemmer if requested, for words of more than three letters."""
    if tokenize not in TOKENIZERS:
        raise UsageError(f"unknown ROUGE tokenizer {tokenize!r}{nearest(tokenize, list(TOKENIZERS))}")
    if stem != "none" and stem not in STEMMERS:
        raise UsageError(f"unknown stemmer {stem!r}{nearest(stem, ['none', *STEMMERS])}")
    split = TOKENIZERS[tokenize]
    if stem == "none":
        return split
    try:
        stem_of = cache(STEMMERS[stem]())  # a stem takes a hundred times as long as a lookup
    except ImportError:
        raise MissingPartError("stemming needs nltk: pip install nltk") from None
    return lambda text: [stem_of(word) if len(word) > 3 else word for word in split(text)]


# Longest common subsequences -----------------------------------------------------------------------------------------


def subsequence_rows(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """For each prefix of `ours`, a number with a bit for each word of `theirs`.

    The number of zeros in the first j bits of number i is the length of the longest common subsequence of the first i
    and the first j words.

    Paper: Hyyrö 2004, Bit-parallel LCS-length computation revisited.
    """
    word_positions: dict[str, int] = {}
    for position, word in enumerate(theirs):
        word_positions[word] = word_positions.get(word, 0) | 1 << position  # bit j: word j of theirs
    full = (1 << len(theirs)) - 1
    rows = [full]  # nothing matched yet: no zeros
    for word in ours:
        now = rows[-1]
        matched = now & word_positions.get(word, 0)  # its positions whose bit is still 1
        rows.append(((now + matched) | (now - matched)) & full)
    return rows


def subsequence_length(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    return len(theirs) - subsequence_rows(ours, theirs)[-1].bit_count()  # zeros of the last row


def _union_of_subsequences(predicted: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> int:
    """The matches of ROUGE-Lsum.

    They are the words of a reference sentence that are on a longest common subsequence with any predicted sentence,
    each counted at most as often as both texts have it.
    """
    if len(predicted) == len(reference) == 1:
        return subsequence_length(reference[0], predicted[0])
    spare = Counter(word for sentence in predicted for word in sentence)  # how often each word may still match
    common = 0
    for sentence in reference:
        for position in sorted({at for other in predicted for at in _matched_positions(sentence, other)}):
            if spare[sentence[position]] > 0:
                spare[sentence[position]] -= 1  # a word of theirs is matched once
                common += 1
    return common


def _matched_positions(reference: Sequence[str], predicted: Sequence[str]) -> list[int]:
    """The words of a reference sentence on one longest common subsequence.

    It is read from the end, with a step back in the reference if this loses nothing. The union depends on this choice,
    which is that of `rouge-score`.
    """
    rows = subsequence_rows(reference, predicted)

    def length(i: int, j: int) -> int:
        # words that the first i and the first j have in common: the zeros of row i
        return j - (rows[i] & ((1 << j) - 1)).bit_count()

    i, j, positions = len(reference), len(predicted), []
    while i > 0 and j > 0:
        if reference[i - 1] == predicted[j - 1]:  # both step back: the word is common
            positions.append(i - 1)
            i, j = i - 1, j - 1
        elif length(i, j - 1) > length(i - 1, j):  # the longer of both ways back
            j -= 1
        else:
            i -= 1
    return positions


def token_f1(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Token F1, 0-100: the F-score of the words that a prediction and its reference have in common, in any order.

    Words are separated by white space, and where the references are in a script without spaces each character of such a
    script is one. With several references the best one counts. Two texts without words agree, as
    in the SQuAD script. The score is the mean over texts.

    Args:
        predictions: the texts.
        references: a list of texts, or a list of reference sets.
        lowercase: whether to ignore case.

    Returns:
        A Score with the parts `precision`, `recall` and `f1`, which are means.

    Raises:
        UsageError: the lengths differ, or there is nothing to score.
    """
    streams = reference_streams(predictions, references)
    characters = is_unsegmented(chain(*streams))
    split = split_words if characters else str.split
    rows = []
    for prediction, *answers in zip(predictions, *streams):
        best = max((_pair(prediction, answer, lowercase, split) for answer in answers), key=lambda sides: sides[2])
        rows.append([*best, 1.0])
    total = [sum(column) for column in zip(*rows)]
    parts = {name: 100 * part / len(rows) for name, part in zip(("precision", "recall", "f1"), total)}
    settings = f"nrefs:{len(streams)}|case:{'lc' if lowercase else 'mixed'}|tok:{'char' if characters else 'space'}"
    return Score("token F1", parts["f1"], parts, settings, rows, partial(ratio, at=2, times=100))


def f1_bleu_rouge(
    predictions: Sequence[str], references: References, *, tokenize: str = "unicode", stem: str = "none"
) -> Score:
    """F1 of BLEU and ROUGE, 0-100: 2BR / (B + R) of corpus BLEU and mean ROUGE-1 recall; 0 if both are 0.

    This is the definition of the lecture notes (error 43, docs/notes.md#i3). BLEU is used as precision although it is a
    geometric mean with a penalty, so the result differs from token F1.

    Args:
        predictions: the texts.
        references: a list of texts, or a list of reference sets.
        tokenize: tokenizer of ROUGE, as in `rouge`; that of BLEU goes by the script of the references.
        stem: stemmer of ROUGE, as in `rouge`.

    Returns:
        A Score with the parts `bleu` and `rouge1_recall`.

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.
    """
    first = bleu(predictions, references)
    second = rouge(predictions, references, tokenize=tokenize, stem=stem)
    recall = PARTS.index("rouge1_recall")
    # the numbers of BLEU, then of ROUGE, then 1 a text
    rows = [[*ours, row[recall], 1.0] for ours, row in zip(first.segments, second.segments)]
    width = len(rows[0]) - 2  # columns of BLEU

    def combine(total: list[float]) -> float:
        return harmonic_mean(first.combine(total[:width]), 100 * total[width] / total[width + 1])

    def single(row: list[float]) -> float:
        # BLEU of one sentence counts only the orders that it has
        return harmonic_mean((first.single or first.combine)(row[:width]), 100 * row[width])

    parts = {"bleu": first.value, "rouge1_recall": second.parts["rouge1_recall"]}
    settings = f"{first.settings} {second.settings}"
    return Score("F1 (BLEU, ROUGE)", harmonic_mean(*parts.values()), parts, settings, rows, combine, single)


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b); 0 if both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def _pair(prediction: str, reference: str, lowercase: bool, split: Split) -> tuple[float, float, float]:
    if lowercase:
        prediction, reference = prediction.lower(), reference.lower()
    ours, theirs = Counter(split(prediction)), Counter(split(reference))
    if not ours and not theirs:
        return 1.0, 1.0, 1.0
    return sides_of((ours & theirs).total(), ours.total(), theirs.total())  # the smaller count of each word
