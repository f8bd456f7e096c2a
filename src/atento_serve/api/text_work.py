"""Work on the texts of a request for translation: cut into sentences, kept terms, put together again; in any process.

A piece of work is a generator. It asks for what the models of the service do, as plain data, and ends with the body of
the answer.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from atento.base.errors import AtentoError, DataError
from atento.text.documents import read_document
from atento.text.documents.document_sentences import DocumentSentences, Passages, joined
from atento.text.documents.html_text import parts_of, read_html
from atento.text.documents.segments import NUMBERED, TextDocument
from atento.text.glossary import Glossary, glossary_of_rows
from atento.text.protected_spans import Link
from atento.text.span_protection import Asking, Output, Outputs, Translate, protected_outputs
from atento_serve.api.languages import Detected, detect
from atento_serve.http.errors import too_long, wrong_field

Asked = dict[str, Any]
Steps = Generator[Asked, Any, bytes]
_SURE = 50.0  # from this confidence on, a text is taken to be in the target language already
_PARAGRAPH = re.compile(rb"</(?:[\w.-]+:)?p>")  # its end
_MOST_PARAGRAPHS = 4  # for each passage that a document may have; the others are empty
_CHARACTERS = 64  # of a sentence, for each token that it may have
_AT_ONCE = 8192  # characters of what models are asked for at a time
_DETECTED = 4000  # characters, which are more than are read to detect a language


def translated_texts(given: Asked, _: bytes) -> Steps:
    """The JSON of the answer to `POST /translate`.

    Args:
        given: fields of the request, `q` as a list (`single`: it was a text), `terms` as JSON; the codes `sources` and
            `targets` that are translated, `source` (or "auto") and `target` among them; `language`, the target as a
            document states it; `limits`.
    """
    is_html, alternatives = given["format"] == "html", given["alternatives"]
    rows = [_row(text, is_html=is_html) for text in given["q"]]
    _check_segments([sentence for row in rows for sentence in row.sentences], given, "/q")
    glossary = _glossary(given["terms"])
    detected = [detected_source(" ".join(row.sentences), given) for row in rows] if given["source"] == "auto" else []
    sources = [one.code for one in detected] or [given["source"]] * len(rows)
    known: list[str] = yield {"directions": [*dict.fromkeys(sources)]}
    written = [[[sentence] for sentence in row.sentences] for row in rows]
    for source in known:  # texts of one language go together
        chosen = [number for number, code in enumerate(sources) if code == source]
        sentences = [*dict.fromkeys(sentence for number in chosen for sentence in rows[number].sentences)]
        steps = protected_outputs(sentences, glossary, protect=given["protect"], tags=is_html)
        outputs = dict(zip(sentences, (yield from _kept(steps, source, given))))
        for number in chosen:
            written[number] = [outputs[sentence] for sentence in rows[number].sentences]
    choices = [_choices(row, outputs, alternatives) for row, outputs in zip(rows, written)]
    body: dict[str, list[Any]] = {"translatedText": [texts[0] for texts in choices]}
    if alternatives:
        body["alternatives"] = [texts[1:] for texts in choices]
    if detected:
        body["detectedLanguage"] = [language.shown for language in detected]
    if glossary is not None:
        read = _words if is_html else str
        each = zip(given["q"], choices)
        body["terms"] = [glossary.report(read(source), read(texts[0])) for source, texts in each]
    whole = {name: row[0] for name, row in body.items()} if given["single"] else body
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def translated_document(given: Asked, content: bytes) -> Steps:
    """The translated document of `POST /translate_file`.

    Args:
        given: as for `translated_texts`, with the `name` of the file and the `options` of its reader in place of `q`.
        content: the file.
    """
    glossary = _glossary(given["terms"])
    _check_archive(content, given["limits"])
    try:
        document = read_document(content, given["name"], **given["options"])
    except AtentoError as error:  # of the document, which the client sent
        raise wrong_field("/file", str(error)) from None
    _check_segments(document.texts, given, "/file", are_sentences=False)
    work = DocumentSentences(document)
    _check_segments(work.sentences, given, "/file")
    source = given["source"]
    if source == "auto":
        source = detected_source(" ".join(work.sentences[:200]), given).code  # enough to tell the language
    known: list[str] = yield {"directions": [source]}
    if not known:
        return content
    outputs = yield from _kept(protected_outputs(work.sentences, glossary, protect=True), known[0], given)
    return work.written([rows[0] for rows in outputs], given["language"])


WORK: dict[str, Callable[[Asked, bytes], Steps]] = {"texts": translated_texts, "document": translated_document}


def _check_segments(texts: Sequence[str], given: Asked, pointer: str, *, are_sentences: bool = True) -> None:
    """Raises ServiceError: 413, there are too many texts, or a sentence is too long to be read."""
    most, longest = given["limits"]["segments"], _CHARACTERS * given["limits"]["input_tokens"]
    if len(texts) > most:
        raise too_long(f"a request may have at most {most:,} passages or sentences: got {len(texts):,}", pointer)
    if are_sentences and (size := max(map(len, texts), default=0)) > longest:
        raise too_long(f"a sentence may have at most {longest:,} characters: got {size:,}", pointer)


def _check_archive(content: bytes, limits: Mapping[str, int]) -> None:
    """Raises ServiceError: 413, an archive is too large when it is unpacked, or has too many paragraphs."""
    with suppress(zipfile.BadZipFile, NotImplementedError, RuntimeError), zipfile.ZipFile(io.BytesIO(content)) as found:
        infos, most = found.infolist(), limits["unfolded_bytes"]
        if (size := sum(info.file_size for info in infos)) > most:
            raise too_long(f"a document may have at most {most:,} bytes when it is unpacked: got {size:,}", "/file")
        most = _MOST_PARAGRAPHS * limits["segments"]
        parts = (found.read(info) for info in infos if info.filename.endswith(".xml"))
        if (count := sum(1 for part in parts for _ in _PARAGRAPH.finditer(part))) > most:
            raise too_long(f"a document may have at most {most:,} paragraphs: got {count:,}", "/file")


@lru_cache(maxsize=4)
def _glossary(terms: str) -> Glossary | None:
    """The glossary of a request. Raises ServiceError: 422, it is wrong; says where."""
    given: dict[str, str | list[str]] = json.loads(terms)
    rows = [[source, *([forms] if isinstance(forms, str) else forms)] for source, forms in given.items()]
    try:
        return glossary_of_rows((f"/glossary/{row[0]}", row) for row in rows) if rows else None
    except DataError as error:
        raise wrong_field("/glossary", str(error)) from None


def _words(markup: str) -> str:
    """What a reader sees of HTML."""
    return " ".join(part.text for part in parts_of(markup) if part.kind == "text")


@dataclass(frozen=True)
class _Row:
    """The sentences of a text, and what makes a text of their translations."""

    sentences: list[str]
    written: Callable[[list[str]], str]


def _row(text: str, *, is_html: bool) -> _Row:
    if is_html:
        page = DocumentSentences(TextDocument(read_html(text, "q")))
        return _Row(page.sentences, lambda outputs: page.written(outputs).decode("utf-8"))
    passages = Passages()
    pieces = passages.text(text)
    return _Row(passages.sentences, lambda outputs: joined(pieces, outputs))


def detected_source(text: str, given: Asked) -> Detected:
    """The language of a text among those that can be translated; that of the target where it is likely to be in it."""
    text, served = NUMBERED.sub(" ", text[:_DETECTED]), cast(list[str], given["sources"])
    target = given["target"]
    if target in given["targets"]:
        found = detect(text, [*served, target])[0]
        if found.code == target and found.confidence >= _SURE:
            return found
    return detect(text, served)[0]


def _kept(steps: Asking[Outputs], source: str, given: Asked) -> Generator[Asked, Any, list[list[str]]]:
    """The translation of each sentence and its alternatives; models are asked for a few at a time."""
    answer = cast(object, None)
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            outputs: Outputs = end.value
            return [[output.text for output in rows] for rows in outputs]
        found: list[Any] = []
        if isinstance(asked, Translate):
            for part in _parts(asked.texts, 1 if asked.own else given["limits"]["texts"]):
                own = asked.own[len(found)] if asked.own else {}
                found += yield {"translate": part, "own": own, "source": source}
            answer = [[Output(*output) for output in outputs] for outputs in found]
        else:
            for part in _parts(asked.pairs, given["limits"]["texts"]):
                found += yield {"align": part, "source": source}
            answer = [[Link(**link) for link in links] for links in found]


def _parts(items: Sequence[Any], most: int) -> Iterator[list[Any]]:
    """So many items at a time, or fewer long ones, so that others come in between."""
    part, size = list[Any](), 0
    for item in items:
        length = len(item) if isinstance(item, str) else sum(map(len, item))
        if part and (len(part) == most or size + length > _AT_ONCE):
            yield part
            part, size = [], 0
        part.append(item)
        size += length
    if part:
        yield part


def _choices(row: _Row, outputs: Sequence[Sequence[str]], alternatives: int) -> list[str]:
    """The translation of a text and its alternatives, each different: the first of all sentences, the second of all ...

    A sentence with fewer outputs has its last one in the others.
    """
    ranks = range(alternatives + 1)
    ranked = [[texts[min(rank, len(texts) - 1)] if texts else "" for texts in outputs] for rank in ranks]
    return list(dict.fromkeys(row.written(texts) for texts in ranked))
