"""Faults planted in training, pretraining and figures; and the rows that have none, with the reason (W20)."""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from atento.attention.multihead import MultiHeadAttention
from atento.config.sections.mixing import MixingConfig
from atento.data.batches import masking
from atento.data.objectives.next_sentence import FOLLOWS, NextSentence
from atento.data.objectives.prefix import Prefix
from atento.data.objectives.span_boundary import SpanBoundary
from atento.decoding.beam import groups as beam
from atento.networks.recurrent.cells import RecurrentStack
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_positions import InputLayer
from atento_cli.suites.scores import SuiteResult
from atento_lab.notes.checks import pretraining_drawn
from atento_lab.notes.checks.text_to_text import NEW, PREFIXES, UNSEEN
from atento_lab.notes.table import ROWS
from planting import Fault, Patch, assert_seen, everywhere, wrapped
from test_notes_faults import FAULTS as FAULTS_OF_NETWORKS
from test_notes_faults import prefix_one_too_short
from test_notes_faults_text import FAULTS as FAULTS_OF_TEXT
from test_notes_rows import SABOTAGE

span_corruption: Any = import_module("atento.data.objectives.span_corruption")  # a function of the package has its name


def keys_given_for_queries(patch: Patch) -> None:
    def weights(right: Any, self: Any) -> Any:
        return (named := right(self)) | {"query": named["key"]}

    wrapped(patch, MultiHeadAttention, "head_weights", weights)


def outputs_centred_over_tokens(patch: Patch) -> None:
    def forward(right: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        output, weights = right(self, *arguments, **named)
        return output - output.mean(dim=1, keepdim=True), weights

    wrapped(patch, MultiHeadAttention, "forward", forward)


def texts_cut_at_256(patch: Patch) -> None:
    def forward(right: Any, self: Any, x: Any, *arguments: Any, **named: Any) -> Any:
        return right(self, x, *arguments, **named)[:, :256]

    wrapped(patch, Stack, "forward", forward)


def steps_forget_the_state(patch: Patch) -> None:
    def step(right: Any, self: Any, x: Any, layers: Any, *rest: Any) -> Any:
        return right(self, x, [tuple(torch.zeros_like(part) for part in layer) for layer in layers], *rest)

    wrapped(patch, RecurrentStack, "step", step)


def next_and_random_exchanged(patch: Patch) -> None:
    def batch(right: Any, self: Any, *arguments: Any) -> Any:
        found = right(self, *arguments)
        return replace(found, labels={**found.labels, FOLLOWS: 1 - found.labels[FOLLOWS]})

    wrapped(patch, NextSentence, "batch", batch)


def spans_shorter(patch: Patch) -> None:
    patch.setattr(masking, "_SPAN_LENGTHS", np.cumsum(0.7 ** np.arange(10)))


def boundaries_exchanged(patch: Patch) -> None:
    def batch(right: Any, self: Any, *arguments: Any) -> Any:
        extras = (found := right(self, *arguments)).extras
        return replace(found, extras={**extras, "span left": extras["span right"], "span right": extras["span left"]})

    wrapped(patch, SpanBoundary, "batch", batch)


def no_last_sentinel(patch: Patch) -> None:
    right = span_corruption.corrupt

    def corrupt(*arguments: Any) -> Any:
        source, target = right(*arguments)
        return source, target[:-1]

    everywhere(patch, right, corrupt)


def loss_within_the_prefix(patch: Patch) -> None:
    def batch(right: Any, self: Any, *arguments: Any) -> Any:
        found = right(self, *arguments)
        following = found.inputs["ids"].roll(-1, dims=1)
        return replace(
            found, labels={"vocabulary": found.labels["vocabulary"].where(found.labels["vocabulary"] >= 0, following)}
        )

    wrapped(patch, Prefix, "batch", batch)


def temperature_ignored(patch: Patch) -> None:
    def rates(right: Any, self: Any, sizes: Any) -> Any:
        return right(replace(self, temperature=1.0) if self.kind == "temperature" else self, sizes)

    wrapped(patch, MixingConfig, "rates", rates)


def without_wnli_always(patch: Patch) -> None:
    wrapped(patch, SuiteResult, "_average", lambda right, self, seed, without=None: right(self, seed, "WNLI"))


def one_hypothesis(patch: Patch) -> None:
    patch.setattr(beam.Group, "slots", property(lambda group: 1))


def segments_forgotten(patch: Patch) -> None:
    def forward(right: Any, self: Any, x: Any, offset: int = 0, **named: Any) -> Any:
        return right(self, x, offset, **named | {"segment_ids": None})

    wrapped(patch, InputLayer, "forward", forward)


def losses_averaged_over_heads(patch: Patch) -> None:
    right = pretraining_drawn.losses

    def averaged(*arguments: Any) -> Any:
        return {head: tuple(part / 2 for part in parts) for head, parts in right(*arguments).items()}

    everywhere(patch, right, averaged)


def untrained_texts_to_texts(patch: Patch) -> None:
    """The two networks of J11, which take seconds to train, say what they would."""
    pair = " ".join(UNSEEN[0])
    right = {f"{prefix}{pair}": answer(*UNSEEN[0]) for prefix, answer in PREFIXES.items()}

    def model(of_new: str) -> Any:
        said = right | {NEW + pair: of_new}
        return SimpleNamespace(
            generate=lambda texts: said[texts] if isinstance(texts, str) else [said[t] for t in texts]
        )

    patch.setattr(pretraining_drawn, "prefixed", lambda: model("praia"))
    patch.setattr(pretraining_drawn, "fine_tuned", lambda: model(pair))


FAULTS: list[tuple[Fault, str]] = [
    (keys_given_for_queries, "A2"),
    (outputs_centred_over_tokens, "A12"),
    (texts_cut_at_256, "C3"),
    (steps_forget_the_state, "C12"),
    (next_and_random_exchanged, "E4"),
    (spans_shorter, "E5"),
    (boundaries_exchanged, "E5"),
    (no_last_sentinel, "E6"),
    (no_last_sentinel, "J11"),
    (prefix_one_too_short, "J11"),
    (loss_within_the_prefix, "E7"),
    (temperature_ignored, "F10"),
    (without_wnli_always, "G9"),
    (one_hypothesis, "J7"),
    (segments_forgotten, "J10"),
    (losses_averaged_over_heads, "J10"),
]
_TRAINS = "trains its own networks for seconds; "
UNPLANTED = {
    "B12": _TRAINS + "positions are those of B1 and B8, padding that of test_notes_summaries.py",
    "B14": _TRAINS + "positions are those of B1, B5 and B8",
    "C13": _TRAINS + "the attention is that of A5 and A10",
    "F4": "its numbers are read from the journal of one shared run; test_schedule.py has the schedules by formula",
    "F6": _TRAINS + "layer mixes are those of C14",
    "F7": "test_notes_faults.py plants one in the part of the row on chosen layers",
    "F9": _TRAINS + "the loss is that of E8",
    "F11": _TRAINS + "test_search_parts.py has the strategies",
    "G1": _TRAINS + "the report is that of I5",
    "G2": _TRAINS + "test_filling.py of parity has the candidates of transformers",
    "G4": _TRAINS + "test_metrics_seqeval.py has the scores",
    "G5": _TRAINS + "its scores are those of I4",
    "G7": _TRAINS + "ROUGE is that of I2",
    "G8": _TRAINS + "test_embedding.py has the poolings by hand",
    "J6": "drawn from one shared network; top-k is that of H4",
    "J8": _TRAINS + "the alignment is that of A10",
    "K6": _TRAINS + "the report is that of I5",
    "L6": _TRAINS + "the objective is that of E4",
    "L8": _TRAINS + "it is the classifier of K6",
}


@pytest.mark.parametrize(("fault", "row"), FAULTS, ids=[f"{fault.__name__}-{row}" for fault, row in FAULTS])
def test_w20_a_planted_fault_is_seen_by_its_row(monkeypatch: Patch, fault: Fault, row: str) -> None:
    if row == "J11":
        untrained_texts_to_texts(monkeypatch)
        assert ROWS[row].check().passed
    fault(monkeypatch)
    assert_seen(fault, row, breaks=())


def test_w20_every_row_has_a_planted_fault_or_says_why_not() -> None:
    """The next row of the table needs a fault that its check notices, or a reason here."""
    planted = {row for _, row in [*FAULTS_OF_NETWORKS, *FAULTS_OF_TEXT, *FAULTS]}
    planted |= {row for _, rows in SABOTAGE for row in rows}
    assert planted | UNPLANTED.keys() == ROWS.keys()
    assert not planted & UNPLANTED.keys() and all(UNPLANTED.values())
