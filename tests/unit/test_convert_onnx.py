"""A model written as ONNX files computes under ONNX Runtime what the network computes, in every family."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import MaskConfig, ProjectionConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig, StretchConfig
from atento.config.tables.head_kinds import HeadConfig
from atento_cli.commands.convert import _comparison_lines
from atento_cli.convert import onnx_engine, onnx_sessions
from atento_cli.convert.comparison import Comparison, sample_rows
from atento_cli.convert.onnx_sessions import Session
from tiny_families import VOCABULARY, tiny_config, tiny_model

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra onnx)")

OWN = NetworkConfig(vocab_size=VOCABULARY, d_model=16, d_ff=24, n_heads=4, n_layers=2, max_len=64, initializer="normal")
BERT, LLAMA = tiny_config("bert-base"), tiny_config("llama3-8b")
LABELS = ("a", "b", "c")
YARN = PositionConfig("rotary", stretch=StretchConfig(8.0, trained_len=16, yarn=True))
FAMILIES = (
    *("transformer-tiny", "marian", "bart-base", "mbart-large-50", "pegasus-large", "nllb-200-600m"),
    *("t5-small", "t5-11-small", "mt5-small", "gpt1", "gpt2", "llama3-8b", "qwen2-0-5b", "qwen3-0-6b"),
    *("gemma-2b", "bert-base", "roberta-base", "xlm-roberta-base", "distilbert-base", "electra-small"),
    *("albert-base", "mpnet-base", "modernbert-base", "deberta-v3-base", "deberta-v2-xlarge"),
)
SOME_HEADS = PositionConfig("rotary", heads=(1, 2), stretch=StretchConfig(8.0, trained_len=16))
HELD: dict[str, NetworkConfig] = {name: tiny_config(name) for name in FAMILIES} | {
    "mistral, a window": tiny_config("mistral-7b", mask=MaskConfig("window", left=5, right=0)),
    "own, pre-norm, untied, shared heads": changed(
        OWN, norm="pre", attention={"n_kv_heads": 2}, embedding={"shared": False}, output={"tied": False, "bias": True}
    ),
    "own, Shaw's positions": changed(OWN, positions=PositionConfig("shaw", max_distance=4)),
    "own, ALiBi and learned": changed(OWN, positions=(PositionConfig("alibi"), PositionConfig("learned", gate=True))),
    "own, a matrix for some heads": changed(OWN, positions=PositionConfig("matrix", heads=(0, 2), max_distance=5)),
    "decoder, stretched rotations of some heads": changed(LLAMA, attention={"n_kv_heads": None}, positions=SOME_HEADS),
    "decoder, YaRN": changed(LLAMA, positions=YARN),
    "encoder of T5": changed(tiny_config("t5-11-small"), architecture="encoder", output={"tied": True}),
    "encoder, a mix of layers": changed(BERT, layer_mix=True),
    "encoder, looks two ahead": changed(BERT, mask=MaskConfig("lookahead", ahead=2)),
}
HEADS: dict[str, tuple[HeadConfig, ...]] = {
    "fill": (HeadConfig("masked-language-model"),),
    "classify": (HeadConfig("classification", LABELS),),
    "classify, hidden": (HeadConfig("classification", LABELS, pooling="first", hidden=True),),
    "classify, last token": (HeadConfig("multi-label", LABELS, pooling="last"),),
    "regression": (HeadConfig("regression", pooling="mean"),),
    "tag": (HeadConfig("tagging", LABELS),),
    "answer": (HeadConfig("answer"),),
    "replaced": (HeadConfig("replaced-token", hidden=True, activation="gelu"),),
    "pretraining": (HeadConfig("masked-language-model"), HeadConfig("next-sentence")),
}
DYNAMIC = PositionConfig("rotary", stretch=StretchConfig(2.0, trained_len=16, dynamic=True))
IN_THE_GATE = ("transformer-tiny", "t5-small", "gpt2", "llama3-8b", "bert-base", "deberta-v3-base")


def converted(config: NetworkConfig, folder: Path, precision: str, **about: Any) -> Any:
    model = tiny_model(config, **about)
    assert onnx_engine.why_not(model) is None
    onnx_engine.write(model, folder, precision)
    return onnx_engine.compare(model, folder, 1)


def exact(result: Any, limit: float = 1e-4) -> bool:
    return bool(result.max_difference < limit and result.agreement > 0.99999)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in IN_THE_GATE else pytest.mark.slow) for n in HELD])
def test_every_family_computes_the_same(name: str, tmp_path: Path) -> None:
    # scores that are not divided by √K amplify rounding: both sides are 1e-4 from the network in float64
    assert exact(converted(HELD[name], tmp_path, "float32"), 5e-4 if name == "mt5-small" else 1e-4)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("fill", "classify", "tag", "answer") else pytest.mark.slow) for n in HEADS],
)
def test_heads_of_encoders_compute_the_same(name: str, tmp_path: Path) -> None:
    config = changed(BERT, pooler=name in ("classify", "pretraining"), heads=HEADS[name])
    assert exact(converted(config, tmp_path, "float32"))
    outputs = Session(tmp_path / "model.onnx").outputs
    expected = {"answer": ["start_logits", "end_logits"], "pretraining": ["vocabulary_logits", "next-sentence_logits"]}
    assert outputs == expected.get(name, ["logits"])


def test_vectors_of_texts_are_an_output(tmp_path: Path) -> None:
    config = changed(BERT, projections=(ProjectionConfig(8),))
    for pooling in ("mean", "max", "first", "last"):
        folder = tmp_path / pooling
        folder.mkdir()
        assert exact(converted(config, folder, "float32", embedding={"pooling": pooling, "normalize": True})), pooling
        assert Session(folder / "model.onnx").outputs == ["last_hidden_state", "sentence_embedding"]


@pytest.mark.parametrize("name", ["transformer-tiny", "gpt2", "bert-base"])
def test_int8_is_near(name: str, tmp_path: Path) -> None:
    result = converted(HELD[name], tmp_path, "int8")
    assert 1e-5 < result.max_difference < 0.6 and result.agreement > 0.5
    files = list(tmp_path.glob("*.onnx"))
    assert not [file for file in files if "float32" in file.name]
    for file in files:
        assert any("Integer" in node.op_type for node in onnx.load(file).graph.node)


def test_names_are_those_that_people_know(tmp_path: Path) -> None:
    for name in ("gpt2", "transformer-tiny"):
        onnx_engine.write(tiny_model(changed(HELD[name], n_layers=1)), tmp_path, "float32")
    decoder = Session(tmp_path / "model.onnx")
    assert decoder.inputs == ["input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.0.value"]
    assert decoder.outputs == ["logits", "present.0.key", "present.0.value"]
    assert Session(tmp_path / "encoder_model.onnx").outputs == ["last_hidden_state"]
    first = Session(tmp_path / "decoder_model.onnx")
    assert first.inputs == ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    later = Session(tmp_path / "decoder_with_past_model.onnx")
    caches = [f"0.{side}.{part}" for side in ("decoder", "encoder") for part in ("key", "value")]
    assert first.outputs == ["logits", *(f"present.{cache}" for cache in caches)]
    assert later.inputs == ["encoder_attention_mask", "input_ids", *(f"past_key_values.{cache}" for cache in caches)]
    assert later.outputs == ["logits", "present.0.decoder.key", "present.0.decoder.value"]


def test_an_unused_pooler_is_left_out_and_shared_matrices_are_stored_once(tmp_path: Path) -> None:
    """RoBERTa's files hold one that nothing has trained."""
    model = tiny_model(changed(tiny_config("roberta-base"), pooler=True))
    onnx_engine.write(model, tmp_path, "float32")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert "Tanh" not in {node.op_type for node in graph.node}
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    pooler = model.network.state_dict()["pooler.dense.weight"].numpy()
    assert not [w for w in weights if w.shape == pooler.shape and (np.allclose(w, pooler) or np.allclose(w.T, pooler))]
    model = tiny_model(changed(HELD["gpt2"], vocab_size=2000))
    onnx_engine.write(model, tmp_path, "float32")
    assert exact(onnx_engine.compare(model, tmp_path, 1))
    table = model.network.state_dict()["embedding.weight"]
    assert table.nbytes < (tmp_path / "model.onnx").stat().st_size < 1.5 * table.nbytes + 100_000
    make, tensor, types = onnx.helper, onnx.numpy_helper.from_array, onnx.TensorProto
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    nodes = [
        make.make_node("Gather", ["a", "ids"], ["x"]),
        make.make_node("Gather", ["b", "ids"], ["y"]),
        make.make_node("Add", ["x", "y"], ["sum"]),
        make.make_node("MatMul", ["sum", "matrix"], ["out"]),
    ]
    ids = make.make_tensor_value_info("ids", types.INT64, [1])
    out = make.make_tensor_value_info("out", types.FLOAT, [1, 3])
    tensors = [tensor(table, "a"), tensor(table, "b"), tensor(np.ascontiguousarray(table.T), "matrix")]
    opsets = [make.make_opsetid("", 17)]
    graph = make.make_graph(nodes, "two", [ids], [out], tensors)
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "model.onnx"))
    onnx_engine.share_transposed(tmp_path / "model.onnx")
    assert [one.name for one in onnx.load(str(tmp_path / "model.onnx")).graph.initializer] == ["a", "b"]
    found = Session(tmp_path / "model.onnx")({"ids": np.array([2])})["out"]
    np.testing.assert_allclose(found, 2 * table[[2]] @ table.T)


def test_batch_and_length_are_free_and_prompts_may_come_in_parts(tmp_path: Path) -> None:
    """Sizes that were not recorded, one token and one text among them, and padding on either side."""
    model = tiny_model(HELD["roberta-base"])
    onnx_engine.write(model, tmp_path, "float32")
    session = Session(tmp_path / "model.onnx")
    for mask in ([[1]], [[1, 1, 1, 1, 1, 1, 1, 1, 1]], [[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 0, 0], [0, 0, 1]]):
        real = torch.tensor(mask, dtype=torch.bool)
        ids = torch.randint(5, VOCABULARY, real.shape)
        hidden = session({"input_ids": ids.numpy(), "attention_mask": real.long().numpy()})["last_hidden_state"]
        assert np.abs(hidden - model.network(ids, token_mask=real).hidden.numpy())[real.numpy()].max() < 1e-4
    onnx_engine.write(tiny_model(HELD["llama3-8b"]), tmp_path, "float32")
    session, ids = Session(tmp_path / "model.onnx"), torch.randint(5, VOCABULARY, (2, 7)).numpy()
    mask = np.ones((2, 7), dtype=np.int64)
    empty = {a.name: np.zeros((2, a.shape[1], 0, a.shape[3]), np.float32) for a in session.arguments[2:]}
    together = session({"input_ids": ids, "attention_mask": mask, **empty})["logits"]
    first = session({"input_ids": ids[:, :3], "attention_mask": mask[:, :3], **empty})
    past = {name.replace("present", "past_key_values"): value for name, value in first.items()}
    second = session({"input_ids": ids[:, 3:], "attention_mask": mask, **past})
    assert np.abs(np.concatenate([first["logits"], second["logits"]], axis=1) - together).max() < 1e-4


def test_what_the_files_do_not_hold_is_named() -> None:
    for config, part in (
        (NetworkConfig(architecture="recurrent-seq2seq", vocab_size=20), "networks of architecture recurrent-seq2seq"),
        (changed(BERT, attention={"sparse": SparseConfig(top_k=2)}), "sparse attention"),
        (changed(OWN, positions=PositionConfig("learned", layers=(0,))), "positions added in single layers"),
        (changed(LLAMA, positions=DYNAMIC), "rotary positions that go by the length of a text"),
        (changed(OWN, heads=HEADS["classify"]), "heads beside the output of a network that writes"),
    ):
        assert onnx_engine.why_not(tiny_model(config)) == part


def test_a_comparison_says_of_how_many_tokens_and_labels_it_is(tmp_path: Path) -> None:
    empty = Comparison("log-probabilities", 4.8e-7, 1.0, "greedy tokens", 0.0, 0.0)
    assert _comparison_lines(empty, "onnx", "float32") == [
        "log-probabilities: largest difference 4.8e-07",
        "every output ended at once, so no greedy tokens and no speed were compared",
    ]
    assert "50.0% of the greedy tokens agree" in _comparison_lines(replace(empty, agreement=0.5, after=2.0), "onnx", "")
    rows = sample_rows(BERT, 1)
    shortest = min(range(len(rows)), key=lambda number: len(rows[number]))
    labels = tuple(f"label {number}" for number in range(max(map(len, rows))))
    model = tiny_model(changed(BERT, heads=(HeadConfig("classification", labels),)))
    onnx_engine.write(model, tmp_path, "float32")
    right = onnx_sessions.Session(tmp_path / "model.onnx")

    def wrong(inputs: dict[str, Any]) -> dict[str, Any]:
        (name, logits), *_ = right(inputs).items()
        logits[shortest, -1] += 7.0
        return {name: logits}

    assert exact(onnx_sessions._compare_encoder(model, right, rows))
    assert onnx_sessions._compare_encoder(model, wrong, rows).max_difference == pytest.approx(7.0, abs=1e-3)  # type: ignore[arg-type]
