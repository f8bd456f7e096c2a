"""Encoding speed of BERT-base compared with sentence-transformers, ONNX Runtime and OpenVINO, run alternately.

2,000 sentences of natural lengths, from text to vectors, with the same random weights; each contender runs in a
separate process with the same number of threads. The vectors are compared, so all do the same work.
"""

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from atento.base.errors import AtentoError, CapabilityError, UsageError
from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.data.files.source_lines import read_lines
from atento.tasks.length_batching import length_batches
from atento.text import Tokenizer
from benchmarks.devices import device_of, peers_of, precisions_of
from benchmarks.encoding_sides import (
    FixedScales,
    OnnxExport,
    OnnxRuntime,
    OpenVino,
    OpenVinoExport,
    OurEncoder,
    SentenceTransformers,
    Vectors,
    batch_tokens,
    peer_batch,
    vocabulary,
    write_encoder,
)
from benchmarks.processes import Contender, Measurement, Side, about, alternate, best_seconds, median_seconds, peak_mib

SIZES: dict[str, NetworkConfig] = {
    "bert-base": presets.bert_base(),
    "tiny": presets.bert_base(vocab_size=300, d_model=32, d_ff=64, n_heads=4, n_layers=2, max_len=128),
}
_MAX_ERROR = 1e-3  # relative to a vector's norm, for float32
_SAMPLES = 300  # texts that fix the scales of int8, where they are fixed
_INT8_ERROR = 0.029  # of ONNX Runtime in int8, where it is not measured
_PEER = "sentence-transformers float32"
_GOALS = (  # ours ("fastest": with no greater error than the int8 peer, or ONNX Runtime's), the peer, times as fast
    ("fastest", "onnxruntime int8", 1.3),
    ("fastest", "openvino int8", 1.1),
    ("atento float32", "onnxruntime float32", 1.1),
    ("fastest", _PEER, 4.0),
)


def measure_encoding(
    seconds: float,
    *,
    device: str = "cpu",
    size: str = "bert-base",
    count: int = 2000,
    sentences: Path | None = None,
    rounds: int = 2,
) -> Iterator[dict[str, object]]:
    """Yield rows of sentences per second (of the best and the median round), padding and peak MiB; then the ratios.

    Args:
        seconds: about how long each contender is measured.
        device: "auto", "cpu" or "cuda"; on a GPU batches are larger, and the peer is sentence-transformers alone.
        size: a name of `SIZES`.
        count: the number of sentences.
        sentences: a file with one sentence per line, of which the first `count` are used (a word or a sign is a token);
            None uses random words, with log-normal lengths of median 24.
        rounds: the minimum number of rounds.

    Raises:
        UsageError: the file has no sentence. AtentoError: an exact contender gives other vectors.
    """
    config, device = SIZES[size], device_of(device)
    texts = natural_sentences(count, config) if sentences is None else _read(sentences, count)
    words = [word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())] if sentences else []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name) / "model"
        write_encoder(folder, config, words)
        contenders = _on_device(folder, device)
        if importlib.util.find_spec("sentence_transformers") is None:
            contenders = {who: made for who, made in contenders.items() if who.startswith("atento")}
            yield {"bench": "encoding", "who": _PEER, "skipped": "pip install sentence-transformers"}
        if device != "cpu":
            yield {"bench": "encoding", "who": "onnxruntime", "skipped": "is measured on the CPU, as OpenVINO is"}
        else:
            samples = texts[:_SAMPLES] if sentences else natural_sentences(_SAMPLES, config, seed=2)
            yield from _add_converted(contenders, folder, config, samples)
        yield about("encoding", size, ("transformers", "sentence_transformers", "onnxruntime", "openvino", "nncf"))
        sides: dict[str, Side] = {}
        for who, (kind, arguments) in contenders.items():
            try:
                sides[who] = stack.enter_context(Side(kind, *arguments))
            except CapabilityError as error:
                yield {"bench": "encoding", "who": who, "skipped": str(error)}
        measurements = alternate(sides, texts, seconds, rounds, warm_up=texts[:32])
        yield from _rows(measurements, texts, Tokenizer.load(folder), device)


def _on_device(folder: Path, device: str) -> dict[str, tuple[type[Contender], tuple[object, ...]]]:
    """Our precisions, and sentence-transformers in float32; on a GPU in its others too."""
    precisions = ("float32",) if device == "cpu" else precisions_of(device)[::-1]
    made: dict[str, tuple[type[Contender], tuple[object, ...]]] = {}
    for precision in ("float32", "bfloat16", "int8"):
        if device == "cpu" or precision in precisions:
            made[f"atento {precision}"] = (OurEncoder, (folder, precision, device))
    for precision in precisions:
        for who, attention in peers_of(device, precision):
            made[f"sentence-{who} {precision}"] = (SentenceTransformers, (folder, device, precision, attention))
    return made


def _add_converted(
    contenders: dict[str, tuple[type[Contender], tuple[object, ...]]],
    folder: Path,
    config: NetworkConfig,
    samples: Sequence[str],
) -> Iterator[dict[str, object]]:
    """Add those on files that are made of `folder`, beside it; yield a row for each peer that is not installed."""
    with Side(FixedScales) as export:
        export.run((folder, samples, folder.parent / "fixed"))
    contenders["atento int8, fixed scales"] = (OurEncoder, (folder.parent / "fixed", "int8", "cpu"))
    if _missing("onnx", "onnxruntime", "transformers"):
        yield {"bench": "encoding", "who": "onnxruntime", "skipped": "pip install onnx onnxruntime transformers"}
    else:
        with Side(OnnxExport) as export:
            export.run((folder, config, folder.parent / "onnx"))
        for kind in ("float32", "int8"):
            contenders[f"onnxruntime {kind}"] = (OnnxRuntime, (folder, folder.parent / "onnx" / f"{kind}.onnx"))
    if _missing("openvino", "nncf", "transformers"):
        yield {"bench": "encoding", "who": "openvino int8", "skipped": "pip install openvino nncf transformers"}
    else:
        file = folder.parent / "openvino.xml"
        with Side(OpenVinoExport) as export:
            export.run((folder, samples, file))
        contenders["openvino int8"] = (OpenVino, (folder, file))


def _missing(*packages: str) -> bool:
    return any(importlib.util.find_spec(package) is None for package in packages)


def natural_sentences(count: int, config: NetworkConfig, seed: int = 1, *, median: int = 24) -> list[str]:
    """Return random words with log-normal lengths, at most the maximum length with two special tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(median * rng.lognormal(0, 0.5, count), 3, config.max_len - 2).astype(int)
    words = vocabulary(config.vocab_size, ())
    return [" ".join(words[word] for word in rng.integers(104, config.vocab_size, length)) for length in lengths]


def _read(file: Path, count: int) -> list[str]:
    lines = [line for line in read_lines(file) if line.strip()][:count]
    if not lines:
        raise UsageError(f"{file} has no sentence")
    return lines


def padding(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Return the share of padding among computed tokens; each batch is as wide as its longest row."""
    computed = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    return 1 - sum(lengths) / computed


def relative_error(vectors: Vectors, expected: Vectors) -> float:
    """Return the largest distance of a vector from the expected one, relative to the expected norm."""
    distance = np.linalg.norm(vectors - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(distance.max())


def _rows(
    measurements: Mapping[str, list[Measurement]], texts: Sequence[str], tokenizer: Tokenizer, device: str = "cpu"
) -> Iterator[dict[str, object]]:
    lengths = [len(tokenizer.with_specials(ids)[0]) for ids in tokenizer.encode_batch(list(texts))]
    batches = padding(lengths, list(length_batches(lengths, batch_tokens(device))))
    by_size = sorted(range(len(texts)), key=lambda row: -len(texts[row]))  # sentence-transformers counts letters
    size = peer_batch(device)
    theirs = padding(lengths, [by_size[at : at + size] for at in range(0, len(by_size), size)])
    expected = measurements["atento float32"][0].result
    errors = {who: relative_error(runs[0].result, expected) for who, runs in measurements.items()}
    ours = [who for who in measurements if who.startswith("atento")]
    for who, runs in measurements.items():
        error = errors[who]
        if who.endswith("float32") and not error <= _MAX_ERROR:
            raise AtentoError(f"{who} gives vectors with a relative error of {error:.2g}: it does different work")
        yield {
            "bench": "encoding",
            "who": who,
            "sentences_per_second": round(len(texts) / best_seconds(runs), 1),
            "middle_round": round(len(texts) / median_seconds(runs), 1),
            "real_tokens_per_second": round(sum(lengths) / best_seconds(runs)),
            "padding": 0.0 if who in ours and device == "cpu" else round(theirs if "sentence" in who else batches, 4),
            "peak_mib": peak_mib(runs),
            "per_processor_second": round(len(texts) / _processor_seconds(runs), 1),
            "rounds": len(runs),
            "off_by": float(f"{error:.2g}"),
        }
    for who in ours:
        for peer in measurements:
            if peer not in ours:
                yield _ratio(who, peer, measurements)
    for side, peer, goal in _GOALS if device == "cpu" else ():
        if peer in measurements:
            limit = errors.get(peer if "int8" in peer else "onnxruntime int8", _INT8_ERROR)
            near = [who for who in ours if errors[who] <= limit]
            who = min(near, key=lambda name: best_seconds(measurements[name])) if side == "fastest" else side
            yield _ratio(who, peer, measurements) | {"goal": goal, "fastest": side == "fastest"}


def _ratio(who: str, peer: str, measurements: Mapping[str, list[Measurement]]) -> dict[str, object]:
    """How many times as fast `who` is as the peer: by best and by median rounds, and by processor time."""
    ours, theirs = measurements[who], measurements[peer]
    return {
        "bench": "encoding",
        "who": who,
        "ratio_to": peer,
        "ratio": round(best_seconds(theirs) / best_seconds(ours), 2),
        "by_middle_rounds": round(median_seconds(theirs) / median_seconds(ours), 2),
        "by_processor_time": round(_processor_seconds(theirs) / _processor_seconds(ours), 2),
    }


def _processor_seconds(runs: Sequence[Measurement]) -> float:
    """The processor time of the run that took least."""
    return min(run.processor_seconds for run in runs)
