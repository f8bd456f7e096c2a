"""Check of several position schemes in one network, each with a gate of its own (docs/notes.md#b7)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention import attend
from atento.attention.positions import Shaw, Sinusoidal, T5Bias
from atento.attention.relative import Gated, t5_buckets
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.ablation import attentions, position_effects, without_scheme
from atento.networks import EncoderDecoder
from atento.networks.stack.stack_positions import AddedPositions
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.checks.relative import dot, pair_by_pair, table_row
from atento_lab.notes.checks.tiny import some_ids, tiny_network
from atento_lab.notes.finding import AtLeast, Finding, compare

HYBRID: dict[type[nn.Module], PositionConfig] = {
    Sinusoidal: PositionConfig(kind="sinusoidal", gate=True),
    Shaw: PositionConfig(kind="shaw", gate=True, heads=(0,)),
    T5Bias: PositionConfig(kind="t5", gate=True, layers=(1,)),
}


def set_gates(network: nn.Module, value: float, kind: type[nn.Module] = nn.Module) -> None:
    """Set the learned gates of one kind of scheme, or of all, to a value; 0 removes a scheme from the network."""
    for module in network.modules():
        if isinstance(module, AddedPositions) and issubclass(Sinusoidal, kind):
            for gate in module.gates.values():
                gate.data.fill_(value)
        if isinstance(module, Gated) and isinstance(module.scheme, kind) and module.gate is not None:
            module.gate.data.fill_(value)


def without(network: EncoderDecoder, kind: type[nn.Module]) -> EncoderDecoder:
    """Build a network with the other schemes only, and copy all weights that it has."""
    built = tiny_network(positions=tuple(scheme for scheme_type, scheme in HYBRID.items() if scheme_type is not kind))
    numbers = [n for n, scheme in enumerate(network.encoder.positions.schemes) if not of_kind(scheme, kind)]
    weights = {}
    for name in built.state_dict():
        prefix, numbered, after = name.partition(".positions.schemes.")
        number, _, suffix = after.partition(".")  # the schemes of a stack are numbered
        source_name = f"{prefix}{numbered}{numbers[int(number)]}.{suffix}" if numbered else name
        weights[name] = network.state_dict()[source_name]
    built.load_state_dict(weights)
    return built


def of_kind(scheme: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a gated scheme is of this kind."""
    return isinstance(scheme, Gated) and isinstance(scheme.scheme, kind)


@torch.no_grad()
def hybrid() -> Finding:
    """B7: sinusoids, Shaw's vectors in one head and T5's bias in one layer, each with a learned gate."""
    schemes, ids = tuple(HYBRID.values()), some_ids(1, 7)
    network = tiny_network(positions=schemes)
    set_gates(network, 1.0)  # the initial value
    reference = network.encode(ids)
    errors, effects = {}, {}
    for kind, scheme in HYBRID.items():
        closed = tiny_network(positions=schemes)
        closed.load_state_dict(network.state_dict())
        set_gates(closed, 0.0, kind)
        effects[scheme.kind] = apart(closed.encode(ids), reference)
        errors[scheme.kind] = apart(closed.encode(ids), without(network, kind).encode(ids))
    with torch.enable_grad():
        torch.autograd.backward(network.encode(ids).square().sum())
    gates = [p.grad for name, p in network.named_parameters() if "gate" in name and "target" not in name]
    gradients = [float(g.norm()) for g in gates if g is not None]
    return compare(
        {
            "formula of the sum, away": sum_by_pairs(),
            "moved where a scheme is not placed": moved_elsewhere(network, ids),
            "shut gate unlike no scheme": errors,
            "effect of each scheme": effects,
            "least gradient of a gate": min(gradients),
            "taken away by the tool, away": taken_away(network, ids),
            "what the tool says of the effect, away": effects_away(network, ids),
        },
        {
            "formula of the sum, away": EXACT,
            "moved where a scheme is not placed": {"T5's bias: first layer": 0.0, "Shaw's vectors: other heads": 0.0},
            "shut gate unlike no scheme": dict.fromkeys(errors, EXACT),
            "effect of each scheme": dict.fromkeys(effects, AtLeast(1e-3)),
            "least gradient of a gate": AtLeast(1e-9),
            "taken away by the tool, away": dict.fromkeys(errors, EXACT),
            "what the tool says of the effect, away": dict.fromkeys(errors, EXACT),
        },
        remark="a network can learn the share of each scheme; a gate of 0 removes its scheme exactly",
    )


@torch.no_grad()
def taken_away(network: EncoderDecoder, ids: Tensor) -> dict[str, float]:
    """Return the difference between the network with a scheme removed and one built without it, by scheme."""
    errors: dict[str, float] = {}
    for kind, scheme in HYBRID.items():
        alone = without(network, kind).encode(ids)
        with without_scheme(network, scheme.kind):
            errors[scheme.kind] = apart(network.encode(ids), alone)
    return errors


@torch.no_grad()
def effects_away(network: EncoderDecoder, ids: Tensor) -> dict[str, float]:
    """Return the difference between `position_effects` and the losses of networks built without each scheme."""

    def loss_of(model: EncoderDecoder) -> float:
        return float(F.cross_entropy(model(ids, ids).logits[0], ids[0]))

    effects, loss = position_effects(network, lambda: loss_of(network)), loss_of(network)
    return {
        scheme.kind: abs(effects[scheme.kind] - (loss_of(without(network, kind)) - loss))
        for kind, scheme in HYBRID.items()
    }


@torch.no_grad()
def moved_elsewhere(network: EncoderDecoder, ids: Tensor) -> dict[str, float]:
    """Return how much removing a scheme changes the layer before its own, and the heads other than its own."""
    outputs: list[Tensor] = []
    heads: list[Tensor] = []
    attention = attentions(network)["encoder", 0]

    def keep_output(module: nn.Module, inputs: object, output: Tensor) -> None:
        outputs.append(output)

    def keep_heads(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        heads.append(inputs[0].unflatten(-1, (attention.n_heads, -1)))  # the output of each head, before W^O

    hooks = [network.encoder.blocks[0].register_forward_hook(keep_output)]
    hooks.append(attention.output.register_forward_pre_hook(keep_heads))
    for kind in (nn.Module, T5Bias, Shaw):
        weights = {name: value.clone() for name, value in network.state_dict().items()}
        if kind is not nn.Module:
            set_gates(network, 0.0, kind)
        network.encode(ids)
        network.load_state_dict(weights)
    for hook in hooks:
        hook.remove()
    return {
        "T5's bias: first layer": apart(outputs[1], outputs[0]),
        "Shaw's vectors: other heads": apart(heads[2][..., 1:, :], heads[0][..., 1:, :]),
    }


def sum_by_pairs() -> float:
    """Return the error of two relative schemes together against both formulas: q·(k + a)/√d + bias, and v + b."""
    scheme, bias, length = Shaw(4, 3).double(), T5Bias(1).double(), 6
    assert scheme.value_table is not None
    table = scheme.value_table
    q, k, v = random(1, 1, length, 4), random(1, 1, length, 4), random(1, 1, length, 4)
    positions = QueryKeyPositions.arange(length, length)
    buckets = t5_buckets(positions.distances, 32, 128, True).tolist()
    by_hand = pair_by_pair(
        lambda i, j: (
            dot(q[0, 0, i], k[0, 0, j] + scheme.keys[table_row(i, j, 3)]) / 2 + float(bias.weight[buckets[i][j], 0])
        ),
        lambda i, j: v[0, 0, j] + table[table_row(i, j, 3)],
        length,
    )
    return apart(attend(q, k, v, relative=RelativeTerms((scheme, bias), positions))[0, 0], by_hand)
