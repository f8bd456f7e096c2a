"""Schemes of entity tags, IOB1, IOB2, BIOES and BILOU: which one sentences follow, what breaks it, conversion.

"B-PER I-PER O B-LOC" is IOB2: B begins every entity. In IOB1 (Ramshaw & Marcus 1995) B only separates an entity from
another one of its type directly before it. BIOES also marks the last word (E) and entities of one word (S); BILOU
calls them L and U.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from atento.errors import UsageError, counted, nearest

SCHEMES = ("IOB1", "IOB2", "BIOES", "BILOU")
Entity = tuple[str, int, int]  # type, first word, word after the last
Tags = Sequence[str]

_AS_BIOES = {"L": "E", "U": "S"}
_AS_BILOU = {"E": "L", "S": "U"}


def scheme_of(sentences: Iterable[Tags]) -> str | None:
    """The scheme that sentences follow; None where tags are not of entities, such as parts of speech.

    Tags with B and I alone are IOB1 if an entity somewhere begins with I, and no B stands anywhere but directly after
    an entity of its type; else IOB2.
    """
    prefixes: set[str] = set()
    inner = outer = False  # an I begins an entity; a B does where IOB1 has none
    for tags in sentences:
        before = ("O", "")
        for tag in tags:
            parts = _parts(tag)
            if parts is None:
                return None
            if parts[0] in "BI":
                behind = before[1] == parts[1] and before[0] in "BI"
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


def illegal(tags: Tags, scheme: str) -> list[int]:
    """The numbers of the words whose tag cannot stand behind the tag before it, or not at the end of the sentence.

    Raises:
        UsageError: there is no such scheme.
    """
    _check(scheme)
    pairs = enumerate(pairwise(("O", *tags, "O")))
    return [min(number, len(tags) - 1) for number, (before, tag) in pairs if not may_follow(before, tag, scheme)]


@lru_cache(maxsize=4096)
def may_follow(before: str, tag: str, scheme: str) -> bool:
    """Whether a tag may stand directly behind another; O stands for the beginning and the end of a sentence too.

    Raises:
        UsageError: there is no such scheme.
    """
    _check(scheme)
    (prefix_before, type_before), (prefix, kind) = _as_bioes(before), _as_bioes(tag)
    inside = prefix_before in "BI"
    if scheme in ("IOB1", "IOB2"):
        return prefix != ("B" if scheme == "IOB1" else "I") or (inside and kind == type_before)
    return inside == (prefix in "IE") and not (inside and kind != type_before)  # an entity ends with E


def entities(tags: Tags) -> list[Entity]:
    """The entities of a sentence in any scheme; a tag that cannot continue the entity before it begins another one."""
    spans: list[Entity] = []
    is_open = False
    for number, tag in enumerate(tags):
        prefix, kind = _as_bioes(tag)
        if prefix == "O":
            is_open = False
            continue
        if is_open and prefix in "IE" and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1], number + 1)
        else:
            spans.append((kind, number, number + 1))
        is_open = prefix not in "ES"
    return spans


def converted(tags: Tags, scheme: str) -> tuple[str, ...]:
    """The tags of a sentence in another scheme; the entities are the same.

    Raises:
        UsageError: there is no such scheme.
    """
    _check(scheme)
    result = ["O"] * len(tags)
    end_before, type_before = 0, ""
    for kind, start, end in entities(tags):
        prefixes = ["I"] * (end - start)
        if scheme != "IOB1" or (start == end_before and start and kind == type_before):
            prefixes[0] = "B"
        if scheme in ("BIOES", "BILOU"):
            prefixes[-1] = "S" if end - start == 1 else "E"
        if scheme == "BILOU":
            prefixes = [_AS_BILOU.get(prefix, prefix) for prefix in prefixes]
        result[start:end] = [f"{prefix}-{kind}" if kind else prefix for prefix in prefixes]
        end_before, type_before = end, kind
    return tuple(result)


def normalized(
    sentences: list[tuple[str, ...]], where: Callable[[int], str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The tags of sentences, IOB1 as IOB2 and other schemes as they are, and what to say of them.

    Args:
        where: the position of a sentence by its number, for messages.
    """
    scheme = scheme_of(sentences)
    if scheme is None:
        return sentences, []
    if scheme == "IOB1":
        return [converted(tags, "IOB2") for tags in sentences], ["its tags are IOB1, and are read as IOB2"]
    wrong = [(number, place) for number, tags in enumerate(sentences) for place in illegal(tags, scheme)]
    if not wrong:
        return sentences, []
    number, place = wrong[0]
    first = f"the first is {sentences[number][place]!r} of word {place + 1} of the sentence at {where(number)}"
    return sentences, [f"{counted(len(wrong), 'tag')} cannot follow the tag before by the rules of {scheme}; {first}"]


def _parts(tag: str) -> tuple[str, str] | None:
    """Prefix and type of the tag of an entity; None of another tag."""
    if tag == "O":
        return "O", ""
    prefix, hyphen, kind = tag.partition("-")
    if len(prefix) != 1 or prefix not in "BIESLU" or (hyphen and not kind) or not hyphen:
        return None
    return prefix, kind


def _as_bioes(tag: str) -> tuple[str, str]:
    """Prefix and type, L and U as E and S; a tag of no entity counts as O."""
    prefix, kind = _parts(tag) or ("O", "")
    return _AS_BIOES.get(prefix, prefix), kind


def _check(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise UsageError(f"unknown scheme of tags {scheme!r}{nearest(scheme, list(SCHEMES))}")
