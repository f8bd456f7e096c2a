"""A store of token ids on disk: the same ids as in memory, every text once an epoch, altered files refused."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import AtentoError, DataError, RecipeError
from atento.base.splitmix import permuted
from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento.data.store import stored_batches, token_writer
from atento.data.store.stored_batches import StoredBatches
from atento.data.store.token_store import TokenStore, equal_texts, shared_runs
from atento.data.store.token_writer import block_bounds
from atento.runs.prepare import fitted_to, network_for, training_batches
from atento.runs.run_tokenizer import tokenizer_for
from atento.runs.token_data import data_of, make_store
from atento.text.tokenizer import Tokenizer
from failing import fails

WORDS = ["o", "gato", "pulou", "alto", "a", "casa", "azul", "verde", "não", "é", "de", "que", "um", "céu", "mar", "sol"]


def text(lines: int, seed: int = 1) -> str:
    random = np.random.default_rng(seed)
    return "".join(" ".join(random.choice(WORDS, random.integers(1, 30))) + "\n" for _ in range(lines))


def recipe(folder: Path, *overrides: str, lines: int = 400, **keys: Any) -> LoadedRecipe:
    if not (folder / "text.txt").exists():
        (folder / "text.txt").write_text(text(lines), encoding="utf-8")
    base: dict[str, Any] = {
        "task": "language-modeling",
        "name": "tiny",
        "data": {"train": "text.txt", "folder": str(folder), "store": "disk", "store_folder": str(folder / "store")},
        "tokenizer": {"kind": "bpe", "vocab_size": 330},
        "network": {"preset": "transformer-tiny", "architecture": "decoder"},
        "training": {"steps": 4, "batch_tokens": 200},
    }
    return load_recipe(base | keys, list(overrides))


def silent(line: str) -> None:
    """Nobody reads what is reported."""


def make(loaded: LoadedRecipe, **options: Any) -> TokenStore:
    return make_store(loaded, silent, **{"processes": 0, "shard_tokens": 900} | options).store


def rows(store: TokenStore) -> list[list[int]]:
    return [row.tolist() for row in store.rows(range(store.n_blocks))]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".json")}


def test_the_ids_are_those_of_the_texts_in_order_whatever_the_processes(tmp_path: Path) -> None:
    store = make(recipe(tmp_path))
    lines = (tmp_path / "text.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert rows(store) == Tokenizer.load(tmp_path / "store" / "tokenizer").encode_batch(lines)
    assert len(store.records) > 3 and store.dtype.itemsize == 2 and len(store) == 400
    assert store.tokens == sum(map(len, rows(store))) and store.characters == sum(map(len, lines))
    first = make(recipe(tmp_path))
    again = make(recipe(tmp_path))  # verified, not made again
    assert again.fingerprint == first.fingerprint
    parallel = make(recipe(tmp_path, f"data.store_folder={tmp_path / 'other'}"), processes=2)
    assert parallel.fingerprint == first.fingerprint
    assert content(tmp_path / "store") == content(tmp_path / "other")


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up."""


def killed(folder: Path, at: int) -> None:
    """A command that is killed before its write number `at`, which is half done."""
    write, count = token_writer.TokenWriter._write, [0]

    def killing(self: token_writer.TokenWriter, path: Path, data: bytes) -> None:
        count[0] += 1
        if count[0] == at:
            path.with_name(f".{path.name}.partial").write_bytes(data[: len(data) // 2])
            raise Killed
        write(self, path, data)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(token_writer.TokenWriter, "_write", killing)
        make(recipe(folder))


@pytest.mark.parametrize("at", [1, 3, 4, 9, 17])
def test_a_killed_command_goes_on_to_an_equal_store(tmp_path: Path, at: int) -> None:
    undisturbed = make(recipe(tmp_path, f"data.store_folder={tmp_path / 'undisturbed'}"))
    killed(tmp_path, at)
    assert make(recipe(tmp_path)).fingerprint == undisturbed.fingerprint
    assert content(tmp_path / "store") == content(tmp_path / "undisturbed")


@pytest.mark.parametrize("part", ["ids", "starts", "blocks"])
def test_a_flipped_bit_is_refused(tmp_path: Path, part: str) -> None:
    make(recipe(tmp_path))
    path = tmp_path / "store" / f"{part}-00001.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    fails(DataError, rf"{part}-00001.bin: the store is damaged: its content was altered", make, recipe(tmp_path))
    path.write_bytes(data[:-2])
    fails(DataError, r"-00001.bin: the store is damaged", make, recipe(tmp_path))


def test_an_altered_manifest_or_text_is_refused(tmp_path: Path) -> None:
    make(recipe(tmp_path))
    path = tmp_path / "text.txt"
    before = path.read_bytes()
    path.write_bytes(before)  # another time, the same bytes
    make(recipe(tmp_path))
    path.write_bytes(before.replace(b"gato", b"pato", 1))
    with pytest.raises(DataError, match=r"store: the token store was made from something else: text.txt has changed"):
        make(recipe(tmp_path))
    assert rows(make(recipe(tmp_path), force=True)) != []
    path = make(recipe(tmp_path)).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["texts"] += 1
    path.write_text(json.dumps(manifest))
    fails(DataError, "manifest was altered", make, recipe(tmp_path))


def test_other_options_are_refused_with_the_difference(tmp_path: Path) -> None:
    for override, message in (
        ("tokenizer.vocab_size=340", "`tokenizer` was .*330.* and is now .*340"),
        ("data.train.0.count=10", "`count` of source 0 was None, and is now 10"),
        ("data.skip_bad=true", "`data.skip_bad` was False, and is now True"),
        ("data.train.0.file=more.txt", "its files were text.txt, and are now more.txt"),
    ):
        (tmp_path / "more.txt").write_text(text(20, seed=3), encoding="utf-8")
        make(recipe(tmp_path))
        fails(DataError, message, make, recipe(tmp_path, override))


def test_an_option_that_is_no_longer_stated_has_changed(tmp_path: Path) -> None:
    make(recipe(tmp_path, "data.train.0.encoding=latin-1"))
    fails(DataError, "`encoding` of source 0 was 'latin-1', and is now None", make, recipe(tmp_path))


def test_text_that_changes_while_a_store_is_half_made_is_refused(tmp_path: Path) -> None:
    killed(tmp_path, 9)
    path = tmp_path / "text.txt"
    path.write_text("céu\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    fails(DataError, "the text has changed since a part of it was tokenized", make, recipe(tmp_path))


def test_a_full_disk_says_so_and_the_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, count = token_writer.os.fsync, [0]

    def full(descriptor: int) -> None:
        count[0] += 1
        if count[0] == 7:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(token_writer.os, "fsync", full)
    fails(AtentoError, r"the disk is full .* run the same command to continue", make, recipe(tmp_path))
    assert make(recipe(tmp_path)).texts == 400


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 3))
def test_the_permutation_is_one(count: int, seed: int, epoch: int) -> None:
    order = permuted(np.arange(count), count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert permuted(np.array([count // 2]), count, seed, epoch)[0] == order[count // 2]  # each by itself


def test_the_permutation_is_uniform() -> None:
    """Where number 0 of 16 goes over 4,000 keys: chi-square with 15 degrees of freedom below its 99.9 % quantile."""
    places = Counter(int(permuted(np.array([0]), 16, seed)[0]) for seed in range(4000))
    assert sum((places[place] - 250) ** 2 / 250 for place in range(16)) < 37.7


@given(st.lists(st.integers(0, 40), max_size=50))
def test_blocks_hold_every_text_once(lengths: list[int]) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    bounds = block_bounds(starts, 30).tolist()
    assert bounds[0] == 0 and bounds[-1] == len(lengths) and bounds == sorted(set(bounds))
    for low, high in list(pairwise(bounds))[:-1]:
        assert starts[high] - starts[low] >= 30 > starts[high - 1] - starts[low]


def batches(loaded: LoadedRecipe) -> Any:
    if loaded.recipe.data.store == "disk":
        make(loaded)
    train = data_of(loaded, silent).train
    tokenizer = Tokenizer.load(loaded.home / str(loaded.recipe.data.store_folder) / "tokenizer")
    return training_batches(loaded.recipe, network_for(loaded.recipe, tokenizer, train), tokenizer, train, silent)


def targets(every: Any, update: int) -> list[int]:
    every_label = [labels for part in every.parts(update) for labels in part.batch.labels.values()]
    return [token for labels in every_label for token in labels[labels >= 0].tolist()]


@pytest.fixture
def windowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that need several windows of several blocks, without millions of tokens."""
    monkeypatch.setattr(stored_batches, "WINDOW_TOKENS", 1600)
    monkeypatch.setattr(stored_batches, "_UPDATES", 4)
    monkeypatch.setattr(token_writer, "BLOCK_TOKENS", 100)
    monkeypatch.setattr(token_writer.block_bounds, "__defaults__", (100,))


@pytest.mark.parametrize("pack", ["none", "isolated", "stream"])
def test_each_token_is_learned_once_an_epoch_from_any_update_on(tmp_path: Path, windowed: None, pack: str) -> None:
    """Rows are full but for the last of a window; a run that resumes at an update goes on as the first one did."""
    loaded = recipe(tmp_path, f"data.pack={pack}", "data.max_len=32")
    every = batches(loaded)
    assert isinstance(every, StoredBatches) and every.windows >= 3
    tokenizer = Tokenizer.load(tmp_path / "store" / "tokenizer")
    expected = Counter([token for row in rows(every.store) for token in [*row, tokenizer.eos_id]])
    count = every.updates_per_epoch
    order = [[targets(every, epoch * count + update) for update in range(count)] for epoch in (0, 1)]
    for epoch in order:
        assert Counter(token for update in epoch for token in update) == expected and all(epoch)
    assert order[0] != order[1]
    for update in (count * 2 - 1, 5, count // 2):
        assert targets(batches(loaded), update) == order[update // count][update % count]
    sizes = [len(update) for update in order[0]]
    assert max(sizes) < 2 * 200 and sum(sizes) / len(sizes) == pytest.approx(200, rel=0.15)


def test_a_small_store_is_read_in_the_order_of_memory(tmp_path: Path) -> None:
    """One window: the same updates, bit for bit, as without a store."""
    for pack in ("none", "isolated"):
        stored = batches(recipe(tmp_path, f"data.pack={pack}"))
        plain = batches(recipe(tmp_path, f"data.pack={pack}", "data.store=memory"))
        assert stored.updates_per_epoch == plain.updates_per_epoch
        for update in range(plain.updates_per_epoch + 3):
            assert targets(stored, update) == targets(plain, update)


@pytest.mark.parametrize(
    ("task", "architecture"), [("masked-language-modeling", "encoder"), ("span-corruption", "encoder-decoder")]
)
def test_other_objectives_read_every_text(tmp_path: Path, windowed: None, task: str, architecture: str) -> None:
    """What an objective hides and what it shows is together each text once."""
    keys: dict[str, Any] = {"task": task, "network": {"preset": "transformer-tiny", "architecture": architecture}}
    every = batches(recipe(tmp_path, "tokenizer.vocab_size=500", "training.batch_tokens=60", **keys))
    assert isinstance(every, StoredBatches)
    tokenizer = Tokenizer.load(tmp_path / "store" / "tokenizer")
    expected = Counter(token for row in rows(every.store) if len(row) > 1 for token in row)
    special = set(tokenizer.specials.ids.values())
    read: Counter[int] = Counter()
    for update in range(every.updates_per_epoch):
        for part in every.parts(update):
            labels = next(iter(part.batch.labels.values()))
            ids = next(value for name, value in part.batch.inputs.items() if name in ("ids", "source_ids")).clone()
            if ids.shape == labels.shape and task.startswith("masked"):
                ids[labels >= 0] = labels[labels >= 0]
            else:
                read.update(token for token in labels.flatten().tolist() if token >= 0 and token not in special)
            read.update(token for token in ids.flatten().tolist() if token not in special)
    if task.startswith("masked"):
        expected = Counter(token for row in rows(every.store) for token in row)
    assert read == expected


def test_held_out_texts_are_those_of_memory(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(text(120) + "gato azul\n" * 40, encoding="utf-8")
    stored = data_of(recipe(tmp_path, "data.held_out=12"), silent)
    plain = data_of(recipe(tmp_path, "data.held_out=12", "data.store=memory"), silent)
    assert stored.valid is not None and plain.valid is not None and stored.train.tokens is not None
    assert stored.valid["text"] == plain.valid["text"]
    tokenizer = Tokenizer.load(tmp_path / "store" / "tokenizer")
    assert rows(stored.train.tokens) == tokenizer.encode_batch(plain.train["text"])
    assert len(stored.train) == len(plain.train)


@pytest.mark.parametrize("keys", [{}, {"tokenizer": {"kind": "bpe"}, "network": {}, "training": {}}], ids=["no", "fit"])
def test_a_tokenizer_learns_from_the_texts_of_memory_not_held_out(tmp_path: Path, keys: dict[str, Any]) -> None:
    random = np.random.default_rng(3)
    words = ["".join(random.choice(list("abcdeiou"), 7)) for _ in range(200)]
    lines = [" ".join([words[number]] * 4) for number in range(200)]
    (tmp_path / "text.txt").write_text("\n".join(lines + lines[:50]) + "\n", encoding="utf-8")
    plain = recipe(tmp_path, "data.held_out=20", "data.store=memory", **keys)
    train = data_of(plain, silent).train
    chosen = plain.recipe
    if keys:
        chosen, _ = fitted_to(chosen, ["tokenizer.vocab_size"], train)
    of_memory = tokenizer_for(chosen, tmp_path, train["text"], silent)
    assert tokenizer_for(chosen, tmp_path, lines + lines[:50], silent).fingerprint != of_memory.fingerprint
    data_of(recipe(tmp_path, "data.held_out=20", **keys), silent)
    assert Tokenizer.load(tmp_path / "store" / "tokenizer").fingerprint == of_memory.fingerprint


def test_hard_wrapped_lines_are_named_with_a_store_too_and_other_recipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Uma frase que\ncontinua na linha\nseguinte.\n" * 300, encoding="utf-8")
    said: list[str] = []
    data_of(recipe(tmp_path), said.append)
    assert any("text.txt: its lines seem to be broken inside sentences" in line for line in said)
    with pytest.raises(RecipeError, match="got next-sentence, which reads text"):
        network = {"preset": "transformer-tiny", "architecture": "encoder"}
        make(recipe(tmp_path, task="masked-language-modeling", objective="next-sentence", network=network))


def test_overlap_counts_equal_texts_and_shared_runs(tmp_path: Path) -> None:
    store = make(recipe(tmp_path, lines=150))
    every = rows(store)
    long = next(number for number, row in enumerate(every) if len(row) > 25)
    queries = [np.array(every[3]), np.array(every[long][2:20]), np.array([7, 8, 7, 8, 9, 9, 9, 7] * 3)]
    assert equal_texts(store, queries)[0] == [n for n, row in enumerate(every) if row == every[3]]
    assert equal_texts(store, queries)[1:] == [[], []]

    def runs(row: list[int]) -> Iterator[tuple[int, ...]]:
        return (tuple(row[start : start + 5]) for start in range(len(row) - 4))

    of_store = {run for row in every for run in runs(row)}
    expected = [sum(run in of_store for run in runs(query.tolist())) for query in queries]
    assert shared_runs(store, queries, 5).tolist() == expected and shared_runs(store, queries, 5)[1] == 14


def test_validation_texts_in_the_store_are_counted(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text(text(3) + "nada disto\n", encoding="utf-8")
    said: list[str] = []
    data_of(recipe(tmp_path, "data.valid={file: valid.txt}"), said.append)
    assert "warning: 3 of 4 validation texts are also in the training data" in said


def test_sources_of_a_store_are_mixed_as_in_memory(tmp_path: Path) -> None:
    """Each source is a member of its own, whatever the rates; held-out texts leave the source that they are from."""
    (tmp_path / "other.txt").write_text(text(60, seed=9), encoding="utf-8")
    changes = ["data.train=[text.txt, other.txt]", "data.mixing={kind: equal}", "data.held_out=10"]
    stored = batches(recipe(tmp_path, *changes))
    plain = batches(recipe(tmp_path, *changes, "data.store=memory"))
    assert [len(member) for member in stored.members] == [len(member) for member in plain.members]
    for update in range(12):
        assert targets(stored, update) == targets(plain, update)


@pytest.mark.parametrize(
    "mixing", ["{kind: temperature}", "{kind: weights, points: [{at: 0, weights: [1, 0]}, {at: 1, weights: [0, 1]}]}"]
)
def test_large_sources_of_a_store_are_mixed_and_resumed(tmp_path: Path, windowed: None, mixing: str) -> None:
    """Sources of several windows: a run that resumes goes on as it began, and each source is read once in its epoch."""
    (tmp_path / "other.txt").write_text(text(200, seed=9).replace("gato", "peixe"), encoding="utf-8")
    changes = ["data.train=[text.txt, other.txt]", f"data.mixing={mixing}", "training.steps=80"]
    every = batches(recipe(tmp_path, *changes))
    assert [type(member) for member in every.members] == [StoredBatches] * 2
    order = [targets(every, update) for update in range(80)]
    for update in (79, 40, 1):
        assert targets(batches(recipe(tmp_path, *changes)), update) == order[update]
    tokenizer = Tokenizer.load(tmp_path / "store" / "tokenizer")
    for number, member in enumerate(every.members):
        expected = Counter(token for row in rows(every.members[number].store) for token in [*row, tokenizer.eos_id])
        read = Counter(token for update in range(member.updates_per_epoch) for token in targets(member, update))
        assert read == expected
    lines = [(tmp_path / name).read_text(encoding="utf-8").split("\n")[:-1] for name in ("text.txt", "other.txt")]
    assert [rows(member.store) for member in every.members] == [tokenizer.encode_batch(texts) for texts in lines]
    shares = [
        sum(int(every.slot_members(update).sum()) for update in span) / (len(span) * every.slots)
        for span in (range(40), range(40, 80))
    ]
    assert (shares[1] > 0.6 > 0.4 > shares[0]) if "points" in mixing else all(0.2 < share < 0.6 for share in shares)
