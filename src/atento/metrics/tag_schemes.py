"""Schemes of entity tags, IOB1, IOB2, BIOES and BILOU: entities, what breaks a scheme, which one it is, conversion.

"B-PER I-PER O B-LOC" is IOB2: B begins every entity. In IOB1 (Ramshaw & Marcus 1995) B only separates an entity from
another one of its type directly before it. BIOES also marks the last word (E) and entities of one word (S); BILOU
calls them L and U.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from atento.base.errors import UsageError, nearest

SCHEMES = ("IOB1", "IOB2", "BIOES", "BILOU")
_PREFIXES = {"IOB1": "IB", "IOB2": "IB", "BIOES": "BIES", "BILOU": "BILU"}
_WRITTEN = re.compile(r"[Oo]|([BIEMSWLUbiemswlu])[-_](.+)")
_KNOWN = ("OBI", "OBIES", "OBILU", "OBMES", "OBMEW")  # the last two are BIOES with other letters
_AS_BIOES = {"L": "E", "U": "S"}
_AS_BILOU = {"E": "L", "S": "U"}

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
    spans: list[Span] = []
    if scheme is None:
        before, kind_before = "O", "_"
        for number, (prefix, kind) in enumerate(words):
            if prefix != "O":
                continues = prefix in "IE" and before in ("B", "I") and kind == kind_before  # in the way of conlleval
                start = spans.pop()[1] if continues else number  # the entity grows by this word
                spans.append((kind, start, number + 1))
            before, kind_before = prefix, kind
        return spans
    if scheme == "IOB1":
        number = 0
        while number < len(words):
            prefix, kind = words[number]
            before, kind_before = words[number - 1] if number else ("O", "_")
            if prefix == "O" or (prefix == "B" and (before == "O" or kind_before != kind)):
                number += 1
                continue
            end = _end(words, number, "I")  # the first word that is not of it
            alone = end - number == 1 and prefix == "B"
            followed = end < len(words) and words[end][0] == "B" and words[end][1] != kind
            if not (alone and followed):  # else this B stands for nothing: no entity of the next one's type ends here
                spans.append((kind, number, end))
            number = end
        return spans
    if scheme == "IOB2":  # an entity begins with B
        begins = [number for number, (prefix, _) in enumerate(words) if prefix == "B"]
        return [(words[number][1], number, _end(words, number, "I")) for number in begins]
    for number, (prefix, kind) in enumerate(words):  # an entity is S, or B, any number of I, and E
        if prefix == "S":
            spans.append((kind, number, number + 1))
        elif prefix == "B":
            end = _end(words, number, "I")
            if end < len(words) and words[end] == ("E", kind):  # without E it is no entity
                spans.append((kind, number, end + 1))
    return spans


def scheme_of(sentences: Iterable[Sequence[str]]) -> str | None:
    """The scheme that sentences follow; None where tags are not of entities, such as parts of speech.

    Tags with B and I alone are IOB1 if an entity somewhere begins with I, and no B stands anywhere but directly after
    an entity of its type; else IOB2.
    """
    prefixes: set[str] = set()
    inner = outer = False  # an I begins an entity; a B does where IOB1 has none
    for tags in sentences:
        before = ("O", "")
        for tag in tags:
            parts = _typed(tag)
            if parts is None:
                return None
            if parts[0] in "BI":
                behind = before[1] == parts[1] and before[0] in "BI"  # directly behind a word of its type
                inner |= parts[0] == "I" and not behind
                outer |= parts[0] == "B" and not behind
            prefixes.add(parts[0])
            before = parts
    prefixes.discard("O")
    if not prefixes:
        return None
    if prefixes <= set("BI"):
        return "IOB1" if inner and not outer else "IOB2"
    if prefixes <= set("BIES"):
        return "BIOES"
    return "BILOU" if prefixes <= set("BILU") else None


def scheme_of_labels(labels: Iterable[str]) -> str | None:
    """The scheme that labels suggest: BIOES, BILOU, IOB1 where none has B, else IOB2; None for plain tags."""
    return scheme_of((label,) for label in labels)


def respelled(sentences: Sequence[Sequence[str]]) -> tuple[list[tuple[str, ...]], tuple[str, str] | None]:
    """Sentences with their tags as the schemes of `SCHEMES` write them: `B_PER` and `b-PER` as B-PER, BMES as BIOES.

    Returns:
        The sentences, and the first tag that is written differently now, before and after; None: all are unchanged, or
        some are not of entities.
    """
    kept = [tuple(tags) for tags in sentences]
    written = list(dict.fromkeys(tag for tags in kept for tag in tags))
    matches = [_WRITTEN.fullmatch(tag) for tag in written]  # None: a tag of another form
    # match[0]: O, which has no prefix
    prefixes = {(match[1] or match[0]).upper() for match in matches if match is not None}
    if None in matches or "B" not in prefixes or not any(prefixes <= set(known) for known in _KNOWN):
        return kept, None
    middle = {"M": "I", "W": "S"}  # BMES and BMEW -> BIOES
    new = {}
    for tag, match in zip(written, matches):
        assert match is not None
        prefix = (match[1] or match[0]).upper()
        new[tag] = f"{middle.get(prefix, prefix)}-{match[2]}" if match[1] else "O"
    first = next(((tag, as_now) for tag, as_now in new.items() if tag != as_now), None)
    return (kept, None) if first is None else ([tuple(new[tag] for tag in tags) for tags in kept], first)


def outside_the_scheme(sentences: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """The sentence and the word of each tag that is not of entities, where most tags beside O are: perhaps mistakes.

    Also of one other tag alone where no tag is O: perhaps the O of another program, such as 0 or _.
    """
    places = [(number, word) for number, tags in enumerate(sentences) for word in range(len(tags))]
    other = [(number, word) for number, word in places if sentences[number][word] != "O"]
    odd = [(number, word) for number, word in other if _typed(sentences[number][word]) is None]
    for_o = len(other) == len(places) > len(odd) and len({sentences[number][word] for number, word in odd}) == 1
    return odd if for_o or 2 * len(odd) <= len(other) else []  # more than half are odd: plain tags


def illegal(tags: Sequence[str], scheme: str) -> list[int]:
    """The numbers of the words whose tag cannot stand behind the tag before it, or not at the end of the sentence.
    Raises UsageError: there is no such scheme.
    """
    _check_scheme(scheme)
    pairs = enumerate(pairwise(("O", *tags, "O")))  # the border of a sentence counts as O
    return [min(number, len(tags) - 1) for number, (before, tag) in pairs if not may_follow(before, tag, scheme)]


@lru_cache(maxsize=4096)
def may_follow(before: str, tag: str, scheme: str) -> bool:
    """Whether a tag may stand directly behind another; O stands for the beginning and the end of a sentence too.
    Raises UsageError: there is no such scheme.
    """
    _check_scheme(scheme)
    (prefix_before, type_before), (prefix, kind) = _as_bioes(before), _as_bioes(tag)
    inside = prefix_before in "BI"  # an entity may go on
    if scheme in ("IOB1", "IOB2"):
        return prefix != ("B" if scheme == "IOB1" else "I") or (inside and kind == type_before)
    return inside == (prefix in "IE") and not (inside and kind != type_before)  # an entity ends with E


def legal_transitions(labels: Sequence[str], scheme: str | None) -> list[list[bool]]:
    """Whether the tag of a column may stand behind that of a row, (C+1,C+1); the border of a sentence is the first.
    Raises UsageError: there is no such scheme.
    """
    tags = ("O", *labels)
    return [[scheme is None or may_follow(before, tag, scheme) for tag in tags] for before in tags]


def repaired(sentences: Sequence[Sequence[str]], scheme: str | None) -> list[tuple[str, ...]]:
    """The tags of sentences; of those that break the scheme, as it writes the entities that `conlleval` finds."""
    return [
        converted(tags, scheme) if scheme is not None and illegal(tags, scheme) else tuple(tags) for tags in sentences
    ]


def converted(tags: Sequence[str], scheme: str) -> tuple[str, ...]:
    """The tags of a sentence in another scheme; the entities are the same.
    Raises UsageError: there is no such scheme.
    """
    _check_scheme(scheme)
    result = ["O"] * len(tags)
    end_before, type_before = 0, ""
    for kind, start, end in entities(tags):
        prefixes = ["I"] * (end - start)
        # IOB1 needs B only where one entity touches another of its type
        if scheme != "IOB1" or (start == end_before and start and kind == type_before):  # the entity before ended here
            prefixes[0] = "B"
        if scheme in ("BIOES", "BILOU"):
            prefixes[-1] = "S" if end - start == 1 else "E"
        if scheme == "BILOU":
            prefixes = [_AS_BILOU.get(prefix, prefix) for prefix in prefixes]
        # a prefix alone stays one
        result[start:end] = [f"{prefix}-{kind}" if "-" in tags[start] else prefix for prefix in prefixes]
        end_before, type_before = end, kind
    return tuple(result)


def _parts(tag: str, scheme: str | None) -> tuple[str, str]:
    """Prefix and type of a tag; L and U as E and S. A prefix alone has the type "_"."""
    if scheme is not None:
        _check_scheme(scheme)
    parts = _split(tag)
    if parts is None:
        raise UsageError(f"a tag is O, or a prefix of B, I, E, S, L or U with a type, such as B-PER: got {tag!r}")
    prefix, kind = parts
    if prefix != "O" and scheme is not None and prefix not in _PREFIXES[scheme]:
        raise UsageError(f"{scheme} has the prefixes {', '.join(_PREFIXES[scheme])}: got {tag!r}")
    return _AS_BIOES.get(prefix, prefix), kind or "_"


def _end(words: list[tuple[str, str]], start: int, prefix: str) -> int:
    """The number after the words of that prefix and of the type of `start` that follow it."""
    end = start + 1
    while end < len(words) and words[end] == (prefix, words[start][1]):
        end += 1
    return end


def _typed(tag: str) -> tuple[str, str] | None:
    """Prefix and type of the tag of an entity, "" the type of O; None of another tag, and of a prefix alone."""
    parts = _split(tag)
    return parts if parts is not None and (parts[0] == "O" or parts[1]) else None


def _split(tag: str) -> tuple[str, str] | None:
    """Prefix and type of a tag, "" where it has no type; None of a tag that is not of entities."""
    prefix, hyphen, kind = tag.partition("-")
    if tag != "O" and (len(prefix) != 1 or prefix not in "BIESLU" or (hyphen and not kind)):
        return None
    return prefix, kind


def _as_bioes(tag: str) -> tuple[str, str]:
    """Prefix and type, L and U as E and S; a tag of no entity counts as O."""
    prefix, kind = _typed(tag) or ("O", "")
    return _AS_BIOES.get(prefix, prefix), kind


def _check_scheme(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise UsageError(f"unknown scheme {scheme!r}{nearest(scheme, list(SCHEMES))}")
