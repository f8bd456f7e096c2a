"""`tools/real_documents.py` on documents made here, which have each construct that real ones were seen to have."""

# ruff: noqa: E501 (documents are read line by line)

import io
import shutil
import zipfile

import pytest
from tools import real_documents
from tools.document_checks import capitals, compiles, faults, translated
from tools.real_documents import Result, emptied, table

from atento.text.documents import read_document

MAIN = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BOLD, NOTE = "<w:rPr><w:b/></w:rPr>", '<w:footnoteReference w:id="1"/>'
DOCUMENTS = {
    "a.html": '<!DOCTYPE html>\n<html lang="en"><head><title>Old &amp; new</title><meta name="description" content="A page"><script>var a = "<b>";</script></head>\n'
    '<body><h1>The <b>big\n cat</b></h1><p>It sees <a href="?a&amp;b" title="Home > Pets">the <em>dog</em></a> &mdash; <code>x &lt; 1</code>.<br>Next line.<img alt="a cat" src=a.png></p>\n'
    '<ul><li>One<li>Two <!-- not said --> here</ul><table><tr><td>cell<td>other</table><pre>kept\n  text</pre><p translate="no">Atento</p><details open><summary>More</summary>text</details></body></html>',
    "b.html": "<p>H<sub>2</sub>O in 3 <b>or</b> 4<sup>[1]</sup>, {{ name }} and {% if a %}more{% endif %}.</p><div><p><strong><span><em>TIP</em></span> Some disks</strong></p></div><p><strong>Prev</strong>Chapter 6. Visit <code>a=<em>address</em>&amp;b=<em>name</em></code>.</p><p>Caf\u00e9\u00a0&nbsp;R$\u00a03 😀 Yes! 😀 No.</p>",
    "a.md": "---\ntitle: kept\n---\n# The *big* cat #\n\nIt `sees` the **white\ncat** and [the dog](http://a.b/c \"t\").  \nHard break ![pic](a.png) \\*no\\*, `a  b`\n`npm\n   run`.\n\n"
    "> [!NOTE]\n> quoted\n> text\n\n1. one\n   more\n2. - [ ] two\n\n```python\nprint('kept')\n```\n\n| a | b |\n|---|---|\n| cell \\| one | `x` |\n\n<div>\nkept\n</div>\n\n"
    "A snake_case_name, 2 * 3 * 4 and <b title='x > y'>bold</b> ~~gone~~[^1] __Note:__ 64GB, `x`, `y`.\n\nOdd[^1][^2] header: Promise\\<`a`\\> and a page&#39;s {a}, {b}.\n\n[^1]: The note.\n\n[ref]: http://x.y\n",
    "a.po": 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: ru\\n"\n"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\\n"\n\n'
    '#. a note\n#: a.py:1\n#, python-format\nmsgid "Open %s in %.3fs, %dm"\nmsgstr ""\n\n#, python-format\nmsgid "a day"\nmsgid_plural "%(count)s days"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n\n'
    '#, python-brace-format\nmsgctxt "menu"\nmsgid ""\n"Two {x}\\n"\n"<b>lines</b> \\"x\\"\\n"\nmsgstr ""\n\n#, fuzzy\n#| msgid "old"\nmsgid "new"\nmsgstr "novo"\n\n#~ msgid "gone"\n#~ msgstr ""\n',
    "a.srt": "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>The cat</i>\r\nsleeps.\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n- Hello.\r\n- {\\an8}Bye.\r\n",
    "a.vtt": "WEBVTT - a title\nLanguage: en\n\nNOTE\nnot said\n\nSTYLE\n::cue { color: red }\n\nREGION\nid:a\n\nintro\n00:01.000 --> 00:02.000align:start\n<v Ana Maria>The <c.big>cat</c> &amp; I\n\n00:03.000 --> 00:04.000\n♪ <00:03.500>la\n",
}  # fmt: skip


def docx() -> bytes:
    relations = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document2.xml"/></Relationships>'
    runs = f"<w:r><w:t>The </w:t></w:r><w:r>{BOLD}<w:t>big cat</w:t></w:r><w:r>{NOTE}</w:r><w:r><w:t> and I</w:t><w:tab/><w:t>here</w:t></w:r>"
    link = '<w:hyperlink w:anchor="a"><w:r><w:t>the dog</w:t></w:r></w:hyperlink>'
    box = "<w:r><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict></w:r>"
    cell = f"<w:tbl><w:tr><w:tc><w:p><w:r><w:t>cell </w:t></w:r>{link}</w:p></w:tc></w:tr></w:tbl>"
    text = f'<w:document xmlns:ns0="{MAIN}"><w:body><w:p><w:pPr><w:b/></w:pPr>{runs}</w:p>{cell}<w:p>{box}</w:p></w:body></w:document>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", relations)
        archive.writestr("word/document2.xml", text.replace("w:", "ns0:"))
    return out.getvalue()


ALL = {name: text.encode() for name, text in DOCUMENTS.items()} | {"a.docx": docx()}


def test_nothing_is_lost_or_crossed_and_a_word_document_with_losses_is_found() -> None:
    for name in list(ALL):
        data = ALL[name]
        document = read_document(data, name)
        assert translated(document, list) == data
        after = translated(document, capitals)
        assert after != data and faults(name, data, after, exact=True) == []
        assert faults(name, data, translated(document, lambda texts: [f"{one} a." for one in texts]), exact=False) == []
    data, out = ALL["a.docx"], io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        new.writestr("_rels/.rels", old.read("_rels/.rels"))
        text = old.read("word/document2.xml").replace(b'<ns0:footnoteReference ns0:id="1"/>', b"")
        new.writestr("word/document2.xml", text)
    assert {one for one, _ in faults("a.docx", data, out.getvalue(), exact=True)} == {"structure", "words"}
    data = 'msgid ""\nmsgstr ""\n"A: b\\n"\n\n# c\nmsgid "a"\nmsgstr ""\n"x\\n"\n"y"\n\nmsgid "b"\nmsgid_plural "bs"\nmsgstr[0] "z"\nmsgstr[1] "zs"\n'
    assert emptied(data.encode()).decode() == (
        'msgid ""\nmsgstr ""\n"A: b\\n"\n\n# c\nmsgid "a"\nmsgstr ""\n\nmsgid "b"\nmsgid_plural "bs"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    )
    assert compiles(b"x") if shutil.which("msgfmt") else True
    assert real_documents.PACKAGES


BROKEN = [  # what is spoiled in a translation, and the check that finds it
    ("a.html", "</B>", "", "tags"),
    ("a.html", "<em>DOG</em></a>", "<em>DOG</a></em>", "tags"),
    ("a.html", "<b>BIG", "BIG<b>", "words"),
    ("a.html", "<td>OTHER", "OTHER", "structure"),
    ("a.md", "**WHITE", "WHITE", "structure"),
    ("a.md", "print('kept')", "PRINT", "structure"),
    ("a.md", "2. - ", "2. ", "structure"),
    ("a.po", "OPEN %s", "OPEN %S", "msgfmt"),
    ("a.po", "<b>LINES</b>", "LINES</b>", "tags"),
    ("a.po", "#: a.py:1\n", "", "structure"),
    ("a.srt", "00:00:03,000 -->", "00:00:03,100 -->", "structure"),
    ("a.srt", "SLEEPS", "SLEEP", "words"),
    ("a.vtt", "</c>", "", "tags"),
]


@pytest.mark.parametrize(("name", "right", "wrong", "check"), BROKEN)
def test_each_check_finds_what_is_broken(name: str, right: str, wrong: str, check: str) -> None:
    if check == "msgfmt" and shutil.which("msgfmt") is None:
        pytest.skip("msgfmt is not installed")
    after = translated(read_document(ALL[name], name), capitals).decode()
    right = right.replace("</B>", "</b>")
    assert right in after, after
    assert check in {one for one, _ in faults(name, ALL[name], after.replace(right, wrong, 1).encode(), exact=True)}


def test_the_table_counts_a_document_once_in_each_column() -> None:
    twice = [("tags", letter) for letter in "ab"]
    results = [
        Result("a.po", "po", sentences=3, compiled=True, found={"identity": [], "capitals": [("msgfmt", "x")]}),
        Result("b.po", "po", sentences=1, compiled=False, found={"identity": [], "capitals": []}),
        Result("a.md", "md", refused="b.md: no"),
        Result("b.md", "md", sentences=2, found={"identity": [("identity", "")], "capitals": twice}),
    ]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table(results, None).splitlines()]
    assert rows[2] == ["po", "2", "4", "0", "all", "all", "all", "all", "0 of 1"]
    assert rows[3] == ["md", "2", "2", "1", "0 of 1", "all", "all", "0 of 1", ""]
    assert rows[4][:5] == ["all", "4", "6", "1", "2 of 3"]
