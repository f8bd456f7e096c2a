"""What a person sees of long work: lines on standard error and in the log, shares of texts, what a run watches."""

import io
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.tasks.length_batching import batches_reported, length_batches, run_in_batches
from atento.training import progress as training_progress
from atento.training.ema import GradientNoiseScale
from atento.training.loop import TargetCounts, update_ratios
from atento.training.losses import Call, losses
from atento.training.progress import Reporter, describe
from atento.training.step import Updater
from atento_cli import command_progress
from atento_cli.command_progress import Progress
from failing import fails

RATES = {"learning_rate": 0.00123, "tokens_per_second": 12345.6}
TRAIN = {"event": "train", "step": 50, "loss": 3.14159, "nll": 2.71828, **RATES}
VALID = {"event": "valid", "step": 500, "loss": 2.5, "nll": 2.25, "bleu": 12.345, "chrf": 40.0, "seconds": 3.0}


def test_events_are_lines_on_standard_error_and_in_the_log_and_what_is_left_goes_by_this_process(capsys) -> None:
    assert describe(TRAIN) == "step 50: loss 3.142, nll 2.718, learning rate 1.23e-03, 12,346 tokens/s"
    assert describe(VALID) == "step 500: validation nll 2.250, bleu 12.35, chrf 40.00"
    log = io.StringIO()
    reporter = Reporter(100, log=log, bar=False)
    for text in ("plain", "[bold]not markup[/bold] :cat: {x} 100 %", "ação → 😀"):
        reporter.line(text)
    reporter.step(50)
    reporter.close()
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "plain\n[bold]not markup[/bold] :cat: {x} 100 %\nação → 😀\n"
    for line, text in zip(log.getvalue().splitlines(), printed.err.splitlines(), strict=True):
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d {re.escape(text)}", line)
    for bar in (False, True):
        reporter = Reporter(10, bar=bar)
        reporter.line("word " * 100)
        reporter.close()
        assert "word " * 99 in capsys.readouterr().err
    # Begun at step 0 `seconds` ago, now at 50
    for seconds, total, said in (
        (10, 100, "10 s left"),
        (100, 100, "1 min 40 s left"),
        (100, 10_000, "5 h 31 min left"),
        (1, 50, "0 s left"),
    ):
        reporter = Reporter(total, bar=False)
        reporter.started -= seconds
        reporter.event(TRAIN)
        reporter.event(VALID)
        assert capsys.readouterr().err == f"{describe(TRAIN)}, {said}\n{describe(VALID)}\n"
    reporter = Reporter(100, done=40, bar=False)
    reporter.started -= 20
    reporter.event(TRAIN)  # ten steps in 20 s, fifty to go
    assert "1 min 40 s left" in capsys.readouterr().err
    reporter = Reporter(100, done=50, bar=False)
    reporter.event(TRAIN)  # no step yet: whatever it says, it says it
    assert " left" in capsys.readouterr().err


def test_a_full_disk_ends_the_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w", encoding="utf-8") as log:
        reporter = Reporter(10, log=log, bar=False)
        reporter.line("one")
        reporter.line("two")
        assert reporter.log is None
        printed = capsys.readouterr().err
        assert printed.count("warning: the log cannot be written: ") == 1 and "one\n" in printed and "two\n" in printed
        fails(OSError, "", log.flush)  # what it could not write is still in its buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), log.fileno())


def test_without_anybody_listening_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", encoding="utf-8") as broken:
        for stream in (broken, None):
            log = io.StringIO()
            monkeypatch.setattr(sys, "stderr", stream)
            reporter = Reporter(10, log=log, bar=False)
            reporter.line("one")
            reporter.step(1)
            reporter.event(TRAIN)
            reporter.event(VALID)
            reporter.close()
            assert log.getvalue().count("one\n") == 1 and "validation nll" in log.getvalue()
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_first_line_comes_early_whatever_log_every_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A recipe of 2,000 steps of 3 s each: told within 20 s, with the time left and a warning from two hours on."""
    for seconds, warned in ((3.0, False), (5.0, True)):
        clock = Clock()
        monkeypatch.setattr(training_progress.time, "monotonic", clock.monotonic)
        reporter = Reporter(2000, bar=False)
        for step in range(1, 11):
            clock.now += seconds + 4.0 * (step == 1)  # the first takes longer, and does not count
            reporter.step(step)
            said = capsys.readouterr().err
            if said:
                break
        assert clock.now <= 20 and said.startswith(f"step {step} of 2000: {seconds:.2g} s a step, about ")
        left = training_progress.duration(seconds * (2000 - step))
        assert f"about {left} left\n" in said
        assert ("warning: about" in said) == warned and ("fewer `training.steps`" in said) == warned
        clock.now += 100
        reporter.step(step + 1)
        assert capsys.readouterr().err == ""  # once


LENGTHS = [3, 0, 5, 2, 9, 1]
CPU = torch.device("cpu")


def passes(lengths: list[int], budget: int, compute: Callable[[list[int]], list[int]] = list) -> int:
    """Compute all batches; how many rows there were."""
    return len(list(run_in_batches(lengths, budget, compute, CPU)))


def broken(rows: list[int]) -> list[int]:
    raise ValueError("broken")


def test_batches_report_their_real_tokens_and_no_other_loop_does() -> None:
    seen: list[tuple[int, int]] = []
    with batches_reported(lambda done, total: seen.append((done, total))):
        assert passes([4, 4], 4, lambda rows: [passes([7, 7, 7], 7) for _ in rows]) == 2
        thread = threading.Thread(target=passes, args=([7, 7], 7))
        thread.start()
        thread.join()
    passes([7, 7], 7)
    assert seen == [(4, 8), (8, 8)]
    seen.clear()
    with batches_reported(lambda done, total: seen.append((done, total))):
        fails(ValueError, "broken", passes, [4, 4], 4, broken)
        passes([5], 4)
    assert seen == [(5, 5)]
    seen.clear()
    with batches_reported(lambda done, total: seen.append((done, total))):
        rows = [row for row, _ in run_in_batches(LENGTHS, 10, list, CPU, extra=2)]
    assert length_batches(LENGTHS, 10, extra=2) == [[4], [2], [0, 3], [5]] and rows == [4, 2, 0, 3, 5]
    assert seen == [(9, 20), (14, 20), (19, 20), (20, 20)]


def test_a_line_every_half_minute_with_the_time_left_or_a_count_and_none_of_short_work(monkeypatch, capsys) -> None:
    clock = Clock()
    monkeypatch.setattr(command_progress, "time", clock)
    with Progress("translate") as progress:
        for seconds, done in ((10, 1), (29, 3), (31, 4), (40, 5), (59, 6), (62, 8), (100, 10)):
            clock.now = seconds
            progress.share(done * 100, 1000)
    printed = capsys.readouterr()
    assert printed.out == ""
    shares = ("40% done, 46 s", "80% done, 15 s", "100% done, 0 s")
    assert printed.err.splitlines() == [f"translate: {share} left" for share in shares]
    with Progress("embed") as progress:
        clock.now += 29.9
        progress.share(0, 0)
        progress.count("2 lines")
    assert capsys.readouterr() == ("", "")
    endless = Progress("translate", bar=False)
    clock.now += 31
    endless.count("1,024 lines")
    assert capsys.readouterr() == ("", "translate: 1,024 lines done\n")


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_bar_is_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    assert Progress("embed")._bar is None  # no terminal here
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("embed") as progress:
        assert (progress._bar is not None) == (term == "xterm")
    assert Progress("embed", bar=False)._bar is None


def test_the_scale_of_gradients_with_known_noise_is_found_and_update_ratios_are_by_layer() -> None:
    """A gradient of norm 2 in 100 dimensions, noise of variance 0.5 in each for one target: S / |G|² = 50 / 4."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.full((100,), 0.2)
    noise = GradientNoiseScale()
    for _ in range(400):
        sizes = [16, 8, 24]
        parts = [direction + torch.randn(100, generator=generator) * (0.5 / size) ** 0.5 for size in sizes]
        noise.begin()
        for size, gradient in zip(sizes, parts):
            noise.part([gradient[:60] * size, None, gradient[60:] * size], 1 / size, size)
        noise.update(float(sum(gradient * size for gradient, size in zip(parts, sizes)).norm()) / sum(sizes))
    assert noise.scale() == pytest.approx(12.5, rel=0.1) and noise.scale() is None and noise.sums == {}
    sizes = {"stack.blocks.0.a.weight": 4, "stack.blocks.0.b": 5, "embedding.weight": 4}
    before = {name: torch.ones(size) for name, size in sizes.items()}
    after = before | {"stack.blocks.0.a.weight": torch.ones(4) * 1.1, "embedding.weight": torch.ones(4) * 3}
    ratios = update_ratios(before, after)
    assert ratios == pytest.approx({"stack.blocks.0": (4 * 0.01 / 9) ** 0.5, "embedding": 2.0}, rel=1e-5)
    counts, told = TargetCounts(updates_per_epoch=3), list[list[str]]()
    for update in range(1, 6):  # the objective of one head comes late, that of another has targets now and then
        counts.add({"vocabulary": 0, "next-sentence": update % 2} | ({"late": 0} if update > 3 else {}))
        told.append(counts.warnings(is_whole=False))
    first = "warning: the head 'vocabulary' has had no target in 3 updates and learns nothing"
    assert [len(lines) for lines in told] == [0, 0, 1, 0, 0] and told[2][0].startswith(first)
    assert [line.split("'")[1] for line in counts.warnings(is_whole=True)] == ["late"]


def test_the_squares_of_a_real_update_are_those_of_plain_backward_passes() -> None:
    torch.manual_seed(0)
    network = build_network(NetworkConfig(vocab_size=31, d_model=8, d_ff=16, n_heads=2, n_layers=1, dropout=0.0))
    updater = Updater(network, replace(TrainingConfig(), log_gradient_noise=True, label_smoothing=0.0), "float32")
    g = np.random.default_rng(0)
    rows = [Ragged([g.integers(4, 31, g.integers(1, 9)).tolist() for _ in range(30)]) for _ in range(2)]
    batches = parallel(rows[0], rows[1], budget=60, seed=1, pad_id=0, start_id=2, eos_id=3)
    squares, targets = [], []
    for part in batches.parts(0, 3):
        network.zero_grad()
        loss, _ = losses(network, part.batch, Call())["vocabulary"]
        (loss / part.batch.targets).backward()
        squares.append(sum(float(p.grad.square().sum()) for p in network.parameters() if p.grad is not None))
        targets.append(part.batch.targets)
    assert len(targets) == 3 and updater.noise is not None
    _, norm = updater.update(batches.parts(0, 3), 1, 1e-3)
    assert updater.noise.sums["small"] == pytest.approx(sum(squares) / 3, rel=1e-4)
    assert updater.noise.sums["small_inverse"] == pytest.approx(sum(1 / count for count in targets) / 3)
    assert updater.noise.sums["large"] == pytest.approx(norm**2)
