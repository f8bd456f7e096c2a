"""Texts packed into full rows: no token lost or learned twice, and isolated texts as if each were by itself (E1)."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.config.loading import load_recipe
from atento.config.network import NetworkConfig
from atento.data.batches import Ragged
from atento.data.packing import Packed, packed
from atento.data.text_batches import NextToken, TextBatches, windows
from atento.errors import RecipeError
from atento.networks import build_network
from atento.training.objectives import causal_loss

PAD, BOS, EOS, V = 0, 2, 3, 40
Rows = list[list[int]]
ROWS = st.lists(st.lists(st.integers(5, V - 1), max_size=12), min_size=1, max_size=12)


def whole(rows: Rows) -> Rows:
    return [[BOS, *row, EOS] for row in rows]


def test_e1_the_worked_example() -> None:
    """As `Packed` shows it: o=5 gato=6 a=7 casa=8."""
    rows, layout = packed(whole([[5, 6], [7, 8]]), 5, pad_id=PAD, isolated=True)
    assert [rows[i].tolist() for i in range(len(rows))] == [[BOS, 5, 6, EOS, BOS, 7], [7, 8, EOS]]
    batch = layout.lay_out(rows, np.array([0, 1]), 0)
    assert batch.ids.tolist() == [[BOS, 5, 6, EOS, BOS], [7, 8, PAD, PAD, PAD]]
    assert batch.labels.tolist() == [[5, 6, EOS, -1, 7], [8, EOS, -1, -1, -1]]
    assert batch.documents is not None and batch.documents.tolist() == [[0, 0, 0, 0, 1], [1, 1, -1, -1, -1]]
    assert batch.position_ids is not None and batch.position_ids[0].tolist() == [0, 1, 2, 3, 0]
    assert batch.position_ids[1, :2].tolist() == [0, 1] and batch.targets == 6
    running = Packed(PAD, layout.numbers, isolated=False).lay_out(rows, np.array([0, 1]), 0)
    assert running.documents is None and running.position_ids is None
    assert torch.equal(running.ids, batch.ids) and torch.equal(running.labels, batch.labels)


@given(ROWS, st.integers(1, 15), st.booleans())
def test_no_token_is_lost_and_none_is_learned_twice(rows: Rows, longest: int, isolated: bool) -> None:
    texts = whole(rows)
    made, layout = packed(texts, longest, pad_id=PAD, isolated=isolated)
    batch = layout.lay_out(made, np.arange(len(made)), 0)
    assert batch.labels[batch.labels >= 0].tolist() == [token for text in texts for token in text[1:]]
    assert batch.ids.shape[1] <= longest
    assert layout.targets(made.lengths).sum() == batch.targets == sum(len(text) - 1 for text in texts)
    if longest > 1:
        assert all(batch.token_mask[:-1].sum(dim=1) == longest)  # full, but for the last
    every = TextBatches(made, layout, budget=20, seed=3)
    seen = [part for update in range(every.updates_per_epoch) for part in every.parts(update)]
    assert sum(part.targets for part in seen) == batch.targets and all(part.targets for part in seen)


POSITIONS: list[Any] = ["sinusoidal", "learned", "rotary", "alibi", "t5"]


@pytest.mark.parametrize("positions", POSITIONS)
def test_isolated_texts_cost_what_each_costs_by_itself(positions: str) -> None:
    """The packed loss is the sum of the unpacked ones, in whatever row and place a text comes to stand."""
    recipe = load_recipe("micro-world-lm", [f"network.positions={positions}", "network.d_model=16", "network.d_ff=16"])
    network = build_network(_sized(recipe.recipe.network)).double().eval()
    random = np.random.default_rng(5)
    texts = whole([random.integers(5, V, size).tolist() for size in (3, 7, 1, 0, 9, 4, 2)])
    apart = Ragged([piece for text in _as_cut(texts, 10) for piece in windows(text, 11, overlap=1)])
    alone = NextToken(PAD).lay_out(apart, np.arange(len(apart)), 0)
    rows, layout = packed(texts, 10, pad_id=PAD, isolated=True)
    together = layout.lay_out(rows, np.arange(len(rows)), 0)
    assert len(rows) < len(apart) and together.targets == alone.targets
    with torch.no_grad():
        wanted, _ = causal_loss(network, alone, 0.0, None)
        found, _ = causal_loss(network, together, 0.0, None)
        running, _ = causal_loss(
            network, Packed(PAD, layout.numbers, False).lay_out(rows, np.arange(len(rows)), 0), 0.0, None
        )
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)
    assert abs(float(running) - float(wanted)) > 1e-3  # as one running text they see each other


def test_isolated_texts_do_not_see_each_other() -> None:
    network = build_network(_sized(load_recipe("micro-world-lm", ["network.d_model=16"]).recipe.network)).eval()
    for isolated in (True, False):
        logits = []
        for first in (5, 9):
            rows, layout = packed(whole([[first, 6], [7, 8, 9]]), 9, pad_id=PAD, isolated=isolated)
            batch = layout.lay_out(rows, np.array([0]), 0)
            with torch.no_grad():
                logits.append(_logits(network, batch)[0, 4:])
        assert torch.equal(*logits) == isolated


def test_recipes_say_what_packing_is_for() -> None:
    with pytest.raises(RecipeError, match=r"data.pack isolated needs network.architecture decoder: a recurrent"):
        load_recipe("micro-world-lm", ["network.architecture=recurrent-lm", "data.pack=isolated"], environment={})
    load_recipe("micro-world-lm", ["network.architecture=recurrent-lm", "data.pack=stream"], environment={})
    with pytest.raises(RecipeError, match=r"data.pack must be one of none, isolated, stream: got true"):
        load_recipe("micro-world-lm", ["data.pack=true"], environment={})
    [only] = load_recipe("micro-world-mlm", ["data.pack=stream"], environment={}).warnings
    assert (
        only == "command line: data.pack has no effect: it is for task language-modeling: got masked-language-modeling"
    )


def _sized(config: NetworkConfig) -> NetworkConfig:
    from dataclasses import replace

    torch.manual_seed(1)
    return replace(config, vocab_size=V, n_layers=2, n_heads=2, dropout=0.0, max_len=32)


def _logits(network: Any, batch: Any) -> torch.Tensor:
    from atento.attention.masks import causal, documents

    mask = None if batch.documents is None else causal() & documents(batch.documents)
    logits: torch.Tensor = network(batch.ids, mask=mask, position_ids=batch.position_ids).logits
    return logits


def _as_cut(texts: Rows, longest: int) -> Rows:
    """The texts as the rows' ends cut them: a piece begins with the token that the one before it ends with."""
    pieces: Rows = []
    at = 0
    for text in texts:
        cuts = [end - at for end in range(longest, at + len(text), longest) if at < end < at + len(text) - 1]
        begins = [0, *cuts]
        pieces += [text[begin : end + 1] for begin, end in zip(begins, [*cuts, len(text) - 1])]
        at += len(text)
    return pieces
