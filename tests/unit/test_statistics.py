"""`data stats`: percentiles as they are defined, suspicious pairs planted and found, columns and headers seen."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.records.reader import SOURCE_AND_TARGET, TEXT, read_records, records_in_memory
from atento.data.records.values import Span
from atento_cli.commands.print_statistics import measured
from atento_cli.corpus import corpus_statistics as corpus
from atento_world import write
from failing import fails


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    found = corpus.percentiles(values)
    ordered = sorted(values)
    assert (found["min"], found["max"]) == (ordered[0], ordered[-1])
    for part in corpus.PERCENTILES:
        assert found[f"p{part}"] == ordered[max(0, math.ceil(part * len(values) / 100) - 1)]
    assert corpus.percentiles([]) == {}


def test_planted_pairs_are_found_and_good_ones_are_not(tmp_path: Path) -> None:
    pairs = list(dict.fromkeys((pair.source, pair.target) for pair in write("train", 300)))
    count = len(pairs)
    planted = [
        ("Untranslated sentence.", "Untranslated sentence."),
        pairs[7],
        ("A very long sentence that says a great many things and goes on and on for ever.", "Sim."),
        ("", "nada"),
        ("42", "42"),
        ("No", "Não"),
    ]
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    (tmp_path / "b.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in planted), encoding="utf-8")
    files = [SourceConfig(file=name, source=0, target=1) for name in ("a.tsv", "b.tsv")]
    parts = [read_records(file, SOURCE_AND_TARGET, tmp_path) for file in files]
    assert corpus.suspicious(parts) == {
        "repeated": {"count": 1, "first": ["b.tsv:2"]},
        "equal": {"count": 1, "first": ["b.tsv:1"]},
        "ratio": {"count": 1, "first": ["b.tsv:3"]},
        "empty": {"count": 1, "first": []},
    }
    found = corpus.lengths(parts, ("source", "target"))
    every = pairs + [pair for pair in planted if all(pair)]
    assert found["source"]["words"]["total"] == sum(len(source.split()) for source, _ in every)
    assert found["target"]["characters"]["max"] == max(len(target) for _, target in every)
    assert found["source"]["longest"] == "b.tsv:3" and corpus.ratios(parts)[count + 2] == pytest.approx(
        4 / len(planted[2][0])
    )


def test_texts_long_records_optional_fields_columns_and_headers_are_seen(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("um\ndois três\n\num\n", encoding="utf-8")
    parts = [read_records(SourceConfig(file="t.txt"), TEXT, tmp_path)]
    assert corpus.suspicious(parts) == {"repeated": {"count": 1, "first": ["t.txt:4"]}}
    assert corpus.lengths(parts, ("text",))["text"]["longest"] == "t.txt:2"
    assert corpus.over({"source": [9, 10, 3, 3], "target": [1, 1, 9, 12]}, 10, 1) == {"max_len": 10, "records": 2}
    assert corpus.over({"text": [8, 9]}, 10, 2) == {"max_len": 10, "records": 1}
    (tmp_path / "triples.tsv").write_text("a b\tc\te\ng h\ti\tk l\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("m n\to p\n", encoding="utf-8")
    triples = {"file": str(tmp_path / "triples.tsv"), "text": 0, "pair": 1, "negative": 2}
    pairs = {"file": str(tmp_path / "pairs.tsv"), "text": 0, "pair": 1}

    def stats(**data: object) -> list[dict[str, Any]]:
        recipe = {"task": "embedding", "data": data, "tokenizer": {"kind": "word", "vocab_size": 50}}
        return measured(load_recipe(recipe, environment={}), tokens=True)

    train, valid = stats(train=[triples], valid=[pairs])
    assert (train["negative_words"], valid["pair_words"]) == (3, 2) and "negative_words" not in valid
    fails(DataError, r"pairs\.tsv has no `negative`, and .*triples\.tsv has", stats, train=[triples, pairs])
    (tmp_path / "a.tsv").write_text("id\ten\tpt\n1\tcat\tgato\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text('"1","cat, black","gato"\n', encoding="utf-8")
    (tmp_path / "c.jsonl").write_text(json.dumps({"en": "cat", "pt": "gato"}) + "\n", encoding="utf-8")
    (tmp_path / "d.json").write_text(json.dumps([{"x": {"en": "cat"}, "pt": "gato"}]), encoding="utf-8")
    (tmp_path / "e.jsonl").write_text("not json\n", encoding="utf-8")
    (tmp_path / "t.en").write_text("cat\n", encoding="utf-8")
    sources = [
        SourceConfig(file="a.tsv", source="en", target="pt"),
        SourceConfig(file="b.csv", source=1, target=2),
        SourceConfig(file="c.jsonl", source="en", target="pt"),
        SourceConfig(file="d.json", source="x.en", target="pt"),
        SourceConfig(file="e.jsonl", source="en", target="pt"),
        SourceConfig(source="t.en", target="t.en"),
        SourceConfig(world="train"),
    ]
    found = [(one["columns"], one["used"], one["header"]) for one in corpus.columns_seen(sources, tmp_path)]
    assert found == [
        (["id", "en", "pt"], ["en", "pt"], True),
        (["1", "cat, black", "gato"], [1, 2], False),
        (["en", "pt"], ["en", "pt"], True),
        (["x", "pt"], ["x.en", "pt"], True),
        ([], ["en", "pt"], True),
    ]


def test_labels_entities_answers_and_scores_are_counted(tmp_path: Path) -> None:
    tagging = (Field("tokens", "words"), Field("tags", "tags"))
    tagged = records_in_memory([(["a", "b", "c"], ["B-X", "I-X", "B-Y"]), (["d"], ["O"])], tagging, "data")
    counts = corpus.labels_of([tagged], tagging)
    assert counts["labels"] == {"B-X": 1, "B-Y": 1, "I-X": 1, "O": 1}
    assert (counts["scheme"], counts["entities"]) == ("IOB2", {"X": 1, "Y": 1})
    assert corpus.labels_of([records_in_memory([(["a"], ["NOUN"])], tagging, "data")], tagging) == {
        "labels": {"NOUN": 1}
    }
    several = (Field("text"), Field("label", "classes"))
    labelled = records_in_memory([("a", ["x", "y"]), ("b", ["y"]), ("c", [])], several, "data")
    assert corpus.labels_of([labelled, labelled], several) == {"labels": {"x": 2, "y": 4}}
    answering = (Field("question"), Field("context"), Field("answers", "spans"))
    asked = records_in_memory([("?", "ab", [Span("a", 0)]), ("?", "ab", [])], answering, "data")
    assert corpus.labels_of([asked], answering) == {"unanswerable": 1}
    regression = (Field("text"), Field("pair", optional=True), Field("score", "number"))
    scored = records_in_memory([("a", float(score)) for score in (0, 1, 1, 5)], regression, "data")
    scores = corpus.labels_of([scored], regression)["scores"]
    assert (scores["mean"], scores["min"], scores["p50"], scores["max"]) == (1.75, 0, 1, 5)
    assert [count for _, _, count in scores["histogram"]] == [1, 0, 2, 0, 0, 0, 0, 0, 0, 1]
    assert scores["histogram"][0][0] == 0 and scores["histogram"][-1][1] == 5
    alike = records_in_memory([("a", 2.0)], regression, "data")
    assert sum(count for _, _, count in corpus.labels_of([alike], regression)["scores"]["histogram"]) == 1
