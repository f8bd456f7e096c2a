"""Steps and readings by ONNX Runtime give what the plain networks give, for every family, strategy and selection."""

import ctypes
import gc
import os
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from typer.testing import CliRunner

from atento.base.errors import CapabilityError, MissingPartError, UsageError
from atento.base.precision import cpu_features
from atento.config.presets import preset
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import AttentionConfig, MaskConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.decoding import MBR, Beam, Greedy, Sample, generate
from atento.inference import engine as engines
from atento.inference.choose import engine_of, pack_weights, reader, step_function
from atento.inference.engine import largest_weight
from atento.inference.fast import FastStepFunction
from atento.inference.onnx_reading import SourceGraph
from atento.inference.plain import PlainStepFunction
from atento.inference.slots import Slots
from atento.model import load
from atento.networks import build_network
from atento_cli.main import application
from failing import fails
from test_networks_fast import DECODERS, ENCODER_DECODERS, SIZES, STRATEGIES, inputs, network_of
from test_serve_engine_slots import check_rows, rows_of_inputs

ENCODERS: dict[str, NetworkConfig] = {
    "bert": changed(preset("bert-base"), **SIZES),
    "t5, grouped heads": NetworkConfig(
        **SIZES, architecture="encoder", positions=PositionConfig("t5"), attention=AttentionConfig(n_kv_heads=2)
    ),
    "pre-norm, rotary": NetworkConfig(**SIZES, architecture="encoder", norm="pre", positions=PositionConfig("rotary")),
}


@pytest.mark.covering
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("name", [*ENCODER_DECODERS, *DECODERS])
def test_h12_onnx_equals_plain(name: str, strategy: Any) -> None:
    network = network_of({**ENCODER_DECODERS, **DECODERS}[name], dtype=torch.float32)
    steps = FastStepFunction(network, engine="onnx")
    for lengths in ([5, 9, 1, 9], [6, 6]):
        ids, real = inputs(lengths, "left" if name in DECODERS else "right")
        arguments = {"max_new_tokens": [12, 7, 40, 20][: len(ids)], "token_mask": real, "seed": 5}
        plain, found = (generate(one, ids, strategy, **arguments) for one in (network, steps))
        pairs = list(zip(found, plain))
        same = [(one, other) for one, other in pairs if [h.ids for h in one] == [h.ids for h in other]]
        # of what is drawn, a number may lie between two tokens whose probabilities differ in the last digits
        assert len(same) >= len(pairs) - isinstance(strategy, Sample | MBR)
        for one, other in same:
            for a, b in zip(one, other):
                assert a.token_scores == pytest.approx(b.token_scores, abs=1e-3)


def memory() -> float:
    """MiB that the process holds, once what was freed is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def counted(steps: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    rows, run = list[int](), steps.graph

    def call(tokens: Any, *arguments: Any) -> Any:
        rows.append(len(tokens))
        return run(tokens, *arguments)

    call.takes = run.takes  # type: ignore[attr-defined]
    monkeypatch.setattr(steps, "graph", call)
    return rows


def test_rows_in_slots_have_the_logits_of_each_alone_sources_are_not_copied_and_the_rest_is_run_by_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*ENCODER_DECODERS, *DECODERS):
        network = build_network((ENCODER_DECODERS | DECODERS)[name]).eval()
        steps, rng = FastStepFunction(network, engine="onnx"), random.Random(5)
        rows = counted(steps, monkeypatch)
        check_rows(Slots(steps), rows_of_inputs(PlainStepFunction(network), rng, 8), rng, atol=1e-3)
        assert len(rows) > 10 and max(rows) > 4
    # A graph that reads sources holds no copy of the weights, neither as they are nor packed
    network = build_network(changed(ENCODER_DECODERS["transformer"], d_model=512, d_ff=4096, n_layers=4)).eval()
    SourceGraph(network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32))  # loads the library
    before, size = memory(), sum(weight.nbytes for weight in network.encoder.parameters()) / 2**20
    graph = SourceGraph(network)
    assert size > 64 and memory() - before < size / 4
    assert len(graph.sources(torch.ones(1, 3, dtype=torch.long))) == 4
    network = network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32)
    steps = FastStepFunction(network, engine="onnx")
    rows = counted(steps, monkeypatch)
    monkeypatch.setattr("atento.inference.engine._BESIDE_THREADS", 16 * largest_weight(network.decoder))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for count in (3, 20):
                steps.step(torch.full((count,), 5), steps.begin(torch.full((count, 4), 7), None))
    finally:
        torch.set_num_threads(before)
    assert rows == [3, 20, 3]
    # Sinusoids have no limit; their table has
    monkeypatch.setattr("atento.inference.onnx_graph._SINUSOIDS", 8)
    network = network_of(NetworkConfig(**SIZES | {"max_len": 8}), dtype=torch.float32)
    ids, real = inputs([4])
    steps = FastStepFunction(network, engine="onnx")
    rows = counted(steps, monkeypatch)
    options: Any = {"max_new_tokens": 20, "min_new_tokens": 20, "token_mask": real}
    ((found,),), ((plain,),) = (generate(one, ids, Greedy(), **options) for one in (steps, network))
    assert found.ids == plain.ids and len(rows) == 8


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("lengths", [[9, 9, 9], [9, 4, 9, 1, 4]], ids=["equal", "unequal"])
def test_encoders_read_texts(name: str, lengths: list[int]) -> None:
    network = network_of(ENCODERS[name], dtype=torch.float32)
    ids, real = inputs(lengths)
    packed = reader(network, engine="onnx")
    assert packed.packed.graph is not None  # type: ignore[union-attr]
    for mask in (None, real):
        found, expected = (one(ids, token_mask=mask, project=False).hidden for one in (packed, network))
        shown = slice(None) if mask is None else mask
        torch.testing.assert_close(found[shown], expected[shown], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not cpu_features()["vnni"], reason="without VNNI, sums of 8-bit products overflow")
@pytest.mark.parametrize("name", ["transformer", "t5", "rotary, grouped heads"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["", "packed"])
def test_steps_in_8_bits_are_near_those_of_pytorch(name: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both code the rows of a step with one scale; each is about as far from float32 as the other."""
    network = network_of(ENCODER_DECODERS[name], dtype=torch.float32)
    held = deepcopy(network)
    if is_packed:
        pack_weights(held, "int8")  # as a model in 8 bits holds them
    steps, twin = (FastStepFunction(held, "int8", engine=engine) for engine in ("onnx", "torch"))
    rows = counted(steps, monkeypatch)
    ids, real = inputs([7, 3, 5])
    all_three = steps, twin, PlainStepFunction(network)
    states = [one.begin(ids, real) for one in all_three]
    for token in (1, 5, 9, 4):
        tokens = torch.full((3,), token)
        found, other, exact = (one.step(tokens, state)[0] for one, state in zip(all_three, states))
        assert (found - exact).abs().max() < 2 * (other - exact).abs().max() + 0.01
    assert rows == [3] * 4


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of PyTorch, whose pool of several threads a fork loses with any engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_threads_and_a_fork_share_a_graph() -> None:
    """Each has its own memory; there is no pool of threads that a fork would lose."""
    steps = FastStepFunction(network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32), engine="onnx")
    texts = [inputs([length], seed=length)[0] for length in range(3, 11)]

    def written(number: int) -> list[int]:
        return generate(steps, texts[number % 8], Beam(3), max_new_tokens=20)[0][0].ids

    expected = [written(number) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(written, range(64))) == expected * 8
    child = os.fork()
    if not child:
        os._exit(0 if [written(number) for number in range(8)] == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_the_graphs_do_not_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32)
    fails(UsageError, "`engine` must be one of auto, torch, onnx: got 'tvm'", step_function, network, engine="tvm")
    with pytest.raises(CapabilityError, match="does not hold the precision bfloat16"):
        step_function(network, precision="bfloat16", engine="onnx")
    with pytest.raises(CapabilityError, match="does not hold the precision int8"):
        reader(network_of(ENCODERS["bert"], dtype=torch.float32), precision="int8", engine="onnx")
    with monkeypatch.context() as without:
        without.setattr(engines, "cpu_features", lambda: {"vnni": False})
        with pytest.raises(CapabilityError, match="does not hold the precision int8 here"):
            step_function(network, precision="int8", engine="onnx")
    some = changed(ENCODER_DECODERS["transformer"], positions=PositionConfig("rotary", heads=(0,)))
    with pytest.raises(CapabilityError, match="rotary positions of some heads"):
        step_function(network_of(some, dtype=torch.float32), engine="onnx")
    assert step_function(network_of(some, dtype=torch.float32), engine="auto").graph is None  # type: ignore[union-attr]
    shaw = NetworkConfig(**SIZES, architecture="encoder", positions=PositionConfig("shaw"))
    causal = NetworkConfig(**SIZES, architecture="encoder", mask=MaskConfig("causal"))
    for config in (shaw, causal):  # which fast reading holds
        assert reader(network_of(config, dtype=torch.float32), engine="auto").packed.graph is None  # type: ignore[union-attr]
    assert step_function(network, engine="auto").graph is not None  # type: ignore[union-attr]
    copied = deepcopy(network_of(DECODERS["gpt2"], dtype=torch.float32))  # as for another device
    assert step_function(copied, engine="onnx").graph is not None  # type: ignore[union-attr]
    for kind in ("plain", "graphs"):
        with pytest.raises(
            CapabilityError, match="`engine: onnx` is for fast steps on the CPU, not for plain ones and"
        ):
            step_function(network, kind=kind, engine="onnx")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="`engine` must be one of"):
            step_function(network, kind=kind, engine="tvm")  # type: ignore[arg-type]
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert step_function(network, engine="auto").graph is None  # type: ignore[union-attr]
    fails(MissingPartError, "needs onnx and onnxruntime: pip install", step_function, network, engine="onnx")


def test_a_model_says_which_engine_it_has_and_commands_take_one() -> None:
    name = "micro-world-en-pt"
    models = [load(name), load(name, engine="torch"), load(name, precision="int8"), load(name, engine="onnx")]
    in_8_bits = "onnx" if cpu_features()["vnni"] else "torch"
    assert [model.engine for model in models] == ["onnx", "torch", in_8_bits, "onnx"]
    assert pickle.loads(pickle.dumps(models[1])).engine == "torch"
    texts = ["The cat sees the dog.", "My sister reads the book."]
    outputs = [model.translations(texts) for model in models]
    for one, other in zip(outputs[0], outputs[1]):
        assert one[0].text == other[0].text
        assert one[0].hypothesis.token_scores == pytest.approx(other[0].hypothesis.token_scores, abs=1e-4)
    recurrent = build_network(NetworkConfig(**SIZES, architecture="recurrent-seq2seq"))
    with pytest.raises(CapabilityError, match="for Transformers on the CPU, not for networks of type RecurrentSeq2Seq"):
        engine_of(recurrent, "onnx", "float32")
    assert engine_of(recurrent, "auto", "float32") == "torch"
    for engine in ("torch", "onnx", "tvm"):
        arguments = ["translate", "micro-world-en-pt", "--engine", engine, "--device", "cpu"]
        done = CliRunner().invoke(application("translate"), arguments, input="The white cat sleeps.\n")
        if engine != "tvm":
            assert (done.exit_code, done.stdout) == (0, "O gato branco dorme.\n")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "`engine` must be one of auto, torch, onnx: got 'tvm'"
