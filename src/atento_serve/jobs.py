"""What passes between the HTTP side of the service and its engine: jobs, their events, descriptions; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NotRequired, TypedDict

FailureKind = Literal["request", "template", "too_long", "deadline", "worker", "stopping", "internal"]


@dataclass(frozen=True)
class Job:
    """One request to one model.

    Attributes:
        id: unique among the jobs of an engine.
        model: the name by which the model is served.
        verb: what the model does: a verb of the table of tasks, `align`, `score`, `tokenize` or `detokenize`.
        items: what the verb takes, one for each result: a text, a pair of texts, a list of ids, or a conversation:
            its `messages`, and the `variables` of the chat template.
        options: the options of the verb, as the method of `atento.Model` takes them.
        stream: whether pieces of text are sent as they are written; for one output by greedy search, sampling or a
            beam.
        deadline: the `time.monotonic()` after which the work is dropped.
        log_probs: whether the log-probability of each written token is sent, and how many of the most probable tokens
            beside it; None: not. For verbs that write.
        longest: the most tokens of a text; None: the limit of the service, which also holds.
        truncate: the end that is cut from a longer text, "left" or "right", or "error"; None: as the service says.
        first: the number of the first item in its request, by which errors name items.
        continues: whether its request was accepted with an earlier job, so that it is not refused now.
    """

    id: str
    model: str
    verb: str
    items: Sequence[object]
    options: Mapping[str, object] = field(default_factory=dict)
    stream: bool = False
    deadline: float = inf
    log_probs: int | None = None
    longest: int | None = None
    truncate: str | None = None
    first: int = 0
    continues: bool = False


class Token(TypedDict):
    """A token, its text, the bytes of that (a special token has none), and its log-probability."""

    id: int
    token: str
    bytes: list[int] | None
    log_prob: float


class Entry(Token):
    """A token that was written, and the most probable ones at its place, best first."""

    top: list[Token]


class GeneratedOutput(TypedDict):
    """What a verb that writes gives for an item: each of its outputs; `lead` as `Piece` has it."""

    text: str
    lead: str
    ids: list[int]
    tokens: list[str]
    token_scores: list[float]
    log_prob: float
    finished: bool
    score: NotRequired[float]
    proposed: NotRequired[int]
    accepted: NotRequired[int]
    log_probs: NotRequired[list[Entry]]


@dataclass(frozen=True)
class Piece:
    """A piece of the output for an item, in the order written; `tokens` and `token_scores` are those it completes.

    `log_probs`, if the job asks for them, has an entry for each of these tokens. `lead` is what stands between a prompt
    and the text of an output: a space, if its first token has one that the text has not.
    """

    item: int
    text: str
    token_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    token_scores: list[float] = field(default_factory=list)
    log_probs: list[Entry] = field(default_factory=list)
    lead: str = ""


@dataclass(frozen=True)
class Result:
    """The result for an item: plain data, or a float32 array for a vector."""

    item: int
    value: Any


@dataclass(frozen=True)
class Usage:
    """The last event of a job that succeeded: tokens read, and tokens written (EOS counted), for all items.

    `queue_seconds` is the time that the job waited, `compute_seconds` the time from then to its end.
    """

    prompt_tokens: int
    new_tokens: int
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0


@dataclass(frozen=True)
class Failed:
    """The last event of a job that failed.

    Attributes:
        kind: "request", the model refuses it; "template", the chat template of the model is wrong or passes a limit;
            "too_long", an item has too many tokens; "deadline", it was not done in time; "worker", the process that
            computed it ended; "stopping", the service does not wait for it any longer; "internal", a fault of ours.
        message: one sentence.
    """

    kind: FailureKind
    message: str


Event = Piece | Result | Usage | Failed


@dataclass(frozen=True)
class Description:
    """A loaded model.

    Attributes:
        task, verb: its task, and the verb of that.
        verbs: all that it can do.
        languages: names of a multilingual tokenizer.
        max_length: the most tokens of a text, special ones included, that it reads under the limits of the service; a
            longer text is refused or cut. None: it reads words, of any number.
        max_new_tokens: the most tokens of an output; None: it writes none.
        beam: the width of its own beam search.
        trained_length: the most tokens of a text in training; None: unknown.
        vocabulary, parameters, dtype: of its network.
        width: numbers of its vectors; None: it has none.
        has_chat_template: whether it writes the answers of conversations.
        labels: of its head; `multi_label`: a text may have several.
        heads: the task of each of several heads, by its name.
        pairs: whether it reads pairs of texts; None: unknown.
        gives_number: whether `similarity` is the number of a regression head, not a cosine.
        mask_token: the token that `fill` replaces.
        search_prompts: the names of the prompts of a query and of documents; None: it has no such prompt.
        path: where it was loaded from.
    """

    task: str
    verb: str
    verbs: list[str]
    languages: list[str] = field(default_factory=list)
    max_length: int | None = None
    max_new_tokens: int | None = None
    beam: int = 1
    trained_length: int | None = None
    vocabulary: int | None = None
    parameters: int = 0
    dtype: str = "float32"
    width: int | None = None
    has_chat_template: bool = False
    labels: list[str] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)
    multi_label: bool = False
    pairs: bool | None = None
    gives_number: bool = False
    mask_token: str | None = None
    search_prompts: tuple[str | None, str | None] = (None, None)
    path: str = ""


@dataclass(frozen=True)
class Stats:
    """Numbers of one model's work, for metrics.

    Attributes:
        queue: jobs that wait.
        in_flight: jobs that were accepted and have not ended, the waiting ones included.
        batches: size of a batch or step -> how many there were since the start.
        tokens: "prompt" and "new" -> how many since the start.
        restarts: how often a worker was replaced because it ended.
        rate: jobs that ended, a second, over the last seconds.
    """

    queue: int
    in_flight: int
    batches: dict[int, int]
    tokens: dict[str, int]
    restarts: int
    rate: float


class QueueFull(Exception):
    """The queue of a model is full; `retry_after` is the number of seconds until it may have room."""

    def __init__(self, model: str, retry_after: float) -> None:
        self.model, self.retry_after = model, retry_after
        super().__init__(f"the queue of the model {model!r} is full")
