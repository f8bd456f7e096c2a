"""The objectives as batches: spans, BART's noise, next sentences, prefixes, mixtures (E3, E4, E7)."""

from dataclasses import replace
from itertools import pairwise
from math import exp, factorial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from atento.base.errors import DataError, RecipeError, TokenizerError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Batches, Draw, MemoryStore, Ragged
from atento.data.batches.mixture import Mixture, Shares
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives import batches_for
from atento.data.objectives.causal import Prefix
from atento.data.objectives.denoising import Noise, SpanCorruption, corrupt, restored, sentence_numbers
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.data.records.splits import Split
from atento.text.specials import sentinels
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from failing import fails

SENTENCES = ["O gato dorme. Ele sonha com peixe.", "A casa é azul. A porta é verde. O sol brilha.", "Eu leio. Tu lês."]
SENTINELS = tuple(range(1000, 1010))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig("bpe", vocab_size=200), SENTENCES, extra_specials=sentinels(10))


def preparation(tokenizer: Tokenizer, network: NetworkConfig, texts: list[str], *overrides: str) -> Preparation:
    sources = {"train": {"world": "train", "count": 3}}
    loaded = load_recipe({"task": "masked-language-modeling", "data": sources}, list(overrides))
    sized = replace(network, vocab_size=tokenizer.vocab_size)
    return Preparation(loaded.recipe, sized, tokenizer, Split({"text": texts}, ""), "bos-eos")


def test_e3_the_published_sentence_and_what_is_refused(tokenizer: Tokenizer) -> None:
    """Raffel et al. 2020, figure 2; the notes' sentence."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    names = ["<X>", "<Y>", "<Z>"]
    number = {word: i for i, word in enumerate([*words, *names])}
    ids = [number[word] for word in words]
    source, target = corrupt(ids, [(2, 4), (8, 9)], [number[name] for name in names])
    text = {i: word for word, i in number.items()}
    assert " ".join(text[i] for i in source) == "Thank you <X> me to your party <Y> week ."
    assert " ".join(text[i] for i in target) == "<X> for inviting <Y> last <Z>"
    assert restored(source, target, [number[name] for name in names]) == ids
    # A tokenizer without sentinels and too many spans are refused
    plain = train_tokenizer(TokenizerConfig("bpe", vocab_size=120), SENTENCES)
    given = preparation(plain, NetworkConfig(), SENTENCES)
    fails(TokenizerError, "needs a tokenizer with sentinels", batches_for, given, (ObjectiveConfig("span-corruption"),))
    fails(ValueError, "2 spans need 3 sentinels: got 2", corrupt, [1, 2, 3], [(0, 1), (2, 3)], [8, 9])
    made = batches_for(preparation(tokenizer, NetworkConfig(), SENTENCES), (ObjectiveConfig("span-corruption"),))
    assert len(made) == 3


@settings(max_examples=30)
@given(length=st.integers(2, 120), row=st.integers(0, 50), epoch=st.integers(0, 3), rate=st.sampled_from([0.15, 0.5]))
def test_e3_spans_are_as_many_as_the_rate_says_and_the_inverse_restores_the_text(length, row, epoch, rate) -> None:
    objective = SpanCorruption(SequenceToSequence(0, 2, 3), SENTINELS, rate=rate)
    ids = list(range(5, 5 + length))
    (spans,) = objective.spans(np.array([length]), np.array([row]), Draw(1, epoch))
    hidden, count = (int(one) for one in objective.counts(np.array(length)))
    assert len(spans) == count and sum(end - start for start, end in spans) == hidden
    assert all(start < end for start, end in spans) and all(one[1] < other[0] for one, other in pairwise(spans))
    source, target = corrupt(ids, spans, SENTINELS)
    assert restored(source, target, SENTINELS) == ids
    store = MemoryStore({"ids": Ragged([ids])})
    sides = objective.lengths(store)
    assert (len(source) + 1, len(target) + 1) == (sides[0][0], sides[1][0])  # with EOS; known before it is drawn
    batch = objective.batch(store, np.array([0]), Draw(1, epoch))
    assert batch.counts() == {"vocabulary": int(objective.sizes(store)[0])}


HEADS = HeadConfig("masked-language-model"), HeadConfig("next-sentence")
ENCODER = NetworkConfig("encoder", embedding=InputConfig(segments=2), pooler=True, heads=HEADS)


def pairs_of(made: PlannedBatches, epoch: int) -> list[tuple[int, int, int]]:
    """The first and the second sentence of each pair of an epoch, and whether the second is a random one."""
    columns = (made.stores.at(epoch)[name].flat.tolist() for name in ("first", "second", "follows"))
    return list(zip(*columns))


def test_e4_half_of_the_second_sentences_follow_and_every_false_one_is_of_another_document(tokenizer) -> None:
    texts = [f"Primeira {n}. Segunda {n}. Terceira {n}." for n in range(40)]
    made = batches_for(preparation(tokenizer, ENCODER, texts), (ObjectiveConfig("next-sentence"),))
    assert len(made) == 80  # two pairs a document
    objective, store = made.objective, made.stores.first
    follows = 0
    for epoch in range(4):
        for first, second, answer in pairs_of(made, epoch):
            documents = store["document"].flat
            same = documents[first] == documents[second]
            assert (answer == 0) == same and (answer == 1 or second == first + 1)
            follows += answer == 0
    assert abs(follows - 160) < 4 * 80**0.5
    batch = objective.batch(store, np.arange(8), Draw(1, 0))
    assert set(batch.labels) == {"vocabulary", "next-sentence"} and batch.labels["next-sentence"].shape == (8,)
    ids, segments = batch.inputs["ids"], batch.inputs["segment_ids"]
    specials = (ids == tokenizer.bos_id) | (ids == tokenizer.eos_id)
    assert not bool((batch.labels["vocabulary"][specials] >= 0).any())  # a special token is never hidden
    assert segments.max() == 1 and batch.counts()["next-sentence"] == 8
    texts = ["Um gato. Dois gatos. Três gatos. Quatro gatos.", "Um rato. Dois ratos."]
    made = batches_for(preparation(tokenizer, ENCODER, texts), (ObjectiveConfig("next-sentence"),))
    store, follows = made.stores.first, 0
    documents, seen = store["document"].flat.tolist(), set()
    for epoch in range(300):
        for first, second, answer in pairs_of(made, epoch):
            assert (documents[first] == documents[second]) == (answer == 0)
            follows += answer == 0
            seen.add((first, second))
    assert abs(follows - 600) < 4 * 300**0.5
    false = {(first, second) for first, second in seen if documents[first] != documents[second]}
    assert false == {(first, second) for first in (0, 1, 2) for second in (4, 5)} | {(4, second) for second in range(4)}
    for texts in (["Um. Dois. Três."], ["Um.", "Dois."]):
        with pytest.raises(DataError, match="needs two documents at least and one of two sentences"):
            batches_for(preparation(tokenizer, ENCODER, texts), (ObjectiveConfig("next-sentence"),))


def test_e4_the_pairs_of_a_part_have_about_the_same_length_in_every_epoch(tokenizer: Tokenizer) -> None:
    counts = (np.random.default_rng(1).lognormal(2, 0.8, 800).astype(int) + 1).tolist()
    sentences = ["Um " + " ".join(["gato"] * count) + "." for count in counts]
    texts = [" ".join(sentences[row : row + 4]) for row in range(0, 800, 4)]
    made = batches_for(preparation(tokenizer, ENCODER, texts), (ObjectiveConfig("next-sentence"),))
    made.divide(len(made) // 8)
    for epoch in (0, 1):
        lengths = [made.batch(part, epoch).lengths["ids"] for update in made.plan(epoch) for part in update]
        expected = made.objective.lengths(made.stores.at(epoch))[0]
        # as planned, although half are drawn by chance
        assert sorted(torch.cat(lengths).tolist()) == sorted(expected.tolist())
        assert made.padding(epoch) < 0.2


def test_e7_a_prefix_has_no_labels_and_sees_itself_whole(tokenizer: Tokenizer) -> None:
    made = batches_for(preparation(tokenizer, NetworkConfig("decoder"), SENTENCES), (ObjectiveConfig("prefix"),))
    batch = made.parts(0).__next__().batch
    assert batch.mask is not None
    dense = batch.mask.dense(batch.inputs["ids"].shape[1])[:, 0]
    for row, labels in enumerate(batch.labels["vocabulary"]):
        prefix = int((labels >= 0).int().argmax()) + 1
        assert bool(dense[row, :prefix, :prefix].all()) and not bool(dense[row, prefix - 1, prefix:].any())
        assert bool((labels[: prefix - 1] == -1).all())
    # Of four tokens 1 to 3 alike, within 5 standard deviations of 600 draws; so 3 to 1 are predicted
    store = MemoryStore({"ids": Ragged([[4, 5, 6, 7]] * 600)})
    labels = Prefix(0).batch(store, np.arange(600), Draw(1, 0)).labels["vocabulary"]
    counts = torch.bincount((labels >= 0).sum(dim=1), minlength=5).tolist()
    assert counts[0] == counts[4] == 0 and all(abs(count - 200) < 5 * (600 * 2 / 9) ** 0.5 for count in counts[1:4])


class Numbered:
    """Batches whose parts say which update of which member they are."""

    def __init__(self, name: int, updates: int) -> None:
        self.name, self.updates_per_epoch, self.targets = name, updates, updates * 1024

    def __len__(self) -> int:
        return 10

    def parts(self, update: int, micro_batches: int = 1, ours: object = None):  # type: ignore[no-untyped-def]
        yield self.name, update

    def in_order(self, budget: int):  # type: ignore[no-untyped-def]
        yield self.name


def mixture() -> Mixture:
    def made(name: int) -> Batches:
        return Numbered(name, 50)  # type: ignore[return-value]

    members = [lambda tokens: made(0), lambda tokens: made(1)]
    return Mixture(members, lambda made: Shares.constant([3.0, 1.0]), budget=4096, seed=5)


def test_a_mixture_gives_each_member_its_share_in_order_and_can_be_entered_anywhere(tokenizer: Tokenizer) -> None:
    seen: list[Any] = [part for update in range(5000) for part in MADE.parts(update)]
    first = [number for name, number in seen if name == 0]
    second = [number for name, number in seen if name == 1]
    assert first == list(range(len(first))) and second == list(range(len(second)))
    assert abs(len(first) / len(seen) - 0.75) < 4 * (0.75 * 0.25 / len(seen)) ** 0.5
    network = NetworkConfig("encoder", heads=(HeadConfig("masked-language-model"),))
    given = preparation(tokenizer, network, SENTENCES * 20)
    made = batches_for(given, (ObjectiveConfig("masked"), ObjectiveConfig("causal", share=2.0, weight=0.5)))
    kinds = {(part.batch.mask is None, part.weights.get("vocabulary", 1.0)) for u in range(6) for part in made.parts(u)}
    assert kinds == {(True, 1.0), (False, 0.5)}
    # What an update holds is a function of its number, across the blocks in which members are drawn
    whole = [list(MADE.parts(update)) for update in range(8300)]
    for update in (8200, 4096, 4095, 17, 0, 8192):
        assert list(mixture().parts(update)) == whole[update]


MADE = mixture()


def test_a_batch_moves_and_shows_its_examples() -> None:
    labels = {"vocabulary": torch.tensor([[6, -1, -1], [8, 9, 3]])}
    batch = Batch({"ids": torch.tensor([[5, 6, 0], [7, 8, 9]])}, labels, lengths={"ids": torch.tensor([2, 3])})
    assert list(batch.to("cpu").examples()) == [{"ids": [5, 6], "labels": [6]}, {"ids": [7, 8, 9], "labels": [8, 9, 3]}]
    assert batch.counts() == {"vocabulary": 4} and batch.targets == 4
    segments = {"segment_ids": torch.tensor([[0, 1, 0], [0, 1, 1]])}
    paired = replace(batch, inputs=batch.inputs | segments)  # its padding is no part of an example either
    assert [example["segment_ids"] for example in paired.examples()] == [[0, 1], [0, 1, 1]]


MASK = 4
NONE = Noise(MASK, infilling=0.0, permutation=0.0)
TEXTS = ["O gato dorme. Ele sonha com peixe! A casa é azul?", "Eu leio. Tu lês.", "Bom dia"]


def noisy(noise: Noise, length: int, row: int = 0, epoch: int = 0, sentences: int = 1) -> list[int]:
    """A noisy copy of the tokens 100, 101 ..."""
    ids: NDArray[np.int64] = 100 + np.arange(length)
    numbers = np.arange(length) * sentences // length
    return noise.noisy([ids], [numbers], np.array([row]), Draw(1, epoch))[0].tolist()


def spans_of(source: list[int], length: int) -> list[int]:
    """The number of tokens behind each mask of a source of the tokens 100, 101 ... in order."""
    lengths, expected, open_mask = [], 100, False
    for token in [*source, 100 + length]:
        if token == MASK:
            assert not open_mask, "two masks are neighbours"
            open_mask = True
            continue
        if open_mask:
            lengths.append(token - expected)
        else:
            assert token == expected
        expected, open_mask = token + 1, False
    return lengths


def test_infilling_spans_are_poisson_and_hide_the_share_of_tokens() -> None:
    """Lewis et al. 2020: each span becomes one mask; a span of length 0 inserts one."""
    length, lengths = 20_000, []
    for row in range(4):
        spans = spans_of(noisy(replace(NONE, infilling=0.3), length, row), length)
        assert sum(spans) in (6000, 6001)
        lengths += spans
    law = np.array([exp(-3) * 3**k / factorial(k) for k in range(9)])
    counts = np.bincount(np.minimum(lengths, 9), minlength=10)
    assert counts[0] > 0
    assert chisquare(counts, np.append(law, 1 - law.sum()) * counts.sum()).pvalue > 1e-3


@settings(max_examples=40)
@given(length=st.integers(1, 60), row=st.integers(0, 99), rate=st.sampled_from([0.05, 0.3, 0.95]))
def test_infilling_of_any_text_keeps_what_it_does_not_hide(length: int, row: int, rate: float) -> None:
    spans = spans_of(noisy(replace(NONE, infilling=rate), length, row), length)
    assert abs(sum(spans) - rate * length) < 1


def test_deletion_permutation_and_rotation_keep_what_they_may() -> None:
    kept = noisy(replace(NONE, deletion=0.25), 8001)
    assert kept == sorted(kept) and len(set(kept)) == len(kept) in (6000, 6001)
    means = [len(noisy(replace(NONE, deletion=0.25), 6, row)) for row in range(600)]
    assert np.mean(means) == pytest.approx(4.5, abs=0.1)  # rounded at random
    noise = Noise(MASK)
    assert noisy(noise, 60) == noisy(noise, 60) != noisy(noise, 60, epoch=1)
    orders = {tuple(noisy(replace(NONE, permutation=1.0), 9, row, sentences=3)) for row in range(200)}
    sentences = [(100, 101, 102), (103, 104, 105), (106, 107, 108)]
    assert len(orders) == 6 and all({order[:3], order[3:6], order[6:]} == set(sentences) for order in orders)
    starts = np.zeros(5)
    for row in range(1000):
        text = noisy(replace(NONE, rotation=1.0), 5, row)
        starts[text[0] - 100] += 1
        assert text == [100 + (text[0] - 100 + i) % 5 for i in range(5)]
    assert chisquare(starts).pvalue > 1e-3
    untouched = sum(noisy(replace(NONE, rotation=0.4), 50, row)[0] == 100 for row in range(1000))
    assert untouched == pytest.approx(600 + 400 / 50, abs=60)


@pytest.mark.parametrize("kind", ["bpe", "byte", "wordpiece"])
def test_the_target_is_the_clean_text_and_sentences_are_those_of_the_text(kind: str) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind, vocab_size=150), TEXTS)  # type: ignore[arg-type]
    ids, numbers = sentence_numbers(tokenizer, TEXTS[0])
    assert ids == tokenizer.encode(TEXTS[0])
    parts = [tokenizer.decode([i for i, n in zip(ids, numbers) if n == number]).strip() for number in range(3)]
    said = ("O gato dorme.", "Ele sonha com peixe!", "A casa é azul?")
    assert parts == [tokenizer.decode(tokenizer.encode(sentence)) for sentence in said]
    network = NetworkConfig("encoder-decoder")
    noise = ObjectiveConfig("denoising", rotation=0.5, deletion=0.1)
    made = batches_for(preparation(tokenizer, network, TEXTS), (noise,))
    batch = made.batch(np.arange(3))
    for row, text in enumerate(TEXTS):
        labels = batch.labels["vocabulary"][row]
        assert tokenizer.decode(labels[labels >= 0].tolist()[:-1]) == tokenizer.decode(tokenizer.encode(text))
        source = batch.inputs["source_ids"][row]
        assert set(source.tolist()) <= {*tokenizer.encode(text), tokenizer.mask_id, network.eos_id, network.pad_id}
    assert batch.counts()["vocabulary"] == int(made.objective.sizes(made.stores.first).sum())


def test_wrong_noise_is_named() -> None:
    fails(RecipeError, r"`deletion` must lie in \[0, 1\): got 1", ObjectiveConfig, "denoising", deletion=1.0)
    with pytest.raises(RecipeError, match="needs noise: infilling, deletion, permutation, rotation are all 0"):
        ObjectiveConfig("denoising", infilling=0.0, permutation=0.0)
    fails(RecipeError, "`rotation` has no effect on the objective masked", ObjectiveConfig, "masked", rotation=0.5)
