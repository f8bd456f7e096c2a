"""Optimizers: Adafactor against transformers', Muon against its formula, groups, exact resuming."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.config.sections.training import TrainingConfig
from atento.networks import build_network
from atento.networks.interface import Network
from atento.training.optimizer import OPTIMIZERS, BatchedMuon, Optimizer, all_weights, hidden_matrices

NETWORK = NetworkConfig(architecture="decoder", vocab_size=19, d_model=8, d_ff=16, n_heads=2, n_layers=2, norm="pre")
CONFIG = TrainingConfig(learning_rate=1e-2, warmup=0, weight_decay=0.1)


def make(**changes: object) -> Network:
    torch.manual_seed(0)
    return build_network(replace(NETWORK, **changes))  # type: ignore[arg-type]


def optimizer_of(network: Network, name: str) -> Optimizer:
    return Optimizer(network, replace(CONFIG, optimizer=name), all_weights(network))  # type: ignore[arg-type]


def set_gradients(network: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def take_steps(network: Network, optimizer: Optimizer, first: int, last: int) -> None:
    for step in range(first, last + 1):
        set_gradients(network, step)
        optimizer.step(1e-2 / step)
        optimizer.zero_grad()


def test_adafactor_equals_that_of_transformers() -> None:
    """Five steps at a learning rate below 1/√step, at which PyTorch caps it; weight decay differs."""
    transformers = pytest.importorskip("transformers")
    ours, theirs = make(), make()
    optimizer = Optimizer(ours, replace(CONFIG, optimizer="adafactor", weight_decay=0.0), all_weights(ours))
    absolute = {"scale_parameter": True, "relative_step": False, "warmup_init": False}
    reference = transformers.Adafactor(theirs.parameters(), lr=1e-2, **absolute)
    for step in range(1, 6):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step(1e-2 / step)
        for group in reference.param_groups:
            group["lr"] = 1e-2 / step
        reference.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=2e-5, msg=name)


def test_muon_moves_hidden_matrices_along_an_orthogonal_matrix_and_the_others_by_adamw() -> None:
    """The first step is 0.2 √max(A,B) times a matrix with singular values near 1 in the directions of the gradient."""
    network, plain = make(), make()
    optimizer, adamw = optimizer_of(network, "muon"), optimizer_of(plain, "adamw")
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    set_gradients(network, 1)
    set_gradients(plain, 1)
    gradients = {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}
    optimizer.step(1e-2)
    adamw.step(1e-2)
    hidden = hidden_matrices(network)
    layers = {name for name in before if "blocks." in name and before[name].dim() == 2}
    assert set(hidden) == layers and len(hidden) == 2 * 4
    with_tables = make(positions=PositionConfig("learned", layers=(0, 1)))
    assert set(hidden_matrices(with_tables)) == layers
    assert with_tables.get_parameter("stack.positions.added.0.schemes.0.weight").dim() == 2
    by_adamw = dict(plain.named_parameters())
    for name, value in network.named_parameters():
        if name not in layers:
            assert torch.equal(value, by_adamw[name]), name
            continue
        direction: Tensor = (before[name] * (1 - 1e-2 * 0.1) - value.detach()) / (1e-2 * 0.2 * max(value.shape) ** 0.5)
        values = torch.linalg.svdvals(direction)
        assert float(values.min()) > 0.6 and float(values.max()) < 1.25, values  # five Newton-Schulz iterations
        u, _, v = torch.linalg.svd(gradients[name], full_matrices=False)
        assert float((direction * (u @ v)).sum() / (direction.norm() * (u @ v).norm())) > 0.95


def test_muon_of_like_matrices_together_is_pytorchs_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide, tall and square matrices, in batches of at most two and in whole ones; each step within 2 % of its size."""
    shapes = [(8, 24), (24, 8), (8, 8), (8, 24), (24, 8), (8, 8), (8, 24)]
    for elements in (1 << 20, 2 * 8 * 24):
        monkeypatch.setattr("atento.training.optimizer._BATCH_ELEMENTS", elements)
        generator = torch.Generator().manual_seed(1)
        values = [torch.randn(shape, generator=generator) for shape in shapes]
        ours, theirs = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
        options = {"lr": 1e-2, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
        optimizers = [BatchedMuon(ours, **options), torch.optim.Muon(theirs, **options)]  # type: ignore[arg-type]
        ours[2].grad = theirs[2].grad = None  # not trained
        for _ in range(3):
            for index, (mine, other) in enumerate(zip(ours, theirs)):
                if index != 2:
                    mine.grad = other.grad = torch.randn(mine.shape, generator=generator)
            for optimizer in optimizers:
                optimizer.step()
        for mine, other in zip(ours, theirs):
            torch.testing.assert_close(mine, other, rtol=0, atol=3 * 0.02 * 1e-2 * 0.2)


def test_an_optimizer_goes_on_bit_for_bit_from_its_tensors_of_which_adafactor_keeps_fewer() -> None:
    for name in OPTIMIZERS:
        straight, resumed = make(), make()
        optimizer = optimizer_of(straight, name)
        take_steps(straight, optimizer, 1, 3)
        saved = {key: value.clone() for key, value in optimizer.tensors().items()}
        resumed.load_state_dict(straight.state_dict())
        take_steps(straight, optimizer, 4, 6)
        again = optimizer_of(resumed, name)
        again.load(saved)
        assert again.tensors().keys() == saved.keys()
        take_steps(resumed, again, 4, 6)
        for key, value in straight.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[key]), key
    sizes = {}
    for name in ("adamw", "adafactor"):
        network = make()
        optimizer = optimizer_of(network, name)
        take_steps(network, optimizer, 1, 1)
        sizes[name] = sum(value.numel() for value in optimizer.tensors().values())
    parameters = sum(value.numel() for value in make().parameters())
    assert sizes["adamw"] > 2 * parameters and sizes["adafactor"] < 0.6 * parameters
    network = build_network(NetworkConfig(architecture="cbow", vocab_size=19, d_model=8, cbow=CBOWConfig()))
    with pytest.raises(RecipeError, match="muon: a network of architecture 'cbow' has no matrices in layers"):
        optimizer_of(network, "muon")
