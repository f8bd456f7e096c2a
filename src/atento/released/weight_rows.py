"""Weight tables: rows of (our tensor, theirs, how they are converted), used in both directions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from atento.config.sections.network import NetworkConfig


@dataclass(frozen=True)
class Row:
    """One tensor of ours and the tensors of theirs that it is made of.

    Several are concatenated in ours, `sizes` rows each. `transposed`: theirs is (in, out). `flat`: theirs is
    (1, N) where ours is (N,). `head`: theirs is not part of the base model, so it has no prefix.
    `optional`: ours is zero if their file leaves it out. `omit_zero`: it is not written if it is zero. `copies`:
    further names under which it is written.
    """

    ours: str
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    transposed: bool = False
    flat: bool = False
    head: bool = False
    optional: bool = False
    omit_zero: bool = False
    copies: tuple[str, ...] = ()

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Our tensor as theirs."""
        parts = tensor.split(list(self.sizes)) if self.sizes else (tensor,)
        parts = [part.t() if self.transposed else part for part in parts]
        return [(part.unsqueeze(0) if self.flat else part).contiguous() for part in parts]


def linear(
    ours: str,
    *theirs: str,
    sizes: tuple[int, ...] = (),
    bias: bool = True,
    transposed: bool = False,
    head: bool = False,
) -> list[Row]:
    """The rows of a linear map, weight and bias; several of theirs make one of ours."""
    rows = [Row(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), sizes, transposed, head=head)]
    if bias:
        rows.append(Row(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), sizes, head=head))
    return rows


def norm(ours: str, theirs: str, *, bias: bool = True, head: bool = False) -> list[Row]:
    """The rows of a norm: weight, and bias where it has one."""
    return [Row(f"{ours}.{part}", (f"{theirs}.{part}",), head=head) for part in ("weight", "bias")[: 1 + bias]]


def attention(ours: str, theirs: Iterable[str], output: str, config: NetworkConfig) -> list[Row]:
    """The rows of an attention from their query, key and value maps, and their output map."""
    queries, keys = config.n_heads * config.head_width, config.kv_heads * config.head_width
    return [
        *linear(f"{ours}.input", *theirs, sizes=(queries, keys, keys), bias=config.attention.bias),
        *linear(f"{ours}.output", output, bias=config.output_projection_bias),
    ]


def blocks(theirs: str, inside: Sequence[str], parts: Sequence[str], config: NetworkConfig) -> list[Row]:
    """The rows of the blocks of an encoder with norms behind its layers.

    Args:
        theirs: before the number of a layer.
        inside: query, key and value maps of a layer.
        parts: its output map, norm behind it, inner and outer map of the feed-forward, and norm behind that.
    """
    rows: list[Row] = []
    for n in range(1 if config.shared_layers else config.n_layers):
        ours, layer = f"stack.blocks.{n}", f"{theirs}.{n}"
        output, first_norm, inner, outer, last_norm = (f"{layer}.{part}" for part in parts)
        rows += attention(f"{ours}.self_attention", [f"{layer}.{part}" for part in inside], output, config)
        rows += norm(f"{ours}.self_attention_residual.norm", first_norm)
        rows += linear(f"{ours}.feed_forward.inner", inner) + linear(f"{ours}.feed_forward.outer", outer)
        rows += norm(f"{ours}.feed_forward_residual.norm", last_norm)
    return rows


def convert(rows: Iterable[Row], prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names; `prefix` is put before all names but those of heads."""
    converted: dict[str, Tensor] = {}
    for row in rows:
        if row.omit_zero and not weights[row.ours].any():
            continue
        before = "" if row.head else prefix
        parts = row.split(weights[row.ours])
        converted |= {before + name: part for name, part in zip(row.theirs, parts, strict=True)}
        converted |= {before + name: parts[0] for name in row.copies}
    return converted
