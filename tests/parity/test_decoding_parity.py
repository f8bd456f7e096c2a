"""Greedy and beam against `transformers` generate: each length penalty and each end of a search, on four families.

Float64 on both sides (their beam adds up in float32). At the length limit theirs lets outputs that were cut off compete
by score, so that a text that breaks off beats whole ones; ours puts those that ended first. There, what both call ended
must still be the same, in the same order.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import atento
from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.decoding.contract import Written
from atento.networks import EncoderDecoder
from released import saved, theirs

FAMILIES = ["gpt2", "bart", "marian", "t5"]
LIMIT, WIDTH, ROWS = 9, 4, 10
EOS = 5  # an ordinary token: BART begins with its own end, and would be inclined to stop there
EARLY: dict[str, bool | str] = {"filled": True, "likely": False, "sure": "never"}
Pair = tuple[Any, Any, Tensor, Tensor]
RESULT: dict[str, Any] = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "do_sample": False,
    "max_length": None,
}


def sources(pad_id: int, side: str) -> tuple[Tensor, Tensor]:
    """Rows of 2 to 8 tokens."""
    generator = torch.Generator().manual_seed(0)
    ids, real = torch.full((ROWS, 8), pad_id), torch.zeros(ROWS, 8, dtype=torch.bool)
    for row in range(ROWS):
        length = int(torch.randint(2, 9, (1,), generator=generator))
        where = slice(0, length) if side == "right" else slice(8 - length, 8)
        ids[row, where] = torch.randint(6, 36, (length,), generator=generator)
        real[row, where] = True
    return ids, real


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The first random pair whose outputs differ and end here and there: EOS has a longer vector than others."""
    name = str(request.param)
    for seed in range(20):
        other = theirs(name, seed).double()
        with torch.no_grad():
            for key, parameter in other.named_parameters():
                if ("norm" in key or "ln_" in key) and key.endswith("weight"):
                    parameter.add_(1.0)  # around 0 they would let little through of what was read
            other.get_output_embeddings().weight[EOS].mul_(3.0)
            if hasattr(other, "final_logits_bias"):
                other.final_logits_bias.zero_()
        network: Any = atento.load(saved(other, tmp_path_factory.mktemp("pair")), precision="float64").network
        ids, real = sources(network.config.pad_id, "right" if isinstance(network, EncoderDecoder) else "left")
        found = generate(network, ids, Beam(WIDTH, n_best=WIDTH), max_new_tokens=LIMIT, token_mask=real, eos_id=EOS)
        whole = sum(all(h.finished for h in row) for row in found)
        if 2 <= whole < ROWS and len({tuple(row[0].ids) for row in found}) >= 4:
            return network, other, ids, real
    raise AssertionError("no random pair of forty ends its outputs here and there")


def theirs_writes(
    pair: Pair, width: int, penalty: float, early: bool | str, forced: int | None = None
) -> tuple[list[list[int]], list[float]]:
    """Their new tokens and scores, `width` a row."""
    network, other, ids, real = pair
    seq2seq = isinstance(network, EncoderDecoder)
    options = RESULT | {"num_beams": width, "num_return_sequences": width, "length_penalty": penalty}
    options |= {"max_new_tokens": LIMIT, "eos_token_id": EOS, "pad_token_id": network.config.pad_id}
    options |= {
        "early_stopping": early if width > 1 else None,
        "forced_eos_token_id": forced,
        "forced_bos_token_id": None,
    }
    options |= {"decoder_start_token_id": network.config.start_id if seq2seq else None}
    options |= {"use_cache": False}  # theirs has no room for a decoder deeper than its encoder
    out = other.generate(ids, attention_mask=real.long(), **options)
    start = 1 if seq2seq else ids.shape[1]
    scores = getattr(out, "sequences_scores", None)
    return out.sequences[:, start:].tolist(), [] if scores is None else scores.tolist()


def until_end(row: list[int], eos: int = EOS) -> tuple[list[int], bool]:
    """The output without its end and what follows it, and whether there was one."""
    return (row[: row.index(eos)], True) if eos in row else (row, False)


def same_n_best(
    found: list[list[Hypothesis]], tokens: list[list[int]], scores: list[float], width: int, eos: int
) -> tuple[int, int]:
    """Assert that what ended is the same, in order, with equal scores; count such outputs, and rows of nothing else."""
    compared = whole = 0
    for row, hypotheses in enumerate(found):
        here = slice(row * width, (row + 1) * width)
        expected = [until_end(one, eos) for one in tokens[here]]
        ended = [(one, score) for (one, finished), score in zip(expected, scores[here]) if finished]
        mine = [h for h in hypotheses if h.finished][: len(ended)]
        assert [h.ids for h in mine] == [one for one, _ in ended]
        assert [h.score for h in mine] == pytest.approx([score for _, score in ended], abs=1e-5)
        if len(ended) == width:
            assert len(hypotheses) == len(mine) == width
        compared, whole = compared + len(mine), whole + (len(ended) == width)
    return compared, whole


def test_h1_greedy_writes_the_same_tokens(pair: Pair) -> None:
    network, _, ids, real = pair
    tokens, _ = theirs_writes(pair, 1, 1.0, True)
    found = generate(network, ids, Greedy(), max_new_tokens=LIMIT, token_mask=real, eos_id=EOS)
    assert [(h.ids, h.finished) for [h] in found] == [until_end(row) for row in tokens]


def end_at_last(scores: Tensor, written: Written) -> Tensor:
    """Their forced end as a rule: at the last token nothing but EOS, and that for nothing."""
    if written.ids.shape[1] < LIMIT - 1:
        return scores
    return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([EOS]), 0.0)


@pytest.mark.covering(3)
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("until", EARLY)
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_h6_h7_h8_h9_beam_writes_the_same_n_best(pair: Pair, penalty: float, until: Any, forced: bool) -> None:
    """Forced, every output ends: all of every list, in order; ranked by changed scores, ours handed out unchanged."""
    network, _, ids, real = pair
    tokens, scores = theirs_writes(pair, WIDTH, penalty, EARLY[until], EOS if forced else None)
    options: dict[str, Any] = {"max_new_tokens": LIMIT, "token_mask": real, "eos_id": EOS}
    rules = [end_at_last] if forced else []
    found = generate(network, ids, Beam(WIDTH, penalty, WIDTH, until=until), **options, rules=rules)
    if forced:
        expected = [until_end(one) for one in tokens]
        assert [(h.ids, h.finished) for row in found for h in row] == expected and all(ended for _, ended in expected)
        return
    compared, _ = same_n_best(found, tokens, scores, WIDTH, EOS)
    assert compared >= 1 or penalty == 2.0  # few where they are punished for being short, or none
