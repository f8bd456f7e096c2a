"""Texts as examples: what is guessed, how tokens are hidden, and batches that can be sought (E1, E2)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged
from atento.data.batches.masking import Masking
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.causal import Causal
from atento.data.objectives.masked import Masked
from atento.data.objectives.preparation import windows

PAD, UNK, BOS, EOS, MASK, V = 0, 1, 2, 3, 4, 50


def sequences(count: int, seed: int, longest: int = 20) -> Ragged:
    """Random texts of 1 to `longest` tokens between BOS and EOS."""
    random = np.random.default_rng(seed)
    return Ragged([[BOS, *random.integers(5, V, random.integers(1, longest + 1)).tolist(), EOS] for _ in range(count)])


def masked(rate: float = 0.15) -> Masked:
    return Masked(PAD, Masking(MASK, np.arange(5, V), rate=rate))


def lay_out(objective: Causal | Masked, rows: Ragged, chosen: list[int] | range, epoch: int, seed: int = 1) -> Batch:
    return objective.batch(MemoryStore({"ids": rows}), np.array(chosen), Draw(seed, epoch))


def batches_of(rows: Ragged, objective: Causal | Masked, budget: int) -> PlannedBatches:
    return PlannedBatches(MemoryStore({"ids": rows}), objective, budget=budget, seed=7)


def test_e1_e2_what_is_hidden_is_counted_fairly_and_tokens_are_guessed_from_those_before() -> None:
    """Rates within 3 sigma over a million tokens; the marks at both ends and padding are never chosen."""
    rows = Ragged([[BOS, *np.random.default_rng(i).integers(5, V, 250).tolist(), EOS] for i in range(200)])
    objective, chosen, fates, read = masked(), 0, np.zeros(3), 0
    for epoch in range(20):
        batch = lay_out(objective, rows, range(200), epoch)
        ids, labels = batch.inputs["ids"], batch.labels["vocabulary"]
        whole = rows.padded(np.arange(200), PAD)
        hidden = labels >= 0
        assert not hidden[:, 0].any() and not hidden[:, -1].any() and torch.equal(labels[hidden], whole[hidden])
        assert torch.equal(ids[~hidden], whole[~hidden])
        chosen, read = chosen + int(hidden.sum()), read + 200 * 250
        now, was = ids[hidden], whole[hidden]
        fates += [int((now == MASK).sum()), int(((now != MASK) & (now != was)).sum()), int((now == was).sum())]
        assert int(now.min()) >= MASK and int(now.max()) < V
    assert read == 1_000_000 and abs(chosen - 0.15 * read) < 3 * np.sqrt(read * 0.15 * 0.85)
    same = 0.1 / (V - 5)  # a drawn token may be the one that stood there
    for got, share in zip(fates, (0.8, 0.1 - same, 0.1 + same)):
        assert abs(got - share * chosen) < 3 * np.sqrt(chosen * share * (1 - share))
    rows = Ragged([[BOS, 7, EOS]] * 10 + [[BOS, *range(5, 15), EOS]] * 4000)
    counts = (lay_out(masked(), rows, range(len(rows)), 0).labels["vocabulary"] >= 0).sum(dim=1)
    assert counts[:10].tolist() == [1] * 10
    assert set(counts[10:].tolist()) == {1, 2}  # 15 % of ten
    assert abs(float(counts[10:].float().mean()) - 1.5) < 3 * 0.5 / np.sqrt(4000)
    rows = sequences(50, 3)
    first, second, other = (
        lay_out(masked(), rows, range(50), epoch, seed).labels["vocabulary"] for epoch, seed in ((0, 1), (1, 1), (0, 2))
    )
    assert not torch.equal(first, second) and not torch.equal(first, other)
    batch = lay_out(Causal(PAD), Ragged([[BOS, 7, 8, EOS], [BOS, 9, EOS]]), [0, 1], 0)
    assert batch.inputs.keys() == {"ids"}  # padding is on the right, where no query looks
    assert batch.inputs["ids"].tolist() == [[BOS, 7, 8], [BOS, 9, PAD]]
    assert batch.labels["vocabulary"].tolist() == [[7, 8, EOS], [9, EOS, -1]]
    assert batch.real("ids").tolist() == [[True, True, True], [True, True, False]] and batch.targets == 5


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 5))
def test_hidden_tokens_depend_on_seed_epoch_and_row_alone(count: int, epoch: int, seed: int) -> None:
    rows, objective = sequences(count, seed), masked()
    whole = lay_out(objective, rows, range(count), epoch, seed)
    last = lay_out(objective, rows, [count - 1], epoch, seed)
    length = int(rows.lengths[-1])
    assert torch.equal(last.inputs["ids"][0], whole.inputs["ids"][-1, :length])
    assert torch.equal(last.labels["vocabulary"][0], whole.labels["vocabulary"][-1, :length])


@pytest.mark.parametrize("objective", [Causal(PAD), masked()])
def test_an_epoch_holds_every_text_once_and_can_be_sought(objective: Causal | Masked) -> None:
    rows = sequences(300, 5)
    budget = 200 if isinstance(objective, Causal) else 30
    batches = batches_of(rows, objective, budget)
    assert len(batches) == 300 and batches.updates_per_epoch > 10
    seen = [part.batch for update in range(batches.updates_per_epoch) for part in batches.parts(update)]
    assert sum(len(batch.inputs["ids"]) for batch in seen) == 300
    if isinstance(objective, Causal):
        assert sum(batch.targets for batch in seen) == int((rows.lengths - 1).sum())
    later = batches_of(rows, objective, budget)
    one, other = [part.batch for part in batches.parts(40)], [part.batch for part in later.parts(40)]
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.inputs["ids"], b.inputs["ids"])
        assert torch.equal(a.labels["vocabulary"], b.labels["vocabulary"])
    cut = list(batches.parts(40, micro_batches=2))
    assert sum(part.batch.targets for part in cut) == sum(batch.targets for batch in one)
    whole = list(batches.in_order(150))
    assert sum(len(batch.inputs["ids"]) for batch in whole) == 300
    assert max(int(batch.real("ids").sum()) for batch in whole) <= 150


@given(st.lists(st.integers(5, 49), max_size=30), st.integers(3, 9))
def test_windows_lose_nothing(ids: list[int], longest: int) -> None:
    plain = windows(ids, longest, overlap=0)
    assert [token for piece in plain for token in piece] == ids and max(map(len, plain)) <= longest
    text = [BOS, *ids, EOS]
    lapped = windows(text, longest, overlap=1)
    assert max(map(len, lapped)) <= longest and min(map(len, lapped)) >= 2
    assert [token for piece in lapped for token in piece[1:]] == text[1:]  # each token is a label once
    assert all(a[-1] == b[0] for a, b in pairwise(lapped))
