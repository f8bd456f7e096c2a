"""Small networks compared with CTranslate2 and ONNX Runtime: sentences alone and in batches, calls of four verbs.

Encoder-decoders with random weights, sources of 12 tokens, and exactly 12 output tokens each. For a call of one short
text the share of it outside the network's passes is shown too, with the models that come with the package.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.inference.fast import FastStepFunction
from atento.inference.fast_reader import FastReader
from atento.model import load
from atento_cli.convert.onnx_engine import write_graph
from atento_cli.convert.onnx_graphs import graphs_of
from atento_cli.convert.onnx_sessions import Translating
from benchmarks.decoding import _KIND, Sides, compare
from benchmarks.decoding_sides import Conversion, CTranslate2, Ours, Work, write_weights
from benchmarks.processes import Side, about

NETWORKS: dict[int, NetworkConfig] = {
    width: presets.marian(vocab_size=8000, d_model=width, d_ff=4 * width, n_heads=heads, n_layers=layers, **_KIND)
    for width, heads, layers in ((112, 4, 2), (192, 4, 3), (256, 4, 4), (512, 8, 6))
}
CELLS = tuple(Work((12,) * sentences, beam, 12) for beam in (1, 5) for sentences in (1, 16, 64, 400))
COMPARISONS = (
    ("fastest", "ctranslate2 float32", (0.6, 1.0)),
    ("fastest", "ctranslate2 int8", (0.6, 1.0)),
    ("fastest", "onnxruntime float32", None),
    ("atento onnx float32", "atento float32", None),
)
VERBS: dict[str, tuple[str, str]] = {  # the model and the verb; `embed` takes the vectors of the filling model
    "translate, greedy": ("micro-world-en-pt", "translate"),
    "translate, beam 4": ("micro-world-en-pt", "translate"),
    "classify": ("micro-world-tense", "classify"),
    "embed": ("micro-world-mlm", "embed"),
    "tag": ("micro-world-entities", "tag"),
}


class Onnx:
    """The graphs that `atento convert --to onnx` writes, with copies of the past, under ONNX Runtime; greedy search."""

    other_library = True

    def load(self, weights: Path) -> None:
        """Load a folder of `write_weights`."""
        self.network = load(weights, device="cpu", engine="torch").network
        with tempfile.TemporaryDirectory() as folder:
            for name, graph in graphs_of(self.network, None).items():
                write_graph(graph, Path(folder) / name, "float32")
            self.writer = Translating(Path(folder))

    def run(self, work: Work) -> list[list[int]]:
        """Return the output ids of each row."""
        rows = work.rows(self.network.config.vocab_size)
        return self.writer.greedy(self.network, rows, work.new_tokens)


def measure_small(
    seconds: float,
    *,
    widths: Sequence[int] = tuple(NETWORKS),
    cells: Sequence[Work] = CELLS,
    rounds: int = 3,
    calls: int = 60,
) -> Iterator[dict[str, object]]:
    """Yield rows of tokens per second of each network, and the ratios; then rows of calls of one short text.

    Each contender is measured for about `seconds` over all cells of a network, and at least `rounds` rounds.
    """
    yield about("small", "networks of 112 to 512", ("ctranslate2", "onnxruntime"))
    for width in widths:
        with tempfile.TemporaryDirectory() as name, Side(Conversion) as conversion:
            weights = Path(name) / "weights"
            write_weights(weights, NETWORKS[width])
            sides: Sides = {
                "atento float32": (Ours, (weights, "float32")),
                "atento onnx float32": (Ours, (weights, "onnx")),
                "atento int8": (Ours, (weights, "int8")),
                "atento onnx int8": (Ours, (weights, "onnx int8")),
            }
            for kind in ("float32", "int8"):
                conversion.run((weights, Path(name) / kind, kind))
                sides[f"ctranslate2 {kind}"] = (CTranslate2, (Path(name) / kind, kind))
            for beam in (1, 5):
                chosen = [work for work in cells if work.beam == beam]
                exported: Sides = {"onnxruntime float32": (Onnx, (weights,))} if beam == 1 else {}
                for row in compare("small", sides | exported, chosen, seconds / len(cells), rounds, COMPARISONS):
                    yield {"width": width} | row
    yield from (call_of(verb, calls) for verb in VERBS)


def call_of(verb: str, calls: int) -> dict[str, object]:
    """The median milliseconds of a call of one short text, and the share of it outside the network's passes."""
    name, method = VERBS[verb]
    model: Any = load(name)
    inside, times = [0.0], list[float]()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments, **named)
            inside[0] += time.perf_counter() - began
            return result

        return run

    user = model.step_function() if method == "translate" else model.reader()
    assert isinstance(user, FastStepFunction | FastReader)
    for part in ("begin", "step") if method == "translate" else ("features" if method == "embed" else "forward",):
        setattr(user, part, timed(getattr(user, part)))
    for _ in range(calls):
        began = time.perf_counter()
        getattr(model, method)("The cat sees the dog.", **({"beam": 1} if verb.endswith("greedy") else {}))
        times.append(time.perf_counter() - began)
    return {
        "bench": "small",
        "verb": verb,
        "engine": model.engine,
        "threads": torch.get_num_threads(),
        "ms": round(1e3 * float(np.median(times)), 2),
        "outside_passes": round(1 - inside[0] / sum(times), 3),
    }
