"""The guided tour: the functions that its chapters, and the steps of a head, name, with their lines as they run."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atento.attention import equation, kernels, masks
from atento.attention.entmax import entmax
from atento.attention.multihead import MultiHeadAttention
from atento.attention.positions import Rotation, sinusoids
from atento.attention.prepared_mask import PreparedMask
from atento.decoding import filters
from atento.decoding.beam.beam_search import beam
from atento.decoding.token_loop import token_search
from atento.inspection.ablation import ablate
from atento.inspection.attributions import leave_out, rolled_out
from atento.inspection.head_statistics import describe_head
from atento.networks import Decoder, Encoder, EncoderDecoder
from atento.networks.layers import FeedForward
from atento.networks.stack.stack_positions import InputLayer
from atento.text.tokenizer import Tokenizer
from atento_serve.http.errors import ServiceError
from atento_serve.http.fields import Fields
from atento_serve.studio.shelf import Function, Shelf, Values

_ROOT = Path(equation.__file__).parents[2]
_NAMED: tuple[Callable[..., object], ...] = (
    *(Tokenizer.encode, InputLayer.forward, sinusoids, entmax, MultiHeadAttention.split, MultiHeadAttention.forward),
    *(Rotation.__call__, describe_head, FeedForward.forward, Encoder.forward, Decoder.forward, EncoderDecoder.forward),
    *(token_search, beam, leave_out, rolled_out, ablate),
)
FUNCTIONS_SHOWN: dict[str, object] = {function.__qualname__: function for function in _NAMED} | {
    "equation.weigh": equation.weigh,
    "equation.normalise": equation.normalise,
    "kernels.plain": kernels.plain,
    "masks.causal": masks.causal,
    "PreparedMask.allowed": PreparedMask.__dict__["allowed"],
    "filters.top_p": filters.top_p,
}
"""By the names that the page gives them."""


class SourceFields(Fields):
    """One function."""

    name: str


def _source(shelf: Shelf, fields: SourceFields) -> Values:
    """The file of a function in the package, its first line, and its lines."""
    function: Any = FUNCTIONS_SHOWN.get(fields.name)
    if function is None:
        raise ServiceError(404, f"the tour names no function {fields.name[:80]!r}", "not_found")
    function = getattr(function, "fget", None) or getattr(function, "func", function)
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    file = Path(str(inspect.getsourcefile(inspect.unwrap(function))))
    return {"file": file.relative_to(_ROOT).as_posix(), "line": first, "text": inspect.cleandoc("\n" + "".join(lines))}


FUNCTIONS: dict[str, Function] = {"source": (SourceFields, _source)}
