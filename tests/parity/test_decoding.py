"""Greedy and beam search against `transformers` generate, on Marian networks with equal weights in both."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianMTModel

from atento.decoding import Beam, Greedy, generate
from marian import EOS, PAD, Pair, marian_pair
from test_decoding_parity import RESULT, same_n_best, until_end

LIMIT = 16
Pairs = list[tuple[Pair, MarianMTModel]]


def sources(count: int = 30) -> tuple[Tensor, Tensor]:
    """Random sources of 1 to 8 tokens and </s>, padded."""
    g = torch.Generator().manual_seed(0)
    source = torch.full((count, 9), PAD)
    for row in range(count):
        length = int(torch.randint(1, 9, (1,), generator=g))
        source[row, :length] = torch.randint(4, 23, (length,), generator=g)
        source[row, length] = EOS
    return source, source != PAD


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """The first three random networks whose outputs differ, several of whose searches end by themselves."""
    kept, (source, real) = [], sources()
    for seed in range(60):
        pair = marian_pair(spread=0.3, ends=3.0, seed=seed)
        found = generate(pair[0], source, Beam(5, 1.0, 5), max_new_tokens=LIMIT, min_new_tokens=3, token_mask=real)
        ended = sum(all(h.finished for h in row) for row in found)
        if 3 <= ended < len(found) and len({tuple(row[0].ids) for row in found}) > 7:
            kept.append(pair)
        if len(kept) == 3:
            return kept
    raise AssertionError("too few of sixty random networks end their outputs")


def theirs_generate(model: Any, width: int, penalty: float, least: int) -> tuple[Tensor, Any]:
    source, real = sources()
    options = RESULT | {"num_beams": width, "num_return_sequences": width, "length_penalty": penalty}
    options |= {"max_new_tokens": LIMIT, "min_new_tokens": least or None, "early_stopping": True}
    out = model.generate(input_ids=source, attention_mask=real.long(), **options)
    return out.sequences[:, 1:], getattr(out, "sequences_scores", None)


@pytest.mark.parametrize("which", range(3))
def test_h1_h12_greedy_writes_the_same_tokens(pairs: Pairs, which: int) -> None:
    ours, theirs = pairs[which]
    source, real = sources()
    expected, _ = theirs_generate(theirs, 1, 1.0, 0)
    found = generate(ours, source, Greedy(), max_new_tokens=LIMIT, token_mask=real)
    assert [(h.ids, h.finished) for [h] in found] == [until_end(row, EOS) for row in expected.tolist()]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(
    ("width", "penalty", "least"), [(2, 1.0, 0), (3, 0.6, 0), (4, 0.0, 0), (4, 1.0, 3), (5, 2.0, 0)]
)
def test_h6_h8_h9_beam_finds_the_same_n_best(pairs: Pairs, which: int, width: int, penalty: float, least: int) -> None:
    """Tokens, order and scores; theirs with `early_stopping=True` is our rule "fixed": the end counts in the length."""
    ours, theirs = pairs[which]
    source, real = sources()
    tokens, scores = theirs_generate(theirs, width, penalty, least)
    limits = {"max_new_tokens": LIMIT, "min_new_tokens": least}
    found = generate(ours, source, Beam(width, penalty, width), **limits, token_mask=real)
    assert same_n_best(found, tokens.tolist(), scores.tolist(), width, EOS)[1] >= 3
