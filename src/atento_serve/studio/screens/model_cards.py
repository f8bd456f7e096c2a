"""The screen Models: what each model is, and its own diagram."""

import re
from contextlib import suppress

from atento.base.errors import CapabilityError
from atento.inspection.ablation import scheme_names
from atento.inspection.figures.network_diagram import network_svg, network_text
from atento.model import Model
from atento.networks import EncoderDecoder, RecurrentSeq2Seq, parameter_count
from atento.networks.describe import describe
from atento.tasks.attention_records import mask_name
from atento.tasks.task_model import labels_of
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.fields import Fields
from atento_serve.settings import ModelSettings
from atento_serve.studio.shelf import Function, Shelf, Values

_SENTENCES = {
    "en": "The cat sees the old house, and Ana buys two books in the garden.",
    "pt": "O gato vê a casa velha, e Ana compra dois livros no jardim.",
}


class CardFields(Fields):
    """One model."""

    model: str


def _card(shelf: Shelf, fields: CardFields) -> Values:
    """What the page says of a model."""
    model = shelf.model(fields.model)
    network, config = model.network.config, model.config
    reads_source = isinstance(model.network, EncoderDecoder | RecurrentSeq2Seq)
    attends = network.architecture in ("encoder", "decoder", "encoder-decoder")
    diagram = ""
    with suppress(CapabilityError):
        diagram = network_text(describe(model.network))
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
        "mask": mask_name(network) if attends else "",
        "positions": scheme_names(network),
        "longest": shelf.limits.input_tokens if model.trained_length is None else model.trained_length,
        "device": str(model.device),
        "precision": model.precision,
        "diagram": diagram,
        "seed": int(config.get("decoding", {}).get("seed", 1)),
        "labels": sorted(labels_of(network)),
        "pairs": config.get("pairs"),
        "languages": _languages(model, shelf.settings[fields.model]),
    }


def _languages(model: Model, settings: ModelSettings) -> list[str]:
    """The languages of the page whose texts the model reads: by its settings or its name, of a translator the source.

    Else those that its tokenizer knows best: with a third more tokens than in the other, a language is a foreign one.
    """
    named = re.search(r"\b(en|pt)-", settings.name)
    source = settings.languages[0] if settings.languages else named[1] if named else ""
    if model.tokenizer is None or source in _SENTENCES:
        return [source] if source in _SENTENCES else list(_SENTENCES)
    sizes = {language: len(model.tokenizer.encode(text)) for language, text in _SENTENCES.items()}
    return [language for language, size in sizes.items() if 3 * size <= 4 * min(sizes.values())]


def _diagram(shelf: Shelf, fields: CardFields) -> tuple[Values, bytes]:
    """The block diagram of a model, as SVG."""
    return {"format": "svg"}, network_svg(describe(shelf.model(fields.model).network)).encode()


FUNCTIONS: dict[str, Function] = {"card": (CardFields, _card), "diagram": (CardFields, _diagram)}
