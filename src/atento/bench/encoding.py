"""Encoding speed of BERT-base compared with sentence-transformers and ONNX Runtime, in turns in one run.

2,000 sentences of natural lengths from text to vectors, random weights, the same for all; each side in a process of
its own with the same number of threads. What comes out is compared, so all do the same work.
"""

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from atento.bench.encoding_sides import (
    BATCH_TOKENS,
    PEER_BATCH,
    OnnxExport,
    OnnxRuntime,
    OurEncoder,
    SentenceTransformers,
    Vectors,
    vocabulary,
    write_encoder,
)
from atento.bench.processes import Contender, Side, Turn, about, best, middle, peak, take_turns
from atento.config import presets
from atento.config.network import NetworkConfig
from atento.data.source_lines import read_lines
from atento.errors import AtentoError, UsageError
from atento.tasks.grouping import by_length
from atento.text import Tokenizer

SIZES: dict[str, NetworkConfig] = {
    "bert-base": presets.bert_base(),
    "tiny": presets.bert_base(vocab_size=300, d_model=32, d_ff=64, n_heads=4, n_layers=2, max_len=128),
}
_EXACT = 1e-3  # of a vector's norm: as far apart as float32 sides may be
_PEER = "sentence-transformers float32"


def measure_encoding(
    seconds: float, *, size: str = "bert-base", count: int = 2000, sentences: Path | None = None, rounds: int = 2
) -> Iterator[dict[str, Any]]:
    """Rows of sentences a second (of the best round, and of the middle one), padding and peak MiB; then the ratios.

    Args:
        seconds: about how long each side is measured, `rounds` rounds at least.
        size: a name of `SIZES`. count: how many sentences.
        sentences: a file with one a line, whose first `count` are taken (a word or a sign is a token); else random
            words, lengths log-normal with median 24.

    Raises:
        UsageError: the file has no sentence. AtentoError: a side that should be exact gives other vectors.
    """
    config = SIZES[size]
    texts = natural_sentences(count, config) if sentences is None else _read(sentences, count)
    words = [word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())] if sentences else []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name) / "model"
        write_encoder(folder, config, words)
        contenders: dict[str, tuple[type[Contender], tuple[Any, ...]]] = {
            "atento float32": (OurEncoder, (folder, "float32")),
            "atento bfloat16": (OurEncoder, (folder, "bfloat16")),
        }
        if importlib.util.find_spec("sentence_transformers") is None:
            yield {"bench": "encoding", "who": _PEER, "skipped": "pip install sentence-transformers"}
        else:
            contenders[_PEER] = (SentenceTransformers, (folder,))
        if any(importlib.util.find_spec(one) is None for one in ("onnx", "onnxruntime", "transformers")):
            yield {"bench": "encoding", "who": "onnxruntime", "skipped": "pip install onnx onnxruntime transformers"}
        else:
            with Side(OnnxExport) as export:
                export.run((folder, config, Path(name) / "onnx"))
            for kind in ("float32", "int8"):
                contenders[f"onnxruntime {kind}"] = (OnnxRuntime, (folder, Path(name) / "onnx" / f"{kind}.onnx"))
        yield about("encoding", size, ("transformers", "sentence_transformers", "onnxruntime"))
        sides = {who: stack.enter_context(Side(kind, *given)) for who, (kind, given) in contenders.items()}
        turns = take_turns(sides, texts, seconds, rounds, warm=texts[:32])
        yield from _rows(turns, texts, Tokenizer.load(folder))


def natural_sentences(count: int, config: NetworkConfig, seed: int = 1) -> list[str]:
    """Random words, lengths log-normal with median 24 and at most what the network reads with its two signs."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(24 * rng.lognormal(0, 0.5, count), 3, config.max_len - 2).astype(int)
    words = vocabulary(config.vocab_size, ())
    return [" ".join(words[place] for place in rng.integers(104, config.vocab_size, length)) for length in lengths]


def _read(file: Path, count: int) -> list[str]:
    found = [line for line in read_lines(file) if line.strip()][:count]
    if not found:
        raise UsageError(f"{file} has no sentence")
    return found


def padding(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """The share of computed tokens that are padding, each batch as wide as its longest row."""
    computed = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    return 1 - sum(lengths) / computed


def off(vectors: Vectors, expected: Vectors) -> float:
    """The largest distance of a vector from the expected one, over the expected one's norm."""
    distance = np.linalg.norm(vectors - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(distance.max())


def _rows(turns: Mapping[str, list[Turn]], texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    lengths = [len(tokenizer.with_specials(ids)[0]) for ids in tokenizer.encode_batch(list(texts))]
    ours = padding(lengths, list(by_length(lengths, BATCH_TOKENS)))
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))  # sentence-transformers counts letters
    theirs = padding(lengths, [order[at : at + PEER_BATCH] for at in range(0, len(order), PEER_BATCH)])
    expected = turns["atento float32"][0].result
    for who, own in turns.items():
        error = off(own[0].result, expected)
        if who.endswith("float32") and not error <= _EXACT:
            raise AtentoError(f"{who} gives vectors that are {error:.2g} of their norm off ours: it does other work")
        yield {
            "bench": "encoding",
            "who": who,
            "sentences_per_second": round(len(texts) / best(own), 1),
            "middle_round": round(len(texts) / middle(own), 1),
            "real_tokens_per_second": round(sum(lengths) / best(own)),
            "padding": round(theirs if who == _PEER else ours, 4),
            "peak_mib": peak(own),
            "rounds": len(own),
            "off_by": float(f"{error:.2g}"),
        }
    for who in ("atento float32", "atento bfloat16"):
        for peer in turns:
            if not peer.startswith("atento"):
                yield {
                    "bench": "encoding",
                    "who": who,
                    "ratio_to": peer,
                    "ratio": round(best(turns[peer]) / best(turns[who]), 2),
                    "by_middle_rounds": round(middle(turns[peer]) / middle(turns[who]), 2),
                }
