"""The screen Beam tree: every candidate of a search, and why it was cut."""

from atento.config.sections.decoding import DecodingOptions
from atento_serve.http.fields import bounded
from atento_serve.studio.screens.next_token import why_not
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, last_run

__all__ = ["FUNCTIONS", "why_not"]


class SearchFields(TextFields):
    """A text, and the options of its beam."""

    beam: int = 4
    length_penalty: float = 1.0
    no_repeat_ngrams: int = 0
    max_new_tokens: int = 24


def _search(shelf: Shelf, fields: SearchFields) -> Values:
    """The nodes of the search, parents first: [parent, step, token, log p, total, fate]; and the outputs it found."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text)
    bounded("beam", fields.beam, 1, 16)
    bounded("max_new_tokens", fields.max_new_tokens, 1, 64)
    options: DecodingOptions = {"beam": fields.beam, "max_new_tokens": fields.max_new_tokens}
    if fields.beam > 1:
        options["length_penalty"] = fields.length_penalty
    if fields.no_repeat_ngrams:
        options["no_repeat_ngrams"] = fields.no_repeat_ngrams
    outputs, trace = model.traced(fields.text, n_best=fields.beam, **options)
    nodes: list[list[object]] = []
    at: dict[tuple[int, ...], int] = {}
    run = last_run(trace)
    for number, step in enumerate(run.steps):
        for one in step.candidates:
            path = tuple(step.live[one.parent])  # the tokens of its parent
            name = trace.name(one.token) if trace.name else str(one.token)
            nodes.append([at.get(path, -1), number, name, one.log_prob, one.total, one.fate])
            if one.alive:
                at[(*path, one.token)] = len(nodes) - 1  # goes on as a parent
    found = [
        {
            "text": one.text,
            "score": one.hypothesis.score,
            "log_prob": one.hypothesis.log_prob,
            "length": len(one.hypothesis.token_scores),
            "finished": one.hypothesis.finished,
            "node": _node(at, one.hypothesis.ids, ends=len(one.hypothesis.token_scores) > len(one.hypothesis.ids)),
        }
        for one in outputs
    ]
    return {"nodes": nodes, "found": found, "steps": len(run.steps), "strategy": run.strategy}


def _node(at: dict[tuple[int, ...], int], ids: list[int], *, ends: bool) -> int:
    """The number of the node in which an output ends."""
    if ends:
        return next((node for path, node in at.items() if path[:-1] == tuple(ids) and len(path) == len(ids) + 1), -1)
    return at.get(tuple(ids), -1)


FUNCTIONS: dict[str, Function] = {"search": (SearchFields, _search)}
