"""A text file as lines, documents or paragraphs: hard-wrapped lines are joined, as a book or an e-mail has them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from atento.base.errors import DataError
from atento.config.recipe import SourceConfig
from atento.data.files.source_lines import open_binary, scan

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


def paragraphs(read: Callable[[], Iterable[Line]]) -> Iterator[Line]:
    """Join the lines of each paragraph with blanks; yields its first line's number and its text.

    A blank line ends a paragraph. So does a line that has room for the next word: one that would still be shorter than
    80 % of the usual line (the length that 95 % of the lines do not exceed) and breaks no word. Verses and headings
    stay apart that way, and books whose paragraphs are not parted by blank lines are read too.

    A word that is broken at the end of a line is joined: at a soft hyphen always; at a hyphen without it where the
    whole word appears elsewhere in the file more often than the one with the hyphen ("exem-" "plo"), else with it
    ("disse-" "me"). Either way no blank is put in.

    The lines are read two or three times, so that only their lengths and the broken words are in memory.

    Args:
        read: returns the file's lines from the first one on; bad ones are yielded unchanged, and the lines around them
            are joined.
    """
    # the lines of each length, blank ones aside, and the words broken at a line's end, in two forms
    lengths, broken, last = Counter[int](), set[str](), ""
    for line in read():
        if isinstance(line, DataError) or not (text := line[1].strip()):
            continue
        lengths[len(text)] += 1
        if (sides := _broken(last, text)) is not None:
            broken |= {sides[0] + sides[1], f"{sides[0]}-{sides[1]}"}
        last = text  # a word may go on from this line to the next
    room = _ROOM * _usual_length(lengths)  # characters of a line that is nearly full
    texts = (line[1].strip() for line in (read() if broken else ()) if not isinstance(line, DataError))
    # how often broken words stand inside lines; words with hyphens are counted as one
    words = Counter(word for text in texts for word in _WORDS.findall(text.lower()) if word in broken)
    begun, parts = 0, [""]  # its first line's number, and its lines, of which the last is not yet final
    for line in read():
        if isinstance(line, DataError):
            yield line
            continue
        number, text = line[0], line[1].strip()
        last = parts[-1]
        fits = bool(text) and len(last) + 1 + len(text.split(maxsplit=1)[0]) <= room  # it had room for the next word
        if last and (not text or (fits and not _HYPHEN.search(last))):
            yield begun, "".join(parts)
            parts = [""]
        if text and parts[-1]:
            parts[-1:] = [_ending(parts[-1], text, words), text]  # how a line ends depends on the next one
        elif text:
            begun, parts = number, [text]
    if parts[-1]:
        yield begun, "".join(parts)


def _usual_length(lengths: Mapping[int, int]) -> float:
    """Return the length that 95 % of the lines do not exceed, as `numpy.percentile` has it; 0 without lines."""
    if not lengths:
        return 0.0
    ranked = np.array(sorted(lengths))
    ends = np.cumsum([lengths[length] for length in ranked.tolist()])  # lines up to each length
    position = (_WIDTH / 100) * float(ends[-1] - 1)  # a place between two lines, by rank
    below = int(position)
    neighbours = [below, min(below + 1, int(ends[-1]) - 1)]
    low, high = (int(ranked[number]) for number in np.searchsorted(ends, neighbours, side="right"))
    share = position - below  # between the two neighbours
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def wrapped_sentence(name: str) -> str:
    """Return the sentence that says so of a file or of several."""
    return (
        f"{name}: its lines seem to be broken inside sentences, and each is a text of its own; `paragraphs: true` "
        "beside `file` joins them"
    )


def looks_wrapped(texts: Sequence[str], numbers: Sequence[int]) -> bool:
    """Whether the lines of a file seem to be broken inside sentences: of 500 and more neighbours, 3 in 10 or more are a
    line that ends without punctuation and one that begins with a small letter.

    Args:
        texts: lines that are not blank. numbers: their line numbers.
    """
    neighbours = broken = 0
    for at in range(1, len(texts)):
        if numbers[at] == numbers[at - 1] + 1:  # no blank line between
            neighbours += 1
            broken += texts[at - 1].rstrip()[-1:] not in _ENDS and texts[at].lstrip()[:1].islower()
    return neighbours >= _NEIGHBOURS and broken >= _BROKEN_SHARE * neighbours


def _broken(line: str, following: str) -> tuple[str, str] | None:
    """Return the two sides, in lower case, of a word that a hyphen breaks between two lines; None: there is none."""
    broken, first = _BROKEN.search(line) if line.endswith("-") else None, _FIRST.match(following)
    return None if broken is None or first is None else (broken[1].lower(), first[0].lower())


def _ending(line: str, following: str, words: Counter[str]) -> str:
    """Return a line as it precedes the next one: with a space, or without its hyphen."""
    if line.endswith(_SOFT):
        return line[:-1]
    sides = _broken(line, following)
    if sides is None:
        return f"{line} "
    is_one_word = following[0].islower() and words["".join(sides)] > words["-".join(sides)]
    return line[:-1] if is_one_word else line


def documents(source: SourceConfig, name: str, folder: Path, *, streamed: bool = False) -> Iterator[Line]:
    """Yield the texts of one text file with the number of their first line: lines, paragraphs or documents.

    Args:
        source: how to read the file.
        name: the file.
        folder: what a relative name is relative to.
        streamed: the texts are not kept, so that the file may be larger than the memory.
    """

    def lines() -> Iterator[Line]:
        path = folder / Path(name).expanduser()
        with open_binary(path, name, streamed=streamed, encoding=source.encoding) as stream:
            for number, line in enumerate(scan(stream, name), start=1):
                yield line if isinstance(line, DataError) else (number, line)

    if source.paragraphs:
        return paragraphs(lines)
    return lines() if source.documents == "lines" else joined_lines(lines(), source.documents == "file")


def joined_lines(lines: Iterator[Line], whole_file: bool) -> Iterator[Line]:
    """Join the lines between blank lines, or all lines of a file, with line ends; yield the first line's number.

    Bad lines are yielded as they come, and the lines around them are joined.
    """
    first, texts = 0, list[str]()
    for line in lines:
        if isinstance(line, DataError):
            yield line
            continue
        number, text = line
        if text.strip() or (whole_file and texts):
            first = first if texts else number
            texts.append(text)
        elif texts:
            yield first, "\n".join(texts)
            texts = []
    if texts:
        yield first, "\n".join(texts).rstrip("\n")
