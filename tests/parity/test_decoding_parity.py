"""Decoding beside `transformers`: n best outputs under each end of a search, filters and rules, every family.

Float64 on both sides (their beam adds up in float32). At the length limit theirs lets outputs that were cut off compete
by score, so that a text that breaks off beats whole ones; ours puts those that ended first. There, what both call ended
must still be the same, in the same order.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

import atento
from atento.attention import observe
from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.contract import Rule, Written
from atento.decoding.filters import min_p, shaped, temperature, top_k, top_p, typical_p
from atento.decoding.rules import Banned, Forced, ForcedLast, NoRepeatNGrams, RepetitionPenalty
from atento.networks import EncoderDecoder
from marian import EOS as MARIAN_END
from marian import PAD, marian_pair
from released import Inputs, saved, theirs

FAMILIES = ["gpt2", "bart", "marian", "t5"]
LIMIT, WIDTH, ROWS = 9, 4, 10
EOS = 5  # an ordinary token: BART begins with its own end, and would be inclined to stop there
EARLY: dict[str, bool | str] = {"filled": True, "likely": False, "sure": "never"}
Pair = tuple[Any, Any, Tensor, Tensor]
RESULT: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "do_sample": False}
RESULT["max_length"] = None


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


def load(name: str, folder: Path) -> tuple[Any, Any]:
    """Ours and theirs in float64, where ties are no matter."""
    other = theirs(name).double()
    network = atento.load(saved(other, folder), precision="float64").network
    return network, other


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The first random pair whose outputs differ and end here and there: EOS has a longer vector than others."""
    for seed in range(20):
        other = theirs(request.param, seed).double()
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


def theirs_writes(pair: Pair, width: int, penalty: float, early: Any, forced: int | None = None) -> tuple[Any, Any]:
    """Their new tokens and scores, `width` a row."""
    network, other, ids, real = pair
    seq2seq = isinstance(network, EncoderDecoder)
    options = RESULT | {"num_beams": width, "num_return_sequences": width, "length_penalty": penalty}
    options |= {"max_new_tokens": LIMIT, "eos_token_id": EOS, "pad_token_id": network.config.pad_id}
    options |= {"early_stopping": early if width > 1 else None, "forced_eos_token_id": forced}
    options |= {"decoder_start_token_id": network.config.start_id if seq2seq else None, "forced_bos_token_id": None}
    options |= {"use_cache": False}  # theirs has no room for a decoder deeper than its encoder
    out = other.generate(ids, attention_mask=real.long(), **options)
    start = 1 if seq2seq else ids.shape[1]
    scores = getattr(out, "sequences_scores", None)
    return out.sequences[:, start:].tolist(), [] if scores is None else scores.tolist()


def until_end(row: list[int], eos: int = EOS) -> tuple[list[int], bool]:
    """The output without its end and what follows it, and whether there was one."""
    return (row[: row.index(eos)], True) if eos in row else (row, False)


def same_n_best(found: Any, tokens: list[list[int]], scores: list[float], width: int, eos: int) -> tuple[int, int]:
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


def scores(spread: float, rows: int = 200) -> Tensor:
    """Random logits; a tenth of them forbidden already."""
    g = torch.Generator().manual_seed(1)
    drawn = spread * torch.randn(rows, 40, generator=g, dtype=torch.float64)
    return drawn.masked_fill(torch.rand(rows, 40, generator=g) < 0.1, float("-inf"))


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
    name: str, rules: Any, options: Any, tmp_path: Path
) -> None:
    """float64, the prompt counted as theirs always is."""
    network, other = load(name, tmp_path)
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
    width: int, rule: Rule, options: Any, banned: Any
) -> None:
    """Greedy, rules on logits; a beam, rules on log-probabilities. Of the beam's, the rows whose outputs all end."""
    ours, model = marian_pair(spread=0.3, ends=2.2, seed=2)
    ours, other = ours.double(), cast(Any, model.double())
    source = torch.randint(4, 23, (20, 6), generator=torch.Generator().manual_seed(5))
    source[:, -1] = MARIAN_END
    common: dict[str, Any] = options | {"do_sample": False, "num_beams": width, "num_return_sequences": width}
    common |= {"early_stopping": True, "length_penalty": 1.0} if width > 1 else {}
    common |= {"attention_mask": torch.ones_like(source), "max_new_tokens": 12, "max_length": None}
    wanted = other.generate(source, **common, bad_words_ids=banned)[:, 1:].tolist()
    strategy = Greedy() if width == 1 else Beam(width, 1.0, width)
    found = generate(ours, source, strategy, max_new_tokens=12, rules=[rule, Banned(banned)])
    compared = 0
    for row, outputs in enumerate(found):
        expected = wanted[row * width : (row + 1) * width]
        if width > 1 and not all(MARIAN_END in one for one in expected):
            continue
        assert [one.ids for one in outputs] == [until_end(one, MARIAN_END)[0] for one in expected]
        compared += 1
    assert compared >= 15


def test_h2_both_samplers_draw_from_one_distribution(tmp_path: Path) -> None:
    """χ² of 3,000 first tokens of each against the filtered softmax."""
    network, other = load("gpt2", tmp_path)
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


WRITERS = ["gpt1", "gpt2", "llama", "llama tied, wide heads", "t5", "t5 gated", "mt5", "bart", "marian"]
WRITERS += ["marian, two vocabularies of two sizes", "marian, more to read than to write"]
WRITERS += ["mistral", "qwen2, windows from layer 1", "qwen3"]
NEW = 7


def at_the_front(inputs: Inputs) -> Inputs:
    """The same rows, padded on the right."""
    ids, real = torch.full_like(inputs.ids, int(inputs.ids[~inputs.real][0])), torch.zeros_like(inputs.real)
    for row, (one, there) in enumerate(zip(inputs.ids, inputs.real)):
        ids[row, : int(there.sum())], real[row, : int(there.sum())] = one[there], True
    return replace(inputs, ids=ids, real=real)


@pytest.mark.covering
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", WRITERS)
def test_h1_h12_greedy_equals_transformers(name: str, side: str, tmp_path: Path) -> None:
    """NEW tokens a row, no end; theirs wants prompts padded on the left, and counts a source's padding as places."""
    network, other = load(name, tmp_path)
    inputs, left = Inputs.padded(side, network.config.pad_id), Inputs.padded("left", network.config.pad_id)
    if isinstance(network, EncoderDecoder):
        left = at_the_front(inputs)
    elif side == "right":  # the same rows, moved
        for row, ids in enumerate(ids[real] for ids, real in zip(inputs.ids, inputs.real)):
            left.ids[row, 9 - len(ids) :] = ids
    found = generate(network, inputs.ids, Greedy(), max_new_tokens=NEW, token_mask=inputs.real, eos_id=())
    options: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    options |= dict.fromkeys(("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"))
    options |= {"use_cache": False, "pad_token_id": network.config.pad_id}  # no room for a decoder above its encoder
    start = network.config.start_id if isinstance(network, EncoderDecoder) else None
    read = {"attention_mask": left.real.long(), "decoder_start_token_id": start}
    wanted = other.generate(left.ids, **read, **options)
    assert [row[0].ids for row in found] == wanted[:, -NEW:].tolist()


@pytest.mark.parametrize("name", ["gpt1", "gpt2", "llama", "mistral", "qwen3", "t5 gated", "bart", "marian"])
def test_h12_cached_equals_uncached(name: str, tmp_path: Path) -> None:
    """Each token's log-probability under the cache is that of one uncached pass over the whole."""
    network, _ = load(name, tmp_path)
    inputs = Inputs.padded("left", network.config.pad_id)
    found = generate(network, inputs.ids, Beam(3), max_new_tokens=NEW, token_mask=inputs.real, eos_id=())
    for row, (best, *_) in enumerate(found):
        ids = inputs.ids[row][inputs.real[row]]
        with torch.no_grad():
            if isinstance(network, EncoderDecoder):
                logits = network(ids[None], torch.tensor([[network.config.start_id, *best.ids[:-1]]])).logits[0]
            else:
                logits = network(torch.cat([ids, torch.tensor(best.ids[:-1])])[None]).logits[0, len(ids) - 1 :]
        scores = torch.log_softmax(logits, dim=-1)[range(NEW), best.ids]
        torch.testing.assert_close(scores, torch.tensor(best.token_scores, dtype=torch.float64), rtol=0, atol=1e-9)


def test_h12_what_was_written_is_shown_with_its_prompt(tmp_path: Path) -> None:
    """Observed under beam search: the weights over prompt and best output, whole."""
    network, _ = load("gpt2", tmp_path)
    inputs = Inputs.padded("right", network.config.pad_id)
    with observe(network) as seen:
        found = generate(network, inputs.ids, Beam(2), max_new_tokens=3, token_mask=inputs.real, eos_id=())
    weights = seen["decoder", -1]
    read = torch.cat([inputs.ids[0], torch.tensor(found[0][0].ids[:-1])])
    with observe(network) as again, torch.no_grad():
        network(read[None])
    torch.testing.assert_close(weights[0, :, : len(read), : len(read)], again["decoder", -1][0])


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("name", ["llama dynamic", "llama longrope"])
def test_k2_rotations_by_the_length_equal_transformers_with_its_cache(name: str, row: int, tmp_path: Path) -> None:
    """Prompts of 9, 6 and 2 tokens go past the 6 of the training: keys in the cache keep their rotations there too."""
    network, other = load(name, tmp_path)
    inputs = Inputs.padded("right", network.config.pad_id)
    prompt = inputs.ids[row : row + 1, inputs.real[row]]
    (found,) = generate(network, prompt, Greedy(), max_new_tokens=NEW, eos_id=())
    wanted = other.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, eos_token_id=None
    )
    assert list(found[0].ids) == wanted[0, prompt.shape[1] :].tolist()
