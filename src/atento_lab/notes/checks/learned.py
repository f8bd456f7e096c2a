"""Checks of learned positions, and of how little training changes late ones (docs/notes.md#b2, #b3)."""

import io
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.positions import Learned
from atento.base.errors import UsageError
from atento.config.sections.position_scheme import PositionConfig
from atento.models.initial_model import with_longer_positions
from atento.models.load import ModelFiles
from atento.networks import EncoderDecoder
from atento.runs.train import train
from atento_cli.plans.position_report import position_report
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.tiny import Adam, some_ids, tiny_network
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare, grid

ROWS, STEPS, LONGEST = 32, 40, 24  # rows of the table; training steps; tokens of the longest text


def longer_checkpoint(how: Literal["grown", "interpolated"]) -> Tensor:
    """Return how far the rows of a table of 8 moved when a checkpoint is loaded into a table of 12; (8,) or (2,).

    With interpolation only the first and the last row keep their values.
    """
    scheme = PositionConfig("learned", longer=how)
    short, long = (tiny_network(positions=scheme, max_len=n).float() for n in (8, 12))
    table = "source_inputs.positions.schemes.0.weight"
    start = ModelFiles(Path(), {}, short.state_dict())
    table_weights, before = with_longer_positions(start, long, long.config).weights[table], start.weights[table]
    table_weights, before = table_weights.detach(), before.detach()
    moved = (table_weights[:8] - before if how == "grown" else table_weights[[0, -1]] - before[[0, -1]]).abs()
    return moved.amax(dim=1) if len(table_weights) == 12 else torch.full((1,), torch.inf)  # inf: did not grow


def learned_table() -> Finding:
    """B2: a position past the end is an error; the table may be extended or interpolated, also at loading."""
    table, x = Learned(8, 6).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    out = table(x, offset=1)
    torch.autograd.backward(out.sum())
    gradient = table.weight.grad
    assert gradient is not None
    with torch.no_grad():
        by_hand = torch.stack([torch.stack([x[b, t] + table.weight[t + 1] for t in range(5)]) for b in range(2)])
        grown, stretched = table.grown(12).weight, table.interpolated(15).weight
        middles = (table.weight[1:] + table.weight[:-1]) / 2
    try:
        table(torch.zeros(1, 9, 6))
        message = "no error"
    except UsageError as error:
        message = str(error)
    return compare(
        {
            "away from x_t + p_t": apart(out, by_hand),
            "gradient of each row": gradient[:, 0],
            "grown: old rows moved": apart(grown[:8], table.weight),
            "stretched to 15: old rows moved": apart(stretched[::2], table.weight),
            "rows between, away from the middle": apart(stretched[1::2], middles),
            "nine tokens": "refused" if "holds 8: got a text of 9" in message else message,
            "loaded into 12: old rows moved": float(longer_checkpoint("grown").max()),
            "loaded and stretched: first and last moved": float(longer_checkpoint("interpolated").max()),
        },
        {
            "away from x_t + p_t": EXACT,
            "gradient of each row": [0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0],  # two sentences of five, from 1 on
            "grown: old rows moved": 0.0,
            "stretched to 15: old rows moved": AtMost(1e-6),
            "rows between, away from the middle": AtMost(1e-6),
            "nine tokens": "refused",
            "loaded into 12: old rows moved": 0.0,
            "loaded and stretched: first and last moved": AtMost(1e-6),
        },
    )


def trained_table(adam: bool) -> tuple[list[int], Tensor]:
    """Return the updates of each row of the encoder's table, and how far training moved it; most texts are short."""
    network = tiny_network(positions=PositionConfig(kind="learned"), max_len=ROWS, n_layers=1)
    network.reset_parameters()
    table = network.source_inputs.positions.schemes[0]
    assert isinstance(table, Learned)
    before, updates = table.weight.detach().clone(), [0] * ROWS
    optimiser = Adam(network.parameters(), 3e-3)
    for _ in range(STEPS):
        length = int(2 + (LONGEST - 1) * torch.rand(()) ** 2.5)  # 2 ... 24, few of them long
        copying_loss(network, some_ids(8, length))
        assert table.weight.grad is not None
        for row in table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist():
            updates[row] += 1
        if adam:
            optimiser.step()
        else:
            descend(network, 0.3)
    return updates, (table.weight.detach() - before).norm(dim=1)


@torch.no_grad()
def descend(network: EncoderDecoder, rate: float) -> None:
    """Apply one update of plain gradient descent and clear the gradients."""
    for parameter in network.parameters():
        if parameter.grad is not None:
            parameter.sub_(rate * parameter.grad)
            parameter.grad = None


def copying_loss(network: EncoderDecoder, ids: Tensor) -> None:
    """Compute the gradients of the loss of copying the texts (B,L)."""
    target = torch.cat([torch.full((len(ids), 1), 2), ids[:, :-1]], dim=1)
    logits = network(ids, target).logits
    torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), ids.flatten()))


RECIPE = """
task: translation
data: {train: {source: train.en, target: train.pt}}
tokenizer: {kind: word, vocab_size: 60}
network: {preset: transformer-tiny, d_model: 8, d_ff: 16, n_heads: 2, n_layers: 1, max_len: 12, positions: learned}
training: {epochs: 2, batch_tokens: 60, warmup: 1, weight_decay: 0, precision: float32, checkpoint_every: 1000}
metrics: []
"""
WORDS = (4, 2, 5, 1, 3, 2, 7, 1, 1, 3, 2, 4, 1, 2, 3, 6, 1, 2, 2, 1)  # number of words of each text of that run


def report_of_a_run() -> tuple[dict[str, object], dict[str, object]]:
    """Return `position_report` of the sources of a real run, and the same values counted from its texts."""
    with TemporaryDirectory() as name, redirect_stderr(io.StringIO()):
        folder = Path(name)
        lines = [" ".join("abcdefg"[(n + k) % 7] for k in range(count)) + "\n" for n, count in enumerate(WORDS)]
        for side in ("en", "pt"):
            (folder / f"train.{side}").write_text("".join(lines), encoding="utf-8")
        (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        train(folder / "recipe.yaml", out=folder / "run", device="cpu")
        source, _ = position_report(folder / "run")
    assert source.moved is not None
    tokens = [2 * sum(count + 1 > position for count in WORDS) for position in range(12)]  # words and </s>, two epochs
    return (
        {
            "tokens": source.tokens,
            "every update reaches position 0": source.updates[0] == source.step,
            "reached": [count > 0 for count in source.updates],
            "moved": [moved > 0 for moved in source.moved],
            "fewer updates ahead": source.updates == sorted(source.updates, reverse=True),
        },
        {
            "tokens": tokens,
            "every update reaches position 0": True,
            "reached": [count > 0 for count in tokens],
            "moved": [count > 0 for count in tokens],
            "fewer updates ahead": True,
        },
    )


def late_rows() -> Finding:
    """B3: few texts are long; rows beyond the longest keep their first values. `atento runs positions RUN` shows it."""
    with torch.random.fork_rng(devices=[]):  # the same network and texts for both ways of training
        updates, moved = trained_table(adam=False)
    by_adam = trained_table(adam=True)[1]
    never = torch.tensor(updates) == 0
    third = LONGEST // 3
    early, late = (float(moved[at : at + third].sum() / moved.sum()) for at in (0, LONGEST - third))
    names = ("position", "updates", "moved by", "by Adam")
    table = [range(0, ROWS, 3), updates[::3], moved[::3].tolist(), by_adam[::3].tolist()]
    lines = [f"{name:<9}{line}" for name, line in zip(names, grid(table, 2).splitlines())]
    reported, counted = report_of_a_run()
    late_by_adam = float(by_adam[LONGEST - third : LONGEST].sum() / by_adam.sum())
    return compare(
        {
            "updates never fewer at an earlier place": updates == sorted(updates, reverse=True),
            "rows no text reached": int(never.sum()),
            "of them moved": int((moved[never] > 0).sum() + (by_adam[never] > 0).sum()),
            f"share of all movement, rows 0 to {third - 1}": early,
            f"share, rows {LONGEST - third} to {LONGEST - 1}": late,
            "a run's own report": reported,
        },
        {
            "updates never fewer at an earlier place": True,
            "rows no text reached": AtLeast(ROWS - LONGEST),
            "of them moved": 0,
            f"share of all movement, rows 0 to {third - 1}": AtLeast(0.45),
            f"share, rows {LONGEST - third} to {LONGEST - 1}": AtMost(0.25),
            "a run's own report": counted,
        },
        remark=f"{STEPS} updates on texts of 2 to {LONGEST} tokens, mostly short. Adam divides by the size of a row's "
        f"gradients, which reduces the difference: {late_by_adam:.0%} for those last rows",
        drawing="\n".join(lines),
    )
