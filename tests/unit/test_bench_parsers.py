"""`atento bench parsers`: each parser reads its ordinary text and its hardest one, and the seconds are of that work."""

import pytest

from benchmarks import parsers


def test_each_parser_has_a_time_for_both_texts_of_the_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "_BYTES", 2_000)
    clock = iter(range(10_000))
    monkeypatch.setattr(parsers.time, "process_time", lambda: float(next(clock)))
    head, *rows = parsers.measure_parsers(0.0)
    assert head["bench"] == "parsers"
    assert {row["parser"] for row in rows} >= {*parsers._OF_TEXT, "bpe ids", "byte offsets"}
    assert all(row["ordinary"] == row["hardest"] == 1 for row in rows)  # two looks at the clock, one run between
    looks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 24.0])
    monkeypatch.setattr(parsers.time, "process_time", lambda: next(looks))
    monotonic = iter([0.0, 0.1, 0.2, 9.0])
    monkeypatch.setattr(parsers.time, "monotonic", lambda: next(monotonic))
    texts: list[str] = []
    assert parsers._fastest(texts.append, "ab", 60.0) == 2 and texts == ["ab"] * 3
