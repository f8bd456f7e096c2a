"""Check of the heads of a trained network: statistics, and the loss without each (docs/notes.md#a15)."""

import math
from copy import deepcopy
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.inspection.ablation import ablation_effects, attentions
from atento.inspection.head_statistics import HeadReport
from atento.networks import EncoderDecoder
from atento_lab.notes.checks.shared_network import trained
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

PAIRS = 30
SENTENCE = "The cat jumped high"
Name = tuple[str, int, int]  # kind, layer, head


@cache
def pairs_as_ids() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return source (1,S), target input (1,T) and labels (T,) of some training pairs."""
    model, examples = trained().model, []
    tokenizer, config = model.tokenizer, model.network.config
    assert tokenizer is not None
    for pair in trained().pairs[:PAIRS]:
        source, target = tokenizer.encode(pair.source), tokenizer.encode(pair.target)
        ids = ([[*source, config.eos_id]], [[config.start_id, *target]], [*target, config.eos_id])
        examples.append((torch.tensor(ids[0]), torch.tensor(ids[1]), torch.tensor(ids[2])))
    return examples


@torch.no_grad()
def loss_of(network: EncoderDecoder) -> float:
    """Return the mean loss per target token of those pairs, in nats, with teacher forcing."""
    total, count = 0.0, 0
    for source, target, labels in pairs_as_ids():
        total += float(F.cross_entropy(network(source, target).logits[0], labels, reduction="sum"))
        count += len(labels)
    return total / count


def entropy_by_loops(weights: Tensor) -> float:
    """Return the mean over the rows of -Σ p ln p; weights (T,S)."""
    rows: list[float] = [-sum(p * math.log(p) for p in row if p > 0) for row in weights.tolist()]
    return sum(rows) / len(rows)


def distance_by_loops(weights: Tensor) -> float:
    """Return the mean over the rows of Σ p |i - j|."""
    rows: list[float] = [sum(p * abs(i - j) for j, p in enumerate(row)) for i, row in enumerate(weights.tolist())]
    return sum(rows) / len(rows)


def without_head(network: EncoderDecoder, name: Name) -> EncoderDecoder:
    """Return a copy in which one head has no effect: its rows of W^O are zero."""
    changed = deepcopy(network)
    part = attentions(changed)[name[:2]]
    weights = {role: matrix.detach().clone() for role, matrix in part.head_weights().items()}
    weights["output"][name[2]] = 0.0
    part.load_head_weights(weights)
    return changed


def heads_differ() -> Finding:
    """A15: in entropy, distance, and how much the loss rises without each."""
    model = trained().model
    network, record = model.network, model.attend(SENTENCE)
    assert isinstance(network, EncoderDecoder)
    effects = ablation_effects(network, lambda: loss_of(network))
    loss, reports, errors = loss_of(network), {}, {"entropy": 0.0, "distance": 0.0, "loss without": 0.0}
    for kind in ("encoder", "decoder", "cross"):
        for report in record.report(kind):
            name = (kind, report.layer, report.head)
            reports[name] = report
            weights = torch.from_numpy(record.weights(report.layer, report.head, kind)).double()
            errors["entropy"] = max(errors["entropy"], abs(report.entropy - entropy_by_loops(weights)))
            if report.distance is not None:
                errors["distance"] = max(errors["distance"], abs(report.distance - distance_by_loops(weights)))
            removed = loss_of(without_head(network, name)) - loss
            errors["loss without"] = max(errors["loss without"], abs(effects[name] - removed))
    heads = network.config.n_heads
    apart = [
        abs(reports[name].entropy - reports[name[0], name[1], other_head].entropy)
        for name in reports
        for other_head in range(name[2] + 1, heads)
    ]
    return compare(
        {
            "heads": len(effects),
            "away from loops": errors,
            "most two heads of a layer differ in entropy": max(apart),
            "most that the loss rises without a head": max(effects.values()),
        },
        {
            "heads": 6,
            "away from loops": dict.fromkeys(errors, AtMost(1e-5)),
            "most two heads of a layer differ in entropy": AtLeast(0.02),
            "most that the loss rises without a head": AtLeast(0.05),
        },
        remark=f"a network of one layer, trained here; loss {loss:.3f} nats per token on {PAIRS} training pairs; "
        f'entropies in nats over "{SENTENCE}"',
        drawing=table_of_heads(reports, effects),
    )


def table_of_heads(reports: dict[Name, HeadReport], effects: dict[Name, float]) -> str:
    """Format a table with a line per head."""
    lines = [f"{'kind':<8} {'layer':>5} {'head':>4} {'entropy':>7} {'distance':>8} {'loss without':>12}"]
    for (kind, layer, head), report in reports.items():
        distance = "-" if report.distance is None else f"{report.distance:.2f}"
        effect = f"{effects[kind, layer, head]:+.3f}"
        lines.append(f"{kind:<8} {layer:>5} {head:>4} {report.entropy:>7.3f} {distance:>8} {effect:>12}")
    return "\n".join(lines)
