"""The conditional random field beside brute force over all sequences: sums, marginals, Viterbi, gradients (G4)."""

import re
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, Distillation
from atento.metrics.tag_schemes import illegal, legal_transitions
from atento.networks import build_network, crf
from atento.networks.crf import ILLEGAL, Chain, best_tags, forward_sums, illegal_scores
from atento.networks.interface import Network
from atento.training.losses import Call, losses
from failing import fails

IOB2 = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
BIOES = ("B-X", "E-X", "I-X", "O", "S-X")
PLAIN = ("ADJ", "NOUN", "VERB")


def chain_of(labels: tuple[str, ...], scheme: str | None, seed: int, dtype: torch.dtype = torch.float64) -> Chain:
    """Random transitions, without those that the scheme forbids."""
    generator, count = torch.Generator().manual_seed(seed), len(labels)
    learned = (torch.randn(*shape, generator=generator) for shape in ((count,), (count, count), (count,)))
    fixed = illegal_scores(legal_transitions(labels, scheme))
    return Chain(*((part + torch.from_numpy(scores)).to(dtype) for part, scores in zip(learned, fixed)))


def tag_log_probs(scores: Tensor, lengths: Tensor, tags: Tensor, chain: Chain) -> Tensor:
    return crf.tag_log_probs(forward_sums(scores, chain.start, chain.transitions), lengths, tags, chain)


def log_marginals(scores: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    return crf.log_marginals(scores, forward_sums(scores, chain.start, chain.transitions), lengths, chain)


def score(scores: Tensor, tags: tuple[int, ...], chain: Chain) -> Tensor:
    """The score of a sequence of one sentence (N,C), a term at a time."""
    total = chain.start[tags[0]] + chain.end[tags[-1]]
    for word, tag in enumerate(tags):
        total = total + scores[word, tag]
        if word:
            total = total + chain.transitions[tags[word - 1], tag]
    return total


def every(scores: Tensor, chain: Chain) -> tuple[list[tuple[int, ...]], Tensor]:
    """All sequences of tags of a sentence, and their probabilities."""
    sequences = list(product(range(scores.shape[1]), repeat=len(scores)))
    return sequences, torch.stack([score(scores, tags, chain) for tags in sequences]).softmax(dim=0)


CASES = [(IOB2, "IOB2"), (BIOES, "BIOES"), (PLAIN, None)]
lengths_and_seeds = given(case=st.sampled_from(CASES), length=st.integers(1, 4), seed=st.integers(0, 10**6))


@settings(max_examples=25, deadline=None)
@lengths_and_seeds
def test_probabilities_are_those_of_all_sequences(case: Any, length: int, seed: int) -> None:
    """Log-likelihood by the forward algorithm, marginals by forward and backward, and Viterbi: each by brute force."""
    chain = chain_of(*case, seed)
    scores = 3 * torch.randn(length, len(case[0]), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    sequences, shares = every(scores, chain)
    one, lengths = scores.unsqueeze(0), torch.tensor([length])
    for tags in sequences[:: max(1, len(sequences) // 40)]:
        log_prob = tag_log_probs(one, lengths, torch.tensor([tags]), chain).sum()
        share = shares[sequences.index(tags)]
        is_illegal = case[1] is not None and bool(illegal([case[0][tag] for tag in tags], case[1]))
        assert is_illegal == (share == 0) == (log_prob < 0.9 * ILLEGAL)
        assert log_prob.exp() == pytest.approx(float(share), abs=1e-12)
    expected = torch.zeros(length, len(case[0]), dtype=torch.float64)
    for tags, share in zip(sequences, shares):
        expected[range(length), tags] += share
    torch.testing.assert_close(log_marginals(one, lengths, chain)[0].exp(), expected, rtol=0, atol=1e-12)
    assert best_tags(one, [length], chain)[0] == list(sequences[int(shares.argmax())])


def test_likelihoods_are_products_of_conditionals_and_float32_agrees_with_brute_force() -> None:
    """p(tag | the tag behind it): the joint probability of the tags of an entity is made of these."""
    chain, scores = chain_of(IOB2, "IOB2", 3), torch.randn(4, 5, dtype=torch.float64)
    sequences, shares = every(scores, chain)
    tags = (4, 1, 3, 4)
    factors = tag_log_probs(scores.unsqueeze(0), torch.tensor([4]), torch.tensor([tags]), chain)[0].exp()
    for word in range(3):
        behind = sum(share for other, share in zip(sequences, shares) if other[word + 1 :] == tags[word + 1 :])
        both = sum(share for other, share in zip(sequences, shares) if other[word:] == tags[word:])
        assert float(factors[word]) == pytest.approx(float(both / behind), abs=1e-12)
    last = sum(share for other, share in zip(sequences, shares) if other[3] == 4)
    assert float(factors[3]) == pytest.approx(float(last), abs=1e-12)
    scores = 20 * torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    chain = chain_of(IOB2, "IOB2", 1, torch.float32)
    sequences, shares = every(scores.double(), Chain(*(part.double() for part in chain)))
    tags = sequences[int(shares.argmax())]
    found = tag_log_probs(scores.unsqueeze(0), torch.tensor([4]), torch.tensor([tags]), chain)
    assert found.dtype == torch.float32
    assert float(found.sum()) == pytest.approx(float(shares.max().log()), abs=1e-5)
    long = 5 * torch.randn(1, 400, 5, generator=torch.Generator().manual_seed(2))  # log Z of some thousands
    best, length = torch.tensor(best_tags(long, [400], chain)), torch.tensor([400])
    wide = tag_log_probs(long.double(), length, best, Chain(*(part.double() for part in chain)))
    assert float(tag_log_probs(long, length, best, chain).sum()) == pytest.approx(float(wide.sum()), abs=1e-3)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 10**6))
def test_rows_do_not_depend_on_their_company_or_on_padding(lengths: list[int], seed: int) -> None:
    chain, generator = chain_of(BIOES, "BIOES", seed), torch.Generator().manual_seed(seed)
    scores = torch.randn(len(lengths), max(lengths) + 2, 5, dtype=torch.float64, generator=generator)
    of_rows = torch.tensor(lengths)
    found = best_tags(scores, lengths, chain)
    tags = torch.zeros(len(lengths), max(lengths) + 2, dtype=torch.long)
    for row, best in enumerate(found):
        tags[row, : len(best)] = torch.tensor(best)
    marginals, factors = log_marginals(scores, of_rows, chain), tag_log_probs(scores, of_rows, tags, chain)
    for row, length in enumerate(lengths):
        alone, of_one = scores[row : row + 1, :length], torch.tensor([length])
        assert found[row] == best_tags(alone, [length], chain)[0] and len(found[row]) == length
        assert not illegal([BIOES[tag] for tag in found[row]], "BIOES")
        torch.testing.assert_close(marginals[row, :length], log_marginals(alone, of_one, chain)[0])
        expected = tag_log_probs(alone, of_one, tags[row : row + 1, :length], chain)[0]
        torch.testing.assert_close(factors[row, :length], expected)


def test_gradients_are_those_of_finite_differences_and_never_nan() -> None:
    chain = chain_of(IOB2, "IOB2", 7)
    scores = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    learned = [torch.randn(5).double().requires_grad_(), torch.randn(5, 5).double().requires_grad_()]
    lengths, tags = torch.tensor([4, 2]), torch.tensor([[4, 1, 3, 4], [0, 2, 0, 0]])
    real = torch.arange(4) < lengths.unsqueeze(1)

    def likelihood(scores: Tensor, start: Tensor, transitions: Tensor) -> Tensor:
        own = Chain(chain.start + start, chain.transitions + transitions, chain.end)
        return tag_log_probs(scores, lengths, tags, own)[real].sum()

    assert torch.autograd.gradcheck(likelihood, (scores, *learned))
    likelihood(scores, *learned).backward()
    assert learned[1].grad is not None and bool(torch.isfinite(learned[1].grad).all())
    forbidden = chain.transitions < ILLEGAL / 2
    assert forbidden.any() and bool((learned[1].grad[forbidden] == 0).all())  # what is illegal learns nothing
    # the gradient of log Z is the marginals: that of the likelihood, the right tags less the marginals
    assert scores.grad is not None
    own = Chain(chain.start + learned[0], chain.transitions + learned[1], chain.end)
    right = torch.nn.functional.one_hot(tags, 5).double()
    expected = (right - log_marginals(scores, lengths, own).exp()) * real.unsqueeze(2)
    torch.testing.assert_close(scores.grad, expected)


def tagger(kind: str = "crf", labels: tuple[str, ...] = IOB2) -> Network:
    torch.manual_seed(0)
    head = HeadConfig(kind, labels, dropout=0.0)  # type: ignore[arg-type]
    sizes = {"vocab_size": 20, "d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1, "dropout": 0.1}
    network = build_network(NetworkConfig("encoder", **sizes, heads=(head,)))  # type: ignore[arg-type]
    for name, parameter in network.named_parameters():
        if name.endswith(("transitions", ".start", ".end")):
            torch.nn.init.normal_(parameter)
    return network.eval()


def batch_of(labels: list[list[int]], whole: list[bool] | None = None) -> Batch:
    tags = torch.tensor(labels)
    ids = torch.arange(tags.numel()).reshape(tags.shape) % 15 + 1
    extras = {"tagging whole": torch.tensor(whole or [True] * len(labels))}
    return Batch({"ids": ids, "token_mask": torch.ones_like(ids, dtype=torch.bool)}, {"tagging": tags}, extras=extras)


def test_the_loss_reads_each_word_at_its_first_piece_and_halves_beside_a_teacher() -> None:
    """-1 is a further piece, a special token or padding; a row without a word, and a batch of such rows, give 0."""
    network = tagger()
    batch = batch_of([[-1, 4, 1, -1, 3, -1], [0, -1, 2, 4, -1, -1], [-1] * 6])
    loss, nll = losses(network, batch, Call())["tagging"]
    with torch.no_grad():
        logits = network.read("tagging", network(**batch.inputs), batch.inputs["token_mask"])
        expected = 0.0
        for row, places, tags in ((0, [1, 2, 4], (4, 1, 3)), (1, [0, 2, 3], (0, 2, 4))):
            sequences, shares = every(logits[row, places].double(), network.heads["tagging"].chain(torch.float64))
            expected -= float(shares[sequences.index(tags)].log())
    assert float(loss.detach()) == float(nll) == pytest.approx(expected, abs=1e-5) and batch.counts() == {"tagging": 6}
    assert float(losses(network, batch_of([[-1] * 6]), Call())["tagging"][1]) == 0.0
    # B-X may not end a sentence in BIOES, but one that is cut may end there
    network = tagger(labels=BIOES)
    cut, whole = (float(losses(network, batch_of([[3, 0]], [ends]), Call())["tagging"][1]) for ends in (False, True))
    assert cut < 100 and whole > 1e5
    network, batch = tagger(), batch_of([[4, 1, 3, 4], [0, 2, 4, -1]])
    plain = losses(network, batch, Call())["tagging"]
    # a teacher of the same marginals: the soft loss is 0, so that half of the loss is left
    labels, lengths = batch.labels["tagging"], torch.tensor([4, 3])
    with torch.no_grad():
        logits = network.read("tagging", network(**batch.inputs), batch.inputs["token_mask"])
        own = log_marginals(logits, lengths, network.heads["tagging"].chain())[labels >= 0].unsqueeze(1)  # (n,1,C)
    extras, settings = {**batch.extras, "tagging teacher": own}, {"tagging teacher": Distillation(0.5, 1.0, None)}
    taught = Batch(batch.inputs, batch.labels, extras=extras, settings=settings)
    loss, nll = losses(network, taught, Call())["tagging"]
    assert float(loss.detach()) == pytest.approx(float(plain[0].detach()) / 2, abs=1e-4)
    assert float(nll) == pytest.approx(float(plain[1]))


def test_heads_that_are_refused() -> None:
    for options, says in (
        ({"labels": ("O",)}, "`labels` must name at least two for a crf head: got ['O']"),
        ({"side": "both"}, "`side` both is for classes, a number or an answer: got a crf head"),
        ({"labels": ("O", "O")}, "`labels` must differ: got ['O', 'O']"),
        ({"center": 1.0}, "`center` and a `spread` above 0 belong to a regression head: got a crf head"),
    ):
        fails(RecipeError, f"^{re.escape(says)}$", HeadConfig, "crf", **{"labels": IOB2} | options)
    fails(RecipeError, "`labels` of a crf head may be empty in a recipe alone", tagger, labels=())
