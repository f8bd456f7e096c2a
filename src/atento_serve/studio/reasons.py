"""Why a model cannot feed a screen: a code, which the page translates, and a sentence in English."""

from collections.abc import Callable
from dataclasses import dataclass, field

from atento.model import Model
from atento.networks import Decoder, Encoder, EncoderDecoder, RecurrentSeq2Seq
from atento_serve.engine.verbs import verbs_of


@dataclass(frozen=True)
class Reason:
    """A reason.

    Attributes:
        code: the key of its translations, `reason.CODE`.
        text: one sentence; `{kind}` stands for `values["kind"]`, in translations too.
        values: what it names.
    """

    code: str
    text: str
    values: dict[str, str] = field(default_factory=dict)

    def shown(self) -> dict[str, object]:
        """As plain data."""
        return {"code": self.code, "text": self.text.format(**self.values), "values": self.values}


NO_TOKENIZER = Reason("no_tokenizer", "This model has no tokenizer, so it reads no text.")


def unless_one_of(verbs: set[str], code: str, text: str) -> Callable[[Model], Reason | None]:
    """Why a model does none of some verbs, as the `why_not` of a screen."""
    return lambda model: None if verbs & set(verbs_of(model)) else Reason(code, text)


def why_no_attention(model: Model) -> Reason | None:
    """Why a model has no attention weights over a text."""
    if model.tokenizer is None:
        return NO_TOKENIZER
    network = model.network
    recurrent = isinstance(network, RecurrentSeq2Seq)
    if recurrent and network.config.recurrent is not None and network.config.recurrent.attention == "none":
        return Reason("no_attention", "{kind} has no attention weights.", {"kind": "This recurrent network"})
    if not recurrent and not isinstance(network, Encoder | Decoder | EncoderDecoder):
        return Reason("no_attention", "{kind} has no attention weights.", {"kind": type(network).__name__})
    return None


def why_no_queries(model: Model) -> Reason | None:
    """Why a model has no queries and keys in heads."""
    if isinstance(model.network, RecurrentSeq2Seq):
        kind = "Its attention compares states of recurrent layers, without the queries, keys and values of heads."
        return Reason("no_heads", kind)
    return why_no_attention(model)
