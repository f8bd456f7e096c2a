"""Columns of tables as lines: every format, cells with line ends, wrong tables, and what is said of a bad row."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from atento.base.errors import DataError, UsageError
from atento_cli.cluster_option import _FLAGS, with_cluster
from atento_cli.lines import LineOptions
from atento_cli.table_columns import table_rows
from failing import fails

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
