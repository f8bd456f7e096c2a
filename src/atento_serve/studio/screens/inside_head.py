"""The screen Inside a head: every number between a query, a key and the output of a head."""

from torch import Tensor

from atento.attention.entmax import entmax
from atento.inspection.head_steps import HeadSteps, head_steps
from atento_serve.http.errors import wrong_field
from atento_serve.studio.reasons import why_no_queries as why_not
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, run_pass, trace_of

__all__ = ["FUNCTIONS", "why_not"]


class PairFields(TextFields):
    """A query and a key, by their places, in a head of a layer; `key` None: the one that is read most."""

    kind: str
    layer: int
    head: int
    query: int
    key: int | None = None
    temperature: float = 1.0
    alpha: float = 1.0


def _inside(shelf: Shelf, fields: PairFields) -> Values:
    trace = trace_of(shelf, fields)

    def make() -> tuple[HeadSteps, int]:
        model = shelf.model(fields.model)
        steps = head_steps(model.network, fields.kind, fields.layer, lambda: run_pass(model, fields, trace.target))
        tensors = [part for part in vars(steps).values() if isinstance(part, Tensor)]
        return steps, sum(part.nbytes for part in tensors)

    # steps are kept between questions about the same head
    key = ("inside", fields.model, fields.text, trace.target, fields.second, fields.spans, fields.kind, fields.layer)
    steps = shelf.kept(make, *key)
    n_heads, n_queries, n_keys = steps.weights.shape
    h, i = fields.head, fields.query
    for name, value, count in (("head", h, n_heads), ("query", i, n_queries)):
        if not 0 <= value < count:
            raise wrong_field(f"/{name}", f"`{name}` must be from 0 to {count - 1}: got {value}")
    # the key that the query attends to most
    j = int(steps.weights[h, i].argmax()) if fields.key is None else fields.key
    if not 0 <= j < n_keys:
        raise wrong_field("/key", f"`key` must be from 0 to {n_keys - 1}: got {j}")
    if not (0.05 <= fields.temperature <= 20 and 1 <= fields.alpha <= 4):
        given = f"{fields.temperature:g} and {fields.alpha:g}"
        raise wrong_field("/alpha", f"`temperature` must be from 0.05 to 20, `alpha` from 1 to 4: got {given}")
    own = None
    if (fields.temperature, fields.alpha) != (1, 1):  # the row by an entmax and a temperature of one's own, and its mix
        scores = steps.content[h, i] if steps.position is None else steps.content[h, i] + steps.position[h, i]
        weights = entmax((scores / fields.temperature).masked_fill(~steps.allowed[h, i], float("-inf")), fields.alpha)
        own = {"weight": weights.tolist(), "output": (weights @ steps.values[h]).tolist()}
    return _numbers(steps, h, i, j) | {"own": own}


def _numbers(steps: HeadSteps, h: int, i: int, j: int) -> Values:
    """The steps of query i and key j, and the whole row of the query."""
    q = steps.queries if steps.rotated_queries is None else steps.rotated_queries
    k = steps.keys if steps.rotated_keys is None else steps.rotated_keys
    scores = steps.content if steps.position is None else steps.content + steps.position
    row: dict[str, object] = {
        "content": steps.content[h, i].tolist(),
        "position": None if steps.position is None else steps.position[h, i].tolist(),
        "score": scores[h, i].tolist(),
        "allowed": steps.allowed[h, i].tolist(),
        "weight": steps.weights[h, i].tolist(),
    }
    vectors = {
        "query": steps.queries[h, i],
        "key": steps.keys[h, j],
        "rotated_query": None if steps.rotated_queries is None else q[h, i],
        "rotated_key": None if steps.rotated_keys is None else k[h, j],
        "product": q[h, i] * k[h, j],
        "value": steps.values[h, j],
        "share": steps.weights[h, i, j] * steps.values[h, j],
        "from_positions": None if steps.from_positions is None else steps.from_positions[h, i],
        "output": steps.mixed[h, i],
    }
    shown = {name: None if vector is None else vector.tolist() for name, vector in vectors.items()}
    about = {"scale": steps.scale, "schemes": list(steps.schemes), "normaliser": steps.normaliser}
    return {"query": i, "key": j, "row": row, "vectors": shown, **about}


FUNCTIONS: dict[str, Function] = {"inside": (PairFields, _inside)}
