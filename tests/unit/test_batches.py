"""Batches: teacher forcing by hand, every example once an epoch, an order that is a function, little padding."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atento.base.splitmix import hashes, permutation
from atento.config import presets
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import TASKS
from atento.data.batches import planning
from atento.data.batches.batch import EpochStores, MemoryStore, PartSize, Ragged
from atento.data.batches.planning import CPU_PARTS, GPU_PARTS, _cheapest_parts, plan
from atento.data.objectives.labels import Labels
from atento.data.objectives.sequence_to_sequence import SequenceToSequence, parallel

PAD, EOS, START = 0, 3, 2
rows_of_ids = st.lists(st.lists(st.integers(0, 30_000), max_size=12), max_size=20)


def make(source: list[list[int]], target: list[list[int]], budget: int = 40, seed: int = 1) -> planning.PlannedBatches:
    ids = Ragged(source), Ragged(target)
    return parallel(*ids, budget=budget, seed=seed, pad_id=PAD, start_id=START, eos_id=EOS)


def of_lengths(lengths: list[tuple[int, int]], budget: int = 40, seed: int = 1) -> planning.PlannedBatches:
    return make([[9] * s for s, _ in lengths], [[9] * t for _, t in lengths], budget, seed)


@given(rows_of_ids, st.data())
def test_ragged_rows_come_back_and_are_padded_before_and_behind(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged(rows)
    assert [ragged[index].tolist() for index in range(len(ragged))] == rows
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    if not rows:
        return
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    before, after = data.draw(st.sampled_from([(None, None), (5, None), (None, 6), (5, 6)]))
    got = ragged.padded(np.array(chosen), -7, before, after)
    wanted = [[*([] if before is None else [before]), *rows[i], *([] if after is None else [after])] for i in chosen]
    width = max(len(row) for row in wanted)
    assert got.tolist() == [row + [-7] * (width - len(row)) for row in wanted] and got.dtype == torch.int64


def test_f1_e8_l5_teacher_forcing_laid_out_by_hand_and_sources_of_one_length_without_a_mask() -> None:
    """Source "… </s>"; the decoder reads <s> and the gold target, and is asked for the gold target and </s>."""
    batch = make([[11, 12, 13], [14]], [[21, 22], [23, 24, 25]]).batch(np.array([1, 0]))
    assert batch.inputs.keys() == {"source_ids", "source_token_mask", "target_ids"}
    assert batch.inputs["source_ids"].tolist() == [[14, EOS, PAD, PAD], [11, 12, 13, EOS]]
    assert batch.inputs["source_token_mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert batch.inputs["target_ids"].tolist() == [[START, 23, 24, 25], [START, 21, 22, PAD]]
    assert batch.real("target_ids").tolist() == [[True] * 4, [True, True, True, False]]
    assert batch.labels["vocabulary"].tolist() == [[23, 24, 25, EOS], [21, 22, EOS, -1]]
    assert batch.targets == 7 and batch.counts() == {"vocabulary": 7}
    batch = make([[11, 12]], [[31, 32, 33]]).batch(np.array([0]))  # S3's "gostar": the input at t + 1 is the label at t
    assert batch.inputs["target_ids"][0, 1:].tolist() == batch.labels["vocabulary"][0, :-1].tolist() == [31, 32, 33]
    batch = make([[11, 12], [14, 15]], [[21], [23, 24]]).batch(np.array([0, 1]))
    assert batch.inputs.keys() == {"source_ids", "target_ids"} and bool(batch.real("source_ids").all())
    batch = make([[PAD, 5, PAD], [6]], [[PAD, PAD], [7]]).batch(np.array([0, 1]))
    assert batch.real("source_ids").tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.labels["vocabulary"].tolist() == [[PAD, PAD, EOS], [7, EOS, -1]] and batch.targets == 5
    batch = make([[1], [4, 5]], [[2], [6]]).batch(np.array([0, 1])).to("meta")
    moved = [*batch.inputs.values(), *batch.labels.values(), *batch.lengths.values()]
    assert len(moved) == 6 and {tensor.device.type for tensor in moved} == {"meta"}
    assert batch.real("target_ids").device.type == "meta"


lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60)


@settings(max_examples=75)
@given(lengths=lengths, budget=st.integers(1, 400), seed=st.integers(-5, 5), epoch=st.integers(0, 3))
def test_every_example_once_and_no_update_empty(
    lengths: list[tuple[int, int]], budget: int, seed: int, epoch: int
) -> None:
    """Also where a single example is larger than the budget."""
    batches = of_lengths(lengths, budget, seed)
    first = epoch * batches.updates_per_epoch
    updates = [batches.rows(first + index) for index in range(batches.updates_per_epoch)]
    seen = [int(row) for update in updates for part in update for row in part]
    assert sorted(seen) == list(range(len(lengths)))
    assert all(len(update) > 0 and all(len(part) > 0 for part in update) for update in updates)


@settings(max_examples=30)
@given(lengths=lengths, budget=st.integers(1, 400), window=st.integers(1, 30), part=st.integers(1, 100))
def test_windows_and_parts_lose_nothing(lengths: list[tuple[int, int]], budget: int, window: int, part: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_SORT_WINDOW", window)
        patch.setattr(planning, "part_count", lambda tokens: max(1, round(tokens / part)))
        batches = of_lengths(lengths, budget)
        random = PartSize(part, part, 1 + window)  # examples as on a GPU
        for size in (planning.CPU_PARTS, random, random._replace(padded=False)):
            if size is not planning.CPU_PARTS:
                batches.resize(size)
            seen = [int(row) for update in batches.plan(0) for rows in update for row in rows]
            assert sorted(seen) == list(range(len(lengths))) and len(batches.plan(0)) == batches.updates_per_epoch


def test_updates_on_a_gpu_are_random_examples_in_few_parts() -> None:
    """A part costs a GPU as much as thousands of tokens; 4,096 of any lengths are one part or two, not four."""
    rng = np.random.default_rng(3)
    lengths = [(n, n) for n in np.clip(80 * rng.lognormal(0, 0.8, 1000), 8, 512).astype(int).tolist()]
    batches = of_lengths(lengths, 4096)
    parts = [len(update) for update in batches.plan(0)]
    batches.resize(planning.GPU_PARTS)
    targets = [sum(lengths[row][1] for rows in update for row in rows) for update in batches.plan(0)]
    assert set(parts) == {4} and np.mean([len(update) for update in batches.plan(0)]) < 2
    assert max(targets) - min(targets) < 1024 and len(targets) == len(parts)
    larger = of_lengths(lengths, 40000)
    larger.resize(planning.GPU_PARTS._replace(padded=False))
    assert {len(update) for update in larger.plan(0)} == {3}
    real = [sum(lengths[row][1] for row in rows) for update in larger.plan(0) for rows in update]
    assert max(real) < 16384
    larger.resize(planning.GPU_PARTS)
    padded = [len(rows) * 2 * max(lengths[row][1] for row in rows) for update in larger.plan(0) for rows in update]
    assert max(padded) <= 2 * planning.GPU_PARTS.tokens and all(2 < len(update) < 8 for update in larger.plan(0))


@settings(max_examples=30)
@given(lengths=lengths, micro_batches=st.integers(1, 5), update=st.integers(0, 9))
def test_accumulation_cuts_the_same_rows(lengths: list[tuple[int, int]], micro_batches: int, update: int) -> None:
    source = [[100 + index] * s for index, (s, _) in enumerate(lengths)]
    target = [[100 + index] * t for index, (_, t) in enumerate(lengths)]
    batches = make(source, target)

    def content(micro_batches: int) -> list[tuple[list[int], list[int]]]:
        found = []
        for part in batches.parts(update, micro_batches):
            batch = part.batch
            source = batch.inputs["source_ids"]
            assert source.shape[0] > 0 and part.weights == {}
            for ids, real, labels in zip(source, batch.real("source_ids"), batch.labels["vocabulary"]):
                found.append((ids[real].tolist(), labels[labels >= 0].tolist()))
        return found

    whole = content(1)
    assert content(micro_batches) == whole
    targets = sum(part.batch.targets for part in batches.parts(update, micro_batches))
    assert targets == sum(len(labels) for _, labels in whole)


def order_of(batches: planning.PlannedBatches, update: int) -> list[list[int]]:
    return [part.tolist() for part in batches.rows(update)]


def test_the_order_is_a_function_of_seed_epoch_and_index_and_updates_hold_as_many_targets() -> None:
    """No stream: asked for in any order, by another object, the same update is the same; the next epoch is another."""
    lengths = [(int(s), int(t)) for s, t in np.random.default_rng(0).integers(1, 30, (400, 2))]
    one, other = of_lengths(lengths, 500), of_lengths(lengths, 500)
    count = one.updates_per_epoch
    forward = [order_of(one, update) for update in range(2 * count)]
    backward = [order_of(other, update) for update in reversed(range(2 * count))]
    assert forward == backward[::-1]
    assert forward[:count] != forward[count:] and sorted(map(str, forward[:count])) != sorted(map(str, forward[count:]))
    assert order_of(of_lengths(lengths, 500, seed=2), 0) != forward[0]
    # within an eighth of the budget at natural sizes: parts have round numbers of examples
    lengths = natural(8000)
    batches = of_lengths(lengths, 4096)
    total = sum(t + 1 for _, t in lengths)
    assert batches.updates_per_epoch == round(total / 4096)
    sizes = [sum(lengths[row][1] + 1 for part in update for row in part) for update in batches.plan(0)]
    assert max(abs(size - total / len(sizes)) for size in sizes) < 512


def natural(count: int) -> list[tuple[int, int]]:
    """Lengths as in translated prose: log-normal about 20 tokens, target about as long as the source."""
    g = np.random.default_rng(0)
    source = np.clip(np.exp(g.normal(3.0, 0.6, count)), 1, 120)
    target = np.clip(source * np.exp(g.normal(0.05, 0.2, count)), 1, 120)
    return list(zip(source.astype(int).tolist(), target.astype(int).tolist()))


def test_padding_stays_under_five_percent_as_a_plan_sorts_like_lengths_together() -> None:
    """Performance goal; and the number reported is what the tensors hold."""
    assert 0 < of_lengths(natural(30_000), 4096).padding() < 0.05
    small = of_lengths(natural(300), 600)
    computed = real = 0
    for update in range(small.updates_per_epoch):
        for batch in (part.batch for part in small.parts(update)):
            computed += batch.inputs["source_ids"].numel() + batch.labels["vocabulary"].numel()
            real += int(batch.real("source_ids").sum()) + batch.targets
    assert small.padding() == pytest.approx(1 - real / computed, abs=1e-12)
    # within a part, target lengths differ by one step of the order at most, in one window
    g = np.random.default_rng(1)
    target = g.integers(1, 60, 5000)
    parts = [part for update in planning.plan(g.integers(1, 60, 5000), target, 10, 8, 1, 0) for part in update]
    spreads = sorted(int(np.ptp(target[part])) for part in parts)
    assert spreads[len(spreads) // 2] <= 3


def test_an_epoch_drawn_anew_keeps_its_place_and_its_count() -> None:
    """A store of epochs (BPE dropout) encodes once an epoch visited, and going back gives the same rows again."""
    calls: list[int] = []

    def encode(epoch: int) -> MemoryStore:
        calls.append(epoch)
        source = Ragged([[epoch] * (3 + index % (epoch + 2)) for index in range(50)])
        return MemoryStore({"source": source, "target": Ragged([[7, 8]] * 50)})

    first_store = MemoryStore({"source": Ragged([[1]] * 50), "target": Ragged([[7, 8]] * 50)})
    objective = SequenceToSequence(PAD, START, EOS)
    batches = planning.PlannedBatches(EpochStores(first_store, encode), objective, budget=30, seed=1)
    count = batches.updates_per_epoch

    def sources(update: int) -> list[list[list[int]]]:
        return [part.batch.inputs["source_ids"].tolist() for part in batches.parts(update)]

    first, later = sources(0), sources(count)
    assert first != later and sources(0) == first
    assert calls == [0, 1, 0] and batches.updates_per_epoch == count
    assert {x for batch in later for row in batch for x in row} <= {1, EOS, PAD}


@given(count=st.integers(0, 300), key=st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=3))
def test_a_permutation_has_every_number_once_and_is_a_function_of_its_key(count: int, key: list[int]) -> None:
    order = permutation(count, *key)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == permutation(count, *key).tolist()


def test_hashes_are_uniform_and_depend_on_key_order_and_index_alone_and_shuffles_are_fair() -> None:
    """χ² of each of the eight bytes within 5σ; the first of many are the first of few."""
    found = hashes(1 << 16, 1, 2)
    data = found.view(np.uint8).reshape(-1, 8)
    for lane in range(8):
        counts = np.bincount(data[:, lane], minlength=256)
        statistic = float(((counts - 256.0) ** 2 / 256).sum())
        assert abs(statistic - 255) < 5 * (2 * 255) ** 0.5
    assert hashes(10, 1, 2).tolist() == found[:10].tolist()
    assert len({tuple(hashes(4, *key).tolist()) for key in ((1, 2), (2, 1), (1,), (1, 3), (1, 2, 0))}) == 5
    # every one of the 24 orders of four things comes up, about equally often over seeds
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(4800):
        order = tuple(permutation(4, seed, 1).tolist())
        counts[order] = counts.get(order, 0) + 1
    statistic = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert len(counts) == 24 and abs(statistic - 23) < 5 * (2 * 23) ** 0.5
    places = [permutation(100, seed).tolist().index(0) for seed in range(500)]
    assert all(a != b for a, b in pairwise(places)) or len(set(places)) > 90


def test_parts_have_round_numbers_of_examples() -> None:
    """Multiples of 32 from 128 up, of 16 from 64 up, and on, but for the last: shapes that come again are quicker."""
    sizes = [len(part) for update in of_lengths(natural(8000), 4096).plan(0) for part in update]
    odd = [size for size in sizes if size % (1 << max(0, size.bit_length() - 3))]
    assert len(odd) <= 1 and len(set(sizes)) < len(sizes) / 2
    assert planning.round_cuts(np.array([140, 280, 420, 421])).tolist() == [128, 288, 416, 421]
    assert planning.round_cuts(np.array([3, 3, 10])).tolist() == [3, 3, 10]


def labelled(lengths: list[int], budget: int) -> planning.PlannedBatches:
    """Texts of these lengths with a label each."""
    columns = {"ids": [[9] * length for length in lengths], "segments": [[0] * length for length in lengths]}
    columns["label"] = [[0]] * len(lengths)
    head = HeadConfig("classification", labels=("a", "b"))
    store = MemoryStore({name: Ragged(rows) for name, rows in columns.items()})
    objective = Labels(presets.bert_tiny(heads=(head,)), head)
    return planning.PlannedBatches(store, objective, budget=budget, seed=1, equal_examples=True)


@pytest.mark.parametrize("budget", [16, 32, 128])
def test_updates_of_labelled_texts_have_as_many_texts_short_or_long(budget: int) -> None:
    """Else a long text, in an update of few, would have a larger weight in the gradient than a short one."""
    batches = labelled([length + 1 for length, _ in natural(4096)], budget)
    counts = [sum(len(part) for part in update) for update in batches.plan(0)]
    assert counts == [budget] * (4096 // budget)
    seen = [row for update in batches.plan(0) for part in update for row in part.tolist()]
    assert sorted(seen) == list(range(4096)) and batches.padding() < 0.05


def test_long_texts_are_cut_in_pieces_and_labelled_texts_have_few_shapes() -> None:
    """Sixteen texts of 500 tokens are two pieces of eight; an update of sixteen short ones is one part."""
    batches = labelled([500] * 16 + [10] * 160, 16)
    sizes = sorted([len(part) for part in update] for update in batches.plan(0))
    assert sizes == [[8, 8]] + [[16]] * 10
    (huge,) = labelled([9000] * 2, 2).plan(0)
    assert [len(part) for part in huge] == [1, 1]
    # each shape keeps some 5 MiB of compiled products and more; texts of any length gave ever new ones
    batches = labelled([length + 1 for length, _ in natural(8192)], 16)
    shapes, longest, real, computed = set(), set(), 0, 0
    for update in range(400):
        for part in batches.parts(update):
            ids = part.batch.inputs["ids"]
            shapes.add(tuple(ids.shape))
            longest.add(int(part.batch.lengths["ids"].max()))
            real, computed = real + int(part.batch.lengths["ids"].sum()), computed + ids.numel()
    assert len({length for _, length in shapes}) < 0.6 * len(longest) and len(shapes) < 40
    assert computed < 1.08 * real


def test_rows_are_padded_to_round_lengths_and_updates_mix_lengths_in_parts() -> None:
    """The longest row's own length up to 15 tokens, then at most an eighth more, never more than a network reads."""
    rounded = {length: planning.round_length(np.array([1, length])) for length in range(1, 600)}
    assert all(length <= value <= 1.125 * length for length, value in rounded.items())
    assert [rounded[length] for length in (1, 15, 17, 33, 65, 127, 129, 513)] == [1, 15, 18, 36, 72, 128, 144, 576]
    assert len(set(rounded.values())) == 15 + 8 * 5 + 3
    assert planning.round_length(np.array([513]), 514) == 514 and planning.round_length(np.array([500]), 512) == 512
    assert planning.round_length(np.array([], dtype=np.int64)) == 0
    # one part of each range of lengths, so that an update is no sample of one or two lengths; each example once
    lengths = np.random.default_rng(3).permutation(np.arange(2, 258).repeat(40))
    updates = planning.plan(lengths, lengths, 64, 4, 1, 0)
    assert sorted(np.concatenate([part for update in updates for part in update]).tolist()) == list(range(len(lengths)))
    means = np.array([sorted(lengths[part].mean() for part in update) for update in updates])  # (64,4)
    assert (means.max(axis=0)[:-1] <= means.min(axis=0)[1:]).all()
    assert len({tuple(row) for row in means.tolist()}) == 64  # not the same ranges together each time
    assert [len(update) for update in planning.plan(lengths, lengths, 64, 4, 1, 1)] == [4] * 64
    alike = np.arange(20, 40).repeat(200)
    different = np.exp(np.linspace(1, 6, 4000)).astype(np.int64)  # 2 ... 403
    assert planning.least_parts(alike, 30) == 1 and planning.least_parts(different, different.sum() // 4096) == 4
    assert planning.least_parts(different, different.sum() // 2048) == 2  # none of fewer than 768 tokens
    assert planning.least_parts(different, different.sum() // 700) == 1


LABELS, PAIRS, UPDATES = 600, 400, 40
RANDOM = np.random.default_rng(3)
SOURCES = np.concatenate([RANDOM.integers(5, 60, LABELS), RANDOM.integers(4, 30, PAIRS)])
TARGETS = np.concatenate([np.full(LABELS, 2), RANDOM.integers(4, 30, PAIRS)])


def updates(random_updates: bool, epoch: int = 0) -> list[list[NDArray[np.int64]]]:
    return plan(SOURCES, TARGETS, UPDATES, 1, 7, epoch, random_updates=random_updates)


def test_an_epoch_has_every_example_once_in_equal_updates_of_both_tasks() -> None:
    planned = updates(True)
    assert len(planned) == UPDATES
    assert sorted(np.concatenate([part for parts in planned for part in parts]).tolist()) == list(range(len(SOURCES)))
    tokens = [sum(int(TARGETS[part].sum()) for part in parts) for parts in planned]
    assert max(abs(count - TARGETS.sum() / UPDATES) for count in tokens) <= TARGETS.max()
    assert all((a == b).all() for a, b in zip(planned[3], updates(True)[3]))
    assert sorted(np.concatenate(planned[0])) != sorted(np.concatenate(updates(True, epoch=1)[0]))
    lengths = np.array([1, 90, 1, 1, 1, 40])
    for count, epoch in product(range(1, 7), range(6)):  # the longest may come last
        planned = plan(lengths, lengths, count, 1, 5, epoch, random_updates=True)
        assert len(planned) == count and all(parts and all(map(len, parts)) for parts in planned)
    assert [name for name, spec in TASKS.items() if spec.several_tasks] == ["text-to-text"]

    def mixed(planned: list[list[NDArray[np.int64]]]) -> int:
        shares = [float((np.concatenate(parts) < LABELS).mean()) for parts in planned]
        return sum(0.1 < share < 0.95 for share in shares)

    assert mixed(updates(True)) == UPDATES and mixed(updates(False)) < UPDATES / 4
    sizes = [int(SOURCES[part].max() + TARGETS[part].max()) * len(part) for parts in updates(True) for part in parts]
    assert max(sizes) <= 4096
    long = _cheapest_parts(np.array([9000, 3, 9000]), np.array([3, 3, 9000]), CPU_PARTS)
    assert sorted(part.tolist() for part in long) == [[0], [1], [2]]
    for size in (CPU_PARTS, GPU_PARTS):
        parts = _cheapest_parts(np.full(50_000, 6), np.full(50_000, 2), size)
        assert sum(map(len, parts)) == 50_000 and max(map(len, parts)) <= 2 * size.tokens // 8


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_are_the_cheapest_of_all_cuts(seed: int) -> None:
    random = np.random.default_rng(seed)
    sources, targets = random.integers(1, 900, 9), random.integers(1, 300, 9)
    order = np.lexsort((sources, targets))

    def cost(parts: list[NDArray[np.int64]]) -> int:
        return sum(int(sources[part].max() + targets[part].max()) * len(part) + CPU_PARTS.cost for part in parts)

    cuts = [cut for count in range(9) for cut in combinations(range(1, 9), count)]
    divisions = [[order[a:b] for a, b in pairwise((0, *cut, 9))] for cut in cuts]
    small = [parts for parts in divisions if all(cost([part]) - CPU_PARTS.cost <= 4096 for part in parts)]
    assert len(small) < len(divisions) and cost(_cheapest_parts(sources, targets, CPU_PARTS)) == min(map(cost, small))
