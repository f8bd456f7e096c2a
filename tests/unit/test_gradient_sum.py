"""Gradients to the bit: the tree they are summed in, whoever computes which part, and activation checkpointing."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from atento.attention import observe
from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import AttentionConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.networks.vocabulary import add_wide
from atento.training.replica.gradient_sum import DeterministicAccumulator, Tree, buckets, copy_from_flat, flat
from atento.training.replica.local import GradientAccumulator
from atento.training.replica.sums import AllReduceSum
from atento.training.step import Updater


def parts_of(count: int) -> list[list[Tensor | None]]:
    """Gradients of very different size, some missing; the last parameter has none in any part."""
    generator = torch.Generator().manual_seed(count)
    gradients: list[list[Tensor | None]] = []
    for part in range(count):
        size = 10.0 ** ((7 * part) % 9 - 4)
        one, two = (torch.randn(shape, generator=generator) * size for shape in ((40,), (3, 5) if part % 3 else (0,)))
        gradients.append([one, two if part % 3 else None, None])
    return gradients


def by_definition(gradients: list[list[Tensor | None]], level: int = 0, remainder: int = 0) -> list[Tensor | None]:
    """The node of a level and a remainder, as the docstring of the tree says it."""
    below = [number for number in range(len(gradients)) if number % 2**level == remainder]
    if len(below) == 1:
        return gradients[below[0]]
    low = by_definition(gradients, level + 1, remainder)
    if not any(number % 2 ** (level + 1) == remainder + 2**level for number in below):
        return low
    high = by_definition(gradients, level + 1, remainder + 2**level)
    return [b if a is None else a if b is None else a + b for a, b in zip(low, high)]


def same(one: list[Tensor | None], two: list[Tensor | None]) -> bool:
    """Whether two lists of gradients have the same bits."""
    both = zip(one, two, strict=True)
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in both)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_the_tree_has_the_bits_of_its_definition_for_any_division_of_the_parts(count: int) -> None:
    gradients = parts_of(count)
    expected = by_definition(gradients)
    for levels in range(4):  # 1, 2, 4 and 8 shares of the parts, each summed by itself
        order = list(range(count))
        random.Random(levels).shuffle(order)
        share = Tree(count, highest=levels)
        for number in order:
            share.add(number, gradients[number])
        assert sorted(share.nodes) == list(range(min(count, 2**levels)))
        upper = Tree(count, lowest=levels)
        for number, node in share.nodes.items():
            upper.add(number, node)
        assert same(list(upper.nodes[0]), expected)
    if count > 3:  # the order of a running sum has other bits, so the comparison above says something
        running = [torch.zeros(40) for _ in range(2)]
        for number in range(count):
            value = gradients[number][0]
            assert value is not None and expected[0] is not None
            running[0] = running[0] + value
        assert not torch.equal(running[0], expected[0])


def test_sums_set_the_gradients_of_parameters() -> None:
    gradients = parts_of(5)
    in_order = [reduce(add, [part[n] for part in gradients if part[n] is not None]) for n in range(2)]
    cases: list[
        tuple[Callable[[list[Tensor]], GradientAccumulator | DeterministicAccumulator], list[Tensor | None]]
    ] = [
        (GradientAccumulator, in_order),
        (lambda parameters: DeterministicAccumulator(parameters, 5), by_definition(gradients)),
    ]
    for make, expected in cases:
        parameters = [torch.zeros(40), torch.zeros(3, 5), torch.zeros(2)]
        made = make(parameters)
        for number, values in enumerate(gradients):
            made.add(number, values)
        made.finish()
        assert parameters[2].grad is None
        for parameter, value in zip(parameters[:2], expected):
            assert parameter.grad is not None and value is not None and torch.equal(parameter.grad, value)


def test_shared_gradients_are_copied_and_buckets_hold_all_tensors_in_order() -> None:
    shared = torch.ones(3)
    parameters = [torch.zeros(3), torch.zeros(3)]
    made = DeterministicAccumulator(parameters, 1)
    made.add(0, [shared, shared])
    made.finish()
    assert parameters[0].grad is not None and parameters[1].grad is not None
    parameters[0].grad.div_(2)
    assert parameters[1].grad.tolist() == [1, 1, 1]
    tensors = [torch.arange(4.0), torch.arange(6.0).view(2, 3), torch.arange(3.0).double(), torch.arange(100.0)]
    made = buckets(tensors, 30)
    assert [len(bucket) for bucket in made] == [2, 1, 1] and [t for bucket in made for t in bucket] == tensors
    vector = flat(made[0]) * 2
    copy_from_flat(made[0], vector)
    assert tensors[0].tolist() == [0, 2, 4, 6] and tensors[1].tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("size", [(3,), (700, 400)])
def test_a_narrower_tensor_is_added_piece_by_piece_with_the_bits_of_one_sum(size: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    total, narrow = torch.randn(size, generator=generator), torch.randn(size, generator=generator).bfloat16()
    expected = total + narrow
    assert add_wide(total, narrow) is total and torch.equal(total, expected)
    transposed = torch.randn(size, generator=generator).bfloat16().t().contiguous().t()
    assert torch.equal(add_wide(total, transposed), expected + transposed)


@pytest.mark.parametrize("of_processes", [False, True])
def test_a_transposed_gradient_is_none_for_the_optimizer(monkeypatch: pytest.MonkeyPatch, of_processes: bool) -> None:
    """PyTorch's fused AdamW reads the memory of a gradient as if it lay like the weight."""
    monkeypatch.setattr("atento.training.replica.sums.dist.all_reduce", lambda vector: None)
    one = SimpleNamespace(update_channel=SimpleNamespace(highest=lambda flags: None), answered=nullcontext)
    weight, gradient = torch.zeros(4, 3), torch.randn(3, 4).t()
    total: Any = AllReduceSum(cast(Any, one), [weight]) if of_processes else GradientAccumulator([weight])
    total.add(0, [gradient])
    total.finish()
    assert weight.grad is not None and weight.grad.is_contiguous() and torch.equal(weight.grad, gradient)


SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3, "dropout": 0.2}
NETWORK = NetworkConfig(**SIZES, attention=AttentionConfig(dropout=0.2), positions=PositionConfig("t5"))
CONFIG = TrainingConfig(learning_rate=1e-2, warmup=0, seed=5)


def weights_after(steps: int, precision: str, recompute: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    network = build_network(NETWORK)
    updater = Updater(network, replace(CONFIG, activation_checkpointing=recompute), precision)
    g = np.random.default_rng(0)
    rows = [Ragged([g.integers(4, 31, g.integers(1, 9)).tolist() for _ in range(30)]) for _ in range(2)]
    batches = parallel(rows[0], rows[1], budget=60, seed=1, pad_id=0, start_id=2, eos_id=3)
    for step in range(1, steps + 1):
        updater.update(batches.parts(step - 1, 2), step, 1e-2)
    return network.state_dict()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_is_bit_equal_with_dropout_and_learned_positions(precision: str) -> None:
    plain, recomputed = weights_after(3, precision, False), weights_after(3, precision, True)
    assert all(torch.equal(value, recomputed[name]) for name, value in plain.items())


def kept_bytes(recompute: bool) -> int:
    """Bytes that the forward pass of a decoder keeps for its backward pass."""
    network = build_network(changed(NETWORK, {"architecture": "decoder"}))
    network.train()
    for module in network.modules():
        if hasattr(module, "recompute"):
            module.recompute = recompute
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = network(torch.randint(4, 31, (8, 64)), project=False).hidden
    assert hidden.requires_grad
    return sum(sizes.values())


def test_less_is_kept_and_observed_once_and_a_network_without_a_stack_is_refused() -> None:
    assert kept_bytes(True) < 0.3 * kept_bytes(False)
    network = build_network(changed(NETWORK, {"architecture": "decoder"}))
    network.stack.recompute = True  # type: ignore[union-attr]
    with observe(network) as seen:
        network(torch.randint(4, 31, (1, 5)), project=False).hidden.sum().backward()
    assert seen["decoder", 0].shape == (1, 2, 5, 5)
    network = build_network(NetworkConfig(architecture="cbow", vocab_size=19, d_model=8, cbow=CBOWConfig()))
    with pytest.raises(RecipeError, match="activation_checkpointing` needs a Transformer: got architecture 'cbow'"):
        Updater(network, replace(CONFIG, activation_checkpointing=True), "float32")
