"""The screen Positions: what the position schemes of a model compute, or schemes with numbers of one's own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atento.attention.positions import ALiBi, Disentangled, Learned, Rotary, Shaw, Sinusoidal, Stretch
from atento.attention.relative_terms import QueryKeyPositions
from atento.base.errors import UsageError
from atento.inspection.ablation import scheme_names
from atento.networks.stack.stack_positions import AddedPositions, LayerPositions
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Fields
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.tiles import tile

LONGEST, WIDEST = 512, 1024


class SchemeFields(Fields):
    """A scheme of a model, by its number in the list, or one of its own: "sinusoidal", "rotary", "alibi"."""

    model: str
    scheme: str = "0"
    length: int = 64
    width: int = 64
    heads: int = 8
    base: float = 10000.0
    factor: float = 1.0


@dataclass(frozen=True)
class Plot:
    """A matrix with names of its sides, and curves over whole numbers from `first` on."""

    matrix: Tensor
    rows: str
    columns: str
    curves: Tensor
    first: int
    across: str
    first_row: int = 0


def _positions(shelf: Shelf, fields: SchemeFields) -> tuple[Values, bytes]:
    limits = {"length": LONGEST, "width": WIDEST, "heads": 64}
    for name, most in limits.items():
        if not 2 <= getattr(fields, name) <= most:
            raise wrong_field(f"/{name}", f"`{name}` must be from 2 to {most:,}: got {getattr(fields, name)}")
    if not (1 < fields.base <= 1e9 and 1 <= fields.factor <= 1000):
        raise wrong_field("/base", f"`base` must be above 1, `factor` from 1: got {fields.base:g}, {fields.factor:g}")
    model = shelf.model(fields.model)
    names, known = scheme_names(model.network.config), list[tuple[str, nn.Module]]()  # modules that know positions
    for path, part in model.network.named_modules():
        if isinstance(part, AddedPositions | LayerPositions) and not path.startswith("source_features."):
            place = path.split(".")[0].removesuffix("_inputs")
            known += [(f"{names[number]} ({place})", one) for number, one in zip(part.numbers, part.schemes)]
    if fields.scheme in _OWN:
        module = _OWN[fields.scheme](fields)
    # the number of one of the model's own
    elif fields.scheme.isascii() and fields.scheme.isdigit() and int(fields.scheme) < len(known):
        module = known[int(fields.scheme)][1]
    else:
        every = ", ".join([*map(str, range(len(known))), *_OWN])
        raise wrong_field("/scheme", f"`scheme` must be one of {every}: got {fields.scheme[:40]!r}")
    n_heads = fields.heads if fields.scheme in _OWN else model.network.config.n_heads
    plot = plotted(module, fields.length, n_heads)
    about = {
        "schemes": [name for name, _ in known],
        "module": type(module).__name__,
        "names": {"rows": plot.rows, "columns": plot.columns, "across": plot.across},
        "first_row": plot.first_row,
        "first": plot.first,
        # float32 has no more digits
        "curves": [[round(value, 7) for value in curve] for curve in plot.curves.tolist()],
    }
    return tile(plot.matrix.float().numpy(), "f32", **about)


def plotted(module: nn.Module, length: int, n_heads: int) -> Plot:
    """What a position module computes for so many positions.

    Raises:
        UsageError: a table of positions is shorter; or the module is of another kind.
    """
    places = torch.arange(length)
    if isinstance(module, Sinusoidal | Learned):
        vectors = module.vectors(length)
        middle = vectors[length // 2]
        return Plot(vectors, "position", "dimension", (vectors @ middle)[None], 0, "position")
    if isinstance(module, Rotary):
        ones = torch.ones(1, 1, length, module.width)
        turned = module(ones)[0, 0]
        products = (turned @ turned[0])[None] / module.width
        return Plot(module.at(places).cos, "position", "pair", products, 0, "distance")
    if isinstance(module, Shaw | Disentangled):
        table = module.keys if isinstance(module, Shaw) else module.weight
        return Plot(table, "distance", "dimension", table.norm(dim=-1)[None], -(len(table) // 2), "distance",
                    -(len(table) // 2))  # fmt: skip
    scores: Callable[..., Tensor] | None = getattr(module, "scores", None)
    if scores is None:
        raise UsageError(f"there is no plot of {type(module).__name__}")
    zeros = torch.zeros(1, n_heads, length, 2)  # these schemes add the same to every query and key
    added = scores(zeros, zeros, QueryKeyPositions.arange(length, length), 1.0)[0].expand(n_heads, -1, -1)
    by_distance = torch.cat([added[:, -1, :-1], added[:, 0]], dim=-1)  # from the last query, then from the first
    return Plot(by_distance, "head", "distance", by_distance, 1 - length, "distance")


def _rotary(fields: SchemeFields) -> nn.Module:
    return Rotary(fields.width, fields.base, stretch=Stretch(fields.factor) if fields.factor > 1 else None)


_OWN: dict[str, Callable[[SchemeFields], nn.Module]] = {
    "sinusoidal": lambda fields: Sinusoidal(fields.width, fields.base),
    "rotary": _rotary,
    "alibi": lambda fields: ALiBi(fields.heads),
}
FUNCTIONS: dict[str, Function] = {"positions": (SchemeFields, _positions)}
