"""The screen Models: what each model is, and its own diagram."""

from atento.errors import CapabilityError
from atento.inspection.figures.network_diagram import network_svg, network_text
from atento.inspection.position_ablation import scheme_names
from atento.model import Model
from atento.networks import EncoderDecoder, RecurrentSeq2Seq, parameter_count
from atento.networks.describe import describe
from atento.tasks.attending import mask_name
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.fields import Fields
from atento_serve.studio.shelf import Function, Shelf, Values


class CardFields(Fields):
    """One model."""

    model: str


def _card(shelf: Shelf, fields: CardFields) -> Values:
    """What the page says of a model."""
    model = shelf.model(fields.model)
    network, config = model.network.config, model.config
    reads_source = isinstance(model.network, EncoderDecoder | RecurrentSeq2Seq)
    return {
        "name": fields.model,
        "task": str(config.get("task") or ""),
        "verbs": [verb for verb in verbs_of(model) if verb not in ("tokenize", "detokenize", "score")],
        "architecture": network.architecture,
        "family": network.family,
        "writes": reads_source,
        "parameters": parameter_count(model.network),
        "vocabulary": None if model.tokenizer is None else model.tokenizer.vocab_size,
        "tokenizer": None if model.tokenizer is None else str(getattr(model.tokenizer, "kind", "")),
        "width": network.d_model,
        "layers": [network.n_layers, *([network.decoder_layers] if reads_source else [])],
        "heads": network.n_heads,
        "mask": _mask(model),
        "positions": scheme_names(network),
        "longest": shelf.limits.input_tokens if model.trained_length is None else model.trained_length,
        "device": str(model.device),
        "precision": model.precision,
        "diagram": _diagram_text(model),
    }


def _mask(model: Model) -> str:
    attends = model.network.config.architecture in ("encoder", "decoder", "encoder-decoder")
    return mask_name(model.network.config) if attends else ""


def _diagram_text(model: Model) -> str:
    try:
        return network_text(describe(model.network))
    except CapabilityError:
        return ""


def _diagram(shelf: Shelf, fields: CardFields) -> tuple[Values, bytes]:
    """The block diagram of a model, as SVG."""
    return {"format": "svg"}, network_svg(describe(shelf.model(fields.model).network)).encode()


FUNCTIONS: dict[str, Function] = {"card": (CardFields, _card), "diagram": (CardFields, _diagram)}
