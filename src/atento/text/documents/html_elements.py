"""The open elements of an HTML document, by the standard's rules for tags that are left out or cross one another.

Each question is answered from the places of the elements of a kind in the stack, so the work of a tag does not grow
with the number of open elements.
"""

from collections import defaultdict
from typing import Literal

from atento.text.placeholders import VOID

Kind = Literal["markup", "text"]


def _tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


NOT_TEXT = _tags("script style code pre listing kbd samp var textarea svg math xmp iframe noembed noframes plaintext")
_RAW = _tags("script style textarea title xmp iframe noembed noframes plaintext")  # without tags inside
_FORMATTING = _tags("a b big code em font i nobr s small strike strong tt u")
_MARKERS = _tags("applet caption marquee object table td th template")  # tags do not cross their edges
_TABLE_PARTS = _tags("caption colgroup table tbody td tfoot th thead tr")
_CLOSING_P = _tags(
    "address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer form h1 h2 h3"
    " h4 h5 h6 header hgroup hr main menu nav ol p pre listing search section summary table ul li dd dt plaintext xmp"
)
_HEADINGS = _tags("h1 h2 h3 h4 h5 h6")
_SPECIAL = _MARKERS | _TABLE_PARTS | (_CLOSING_P - {"hr"})
_SPECIAL |= _tags("body button frameset head html iframe noembed noframes noscript script select style textarea title")
_GROUPS = {
    "*special": _SPECIAL,
    "*list": _SPECIAL - {"address", "div", "p"},
    "*scope": _MARKERS,
    "*item": _MARKERS | {"ol", "ul"},
    "*paragraph": _MARKERS | {"button"},
    "*table": frozenset({"table", "template"}),
}
"""Name -> the elements that an end tag, or the start of another element, does not reach through."""
_FOREIGN = ("svg", "math")
_HTML_INSIDE = ("foreignobject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext")
_ENDING_FOREIGN = _tags(
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)

_CELLS = ("td", "th", "caption", "colgroup")
_ENDS: dict[str, tuple[str, ...]] = {
    **{name: pair for pair in (("dt", "dd"), ("rt", "rp")) for name in pair},
    **dict.fromkeys(("td", "th"), _CELLS),
    "tr": (*_CELLS, "tr"),
    **dict.fromkeys(("caption", "colgroup", "tbody", "thead", "tfoot"), (*_CELLS, "tr", "tbody", "thead", "tfoot")),
} | {"li": ("li",), "option": ("option",), "optgroup": ("option", "optgroup"), "body": ("head",)}
"""Tag -> the open elements that its start ends (HTML standard, optional tags), beside `p`."""

_Formatting = defaultdict[str, list[tuple[int, bool]]]
"""Tag -> the height of the stack where such an element began, and whether it has no words."""


class OpenElements:
    """The open elements at a place of a document."""

    def __init__(self) -> None:
        self._stack: list[tuple[str, bool]] = []  # tag, whether it has no words
        self._places: dict[str, list[int]] = defaultdict(list)  # tag or group -> where such elements are in the stack
        self._formatting: list[_Formatting] = [defaultdict(list)]  # one more for each open marker
        self._kept = 0

    @property
    def kind(self) -> Kind:
        """The kind of a text here."""
        return "markup" if self._kept else "text"

    @property
    def raw(self) -> str:
        """The tag of the element here, if it has no tags inside, else ""."""
        tag = self._stack[-1][0] if self._stack else ""
        return tag if tag in _RAW and not self.is_foreign else ""

    @property
    def is_foreign(self) -> bool:
        """Whether this is a part of a drawing or a formula."""
        return any(self._places[tag] for tag in _FOREIGN)

    def begin(self, tag: str, *, is_kept: bool, is_closed: bool) -> None:
        """Begin an element.

        Args:
            tag: its name in lower case.
            is_kept: whether its attributes say that it has no words.
            is_closed: whether the tag ends with a slash, which counts in drawings and formulas.
        """
        # such a tag ends the drawing that it stands in, but not where a part of the drawing holds HTML
        if self.is_foreign and tag in _ENDING_FOREIGN and not any(self._places[name] for name in _HTML_INSIDE):
            self._pop_to(min(self._places[name][0] for name in _FOREIGN if self._places[name]))
        if self.is_foreign:
            if not is_closed:
                self._push(tag, is_kept)
            return
        for ended in _ENDS.get(tag, ()):  # such as the <li> before this one
            self._close(ended, "*table" if tag in _TABLE_PARTS else "*list")
        if tag in _CLOSING_P:
            self._close("p", "*paragraph")
        if tag in _HEADINGS and self._stack and self._stack[-1][0] in _HEADINGS:  # a heading ends the one before it
            self._pop_to(len(self._stack) - 1)
        if tag in ("a", "nobr"):  # these do not nest
            self._end_formatting(tag)
        is_kept = is_kept or tag in NOT_TEXT
        if tag in _FORMATTING:
            self._formatting[-1][tag].append((len(self._stack), is_kept))  # not in the stack: it may end across others
            self._kept += is_kept
        elif tag not in VOID:
            self._push(tag, is_kept)

    def end(self, tag: str) -> None:
        """End the element that an end tag is of, if one is open."""
        if tag in _FORMATTING and not self._places[tag]:  # not in the stack of elements
            self._end_formatting(tag)
        elif tag in _TABLE_PARTS:
            self._close(tag, "*table")
        elif tag in _FOREIGN:
            self._close(tag, "")
        elif tag in _HEADINGS:
            self._close(max(_HEADINGS, key=self._last), "*scope")
        else:
            groups = {"li": "*item", "p": "*paragraph"}
            self._close(tag, groups.get(tag, "*scope" if tag in _SPECIAL else "*special"))

    def _end_formatting(self, tag: str) -> None:
        """End the last such element; those around text, such as <b>, may end across others."""
        if self._formatting[-1][tag]:
            height, is_kept = self._formatting[-1][tag].pop()
            self._kept -= is_kept
            if self._last("*special") < height:  # no block inside is open
                self._pop_to(height)

    def _close(self, tag: str, group: str) -> None:
        """Close an element, and all inside, unless it lies beyond one of the group."""
        if self._last(tag) >= max(0, self._last(group)):
            self._pop_to(self._last(tag))

    def _last(self, name: str) -> int:
        places = self._places[name]
        return places[-1] if places else -1

    def _push(self, tag: str, is_kept: bool) -> None:
        for name in _names(tag):
            self._places[name].append(len(self._stack))
        self._stack.append((tag, is_kept or tag in NOT_TEXT))
        self._kept += self._stack[-1][1]
        if tag in _MARKERS:
            self._formatting.append(defaultdict(list))

    def _pop_to(self, height: int) -> None:
        while len(self._stack) > height:
            tag, is_kept = self._stack.pop()
            self._kept -= is_kept
            for name in _names(tag):
                self._places[name].pop()
            if tag in _MARKERS:
                ended = self._formatting.pop()
                self._kept -= sum(is_kept for entries in ended.values() for _, is_kept in entries)


def _names(tag: str) -> list[str]:
    """A tag and the groups that it is in."""
    return [tag, *(name for name, tags in _GROUPS.items() if tag in tags)]
