"""`atento.Index`: scores against other implementations, changes against an index made anew, and what is refused."""

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gensim.corpora import Dictionary
from gensim.models import LuceneBM25Model

import atento
from atento.base.errors import AtentoError, CapabilityError, DataError, UsageError
from atento.metrics.rouge import unicode_words
from atento.retrieval import index_folder, text_index
from atento.retrieval.index_folder import INDEX, Document, Segment, quantised, read_index
from atento.retrieval.text_index import best, bm25, cosines, fused
from atento.storage.lock import RunLock
from atento_world import write
from failing import fails

TEXTS = [pair.source for pair in write("train", 60)]


@pytest.fixture(scope="module")
def model() -> Any:
    return atento.load("micro-world-mlm")


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments and blocks of a few lines."""
    monkeypatch.setattr(text_index, "_SEGMENT", 25)
    monkeypatch.setattr(text_index, "_BLOCK", 7)


@pytest.fixture(scope="module")
def made(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_index, "_SEGMENT", 25)
        folder = tmp_path_factory.mktemp("index") / "i"
        columns = {"parity": [str(n % 2) for n in range(60)], "n=umber": [str(n) for n in range(60)]}
        atento.Index.create(TEXTS, model, folder, columns=columns)
        yield folder


def lucene(texts: list[str], query: str) -> list[float]:
    """The BM25 of each text as gensim computes Lucene's."""
    corpus = [unicode_words(text) for text in texts]
    dictionary = Dictionary(corpus)
    model = LuceneBM25Model(dictionary=dictionary, k1=1.2, b=0.75)
    scores = []
    for text in corpus:
        weights = {dictionary[word]: weight for word, weight in model[dictionary.doc2bow(text)]}
        scores.append(sum(weights.get(word, 0.0) for word in unicode_words(query)))
    return scores


def test_bm25_is_that_of_gensim_and_of_a_case_by_hand(model: Any, made: Path, tmp_path: Path) -> None:
    index = atento.Index(made, model)
    for query in ("the white cat", "dog dog sleeps", TEXTS[7], "nobody has this word"):
        _, segments = read_index(made)
        assert len(segments) == 3
        scores = np.concatenate(bm25(segments, unicode_words(query)))
        np.testing.assert_allclose(scores, lucene(TEXTS, query), rtol=1e-12, atol=1e-12)
        hits = index.find(query, by="words", top=60)
        assert [hit.score for hit in hits] == sorted((score for score in scores.tolist() if score > 0), reverse=True)
    # two lines, of 2 words and of 1: mean 1.5; n = 1 of N = 2, so idf = ln(1 + 1.5 / 1.5)
    atento.Index.create(["a b", "c"], model, tmp_path / "two")
    (hit,) = atento.Index(tmp_path / "two").find("a", by="words")
    assert hit.score == pytest.approx(np.log(2) * 1 / (1 + 1.2 * (1 - 0.75 + 0.75 * 2 / 1.5)))


def test_words_of_any_script_keep_their_accents_and_lines_without_words_are_found_by_vectors(model, tmp_path) -> None:
    texts = ["O avô dorme.", "A avó dorme.", "白い猫が寝る", "แมวนอน", "the cat", "Ελλάδα", "हिन्दी भाषा"]
    index = atento.Index.create(texts, model, tmp_path / "i")

    def lines(query: str) -> list[int]:
        return [hit.line for hit in index.find(query, by="words")]

    assert lines("avô") == [1] and lines("AVÓ") == [2] and lines("avo") == []
    assert lines("avo\u0302") == [1]  # the same letter in two pieces
    assert lines("猫") == [3] and lines("แมว") == [4] and lines("ΕΛΛΆΔΑ") == [6] and lines("भाषा") == [7]
    index = atento.Index.create(["?!"], model, tmp_path / "j", vectors="int8")
    assert index.find("a", by="words") == [] and [hit.text for hit in index.find("?", by="both")] == ["?!"]
    index.add(["a cat"])
    assert [hit.line for hit in index.find("cat", by="words")] == [1]
    assert [hit.score for hit in index.find("cat", by="words")] == pytest.approx(lucene(["?!", "a cat"], "cat")[1:])


def test_cosines_are_those_of_numpy(model: Any, tmp_path: Path) -> None:
    for vectors in ("float32", "int8"):
        index = atento.Index.create(TEXTS, model, tmp_path / vectors, vectors=vectors)
        texts, query = model.embed(TEXTS, normalize=True), model.embed("the white dog sleeps", normalize=True)
        exact = texts @ query
        hits = index.find("the white dog sleeps", top=60)
        error = 1e-6 if vectors == "float32" else np.abs(texts).max() / 254 * np.abs(query).sum()
        assert len(hits) == 60 and max(abs(hit.score - exact[hit.line - 1]) for hit in hits) <= error
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        if vectors == "float32":
            assert [hit.line for hit in hits[:5]] == (np.argsort(-exact, kind="stable")[:5] + 1).tolist()
        back, scales = quantised(texts)
        assert np.abs(back * scales[:, None] - texts).max() <= scales.max() / 2 * 1.001
        assert quantised(np.zeros((1, 3), dtype=np.float32))[0].tolist() == [[0, 0, 0]]


def test_the_product_in_blocks_is_that_of_the_whole_matrix_and_the_best_rows_those_of_a_stable_sort() -> None:
    for rows, width in ((37, 8), (2048, 33), (5000, 384)):
        vectors = np.random.default_rng(rows).normal(size=(rows, width)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for stored, scales in (quantised(vectors), (vectors, np.ones(rows, dtype=np.float32))):
            segment = Segment.__new__(Segment)
            segment.vectors, segment.scales = stored, scales
            plain = (stored * scales[:, None].astype(np.float64)) @ vectors[3]
            np.testing.assert_allclose(cosines(segment, vectors[3]), plain, atol=1e-6)
    random = np.random.default_rng(1)
    for _ in range(200):
        scores = random.integers(0, random.integers(1, 30), size=random.integers(1, 40)).astype(np.float64)
        allowed, n = random.random(len(scores)) < random.random(), int(random.integers(1, 45))
        rows, found = best(scores, allowed, n)
        wanted = [row for row in np.argsort(-scores, kind="stable").tolist() if allowed[row]][:n]
        assert rows.tolist() == wanted and found.tolist() == scores[wanted].tolist()
    joined = fused([[(7, 0.9), (3, 0.8), (5, 0.1)], [(3, 12.0), (9, 1.0)]])
    assert [line for line, _ in joined] == [3, 7, 9, 5]
    assert dict(joined) == pytest.approx({3: 1 / 62 + 1 / 61, 7: 1 / 61, 9: 1 / 62, 5: 1 / 63})


def test_both_rankings_are_cut_joined_filtered_by_columns_and_ordered_by_a_ranker(model, made, monkeypatch) -> None:
    index, query = atento.Index(made, model), "the white dog"
    vectors, words = (index.find(query, by=by, top=20) for by in ("vectors", "words"))
    rankings = [[(hit.line, hit.score) for hit in hits] for hits in (vectors, words)]
    assert [(hit.line, hit.score) for hit in index.find(query, by="both", top=4, within=20)] == fused(rankings)[:4]
    assert [hit.line for hit in index.find("?!", by="both", top=3)] == [hit.line for hit in index.find("?!", top=3)]
    for by in ("vectors", "words", "both"):
        hits = index.find("the cat", by=by, top=60, where={"parity": "1"})
        assert hits and {hit.columns["parity"] for hit in hits} == {"1"}
        assert [hit.line for hit in hits] == [
            hit.line for hit in index.find("the cat", by=by, top=60, within=60) if hit.line % 2 == 0
        ] or by == "both"  # whose ranks are those of the lines that are left
    assert {hit.line for hit in index.find("a", where={"n=umber": ["4", "5"], "parity": "1"})} == {6}
    assert index.find("a", where={"parity": "2"}) == []
    fails(UsageError, r"'party'.*'parity'", index.find, "a", where={"party": "1"})
    with torch.inference_mode():
        (hit,) = atento.Index(made, model).find("dog", top=1)
    assert type(hit.score) is float and json.dumps(hit.score)
    fails(CapabilityError, "no regression head", index.find, "a dog", rerank=model)
    asked = []

    def numbers(ranker: object, pairs: list[tuple[str, str]]) -> list[float]:
        asked.append(pairs)
        return [len(text) / 10 for _, text in pairs]

    monkeypatch.setattr(text_index, "numbers_of", numbers)
    first = index.find("a dog", top=12)
    hits = index.find("a dog", top=3, within=12, rerank=model)
    assert asked == [[], [("a dog", hit.text) for hit in first]]
    assert [hit.text for hit in hits] == sorted((hit.text for hit in first), key=len, reverse=True)[:3]
    assert [hit.score for hit in hits] == [len(hit.text) / 10 for hit in hits]


@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_lines_added_and_taken_out_give_the_index_that_is_made_anew(model: Any, tmp_path: Path, vectors: Any) -> None:
    rng, fresh = random.Random(3), iter(dict.fromkeys(pair.source for pair in write("train", 500)))

    def columns(lines: list[tuple[str, str]]) -> tuple[list[str], dict[str, list[str]]]:
        return [text for text, _ in lines], {"c": [c for _, c in lines]}

    def drawn(count: int) -> list[tuple[str, str]]:
        return [(next(fresh), str(rng.randint(0, 2))) for _ in range(count)]

    held = drawn(10)
    texts, values = columns(held)
    index = atento.Index.create(texts, model, tmp_path / "i", columns=values, vectors=vectors)
    for turn in range(12):
        if rng.random() < 0.6:
            new = drawn(rng.choice([1, 1, 2, 30]))
            texts, values = columns(new)
            held += new
            assert index.add(texts, columns=values) == len(new)
        else:
            gone = {rng.choice(held)[0] for _ in range(rng.choice([1, 4, 9]))}
            where = rng.choice([None, {"c": "1"}])
            kept = [(text, c) for text, c in held if text not in gone or (where and c != "1")]
            assert index.remove(sorted(gone), where=where) == len(held) - len(kept)
            held = kept
        texts, values = columns(held)
        anew = atento.Index.create(texts, model, tmp_path / f"{turn}", columns=values, vectors=vectors)
        assert len(index) == len(anew) == len(held)
        for opened in (index, atento.Index(tmp_path / "i", model)):
            for by in ("vectors", "words", "both"):
                options: Any = {"by": by, "top": 200, "where": rng.choice([None, {"c": ["0", "2"]}])}
                ours, theirs = (
                    {(hit.text, hit.columns["c"]): hit.score for hit in one.find("the white dog", **options)}
                    for one in (opened, anew)
                )
                close = 1e-5 if by == "vectors" and vectors == "float32" else 1e-12 if by == "words" else 2e-3
                assert ours == pytest.approx(theirs, abs=close)
    files = {path.name for path in (tmp_path / "i").iterdir()}
    assert files == {".lock", INDEX, *(entry.name for entry in read_index(tmp_path / "i")[0].segments)}


def test_many_small_additions_documents_and_lists_of_queries(model: Any, tmp_path: Path) -> None:
    index = atento.Index.create(TEXTS[:1], model, tmp_path / "i")
    for text in TEXTS[1:24]:
        index.add([text])
    assert len(index) == 24 and len(read_index(tmp_path / "i")[0].segments) <= 5
    assert [hit.text for hit in index.find(TEXTS[20], top=1)] == [TEXTS[20]]
    assert index.remove(TEXTS) == 24 and len(index) == 0 and index.find("cat") == []
    assert read_index(tmp_path / "i")[0].segments == () and index.find("cat", by="both") == []
    assert index.add(["a cat", " ", "a dog"]) == 2 and index.find("dog", by="words")[0].line == 3
    assert index.add([]) == 0 and index.remove([]) == 0 and len(index) == 2
    lines = [Document(text, 10 * n, "a.txt", {"k": "v"}) for n, text in enumerate(TEXTS[:5], 1)]
    index = atento.Index.create(lines, model, tmp_path / "j")
    shown = [(hit.line, hit.source, hit.columns) for (hit,) in index.find([TEXTS[0], TEXTS[3]], top=1)]
    assert shown == [(line, "a.txt", {"k": "v"}) for line in (10, 40)]
    assert index.find([]) == []
    fails(UsageError, "the columns of the index, k: got none", index.add, ["a text"])
    for given, columns in (([lines[0], "a text"], None), (lines, {"k": ["v"] * 5})):
        fails(UsageError, "or `Document`s alone", index.add, given, columns=columns)
    assert len(atento.Index(tmp_path / "j")) == 5


def test_wrong_searches_and_corpora(model: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for query, options, rule in (
        ("", {}, "query is empty"),
        (" \t", {"by": "words"}, "query is empty"),
        ("?!", {"by": "words"}, "no words"),
        ("a", {"top": 0}, "`top`.*at least 1: got 0"),
        ("a", {"within": 1.5}, "`within`.*got 1.5"),
        ("a", {"by": "word"}, "unknown `by` 'word'; did you mean 'words'"),
        (["a", ""], {}, "query 2 is empty"),
    ):
        fails(UsageError, rule, atento.Index(made, model).find, query, **options)
    for texts in ([], ["", "  "]):
        fails(DataError, "at least one line", atento.Index.create, texts, model, tmp_path / "i")
    fails(UsageError, "needs its 'c'", atento.Index.create, ["a", "b"], model, tmp_path / "i", columns={"c": ["x"]})
    fails(UsageError, "unknown `vectors` 'int4'", atento.Index.create, ["a"], model, tmp_path / "i", vectors="int4")
    assert not (tmp_path / "i").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    fails(UsageError, r"other files \(notes.txt\)", atento.Index.create, ["a"], model, tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["notes.txt"]
    unsaved = atento.Model(model.network, model.tokenizer, dict(model.config), None)
    fails(UsageError, "`save` it", atento.Index.create, ["a"], unsaved, tmp_path / "i")
    nan = lambda model, texts, query=False: np.full((len(texts), 4), np.nan, np.float32)  # noqa: E731
    monkeypatch.setattr(text_index, "search_vectors", nan)
    fails(AtentoError, "not finite, from line 1", atento.Index.create, ["a"], model, tmp_path / "i")
    assert not (tmp_path / "i" / INDEX).exists()


def test_another_model_and_another_process_are_refused(model: Any, made: Path, tmp_path: Path) -> None:
    other = atento.load("micro-world-tense")
    fails(UsageError, r"another model: micro-world-mlm .* and micro-world-tense has", atento.Index, made, other)
    model.save(tmp_path / "copy")
    atento.Index.create(["a", "b"], tmp_path / "copy", tmp_path / "i")
    shutil.rmtree(tmp_path / "copy")
    assert atento.Index(tmp_path / "i").find("a", by="words")  # words need no model
    fails(UsageError, "no model at", atento.Index(tmp_path / "i").find, "a")
    atento.load("micro-world-tense").save(tmp_path / "copy")
    fails(UsageError, "another model", atento.Index(tmp_path / "i").find, "a")
    with RunLock(made, "index"), pytest.raises(UsageError, match="is in use by process"):
        atento.Index(made, model).add(["a"], columns={"parity": ["1"], "n=umber": ["1"]})


def altered(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_what_is_damaged_or_half_written_is_named(made: Path, model: Any, tmp_path: Path) -> None:
    fails(UsageError, "does not exist; `atento index CORPUS MODEL --out", atento.Index, tmp_path / "none")
    fails(UsageError, r"has no index\.json", atento.Index, tmp_path)
    segment = sorted(path.name for path in made.glob("segment-*"))[1]
    for change, rule in (
        (lambda folder: altered(folder / segment, -5), f"{segment} is not what"),
        (lambda folder: altered(folder / segment, 30), f"{segment} is not what"),
        (lambda folder: (folder / segment).write_bytes((folder / segment).read_bytes()[:-9]), segment),
        (lambda folder: (folder / segment).unlink(), f"{segment} is missing"),
        (lambda folder: altered(folder / INDEX, 40), "index.json"),
        (lambda folder: (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:100]), "index.json cannot be read"),
        (lambda folder: (folder / INDEX).write_text("[]"), "index.json cannot be read"),
        (lambda folder: (folder / INDEX).unlink(), "half written: index.json is missing"),
    ):
        shutil.copytree(made, tmp_path / "i")
        change(tmp_path / "i")
        fails(DataError, rule, atento.Index, tmp_path / "i")
        shutil.rmtree(tmp_path / "i")
    shutil.copytree(made, tmp_path / "i")
    (tmp_path / "i" / INDEX).unlink()  # the same command makes it anew
    assert len(atento.Index.create(["a cat"], model, tmp_path / "i")) == 1


def test_an_index_whose_own_hash_is_right_is_still_checked(made: Path, tmp_path: Path) -> None:
    """A file that someone wrote on purpose: shapes, rows and names."""
    state, _ = read_index(made)
    for changes, rule in (
        ({"width": 7}, "has not 25 lines of 7 numbers"),
        ({"removed": (25,)}, "no segment"),
        ({"rows": 24}, "has not 24 lines"),
        ({"name": "../x"}, "index.json was altered"),
    ):
        shutil.copytree(made, tmp_path / "i")
        entry = {key: value for key, value in changes.items() if key != "width"}
        first = index_folder.SegmentEntry(**vars(state.segments[0]) | entry)
        new = index_folder.State(**vars(state) | {"segments": (first,), "width": changes.get("width", state.width)})
        (tmp_path / "i" / INDEX).write_bytes(index_folder._rendered(new))
        fails(DataError, rule, atento.Index, tmp_path / "i")
        shutil.rmtree(tmp_path / "i")


def test_prompts_of_queries_and_documents_are_used(model, tmp_path, made, monkeypatch) -> None:
    model.save(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config["embedding"] = {"prompts": {"query": "the dog ", "passage": "the cat "}}
    path.write_text(json.dumps(config))
    (tmp_path / "m" / "MANIFEST.json").unlink(missing_ok=True)
    index = atento.Index.create(TEXTS[:9], atento.load(tmp_path / "m"), tmp_path / "i")
    texts = model.embed([f"the cat {text}" for text in TEXTS[:9]], normalize=True)
    query = model.embed("the dog sleeps", normalize=True)
    (hit,) = index.find("sleeps", top=1)
    assert hit.score == pytest.approx(float((texts @ query).max()), abs=1e-5)
    monkeypatch.setattr(sys.modules["atento.retrieval.text_index"], "load", None)
    assert atento.Index(made).find(TEXTS[0], by="words")
