"""Steps of fixed shapes: what they write is what the plain steps write, and nothing in them hangs on Python numbers."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.decoding import MBR, Beam, Greedy, Sample, generate
from atento.inference.graphs import ROOM, Buffers, GraphStepFunction
from failing import fails
from test_networks_fast import DECODERS, ENCODER_DECODERS, SIZES, inputs, network_of

ALL = ENCODER_DECODERS | DECODERS
STRATEGIES = [Greedy(), Beam(4, n_best=4), Sample(n=3), MBR("chrf", (Sample(n=4), Beam(3, n_best=3)))]


class Replayed(GraphStepFunction):
    """As a GPU's graph: the second step on a memory is recorded, operation by operation, and later ones replay it."""

    recorded = 0

    def _run(self, fixed: Buffers) -> Tensor:
        fixed.n_steps += 1
        if fixed.n_steps == 1:
            return self.compute(fixed)
        held = _memory(fixed)
        if fixed.graph is None:
            # what is recorded reads and writes the tensors it is given; a number looked at in Python becomes a constant
            def step(*tensors: Tensor) -> Tensor:
                return self.compute(_filled(fixed, list(tensors)))

            fixed.graph = make_fx(step)(*[one.clone() for one in held])
            self.recorded += 1
        found: Tensor = fixed.graph(*held)
        return found


def _memory(fixed: Buffers) -> list[Tensor]:
    assert fixed.x is not None and fixed.positions is not None
    source = [one for pair in fixed.source for one in pair]
    masks = [] if fixed.source_mask is None else [fixed.source_mask]
    rotations = [one for turns in fixed.positions.rotations for turn in turns for one in (turn.cos, turn.sin)]
    biases = [one for one in fixed.positions.biases if one is not None]
    return [fixed.x, fixed.column, *fixed.keys, *fixed.values, *source, *masks, *rotations, *biases]


def _filled(fixed: Buffers, tensors: list[Tensor]) -> Buffers:
    """The same record with other tensors, in the order of `_memory`."""
    given = iter(tensors)
    assert fixed.positions is not None
    x, column = next(given), next(given)
    keys, values = [[next(given) for _ in part] for part in (fixed.keys, fixed.values)]
    source = [(next(given), next(given)) for _ in fixed.source]
    mask = None if fixed.source_mask is None else next(given)
    turned = fixed.positions.rotations
    rotations = [tuple(replace(turn, cos=next(given), sin=next(given)) for turn in one) for one in turned]
    biases = [None if one is None else next(given) for one in fixed.positions.biases]
    at = replace(fixed.positions, rotations=rotations, biases=biases)
    return replace(fixed, x=x, column=column, keys=keys, values=values, source=source, source_mask=mask, positions=at)


@pytest.mark.covering
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("name", ALL)
def test_h12_fixed_shapes_write_what_the_plain_steps_write(name: str, strategy: object) -> None:
    network = network_of(ALL[name])
    ids, real = inputs([5, 9, 1, 9], "left" if name in DECODERS else "right")
    arguments = {"max_new_tokens": [12, 7, 40, 20], "token_mask": real, "seed": 5}
    plain = generate(network, ids, strategy, **arguments)  # type: ignore[arg-type]
    fixed = generate(GraphStepFunction(network), ids, strategy, **arguments)  # type: ignore[arg-type]
    assert [[h.ids for h in row] for row in fixed] == [[h.ids for h in row] for row in plain]
    for one, other in zip(fixed, plain):
        for a, b in zip(one, other):
            assert a.token_scores == pytest.approx(b.token_scores, abs=1e-10)


def test_h12_a_recorded_step_is_replayed_with_other_numbers_a_prefix_read_first_and_an_old_state_refused() -> None:
    for name in ALL:
        network = network_of(ALL[name])
        ids, real = inputs([5, 1], "left" if name in DECODERS else "right")
        step_function = Replayed(network)
        given = {"max_new_tokens": 6, "token_mask": real, "eos_id": ()}
        found = [generate(one, ids, Beam(2), **given)[0][0].ids for one in (network, step_function)]  # type: ignore[arg-type]
        assert found[0] == found[1] and step_function.recorded == 1
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


def test_rows_leave_only_when_half_the_batch_is_empty_and_room_grows() -> None:
    """16 outputs of which one ends at each step, and one that outgrows its room: few memories, few graphs."""
    network = network_of(NetworkConfig(**SIZES | {"max_len": 256}, positions=PositionConfig("rotary")))
    ids, real = inputs([5] * 16)
    lengths = [*range(3, 18), 2 * ROOM + 5]
    endless = {"eos_id": ()}  # nothing ends by itself
    plain = generate(network, ids, Greedy(), max_new_tokens=lengths, token_mask=real, **endless)  # type: ignore[arg-type]
    step_function = Replayed(network)
    fixed = generate(step_function, ids, Greedy(), max_new_tokens=lengths, token_mask=real, **endless)  # type: ignore[arg-type]
    assert [row[0].ids for row in fixed] == [row[0].ids for row in plain]
    assert [len(row[0].ids) for row in fixed] == lengths
    assert step_function.recorded <= 7  # 16, 8, 4, 2, 1 places, and twice more room


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("name", ALL)
def test_h12_captured_steps_write_what_the_plain_steps_write(name: str, strategy: object) -> None:
    network: nn.Module = network_of(ALL[name]).to("cuda")
    ids, real = (one.to("cuda") for one in inputs([5, 9, 1, 9], "left" if name in DECODERS else "right"))
    arguments = {"max_new_tokens": [12, 7, 40, 20], "token_mask": real, "seed": 5}
    plain = generate(network, ids, strategy, **arguments)  # type: ignore[arg-type]
    fixed = generate(GraphStepFunction(network), ids, strategy, **arguments)  # type: ignore[arg-type]
    assert [[h.ids for h in row] for row in fixed] == [[h.ids for h in row] for row in plain]
