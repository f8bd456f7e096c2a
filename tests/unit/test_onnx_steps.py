"""Steps and readings by ONNX Runtime give what the plain networks give, for every family, strategy and selection."""

import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from typer.testing import CliRunner

from atento.cli.main import application
from atento.config.presets import preset
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import AttentionConfig, MaskConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.decoding import Beam, Greedy, generate
from atento.errors import CapabilityError, MissingPartError, UsageError
from atento.inference import engine as engines
from atento.inference.choose import engine_of, reader, step_function
from atento.inference.fast import FastStepFunction
from atento.inference.plain import PlainStepFunction
from atento.inference.slots import Slots
from atento.model import load
from atento.networks import build_network
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
        assert [[h.ids for h in row] for row in found] == [[h.ids for h in row] for row in plain]
        for one, other in zip(found, plain):
            for a, b in zip(one, other):
                assert a.token_scores == pytest.approx(b.token_scores, abs=1e-3)


def counted(steps: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step that ONNX Runtime ran."""
    rows, run = list[int](), steps.graph
    assert run is not None

    def call(tokens: Any, *arguments: Any) -> Any:
        rows.append(len(tokens))
        return run(tokens, *arguments)

    call.limit = run.limit  # type: ignore[attr-defined]
    monkeypatch.setattr(steps, "graph", call)
    return rows


@pytest.mark.parametrize("name", [*ENCODER_DECODERS, *DECODERS])
def test_rows_in_slots_have_the_logits_of_each_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows join and leave a running batch."""
    network = build_network((ENCODER_DECODERS | DECODERS)[name]).eval()
    steps, rng = FastStepFunction(network, engine="onnx"), random.Random(5)
    rows = counted(steps, monkeypatch)
    check_rows(Slots(steps), rows_of_inputs(PlainStepFunction(network), rng, 8), rng, atol=1e-3)
    assert len(rows) > 10 and max(rows) > 4


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_read_texts_of_equal_length(name: str) -> None:
    network = network_of(ENCODERS[name], dtype=torch.float32)
    ids, real = inputs([9, 9, 9])
    packed = reader(network, engine="onnx")
    assert packed.packed.graph is not None  # type: ignore[union-attr]
    for mask in (None, real):
        found, expected = (one(ids, token_mask=mask, project=False).hidden for one in (packed, network))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_positions_without_a_row_in_the_table_are_run_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinusoids have no limit; their table has."""
    monkeypatch.setattr("atento.networks.stack.stack_positions._SINUSOIDS", 8)
    config = NetworkConfig(**{**SIZES, "max_len": 8})
    network = network_of(config, dtype=torch.float32)
    ids, real = inputs([4])
    steps = FastStepFunction(network, engine="onnx")
    rows = counted(steps, monkeypatch)
    found, plain = (
        generate(one, ids, Greedy(), max_new_tokens=20, min_new_tokens=20, token_mask=real) for one in (steps, network)
    )
    assert found[0][0].ids == plain[0][0].ids and len(rows) == 8


def test_many_rows_are_run_by_pytorch_on_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32)
    steps = FastStepFunction(network, engine="onnx")
    rows = counted(steps, monkeypatch)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for count in (3, 20):
                steps.step(torch.full((count,), 5), steps.begin(torch.full((count, 4), 7), None))
    finally:
        torch.set_num_threads(before)
    assert rows == [3, 20, 3]


def test_threads_and_a_fork_share_a_graph() -> None:
    """Each has its own memory; there is no pool of threads that a fork would lose."""
    network = network_of(ENCODER_DECODERS["transformer"], dtype=torch.float32)
    steps = FastStepFunction(network, engine="onnx")
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
    with pytest.raises(UsageError, match="`engine` must be one of auto, torch, onnx: got 'tvm'"):
        step_function(network, engine="tvm")  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match="does not hold the precision int8"):
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
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert step_function(network, engine="auto").graph is None  # type: ignore[union-attr]
    with pytest.raises(MissingPartError, match="needs onnx and onnxruntime: pip install"):
        step_function(network, engine="onnx")


def test_a_model_says_which_engine_it_has() -> None:
    name = "micro-world-en-pt"
    models = [load(name), load(name, engine="torch"), load(name, precision="int8"), load(name, engine="onnx")]
    assert [model.engine for model in models] == ["onnx", "torch", "torch", "onnx"]
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


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [("torch", ""), ("onnx", ""), ("tvm", "error: `engine` must be one of auto, torch, onnx: got 'tvm'")],
)
def test_commands_take_an_engine(engine: str, sentence: str) -> None:
    arguments = ["translate", "micro-world-en-pt", "--engine", engine, "--device", "cpu"]
    done = CliRunner().invoke(application("translate"), arguments, input="The white cat sleeps.\n")
    if sentence:
        assert isinstance(done.exception, UsageError) and str(done.exception) == sentence.removeprefix("error: ")
    else:
        assert (done.exit_code, done.stdout) == (0, "O gato branco dorme.\n")
