"""Data looked at: `data stats` in memory and in a store, labels that seem wrong, columns and headers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError
from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.records.reader import SOURCE_AND_TARGET, TEXT, read_records, records_in_memory
from atento.data.records.values import Span
from atento.metrics.confident_learning import confident_joint, label_issue_count, ranked_label_issues
from atento_cli.commands.print_statistics import measured, text_lines
from atento_cli.corpus import corpus_statistics as corpus
from atento_cli.labels.next_labels import spread
from atento_world import write
from benchmarks import data as bench_data
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


WORDS = ["o", "gato", "pulou", "alto", "a", "casa", "azul", "verde", "não", "é", "de", "que", "um", "céu", "mar", "sol"]


def recipe(folder: Path, store: str) -> LoadedRecipe:
    random = np.random.default_rng(2)
    lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    long = max(lines, key=len)
    (folder / "valid.txt").write_text(f"{lines[7]}\nverde {long} azul\nnada\n", encoding="utf-8")
    data: dict[str, Any] = {"train": "text.txt", "valid": "valid.txt", "max_len": 24, "folder": str(folder)}
    data |= {"store": store, "store_folder": str(folder / "store")}
    tokenizer = {"kind": "bpe", "vocab_size": 320}
    return load_recipe({"task": "language-modeling", "data": data, "tokenizer": tokenizer, "name": "tiny"})


def test_a_store_has_the_statistics_of_its_texts(tmp_path: Path) -> None:
    stored, plain = (measured(recipe(tmp_path, store), tokens=True) for store in ("disk", "memory"))
    assert stored[0]["texts"] == plain[0]["texts"] == 300
    assert stored[0]["text_characters"] == plain[0]["text_characters"]
    assert stored[0]["lengths"]["text"]["tokens"] == plain[0]["lengths"]["text"]["tokens"]
    assert stored[0]["over_max_len"] == plain[0]["over_max_len"] and stored[0]["over_max_len"]["records"] > 0
    assert stored[1]["also_in_train"] == plain[1]["also_in_train"] == 1
    assert stored[1]["shared_runs"]["tokens"] == 13 and stored[1]["shared_runs"]["texts"] >= 1
    lines = [line for record in stored for line in text_lines(record)]
    assert lines[0] == "train: 300 texts" and "  also in the training data: 1" in lines
    assert any(line.startswith("  with 13 tokens in a row of a training text: ") for line in lines)


def test_the_measurement_of_data_gives_a_rate_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_data, "_WORDS", 300)
    monkeypatch.setattr(bench_data, "_UPDATES", 1)
    whole = bench_data._recipe

    def small(folder: Path) -> LoadedRecipe:
        loaded = whole(folder)
        raw = {"train": "text.txt", "folder": str(folder), "store": "disk", "store_folder": str(folder / "store")}
        keys: dict[str, Any] = {"task": loaded.recipe.task, "data": raw | {"pack": "isolated"}}
        keys["tokenizer"] = {"path": str(folder / "pieces"), "kind": "bpe", "vocab_size": 500}
        keys["network"] = {"architecture": "decoder", "d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1}
        return load_recipe(keys | {"training": {"batch_tokens": 512}})

    monkeypatch.setattr(bench_data, "_recipe", small)
    rates = [row for row in bench_data.measure_data(0.1) if "part" in row]
    assert [row["part"] for row in rates][:3] == ["reading", "training the tokenizer", "normalizing, one thread"]
    assert all(value > 0 for row in rates for key, value in row.items() if key != "part")
    assert rates[-1]["percent"] < 100


def test_the_joint_by_hand() -> None:
    """Thresholds: (0.9 + 0.7 + 0.2) / 3 = 0.6 and (0.9 + 0.6 + 0.3) / 3 = 0.6; of label 2, which nobody has, none."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    first = np.array([0.9, 0.7, 0.2, 0.1, 0.35, 0.65])
    second = np.array([0.1, 0.25, 0.7, 0.9, 0.6, 0.3])
    probabilities = np.stack([first, second, 1 - first - second], axis=1)
    assert confident_joint(labels, probabilities).tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert label_issue_count(labels, probabilities) == 2  # a third of three records, twice
    assert ranked_label_issues(labels, probabilities).tolist() == [2, 5]
    assert ranked_label_issues(labels, probabilities, 4).tolist() == [2, 5, 4, 1]


# given labels, and the probabilities of the first two of three labels; drawn at random
GIVEN = [0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 2, 2, 2]
FIRST = [0.755, 0.718, 0.598, 0.965, 0.267, 0.48, 0.78, 0.903, 0.078, 0.184, 0.028, 0.194]
FIRST += [0.093, 0.01, 0.011, 0.116, 0.034, 0.058, 0.019, 0.06, 0.286, 0.091, 0.074, 0.06]
SECOND = [0.057, 0.213, 0.063, 0.029, 0.603, 0.398, 0.123, 0.062, 0.914, 0.614, 0.863, 0.631]
SECOND += [0.513, 0.915, 0.961, 0.871, 0.033, 0.476, 0.011, 0.463, 0.285, 0.436, 0.059, 0.076]


def test_joint_number_and_order_are_those_of_cleanlab_also_without_confidence() -> None:
    """Computed once by cleanlab 2.9.0: joint, number of issues (off-diagonal, calibrated), order by self-confidence."""
    labels, first, second = np.array(GIVEN), np.array(FIRST), np.array(SECOND)
    probabilities = np.stack([first, second, 1 - first - second], axis=1)
    assert confident_joint(labels, probabilities).tolist() == [[4, 0, 0], [1, 5, 0], [0, 0, 4]]
    assert label_issue_count(labels, probabilities) == 1
    order = [3, 9, 4, 20, 17, 21, 19, 5, 12, 2, 11, 1, 0, 6, 10, 23, 22, 15, 7, 8, 13, 16, 14, 18]
    assert ranked_label_issues(labels, probabilities, len(labels)).tolist() == order
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.5, 0.5], [0.45, 0.55], [0.9, 0.1], [0.5, 0.5]])
    # thresholds 0.475 and 0.3: row 0 is confident of both equally, the first counts; row 2 of the first alone
    assert confident_joint(labels, probabilities).tolist() == [[1, 1], [2, 0]]
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.95, 0.05], [0.1, 0.2]])
    probabilities[3] = [0.9, 0.1]
    assert label_issue_count(labels, probabilities) < 4


def test_points_far_apart_come_first_and_their_distance_is_that_of_outer_products() -> None:
    draw = np.random.default_rng(1)
    residuals, vectors = draw.normal(size=(30, 3)), draw.normal(size=(30, 5))
    products = np.einsum("nc,nd->ncd", residuals, vectors).reshape(30, -1)
    chosen = list(spread(residuals, vectors, 40))
    assert sorted(row for row, _ in chosen) == list(range(30))
    for number, (row, distance) in enumerate(chosen):
        before = np.concatenate([np.zeros((1, 15)), products[[row for row, _ in chosen[:number]]]])
        nearest = np.linalg.norm(products[:, None] - before[None], axis=2).min(axis=1)
        nearest[[row for row, _ in chosen[:number]]] = -1
        assert distance == pytest.approx(nearest.max()) and nearest[row] == pytest.approx(nearest.max())
