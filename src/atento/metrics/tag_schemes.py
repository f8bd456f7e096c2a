"""Entities of tagged words in IOB1, IOB2, BIOES and BILOU."""

from collections.abc import Sequence

from atento.errors import UsageError, nearest

SCHEMES = ("IOB1", "IOB2", "BIOES", "BILOU")
_PREFIXES = {"IOB1": "IB", "IOB2": "IB", "BIOES": "BIES", "BILOU": "BILU"}
_AS_BIOES = {"L": "E", "U": "S"}

Span = tuple[str, int, int]  # type, first word, word after the last


def entities(tags: Sequence[str], scheme: str | None = None) -> list[Span]:
    """The entities of the tags of one sentence: (type, first word, word after the last).

    Args:
        tags: "O", or a prefix, a hyphen and a type, such as "B-PER".
        scheme: None reads all schemes, and illegal sequences in the way of the script conlleval: a word whose tag
            cannot continue the entity before it begins one. A scheme of `SCHEMES` reads that scheme strictly: what is
            illegal is no entity.

    Raises:
        UsageError: a tag of another form or of another scheme; there is no such scheme.
    """
    words = [_parts(tag, scheme) for tag in tags]
    if scheme is None:
        return _lenient(words)
    if scheme == "IOB1":
        return _iob1(words)
    return _iob2(words) if scheme == "IOB2" else _bioes(words)


def _parts(tag: str, scheme: str | None) -> tuple[str, str]:
    """Prefix and type of a tag; L and U as E and S. A prefix alone has the type "_"."""
    if scheme is not None and scheme not in SCHEMES:
        raise UsageError(f"unknown scheme {scheme!r}{nearest(scheme, list(SCHEMES))}")
    if tag == "O":
        return "O", "_"
    prefix, hyphen, kind = tag.partition("-")
    if len(prefix) != 1 or prefix not in "BIESLU" or (hyphen and not kind):
        raise UsageError(f"a tag is O, or a prefix of B, I, E, S, L or U with a type, such as B-PER: got {tag!r}")
    if scheme is not None and prefix not in _PREFIXES[scheme]:
        raise UsageError(f"{scheme} has the prefixes {', '.join(_PREFIXES[scheme])}: got {tag!r}")
    return _AS_BIOES.get(prefix, prefix), kind or "_"


def _lenient(words: list[tuple[str, str]]) -> list[Span]:
    spans: list[Span] = []
    before, kind_before = "O", "_"
    for number, (prefix, kind) in enumerate(words):
        if prefix != "O":
            continues = prefix in "IE" and before in ("B", "I") and kind == kind_before
            start = spans.pop()[1] if continues else number
            spans.append((kind, start, number + 1))
        before, kind_before = prefix, kind
    return spans


def _iob1(words: list[tuple[str, str]]) -> list[Span]:
    """An entity begins with I; with B only directly after an entity of its type."""
    spans: list[Span] = []
    number = 0
    while number < len(words):
        prefix, kind = words[number]
        before, kind_before = words[number - 1] if number else ("O", "_")
        if prefix == "O" or (prefix == "B" and (before == "O" or kind_before != kind)):
            number += 1
            continue
        end = _end(words, number, "I")
        alone = end - number == 1 and prefix == "B"
        followed = end < len(words) and words[end][0] == "B" and words[end][1] != kind
        if not (
            alone and followed
        ):  # this B stands for nothing: the next one says that no entity of its type ends here
            spans.append((kind, number, end))
        number = end
    return spans


def _iob2(words: list[tuple[str, str]]) -> list[Span]:
    """An entity begins with B."""
    begins = [number for number, (prefix, _) in enumerate(words) if prefix == "B"]
    return [(words[number][1], number, _end(words, number, "I")) for number in begins]


def _bioes(words: list[tuple[str, str]]) -> list[Span]:
    """An entity is S, or B, any number of I, and E."""
    spans: list[Span] = []
    for number, (prefix, kind) in enumerate(words):
        if prefix == "S":
            spans.append((kind, number, number + 1))
        elif prefix == "B":
            end = _end(words, number, "I")
            if end < len(words) and words[end] == ("E", kind):
                spans.append((kind, number, end + 1))
    return spans


def _end(words: list[tuple[str, str]], start: int, prefix: str) -> int:
    """The number after the words of that prefix and of the type of `start` that follow it."""
    end = start + 1
    while end < len(words) and words[end] == (prefix, words[start][1]):
        end += 1
    return end
