"""Writes a model as ONNX files, which ONNX Runtime and other engines run, and compares them with the network.

PyTorch's exporter records one call (`dynamo=False`): it needs no further package, takes a second where the one of
`torch.export` takes ten, is in every PyTorch from 2.10 to 2.13, and its graphs have the patterns that ONNX Runtime
fuses. A record is right for all lengths because the graphs have no branch on one; the comparison runs other lengths.
"""

import json
import logging
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from atento.base.errors import ModelError
from atento.base.precision import cpu_features
from atento.config.sections.network import network_to_dict
from atento.config.sections.position_scheme import ADDED
from atento.model import Model
from atento.networks import parameter_count
from atento.released import FAMILIES
from atento_cli.convert.ctranslate2_engine import FEATURES
from atento_cli.convert.onnx_graphs import Graph, graphs_of, head_names, ordered, text_vectors_of
from atento_cli.convert.onnx_sessions import compare as compare

PRECISIONS = ("float32", "int8")
_OPSET = 17  # the first with LayerNormalization; read by ONNX Runtime from 1.12 on
_MOST_BYTES = 2**31  # of one file: the limit of its format


def why_not(model: Model) -> str | None:
    """The first part of the model that the exported graphs do not hold; None if they hold all."""
    config = model.network.config
    if config.architecture not in ("encoder", "decoder", "encoder-decoder"):
        return f"networks of architecture {config.architecture}"
    relative = [scheme.kind for scheme in config.schemes if scheme.kind not in ADDED]
    embedding = text_vectors_of(model)
    for present, part in (
        (config.attention.sparse is not None, "sparse attention"),
        (config.features is not None, FEATURES),
        (any(s.layers is not None for s in config.schemes if s.kind in ADDED), "positions added in single layers"),
        ("rotary" in relative and {"shaw", "disentangled"} & set(relative), "rotary and relative vectors together"),
        (
            any(s.stretch is not None and (s.stretch.dynamic or s.stretch.long) for s in config.schemes),
            "rotary positions that go by the length of a text",
        ),
        (bool(config.heads) and config.architecture != "encoder", "heads beside the output of a network that writes"),
        (
            any(head.kind == "span-boundary" for head in config.heads) and not head_names(config),
            "a head of span boundaries alone",
        ),
        (any(head.kind == "crf" for head in config.heads), "the transitions of a crf head"),
        (
            embedding is not None and embedding.layer not in (-1, config.n_layers - 1),
            "text vectors of an inner layer",
        ),
        (4 * parameter_count(model.network) >= _MOST_BYTES, "weights of 2 GB or more in one file"),
    ):
        if present:
            return part
    return None


def warnings_of(model: Model) -> tuple[str, ...]:
    """The heads that are not exported: those that read chosen positions."""
    config = model.network.config
    heads = [head.name for head in config.heads if head.name not in head_names(config)]
    return (f"left out: the head {', '.join(heads)}",) if heads else ()


def write(model: Model, folder: Path, precision: str) -> None:
    """Write the graphs and `config.json`, in the layout of the family where it has one."""
    for name, graph in graphs_of(model.network.eval(), text_vectors_of(model)).items():
        write_graph(graph, folder / name, precision)
    network = model.network.config
    config: dict[str, object] = {
        "model_type": "atento",
        "task": model.config.get("task"),
        "network": network_to_dict(network),
    }
    with suppress(ModelError):  # it differs from its family
        config = FAMILIES[network.family].write(network) if network.family in FAMILIES else config
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_graph(graph: Graph, file: Path, precision: str) -> None:
    """Export a graph; in int8 its products are quantised, with scales of activations that each call computes."""
    target = file if precision == "float32" else file.with_suffix(".float32.onnx")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter's age, and of shapes that it records as tensors
        torch.onnx.export(
            graph.module.eval(),
            ordered(graph),
            str(target),
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            dynamic_axes=graph.axes,
            opset_version=_OPSET,
            dynamo=False,
        )
    if precision == "float32":
        share_transposed(file)
    else:
        quantize(target, file)
        target.unlink()


def share_transposed(file: Path) -> None:
    """Store a matrix that is another one transposed as an operation on it: a tied output matrix and the embedding.

    Engines compute it once, when they load the file.
    """
    import onnx

    model = onnx.load(str(file))
    graph = model.graph
    matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2]
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in matrices}
    looked_up = [node.input[0] for node in graph.node if node.op_type == "Gather" and node.input[0] in values]
    kept = set(looked_up)
    for table in dict.fromkeys(looked_up):
        for tensor in matrices:
            value = values[tensor.name]
            if tensor.name not in kept and np.array_equal(value.T, values[table]):
                kept.add(tensor.name)  # once, also where two tables are equal
                graph.initializer.remove(tensor)
                graph.node.insert(0, onnx.helper.make_node("Transpose", [table], [tensor.name], perm=[1, 0]))
    onnx.save(model, str(file))


def quantize(source: Path, target: Path) -> None:
    """Write a copy of a file whose products with weights are in int8, with a scale for each column.

    One scale for a whole matrix is as fast, and its error on all-MiniLM-L6-v2 is four times as large.
    """
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    level, log = logging.root.level, logging.getLogger()
    log.setLevel(logging.ERROR)  # it advises a step of preparation that serves other kinds of graphs
    try:
        quantize_dynamic(
            source,
            target,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=not cpu_features()["vnni"],  # 7 bits: without VNNI, sums of two 8-bit products overflow
            extra_options={"DefaultTensorType": TensorProto.FLOAT},  # of outputs whose type is not inferred
        )
    finally:
        log.setLevel(level)
