"""CBOW and skip-gram: windows by hand, losses against loops, a planted synonym found, blocks of windows (C15, E9)."""

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.base.errors import DataError, RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.data.batches.windows import BLOCK, WindowBatch, WindowBlocks, Windows
from atento.data.objectives.window import WindowBatches
from atento.networks.words.cbow import CBOW, train_vectors
from atento.text.word_vectors import Vectors
from atento.training.losses import Call, losses
from failing import fails

PLAIN = CBOWConfig(window=2, negatives=0, subsample=0.0)
CONFIG = NetworkConfig(architecture="cbow", vocab_size=6, d_model=4, n_heads=1, dropout=0.0, cbow=PLAIN)
CENTRE = torch.tensor([1, 4, 0])
CONTEXT = torch.tensor([[-1, 2, 3, 1], [0, -1, -1, -1], [5, 5, 2, -1]])
MODES: list[str] = ["cbow", "skip-gram"]
BLOCKS = CBOWConfig(window=2, negatives=3, subsample=0.0, shared_negatives=3)


def made(config: NetworkConfig) -> CBOW:
    torch.manual_seed(0)
    network = CBOW(config).double()
    with torch.no_grad():
        network.input_weight.normal_()
        network.output_weight.normal_()
    return network


def pairs(batches: list[WindowBatch]) -> list[tuple[int, tuple[int, ...]]]:
    """Every window as (word, its context)."""
    rows = ((centre, context) for one in batches for centre, context in zip(one.centre, one.context))
    return sorted((int(centre), tuple(context.tolist())) for centre, context in rows)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=6), st.integers(1, 9))
def test_c15_windows_are_those_of_a_plain_loop(sentences: list[list[int]], window: int) -> None:
    expected = []
    for sentence in sentences:
        for i, word in enumerate(sentence):
            places = [*range(i - window, i), *range(i + 1, i + window + 1)]
            context = tuple(sentence[j] if 0 <= j < len(sentence) else -1 for j in places)
            if any(other >= 0 for other in context):
                expected.append((word, context))
    if not expected:
        fails(DataError, "no sentence has two words", Windows, sentences, 6, replace(PLAIN, window=window), seed=1)
        return
    windows = Windows(sentences, 6, replace(PLAIN, window=window), seed=1, batch_size=3)
    batches = list(windows.epoch(0))
    assert pairs(batches) == sorted(expected) and all(one.negatives is None for one in batches)
    assert [len(one.centre) for one in batches[:-1]] == [3] * (-(-len(expected) // 3) - 1)


def test_c15_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    sentences = [[number % 7, (number * 3) % 7, (number * 5) % 7] for number in range(60)]
    for subsample in (0.0, 0.05):
        config = CBOWConfig(window=2, negatives=3, subsample=subsample)

        def read(seed: int, epoch: int, config: CBOWConfig = config) -> list[str]:
            batches = list(Windows(sentences, 7, config, seed=seed, batch_size=32).epoch(epoch))
            drawn = [one.negatives for one in batches if one.negatives is not None]
            assert len(drawn) == len(batches) > 1 and not torch.equal(drawn[0], drawn[1])
            parts = [one.centre for one in batches], [one.context for one in batches], drawn
            return [str(torch.cat(part).tolist()) for part in parts]

        assert read(1, 2) == read(1, 2)
        others = [read(1, 2), read(1, 3), read(2, 2), read(2, 3)]
        assert [len(set(part)) for part in zip(*others)] == [4, 4, 4]


def test_c15_frequent_words_are_thinned_out_before_windows_are_drawn() -> None:
    """Kept with probability √(t/f), within 5σ; neighbours are those of the sentence that is left."""
    sentences = [[0, 0, 0, 1, 0, 0, 0, 2] for _ in range(2000)]
    config = replace(PLAIN, subsample=0.03, window=1)
    windows = Windows(sentences, 3, config, seed=3)
    kept = windows.subsampled(0)
    for word, share in ((0, 0.75), (1, 0.125), (2, 0.125)):
        here = kept[windows.flat == word]
        probability = math.sqrt(0.03 / share)
        assert abs(here.mean() - probability) < 5 * math.sqrt(probability * (1 - probability) / len(here))
    assert (windows.subsampled(1) != kept).any()
    assert abs(kept.sum() - windows.expected()) < 5 * math.sqrt(len(kept) / 4)
    found = pairs(list(windows.epoch(0)))
    left = [[word for word, k in zip(sentence, kept[8 * n :]) if k] for n, sentence in enumerate(sentences)]
    assert found == pairs(list(Windows(left, 3, replace(config, subsample=0.0), seed=3).epoch(0)))
    assert (1, (-1, 2)) in found  # over the zeros between them that are gone
    rare = Windows(sentences, 3, replace(config, subsample=0.8), seed=3)
    assert rare.subsampled(0).all() and rare.expected() == len(rare.flat)


@pytest.mark.parametrize(("mode", "exponent"), [("cbow", 0.75), ("skip-gram", 0.75), ("cbow", 0.0)])
def test_c15_negatives_follow_the_counts_to_the_power(mode: str, exponent: float) -> None:
    """χ² over words within 5σ of its mean; words that never come are never drawn."""
    counts = [0, 400, 100, 0, 25, 475, 0]
    text = [word for word, count in enumerate(counts) for _ in range(count)]
    random.Random(4).shuffle(text)
    config = CBOWConfig(window=2, mode=mode, negatives=20, subsample=0.0, exponent=exponent)
    drawn: Counter[int] = Counter()
    for one in Windows([text], 7, config, seed=5, batch_size=100).epoch(0):
        targets = one.context.shape if mode == "skip-gram" else one.centre.shape
        assert one.negatives.shape == (*targets, 20)
        drawn.update(one.negatives.flatten().tolist())
    weights = np.array([count**exponent if count else 0.0 for count in counts])
    expected = weights / weights.sum() * drawn.total()
    assert set(drawn) == {1, 2, 4, 5}
    chi = sum((drawn[word] - expected[word]) ** 2 / expected[word] for word in drawn)
    assert chi < 3 + 5 * math.sqrt(6)


def test_c15_words_are_numbered_by_count_and_a_set_predicts_by_its_mean() -> None:
    windows = Windows.from_words([["b", "a", "c"], ["c", "x", "b"], ["c"]], PLAIN, seed=1)
    assert windows.words == ("c", "b", "a", "x") and windows.counts.tolist() == [3, 2, 1, 1]
    fewer = Windows.from_words([["b", "a", "c"], ["c", "x", "b"], ["c"]], PLAIN, seed=1, min_count=2)
    assert fewer.words == ("c", "b")
    left, right = (-1, -1, 1, -1), (-1, 1, -1, -1)  # "b c" and "c b" are what is left
    assert pairs(list(fewer.epoch(0))) == [(0, left), (0, right), (1, (-1, -1, 0, -1)), (1, (-1, 0, -1, -1))]
    network = made(CONFIG)
    ids, real = torch.tensor([[2, 3, 3], [1, 5, 0]]), torch.tensor([[True, True, True], [True, False, False]])
    output = network(ids, token_mask=real)
    v = network.vectors
    means = torch.stack([(v[2] + v[3] + v[3]) / 3, v[1]])
    torch.testing.assert_close(output.pooled, means)
    torch.testing.assert_close(output.logits, means @ network.output_weight.T)
    assert output.hidden.shape == (2, 3, 4) and (output.hidden[1, 1:] == 0).all()
    torch.testing.assert_close(network(ids[:1]).pooled, means[:1])


def slow_loss(network: CBOW, negatives: Tensor | None) -> tuple[float, int]:
    """The published objectives, word by word."""
    v, u = network.input_weight.detach().numpy(), network.output_weight.detach().numpy()

    def one(hidden: np.ndarray, target: int, drawn: list[int]) -> float:
        if negatives is None:
            logits = u @ hidden
            return float(np.log(np.exp(logits).sum()) - logits[target])
        nats = -math.log(1 / (1 + math.exp(-float(u[target] @ hidden))))
        for word in drawn:
            if word != target:
                nats -= math.log(1 / (1 + math.exp(float(u[word] @ hidden))))
        return nats

    terms = []
    for row, centre in enumerate(CENTRE.tolist()):
        around = [(column, word) for column, word in enumerate(CONTEXT[row].tolist()) if word >= 0]
        if network.skip_gram:
            for column, word in around:
                terms.append(one(v[centre], word, [] if negatives is None else negatives[row, column].tolist()))
        else:
            hidden = sum(v[word] for _, word in around) / len(around)
            terms.append(one(hidden, centre, [] if negatives is None else negatives[row].tolist()))
    return sum(terms), len(terms)


@pytest.mark.parametrize("mode", ["cbow", "skip-gram"])
@pytest.mark.parametrize("n_negatives", [0, 3])
def test_e9_the_losses_are_those_of_plain_loops(mode: str, n_negatives: int) -> None:
    network = made(replace(CONFIG, cbow=replace(PLAIN, mode=mode, negatives=n_negatives)))
    shape = (3, 4, n_negatives) if mode == "skip-gram" else (3, n_negatives)
    drawn = torch.randint(0, 6, shape, generator=torch.Generator().manual_seed(1)) if n_negatives else None
    if drawn is not None:
        drawn[0, 1 if mode == "skip-gram" else 0] = 2 if mode == "skip-gram" else 1  # the target itself: left out
    expected, count = slow_loss(network, drawn)
    found, targets = network.loss(CENTRE, CONTEXT, drawn)
    assert targets == count == (7 if mode == "skip-gram" else 3)
    assert float(found) == pytest.approx(expected, abs=1e-10)

    def loss(v: Tensor, u: Tensor) -> Tensor:
        network.input_weight, network.output_weight = torch.nn.Parameter(v), torch.nn.Parameter(u)
        return network.loss(CENTRE, CONTEXT, drawn)[0]

    v, u = network.input_weight.detach().clone(), network.output_weight.detach().clone()
    gradients = torch.autograd.grad(found, list(network.parameters()))
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(*gradient.shape):
            moved = []
            for step in (1e-6, -1e-6):
                both = [v.clone(), u.clone()]
                both[which][index] += step
                moved.append(float(loss(*both).detach()))
            assert float(gradient[index]) == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-7)


def corpus(seed: int, n_sentences: int = 1500) -> list[list[str]]:
    """Nouns with four context words each out of thirty; "carro" and "automóvel" share theirs, whatever else is said."""
    chance = random.Random(seed)
    pool = [f"c{number}" for number in range(30)]
    nouns = {f"n{number}": chance.sample(pool, 4) for number in range(18)}
    nouns["carro"] = nouns["automóvel"] = chance.sample(pool, 4)
    sentences = []
    for _ in range(n_sentences):
        noun = chance.choice(sorted(nouns))
        first, *rest = chance.sample(nouns[noun], 3)
        sentences.append([first, noun, *rest])
    return sentences


@pytest.mark.covering
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("mode", "negatives"), [("cbow", 5), ("cbow", 0), ("skip-gram", 5), ("skip-gram", 0)])
def test_c15_e9_a_planted_synonym_ranks_first_and_the_loss_falls(mode: str, negatives: int, seed: int) -> None:
    cbow = CBOWConfig(window=2, mode=mode, negatives=negatives, subsample=0.0)
    windows = Windows.from_words(corpus(seed), cbow, seed=seed)
    config = replace(CONFIG, vocab_size=len(windows.words), d_model=16, cbow=cbow)
    trained = train_vectors(windows, config, seed, epochs=12)
    vectors = Vectors(windows.words, trained.vectors.numpy())
    assert vectors.neighbours("carro", 1)[0][0] == "automóvel"
    assert vectors.neighbours("automóvel", 1)[0][0] == "carro"
    start = (1 + negatives) * math.log(2) if negatives else math.log(len(windows.words))
    assert trained.losses[-1] < trained.losses[0] < start and trained.losses[-1] < 0.8 * start


def test_c15_training_is_a_function_of_its_seed_and_dropout_is_counted() -> None:
    cbow = CBOWConfig(window=2, negatives=2, subsample=1e-2)
    windows = Windows.from_words(corpus(3, 100), cbow, seed=1)
    config = replace(CONFIG, vocab_size=len(windows.words), cbow=cbow, dropout=0.1)
    first = train_vectors(windows, config, 1, epochs=2)
    torch.manual_seed(99)
    again = train_vectors(windows, config, 1, epochs=2)
    assert torch.equal(first.vectors, again.vectors) and first.losses == again.losses and len(first.losses) == 2
    assert not torch.equal(first.vectors, train_vectors(windows, config, 2, epochs=2).vectors)
    network = made(replace(CONFIG, dropout=0.5))
    losses = [float(network.loss(CENTRE, CONTEXT, random=Randomness(seed))[0]) for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    plain = float(made(CONFIG).loss(CENTRE, CONTEXT)[0])
    assert float(network.eval().loss(CENTRE, CONTEXT)[0]) == plain != losses[0]
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in CBOW(replace(CONFIG, vocab_size=10**9)).parameters())
    assert not CBOW(CONFIG).output_weight.any() and CBOW(CONFIG).input_weight.all()  # so training begins at chance


def test_wrong_inputs_and_configs_are_named() -> None:
    fails(RecipeError, r"`vocab_size` must be at least 1: got 0", CBOW, replace(CONFIG, vocab_size=0))
    fails(ValueError, r"`negatives` .*None: got \(3, 2\)", CBOW(CONFIG).loss, CENTRE, CONTEXT, torch.zeros(3, 2).long())
    skip_gram = CBOW(replace(CONFIG, cbow=replace(PLAIN, mode="skip-gram", negatives=2)))
    fails(ValueError, r"`negatives` must have the shape \(3, 4, 2\): got None", skip_gram.loss, CENTRE, CONTEXT)
    fails(ValueError, "`epochs` .* 1: got 0", train_vectors, Windows([[0, 1]], 6, PLAIN, seed=1), CONFIG, 1, epochs=0)
    fails(DataError, r"sentence 1: ids must lie in \[0, 6\): got 6", Windows, [[0, 1], [2, 6]], 6, PLAIN, seed=1)
    with pytest.raises(DataError, match=r"no word appears 3 times: the text has 2 different words"):
        Windows.from_words([["a", "b", "a"]], PLAIN, seed=1, min_count=3)
    for changes, message in (
        ({"window": 0}, r"`window` must be at least 1: got 0"),
        ({"mode": "glove"}, r"`cbow.mode` cannot be 'glove'. Known: cbow, skip-gram"),
        ({"negatives": -1}, r"`negatives` must not be negative: got -1"),
        ({"negatives": 0, "shared_negatives": 8}, r"`shared_negatives` needs `negatives` of at least 1: got 8 and 0"),
        ({"shared_negatives": -1}, r"`shared_negatives` must not .*: got -1"),
        ({"subsample": 1.5}, r"`subsample` must lie in \[0, 1\]: got 1.5"),
        ({"subsample": float("nan")}, r"`subsample` must lie in \[0, 1\]: got nan"),
        ({"exponent": -0.1}, r"`exponent` must lie in \[0, 1\]: got -0.1"),
    ):
        fails(RecipeError, message, replace, CBOWConfig(), **changes)


def test_r1_no_epoch_and_no_update_is_empty_however_little_text_subsampling_leaves() -> None:
    windows = Windows([[0, 1, 2], [3, 4, 5]], 6, replace(PLAIN, subsample=1e-3), seed=1)
    assert windows.expected() == pytest.approx(6 * math.sqrt(1e-3 * 6))
    for epoch in range(50):
        kept, found = windows.subsampled(epoch), pairs(list(windows.epoch(epoch)))
        none_left = kept[:3].sum() < 2 and kept[3:].sum() < 2  # then every word is kept
        assert len(found) == 6 if none_left else found
    batches = WindowBatches(windows, budget=1)
    assert batches.updates_per_epoch == 6 and len(batches) == 2
    for parts in (batches.parts(update, micro_batches) for update in range(60) for micro_batches in (1, 3)):
        assert sum(part.batch.targets for part in parts) >= 1
    assert Windows([[0, 1, 2], [3, 4, 5]], 6, PLAIN, seed=1).expected() == 6.0


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=40), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1]),
)
def test_windows_in_blocks_are_those_one_by_one(sentences: list[list[int]], window: int, subsample: float) -> None:
    windows = Windows([[0, 1], *sentences], 6, replace(BLOCKS, window=window, subsample=subsample), seed=3)
    for epoch in (0, 1):
        blocks = [WindowBlocks(windows).part(epoch, index, 3) for index in range(3)]
        rows = [zip(one.centre().flatten().tolist(), one.context().flatten(0, 1).tolist()) for one in blocks]
        found = sorted((centre, tuple(context)) for row in rows for centre, context in row if centre >= 0)
        assert found == pairs([windows.part(epoch, 0, 1)])


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_and_the_gradients_of_blocks_are_those_of_their_windows_with_any_shared_negatives(mode: str) -> None:
    rng = np.random.default_rng(1)
    sentences = [rng.integers(0, 7, length).tolist() for length in (1, 2, 5, 3 * BLOCK, 4)]
    config = replace(BLOCKS, mode=mode)
    blocks = WindowBlocks(Windows(sentences, 7, config, seed=1)).part(0, 0, 1)
    network = made(replace(CONFIG, vocab_size=7, cbow=config))
    loss, targets = network.block_loss(blocks.ids, blocks.neighbours, blocks.negatives)
    centre, context = blocks.centre(), blocks.context()
    has_window = centre >= 0
    drawn = blocks.negatives.unsqueeze(1).expand(-1, BLOCK, -1)[has_window].long()
    assert (drawn == centre[has_window].unsqueeze(1)).any()  # some draws are the word itself
    if mode == "skip-gram":
        drawn = drawn.unsqueeze(1).expand(-1, context.shape[-1], -1)
    expected, count = network.loss(centre[has_window].long(), context[has_window].long(), drawn)
    torch.testing.assert_close(loss, expected)
    assert targets == count
    gradients = (torch.autograd.grad(total, list(network.parameters())) for total in (loss, expected))
    for ours, plain in zip(*gradients):
        torch.testing.assert_close(ours, plain)
    # -Σ log σ(u·v) - k/K Σ log σ(-u·n) over pairs, in a loop, with K = 8 drawn words for k = 3
    config = replace(BLOCKS, mode=mode, shared_negatives=8)
    blocks = WindowBlocks(Windows([[0, 1, 2, 3, 4, 1]], 5, config, seed=1)).part(0, 0, 1)
    network = made(replace(CONFIG, vocab_size=5, cbow=config))
    v, u = network.input_weight.detach(), network.output_weight.detach()
    centres, contexts = blocks.centre()[0].tolist(), blocks.context()[0].tolist()

    def nats(hidden: Tensor, target: int) -> float:
        others = [word for word in blocks.negatives[0].tolist() if word != target]
        logs = np.log1p(np.exp([-float(hidden @ u[target]), *(float(hidden @ u[word]) for word in others)]))
        return float(logs[0] + 3 / 8 * logs[1:].sum())

    total = 0.0
    for centre, context in zip(centres, contexts):
        words = [word for word in context if word >= 0]
        if mode == "skip-gram":
            total += sum(nats(v[centre], word) for word in words)
        elif words:
            total += nats(v[words].mean(dim=0), centre)
    loss, _ = network.block_loss(blocks.ids, blocks.neighbours, blocks.negatives)
    assert float(loss.detach()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_an_update_of_blocks_has_parts_whose_targets_are_those_of_the_text(mode: str) -> None:
    rng = np.random.default_rng(2)
    sentences = [rng.integers(0, 50, 11).tolist() for _ in range(3000)]
    windows = Windows(sentences, 50, replace(BLOCKS, mode=mode), seed=1)
    batches = WindowBatches(windows, budget=8192)
    parts = [part for update in range(batches.updates_per_epoch) for part in batches.parts(update)]
    assert batches.updates_per_epoch == 4 and len(parts) == 8
    per_sentence = 11 if mode == "cbow" else 2 * (9 + 10)
    assert sum(part.batch.targets for part in parts) == 3000 * per_sentence
    again = list(WindowBatches(windows, budget=8192).parts(1))
    for part, same in zip(parts[2:], again):
        assert torch.equal(part.batch.inputs["ids"], same.batch.inputs["ids"])
        assert torch.equal(part.batch.extras["negatives"], same.batch.extras["negatives"])
    network = made(replace(CONFIG, vocab_size=50, cbow=windows.config))
    sums = losses(network, parts[0].batch, Call())["window"]
    extras = parts[0].batch.extras
    expected, _ = network.block_loss(parts[0].batch.inputs["ids"], extras["neighbours"], extras["negatives"])
    assert torch.equal(sums[0], expected)
