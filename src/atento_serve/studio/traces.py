"""One text through one model: its tokens on every side, and the attention weights of all layers and heads."""

from dataclasses import dataclass

from atento.data.batches.special_tokens import begin_of_outputs, special_tokens_of
from atento.decoding.trace import Run
from atento.decoding.trace import Trace as SearchTrace
from atento.errors import UsageError
from atento.inspection import AttentionRecord
from atento.inspection.figures.attention_map import kind_name
from atento.inspection.maps import Side
from atento.model import Model
from atento.networks import EncoderDecoder, RecurrentSeq2Seq
from atento.tasks.task_model import tokenizer_of
from atento.text.tokenizer import Tokenizer
from atento_serve.http.fields import Fields
from atento_serve.studio.reasons import why_no_attention
from atento_serve.studio.shelf import Shelf, Values

Spans = list[tuple[int, int] | None]


class TextFields(Fields):
    """A text for a model; `target` is the output of one that reads a source, by default what it writes."""

    model: str
    text: str
    target: str | None = None


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

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        layers = [] if self.record is None else self.record.kinds.values()
        return sum(layer.nbytes for kind in layers for layer in kind)

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
        shelf.check_text(model, fields.text, *([] if fields.target is None else [fields.target]))
        trace = _trace(model, fields.text, fields.target)
        return trace, trace.size

    return shelf.kept(make, "trace", fields.model, fields.text, fields.target)


def _trace(model: Model, text: str, target: str | None) -> Trace:
    tokenizer, network, config = tokenizer_of(model), model.network, model.config
    writes = isinstance(network, EncoderDecoder | RecurrentSeq2Seq)
    if writes and target is None:
        target = model.traced(text)[0][0].text
    record = None if why_no_attention(model) else model.attend(text, target)
    template = None if writes else config.get("template")
    source = special_tokens_of(network.config, tokenizer, template).apply(tokenizer.encode(text))[0]
    if target is None:
        side = None if record is None else Side(record.tokens, record.words, record.special)
        return Trace(record, {"source": _tokens(tokenizer, text, source, side)}, None)
    written = [*begin_of_outputs(network.config), *tokenizer.target.encode(target)]
    read = [network.config.start_id, *written]
    sides: list[Side | None] = [None, None, None]
    if record is not None:  # its own sides: by their words its weights are merged
        sides = [
            Side(record.source_tokens, record.source_words, record.source_special),
            Side(record.tokens, record.words, record.special),
            Side(record.output_tokens, record.output_words, record.output_special),
        ]
    named = {
        "source": _tokens(tokenizer, text, source, sides[0]),
        "target": _tokens(tokenizer.target, target, read, sides[1], added=1),
        "output": _tokens(tokenizer.target, target, [*written, network.config.eos_id], sides[2]),
    }
    return Trace(record, named, target)


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
