"""The fast step functions give what the plain ones give: every family they take, every way rows are selected."""

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from atento.attention.kernels import attend, sdpa
from atento.attention.observe import observe
from atento.base.errors import CapabilityError
from atento.base.precision import best_precision
from atento.config.presets import preset
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig as P
from atento.decoding import MBR, Beam, Greedy, Sample, generate
from atento.inference import int8_linear, packed_linear, packed_modules
from atento.inference.choose import step_function
from atento.inference.encoder_reading import SourceReader
from atento.inference.fast import FastStepFunction
from atento.inference.fast_state import ROOM, why_not_fast
from atento.inference.int8_linear import Int8Linear
from atento.inference.packed_linear import ConvertedLinear, OneDnnLinear, PlainLinear
from atento.inference.packed_modules import pack
from atento.inference.plain import PlainStepFunction
from atento.inference.slots import Reading, Slots
from atento.networks import build_network
from failing import fails

V = 37
SIZES = {"vocab_size": V, "d_model": 32, "d_ff": 48, "n_heads": 4, "n_layers": 2, "max_len": 64, "dropout": 0.0}
ENCODER_DECODERS = {
    "transformer": NetworkConfig(**SIZES),
    "pre-norm gelu, depths apart": NetworkConfig(
        **SIZES | {"n_layers": 3},
        n_decoder_layers=1,
        norm="pre",
        feed_forward={"activation": "gelu"},
        output={"bias": True},
    ),
    "learned, untied": NetworkConfig(
        **SIZES, positions=P("learned"), output={"tied": False}, embedding={"shared": False}
    ),
    "t5": changed(preset("t5-small"), **SIZES, attention={"d_head": 8}),
    "rotary, grouped heads": NetworkConfig(**SIZES, attention={"n_kv_heads": 2}, positions=P("rotary")),
    "alibi, gated": NetworkConfig(**SIZES, positions=P("alibi"), feed_forward={"gated": True, "activation": "silu"}),
    "mbart": replace(preset("mbart-large-50"), **SIZES),
    "m2m-100": replace(preset("nllb-200-600m", d_model=32), **SIZES),
    "shared layers": NetworkConfig(**SIZES, shared_layers=True),
    "real positions only": NetworkConfig(**SIZES, positions=P(real_only=True)),
}
DECODERS = {
    "gpt2": replace(preset("gpt2"), **SIZES),
    "qwen2": changed(preset("qwen2-0-5b"), **SIZES, attention={"n_kv_heads": 2}),
    "llama": changed(preset("llama3-8b"), **SIZES, attention={"n_kv_heads": 2, "d_head": 8}),
    "gemma": changed(preset("gemma-2b"), **SIZES, attention={"n_kv_heads": 1, "d_head": 8}),
    "gpt2, shared layers": replace(preset("gpt2"), **SIZES, shared_layers=True),
    "alibi": NetworkConfig(**SIZES, architecture="decoder", positions=P("alibi")),
    "t5 buckets, relu": NetworkConfig(**SIZES, architecture="decoder", positions=P("t5"), norm="pre"),
}
STRATEGIES = [
    Greedy(),
    Beam(4, n_best=4),
    Beam(3, length_penalty=0.0, stopping="shrinking"),
    Beam(12),  # each beam in a cache of its own
    Sample(n=3),
    Sample(n=11, top_k=5),
    MBR("chrf", (Sample(n=4), Beam(3, n_best=3))),
]


def network_of(config, seed=0, dtype=torch.float64, scale=2.0) -> torch.nn.Module:
    """Random weights, larger than at the start so that outputs differ and end."""
    torch.manual_seed(seed)
    network = build_network(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return network


def inputs(lengths: list[int], side: str = "right", seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(4, V, (len(lengths), longest), generator=generator)
    places = torch.arange(longest)
    ends = torch.tensor(lengths)[:, None]
    real = places < ends if side == "right" else places >= longest - ends
    return ids.masked_fill(~real, 0), real


@pytest.mark.covering
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize(
    ("name", "side"), [*product(ENCODER_DECODERS, ["right"]), *product(DECODERS, ["left", "right"])]
)
def test_h12_fast_equals_plain(name: str, side: str, strategy: Any) -> None:
    network: Any = network_of((ENCODER_DECODERS | DECODERS)[name])
    ids, real = inputs([5, 9, 2 if name in ENCODER_DECODERS else 1, 9], side)
    arguments: Any = {"max_new_tokens": [12, 7, 40, 20], "token_mask": real, "seed": 5}
    plain = [h for row in generate(network, ids, strategy, **arguments) for h in row]
    fast = [h for row in generate(FastStepFunction(network), ids, strategy, **arguments) for h in row]
    assert [h.ids for h in fast] == [h.ids for h in plain]
    for a, b in zip(fast, plain):
        assert a.token_scores == pytest.approx(b.token_scores, abs=1e-10)


def test_states_that_part_do_not_write_into_each_other_and_rows_that_stay_are_kept_in_place() -> None:
    """Two ways from one state, stepped in turn, as an exact search does: each sees its own past alone."""
    network = network_of(ENCODER_DECODERS["transformer"])
    ids, real = inputs([4])
    fast, plain = FastStepFunction(network), PlainStepFunction(network)
    for width, length in product((1, 3), (1, 2, ROOM)):  # one may make the shared memory longer meanwhile
        every, rows = torch.arange(width), torch.zeros(width, dtype=torch.long)
        ways, expected = [[6, 7], [7, 8], [9, 4]], []
        for way in ways:
            kept = plain.begin(ids, real).select(rows)
            for token in [5] * length + way:
                logits, kept = plain.step(torch.full((width,), token), kept)
            expected.append(logits)
        for early in (True, False):  # all selected before one is stepped, or each when the others were
            state = fast.begin(ids, real).select(rows)
            for _ in range(length):
                _, state = fast.step(torch.full((width,), 5), state)
            states = [state.select(every) if early else None for _ in ways]
            for turn in (0, 1):
                for n, way in enumerate(ways):
                    found, states[n] = fast.step(torch.full((width,), way[turn]), states[n] or state.select(every))
                    assert turn == 0 or torch.allclose(found, expected[n], atol=1e-10)
    # Texts leave and others take their places while beams change; the memory is copied once, and then its own
    for width in (1, 3):
        fast = FastStepFunction(network_of(ENCODER_DECODERS["transformer"]))
        ids, real = inputs([4, 6, 3, 5, 6])
        first = fast.begin(ids, real).select(torch.arange(5).repeat_interleave(width))
        selected, kept, other = (first.select(torch.arange(5 * width)) for _ in range(3))
        beams, memory = torch.tensor([0, 2, 1][:width]).flip(0) % width, []
        for token, texts in enumerate([[0, 4, 2, 3], [3, 1, 2], [0, 1, 2], [0, 2], [1]]):
            rows = (torch.tensor(texts)[:, None] * width + beams).flatten()
            tokens = torch.full((selected.rows,), 5 + token)
            expected, selected = fast.step(tokens, selected)
            found, kept = fast.step(tokens, kept)
            assert torch.equal(found, expected)
            selected, kept = selected.select(rows), kept.keep(rows)
            memory.append(kept.cache.keys[0].data_ptr())
        assert len(set(memory)) == 1 and memory[0] != first.cache.keys[0].data_ptr()
        again = fast.begin(ids, real).select(torch.arange(5).repeat_interleave(width))
        tokens = torch.full((5 * width,), 5)
        assert torch.equal(fast.step(tokens, other)[0], fast.step(tokens, again)[0])  # its memory was left alone


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("strategy", [Beam(2), Sample(n=3)], ids=repr)
def test_rows_that_write_nothing_leave_before_the_first_step(strategy: object, precision: str) -> None:
    network = network_of(ENCODER_DECODERS["t5"], dtype=torch.float32)
    ids, real = inputs([5, 3, 4])
    step_function = FastStepFunction(network, precision)  # type: ignore[arg-type]
    found = generate(step_function, ids, strategy, max_new_tokens=[5, 0, 5], token_mask=real, seed=1)  # type: ignore[arg-type]
    assert [len(row[0].ids) > 0 for row in found] == [True, False, True]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_reduced_precisions_stay_near(precision: str) -> None:
    network = network_of(NetworkConfig(**SIZES, norm="pre"), dtype=torch.float32)
    ids, real = inputs([5, 9, 2, 9] * 4)
    step_function = FastStepFunction(network, precision)  # type: ignore[arg-type]
    state, other = step_function.begin(ids, real), PlainStepFunction(network).begin(ids, real)
    tokens = torch.full((16,), 2)
    limit = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.05}[precision]
    for step in range(6):
        logits, state = step_function.step(tokens, state)
        expected, other = PlainStepFunction(network).step(tokens, other)
        apart = (logits - expected).norm() / expected.norm()
        assert float(apart) < limit, step
        tokens = expected.argmax(dim=-1)


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_what_caches_are_kept_in(precision: str, amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bits where products round, if the processor has them; with one output a text float32, but for AMX."""
    monkeypatch.setattr("atento.inference.fast.cpu_features", lambda: {"amx": amx})
    network = network_of(ENCODER_DECODERS["t5"], dtype=torch.float32)
    ids, real = inputs([5, 9])
    step_function = FastStepFunction(network, precision)  # type: ignore[arg-type]
    rounded = precision == "bfloat16" or (precision == "int8" and best_precision("cpu") == "bfloat16")
    for width in (1, 3):
        kept = torch.bfloat16 if rounded and (amx or width > 1) else torch.float32
        state = step_function.begin(ids, real).select(torch.arange(2).repeat_interleave(width))
        logits, state = step_function.step(torch.full((2 * width,), 2), state)
        found = [*state.cache.keys, *state.cache.values, *[one for pair in state.source for one in pair]]
        assert {one.dtype for one in found} == {kept} and logits.dtype == torch.float32
    decoder = FastStepFunction(network_of(DECODERS["gpt2"], dtype=torch.float32), precision)  # type: ignore[arg-type]
    found = decoder.begin(torch.tensor([[5, 6, 7]]), None).cache.keys
    assert {one.dtype for one in found} == {torch.bfloat16 if precision == "bfloat16" and amx else torch.float32}


def test_k10_small_networks_read_and_write_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def spy(found: Any) -> Any:
        return lambda *arguments, **named: [used.append(torch.get_num_threads()), found(*arguments, **named)][1]

    for name, function in (("encoder_reading.attend", attend), ("fast.sdpa", sdpa)):
        monkeypatch.setattr(f"atento.inference.{name}", spy(function))
    steps = FastStepFunction(network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32))
    ids, real = inputs([5, 9])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        _, state = steps.step(torch.full((2,), 2), steps.begin(ids, real))
        steps.step_all(torch.full((2, 2), 2), [2, 2], steps.rewindable(state))
        slots, reading = Slots(steps), Reading([5, 6, 7], steps.start_id)
        slots.read([reading], 256)
        slots.join([reading])
        slots.step(torch.tensor([2]))
        assert len(used) >= 2 * 4 and {*used} == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [PlainLinear, OneDnnLinear, Int8Linear])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_products_with_packed_weights(kind: type, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(48, 32, generator=generator), torch.randn(48, generator=generator)
    x, other = torch.randn(rows, 32, generator=generator), torch.randn(rows, 48, generator=generator)
    expected = x @ weight.t() + bias
    limit = 0.02 if kind is Int8Linear else 1e-5
    product = kind(weight, bias)
    assert float((product(x) - expected).norm() / expected.norm()) < limit
    assert float((product.plus(x, other) - expected - other).norm() / expected.norm()) < limit
    assert float((kind(weight, bias, activation="relu")(x) - expected.relu()).norm() / expected.norm()) < limit
    assert float((kind(weight, None)(x) - x @ weight.t()).norm() / expected.norm()) < limit
    if kind is not Int8Linear:  # a row's result hangs on its own numbers
        assert torch.allclose(product(x)[:1], product(x[:1]), atol=1e-5)


def features(monkeypatch: pytest.MonkeyPatch, **changes: bool) -> None:
    """Let the processor have these features."""
    found = packed_linear.cpu_features() | changes
    for module in (packed_linear, packed_modules, int8_linear):
        monkeypatch.setattr(module, "cpu_features", lambda: found)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_one_row_is_multiplied_by_a_large_weight_as_it_is_and_a_small_one_held_transposed(activation, monkeypatch):
    """With AMX, where something else holds the weight: then a layer has no second plain copy."""
    features(monkeypatch, amx=True)
    torch.manual_seed(2)
    weight, bias, x, other = torch.randn(512, 512), torch.randn(512), torch.randn(3, 512), torch.randn(3, 512)
    held = OneDnnLinear(weight, bias, is_held=True).followed_by(activation)
    packed = OneDnnLinear(weight, bias, activation=activation)
    assert held.of_one_row is not None and held.of_one_row.weight.data_ptr() == weight.data_ptr()
    assert packed.of_one_row is None and OneDnnLinear(weight[:9], None, is_held=True).of_one_row is None
    torch.testing.assert_close(held(x[:1]), packed(x)[:1], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(held.plus(x[:1], other[:1]), held.of_one_row(x[:1]) + other[:1])
    assert torch.equal(held(x), packed(x)) and torch.equal(held.plus(x, other), packed.plus(x, other))
    features(monkeypatch, amx=False)
    assert OneDnnLinear(weight, bias, is_held=True).of_one_row is None
    # With AMX, up to 512 x 512: the same products as oneDNN's, the weight in memory once and given back as it was
    torch.manual_seed(2)
    weight, bias, x, other = torch.randn(96, 192), torch.randn(96), torch.randn(3, 192), torch.randn(3, 96)
    features(monkeypatch, amx=True)
    held = pack(weight, bias, "float32", activation=activation, steps=True)
    assert isinstance(held, PlainLinear) and held.weight.t().is_contiguous()
    assert isinstance(pack(torch.zeros(513, 512), None, "float32", steps=True), OneDnnLinear)
    assert isinstance(pack(weight, bias, "float32"), OneDnnLinear)  # a reader's
    assert torch.equal(held.unpacked(), weight) and held.unpacked().is_contiguous()
    features(monkeypatch, amx=False)
    packed = pack(weight, bias, "float32", activation=activation, steps=True)
    assert isinstance(packed, OneDnnLinear)
    torch.testing.assert_close(held(x), packed(x), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(held.plus(x, other), held(x) + other, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not packed_linear.has_int8_products(), reason="sums of 8-bit products overflow here")
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize(("shape", "many"), [((512, 512), 32), ((8192, 32), 4)])
def test_many_rows_of_8_bits_have_a_product_of_their_own(shape, many, activation, monkeypatch) -> None:
    """With AMX: of the same integers and the same scales, made when so many rows first come."""
    features(monkeypatch, amx=True)
    torch.manual_seed(2)
    weight, bias, x = torch.randn(shape), torch.randn(shape[0]), torch.randn(many, shape[1])
    product = Int8Linear(weight, bias).followed_by(activation)
    x[0] *= 2 * x.abs().max() / x[0].abs().max()  # the first row sets the scale of all
    product(x[:-1])
    assert product.of_many is None
    found = product(x)
    assert product.of_many is not None
    features(monkeypatch, amx=False)
    torch.testing.assert_close(found, Int8Linear(weight, bias, activation=activation)(x), atol=1e-4, rtol=1e-5)


def test_bfloat16_without_such_instructions_is_multiplied_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 alone: oneDNN packs no bfloat16 there, and PyTorch's own product is several times slower."""
    monkeypatch.setattr(packed_modules, "has_bfloat16_products", lambda: False)
    generator = torch.Generator().manual_seed(2)
    weight, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((48, 32), (48,)))
    x, other = (torch.randn(5, width, generator=generator).bfloat16() for width in (32, 48))
    product, expected = pack(weight, bias, "bfloat16", activation="relu"), x.float() @ weight.float().t() + bias.float()
    assert isinstance(product, ConvertedLinear)
    torch.testing.assert_close(product(x), expected.relu().bfloat16(), atol=0, rtol=0.01)
    plain = pack(weight, bias, "bfloat16")
    torch.testing.assert_close(plain.plus(x, other), (expected + other.float()).bfloat16(), atol=0, rtol=0.01)
    added = other.clone()
    plain.add_to(added, x)
    assert torch.equal(added, plain.plus(x, other))


def test_steps_of_a_small_network_read_its_own_weights_and_pack_copies_of_another_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features(monkeypatch, amx=False)
    for dtype, kind in ((torch.float32, PlainLinear), (torch.bfloat16, OneDnnLinear)):
        steps = FastStepFunction(network_of(DECODERS["llama"], dtype=dtype), "float32")  # type: ignore[arg-type]
        assert type(steps.project) is kind


@pytest.mark.parametrize(("shape", "kind"), [((127, 128), PlainLinear), ((128, 128), OneDnnLinear)])
def test_small_weights_are_not_packed(shape: tuple[int, int], kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their product costs less than a packed one's call and its kernel; nothing of the network learns by it.

    A layer that holds its weight alone, as an encoder's does, stays packed: its rows do not depend on their number.
    """
    features(monkeypatch, amx=False)
    weight, bias = torch.randn(shape, requires_grad=True), torch.randn(shape[0], requires_grad=True)
    product = pack(weight, bias, "float32", steps=True, is_held=True)
    assert type(pack(weight, bias, "float32")) is OneDnnLinear
    assert type(product) is kind and isinstance(pack(weight, bias, "int8"), Int8Linear)
    x = torch.randn(3, shape[1])
    torch.testing.assert_close(product(x), x @ weight.detach().t() + bias.detach(), atol=1e-4, rtol=1e-4)
    if kind is PlainLinear:
        assert not product(x).requires_grad


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("config", [ENCODER_DECODERS["transformer"], DECODERS["llama"]])
def test_making_a_fast_twin_leaves_the_network_as_it_was(config: NetworkConfig, precision: str) -> None:
    """And what is not packed is not held twice: in float32 both read one table of embeddings."""
    network = network_of(config, dtype=torch.float32)
    before = {name: one.clone() for name, one in network.state_dict().items()}
    fast = FastStepFunction(network, precision)  # type: ignore[arg-type]
    assert all(one.requires_grad and one.dtype == torch.float32 for one in network.parameters())
    for name, one in network.state_dict().items():
        assert torch.equal(one, before[name]), name
    shared = fast.embedding.weight.data_ptr() == network.get_parameter("embedding.weight").data_ptr()
    assert shared or precision != "float32"


def test_weights_are_shown_under_the_fast_search_and_a_prefix_is_read_first() -> None:
    network = network_of(ENCODER_DECODERS["transformer"])
    ids, real = inputs([5, 9])
    seen = []
    for one in (network, FastStepFunction(network)):
        with observe(network) as record:
            generate(one, ids, Beam(3), max_new_tokens=6, token_mask=real)
        seen.append(record["cross", 1])
    assert torch.allclose(seen[0], seen[1], atol=1e-10)
    # A prefix is read before the first choice
    ids, real = inputs([5, 9, 2])
    prefix = torch.tensor([[7, 8], [9, 10], [11, 12]])
    for strategy in (Greedy(), Beam(4)):
        found = [
            generate(step_function, ids, strategy, max_new_tokens=9, token_mask=real, prefix_ids=prefix)
            for step_function in (network, FastStepFunction(network))
        ]
        assert [h[0].ids for h in found[0]] == [h[0].ids for h in found[1]]
    shaw = network_of(NetworkConfig(**SIZES, positions=P("shaw")))
    assert why_not_fast(shaw) == "Shaw positions"
    fails(CapabilityError, "no fast steps for Shaw positions", FastStepFunction, shaw)
    assert not isinstance(step_function(shaw), FastStepFunction)
    fails(CapabilityError, "int8 is for networks with a fast decoder", step_function, shaw, precision="int8")


@pytest.mark.parametrize("config", [ENCODER_DECODERS["transformer"], DECODERS["gpt2"]], ids=["sources", "prompts"])
@pytest.mark.parametrize("strategy", [Greedy(), Sample(n=2)], ids=["greedy", "sample"])
def test_outputs_that_may_have_no_token_are_empty(config: NetworkConfig, strategy: Greedy | Sample) -> None:
    """A limit of 0 leaves no row before the first step, and rules that forbid all tokens none after it."""
    fast = FastStepFunction(network_of(config))
    ids, real = inputs([5, 2])
    for limit, rules in ((0, ()), (3, (lambda scores, written: torch.full_like(scores, -torch.inf),))):
        for row in generate(fast, ids, strategy, max_new_tokens=limit, token_mask=real, rules=rules, seed=1):
            assert [(output.ids, output.finished) for output in row] == [([], False)] * getattr(strategy, "n", 1)


@pytest.mark.parametrize("name", ["transformer", "rotary, grouped heads"])
def test_c9_the_cache_is_as_large_as_computed(name: str) -> None:
    """Keys and values: 2 x layers x outputs x tokens x key heads x head width numbers; the fast one's room is told."""
    config = ENCODER_DECODERS[name]
    network = network_of(config)
    ids, real = inputs([5, 9, 2])
    each = 2 * config.n_layers * config.kv_heads * config.head_width * 8
    plain, fast = PlainStepFunction(network), FastStepFunction(network)
    state, other = plain.begin(ids, real), fast.begin(ids, real)
    tokens = torch.full((3,), 2)
    for written in range(1, 41):
        _, state = plain.step(tokens, state)
        _, other = fast.step(tokens, other)
        pasts = [block.self_attention for block in state.stack.blocks]
        assert sum(past.keys.nbytes + past.values.nbytes for past in pasts) == each * 3 * written
        cached = [*other.cache.keys, *other.cache.values]
        room = cached[0].shape[2]
        assert sum(t.nbytes for t in cached) == each * 3 * room and written <= room <= max(32, 1.5 * written + 1)
    sources = [block.cross_attention for block in state.stack.blocks]
    source = sum(one.keys.nbytes + one.values.nbytes for one in sources)
    assert source == each * 3 * 9 == sum(t.nbytes for pair in other.source for t in pair)
    beams = other.select(torch.arange(3))
    assert beams.cache is other.cache  # nothing is copied where nobody changes places


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", [*ENCODER_DECODERS, "shaw"])
def test_sources_without_padding_are_read_as_by_the_encoder(name: str, masked: bool) -> None:
    """Padded on either side, all of one length, and one under the other; Shaw positions too."""
    configs = ENCODER_DECODERS | {"shaw": NetworkConfig(**SIZES, positions=P("shaw"))}
    network: Any = network_of(configs[name])
    reader, ids = SourceReader(deepcopy(network), "float32"), torch.randint(4, V, (5, 9))
    real = torch.ones_like(ids, dtype=torch.bool)
    if masked:
        real = torch.arange(9) < torch.tensor([[9], [4], [1], [4], [7]])
    with torch.inference_mode():
        expected = network.encode(ids, source_token_mask=real)
        for flipped in (False, True):
            padded = (ids[row].roll(int(9 - real[row].sum())) if flipped else ids[row] for row in range(5))
            encoded, mask = reader.encoded(torch.stack(list(padded)), real.flip(1) if flipped else real)
            assert mask is not None and torch.equal(mask, real)
            torch.testing.assert_close(encoded[real], expected[real], rtol=0, atol=1e-10)
        order = sorted(range(5), key=lambda row: -int(real[row].sum()))
        rows = reader.rows([ids[row][real[row]].tolist() for row in order])
        torch.testing.assert_close(rows, torch.cat([expected[row][real[row]] for row in order]), rtol=0, atol=1e-10)
        assert bool((reader.encoded(ids, torch.zeros_like(real))[0] == 0).all())  # no source has a token
