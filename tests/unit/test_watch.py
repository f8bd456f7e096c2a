"""What a run logs on request: the gradient noise scale of known noise, the size of updates by layer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.training.ema import GradientNoiseScale
from atento.training.loop import TargetCounts, update_ratios
from atento.training.losses import Call, losses
from atento.training.step import Updater


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
