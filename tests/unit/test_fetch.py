"""Pairs out of help pages and catalogues, on small ones that the test writes in the same shape."""

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import AtentoError, DataError, MissingPartError, UsageError
from atento.config.recipe import SourceConfig
from atento.data.records.reader import SOURCE_AND_TARGET, read_records
from atento_cli.corpus.fetch import fetch_catalogues, fetch_libreoffice, without_accelerator
from atento_cli.corpus.fetch_pages import page_pairs, paragraphs
from checkpoints import names
from failing import fails

PAGE = """<!DOCTYPE html><html><head><title>{title}</title><script>var p = "<p id='x'>no</p>";</script></head><body>
<header id="TopLeftHeader"><p dir="auto">Suite 7.4 Help</p></header>
<div id="DisplayArea"><h1 id="hd_id1" dir="auto"><a name="a"></a>{title}</h1>
{body}
</div><footer><p dir="auto">This page is: /text/{title}.xhp</p><p id="bm_module" dir="auto"></p></footer></body></html>
"""


def write_page(root: Path, language: str, name: str, title: str, body: str) -> None:
    path = root / language / "text" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PAGE.format(title=title, body=body), encoding="utf-8", newline="\n")


def test_paragraphs_lose_markup_and_keep_words_and_text_for_one_system_is_left_out() -> None:
    body = (
        '<p id="par_id1" class="paragraph" dir="auto">Choose\n  <span class="emph">File &amp; Open</span><br>now '
        '&#8212; <a href="x.html">here</a>.<!-- not this --></p><p class="related">no id</p>'
        '<p id="par_id2" class="code">x = 1</p>'
    )
    found = paragraphs(PAGE.format(title="T", body=body))
    expected = [("hd_id1", "", "T"), ("par_id1", "paragraph", "Choose File & Open now — here.")]
    expected += [("par_id2", "code", "x = 1"), ("bm_module", "", "")]
    assert [(one.id, one.kind, one.text) for one in found] == expected
    body = (
        '<p id="p">Press <span id="s1" class="switchinline"><span hidden="true" id="MACx" class="MAC"><b>Command</b>'
        '</span><span hidden="true" id="defaultx">Ctrl</span></span>+S<span class="switchinline"><span hidden="true" '
        'class="CALC"> in a cell</span></span>.</p><p id="q">open <span hidden="true" class="MAC">x<p id="r">next</p>'
    )
    assert [one.text for one in paragraphs(body)] == ["Press Ctrl+S.", "open", "next"]


def test_pages_pair_by_page_and_id(tmp_path: Path) -> None:
    english = (
        '<p id="a">Twice</p><p id="a">Two</p><p id="b">Lone</p><p id="c" class="code">Print 1</p><p id="d">Once</p>'
    )
    other = '<p id="d">Uma vez</p><p id="a">Duas vezes</p><p id="a">Dois</p><p id="c" class="code">Print 1</p>'
    write_page(tmp_path, "en-US", "sub/one.html", "Cells", english)
    write_page(tmp_path, "pt-BR", "sub/one.html", "Células", other)
    write_page(tmp_path, "en-US", "two.html", "Alone", "")
    left_out: Counter[str] = Counter()
    found = list(page_pairs(tmp_path / "en-US" / "text", tmp_path / "pt-BR" / "text", left_out))
    pairs = [("Cells", "Células"), ("Twice", "Duas vezes"), ("Two", "Dois"), ("Once", "Uma vez")]
    assert [pair for pair in found if pair[1]] == [("sub/one.html", *pair) for pair in pairs]
    assert left_out == {"without a partner": 3, "program code": 1}  # "Lone", and both of the page that stands alone


def test_libreoffice_from_an_installed_folder(tmp_path: Path) -> None:
    root, out = tmp_path / "help", tmp_path / "new" / "data"
    body = '<p id="a">{}</p><p id="b">{}</p><p id="c">12 %</p><p id="d">{}</p><p id="e">%s</p>'
    write_page(root, "en-US", "one.html", "Cells", body.format("Tab\there", "Same text", "Cells"))
    write_page(root, "pt-BR", "one.html", "Células", body.format("Guia\naqui", "Same text", "Células"))
    (fetched,) = fetch_libreoffice(["pt_br"], out, help_folder=root)
    assert (out / "pt-BR.tsv").read_bytes().decode("utf-8") == "Cells\tCélulas\nTab here\tGuia aqui\n"
    assert fetched.left_out == {"untranslated": 1, "repeated": 1, "without words": 2, "empty": 1}
    assert str(fetched).startswith(f"pt-BR: {out / 'pt-BR.tsv'} 2 pairs (left out: 1 empty, 1 repeated")
    assert len(read_records(SourceConfig(file="pt-BR.tsv", source=0, target=1), SOURCE_AND_TARGET, out)) == 2
    assert [path.name for path in out.iterdir()] == ["pt-BR.tsv"]  # nothing half-written stays


def test_held_out_files_share_no_english_sentence(tmp_path: Path) -> None:
    for number in range(40):
        words = ("Shared", "Comum") if number % 4 == 0 else (f"Line {number}", f"Linha {number}")
        for language, title, text in [("en-US", f"Page {number}", words[0]), ("es", f"Hoja {number}", words[1])]:
            body = f'<p id="a">{text}{f" {number}" if language == "es" else ""}</p>'
            write_page(tmp_path / "help", language, f"{number}.html", title, body)
    (fetched,) = fetch_libreoffice(["es"], tmp_path, help_folder=tmp_path / "help", held_out=8)
    rows = {path.name: path.read_text(encoding="utf-8").splitlines() for path in fetched.files}
    assert set(rows) == {"es.tsv", "es.valid.tsv", "es.test.tsv"}
    english = [{row.split("\t")[0] for row in lines} for lines in rows.values()]
    assert not english[0] & english[1] and not english[0] & english[2] and not english[1] & english[2]
    assert sum(map(len, rows.values())) + fetched.left_out.get("also in a held-out file", 0) == 80
    assert all(4 <= len(rows[name]) <= 9 for name in ("es.valid.tsv", "es.test.tsv"))
    again = fetch_libreoffice(["es"], tmp_path / "again", help_folder=tmp_path / "help", held_out=8)[0]
    assert [path.read_bytes() for path in again.files] == [path.read_bytes() for path in fetched.files]


def test_what_cannot_be_fetched(tmp_path: Path) -> None:
    def refused(kind: type[AtentoError], said: str, *languages: str, out: Path = tmp_path, **options: Any) -> None:
        fails(kind, said, fetch_libreoffice, languages, out, **{"help_folder": tmp_path} | options)

    for name in ("en", "en_US", "portuguese", "../pt", "pt-BR; ls", ""):
        refused(UsageError, "a language to fetch is a code such as pt-BR", name, help_folder=None)
    refused(UsageError, "name at least one language", help_folder=None)
    refused(UsageError, "`held_out` must be at least 0: got -1", "es", held_out=-1, help_folder=None)
    refused(DataError, r"holds no help pages in en-US \(en-US/text is missing\)", "es")
    (tmp_path / "en-US" / "text").mkdir(parents=True)
    (tmp_path / "es" / "text").mkdir(parents=True)
    refused(DataError, r"text: holds no help pages \(\.html\)", "es")
    write_page(tmp_path, "en-US", "one.html", "Same", "")
    write_page(tmp_path, "es", "one.html", "Same", "")
    refused(DataError, "es: no translated sentence was found", "es")
    write_page(tmp_path, "es", "one.html", "Otro", "")
    refused(UsageError, "must leave at least half of the 1 pairs: got 1", "es", held_out=1)
    (tmp_path / "blocked").write_text("", encoding="utf-8")
    refused(AtentoError, r"blocked/es\.tsv: cannot be written: ", "es", out=tmp_path / "blocked")
    (tmp_path / "es" / "text" / "one.html").write_bytes(b"<h1 id='hd_id1'>\xe1</h1>")
    refused(DataError, r"one\.html: not UTF-8: byte 0xe1 at byte 16", "es")


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_missing_tools_and_refused_downloads_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    unknown = 'echo "W: noise" >&2; echo "E: Unable to locate package $3" >&2; exit 100'
    packages = "libreoffice-help-en-us, libreoffice-help-es"
    for name, script, kind, said in (
        ("", "", MissingPartError, r"needs apt-get and dpkg-deb .* apt-get is not on this machine"),
        ("apt-get", unknown, MissingPartError, "dpkg-deb is not on this machine"),
        (
            *("dpkg-deb", 'echo "not a Debian archive" >&2; exit 2', AtentoError),
            f"^apt-get could not download {packages}: Unable to locate package libreoffice-help-es; `apt-get update` "
            r"\(as root\) renews the package lists$",
        ),
        ("apt-get", "echo x > help.deb", AtentoError, r"dpkg-deb could not unpack help\.deb: not a Debian archive$"),
        ("dpkg-deb", "exit 0", DataError, f"the packages {packages} hold no help folder"),
        ("apt-get", "while :; do :; done", AtentoError, r"apt-get could not download .*: no end after 0\.1 seconds"),
    ):
        if name:
            program(tools, name, script)
        if "while" in script:
            monkeypatch.setattr("atento_cli.corpus.fetch._SECONDS", 0.1)
        fails(kind, said, fetch_libreoffice, ["es"], tmp_path)
    assert not list(tmp_path.glob("*.tsv"))


def catalogue(messages: dict[str, str]) -> bytes:
    """The bytes of a .mo file: header, two tables of (length, offset), then the texts, each ended by a NUL."""
    header = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n > 1);\n"
    items = sorted({"": header, **messages}.items(), key=lambda item: item[0].encode("utf-8"))
    sides = [[side[i].encode("utf-8") for side in items] for i in (0, 1)]
    tables, texts, at = b"", b"", 28 + 16 * len(items)
    for side in sides:
        for text in side:
            tables += struct.pack("<II", len(text), at + len(texts))
            texts += text + b"\0"
    return struct.pack("<7I", 0x950412DE, 0, len(items), 28, 28 + 8 * len(items), 0, 0) + tables + texts


def put_catalogue(root: Path, name: str, raw: bytes) -> None:
    folder = root / "pt_BR" / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(raw)


def test_catalogues_and_none(tmp_path: Path) -> None:
    fails(DataError, r"pt_BR/LC_MESSAGES: no .* \(\.mo\) of pt-BR", fetch_catalogues, "pt-BR", tmp_path, root=tmp_path)
    fails(UsageError, "`held_out` must be at least 0", fetch_catalogues, "pt-BR", tmp_path, root=tmp_path, held_out=-3)
    messages = {"Cannot open\n  %s": "Não foi possível abrir\n  %s", "menu\x04_Open": "_Abrir", "OK": "OK", "empty": ""}
    messages |= {"%d file\0%d files": "%d arquivo\0%d arquivos", "%s: %s\n": "%s : %s\n"}
    messages |= {"translator-credits": "Ana\nRui", "LC_ALL is unset": "LC_ALL não está definida"}
    put_catalogue(tmp_path, "b.mo", catalogue(messages))
    put_catalogue(tmp_path, "a.mo", catalogue({"Open": "Abrir", "No": "Não"}))
    put_catalogue(tmp_path, "damaged.mo", catalogue(messages)[:90])
    put_catalogue(tmp_path, "other.mo", b"not a catalogue at all, whatever its name says")
    fetched = fetch_catalogues("pt-BR", tmp_path / "out", root=tmp_path)
    rows = (tmp_path / "out" / "pt-BR.catalogues.tsv").read_text(encoding="utf-8").splitlines()
    left = ["Cannot open %s\tNão foi possível abrir %s", "LC_ALL is unset\tLC_ALL não está definida"]
    assert rows == ["No\tNão", "Open\tAbrir", *left]
    left_out = {"plurals": 2, "without words": 1, "untranslated": 1, "credits": 1, "empty": 1, "damaged catalogues": 2}
    assert fetched.left_out == left_out | {"repeated": 1}  # "_Open" of the menu
    none = tmp_path / "none"
    put_catalogue(none, "a.mo", catalogue({"OK": "OK"}))
    fails(DataError, r"pt-BR\.catalogues: no translated sentence", fetch_catalogues, "pt-BR", tmp_path, root=none)


def test_accelerators() -> None:
    for source, target, mark, expected in (
        ("_Open", "_Abrir", "_", ("Open", "Abrir")),
        ("Save _As…", "Salvar c_omo…", "_", ("Save As…", "Salvar como…")),
        ("_Open", "開く(_O)", "_", ("Open", "開く")),
        ("&Open", "Abrir (&O)", "&", ("Open", "Abrir")),
        ("Save && &Quit", "Salvar && &sair", "&", ("Save & Quit", "Salvar & sair")),
        ("LC_ALL is unset", "LC_ALL não definida", "_", ("LC_ALL is unset", "LC_ALL não definida")),
        ("AT&T line", "Linha AT&T", "&", ("AT&T line", "Linha AT&T")),
        ("__init__ failed", "falha em __init__", "_", ("__init__ failed", "falha em __init__")),
        ("a_b and c_d", "a_b e c_d", "_", ("a_b and c_d", "a_b e c_d")),
        ("_Open", "Abrir", "_", ("_Open", "Abrir")),
        ("R & D", "P & D", "&", ("R & D", "P & D")),
    ):
        assert without_accelerator(source, target, mark) == expected


def test_what_fails_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    put_catalogue(tmp_path, "a.mo", catalogue({"No": "Não"}))
    out = tmp_path / "out"
    fetch_catalogues("pt-BR", out, root=tmp_path)
    old = (out / "pt-BR.catalogues.tsv").read_bytes()
    put_catalogue(tmp_path, "a.mo", catalogue({"OK": "OK"}))
    fails(DataError, "no translated sentence", fetch_catalogues, "pt-BR", out, root=tmp_path)
    assert (out / "pt-BR.catalogues.tsv").read_bytes() == old and names(out) == ["pt-BR.catalogues.tsv"]
    put_catalogue(tmp_path, "a.mo", catalogue({"No": "Não"}))
    (tmp_path / "taken" / "pt-BR.catalogues.tsv" / "below").mkdir(parents=True)
    fails(AtentoError, r"pt-BR\.catalogues\.tsv: cannot", fetch_catalogues, "pt-BR", tmp_path / "taken", root=tmp_path)
    assert names(tmp_path / "taken") == ["pt-BR.catalogues.tsv"]
