"""Benchmarks against other libraries, by name."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from atento.bench.attention import measure_attention
from atento.bench.data import measure_data
from atento.bench.decoding import measure_decoding
from atento.bench.decoding_parts import measure_parts
from atento.bench.draft import measure_draft
from atento.bench.encoding import measure_encoding
from atento.bench.families import measure_families
from atento.bench.finetuning import measure_finetuning
from atento.bench.generation import measure_generation
from atento.bench.graphs import measure_graphs
from atento.bench.labelling import measure_labelling
from atento.bench.mbr import measure_mbr
from atento.bench.observation import measure_observation
from atento.bench.parsers import measure_parsers
from atento.bench.pretraining import measure_pretraining
from atento.bench.race import measure_race
from atento.bench.race_report import report_race
from atento.bench.recurrence import measure_recurrence
from atento.bench.replicas import measure_processes
from atento.bench.serving import measure_serving
from atento.bench.sharing import measure_sharing
from atento.bench.sizing import measure_sizing
from atento.bench.training import measure_training
from atento.bench.transfer import measure_transfer, report_transfer
from atento.bench.words import measure_words
from atento.laboratory.exposure import measure_exposure
from atento.laboratory.exposure_report import report_exposure
from atento.laboratory.laboratory import measure_positions
from atento.laboratory.report import Report, report_positions

BENCHES: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "training": measure_training,
    "pretraining": measure_pretraining,
    "processes": measure_processes,
    "data": measure_data,
    "parsers": measure_parsers,
    "families": measure_families,
    "finetuning": measure_finetuning,
    "words": measure_words,
    "recurrence": measure_recurrence,
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
    "mbr": measure_mbr,
    "attention": measure_attention,
    "observation": measure_observation,
    "positions": measure_positions,
    "exposure": measure_exposure,
    "transfer": measure_transfer,
    "race": measure_race,
}

# measurements whose rows are better read as a page, with figures
REPORTS: dict[str, Callable[[Sequence[dict[str, Any]]], Report]] = {
    "positions": report_positions,
    "exposure": report_exposure,
    "transfer": report_transfer,
    "race": report_race,
}
