"""ROUGE-1, -2, -L and -Lsum with precision, recall and F; words are found in any script (docs/notes.md#i2)."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module

from atento.errors import MissingPartError, UsageError, nearest
from atento.metrics.score import Score
from atento.metrics.text import References, reference_streams

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SIDES = ("precision", "recall", "f")
PARTS = tuple(f"{kind}_{side}" for kind in KINDS for side in SIDES)

Split = Callable[[str], list[str]]


def rouge(
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str = "unicode",
    stem: str = "none",
) -> Score:
    """ROUGE, 0-100: the words, pairs of words and subsequences that a prediction and its reference have in common.

    Sentences of a text are told apart by line ends, for ROUGE-Lsum alone. Of many references each measure takes the
    one with the best F. The mean over all texts is the score, as in the package `rouge-score`.

    Args:
        predictions: one a text.
        references: one list, or a list of lists, one list a reference set.
        tokenize: "unicode": a word is a run of letters, marks and digits of any script, in lower case and NFC.
            "rouge-score": as that package cuts, for numbers that must equal its own; it takes a to z and 0 to 9 alone
            for parts of a word, so "ação" is "a" and "o" to it, and "é" nothing. On ASCII text both agree.
        stem: "none"; "porter", for English, as that package has it; "portuguese" (Snowball). Both need nltk.

    Returns:
        a Score whose value is ROUGE-L's F, and whose parts name every precision, recall and F: `rouge1_precision` to
        `rougeLsum_f`.

    Raises:
        UsageError: unequal lengths, nothing to score, or an option out of range.
        MissingPartError: stemming without nltk.

    Paper: Lin 2004, ROUGE: a package for automatic evaluation of summaries.
    """
    split = word_finder(tokenize, stem)
    streams = reference_streams(predictions, references)
    rows = []
    for prediction, *answers in zip(predictions, *streams):
        found = [rouge_of_pair(prediction, answer, split) for answer in answers]
        best = [max((one[kind] for one in found), key=lambda sides: sides[2]) for kind in KINDS]
        rows.append([*(number for sides in best for number in sides), 1.0])
    total = [sum(column) for column in zip(*rows)]
    parts = {name: 100 * part / len(rows) for name, part in zip(PARTS, total)}
    settings = f"nrefs:{len(streams)}|case:lc|tok:{tokenize}|stem:{stem}"
    return Score("ROUGE-L", _mean_f(total), parts, settings, rows, _mean_f)


def rouge_of_pair(prediction: str, reference: str, split: Split) -> dict[str, tuple[float, float, float]]:
    """Each of the four measures of one text: precision, recall and F in 0-1, 0 where either has no words."""
    ours, theirs = split(prediction), split(reference)
    found = {f"rouge{order}": _by_ngrams(ours, theirs, order) for order in (1, 2)}
    found["rougeL"] = sides_of(subsequence_length(ours, theirs), len(ours), len(theirs))
    our_sentences = [split(line) for line in prediction.split("\n") if line]
    their_sentences = [split(line) for line in reference.split("\n") if line]
    common = _union_of_subsequences(our_sentences, their_sentences)
    found["rougeLsum"] = sides_of(common, sum(map(len, our_sentences)), sum(map(len, their_sentences)))
    return found


def sides_of(common: float, ours: int, theirs: int) -> tuple[float, float, float]:
    """Precision, recall and F from how much is in common and how much either side has."""
    precision, recall = common / max(1, ours), common / max(1, theirs)
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0


def _mean_f(total: list[float]) -> float:
    return 100 * total[PARTS.index("rougeL_f")] / total[-1]


def _by_ngrams(ours: Sequence[str], theirs: Sequence[str], order: int) -> tuple[float, float, float]:
    a, b = (Counter(tuple(side[i : i + order]) for i in range(len(side) - order + 1)) for side in (ours, theirs))
    return sides_of((a & b).total(), a.total(), b.total())


# Words ---------------------------------------------------------------------------------------------------------------


class _Blanked(dict[int, int]):
    """For `str.translate`: what is no part of a word becomes a space; each character is looked up once."""

    def __missing__(self, code: int) -> int:
        char = chr(code)
        self[code] = code if char.isalnum() or unicodedata.category(char).startswith("M") else 0x20
        return self[code]


_UNICODE = _Blanked()
_ASCII = {code: code for code in b"abcdefghijklmnopqrstuvwxyz0123456789"}


class _AsciiOnly(dict[int, int]):
    """As `_Blanked`, for the package's rule."""

    def __missing__(self, code: int) -> int:
        return 0x20


_ROUGE_SCORE = _AsciiOnly(_ASCII)


def unicode_words(text: str) -> list[str]:
    """Runs of letters, marks and digits, in lower case and NFC."""
    return unicodedata.normalize("NFC", text.lower()).translate(_UNICODE).split()


def rouge_score_words(text: str) -> list[str]:
    """Runs of a to z and 0 to 9 in the lower-cased text, as `rouge-score` finds them."""
    return text.lower().translate(_ROUGE_SCORE).split()


TOKENIZERS: dict[str, Split] = {"unicode": unicode_words, "rouge-score": rouge_score_words}


def _porter() -> Callable[[str], str]:
    stem: Callable[[str], str] = import_module("nltk.stem.porter").PorterStemmer().stem
    return stem


def _portuguese() -> Callable[[str], str]:
    stem: Callable[[str], str] = import_module("nltk.stem.snowball").SnowballStemmer("portuguese").stem
    return stem


STEMMERS: dict[str, Callable[[], Callable[[str], str]]] = {"porter": _porter, "portuguese": _portuguese}


def word_finder(tokenize: str, stem: str) -> Split:
    """The function from a text to its words, stemmed if asked; words of up to three letters are left as they are."""
    if tokenize not in TOKENIZERS:
        raise UsageError(f"unknown ROUGE tokenizer {tokenize!r}{nearest(tokenize, list(TOKENIZERS))}")
    if stem != "none" and stem not in STEMMERS:
        raise UsageError(f"unknown stemmer {stem!r}{nearest(stem, ['none', *STEMMERS])}")
    split = TOKENIZERS[tokenize]
    if stem == "none":
        return split
    try:
        stemmed = STEMMERS[stem]()
    except ImportError:
        raise MissingPartError("stemming needs nltk: pip install nltk") from None
    known: dict[str, str] = {}  # a stem costs a hundred times as much as a look

    def stem_of(word: str) -> str:
        if word not in known:
            known[word] = stemmed(word)
        return known[word]

    return lambda text: [stem_of(word) if len(word) > 3 else word for word in split(text)]


# Longest common subsequences -----------------------------------------------------------------------------------------


def subsequence_rows(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """For each beginning of `ours`, from none to all of it, a number with a bit for every word of `theirs`.

    The zeros among the first j bits of number i count the longest common subsequence of the first i and j words.

    Paper: Hyyrö 2004, Bit-parallel LCS-length computation revisited.
    """
    where: dict[str, int] = {}
    for place, word in enumerate(theirs):
        where[word] = where.get(word, 0) | 1 << place
    full = (1 << len(theirs)) - 1
    rows = [full]
    for word in ours:
        now = rows[-1]
        matched = now & where.get(word, 0)
        rows.append(((now + matched) | (now - matched)) & full)
    return rows


def subsequence_length(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many words the longest common subsequence has."""
    return len(theirs) - subsequence_rows(ours, theirs)[-1].bit_count()


def _union_of_subsequences(predicted: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> int:
    """ROUGE-Lsum's matches: the reference's words that lie on a longest common subsequence of its sentence with any
    predicted one, each word counted at most as often as both texts have it."""
    if len(predicted) == len(reference) == 1:
        return subsequence_length(reference[0], predicted[0])
    spare = Counter(word for sentence in predicted for word in sentence)
    common = 0
    for sentence in reference:
        places = sorted({place for other in predicted for place in _places(sentence, other)})
        for place in places:
            if spare[sentence[place]] > 0:
                spare[sentence[place]] -= 1
                common += 1
    return common


def _places(reference: Sequence[str], predicted: Sequence[str]) -> list[int]:
    """Which words of the reference's sentence one longest common subsequence takes: read from the end, a step back in
    the reference where that loses nothing. The union depends on this choice; it is that of `rouge-score`."""
    rows = subsequence_rows(reference, predicted)

    def length(i: int, j: int) -> int:
        return j - (rows[i] & ((1 << j) - 1)).bit_count()

    i, j, places = len(reference), len(predicted), []
    while i > 0 and j > 0:
        if reference[i - 1] == predicted[j - 1]:
            places.append(i - 1)
            i, j = i - 1, j - 1
        elif length(i, j - 1) > length(i - 1, j):
            j -= 1
        else:
            i -= 1
    return places
