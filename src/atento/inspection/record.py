"""What attention did with one text: every layer's and head's weights with their tokens, to be read, drawn and saved."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from atento.errors import AtentoError, UsageError, nearest
from atento.inspection.alignment import strongest_sources
from atento.inspection.figures import attention_png, attention_svg
from atento.inspection.heads import HeadReport, describe_head
from atento.inspection.labels import visible
from atento.inspection.page import attention_page
from atento.inspection.standalone import framed, plain
from atento.inspection.words import Group, Matrix, merge_words, word_groups

Head = int | Literal["mean", "max"]
KINDS = ("encoder", "decoder", "cross")
NOTEBOOK_WEIGHTS = 1_000_000  # of a page inside a notebook, which is saved with it: about 6 MB
_SLACK = 0.01  # bfloat16 holds 1 to about this much


@dataclass(frozen=True)
class Side:
    """One text as a sequence of tokens: the index of each token's word (-1: of none), and whether it is special."""

    tokens: list[str]
    words: list[int]
    special: list[bool]

    def groups(self) -> list[Group]:
        """The tokens joined into words."""
        return word_groups(self.tokens, self.words, self.special)

    def single_groups(self) -> list[Group]:
        """Each token on its own, its subword mark left on."""
        return [
            Group(visible(token), word, at, at + 1, special)
            for at, (token, word, special) in enumerate(zip(self.tokens, self.words, self.special))
        ]


@dataclass(frozen=True)
class WordWeights:
    """A map merged by word: `weights` (T,S), one row a word of `rows`, one column a word of `columns`."""

    weights: Matrix
    rows: list[Group]
    columns: list[Group]

    def __repr__(self) -> str:
        return f"WordWeights({len(self.rows)} x {len(self.columns)} words)"


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """Attention weights of one text (docs/notes.md#a9, #a11, #a15).

    `tokens` are what the network read, in an encoder-decoder on the target side; `source_tokens` its source, empty
    elsewhere. Give tokens as they should be seen: byte-level pieces turned back into text. `words` gives each token
    the index of its word (-1: of none), `special` says which are special; left out, each token is its own word and
    those of word -1 are special. `output_tokens`, as many as `tokens`, are what each decoder row went on to write:
    cross-attention is then read row by row as "while writing this word", the usual figure of an alignment. Left out,
    its rows bear `tokens`.

    `kinds` maps "encoder", "decoder" or "cross" to a list over layers of float32 (H, rows, columns); rows read,
    columns are read. `masks` says in a word or two who may attend to whom ("causal"), kind by kind.
    Raises UsageError where shapes, lengths or values cannot be attention weights.
    """

    tokens: list[str]
    kinds: dict[str, list[Matrix]] = field(repr=False)
    source_tokens: list[str] = field(default_factory=list)
    words: list[int] = field(default_factory=list, repr=False)
    source_words: list[int] = field(default_factory=list, repr=False)
    special: list[bool] = field(default_factory=list, repr=False)
    source_special: list[bool] = field(default_factory=list, repr=False)
    output_tokens: list[str] = field(default_factory=list)
    output_words: list[int] = field(default_factory=list, repr=False)
    output_special: list[bool] = field(default_factory=list, repr=False)
    masks: dict[str, str] = field(default_factory=dict)
    title: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        for prefix in ("", "source_", "output_"):
            tokens = getattr(self, f"{prefix}tokens")
            words = getattr(self, f"{prefix}words") or list(range(len(tokens)))
            special = getattr(self, f"{prefix}special") or [word < 0 for word in words]
            for name, values in ((f"{prefix}words", words), (f"{prefix}special", special)):
                if len(values) != len(tokens):
                    raise UsageError(
                        f"`{name}` must have one value for each of {len(tokens)} {prefix}tokens: got {len(values)}"
                    )
                object.__setattr__(self, name, list(values))
        if self.output_tokens and len(self.output_tokens) != len(self.tokens):
            raise UsageError(
                f"`output_tokens` must be as many as `tokens`, {len(self.tokens)}: got {len(self.output_tokens)}"
            )
        if not self.kinds:
            raise UsageError("`kinds` must hold at least one of encoder, decoder, cross: got none")
        object.__setattr__(self, "kinds", {kind: self._checked(kind, layers) for kind, layers in self.kinds.items()})

    def __repr__(self) -> str:
        maps = (f"{kind} {len(layers)}x{len(layers[0])}" for kind, layers in self.kinds.items())
        sides = [f"{len(self.source_tokens)} source tokens"] if self.source_tokens else []
        return f"AttentionRecord({', '.join([*maps, *sides, f'{len(self.tokens)} tokens'])})"

    def _repr_html_(self) -> str:
        """The page, for notebooks: in a sandboxed frame; a sentence instead where it is too large for one."""
        weights = sum(layer.size for layers in self.kinds.values() for layer in layers)
        if weights > NOTEBOOK_WEIGHTS:
            return plain(f"{self!r}: {weights:,} weights are too many for a notebook; save a page: .save('page.html')")
        return framed(attention_page(self))

    def _checked(self, kind: str, layers: list[Matrix]) -> list[Matrix]:
        if kind not in KINDS:
            raise UsageError(f"unknown kind of attention {kind!r}{nearest(kind, list(KINDS))}")
        if not len(layers):
            raise UsageError(f"`kinds[{kind!r}]` must hold at least one layer: got none")
        rows, columns = self.sides(kind)
        checked = []
        for number, layer in enumerate(layers):
            array = np.asarray(layer, dtype=np.float32)
            want = (len(rows.tokens), len(columns.tokens))
            if array.ndim != 3 or array.shape[1:] != want or 0 in array.shape:
                raise UsageError(
                    f"{kind} attention of layer {number} must be (heads, {want[0]}, {want[1]}): got {array.shape}"
                )
            low, high = float(array.min()), float(array.max())
            if not (low >= -_SLACK and high <= 1 + _SLACK):  # also refuses NaN
                raise UsageError(
                    f"{kind} attention of layer {number} must be weights from 0 to 1: got {low:g} to {high:g}"
                )
            checked.append(array)
        return checked

    def sides(self, kind: str) -> tuple[Side, Side]:
        """The tokens that the rows (readers) and the columns (read) of this kind of attention stand for."""
        target = Side(self.tokens, self.words, self.special)
        source = Side(self.source_tokens, self.source_words, self.source_special)
        if kind == "cross":
            output = Side(self.output_tokens, self.output_words, self.output_special)
            return output if self.output_tokens else target, source
        side = source if kind == "encoder" and self.source_tokens else target
        return side, side

    @property
    def default_kind(self) -> str:
        """The kind meant where none is named: the only one, or cross-attention in an encoder-decoder."""
        if len(self.kinds) == 1 or "cross" not in self.kinds:
            return next(iter(self.kinds))
        return "cross"

    def layers(self, kind: str | None = None) -> list[Matrix]:
        """Every layer of a kind, each (H, rows, columns). Raises UsageError for a kind that was not recorded."""
        kind = self.default_kind if kind is None else kind
        if kind not in self.kinds:
            raise UsageError(f"no {kind!r} attention was recorded{nearest(kind, list(self.kinds))}")
        return self.kinds[kind]

    def weights(self, layer: int, head: Head, kind: str | None = None) -> Matrix:
        """(rows, columns) float32 of one layer and one head, or of the mean or max over its heads (docs/notes.md#a11).

        Layers and heads count from 0, -1 is the last. Raises UsageError naming the range where there is none such.
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
        """The same map merged by word: columns summed, rows averaged over the pieces; special tokens are kept."""
        rows, columns = (side.groups() for side in self.sides(self.default_kind if kind is None else kind))
        return WordWeights(merge_words(self.weights(layer, head, kind), rows, columns), rows, columns)

    def alignment(self, layer: int = -1, head: Head | None = None) -> list[tuple[int, int, float]]:
        """(source word, target word, weight) of each target word's strongest source, by cross-attention.

        See docs/notes.md#b14.

        Words are the indices in `source_words` and `output_words` (`words` where nothing is said of the output);
        `head` None is the mean over heads. Raises UsageError where there is no cross-attention.
        """
        merged = self.word_weights(layer, "mean" if head is None else head, "cross")
        return strongest_sources(merged.weights, merged.rows, merged.columns)

    def report(self, kind: str | None = None) -> list[HeadReport]:
        """What each head does in a few numbers, layer by layer (docs/notes.md#a15)."""
        kind = self.default_kind if kind is None else kind
        layers, special = self.layers(kind), self.sides(kind)[1].special
        return [
            describe_head(heads[head], special, layer=layer, head=head, same_text=kind != "cross")
            for layer, heads in enumerate(layers)
            for head in range(len(heads))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and words, ready for JSON; float32 weights in the shortest form that reads back the same."""
        plain: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("title", "model", "tokens", "words", "special", "source_tokens", "source_words", "source_special"),
                *("output_tokens", "output_words", "output_special", "masks"),
            )
        }
        return plain | {"kinds": {kind: [_numbers(layer) for layer in layers] for kind, layers in self.kinds.items()}}

    def save(
        self, path: str | Path, *, layer: int = -1, head: Head = "mean", kind: str | None = None, words: bool = False
    ) -> None:
        """Write a page (.html), every number (.json) or one map (.svg, .png), as the ending says.

        The page holds every layer and head and opens on the map named; `words` merges subwords. JSON holds every layer
        and head token by token, so nothing may be chosen there. A PNG needs matplotlib. Raises UsageError for another
        ending, a map that is not there or a choice for JSON, MissingPartError without matplotlib, AtentoError where the
        file cannot be written.
        """
        path = Path(path)
        check_view(path, layer=layer, head=head, kind=kind, words=words)
        if path.suffix.lower() not in _WRITERS:
            raise UsageError(f"the file must end in {', '.join(_WRITERS)}: got {str(path)!r}")
        self.weights(layer, head, kind)  # refuse a wrong layer before any work
        content = _WRITERS[path.suffix.lower()](self, layer=layer, head=head, kind=kind, words=words)
        try:
            path.write_bytes(content)
        except OSError as error:
            raise AtentoError(f"could not write {str(path)!r}: {error.strerror}") from error


def check_view(path: Path, *, layer: int, head: Head, kind: str | None, words: bool) -> None:
    """Raise UsageError if a map is chosen for a .json file, which holds all of them token by token."""
    chosen = {"layer": layer != -1, "head": head != "mean", "kind": kind is not None, "words": words}
    names = [name for name, given in chosen.items() if given]
    if path.suffix.lower() == ".json" and names:
        raise UsageError(
            f"{path.name} holds every kind, layer and head, token by token: `{names[0]}` is for .html, .svg and .png"
        )


def _index(name: str, value: object, count: int, others: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -count <= value < count:
        raise UsageError(f"`{name}` must be from 0 to {count - 1} (-1 is the last){others}: got {value!r}")
    return int(value) % count


def _numbers(layer: Matrix) -> list[list[list[float]]]:
    return [[[float(str(value)) for value in row] for row in head] for head in layer]


def _json_bytes(record: AttentionRecord, **_: object) -> bytes:
    # half a surrogate pair in a token cannot be UTF-8, but its escape is good JSON
    return (json.dumps(record.to_dict(), ensure_ascii=False) + "\n").encode("utf-8", errors="backslashreplace")


def _page_bytes(record: AttentionRecord, **view: Any) -> bytes:
    return attention_page(record, **view).encode("utf-8")


def _svg_bytes(record: AttentionRecord, **view: Any) -> bytes:
    return attention_svg(record, **view).encode("utf-8")


_WRITERS: dict[str, Callable[..., bytes]] = {
    ".html": _page_bytes,
    ".json": _json_bytes,
    ".png": attention_png,
    ".svg": _svg_bytes,
}
