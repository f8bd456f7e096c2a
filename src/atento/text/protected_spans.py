"""What a translation must not change: tags, placeholders, addresses, numbers, emoji; found, taken out, set again."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter

from atento.text.found_spans import CLOSING, SPANS, Found, found_in, pairs_of
from atento.text.glossary import has_spaces

_DIGITS = re.compile(r"\d+")
_MARKS = tuple(".,;:!?…。！？，、；：")
_ENDS = tuple(".!?…。！？")  # of a sentence
Part = tuple[int, int, float]  # begin, end and weight of a word of an output, or of a place in it


@dataclass(frozen=True)
class Span:
    """Something in a text that its translation must have too."""

    kind: str  # "tag", "address", "placeholder", "emoji" or "number"
    text: str  # as it stands
    at: int  # where it was in the text without the spans
    # `before`, `after`: the blanks that stood there, and a space at an end of the text; None: it touched a letter
    before: str | None
    after: str | None
    is_half: bool  # whether it is a tag that begins or ends an element around words, or without its other half
    is_cut: bool = False  # whether a space stands in its place in that text, so that two words are not one


@dataclass(frozen=True)
class Link:
    """A word of an output and the word of the source that it comes from, by their first and past their last letter.

    `weight` is the attention between them.
    """

    start: int
    end: int
    source_start: int
    source_end: int
    weight: float = 1.0


@dataclass(frozen=True)
class ProtectedText:
    """A text and its spans."""

    text: str  # the text
    spans: tuple[Span, ...]  # those that are taken out, with the brackets and quotation marks around them
    bare: str  # the text without them

    @classmethod
    def of(cls, text: str, *, tags_only: bool = False) -> "ProtectedText":
        """Take the spans out of a text, or its tags alone."""
        spans, bare, at, is_cut = list[Span](), "", 0, False
        for found in [*found_in(text, tags_only=tags_only), Found("", len(text), len(text))]:
            if piece := text[at : found.start]:
                a, b = bare[-1:], piece[0]  # two words, or a word and a number, would be one
                if spans and a.isalnum() and b.isalnum():
                    is_cut = is_cut or a.isdigit() != b.isdigit() or has_spaces(a) != has_spaces(b)
                    is_cut = is_cut or (b.isupper() and (a.islower() or piece[1:2].islower()))
                if is_cut and spans and a.isalnum() and b.isalnum():
                    bare, spans[-1] = f"{bare} ", replace(spans[-1], is_cut=True)
                bare, is_cut = bare + piece, False
            if not found.kind:
                break
            first, at, last = found.start, found.end, found.end
            while first > 0 and text[first - 1].isspace():
                first -= 1
            while last < len(text) and text[last].isspace():
                last += 1
            before = _beside(text[first : found.start], text[first - 1 : first])
            after = _beside(text[at:last], text[last : last + 1])
            spans.append(Span(found.kind, text[found.start : at], len(bare), before, after, found.is_half))
            is_cut = is_cut or not found.is_half
            is_gap = (bare[-1:].isspace() or not bare) and not found.is_half  # without it two spaces would meet
            if is_gap and after:
                at = last
            elif is_gap and bare and text[at] in CLOSING:
                bare, number = bare[:-1], len(spans)
                while (number := number - 1) >= 0 and spans[number].at > len(bare):  # those before it too
                    spans[number] = replace(spans[number], at=len(bare))
        lead = len(bare) - len(bare.lstrip()) if spans and spans[0].before else 0  # spaces left in front
        return cls(text, tuple(replace(span, at=max(0, span.at - lead)) for span in spans), bare[lead:])

    def is_whole(self, output: str) -> bool:
        """Whether an output has every span that is no tag, as often as the text.

        A number with letters may be other words, but has no further digits.
        """
        source = self.bare if all(span.kind == "tag" for span in self.spans) else self.text
        there, digits = _items(output), {*_DIGITS.findall(output)}
        longer = digits - {*_DIGITS.findall(source)}
        # how often several spans stand in the text, with nothing but marks between
        several = (one for one in found_in(source) if one.parts > 1 and one.kind not in ("tag", "number"))
        rows = Counter(source[one.start : one.end] for one in several)
        return all(
            not any(one in other for one in {*_DIGITS.findall(item)} - digits for other in longer)
            if re.match(r"\d[^a-z]*[A-Za-z]", item)
            else there[item] == count
            for item, count in _items(source).items()
        ) and all(output.count(row) >= count for row, count in rows.items())

    def joined(self, output: str, links: Sequence[Link]) -> str:
        """A translation of `bare` with the spans set by its alignment.

        A span that is no tag, or a tag without its other half, stands beside the word that it stood beside: before the
        translation of the next word, else behind that of the word before it. A pair of tags stands around the
        translation of all that it stood around, or, between words of a pair beside it, around most of it; where none of
        its words is linked, around the nearest word that no link has, or else around nothing.

        Args:
            output: the translation.
            links: its words.
        """
        # each by the words beside it
        places = [self._in_sentence(span, output, self._place(span, output, links)) for span in self.spans]
        halves = [number for number, span in enumerate(self.spans) if span.is_half]
        # the numbers of the opening and the closing tags, the inner pairs first
        pairs = [(halves[a], halves[b]) for a, b in pairs_of(self.spans[number].text for number in halves)]
        parts = dict[tuple[int, int], list[Part]]()
        tags = {number for pair in pairs for number in pair}
        for first, last in pairs:
            begin, after = self.spans[first].at, self.spans[last].at
            words = self.bare[begin:after].rstrip()
            inside = [link for link in links if begin <= link.source_start and link.source_end <= after]
            held = [(link.start, link.end, link.weight) for link in inside]
            things = [number for number in range(first + 1, last) if number not in tags]
            if words and not held and not things:  # none of its words is linked
                # the nearest word that has no link
                spans = (match.span() for match in re.finditer(r"\w+", output))
                free = [(a, b) for a, b in spans if not any(link.start < b and a < link.end for link in links)]
                place = places[first]
                start, end = min(free, key=lambda word: abs(word[0] - place), default=(place, place))
                links = [*links, Link(start, end, begin, after)]  # no longer free
                held = [(start, end, 1.0)] * (start < end)
            if held and words.endswith(_MARKS):  # its last mark is in it
                start, end, weight = held.pop(held.index(max(held, key=lambda part: part[1])))
                marks = len(output[end:]) - len(output[end:].lstrip("".join(_MARKS)))
                held.append((start, end + marks, weight))
            parts[first, last] = held + [(places[number], places[number], 1.0) for number in things]
        found = _extents(parts, places, len(output))
        keys = [((*path, (len(output) + 1, 0, last)), path[-1][1], last) for (_, last), path in found.items()]
        keys += [(path, path[-1][0], first) for (first, _), path in found.items()]
        low = 0  # a half without its other keeps its order among them, and stands in no pair that it did not stand in
        for number, place in enumerate(places):
            if number in tags:
                continue
            span, own = self.spans[number], [path for (first, last), path in found.items() if first < number < last]
            place = max(place, low) if span.is_half else place
            for start, end, _ in max(own, key=len, default=()):  # what stands in a pair stays in it
                place = min(max(place, start), end)
            around = [path for path in found.values() if path[-1][0] < place < path[-1][1] and path not in own]
            if span.is_half:
                place = low = max([place, *(path[-1][1] for path in around)])
                around = []
            keys.append(((*max(own + around, key=len, default=()), (place, place, number)), place, number))
        return _set(output, [(place, self.spans[number]) for _, place, number in sorted(keys)])

    def _in_sentence(self, span: Span, output: str, place: int) -> int:
        """A place, before the mark that ends a sentence unless the span stood behind one."""
        before = output[:place].rstrip()
        if span.kind == "tag" or self.bare[: span.at].rstrip().endswith(_ENDS) or not before.endswith(_ENDS):
            return place
        return len(before.rstrip("".join(_ENDS)).rstrip())

    def _place(self, span: Span, output: str, links: Sequence[Link]) -> int:
        """Where a span stands in an output, by the words beside it."""
        if not self.bare[: span.at].strip():
            return 0
        if not self.bare[span.at :].strip():
            return len(output)
        after = [link for link in links if link.source_start >= span.at]  # words behind the span
        before = [link for link in links if link.source_end <= span.at]  # words before the span
        nearest_after = min((link.source_start for link in after), default=None)
        nearest_before = max((link.source_end for link in before), default=None)
        left = None if nearest_before is None else self.bare[nearest_before : span.at]
        right = None if nearest_after is None else self.bare[span.at : nearest_after]
        is_behind = span.after and not span.before and not span.is_half  # as the mark of a note stands behind a word
        touches_word = right is not None and not right.strip()  # nothing but spaces is between
        if left is not None and (not touches_word or (is_behind and not left.strip(CLOSING))):
            return _past(output, max(link.end for link in before if link.source_end == nearest_before), left)
        if right is not None:
            place = min(link.start for link in after if link.source_start == nearest_after)
            is_end = span.text.startswith("</") and not self.bare[span.at - 1].isspace()  # it stands behind a word
            ahead = len(output) - _past(output[::-1], len(output) - place, right[::-1])
            return len(output[:place].rstrip()) if is_end else ahead
        place = round(len(output) * span.at / len(self.bare))  # no word is linked: in proportion, in no word
        inside = re.compile(r"(?<=\w)\w+").match(output, place)
        return place if inside is None else inside.end()


def _extents(
    parts: dict[tuple[int, int], list[Part]], places: Sequence[int], length: int
) -> dict[tuple[int, int], tuple[tuple[int, int, int], ...]]:
    """The begin, end and first number of what each pair of tags stands around, behind those of the pairs around it.

    Each begins with its strongest part and grows while it meets no pair that is apart from it.
    """
    found = dict[tuple[int, int], tuple[tuple[int, int, int], ...]]()
    for pair in sorted(parts):  # the outer ones first
        path = max((path for other, path in found.items() if other[1] > pair[1]), key=len, default=())
        low, high, _ = path[-1] if path else (0, length, 0)
        others = [other for other in parts if other[1] < pair[0] or other[0] > pair[1]]
        apart = [found[one][-1] if one in found else max(parts[one], key=itemgetter(2)) for one in others if parts[one]]
        free = [part for part in parts[pair] if low <= part[0] and part[1] <= high and not _meets(part, apart)]
        place = min(max(places[pair[0]], low), high)
        place = next((one[1] for one in apart if one[0] < place < one[1]), place)
        start, end, _ = max(free, key=itemgetter(2), default=(place, place, 0.0))
        for part in sorted(free, key=lambda part: abs(part[0] - start)):
            grown = min(start, part[0]), max(end, part[1])
            start, end = (start, end) if _meets(grown, apart) else grown
        found[pair] = (*path, (start, end, pair[0]))
    return found


def _meets(part: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    return any(other[0] < part[1] and part[0] < other[1] for other in others)


def _past(output: str, place: int, gap: str) -> int:
    """A place behind the marks of a gap, as far as an output has them there."""
    for mark in re.findall(r"[^\w\s]", gap):
        behind = len(output) - len(output[place:].lstrip())
        if output[behind : behind + 1] != mark:
            break
        place = behind + 1
    return place


def _beside(blanks: str, letter: str) -> str | None:
    """The blanks between a span and a letter, a space at an end of the text; None: it touches the letter."""
    if not letter:
        return blanks or " "
    return None if not blanks and has_spaces(letter) else blanks


def _items(text: str) -> Counter[str]:
    """How often each span that is no tag stands in a text; the sign of a number stands behind it, without a space."""
    items = Counter[str]()
    for match in SPANS.finditer(text):
        signs = re.sub(r"[\w.,:/-]|\s", "", match[0]) if match.lastgroup == "number" else ""
        items[match[0].strip(signs + "\u00a0\u202f ") + signs if signs else match[0]] += match.lastgroup != "tag"
    return +items


def has_words(text: str) -> bool:
    """Whether a text has a letter, of any script, outside of what a translation must not change."""
    return any(char.isalpha() for char in text) and any(char.isalpha() for char in SPANS.sub("", text))


def _set(output: str, spans: Sequence[tuple[int, Span]]) -> str:
    """An output with spans at places, which are in order, and with the spaces that they had."""
    parts, at = "", 0
    for place, group in groupby(spans, key=lambda found: found[0]):
        place = max(place, at)
        found = [span for _, span in group]
        parts, rest = parts + output[at:place], output[place:]
        has_item = any(span.kind != "tag" for span in found)  # a word of its own, between spaces
        text = found[0].text
        for one, span in pairwise(found):
            text += (one.after or ("" if one.is_half or span.is_half else span.before) or "") + span.text
        before, after = found[0].before, found[-1].after
        if before or after or any(span.is_cut for span in found):
            parts, place = parts.rstrip(), place + len(rest) - len(rest.lstrip())  # its own blanks, in place of others
            rest = output[place:]
        if parts and not parts[-1].isspace():
            text = (before or " " * bool(before == "" and has_item and has_spaces(parts[-1]))) + text
        if rest and not rest[0].isspace() and rest[0] not in CLOSING:
            is_apart = has_item or (before and not found[-1].is_half)
            text += after or " " * bool(after == "" and is_apart and has_spaces(rest[0]))
        parts, at = parts + text, place
    return parts + output[at:]
