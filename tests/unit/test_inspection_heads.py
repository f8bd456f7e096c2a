"""Attention taken apart: scores in parts (B13), heads (A15) and schemes (B7) away, the steps of a head, masks drawn."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import atento
from atento.attention import multihead, observe
from atento.attention.masks import causal, window
from atento.attention.multihead import MultiHeadAttention
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, MaskConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig as P
from atento.inspection import ablation
from atento.inspection.ablation import ablate, attentions, without_scheme
from atento.inspection.decompose import decompose, parts_by_word
from atento.inspection.figures.mask import mask_text
from atento.inspection.head_steps import head_steps
from atento.inspection.network_scores import score_parts
from atento.model import Model
from atento.networks import build_network
from failing import fails

SOURCE, TARGET = torch.tensor([[5, 6, 7, 8, 9], [4, 9, 5, 7, 6]]), torch.tensor([[2, 5, 6], [2, 8, 4]])
SINUSOIDAL = P("sinusoidal")
SCHEMES = {
    **{kind: P(kind) for kind in ("sinusoidal", "learned", "rotary", "t5", "alibi", "matrix", "none")},  # type: ignore[arg-type]
    "shaw": P("shaw", max_distance=2),
    "disentangled": P("disentangled", n_buckets=4, max_distance=6, norm=True),
    "disentangled and rotary": (P("disentangled", n_buckets=0, max_distance=2, shared=False), P("rotary")),
    "sum": (P("sinusoidal"), P("rotary"), P("shaw"), P("t5", gate=True, heads=(1,))),
    "added in the layer too": (P("sinusoidal"), P("learned", layers=(0,))),
}


def make(positions: Any = SINUSOIDAL, architecture: Any = "encoder-decoder", **changes: Any) -> Any:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "d_ff": 20, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    config = NetworkConfig(architecture, **sizes | {"positions": positions, "max_len": 16} | changes)
    network = build_network(config).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.2, 0.6)  # biases and norms too
    return network


def run(network: Any) -> Any:
    return network(SOURCE, TARGET) if network.config.architecture == "encoder-decoder" else network(SOURCE)


def true_scores(network: Any, kind: str, layer: int) -> Tensor:
    """What the kernel is given, recorded at its door: the scores by the plain equation."""
    found: list[Tensor] = []
    stack = network.encoder if kind == "encoder" else network.decoder
    wanted = stack.blocks[layer].self_attention
    original = multihead.attend

    def spy(q: Tensor, k: Tensor, v: Tensor, **named: object) -> Tensor:
        scale = named.get("scale") or q.shape[-1] ** -0.5
        shared = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = q @ shared.transpose(-2, -1) * scale
        relative = named.get("relative")
        found.append(scores if relative is None else scores + relative.scores(q * scale, shared, scale))  # type: ignore[attr-defined]
        return original(q, k, v, **named)  # type: ignore[arg-type]

    before = []
    hook = wanted.register_forward_pre_hook(lambda module, inputs: before.append(len(found)))
    multihead.attend = spy  # type: ignore[assignment]
    try:
        network(SOURCE, TARGET)
    finally:
        multihead.attend = original
        hook.remove()
    return found[before[0]]


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("kind", "layer"), [("encoder", 0), ("decoder", 0), ("encoder", 1)])
@pytest.mark.parametrize("name", SCHEMES)
def test_b13_parts_sum_to_the_score(name: str, kind: str, layer: int, norm: str) -> None:
    check_sum(make(SCHEMES[name], norm=norm), kind, layer)


def check_sum(network: Any, kind: str, layer: int) -> None:
    parts = score_parts(network, kind, layer, lambda: network(SOURCE, TARGET))
    total = torch.stack(list(parts.values())).sum(dim=0)
    torch.testing.assert_close(total, true_scores(network, kind, layer), rtol=0, atol=1e-6)


def test_b13_grouped_heads_sum_too_with_named_parts_and_positions_know_no_word() -> None:
    check_sum(make(SCHEMES["sum"], attention={"n_kv_heads": 1}), "encoder", 0)
    four = ["content-content", "content-position", "position-content", "position-position"]
    network = make(SCHEMES["sum"])

    def names(layer: int) -> list[str]:
        return list(score_parts(network, "encoder", layer, lambda: network(SOURCE, TARGET)))

    assert names(0) == [*four, "rotary", "Shaw", "Gated"]
    assert names(1) == ["content", "rotary", "Shaw", "Gated"]
    bare = make(SCHEMES["none"])
    assert list(score_parts(bare, "encoder", 0, lambda: bare(SOURCE, TARGET))) == ["content"]
    # the part of two positions is the same for other words, the part of two contents the same in other places
    network = make(SCHEMES["sinusoidal"])  # post-norm: nothing before the first attention
    other = torch.tensor([[4, 4, 8, 5, 5], [7, 6, 6, 9, 8]])
    one = score_parts(network, "encoder", 0, lambda: network(SOURCE, TARGET))
    two = score_parts(network, "encoder", 0, lambda: network(other, TARGET))
    torch.testing.assert_close(one["position-position"], two["position-position"], rtol=0, atol=1e-9)
    moved = score_parts(network, "encoder", 0, lambda: network(SOURCE.roll(1, dims=1), TARGET))
    rolled = one["content-content"].roll((1, 1), dims=(-2, -1))
    torch.testing.assert_close(moved["content-content"], rolled, rtol=0, atol=1e-9)
    assert float((one["content-content"] - two["content-content"]).abs().max()) > 0.1


def test_b13_a_relative_scheme_is_its_own_matrix_and_what_cannot_be_taken_apart_is_said() -> None:
    network = make(SCHEMES["alibi"])
    parts = score_parts(network, "encoder", 0, lambda: network(SOURCE, TARGET))
    distance = (torch.arange(5)[:, None] - torch.arange(5)).abs().double()
    expected = -(torch.tensor([2**-4, 2**-8]).double()[:, None, None] * distance).expand(2, 2, 5, 5)
    torch.testing.assert_close(parts["ALiBi"], expected, rtol=0, atol=1e-9)
    network = make(SCHEMES["none"])
    with pytest.raises(UsageError, match=r"no self-attention of layer 5 in 'encoder'; its layers: \[0, 1\]"):
        score_parts(network, "encoder", 5, lambda: None)
    with pytest.raises(UsageError, match="the run did not pass through the decoder self-attention of layer 1"):
        score_parts(network, "decoder", 1, lambda: network.encode(SOURCE))
    network.train()
    with pytest.raises(UsageError, match=r"evaluation mode: call `network\.eval\(\)` first"):
        score_parts(network, "encoder", 0, lambda: network(SOURCE, TARGET))
    torch.manual_seed(0)
    attention, x, p = MultiHeadAttention(8, 2).double(), torch.randn(1, 3, 8).double(), torch.randn(3, 8).double()
    whole = decompose(attention, x + p)["content"]
    parts = decompose(attention, x + p, added=p)
    torch.testing.assert_close(torch.stack(list(parts.values())).sum(dim=0), whole, rtol=0, atol=1e-10)


def test_b13_parts_over_words_sum_to_the_words_scores() -> None:
    """A model's own words: pieces joined, a special token left out; every head and row."""
    network = make(SCHEMES["sum"])
    parts = score_parts(network, "encoder", 0, lambda: network(SOURCE, TARGET))
    words = [0, 1, 1, 2, None]
    summed = parts_by_word(parts, words)
    assert list(summed) == list(parts) and summed["rotary"].shape == (2, 2, 3, 3)
    scores = true_scores(network, "encoder", 0)
    total = torch.stack(list(summed.values())).sum(dim=0)
    for i, row in enumerate(([0], [1, 2], [3])):
        for j, column in enumerate(([0], [1, 2], [3])):
            wanted = scores[:, :, row][..., column].sum(dim=(-2, -1))
            torch.testing.assert_close(total[..., i, j], wanted, rtol=0, atol=1e-6)
    one_each = parts_by_word(parts, range(5))
    torch.testing.assert_close(one_each["content-content"], parts["content-content"])
    some = parts_by_word({"content": torch.ones(1, 1, 2, 3)}, [0, 0], [None, 0, 1])["content"]
    assert some.tolist() == [[[[2.0, 2.0]]]]
    fails(ValueError, r"a word or None: got 4 and 4 .* \(2, 2, 5, 5\)", parts_by_word, parts, words[:4])
    fails(ValueError, "words must be numbered from 0, or None: got -1", parts_by_word, parts, [0, 1, 1, 2, -1])


def test_a15_an_ablated_head_adds_nothing_to_the_output() -> None:
    """Concat(head_0, 0) W^O: what the other head alone contributes."""
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with ablate(attention, "encoder", 0, 1):
        got, _ = attention(x)
    weights = attention.head_weights()
    biases = zip(("query", "key", "value"), attention.input.bias.view(3, 2, 4)[:, 0])
    q, k, v = (x[0] @ weights[role][0] + bias for role, bias in biases)
    expected = torch.softmax(q @ k.T / 2, dim=-1) @ v @ weights["output"][0] + attention.output.bias
    torch.testing.assert_close(got[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "layer"), [("encoder", 0), ("decoder", -1), ("cross", 1)])
def test_ablation_ends_with_its_block_even_by_an_error(kind: str, layer: int) -> None:
    network = make()
    whole = run(network).logits
    with ablate(network, kind, layer, 0):
        without = run(network).logits
    with pytest.raises(RuntimeError, match="inside"), ablate(network, kind, layer, 0):
        raise RuntimeError("inside")
    assert torch.equal(run(network).logits, whole)
    assert not torch.equal(without, whole)


def test_a15_the_head_that_matters_is_found_and_one_that_is_not_there_is_said() -> None:
    """One head of the cross-attention is made useless by hand: taking it away costs exactly nothing."""
    network = make()
    assert set(attentions(network)) == {(kind, n) for kind in ("encoder", "decoder", "cross") for n in (0, 1)}
    part = attentions(network)["cross", 1]
    with torch.no_grad():
        part.output.weight[:, part.d_head :] = 0.0  # head 1 reaches nothing

    def loss() -> float:
        return float(torch.nn.functional.cross_entropy(run(network).logits[0], torch.tensor([5, 6, 3])))

    effects = ablation.ablation_effects(network, loss)
    assert len(effects) == 12 and effects["cross", 1, 1] == 0.0
    assert all(effect != 0.0 for where, effect in effects.items() if where != ("cross", 1, 1))
    known = "cross 0, cross 1, decoder 0, decoder 1, encoder 0, encoder 1"
    message = re.escape(f"no head 2 in encoder attention of layer 0; there are: {known}, heads 0 to 1")
    with pytest.raises(UsageError, match=message), ablate(network, "encoder", 0, 2):
        pass
    with pytest.raises(UsageError, match="no head 0 in self attention of layer 0"), ablate(network, "self", 0, 0):
        pass


@pytest.mark.parametrize(
    ("name", "kind", "call"),
    [
        ("micro-world-tense", "encoder", lambda model: model.classify("o gato dormiu .").probability),
        ("micro-world-en-pt", "cross", lambda model: model.score(["the cats sleep ."], ["Os gatos dormem."])[0].total),
        ("micro-world-lm", "decoder", lambda model: model.score(["o gato"], ["dorme ."])[0].total),
    ],
)
def test_a15_a_loaded_model_answers_without_the_head(name: str, kind: str, call: Callable[[Model], float]) -> None:
    """The fast passes have read the weights and call no module: they stand aside while one is hooked."""
    model = atento.load(name)
    before = call(model)
    with ablate(model.network, kind, 0, 0):
        without = call(model)
    assert call(model) == before != pytest.approx(without, rel=1e-5)
    part = attentions(model.network)[kind, 0]
    with torch.no_grad():
        part.output.weight[:, : part.d_head] = 0.0  # what the head has computed reaches nothing
    assert call(model) == pytest.approx(without, rel=1e-5)


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix", "disentangled"])
def test_b7_a_network_of_one_scheme_is_one_of_none(architecture, kind):
    changes = {"attention": {"scale": 0.2}} if kind == "disentangled" else {}  # its own scale is another
    network, none = (make(P(one), architecture, d_model=24, **changes) for one in (kind, "none"))
    none.load_state_dict({name: network.state_dict()[name] for name in none.state_dict()})
    before = run(network).logits
    with without_scheme(network, kind):
        torch.testing.assert_close(run(network).logits, run(none).logits, rtol=0, atol=1e-12)
    assert torch.equal(run(network).logits, before) and not torch.allclose(before, run(none).logits, rtol=0, atol=1e-6)


def test_b7_each_of_a_sum_by_itself_back_after_an_error() -> None:
    """Two of one kind, one in a single layer, one added in a layer: the others stay as they are."""
    schemes = (P("sinusoidal"), P("shaw", max_distance=2, layers=(1,)), P("t5"))
    schemes += (P("t5", heads=(0,)), P("learned", layers=(0,)))
    network = make(schemes, "decoder")
    assert ablation.scheme_names(network.config) == ["sinusoidal", "shaw", "t5 1", "t5 2", "learned"]
    effects = ablation.position_effects(network, lambda: float(run(network).logits.square().sum()))
    assert list(effects) == ablation.scheme_names(network.config) and min(map(abs, effects.values())) > 1e-6
    with without_scheme(network, "t5 2"):
        assert [len(layer) for layer in network.stack.positions.relative] == [1, 2]
    with without_scheme(network, "shaw"), without_scheme(network, "learned"):
        inside = run(network).logits
    assert [len(layer) for layer in network.stack.positions.relative] == [2, 3]
    with without_scheme(network, "learned"), without_scheme(network, "shaw"):
        assert torch.equal(run(network).logits, inside)
    network = make((P("alibi"), P("sinusoidal")), "decoder")
    before = run(network).logits
    with pytest.raises(ZeroDivisionError), without_scheme(network, "alibi"):
        raise ZeroDivisionError
    assert torch.equal(run(network).logits, before)
    said = r"no position scheme 'shaw' in this network.*alibi, sinusoidal"
    with pytest.raises(UsageError, match=said), without_scheme(network, "shaw"):
        pass
    bare = make(P("none"), "decoder")
    assert ablation.position_effects(bare, lambda: 1.0) == {}
    with pytest.raises(UsageError, match=r"no position scheme 'shaw' in this network$"), without_scheme(bare, "shaw"):
        pass


DECODER, ENCODER = {"architecture": "decoder"}, {"architecture": "encoder"}
NETWORKS: dict[str, dict[str, Any]] = {
    "sinusoidal, cross": {"architecture": "encoder-decoder"},
    "rotary, shared keys": DECODER | {"positions": P("rotary"), "attention": AttentionConfig(n_kv_heads=1, norm=True)},
    "T5's buckets": ENCODER | {"positions": P("t5")},
    "Shaw and entmax": DECODER | {"positions": P("shaw"), "attention": AttentionConfig(sparse=SparseConfig(alpha=1.5))},
    "DeBERTa": ENCODER | {"positions": P("disentangled", max_distance=16, n_buckets=8)},
    "ALiBi in a window": ENCODER | {"positions": P("alibi"), "mask": MaskConfig("window", left=2, right=1)},
    "shared layers": ENCODER | {"shared_layers": True},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_steps_end_in_what_the_network_computes(name: str) -> None:
    """And each follows from those before it."""
    network = make(**NETWORKS[name]).float()
    with observe(network) as seen:
        run(network)
    for kind, depth in seen.n_layers.items():
        for layer in range(depth):
            outputs: list[torch.Tensor] = []
            shared = attentions(network).get((kind, layer)) or attentions(network)[kind, depth - 1]
            hook = shared.output.register_forward_pre_hook(lambda _, given, to=outputs: to.append(given[0]))
            steps = head_steps(network, kind, layer, lambda: run(network))
            hook.remove()
            assert torch.allclose(steps.weights, seen[kind, layer][0], atol=1e-6)
            expected = outputs[layer if len(outputs) > 1 else 0][0]
            assert torch.allclose(steps.mixed.transpose(0, 1).flatten(1), expected, atol=1e-5)
            q = steps.queries if steps.rotated_queries is None else steps.rotated_queries
            k = steps.keys if steps.rotated_keys is None else steps.rotated_keys
            assert torch.allclose(steps.content, torch.einsum("htk,hsk->hts", q, k) * steps.scale, atol=1e-5)
            scores = steps.content if steps.position is None else steps.content + steps.position
            assert steps.weights[~steps.allowed].abs().max() == 0 if not steps.allowed.all() else True
            if steps.normaliser == "softmax":
                closed = scores.masked_fill(~steps.allowed, float("-inf"))
                assert torch.allclose(torch.softmax(closed, dim=-1), steps.weights, atol=1e-6)
            mixed = torch.einsum("hts,hsk->htk", steps.weights, steps.values)
            mixed = mixed if steps.from_positions is None else mixed + steps.from_positions
            assert torch.allclose(mixed, steps.mixed, atol=1e-5)


def test_what_is_not_there_is_named() -> None:
    network = make(architecture="encoder")
    with pytest.raises(UsageError, match="no encoder attention of layer 2 was passed; there are: encoder 0, encoder 1"):
        head_steps(network, "encoder", 2, lambda: run(network))
    for kind, passed in (("cross", lambda: run(network)), ("encoder", lambda: None)):
        fails(UsageError, f"no {kind} attention of layer 0 was passed", head_steps, network, kind, 0, passed)


def test_a7_a_mask_is_drawn_as_text() -> None:
    assert mask_text(causal().dense(4)).split("\n") == ["1 0 0 0", "1 1 0 0", "1 1 1 0", "1 1 1 1"]
    assert mask_text(window(0, 1).dense(2, 5)).count("1") == int(window(0, 1).dense(2, 5).sum())
