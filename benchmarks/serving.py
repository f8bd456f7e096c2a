"""The service under load compared with other servers: requests a second and latency by clients."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atento.base.errors import AtentoError, UsageError, nearest
from atento.config.sections.network import NetworkConfig
from atento.data.files.source_lines import read_lines
from atento.model import load
from benchmarks.processes import about
from benchmarks.serving_comparison import Comparison
from benchmarks.serving_models import BERT, GPT2, MINILM, TRANSLATOR, texts_for, tiny, write_served
from benchmarks.serving_sides import PEERS, Server, Setting, interpreter_with, ours

PRECISIONS = ("float32", "bfloat16", "int8")  # of our servers
_MOST_TOKENS = 64  # of an output of a trained model
_PACKAGES = ("transformers", "sentence_transformers", "ctranslate2", "fastapi")


@dataclass(frozen=True)
class Workload:
    """What is asked of a model of random weights.

    Attributes:
        verb: of our task table.
        network: the model.
        words: the median of words in a text.
        new_tokens: of each output, exactly; at most, with a trained model.
        beam: 1 is greedy search.
        clients: how many there are, one number after the other.
        eight_bits: measure only the servers in 8 bits.
        workers: processes of Atento's that compute the model; a small one gains by several.
    """

    verb: str
    network: NetworkConfig
    words: int = 24
    new_tokens: int = 0
    beam: int = 1
    clients: tuple[int, ...] = (1, 8, 64)
    eight_bits: bool = False
    workers: int = 1


WORKLOADS = {
    "embed-minilm": Workload("embed", MINILM),
    "embed-bert": Workload("embed", BERT),
    "classify-bert": Workload("classify", BERT),
    "translate-greedy": Workload("translate", TRANSLATOR, words=12, new_tokens=16, workers=2),
    "translate-beam-4": Workload("translate", TRANSLATOR, words=12, new_tokens=16, beam=4, workers=2),
    "generate-gpt2": Workload("generate", GPT2, new_tokens=32),
    "generate-8-bits": Workload("generate", GPT2, new_tokens=32, clients=(1, 16), eight_bits=True),
}


def measure_serving(
    seconds: float,
    *,
    workloads: Sequence[str] | None = None,
    peers_python: str | Path | None = None,
    clients: Sequence[int] | None = None,
    size: str | None = None,
    model: str | None = None,
    sources: Path | None = None,
) -> Iterator[dict[str, object]]:
    """Yield for each workload how far the servers agree, a row for each server and number of clients, and the ratios.

    Each client sends its next request when it has the answer to the last one. Servers run one after the other, each
    alone, with as many threads as this process; the clients run in this process on the same cores.

    Args:
        seconds: about how long each server is measured, all numbers of clients together.
        workloads: names in `WORKLOADS`; None: all.
        peers_python: the interpreter of an environment that has further servers.
        clients: numbers of clients, ascending; None: those of the workload.
        size: "tiny": small networks, to try the command.
        model: a trained translation model, which writes until its sentences end, instead of random weights.
        sources: a file with a sentence a line for `model`.

    Raises:
        UsageError: no such workload, or one that does not translate with a `model`, or a `model` without `sources`.
        AtentoError: our server does not start, or answers with an error; a peer that does so is skipped.
    """
    trained = _trained(model, sources)
    names = [name for name in WORKLOADS if trained is None or _translates(name)] if workloads is None else workloads
    for name in names:
        if name not in WORKLOADS:
            raise UsageError(f"unknown workload {name!r}{nearest(name, list(WORKLOADS))}")
        if trained is not None and not _translates(name):
            raise UsageError(f"the workload {name!r} has its own model: --model is for those that translate")
    yield about("serving", size or "full", _PACKAGES)
    for name in names:
        work = WORKLOADS[name]
        work = replace(work, network=tiny(work.network) if size == "tiny" else work.network)
        work = work if clients is None else replace(work, clients=tuple(clients))
        work = work if trained is None else replace(work, new_tokens=_MOST_TOKENS)
        pythons = [sys.executable, *([] if peers_python is None else [str(peers_python)])]
        for row in _rows(work, seconds, pythons, trained):
            yield {"bench": "serving", "workload": name} | row


def _translates(workload: str) -> bool:
    return WORKLOADS[workload].verb == "translate"


def _trained(model: str | None, sources: Path | None) -> tuple[str, list[str]] | None:
    """A trained model and the texts for it; None: random weights."""
    if (model is None) != (sources is None):
        raise UsageError("give --model and --sources together: a translation model, and sentences for it")
    if model is None or sources is None:
        return None
    texts = [line for line in read_lines(sources) if line.strip()]
    if not texts:
        raise UsageError(f"{sources} has no sentence")
    return model, texts


def _rows(
    work: Workload, seconds: float, pythons: Sequence[str], trained: tuple[str, list[str]] | None
) -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        if trained is None:
            write_served(folder, work.network, work.verb)
            texts = texts_for(work.network, work.words)
        else:
            load(trained[0], device="cpu").save(folder, layout="huggingface")
            texts = trained[1]
        setting = Setting(folder, work.verb, work.new_tokens, work.beam, torch.get_num_threads(), workers=work.workers)
        comparison = Comparison(texts, seconds)
        for who, server, clients in _servers(work, setting, pythons):
            if isinstance(server, str):
                yield {"who": who, "skipped": server}
                continue
            try:
                yield from comparison.measure(who, server, clients)
            except AtentoError as error:
                if who.startswith("atento"):
                    raise
                yield {"who": who, "skipped": str(error)}
        yield from comparison.ratios()


def _servers(
    work: Workload, setting: Setting, pythons: Sequence[str]
) -> Iterator[tuple[str, Server | str, tuple[int, ...]]]:
    """The servers of a workload by name, or how one that is missing is installed, and the numbers of clients.

    The first one computes the answers that are expected of the others, whether it is measured or not.
    """
    for number, peer in enumerate(PEERS[work.verb]):
        measured = not work.eight_bits or peer.eight_bits
        if measured or number == 0:
            python = interpreter_with(peer.packages, pythons)
            clients = work.clients if measured else ()
            if python is None:
                yield peer.name, f"pip install {peer.install}", clients
            else:
                yield peer.name, peer.make(replace(setting, python=python)), clients
    for precision in ("int8",) if work.eight_bits else PRECISIONS:
        yield f"atento {precision}", ours(setting, precision), work.clients
