"""Hard-wrapped lines joined into paragraphs, as a book or an e-mail has them: where one ends, what a hyphen means."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from atento.errors import DataError

Line = tuple[int, str] | DataError  # its number, from 1, and its text; or its error

_WIDTH = 95  # percent of the lines are at most as long as the usual line
_ROOM = 0.8  # of that width: a line that the next word would have fitted into was ended on purpose
_NEIGHBOURS, _BROKEN_SHARE = 500, 0.3
_ENDS = frozenset(".!?…:;\"'”’»)]")
_SOFT = "\u00ad"
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_BROKEN = re.compile(r"([^\W\d_]+(?:-[^\W\d_]+)*)-\Z")
_HYPHEN = re.compile(f"[^\\W\\d_]-\\Z|{_SOFT}\\Z")
_FIRST = re.compile(r"[^\W\d_]+")


def paragraphs(lines: Iterable[Line]) -> Iterator[Line]:
    """Join the lines of each paragraph with blanks; yields its first line's number and its text.

    A blank line ends a paragraph. So does a line that has room for the next word: one that would still be shorter than
    80 % of the usual line (the length that 95 % of the lines do not exceed) and breaks no word. Verses and headings
    stay apart that way, and books whose paragraphs are not parted by blank lines are read too.

    A word that is broken at the end of a line is joined: at a soft hyphen always; at a hyphen without it where the
    whole word appears elsewhere in the file more often than the one with the hyphen ("exem-" "plo"), else with it
    ("disse-" "me"). Either way no blank is put in.

    Args:
        lines: the file's; bad ones are yielded unchanged, and the lines around them are joined.
    """
    every = list(lines)
    texts = [(line[0], line[1].strip()) for line in every if not isinstance(line, DataError)]
    yield from (line for line in every if isinstance(line, DataError))
    lengths = [len(text) for _, text in texts if text]
    room = _ROOM * float(np.percentile(lengths, _WIDTH)) if lengths else 0.0
    words = _words(text for _, text in texts)
    begun, parts = 0, [""]
    for number, text in texts:
        last = parts[-1]
        fits = bool(text) and len(last) + 1 + len(text.split(maxsplit=1)[0]) <= room
        if last and (not text or (fits and not _HYPHEN.search(last))):
            yield begun, "".join(parts)
            parts = [""]
        if text and parts[-1]:
            parts[-1:] = [_ending(parts[-1], text, words), text]
        elif text:
            begun, parts = number, [text]
    if parts[-1]:
        yield begun, "".join(parts)


def looks_wrapped(texts: Sequence[str], numbers: Sequence[int]) -> bool:
    """Whether the lines of a file seem to be broken inside sentences: of 500 and more neighbours, 3 in 10 or more are a
    line that ends without punctuation and one that begins with a small letter.

    Args:
        texts: lines that are not blank. numbers: their line numbers.
    """
    neighbours = broken = 0
    for at in range(1, len(texts)):
        if numbers[at] == numbers[at - 1] + 1:
            neighbours += 1
            broken += texts[at - 1].rstrip()[-1:] not in _ENDS and texts[at].lstrip()[:1].islower()
    return neighbours >= _NEIGHBOURS and broken >= _BROKEN_SHARE * neighbours


def _words(texts: Iterable[str]) -> Counter[str]:
    """Count the words inside lines; words with hyphens are counted as one."""
    return Counter(word for text in texts for word in _WORDS.findall(text.lower()))


def _ending(line: str, following: str, words: Counter[str]) -> str:
    """Return a line as it precedes the next one: with a space, or without its hyphen."""
    if line.endswith(_SOFT):
        return line[:-1]
    broken, first = _BROKEN.search(line) if line.endswith("-") else None, _FIRST.match(following)
    if broken is None or first is None:
        return f"{line} "
    left, right = broken[1].lower(), first[0].lower()
    is_one_word = first[0].islower() and words[left + right] > words[f"{left}-{right}"]
    return line[:-1] if is_one_word else line
