"""The guided tour: the functions that its chapters, and the steps of a head, name, with their lines as they run."""

import inspect
from pathlib import Path
from typing import Any

from atento.attention import equation, kernels, masks
from atento.attention.entmax import entmax
from atento.attention.lowering import LoweredMask
from atento.attention.multihead import MultiHeadAttention
from atento.attention.positions import Rotation, sinusoids
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
FUNCTIONS_SHOWN: dict[str, object] = {
    "Tokenizer.encode": Tokenizer.encode,
    "InputLayer.forward": InputLayer.forward,
    "sinusoids": sinusoids,
    "equation.weigh": equation.weigh,
    "equation.normalise": equation.normalise,
    "entmax": entmax,
    "kernels.plain": kernels.plain,
    "masks.causal": masks.causal,
    "LoweredMask.allowed": LoweredMask.__dict__["allowed"],
    "MultiHeadAttention.split": MultiHeadAttention.split,
    "MultiHeadAttention.forward": MultiHeadAttention.forward,
    "Rotation.__call__": Rotation.__call__,
    "describe_head": describe_head,
    "FeedForward.forward": FeedForward.forward,
    "Encoder.forward": Encoder.forward,
    "Decoder.forward": Decoder.forward,
    "EncoderDecoder.forward": EncoderDecoder.forward,
    "token_search": token_search,
    "beam": beam,
    "filters.top_p": filters.top_p,
    "leave_out": leave_out,
    "rolled_out": rolled_out,
    "ablate": ablate,
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
