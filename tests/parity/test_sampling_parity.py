"""Filters and rules against the warpers and processors of `transformers`: on random scores, and in whole searches."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

import atento
from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.contract import Rule, Written
from atento.decoding.filters import min_p, shaped, temperature, top_k, top_p, typical_p
from atento.decoding.rules import Banned, Forced, ForcedLast, NoRepeatNGrams, RepetitionPenalty
from marian import EOS, PAD, marian_pair
from released import saved, theirs
from test_decoding_parity import until_end

V = 40


def scores(spread: float, rows: int = 200) -> Tensor:
    """Random logits; a tenth of them forbidden already."""
    g = torch.Generator().manual_seed(1)
    drawn = spread * torch.randn(rows, V, generator=g, dtype=torch.float64)
    return drawn.masked_fill(torch.rand(rows, V, generator=g) < 0.1, float("-inf"))


NO_IDS = torch.zeros(200, 1, dtype=torch.long)


FILTERS: list[tuple[Any, Any, tuple[float, ...]]] = [
    (temperature, hf.TemperatureLogitsWarper, (0.3, 1.0, 2.5)),
    (top_k, hf.TopKLogitsWarper, (1, 5, 39, 60)),
    (top_p, hf.TopPLogitsWarper, (0.05, 0.5, 0.8, 0.99)),
    (min_p, hf.MinPLogitsWarper, (0.01, 0.3, 0.9)),
    (typical_p, hf.TypicalLogitsWarper, (0.05, 0.5, 0.9, 0.99)),
]


@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
@pytest.mark.parametrize(("ours", "warper", "value"), [(*pair, value) for *pair, values in FILTERS for value in values])
def test_h3_h4_h5_each_filter_equals_its_warper(spread: float, ours: Any, warper: Any, value: float) -> None:
    x = scores(spread)
    found, expected = ours(x, value), warper(value)(NO_IDS, x.clone()).log_softmax(dim=-1)
    assert torch.equal(found == float("-inf"), expected == float("-inf"))
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
def test_h3_h4_h5_all_filters_in_their_order(spread: float) -> None:
    """Temperature, top-k, top-p, min-p, typical, as `generate` there puts them."""
    first = [hf.TemperatureLogitsWarper(1.4), hf.TopKLogitsWarper(25), hf.TopPLogitsWarper(0.9)]
    warpers: Any = hf.LogitsProcessorList([*first, hf.MinPLogitsWarper(0.02), hf.TypicalLogitsWarper(0.8)])
    x = scores(spread)
    found = shaped(x, Sample(temperature=1.4, top_k=25, top_p=0.9, min_p=0.02, typical_p=0.8)).exp()
    torch.testing.assert_close(found, warpers(NO_IDS, x.clone()).softmax(dim=-1), rtol=0, atol=1e-12)


def histories(length: int, rows: int = 200) -> Tensor:
    """What was written, of few different tokens, so that much of it repeats."""
    return torch.randint(0, 6, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("rule", "processor", "value"),
    [
        *((RepetitionPenalty, hf.RepetitionPenaltyLogitsProcessor, p) for p in (0.7, 1.0, 1.3)),
        *((NoRepeatNGrams, hf.NoRepeatNGramLogitsProcessor, n) for n in (1, 2, 3)),
        (Banned, hf.NoBadWordsLogitsProcessor, [[3], [4]]),
        (Banned, hf.NoBadWordsLogitsProcessor, [[1, 2], [2, 2, 5], [0, 1], [7]]),
        (Banned, hf.NoBadWordsLogitsProcessor, [[1, 1, 1, 1], [2, 1]]),
    ],
)
def test_each_rule_equals_its_processor(length: int, rule: Any, processor: Any, value: Any) -> None:
    x, ids = scores(2.0), histories(length)
    expected = processor(value)(ids, x.clone())
    found = rule(value)(x, Written(ids, list(range(200)), [[]] * 200))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    if rule is not Banned:
        half = length // 2
        with_prompts = Written(ids[:, half:], list(range(200)), ids[:, :half].tolist())
        torch.testing.assert_close(rule(value, prompt=True)(x, with_prompts), found, rtol=0, atol=0)


def test_forced_tokens_leave_the_same_one() -> None:
    """Theirs gives it the score 0, ours its own: alone, it has probability 1 either way."""
    x = scores(2.0)
    for length, rule, processor in (
        (0, Forced({0: 7}), hf.ForcedBOSTokenLogitsProcessor(7)),
        (4, ForcedLast(9, 5), hf.ForcedEOSTokenLogitsProcessor(6, 9)),
    ):
        ids = histories(length)
        started = torch.cat([torch.zeros(200, 1, dtype=torch.long), ids], dim=1)  # theirs count the start token
        found = rule(x, Written(ids, list(range(200)), [[]] * 200))
        assert torch.equal(found.softmax(dim=-1), processor(started, x.clone()).softmax(dim=-1))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ([RepetitionPenalty(1.4, prompt=True)], {"repetition_penalty": 1.4}),
        ([NoRepeatNGrams(2, prompt=True)], {"no_repeat_ngram_size": 2}),
        (
            [RepetitionPenalty(0.8, prompt=True), NoRepeatNGrams(3, prompt=True), Banned([[5], [6, 7]])],
            {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "bad_words_ids": [[5], [6, 7]]},
        ),
    ],
)
def test_h1_a_language_model_under_rules_writes_the_same_tokens(
    name: str, rules: list[Rule], options: dict[str, Any], tmp_path: Path
) -> None:
    """float64, the prompt counted as theirs always is."""
    other = theirs(name).double()
    network: Any = atento.load(saved(other, tmp_path), precision="float64").network
    ids = torch.randint(3, network.config.vocab_size, (12, 6), generator=torch.Generator().manual_seed(3))
    common = {"do_sample": False, "num_beams": 1, "eos_token_id": None, "pad_token_id": 0, "use_cache": True}
    common |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": 14, "min_new_tokens": 14}
    wanted = other.generate(ids, **common, **options)
    found = generate(network, ids, Greedy(), max_new_tokens=14, eos_id=(), rules=rules)
    assert [row[0].ids for row in found] == wanted[:, 6:].tolist()
    plain = generate(network, ids, Greedy(), max_new_tokens=14, eos_id=())
    assert [row[0].ids for row in plain] != [row[0].ids for row in found]  # the rules did something


@pytest.mark.parametrize(
    ("rule", "options", "banned"),
    [
        (NoRepeatNGrams(2), {"no_repeat_ngram_size": 2}, [[PAD]]),
        (RepetitionPenalty(1.3), {"repetition_penalty": 1.3}, [[PAD], [7, 8]]),
    ],
)
@pytest.mark.parametrize("width", [1, 3])
def test_h6_an_encoder_decoder_under_rules_writes_the_same_tokens(
    width: int, rule: Rule, options: dict[str, Any], banned: list[list[int]]
) -> None:
    """Greedy, rules on logits; a beam, rules on log-probabilities. Of the beam's, the rows whose outputs all end."""
    ours, model = marian_pair(spread=0.3, ends=2.2, seed=2)
    ours, other = ours.double(), cast(Any, model.double())
    source = torch.randint(4, 23, (20, 6), generator=torch.Generator().manual_seed(5))
    source[:, -1] = EOS
    common: dict[str, Any] = options | {"do_sample": False, "num_beams": width, "num_return_sequences": width}
    common |= {"early_stopping": True, "length_penalty": 1.0} if width > 1 else {}
    common |= {"attention_mask": torch.ones_like(source), "max_new_tokens": 12, "max_length": None}
    wanted = other.generate(source, **common, bad_words_ids=banned)[:, 1:].tolist()
    strategy = Greedy() if width == 1 else Beam(width, 1.0, width)
    found = generate(ours, source, strategy, max_new_tokens=12, rules=[rule, Banned(banned)])
    compared = 0
    for row, outputs in enumerate(found):
        expected = wanted[row * width : (row + 1) * width]
        if width > 1 and not all(EOS in one for one in expected):
            continue
        assert [one.ids for one in outputs] == [until_end(one, EOS)[0] for one in expected]
        compared += 1
    assert compared >= 15


def test_h2_both_samplers_draw_from_one_distribution(tmp_path: Path) -> None:
    """χ² of 3,000 first tokens of each against the filtered softmax."""
    other = theirs("gpt2").double()
    network: Any = atento.load(saved(other, tmp_path), precision="float64").network
    ids = torch.randint(3, network.config.vocab_size, (1, 6), generator=torch.Generator().manual_seed(6))
    strategy = Sample(temperature=0.8, top_k=8, top_p=0.9, n=3000)
    with torch.no_grad():
        p = shaped(other(ids).logits[:, -1], strategy).exp()[0].tolist()
    (samples,) = generate(network, ids, strategy, max_new_tokens=1, eos_id=(), seed=1)
    torch.manual_seed(2)
    options: dict[str, Any] = {"temperature": 0.8, "top_k": 8, "top_p": 0.9, "num_return_sequences": 3000}
    options |= {"attention_mask": torch.ones_like(ids), "do_sample": True, "max_new_tokens": 1, "pad_token_id": 0}
    for counts in (Counter(one.ids[0] for one in samples), Counter(other.generate(ids, **options)[:, -1].tolist())):
        away = sum((counts[i] - 3000 * share) ** 2 / (3000 * share) for i, share in enumerate(p) if share > 0)
        freedom = sum(share > 0 for share in p) - 1
        assert all(p[token] > 0 for token in counts)
        assert float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(away / 2.0))) > 1e-3
