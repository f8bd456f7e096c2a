"""The position laboratory: train and measure small networks that differ only in their position scheme.

It measures length generalisation, translation invariance, cost, the parts of scores, alignment under re-ordering, and
the updates of a learned table, and answers the notes' questions from the numbers. See docs/notes.md#b8 to #b14.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.observe import observe
from atento.attention.positions import Learned
from atento.base.precision import resolve_device
from atento.inspection import alignment_error_rate
from atento.inspection.network_scores import score_parts
from atento_lab.studies.answers import answers
from atento_lab.studies.networks import SCHEMES, SIZES, PositionNetwork, Size, reader, stretched, train, translator
from atento_lab.studies.position_costs import measure_cost
from atento_lab.studies.seeds import Row, interval
from atento_lab.studies.tasks import TASKS, longest_sentence, reorder, sentences
from atento_lab.studies.workers import results as each_result

STEPS = {"echo": 500, "pairs": 600, "world": 400, "reorder": 600, "table": 200}
_USUAL_SECONDS = 30.0  # the value of `--seconds` that gives the steps above
_HELD_OUT = 1_000_003  # seed of the evaluation data; larger than any training seed


@dataclass(frozen=True)
class Job:
    """One training run: task, scheme and seed."""

    task: str
    scheme: str
    seed: int
    size: Size
    device: str

    @property
    def steps(self) -> int:
        """Updates of this training run; at least one."""
        return max(1, round(STEPS[self.task] * self.size.steps))


def measure_positions(seconds: float) -> Iterator[dict[str, object]]:
    """Run the laboratory and yield rows for each task and scheme, for cost, and for answers.

    With a GPU the networks are larger.

    Args:
        seconds: scales the training steps; 30 gives the usual number.

    On a CPU the training runs use as many processes as PyTorch has threads, each with one thread.
    """
    device = resolve_device("auto")
    size = SIZES[device]
    size = replace(size, steps=size.steps * seconds / _USUAL_SECONDS)
    rows = []
    for row in measure(size, device, workers=1 if device != "cpu" else torch.get_num_threads()):
        rows.append(row)
        yield row
    yield from answers(rows)


def measure(
    size: Size, device: str, workers: int, tasks: Sequence[str] = tuple(STEPS), schemes: Sequence[str] = SCHEMES
) -> Iterator[dict[str, object]]:
    """Yield a row for each task and scheme, with means and 95 % intervals over seeds, then rows of cost."""
    jobs = [
        Job(task, scheme, seed, size, device)
        for task in tasks
        for scheme in (schemes if task != "table" else [scheme for scheme in schemes if scheme == "learned"])
        for seed in range(1, size.seeds + 1)
    ]
    results_by_task: dict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
    for job, result in zip(jobs, each_result(run, jobs, workers)):
        results_by_task[job.task, job.scheme].append(result)
        if len(results_by_task[job.task, job.scheme]) == size.seeds:  # the seeds of a row are neighbours
            yield _row(job, results_by_task[job.task, job.scheme])
    yield from measure_cost(size, device, schemes)


def _row(job: Job, results: list[Row]) -> dict[str, object]:
    """Combine the results of all seeds in one row; non-numeric values are those of the first seed."""
    measures, examples = {}, {}
    for name, first in results[0].items():
        if isinstance(first, float):
            values = [float(result[name]) for result in results]
            mean, within = interval(values)
            measures[name] = {
                "mean": round(mean, 4),
                "within": None if within is None else round(within, 4),
                "seeds": [round(value, 6) for value in values],
            }
        else:
            examples[name] = first
    return {
        "bench": "positions",
        "task": job.task,
        "scheme": job.scheme,
        "length": job.size.length,
        "steps": job.steps,
        "measures": measures,
        **examples,
    }


def run(job: Job) -> dict[str, object]:
    """Train and measure a network; return numbers by name, and examples for the report."""
    if job.task == "reorder":
        return _run_reorder(job)
    return _run_table(job) if job.task == "table" else _run_reader(job)


def _run_reader(job: Job) -> dict[str, object]:
    task, size = TASKS[job.task], job.size
    network = reader(job.task, job.scheme, size, job.seed).to(job.device)
    generator = torch.Generator().manual_seed(job.seed)

    def loss() -> Tensor:
        batch = task.draw(size.batch, size.length, generator, False)
        return _loss(network, batch.ids.to(job.device), batch.labels.to(job.device))

    for _ in train(network, loss, job.steps):
        pass
    results: dict[str, object] = {}
    for times in (1, 2, 4, 8):
        nll, accuracy = _evaluate(job, network, times * size.length)
        if not task.classes:
            results[f"nll {times * size.length}"] = nll
        if job.task != "world":
            results[f"accuracy {times * size.length}"] = accuracy
    if job.task == "pairs":
        results |= _shifted(network, size, job.device)
    if job.task == "echo":
        results |= {"position share": _position_share(network, size, job.device)} | _gates(network)
    return results


def _loss(network: PositionNetwork, ids: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of labels: next tokens (B,L) with -1 for ignored positions, or classes (B,)."""
    logits = network(ids)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-1, reduction=reduction)


@torch.inference_mode()
def _evaluate(job: Job, network: PositionNetwork, length: int) -> tuple[float, float]:
    """Return the mean loss in nats and the accuracy on held-out texts of this length, the same for all networks."""
    generator = torch.Generator().manual_seed(_HELD_OUT)
    longer = stretched(network, length)
    batch = TASKS[job.task].draw(job.size.texts, length, generator, True)
    nll, correct, count = 0.0, 0, 0
    for ids, labels in zip(batch.ids.split(32), batch.labels.split(32)):
        ids, labels = ids.to(job.device), labels.to(job.device)
        logits, labelled = longer(ids), labels >= 0
        nll += float(F.cross_entropy(logits[labelled].double(), labels[labelled], reduction="sum"))
        correct += int((logits[labelled].argmax(dim=-1) == labels[labelled]).sum())
        count += int(labelled.sum())
    return nll / max(1, count), correct / max(1, count)


@torch.inference_mode()
def _shifted(network: PositionNetwork, size: Size, device: str) -> dict[str, float]:
    """Return the change of the vectors of a span when it moves, relative to their norm, within the trained length.

    "by position": the span alone, with positions from 0 and from L/2. "in filler": in a text of one letter, from L/8
    and from 5L/8; there the filler before and after it changes too.
    """
    generator = torch.Generator().manual_seed(_HELD_OUT)
    vocab_size, half, quarter = TASKS["pairs"].vocab_size(), size.length // 2, size.length // 4
    spans = torch.randint(vocab_size, (size.texts, half), generator=generator).to(device)
    numbered = torch.arange(half, device=device).expand(size.texts, -1)
    alone = relative_change(network.hidden(spans, numbered), network.hidden(spans, numbered + half))
    embedded_spans = []
    for first in (size.length // 8, size.length // 8 + half):
        ids = torch.zeros(size.texts, size.length, dtype=torch.long, device=device)
        ids[:, first : first + quarter] = spans[:, :quarter]
        embedded_spans.append(network.hidden(ids)[:, first : first + quarter])
    return {"shift by position": alone, "shift in filler": relative_change(*embedded_spans)}


def relative_change(before: Tensor, after: Tensor) -> float:
    """Return the mean of |after - before| / |before| over vectors (...,D)."""
    return float(((after - before).norm(dim=-1) / before.norm(dim=-1)).mean())


def _position_share(network: PositionNetwork, size: Size, device: str) -> float:
    """Return the share of position in the variation of the first layer's scores over the keys that a query sees.

    A value that is the same for all keys of a query changes no weight and does not count.
    """
    ids = TASKS["echo"].draw(32, size.length, torch.Generator().manual_seed(_HELD_OUT), True).ids.to(device)
    with torch.inference_mode():
        parts = score_parts(network, "encoder", 0, lambda: network(ids))
    allowed = torch.ones(size.length, size.length, dtype=torch.bool, device=device).tril()
    spread = {}
    for name, part in parts.items():
        mean = part.masked_fill(~allowed, 0.0).sum(dim=-1, keepdim=True) / allowed.sum(dim=-1, keepdim=True)
        spread[name] = float((part - mean).abs().masked_fill(~allowed, 0.0).sum())
    content = spread.get("content", 0.0) + spread.get("content-content", 0.0)  # disentangled: another name
    return 1 - content / max(sum(spread.values()), 1e-12)


def _gates(network: PositionNetwork) -> dict[str, float]:
    """Return the mean learned gate of each scheme of a sum; gates are initialised at 1."""
    gates = {}
    for name, parameter in network.named_parameters():
        if name.startswith("positions.gates."):
            gates["gate sinusoidal"] = float(parameter.detach())
        elif name.endswith(".gate"):
            gates.setdefault("gate shaw", 0.0)
            gates["gate shaw"] += float(parameter.detach().mean()) / len(network.stack.blocks)
    return gates


def _run_reorder(job: Job) -> dict[str, object]:
    """Return the error of alignments by the strongest cross-attention of each target word, against the gold ones."""
    size = job.size
    network = translator(job.scheme, size, job.seed).to(job.device)
    generator = torch.Generator().manual_seed(job.seed)

    def loss() -> Tensor:
        batch = reorder(size.batch, size.length, generator)
        logits = network(batch.source.to(job.device), batch.target_input.to(job.device)).logits
        assert logits is not None
        return F.cross_entropy(logits.flatten(0, 1), batch.labels.to(job.device).flatten())

    for _ in train(network, loss, job.steps):
        pass
    results: dict[str, object] = {}
    for length in (size.length, 2 * size.length):
        longer = stretched(network, length)
        batch = reorder(size.texts, length, torch.Generator().manual_seed(_HELD_OUT))
        with torch.inference_mode(), observe(longer) as observed:
            logits = longer(batch.source.to(job.device), batch.target_input.to(job.device)).logits
        assert logits is not None
        weights = observed["cross", -1].cpu()  # (B,H,T,S)
        aligned = links(weights.mean(dim=1).argmax(dim=-1))
        results[f"accuracy {length}"] = float((logits.argmax(dim=-1).cpu() == batch.labels).float().mean())
        results[f"alignment error {length}"] = alignment_error_rate(aligned, links(batch.sources))
        if length == size.length and job.seed == 1:
            results["example"] = {
                "source": batch.source[0].tolist(),
                "target": batch.labels[0].tolist(),
                "weights": [[[float(f"{w:.3g}") for w in row] for row in head] for head in weights[0].tolist()],
            }
    return results


def links(sources: Tensor) -> set[tuple[int, int, int]]:
    """Convert sources (B,T), the source of each target position, to {(text, source, target)}."""
    return {(text, source, target) for text, row in enumerate(sources.tolist()) for target, source in enumerate(row)}


def _run_table(job: Job) -> dict[str, object]:
    """Return how often each row of a learned table gets a gradient from sentences of natural lengths, and how far it
    moves.

    Training has no weight decay, so a row that no sentence reaches keeps its initial value.
    """
    length = longest_sentence()
    network = reader("world", "learned", job.size, job.seed, max_len=length).to(job.device)
    (table,) = (module for module in network.modules() if isinstance(module, Learned))
    before = table.weight.detach().clone()
    updates = torch.zeros(length, dtype=torch.long, device=job.device)
    generator = torch.Generator().manual_seed(job.seed)

    def loss() -> Tensor:
        batch = sentences(job.size.batch, length, generator)
        return _loss(network, batch.ids.to(job.device), batch.labels.to(job.device))

    for _ in train(network, loss, job.steps, decay=0.0):
        assert table.weight.grad is not None
        updates += table.weight.grad.abs().sum(dim=1) > 0
    movement = (table.weight.detach() - before).norm(dim=1)
    return {
        "updates first": float(updates[0]),
        "updates last": float(updates[-1]),
        "change first": float(movement[0]),
        "change last": float(movement[-1]),
        "updates": updates.tolist(),
        "change": [round(module, 4) for module in movement.tolist()],
    }
