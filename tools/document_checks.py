"""What a translated document is checked for, by parsers of others: identity, structure, words, tags, `msgfmt -c`.

`translated` sends a document through the same steps as `atento translate FILE`, with a function in place of the model.
"""

import contextlib
import io
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, cast
from xml.etree import ElementTree

from atento.text.documents import Document
from atento.text.documents.document_sentences import DocumentSentences
from atento.text.protected_spans import Link
from atento.text.span_protection import Output, Outputs, Translate, protected_outputs

Translator = Callable[[Sequence[str]], list[str]]
KINDS = {".html": "html", ".htm": "html", ".xhtml": "html", ".md": "md", ".markdown": "md", ".po": "po"}
KINDS |= {".docx": "docx", ".srt": "srt", ".vtt": "vtt"}
_MARKUP_OF_RUNS = {"r", "t", "rPr", "proofErr", "lastRenderedPageBreak"}
_SEEN = {"t", "tab", "br", "footnoteReference", "hyperlink"}  # in a paragraph of a Word document
_WORD = re.compile(r"\w+|[^\w\s]")
_LONE = {
    "br",
    "img",
    "hr",
    "wbr",
    "input",
    "meta",
    "link",
    "area",
    "base",
    "col",
    "embed",
    "source",
    "track",
    "p",
    "li",
}
_LONE |= {"dt", "dd", "tr", "td", "th", "tbody", "thead", "tfoot", "option", "body", "html", "head", "colgroup"}
_INLINE = {
    "a",
    "b",
    "i",
    "em",
    "strong",
    "span",
    "code",
    "tt",
    "sub",
    "sup",
    "abbr",
    "cite",
    "img",
    "kbd",
    "samp",
    "var",
}
_INLINE |= {"small", "big", "q", "u", "s", "font", "mark", "dfn", "del", "ins", "br", "wbr", "acronym", "label"}


def kind_of(name: str) -> str:
    """The kind of a document, by the ending of its name."""
    return KINDS.get(PurePath(name).suffix.lower(), "")


def capitals(texts: Sequence[str]) -> list[str]:
    """A translator that writes in capitals: it spoils all that is handed to it and should not be."""
    steps, answer = protected_outputs(texts, None, protect=True), cast(Any, None)
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            outputs: Outputs = end.value
            return [rows[0].text for rows in outputs]
        if isinstance(asked, Translate):
            answer = [[Output(" ".join(text.upper().split()), 0.0)] for text in asked.texts]
        else:  # each word comes from the word at its place
            pairs = [zip(_WORD.finditer(source), _WORD.finditer(output)) for source, output in asked.pairs]
            answer = [[Link(new.start(), new.end(), old.start(), old.end()) for old, new in words] for words in pairs]


def translated(document: Document, translate: Translator, most: int | None = None) -> bytes:
    """A document with the translations of its sentences, of the first `most` alone if that is given."""
    work = DocumentSentences(document)
    left = work.sentences if most is None else work.sentences[:most]
    return work.written([*translate(left), *work.sentences[len(left) :]])


def faults(name: str, before: bytes, after: bytes, *, exact: bool) -> list[tuple[str, str]]:
    """What a translation has broken, as pairs of a check's name and what was seen.

    Args:
        name: of the document.
        before, after: the document and its translation.
        exact: whether the translation is that of `capitals`, which keeps the order of words and tags.
    """
    kind, found = kind_of(name), list[tuple[str, str]]()
    sides = [_parts(kind, data) for data in (before, after)]
    shapes = [[_shape(part, exact=exact) for part in side] for side in sides]
    if difference := _difference(*shapes):
        found.append(("structure", difference))
    if exact:
        words = ["".join("".join(part[1].split()) for part in side).upper().casefold() for side in sides]
        if kind != "po" and (difference := _difference(*words)):  # what is translated there stands beside its source
            found.append(("words", difference))
    found += [("tags", said) for said in _tags(kind, before, after)]
    if kind == "po" and compiles(before) == "" and (said := compiles(after)):
        found.append(("msgfmt", said))
    return found


Parts = list[tuple[list[Any], str]]
"""Of each part of a document: its markup in order, and its text, with a sign where markup stands."""
_MARK = "\0"


def _parts(kind: str, data: bytes) -> Parts:
    """The parts of a document; of one that the parser does not read, the name of its error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # babel prints its warnings
            return _READERS[kind](data)
    except Exception as error:  # of any parser; the same before and after a translation
        return [([type(error).__name__], "")]


def _shape(part: tuple[list[Any], str], *, exact: bool) -> Any:
    """The markup of a part; in any order, where a translation may have another."""
    return part[0] if exact else sorted(Counter(map(repr, part[0])).items())


def _difference(before: Any, after: Any) -> str:
    """Where two rows begin to differ; empty if they do not."""
    if before == after:
        return ""
    at = next((n for n, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    if isinstance(before, str):
        return f"{before[max(0, at - 30) : at + 40]!r} became {after[max(0, at - 30) : at + 40]!r}"
    pair = before[at : at + 1], after[at : at + 1]
    if all(len(one) == 1 and isinstance(one[0], list) for one in pair):
        return _difference(pair[0][0], pair[1][0])
    return f"at {at} of {len(before)}: {str(pair[0])[:200]} became {str(pair[1])[:200]}"


def _text_of(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding)


def _html(data: bytes) -> Parts:
    """The parts of a page between block elements, as html5lib reads it."""
    import html5lib
    from html5lib.treewalkers import getTreeWalker

    tree = html5lib.parse(_text_of(data), treebuilder="etree", namespaceHTMLElements=False)
    parts: Parts = [([], "")]
    for token in getTreeWalker("etree")(tree):
        kind, name = token["type"], token.get("name")
        if kind in ("Characters", "SpaceCharacters"):
            parts[-1] = (parts[-1][0], parts[-1][1] + token["data"])
        else:
            if name not in _INLINE and kind != "Comment":
                parts.append(([], ""))
            rows = (
                sorted(map(repr, token["data"].items())) if isinstance(token.get("data"), dict) else token.get("data")
            )
            parts[-1][0].append((kind, name, rows))
            parts[-1] = (parts[-1][0], parts[-1][1] + _MARK)
    return parts


def _md(data: bytes) -> Parts:
    """The parts of a Markdown text, each a token of markdown-it-py."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    parts: Parts = []
    for token in parser.parse(_text_of(data)):
        inline = [one for one in token.children or () if one.type not in ("text", "softbreak", "text_special")]
        words = ["" if one.type == "image" else _spaced(one) for one in inline]
        marks = [(one.type, sorted(one.attrs.items()), text, one.markup) for one, text in zip(inline, words)]
        text = "".join(
            one.content if one.type in ("text", "text_special") else _MARK * (one.type != "softbreak")
            for one in token.children or ()
        )
        content = "" if token.type == "inline" else token.content
        parts.append(([(token.type, token.tag, token.nesting, token.markup, token.info, content), *marks], text))
    return parts


def _spaced(token: Any) -> str:
    """What stands in code or a tag; in a tag a line break is as good as a space."""
    return str(token.content) if token.type == "code_inline" else " ".join(token.content.split())


def _po(data: bytes) -> Parts:
    """The messages of a catalogue as babel reads them; the texts that were there, and all comments."""
    from babel.messages.pofile import read_po

    comments = [line for line in _text_of(data).splitlines() if line.startswith("#")]
    parts: Parts = [([line], "") for line in comments]
    for message in read_po(io.BytesIO(data)):
        if message.id:
            parts.append(([(message.context, message.id, sorted(message.flags - {"fuzzy"}))], ""))
    return parts


def messages(data: bytes) -> Iterator[tuple[list[str], list[str]]]:
    """The sources and translations of each message of a catalogue, as babel reads it."""
    from babel.messages.pofile import read_po

    with contextlib.redirect_stdout(io.StringIO()):  # babel prints its warnings
        catalogue = read_po(io.BytesIO(data))
    for message in catalogue:
        if message.id:
            sides = (side if isinstance(side, tuple | list) else [side] for side in (message.id, message.string))
            sources, outputs = ([text or "" for text in side] for side in sides)
            yield list(sources), list(outputs)


def _times(data: bytes) -> Parts:
    """The blocks of a file of subtitles: times, settings, notes and identifiers stay; what pysubs2 reads, if it can."""
    text, parts, begun = _text_of(data), list[tuple[list[Any], str]](), False
    for block in re.split(r"\n{2,}", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.splitlines()
        at = next((n for n, line in enumerate(lines) if "-->" in line), None)
        if at is None and begun and not block.startswith(("NOTE", "STYLE", "REGION")):
            at = -1  # the rest of the subtitle before
        begun = begun or at is not None
        words = [] if at is None else lines[at + 1 :]
        kept = lines if at is None else lines[: at + 1]
        parts.append(([*kept, len(words), *re.findall(r"<[^<>]*>|\{\\[^{}]*\}", " ".join(words))], " ".join(words)))
    if find_spec("pysubs2") is not None:
        import pysubs2

        read = pysubs2.SSAFile.from_string(text, format_="vtt" if text.startswith("WEBVTT") else "srt")
        parts += [([event.start, event.end], "") for event in read]
    return parts


def _docx(data: bytes) -> Parts:
    """The paragraphs of each part of a Word document, as ElementTree reads it, with the formatting of their texts."""
    parts: Parts = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if not name.endswith((".xml", ".rels")) or b"wordprocessingml" not in content:
                parts.append(([name, hash(content)], ""))
                continue
            root = ElementTree.fromstring(content)
            parts.append(([name], ""))
            parts += [_paragraph(one) for one in root.iter() if _local(one) == "p"]
    if find_spec("docx") is not None:
        import docx

        parts.append(([len(docx.Document(io.BytesIO(data)).paragraphs)], ""))
    return parts


def _local(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _paragraph(paragraph: Any) -> tuple[list[Any], str]:
    """What stands in a paragraph beside runs and texts, and its text."""
    texts = [one.text or "" if _local(one) == "t" else _MARK for one in paragraph.iter() if _local(one) in _SEEN]
    inside = [one for one in paragraph.iter() if _local(one) not in _MARKUP_OF_RUNS]
    formats = {id(one) for run in paragraph.iter() if _local(run) == "rPr" for one in run.iter()}
    marks = [(_local(one), sorted(one.attrib.items())) for one in inside if id(one) not in formats]
    return marks, "".join(texts)


_READERS: dict[str, Callable[[bytes], Parts]] = {
    "html": _html,
    "md": _md,
    "po": _po,
    "srt": _times,
    "vtt": _times,
    "docx": _docx,
}


class _Tags(HTMLParser):
    """The tags of a text, and how many end what is not the last that began."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.names, self.crossed = Counter[str](), 0
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.crossed += len(self._open)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _LONE:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.names[" ".join(str(self.get_starttag_text()).lower().split())] += 1

    def handle_endtag(self, tag: str) -> None:
        self.names[f"</{tag}>"] += 1
        if tag in _LONE:
            return
        if self._open and self._open[-1] == tag:
            self._open.pop()
            return
        self.crossed += 1
        if tag in self._open:
            self._open.reverse()
            self._open.remove(tag)
            self._open.reverse()


def _tags(kind: str, before: bytes, after: bytes) -> Iterator[str]:
    """What was lost or crossed of the tags of texts."""
    if kind == "docx":
        return
    pairs = [(_text_of(before), _text_of(after))]
    if kind == "po":
        olds = [outputs for _, outputs in messages(before)]
        news = list(messages(after))
        pairs = [
            (sources[min(n, len(sources) - 1)], output)
            for (sources, outputs), old in zip(news, olds)
            for n, output in enumerate(outputs)
            if output and not old[n]
        ]
    for one, other in pairs:
        old, new = _Tags(one), _Tags(other)
        if old.names != new.names:
            yield f"{dict(old.names - new.names)} became {dict(new.names - old.names)} in {other[:80]!r}"
        if new.crossed > old.crossed:
            yield f"{new.crossed - old.crossed} crossed in {other[:80]!r}"


def compiles(data: bytes) -> str | None:
    """What `msgfmt -c` says against a catalogue: "" if nothing, None without `msgfmt`."""
    program = shutil.which("msgfmt")
    if program is None:
        return None
    done = subprocess.run([program, "-c", "-o", "/dev/null", "-"], input=data, capture_output=True, check=False)
    return done.stderr.decode(errors="replace").strip()[-300:] if done.returncode else ""
