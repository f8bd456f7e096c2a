"""The form of a task: the fields of its records, what learns it and how, what scores it, how it is used."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atento.config.tables.head_kinds import HEAD_KINDS, HeadName
from atento.config.tables.verbs import VERBS
from atento.metrics.score import Outputs

Kind = Literal["text", "class", "number", "classes", "words", "tags", "spans"]
"""Of a field; `atento.data.records.values` has their values."""


@dataclass(frozen=True)
class Field:
    """A field of a task's records: the key of a recipe's source that names its column, and its kind."""

    name: str  # the key
    kind: Kind = "text"  # what its values are
    optional: bool = False  # whether records may lack it
    only_training: bool = False  # whether records for validation and test may lack it though those of training have it


@dataclass(frozen=True)
class TaskSpec:
    """One task: its records, what can learn it and how, what scores it, how it is used."""

    fields: tuple[Field, ...]  # of its records
    architectures: tuple[str, ...]  # the networks that can learn it; `why`: the reason
    why: str
    objective: str  # the usual one; a recipe's `objective` may name others
    # kinds of heads that are added to the network, with the labels of the training data
    heads: tuple[HeadName, ...] = ()
    # what a model of it gives, which decides the metrics that apply (`atento.metrics.metric_table`)
    outputs: Outputs | None = None
    metrics: tuple[str, ...] = ()  # the usual ones; the first decides which checkpoint is best
    evaluated: tuple[str, ...] = ()  # the metrics of `atento evaluate`, if they differ
    plain_metrics: tuple[str, ...] = ()  # the usual ones where the tags of the data are plain, and name no entities
    scored_metrics: tuple[str, ...] = ()  # the usual ones where the records have a score
    # whether it trains the vectors of texts. They are pooled as the recipe's `embedding` says, and heads of the initial
    # model that no objective trains are left out
    vectors: bool = False
    perplexity: bool = False  # whether a validation gives the perplexity
    # the method of `atento.Model`, and the command, that use such a model (`atento.config.tables.verbs`)
    verb: str | None = None
    template: str | None = None  # the special tokens around its texts, where the tokenizer has none of its own
    special_tokens: int = 1  # how many of them a text has
    targets: str = "tokens"  # what its targets are called in messages
    reads_words: bool = False  # whether it reads whole words, so that the tokenizer must be of that kind
    # the field whose equal values make one example of several records, which are not parted
    grouped_by: str | None = None
    several_tasks: bool = False  # whether its records are of several tasks, which differ in the length of their targets
    # a key of a recipe, or a section of it -> why it has no effect
    unused: Mapping[str, str] = field(default_factory=dict)
    # keys of a recipe whose defaults differ from the usual ones
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether a model of it writes texts."""
        return self.verb is not None and VERBS[self.verb].writes

    @property
    def joins_others(self) -> bool:
        """Whether it can be one of several tasks over one encoder: it labels or rates texts, or tags words."""
        return bool(self.heads) and self.grouped_by is None and HEAD_KINDS[self.heads[0]] != "span"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its fields."""
        return tuple(field.name for field in self.fields)

    @property
    def without_effect(self) -> Mapping[str, str]:
        """`unused`, and the section of a recipe that only tasks of vectors read."""
        samples = {} if self.writes else {"training.samples": "this task writes no text"}
        return {**self.unused, **samples, **({} if self.vectors else {"embedding": "it is for the task embedding"})}

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the fields that hold text or words, from which a tokenizer learns."""
        return tuple(field.name for field in self.fields if field.kind in ("text", "words"))

    @property
    def records(self) -> str:
        """Return the plural noun of its records in messages: "pairs", "texts" or "examples"."""
        return {("source", "target"): "pairs", ("text",): "texts"}.get(self.columns, "examples")
