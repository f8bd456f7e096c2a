"""Documents whose texts are translated and whose structure stays: one file a format, chosen by the ending of a name."""

from collections.abc import Callable
from pathlib import PurePath

from atento.base.errors import UsageError
from atento.text.documents.catalogues import read_catalogue
from atento.text.documents.html_text import read_html
from atento.text.documents.markdown_text import read_markdown
from atento.text.documents.segments import Document, decoded
from atento.text.documents.subtitles import read_srt, read_vtt
from atento.text.documents.word_files import read_word

FORMATS: dict[str, Callable[..., Document]] = {
    ".srt": decoded(read_srt),
    ".vtt": decoded(read_vtt),
    **dict.fromkeys((".html", ".htm", ".xhtml"), decoded(read_html)),
    **dict.fromkeys((".md", ".markdown"), decoded(read_markdown)),
    ".po": decoded(read_catalogue, is_catalogue=True),
    ".docx": read_word,
}
"""The ending of a name -> the function of (bytes, name, options) that reads such a document."""
OPTIONS = {"attributes": (".html", ".htm", ".xhtml", ".md", ".markdown"), "mark_fuzzy": (".po",)}
"""Option -> the endings of the documents that have it."""
_TEMPLATES = (".pot",)  # of catalogues, which are refused with what to do


def is_document(name: str) -> bool:
    """Whether a file of that name is read as a document."""
    return PurePath(name).suffix.lower() in (*FORMATS, *_TEMPLATES)


def read_document(data: bytes, name: str, *, attributes: bool = False, mark_fuzzy: bool = False) -> Document:
    """The document in a file.

    Args:
        data: the content of the file.
        name: its name, whose ending is the format, and which messages have.
        attributes: whether the texts of attributes are translated too: `alt`, `title`, `placeholder`, `aria-label` and
            descriptions of pages, texts and titles of images in Markdown.
        mark_fuzzy: whether messages of a catalogue that get a translation also get the flag `fuzzy`.

    Raises:
        DataError: it breaks the rules of its format, says where; or is larger than documents may be. UsageError: no
            such format, or one without that option.
    """
    ending = PurePath(name).suffix.lower()
    if ending not in FORMATS:
        if ending in _TEMPLATES:
            way = "`msginit -i FILE.pot -l pt_BR -o FILE.po` makes a catalogue of it, whose .po file is translated"
            raise UsageError(f"{name}: is a template without a language: {way}")
        raise UsageError(f"{name}: a document must end in {', '.join(FORMATS)}")
    options = {"attributes": attributes, "mark_fuzzy": mark_fuzzy}
    for option in (option for option, is_set in options.items() if is_set and ending not in OPTIONS[option]):
        raise UsageError(f"{name}: `{option}` is for documents that end in {', '.join(OPTIONS[option])}")
    return FORMATS[ending](data, name, **{option: True for option, is_set in options.items() if is_set})


__all__ = ["FORMATS", "Document", "is_document", "read_document"]
