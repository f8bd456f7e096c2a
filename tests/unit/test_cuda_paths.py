"""Code for CUDA on a twin of that device (`cuda_twin`): kernels, captured steps, training, models; as on the CPU."""

import gc
import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import atento
from atento.attention import attend, cuda_kernels
from atento.attention.cuda_kernels import RowMask
from atento.attention.dropout import Randomness
from atento.attention.masks import causal, documents
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import ParallelConfig, TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, Part
from atento.decoding import MBR, Beam, Greedy, Sample, generate
from atento.inference.graphs import ROOM, WARM_UP, GraphStepFunction
from atento.inference.plain import PlainStepFunction
from atento.inspection.ablation import ablate
from atento.networks import build_network
from atento.networks.vocabulary import cross_entropy
from atento.runs.run_identity import parts_on
from atento.training.loop import take_update
from atento.training.losses import on_device
from atento.training.metrics_log import read_journal
from atento.training.replica import joined
from atento.training.step import Updater
from cuda_twin import CudaTensor, cuda_twin
from failing import fails
from test_attention_kernels import MASKS, B, H, S, T, check_dropout
from test_narrow_attention import PACKED, qkv, with_gradients
from test_networks_fast import DECODERS, ENCODER_DECODERS, SIZES, inputs, network_of

Patch = pytest.MonkeyPatch
ALL = ENCODER_DECODERS | DECODERS
STRATEGIES = [Greedy(), Beam(4, n_best=4), Sample(n=3), MBR("chrf", (Sample(n=2), Beam(2, n_best=2)))]


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with cuda_twin(monkeypatch):
        yield


def test_the_twin_tells_devices_apart(twin: None) -> None:
    x = torch.arange(6.0).view(2, 3).to("cuda:0")
    assert x.is_cuda and x.device == torch.device("cuda", 0) and torch.ones(2, device=x.device).is_cuda
    assert (x * 2 + torch.tensor(1.0)).tolist() == [[1, 3, 5], [7, 9, 11]]
    assert x[torch.tensor([1])].is_cuda  # PyTorch moves indices
    assert not x.cpu().is_cuda and x.cpu().numpy().sum() == 15
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, 3)[x[0].long()]
    fails(RuntimeError, "numpy", x.numpy)


@pytest.mark.covering
@pytest.mark.parametrize("kernel", ["auto", "plain", "fused", "blocked"])
@pytest.mark.parametrize("name", MASKS)
def test_kernels_on_a_gpu_give_what_they_give_on_a_cpu(name: str, kernel: str, twin: None) -> None:
    """Masks are made on the CPU, as those of a recipe, and lowered to the device of the queries."""
    g = torch.Generator().manual_seed(1)
    leaves = [torch.randn(B, H, n, 16, generator=g) for n in (T, S, S)]
    results = []
    for place in ("cpu", "cuda:0"):
        q, k, v = (x.to(place, copy=True).requires_grad_() for x in leaves)
        mask = MASKS[name]
        out = attend(q, k, v, mask=mask.to(place) if isinstance(mask, Tensor) else mask, kernel=kernel)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(isinstance(x, CudaTensor) == (place != "cpu") for x in (out, *gradients))
        results.append([x.detach().cpu() for x in (out, *gradients)])
    for cpu, cuda in zip(*results):
        torch.testing.assert_close(cuda, cpu, rtol=0, atol=1e-5)


def test_dropout_of_attention_on_a_gpu_is_a_function_of_its_key(twin: None) -> None:
    state = torch.default_generator.get_state()
    check_dropout("cuda:0")
    assert torch.equal(torch.default_generator.get_state(), state)
    x = torch.zeros(1, 1, 1, 8)
    fails(ValueError, "drops weights on a GPU alone", attend, x, x, x, dropout=0.1, kernel="fused")


@pytest.mark.parametrize(("smoothing", "r_drop"), [(0.0, 0.0), (0.1, 0.0), (0.1, 2.0)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_loss_on_a_gpu_of_words_that_fill_no_row(has_bias: bool, smoothing: float, r_drop: float, twin: None) -> None:
    """37 words are computed as 64, of which 27 have no probability and no gradient."""
    g = torch.Generator().manual_seed(3)
    hidden, weight, bias = (torch.randn(*size, generator=g) for size in ((2, 11, 8), (37, 8), (37,)))
    leaves = [x.to(torch.bfloat16) for x in (hidden if r_drop else hidden[0], weight, *([bias] if has_bias else []))]
    targets, results = torch.arange(11), []
    for place in ("cpu", "cuda:0"):
        h, *output = (x.to(place, copy=True).requires_grad_() for x in leaves)
        w, b = output[0], output[1] if has_bias else None
        loss, nll = cross_entropy(h, w, targets.to(place), smoothing, b, r_drop)
        results.append([loss, nll, *torch.autograd.grad(loss, (h, *output))])
    for cpu, cuda in zip(*results):
        assert cuda.shape == cpu.shape and cuda.dtype == cpu.dtype
        torch.testing.assert_close(cuda.detach().cpu(), cpu.detach(), rtol=1e-2, atol=1e-2)


def varlen_attn(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
                *, scale: float, window_size: tuple[int, int]) -> Tensor:  # fmt: skip
    """What PyTorch documents for its kernel, sequence by sequence; (-1, 0) sees no later key, (-1, -1) sees all."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and query.is_cuda and cu_seq_q.is_cuda
    q_bounds, k_bounds, outputs = cu_seq_q.tolist(), cu_seq_k.tolist(), []
    lengths = [np.diff(bounds) for bounds in (q_bounds, k_bounds)]
    assert (max(lengths[0]), max(lengths[1])) == (max_q, max_k) and len(q_bounds) == len(k_bounds)
    for (begin, end), (first, last) in zip(pairwise(q_bounds), pairwise(k_bounds)):
        scores = torch.einsum("qhk,shk->hqs", query[begin:end], key[first:last]) * scale
        if window_size == (-1, 0):
            later = torch.ones(end - begin, last - first, dtype=torch.bool, device=query.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1) if last > first else scores  # no keys: the kernel leaves numbers of its own
        outputs.append(torch.einsum("hqs,shk->qhk", weights, value[first:last]) + (0.0 if last > first else 7.0))
    return torch.cat(outputs)


@pytest.mark.parametrize("name", PACKED)
def test_varlen_is_given_what_pytorchs_kernel_takes(name: str, twin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import varlen

    real = inspect.signature(varlen.varlen_attn)
    assert inspect.signature(varlen_attn).parameters.keys() <= real.parameters.keys()
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    leaves, mask = qkv(torch.float32), PACKED[name]
    expected = with_gradients(leaves, "plain", mask=mask)
    mask = mask.to("cuda:0") if isinstance(mask, Tensor) else mask
    found = with_gradients([x.to("cuda:0") for x in leaves], "varlen", mask=mask)
    for got, plain in zip(found, expected):
        torch.testing.assert_close(got.cpu(), plain, rtol=0, atol=1e-5)


def written(name: str, strategy: Any, place: str) -> list[list[list[int]]]:
    """What plain steps write on that device; those of fixed shapes must write the same."""
    network = network_of(ALL[name]).to(place)
    ids, real = (one.to(place) for one in inputs([5, 9, 1, 9], "left" if name in DECODERS else "right"))
    arguments: dict[str, Any] = {"max_new_tokens": [6, 4, 9, 5], "token_mask": real, "seed": 5}
    plain, fixed = (generate(one, ids, strategy, **arguments) for one in (network, GraphStepFunction(network)))
    for row, own in zip(plain, fixed, strict=True):
        assert [one.ids for one in own] == [one.ids for one in row]
        for one, other in zip(own, row):
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-10)
    return [[one.ids for one in row] for row in plain]


@pytest.mark.covering
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("name", ALL)
def test_h12_plain_fixed_and_captured_steps_write_the_same_on_any_device(name: str, strategy: Any, twin: None) -> None:
    assert written(name, strategy, "cuda:0") == written(name, strategy, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("name", ALL)
def test_h12_captured_steps_write_what_the_plain_steps_write(name: str, strategy: Any) -> None:
    written(name, strategy, "cuda")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_graph_is_captured_once_for_each_memory(precision: Any, twin: None) -> None:
    network = network_of(NetworkConfig(**SIZES | {"max_len": 256}), dtype=torch.float32).to("cuda:0")
    steps = GraphStepFunction(network, precision)
    ids, real = inputs([5, 7])
    state = steps.begin(ids.to("cuda:0"), real.to("cuda:0"))
    tokens, graphs = torch.tensor([4, 5], device="cuda:0"), []
    for _ in range(ROOM + 8):
        logits, state = steps.step(tokens, state)
        assert logits.is_cuda and logits.dtype == torch.float32 and logits.shape == (2, SIZES["vocab_size"])
        graphs.append(state.buffers.graph)
        assert all(part.dtype == getattr(torch, precision) for part in (*state.buffers.keys, *state.buffers.values))
        tokens = logits.argmax(dim=1)
    assert graphs[:WARM_UP] == [None] * WARM_UP and graphs[WARM_UP] is not None
    assert len({id(graph) for graph in graphs if graph is not None}) == 2  # its room has grown once


HEADS = (HeadConfig("masked-language-model"),)
DROPS = SIZES | {"dropout": 0.1}
NETWORKS = {"encoder-decoder": NetworkConfig(**DROPS), "decoder": NetworkConfig(**DROPS, architecture="decoder")}
NETWORKS["encoder"] = NetworkConfig(**DROPS, architecture="encoder", heads=HEADS)


def batch_for(name: str) -> Batch:
    ids = torch.randint(4, SIZES["vocab_size"], (6, 9), generator=torch.Generator().manual_seed(2))
    token_mask = torch.arange(9) < torch.tensor([9, 3, 9, 5, 1, 7])[:, None]
    inputs: dict[str, Tensor] = {"ids": ids, "token_mask": token_mask}
    if name == "encoder-decoder":
        inputs = {"source_ids": ids, "target_ids": ids.flip(1), "source_token_mask": token_mask}
    labels = {"vocabulary": ids.masked_fill(~token_mask, -1)}
    if name == "decoder":  # padding is behind every token, so it needs no mask
        return Batch({"ids": ids}, labels, lengths={"ids": token_mask.sum(dim=1)})
    return Batch(inputs, labels)


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_updates_on_a_gpu_are_those_of_the_cpu(name: str, precision: str, twin: None) -> None:
    """Parts are made on the CPU; dropout draws the same masks; the optimizer's state is on the device."""
    batch = batch_for(name)
    losses = []
    for place in ("cpu", "cuda:0"):
        torch.manual_seed(0)
        settings = TrainingConfig(learning_rate=1e-2, ema=0.9)
        # a row without padding has other places, and so draws other masks
        config = NETWORKS[name] if precision == "float32" else replace(NETWORKS[name], dropout=0.0)
        updater = Updater(build_network(config).to(place), settings, precision)
        found = on_device(updater.compute_network, batch, torch.device(place))
        rows = place != "cpu" and precision != "float32" and name != "encoder-decoder"
        assert isinstance(found.mask, RowMask) == rows
        sums = [updater.update([Part(batch), Part(batch)], step, 1e-2)[0]["vocabulary"].loss for step in (1, 2, 3)]
        weights, _ = updater.checkpoint_tensors()
        assert all(value.is_cuda == (place != "cpu") for value in weights.values())
        losses.append(sums)
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if precision == "float32" else 1e-2)


def test_a_run_from_a_gpu_keeps_its_parts_on_a_cpu(tmp_path: Path, twin: None, monkeypatch: Patch) -> None:
    """Its updates are single parts of 5,000 tokens, so they draw other masks of dropout than those of 2,048."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *device: (1 << 35, 1 << 36))
    pairs = [{"source": f"a b {n}", "target": f"c {n} d"} for n in "efgh" * 400]
    recipe: dict[str, Any] = {
        "task": "translation",
        "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.3},
        "tokenizer": {"kind": "word"},
        "training": {"steps": 1, "batch_tokens": 5000, "precision": "float32"},
    }
    atento.train(recipe, out=tmp_path / "gpu", data={"train": pairs}, device="cuda:0")
    assert json.loads((tmp_path / "gpu" / "run.json").read_text(encoding="utf-8"))["part_tokens"] == 32768
    shutil.copytree(tmp_path / "gpu", tmp_path / "both")
    recipe["training"]["steps"] = 3
    losses = {}
    for folder, place in (("gpu", "cuda:0"), ("both", "cpu"), ("cpu", "cpu")):
        atento.train(recipe, out=tmp_path / folder, data={"train": pairs}, device=place)
        events = read_journal(tmp_path / folder / "metrics.jsonl")
        losses[folder] = [event["loss"] for event in events if event["event"] == "train"][-1]
    assert "part_tokens" not in json.loads((tmp_path / "cpu" / "run.json").read_text(encoding="utf-8"))
    assert losses["both"] == pytest.approx(losses["gpu"], rel=1e-5) and losses["cpu"] != losses["both"]


def test_parts_of_a_run_by_its_device(twin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger with more memory, smaller for each of several processes; other devices are not asked as CUDA's are."""
    for gib, processes, tokens in ((16, 1, 16384), (80, 1, 32768), (80, 4, 8192), (16, 64, 2048)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, gib=gib: (0, gib << 30))
        assert parts_on("cuda:0", "bfloat16", processes) == {"part_tokens": tokens, "rows": True}
    assert not parts_on("cuda:0", "float32", 1)["rows"]
    monkeypatch.delattr(torch.cuda, "mem_get_info")
    assert parts_on("cpu", "bfloat16", 1) == parts_on("mps", "float32", 1) == {}


def check_rows(place: str) -> None:
    """Layers compute real tokens alone, as one row: outputs and gradients are those with padding, 0 where it was."""
    calls: list[int] = []
    for kind, mask in (("encoder", None), ("decoder", None), ("decoder", "documents"), ("encoder-decoder", None)):
        torch.manual_seed(4)
        config = replace(NETWORKS[kind], dropout=0.0)
        network = build_network(config).to(torch.bfloat16).to(place).train()
        stack, length = network.encoder if kind == "encoder-decoder" else network.stack, 9
        x, token_mask = torch.randn(6, length, config.d_model), batch_for("encoder").inputs["token_mask"]
        ids = torch.arange(length).expand(6, -1) // 4
        masked = None if mask is None else causal() & documents(ids.masked_fill(~token_mask, -1))
        results = []
        for rows in (True, False):
            stack.rows = rows
            calls.clear()
            hook = stack.layers[0].register_forward_pre_hook(lambda block, inputs: calls.append(inputs[0].shape[1]))
            leaf = x.to(torch.bfloat16).to(place).requires_grad_()
            given = RowMask.of(masked, token_mask, torch.device(place)) if masked is not None and rows else masked
            out = stack(leaf, mask=given, token_mask=None if mask else token_mask.to(place))
            hook.remove()
            assert calls == [int(token_mask.sum()) if rows else length]
            kept = out.masked_fill(~token_mask.to(place).unsqueeze(-1), 0.0)
            assert not rows or torch.equal(kept, out)
            gradients = torch.autograd.grad(kept.float().square().sum(), [leaf, *stack.parameters()])
            results.append([kept.float().cpu(), *(each.float().cpu() for each in gradients)])
        for row, padded in zip(*results):
            torch.testing.assert_close(row, padded.detach(), rtol=0.05, atol=0.02 * padded.abs().max().item() + 1e-3)
    config = replace(NETWORKS["encoder"], attention=replace(NETWORKS["encoder"].attention, dropout=0.5), dropout=0.0)
    stack = build_network(config).to(torch.bfloat16).to(place).train().stack
    leaf, real = x.to(torch.bfloat16).to(place), token_mask.to(place)
    drawn = [stack(leaf, token_mask=real, random=Randomness(1, step)) for step in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_layers_leave_padding_out_on_a_gpu(twin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    check_rows("cuda:0")

    def missing(*arguments: Any) -> Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")

    monkeypatch.setattr(cuda_kernels, "_flash_rows", missing)
    assert not cuda_kernels.has_rows.__wrapped__(torch.device("cuda", 0))


@pytest.mark.gpu
def test_layers_leave_padding_out_with_pytorchs_kernel() -> None:
    check_rows("cuda")


CALLS: dict[str, Callable[[Any], object]] = {
    "micro-world-en-pt": lambda model: model.translate(["the white cat sleeps .", "a dog sees the cat ."], beam=3),
    "micro-world-answers": lambda model: model.answer("who sleeps ?", "the white cat sleeps ."),
    "micro-world-entailment": lambda model: model.classify([("the cat sleeps .", "a cat sleeps .")]),
    "micro-world-entities": lambda model: model.tag(["Ana sees Rui ."]),
    "micro-world-lm": lambda m: (m.generate(["the cat"], max_new_tokens=8), m.perplexity(["a cat sleeps ."])),
    "micro-world-mlm": lambda model: (model.fill("the <mask> sleeps ."), model.embed(["a cat", "dogs"]).round(4)),
    "micro-world-tense": lambda model: model.classify(["the cat sleeps ."]),
}


@pytest.mark.parametrize("name", CALLS)
def test_models_on_a_gpu_say_what_they_say_on_a_cpu(name: str, twin: None) -> None:
    expected = CALLS[name](atento.load(name, device="cpu"))
    model = atento.load(name, device="cuda:0")
    assert model.device == torch.device("cuda", 0)
    number, said = r"-?\d+\.\d*(?:e-?\d+)?", [repr(each) for each in (expected, CALLS[name](model))]
    texts = [re.sub(r"\s+", " ", re.sub(number, "", each)) for each in said]
    numbers = [[float(each) for each in re.findall(number, one)] for one in said]
    assert texts[0] == texts[1]
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-4, abs=1e-4)


def test_searches_of_a_model_on_a_gpu_are_captured(twin: None) -> None:
    """Those that continue from their newest state; the exact search and drafts have plain steps, and all agree."""
    texts = ["the cat runs ."]
    on_cpu, model = (atento.load("micro-world-en-pt", device=place) for place in ("cpu", "cuda:0"))
    assert isinstance(model.search_function(), GraphStepFunction)
    assert model.search_function() is model.search_function()
    assert isinstance(model.step_function(), PlainStepFunction)
    assert on_cpu.search_function() is on_cpu.step_function()
    many: list[dict[str, Any]] = [{"greedy": True}, {"sample": True, "seed": 3}, {"exact": True, "exact_limit": 60}]
    many += [{"beam": 3, "n_best": 2}, {"draft": "ngrams", "greedy": True}, {"glossary": {"cat": "gata"}, "beam": 2}]
    for options in many:
        assert model.translate(texts, **options) == on_cpu.translate(texts, **options), options
    with ablate(model.network, "encoder", 0, 0):
        assert isinstance(model.search_function(), PlainStepFunction)


def test_memory_that_runs_out_on_a_gpu_is_given_back_and_the_update_is_cut(twin: None, monkeypatch: Patch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gc, "collect", lambda: freed.append("objects"))  # among those of all tests it takes seconds
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("cache"))
    settings, said, asked = TrainingConfig(learning_rate=1e-2), list[str](), list[int]()
    updater = Updater(build_network(NETWORKS["decoder"]).to("cuda:0"), settings, "float32")
    real = updater._part_gradients

    def first_fails(*arguments: Any) -> Any:
        if not freed:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(*arguments)

    def parts(update: int, pieces: int, ours: object = None) -> Iterator[Part]:
        asked.append(pieces)
        return iter([Part(batch_for("decoder"))] * pieces)

    monkeypatch.setattr(updater, "_part_gradients", first_fails)
    run: Any = SimpleNamespace(
        config=settings, updater=updater, replica=updater.replica, steps=3,
        progress=SimpleNamespace(splits=1, skipped_in_row=0), batches=SimpleNamespace(parts=parts),
        reporter=SimpleNamespace(line=said.append),
    )  # fmt: skip
    assert take_update(run, 1, 1e-2)["vocabulary"].targets > 0
    assert freed == ["objects", "cache"] and set(asked) == {1, 2} and run.progress.splits == 2
    assert len(said) == 1 and "step 1: memory ran out (CUDA out of memory. Tried to allocate 2 GiB)" in said[0]


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(joined.dist, "init_process_group", lambda backend, **options: chosen.append(backend))
    for name, value in {"LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    joined._connect(ParallelConfig(), "cuda", 1, 4)
    assert chosen == [1, "cpu:gloo,cuda:nccl"]
    for device, rank in (("cuda", "2"), ("cuda:0", "1")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(UsageError, match=f"this machine has 2: got device '{device}' and process {rank} "):
            joined._connect(ParallelConfig(), device, int(rank), 4)
    assert len(chosen) == 2
