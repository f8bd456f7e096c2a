"""From a recipe to what training needs: data read and counted, the tokenizer, the network's numbers, batches."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError, RecipeError, TokenizerError, UsageError
from atento.config.recipe import DataConfig, Recipe, SourceConfig, TokenizerConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.sequence_to_sequence import parallel
from atento.data.records.splits import Split
from atento.metrics import chrf, exact_match
from atento.networks import build_network
from atento.runs.prepare import network_for, read_data, training_batches
from atento.runs.run_tokenizer import tokenizer_for, tokenizer_of_columns
from atento.tasks.model_outputs import text_generator
from atento.tasks.split_evaluation import held_out_batches, mean_losses, validation_scores
from atento.tasks.task_model import TaskModel
from atento.text.tokenizer import Tokenizer
from atento_world import write
from failing import fails

PAIRS = write("train", 40)
TEXTS = [text for pair in PAIRS for text in (pair.source, pair.target)]


def recipe(train: Any = (), valid: Any = (), test: Any = (), **parts: Any) -> Recipe:
    data = DataConfig(train=tuple(train), valid=tuple(valid), test=tuple(test), **parts.pop("data", {}))
    return Recipe(task="translation", data=data, **parts)


@pytest.fixture
def tsv(tmp_path: Path) -> Callable[[str, list[tuple[str, str]]], SourceConfig]:
    def make(name: str, pairs: list[tuple[str, str]]) -> SourceConfig:
        (tmp_path / name).write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8", newline="\n")
        return SourceConfig(file=name, source=0, target=1)

    return make


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = tokenizer_for(recipe(tokenizer=TokenizerConfig(kind="bpe", vocab_size=340)), Path(), TEXTS, print)
    assert made.vocab_size == 340
    return made


def pairs_of(source: list[str], target: list[str]) -> Split:
    return Split({"source": source, "target": target}, "")


EVERY = pairs_of([pair.source for pair in PAIRS], [pair.target for pair in PAIRS])


# Data ---------------------------------------------------------------------------------------------------------------


def test_splits_are_joined_and_what_is_bad_or_left_out_is_counted(tsv: Any, tmp_path: Path) -> None:
    one, two = tsv("a.tsv", [("a", "b"), ("", "c"), ("d", "e")]), tsv("b.tsv", [("f", "g")])
    valid = tsv("v.tsv", [("a", "b"), ("f", "g"), ("x", "y"), ("a", "b")])
    said: list[str] = []
    data = read_data(recipe([one, two], [valid], [two]), tmp_path, said.append)
    assert (data.train["source"], data.train["target"]) == (["a", "d", "f"], ["b", "e", "g"])
    assert data.valid is not None and data.valid["source"] == ["a", "f", "x", "a"]
    assert data.test is not None and data.test["target"] == ["g"]
    assert said == [
        "warning: a.tsv: 1 pair with an empty side left out",
        "warning: 3 of 4 validation pairs of v.tsv are also in the training data",
    ]
    source = tsv("bad.tsv", [("a", "b"), ("c", "d")])
    with (tmp_path / "bad.tsv").open("ab") as file:
        file.write(b"only one\nx\ty\xff\n")
    fails(DataError, r"bad.tsv:3: 1 column separated by a tab", read_data, recipe([source]), tmp_path, print)
    said.clear()
    data = read_data(recipe([source], data={"skip_bad": True}), tmp_path, said.append)
    assert data.train["source"] == ["a", "c"] and data.valid is None and data.test is None
    assert len(said) == 1 and said[0].startswith("warning: bad.tsv: 2 bad records left out, first bad.tsv:3: 1 column")
    fails(RecipeError, r"`data.train` names no data", read_data, recipe(), tmp_path, print)
    worlds = SourceConfig(world="train", count=30), SourceConfig(world="train", count=10)
    said.clear()
    read_data(recipe([worlds[0]], [worlds[1]]), tmp_path, said.append)
    assert all("of the micro-world's train are also in the training data" in line for line in said)


def test_the_fingerprint_is_of_what_is_trained_and_validated_on(tsv: Any, tmp_path: Path) -> None:
    """Pairs, their order and the splits' borders count; file names, blank pairs and the test split do not."""

    def fingerprint(train: list[tuple[str, str]], valid: list[tuple[str, str]], name: str = "a.tsv") -> str:
        sources = [tsv(name, train)], [tsv("v.tsv", valid)] if valid else []
        return read_data(recipe(*sources), tmp_path, lambda _: None).fingerprint

    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    same = fingerprint(pairs, pairs[:1])
    assert fingerprint(pairs, pairs[:1], "other.tsv") == fingerprint([*pairs, ("", "")], pairs[:1]) == same
    others = [
        *((pairs[::-1], pairs[:1]), (pairs[:2], pairs[:1]), (pairs, pairs[1:2]), (pairs, [])),
        *(([("a", "b"), ("c", "d"), ("e", "F")], pairs[:1]), ([("ab", ""), ("a", "bc"), *pairs], pairs[:1])),
    ]
    assert len({fingerprint(*other) for other in others} | {same}) == len(others) + 1


# Tokenizer and network ----------------------------------------------------------------------------------------------


def test_a_tokenizer_is_trained_or_read_and_the_network_gets_its_numbers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "kept")
    said: list[str] = []
    read = tokenizer_for(recipe(tokenizer=TokenizerConfig(path="kept")), tmp_path, iter(()), said.append)
    assert read.fingerprint == tokenizer.fingerprint and said == []
    made = tokenizer_for(recipe(tokenizer=TokenizerConfig(kind="word", vocab_size=50)), tmp_path, TEXTS, said.append)
    assert said == [f"tokenizer: word, {made.vocab_size} pieces"]
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*none"):
        tokenizer_for(recipe(tokenizer=TokenizerConfig(path="none")), tmp_path, TEXTS, print)
    made = network_for(recipe(network=NetworkConfig(d_model=32, n_heads=4)), tokenizer, EVERY)
    assert (made.vocab_size, made.d_model, made.tokenizer_fingerprint) == (340, 32, tokenizer.fingerprint)
    ids = tokenizer.specials
    assert (made.pad_id, made.unk_id, made.bos_id, made.eos_id) == (*map(ids.id, ("pad", "unk", "bos", "eos")),)
    assert made.start_id == made.bos_id
    assert network_for(recipe(network=NetworkConfig(vocab_size=340)), tokenizer, EVERY).vocab_size == 340
    with pytest.raises(RecipeError, match=r"`network.vocab_size` must be the tokenizer's: got 500 and 340"):
        network_for(recipe(network=NetworkConfig(vocab_size=500)), tokenizer, EVERY)


def test_a_vocabulary_for_each_side(tmp_path: Path) -> None:
    """Sources and targets have tokenizers of their own, in one folder, and the network has a table for each."""
    sides = {"source": ["a casa azul", "o gato dorme <um>"], "target": ["синий дом", "кошка спит <um>"]}

    def texts(names: Sequence[str]) -> Iterator[str]:
        return (text for name in names for text in sides[name])

    one = tokenizer_of_columns(recipe(tokenizer=TokenizerConfig(kind="word")), tmp_path, texts, print)
    for kind, size in (("bpe", 320), ("character", 60), ("unigram", 290)):
        config = TokenizerConfig(kind=kind, vocab_size=size, shared=False, markers=("<um>",))
        two = tokenizer_of_columns(recipe(tokenizer=config), tmp_path, texts, print)
        two.save(tmp_path / kind)
        read = Tokenizer.load(tmp_path / kind)
        assert read.fingerprint == two.fingerprint != two.with_target(one).fingerprint
        assert read.markers == read.target.markers == ("<um>",) and read.files() == two.files()
        ids = read.target.encode(sides["target"][0])
        assert ids == two.target.encode(sides["target"][0]) and read.target.decode(ids) == sides["target"][0]
        assert not any("д" in token for token in read.tokens(range(read.vocab_size)))
        made = network_for(recipe(network=NetworkConfig(d_model=32, n_heads=4)), read, EVERY)
        assert not made.embedding.shared and made.target_vocab_size == read.target.vocab_size
        read.target.save(tmp_path / f"{kind} of targets")
        assert Tokenizer.load(tmp_path / f"{kind} of targets").fingerprint == read.target.fingerprint
    assert one.target is one and network_for(recipe(), one, EVERY).embedding.shared


# Batches ------------------------------------------------------------------------------------------------------------


def batches(tokenizer: Tokenizer, pairs: Split, say: Any = print, max_len: int = 64, **training: Any) -> PlannedBatches:
    made = recipe(data={"max_len": max_len}, training=TrainingConfig(**{"batch_tokens": 100, "seed": 3, **training}))
    return batches_for(made, tokenizer, pairs, say)


def batches_for(made: Recipe, tokenizer: Tokenizer, pairs: Split, say: Any = print) -> PlannedBatches:
    return training_batches(made, network_for(made, tokenizer, pairs), tokenizer, pairs, say)  # type: ignore[return-value]


def test_every_pair_is_seen_once_an_epoch_as_written_but_for_long_and_blank_ones_and_drawn_subwords_spell_it(
    tokenizer: Tokenizer,
) -> None:
    lengths = [len(tokenizer.encode(pair.source)) for pair in PAIRS[:3]]
    assert max(lengths) < 50
    source = [*(pair.source for pair in PAIRS[:3]), "long " * 60, "short", "\x07", "ok"]
    target = [*(pair.target for pair in PAIRS[:3]), "curto", "longo " * 60, "nada", "\x01"]
    said: list[str] = []
    made = batches(tokenizer, pairs_of(source, target), said.append, max_len=50)
    assert made.stores.first["source"].lengths.tolist() == lengths
    assert said == [
        "warning: 2 of 7 training pairs left out: a side has no tokens",
        "warning: 2 of 7 training pairs left out: longer than 50 tokens; "
        "`data.truncate: source` cuts long sources, and `data.max_len` raises the limit",
    ]
    with pytest.raises(DataError, match=r"no training pair is left: all are longer than `data.max_len` 2 tokens"):
        batches(tokenizer, pairs_of(source, target), said.append, max_len=2)
    made = batches(tokenizer, EVERY)
    assert made.updates_per_epoch > 3
    for epoch in range(2):
        seen: Counter[tuple[str, str]] = Counter()
        for update in range(made.updates_per_epoch):
            for part in made.parts(epoch * made.updates_per_epoch + update, micro_batches=2):
                batch = part.batch
                given = batch.inputs["source_ids"], batch.real("source_ids"), batch.inputs["target_ids"]
                for ids, real, target_ids, asked in zip(*given, batch.labels["vocabulary"]):
                    source, labels = ids[real].tolist(), asked[asked >= 0].tolist()
                    read = target_ids[: len(labels)].tolist()
                    assert source[-1] == labels[-1] == tokenizer.eos_id
                    assert read == [tokenizer.bos_id, *labels[:-1]]  # teacher forcing: shifted right
                    seen[tokenizer.decode(source), tokenizer.decode(labels)] += 1
        assert seen == Counter(zip(EVERY["source"], EVERY["target"]))
    made = parallel(Ragged([[5], [6, 7, 8]]), Ragged([[9, 9], [4]]), budget=9, seed=0, pad_id=0, start_id=2, eos_id=3)
    assert sum(part.batch.targets for part in made.parts(0)) == 5

    def drawn(update: int, **options: Any) -> list[list[int]]:
        made = batches(tokenizer, EVERY, subword_dropout=0.3, **options)
        return [
            ids[real].tolist()
            for part in made.parts(update)
            for ids, real in zip(part.batch.inputs["source_ids"], part.batch.real("source_ids"))
        ]

    epoch = batches(tokenizer, EVERY).updates_per_epoch
    assert drawn(0) == drawn(0) and drawn(epoch) == drawn(epoch)
    texts = {tuple(ids) for update in range(epoch) for ids in drawn(update)}
    again = {tuple(ids) for update in range(epoch, 2 * epoch) for ids in drawn(update)}
    other = {tuple(ids) for update in range(epoch) for ids in drawn(update, seed=4)}
    assert len(texts & again) < 20 and len(texts & other) < 20
    for one in (texts, again, other):
        assert Counter(tokenizer.decode(ids) for ids in one) == Counter(set(EVERY["source"])) or len(one) <= len(PAIRS)
        assert {tokenizer.decode(ids) for ids in one} == set(EVERY["source"])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40), st.integers(1, 100))
def test_in_order_gives_every_row_once_within_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    source, target = ([[5 + row] * sizes[side] for row, sizes in enumerate(lengths)] for side in (0, 1))
    made = parallel(Ragged(source), Ragged(target), budget=40, seed=1, pad_id=0, start_id=2, eos_id=3)
    found = [batch.labels["vocabulary"] for batch in made.in_order(budget)]
    rows = [[labels[labels >= 0].tolist() for labels in batch] for batch in found]
    assert sorted(row for batch in rows for row in batch) == sorted([*row, 3] for row in target)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= budget for batch in rows)
    flat = [len(row) for batch in rows for row in batch]
    assert flat == sorted(flat)


# Validation ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    config = NetworkConfig(d_model=16, d_ff=32, n_heads=2, n_layers=1, norm="pre", dropout=0.5)
    return build_network(network_for(recipe(network=config), tokenizer, EVERY))


def test_f1_held_out_loss_is_the_mean_over_real_targets_and_scores_the_metrics_of_the_translations(
    tokenizer: Tokenizer, network: Any
) -> None:
    """Against one sentence at a time through `log_softmax`, in float64."""
    network.eval()
    total, count = 0.0, 0
    config = network.config
    with torch.no_grad():
        for one, other in zip(EVERY["source"], EVERY["target"]):
            source = torch.tensor([[*tokenizer.encode(one), config.eos_id]])
            labels = [*tokenizer.encode(other), config.eos_id]
            logits = network(source, torch.tensor([[config.start_id, *labels[:-1]]])).logits[0].double()
            total -= float(logits.log_softmax(-1)[range(len(labels)), labels].sum())
            count += len(labels)
    held_out = held_out_batches(recipe(), config, tokenizer, EVERY)
    assert sum(batch.targets for batch in held_out.in_order(2048)) == count
    found = mean_losses(network, held_out.in_order(2048))
    assert found == {"vocabulary": pytest.approx(total / count, rel=1e-5)}
    scores = validation_scores(network, tokenizer, EVERY, recipe(metrics=()))
    assert scores == {"loss": found["vocabulary"], "nll": found["vocabulary"]}
    pairs = pairs_of([pair.source for pair in PAIRS[:6]], [pair.target for pair in PAIRS[:6]])
    made = recipe(decoding=DecodingConfig(beam=2, max_new_tokens=6), metrics=("chrf", "exact-match"))
    network.train()
    scores = validation_scores(network, tokenizer, pairs, made)
    assert network.training  # as it was found
    network.eval()
    writer = text_generator(TaskModel(network, tokenizer, {}), made.decoding)
    outputs = [found[0].text for found in writer.write(pairs["source"])]
    assert scores["chrf"] == chrf(outputs, pairs["target"]).value
    assert scores["exact-match"] == exact_match(outputs, pairs["target"]).value
    assert list(scores) == ["loss", "nll", "chrf", "exact-match"]
    assert validation_scores(network, tokenizer, pairs, replace(made, metrics=())).keys() == {"loss", "nll"}
    assert not network.training
    # Even when it fails
    network.train()
    with pytest.raises(UsageError, match="unknown metric 'no-such'"):
        validation_scores(network, tokenizer, pairs_of(["a"], ["b"]), recipe(metrics=("no-such",)))
    assert network.training


def test_over_long_pairs_are_left_out_or_cut_and_counted_drawn_anew_too(tokenizer: Tokenizer) -> None:
    for sides in ("none", "source", "both"):
        long, short = " ".join(["gato"] * 50), "gato alto"
        pairs = pairs_of([long, short, long, short], [short, short, long, long])
        config = recipe(data={"max_len": 20, "truncate": sides})
        said: list[str] = []
        batches = batches_for(config, tokenizer, pairs, said.append)
        whole = [tokenizer.encode(text) for text in (long, short)]
        kept = {"none": [1], "source": [0, 1], "both": [0, 1, 2, 3]}[sides]
        assert len(batches) == len(kept)
        for row, number in enumerate(kept):
            assert batches.stores.first["source"][row].tolist() == whole[number % 2][:19]
            assert batches.stores.first["target"][row].tolist() == whole[0 if number > 1 else 1][:19]
        batch = batches.batch(np.arange(len(kept)))
        assert batch.inputs["source_ids"].shape[1] <= 20 and batch.labels["vocabulary"].shape[1] <= 20
        assert (
            said
            == {
                "none": [
                    "warning: 3 of 4 training pairs left out: longer than 20 tokens; "
                    "`data.truncate: source` cuts long sources, and `data.max_len` raises the limit"
                ],
                "source": [
                    "warning: of 4 training pairs, 2 on the source side cut to 20 tokens",
                    "warning: 2 of 4 training pairs left out: longer than 20 tokens; `data.max_len` raises the limit",
                ],
                "both": [
                    "warning: of 4 training pairs, 2 on the source side and 2 on the target side cut to 20 tokens"
                ],
            }[sides]
        )
    long = " ".join(["gatinho"] * 50)
    config = recipe(data={"max_len": 20, "truncate": "both"}, training=TrainingConfig(subword_dropout=0.3))
    batches = batches_for(config, tokenizer, pairs_of([long], [long]))
    for epoch in range(3):
        source, target = batches.objective.lengths(batches.stores.at(epoch))
        assert source.tolist() == [20] and target.tolist() == [20]
