"""Observing attention: exact weights of chosen layers, heads and rows while fast kernels run, else nothing."""

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atento.attention import attention_weights, observe
from atento.attention.masks import causal, padding, window
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.decoding import Beam, Greedy, generate
from atento.inference.fast import FastStepFunction
from atento.networks import EncoderDecoder, build_network
from failing import fails
from tensors import Largest

CONFIG = NetworkConfig(vocab_size=11, d_model=8, d_ff=16, n_heads=4, n_layers=2, n_decoder_layers=3, dropout=0.0)
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0]])
REAL = SOURCE > 0
TARGET = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 4]])


@pytest.fixture(scope="module")
def network() -> EncoderDecoder:
    torch.manual_seed(0)
    return build_network(CONFIG).eval()


def run(network: EncoderDecoder) -> Tensor:
    return network(SOURCE, TARGET, source_token_mask=REAL).logits.detach()


def test_a11_three_uses_in_one_model_per_layer_and_head(network: EncoderDecoder) -> None:
    """A11: encoder self, decoder masked self and cross-attention, each layer, each head; rows sum to 1."""
    with observe(network) as seen:
        run(network)
    shapes = {"encoder": (2, (2, 4, 5, 5)), "decoder": (3, (2, 4, 4, 4)), "cross": (3, (2, 4, 4, 5))}
    for kind, (layers, shape) in shapes.items():
        for layer in range(layers):
            weights = seen[kind, layer]
            assert weights.shape == shape and not weights.requires_grad
            torch.testing.assert_close(weights.sum(-1), torch.ones(shape[:3]), rtol=0, atol=1e-6)
        assert torch.equal(seen[kind, -1], seen[kind, layers - 1])
    assert bool((seen["decoder", 1].triu(1) == 0).all())  # masked
    for kind in ("encoder", "cross"):
        assert bool((seen[kind, 1][1, :, :, 3:] == 0).all())  # source padding, exactly 0 (A9)


def test_looking_changes_nothing_and_the_weights_are_those_of_the_equation(network: EncoderDecoder) -> None:
    """Neither a pass nor what a search finds."""

    def both() -> tuple[Tensor, Any]:
        return run(network), generate(network, SOURCE, Beam(3, n_best=2), max_new_tokens=6, token_mask=REAL)

    logits, found = both()
    with observe(network):
        seen_logits, seen_found = both()
    assert torch.equal(logits, seen_logits) and found == seen_found
    # the first encoder layer's, recomputed here from its matrices
    with observe(network) as seen:
        network.encode(SOURCE, source_token_mask=REAL)
    attention = network.encoder.blocks[0].self_attention
    x = network.source_inputs.positions(network.embedding(SOURCE))
    parts = attention.head_weights()
    q, k = (torch.einsum("bld,hdk->bhlk", x, parts[name]) for name in ("query", "key"))
    expected = attention_weights(q, k, mask=padding(REAL))  # biases are zero in a fresh network
    torch.testing.assert_close(seen["encoder", 0], expected.detach(), rtol=0, atol=1e-6)


def test_chosen_layers_heads_and_rows_are_slices_of_all_and_nothing_is_kept_outside(network: EncoderDecoder) -> None:
    with observe(network) as everything:
        run(network)
    with observe(network, layers=[1], heads=[3, 0], rows=[2, 0]) as some:
        run(network)
    for kind in ("encoder", "decoder", "cross"):
        torch.testing.assert_close(some[kind, 1], everything[kind, 1][:, [3, 0]][:, :, [2, 0]], rtol=0, atol=1e-6)
        fails(UsageError, f"no {kind} attention of layer 0 was observed", some.__getitem__, (kind, 0))
    with observe(network, layers=[-1]) as seen:
        run(network)
    assert seen["encoder", -1].shape == (2, 4, 5, 5) and seen["decoder", -1].shape == (2, 4, 4, 4)
    assert torch.equal(seen["cross", 2], seen["cross", -1])
    deeper = build_network(replace(CONFIG, n_layers=3, n_decoder_layers=2)).eval()
    with observe(deeper, layers=[-1]) as seen:
        deeper(SOURCE, TARGET)
    assert set(seen.weights) == {("encoder", 2), ("decoder", 1), ("cross", 1)}
    # nor after an error inside
    with observe(network) as seen:
        pass
    with pytest.raises(RuntimeError, match="inside"), observe(network) as failed:
        raise RuntimeError("inside")
    run(network)
    assert seen.weights == failed.weights == {}


def test_another_network_is_not_seen_and_observations_nest(network: EncoderDecoder) -> None:
    other = build_network(CONFIG).eval()
    with observe(network) as seen:
        run(other)
        run(network)
    assert seen["encoder", 0].shape == (2, 4, 5, 5)
    with observe(network) as alone:
        run(network)
    assert torch.equal(seen["cross", 1], alone["cross", 1])
    with observe(network) as outer:
        with observe(network, layers=[0]) as inner:
            run(network)
        assert outer.weights == {}
        run(network)
    assert inner["encoder", 0].shape == outer["encoder", 0].shape == (2, 4, 5, 5)


def test_what_was_not_observed_is_said(network: EncoderDecoder) -> None:
    with observe(network) as seen:
        run(network)
    for place, message in (
        (("heads", 0), "no 'heads' attention was observed, only: cross, decoder, encoder"),
        (("encoder", 2), "no encoder attention of layer 2 was observed; the network has layers 0 to 1"),
    ):
        fails(UsageError, message, seen.__getitem__, place)
    for given, message in (
        ({"layers": -1}, "`layers` takes a list of numbers: got -1; write layers=[-1]"),
        ({"heads": 0}, "`heads` takes a list of numbers: got 0; write heads=[0]"),
        ({"layers": [9]}, "there is no layer 9 to observe; the network has layers 0 to 2"),
        ({"layers": [0, -4]}, "there is no layer -4 to observe; the network has layers 0 to 2"),
        ({"heads": [9]}, "there is no head 9 to observe: there are"),
        ({"rows": [99]}, "there is no row 99 to observe: there are"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)), observe(network, **given):
            run(network)
    with observe(torch.nn.Linear(1, 1)) as nothing:
        pass
    fails(UsageError, "no 'encoder' attention was observed, only: nothing", nothing.__getitem__, ("encoder", 0))


@pytest.mark.parametrize("width", [1, 3])
def test_h12_under_a_search_the_best_output_of_each_sentence_is_seen(network: EncoderDecoder, width: int) -> None:
    """Beams reorder and sentences of a batch end at different lengths; what is seen is each one's own forced pass."""
    with observe(network) as seen:
        found = generate(network, SOURCE, Beam(width), max_new_tokens=[7, 3], token_mask=REAL)
    for row, (best, *_) in enumerate(found):
        read = best.ids if best.finished else best.ids[:-1]
        with observe(network) as alone:
            network(SOURCE[row : row + 1], torch.tensor([[CONFIG.start_id, *read]]), source_token_mask=REAL[row][None])
        steps = len(read) + 1
        for kind, layer in (("encoder", 1), ("decoder", 2), ("cross", 0), ("cross", -1)):
            own = seen[kind, layer][row : row + 1]
            wanted = alone[kind, layer]
            own = own if kind == "encoder" else own[:, :, :steps]
            torch.testing.assert_close(own[..., : wanted.shape[-1]], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_w22_of_a_language_model_the_rows_of_the_prompt_come_first(fast: bool) -> None:
    """Row P - 1 + t is what was read to write token t; the pass that shows it would write the same tokens."""
    torch.manual_seed(3)
    model: Any = build_network(replace(CONFIG, architecture="decoder", n_decoder_layers=None)).double().eval()
    prompts = [[5, 6, 7], [9], []]
    ids = torch.tensor([[*one, *[0] * (3 - len(one))] for one in prompts])
    steps = FastStepFunction(model) if fast else model
    with observe(model) as seen:
        found = generate(steps, ids, Greedy(), max_new_tokens=5, token_mask=ids > 0)
    for row, (prompt, (best,)) in enumerate(zip(prompts, found)):
        begun = prompt or [CONFIG.start_id]
        with observe(model) as alone:
            logits = model(torch.tensor([[*begun, *best.ids]])).logits[0]
        for t, token in enumerate([*best.ids, *[CONFIG.eos_id] * best.finished]):
            at = len(begun) - 1 + t
            assert int(logits[at].argmax()) == token
            own, wanted = seen["decoder", 1][row, :, at], alone["decoder", 1][0, :, at]
            torch.testing.assert_close(own[:, : at + 1], wanted[:, : at + 1], rtol=0, atol=1e-6)
            torch.testing.assert_close(own[:, : at + 1].sum(1), torch.ones(4), rtol=0, atol=1e-6)


def test_w22_rows_of_a_prefix_come_first_too_and_a_loop_of_ones_own_is_joined(network: EncoderDecoder) -> None:
    prefix = torch.tensor([[5, 6], [7, 8]])
    with observe(network) as seen:
        found = generate(network, SOURCE, Greedy(), max_new_tokens=4, eos_id=(), token_mask=REAL, prefix_ids=prefix)
    read = torch.tensor([[CONFIG.start_id, *before.tolist(), *row[0].ids] for before, row in zip(prefix, found)])
    with observe(network) as whole:
        logits = network(SOURCE, read, source_token_mask=REAL).logits
    assert logits[:, 2:-1].argmax(-1).tolist() == [row[0].ids for row in found]  # rows 2 + t wrote them
    torch.testing.assert_close(seen["cross", -1], whole["cross", -1][:, :, :-1], rtol=0, atol=1e-5)
    # H12: `network(..., state=...)` under observation gives the rows of one pass
    with observe(network) as whole:
        run(network)
    with observe(network) as stepped:
        state = network.begin()
        for t in range(TARGET.shape[1]):
            network(SOURCE, TARGET[:, t : t + 1], source_token_mask=REAL, state=state)
    for kind in ("decoder", "cross"):
        torch.testing.assert_close(stepped[kind, -1], whole[kind, -1], rtol=0, atol=1e-5)


def test_one_row_of_a_long_text_makes_no_square() -> None:
    """8,192 tokens, one row: nothing as large as a square of scores is made by looking (512 MiB a head it would be)."""
    length = 8192
    g = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 2, length, 8, generator=g) for _ in range(2))
    for mask in (causal(), window(64, 64), padding(torch.tensor([8000]))):
        with Largest() as made:
            seen = attention_weights(q, k, mask=mask, rows=torch.tensor([8000]))
        assert seen.shape == (1, 2, 1, length) and made.elements <= 2 * length * 8
        torch.testing.assert_close(seen.sum(-1), torch.ones(1, 2, 1))


def test_weights_are_seen_while_training(network: EncoderDecoder) -> None:
    """In training mode with gradients, and gradients are as if nobody looked."""

    def gradients(look: bool) -> list[Tensor]:
        network.zero_grad()
        with observe(network, layers=[0]) if look else nullcontext() as seen:
            logits = network(SOURCE, TARGET, source_token_mask=REAL).logits
            logits.square().sum().backward()
        if look:
            assert seen["encoder", 0].shape == (2, 4, 5, 5) and not seen["encoder", 0].requires_grad
        return [p.grad.clone() for p in network.parameters() if p.grad is not None]

    network.train()
    try:
        for one, other in zip(gradients(False), gradients(True), strict=True):
            assert torch.equal(one, other)
    finally:
        network.zero_grad()
        network.eval()
