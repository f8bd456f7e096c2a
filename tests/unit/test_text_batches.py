"""Texts as examples: what is guessed, how tokens are hidden, and batches that can be sought (E1, E2)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.data.batches import Ragged
from atento.data.text_batches import Masked, NextToken, TextBatches, windows

PAD, UNK, BOS, EOS, MASK, V = 0, 1, 2, 3, 4, 50


def sequences(count: int, seed: int, longest: int = 20) -> Ragged:
    """Random texts of 1 to `longest` tokens between BOS and EOS."""
    random = np.random.default_rng(seed)
    return Ragged([[BOS, *random.integers(5, V, random.integers(1, longest + 1)).tolist(), EOS] for _ in range(count)])


def masked(seed: int = 1, rate: float = 0.15) -> Masked:
    return Masked(PAD, MASK, first_word=5, vocab_size=V, seed=seed, rate=rate)


def test_e1_each_token_is_guessed_from_those_before_it() -> None:
    batch = NextToken(PAD).lay_out(Ragged([[BOS, 7, 8, EOS], [BOS, 9, EOS]]), np.array([0, 1]), 0)
    assert batch.ids.tolist() == [[BOS, 7, 8], [BOS, 9, PAD]]
    assert batch.labels.tolist() == [[7, 8, EOS], [9, EOS, -1]]
    assert batch.token_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.targets == 5


def test_e2_what_is_hidden_is_counted_fairly() -> None:
    """Rates within 3 sigma over a million tokens; the marks at both ends and padding are never chosen."""
    rows = Ragged([[BOS, *np.random.default_rng(i).integers(5, V, 250).tolist(), EOS] for i in range(200)])
    layout, chosen, fates, read = masked(), 0, np.zeros(3), 0
    for epoch in range(20):
        batch = layout.lay_out(rows, np.arange(200), epoch)
        whole = rows.padded(np.arange(200), PAD)
        hidden = batch.labels >= 0
        assert not hidden[:, 0].any() and not hidden[:, -1].any()
        assert torch.equal(batch.labels[hidden], whole[hidden])
        assert torch.equal(batch.ids[~hidden], whole[~hidden])
        chosen, read = chosen + int(hidden.sum()), read + 200 * 250
        now, was = batch.ids[hidden], whole[hidden]
        fates += [int((now == MASK).sum()), int(((now != MASK) & (now != was)).sum()), int((now == was).sum())]
        assert int(now.min()) >= MASK and int(now.max()) < V
    assert read == 1_000_000
    assert abs(chosen - 0.15 * read) < 3 * np.sqrt(read * 0.15 * 0.85)
    same = 0.1 / (V - 5)  # a drawn token may be the one that stood there
    for got, share in zip(fates, (0.8, 0.1 - same, 0.1 + same)):
        assert abs(got - share * chosen) < 3 * np.sqrt(chosen * share * (1 - share))


def test_e2_short_texts_hide_one_token_and_share_fairly_beyond_it() -> None:
    rows = Ragged([[BOS, 7, EOS]] * 10 + [[BOS, *range(5, 15), EOS]] * 4000)
    batch = masked().lay_out(rows, np.arange(len(rows)), 0)
    counts = (batch.labels >= 0).sum(dim=1)
    assert counts[:10].tolist() == [1] * 10
    assert set(counts[10:].tolist()) == {1, 2}  # 15 % of ten
    assert abs(float(counts[10:].float().mean()) - 1.5) < 3 * 0.5 / np.sqrt(4000)


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 5))
def test_hidden_tokens_depend_on_seed_epoch_and_row_alone(count: int, epoch: int, seed: int) -> None:
    rows, layout = sequences(count, seed), masked(seed)
    whole = layout.lay_out(rows, np.arange(count), epoch)
    last = layout.lay_out(rows, np.array([count - 1]), epoch)
    length = int(rows.lengths[-1])
    assert torch.equal(last.ids[0], whole.ids[-1, :length])
    assert torch.equal(last.labels[0], whole.labels[-1, :length])


def test_other_epochs_hide_other_tokens() -> None:
    rows = sequences(50, 3)
    first, second = (masked().lay_out(rows, np.arange(50), epoch).labels for epoch in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("layout", [NextToken(PAD), masked()])
def test_an_epoch_holds_every_text_once_and_can_be_sought(layout: NextToken | Masked) -> None:
    rows = sequences(300, 5)
    budget = 200 if isinstance(layout, NextToken) else 30
    batches = TextBatches(rows, layout, budget=budget, seed=7)
    assert len(batches) == 300 and batches.updates_per_epoch > 10
    seen = [part for update in range(batches.updates_per_epoch) for part in batches.parts(update)]
    assert sum(len(part.ids) for part in seen) == 300
    if isinstance(layout, NextToken):
        assert sum(part.targets for part in seen) == int((rows.lengths - 1).sum())
    later = TextBatches(rows, layout, budget=budget, seed=7)
    one, other = list(batches.parts(40)), list(later.parts(40))
    assert all(torch.equal(a.ids, b.ids) and torch.equal(a.labels, b.labels) for a, b in zip(one, other, strict=True))
    cut = list(batches.parts(40, micro_batches=2))
    assert sum(part.targets for part in cut) == sum(part.targets for part in one)
    whole = list(batches.in_order(150))
    assert sum(len(part.ids) for part in whole) == 300
    assert max(part.token_mask.sum() for part in whole) <= 150 + 22


@given(st.lists(st.integers(5, 49), max_size=30), st.integers(3, 9))
def test_windows_lose_nothing(ids: list[int], longest: int) -> None:
    plain = windows(ids, longest, overlap=0)
    assert [token for piece in plain for token in piece] == ids and max(map(len, plain)) <= longest
    text = [BOS, *ids, EOS]
    lapped = windows(text, longest, overlap=1)
    assert max(map(len, lapped)) <= longest and min(map(len, lapped)) >= 2
    assert [token for piece in lapped for token in piece[1:]] == text[1:]  # each token is a label once
    assert all(a[-1] == b[0] for a, b in pairwise(lapped))
