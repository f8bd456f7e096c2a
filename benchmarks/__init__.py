"""Benchmarks beside other libraries, by name: `atento bench` finds them in a clone; they are not installed."""

from collections.abc import Callable, Iterator

from benchmarks.agreement import measure_agreement
from benchmarks.attention import measure_attention
from benchmarks.data import measure_data
from benchmarks.decoding import measure_decoding
from benchmarks.decoding_parts import measure_parts
from benchmarks.draft import measure_draft
from benchmarks.encoding import measure_encoding
from benchmarks.families import measure_families
from benchmarks.finetuning import measure_finetuning
from benchmarks.generation import measure_generation
from benchmarks.graphs import measure_graphs
from benchmarks.labelling import measure_labelling
from benchmarks.mbr import measure_mbr
from benchmarks.observation import measure_observation
from benchmarks.parsers import measure_parsers
from benchmarks.pretraining import measure_pretraining
from benchmarks.replicas import measure_processes
from benchmarks.serving import measure_serving
from benchmarks.sharing import measure_sharing
from benchmarks.sizing import measure_sizing
from benchmarks.small import measure_small
from benchmarks.training import measure_training
from benchmarks.words import measure_words

BENCHES: dict[str, Callable[..., Iterator[dict[str, object]]]] = {
    "agreement": measure_agreement,
    "training": measure_training,
    "pretraining": measure_pretraining,
    "processes": measure_processes,
    "data": measure_data,
    "parsers": measure_parsers,
    "families": measure_families,
    "finetuning": measure_finetuning,
    "words": measure_words,
    "sharing": measure_sharing,
    "decoding": measure_decoding,
    "parts": measure_parts,
    "generation": measure_generation,
    "draft": measure_draft,
    "graphs": measure_graphs,
    "encoding": measure_encoding,
    "labelling": measure_labelling,
    "serving": measure_serving,
    "sizing": measure_sizing,
    "small": measure_small,
    "mbr": measure_mbr,
    "attention": measure_attention,
    "observation": measure_observation,
}
REPORTS: dict[str, Callable[..., object]] = {}  # all are read row by row
