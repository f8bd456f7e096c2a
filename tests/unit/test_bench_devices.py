"""The benches on a device: contenders of a GPU, the loops in float16, waiting and memory; what runs is on the CPU."""

import gc
import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atento.base.errors import CapabilityError, UsageError
from atento_cli.commands import bench
from atento_cli.measurements import MEASUREMENTS, ON_DEVICES
from benchmarks import (
    BENCHES,
    decoding,
    devices,
    encoding,
    finetuning,
    finetuning_sides,
    generation,
    pretraining_sides,
    processes,
    training,
)
from benchmarks.decoding_sides import Ours, Transformers
from benchmarks.devices import FLASH, SDPA, PlainLoop, attend_by, device_of, peers_of, precisions_of
from benchmarks.encoding_sides import OurEncoder
from benchmarks.finetuning_sides import OurTuning, TransformersLoop, natural_texts, write_classifier
from cuda_twin import cuda_twin
from failing import fails

ON_A_GPU = ("bfloat16", "float16", "float32")


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that multiplies bfloat16."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)


def test_devices_and_precisions_of_measurements(monkeypatch: pytest.MonkeyPatch, bf16: None) -> None:
    for name in ON_DEVICES:
        assert name in MEASUREMENTS and {"device", "size"} <= inspect.signature(BENCHES[name]).parameters.keys()
    for module in (training, pretraining_sides, decoding, generation, encoding, finetuning_sides):
        assert "tiny" in module.SIZES
    fails(UsageError, r"--device is for training, .*, graphs: got it for words", bench.bench, "words", device="cpu")
    assert device_of("cpu") == "cpu"
    fails(UsageError, r"is auto, cpu or cuda \(.*\): got 'cuda:1'", device_of, "cuda:1")
    if not torch.cuda.is_available():
        assert device_of("auto") == "cpu"
        fails(UsageError, "PyTorch finds no GPU here", next, BENCHES["training"](1, device="cuda"))
    assert precisions_of("cuda") == ON_A_GPU
    assert peers_of("cuda", "bfloat16") == [("transformers", SDPA), ("transformers flash", FLASH)]
    assert peers_of("cuda", "float16") == peers_of("cpu", "bfloat16") == [("transformers", SDPA)]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert precisions_of("cuda") == ("float16", "float32")
    assert len(peers_of("cuda", "float16")) == 2
    made = decoding.sides_on("cuda", Path("weights"), ())  # graphs and peers have the others
    assert not any("bfloat16" in name for name in made) and "transformers flash float16" in made


def test_every_contender_of_a_gpu_can_be_loaded_with_its_arguments(bf16: None) -> None:
    made = decoding.sides_on("cuda", Path("weights"), ("int8",))
    read = encoding._on_device(Path("model"), "cuda")
    for kind, arguments in (*made.values(), *read.values()):
        assert inspect.signature(kind.load).bind(None, *arguments).arguments["device"] == "cuda"
    assert [kind for kind, _ in made.values()].count(Ours) == 4 and "atento int8" not in made | read
    names = {side for ours, peer, _ in decoding.ON_GPU for side in (ours, peer)} - {"fastest"}
    assert names <= made.keys()
    expected, *_ = decoding.sides_on("cuda", Path("weights"), ())
    assert expected == "transformers float32"  # whose tokens are expected


def test_flash_attention_that_is_missing_is_one_sentence(bf16: None) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.BertModel(config)
    attend_by(model, SDPA)
    assert model.config._attn_implementation == "sdpa"
    t5 = transformers.T5Model(transformers.T5Config(d_model=32, d_ff=64, num_layers=1, num_heads=2, d_kv=16))
    for each in (t5, *([] if transformers.utils.is_flash_attn_2_available() else [model])):
        fails(CapabilityError, f"{type(each).__name__} with flash_attention_2: ", attend_by, each, FLASH)


def test_a_loop_in_float16_follows_the_one_in_float32() -> None:
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    losses = {}
    for precision in ("float32", "bfloat16", "float16"):
        torch.manual_seed(1)
        loop = PlainLoop(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), 1e-2, precision)
        losses[precision] = []
        for _ in range(40):
            with loop.autocast():
                output = loop.model(*loop.inputs({"x": x}).values())
            assert output.dtype == getattr(torch, precision)
            loss = (output.float() - y).square().mean()
            loop.backward(loss)
            loop.step()
            losses[precision].append(float(loss.detach()))
        assert all(parameter.dtype == torch.float32 for parameter in loop.model.parameters())
    assert losses["float32"][-1] < 0.9 * losses["float32"][0]
    for precision in ("bfloat16", "float16"):
        assert losses[precision] == pytest.approx(losses["float32"], rel=0.03)


def test_training_and_fine_tuning_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, bf16: None, tmp_path: Path) -> None:
    """All precisions, loops and rows of a GPU, computed here; flash attention is said to be missing."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(training, "precisions_of", lambda device: ON_A_GPU)
    monkeypatch.setattr(training, "peers_of", lambda device, precision: peers_of("cuda", precision))
    monkeypatch.setattr(training, "_TOKENS", 200)
    rows = list(training.measure_training(0.05, device="cpu", size="tiny"))
    measured = [(row["who"], row["precision"]) for row in rows if "target_tokens_per_second" in row]
    ours_and_theirs = [(who, precision) for precision in ON_A_GPU for who in ("atento", "transformers")]
    if not transformers.utils.is_flash_attn_2_available():
        assert measured == ours_and_theirs
        assert [row["who"] for row in rows if "skipped" in row] == ["transformers flash"]
    assert rows[-1]["size"] == "tiny" and rows[-1]["ratio_at_the_same_precision"] > 0
    write_classifier(tmp_path / "model", "tiny")
    texts = natural_texts("tiny", updates=1, per_update=24)
    found = []
    for kind in (OurTuning, TransformersLoop):
        side = kind()
        side.load(tmp_path / "model", "float16")
        found.append([loss for _ in range(3) for loss in side.run(texts)])
    assert found[0] == pytest.approx(found[1], abs=2e-3)
    assert list(finetuning._pairs("cpu"))[-1] == ("float32", "float32")


def test_sides_on_a_gpu_are_here_and_waited_for_and_their_memory_is_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two contenders of one process: each holds memory from `load` on, and more in and after its first run."""
    memory = {"now": 0, "peak": 0}
    events: list[str] = []

    def allocate(mib: int) -> None:
        memory["now"] += mib << 20
        memory["peak"] = max(memory["peak"], memory["now"])

    class Launches:
        def load(self, mib: int, device: str) -> None:
            events.append("load")
            self.mib, self.runs = mib, 0
            allocate(mib)

        def run(self, work: object) -> tuple[object, int]:
            events.append("run")
            self.runs += 1
            if self.runs == 1:
                allocate(2)  # the state of an optimizer, say
            allocate(100)
            allocate(-100)
            return work, os.getpid()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(processes, "forget_peak", lambda: None)  # it collects the garbage of all tests
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: memory["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: memory["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: memory.update(peak=memory["now"]))
    with processes.Side(Launches, 10, "cuda") as small, processes.Side(Launches, 50, "cuda") as large:
        assert events == ["load", "load"]
        measured = processes.alternate({"small": small, "large": large}, "work", 0.0, rounds=1)
    assert events[2:5] == ["wait", "run", "wait"]
    assert {who: run.peak_mib for who, [run] in measured.items()} == {"small": 112.0, "large": 152.0}
    assert measured["large"][0].result == ("work", os.getpid())


def test_the_memory_of_one_contender_does_not_count_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: events.append("collect"))  # takes seconds among those of all tests
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: events.append(name))
    if not torch.cuda.is_initialized():
        devices.forget_peak()
        assert devices.peak_of_gpu() is None and not events
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    devices.forget_peak()
    assert events == ["collect", "empty_cache", "reset_peak_memory_stats"]


def test_our_sides_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the twin: the tokens, vectors and losses of the CPU."""
    write_classifier(tmp_path / "classifier", "tiny")
    decoding.write_weights(tmp_path / "weights", decoding.SIZES["tiny"])
    encoding.write_encoder(tmp_path / "encoder", encoding.SIZES["tiny"], ())
    work, texts = decoding.Work((5, 7), 1, 6), natural_texts("tiny", updates=1, per_update=8)
    sentences = encoding.natural_sentences(6, encoding.SIZES["tiny"])

    def results(place: str) -> tuple[Any, ...]:
        sides: list[Any] = [Ours(), Ours(), OurEncoder(), OurTuning(), pretraining_sides.Ours(), training.OurUpdates()]
        written, captured, encoder, tuning, pretrained, updates = sides
        written.load(tmp_path / "weights", "plain", place)
        captured.load(tmp_path / "weights", "float32", place, True)
        encoder.load(tmp_path / "encoder", "float32", place)
        tuning.load(tmp_path / "classifier", "bfloat16", "lora", place)
        pretrained.load("bert", "tiny", "float16", "", 200, place)
        updates.load(training.SIZES["tiny"], "float16", place)
        tokens = [pretrained.run(1).real, updates.run(1)]  # an update on a GPU is a random sample
        return written.run(work), captured.run(work), encoder.run(sentences), [*tuning.run(texts)], tokens

    expected = results("cpu")
    with cuda_twin(monkeypatch):
        found = results("cuda:0")
    assert found[:2] == expected[:2] and found[0] == found[1]
    assert np.allclose(found[2], expected[2], atol=1e-5)
    assert found[3] == pytest.approx(expected[3], rel=1e-2)
    assert all(0 < tokens < 5000 for tokens in (*found[4], *expected[4]))


def test_transformers_writes_in_float16(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    decoding.write_weights(tmp_path / "weights", decoding.SIZES["tiny"])
    work = decoding.Work((5, 5), 1, 4)
    ours, theirs = Ours(), Transformers()
    ours.load(tmp_path / "weights", "plain bfloat16")
    theirs.load(tmp_path / "weights", "cpu", "float16")
    assert next(ours.step_function.network.parameters()).dtype == torch.bfloat16  # type: ignore[attr-defined]
    assert [len(row) for row in ours.run(work)] == [len(row) for row in theirs.run(work)] == [4, 4]
