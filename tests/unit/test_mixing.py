"""Mixtures of sources: rates against T5's formula, planned against observed, changing weights, resuming, refusals."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.mixing import MixingConfig, MixingPoint
from atento.config.sections.network import NetworkConfig, SpecialIds, changed
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.task_spec import Field
from atento.data.batches.batch import Batches, Ragged
from atento.data.batches.mixture import Mixture, Shares
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.sequence_to_sequence import parallel
from atento.data.records.reader import records_in_memory
from atento.data.records.splits import Split, by_source, split_of
from atento.runs.mixing_preview import mixed_sources, mixing_lines
from atento.runs.prepare import read_data
from atento.text import Tokenizer
from failing import fails

NETWORK = NetworkConfig(architecture="decoder", d_model=8, d_ff=16, n_heads=2, n_layers=1)
COUNTS = {"a": 300, "b": 60, "c": 15}  # texts of each source; a text is one letter again and again


def source_texts(name: str, count: int) -> list[str]:
    return [" ".join([name] * (3 + number % 5)) for number in range(count)]


def counted_split(counts: Mapping[str, int] = COUNTS) -> Split:
    fields = (Field("text"),)
    split = split_of([records_in_memory(source_texts(name, count), fields, name) for name, count in counts.items()])
    assert split is not None
    return split


def made(
    mixing: Mapping[str, Any], *, split: Split | None = None, objectives: Any = None, steps: int = 400, size: int = 256
) -> Any:
    """Batches of the sources, each with the tokens of its letter alone, and the tokenizer's ids of the letters."""
    tokenizer = Tokenizer.from_vocabulary("word", list("abcdef"))
    sources = [{"memory": name} for name in COUNTS]
    keys: dict[str, Any] = {"task": "language-modeling", "data": {"train": sources, "mixing": mixing}}
    keys["training"] = {"steps": steps, "batch_tokens": size, "seed": 7}
    recipe = load_recipe(keys | {"tokenizer": {"kind": "word"}}).recipe
    ids = SpecialIds(pad=tokenizer.pad_id, eos=tokenizer.eos_id, start=tokenizer.bos_id, bos=tokenizer.bos_id)
    network = changed(NETWORK, vocab_size=tokenizer.vocab_size, ids=ids)
    preparation = Preparation(recipe, network, tokenizer, counted_split() if split is None else split)
    batches = batches_for(preparation, objectives or (ObjectiveConfig("causal"),))
    return batches, {tokenizer.encode(name)[0]: name for name in COUNTS}, recipe


def observed(batches: Batches, letters: Mapping[int, str], updates: range) -> Counter[str]:
    """The target tokens that each source has in these updates."""
    counts: Counter[str] = Counter()
    for update in updates:
        for part in batches.parts(update):
            source = letters[int(part.batch.inputs["ids"][0, 1])]
            counts[source] += part.batch.targets
    return counts


def formula(sizes: list[float], temperature: float = 1.0, cap: float = math.inf) -> list[float]:
    return _shares([min(size, cap) ** (1 / temperature) for size in sizes])


def _shares(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def rates(config: MixingConfig, sizes: list[float]) -> list[float]:
    ((_, weights),) = config.rates(tuple(sizes))
    return _shares([*weights])


def test_the_rates_are_the_formula_of_t5_and_an_update_has_at_most_four_slots() -> None:
    sizes = [120_000.0, 5000.0, 300.0]
    for config, expected in (
        (MixingConfig("temperature"), formula(sizes, 2.0)),
        (MixingConfig("temperature", temperature=3.3, cap=20_000), formula(sizes, 3.3, 20_000)),
        (MixingConfig("temperature", temperature=1.0), formula(sizes)),
        (MixingConfig("proportional", cap=5000), [5000 / 10300, 5000 / 10300, 300 / 10300]),
        (MixingConfig("equal"), [1 / 3] * 3),
        (MixingConfig("weights", weights=(2.0, 1.0, 1.0)), [0.5, 0.25, 0.25]),
    ):
        assert rates(config, sizes) == pytest.approx(expected)
    assert rates(MixingConfig("temperature", temperature=1e6), sizes) == pytest.approx([1 / 3] * 3, rel=1e-4)
    # Each slot is a part of its own, which costs time (two sources in updates of 4,096 tokens: a fifth)
    side = Ragged([[4]] * 5000)
    make = partial(parallel, side, side, seed=1, pad_id=0, start_id=1, eos_id=2)
    for count, slots in ((2, 2), (3, 3), (6, 4)):
        of_equals = partial(Shares.constant, [1.0] * count)
        mixture = Mixture([lambda n: make(budget=n)] * count, lambda _, of=of_equals: of(), budget=960, seed=1)
        assert mixture.slots == slots and len(list(mixture.parts(0))) == slots
    # Constant shares draw what they drew before shares could change
    shares, uniform = np.array([3.0, 1.0, 0.5]), np.random.default_rng(0).random((50, 8))
    before = np.searchsorted(np.cumsum(shares / shares.sum()), uniform, side="right")
    now = (np.cumsum(Shares.constant(shares.tolist()).at(np.arange(50)), axis=1)[:, None] <= uniform[..., None]).sum(-1)
    assert np.array_equal(now, before)


def test_what_is_read_is_what_the_preview_says() -> None:
    for mixing in (
        {"kind": "temperature", "temperature": 2},
        {"kind": "temperature", "temperature": 3, "cap": 300},
        {"kind": "equal"},
        {"kind": "weights", "weights": [1, 0, 3]},
        {"kind": "weights", "points": [{"at": 0, "weights": [1, 0, 0]}, {"at": 1, "weights": [0, 1, 1]}]},
    ):
        batches, letters, recipe = made(mixing)
        plan = mixed_sources(batches, counted_split(), recipe, 400)
        assert [row["source"] for row in plan] == list(COUNTS) and sum(row["share"] for row in plan) == pytest.approx(1)
        slots = np.concatenate([batches.slot_members(update) for update in range(400)])
        for number, row in enumerate(plan):
            member = batches.members[number]
            filled = int((slots == number).sum())
            expected = row["epochs"] * member.updates_per_epoch
            rate = expected / len(slots)
            assert abs(filled - expected) <= 3 * math.sqrt(len(slots) * rate * (1 - rate)), row
            assert row["targets"] == sum(len(text.split()) + 1 for text in source_texts(row["source"], row["records"]))
        tokens = observed(batches, letters, range(400))
        for row in plan:
            share = tokens[row["source"]] / sum(tokens.values())
            assert abs(share - row["share"]) < 0.05, row
        assert len(list(mixing_lines(plan))) == 3


@pytest.mark.covering
@pytest.mark.parametrize("batch_tokens", [64, 256, 4096, 20_000])
@pytest.mark.parametrize("mixing", [{"kind": "equal"}, {"kind": "weights", "weights": [1, 5, 2]}], ids=str)
def test_m16_shares_hold_for_sources_of_any_size(mixing: dict[str, Any], batch_tokens: int) -> None:
    """A source of 90 targets fills a slot of 5,000 by being read again and again; updates are not smaller for it."""
    batches, letters, _ = made(mixing, size=batch_tokens)
    updates = 40 if batch_tokens > 1000 else 400
    tokens = observed(batches, letters, range(updates))
    total = sum(tokens.values())
    asked = _shares(mixing.get("weights", [1, 1, 1]))
    for name, share in zip(COUNTS, asked):
        assert abs(tokens[name] / total - share) < 0.08, (tokens, asked)
    assert 0.85 < total / updates / batch_tokens < 1.15
    for (planned, _), share in zip(batches.expected(updates), asked):
        assert planned == pytest.approx(share)


def test_m16_epochs_rates_of_each_kind_and_mixtures_that_change() -> None:
    whole, _, _ = made({})
    for mixing in ({"kind": "equal"}, {"kind": "weights", "weights": [1, 5, 2]}, {"kind": "temperature"}):
        batches, _, _ = made(mixing)
        assert batches.updates_per_epoch == pytest.approx(whole.updates_per_epoch, abs=1)
    without, _, _ = made({"kind": "weights", "weights": [0, 1, 1]})  # a source that is never read does not count
    assert without.updates_per_epoch == pytest.approx(whole.updates_per_epoch * 75 / 375, abs=1)
    objectives = (ObjectiveConfig("causal"), ObjectiveConfig("causal", share=2.0))
    two, _, _ = made({"kind": "equal"}, objectives=objectives)  # each text once, under one of the objectives
    assert two.updates_per_epoch == pytest.approx(whole.updates_per_epoch, abs=1)
    assert sum(epochs for _, epochs in two.expected(two.updates_per_epoch)[:2]) < 1 < two.expected(9)[-1][1]
    batches, _, _ = made({"kind": "temperature", "temperature": 1})
    targets = [member.targets for member in batches.members]
    shares = batches.shares.at(np.arange(3))
    assert shares[0] == pytest.approx(np.array(targets) / sum(targets))
    objectives = (ObjectiveConfig("causal", share=3.0), ObjectiveConfig("prefix"))
    batches, _, recipe = made({"kind": "weights", "weights": [2, 1, 1]}, objectives=objectives)
    assert len(batches.members) == 6 and len(batches) == sum(COUNTS.values())
    assert batches.shares.at(np.arange(1))[0] == pytest.approx([0.375, 0.125, 0.1875, 0.0625, 0.1875, 0.0625])
    assert len(mixed_sources(batches, counted_split(), recipe, 400)) == 3
    for mixing in ({}, {"kind": "proportional"}):
        batches, _, _ = made(mixing)
        texts = [text for name, count in COUNTS.items() for text in source_texts(name, count)]
        whole, _, _ = made({}, split=Split({"text": texts}, ""))
        assert isinstance(batches, PlannedBatches) and len(batches) == len(whole) == 375
        for update in (0, 3, 11):
            for part, expected in zip(batches.parts(update), whole.parts(update), strict=True):
                assert torch.equal(part.batch.inputs["ids"], expected.batch.inputs["ids"])
    points = [{"at": 0.25, "weights": [1, 0, 0]}, {"at": 0.75, "weights": [0, 3, 1]}]
    batches, letters, _ = made({"kind": "weights", "points": points}, steps=401)
    shares = batches.shares.at(np.array([0, 100, 200, 300, 400, 5000]))
    expected = [[1, 0, 0], [1, 0, 0], [0.5, 0.375, 0.125], [0, 0.75, 0.25], [0, 0.75, 0.25], [0, 0.75, 0.25]]
    assert shares == pytest.approx(np.array(expected))
    assert set(observed(batches, letters, range(60))) == {"a"}
    assert set(observed(batches, letters, range(320, 380))) == {"b", "c"}
    again, _, _ = made({"kind": "weights", "points": points}, steps=401)
    for update in (350, 7, 201):
        for part, expected_part in zip(again.parts(update), batches.parts(update), strict=True):
            assert torch.equal(part.batch.inputs["ids"], expected_part.batch.inputs["ids"])


def test_the_sources_of_records_that_are_held_out_are_known(tmp_path: Path) -> None:
    for name, count in (("a", 80), ("b", 40)):
        text = "".join(f"{name} {number}\n" for number in range(count))
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    data = {"train": [{"file": "a.txt"}, {"file": "b.txt"}], "held_out": 12, "mixing": {"kind": "equal"}}
    recipe = load_recipe({"task": "language-modeling", "data": data}).recipe
    train = read_data(recipe, tmp_path, lambda line: None).train
    assert [name for name, _ in train.sources] == ["a.txt", "b.txt"]
    assert sum(count for _, count in train.sources) == len(train) == 108
    for name, part in by_source(train):
        assert len(part) > 20 and all(text.startswith(name[0]) for text in part["text"])


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    for mixing, message in (
        ({"kind": "equal", "cap": 5}, "cap` is for the kind proportional or temperature: got equal"),
        ({"temperature": 2}, "temperature` is for the kind temperature: got proportional"),
        ({"kind": "temperature", "temperature": 0}, "must be finite and above 0: got 0"),
        ({"cap": 0}, "cap` must be at least 1: got 0"),
        ({"kind": "weights"}, "needs either `weights` or `points`: got neither"),
        ({"kind": "weights", "weights": [1, -1, 1]}, r"not negative and not all 0: got \[1.0, -1.0, 1.0\]"),
        ({"kind": "weights", "weights": [1, 1]}, "a weight for each of the 3 sources of data.train: got 2 weights"),
        ({"kind": "weights", "points": [{"at": 2, "weights": [1, 1, 1]}]}, r"`at` must lie in \[0, 1\]: got 2"),
        ({"kind": "weights", "points": [{"at": at, "weights": [1, 1, 1]} for at in (1, 0)]}, "rising order"),
    ):
        fails(RecipeError, message, made, mixing)
    sources = [{"memory": "a"}, {"memory": "b"}]
    points = {"kind": "weights", "points": [{"at": 0, "weights": [1, 1]}]}
    recipe: dict[str, Any] = {"task": "language-modeling", "data": {"train": sources, "mixing": points}}
    with pytest.raises(RecipeError, match=r"training\.steps must say how many there are: got training.epochs 3"):
        load_recipe({**recipe, "training": {"epochs": 3}})
    one = {**recipe, "data": {"train": sources[:1], "mixing": {"kind": "equal"}}}
    assert any("data.mixing has no effect: data.train is one source" in line for line in load_recipe(one).warnings)
    assert MixingPoint(0.5, (1.0, 2.0)).weights == (1.0, 2.0)
