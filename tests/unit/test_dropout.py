"""Dropout as a function of (seed, step, slot, use): its numbers, rate and gradients; nothing else moves it."""

import sys
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.attention import dropout as dropout_module
from atento.attention.dropout import Randomness, add_dropout, dropout, dropout_mask, fresh, pair_dropout, random_bytes
from atento.base.precision import threads
from atento.base.splitmix import mix, mix_, mixed, signed

CPU = torch.device("cpu")
WORD = (1 << 64) - 1
sizes = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 12), st.integers(0, 40))


def splitmix64(x: int) -> int:
    """The finaliser of SplitMix64 on Python's unbounded integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


@given(key=st.integers(-(1 << 63), (1 << 63) - 1), count=st.integers(0, 100))
def test_the_bytes_are_those_of_splitmix64(key: int, count: int) -> None:
    """Against Python integers, so with shifts that bring in zeros, whatever the sign."""
    words = [splitmix64((i * 0x9E3779B97F4A7C15 + key) & WORD) for i in range((count + 7) // 8)]
    expected = b"".join(word.to_bytes(8, sys.byteorder) for word in words)[:count]
    assert bytes(random_bytes(count, key, CPU).tolist()) == expected


def test_many_numbers_are_hashed_as_few_are() -> None:
    """More than are hashed at once on a CPU, against the finaliser for arrays."""
    numbers = torch.arange(-50_000, 50_000) * signed(0x9E3779B97F4A7C15)
    expected = mixed(numbers.numpy().view("uint64")).view("int64")
    assert torch.equal(mix_(numbers.clone()), torch.from_numpy(expected))
    assert torch.equal(mix_(numbers.clone().view(250, 400).t()), torch.from_numpy(expected).view(250, 400).t())


@pytest.mark.parametrize("p", [1e-6, 0.004, 0.1, 0.25, 0.3, 0.5, 0.9, 0.9999])
def test_an_element_falls_by_its_byte_at_the_nearest_rate_of_256_in_any_dtype(p: float) -> None:
    """Survivors are scaled by what was kept, so the mean is 1."""
    key, dropped = Randomness(11).key(), min(255, max(1, round(p * 256)))
    kept = (random_bytes(1000, key, CPU) >= dropped).double() * 256 / (256 - dropped)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        mask = dropout_mask(torch.Size([1000]), p, key, torch.ones(1, dtype=dtype))
        assert mask.dtype == dtype and torch.equal(mask, kept.to(dtype))


def test_a_mask_is_of_its_place() -> None:
    def mask(seed: int, step: int, slot: int, use: int) -> bytes:
        random = Randomness(seed, step, slot)
        for _ in range(use):
            key = random.key()
        return bytes(random_bytes(64, key, CPU).tolist())

    places = list(product((0, 1, 2), (0, 1, 2), (0, 1, 2), (1, 2, 3)))
    masks = [mask(*place) for place in places]
    assert masks == [mask(*place) for place in places]
    assert len(set(masks)) == len(places)  # (1, 2) and (2, 1) differ too: order counts


@given(st.lists(st.integers(-(1 << 63), (1 << 64) - 1), min_size=1, max_size=5))
def test_a_key_is_a_signed_64_bit_number(numbers: list[int]) -> None:
    assert -(1 << 63) <= signed(mix(*numbers)) < 1 << 63


@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 20)),
    key=st.integers(-(1 << 63), (1 << 63) - 1),
    p=st.sampled_from([0.004, 0.3, 0.5, 0.97]),
)
def test_a_pair_falls_by_the_byte_of_its_place(sizes: tuple[int, int, int, int], key: int, p: float) -> None:
    """Against Python integers: eight neighbouring keys share the word of (row, head, query, key // 8)."""
    _, h, t, s = sizes
    dropped, expected = max(1, round(p * 256)), torch.ones(sizes)
    for row, head, query, place in product(*map(range, sizes)):
        number = ((row * h + head) * t + query) * -(-s // 8) + place // 8
        word = splitmix64((number * 0x9E3779B97F4A7C15 + key) & WORD)
        if word.to_bytes(8, sys.byteorder)[place % 8] < dropped:
            expected[row, head, query, place] = 0
    drawn = pair_dropout(torch.zeros(sizes), p, key)
    assert torch.equal(drawn, expected * torch.tensor(256 / (256 - dropped)))


@given(sizes=sizes, data=st.data())
def test_any_part_of_the_square_is_dropped_as_it_is_in_the_whole(sizes: tuple[int, ...], data: st.DataObject) -> None:
    """Some queries, keys as a range or as numbers, all rows or one: so blocks of any size see the same dropout."""
    b, _, t, s = sizes
    whole = pair_dropout(torch.zeros(sizes), 0.5, 77)
    first, last = sorted(data.draw(st.tuples(st.integers(0, t), st.integers(0, t)), "queries"))
    low, high = sorted(data.draw(st.tuples(st.integers(0, s), st.integers(0, s)), "range"))
    chosen = torch.tensor(sorted(data.draw(st.sets(st.integers(0, s - 1)) if s else st.just(set()), "keys")))
    row = data.draw(st.sampled_from([None, *range(b)]), "row")
    for keys in ((low, high), chosen.long()):
        columns = keys if isinstance(keys, torch.Tensor) else torch.arange(low, high)
        expected = (whole if row is None else whole[row : row + 1])[:, :, first:last][..., columns]
        got = pair_dropout(torch.zeros(expected.shape), 0.5, 77, slice(first, last), keys, row, (t, s))
        assert torch.equal(got, expected)


def test_gradients_are_the_mask() -> None:
    x, residual, upstream = torch.randn(3, 50, 40, dtype=torch.float64).unbind()
    x, residual = x.requires_grad_(), residual.requires_grad_()
    mask = dropout_mask(x.shape, 0.3, Randomness(2, 5).key(), x)
    dropout(x, 0.3, Randomness(2, 5)).backward(upstream)
    assert bool((x.grad == mask * upstream).all())
    x.grad = None
    out = add_dropout(residual, x, 0.3, Randomness(2, 5))
    torch.testing.assert_close(out, residual + x * mask, rtol=0, atol=1e-14)
    out.backward(upstream)
    torch.testing.assert_close(x.grad, mask * upstream, rtol=0, atol=1e-14)
    assert bool((residual.grad == upstream).all())


def test_a_longer_tensor_begins_with_the_same_bytes_and_any_number_of_threads_gives_the_same_mask() -> None:
    short = random_bytes(1000, 4, CPU)
    long = random_bytes((1 << 20) + 3, 4, CPU)
    assert bool((long[:1000] == short).all()) and bool((random_bytes(1000, 4, CPU) == short).all())
    masks = []
    for count in (1, 4):
        with threads(count):
            masks.append(dropout_mask(torch.Size([700_003]), 0.1, 77, torch.ones(1)))
    assert torch.equal(*masks)


def test_bytes_of_inference_mode_serve_in_training_and_pytorch_may_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters are kept between calls; kept from inference mode, they must not spoil a backward pass."""
    monkeypatch.setattr(dropout_module, "_counters", {})  # as in a new process, in which nothing is kept yet
    for kept in vars(dropout_module).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
    x = torch.ones(1000)
    with torch.inference_mode():
        a = dropout(x, 0.5, Randomness(1)).tolist()
    x.requires_grad_()
    y = dropout(x, 0.5, Randomness(1))
    y.sum().backward()
    assert y.tolist() == a and x.grad is not None and x.grad.tolist() == a
    given_one = Randomness(1, 2, 3)
    assert fresh(given_one) is given_one
    torch.manual_seed(0)
    first = fresh(None).seed
    assert fresh(None).seed != first
    torch.manual_seed(0)
    assert fresh(None).seed == first


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_masks_on_a_gpu_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    """The hash in one kernel, of counters of any sign; masks of elements and of pairs."""
    for key in (Randomness(1).key(), Randomness(-5, 3, 2).key(), 0):
        for count in (1, 7, 1000):
            assert torch.equal(random_bytes(count, key, torch.device("cuda")).cpu(), random_bytes(count, key, CPU))
        x, pairs = torch.zeros(3, 41, dtype=dtype), torch.zeros(2, 3, 5, 11, dtype=dtype)
        assert torch.equal(dropout_mask(x.shape, 0.1, key, x.cuda()).cpu(), dropout_mask(x.shape, 0.1, key, x))
        assert torch.equal(pair_dropout(pairs.cuda(), 0.1, key).cpu(), pair_dropout(pairs, 0.1, key))
