"""Translation memories (.tmx), .xlf and .po, and columns of tables as lines: languages, codes, and every bad input."""

# ruff: noqa: E501 (files are read line by line)

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from atento.base.errors import DataError, RecipeError, UsageError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import endings_for
from atento.config.tables.tasks import TASKS
from atento.data.files import translation_units
from atento.data.files.text_sources import texts_of
from atento.data.records.reader import SOURCE_AND_TARGET, Records, read_records
from atento_cli.cluster_option import _FLAGS, with_cluster
from atento_cli.corpus.corpus_statistics import columns_seen
from atento_cli.lines import LineOptions
from atento_cli.table_columns import table_rows
from failing import fails

HEAD = '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>\n'
CODES = (
    'The <bpt i="1">&lt;b x="<sub>not this</sub>"&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept> <hi>sleeps</hi> &amp;  '
    "<ph>{0}</ph>é<it pos='end'>x</it><ut>y</ut>."
)


def unit(*texts: tuple[str, str], key: str = "xml:lang") -> str:
    said = "".join(f'<tuv {key}="{language}"><note>n</note><seg>{text}</seg></tuv>' for language, text in texts)
    return f"<tu><prop type='x'>p</prop>{said}</tu>\n"


def memory(*units: str) -> str:
    return HEAD + "".join(units) + "</body></tmx>"


def read(folder: Path, content, source="en", target="pt", file="m.tmx", bad=False) -> Records:
    raw = content.encode() if isinstance(content, str) else content
    (folder / file).write_bytes(gzip.compress(raw) if file.endswith(".gz") else raw)
    return read_records(SourceConfig(file=file, source=source, target=target), SOURCE_AND_TARGET, folder, skip_bad=bad)


def refused(folder: Path, content: str | bytes, source: str = "en", target: str = "pt") -> str:
    with pytest.raises(DataError) as error:
        read(folder, content, source, target)
    return str(error.value)


GOOD = memory(
    unit(("EN", CODES), ("pt-BR", "O gato\n dorme"), ("es", "El gato")),
    unit(("pt-BR", "b"), ("en", "a"), ("en", "second"), key="lang"),
    unit(("en", "alone")),
    unit(("en", ""), ("pt-BR", "c")),
)


def test_texts_without_codes_in_the_languages_named_their_variants_and_every_reader_of_tables(tmp_path: Path) -> None:
    for file in ("m.tmx", "m.tmx.gz"):
        for target in ("pt-BR", "PT-br", "pt", "pt_BR"):
            content = GOOD.replace("pt-BR", "pt_br", target == "pt-BR")  # one of the two
            records = read(tmp_path, content, "en", target, file=file)
            assert list(records) == [("The cat sleeps &  é.", "O gato\n dorme"), ("a", "b")]
            assert (records.where(0), records.where(1), records.empty) == (f"{file}:4", f"{file}:6", 2)
        one_line = memory(unit(("en", "a b"), ("pt", "b")), unit(("en", "c d"), ("pt", "d e"))).replace("\n", "")
        assert not read(tmp_path, one_line).notes  # line 1 is no header
    assert list(read(tmp_path, GOOD.replace("utf-8", "utf-16").encode("utf-16"))) == list(read(tmp_path, GOOD))
    two = memory(unit(("en", "a"), ("pt-BR", "b")), unit(("en", "c"), ("pt-PT", "d")))
    assert refused(tmp_path, two) == "m.tmx:5: 'pt' may be pt-BR, pt-PT: name one of them"
    assert list(read(tmp_path, two, target="pt-pt")) == [("c", "d")]
    assert list(read(tmp_path, memory(unit(("pt-BR", "x"), ("pt", "b"), ("en", "a"))))) == [("a", "b")]
    one = "m.tmx:4: 'pt-BR' and 'pt' are one language of the file"
    assert refused(tmp_path, memory(unit(("pt-BR", "x"), ("en", "a"))), "pt-BR") == one
    later = memory(unit(("pt-BR", "x"), ("en", "a")), unit(("pt", "y"), ("en", "b")))
    assert "'pt' may be pt-BR, pt: name" in refused(tmp_path, later)
    source = SourceConfig(file="m.tmx", source="en", target="pt")
    read(tmp_path, GOOD)
    (seen,) = columns_seen([source], tmp_path, SOURCE_AND_TARGET)
    assert seen["columns"] == ["EN", "pt-BR", "es"] and seen["used"] == ["en", "pt"]
    assert list(texts_of(SourceConfig(file="m.tmx", text="es"), tmp_path)) == ["El gato"]
    assert [text for _, text in table_rows(str(tmp_path / "m.tmx"), ["pt"], {}) if text] == ["O gato  dorme", "b", "c"]
    assert ".tmx" in endings_for(SOURCE_AND_TARGET) and ".tmx" not in endings_for(TASKS["tagging"].fields)


def test_bad_files_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = "m.tmx: no translation unit has the language 'fr'; the languages are 'EN', 'pt-BR', 'es'"
    assert refused(tmp_path, GOOD, target="fr") == known
    bomb = '<!DOCTYPE tmx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    told = refused(tmp_path, re.sub("<!DOCTYPE.*>", bomb, GOOD, count=1).replace("alone", "&b;"))
    assert told == "m.tmx:2: the entity 'a' is declared or used; entities are refused"
    assert "the entity 'nbsp' is declared or used" in refused(tmp_path, GOOD.replace("alone", "&nbsp;"))
    assert refused(tmp_path, GOOD[:-3]).startswith("m.tmx:9: not XML: ")
    deep = memory("<hi>" * 600 + "</hi>" * 600)
    assert refused(tmp_path, deep) == "m.tmx:4: has more than 500 elements inside one another"
    without = GOOD.replace(' lang="pt-BR"', "")
    assert refused(tmp_path, without).startswith("m.tmx:6: a text of the unit has no `xml:lang`")
    assert len(read(tmp_path, without, bad=True)) == 1
    first = memory(unit(("en", "a"), ("", "x"), ("pt", "b")), unit(("en", "c"), ("pt", "d")))
    assert list(read(tmp_path, first, bad=True)) == [("c", "d")]  # its languages are known all the same
    with pytest.raises(RecipeError, match="has no column numbers"):
        read_records(SourceConfig(file="m.tmx", source=0, target=1), SOURCE_AND_TARGET, tmp_path)
    monkeypatch.setattr(translation_units, "LINE_LIMIT", 1 << 17)
    long = GOOD.replace("alone", "a " * (1 << 17))
    assert refused(tmp_path, long) == "m.tmx:7: the translation unit is longer than 0 MiB"


XLIFF = (
    '<?xml version="1.0" encoding="utf-8"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
    '<file source-language="en" target-language="pt-BR" original="a"><body><group><trans-unit id="1">\n'
    '<source>The <g id="1">cat</g><x id="2"/> <ph id="3">{0}</ph>sleeps</source><target state="translated">'
    '<g id="1">O gato</g> dorme</target><alt-trans><source>no</source><target>não</target></alt-trans></trans-unit>'
    "</group>\n<trans-unit id='2'><source>new</source></trans-unit>\n"
    "<trans-unit id='3'><source>old</source><target state='needs-review-translation'>velho</target></trans-unit>\n"
    "<trans-unit id='4'><source>dog</source><target>cão</target></trans-unit></body></file></xliff>\n"
)
XLIFF_2 = (
    '<xliff:xliff xmlns:xliff="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="pt_BR">\n'
    "<xliff:file><xliff:unit><xliff:segment state='final'><xliff:source>The <xliff:pc id='1'>cat</xliff:pc>"
    "</xliff:source><xliff:target>O gato</xliff:target></xliff:segment>\n<xliff:ignorable><xliff:source> </xliff:source></xliff:ignorable>"
    "<xliff:segment state='initial'><xliff:source>a</xliff:source><xliff:target>x</xliff:target></xliff:segment>\n"
    "<xliff:segment><xliff:source>dog</xliff:source><xliff:target>cão</xliff:target></xliff:segment>\n"
    "<xliff:segment><xliff:source>b</xliff:source></xliff:segment></xliff:unit></xliff:file></xliff:xliff>\n"
)
PO = (
    'msgid ""\nmsgstr ""\n"Language: pt_BR\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n#, c-format, fuzzy\n#~ msgid "z"\n'
    '#~ msgstr "w"\n\n#: a.c:1\n#, c-format\nmsgid "The "\n"cat"\nmsgstr "O \\"gato\\""\n\n#, c-format, fuzzy\n#| msgid "x"\n'
    'msgid "old"\nmsgstr "velho"\n\nmsgid "new"\nmsgstr ""\n\n# fuzzy, says the translator\nmsgid "%d dog"\n'
    'msgid_plural "%d dogs"\nmsgstr[0] "%d cão"\nmsgstr[1] "%d cães"\n'
)


def test_files_of_translators_without_what_is_untranslated_fuzzy_without_a_language_or_wrong(tmp_path: Path) -> None:
    for file, content, pairs, lines in (
        ("x.xlf", XLIFF, [("The cat sleeps", "O gato dorme"), ("dog", "cão")], (3, 7)),
        ("x.xliff.gz", XLIFF_2, [("The cat", "O gato"), ("dog", "cão")], (2, 4)),
        ("x.po", PO, [("The cat", 'O "gato"'), ("%d dog", "%d cão"), ("%d dogs", "%d cães")], (12, 25)),
    ):
        for target in ("pt-BR", "pt_br", "pt"):
            records = read(tmp_path, content, "en", target, file=file)
            assert list(records) == pairs and [*map(records.where, (0, 1))] == [f"{file}:{line}" for line in lines]
            assert records.warnings() == [f"{file}: 2 pairs untranslated or fuzzy left out"]
        with pytest.raises(DataError, match=rf"{file}: .* has the language 'fr'; the languages are 'en', 'p"):
            read(tmp_path, content, "en", "fr", file=file)
        texts = [text for _, text in table_rows(str(tmp_path / file), ["en"], {})]
        assert len(texts) == len(pairs) + 2  # a source waits for its translation
        assert list(texts_of(SourceConfig(file=file, text="pt"), tmp_path)) == [target for _, target in pairs]
    bare = XLIFF.replace(' target-language="pt-BR"', "")
    assert len(read(tmp_path, bare, target="target", file="x.xlf")) == 2
    fails(DataError, r"has the language 'pt'; the languages are 'en', 'target'", read, tmp_path, bare, file="x.xlf")
    assert len(read(tmp_path, PO.replace('"Language: pt_BR\\n"\n', ""), target="target", file="x.po")) == 3
    said = PO.replace('"Language:', '"X-Source-Language: de\\n"\n"Language:')
    assert len(read(tmp_path, said, "de", file="x.po")) == 3
    waiting = PO[: PO.index("#: a.c")] + PO[PO.index("#, c-format, fuzzy\n#|") : PO.index("# fuzzy, says")]
    for file, content, message in (
        ("x.xlf", XLIFF.replace("<xliff", '<!DOCTYPE a [<!ENTITY a "b">]><xliff', 1), "x.xlf:2: the entity 'a' is"),
        ("x.xlf", XLIFF[:-20], r"x\.xlf:7: not XML"),
        ("x.po", PO.replace('msgid "new"', "msgid new"), r"x\.po:21: a line must begin with msgid, msgstr or #"),
        ("x.xlf", "<xliff/>", r"x\.xlf: holds no translation unit"),
        ("x.po", "", r"x\.po: holds no translation unit"),
        ("x.po", waiting, r"x\.po: holds no sentence pair \(2 untranslated or fuzzy, 0 bad\)"),
    ):
        fails(DataError, message, read, tmp_path, content, file=file)


ROWS = [("Ana, Rui", "Aña"), ("", "nada"), ('says "no".\nGoes.', "vai")]
TEXTS = ["Ana, Rui", "", 'says "no". Goes.']


def table(folder: Path, ending: str) -> str:
    file = folder / f"t{ending}"
    records = [{"id": str(number), "en": en, "pt": pt} for number, (en, pt) in enumerate(ROWS)]
    if ending == ".xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in (["id", "en", "pt"], *(list(record.values()) for record in records)):
            book.active.append(row)
        book.save(file)
    elif ending == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(records), file)
    elif ending == ".json":
        file.write_text(json.dumps(records), encoding="utf-8")
    elif ending == ".jsonl":
        file.write_text("".join(f"{json.dumps({'tr': record})}\n" for record in records), encoding="utf-8")
    elif ending == ".tsv":
        file.write_text('id\ten\tpt\n0\tAna, Rui\tAña\n1\t\tnada\n2\tsays "no". Goes.\tvai\n', encoding="utf-8")
    else:
        text = 'id;en;pt\r\n0;Ana, Rui;Aña\r\n1;;nada\r\n2;"says ""no"".\r\nGoes.";vai\r\n'
        file.write_bytes(text.encode("windows-1252"))
    return str(file)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".xlsx", ".jsonl", ".json", ".parquet"])
def test_a_column_of_any_table_is_a_line_for_each_row(tmp_path: Path, ending: str) -> None:
    column = "tr.en" if ending == ".jsonl" else "en"
    reading = {"delimiter": ";", "encoding": "windows-1252"} if ending == ".csv" else {}
    assert [text for _, text in table_rows(table(tmp_path, ending), [column], reading)] == TEXTS


def test_columns_by_number_have_no_header_two_are_a_pair_and_options_without_effect_are_refused(tmp_path: Path) -> None:
    assert list(table_rows(table(tmp_path, ".tsv"), ["1", "2"], {}))[:2] == [(1, "en\tpt"), (2, "Ana, Rui\tAña")]
    (tmp_path / "u.csv").write_text('en\n"a\nb"\nc\n', encoding="utf-8")
    assert list(table_rows(str(tmp_path / "u.csv"), ["en"], {})) == [(2, "a b"), (4, "c")]
    (tmp_path / "t.txt").write_text("a\n", encoding="utf-8")
    fails(UsageError, r"--columns is for \.tsv, .* got .*t\.txt", list, table_rows(str(tmp_path / "t.txt"), ["a"], {}))
    with pytest.raises(DataError, match=r"column 'english' is not in the header"):
        list(table_rows(table(tmp_path, ".tsv"), ["english"], {}))
    (tmp_path / "b.csv").write_text("id,en\n1,good\n2\n3,fine\n", encoding="utf-8")
    rows = list(table_rows(str(tmp_path / "b.csv"), ["en"], {}))
    bad: list[str] = []
    assert list(LineOptions(file="b.csv", table=rows).lines(bad, None)) == ["good", "", "fine"]
    assert len(bad) == 1 and "b.csv:3: 1 column" in bad[0]
    fails(DataError, r"b\.csv:3: 1 column", LineOptions(file="b.csv", table=rows).lines, None, None)

    def check(line: str, position: str) -> None:
        raise DataError(f"{position}: bad")

    with pytest.raises(DataError, match=r"b\.csv:2: bad"):  # the header is line 1
        LineOptions(file="b.csv", table=rows[:1]).lines(None, check)
    latin = {"encoding": "latin-1"}
    for file, columns, reading in (("-", ["a"], {}), ("-", [], latin), ("t.parquet", ["a"], {"x": "y"})):
        with pytest.raises(UsageError, match=rf"--columns and --reading are for a file, .* got {file}"):
            list(table_rows(file, columns, reading))

    def command(*, file: str, cluster: object, table: object) -> None:
        raise AssertionError(table)

    run: Callable[..., None] = with_cluster(command)
    with pytest.raises(DataError, match="column '' is not in the header"):
        run(**dict.fromkeys(_FLAGS) | {"file": table(tmp_path, ".tsv"), "columns": ""})
