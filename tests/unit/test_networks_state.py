"""Cached decoding equals uncached: prefixes, padding, rows that change places, fixed memory; what may not be cached."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention.masks import Mask, bidirectional, causal, lookahead, padding, prefix, window
from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.decoding import Beam, Greedy, generate
from atento.inference.graphs import ROOM, Buffers, GraphStepFunction
from atento.inference.plain import PlainStepFunction
from atento.networks import EncoderDecoder, build_network
from failing import fails
from test_networks_fast import ENCODER_DECODERS, SIZES, inputs, network_of

CONFIG = NetworkConfig(vocab_size=13, d_model=8, d_ff=16, n_heads=2, n_layers=2, n_decoder_layers=3, dropout=0.0)
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [7, 3, 0, 0, 0]])
REAL = SOURCE > 0
TARGET = torch.tensor([[2, 5, 6, 7, 1, 4], [2, 8, 9, 4, 6, 6], [2, 2, 5, 12, 0, 3]])
some_cuts = st.lists(st.integers(1, 5), max_size=5, unique=True).map(sorted)
LOOKING = [bidirectional(), lookahead(1), prefix(2), padding(torch.tensor([6, 6, 6]))]


def make(norm: str = "pre") -> EncoderDecoder:
    torch.manual_seed(0)
    return build_network(replace(CONFIG, norm=norm)).eval().double()


def uncached(network: EncoderDecoder, source: Tensor, real: Tensor | None, target: Tensor) -> Tensor:
    return network(source, target, source_token_mask=real).logits.detach()


@settings(max_examples=20)
@given(cuts=some_cuts, norm=st.sampled_from(["pre", "post"]), padded=st.booleans())
def test_h12_cached_equals_uncached_however_the_target_is_cut(cuts: list[int], norm: str, padded: bool) -> None:
    """One token at a time, a prefix first, or several at once; the source padded or not."""
    network, real = make(norm), REAL if padded else None
    state, parts, start = network.begin(), [], 0
    for end in [*cuts, 6]:
        source = SOURCE if start == 0 else None
        out = network(source, TARGET[:, start:end], source_token_mask=real if start == 0 else None, state=state)
        assert out.state.length == end and out.logits is not None
        state, start = out.state, end
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), uncached(network, SOURCE, real, TARGET), rtol=0, atol=1e-12)


def test_a9_h12_the_step_function_equals_uncached_and_selecting_leaves_the_old_state() -> None:
    for padded in (False, True):
        network, real = make(), REAL if padded else None
        step_function = PlainStepFunction(network)
        for role in ("start_id", "eos_id", "pad_id"):
            assert getattr(step_function, role) == getattr(CONFIG, role)
        expected = uncached(network, SOURCE, real, TARGET)
        state = step_function.begin(SOURCE, real)
        out, state = step_function.step(TARGET[:, :3], state)  # a prefix
        torch.testing.assert_close(out.double(), expected[:, 2], rtol=0, atol=1e-12)
        for t in range(3, 6):
            out, state = step_function.step(TARGET[:, t], state)
            torch.testing.assert_close(out.double(), expected[:, t], rtol=0, atol=1e-12)
    network = make()
    step_function = PlainStepFunction(network)
    state = step_function.begin(SOURCE, REAL)
    _, state = step_function.step(TARGET[:, 0], state)
    chosen = state.select(torch.tensor([2, 2]))
    before = [block.self_attention.keys.clone() for block in state.stack.blocks]
    step_function.step(torch.tensor([4, 5]), chosen)
    assert chosen.stack.length == 2 and state.stack.length == 1
    assert all(torch.equal(block.self_attention.keys, keys) for block, keys in zip(state.stack.blocks, before))
    step_function = PlainStepFunction(network)
    state = step_function.begin(SOURCE, REAL)
    before = [block.cross_attention for block in state.stack.blocks]
    for t in range(3):
        _, state = step_function.step(TARGET[:, t], state)
        assert all(block.cross_attention is kept for block, kept in zip(state.stack.blocks, before))
    assert state.stack.blocks[0].self_attention.keys.shape == (3, 2, 3, 4)
    # What a search adds up has the network's precision, at least float32
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        step_function = PlainStepFunction(make().to(dtype))
        out, _ = step_function.step(TARGET[:, 0], step_function.begin(SOURCE, REAL))
        assert out.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


@settings(max_examples=20)
@given(rows=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=5, max_size=5), padded=st.booleans())
def test_h12_rows_may_leave_repeat_and_change_places(rows: list[list[int]], padded: bool) -> None:
    """What a beam does: after each step some rows are chosen again, some twice, some never."""
    network, real = make(), REAL if padded else None
    step_function = PlainStepFunction(network)
    state = step_function.begin(SOURCE, real)
    origin = torch.arange(3)  # which sentence each row is of
    history = TARGET[:, :1]
    for step, chosen in enumerate(rows):
        out, state = step_function.step(history[:, -1], state)
        masks = None if real is None else real[origin]
        expected = uncached(network, SOURCE[origin], masks, history)[:, -1]
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-12)
        pick = torch.tensor([place % len(origin) for place in chosen])
        state, origin, history = state.select(pick), origin[pick], history[pick]
        new = (TARGET[origin, step + 1] + torch.arange(len(pick)) % 2) % 13  # two copies of a row go different ways
        history = torch.cat([history, new[:, None]], dim=1)


def test_a_step_without_new_tokens_gives_nothing() -> None:
    network = build_network(replace(CONFIG, positions=PositionConfig(real_only=True)))
    state, real = network.begin(), TARGET > 0
    network(SOURCE, TARGET, target_token_mask=real, state=state)
    assert network(None, TARGET[:, :0], target_token_mask=real, state=state).hidden.shape == (3, 0, 8)


def test_any_mask_that_does_not_look_ahead_may_be_cached_and_no_other() -> None:
    for mask in (causal(), window(2, 0), prefix(1), causal() & window(1, 1)):
        network = make()
        whole = network(SOURCE, TARGET, mask=mask, source_token_mask=REAL).logits
        state = network.begin()
        for t in range(6):
            step = network(SOURCE if t == 0 else None, TARGET[:, [t]], mask=mask, source_token_mask=REAL, state=state)
            torch.testing.assert_close(step.logits[:, 0], whole[:, t], rtol=0, atol=1e-12)
    # A matrix without being printed
    for mask in (*LOOKING, torch.ones(6, 6).tril().bool()):
        network, said = make(), "Mask" if isinstance(mask, Mask) else r"a matrix of shape \(6, 6\) with a decode state"
        with pytest.raises(CapabilityError, match=f"a mask that looks ahead cannot be cached: got {said}"):
            network(SOURCE, TARGET, mask=mask, state=network.begin())
        network(SOURCE, TARGET, mask=mask)  # without a state it is a mask like any other


def test_h12_steps_of_fixed_shapes_read_a_prefix_first_and_refuse_an_old_state() -> None:
    network = network_of(ENCODER_DECODERS["t5"])
    ids, real = inputs([5, 9, 2])
    prefix = torch.tensor([[7, 8], [9, 10], [11, 12]])
    for strategy in (Greedy(), Beam(4)):
        given = {"max_new_tokens": 9, "token_mask": real, "prefix_ids": prefix}
        found = [generate(one, ids, strategy, **given) for one in (network, GraphStepFunction(network))]  # type: ignore[arg-type]
        assert [h[0].ids for h in found[0]] == [h[0].ids for h in found[1]]
    network = network_of(ENCODER_DECODERS["transformer"])
    ids, real = inputs([4])
    step_function = GraphStepFunction(network)
    begun = step_function.begin(ids, real)
    start = torch.full((2,), 2)
    first, again = (begun.select(torch.zeros(2, dtype=torch.long)) for _ in range(2))
    a, first = step_function.step(start, first)
    b, again = step_function.step(start, again)  # what was only read may be gone on from twice
    assert torch.equal(a, b)
    one, other = first.select(torch.tensor([0, 1])), first.select(torch.tensor([1, 0]))
    step_function.step(start, one)
    fails(CapabilityError, "not the newest", step_function.step, start, other)
    with pytest.raises(CapabilityError, match="float32 and bfloat16"):
        GraphStepFunction(network_of(ENCODER_DECODERS["transformer"]), "int8")


def test_rows_leave_only_when_half_the_batch_is_empty_and_room_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 outputs of which one ends at each step, and one that outgrows its room: few memories."""
    network = network_of(NetworkConfig(**SIZES | {"max_len": 256}, positions=PositionConfig("rotary")))
    ids, real = inputs([5] * 16)
    lengths, slots, copied = [*range(3, 18), 2 * ROOM + 5], list[int](), Buffers.copied
    monkeypatch.setattr(Buffers, "copied", lambda old, rows, room: slots.append(len(rows)) or copied(old, rows, room))
    given = {"max_new_tokens": lengths, "token_mask": real, "eos_id": ()}  # nothing ends by itself
    plain, fixed = (generate(one, ids, Greedy(), **given) for one in (network, GraphStepFunction(network)))
    assert [row[0].ids for row in fixed] == [row[0].ids for row in plain]
    assert [len(row[0].ids) for row in fixed] == lengths
    assert slots == [16, 8, 4, 2, 1, 1, 1]  # the last two for more room
