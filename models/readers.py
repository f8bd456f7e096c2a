"""Pairs of English and Portuguese texts out of an unpacked Debian package: catalogues, manuals, menus, questions."""

import gzip
import html
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from atento_cli.corpus.fetch import catalogue_pairs, without_accelerator

Texts = Iterator[tuple[str, str]]
BRAZILIAN = ("pt_BR", "pt-br", "pt-BR")
EUROPEAN = ("pt", "pt_PT")


def package_pairs(tree: Path, entities: dict[str, str] | None = None) -> Iterator[tuple[str, str, str, str]]:
    """Read all that an unpacked package holds.

    Args:
        tree: the folder.
        entities: names that its manuals may use, such as "kate" for &kate;.

    Yields: kind ("catalogue", "manual", "menu" ...), "pt-BR" or "pt", English, Portuguese.
    """
    readers: tuple[tuple[str, Callable[[Path, tuple[str, ...]], Texts]], ...] = (
        ("catalogue", _mo_texts),
        ("catalogue", _po_texts),
        ("catalogue", _qm_texts),
        ("catalogue", _json_texts),
        ("catalogue", _properties_texts),
        ("manual", partial(_manual_texts, entities=entities or {})),
        ("manual", _web_manual_texts),
        ("menu", _desktop_texts),
        ("menu", _appstream_texts),
        ("question", _template_texts),
        ("words", _stamp_texts),
        ("words", _character_texts),
    )
    for language, names in (("pt-BR", BRAZILIAN), ("pt", EUROPEAN)):
        for kind, reader in readers:
            for source, target in reader(tree, names):
                yield kind, language, source, target
    for source, target in _dictionary_texts(tree):
        yield "words", "pt-BR", source, target


def _files(folder: Path, *patterns: str) -> list[Path]:
    """The files below a folder with such names; a link to what is in another package is none."""
    return sorted(path for pattern in patterns for path in folder.rglob(pattern) if path.is_file())


# Catalogues -------------------------------------------------------------------------------------------------------


def _mo_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    for name in names:
        for folder in sorted(tree.rglob(f"{name}/LC_MESSAGES")):
            yield from catalogue_pairs(folder, Counter())


_PO = re.compile(r'^(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s+(".*")\s*$|^(".*")\s*$|^#,.*\b(fuzzy)\b')


def _in_language(path: Path, names: tuple[str, ...]) -> bool:
    """Does the file's name or a folder's say the language: pt_BR.po, lang_pt_BR/, help-pt_BR.qm?"""
    return bool(re.search(rf"[/_.-](?:{'|'.join(names)})[/.]", str(path)))


def _po_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    for path in _files(tree, "*.po"):
        if _in_language(path.relative_to(tree.parent), names):
            yield from po_texts(path.read_text("utf-8", errors="replace"))


def po_texts(text: str) -> Texts:
    """The singular messages of a catalogue's source that are translated and not fuzzy."""
    for entry in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        fuzzy = False
        for line in entry.splitlines():
            if match := _PO.match(line):
                fuzzy = fuzzy or bool(match[4])
                key = match[1] or key
                fields[key] = fields.get(key, "") + _unquoted(match[2] or match[3] or "")
        if fields.get("msgid") and fields.get("msgstr") and not fuzzy:
            yield _plain_sides(fields["msgid"], fields["msgstr"])


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text[1:-1])


def _plain_sides(source: str, target: str) -> tuple[str, str]:
    source, target = (" ".join(side.split()) for side in (source, target))
    for accelerator in ("_", "&"):
        source, target = without_accelerator(source, target, accelerator)
    return source, target


def _qm_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    for path in _files(tree, "*.qm"):
        if _in_language(path.relative_to(tree.parent), names):
            try:
                yield from (_plain_sides(*sides) for sides in qm_texts(path.read_bytes()))
            except (struct.error, UnicodeDecodeError, IndexError):
                continue  # another version of the format


_QM_MAGIC = bytes.fromhex("3cb86418caef9c95cd211cbf60a1bddd")
_QM_MESSAGES = 0x69


def qm_texts(data: bytes) -> Texts:
    """The messages of a Qt catalogue that keeps its English; plural forms are left out."""
    if not data.startswith(_QM_MAGIC):
        return
    place = len(_QM_MAGIC)
    while place + 5 <= len(data):
        section, size = struct.unpack_from(">BI", data, place)
        place += 5
        if section == _QM_MESSAGES:
            yield from _qm_messages(data[place : place + size])
        place += size


def _qm_messages(data: bytes) -> Texts:
    place, source, targets = 0, "", list[str]()
    while place < len(data):
        tag = data[place]
        place += 1
        if tag == 1:  # end of a message
            if source and len(targets) == 1:
                yield source, targets[0]
            source, targets = "", []
        elif tag == 5:  # a hash, in old files
            place += 4
        else:
            (size,) = struct.unpack_from(">I", data, place)
            text = data[place + 4 : place + 4 + size] if size != 0xFFFFFFFF else b""
            place += 4 + len(text)
            if tag == 3:
                targets.append(text.decode("utf-16-be"))
            elif tag == 6:
                source = text.decode("utf-8")


_JSON_NAME = re.compile(r"(.+?)(-[0-9a-f]{32})?\.json")


def _json_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    """Files of messages that have the same keys in both languages: en.json, pt-BR.json."""
    for path in _files(tree, "*.json"):
        match = _JSON_NAME.fullmatch(path.name)
        if match and match[1] in names:
            partners = [path.with_name("en.json"), *sorted(path.parent.glob("en-" + "[0-9a-f]" * 32 + ".json"))]
            english = next((partner for partner in partners if partner.is_file()), None)
            if english is not None and "locale-data" not in path.parts:  # forms of dates
                sides = [json.loads(side.read_text("utf-8")) for side in (english, path)]
                yield from _same_keys(sides[0].get("en", sides[0]), sides[1].get(match[1], sides[1]))


def _same_keys(ours: object, theirs: object) -> Texts:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours:
            if key in theirs and key not in ("@metadata", "terms", "aliases", "options_terms"):
                yield from _same_keys(ours[key], theirs[key])
    elif isinstance(ours, str) and isinstance(theirs, str):
        yield " ".join(ours.split()), " ".join(theirs.split())


def _properties_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    """Java's messages: Messages.properties and Messages_pt_BR.properties."""
    for name in names:
        for path in _files(tree, f"*_{name}.properties"):
            partner = path.with_name(path.name.replace(f"_{name}.", "."))
            if partner.is_file():
                yield from _same_keys(_properties(partner), _properties(path))


def _properties(path: Path) -> dict[str, str]:
    text = re.sub(r"\\\n\s*", "", path.read_text("utf-8", errors="replace"))
    found = dict(re.findall(r"^\s*([^#!=\s][^=\s]*)\s*=\s*(.*?)\s*$", text, flags=re.MULTILINE))
    return {key: re.sub(r"\\u([0-9a-fA-F]{4})|\\n", _escaped, value) for key, value in found.items()}


def _escaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else " "


# Manuals ----------------------------------------------------------------------------------------------------------

_BLOCKS = {"p", "title", "subtitle", "desc", "para", "simpara", "term", "td", "entry", "member", "see", "seealso"}
_WHOLE = {"code", "screen", "programlisting", "synopsis", "cmdsynopsis", "literallayout", "info", "bookinfo"}
_ENTITY = re.compile(r"&([A-Za-z][\w.-]*);")
_MARKUP_NAMES = {"lt", "gt", "amp", "quot", "apos"}


def _manual_texts(tree: Path, names: tuple[str, ...], entities: dict[str, str]) -> Texts:
    for name in names:
        for folder, english in (("help", "C"), ("HTML", "en")):
            for root in sorted(tree.rglob(f"{folder}/{name}")):
                for path in _files(root, "*.page", "*.docbook", "*.xml"):
                    partner = root.with_name(english) / path.relative_to(root)
                    if partner.is_file():
                        texts = (side.read_text("utf-8", errors="replace") for side in (partner, path))
                        yield from _same_blocks(*(_xml_blocks(text, entities) for text in texts))


_DEFINITION = re.compile(r"""<!ENTITY\s+([\w.-]+)\s+(["'])(.*?)\2\s*>""", re.DOTALL)


def kde_entities(tree: Path) -> dict[str, str]:
    """The names that KDE's manuals use, such as &kate;, from the package that defines them."""
    found: dict[str, str] = {}
    for path in _files(tree, "customization/entities/*.entities"):
        for name, _, value in _DEFINITION.findall(path.read_text("utf-8", errors="replace")):
            found.setdefault(name, " ".join(re.sub(r"<[^>]*>", " ", value).split()))
    return found


def _xml_blocks(text: str, entities: dict[str, str]) -> list[tuple[str, str]]:
    """The tags and texts of the paragraphs, titles and cells of a manual; none if it is not well formed."""
    known = entities | {name: value for name, _, value in _DEFINITION.findall(text[:5000])}
    text = re.sub(r"<!DOCTYPE[^>\[]*(\[.*?\]\s*)?>", "", text, count=1, flags=re.DOTALL)

    def resolved(match: re.Match[str]) -> str:
        if match[1] in _MARKUP_NAMES:
            return match[0]
        value = known.get(match[1]) or html.unescape(match[0])
        return "\ufffc" if value == match[0] else value

    for _ in range(3):  # a name may stand for another
        text = _ENTITY.sub(resolved, text)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return []
    return list(_blocks_of(root))


def _blocks_of(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """A block's own text without that of blocks within it, which follow."""
    tag = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
    if tag in _WHOLE or not tag:
        return
    if tag in _BLOCKS:
        own, inner = _own_text(element)
        yield tag, " ".join(own.split())
        for block in inner:
            yield from _blocks_of(block)
    else:
        for child in element:
            yield from _blocks_of(child)


_INNER = {"itemizedlist", "orderedlist", "variablelist", "note", "tip", "warning", "figure", "mediaobject", "list"} | {
    "screenshot", "informaltable", "table", "steps", "terms", "indexterm", "footnote", "media", "example", "important"
}  # fmt: skip


def _own_text(element: ElementTree.Element) -> tuple[str, list[ElementTree.Element]]:
    text, inner = element.text or "", []
    for child in element:
        tag = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
        if tag in _INNER or tag in _BLOCKS or tag in _WHOLE - {"code"}:
            inner.append(child)
            text += " "
        elif tag == "xref" or (tag == "link" and not "".join(child.itertext()).strip()):
            text += "\ufffc"  # a title that stands elsewhere
        elif tag:
            own, more = _own_text(child)
            text += _joined(child) if tag in ("menuchoice", "keycombo", "guiseq", "keyseq") else own
            inner += more
        text += child.tail or ""
    return text, inner


def _joined(element: ElementTree.Element) -> str:
    """A path through menus, or keys pressed together."""
    tag = element.tag.rpartition("}")[2]
    parts = ["".join(child.itertext()).strip() for child in element if not str(child.tag).endswith("shortcut")]
    return (" > " if tag in ("menuchoice", "guiseq") else "+").join(part for part in parts if part)


def _same_blocks(ours: list[tuple[str, str]], theirs: list[tuple[str, str]]) -> Texts:
    """Pair the blocks of two pages if both have the same tags in the same order."""
    if [tag for tag, _ in ours] == [tag for tag, _ in theirs]:
        for (_, source), (_, target) in zip(ours, theirs):
            if source and target and "\ufffc" not in source + target:
                yield source, target


class _WebReader(HTMLParser):
    """Collects paragraphs, titles, list items and cells of a web page."""

    _BLOCKS = frozenset(["p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th", "dt", "dd", "caption"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[tuple[str, str]] = []
        self._tag, self._text, self._code = "", list[str](), 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._BLOCKS:
            self._end(tag)
        elif tag in ("pre", "script", "style"):
            self._code += 1
        elif tag in ("ul", "ol", "table", "div", "dl"):
            self._end("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._BLOCKS or tag in ("ul", "ol", "table", "div", "dl"):
            self._end("")
        elif tag in ("pre", "script", "style"):
            self._code = max(self._code - 1, 0)

    def handle_data(self, data: str) -> None:
        if self._tag and not self._code:
            self._text.append(data)

    def _end(self, begun: str) -> None:
        if self._tag:
            self.blocks.append((self._tag, " ".join("".join(self._text).split())))
        self._tag, self._text = begun, []


def _web_manual_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    for path in _files(tree, "*.html", "description.*.utf8"):
        for name in names:
            if name in path.parts:
                places = [
                    Path(*(english if part == name else part for part in path.parts)) for english in ("en", "en-US")
                ]
            elif path.stem.endswith(f".{name}"):
                places = [path.with_name(path.name.replace(f".{name}.", ".en."))]
            else:
                continue
            partner = next((place for place in places if place.is_file()), None)
            if partner is not None:
                yield from _same_blocks(_web_blocks(partner), _web_blocks(path))


def _web_blocks(path: Path) -> list[tuple[str, str]]:
    reader = _WebReader()
    reader.feed(path.read_text("utf-8", errors="replace"))
    reader.close()
    return reader.blocks


# Menus and questions ----------------------------------------------------------------------------------------------

_DESKTOP_KEYS = ("Name", "GenericName", "Comment", "X-GNOME-FullName")


def _desktop_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    for path in _files(tree, "*.desktop"):
        for group in re.split(r"^\[.*\]\s*$", path.read_text("utf-8", errors="replace"), flags=re.MULTILINE):
            values = dict(re.findall(r"^([\w-]+(?:\[[\w@]+\])?)\s*=\s*(.*?)\s*$", group, flags=re.MULTILINE))
            for key in _DESKTOP_KEYS:
                for name in names:
                    if key in values and f"{key}[{name}]" in values:
                        yield values[key], values[f"{key}[{name}]"]


def _appstream_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    language = "{http://www.w3.org/XML/1998/namespace}lang"
    for path in _files(tree, "*.metainfo.xml", "*.appdata.xml"):
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError:
            continue
        for parent in root.iter():
            english: dict[str, str] = {}  # the latest English text of each tag
            for child in parent:
                text = " ".join("".join(child.itertext()).split())
                if language not in child.attrib:
                    english[str(child.tag)] = text
                elif child.get(language) in names and str(child.tag) in english:
                    yield english[str(child.tag)], text


def _template_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    for path in sorted(tree.glob("DEBIAN/templates")):
        for entry in re.split(r"\n\s*\n", path.read_text("utf-8", errors="replace")):
            fields = dict(re.findall(r"^([\w.-]+): (.*(?:\n[ \t].*)*)", entry, flags=re.MULTILINE))
            for name in names:
                if "Description" in fields and (translated := fields.get(f"Description-{name}.UTF-8")):
                    sides = [_paragraphs(text) for text in (fields["Description"], translated)]
                    if len(sides[0]) == len(sides[1]):
                        yield from zip(*sides)


def _paragraphs(text: str) -> list[str]:
    """The first line, then the paragraphs, which lines with a dot divide."""
    first, _, rest = text.partition("\n")
    return [
        first.strip(),
        *(" ".join(part.split()) for part in re.split(r"^\s*\.\s*$", rest, flags=re.MULTILINE) if part.strip()),
    ]


# Words ------------------------------------------------------------------------------------------------------------


def _stamp_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    """What the stamps of Tux Paint show: English in the first line, then a line a language."""
    for path in _files(tree, "stamps/**/*.txt"):
        lines = path.read_text("utf-8", errors="replace").splitlines()
        for name in names:
            for line in lines:
                if line.startswith(f"{name}.utf8="):
                    yield lines[0], line.partition("=")[2]


def _character_texts(tree: Path, names: tuple[str, ...]) -> Texts:
    """The names of emoji and other characters in Unicode's CLDR, whose Brazilian Portuguese is called "pt"."""
    if names == BRAZILIAN:
        for english in _files(tree, "annotations*/en.xml"):
            sides = [
                {
                    str(entry.get("cp")): entry.text or ""
                    for entry in ElementTree.parse(path).iter("annotation")
                    if entry.get("type")
                }
                for path in (english, english.with_name("pt.xml"))
            ]
            yield from ((text, sides[1][key]) for key, text in sides[0].items() if key in sides[1] and ":" not in text)


def _dictionary_texts(tree: Path) -> Texts:
    """FreeDict's dictionaries: a head word with the first translation of its first sense."""
    for path in _files(tree, "freedict-*.dict.dz"):
        entries = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")
        for head, translations in re.findall(r"^([^/\n]+?) /[^\n]*\n([^\n]+)$", entries, flags=re.MULTILINE):
            first = re.sub(r"^1\. ", "", translations).split(",")[0].split(";")[0].strip()
            if not re.search(r"[()\[\]<>]", head + first):
                yield (head, first) if path.name.startswith("freedict-eng-") else (first, head)


# Sentences --------------------------------------------------------------------------------------------------------

_SENTENCE_END = re.compile(
    r'(?<=[.!?…])(?<!\.\.\.)(?<! \w\.)(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!p\.ex\.)["”’)]?\s+(?=["“‘(¿]?[A-ZÀ-Ý])'
)


def sentences(source: str, target: str, longer_than: int = 12) -> Texts:
    """Divide a paragraph where both sides have as many sentences, each of a length like its partner's."""
    if len(source.split()) <= longer_than:
        yield source, target
        return
    sides = [_divided(text) for text in (source, target)]
    alike = len(sides[0]) == len(sides[1]) and all(_alike(len(one), len(two)) for one, two in zip(*sides))
    yield from zip(*sides) if alike else [(source, target)]


def _divided(text: str) -> list[str]:
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [text[start:end].strip() for start, end in pairwise(ends)]


def _alike(one: int, two: int) -> bool:
    return 0.5 <= (one + 10) / (two + 10) <= 2


def texts_of(lines: Iterable[str]) -> Texts:
    """The two first columns of a table without a header."""
    for line in lines:
        source, _, rest = line.rstrip("\n").partition("\t")
        yield source, rest.partition("\t")[0]
