"""The micro-world's translator: documents that stay documents, terms kept, spans protected, what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.base.errors import DataError, UsageError
from atento.tasks import attention_records
from atento.tasks.word_links import word_links
from atento_world import write
from conftest import ForkServer, refused

MODEL = "micro-world-en-pt"
SRT = (
    "1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>The cat jumped</i>\r\nhigh.\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000\r\n- The boy saw the dog.\r\n- The cat sleeps.\r\n"
)
KINDS = ".srt, .vtt, .html, .htm, .xhtml, .md, .markdown, .po, .docx"


def test_documents_stay_documents(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_bytes(SRT.encode())
    (tmp_path / "a.md").write_text("# The big cat\n\nThe girl sees **the cat**\nin the [garden](x.md).\n")
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


LINES = ["the cat jumped high", "", "the dog sees the big cat", "the boy saw the dog."]


@pytest.fixture(scope="module")
def model() -> atento.Model:
    return atento.load(MODEL, device="cpu")


def test_words_are_linked_with_those_that_they_come_from(model: atento.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = "the girl sees the big cat", "A menina vê o gato grande"
    links = word_links(model, source, output)
    pairs = [(output[one.start : one.end], source[one.source_start : one.source_end]) for one in links]
    words = [pair for pair in pairs if pair[0].lower() not in ("o", "a")]  # an article reads its noun and its verb too
    assert words == [("menina", "girl"), ("vê", "sees"), ("gato", "cat"), ("grande", "big")]
    assert word_links(model, "", "x") == word_links(model, "the cat", "") == []
    monkeypatch.setattr(attention_records, "_MOST", 10)
    found = word_links(model, "the cat jumped", "O gato pulou")
    assert [(one.start, one.source_start) for one in found] == [(0, 0), (2, 4), (7, 8)]


def test_terms_stand_in_the_place_of_the_usual_word(model: atento.Model) -> None:
    glossary = {"cat": ["bichano"], "dog": ["cachorro", "cachorros"], "girl": ["guria"]}
    plain = model.translate(LINES)
    kept = model.translate(LINES, glossary=glossary)
    assert plain[0] == "O gato pulou alto"
    assert kept == ["O bichano pulou alto", "", plain[2].replace("gato", "bichano"), plain[3]]
    assert model.translate(LINES[0], glossary=glossary, greedy=True) == kept[0]
    lines = [pair.source for pair in write("train", 16, 9)]
    terms: dict[str, Any] = {"cat": "bichano", "dog": "cachorro", "teacher": ["mestre", "mestra"], "big": "imenso"}
    terms |= {"zzz": "x", "of": "X", "taxi": "bonde", "friend": "colega", "singer": "cantora"}
    for options in ({"beam": 3}, {"greedy": True}):  # texts that are searched side by side, and each alone
        alone = [model.translate(line, glossary=terms, **options) for line in lines]
        assert model.translate(lines, glossary=terms, **options) == alone != model.translate(lines, **options)
        assert not any(line.endswith(". X.") for line in alone)  # the model would only add it, at the end
    with pytest.raises(UsageError, match="`glossary` and `n_best` exclude each other"):
        model.translate(LINES[0], glossary=glossary, n_best=2)


def test_spans_stay(model: atento.Model) -> None:
    text = 'The girl sees <b>the big cat</b> 😀 in the garden of {{name}}, <a href="x?y=1">here</a>: '
    text += "https://a.b/c?d=1 (%1$s, 12:30)."
    plain, kept = model.translate([text, "12:30 — 😀"], protect=True)
    for span in ("<b>", "</b>", "😀", "{{name}}", '<a href="x?y=1">', "</a>", "https://a.b/c?d=1", "%1$s", "12:30"):
        assert plain.count(span) == 1, plain
    assert kept == "12:30 — 😀"
    bold = model.translate("The girl sees <b>the big cat</b>.", protect=True)
    assert bold.replace("o <b>gato", "<b>o gato") == "A menina vê <b>o gato grande</b>."
    assert model.translate(LINES, protect=True) == model.translate(LINES)  # nothing to keep: nothing changes


def test_the_command_reports_terms(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "terms.tsv").write_text("cat\tbichano\ndog\tcachorro\tcachorros\n")
    arguments = ["translate", MODEL, "in.txt", "--glossary", "terms.tsv"]
    done = server.good(*arguments, "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["terms"] for row in rows] == [{"cat": True}, {}, {"dog": True, "cat": True}, {"dog": True}]
    assert "terms of the glossary: 4 met, 4 kept" in done.stderr
    refused(server.run(*arguments, "--stream", cwd=tmp_path), "--glossary and --stream exclude each other")
    refused(server.run(*arguments, "--trace", "x.html", cwd=tmp_path), "--glossary and --trace exclude each other")
    (tmp_path / "terms.tsv").write_text("cat\tbichano\nCat\tgato\n")
    refused(server.run(*arguments, cwd=tmp_path), "terms.tsv:2: the term 'Cat' also stands at terms.tsv:1")


def test_a_term_that_the_vocabulary_cannot_write_is_named(model: atento.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.tokenizer.target, "encode", lambda text: [model.tokenizer.specials.ids["<unk>"]])
    with pytest.raises(DataError, match="`glossary` row 0: the model's vocabulary cannot write 'x'"):
        model.translate("the cat", glossary=[["cat", "x"]])


def test_samples_do_not_depend_on_the_other_lines_and_words_of_the_call_are_required(model: atento.Model) -> None:
    """Each line has its own numbers, in the searches that a lost span or term needs too."""
    lines = ["the cat sees 12 dogs in 1999", "the dog sees the big cat", "the %1$s cat jumped high"] * 2
    options: Any = {"sample": True, "protect": True, "glossary": {"cat": "bichano", "dogs": "cachorros"}}
    together = [rows[0].text for rows in model.translations(lines, **options)]
    alone = [model.translations([line], row=row, **options)[0][0].text for row, line in enumerate(lines)]
    assert together == alone and together[:3] != together[3:]
    own = [{"required_words": ["girafa"]}]  # as `keeping` asks for it
    ((written,),) = model._write("translate", ["the dog jumped"], None, [0], {"required_words": ["branco"]}, own)
    assert "branco" in written.text and "girafa" in written.text


def test_parts_of_a_cluster_have_one_glossary(server: ForkServer, tmp_path: Path) -> None:
    """It is known by its terms, under any name."""
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "terms.tsv").write_text("cat\tbichano\n")
    command = ["translate", MODEL, "in.txt", "--cluster", "local", "--workers", "1", "--out", "parts", "--glossary"]
    assert server.run(*command, "terms.tsv", cwd=tmp_path).status == 0
    (tmp_path / "terms.tsv").rename(tmp_path / "same.tsv")
    assert "are there already" in server.run(*command, "same.tsv", cwd=tmp_path).stderr
    (tmp_path / "same.tsv").write_text("cat\tfelino\n")
    refused(server.run(*command, "same.tsv", cwd=tmp_path), "glossary")
