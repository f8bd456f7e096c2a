"""Batch-proof generation: each row as alone in any batch, order, padding or chunking, cached or not; float64 (M10)."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import OutputConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import Beam, Greedy, Hypothesis, Sample, generate
from atento.decoding.forced import forced_scores
from atento.networks import build_network

UNTIED = OutputConfig(tied=False)
CONFIG = NetworkConfig(vocab_size=13, d_model=8, d_ff=12, n_heads=2, n_layers=1, dropout=0.0, output=UNTIED)
FAMILIES = {
    "encoder-decoder": CONFIG,
    "decoder": replace(CONFIG, architecture="decoder"),
    "recurrent-seq2seq": replace(CONFIG, architecture="recurrent-seq2seq", n_heads=1, recurrent=RecurrentConfig()),
    "recurrent-lm": replace(CONFIG, architecture="recurrent-lm", n_heads=1, recurrent=RecurrentConfig("gru")),
}
STRATEGIES: list[Any] = [
    *(Greedy(), Beam(3, 0.6, 3), Beam(2, 1.0, 2, "shrinking"), Beam(3, 1.0, 2, until="sure")),
    *(Beam(4, 0.0, 3, until="likely", groups=2, diversity=0.7), Sample(n=2)),
    Sample(temperature=0.7, top_k=5, top_p=0.9),
]
PROMPTS = [[5, 6, 7, 8], [9], [4, 4, 12], [7, 11, 5, 10, 6], [8, 3]]
REQUIRED = [[[6], [7, 8]], [], [[12]], [], [[4, 4]]]
company = st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=6)


@cache
def network(family: str) -> Any:
    """The first of some random networks whose outputs are worth comparing."""
    for seed in range(200):
        torch.manual_seed(seed)
        made: Any = build_network(FAMILIES[family]).double().eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_(std=0.8)
        ids, real = padded(PROMPTS, "right", 0)
        found = generate(made, ids, Beam(3, 0.6, 3), max_new_tokens=7, token_mask=real)
        every = [one for row in found for one in row]  # of different lengths, some ended, unlike one another
        outputs = {(*one.ids,) for one in every}
        if len(outputs) > 8 and len({one.finished for one in every}) == 2 and len({*map(len, outputs)}) > 3:
            return made
    raise AssertionError("no random network of two hundred writes outputs worth comparing")


class Uncached:
    """A network as a step function that reads each row alone, unpadded and from the start, at every step."""

    def __init__(self, made: Any) -> None:
        self.made, config = made, made.config
        self.start_id, self.eos_id, self.pad_id = config.start_id, config.eos_id, config.pad_id
        self.writes_on = config.architecture in ("decoder", "recurrent-lm")
        if self.writes_on:
            self.first_tokens = lambda ids, real: torch.tensor([row[keep][-1] for row, keep in zip(ids, real)])

    def begin(self, ids: Tensor, token_mask: Tensor) -> "Histories":
        rows = [row[keep].tolist() for row, keep in zip(ids, token_mask)]
        return Histories([row[:-1] if self.writes_on else row for row in rows], [[] for _ in rows])

    def step(self, tokens: Tensor, state: "Histories") -> tuple[Tensor, "Histories"]:
        written = [[*before, token] for before, token in zip(state.written, tokens.tolist())]
        logits = []
        for row, out in zip(state.rows, written):
            if self.writes_on:
                found = self.made(torch.tensor([[*row, *out]])).logits
            else:
                found = self.made(torch.tensor([row]), torch.tensor([out])).logits
            logits.append(found[0, -1])
        return torch.stack(logits).detach(), Histories(state.rows, written)


class Histories:
    def __init__(self, rows: list[list[int]], written: list[list[int]]) -> None:
        self.rows, self.written = rows, written

    def select(self, rows: Tensor) -> "Histories":
        return Histories([self.rows[r] for r in rows.tolist()], [list(self.written[r]) for r in rows.tolist()])


def padded(rows: list[list[int]], side: str, spare: int) -> tuple[Tensor, Tensor]:
    """(B,S) and which are real: padding, and some more of it, on one side."""
    length = max(map(len, rows)) + spare
    ids, real = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length, dtype=torch.bool)
    for place, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        ids[place, where], real[place, where] = torch.tensor(row), True
    return ids, real


def written(made: Any, strategy: Any, order: list[int], side: str, spare: int, most: list[int], required: bool) -> Any:
    """Those prompts in that order; each has its own limit, seed and required words."""
    ids, real = padded([PROMPTS[row] for row in order], side, spare)
    own = {"max_new_tokens": [most[row] for row in order], "seed": [100 + row for row in order]}
    words = [REQUIRED[row] for row in order] if required else None
    return generate(made, ids, strategy, token_mask=real, required=words, **own)


@cache
def alone(family: str, number: int, row: int, most: int, required: bool) -> list[Hypothesis]:
    return written(network(family), STRATEGIES[number], [row], "right", 0, [most] * len(PROMPTS), required)[0]


def same(one: list[Hypothesis], other: list[Hypothesis]) -> None:
    assert [(h.ids, h.finished) for h in one] == [(h.ids, h.finished) for h in other]
    for a, b in zip(one, other):
        assert a.token_scores == pytest.approx(b.token_scores, abs=1e-10)
        assert a.score == pytest.approx(b.score, abs=1e-10)


@settings(max_examples=120)
@given(
    *(st.sampled_from(list(FAMILIES)), st.integers(0, len(STRATEGIES) - 1), company),
    *(st.sampled_from(["left", "right"]), st.integers(0, 3)),
    *(st.lists(st.sampled_from([1, 4, 7]), min_size=len(PROMPTS), max_size=len(PROMPTS)), st.integers(1, 6)),
)
def test_m10_the_same_in_any_batch_order_padding_and_chunks(family, number, order, side, spare, most, cut) -> None:
    made = network(family)
    for start in range(0, len(order), cut):  # in chunks of that many rows
        chunk = order[start : start + cut]
        found = written(made, STRATEGIES[number], chunk, side, spare, most, required=False)
        for row, hypotheses in zip(chunk, found):
            same(hypotheses, alone(family, number, row, most[row], False))


@settings(max_examples=25)
@given(family=st.sampled_from(list(FAMILIES)), order=company, side=st.sampled_from(["left", "right"]))
def test_m10_the_same_in_any_batch_where_words_are_required(family: str, order: list[int], side: str) -> None:
    found = written(network(family), STRATEGIES[1], order, side, 1, [6] * len(PROMPTS), required=True)
    for row, hypotheses in zip(order, found):
        same(hypotheses, alone(family, 1, row, 6, True))


@pytest.mark.parametrize("number", range(len(STRATEGIES)))
@pytest.mark.parametrize("family", FAMILIES)
def test_m10_the_same_with_a_cache_and_without(family: str, number: int) -> None:
    order, most = [3, 1, 2], [5] * len(PROMPTS)
    made = network(family)
    cached = written(made, STRATEGIES[number], order, "left", 1, most, required=False)
    uncached = written(Uncached(made), STRATEGIES[number], order, "right", 0, most, required=False)
    for one, other in zip(cached, uncached):
        same(one, other)


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3, 0.6)], ids=["greedy", "beam"])
@pytest.mark.parametrize("family", FAMILIES)
def test_m10_in_float32_only_ties_may_fall_otherwise(family: str, strategy: Any) -> None:
    """Rows that company changes must be ties: the two outputs' scores, by one pass in float64, within 1e-4."""
    exact, rough = network(family), deepcopy(network(family)).float()
    most, rows = [7] * len(PROMPTS), list(range(len(PROMPTS)))
    single = [written(rough, strategy, [row], "right", 0, most, required=False)[0][0] for row in rows]
    for order in (rows, rows[::-1], [*rows, *rows, *rows]):
        for row, [one] in zip(order, written(rough, strategy, order, "right", 2, most, required=False)):
            other = single[row]
            if one.ids == other.ids and one.finished == other.finished:
                continue
            ids, real = padded([PROMPTS[row]] * 2, "right", 0)
            both = [one.ids, other.ids]
            first, second = forced_scores(exact, ids, both, token_mask=real, finished=[one.finished, other.finished])
            assert sum(first) == pytest.approx(sum(second), abs=1e-4)
