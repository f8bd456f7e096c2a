"""Memory settings of training: the caches of compiled products, and what the environment says of them."""

import os
import random
from contextlib import nullcontext
from pathlib import Path

import pytest

import atento
from atento.base.errors import UsageError
from atento.training import allocator
from atento.training.allocator import set_kernel_cache_size

SIZES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "8"}


def test_caches_have_their_sizes_and_the_environment_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    set_kernel_cache_size()
    assert {name: os.environ[name] for name in SIZES} == SIZES
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "64")
    set_kernel_cache_size(512)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "1024"
    assert os.environ["LRU_CACHE_CAPACITY"] == "64"


def test_freed_memory_goes_back_every_five_seconds_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, held, returned = [100.0], [3 << 30], list[float]()

    def give_back() -> None:
        returned.append(clock[0])
        clock[0] += 0.009  # what the call takes
        held[0] -= 1 << 30 if len(returned) == 3 else 0

    monkeypatch.setattr(allocator.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(allocator, "resident", lambda: held[0])
    monkeypatch.setattr(allocator, "trim_memory", give_back)
    memory = allocator.MallocTrimmer()
    for second in range(100, 200):
        clock[0] = float(second)
        memory.between_updates()
    # the third frees 1 GiB, whose new pages take half a second: the next is 51 seconds later
    assert returned == [100, 105, 110, 161, 166, 171, 176, 181, 186, 191, 196]


def test_a_run_whose_parts_have_new_shapes_keeps_few_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pairs of random lengths, one an update, have ever new shapes; pairs of five lengths have 25."""
    draw = random.Random(1)

    def kernels(lengths: range, name: str) -> str:
        monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
        pairs = [tuple(" ".join("ab" for _ in range(draw.choice(lengths))) for _ in range(2)) for _ in range(100)]
        recipe = {
            "task": "translation",
            "data": {"max_len": 64},
            "tokenizer": {"kind": "word", "vocab_size": 100},
            "network": {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1},
            "training": {"steps": 1, "batch_tokens": 16, "precision": "float32"},
        }
        atento.train(recipe, data=pairs, out=tmp_path / name, threads=1)
        return os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]

    assert kernels(range(1, 40), "new") == "256" and kernels(range(1, 6), "again") == "1024"


@pytest.mark.parametrize(("optimizer", "fits"), [("adamw", False), ("adafactor", True)])
def test_a_run_is_refused_by_the_state_of_its_own_optimizer(
    optimizer: str, fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A network of 17,504 parameters: 280 kB with both means of AdamW, and 147 kB with Adafactor."""
    recipe = {
        "task": "translation",
        "tokenizer": {"kind": "word"},
        "network": {"d_model": 32, "d_ff": 32, "n_heads": 2, "n_layers": 1},
        "training": {"steps": 1, "batch_tokens": 16, "precision": "float32", "optimizer": optimizer},
    }
    sizes = {"SC_PHYS_PAGES": 200, "SC_PAGE_SIZE": 1000}
    real = os.sysconf
    monkeypatch.setattr(allocator.os, "sysconf", lambda name: sizes[name] if name in sizes else real(name))
    with nullcontext() if fits else pytest.raises(UsageError, match="parameters need 0 GiB to be trained"):
        atento.train(recipe, data=[("a b", "c d")] * 3, out=tmp_path / "run", threads=1)
