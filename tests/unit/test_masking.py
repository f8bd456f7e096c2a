"""Whole-word and span masking on any tokenizer, and the span boundary objective (E2, E5)."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch import Tensor

from atento.base.errors import RecipeError
from atento.base.splitmix import hashes, uniform
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, Ragged
from atento.data.batches.masking import (
    _GAPS_KEY,
    _SPAN_LENGTHS,
    _TREATMENT_KEY,
    _UNITS_KEY,
    MAX_SPAN,
    Masking,
    WordIds,
    word_numbers,
)
from atento.data.objectives import batches_for
from atento.data.objectives.masked import inside
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.networks import build_network
from atento.text.tokenizer_training import train_tokenizer
from atento.training.losses import Call, losses
from failing import fails

TEXTS = [
    f"Naquele dia, o gato-bravo número {n} pulou alto; a Maria não gostou: «fica quieto», disse ela às {n}h."
    for n in range(24)
]
KINDS = ("bpe", "unigram", "wordpiece", "word", "character", "byte")
HEADS = (HeadConfig("masked-language-model"), HeadConfig("span-boundary"))
ENCODER = NetworkConfig("encoder", d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0, heads=HEADS)


def prepared(kind: str) -> Preparation:
    tokenizer = train_tokenizer(TokenizerConfig(kind, vocab_size=150), TEXTS)  # type: ignore[arg-type]
    recipe = load_recipe({"task": "masked-language-modeling", "data": {"train": {"world": "train"}}}).recipe
    network = replace(ENCODER, vocab_size=tokenizer.vocab_size)
    return Preparation(recipe, network, tokenizer, Split({"text": TEXTS}, ""), "bos-eos")


@pytest.mark.parametrize("kind", KINDS)
def test_e2_words_are_hidden_as_a_whole_and_those_of_many_texts_are_those_of_each(kind: str) -> None:
    preparation = prepared(kind)
    made = batches_for(preparation, (ObjectiveConfig("masked", unit="words"),))
    hidden_words = tokens = chosen = 0
    for epoch in range(3):
        batch = made.batch(np.arange(len(TEXTS)), epoch)
        for row, text in enumerate(TEXTS):
            words = preparation.tokenizer.encode_with_offsets(text).word_ids  # not by the spelling of tokens
            labels = batch.labels["vocabulary"][row, 1 : 1 + len(words)]
            assert int((batch.labels["vocabulary"][row] >= 0).sum()) == int((labels >= 0).sum())  # no special token
            for word in {number for number in words if number is not None}:
                states = {int(label) >= 0 for label, number in zip(labels, words) if number == word}
                assert len(states) == 1, (text, word)
                hidden_words += states == {True}
            tokens, chosen = tokens + len(words), chosen + int((labels >= 0).sum())
    assert hidden_words >= 3 * len(TEXTS)
    assert chosen / tokens == pytest.approx(0.15, abs=0.03)
    assert chosen == pytest.approx(float(made.objective.sizes(made.stores.first).sum()) * 3, rel=0.15)
    tokenizer = preparation.tokenizer
    table = WordIds(tokenizer)
    words = st.text(max_size=8).map(tokenizer.encode)
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)  # special tokens, pieces in any order

    @settings(max_examples=30)
    @given(st.lists(words | ids | st.sampled_from(TEXTS).map(tokenizer.encode), max_size=5))
    def check(texts: list[list[int]]) -> None:
        numbers = table.of(Ragged(texts))
        assert [numbers[row].tolist() for row in range(len(texts))] == [word_numbers(tokenizer, text) for text in texts]

    check()


def test_e2_a_space_belongs_to_the_word_behind_it_and_rates_hold_in_tokens() -> None:
    tokenizer = train_tokenizer(TokenizerConfig("byte"), TEXTS)
    ids = tokenizer.encode("oi, tu")
    assert word_numbers(tokenizer, [*ids, ids[3]]) == [0, 0, 1, 2, 2, 2, 3]
    # 15 % of the tokens, whatever the lengths of words; of them 80 / 10 / 10, within 3 standard deviations
    random = np.random.default_rng(1)
    lengths = random.integers(1, 6, 40_000)
    words = np.repeat(np.arange(len(lengths)), lengths)
    first, size = 5, 1005
    ids = torch.from_numpy(random.integers(first, size, len(words)))
    hidden, labels = ids.clone(), torch.full_like(ids, -1)
    masking = Masking(4, np.arange(first, size), unit="words")
    hide(masking, hidden, np.arange(len(ids)), labels, 0, Draw(1, 0), words)
    chosen = labels >= 0
    assert int((hidden != ids)[~chosen].sum()) == 0 and torch.equal(labels[chosen], ids[chosen])
    # the number of words is exact; the deviation is that of their lengths
    count, deviation = int(chosen.sum()), float((0.15 * 0.85 * len(lengths)) ** 0.5 * lengths.std())
    assert abs(count - 0.15 * len(ids)) < 3 * deviation
    masked, swapped = int((hidden == 4).sum()), int((chosen & (hidden != 4) & (hidden != ids)).sum())
    for number, rate in ((masked, 0.8), (swapped, 0.1 * (1 - 1 / (size - first)))):
        assert abs(number - rate * count) < 3 * (rate * (1 - rate) * count) ** 0.5


@pytest.mark.parametrize("rate", [0.15, 0.6])
@pytest.mark.parametrize("unit", ["tokens", "words"])
def test_e2_as_many_tokens_are_hidden_as_expected(unit: Literal["tokens", "words"], rate: float) -> None:
    """The mean over 4,000 draws, by which updates are planned; of three words one is hidden at least."""
    numbers, rows = np.array([0, 0, 0, 1, 2, 2]), 4000
    ids, labels = torch.full((rows, 6), 50), torch.full((rows, 6), -1)
    masking, every = Masking(4, np.arange(5, 105), rate, unit), torch.ones(rows, 6, dtype=torch.bool)
    masking.hide_batch(ids, labels, every, np.arange(rows), Draw(3, 0), np.tile(numbers, (rows, 1)))
    counts = (labels >= 0).sum(dim=1).double()
    (expected,) = masking.expected(np.array([6]), np.array([3]))
    assert abs(float(counts.mean()) - expected) <= 4 * float(counts.std()) / rows**0.5


@pytest.mark.parametrize("unit", ["tokens", "words", "spans"])
@pytest.mark.parametrize("rate", [0.15, 0.6])
def test_e2_a_batch_is_hidden_as_row_by_row(rate: float, unit: Literal["tokens", "words", "spans"]) -> None:
    """Bit for bit, whatever may be chosen: all of a row, none, or what stands apart."""
    random = np.random.default_rng(4)
    ids = torch.from_numpy(random.integers(5, 90, (40, 33)))
    may = torch.from_numpy(random.random((40, 33)) < random.random((40, 1)) * 1.2)
    may[3], may[4, 1:] = False, False
    rows = random.permutation(1000)[:40]
    masking = Masking(4, np.arange(5, 90), rate, unit)
    words = np.cumsum(random.random((40, 33)) < 0.5, axis=1)
    hidden, labels = ids.clone(), torch.full_like(ids, -1)
    spans = masking.hide_batch(hidden, labels, may, rows, Draw(3, 2), words)
    assert len(spans) == (40 if unit == "spans" else 0)
    expected, expected_labels = ids.clone(), torch.full_like(ids, -1)
    for row in range(40):
        positions = np.flatnonzero(may[row].numpy())
        if len(positions):
            of_row = words[row, positions]
            ranges = hide(masking, expected[row], positions, expected_labels[row], int(rows[row]), Draw(3, 2), of_row)
            assert unit != "spans" or np.array_equal(ranges, spans[row])
    assert torch.equal(hidden, expected) and torch.equal(labels, expected_labels)
    assert int((labels >= 0).sum()) > 100


def test_e5_spans_are_geometric_in_whole_words_and_never_neighbours() -> None:
    words = np.repeat(np.arange(9000), 2)
    masking = Masking(4, np.arange(5, 105), unit="spans")
    lengths: list[int] = []
    treated: list[str] = []
    for row in range(5):
        ids, labels = torch.full((len(words),), 50), torch.full((len(words),), -1)
        ranges = hide(masking, ids, np.arange(len(words)), labels, row, Draw(1, 0), words)
        assert all(start % 2 == 0 and end % 2 == 0 for start, end in ranges)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
        assert sum(end - start for start, end in ranges) == int((labels >= 0).sum()) == round(0.15 * len(words))
        lengths += [(end - start) // 2 for start, end in ranges]
        for start, end in ranges:
            names = {4: "mask", 50: "kept"}
            states = {names.get(token, "random") for token in ids[start:end].tolist()}
            assert len(states) == 1 or states == {"random", "kept"}  # a random token may be the token itself
            treated.append(max(states))
    # np.random.geometric has the same law, drawn again where it is above the maximum
    law = 0.8 ** np.arange(MAX_SPAN)
    counts = np.bincount(lengths, minlength=MAX_SPAN + 1)[1:]
    assert len(counts) == MAX_SPAN and chisquare(counts, law / law.sum() * counts.sum()).pvalue > 1e-3
    shares = np.array([treated.count(state) for state in ("mask", "random", "kept")])
    assert chisquare(shares, np.array([0.8, 0.1, 0.1]) * len(treated)).pvalue > 1e-3


@pytest.mark.parametrize("n_words", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("rate", [0.15, 0.5, 0.9])
def test_e5_short_texts_have_a_hidden_word_and_spans_within_them(n_words: int, rate: float) -> None:
    masking = Masking(4, np.arange(5, 105), rate, "spans")
    for row in range(40):
        ids, labels = torch.full((n_words,), 50), torch.full((n_words,), -1)
        ranges = hide(masking, ids, np.arange(n_words), labels, row, Draw(2, 0), np.arange(n_words))
        hidden = int((labels >= 0).sum())
        assert sum(end - start for start, end in ranges) == hidden >= 1
        assert abs(hidden - max(1, rate * n_words)) < 1
        assert all(before[1] < after[0] for before, after in pairwise(ranges)) and ranges[-1][1] <= n_words


def boundary_batch() -> tuple[Preparation, Batch]:
    preparation = prepared("bpe")
    return preparation, batches_for(preparation, (ObjectiveConfig("span-boundary"),)).batch(np.arange(6))


def test_e5_the_boundary_labels_are_the_hidden_tokens_of_masked_objectives() -> None:
    _, batch = boundary_batch()
    labels = batch.labels["span-boundary"]
    assert torch.equal(labels, batch.labels["vocabulary"]) and batch.counts()["span-boundary"] > 0
    for row, at in (labels >= 0).nonzero().tolist():
        left, right = (int(batch.extras[name][row, at]) for name in ("span left", "span right"))
        assert left < at < right and labels[row, left] == labels[row, right] == -1
        assert bool((labels[row, left + 1 : right] >= 0).all())
        assert int(batch.extras["span position"][row, at]) == at - left - 1
    for kind in ("causal", "span-boundary"):
        fails(RecipeError, f"`unit` has no effect on the objective {kind}", ObjectiveConfig, kind, unit="words")


def test_e5_the_boundary_loss_is_that_of_a_plain_loop_and_trains_the_head() -> None:
    """-log softmax(W f2)[token], f2 from [x_left; x_right; p_i] by two layers with GELU and norm (equations 1 to 3)."""
    preparation, batch = boundary_batch()
    torch.manual_seed(1)
    network = build_network(preparation.network).double()
    sums = losses(network, batch, Call())
    head = network.heads["span-boundary"]
    hidden = network(**batch.inputs, project=False).hidden
    total = torch.zeros((), dtype=torch.float64)
    labels = batch.labels["span-boundary"]
    for row, at in (labels >= 0).nonzero().tolist():
        left, right, i = (int(batch.extras[f"span {name}"][row, at]) for name in ("left", "right", "position"))
        x = torch.cat([hidden[row, left], hidden[row, right], head.positions[min(i, 19)]])
        for linear, norm in ((head.first, head.norms[0]), (head.second, head.norms[1])):
            x = F.layer_norm(F.gelu(F.linear(x, linear.weight, linear.bias)), x.new_empty(16).shape, eps=norm.eps)
        logits = network.embedding.weight @ x + head.bias if head.output.weight is None else head.output.weight @ x
        total = total - logits.log_softmax(dim=0)[labels[row, at]]
    torch.testing.assert_close(sums["span-boundary"][0], total)
    gradients = torch.autograd.grad(sums["span-boundary"][0], list(head.parameters()))
    assert all(bool(gradient.abs().sum() > 0) for gradient in gradients)


def hide(
    masking: Masking,
    ids: Tensor,
    positions: NDArray[np.int64],
    labels: Tensor,
    row: int,
    draw: Draw,
    words: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Hide some `positions` (n,) of a text (L,) in place, by seed, epoch and row; the chosen ranges of positions."""
    n = len(positions)
    if masking.unit == "tokens":
        drawn = hashes(3 * n + 1, draw.seed, draw.epoch, row)  # order, treatment, random token, and rounding
        chosen = positions[np.argsort(drawn[:n], kind="stable")[: _count(masking, n, drawn[-1])]]
        of_chosen = slice(0, len(chosen))
        treatment, random = drawn[n : 2 * n][of_chosen], drawn[2 * n :][of_chosen]
        masking._replace(ids.numpy(), labels.numpy(), chosen, treatment, random)
        return np.empty((0, 2), dtype=np.int64)
    assert words is not None
    starts = np.flatnonzero(np.diff(words, prepend=words[:1] - 1))  # where each word begins
    units = _words(masking, starts, row, draw) if masking.unit == "words" else _spans(masking, len(starts), row, draw)
    ranges = np.append(starts, n)[units]
    index, first = inside(ranges)
    drawn = hashes(2 * n, draw.seed, draw.epoch, row, _TREATMENT_KEY)
    treatment = drawn[:n][first if masking.unit == "spans" else index]  # of a span: that of its first token
    masking._replace(ids.numpy(), labels.numpy(), positions[index], treatment, drawn[n:][index])
    return ranges


def _count(masking: Masking, units: int, drawn: np.uint64) -> int:
    """Return how many units are chosen, rounded at random, so that the mean is exact."""
    return int(float(masking.share(np.array(units))) + float(uniform(np.array(drawn))))


def _words(masking: Masking, starts: NDArray[np.int64], row: int, draw: Draw) -> NDArray[np.int64]:
    """Choose words: ranges [first, last) of one word each, in order, (words,2)."""
    n = len(starts)
    drawn = hashes(n + 1, draw.seed, draw.epoch, row, _UNITS_KEY)
    chosen = np.sort(np.argsort(drawn[:n], kind="stable")[: _count(masking, n, drawn[n])])
    return np.stack([chosen, chosen + 1], axis=1)


def _spans(masking: Masking, n: int, row: int, draw: Draw) -> NDArray[np.int64]:
    """Choose spans: ranges [first, last) of words, in order, of which no two are neighbours, (spans,2)."""
    drawn = hashes(n + 2, draw.seed, draw.epoch, row, _UNITS_KEY)
    hidden = min(n, _count(masking, n, drawn[n]))
    lengths = 1 + np.searchsorted(_SPAN_LENGTHS, uniform(drawn[:hidden]) * _SPAN_LENGTHS[-1], side="right")
    count = 1 + int(np.searchsorted(np.cumsum(lengths), hidden))  # spans up to the one that has the last word
    count = min(count, n - hidden + 1)  # two spans have a word between them
    lengths = lengths[:count]
    lengths[-1] = hidden - int(lengths[:-1].sum())
    # the spans, and so the cut one, are in random order: gaps and lengths are independent
    lengths = lengths[np.argsort(hashes(count, draw.seed, draw.epoch, row, _UNITS_KEY, 1), kind="stable")]
    total = n - hidden + 2  # of the gaps, the first and the last of which may be empty; all divisions are as probable
    order = np.argsort(hashes(total - 1, draw.seed, draw.epoch, row, _GAPS_KEY), kind="stable")
    gaps = np.diff(np.sort(order[:count] + 1), prepend=0)
    ends = np.cumsum(gaps + lengths) - 1
    return np.stack([ends - lengths, ends], axis=1)
