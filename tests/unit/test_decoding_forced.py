"""Forced scores: those of the search that wrote the output, of one pass over the whole, of every family."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.decoding import Beam, Greedy, generate
from atento.decoding.forced import forced_scores
from atento.networks import build_network
from failing import fails
from test_batch_proof import FAMILIES as SHALLOW
from test_decoding_chains import EOS, START, Chain, ids

FAMILIES = {name: replace(config, n_layers=2) for name, config in SHALLOW.items()}
IDS = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0], [0, 0, 0, 7]])
REAL = IDS > 0


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    targets=st.lists(st.lists(st.sampled_from([0, 2, 3]), max_size=6), min_size=3, max_size=3),
    finished=st.lists(st.booleans(), min_size=3, max_size=3),
    prefix=st.sampled_from([(), (0,), (2, 2)]),
)
def test_h11_forced_scores(seed: int, targets: list[list[int]], finished: list[bool], prefix: tuple[int, ...]) -> None:
    chain = Chain.random(seed, 3, 4)
    prefix_ids = torch.tensor([prefix] * 3, dtype=torch.long) if prefix else None
    found = forced_scores(chain, ids(0, 1, 2), targets, finished=finished, prefix_ids=prefix_ids)
    for row, scores in enumerate(found):
        whole = [*targets[row], *([EOS] if finished[row] else [])]
        wanted = [chain.log_probs(row, [START, *prefix, *whole[:n]])[token] for n, token in enumerate(whole)]
        assert scores == pytest.approx(wanted, abs=1e-12)


@cache
def ending(family: str) -> Any:
    """The first of some random networks of which some outputs end and some are cut off."""
    for seed in range(50):
        torch.manual_seed(seed)
        network: Any = build_network(FAMILIES[family]).double().eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(std=0.7)
        found = generate(network, IDS, Beam(4, n_best=4), max_new_tokens=6, token_mask=REAL)
        if len({h.finished for row in found for h in row}) == 2:
            return network
    raise AssertionError("no random network of fifty ends some of its outputs")


@pytest.mark.parametrize("strategy", [Greedy(), Beam(4, 0.6, 4), Beam(4, 1.0, 4, groups=2, diversity=0.5)], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_h9_h11_a_beams_scores_are_recomputed(family: str, strategy: Any) -> None:
    """Every output of an n-best list, token by token, on every family; they sum to its log-probability."""
    network = ending(family)
    found = generate(network, IDS, strategy, max_new_tokens=6, token_mask=REAL)
    for rank in range(max(map(len, found))):
        rows = [row for row in range(3) if rank < len(found[row])]
        some = [found[row][rank] for row in rows]
        ended = [h.finished for h in some]
        scores = forced_scores(network, IDS[rows], [h.ids for h in some], token_mask=REAL[rows], finished=ended)
        for one, forced in zip(some, scores):
            assert forced == pytest.approx(one.token_scores, abs=1e-9)
            assert sum(forced) == pytest.approx(one.log_prob, abs=1e-9)


def test_h11_what_does_not_fit_is_refused() -> None:
    chain = Chain.random(0, 2, 4)
    for said, targets, finished in (
        ("`targets` gives one output a row: got 1 for 2 rows", [[2]], False),
        ("`finished` must give one value a row: got 1 for 2 rows", [[2], [2]], [True]),
        ("`targets` hold ids from 0 to 3, the vocabulary: got 9", [[2], [9]], False),
    ):
        fails(ValueError, said, forced_scores, chain, ids(0, 1), targets, finished=finished)
    assert forced_scores(chain, ids(0, 1), [[], []], finished=False) == [[], []]
