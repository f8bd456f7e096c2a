"""Scores taken apart: parts sum to the score for every scheme, and each part is what it says it is (B13)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from atento.attention import multihead
from atento.attention.multihead import MultiHeadAttention
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.decompose import decompose, parts_by_word
from atento.inspection.network_scores import score_parts
from atento.networks import EncoderDecoder
from failing import fails

SOURCE, TARGET = torch.tensor([[5, 6, 7, 8, 9], [4, 9, 5, 7, 6]]), torch.tensor([[2, 5, 6], [2, 8, 4]])
P = PositionConfig
SCHEMES = {
    **{kind: P(kind) for kind in ("sinusoidal", "learned", "rotary", "t5", "alibi", "matrix", "none")},  # type: ignore[arg-type]
    "shaw": P("shaw", max_distance=2),
    "disentangled": P("disentangled", n_buckets=4, max_distance=6, norm=True),
    "disentangled and rotary": (P("disentangled", n_buckets=0, max_distance=2, shared=False), P("rotary")),
    "sum": (P("sinusoidal"), P("rotary"), P("shaw"), P("t5", gate=True, heads=(1,))),
    "added in the layer too": (P("sinusoidal"), P("learned", layers=(0,))),
}


def make(positions: PositionConfig | tuple[PositionConfig, ...], **changes: object) -> EncoderDecoder:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "d_ff": 20, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    network = EncoderDecoder(NetworkConfig(**sizes, positions=positions, **changes)).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.2, 0.6)  # biases and norms too
    return network


def true_scores(network: EncoderDecoder, kind: str, layer: int) -> Tensor:
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


def check_sum(network: EncoderDecoder, kind: str, layer: int) -> None:
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
