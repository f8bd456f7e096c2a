"""One text through one model: its tokens on every side, the weights of all heads, and the vectors between layers."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from atento.base.errors import UsageError
from atento.data.batches.special_tokens import begin_of_outputs, special_tokens_of
from atento.decoding.trace import Run
from atento.decoding.trace import Trace as SearchTrace
from atento.inspection import AttentionRecord
from atento.inspection.figures.attention_map import kind_name
from atento.inspection.layer_streams import streams
from atento.inspection.maps import Side
from atento.model import Model
from atento.networks import Decoder, Encoder, EncoderDecoder, RecurrentLM, RecurrentSeq2Seq
from atento.tasks.attention_records import record_of_ids
from atento.tasks.task_model import tokenizer_of
from atento.text.tokenizer import Tokenizer
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Fields, Row
from atento_serve.studio.reasons import why_no_attention
from atento_serve.studio.shelf import Shelf, Values

Spans = list[tuple[int, int] | None]


class TextFields(Fields):
    """A text for a model.

    `target` is the output of one that reads a source, by default what it writes; `second` the second text, or the
    question, of one that reads two; `spans` the words that are masked, as [start, end] in characters.
    """

    model: str
    text: str
    target: str | None = None
    second: str = ""
    spans: Row[Row[int]] | None = None


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side, with their ids and the characters of the text that they stand for."""

    side: Side
    ids: list[int]
    spans: Spans

    def shown(self) -> Values:
        """As plain data: tokens and words as [label, start, end, special], in tokens."""
        lists = {"tokens": self.side.single_groups(), "words": self.side.groups()}
        groups = {name: [[one.label, one.start, one.end, one.special] for one in row] for name, row in lists.items()}
        return {**groups, "ids": self.ids, "spans": self.spans}


@dataclass(frozen=True)
class Trace:
    """A text and what became of it; `sides` by name: "source", "target" (what a decoder reads), "output"."""

    record: AttentionRecord | None
    sides: dict[str, Tokens]
    target: str | None
    # "encoder" or "decoder" -> the vectors (T,D) before and after each layer
    streams: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its weights and vectors."""
        layers = [] if self.record is None else self.record.kinds.values()
        vectors = sum(layer.nbytes for stack in self.streams.values() for layer in stack)
        return vectors + sum(layer.nbytes for kind in layers for layer in kind)

    def shown(self) -> Values:
        """As plain data, without a weight."""
        sides = {name: tokens.shown() for name, tokens in self.sides.items()}
        return {"sides": sides, "kinds": self._kinds(), "target": self.target}

    def _kinds(self) -> Values:
        record = self.record
        if record is None:
            return {}
        return {
            kind: {
                "name": kind_name(record, kind),
                "mask": record.masks.get(kind, ""),
                "heads": [len(layer) for layer in layers],
                "rows": self._side_of(kind, rows=True),
                "columns": self._side_of(kind, rows=False),
            }
            for kind, layers in record.kinds.items()
        }

    def _side_of(self, kind: str, *, rows: bool) -> str:
        """The name of the side of the queries of a kind, or of its keys."""
        if kind == "cross":
            return "output" if rows else "source"
        return "target" if kind == "decoder" and "target" in self.sides else "source"


def last_run(trace: SearchTrace) -> Run:
    """The last run of a search. Raises UsageError: nothing was searched for."""
    if not trace.runs:
        raise UsageError("nothing is searched for: a text without words is its own translation")
    return trace.runs[-1]


def trace_of(shelf: Shelf, fields: TextFields) -> Trace:
    """The trace of a text, kept while there is room.

    Raises:
        TooLong: it has more tokens than are read. UsageError: it is blank, or the model reads no text.
    """

    def make() -> tuple[Trace, int]:
        model = shelf.model(fields.model)
        shelf.check_text(model, " ".join(filter(None, (fields.text, fields.second))), fields.target or "")
        trace = _trace(model, fields)
        return trace, trace.size

    def named(target: str | None) -> tuple[object, ...]:
        return "trace", fields.model, fields.text, target, fields.second, fields.spans

    trace = shelf.kept(make, *named(fields.target))
    # a page that was told what the model writes gives it back as the target
    return trace if trace.target == fields.target else shelf.kept(lambda: (trace, 0), *named(trace.target))


def masked_text(model: Model, text: str, spans: list[list[int]]) -> str:
    """A text with a mask of the model in the place of each span [start, end]."""
    mask = tokenizer_of(model).specials.roles.get("mask")
    masked, behind = "", 0
    for number, span in enumerate(sorted(spans)):
        if len(span) != 2 or not behind <= span[0] < span[1] <= len(text):
            raise wrong_field("/spans", f"each span must be [start, end] within the text, apart: got {span}")
        masked += text[behind : span[0]] + (str(mask) if mask else f"<extra_id_{number}>")
        behind = span[1]
    return masked + text[behind:]


def _read(model: Model, fields: TextFields) -> tuple[list[int], list[int]]:
    """The ids that a model reads, and their segments, which are empty where there is one text."""
    tokenizer, network = tokenizer_of(model), model.network
    template = None if isinstance(network, EncoderDecoder | RecurrentSeq2Seq) else model.config.get("template")
    special = special_tokens_of(network.config, tokenizer, template)
    masked = masked_text(model, fields.text, fields.spans) if fields.spans else ""
    ids = tokenizer.encode_with_mask(masked) if masked else tokenizer.encode(fields.text)
    if not fields.second:
        return special.apply(ids)[0], []
    second = tokenizer.encode(fields.second)
    # a question stands before what answers it
    return special.apply(second, ids) if verbs_of(model)[:1] == ["answer"] else special.apply(ids, second)


def run_pass(model: Model, fields: TextFields, target: str | None) -> AttentionRecord | None:
    """One forward pass over a text and its target: the attention weights, if the model has any."""
    network = model.network
    if why_no_attention(model) is None:
        if isinstance(network, Encoder | Decoder) and (fields.second or fields.spans):
            ids, segments = _read(model, fields)
            return record_of_ids(model, ids, segments=segments if any(segments) else ())
        return model.attend(fields.text, target)
    if isinstance(network, RecurrentLM | RecurrentSeq2Seq):
        rows = [_read(model, fields)[0], *([] if target is None else [_target(model, target)[:-1]])]
        with torch.inference_mode():
            network(*(torch.tensor([row], device=model.device) for row in rows), project=False)
    return None


def _target(model: Model, target: str) -> list[int]:
    """The ids of a target between those that begin and end it."""
    config = model.network.config
    ids = tokenizer_of(model).target.encode(target)
    return [config.start_id, *begin_of_outputs(config), *ids, config.eos_id]


def _trace(model: Model, fields: TextFields) -> Trace:
    tokenizer, text, target = tokenizer_of(model), fields.text, fields.target
    if isinstance(model.network, EncoderDecoder | RecurrentSeq2Seq) and target is None:
        target = model.traced(text)[0][0].text
    with streams(model.network) as seen:
        record = run_pass(model, fields, target)
    vectors = {kind: [layer[0].float().cpu() for layer in layers] for kind, layers in seen.items()}
    source = _read(model, fields)[0]
    if target is None:
        side = None if record is None else Side(record.tokens, record.words, record.special)
        return Trace(record, {"source": _tokens(tokenizer, text, source, side)}, None, vectors)
    ids = _target(model, target)
    sides: list[Side | None] = [None, None, None]
    if record is not None:  # its own sides: by their words its weights are merged
        sides = [
            Side(record.source_tokens, record.source_words, record.source_special),
            Side(record.tokens, record.words, record.special),
            Side(record.output_tokens, record.output_words, record.output_special),
        ]
    named = {
        "source": _tokens(tokenizer, text, source, sides[0]),
        "target": _tokens(tokenizer.target, target, ids[:-1], sides[1], added=1),
        "output": _tokens(tokenizer.target, target, ids[1:], sides[2]),
    }
    return Trace(record, named, target, vectors)


def _tokens(tokenizer: Tokenizer, text: str, ids: list[int], side: Side | None, added: int = 0) -> Tokens:
    """The tokens with these ids.

    Args:
        side: as the record has them; None: there is no record.
        added: how many of them stand before those of the text, at least.
    """
    encoded = tokenizer.encode_with_offsets(text)
    size = len(encoded.ids)
    # nowhere: none is of the text
    front = next((at for at in range(added, len(ids)) if ids[at : at + size] == encoded.ids), len(ids))
    inside = range(front, front + size)
    spans: Spans = [encoded.offsets[at - front] if at in inside else None for at in range(len(ids))]
    if side is None:
        numbers = [-1 if word is None else word for word in tokenizer.words(ids).index]  # -1: of no word
        side = Side(tokenizer.tokens(ids), numbers, [at not in inside for at in range(len(ids))])
    return Tokens(side, ids, spans)
