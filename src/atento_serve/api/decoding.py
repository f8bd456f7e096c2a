"""The decoding options of a request by Hugging Face names, as options of `atento.Model`, within limits."""

from typing import Any, get_type_hints

from pydantic import create_model

from atento.config.sections.decoding import FILTERS, NGRAMS, DecodingConfig
from atento.config.sections.decoding_option import options_of
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Fields, Texts, bounded, described, listed, unsupported
from atento_serve.settings import Limits


def names_of(config: type[DecodingConfig]) -> dict[str, str]:
    """Our names of the options that a request may set -> Hugging Face's."""
    options = options_of(config).items()
    return {name: name if option.http is True else str(option.http) for name, option in options if option.http}


def option_fields(config: type[DecodingConfig]) -> object:
    """The class of a request's fields for the options of decoding, each null if it is not there."""
    kinds = get_type_hints(config)
    fields: dict[str, Any] = {theirs: (kinds[ours] | None, None) for ours, theirs in names_of(config).items()}
    return create_model("OptionFields", __base__=Fields, **fields)


NAMES = names_of(DecodingConfig)
_NEUTRAL: dict[str, tuple[object, ...]] = {  # of text-generation-inference; each with the values that ask for nothing
    "adapter_id": (),
    "best_of": (1,),
    "decoder_input_details": (False,),
    "frequency_penalty": (0.0,),
    "grammar": (),
    "watermark": (False,),
    "clean_up_tokenization_spaces": (False, True),
}
SEED_LIMIT = 2**63
_STOPS = 16  # most stop strings, and characters of one
_STOP_LENGTH = 256
_DRAFT_TOKENS = 64  # most tokens that a draft proposes at a time


class DecodingFields(option_fields(DecodingConfig)):  # type: ignore[misc]
    """The options of decoding, by the names of `transformers.GenerationConfig`; `draft` is ours."""

    stop: Texts | None = None
    stop_strings: Texts | None = None
    draft: Texts | None = None


class GenerationFields(DecodingFields):
    """The parameters of text generation, with those of text-generation-inference."""

    return_full_text: bool | None = None
    details: bool | None = None
    adapter_id: str | None = None
    best_of: int | None = None
    decoder_input_details: bool | None = None
    frequency_penalty: float | None = None
    grammar: dict[str, object] | None = None
    top_n_tokens: int | None = None
    truncate: int | None = None
    watermark: bool | None = None
    clean_up_tokenization_spaces: bool | None = None


def decoding_options(fields: DecodingFields, limits: Limits) -> dict[str, object]:
    """The options of a request, as `atento.Model` takes them.

    Raises:
        ServiceError: 422, an option out of its range or not supported.
    """
    bounded("max_new_tokens", fields.max_new_tokens, 1, limits.output_tokens)
    bounded("num_beams", fields.num_beams, 1, limits.beam)
    bounded("seed", fields.seed, 0, SEED_LIMIT - 1)
    bounded("min_new_tokens", fields.min_new_tokens, 0, limits.output_tokens)
    bounded("num_return_sequences", fields.num_return_sequences, 1, limits.n)
    bounded("prompt_lookup_num_tokens", fields.prompt_lookup_num_tokens, 1, _DRAFT_TOKENS)
    if isinstance(fields, GenerationFields):
        unsupported(fields, _NEUTRAL)
    values = {ours: getattr(fields, theirs) for ours, theirs in NAMES.items()}
    options = {name: value for name, value in values.items() if value is not None}
    if options.get("temperature") == 0 or options.get("sample") is False:  # filters mean nothing there
        for name in (*FILTERS, "sample"):
            options.pop(name, None)
        options |= {} if "beam" in options else {"greedy": True}
    stop = stop_strings(fields.stop, "stop") or stop_strings(fields.stop_strings, "stop_strings")
    draft = drafts(fields.draft) or ([NGRAMS] if fields.prompt_lookup_num_tokens is not None else [])
    return options | ({"stop": stop} if stop else {}) | ({"draft": draft} if draft else {})


def stop_strings(value: object, name: str) -> list[str]:
    """The texts that end an output. Raises ServiceError: 422, too many, too long or empty."""
    stops = [] if value is None else listed(value)
    if len(stops) > _STOPS:
        raise wrong_field(f"/{name}", f"`{name}` must have at most {_STOPS} texts: got {len(stops):,}")
    for number, text in enumerate(stops):
        if not 1 <= len(text) <= _STOP_LENGTH:
            raise wrong_field(
                f"/{name}/{number}", f"a text of `{name}` must have 1 to {_STOP_LENGTH} characters: got {len(text):,}"
            )
    return stops


def drafts(value: object) -> list[str]:
    """What proposes tokens. Raises ServiceError: 422, too many names, or an empty one."""
    names = [] if value is None else listed(value)
    if len(names) > 2 or not all(1 <= len(name) <= _STOP_LENGTH for name in names):
        raise wrong_field(
            "/draft",
            f"`draft` must be `{NGRAMS}`, the name of the draft of the model's recipe, or both: got {described(value)}",
        )
    return names
