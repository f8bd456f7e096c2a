"""The leak prover: planted leaks are found every time, right networks raise no alarm, what is declared is right."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atento.attention import attend, masks
from atento.attention.masks import Mask, allowed_pairs, bidirectional, causal, documents, padding, prefix, window
from atento.attention.prove import Proof, prove
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.networks import EncoderDecoder, build_network
from atento.networks.stack.stack import Stack
from failing import fails

B, L, H, D = 2, 6, 2, 8
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1, -1]])
MASKS: list[Mask] = [
    *(bidirectional(), causal(), masks.lookahead(1), prefix(3), prefix(torch.tensor([1, 4])), window(1, 0)),
    *(window(0, 2), window(1, 1) | masks.global_tokens(1), masks.dilated(2), masks.dilated(2, 2) & causal()),
    *(causal() | allowed_pairs({(0, 3), (2, 5)}), allowed_pairs({(3, 1), (1, 5)})),
    masks.blocks(torch.tensor([[True, False, False], [True, True, False], [False, True, True]]), 2),
    masks.per_head([window(1, 0), allowed_pairs({(0, 4)})]),
    *(padding(torch.tensor([6, 4])), causal() & padding(torch.tensor([3, 6])), ~window(1, 1)),
    *(documents(DOCUMENTS), causal() & documents(DOCUMENTS)),
    masks.predicate(lambda b, h, q, k: (q + k) % 3 == 0, "thirds"),
]


def stack(seed: int, n_layers: int = 2, dtype: Any = torch.float32, n_heads: int = H, norm: str = "post") -> Stack:
    config = NetworkConfig(vocab_size=11, d_model=D, d_ff=12, n_heads=n_heads, n_layers=n_layers, norm=norm)
    torch.manual_seed(seed)
    return build_network(config).encoder.to(dtype).eval()


def vectors(seed: int, rows: int = B, length: int = L, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, length, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def whole(seed: int = 0) -> EncoderDecoder:
    torch.manual_seed(seed)
    return build_network(NetworkConfig(vocab_size=11, d_model=D, d_ff=12, n_heads=H, n_layers=2, dropout=0.0)).eval()


def masked(network: Stack, x: Tensor, masks: Any, declared: Any = None, **options: Any) -> Proof:
    """The proof of a stack under masks, which are those declared unless others are."""
    return prove(lambda x: network(x, mask=masks), x, masks if declared is None else declared, **options)


def triangle(length: int) -> Tensor:
    return torch.ones(length, length).tril().bool().expand(B, length, length)


def walk(masks: Sequence[Mask], rows: int, length: int) -> Tensor:
    """What each output may see, by walking from it through the layers, the last first, position by position."""
    seen = torch.zeros(rows, length, length, dtype=torch.bool)
    layers = [mask.dense(length) for mask in masks]
    for b, i in product(range(rows), range(length)):
        here = {i}
        for layer in reversed(layers):
            row = layer[min(b, len(layer) - 1)]
            here |= {j for k in here for j in range(length) if any(bool(head[k, j]) for head in row)}
        seen[b, i, list(here)] = True
    return seen


def pairs(found: Tensor) -> list[tuple[int, ...]]:
    return [tuple(where) for where in found.nonzero().tolist()]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_a6_a7_a16_right_networks_raise_no_alarm_and_depend_on_all_that_is_declared(mask: Mask) -> None:
    """Two layers, and one or three, float64 and float32: what is measured is what may be reached, pair by pair."""
    for n_layers, dtype in ((2, torch.float64), (1 + 2 * (MASKS.index(mask) % 2), torch.float32)):
        network = stack(n_layers, n_layers, dtype, norm="post" if n_layers < 3 else "pre")
        proof = masked(network, vectors(n_layers, dtype=dtype), mask, layers=n_layers, trials=2)
        expected = walk([mask] * n_layers, B, L)
        assert torch.equal(proof.declared, expected)
        assert torch.equal(proof.measured, expected), f"{n_layers} layers: {proof}"
        assert proof.ok and proof.missing == []
        if mask in MASKS[:2]:  # Lemma 11.1 of the notes, by gradient and by change alike
            assert torch.equal(proof.by_gradient, expected) and torch.equal(proof.by_change, expected)
            assert proof.may_cache == (mask is MASKS[1])


@pytest.mark.parametrize("kernel", ["plain", "fused", "blocked"])
@pytest.mark.parametrize("mask", [causal(), window(3, 1), documents(torch.arange(40)[None] // 7)], ids=repr)
def test_kernels_add_nothing_for_what_is_masked(kernel: str, mask: Mask) -> None:
    """Bit for bit, over more positions than a vector register holds."""

    def attention(x: Tensor) -> Tensor:
        q = x.unflatten(-1, (H, -1)).transpose(1, 2)
        return attend(q, q, q, mask=mask, kernel=kernel).transpose(1, 2).flatten(2)

    proof = prove(attention, vectors(0, length=40), mask, trials=2)
    assert torch.equal(proof.measured, mask.dense(40)[:, 0].expand(B, 40, 40))


def test_layers_are_multiplied_in_their_order_also_boolean_matrices() -> None:
    """2 reads 1 in one layer, 1 reads 0 in the other: only if that comes first does 2 learn of 0."""
    near, far = allowed_pairs({(2, 1)}), allowed_pairs({(1, 0)})
    network, x = stack(0, 2), vectors(0, 1, 3)
    first, second = masked(network, x, [near, far]), masked(network, x, [far, near])
    assert pairs(first.measured) == [(0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 2, 1), (0, 2, 2)]
    assert pairs(second.measured) == [(0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2)]
    assert first.ok and second.ok and first.missing == second.missing == []
    assert masked(network, x, [far, near], [near, far]).leaks == [(0, 2, 0)]
    network, x = stack(0, 3), vectors(0, 1, 9)
    proof = masked(network, x, window(2, 0), layers=3)
    assert proof.ok and torch.equal(proof.measured[0], window(6, 0).dense(9)[0, 0])
    assert masked(network, x, window(2, 0)).leaks == [(0, i, j) for i in range(9) for j in range(i) if 2 < i - j <= 6]
    network, allowed = stack(0), triangle(L)[0]
    assert masked(network, vectors(0), allowed, layers=2).ok
    assert len(masked(network, vectors(0), allowed, torch.eye(L).bool(), layers=2).leaks) == B * L * (L - 1) // 2
    fails(TypeError, "a mask must be boolean", prove, same, vectors(0), torch.ones(L, L))


class Plant:
    """A random stack, its right masks, and those with a leak in them: one a layer; drawn from a seed."""

    def __init__(self, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (1,), generator=g))

        self.rows, self.length, self.n_layers, self.n_heads = draw(2, 3), draw(3, 6), draw(1, 3), [1, 2, 4][draw(0, 2)]
        dtype = [torch.float32, torch.float64][draw(0, 1)]
        self.network = stack(seed, self.n_layers, dtype, self.n_heads, "pre" if draw(0, 1) else "post")
        self.x = vectors(seed, self.rows, self.length, dtype)
        self.layer, self.head = draw(0, self.n_layers - 1), draw(0, self.n_heads - 1)
        self.lengths = torch.tensor([draw(1, self.length - 1) for _ in range(self.rows)])
        self.cut = torch.tensor([draw(1, self.length - 1) for _ in range(self.rows)])

    def masks(self, kind: str) -> tuple[list[Mask], list[Mask]]:
        right = causal()
        if kind == "padding":
            right, wrong = padding(self.lengths), bidirectional()
        elif kind == "causal padding":
            right, wrong = causal() & padding(self.length - self.lengths), causal()
        elif kind == "off by one":
            wrong = masks.lookahead(1)
        elif kind == "packing":
            right, wrong = causal() & documents((torch.arange(self.length) >= self.cut[:, None]).long()), causal()
        elif kind == "one pair":
            wrong = causal() | allowed_pairs({(0, self.length - 1)})
        elif kind == "one head":
            wrong = masks.per_head([masks.lookahead(1) if h == self.head else causal() for h in range(self.n_heads)])
        else:
            layers = [masks.lookahead(1) if layer == self.layer else causal() for layer in range(self.n_layers)]
            return [right] * self.n_layers, layers
        return [right] * self.n_layers, [wrong] * self.n_layers


def test_m3_planted_leaks_are_found_every_time() -> None:
    """Two random networks each: the leaks found are those that the wrong masks open, all of them and no others."""
    for kind in ("padding", "causal padding", "off by one", "packing", "one pair", "one head", "one layer"):
        for seed in range(2):
            plant = Plant(seed)
            right, wrong = plant.masks(kind)
            real = torch.arange(plant.length) < plant.lengths[:, None] if kind == "padding" else None
            allowed, opened = (walk(masks, plant.rows, plant.length) for masks in (right, wrong))
            leaks = opened & ~allowed & (torch.ones_like(opened) if real is None else real[..., None])
            if kind != "causal padding":  # there, a padded key is seen by itself alone when it is the last
                assert leaks.any()
            proof = masked(plant.network, plant.x, wrong, right, real=real, trials=2)
            assert proof.leaks == pairs(leaks), f"seed {seed}: {proof}"
            assert proof.across == [] and proof.broken == []
            assert proof.ok == (not leaks.any()) and proof.may_cache == (kind in ("causal padding", "packing"))
            assert masked(plant.network, plant.x, right, real=real, trials=2).ok


def test_m3_leaks_across_the_batch_are_found() -> None:
    """By position (rows see each other alone), and by BatchNorm in training, which sees later positions too."""
    for seed in range(5):
        network = stack(seed)
        right = masked(network, vectors(seed, 3, 4), causal(), trials=2)
        assert right.ok and right.across == []
        mean = prove(lambda x, net=network: net(x + x.mean(dim=0), mask=causal()), vectors(seed, 3, 4), causal())
        others = [(b, i, c) for b in range(3) for i in range(4) for c in range(3) if b != c]
        assert mean.across == others and mean.leaks == [] and mean.may_cache and not mean.ok
    # BatchNorm is left as it was
    norm = nn.BatchNorm1d(D)
    normed = nn.Sequential(nn.Flatten(0, 1), norm, nn.Unflatten(0, (B, 4)))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    proof = prove(normed, vectors(0, B, 4), causal(), trials=2)
    assert proof.leaks == [(b, i, j) for b in range(B) for i in range(4) for j in range(i + 1, 4)]
    assert proof.across == [(b, i, 1 - b) for b in range(B) for i in range(4)]
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert prove(normed.eval(), vectors(0, B, 4), window(0, 0)).ok
    # Row 0 reads position 2 of row 1 at its position 3, without a gradient; nobody else does anything of the kind

    def reads(x: Tensor) -> Tensor:
        out = x.clone()
        out[0, 3] = out[0, 3] + x[1, 2].detach()
        return out

    proof = prove(reads, vectors(0), causal())
    assert proof.across == [(0, 3, 1)] and proof.leaks == []
    assert str(proof) == "1 leak across the batch: output 3 of row 0 depends on row 1"


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", ["detach", "argmax", "sign of the sum", "rank"])
def test_m3_leaks_without_a_gradient_are_found(way: str, seed: int) -> None:
    network, length = stack(seed), 3 + seed % 4
    hidden: dict[str, Callable[[Tensor], Tensor]] = {
        "detach": lambda x: x.sum(dim=1, keepdim=True).detach(),
        "argmax": lambda x: x[..., :1].argmax(dim=1, keepdim=True).to(x.dtype) + 0 * x,
        "sign of the sum": lambda x: x[..., :1].sum(dim=1, keepdim=True).sign(),
        "rank": lambda x: x[..., :1].argsort(dim=1).argsort(dim=1).to(x.dtype),
    }
    proof = prove(lambda x: network(x, mask=causal()) + hidden[way](x), vectors(seed, length=length), causal())
    later = torch.ones(length, length).triu(1).bool()
    assert not (proof.by_gradient & later).any()
    found = proof.by_change[:, later]
    assert found.all() if way == "detach" else found.any()
    assert len(proof.leaks) == int(found.sum()) and not proof.may_cache and "(without a gradient)" in str(proof)


def test_m3_a_leak_too_small_for_any_bit_is_found_and_rounding_told_from_leaks() -> None:
    """Each output reads the next position of the next row, times 1e-20: no output moves, every gradient shows it."""
    proof = prove(lambda x: x + 1e-20 * x.roll((-1, -1), dims=(0, 1)), vectors(0, 3), causal())
    assert proof.across == [(b, i, (b + 1) % 3) for b in range(3) for i in range(L)] and proof.leaks == []
    proof = prove(lambda x: x + 1e-20 * x.roll(-1, dims=1), vectors(0), causal())
    assert proof.leaks == [(b, i, i + 1) for b in range(B) for i in range(L - 1)]
    assert torch.equal(proof.by_change, torch.eye(L).bool().expand(B, L, L))
    # A causal convolution by Fourier transform is causal up to rounding alone; one that looks ahead is not
    taps = torch.tensor([1.0, 0.5, 0.25])

    def convolve(x: Tensor, ahead: int) -> Tensor:
        spectrum = torch.fft.rfft(x, 16, dim=1) * torch.fft.rfft(taps, 16)[:, None]
        out: Tensor = torch.fft.irfft(spectrum, 16, dim=1)
        return out[:, ahead : x.shape[1] + ahead]

    assert not prove(lambda x: convolve(x, 0), vectors(0), causal()).ok
    proof = prove(lambda x: convolve(x, 0), vectors(0), causal(), tolerance=1e-5)
    assert proof.ok and torch.equal(proof.measured[0], window(2, 0).dense(L)[0, 0])
    leaky = prove(lambda x: convolve(x, 1), vectors(0), causal(), tolerance=1e-5)
    assert leaky.leaks == [(b, i, i + 1) for b in range(B) for i in range(L - 1)] and not leaky.may_cache


IDS = torch.tensor([[5, 6, 7, 8, 9], [4, 6, 5, 0, 0]])
REAL = IDS != 0
TARGET = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 4]])
CROSS: dict[str, Any] = {"real": REAL, "cross": True}


def test_a9_source_padding_of_a_whole_network() -> None:
    """Ids through the embedding: encoder on itself, decoder on itself, decoder on the source."""
    network, real = whole(), padding(REAL)
    encoder = prove(network, IDS, real, call=lambda ids: network.encode(ids, source_token_mask=REAL), real=REAL)
    assert encoder.ok and encoder.missing == []
    decoder = prove(network, TARGET, causal(), call=lambda ids: network(IDS, ids, source_token_mask=REAL).logits)
    assert decoder.ok and decoder.may_cache and decoder.missing == []
    source = prove(network, IDS, real, call=lambda ids: network(ids, TARGET, source_token_mask=REAL).logits, **CROSS)
    assert torch.equal(source.measured, REAL[:, None].expand(B, 4, 5)) and source.ok and not source.may_cache
    # A network that reads its padding off the ids
    by_ids: Any = {"call": lambda ids: network.encode(ids, source_token_mask=ids != 0), "real": REAL}
    proof = prove(network, IDS, real, **by_ids)
    assert proof.ok and proof.missing == [] and proof.draw(1).splitlines()[2:4] == ["■ ■ ■ · ·", "- - - - -"]
    # The decoder reads equal ids by the same embedding; only those handed in are the input
    copied: dict[str, Any] = {"call": lambda ids: network(ids, IDS, source_token_mask=REAL).hidden}
    proof = prove(network, IDS, real, trials=1, **copied, **CROSS)
    assert proof.ok and torch.equal(proof.by_gradient, REAL[:, None].expand(B, 5, 5))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("read_off", [False, True])
def test_m3_a_padded_batch_without_its_padding_mask_leaks(seed: int, read_off: bool) -> None:
    """Found with `real`, when ids at padding are kept, and without, when they are changed too."""
    network, marked = whole(seed), REAL if read_off else None
    encoder = prove(network, IDS, padding(REAL), call=network.encode, real=marked, trials=2)
    assert {(1, i, j) for i in range(3) for j in (3, 4)} <= set(encoder.leaks)
    assert all(b == 1 and j > 2 for b, _, j in encoder.leaks)
    options: dict[str, Any] = {"call": lambda ids: network(ids, TARGET).hidden, "real": marked, "cross": True}
    source = prove(network, IDS, padding(REAL), trials=2, **options)
    assert source.leaks == [(1, i, j) for i in range(4) for j in (3, 4)]


class Counting(nn.Module):
    """A causal network that adds how many ids are 7, or the vectors at padding, all of them and without a gradient."""

    def __init__(self, copied: bool = False, padded: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Embedding(5, D)
        self.table = nn.Embedding(11, D)
        self.copied, self.padded = copied, padded

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids.clone() if self.copied else ids) + self.positions(torch.arange(ids.shape[1]))
        out: Tensor = x.cumsum(dim=1)
        if self.padded:
            out = out + (x.detach() * (ids == 0)[..., None]).sum(dim=1, keepdim=True)
        else:
            out = out + (ids == 7).sum(dim=1)[:, None, None]
        return out


def test_m3_leaks_through_the_ids_and_which_embedding_reads_them() -> None:
    proof = prove(Counting(), torch.tensor([[7, 5, 5, 7, 5]]), causal(), trials=1)
    assert torch.equal(proof.by_gradient[0], triangle(5)[0])
    assert proof.leaks == [(0, i, j) for i in range(5) for j in range(i + 1, 5)]
    # Ids at padding are kept; their vectors are changed, and what reads them shows
    proof = prove(Counting(padded=True), IDS, causal(), real=REAL)
    assert proof.leaks == [(1, i, j) for i in range(3) for j in (3, 4)] and not proof.by_gradient[1, :3, 3:].any()
    with pytest.raises(UsageError, match="no module was found that embeds the ids: give `embedding`"):
        prove(Counting(copied=True), IDS, causal())
    proof = prove(Counting(copied=True), IDS, causal(), embedding="table")
    assert torch.equal(proof.by_gradient, triangle(5))
    with pytest.raises(UsageError, match=re.escape("unknown embedding 'tabel'; did you mean 'table'?")):
        prove(Counting(), IDS, causal(), embedding="tabel")
    # The first embedding reads 0 1 2 3 4 as well; were it taken, gradients would still be right, so: it is not
    network, ids = Counting(), torch.arange(5)[None]
    reached: list[Tensor] = []
    network.positions.register_forward_hook(lambda module, args, output: reached.append(output))
    assert torch.equal(prove(network, ids, bidirectional()).by_gradient[0], triangle(5)[0])
    assert all(output.grad_fn is None or "Embedding" in output.grad_fn.name() for output in reached)


def test_nothing_stays_behind_and_outputs_of_whole_numbers_or_written_in_one_place_have_no_gradient() -> None:
    """No hook, no gradient of a parameter, the mode, and the global random state."""
    network = whole()
    state = torch.get_rng_state()
    prove(network, IDS, bidirectional(), call=network.encode)
    assert torch.equal(torch.get_rng_state(), state) and not network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())
    with pytest.raises(UsageError):
        prove(network, IDS, bidirectional(), call=lambda ids: (network.encode(ids),))  # type: ignore[arg-type, return-value]
    assert not any(module._forward_hooks for module in network.modules())
    proof = prove(lambda x: (x[..., 0].cumsum(dim=1) > 0).long(), vectors(0), causal(), trials=9)
    assert proof.ok and not proof.by_gradient.any() and len(proof.leaks) == 0 and proof.by_change.any()
    # As captured graphs do: the next run must not overwrite what it is compared with
    place = torch.zeros(B, L, D)

    def network(x: Tensor) -> Tensor:
        with torch.no_grad():
            return place.copy_(x.sum(dim=1, keepdim=True).expand_as(x))

    proof = prove(network, vectors(0), causal())
    assert proof.by_change.all() and not proof.by_gradient.any()


def test_gradients_and_outputs_that_are_not_numbers_are_faults_of_their_own() -> None:
    """√ at 0 behind a `where`: outputs are right, yet whatever is differentiated in that row, 0·∞ comes back."""
    x = vectors(0).abs() + 0.1
    x[1, 4:] = -1.0

    def network(x: Tensor) -> Tensor:
        return torch.where(x > 0.0, x, (x + 1.0).sqrt() * 0.0)

    proof = prove(network, x, causal(), trials=1)
    assert proof.broken == [(1, i) for i in range(L)] and proof.leaks == [] and not proof.ok and not proof.may_cache
    assert str(proof).startswith("6 outputs not a number, or not its gradient: output 0 of row 1, output 1 of row 1")
    assert proof.draw(0).splitlines()[1] == "○ ■ · · · ·" and proof.draw(1).splitlines()[1] == "? ? ? ? ? ?"
    real = torch.ones(B, L, dtype=torch.bool)
    real[1, 2:] = False
    assert prove(network, x, causal(), trials=1, real=real).broken == [(1, 0), (1, 1)]
    assert prove(network, x[:1], causal(), trials=1).ok
    # Softmax over no key, and one layer more: 0·NaN reaches every output of that row
    hidden = torch.zeros(B, L, L).masked_fill(~causal().dense(L)[0, 0], -torch.inf)
    hidden[1, 2] = -torch.inf

    def network(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + torch.softmax(x @ x.mT + hidden, dim=-1) @ x
        return x

    proof = prove(network, vectors(0), causal(), trials=1)
    assert proof.broken == [(1, i) for i in range(L)] and proof.leaks == []
    written = torch.zeros(B, L, D)
    written[0, 3] = torch.nan  # with a gradient that is right
    assert prove(lambda x: x + written, vectors(0), causal()).broken == [(0, 3)]


def by_hand(**changes: Any) -> Proof:
    """Three outputs of one row: 0 sees 0 and (a leak) 2, 1 sees 0, though 1 is allowed as well, 2 sees all."""
    seen = torch.tensor([[[1, 0, 1], [1, 0, 0], [1, 1, 1]]]).bool()
    given = {"by_gradient": seen, "by_change": torch.zeros_like(seen), "across": [], "broken": []}
    given |= {"declared": triangle(3)[:1], "judged": torch.ones(1, 3).bool()}
    return Proof(**{**given, **changes})


def test_a_proof_is_drawn_and_said() -> None:
    proof = by_hand()
    assert proof.draw() == "■ · !\n■ ○ ·\n■ ■ ■"
    assert proof.leaks == [(0, 0, 2)] and proof.missing == [(0, 1, 1)] and not proof.ok and not proof.may_cache
    assert str(proof) == "1 leak: output 0 of row 0 depends on input 2"
    padded = by_hand(judged=torch.tensor([[False, True, True]]))
    assert padded.draw() == "- - -\n■ ○ ·\n■ ■ ■" and padded.ok and padded.may_cache
    assert str(padded) == "no leak: every output depends only on what is declared; 1 allowed pair was never seen"
    nothing = by_hand(declared=torch.zeros(1, 3, 3).bool())
    assert str(nothing) == (
        "6 leaks: output 0 of row 0 depends on input 0, output 0 of row 0 depends on input 2, "
        "output 1 of row 0 depends on input 0 and 3 more"
    )
    changed = by_hand(by_gradient=torch.eye(3).bool()[None], by_change=proof.by_gradient)
    assert str(changed) == "1 leak: output 0 of row 0 depends on input 2 (without a gradient)"
    both = by_hand(across=[(0, 1, 1), (0, 2, 1)], broken=[(0, 1)], declared=torch.ones(1, 3, 3).bool())
    assert str(both) == (
        "2 leaks across the batch: output 1 of row 0 depends on row 1, output 2 of row 0 depends on row 1; "
        "1 output not a number, or not its gradient: output 1 of row 0"
    )
    assert both.draw().splitlines()[1] == "? ? ?" and not both.ok
    assert not by_hand(cross=True, judged=torch.tensor([[False, True, True]])).may_cache


def same(x: Tensor) -> Tensor:
    return x


def test_wrong_use_is_said() -> None:
    for given, message in (
        ({"inputs": torch.zeros(2, 3)}, "`inputs` must be token ids (B,S) or vectors (B,S,D): got (2, 3)"),
        ({"inputs": torch.zeros(2, 0, D)}, "`inputs` must be token ids (B,S) or vectors (B,S,D): got (2, 0, 8)"),
        ({"inputs": torch.ones(2, 3).long()}, "`inputs` must have at least two different real tokens"),
        ({"inputs": IDS, "real": IDS == 5}, "`inputs` must have at least two different real tokens"),
        ({"inputs": IDS}, "no module was found that embeds the ids: give `embedding`, or vectors"),
        ({"real": torch.ones(2, 6)}, "`real` must be boolean (2, 6): got torch.float32 (2, 6)"),
        ({"real": torch.ones(2, 5).bool()}, "`real` must be boolean (2, 6): got torch.bool (2, 5)"),
        ({"trials": 0}, "`trials` must be at least 1: got 0"),
        ({"layers": 0}, "`layers` must be at least 1, and as many as the masks: got 0, masks: 0"),
        ({"mask": [causal()] * 2, "layers": 3}, "as many as the masks: got 3, masks: 2"),
        ({"mask": [causal()] * 2, "cross": True}, "with `cross` one mask is the whole declaration: got 2 layers"),
        ({"mask": padding(torch.tensor([1, 2, 3]))}, "a mask of shape (3, 1, 6) does not fit 2 rows of 6 outputs"),
        ({"call": lambda x: (x, x)}, "the network returned a tuple, not a tensor: give `call="),
        ({"call": lambda x: x[:1]}, "outputs must be (B,T,...) for 2 rows: got (1, 6, 8)"),
        ({"call": lambda x: x[:, 1:]}, "5 outputs for 6 inputs: give `cross=True` if they are different sequences"),
        ({"call": lambda x: nn.functional.dropout(x)}, "two runs on the same inputs differ: call `eval()` first"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            prove(same, **{"inputs": vectors(0), "mask": causal(), **given})
