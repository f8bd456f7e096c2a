"""`AttentionRecord`: the attention weights of a text in every layer and head, with its tokens."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atento.base.errors import UsageError, nearest
from atento.inspection.figures.attention_map import attention_png, attention_svg
from atento.inspection.head_statistics import HeadReport, describe_head
from atento.inspection.maps import Head, Side, WordWeights
from atento.inspection.page import attention_page
from atento.inspection.standalone import framed, plain
from atento.inspection.word_groups import Matrix, merge_words, strongest_sources
from atento.storage.atomic_files import write_output

KINDS = ("encoder", "decoder", "cross")
NOTEBOOK_WEIGHTS = 1_000_000  # limit of a page inside a notebook, whose file it is saved in: about 6 MB
_SLACK = 0.01  # tolerance for weights in bfloat16


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """Attention weights of one text (docs/notes.md#a9, #a11, #a15).

    Raises:
        UsageError: shapes, lengths or values are not those of attention weights.
    """

    # the input tokens; in an encoder-decoder those of the target. Byte-level pieces are given as text
    tokens: list[str]
    # "encoder", "decoder" or "cross" -> the layers, float32 (H,rows,columns); rows are queries, columns keys
    kinds: dict[str, list[Matrix]] = field(repr=False)
    source_tokens: list[str] = field(default_factory=list)  # the source tokens of an encoder-decoder, else empty
    # the word index of each token, -1 for none; if empty, each token is a word
    words: list[int] = field(default_factory=list, repr=False)
    source_words: list[int] = field(default_factory=list, repr=False)  # the same for source tokens
    # whether each token is special; if empty, tokens of word -1 are
    special: list[bool] = field(default_factory=list, repr=False)
    source_special: list[bool] = field(default_factory=list, repr=False)  # the same for source tokens
    # the token that each decoder row predicts, as many as `tokens`. Rows of cross-attention are then labelled with
    # them, as in alignment figures; with `tokens` if empty
    output_tokens: list[str] = field(default_factory=list)
    output_words: list[int] = field(default_factory=list, repr=False)  # the same as `words` for output tokens
    output_special: list[bool] = field(default_factory=list, repr=False)  # the same as `special` for output tokens
    masks: dict[str, str] = field(default_factory=dict)  # the name of the mask of each kind, such as "causal"
    title: str = ""  # title of the text
    model: str = ""  # name of the model

    def __post_init__(self) -> None:
        for prefix in ("", "source_", "output_"):
            tokens = getattr(self, f"{prefix}tokens")
            words = getattr(self, f"{prefix}words") or list(range(len(tokens)))  # else each token is one
            special = getattr(self, f"{prefix}special") or [word < 0 for word in words]  # -1: in no word
            for name, values in ((f"{prefix}words", words), (f"{prefix}special", special)):
                if len(values) != (count := len(tokens)):
                    each = f"one value for each of {count} {prefix}tokens"
                    raise UsageError(f"`{name}` must have {each}: got {len(values)}")
                object.__setattr__(self, name, list(values))  # the record is frozen once it is made
        count, written = len(self.tokens), len(self.output_tokens)
        if self.output_tokens and written != count:
            raise UsageError(f"`output_tokens` must be as many as `tokens`, {count}: got {written}")
        if not self.kinds:
            raise UsageError("`kinds` must have at least one of encoder, decoder, cross: got none")
        checked: dict[str, list[Matrix]] = {}
        for kind, layers in self.kinds.items():
            if kind not in KINDS:
                raise UsageError(f"unknown kind of attention {kind!r}{nearest(kind, list(KINDS))}")
            if not len(layers):
                raise UsageError(f"`kinds[{kind!r}]` must hold at least one layer: got none")
            rows, columns = self.sides(kind)
            want = (len(rows.tokens), len(columns.tokens))  # (rows, columns)
            checked[kind] = []
            for number, layer in enumerate(layers):
                array, name = np.asarray(layer, dtype=np.float32), f"{kind} attention of layer {number}"
                if array.ndim != 3 or array.shape[1:] != want or 0 in array.shape:
                    raise UsageError(f"{name} must be (heads, {want[0]}, {want[1]}): got {array.shape}")
                low, high = float(array.min()), float(array.max())
                if not (low >= -_SLACK and high <= 1 + _SLACK):  # also refuses NaN
                    raise UsageError(f"{name} must be weights from 0 to 1: got {low:g} to {high:g}")
                checked[kind].append(array)
        object.__setattr__(self, "kinds", checked)

    def __repr__(self) -> str:
        maps = (f"{kind} {len(layers)}x{len(layers[0])}" for kind, layers in self.kinds.items())
        sides = [f"{len(self.source_tokens)} source tokens"] if self.source_tokens else []
        return f"AttentionRecord({', '.join([*maps, *sides, f'{len(self.tokens)} tokens'])})"

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame, for notebooks; a sentence instead if the page is too large."""
        weights = sum(layer.size for layers in self.kinds.values() for layer in layers)
        if weights > NOTEBOOK_WEIGHTS:
            return plain(f"{self!r}: {weights:,} weights are too many for a notebook; save a page: .save('page.html')")
        return framed(attention_page(self))

    def sides(self, kind: str) -> tuple[Side, Side]:
        """The tokens of the rows (queries) and of the columns (keys) of a kind of attention."""
        target = Side(self.tokens, self.words, self.special)
        source = Side(self.source_tokens, self.source_words, self.source_special)
        if kind == "cross":
            output = Side(self.output_tokens, self.output_words, self.output_special)
            return output if self.output_tokens else target, source
        side = source if kind == "encoder" and self.source_tokens else target
        return side, side

    @property
    def default_kind(self) -> str:
        """The kind that is meant if none is given: the only one, or "cross" in an encoder-decoder."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 or "cross" not in self.kinds else "cross"

    def layers(self, kind: str | None = None) -> list[Matrix]:
        """The layers of a kind, (H,rows,columns) each. Raises UsageError if the kind was not recorded."""
        kind = self.default_kind if kind is None else kind
        if kind not in self.kinds:
            raise UsageError(f"no {kind!r} attention was recorded{nearest(kind, list(self.kinds))}")
        return self.kinds[kind]

    def weights(self, layer: int, head: Head, kind: str | None = None) -> Matrix:
        """The weights of a layer and a head (docs/notes.md#a11).

        Args:
            layer: layer number from 0; -1 is the last.
            head: head number from 0 (-1 is the last), or "mean" or "max" over heads.
            kind: "encoder", "decoder" or "cross"; `default_kind` if not given.

        Returns:
            (rows,columns) float32.

        Raises UsageError: there is no such layer, head or kind.
        """
        layers = self.layers(kind)
        heads = layers[_index("layer", layer, len(layers))]
        if head == "mean":
            mean: Matrix = heads.mean(axis=0, dtype=np.float64).astype(np.float32)
            return mean
        if head == "max":
            largest: Matrix = heads.max(axis=0)
            return largest
        chosen: Matrix = heads[_index("head", head, len(heads), " or 'mean' or 'max'")]
        return chosen

    def word_weights(self, layer: int, head: Head, kind: str | None = None) -> WordWeights:
        """The same weights merged by word: columns are summed, rows are averaged; special tokens are kept."""
        rows, columns = (side.groups() for side in self.sides(self.default_kind if kind is None else kind))
        return WordWeights(merge_words(self.weights(layer, head, kind), rows, columns), rows, columns)

    def alignment(self, layer: int = -1, head: Head | None = None) -> list[tuple[int, int, float]]:
        """The source word with the largest cross-attention weight for each target word (docs/notes.md#b14).

        Args:
            layer: layer number from 0; -1 is the last.
            head: head number; the mean over heads if not given.

        Returns:
            (source word, target word, weight), with words as indices of `source_words` and of `output_words`, or of
            `words` if there are no output tokens.

        Raises UsageError: there is no cross-attention.
        """
        merged = self.word_weights(layer, "mean" if head is None else head, "cross")
        return strongest_sources(merged.weights, merged.rows, merged.columns)

    def report(self, kind: str | None = None) -> list[HeadReport]:
        """Statistics of each head, layer by layer (docs/notes.md#a15)."""
        kind = self.default_kind if kind is None else kind
        layers, columns = self.layers(kind), self.sides(kind)[1]  # columns: what is attended to
        about: dict[str, Any] = {"same_text": kind != "cross", "tokens": columns.tokens}
        return [
            describe_head(heads[head], columns.special, layer=layer, head=head, **about)
            for layer, heads in enumerate(layers)
            for head in range(len(heads))
        ]

    def to_dict(self) -> dict[str, object]:
        """The record as lists and strings for JSON, with float32 weights in their shortest exact form."""
        sides = [f"{prefix}{name}" for prefix in ("", "source_", "output_") for name in ("tokens", "words", "special")]
        plain: dict[str, object] = {name: getattr(self, name) for name in ("title", "model", *sides, "masks")}
        return plain | {
            "kinds": {
                kind: [[[[float(str(value)) for value in row] for row in head] for head in layer] for layer in layers]
                for kind, layers in self.kinds.items()
            }
        }

    def save(
        self, path: str | Path, *, layer: int = -1, head: Head = "mean", kind: str | None = None, words: bool = False
    ) -> None:
        """Write the record to a file: a page (.html), all weights (.json), or one map (.svg, .png with matplotlib).

        Args:
            path: the file; its extension chooses the format.
            layer: layer to draw; a page begins with it.
            head: head to draw: a number, "mean" or "max"; a page begins with it.
            kind: kind to draw; `default_kind` if not given.
            words: whether to merge subwords into words.

        Raises UsageError: another extension, a map that does not exist, or a choice of map for .json. MissingPartError:
        matplotlib is not installed. AtentoError: the file cannot be written.
        """
        path = Path(path)
        check_view(path, layer=layer, head=head, kind=kind, words=words)
        if path.suffix.lower() not in _WRITERS:
            raise UsageError(f"the file must end in {', '.join(_WRITERS)}: got {str(path)!r}")
        self.weights(layer, head, kind)  # raises before any work
        content = _WRITERS[path.suffix.lower()](self, layer=layer, head=head, kind=kind, words=words)
        write_output(path, content)


def check_view(path: Path, *, layer: int, head: Head, kind: str | None, words: bool) -> None:
    """Raises UsageError if a map is chosen for a .json file, which contains all maps."""
    chosen = {"layer": layer != -1, "head": head != "mean", "kind": kind is not None, "words": words}
    names = [name for name, is_chosen in chosen.items() if is_chosen]
    if path.suffix.lower() == ".json" and names:
        has = f"{path.name} contains every kind, layer and head, token by token"
        raise UsageError(f"{has}: `{names[0]}` is for .html, .svg and .png")


def _index(name: str, value: object, count: int, other_values: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -count <= value < count:
        raise UsageError(f"`{name}` must be from 0 to {count - 1} (-1 is the last){other_values}: got {value!r}")
    return int(value) % count


def _json_bytes(record: AttentionRecord, **_: object) -> bytes:
    # half a surrogate pair in a token is not valid UTF-8, but its escape is valid JSON
    return (json.dumps(record.to_dict(), ensure_ascii=False) + "\n").encode("utf-8", errors="backslashreplace")


_WRITERS: dict[str, Callable[..., bytes]] = {
    ".html": lambda record, **view: attention_page(record, **view).encode("utf-8"),
    ".json": _json_bytes,
    ".png": attention_png,
    ".svg": lambda record, **view: attention_svg(record, **view).encode("utf-8"),
}
