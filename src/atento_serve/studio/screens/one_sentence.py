"""The screen One sentence: all numbers of a text on its way through a model, and what is said at a place of it."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from atento.base.errors import UsageError
from atento.inspection.layer_streams import inner_activations, lens
from atento.model import Model
from atento.networks import Decoder, Encoder, EncoderDecoder, RecurrentLM, RecurrentSeq2Seq
from atento.tasks.task_model import tokenizer_of
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.fields import bounded
from atento_serve.studio.reasons import NO_TOKENIZER, Reason
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, Trace, run_pass, trace_of

_CELLS = 24  # numbers of a vector that are drawn
_LINKS = 1024  # of a layer, at most about
_SAID, _GUESSES = 12, 3  # tokens of the output, and of each layer before it


class PlaceFields(TextFields):
    """A token, by its place among those of the last stack."""

    place: int


class LayerFields(PlaceFields):
    """A token in a layer of a stack."""

    kind: str
    layer: int


def why_not(model: Model) -> Reason | None:
    """Why there are no layers that a text flows through."""
    if model.tokenizer is None:
        return NO_TOKENIZER
    if not isinstance(model.network, Encoder | Decoder | EncoderDecoder | RecurrentLM | RecurrentSeq2Seq):
        return Reason("no_layers", "{kind} has no layers of tokens.", {"kind": type(model.network).__name__})
    return None


def _flow(shelf: Shelf, fields: TextFields) -> Values:
    """The trace, and of each stack, by the places of its tokens: norms before and after each layer, first vectors.

    `ends` are the numbers of the one vector of a model that embeds texts; `pooled` is how tokens become one vector.
    """
    trace, model = trace_of(shelf, fields), shelf.model(fields.model)
    stacks = {
        kind: {
            "norms": [_rounded(layer.double().norm(dim=-1)) for layer in layers],
            "vectors": _rounded(layers[0][:, :_CELLS]),
            "width": layers[0].shape[-1],
        }
        for kind, layers in trace.streams.items()
    }
    only_embeds = verbs_of(model)[:1] == ["embed"]
    ends = _rounded(torch.from_numpy(model.embed([fields.text])[0])) if only_embeds else None
    config = model.network.config
    pooled = next((config.pooling(head) for head in config.heads if config.pooling(head)), None)
    return {**trace.shown(), "stacks": stacks, "ends": ends, "pooled": pooled}


def _rounded(numbers: Tensor) -> list[float]:
    """To a millionth, which keeps a long text's answer small."""
    rounded: list[float] = np.round(numbers.double().numpy(), 6).tolist()
    return rounded


def _flow_links(shelf: Shelf, fields: TextFields) -> tuple[Values, bytes]:
    """The mean weights of each kind and layer, of each row the strongest: how many, rows, columns, weights.

    A short text has all of them above 0.01; of a long one each row has as many as leave the layer about 1,024.
    """
    record = trace_of(shelf, fields).record
    counts: dict[str, list[int]] = {}
    links = []
    for kind, layers in ({} if record is None else record.kinds).items():
        counts[kind] = []
        for layer in layers:
            mean = layer.mean(axis=0, dtype=np.float64)
            most = min(mean.shape[1], max(2, _LINKS // len(mean)))
            columns = np.argpartition(mean, -most, axis=1)[:, -most:]
            rows = np.repeat(np.arange(len(mean)), most)
            weights = mean[rows, columns.reshape(-1)]
            strong = weights > 0.01
            links.append((rows[strong], columns.reshape(-1)[strong], weights[strong]))
            counts[kind].append(int(strong.sum()))
    parts = [np.concatenate(part).astype(form).tobytes() for part, form in zip(zip(*links), ("<u4", "<u4", "<f4"))]
    return {"counts": counts}, b"".join(parts)


def _vectors(trace: Trace, kind: str, place: int) -> list[Tensor]:
    if kind not in trace.streams:
        raise UsageError(f"there are no {kind[:40]} layers to look at")
    layers = trace.streams[kind]
    bounded("place", place, 0, len(layers[0]) - 1)
    return [layer[place] for layer in layers]


def _said(shelf: Shelf, fields: PlaceFields) -> Values:
    """The tokens that are most probable at a place, [token, p, what is written with it], with the entropy in nats.

    `layers` have, for the vectors before and after each layer, the best tokens and the share of the one that follows.
    """
    model, trace = shelf.model(fields.model), trace_of(shelf, fields)
    kind = "decoder" if "decoder" in trace.streams else "encoder"
    vectors = _vectors(trace, kind, fields.place)
    dtype = next(model.network.parameters()).dtype
    log_probs = lens(model.network, kind, [one.to(model.device, dtype) for one in vectors]).cpu()
    tokenizer = tokenizer_of(model).target
    side = trace.sides["output" if trace.target is not None else "source"]
    at = fields.place + (trace.target is None and kind == "decoder")  # a decoder without a source says the next one
    follows = side.ids[at] if at < len(side.ids) else int(log_probs[-1].argmax())
    if fields.spans is not None:
        follows = int(log_probs[-1].argmax())
    best = log_probs[-1].topk(min(_SAID, log_probs.shape[-1]))
    guesses = log_probs.topk(min(_GUESSES, log_probs.shape[-1]))
    # special tokens stand around the written ones: a decoder's before them, in the output those that begin it
    written = [token for token, span in zip(side.ids[:at], side.spans) if span is not None]
    return {
        "follows": tokenizer.tokens([follows])[0],
        "entropy": float(torch.special.entr(log_probs[-1].exp()).sum()),
        "tokens": [
            [tokenizer.tokens([token])[0], p, tokenizer.decode([*written, token])]
            for token, p in zip(best.indices.tolist(), best.values.exp().tolist())
        ],
        "layers": [
            {"share": row[follows].exp().item(), "tokens": list(zip(tokenizer.tokens(ids), shares, strict=True))}
            for row, ids, shares in zip(log_probs, guesses.indices.tolist(), guesses.values.exp().tolist())
        ],
    }


def _feed_forward(shelf: Shelf, fields: LayerFields) -> Values:
    """The activations of a feed-forward for a token; the norms of the vector before, of what it adds, and behind."""
    model, trace = shelf.model(fields.model), trace_of(shelf, fields)
    vectors = _vectors(trace, fields.kind, fields.place)
    run = partial(run_pass, model, fields, trace.target)
    inner, output = inner_activations(model.network, fields.kind, fields.layer, run)
    return {
        "inner": _rounded(inner[0, fields.place].float().cpu()),
        "adds": float(output[0, fields.place].double().norm()),
        "norms": [float(one.double().norm()) for one in vectors[fields.layer : fields.layer + 2]],
    }


FUNCTIONS: dict[str, Function] = {
    "flow": (TextFields, _flow),
    "flow_links": (TextFields, _flow_links),
    "said": (PlaceFields, _said),
    "feed_forward": (LayerFields, _feed_forward),
}
