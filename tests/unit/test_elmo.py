"""ELMo: its characters, its cells against torch.nn, the mix, the language model both ways (rows C14, E9)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.base.errors import CapabilityError, DataError, RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CharacterConfig, ELMoConfig
from atento.networks.rare_layers import LayerMix
from atento.networks.recurrent.elmo import CharacterCNN, ELMo, ProjectedLSTM
from atento.text.characters import character_batch, sentence_characters, word_characters
from failing import fails

SMALL = CharacterConfig(d_char=3, filters=((1, 2), (2, 3), (4, 2)), n_highway=2, max_characters=8, activation="tanh")
ELMO = ELMoConfig(SMALL, d_cell=5)
CONFIG = NetworkConfig(architecture="elmo", vocab_size=7, d_model=4, n_heads=1, n_layers=2, dropout=0.0, elmo=ELMO)
BY_WORDS = replace(CONFIG, elmo=replace(ELMO, characters=None))
SENTENCES = [["a", "bc", "ção"], ["bc"], ["ção", "a"]]


def made(config: NetworkConfig, seed: int = 0) -> ELMo:
    torch.manual_seed(seed)
    network = ELMo(config).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def batch() -> tuple[Tensor, Tensor]:
    ids, real = character_batch(SENTENCES, max_characters=8)
    return torch.from_numpy(ids), torch.from_numpy(real)


def test_c14_a_word_is_its_bytes_between_two_marks_and_a_sentence_has_its_begin_and_end() -> None:
    assert word_characters("ab") == [259, 98, 99, 260] + [261] * 46
    assert word_characters("ç", 5) == [259, 0xC3 + 1, 0xA7 + 1, 260, 261]
    assert word_characters("x" * 60) == [259] + [121] * 48 + [260]
    assert word_characters("\0\xff", 6) == [259, 1, 0xC3 + 1, 0xBF + 1, 260, 261]
    ids = sentence_characters(["a"], max_characters=5)
    assert ids.tolist() == [[259, 257, 260, 261, 261], [259, 98, 260, 261, 261], [259, 258, 260, 261, 261]]
    assert sentence_characters(["a"], boundaries=False, max_characters=5).tolist() == [ids[1].tolist()]
    spelled = sentence_characters(["<S>", "</S>"], boundaries=False)
    assert not np.isin(spelled, [257, 258]).any()
    assert sentence_characters([]).shape == (2, 50) and sentence_characters([], boundaries=False).shape == (0, 50)
    ids, real = character_batch([["a", "b"], []], max_characters=4)
    assert ids.shape == (2, 4, 4) and real.tolist() == [[True] * 4, [True, True, False, False]]
    assert (ids[~real] == 0).all() and (ids[real] > 0).all()
    assert character_batch([])[0].shape == (0, 0, 50)


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), max_size=4)))
def test_c14_the_bytes_can_be_read_back(sentences: list[list[str]]) -> None:
    ids, real = character_batch(sentences, boundaries=False)
    for words, rows, mask in zip(sentences, ids, real):
        assert mask.sum() == len(words)
        for word, row in zip(words, rows):
            end = row.tolist().index(260)
            assert bytes(int(c) - 1 for c in row[1:end]) == word.encode()[:48]
            assert row[0] == 259 and (row[end + 1 :] == 261).all()


@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 1, 3]])
def test_c14_without_bounds_the_cell_is_torchs_projected_lstm(lengths: list[int]) -> None:
    """Both directions, and packed lengths: torch packs, ours waits where nothing is real."""
    torch.manual_seed(1)
    theirs = nn.LSTM(4, 6, bidirectional=True, proj_size=4, batch_first=True).double()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    for suffix, half in (("", expected[..., :4]), ("_reverse", expected[..., 4:])):
        ours = ProjectedLSTM(4, 6, backward=bool(suffix), cell_clip=None, projection_clip=None).double()
        weights = {name: value for name, value in theirs.named_parameters() if name.endswith(f"l0{suffix}")}
        with torch.no_grad():
            ours.input.weight.copy_(weights[f"weight_ih_l0{suffix}"])
            ours.input.bias.copy_(weights[f"bias_ih_l0{suffix}"] + weights[f"bias_hh_l0{suffix}"])
            ours.recurrent.weight.copy_(weights[f"weight_hh_l0{suffix}"])
            ours.projection.weight.copy_(weights[f"weight_hr_l0{suffix}"])
        torch.testing.assert_close(ours(x, real), half, rtol=0, atol=1e-12)


def test_c14_the_bounds_hold_and_the_forget_gate_begins_open() -> None:
    layer = ProjectedLSTM(4, 6, backward=False, cell_clip=0.2, projection_clip=0.1).double()
    torch.manual_seed(2)
    layer.reset_parameters()
    assert layer.input.bias.tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12
    gates = 9 * torch.randn(8, 24, dtype=torch.float64)
    with torch.no_grad():
        hidden, cell = layer.step(gates, torch.zeros(8, 4).double(), torch.zeros(8, 6).double())
    assert float(cell.abs().max()) == 0.2 and float(hidden.abs().max()) <= 0.1
    i, _, g, _ = gates.chunk(4, dim=-1)
    free = torch.sigmoid(i) * torch.tanh(g)
    inside = free.abs() < 0.2
    assert inside.any() and not inside.all()
    torch.testing.assert_close(cell[inside], free[inside], rtol=0, atol=1e-15)


@pytest.mark.parametrize("skip", [True, False])
def test_c14_padding_never_changes_a_state(skip: bool) -> None:
    """Each sentence alone, beside longer ones, and with padding on the left: the same layers; padding itself is 0."""
    network = made(replace(CONFIG, elmo=replace(ELMO, skip=skip)))
    ids, real = batch()
    ids = torch.where(real[..., None], ids, torch.randint(0, 262, ids.shape))  # whatever stands there
    together = network.layers(ids, token_mask=real)
    assert (together[:, ~real] == 0).all() and (network(ids, token_mask=real).hidden[~real] == 0).all()
    for row, words in enumerate(SENTENCES):
        alone = network.layers(torch.from_numpy(sentence_characters(words, max_characters=8))[None])
        torch.testing.assert_close(together[:, row, : len(words) + 2], alone[:, 0], rtol=0, atol=1e-12)
    turned = network.layers(ids.roll(2, dims=1), token_mask=real.roll(2, dims=1))
    kept = ~real[:, -2:].any(dim=1)  # rows whose two last places were padding
    assert kept.sum() == 1
    torch.testing.assert_close(turned[:, kept, 2:], together[:, kept, :-2], rtol=0, atol=1e-12)


def test_c14_each_direction_knows_its_own_side_only_and_layers_are_the_words_twice_then_both() -> None:
    """By gradients: state t of a direction depends on every word of its side, itself too, and on no other."""
    network = made(BY_WORDS)
    places = torch.arange(6)  # each place has a word of its own
    for layer, pair in enumerate(network.directions(places[None])):
        for direction, states in enumerate(pair):
            for t in range(6):
                (grad,) = torch.autograd.grad(states[0, t].sum(), network.embedding.weight, retain_graph=True)
                reached = grad[:6].abs().amax(dim=-1) > 0
                side = places == t if layer == 0 else places <= t if direction == 0 else places >= t
                assert torch.equal(reached, side), (layer, direction, t)
    network = made(CONFIG)
    ids, real = batch()
    layers, both = network.layers(ids, token_mask=real), network.directions(ids, token_mask=real)
    assert layers.shape == (3, 3, 5, 8) and len(both) == 3
    for layer, (ahead, behind) in zip(layers, both):
        assert torch.equal(layer[..., :4], ahead) and torch.equal(layer[..., 4:], behind)
    assert torch.equal(layers[0, ..., :4], layers[0, ..., 4:])
    both = network.directions(ids)
    for direction, stack in enumerate((network.forward_layers, network.backward_layers)):
        first = stack[0](both[0][direction], None)
        assert torch.equal(both[1][direction], first)
        assert torch.equal(both[2][direction], stack[1](first, None) + first)


@pytest.mark.parametrize("norm", [False, True])
def test_c14_the_mix_is_gamma_times_the_weighted_sum(norm: bool) -> None:
    layers = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mix = LayerMix(3, norm=norm).double()
    plain = [(h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() for h in layers]
    plain = plain if norm else list(layers)
    torch.testing.assert_close(mix(layers), sum(plain) / 3, rtol=0, atol=1e-12)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    powers = [math.exp(w) for w in (0.5, -1.0, 2.0)]
    expected = 1.7 * sum(power / sum(powers) * h for power, h in zip(powers, plain))
    torch.testing.assert_close(mix(layers), expected, rtol=0, atol=1e-12)
    # `elmo.mix_norm`: each token's layers have mean 0 and variance 1 before a network mixes them
    network = made(replace(CONFIG, elmo=replace(ELMO, mix_norm=norm)))
    mix.load_state_dict(network.mix.state_dict())
    ids, real = batch()
    expected, hidden = mix(network.layers(ids, token_mask=real)), network(ids, token_mask=real).hidden
    torch.testing.assert_close(hidden[real], expected[real], rtol=0, atol=1e-9)


def test_e9_the_loss_is_both_directions_sum_over_real_neighbours() -> None:
    """Against plain loops; padding counts in no target."""
    network = made(CONFIG).requires_grad_(False)
    ids, real = batch()
    words = torch.randint(0, 7, real.shape, generator=torch.Generator().manual_seed(4))
    found = network.loss(ids, words, token_mask=real)
    ahead, behind = network.directions(ids, token_mask=real)[-1]
    forward = backward = 0.0
    for row, sentence in enumerate(SENTENCES):
        for t in range(len(sentence) + 1):
            forward -= float(torch.log_softmax(network.project(ahead[row, t]), -1)[words[row, t + 1]])
            backward -= float(torch.log_softmax(network.project(behind[row, t + 1]), -1)[words[row, t]])
    assert (found.forward_targets, found.backward_targets, found.targets) == (9, 9, 18)
    assert float(found.forward) == pytest.approx(forward, abs=1e-10)
    assert float(found.backward) == pytest.approx(backward, abs=1e-10)
    assert float(found.total) == pytest.approx(forward + backward, abs=1e-10)
    assert found.perplexities == pytest.approx((math.exp(forward / 9), math.exp(backward / 9)))
    spoiled = torch.where(real, words, (words + 3) % 7)
    assert float(network.loss(ids, spoiled, token_mask=real).total) == float(found.total)
    assert network.loss(ids[:1, :1], words[:1, :1]).targets == 0


@pytest.mark.parametrize("characters", [True, False])
def test_c14_e9_training_finds_the_texts_entropy_in_both_directions(characters: bool) -> None:
    """Four sentences `<s> x z </s>`, equally likely, z one of two by x: ln 4 nats a sentence, read from either end."""
    sentences = [["w", "p"], ["x", "p"], ["y", "q"], ["z", "q"]]
    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", "w", "x", "y", "z", "p", "q"])}
    words = torch.tensor([[0, *(vocabulary[word] for word in one), 1] for one in sentences])
    ids = torch.from_numpy(character_batch(sentences, max_characters=8)[0]) if characters else words
    torch.manual_seed(5)
    elmo = replace(ELMO, d_cell=16, characters=SMALL if characters else None)
    network = ELMo(replace(CONFIG, vocab_size=8, d_model=12, elmo=elmo))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    losses = []
    for _ in range(150):
        loss = network.loss(ids, words)
        optimizer.zero_grad()
        (loss.total / loss.targets).backward()
        optimizer.step()
        losses.append(float(loss.total.detach()) / loss.targets)
    limit = math.exp(math.log(4) / 3)  # three targets a sentence
    assert losses[0] > 1.5 and losses[-1] < 0.5
    with torch.no_grad():
        for perplexity in network.eval().loss(ids, words).perplexities:
            assert limit - 1e-4 < perplexity < 1.03 * limit


def test_c14_gradients_are_those_of_finite_differences() -> None:
    network = made(CONFIG)
    ids, real = batch()
    words = torch.randint(0, 7, real.shape, generator=torch.Generator().manual_seed(6))

    def scalars(*_: Tensor) -> tuple[Tensor, Tensor]:  # of the mix and of the loss; weights are read where they stand
        return (network(ids, token_mask=real).hidden ** 2).sum(), network.loss(ids, words, token_mask=real).total

    assert torch.autograd.gradcheck(scalars, tuple(network.parameters()), fast_mode=True)


def test_c14_dropout_is_a_function_of_its_randomness() -> None:
    network = made(replace(CONFIG, dropout=0.5))
    ids, real = batch()
    words = torch.zeros(real.shape, dtype=torch.int64)
    still = network.layers(ids, token_mask=real)
    network.train()
    first = network.layers(ids, token_mask=real, random=Randomness(1, 2))
    assert torch.equal(first, network.layers(ids, token_mask=real, random=Randomness(1, 2)))
    assert not torch.equal(first, network.layers(ids, token_mask=real, random=Randomness(1, 3)))
    assert torch.equal(first[0], still[0]) and not torch.allclose(first[1], still[1])
    losses = []
    for seed in (1, 1, 2):
        random = Randomness(seed)
        losses.append(network.loss(ids, words, token_mask=real, random=random).total)
        assert random.use == 6  # in each direction: the input of both layers, and of the softmax
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])
    assert torch.equal(network.eval().layers(ids, token_mask=real, random=Randomness(1, 2)), still)


def test_c14_the_published_size_without_memory_and_without_a_character_projection() -> None:
    """93.6 million, counted by hand from the published widths; and a mix of 3 weights and γ."""
    with torch.device("meta"):
        network = ELMo(NetworkConfig(architecture="elmo", n_heads=1, n_layers=2, d_model=512, elmo=ELMoConfig()))
    assert all(parameter.is_meta for parameter in network.parameters())
    widths = [(1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)]
    cnn = 262 * 16 + sum(w * 16 * n + n for w, n in widths) + 4 * (2048 * 2048 + 2048) + 2048 * 512 + 512
    lstm = 4 * (1024 * 16384 + 16384 + 4096 * 512)
    assert sum(parameter.numel() for parameter in network.parameters()) == cnn + lstm + 4 == 93_600_868
    small = ELMo(CONFIG)
    with torch.device("meta"):
        empty = ELMo(CONFIG)
    empty.to_empty(device="cpu").reset_parameters()
    for (name, parameter), (_, other) in zip(empty.named_parameters(), small.named_parameters()):
        assert torch.isfinite(parameter).all() and parameter.shape == other.shape, name
        assert bool((parameter == 0).all()) == bool((other == 0).all()), name
    config = replace(SMALL, projection=False)
    cnn = CharacterCNN(config, 7)
    assert cnn.projection is None and cnn(torch.ones(2, 3, 8, dtype=torch.int64)).shape == (2, 3, 7)
    fails(RecipeError, r"`filters` must add up to `d_model`: got 7 and 4", CharacterCNN, config, 4)


def test_wrong_inputs_and_configs_are_named() -> None:
    network, words, characters = made(CONFIG), torch.ones(2, 3).long(), torch.ones(2, 3, 8).long()
    fails(ValueError, r"characters must be \(B,L,8\).*got \(2, 3, 50\)", network, torch.ones(2, 3, 50).long())
    fails(ValueError, r"word ids must be \(B,L\): got \(2, 3, 8\)", made(BY_WORDS), characters)
    fails(ValueError, r"must be boolean \(2, 3\): got torch.int64 \(2, 3\)", network, characters, token_mask=words)
    fails(CapabilityError, "has no 'vocabulary' head", ELMo(replace(CONFIG, vocab_size=0)).loss, characters, words)
    fails(RecipeError, r"`vocab_size` .* without `elmo.characters`: got 0", ELMo, replace(BY_WORDS, vocab_size=0))
    fails(DataError, r"sentence 1, word 2: a word must have at least one", character_batch, [["a"], ["b", "c", ""]])
    fails(DataError, r"word 0: .* Unicode text.* half a surrogate pair at 1", sentence_characters, ["a\ud800"])
    for config, changes, message in (
        (SMALL, {"d_char": 0}, r"`d_char` must be at least 1: got 0"),
        (SMALL, {"max_characters": 2}, r"`max_characters` must lie from 3.*got 2"),
        (SMALL, {"filters": ()}, r"`filters` must hold at least one"),
        (SMALL, {"filters": ((1, 0),)}, r"`filters` must be pairs of width and count, both at least 1: got \(1, 0\)"),
        (SMALL, {"filters": ((9, 1),)}, r"the width of `filters` must not exceed `max_characters`: got 9 and 8"),
        (SMALL, {"n_highway": -1}, r"`n_highway` must lie from 0 to 100: got -1"),
        (SMALL, {"activation": "gelu"}, r"`activation` cannot be 'gelu'"),
        (ELMO, {"d_cell": 0}, r"`d_cell` must be at least 1: got 0"),
        (ELMO, {"cell_clip": 0.0}, r"`cell_clip` must be above 0, or null for none: got 0.0"),
        (ELMO, {"projection_clip": float("nan")}, r"`projection_clip` must be above 0.*got nan"),
    ):
        fails(RecipeError, message, replace, config, **changes)
