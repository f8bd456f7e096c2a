"""The table of docs/scaling.md: known networks on up to thousands of GPUs, by the formulas of `atento plan`."""

from dataclasses import dataclass

import torch

from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.networks import build_network
from atento.runs.run_plan import Plan, flops_of_update, memory_of_weights
from atento.training.optimizer import all_weights
from atento.training.replica.sharded_weights import gathered_sizes
from atento_cli.plans.parallel_plan import estimated

DEVICE = "h100"
PART = 2048  # targets of a part, as training makes them
# GPU-hours between two unexpected ends of a run: 419 in 54 days on 16,384 GPUs (Grattafiori et al. 2024, 3.3.4)
BETWEEN_FAILURES = 16_384 * 54 * 24 / 419


@dataclass(frozen=True)
class Case:
    """A network, the tokens of its training, and the numbers of GPUs."""

    name: str  # of the network
    config: NetworkConfig  # its configuration
    shards: int  # processes that a copy of the weights is sharded over
    tokens: float  # of the training
    update: int  # tokens of an update
    worlds: tuple[int, ...]  # numbers of GPUs


CASES = (
    Case("GPT-2, 124 M", presets.gpt2(), 1, 2.5e9, 1 << 19, (1, 8, 64, 256)),
    Case("Llama 3, 8 B", presets.llama3_8b(), 8, 1.6e11, 1 << 24, (8, 128, 1024, 8192)),
    Case("Llama 3, 70 B", presets.llama3_70b(), 64, 1.4e12, 1 << 24, (64, 1024, 8192)),
)


def plan_by_shapes(case: Case) -> Plan:
    """Return the plan of a case in bfloat16 with AdamW, without the activations, which would have to be measured."""
    training = TrainingConfig()
    with torch.device("meta"):
        network = build_network(case.config)
    trained = all_weights(network)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    outside, largest = gathered_sizes(network)
    return Plan(
        parameters=parameters,
        trained=parameters,
        steps=round(case.tokens / case.update),
        updates_per_epoch=case.tokens / case.update,
        tokens_per_update=case.update,
        parts=case.update // PART,
        outside_blocks=outside,
        largest_block=largest,
        memory=memory_of_weights(network, training, trained, "bfloat16"),
        flops_per_update=flops_of_update(network, trained, case.update),
        seconds_per_update=0.0,
    )


def table() -> str:
    """Return the table in Markdown."""
    heads = (
        *("network", "`shard`", "GPUs", "GiB a GPU", "GiB sent", "computation, s", "communication, s"),
        *("tokens/s", "efficiency", "days", "hours between failures"),
    )
    lines = [_row(heads), _row(["---"] * len(heads))]
    for case in CASES:
        plan = plan_by_shapes(case)
        alone = estimated(plan, DEVICE, 1).computation
        for world in case.worlds:
            estimate = estimated(plan, DEVICE, world, case.shards)
            seconds = estimate.computation + estimate.communication
            cells = (
                case.name,
                str(case.shards),
                f"{estimate.processes:,}",
                f"{sum(estimate.memory.values()) / 2**30:.1f}",
                _digits(estimate.sent / 2**30),
                _digits(estimate.computation),
                _digits(estimate.communication),
                f"{case.update / seconds:,.0f}",
                f"{alone / world / seconds:.0%}",  # of the time if all GPUs did nothing but compute
                _digits(estimate.seconds / 86400),
                _digits(BETWEEN_FAILURES / estimate.processes),
            )
            lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _digits(value: float) -> str:
    """A number with two or more digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
