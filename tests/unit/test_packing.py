"""Texts packed into full rows: no token lost or learned twice, and isolated texts as if each were by itself (E1)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.attention.masks import causal
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import MaskConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.causal import Causal, PackedCausal, Prefix, packed
from atento.data.objectives.preparation import windows
from atento.inference.choose import step_function
from atento.networks import build_network
from atento.networks.interface import mask_of
from atento.training.losses import Call, losses

PAD, BOS, EOS, V = 0, 2, 3, 40
Rows = list[list[int]]
ROWS = st.lists(st.lists(st.integers(5, V - 1), max_size=12), min_size=1, max_size=12)


def whole(rows: Rows) -> Rows:
    return [[BOS, *row, EOS] for row in rows]


def lay_out(store: MemoryStore, *, isolated: bool) -> Batch:
    """All rows as one batch."""
    return PackedCausal(PAD, isolated).batch(store, np.arange(len(store)), Draw(1, 0))


def test_e1_the_worked_example() -> None:
    """As `PackedCausal` shows it: o=5 gato=6 a=7 casa=8."""
    store = packed(whole([[5, 6], [7, 8]]), 5)
    rows = store["ids"]
    assert [rows[i].tolist() for i in range(len(rows))] == [[BOS, 5, 6, EOS, BOS, 7], [7, 8, EOS]]
    batch = lay_out(store, isolated=True)
    assert batch.inputs["ids"].tolist() == [[BOS, 5, 6, EOS, BOS], [7, 8, PAD, PAD, PAD]]
    assert batch.labels["vocabulary"].tolist() == [[5, 6, EOS, -1, 7], [8, EOS, -1, -1, -1]]
    assert batch.mask is not None  # who sees whom, from the documents 0 0 0 0 1 and 1 1 - - -
    allowed = batch.mask.dense(5)[:, 0].int().tolist()
    assert allowed[0] == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
    assert allowed[1][:2] == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert batch.inputs["position_ids"][0].tolist() == [0, 1, 2, 3, 0]
    assert batch.inputs["position_ids"][1, :2].tolist() == [0, 1] and batch.targets == 6
    running = lay_out(store, isolated=False)
    assert running.mask is None and running.inputs.keys() == {"ids"}
    assert torch.equal(running.inputs["ids"], batch.inputs["ids"])
    assert torch.equal(running.labels["vocabulary"], batch.labels["vocabulary"])


@given(ROWS, st.integers(1, 15), st.booleans())
def test_no_token_is_lost_and_none_is_learned_twice(rows: Rows, longest: int, isolated: bool) -> None:
    texts = whole(rows)
    store = packed(texts, longest)
    batch, objective = lay_out(store, isolated=isolated), PackedCausal(PAD, isolated)
    labels = batch.labels["vocabulary"]
    assert labels[labels >= 0].tolist() == [token for text in texts for token in text[1:]]
    assert batch.inputs["ids"].shape[1] <= longest
    assert objective.sizes(store).sum() == batch.targets == sum(len(text) - 1 for text in texts)
    if longest > 1:
        assert all(batch.real("ids")[:-1].sum(dim=1) == longest)  # full, but for the last
    every = PlannedBatches(store, objective, budget=20, seed=3)
    seen = [part.batch for update in range(every.updates_per_epoch) for part in every.parts(update)]
    assert sum(part.targets for part in seen) == batch.targets and all(part.targets for part in seen)


POSITIONS: list[Any] = ["sinusoidal", "learned", "rotary", "alibi", "t5"]


WINDOWED = [f"network.mask={{kind: window, left: 1, right: 0{more}}}" for more in ("", ", layers: [1]")]


@pytest.mark.parametrize("key", [*(f"network.positions={positions}" for positions in POSITIONS), *WINDOWED])
def test_isolated_texts_cost_what_each_costs_by_itself(key: str) -> None:
    """The packed loss is the sum of the unpacked ones, wherever a text comes to stand; a window holds inside each."""
    recipe = load_recipe("micro-world-lm", [key, "network.d_model=16", "network.d_ff=16"])
    network = build_network(_sized(recipe.recipe.network)).double().eval()
    random = np.random.default_rng(5)
    texts = whole([random.integers(5, V, size).tolist() for size in (3, 7, 1, 0, 9, 4, 2)])
    apart = Ragged([piece for text in _as_cut(texts, 10) for piece in windows(text, 11, overlap=1)])
    alone = Causal(PAD).batch(MemoryStore({"ids": apart}), np.arange(len(apart)), Draw(1, 0))
    store = packed(texts, 10)
    together = lay_out(store, isolated=True)
    assert len(store) < len(apart) and together.targets == alone.targets
    with torch.no_grad():
        laid = (alone, together, lay_out(store, isolated=False))
        wanted, found, running = (losses(network, batch, Call())["vocabulary"][0] for batch in laid)
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)
    assert abs(float(running) - float(wanted)) > 1e-3  # as one running text they see each other


@pytest.mark.parametrize("layers", [None, (1,)], ids=["all", "one"])
@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
@pytest.mark.parametrize("objective", ["prefix", "causal"])
def test_c10_a_window_holds_under_the_mask_of_an_objective(architecture, objective, layers) -> None:
    """In training, where two layers with a window of 1 reach 2 tokens, and as much in generation."""
    window = MaskConfig("window", left=1, right=0 if architecture == "decoder" else 1, layers=layers)
    heads = (HeadConfig("masked-language-model"),) if architecture == "encoder" else ()
    config = NetworkConfig(architecture, d_model=16, d_ff=32, n_heads=2, n_layers=2, mask=window, heads=heads)
    network = build_network(_sized(config)).double().eval()
    made = Prefix(PAD) if objective == "prefix" else Causal(PAD, causal() if architecture == "encoder" else None)
    texts = [[2, first, 6, 7, 8, 9, 10, 11, 12, 3] for first in (5, 13)]
    batches = [made.batch(MemoryStore({"ids": Ragged([text])}), np.arange(1), Draw(1, 4)) for text in texts]
    with torch.no_grad():
        outputs = [network(**batch.inputs, **mask_of(network, batch.mask)) for batch in batches]
    equal = [torch.equal(*(output.hidden[0, at] for output in outputs)) for at in range(9)]
    assert equal[4:] == [layers is None] * 5 and not equal[1], equal

    ids, labels = batches[0].inputs["ids"], batches[0].labels["vocabulary"]
    known = int((labels < 0).sum()) + 1  # tokens of the prefix
    steps = step_function(network, kind="plain", prompt=objective)
    state, tokens = steps.begin(ids[:, : known + 1], None), ids[:, known]
    for at in range(known, ids.shape[1]):
        logits, state = steps.step(tokens, state)  # type: ignore[arg-type]
        torch.testing.assert_close(logits, outputs[0].logits[:, at])
        tokens = ids[:, min(at + 1, ids.shape[1] - 1)]


def test_what_packing_is_not_for() -> None:
    with pytest.raises(RecipeError, match=r"data.pack isolated needs network.architecture decoder: a recurrent"):
        load_recipe("micro-world-lm", ["network.architecture=recurrent-lm", "data.pack=isolated"], environment={})
    load_recipe("micro-world-lm", ["network.architecture=recurrent-lm", "data.pack=stream"], environment={})
    with pytest.raises(RecipeError, match=r"data.pack must be one of none, isolated, stream: got true"):
        load_recipe("micro-world-lm", ["data.pack=true"], environment={})
    [only] = load_recipe("micro-world-mlm", ["data.pack=stream"], environment={}).warnings
    assert only == "command line: data.pack has no effect: only the objective causal packs texts"


def _sized(config: NetworkConfig) -> NetworkConfig:
    torch.manual_seed(1)
    return replace(config, vocab_size=V, n_layers=2, n_heads=2, dropout=0.0, max_len=32)


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
