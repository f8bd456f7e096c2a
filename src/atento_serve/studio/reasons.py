"""Why a model cannot feed a screen: a code, which the page translates, and a sentence in English."""

from dataclasses import dataclass

from atento.model import Model
from atento.networks import Decoder, Encoder, EncoderDecoder, RecurrentSeq2Seq


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
    values: dict[str, str]

    def shown(self) -> dict[str, object]:
        """As plain data."""
        return {"code": self.code, "text": self.text.format(**self.values), "values": self.values}


def why_no_attention(model: Model) -> Reason | None:
    """Why a model has no attention weights over a text."""
    if model.tokenizer is None:
        return Reason("no_tokenizer", "This model has no tokenizer, so it reads no text.", {})
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
        return Reason("no_heads", kind, {})
    return why_no_attention(model)
