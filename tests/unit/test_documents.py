"""Documents: the same bytes without a translation, structure with one, and what is refused with its line."""

# ruff: noqa: E501 (documents are read line by line)

import io
import re
import shutil
import subprocess
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from time import process_time

import pytest

from atento.base.errors import AtentoWarning, DataError, UsageError
from atento.text.documents import FORMATS, read_document
from atento.text.documents.document_sentences import DocumentSentences
from failing import fails
from test_span_protection import run

ROOT = Path(__file__).parents[2]
SRT = "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>The cat</i>\r\nsleeps.\r\n\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000 X1:10\r\n- Hello.\r\n- {\\an8}Bye.\r\n\r\n3\r\n00:00:05,000 --> 00:00:06,000\r\n\r\n"
VTT = "WEBVTT - a title\nKind: captions\n\nNOTE\nnot said\n\nSTYLE\n::cue { color: red }\n\nintro\n00:01.000 --> 00:02.000 align:start\n<v Ana Maria>The <c.big>cat</c> &amp; I\n\n00:03.000 --> 00:04.000\n♪\n"
HTML = (
    "<!DOCTYPE html>\n<html><head><title>Old &amp; new</title><style>p { color: red }</style></head>\n<body>\n"
    '<p class="x">The <b>big\n cat</b> sees <code>x &lt; 1</code>.</p><p>1 &lt; 2</p><img src=a.png>\n'
    "<ul><li>One<li>Two <a href='?a&b'>here</a></ul><pre>line one\n  line two</pre><p translate=no>Atento</p>&lt;0&gt; a</body></html>"
)
PO = (
    'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=n != 1;\\n"\n\n'
    '#: a.c:1\n#, c-format\nmsgid "Open %s"\nmsgstr ""\n\nmsgid "done"\nmsgstr "feito"\n\nmsgctxt "menu"\nmsgid ""\n"Two\\n"\n"lines \\"x\\""\n'
    'msgstr ""\n\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n#~ msgid "old"\n#~ msgstr ""\n'
)
MD = (
    '---\ntitle: Not this\n---\n# A *big* title #\n\nThe cat\nsees `x = 1` and [the dog](http://a.b/c "t").  \nHard break ![pic](a.png) \\*no\\*.\n\n'
    "> quoted\n> text\n\n1. one\n   more\n2. two\n\n```python\nprint('kept')\n```\n\n    kept too\n\n| a | b |\n|---|---|\n| cell one | `x` |\n\n"
    "<div>\nhtml kept\n</div>\n\nA snake_case_name, 2 * 3 * 4 and <b>bold</b> ~~gone~~[^1].\n\n[ref]: http://x.y\n"
)
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
XML = (
    f'<?xml version="1.0" encoding="UTF-8"?>\n<w:document {W}><w:body><w:p><w:pPr><w:b/></w:pPr><w:r><w:t>The </w:t></w:r>'
    '<w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">big cat</w:t></w:r><w:r><w:t> &amp; I</w:t></w:r></w:p>'
    "<w:p><w:r><w:t>split </w:t></w:r><w:r><w:t>run</w:t><w:tab/><w:t>after tab</w:t></w:r></w:p>"
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>cell</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    "<w:p><w:r><w:t>out </w:t><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict>"
    "<w:t>in</w:t></w:r></w:p><w:p><w:r><w:instrText>PAGE</w:instrText><w:t>12</w:t></w:r></w:p></w:body></w:document>"
)


def docx(parts: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


MAIN = '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="{}"/>'
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
HEAD = f"<w:hdr {W}><w:p><w:r><w:t>head</w:t></w:r></w:p></w:hdr>"
DOCX = docx({"[Content_Types].xml": "<x/>", "word/document.xml": XML, "word/header1.xml": HEAD})
SAMPLES = {"." + end: t.encode() for end, t in (("srt", SRT), ("vtt", VTT), ("html", HTML), ("po", PO), ("md", MD))}
SAMPLES[".docx"] = DOCX
TEXTS = {
    ".srt": ["<0>The cat</0> sleeps.", "Hello.", "<0/>Bye."],
    ".vtt": ["<0>The <1>cat</1> &amp; I", "♪"],
    ".html": ["Old & new", "The <0>big cat</0> sees <1/>.", "One", "Two <0>here</0>"],
    ".po": ["Open %s", 'Two\nlines "x"', "%d file", "%d files"],
    ".md": [
        "A <0>big</0> title", "The cat sees <0/> and <1>the dog</1>.", "Hard break <0/> <1/>no<2/>.", "quoted text",
        "one more", "two", "a", "b", "cell one", "A snake_case_name, 2 * 3 * 4 and <0>bold</0> <1>gone</1><2/>.",
    ],
    ".docx": ["The <0>big cat</0> & I", "split run", "after tab", "cell", "out ", "boxed", "in", "head"],
}  # fmt: skip


def upper(text: str) -> str:
    return re.sub(r"(<[^>]*>|%\w|&amp;)|[^<%&]+", lambda found: found[1] or found[0].upper(), text)


@pytest.mark.parametrize("ending", list(SAMPLES))
def test_the_texts_of_a_document_and_its_bytes(ending: str) -> None:
    document = read_document(SAMPLES[ending], f"x{ending}")
    assert document.texts == TEXTS[ending] and document.written(document.texts) == SAMPLES[ending]
    fails(UsageError, "translations", document.written, ["one", *document.texts])


TRANSLATED = {
    ".srt": SRT.replace("<i>The cat</i>\r\nsleeps.", "<i>THE CAT</i>\r\nSLEEPS.").replace("Hello", "HELLO").replace("Bye", "BYE"),
    ".vtt": VTT.replace(">The", ">THE").replace("cat<", "CAT<"),
    ".html": HTML.replace("Old & new", "OLD & NEW").replace("Old &amp; new", "OLD &amp; NEW").replace("The <b>big\n cat</b> sees", "THE <b>BIG CAT</b> SEES").replace("One", "ONE").replace("Two", "TWO").replace(">here", ">HERE"),
    ".po": PO.replace('msgid "Open %s"\nmsgstr ""', 'msgid "Open %s"\nmsgstr "OPEN %s"').replace('lines \\"x\\""\nmsgstr ""', 'lines \\"x\\""\nmsgstr ""\n"TWO\\n"\n"LINES \\"X\\""').replace('msgstr[0] ""', 'msgstr[0] "%d FILE"').replace('msgstr[1] ""', 'msgstr[1] "%d FILES"'),
}  # fmt: skip


@pytest.mark.parametrize("ending", list(TRANSLATED))
def test_what_is_translated_changes_and_the_rest_stays(ending: str) -> None:
    document = read_document(SAMPLES[ending], f"x{ending}")
    assert document.written([upper(text) for text in document.texts]).decode() == TRANSLATED[ending]


def test_markdown_keeps_its_structure() -> None:
    document = read_document(MD.encode(), "x.md")
    written = document.written([upper(text) for text in document.texts]).decode()
    kept = [
        "title: Not this\n", "# A *BIG* TITLE #\n", "`x = 1` AND\n[THE DOG](http://a.b/c \"t\").  \n", "![pic](a.png) \\*NO\\*.",
        "> QUOTED\n> TEXT\n", "1. ONE\n   MORE\n2. TWO\n", "print('kept')", "    kept too", "| A | B |\n|---|---|\n| CELL ONE | `x` |",
        "html kept", "A SNAKE_CASE_NAME, 2 * 3 * 4 AND <b>BOLD</b> ~~GONE~~[^1].", "[ref]: http://x.y\n",
    ]  # fmt: skip
    assert [part for part in kept if part not in written] == [], written
    assert written.count("\n") == MD.count("\n")


def body(written: bytes) -> str:
    """The text of a Word document, with its tags, but for what says that spaces stay."""
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        assert archive.testzip() is None
        return archive.read("word/document.xml").decode().replace(' xml:space="preserve"', "")


def test_words_of_a_document_keep_their_formatting_and_their_order() -> None:
    document = read_document(DOCX, "x.docx")
    assert document.written(document.texts) == DOCX
    outputs = ["Eu & o <0>gato</0> <eu>", "corrida", "depois", "célula", "fora", "caixa", "dentro", "alto"]
    written = document.written(outputs)
    assert zipfile.ZipFile(io.BytesIO(written)).namelist() == zipfile.ZipFile(io.BytesIO(DOCX)).namelist()
    assert body(written) == (
        body(DOCX)
        .replace("<w:r><w:t>The </w:t></w:r>", "<w:r><w:t>Eu &amp; o </w:t></w:r>")
        .replace("big cat", "gato")
        .replace("<w:r><w:t> &amp; I</w:t></w:r>", "<w:r><w:t> &lt;eu&gt;</w:t></w:r>")
        .replace("<w:r><w:t>split </w:t></w:r><w:r><w:t>run<", "<w:r><w:t>corrida<")
        .replace("after tab", "depois").replace("cell", "célula").replace("out ", "fora")
        .replace("boxed", "caixa").replace(">in<", ">dentro<")
    )  # fmt: skip
    assert read_document(written, "x.docx").texts == outputs


B, NOTE = "<w:rPr><w:b/></w:rPr>", '<w:r><w:footnoteReference w:id="1"/></w:r>'
LINK, DELETED = '<w:hyperlink r:id="r"><w:r>', "<w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
BEGIN, END = '<w:fldChar w:fldCharType="begin"/>', '<w:fldChar w:fldCharType="end"/>'
FIELD = f"<w:r>{BEGIN}</w:r><w:r><w:instrText>PAGE</w:instrText></w:r><w:r><w:t>3</w:t></w:r><w:r>{END}</w:r>"
WRITTEN = [
    # a word goes to another place with its formatting, and the others keep their order
    (f"<w:r><w:t>the </w:t></w:r><w:r>{B}<w:t>red</w:t></w:r><w:r><w:t> cat</w:t></w:r>", ["the <0>red</0> cat"],
     ["o gato <0>ruivo</0>"], f"<w:r><w:t>o gato </w:t></w:r><w:r>{B}<w:t>ruivo</w:t></w:r>"),
    # the language and what the spelling checker marks are no formatting
    ('<w:r><w:t>a c</w:t></w:r><w:proofErr/><w:r><w:rPr><w:lang w:val="pt"/></w:rPr><w:t>at</w:t></w:r>', ["a cat"],
     ["um gato"], "<w:r><w:t>um gato</w:t></w:r>"),
    # the mark of a note stays behind its word; one that the translation lost stands at the end
    (f"<w:r><w:t>a cat</w:t></w:r>{NOTE}<w:r><w:t> ran</w:t></w:r>", ["a cat<0/> ran"],
     ["um gato<0/> correu"], f"<w:r><w:t>um gato</w:t></w:r>{NOTE}<w:r><w:t> correu</w:t></w:r>".replace("</w:t></w:r><w:r><w:footnote", "</w:t><w:footnote").replace("/></w:r><w:r>", "/>")),
    ("<w:r><w:t>a cat</w:t></w:r><w:bookmarkStart/><w:r><w:t> ran</w:t></w:r>", ["a cat<0/> ran"], ["correu"],
     "<w:r><w:t>correu</w:t></w:r><w:bookmarkStart/>"),
    # a link is written whole, also where it comes first
    (f"<w:r><w:t>see </w:t></w:r>{LINK}<w:t>the page</w:t></w:r></w:hyperlink><w:r><w:t>.</w:t></w:r>", ["see <0>the page</0>."],
     ["<0>a página</0>, veja"], f"{LINK}<w:t>a página</w:t></w:r></w:hyperlink><w:r><w:t>, veja</w:t></w:r>"),
    # of a link that the translation lost, its texts stand elsewhere; what else it holds stands at the end
    (f"<w:r><w:t>see </w:t></w:r>{LINK}<w:drawing/></w:r><w:r><w:t>the page</w:t></w:r>{NOTE}</w:hyperlink>", ["see <0>the page</0>"],
     ["veja a página"], f"<w:r><w:t>veja a página</w:t></w:r>{LINK}<w:drawing/></w:r>{NOTE}</w:hyperlink>"),
    # crossed tags make no crossed elements
    (f"{LINK}<w:t>a</w:t></w:r></w:hyperlink><w:ins><w:r><w:t>b</w:t></w:r></w:ins><w:r><w:t> c</w:t></w:r>", ["<0>a</0><1>b</1> c"],
     ["<0>x <1>y</0> z</1>"], f"{LINK}<w:t>x </w:t></w:r></w:hyperlink><w:ins><w:r><w:t>y</w:t><w:t> z</w:t></w:r></w:ins>"),
    # a link with words of two kinds, and with more than words, is written once
    (f"{LINK}<w:t>a </w:t></w:r><w:bookmarkStart/><w:r>{B}<w:t>b</w:t></w:r></w:hyperlink><w:r><w:t> c</w:t></w:r>", ["<0>a</0> <1/><2>b</2> c"],
     ["<0>x</0> <1/><2>y</2> z"], f"{LINK}<w:t>x</w:t><w:t> </w:t></w:r><w:bookmarkStart/><w:r>{B}<w:t>y</w:t></w:r></w:hyperlink><w:r><w:t> z</w:t></w:r>"),
    (f"<w:ins><w:bookmarkStart/><w:r><w:t>a</w:t></w:r><w:r>{B}<w:t> b</w:t></w:r></w:ins><w:r><w:t> c</w:t></w:r>", ["<0>a</0> <1>b</1> c"],
     ["<0>x</0> z <1>y</1>"], f"<w:ins><w:bookmarkStart/><w:r><w:t>x</w:t></w:r></w:ins><w:r><w:t> z </w:t></w:r><w:ins><w:r>{B}<w:t>y</w:t></w:r></w:ins>"),
    # what was deleted, or moved away, is no text; the number that a field shows stays in it
    (f"<w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom><w:r><w:t>a</w:t></w:r>{DELETED}<w:r><w:t> cat</w:t></w:r>", ["a<0/> cat"],
     ["um<0/> gato"], f"<w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom><w:r><w:t>um</w:t></w:r>{DELETED}<w:r><w:t> gato</w:t></w:r>"),
    (f"<w:r><w:t>see page </w:t></w:r>{FIELD}<w:r><w:t> now</w:t></w:r>", ["see page <0>3</0> now"],
     ["agora <0>3</0> é a folha"], f"<w:r><w:t>agora </w:t></w:r>{FIELD}<w:r><w:t> é a folha</w:t></w:r>"),
    (f"<w:r><w:t>a</w:t>{BEGIN}</w:r><w:r><w:t>b</w:t></w:r><w:r>{END}<w:t>c</w:t></w:r>", ["a", "b", "c"],
     ["x", "y", "z"], f"<w:r><w:t>x</w:t>{BEGIN}</w:r><w:r><w:t>y</w:t></w:r><w:r>{END}<w:t>z</w:t></w:r>"),
    (f"<w:ins><w:r><w:t>a</w:t></w:r><w:r>{BEGIN}</w:r><w:r><w:t>b</w:t></w:r></w:ins><w:r><w:t>c</w:t></w:r>", ["a", "b", "c"],
     ["x", "y", "z"], f"<w:ins><w:r><w:t>x</w:t></w:r><w:r>{BEGIN}</w:r><w:r><w:t>y</w:t></w:r></w:ins><w:r><w:t>z</w:t></w:r>"),
    # elements in others, or with breaks, end texts
    ("<w:r><w:t>a </w:t></w:r><w:ins><w:hyperlink><w:r><w:t>b</w:t></w:r></w:hyperlink><w:r><w:t> c</w:t></w:r></w:ins>", ["a ", "b", " c"],
     ["x ", "y", " z"], "<w:r><w:t>x </w:t></w:r><w:ins><w:hyperlink><w:r><w:t>y</w:t></w:r></w:hyperlink><w:r><w:t> z</w:t></w:r></w:ins>"),
    (f"<w:ins><w:r><w:t>a</w:t><w:br/><w:t>b</w:t></w:r></w:ins><w:r>{B}<w:t>c</w:t></w:r>", ["a", "b", "c"], ["x", "y", "z"],
     f"<w:ins><w:r><w:t>x</w:t><w:br/><w:t>y</w:t></w:r></w:ins><w:r>{B}<w:t>z</w:t></w:r>"),
    # in the middle of a run
    (f"<w:r>{B}<w:t>a</w:t><w:tab/><w:t>b </w:t></w:r><w:r><w:t>cat</w:t><w:tab/></w:r>", ["a", "<0>b</0> cat"], ["a", "gato <0>b</0>"],
     f"<w:r>{B}<w:t>a</w:t><w:tab/></w:r><w:r><w:t>gato </w:t></w:r><w:r>{B}<w:t>b</w:t></w:r><w:r><w:tab/></w:r>"),
]  # fmt: skip


@pytest.mark.parametrize(("paragraph", "texts", "outputs", "written"), WRITTEN)
def test_runs_are_written_anew_and_nothing_between_them_is_lost(paragraph, texts, outputs, written) -> None:
    document = read_document(docx({"word/document.xml": f"<w:body {W}><w:p>{paragraph}</w:p></w:body>"}), "x.docx")
    assert document.texts == texts
    assert body(document.written(outputs)) == f"<w:body {W}><w:p>{written}</w:p></w:body>"


STRICT = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)


@pytest.mark.parametrize("prefix", ["w:", "ns0:", ""])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("paragraph, texts, outputs, written", [WRITTEN[number] for number in (0, 2, 4, 8, 10, -1)])
def test_a_prefix_is_what_the_part_declares(prefix: str, strict: bool, paragraph, texts, outputs, written) -> None:
    def named(xml: str) -> str:
        head = W.replace("xmlns:w=", f"xmlns:{prefix[:-1]}=" if prefix else "xmlns=")
        head += "" if prefix else f" xmlns:w={W[8:].split()[0]}"
        xml = re.sub(r"(</?)w:", rf"\1{prefix}", xml)
        xml = xml if not prefix else re.sub(r" w:(?=[\w:]+=)", f" {prefix}", xml)
        xml = f"<{prefix}body {head}><{prefix}p>{xml}</{prefix}p></{prefix}body>"
        return xml.replace(*STRICT) if strict else xml

    document = read_document(docx({"word/document.xml": named(paragraph)}), "x.docx")
    assert document.texts == texts
    assert body(document.written(outputs)) == named(written)


@pytest.mark.parametrize("named_by", ["relationships", "types"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_parts_of_a_word_document_are_those_that_the_package_names(named_by: str, encoding: str) -> None:
    """Word Online writes word/document2.xml; other programs have folders of their own."""
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
    others = [("header", "/parts/top.xml"), ("styles", "../styles.xml"), ("hyperlink", "http://a.b/header1.xml")]
    related = "".join(
        f'<Relationship Type="{kind}{one}" Target="{place}" TargetMode="{"External" if ":" in place else "Internal"}"/>'
        for one, place in others
    )
    places = {"document.main": "/text/Document2.xml", "header": "/parts/top.xml", "styles": "/styles.xml"}
    typed = "".join(
        f'<Override PartName="{place}" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.{one}+xml"/>'
        for one, place in places.items()
    )
    by = {
        "relationships": {
            "_rels/.rels": RELATIONS.format(MAIN.format("text/document2.xml")),
            "text/_rels/Document2.xml.rels": RELATIONS.format(related),
        },
        "types": {"[Content_Types].xml": f"<Types>{typed}</Types>"},
    }
    language = '<w:rPr><w:lang w:eastAsia="ja-JP" w:val="en-US"/></w:rPr>'
    parts = {
        "text/Document2.xml": f"<w:document {W}><w:p><w:r>{language}<w:t>a cat</w:t></w:r></w:p></w:document>",
        "parts/top.xml": f"<w:hdr {W}><w:p><w:r><w:t>head</w:t></w:r></w:p></w:hdr>",
        "styles.xml": f"<w:styles {W}>{language}</w:styles>",
        "other/header1.xml": f"<w:hdr {W}><w:p><w:r><w:t>of no document</w:t></w:r></w:p></w:hdr>",
    }
    data = docx(by[named_by] | {name: content.encode(encoding) for name, content in parts.items()})
    document = read_document(data, "x.docx")
    assert document.texts == ["a cat", "head"] and document.written(document.texts) == data
    with zipfile.ZipFile(io.BytesIO(document.written(["um gato", "alto"], "pt-BR"))) as archive:
        new = {name: archive.read(name).decode(encoding).replace(' xml:space="preserve"', "") for name in parts}
    pairs = (("a cat", "um gato"), ("head", "alto"), ("en-US", "pt-BR"))
    for name, old in parts.items():
        for one, other in pairs if name != "other/header1.xml" else ():
            old = old.replace(f">{one}<", f">{other}<").replace(f'"{one}"', f'"{other}"')
        assert new[name] == old


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_real_pages_come_back_as_they_are(page: Path) -> None:
    data = page.read_bytes()
    document = read_document(data, page.name)
    assert document.texts and document.written(document.texts) == data


TIMES = "1\n00:00:01,0 --> 00:00:02,0\n"
LAUGHS = f'<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><w:document {W}>&b;</w:document>'
WORKBOOK = {"_rels/.rels": RELATIONS.format(MAIN.format("xl/workbook.xml")), "xl/workbook.xml": "<workbook/>"}
FLAG = DOCX.index(b"PK\x01\x02") + 8  # of the first part


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nx\n\n2\n00:00:03,000 --> 4\nno times\n", "a.srt:6: a subtitle must have a line of times.*'00:00:03,000 --> 4'"),
        ("a.srt", "1\n", "a.srt:1: a subtitle must have a line of times, such as 00:00:01,000 --> 00:00:02,000: got '1'"),
        ("a.vtt", "WEBVTT\n\nx\n", "a.vtt:3: .*times, such as 00:00:01.000 --> 00:00:02.000: got 'x'"),
        ("a.srt", "1\n00:01 -> 2\nx\n", "a.srt:2: a subtitle must have a line of times"),
        ("a.srt", "1\n00:00:xx,000 --> 2\nx\n", "a.srt:2: a subtitle must have a line of times"),
        ("a.vtt", "1\n00:01.000 --> 00:02.000\nx\n", "a.vtt:1: the first line must be WEBVTT: got .1.$"),
        ("a.po", 'msgid "x"\nmsgstr "\n', "a.po:2: a line must begin with msgid"),
        ("a.po", '"x"\n', "a.po:1: a keyword and a text in quotation marks"),
        ("a.po", PO.replace('msgstr[1] ""\n', "").replace("msgstr[0]", "msgstr"), r"a.po:20: a message with a plural must have msgstr\[0\] and so on: got msgstr"),
        ("a.po", 'msgid "x"\n', "a.po:1: a message must have one msgstr: got none"),
        ("a.md", b"ok\n\xff", "a.md:2: byte 3 is not UTF-8"),
        ("a.md", b"\xff\xfeo\0k\0\r\0\n\0\0\xd8a\0", "a.md:2: byte 10 is not UTF-16-LE"),
        ("a.md", "a\0", "a.md:1: a document must not have a NUL"),
        # an encoding that no mark says is named
        ("a.srt", (TIMES + "é").encode("utf-32"), "iconv -f UTF-32 -t UTF-8"),
        ("a.srt", (TIMES + "é").encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8"),
        ("a.srt", (TIMES + "é").encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8"),
        ("a.srt", (TIMES + "é").encode("cp1252"), "iconv -f WINDOWS-1252 -t UTF-8"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "a.docx: is encrypted, or of an older version of Word"),
        ("a.docx", DOCX[:FLAG] + bytes([DOCX[FLAG] | 1]) + DOCX[FLAG + 1 :], "a.docx: is encrypted: save it without a password"),
        ("a.docx", b"PK\x03\x04 nothing", "a.docx: is no Word document"),
        ("a.docx", docx({"x.xml": "<x/>"}), "a.docx: is no Word document: no relationship and no name says which part"),
        ("a.docx", docx({**WORKBOOK}), "a.docx: is no Word document: its part xl/workbook.xml is another kind of document"),
        ("a.docx", docx({"_rels/.rels": LAUGHS, "word/document.xml": XML}), "a.docx: _rels/.rels declares entities"),
        ("a.docx", docx({"word/document.xml": b" " * (20 << 20)}), "a.docx: its part word/document.xml grows more than 200 times"),
        ("a.docx", docx({"word/document.xml": LAUGHS}), "a.docx: word/document.xml declares entities"),
        ("a.docx", docx({"word/document.xml": f"<w:p {W}>" + "<a>" * 600}), "a.docx: word/document.xml has more than 500 elements"),
        ("a.docx", docx({"word/document.xml": f"<w:p {W}>"}), "a.docx: word/document.xml cannot be read"),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_of_its_format_is_refused(name: str, data: str | bytes, said: str) -> None:
    fails(DataError, said, read_document, data.encode() if isinstance(data, str) else data, name)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a.pot", {}, "a.pot: is a template without a language: `msginit -i FILE.pot"),
        ("a.pdf", {}, r"a.pdf: a document must end in \.srt"),
        ("a.srt", {"mark_fuzzy": True}, r"a.srt: `mark_fuzzy` is for documents that end in \.po"),
        ("a.srt", {"attributes": True}, r"a.srt: `attributes` is for documents that end in \.html"),
    ],
)
def test_names_of_no_format_and_options_of_another(name: str, options: dict[str, bool], said: str) -> None:
    fails(UsageError, said, read_document, b"", name, **options)


def test_an_empty_document_has_no_text() -> None:
    for ending in set(FORMATS) - {".docx", ".vtt"}:
        assert read_document(b"", f"a{ending}").texts == []


HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
MET = [
    # a page that names another encoding: letters are references; no-break spaces stay, also at the edges
    (".html", '<meta charset="iso-8859-1"><p>a cat</p>', ["é & ñ"], '<meta charset="iso-8859-1"><p>&#233; &amp; &#241;</p>'),
    (".html", "<meta http-equiv=Content-Type content='text/html; charset=windows-1252'>a", ["é"], "<meta http-equiv=Content-Type content='text/html; charset=windows-1252'>&#233;"),
    (".html", "<meta charset=utf-8><p>a", ["é"], "<meta charset=utf-8><p>é"),
    (".html", "<p> &nbsp;a\n R$&nbsp;3&nbsp;</p>", ["\xa0b R$\xa03\xa0"], "<p> &#160;b R$&#160;3&#160;</p>"),
    # a comment cuts no sentence, but one before it is no part of it
    (".html", "<!doctype html><!-- a --><p><!-- <b> -->b <!-- -->c<!--> d <?php e ?><i>f</i>.</p><!-- g --><p>h", ["B <0/>C<1/> D <2/><3>F</3>.", "H"], "<!doctype html><!-- a --><p><!-- <b> -->B <!-- -->C<!--> D <?php e ?><i>F</i>.</p><!-- g --><p>H"),
    # tags whose attributes hold > or have no value, in upper case and over lines; elements that stay are one thing
    (".html", '<p>a <B title="b > c">d</b> e <A\nhref=f/>g</a><code>h</code><i>j</i> k<br/>l</p>', ["<0>D</0> A E <1>G</1><2/><3>J</3> K", "L"], '<p><B title="b > c">D</b> A E <A\nhref=f/>G</a><code>h</code><i>J</i> K<br/>L</p>'),
    (".md", 'a <B title="b > c">d</b> <i data-e>f <![CDATA[g > h]]></i>\n', ["<1>F <2/></1> <0>D</0> A"], '<i data-e>F <![CDATA[g > h]]></i> <B title="b > c">D</b> A\n'),
    (".md", 'aa <b title="b > c d">e</b>\nf <a b=c=d>g</a>\n', ["AA <0>E</0> F <1>G</1>"], 'AA <b title="b > c d">E</b>\nF <a b=c=d>G</a>\n'),
    # lines that end as on other machines
    (".po", (HEADER + '# note\nmsgid "a\\nb"\nmsgstr ""\n').replace("\n", "\r"), ["x\ny"], (HEADER + '# note\nmsgid "a\\nb"\nmsgstr ""\n"x\\n"\n"y"\n').replace("\n", "\r")),
    (".po", (HEADER + 'msgid "a\\nb"\nmsgstr ""\n').replace("\n", "\r\n"), ["x\ny"], (HEADER + 'msgid "a\\nb"\nmsgstr ""\n"x\\n"\n"y"\n').replace("\n", "\r\n")),
    # a message whose translation is the same has it too: a plural form is not left empty beside another
    (".po", HEADER + 'msgid "%s"\nmsgstr ""\n\nmsgid "a"\nmsgstr ""\n', ["%s", "b"], HEADER + 'msgid "%s"\nmsgstr "%s"\n\nmsgid "a"\nmsgstr "b"\n'),
    # times as others write them, and blank lines inside a subtitle
    (".vtt", "WEBVTT\n\n00:02.000 --> 00:03.000align:start\na\n\n0:0:4.0 --> 0:0:5.25 line:0\nb\n", ["x", "y"], "WEBVTT\n\n00:02.000 --> 00:03.000align:start\nx\n\n0:0:4.0 --> 0:0:5.25 line:0\ny\n"),
    # a speaker's text may go on in the next line; voices are speakers; a line of times ends the header of WebVTT
    (".srt", TIMES + "- a\nb\n- c\n", ["x y", "z"], TIMES + "- x\ny\n- z\n"),
    (".vtt", "WEBVTT\n\n00:01.0 --> 00:02.0\n<v A>a</v>\n<v B>b</v>\n", ["<0>x</0>", "<0>y</0>"], "WEBVTT\n\n00:01.0 --> 00:02.0\n<v A>x</v>\n<v B>y</v>\n"),
    (".vtt", "WEBVTT\nKind: captions\n00:01.0 --> 00:02.0\na\n", ["x"], "WEBVTT\nKind: captions\n00:01.0 --> 00:02.0\nx\n"),
    # dashes stay behind tags, and alone; a line of times begins a subtitle also without a blank line
    (".srt", TIMES + "<i>- a\n- b</i>\n\n" + TIMES + "{\\an8}• c\n<i>– d</i>\n\n" + TIMES + "- e\n", ["A", "B<0/>", "C", "D<0/>", "E"], TIMES + "<i>- A\n- B</i>\n\n" + TIMES + "{\\an8}• C\n<i>– D</i>\n\n" + TIMES + "- E\n"),
    (".srt", TIMES + "a\n5\n" + TIMES + "b\n" + TIMES[2:] + TIMES[2:] + "c\nd\n", ["A 5", "B", "C D"], TIMES + "A\n5\n" + TIMES + "B\n" + TIMES[2:] + TIMES[2:] + "C\nD\n"),
    (".vtt", "WEBVTT\n\n00:01.0 --> 00:02.0\na\n00:03.0 --> 00:04.0\nb\n", ["A", "B"], "WEBVTT\n\n00:01.0 --> 00:02.0\nA\n00:03.0 --> 00:04.0\nB\n"),
    # boxes of tasks, the first lines of notes, a head of TOML, hard breaks
    (".md", "- [ ] a\n- [x] b\n", ["x", "y"], "- [ ] x\n- [x] y\n"),
    (".md", "> [!NOTE]\n> a\n\n:::tip\nb\n:::\n", ["x", "y"], "> [!NOTE]\n> x\n\n:::tip\ny\n:::\n"),
    (".md", '+++\ntitle = "a"\n+++\nb\n', ["y"], '+++\ntitle = "a"\n+++\ny\n'),
    (".md", "a\\\nb  \nc\\\n", ["x", "y", "z"], "x\\\ny  \nz\n"),
    (".md", "| a \\| b |\n|---|\n| c |\n", ["x <0/> y", "z"], "| x \\| y |\n|---|\n| z |\n"),
    # notes, also in lines without a blank one between, abbreviations and definitions; tags for a new line end a text
    (".md", "a[^1].\n\n[^1]: b c\n[^2]: d\n\n[^3]: http://e.f\n\n*[g]: h i\n\nj\n: k\n", ["A<0/>.", "B", "D", "http://e.f", "H", "J", "K"], "A[^1].\n\n[^1]: B\n[^2]: D\n\n[^3]: http://e.f\n\n*[g]: H\n\nJ\n: K\n"),
    (".md", "a<br>b `<br>`<BR />[c<br/>\nd](e)\n\n|f|\n|-|\n|g<br>h|\n", ["A", "B <0/>", "<0>C", "D<0/>", "F", "G", "H"], "A<br>B `<br>`<BR />[C<br/>\nD](e)\n\n|F|\n|-|\n|G<br>H|\n"),
    # a translation begins no list, heading or quotation, in the first line and in others
    (".md", "a\n\nb\n\n# 1. c\n\nd\n", ["1. x", "# y", "2. z", "-w"], "1\\. x\n\n\\# y\n\n# 2. z\n\n-w\n"),
    (".md", "a b\nc d\n", ["aaa bbb - ccc ddd"], "aaa bbb -\nccc ddd\n"),
    (".md", "a b\nc d\n", ["aaa bbb 12. ccc ddd"], "aaa bbb 12.\nccc ddd\n"),
    # a pair of marks around nothing is left out, since it would be text; what the text escapes stays, and new signs are escaped
    (".md", "a **b** c *d*.\n\n**e _f_** g\n", ["A <0> </0>B<1></1>.", "<0><1></1></0> G"], "A B.\n\nG\n"),
    (".md", "**a**, ~~b~~: *c* [d](e) d\n", ["<0> </0>A<1> </1>B<2>C</2> <3></3>"], "A B*C* [](e)\n"),
    (".md", "a\\* \\_b\\_ 2 * c\n", ["A<0/> <1/><2/> 2 * C_d"], "A\\* \\_\\_ 2 * C\\_d\n"),
    # what an element as <kbd> holds stays, as in HTML
    (".md", "a <kbd>b</kbd>+<KBD id=x>c *d*</KBD> e <samp>f</b>\n[g <code>h]</code>](i)\n", ["A <0/>+<1/> E <2>F<3/> <4>G <5/></4>"], "A <kbd>b</kbd>+<KBD id=x>c *d*</KBD>\nE <samp>F</b> [G <code>h]</code>](i)\n"),
    (".html", "<p>a <b>b</b></p>", ["A <0></0>*c*"], "<p>A <b></b>*c*</p>"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "data", "outputs", "written"), MET)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_documents_as_people_have_them(ending: str, data: str, outputs: list[str], written: str, encoding: str) -> None:
    document = read_document(data.encode(encoding), f"a{ending}")
    assert document.written(document.texts) == data.encode(encoding)
    assert document.written(outputs).decode(encoding) == written


PO_FILLED = PO.replace('n %s"\nmsgstr ""', 'n %s"\nmsgstr "A %s"').replace('\\""\nmsgstr ""', '\\""\nmsgstr "B"')
PO_FILLED = PO_FILLED.replace('[0] ""', '[0] "%d C"').replace('[1] ""', '[1] "%d D"')
LOOSE = [
    (".srt", TIMES + "a\n\nb\n- c\n\n2\n\n" + TIMES + "d\n", ["x", "y", "z", "w"], TIMES + "x\n\ny\n- z\n\n2\n\n" + TIMES + "w\n", "a.srt:5: 2 texts stand behind a blank line, without times: taken for the rest"),
    (".vtt", "WEBVTT\n\n00:01.0 --> 00:02.0\na\n\nb\n", ["x", "y"], "WEBVTT\n\n00:01.0 --> 00:02.0\nx\n\ny\n", "a.vtt:6: 1 text stands behind a blank line"),
    # finished forms stay, empty ones become as many as the header says, or stay too where it does not say it
    (".po", PO.replace('msgstr[0] ""\nmsgstr[1] ""\n', 'msgstr[0] "a"\nmsgstr[1] "b"\nmsgstr[2] "c"\n'), ["A %s", "B"], None, r"a.po:20: 1 message has other plural forms than the header says \(nplurals=2\): finished ones"),
    (".po", PO.replace('msgstr[1] ""\n', 'msgstr[1] ""\nmsgstr[2] ""\n'), ["A %s", "B", "%d C", "%d D"], PO_FILLED, "a.po:20: 1 message has other plural forms than"),
    (".po", PO.replace('msgstr[1] ""\n', ""), ["A %s", "B", "%d C", "%d D"], PO_FILLED, "a.po:20: 1 message has other plural forms than"),
    (".po", PO.replace("nplurals=2", "plurals=2"), ["A %s", "B"], None, "a.po:20: 1 message has other plural forms, and the header does not say how many"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "data", "outputs", "written", "said"), LOOSE)
def test_what_readers_of_a_format_accept_is_read_with_a_warning(ending, data, outputs, written, said) -> None:
    with pytest.warns(AtentoWarning, match=said):
        document = read_document(data.encode(), f"a{ending}")
    assert document.written(document.texts) == data.encode()
    new = document.written(outputs).decode()
    assert new == written if written is not None else all(f'"{output}"' in new for output in outputs)


ONE, COUNT = "a day ago", "%(count)s days ago"


@pytest.mark.parametrize(
    ("rule", "singular", "sources"),
    [
        ("nplurals=2; plural=n != 1", ONE, [ONE, COUNT]),
        ("nplurals=2; plural=n > 1", ONE, [COUNT, COUNT]),  # 0 has the form of 1
        ("nplurals=2; plural=n > 1", "%(count)s day ago", ["%(count)s day ago", COUNT]),
        ("nplurals=1; plural=0", "%(count)s day ago", [COUNT]),
        ("nplurals=2; plural=n == 1 ? 1 : 0", ONE, [COUNT, ONE]),
        ("nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2", ONE, [COUNT] * 3),
        ("nplurals=2; plural=1/0", ONE, [ONE, COUNT]),
        ("nplurals=2", ONE, [ONE, COUNT]),
    ],
)  # fmt: skip
def test_each_plural_form_is_translated_from_its_own_text(rule: str, singular: str, sources: list[str]) -> None:
    """`msgfmt -c` refuses a form for several numbers that lacks the number."""
    forms = "".join(f'msgstr[{number}] ""\n' for number in range(len(sources)))
    data = f'{HEADER[:-1]}"Plural-Forms: {rule};\\n"\n\n#, python-format\nmsgid "{singular}"\nmsgid_plural "{COUNT}"\n{forms}'
    document = read_document(data.encode(), "a.po")
    assert document.texts == sources
    if shutil.which("msgfmt") and "1/0" not in rule and "plural=" in rule:
        command = ["msgfmt", "-c", "-o", "/dev/null", "-"]
        said = subprocess.run(command, input=document.written([f"{one}!" for one in sources]), capture_output=True)
        assert b"format specification" not in said.stderr, said.stderr.decode()


def test_machine_translations_are_marked_for_a_second_look() -> None:
    data = PO + '\n#, fuzzy\n#| msgid "c"\nmsgid "d"\nmsgstr ""\n'
    document = read_document(data.encode(), "a.po", mark_fuzzy=True)
    assert document.written(document.texts) == data.encode()
    written = document.written([f"{text}!" for text in document.texts[:-2]] + ["", "e"]).decode()
    assert written.count("#, fuzzy\n") == 4  # three of four and the one that had it; the fourth message was translated
    assert '#: a.c:1\n#, c-format\n#, fuzzy\nmsgid "Open %s"\nmsgstr "Open %s!"\n' in written
    assert '\n\n#, fuzzy\nmsgctxt "menu"\nmsgid ""\n' in written and '\n\nmsgid "done"\n' in written


ATTRIBUTES = [
    (
        ".html",
        "<meta name=description content='A \"page\"'><meta name=viewport content='width=1'><meta property='og:title' content=Cats><p title='Tom &amp; I'>See <img src=a.png alt=cat> and <a href='b' TITLE=\"x > y\">this</a></p>"
        "<p><img alt='a dog'><img alt=''></p><input placeholder=\"name\" value=kept><textarea placeholder='more'>kept</textarea><i translate=no title=kept>kept</i><b aria-label='go  on'>5</b><i title='&lt;0&gt; a'>6</i>",
        ['A "page"', "Cats", "Tom & I", "See <0/> and <1>this</1>", "cat", "x > y", "a dog", "name", "more", "go on"],
        "",
    ),
    (
        ".md",
        'A ![big \\[cat\\]](a.png "the title") and ![no][ref] <img alt="b c" src=d>\nx.\n\n![alone](e.png)\n\n![](f.png)\n\n[ref]: g\n',
        ["A <0/> and <1/> <2/> x.", "big \\[cat\\]", "the title", "b c", "alone"],
        'A ![A 1](a.png "A 2") and ![no][ref] <img alt="A 3" src=d>\nx.\n\n![A 4](e.png)\n\n![](f.png)\n\n[ref]: g\n',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "data", "texts", "written"), ATTRIBUTES)
def test_texts_of_attributes_are_translated_if_asked(ending: str, data: str, texts: list[str], written: str) -> None:
    plain = read_document(data.encode(), f"a{ending}")
    document = read_document(data.encode(), f"a{ending}", attributes=True)
    assert document.texts == texts and len(plain.texts) < len(texts)
    assert document.written(document.texts) == plain.written(plain.texts) == data.encode()
    if ending == ".md":
        assert document.written([texts[0], "A 1", "A 2", "A 3", "A 4"]).decode().split() == written.split()
        return
    outputs = [text if "<0/>" in text else f"A {number}'\"" for number, text in enumerate(texts, 1)]
    outputs[3] = "<1>isto</1> e <0/>"
    new = document.written(outputs).decode()
    said = [
        "content='A 1&#39;&quot;'", 'content="A 2&#39;&quot;"', "<p title='A 3&#39;&quot;'>", 'TITLE="A 6&#39;&quot;">isto</a> e <img src=a.png alt="A 5&#39;&quot;"></p>',
        "<img alt='A 7&#39;&quot;'><img alt=''>", 'placeholder="A 8&#39;&quot;" value=kept', "<textarea placeholder='A 9&#39;&quot;'>kept<", "title=kept>kept", "<b aria-label='A 10&#39;&quot;'>5</b><i title='&lt;0&gt; a'>6",
    ]  # fmt: skip
    assert [one for one in said if one not in new] == [], new


NAMED = [  # a document, and the same as of Portuguese; the language of the other that is there
    (".html", '<html class=x lang="{}" xml:lang=en-GB><p>a</p><i lang="fr"></i></html>', "en", "pt-BR"),
    (".html", "<HTML LANG={}><p>a</p></html>", "pt-PT", "pt-PT"),
    (".html", "<meta http-equiv=Content-Language content='{}'><p>a</p>", "en-US", "pt-BR"),
    (".vtt", "WEBVTT\nKind: captions\nLanguage: {}\n\n00:01.0 --> 00:02.0\na\n", "en", "pt-BR"),
    (".po", HEADER[:-1] + '"Language: {}\\n"\n\nmsgid "a"\nmsgstr ""\n', "", "pt_BR"),
    (".po", HEADER[:-1] + '"Language: {}\\n"\n\nmsgid "a"\nmsgstr ""\n', "de_AT", "pt_BR"),
    (".po", HEADER[:-1] + '"Language: {}\\n"\n\nmsgid "a"\nmsgstr ""\n', "pt_PT", "pt_PT"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "data", "source", "target"), NAMED)
def test_a_translation_names_its_language(ending: str, data: str, source: str, target: str) -> None:
    old = data.format(source)
    document = read_document(old.encode(), f"a{ending}")
    assert document.texts == ["a"] and document.written(["a"]) == old.encode()
    assert document.written(["b"], None) == document.written(["b"])
    assert document.written(["a"], "pt-BR").decode() == data.format(target).replace("en-GB", "pt-BR")


@pytest.mark.parametrize(
    ("ending", "data", "encoding", "written"),
    [
        (".html", '<meta charset="iso-8859-1"><p>São “a”</p>', "windows-1252", '<meta charset="iso-8859-1"><p>&#231;é</p>'.replace("é", "&#233;")),
        (".html", '<?xml version="1.0" encoding="koi8-r"?><p>да</p>', "koi8-r", '<?xml version="1.0" encoding="koi8-r"?><p>&#231;&#233;</p>'),
        (".po", HEADER.replace("UTF-8", "ISO-8859-1") + '# São\nmsgid "a"\nmsgstr ""\n', "latin-1", HEADER.replace("UTF-8", "ISO-8859-1") + '# São\nmsgid "a"\nmsgstr "çé"\n'),
        (".po", HEADER.replace("UTF-8", "ISO-8859-2") + '# ű\nmsgid "a"\nmsgstr ""\n', "iso-8859-2", HEADER.replace("UTF-8", "ISO-8859-2") + '# ű\nmsgid "a"\nmsgstr "çé"\n'),
        (".po", HEADER.replace("UTF-8", "EUC-JP") + '# 日\nmsgid "a"\nmsgstr ""\n', "euc-jp", HEADER.replace("UTF-8", "EUC-JP") + '# 日\nmsgid "a"\nmsgstr "çé"\n'),
    ],
)  # fmt: skip
def test_an_encoding_that_the_document_names_is_kept(ending: str, data: str, encoding: str, written: str) -> None:
    document = read_document(data.encode(encoding), f"a{ending}")
    assert len(document.texts) == 1 and document.written(document.texts) == data.encode(encoding)
    assert document.written(["çé"]).decode(encoding) == written


@pytest.mark.parametrize("named", ["CHARSET", "US-ASCII", "iso-8859-7"])
def test_an_encoding_that_lacks_the_letters_of_a_translation_becomes_utf_8(named: str) -> None:
    data = HEADER.replace("UTF-8", named) + 'msgid "a"\nmsgstr ""\n'
    document = read_document(data.encode(), "a.po")
    assert document.written(["b"]).decode() == data.replace('""\n', '"b"\n').replace('msgid "b"', 'msgid ""')
    assert document.written(["ção"]).decode() == HEADER + 'msgid "a"\nmsgstr "ção"\n'


MAN = "\n\n[man]: x 'y'\n[^n]: http://z.z\n"
LINKS = {
    f"a {link} b{MAN}": f"A {link if written is None else written} B{MAN}"
    for link, written in {
        "[c](d.e 'f')": "[C](d.e 'f')", "[c](d (e f))": "[C](d (e f))", '[c](d "e\\"f")': '[C](d "e\\"f")', "[c](<d e> 'f')": "[C](<d e> 'f')",
        "[c [d] e](f)": "[C [D] E](f)", "[c](d(e(f)))": "[C](d(e(f)))", "[c\nd](e\n'f g')": "[C D](e\n'f g')", "[c](javascript:d)": "[C](javascript:d)",
        "[c][man]": "[C][man]", "[man][]": "[MAN][man]", "[man]": "[MAN][man]", "[*man*]": "[*MAN*]", "[c][no]": "[C][no]",
        "![c][man]": None, "![man][]": None, "![man]": None, "![c [d]](e 'f')": None, "[![c](d)](e)": None, "![`c`](d)": None,
        "[^n]": None, "`` c`[d](e) ``": None, "<f:g>": None, "<a@b.c>": None, "<!-- c -->": None,
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("data", list(LINKS))
def test_links_and_images_of_every_form_are_kept(data: str) -> None:
    """What the pattern of before did not know was handed to a model, with its address."""
    document = read_document(data.encode(), "a.md")
    written = document.written([upper(text) for text in document.texts]).decode()
    assert " ".join(written.split()).replace("HTTP://Z.Z", "http://z.z") == " ".join(LINKS[data].split())


def test_a_tab_ends_a_text_in_every_format_and_a_sentence_without_a_translation_stays() -> None:
    work = DocumentSentences(read_document(b"<p>a<br>The cat.</p>", "a.html"))
    assert work.sentences == ["a", "The cat."]
    assert work.written(["  ", "O gato."]) == b"<p>a<br>O gato.</p>"
    work = DocumentSentences(read_document(b"**name** `x`\n", "a.md"))  # nothing between the signs would be no markup
    assert work.written(["<0></0> <1/>"]) == b"**name** `x`\n"
    po = HEADER + 'msgid "A cat.\\tB"\nmsgstr "{}"\n'
    for name, data, written in (("a.po", po.format(""), po.format("A CAT.\\tB")), ("a.md", "a\tb\n", "A\tB\n")):
        work = DocumentSentences(read_document(data.encode(), name))
        assert work.written([sentence.upper() for sentence in work.sentences]).decode() == written


@pytest.mark.parametrize("ending", sorted(SAMPLES))
def test_what_a_model_writes_breaks_no_document(ending: str) -> None:
    """Blank lines would end a subtitle, and a control character the file that Word can open."""
    sentences = DocumentSentences(read_document(SAMPLES[ending], f"a{ending}"))
    wild = sentences.written([f"{sentence}\n\n\x0b\x00\ud800{sentence}" for sentence in sentences.sentences])
    plain = sentences.written([f"{sentence} {sentence}" for sentence in sentences.sentences])
    if ending == ".docx":
        wild, plain = (
            b"".join(zipfile.ZipFile(io.BytesIO(one)).read(part) for part in ("word/document.xml", "word/header1.xml"))
            for one in (wild, plain)
        )
    assert wild == plain and wild != SAMPLES[ending]


@pytest.mark.parametrize(
    ("ending", "before", "piece"),
    [
        (".html", "", "<b>a</b> b "),
        (".md", "", "~~a **b "),
        (".po", "", 'msgid "a"\n'),
        (".srt", TIMES, "a b\n"),
        (".po", 'msgid ""\nmsgstr "nplurals=2; charset=UTF-8"\n', "\n#: " + "a" * 250 + '\nmsgid "a"\nmsgstr ""\n'),
    ],
)
def test_ten_times_the_document_takes_no_hundred_times_as_long(ending: str, before: str, piece: str) -> None:
    def seconds(count: int) -> float:
        data, begun = (before + piece * count).encode(), process_time()
        with suppress(DataError):  # refused as fast
            document = read_document(data, f"a{ending}")
            document.written([f"{text} c" for text in document.texts])
        return process_time() - begun

    seconds(100)  # what is imported late
    assert seconds(20_000) < 30 * max(seconds(2_000), 0.01)


@pytest.mark.parametrize(("ending", "before", "after"), [(".html", "<p>", "</p>"), (".srt", TIMES, "\n")])
def test_markup_that_crosses_keeps_its_numbers(ending: str, before: str, after: str) -> None:
    document = read_document(f"{before}<b>a <i>b</b> c</i> d <b>e</b>{after}".encode(), f"a{ending}")
    assert document.texts == ["<0>a <1>b</0> c</1> d <2>e</2>"]
    assert document.written(["<2>e</2> <0>A <1>B</0> C</1>"]) == f"{before}<b>e</b> <b>A <i>B</b> C</i>{after}".encode()


def test_documents_are_read_in_linear_time() -> None:
    pieces = [(".html", piece) for piece in ("<b>a ", "a <!-- b --> <!", "a <!--")]
    pieces += [(".md", piece) for piece in ("*a ", "[a", "`", "[a [b] ![c](d 'e')][f] <br> `g` ")]
    for ending, piece in [*pieces, (".srt", f"{TIMES}<\n\n"), (".po", 'msgid "\\\\"\nmsgstr ""\n\n')]:
        data = (piece * 2_000).encode()
        document = read_document(data, f"a{ending}")
        assert document.written(document.texts) == data


@pytest.mark.parametrize(("ending", "begin"), [(".html", "<meta charset="), (".po", ""), (".po", "msgid")])
def test_a_row_of_spaces_is_read_once(ending: str, begin: str) -> None:
    """Spaces that two parts of a pattern could take were tried in every division: 10 s for these."""
    began = process_time()
    with suppress(DataError):
        read_document(f"{begin}{' ' * 30_000}!".encode(), f"a{ending}")
    assert process_time() - began < 1


CATALOGUE = HEADER.replace('charset=UTF-8\\n"', 'charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=n != 1;\\n"') + "".join(
    f'#, {flags}\nmsgid "{message}"\nmsgstr ""\n\n'
    for flags, message in [
        ("c-format", "wrote %.3fs of %5ld files, 100%% done"), ("c-format", "%s of %d in % d"), ("c-format", r"\nnot found: %1$sHow\n"),
        ("python-format", "took %dm, see %(name)s"), ("python-format", "%d of %s"), ("python-format", "%#x and %*d"),
        ("python-brace-format", "{} has {name!r:>{width}} {{x}}"), ("qt-format", "the %1 of %L2 and %n more"), ("kde-format", "the %1 of %12"),
        ("javascript-format", "%s sees %d"), ("php-format", "the %'.10d sees %2$s"), ("fuzzy, no-c-format", r"the cat\n"),
        ("perl-brace-format", "the {cat} sees"), ("sh-format", "see $HOME and ${USER}"), ("qt-format", "&Open %1"), ("c-format", "E_xit %s"),
    ]
) + '#, python-format\nmsgid "%d of %s file"\nmsgid_plural "%d of %s files"\nmsgstr[0] ""\nmsgstr[1] ""\n'  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
def test_placeholders_of_a_catalogue_are_those_of_its_formats(tmp_path: Path, reverse: bool) -> None:
    """What has its placeholders in another order, as only names and numbers may, stays empty, and is counted."""
    work = DocumentSentences(read_document(CATALOGUE.encode(), "a.po"))

    def translate(text: str) -> tuple[str, float]:
        return " ".join(reversed(text.split())) if reverse else text.upper(), 0.0

    outputs = run(work.sentences, None, translate, protect=True, reverse=reverse)
    with warnings.catch_warnings(record=True, action="always") as said:
        written = work.written(outputs).decode()
    left = re.findall(r'msgid "(.*)"\nmsgstr ""\n(?!")', written)
    assert left == ["wrote %.3fs of %5ld files, 100%% done"] * reverse, written
    says = ["1 message stays without a translation, which had other placeholders"]
    assert [str(one.message) for one in said] == says * reverse
    if not reverse:
        for shown in ('"WROTE %.3fS OF %5ld FILES, 100%% DONE"', '"NOT FOUND: %1$sHOW\\n"', '"&OPEN %1"', '"E_XIT %s"'):
            assert shown in written
    if shutil.which("msgfmt") is None:
        pytest.skip("msgfmt is not installed")
    (tmp_path / "a.po").write_text(written)
    done = subprocess.run(["msgfmt", "-c", "-o", "/dev/null", tmp_path / "a.po"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
