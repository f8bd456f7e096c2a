"""What a process has of its machine: features of the processor, threads and how long they wait, memory."""

import ast
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import atento
from atento.attention.kernels import has_tiles
from atento.base import precision as precision_module
from atento.base.errors import UsageError
from atento.base.start_up import LONG_WAITS, SHORT_WAITS
from atento.training import allocator
from atento.training.allocator import set_kernel_cache_size

VARIABLES = {"GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"}
SIZES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "8"}


def variables_after(program: str, **chosen: str) -> dict[str, str]:
    """The variables of OpenMP that a child of a fresh Python has after `program`."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | chosen
    tell = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; print(dict(os.environ))'])"
    told = subprocess.run([sys.executable, "-c", f"{program}\n{tell}"], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return {name: value for name, value in ast.literal_eval(told.stdout).items() if name in VARIABLES}


def test_idle_threads_wait_shortly_unless_the_user_says_otherwise() -> None:
    """Set by the first import, before PyTorch's OpenMP reads them; child processes inherit them."""
    assert variables_after("import atento") == SHORT_WAITS
    assert variables_after("from atento.config import recipe") == SHORT_WAITS
    for name, value in (("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7"), ("KMP_BLOCKTIME", "200")):
        assert variables_after("import atento", **{name: value}) == {name: value}
    use = "import os; from atento.base.start_up import machine_environment as m; os.environ.update(A='b'); e = m()"
    program = f"{use}; assert e['A'] == 'b'; os.environ.clear(); os.environ.update(e)"
    assert variables_after(program) == LONG_WAITS
    assert variables_after(program, GOMP_SPINCOUNT="7") == {"GOMP_SPINCOUNT": "7"}


@pytest.mark.parametrize("import_first", ["torch", pytest.param("atento", marks=pytest.mark.slow)])  # four processes
def test_torch_before_atento_is_told_once_with_the_variable(import_first: str) -> None:
    program = (
        "import warnings, torch, atento; from atento import precision\n"
        "for threads in (1, 2):\n"  # one alone waits for nobody
        "    torch.set_num_threads(threads); precision._warn_of_long_waits.cache_clear()\n"
        "    with warnings.catch_warnings(record=True) as seen:\n"
        "        warnings.simplefilter('always'); precision.resolve_device('auto'); precision.resolve_device('cpu')\n"
        "    print(*[f'{threads}: {one.message}\\n' for one in seen], sep='', end='')"
    )

    def said(program: str, **chosen: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | chosen
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout

    if import_first == "atento":
        assert not said(program.replace("torch, atento", "atento, torch")).strip()
        assert not said(program, OMP_WAIT_POLICY="passive").strip()
        return
    if sys.platform == "linux" and not torch.cuda.is_available():
        told = said(program)
        assert told.startswith("2: ") and told.count("\n") == 1
        assert "import atento first, or start with GOMP_SPINCOUNT=2000" in told


def test_features_are_those_that_the_libraries_use() -> None:
    """Variables that limit PyTorch and oneDNN to AVX2, as the gate sets for a part of it, limit what is chosen too."""
    used = torch.backends.cpu.get_cpu_capability() == "AVX512" and precision_module.has_bfloat16_products()
    features = precision_module.cpu_features()
    assert used or not any(features.values())
    assert precision_module.best_precision("cpu") == ("bfloat16" if features["bf16"] or features["amx"] else "float32")
    assert has_tiles() <= (torch.backends.cpu.get_cpu_capability() == "AVX512")
    if os.environ.get("ATEN_CPU_CAPABILITY") in ("avx2", "default") and "ONEDNN_MAX_CPU_ISA" in os.environ:
        assert not used


def test_k10_small_products_have_one_thread_and_threads_side_by_side_their_share(monkeypatch) -> None:
    for precision, amx, weight, rows, expected in (
        ("float32", True, 128 * 512, 16, 1),
        ("float32", True, 256 * 1024, 16, 4),
        ("bfloat16", True, 256 * 1024, 16, 1),
        ("bfloat16", False, 256 * 1024, 16, 4),
        ("int8", True, 384 * 1536, 40, 1),
        ("int8", True, 384 * 1536, 400, 4),
        ("int8", True, 512 * 2048, 1, 4),
    ):
        monkeypatch.setattr("atento.base.precision.cpu_features", lambda amx=amx: {"amx": amx})
        with precision_module.threads(4):
            with precision_module.threads_for(precision, weight, rows):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 4
    before = torch.get_num_threads()

    def where(_: int) -> tuple[int, int]:
        time.sleep(0.02)
        with precision_module.threads_for("float32", 1, 1):  # sets one thread, and then those of the worker
            assert torch.get_num_threads() == 1
        return threading.get_ident(), torch.get_num_threads()

    with precision_module.side_by_side(2, 3) as pool:
        first = list(pool.map(where, range(4)))
    with precision_module.side_by_side(2, 3) as pool:
        second = list(pool.map(where, range(4)))
    assert len({thread for thread, _ in first}) == 2 and {*first} == {*second}
    assert {number for _, number in first} == {3} and torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == before
    done = list[int]()

    def work(number: int) -> None:
        time.sleep(0.05)
        done.append(number)

    with pytest.raises(KeyError), precision_module.side_by_side(2, 1) as pool:
        for number in range(4):
            pool.submit(work, number)
        raise KeyError
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_has_threads_of_its_own_side_by_side() -> None:
    with precision_module.side_by_side(2, 1) as pool:
        pool.submit(int).result()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for threads that it does not have
        with precision_module.side_by_side(2, 1) as pool:
            os._exit(pool.submit(int).result())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
def test_a_run_is_refused_by_the_state_of_its_own_optimizer(optimizer, fits, monkeypatch, tmp_path) -> None:
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
