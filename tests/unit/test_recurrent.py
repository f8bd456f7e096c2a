"""Recurrent networks: padding changes nothing, a step equals the whole, what is observed, weights and gradients."""

import re
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.attention import observe
from atento.attention.dropout import Randomness
from atento.attention.masks import causal
from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import SpecialIds
from atento.config.sections.recurrent import CellName, RecurrentConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.decoding import Beam, generate
from atento.inference.plain import PlainStepFunction
from atento.networks.build import parameter_count
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from failing import fails

SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 6, "n_heads": 1, "n_layers": 2, "dropout": 0.0}
CONFIG = NetworkConfig("recurrent-seq2seq", **SIZES, ids=SpecialIds(pad=0))
LM_CONFIG = changed(CONFIG, architecture="recurrent-lm", output={"tied": False})
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [0, 0, 7, 4, 3]])
REAL = SOURCE > 0
TARGET = torch.tensor([[2, 5, 6, 7, 1, 4], [2, 8, 9, 4, 6, 6], [2, 2, 5, 12, 7, 3]])
FORMS = {
    "lstm-none": RecurrentConfig("lstm", attention="none"),
    "gru-none": RecurrentConfig("gru", attention="none", bidirectional=False),
    "lstm-additive": RecurrentConfig("lstm"),
    "gru-additive": RecurrentConfig("gru", values="projected", bidirectional=False),
    "gru-bilinear": RecurrentConfig("gru", attention="bilinear"),
    "lstm-bilinear-fed": RecurrentConfig("lstm", attention="bilinear", input_feeding=True),
    "rnn-dot-fed": RecurrentConfig("rnn", attention="dot", input_feeding=True),
    "lstm-dot": RecurrentConfig("lstm", attention="dot", values="projected"),
}
places = st.lists(st.lists(st.booleans(), min_size=6, max_size=6).filter(any), min_size=3, max_size=3)
some_cuts = st.lists(st.integers(1, 5), max_size=5, unique=True).map(sorted)


@torch.no_grad()
def shaken(network: Any, seed: int = 0, size: float = 0.6) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.double().eval().parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * size)
    return network


@cache
def seq2seq(form: str) -> RecurrentSeq2Seq:
    return shaken(RecurrentSeq2Seq(replace(CONFIG, recurrent=FORMS[form], n_decoder_layers=3)))


@cache
def language_model(cell: CellName) -> RecurrentLM:
    return shaken(RecurrentLM(replace(LM_CONFIG, recurrent=replace(FORMS["lstm-none"], cell=cell))))


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_cannot_be_and_what_no_recurrent_network_can_do_is_refused() -> None:
    for keys, message in (
        ({"cell": "lstmm"}, "`recurrent.cell` cannot be 'lstmm'; did you mean 'lstm'? Known: gru, lstm, rnn"),
        ({"attention": "cosine"}, "`recurrent.attention` cannot be 'cosine'"),
        ({"values": "other"}, "`recurrent.values` cannot be 'other'. Known: keys, projected"),
        ({"attention": "none", "values": "projected"}, "needs attention: got `recurrent.attention` 'none'"),
        ({"input_feeding": True}, "is for bilinear and dot attention"),
        ({"input_feeding": True, "attention": "none"}, "got `recurrent.attention` 'none'"),
    ):
        fails(RecipeError, re.escape(message), RecurrentConfig, **keys)
    with pytest.raises(RecipeError, match="`d_model` must be even for a bidirectional encoder: got 5"):
        RecurrentSeq2Seq(replace(CONFIG, d_model=5, recurrent=FORMS["lstm-none"]))
    one_way = RecurrentSeq2Seq(replace(CONFIG, d_model=5, recurrent=FORMS["gru-none"]))
    assert one_way(SOURCE, TARGET).hidden.shape == (3, 6, 5)
    network, model = seq2seq("lstm-additive"), language_model("lstm")
    with pytest.raises(CapabilityError, match=r"takes no `mask`.*got a Tensor"):
        network(SOURCE, TARGET, mask=torch.ones(6, 6, dtype=torch.bool))
    fails(CapabilityError, re.escape(f"takes no `mask`: got {causal()!r}"), model, TARGET, mask=causal())
    fails(ValueError, "give `source_ids`, or `encoded`", network, None, TARGET)
    for family in (RecurrentSeq2Seq, RecurrentLM):
        fails(ValueError, "`vocab_size` must be at least 1: got 0", family, replace(CONFIG, vocab_size=0))


@settings(max_examples=25)
@given(source=places, target=places, form=st.sampled_from(sorted(FORMS)), seed=st.integers(0, 1000))
def test_c11_padding_changes_nothing_wherever_it_stands(source: Any, target: Any, form: str, seed: int) -> None:
    """Left, right and between: states and logits are those of each row's real tokens alone."""
    network, real, real_target = seq2seq(form), torch.tensor(source), torch.tensor(target)
    ids, target_ids = torch.randint(0, 13, (2, 3, 6), generator=torch.Generator().manual_seed(seed))
    encoded = network.encode(ids, source_token_mask=real)
    logits = network(ids, target_ids, source_token_mask=real, target_token_mask=real_target).logits
    assert bool((encoded[~real] == 0).all())
    for row in range(3):
        own = ids[row : row + 1, real[row]]
        close(encoded[row, real[row]], network.encode(own)[0])
        alone = network(own, target_ids[row : row + 1, real_target[row]]).logits
        close(logits[row, real_target[row]], alone[0])


@pytest.mark.parametrize("form", FORMS)
def test_c11_c12_padding_is_never_read_given_states_padded_pieces_and_rows_that_change_places(form: str) -> None:
    """Not by a single bit, nor by the gradient."""
    network = seq2seq(form)
    real_target = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] * 3 + [True] * 3])
    results = []
    for filler in (0, 11):
        ids, target = SOURCE.masked_fill(~REAL, filler), TARGET.masked_fill(~real_target, filler)
        out = network(ids, target, source_token_mask=REAL, target_token_mask=real_target)
        (gradient,) = torch.autograd.grad(out.logits[real_target].square().sum(), network.embedding.weight)
        results.append((out.encoded, out.logits[real_target], gradient))
    for one, other in zip(*results):
        assert torch.equal(one, other)
    # `encoded` and its padding mask are enough: C is read off it
    network = seq2seq(form)
    whole = network(SOURCE, TARGET, source_token_mask=REAL)
    close(network(None, TARGET, encoded=whole.encoded, source_token_mask=REAL).logits, whole.logits)
    assert network(SOURCE, TARGET, project=False).logits is None
    # The mask of the second piece may cover that piece alone, or all that was seen
    real = torch.tensor([[False] * 2 + [True] * 4, [True] * 6, [True] * 3 + [False, True, False]])
    whole = network(SOURCE, TARGET, source_token_mask=REAL, target_token_mask=real).logits
    for second in (real, real[:, 3:]):
        state = network.begin()
        network(SOURCE, TARGET[:, :3], source_token_mask=REAL, target_token_mask=real[:, :3], state=state)
        out = network(None, TARGET[:, 3:], target_token_mask=second, state=state)
        close(out.logits[real[:, 3:]], whole[:, 3:][real[:, 3:]])
    network, step_function = seq2seq(form), PlainStepFunction(seq2seq(form))
    expected = network(SOURCE, TARGET, source_token_mask=REAL).logits.detach()
    state = step_function.begin(SOURCE, REAL)
    logits, state = step_function.step(TARGET[:, :2], state)
    close(logits, expected[:, 1])
    rows = torch.tensor([2, 0, 2])
    for t, chosen, kept in ((2, rows, rows), (3, rows[1:], torch.tensor([1, 2]))):
        logits, state = step_function.step(TARGET[chosen, t], state.select(kept))
        close(logits, expected[chosen, t])


def test_a10_c11_a_source_of_nothing_gives_nothing_and_the_best_output_is_seen() -> None:
    """No state, a context of zeros, and no NaN, with attention and without."""
    empty = torch.zeros_like(REAL)
    for form in ("lstm-none", "lstm-additive", "gru-bilinear"):
        out = seq2seq(form)(SOURCE, TARGET, source_token_mask=empty)
        assert bool((out.encoded == 0).all()) and bool(out.logits.isfinite().all())
    network = seq2seq("lstm-additive")
    with observe(network) as seen:
        ((best, _),) = generate(network, SOURCE[:1], Beam(3, 1.0, 2), max_new_tokens=7)
    read = [CONFIG.start_id, *(best.ids if best.finished else best.ids[:-1])]
    with observe(network) as forced:
        network(SOURCE[:1], torch.tensor([read]))
    torch.testing.assert_close(seen["cross", 0], forced["cross", 0], rtol=0, atol=1e-6)


def test_a5_a10_observed_steps_join_rows_are_slices_and_padding_weighs_exactly_nothing() -> None:
    for form in [form for form in FORMS if "none" not in form]:
        with observe(seq2seq(form)) as seen:
            seq2seq(form)(SOURCE, TARGET, source_token_mask=REAL)
        weights = seen["cross", 0]
        assert weights.shape == (3, 1, 6, 5)
        hidden = ~REAL[:, None, None].expand_as(weights)
        assert bool((weights[hidden] == 0).all()) and bool((weights[~hidden] > 0).all())
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 6), rtol=0, atol=1e-6)
    for form in ("lstm-additive", "gru-bilinear", "lstm-bilinear-fed"):
        network = seq2seq(form)
        with observe(network) as whole:
            network(SOURCE, TARGET, source_token_mask=REAL)
        with observe(network) as stepped:
            state = network.begin()
            for t in range(6):
                network(SOURCE, TARGET[:, t : t + 1], source_token_mask=REAL, state=state)
        torch.testing.assert_close(stepped["cross", 0], whole["cross", -1], rtol=0, atol=1e-6)
        with observe(network, rows=[4, 1], layers=[-1], heads=[0]) as some:
            network(SOURCE, TARGET, source_token_mask=REAL)
        assert torch.equal(some["cross", 0], whole["cross", 0][:, :, [4, 1]])
        with pytest.raises(UsageError, match="no 'decoder' attention was observed, only: cross"):
            whole["decoder", 0]


@settings(max_examples=25)
@given(cuts=some_cuts, form=st.sampled_from(sorted(FORMS)), padded=st.booleans())
def test_c12_steps_equal_the_whole_however_the_target_is_cut(cuts: list[int], form: str, padded: bool) -> None:
    network, real = seq2seq(form), REAL if padded else None
    whole = network(SOURCE, TARGET, source_token_mask=real).logits
    state, parts, start = network.begin(), [], 0
    for end in [*cuts, 6]:
        source = SOURCE if start == 0 else None
        out = network(source, TARGET[:, start:end], source_token_mask=real if start == 0 else None, state=state)
        assert out.state is state and state.length == end
        parts.append(out.logits)
        start = end
    close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_c12_c17b_a_language_model_cut_in_pieces_or_padded_whose_weights_begin_as_published(cell: CellName) -> None:
    model = language_model(cell)
    whole = model(TARGET).logits
    state = model.begin()
    close(torch.cat([model(TARGET[:, at : at + 2], state=state).logits for at in (0, 2, 4)], dim=1), whole)
    assert state.length == 6
    wide = torch.nn.functional.pad(TARGET, (2, 1), value=7)
    real = torch.nn.functional.pad(torch.ones_like(TARGET, dtype=torch.bool), (2, 1))
    close(model(wide, token_mask=real).logits[:, 2:-1], whole)
    state = model.begin()
    model(wide[:, :4], token_mask=real[:, :4], state=state)
    close(model(wide[:, 4:], token_mask=real, state=state).logits[:, :-1], whole[:, 2:])  # a mask of all of it
    # Recurrent matrices orthogonal gate by gate, others within ±1/√D, biases 0 and 1 for the forget gate
    torch.manual_seed(3)
    config = replace(CONFIG, recurrent=replace(FORMS["lstm-additive"], cell=cell), d_model=16)
    network = RecurrentSeq2Seq(config)
    for name, parameter in network.named_parameters():
        if "weight_hh" in name:
            for gate in parameter.split(parameter.shape[1]):
                torch.testing.assert_close(gate @ gate.t(), torch.eye(len(gate)), rtol=0, atol=1e-5)
        elif parameter.dim() > 1 and "embedding" not in name:
            assert 0.15 < float(parameter.detach().abs().max()) <= 0.25
        elif "bias_ih" in name and cell == "lstm":
            gates = parameter.view(4, -1)
            assert bool((gates[1] == 1).all()) and bool((gates[[0, 2, 3]] == 0).all())
        elif parameter.dim() == 1:
            assert bool((parameter == 0).all())
    torch.manual_seed(3)
    again = RecurrentSeq2Seq(config).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in network.state_dict().items())
    torch.manual_seed(4)
    assert not torch.equal(RecurrentSeq2Seq(config).embedding.weight, network.embedding.weight)
    head = HeadConfig("classification", labels=("a", "b"), hidden=True, hidden_norm=True)
    norm = RecurrentLM(replace(LM_CONFIG, recurrent=RecurrentConfig(cell), heads=(head,))).get_submodule(
        "heads.classification.norm"
    )
    assert bool((norm.weight == 1).all()) and bool((norm.bias == 0).all())  # type: ignore[operator]


@pytest.mark.parametrize("form", [pytest.param(f, marks=[pytest.mark.slow] * (n % 3 > 0)) for n, f in enumerate(FORMS)])
def test_gradients_are_those_of_finite_differences(form: str) -> None:
    """Every parameter of a tiny network, the source padded on both sides, the target on the right."""
    config = replace(CONFIG, vocab_size=5, d_model=2, n_layers=1, recurrent=FORMS[form])
    network = shaken(RecurrentSeq2Seq(config))
    source, target = torch.tensor([[4, 3, 2], [1, 4, 0]]), torch.tensor([[2, 1, 4], [2, 3, 0]])
    real, real_target = torch.tensor([[False, True, True], [True, True, False]]), target > 0

    def logits(*_: Tensor) -> Tensor:
        out: Tensor = network(source, target, source_token_mask=real, target_token_mask=real_target).logits
        return out[real_target]

    assert torch.autograd.gradcheck(logits, tuple(network.parameters()), fast_mode=True)


def test_on_the_meta_device_the_numbers_learned_are_counted() -> None:
    """A published size: 512 wide, 4 + 4 layers of LSTM, a vocabulary of 32,000, all embeddings one matrix."""
    width, vocabulary = 512, 32000
    config = replace(CONFIG, d_model=width, vocab_size=vocabulary, n_layers=4, recurrent=FORMS["lstm-additive"])
    with torch.device("meta"):
        network, model = RecurrentSeq2Seq(config), RecurrentLM(config)
    encoder = 4 * 2 * 4 * (width // 2) * (width + width // 2 + 2)
    decoder = 4 * width * (2 * width + width + 2) + 3 * 4 * width * (width + width + 2)
    bridge, join = (width + 1) * 4 * 2 * width, (3 * width + 1) * 2 * width
    attention = width * width + (width + 1) * width + width
    expected = vocabulary * width + encoder + decoder + bridge + join + attention
    assert parameter_count(network) == expected
    assert parameter_count(model) == vocabulary * width + 4 * 4 * width * (2 * width + 2)
    assert all(parameter.is_meta for parameter in network.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_in_bfloat16_runs_and_learns_and_dropout_is_reproducible(form: str) -> None:
    network = seq2seq(form)
    copy = deepcopy(network).to(torch.bfloat16)
    out = copy(SOURCE, TARGET, source_token_mask=REAL)
    assert out.logits.dtype == torch.bfloat16
    exact = network(SOURCE, TARGET, source_token_mask=REAL).logits
    assert float(((out.logits.double() - exact).norm() / exact.norm()).detach()) < 0.05
    out.logits.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in copy.parameters())
    logits, _ = PlainStepFunction(copy).step(TARGET[:, 0], PlainStepFunction(copy).begin(SOURCE, REAL))
    assert logits.dtype == torch.float32
    # Both embeddings, between the 2 layers of either side (in some decoders at each of 6 steps), what is projected
    network = shaken(RecurrentSeq2Seq(replace(CONFIG, dropout=0.3, recurrent=FORMS[form]))).train()

    def logits(seed: int) -> Tensor:
        return network(SOURCE, TARGET, source_token_mask=REAL, random=Randomness(seed)).logits

    assert torch.equal(logits(1), logits(1)) and not torch.allclose(logits(1), logits(2))
    assert not torch.allclose(logits(1), network.eval()(SOURCE, TARGET, source_token_mask=REAL).logits)
    random = Randomness(1)
    network.train()(SOURCE, TARGET, random=random)
    assert random.use == 3 + 1 + (6 if "additive" in form or "fed" in form else 1)
    assert not any(isinstance(part, nn.RNNBase) and part.dropout for part in network.modules())  # torch's own is off


def test_dropout_is_drawn_from_what_is_given_and_only_while_training() -> None:
    """In the language model of 3 layers: on the embedding, twice between layers, on what is projected."""
    model = shaken(RecurrentLM(replace(LM_CONFIG, dropout=0.4, n_layers=3, recurrent=FORMS["lstm-none"])))
    quiet = model(TARGET).logits
    model.train()
    random = Randomness(7)
    one, other = model(TARGET, random=random).logits, model(TARGET, random=Randomness(7)).logits
    assert random.use == 4 and torch.equal(one, other)
    assert not torch.allclose(one, model(TARGET, random=Randomness(8)).logits) and not torch.allclose(one, quiet)
    torch.manual_seed(0)
    drawn = model(TARGET).logits  # nothing given: PyTorch's global generator
    torch.manual_seed(0)
    assert torch.equal(model(TARGET).logits, drawn) and not torch.allclose(model(TARGET).logits, drawn)
