"""Documents translated by the command, with the micro-world's translator: structure kept, terms, wrong documents."""

from pathlib import Path

import pytest

from conftest import ForkServer, refused

MODEL = "micro-world-en-pt"
SRT = (
    "1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>The cat jumped</i>\r\nhigh.\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000\r\n- The boy saw the dog.\r\n- The cat sleeps.\r\n"
)
KINDS = ".srt, .vtt, .html, .htm, .xhtml, .md, .markdown, .po, .docx"
MD = "# The big cat\n\nThe girl sees **the cat**\nin the [garden](x.md).\n"


def test_documents_stay_documents(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_bytes(SRT.encode())
    (tmp_path / "a.md").write_text(MD)
    (tmp_path / "terms.tsv").write_text("cat\tbichano\n")
    done = server.good("translate", MODEL, "a.srt", "--out", "b.srt", cwd=tmp_path)
    written = (tmp_path / "b.srt").read_bytes().decode()
    assert written.count("\r\n") == SRT.count("\r\n") and "<i>O gato pulou</i>" in written.replace("\r\n", " ")
    assert "- O menino viu o cachorro.\r\n- O gato dorme.\r\n" in written
    assert done.stdout == "" and "wrote b.srt" in done.stderr
    done = server.run("translate", MODEL, "a.md", "--glossary", "terms.tsv", cwd=tmp_path)
    bold = done.stdout.replace("o **bichano**", "**o bichano**")  # where the article reads something else
    assert bold == "# O bichano grande\n\nA menina vê **o bichano**\nno [jardim](x.md).\n"
    assert "terms of the glossary: 2 met, 2 kept" in done.stderr
    lines = server.run("translate", MODEL, "a.md", "--lines", cwd=tmp_path)
    assert len(lines.stdout.splitlines()) == 4 and "](x.md)" not in lines.stdout


def test_a_translated_document_names_its_language_and_what_else_is_asked(server: ForkServer, tmp_path: Path) -> None:
    page = '<html lang="{}"><meta name=description content="{}"><p>{}</p></html>\n'
    (tmp_path / "a.html").write_text(page.format("en", "The cat sleeps.", "The boy saw the dog."))
    done = server.run("translate", MODEL, "a.html", "--attributes", cwd=tmp_path)
    assert done.stdout == page.format("pt", "O gato dorme.", "O menino viu o cachorro."), done.stderr
    done = server.run("translate", MODEL, "a.html", cwd=tmp_path)
    assert done.stdout == page.format("pt", "The cat sleeps.", "O menino viu o cachorro.")
    (tmp_path / "a.po").write_text('msgid ""\nmsgstr "Language: \\n"\n\nmsgid "The cat sleeps."\nmsgstr ""\n')
    done = server.run("translate", MODEL, "a.po", "--mark-fuzzy", cwd=tmp_path)
    assert done.stdout.endswith('"Language: pt\\n"\n\n#, fuzzy\nmsgid "The cat sleeps."\nmsgstr "O gato dorme."\n')
    (tmp_path / "b.srt").write_text(SRT.replace("\r\nhigh", "\r\n\r\nhigh"), newline="")
    done = server.run("translate", MODEL, "b.srt", cwd=tmp_path)
    assert "b.srt:5: 1 text stands behind a blank line, without times" in done.stderr
    (tmp_path / "b.html").write_text("<p>1</p>")
    done = server.run("translate", MODEL, "b.html", cwd=tmp_path)
    said = "warning: b.html: no text to translate was found in it\n"
    assert (done.status, done.stdout, done.stderr) == (0, "<p>1</p>", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("a.srt --attributes", "a.srt: `attributes` is for documents that end in .html"),
        ("a.txt --mark-fuzzy", "--mark-fuzzy is for documents (.po)"),
        ("a.srt --json", "--json has no effect on a document: --lines reads a.srt as plain lines"),
        ("a.srt --stream", "--stream has no effect on a document"),
        ("a.srt --out b.txt", "--out must end in .srt: got 'b.txt'"),
        ("a.srt --out none/b.srt", "--out none/b.srt cannot be written: there is no folder none"),
        ("a.txt --out b.txt", f"--out is for documents ({KINDS}): lines go"),
        ("a.srt --reading encoding=latin-1", "--reading has no effect on a document"),
        ("bad.srt", "bad.srt:2: a subtitle must have a line of times"),
        ("none.po", "none.po: no such file"),
        ("a.srt --cluster local --out b", "--cluster has no effect on a document: --lines reads a.srt as plain lines"),
    ],
)
def test_wrong_documents_are_refused_first(server: ForkServer, tmp_path: Path, arguments: str, said: str) -> None:
    """Before a model is read."""
    (tmp_path / "a.srt").write_text(SRT)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "bad.srt").write_text("1\nThe cat sleeps.\n")
    refused(server.run("translate", "no-such-model", *arguments.split(), cwd=tmp_path), said)


def test_a_column_of_a_table_is_translated(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufeffid,en\r\n1,The cat sleeps.\r\n2,\r\n3,"The\nboy saw the dog."\r\n'.encode())
    done = server.run("translate", MODEL, "a.csv", "--columns", "en", cwd=tmp_path)
    assert (done.status, done.stdout, done.stderr) == (0, "O gato dorme.\n\nO menino viu o cachorro.\n", "")
    (tmp_path / "b.txt").write_bytes("The café.\r\n".encode("windows-1252"))
    done = server.run("translate", MODEL, "b.txt", "--reading", "encoding=windows-1252", cwd=tmp_path)
    assert (done.status, len(done.stdout.splitlines()), done.stderr) == (0, 1, "")
    done = server.run("translate", MODEL, "b.txt", cwd=tmp_path)
    assert done.status == 0 and 'b.txt: read with `encoding: "windows-1252"`' in done.stderr
    refused(server.run("translate", MODEL, "a.srt", "--columns", "en", cwd=tmp_path), "--columns is for .tsv, .csv")
