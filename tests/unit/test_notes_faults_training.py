"""Faults planted in training, pretraining and figures; and the rows that have none, with the reason (W20)."""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from atento.attention.multihead import MultiHeadAttention
from atento.config.sections.mixing import MixingConfig
from atento.data.batches import masking
from atento.data.objectives.causal import Prefix
from atento.data.objectives.masked import FOLLOWS, NextSentence, SpanBoundary
from atento.decoding.beam import groups as beam
from atento.networks.recurrent.cells import RecurrentStack
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_positions import InputLayer
from atento_cli.suites.scores import SuiteResult
from atento_lab.notes.checks import pretraining_drawn
from atento_lab.notes.checks.text_to_text import NEW, PREFIXES, UNSEEN
from atento_lab.notes.table import ROWS
from planting import Fault, Patch, around, assert_seen, by_row, instead, put
from test_notes_faults import FAULTS as FAULTS_OF_NETWORKS
from test_notes_faults_text import FAULTS as FAULTS_OF_TEXT
from test_notes_rows import SABOTAGE

span_corruption: Any = import_module("atento.data.objectives.denoising")  # a function of the package has its name


def outputs_centred_over_tokens(right: Any, *arguments: Any, **named: Any) -> Any:
    output, weights = right(*arguments, **named)
    return output - output.mean(dim=1, keepdim=True), weights


def steps_forget_the_state(right: Any, self: Any, x: Any, layers: Any, *rest: Any) -> Any:
    return right(self, x, [tuple(torch.zeros_like(part) for part in layer) for layer in layers], *rest)


def next_and_random_exchanged(right: Any, *arguments: Any) -> Any:
    found = right(*arguments)
    return replace(found, labels={**found.labels, FOLLOWS: 1 - found.labels[FOLLOWS]})


def boundaries_exchanged(right: Any, *arguments: Any) -> Any:
    extras = (found := right(*arguments)).extras
    return replace(found, extras={**extras, "span left": extras["span right"], "span right": extras["span left"]})


def no_last_sentinel(right: Any, *arguments: Any) -> Any:
    source, target = right(*arguments)
    return source, target[:-1]


def loss_within_the_prefix(right: Any, *arguments: Any) -> Any:
    found = right(*arguments)
    labels, following = found.labels["vocabulary"], found.inputs["ids"].roll(-1, dims=1)
    return replace(found, labels={"vocabulary": labels.where(labels >= 0, following)})


def temperature_ignored(right: Any, self: Any, sizes: Any) -> Any:
    return right(replace(self, temperature=1.0) if self.kind == "temperature" else self, sizes)


def segments_forgotten(right: Any, self: Any, x: Any, offset: int = 0, **named: Any) -> Any:
    return right(self, x, offset, **named | {"segment_ids": None})


def losses_averaged_over_heads(right: Any, *arguments: Any) -> Any:
    return {head: tuple(part / 2 for part in parts) for head, parts in right(*arguments).items()}


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


FAULTS: dict[str, Fault] = {
    "keys_given_for_queries A2": around(
        MultiHeadAttention, "head_weights", lambda right, self: (named := right(self)) | {"query": named["key"]}
    ),
    "outputs_centred_over_tokens A12": around(MultiHeadAttention, "forward", outputs_centred_over_tokens),
    "texts_cut_at_256 C3": around(
        Stack, "forward", lambda right, *arguments, **named: right(*arguments, **named)[:, :256]
    ),
    "steps_forget_the_state C12": around(RecurrentStack, "step", steps_forget_the_state),
    "next_and_random_exchanged E4": around(NextSentence, "batch", next_and_random_exchanged),
    "spans_shorter E5": put(masking, "_SPAN_LENGTHS", np.cumsum(0.7 ** np.arange(10))),
    "boundaries_exchanged E5": around(SpanBoundary, "batch", boundaries_exchanged),
    "no_last_sentinel E6 J11": instead(span_corruption.corrupt, no_last_sentinel),
    "prefix_one_too_short J11": FAULTS_OF_NETWORKS["prefix_one_too_short C18 C10"],
    "loss_within_the_prefix E7": around(Prefix, "batch", loss_within_the_prefix),
    "temperature_ignored F10": around(MixingConfig, "rates", temperature_ignored),
    "without_wnli_always G9": around(
        SuiteResult, "_average", lambda right, self, seed, without=None: right(self, seed, "WNLI")
    ),
    "one_hypothesis J7": put(beam.Group, "slots", property(lambda group: 1)),
    "segments_forgotten J10": around(InputLayer, "forward", segments_forgotten),
    "losses_averaged_over_heads J10": instead(pretraining_drawn.losses, losses_averaged_over_heads),
}
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


@by_row(FAULTS)
def test_w20_a_planted_fault_is_seen_by_its_row(monkeypatch: Patch, fault: Fault, row: str) -> None:
    if row == "J11":
        untrained_texts_to_texts(monkeypatch)
        assert ROWS[row].check().passed
    fault(monkeypatch)
    assert_seen(fault, row, breaks=())


def test_w20_every_row_has_a_planted_fault_or_says_why_not() -> None:
    """The next row of the table needs a fault that its check notices, or a reason here."""
    planted = {row for names in [*FAULTS_OF_NETWORKS, *FAULTS_OF_TEXT, *FAULTS, *SABOTAGE] for row in names.split()[1:]}
    assert planted | UNPLANTED.keys() == ROWS.keys() and not planted & UNPLANTED.keys() and all(UNPLANTED.values())
