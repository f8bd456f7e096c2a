"""Position schemes placed in a network: cached decoding, layers, heads, tables, shifts, storage, recipes, refusals."""

import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atento
from atento.attention import observe
from atento.attention.masks import documents, window
from atento.attention.multihead import MultiHeadAttention
from atento.attention.relative import ALiBi, alibi_slopes
from atento.base.errors import RecipeError, UsageError
from atento.config.presets import preset
from atento.config.reading.dumping import dump_recipe
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig as P
from atento.model import Model
from atento.networks import EncoderDecoder, build_network
from failing import fails

CONFIG = NetworkConfig(vocab_size=13, d_model=8, d_ff=16, n_heads=2, n_layers=2, dropout=0.0, max_len=16, norm="pre")
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0]])
REAL = SOURCE > 0
TARGET = torch.tensor([[2, 5, 6, 7, 1, 4], [2, 8, 9, 4, 6, 6]])

RELATIVE: dict[str, tuple[P, ...]] = {
    "rotary": (P("rotary"),),
    "rotary, neighbours, half": (P("rotary", interleaved=True, fraction=0.5),),
    "rotary, one head": (P("rotary", heads=(0,)),),
    "shaw": (P("shaw", max_distance=2),),
    "shaw, no values, shared": (P("shaw", max_distance=9, values=False, shared=True),),
    "t5": (P("t5", n_buckets=8, max_distance=12),),
    "t5, a table a layer": (P("t5", n_buckets=8, max_distance=12, shared=False),),
    "alibi": (P("alibi"),),
    "matrix": (P("matrix", max_distance=3),),
    "disentangled": (P("disentangled", n_buckets=4, max_distance=12, norm=True),),
    "disentangled, by distance, a table a layer": (P("disentangled", n_buckets=0, max_distance=3, shared=False),),
    "disentangled and rotary": (P("disentangled", n_buckets=0, max_distance=4), P("rotary")),
    "matrix, unscaled, gated": (P("matrix", max_distance=3, scaled=False, gate=True),),
    "sum": (P("rotary"), P("shaw", gate=True, heads=(1,)), P("alibi"), P("t5", layers=(1,))),
}
ABSOLUTE: dict[str, tuple[P, ...]] = {
    "sinusoidal": (P("sinusoidal"),),
    "learned": (P("learned"),),
    "learned, shifted": (P("learned", shift=2),),
    "learned, second layer": (P("learned", layers=(1,)),),
    "sum, gated": (P("sinusoidal", gate=True), P("learned", gate=True), P("sinusoidal", base=50.0, layers=(0, 1))),
    "both kinds": (P("sinusoidal"), P("shaw", max_distance=4), P("rotary", heads=(1,), layers=(0,))),
}
NONE: dict[str, tuple[P, ...]] = {"none": (P("none"),), "no schemes": ()}
SCHEMES = NONE | RELATIVE | ABSOLUTE
KINDS: list[Any] = ["sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix"]
TEXT = torch.tensor([[5, 6, 7, 8, 3, 5], [9, 4, 3, 11, 12, 1]])
PERMUTED = torch.tensor([3, 0, 5, 1, 4, 2])


@torch.no_grad()
def make(positions: tuple[P, ...], dtype: torch.dtype = torch.float64, **changes: Any) -> EncoderDecoder:
    """A small network of one seed, whose tables and gates are large enough to matter."""
    torch.manual_seed(0)
    network = build_network(changed(CONFIG, positions=positions, **changes)).eval().to(dtype)
    g = torch.Generator().manual_seed(1)
    for name, parameter in network.named_parameters():
        if "positions." in name:
            parameter.add_(torch.randn(parameter.shape, generator=g) * 0.7)
    return network


def logits(network: EncoderDecoder, *args: Any, **options: Any) -> Tensor:
    return network(*args, **options).logits.detach()


@torch.no_grad()
def encoded(network: EncoderDecoder, ids: Tensor, position_ids: Tensor | None = None, **options: Any) -> Tensor:
    """ids (B,L) through the encoder, at positions that may be given: (B,L,D)."""
    x = network.source_inputs.positions(network.embedding(ids), 0, position_ids)
    return network.encoder(x, position_ids=position_ids, **options)


def stored(network: EncoderDecoder) -> set[str]:
    """The names of what position schemes learn."""
    return {name for name, _ in network.named_parameters() if "positions." in name}


@pytest.mark.covering
@pytest.mark.parametrize("cuts", [[1, 2, 3, 4, 5, 6], [2, 5, 6]])
@pytest.mark.parametrize("name", SCHEMES)
def test_h12_cached_decoding_equals_uncached(name: str, cuts: list[int]) -> None:
    """One token at a time, or a prefix and more at once; the source padded."""
    network = make(SCHEMES[name])
    whole = logits(network, SOURCE, TARGET, source_token_mask=REAL)
    state, start = network.begin(), 0
    for end in cuts:
        source = (SOURCE, REAL) if start == 0 else (None, None)
        out = network(source[0], TARGET[:, start:end], source_token_mask=source[1], state=state)
        assert out.logits is not None and out.state is state and state.length == end
        torch.testing.assert_close(out.logits, whole[:, start:end], rtol=0, atol=1e-12)
        start = end


@torch.no_grad()
@pytest.mark.parametrize("name", SCHEMES)
def test_h12_positions_given_while_decoding_are_remembered(name: str) -> None:
    """The decoder stack with `position_ids` of its own a row, whole and cached; rows change places between steps."""
    network = make(SCHEMES[name])
    memory, ids = encoded(network, SOURCE), torch.tensor([[0, 1, 2, 3, 4, 5], [7, 3, 3, 8, 9, 0]])
    x = network.embedding(TARGET)
    whole = network.decoder(x, memory=memory, position_ids=ids)
    torch.testing.assert_close(whole[0], network.decoder(x, memory=memory)[0], rtol=0, atol=1e-12)
    state, rows = network.begin(), torch.tensor([0, 1])
    for t in range(6):
        step = network.decoder(x[rows, t, None], memory=memory[rows], position_ids=ids[rows, t, None], state=state)
        torch.testing.assert_close(step[:, 0], whole[rows, t], rtol=0, atol=1e-12)
        if t == 2:
            state, rows = state.select(torch.tensor([1, 0, 1])), torch.tensor([1, 0, 1])


@pytest.mark.parametrize("name", [name for name in SCHEMES if "one head" not in name and name != "both kinds"])
def test_grouped_heads_equal_repeated_ones(name: str) -> None:
    """Four query heads on two key and value heads: the same network with each of those written twice."""
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 4}
    grouped = make(SCHEMES[name], attention={"n_kv_heads": 2}, **sizes)
    whole = make(SCHEMES[name], **sizes)
    theirs = {n: p for n, p in grouped.state_dict().items() if "attention.input." not in n}
    whole.load_state_dict(theirs, strict=False)
    for one, other in zip(grouped.modules(), whole.modules()):
        if isinstance(one, MultiHeadAttention) and isinstance(other, MultiHeadAttention):
            weights = one.head_weights()
            for part in ("key", "value"):
                weights[part] = weights[part].repeat_interleave(2, dim=0)
            other.load_head_weights(weights)
    expected = logits(whole, SOURCE, TARGET, source_token_mask=REAL)
    torch.testing.assert_close(logits(grouped, SOURCE, TARGET, source_token_mask=REAL), expected, rtol=0, atol=1e-12)
    state = grouped.begin()
    for t in range(6):
        out = logits(grouped, SOURCE if t == 0 else None, TARGET[:, t : t + 1], source_token_mask=REAL, state=state)
        torch.testing.assert_close(out[:, 0], expected[:, t], rtol=0, atol=1e-12)


def seen_of(network: EncoderDecoder) -> dict[tuple[str, int], Tensor]:
    with observe(network) as seen:
        network(SOURCE, TARGET)
    return {(kind, layer): seen[kind, layer] for kind in ("encoder", "decoder") for layer in range(2)}


def seen_weights(positions: tuple[P, ...]) -> dict[tuple[str, int], Tensor]:
    """Attention of the same network but for its positions, which take no random number from the rest."""
    network = make(positions)
    network.load_state_dict(make(()).state_dict(), strict=False)
    return seen_of(network)


def test_b7_b9_a_scheme_of_the_second_layer_leaves_the_first_and_relative_ones_have_no_end() -> None:
    for kind in (*KINDS, "disentangled"):
        none, one = seen_weights(()), seen_weights((P(kind, layers=(1,)),))
        for stack in ("encoder", "decoder"):
            torch.testing.assert_close(one[stack, 0], none[stack, 0], rtol=0, atol=1e-7)
            assert float((one[stack, 1] - none[stack, 1]).abs().max()) > 1e-3
    # Under a window, a token far enough from both ends is as in the shorter text around it
    for name in NONE | RELATIVE:
        network = make(SCHEMES[name])
        long = torch.randint(1, 13, (1, 60), generator=torch.Generator().manual_seed(0))
        whole, part = (encoded(network, ids, mask=window(2, 2)) for ids in (long, long[:, 20:40]))
        torch.testing.assert_close(part[:, 4:-4], whole[:, 24:36], rtol=0, atol=1e-5)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("kind", KINDS[2:])
def test_b7_a_scheme_of_the_first_head_leaves_the_second(kind: Any, gate: bool) -> None:
    none, one = seen_weights(()), seen_weights((P(kind, heads=(0,), gate=gate and kind != "rotary"),))
    for stack in ("encoder", "decoder"):
        torch.testing.assert_close(one[stack, 0][:, 1], none[stack, 0][:, 1], rtol=0, atol=1e-7)
        assert float((one[stack, 0][:, 0] - none[stack, 0][:, 0]).abs().max()) > 1e-3


@pytest.mark.parametrize(("kind", "table"), [("t5", "weight"), ("matrix", "weight"), ("shaw", "keys")])
@pytest.mark.parametrize("shared", [None, True, False])
def test_b7_one_table_a_stack_or_one_a_layer(kind: Any, table: str, shared: bool | None) -> None:
    """T5 shares its table unless told otherwise, Shaw and the matrix do not; a shared one moves both layers."""
    network = make((P(kind, shared=shared, values=False),))
    for stack in (network.encoder, network.decoder) if kind == "t5" else ():
        assert getattr(stack.positions.schemes[0], "bidirectional", None) == (stack is network.encoder)
    one = shared or (shared is None and kind == "t5")
    places = [f"{stack}.positions.schemes.{n}" for stack in ("encoder", "decoder") for n in range(1 if one else 2)]
    assert stored(network) == {f"{place}.{table}" for place in places}
    values = getattr(network.encoder.positions.schemes[0], table).data
    before = seen_of(network)
    values.neg_()
    for name, parameter in network.encoder.named_parameters():
        if name.startswith("blocks.0.self_attention.output"):
            parameter.data.zero_()  # the first layer's attention tells the second nothing
    between = seen_of(network)
    values.neg_()
    assert not torch.allclose(before["encoder", 0], between["encoder", 0])
    assert torch.allclose(seen_of(network)["encoder", 1], between["encoder", 1]) != one


def test_b2_schemes_are_stored_under_names_of_their_own_and_tables_have_an_end() -> None:
    positions = (P("learned", gate=True), P("shaw", gate=True, layers=(1,)), P("learned", layers=(0,)), P("alibi"))
    added = ("schemes.0.weight", "gates.0")
    names = {f"{where}_inputs.positions.{what}" for where in ("source", "target") for what in added}
    for stack in ("encoder", "decoder"):
        names |= {f"{stack}.positions.schemes.0.{what}" for what in ("gate", "scheme.keys", "scheme.value_table")}
        names |= {f"{stack}.positions.added.0.schemes.0.weight"}
    assert stored(make(positions)) == names and stored(make((P("sinusoidal"), P("rotary"), P("alibi")))) == set()
    for shift in (0, 2):
        network = make((P("learned", shift=shift),), max_len=5)
        logits(network, SOURCE, TARGET[:, :5])
        state = network.begin()
        network(SOURCE, TARGET[:, :5], state=state)
        last = partial(network, None, TARGET[:, 5:], state=state)
        for call in (partial(network.encode, TEXT), partial(network, SOURCE, TARGET), last):
            fails(UsageError, "the table of learned positions holds 5: got a text of 6 tokens; cut it", call)
        make((P("sinusoidal"), P("shaw", max_distance=2)), max_len=5)(SOURCE, TARGET)  # these have no end


@pytest.mark.parametrize("name", SCHEMES)
def test_a13_b2_b7_b8_all_learns_bfloat16_stays_near_order_counts_shifts_and_packing_do_not(name: str) -> None:
    network = make(SCHEMES[name]).train()
    network(SOURCE, TARGET, source_token_mask=REAL).logits.log_softmax(-1)[..., 3].sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), key
        assert bool((parameter.grad != 0).any()), key
    # Outputs of size about 1, through four layers of eight bits of precision
    network = make(SCHEMES[name], torch.float32)
    exact = network(SOURCE, TARGET, source_token_mask=REAL).hidden
    short = network.to(torch.bfloat16)(SOURCE, TARGET, source_token_mask=REAL).hidden
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.float(), exact, rtol=0, atol=0.1)
    # The same text further on, or behind padding: relative schemes give the same output, absolute ones another
    network, counted = make(SCHEMES[name]), torch.arange(6).expand(2, -1)
    out = encoded(network, TEXT)
    torch.testing.assert_close(encoded(network, TEXT, counted), out, rtol=0, atol=1e-12)
    behind = torch.cat([torch.zeros(2, 3, dtype=torch.long), TEXT], dim=1)
    shifted = [encoded(network, TEXT, counted + 1), encoded(network, TEXT, counted + 10)]
    for moved in (*shifted, encoded(network, behind, token_mask=behind > 0)[:, 3:]):
        change = float((moved - out).abs().max())
        assert change > 1e-2 if name in ABSOLUTE else change < 1e-5  # the cosines of rotations are float32
    # Two texts in one row, each counting its positions from 0 and seeing itself alone
    network = make(SCHEMES[name])
    packed, ids = TEXT.reshape(1, 12), torch.arange(12)[None] // 6
    out = encoded(network, packed, torch.arange(12)[None] % 6, mask=documents(ids))
    torch.testing.assert_close(out.reshape(2, 6, -1), encoded(network, TEXT), rtol=0, atol=1e-12)
    # Error 53: without positions f(PX) = P f(X), which is equivariant, and not invariant, f(PX) = f(X)
    out, moved = encoded(network, TEXT), encoded(network, TEXT[:, PERMUTED])
    unmoved = float((moved - out[:, PERMUTED]).abs().max())
    assert unmoved < 1e-12 if name in NONE else unmoved > 1e-3
    assert float((moved - out).abs().max()) > 1e-2


def saved(network: EncoderDecoder, folder: Path) -> Path:
    about = {"model_type": "atento", "atento_version": "0", "task": "translation", "name": "small"}
    Model(network, None, about | {"network": asdict(network.config)}, None).save(folder)
    return folder


@pytest.mark.parametrize("name", SCHEMES)
def test_f5_a_saved_model_of_any_positions_loads_with_bit_equal_logits(name: str, tmp_path: Path) -> None:
    """By its state dict, and through the meta device, where what is computed and not stored must be made anew."""
    network = make(SCHEMES[name], torch.float32).requires_grad_(False)
    other = build_network(network.config).eval().requires_grad_(False)
    other.load_state_dict(network.state_dict())
    assert torch.equal(logits(other, SOURCE, TARGET), logits(network, SOURCE, TARGET))
    back = atento.load(saved(network, tmp_path / "model"), device="cpu")
    assert torch.equal(logits(back.network, SOURCE, TARGET), logits(network, SOURCE, TARGET))
    assert back.network.config.schemes == network.config.schemes
    for module in back.network.modules():
        if isinstance(module, ALiBi):
            assert torch.equal(module.slopes, alibi_slopes(2))


def test_b1_b8_w11_positions_of_float64_when_loaded_and_rotated(tmp_path: Path) -> None:
    """Its logits are those of a network whose learned tables hold the formula, to 1e-12; float32 is 1e-8 off."""
    network = make((P("sinusoidal"),), torch.float32)
    loaded = atento.load(saved(network, tmp_path / "model"), precision="float64").network
    other = make((P("learned"),))
    weights = {name: value.double() for name, value in network.state_dict().items()}
    rows = [[(math.sin, math.cos)[d % 2](p / 10000 ** (d // 2 * 2 / 8)) for d in range(8)] for p in range(16)]
    for side in ("source", "target"):
        weights[f"{side}_inputs.positions.schemes.0.weight"] = torch.tensor(rows, dtype=torch.float64)
    other.load_state_dict(weights)
    torch.testing.assert_close(logits(loaded, SOURCE, TARGET), logits(other, SOURCE, TARGET), rtol=0, atol=1e-12)
    # Far or near, to the last digits but those that a float64 angle of 50,000 has lost
    for interleaved in (False, True):
        network = make((P("rotary", interleaved=interleaved),))
        near = encoded(network, SOURCE, torch.arange(5).expand(2, -1))
        far = encoded(network, SOURCE, torch.arange(50_000, 50_005).expand(2, -1))
        torch.testing.assert_close(far, near, rtol=0, atol=1e-9)


def test_a_scheme_that_cannot_be_or_does_not_fit_the_network_is_refused() -> None:
    for given, message in (
        ({"kind": "learned", "heads": (0,)}, "`heads` has no meaning for learned positions, which are added before"),
        ({"kind": "sinusoidal", "heads": (0,)}, "`heads` has no meaning for sinusoidal positions"),
        ({"kind": "rotary", "gate": True}, "`gate` has no meaning for rotary positions: a rotation is not added"),
        ({"kind": "shaw", "layers": (0, -1)}, "`layers` must not be negative: got -1"),
        ({"kind": "shaw", "heads": (-2,)}, "`heads` must not be negative: got -2"),
        ({"kind": "shaw", "max_distance": 0}, "`max_distance` must be at least 1: got 0"),
        ({"kind": "rotary", "fraction": 0.0}, r"`fraction` must lie in \(0, 1\]: got 0.0"),
        ({"kind": "rotary", "fraction": 1.5}, r"`fraction` must lie in \(0, 1\]: got 1.5"),
        ({"kind": "t5", "n_buckets": 3}, "`n_buckets` must be at least 4: got 3"),
        ({"kind": "t5", "n_buckets": 0}, "`n_buckets` must be at least 4: got 0"),
        ({"kind": "disentangled", "gate": True}, "`gate` is not supported for disentangled positions"),
        ({"kind": "disentangled", "heads": [0]}, "`heads` is not supported for disentangled positions"),
        ({"kind": "disentangled", "n_buckets": 8, "max_distance": 7}, "may be `max_distance`, 7, at most: got 8"),
    ):
        fails(RecipeError, message, P, **given)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (P("shaw", heads=(0, 2)), {}, r"`positions.heads` count from 0 to 1: got \(0, 2\)"),
        (P("shaw", layers=(2,)), {}, r"`positions.layers` count from 0 to 1: got \(2,\)"),
        ((P("rotary"), P("t5", layers=(3,))), {"n_decoder_layers": 3}, r"count from 0 to 2: got \(3,\)"),
        (P("rotary", heads=(0,)), {"attention": {"n_kv_heads": 1}}, "`positions.heads` of rotary positions need `att"),
    ]
    for positions, changes, message in cases:
        fails(RecipeError, message, changed, CONFIG, positions=positions, **changes)
    deep = make((P("shaw", layers=(2,)),), n_decoder_layers=3)  # there is a third layer in the decoder alone
    assert all(name.startswith("decoder.") for name in stored(deep)) and len(stored(deep)) == 2
    with pytest.raises(ValueError, match=r"rotary positions need a head at least 2 wide: got 4 and fraction 0\.25"):
        make((P("rotary", fraction=0.25),))


RECIPE = "task: translation\ndata: {train: {source: a.en, target: a.pt}}\nnetwork:\n  positions: "
WRITTEN: dict[str, P | tuple[P, ...]] = {
    "rotary": P("rotary"),
    "[sinusoidal, {kind: shaw, max_distance: 8}]": (P("sinusoidal"), P("shaw", max_distance=8)),
    "[alibi]": (P("alibi"),),
    "{kind: rotary, base: 500000, interleaved: true}": P("rotary", base=500000, interleaved=True),
}
T5 = P("t5", layers=(0, 1), heads=(0,), gate=True, shared=False)
WRITTEN["[learned, {kind: t5, layers: [0, 1], heads: 0, gate: true, shared: false}]"] = (P("learned"), T5)


def test_a_recipe_names_a_scheme_or_lists_several_and_a_wrong_one_with_place_and_rule(tmp_path: Path) -> None:
    """Read, written whole and read again; over a preset too, and from the command line."""
    for written, schemes in WRITTEN.items():
        path = tmp_path / "my.yaml"
        path.write_text(RECIPE + written + "\n", encoding="utf-8")
        loaded = load_recipe(path, environment={})
        assert loaded.recipe.network.positions == schemes
        (tmp_path / "whole.yaml").write_text(dump_recipe(loaded.recipe), encoding="utf-8")
        assert load_recipe(tmp_path / "whole.yaml", environment={}).recipe.network == loaded.recipe.network
        path.write_text(RECIPE.replace("network:", "network:\n  preset: transformer-tiny") + written, encoding="utf-8")
        assert load_recipe(path, environment={}).recipe.network == preset("transformer-tiny", positions=schemes)
        path.write_text(RECIPE + "sinusoidal", encoding="utf-8")
        again = load_recipe(path, [f"network.positions={written}"], environment={})
        assert again.recipe.network.positions == schemes
        build_network(replace(loaded.recipe.network, d_model=16, n_heads=2, vocab_size=13))
    for written, message in (
        ("rotari", r"my.yaml:4:14: network.positions.kind must be one of .*: got 'rotari'; did you mean 'rotary'\?"),
        ("[rotary, alib]", r"my.yaml:4:23: network.positions.1.kind must be one of .*; did you mean 'alibi'\?"),
        ("{kind: learned, heads: [0]}", "my.yaml:4:37: `heads` has no meaning for learned positions"),
        ("[rotary, {kind: shaw, max_distance: 0}]", "my.yaml:4:50: `max_distance` must be at least 1: got 0"),
        ("[{kind: shaw, max_distnce: 8}]", "my.yaml:4:28: unknown key 'max_distnce' in network.positions.0; did "),
        ("{kind: shaw, heads: [8]}", "my.yaml:4:34: `positions.heads` count from 0 to 7: got"),
    ):
        path = tmp_path / "my.yaml"
        path.write_text(RECIPE + written, encoding="utf-8")
        fails(RecipeError, message, load_recipe, path, environment={})
