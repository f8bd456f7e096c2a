"""The options of one call of a model, checked: they change its usual decoding or embedding."""

from collections.abc import Mapping
from dataclasses import replace

from atento.config.reading.schema import Reader, as_node
from atento.config.reading.unused_options import unused_options
from atento.config.sections.decoding import FILTERS, DecodingConfig, DecodingOptions
from atento.config.sections.embedding import EmbeddingConfig, EmbeddingOptions
from atento.config.tables.foreign import our_option
from atento.errors import UsageError, nearest

_DEFAULT = DecodingConfig()  # its filters change nothing


def decoding_for(usual: DecodingConfig, n_best: int | None, options: DecodingOptions) -> DecodingConfig:
    """The model's usual decoding, changed by the options of a call.

    A filter (`temperature`, `top_k`, ...) implies sampling, even at a value that filters nothing. A strategy that the
    call names replaces the usual one: a beam (or `sample=False`) replaces sampling, `mbr` and `exact`; sampling
    replaces `mbr` and `exact`. A beam that is narrower than the usual `n_best` lowers it, and a
    limit below the usual minimum of tokens that.

    Raises:
        UsageError: an option that does not exist (names the nearest), one that excludes another, or one that has no
            effect in the strategy (`beam` beside `sample`, a `length_penalty` beside `greedy`).
        RecipeError: a value of the wrong type or out of range.
    """
    changes: dict[str, object] = dict(options)
    _check_names(changes, [*DecodingOptions.__annotations__], "decoding", also="n_best")
    if changes.pop("greedy", False):
        changes = _greedy(changes)
    else:
        changes = _named_strategy(changes)
    beam = changes.get("beam", usual.beam)
    if callable(changes.get("mbr")):  # the checks below take texts; the caller keeps it
        changes["mbr"] = "a function"
    if n_best is not None:
        changes["n_best"] = n_best
    elif changes.get("exact"):
        changes["n_best"] = 1
    elif isinstance(beam, int) and 0 < beam < usual.n_best:
        changes["n_best"] = beam
    limit = changes.get("max_new_tokens")
    if isinstance(limit, int) and "min_new_tokens" not in changes and 0 < limit < usual.min_new_tokens:
        changes["min_new_tokens"] = limit
    if not changes and not options:
        return usual
    decoding: DecodingConfig = Reader().fit(as_node(changes, "options"), DecodingConfig, "decoding", usual)
    for name, why in unused_options(decoding, options):
        raise UsageError(f"`{name}` has no effect: {why}")
    return decoding


def one_output(usual: DecodingConfig) -> DecodingConfig:
    """A model's usual decoding as a stream takes it: greedy search in place of a beam."""
    return replace(usual, beam=1, n_best=1, groups=1, exact=False)


def embedding_for(saved: Mapping[str, object], position: str, options: EmbeddingOptions) -> EmbeddingConfig:
    """The embedding of a model's configuration (`saved`, at `position` in messages), changed by the options of a call.

    Raises:
        UsageError: an option or a prompt that does not exist. RecipeError: a value of the wrong type.
    """
    _check_names(options, [*EmbeddingOptions.__annotations__], "embedding")
    default = Reader().fit(as_node(saved, position), EmbeddingConfig, "embedding")
    given = {name: value for name, value in options.items() if name not in ("prompt_name", "dimensions")}
    if "prompt_name" in options:
        if "prompt" in options:
            raise UsageError("`prompt` and `prompt_name` exclude each other")
        default = default.named(str(options["prompt_name"]))
    config: EmbeddingConfig = Reader().fit(as_node(given, "options"), EmbeddingConfig, "embedding", default)
    return config


def kept_dimensions(options: EmbeddingOptions, width: int) -> int | None:
    """How many numbers of each vector a call keeps; None: all.

    Raises:
        UsageError: `dimensions` is no whole number from 1 to the width of a vector.
    """
    kept = options.get("dimensions")
    if kept is not None and not (isinstance(kept, int) and 1 <= kept <= width):
        raise UsageError(f"`dimensions` must lie in 1 to {width}, the length of a vector: got {kept!r}")
    return kept


def refuse_options(options: Mapping[str, object], why: str) -> None:
    """Check that an evaluation of outputs that are not written has no options of decoding.

    Args:
        options: of the call; `seed`, by which the command also draws the intervals of scores, is accepted.
        why: what the model gives instead, for the message.

    Raises:
        UsageError: there is such an option.
    """
    for name in sorted(options.keys() - {"seed"}):
        raise UsageError(f"`{name}` has no effect on {why}")


def _greedy(changes: dict[str, object]) -> dict[str, object]:
    """The options of a call with `greedy`: a beam of 1 and no sampling, instead of the defaults."""
    neutral = {"beam": 1, "groups": 1, "sample": False, "mbr": None, "exact": False} | {
        name: getattr(_DEFAULT, name) for name in FILTERS
    }
    for name, value in neutral.items():
        if changes.get(name, value) != value:
            raise UsageError(f"`greedy` and `{name}` exclude each other: got `{name}` {changes[name]!r}")
    return neutral | changes


def _named_strategy(changes: dict[str, object]) -> dict[str, object]:
    """The options of a call, with others that switch off the usual strategy where the call names another one."""
    filters = [name for name in FILTERS if name in changes]
    if filters and changes.get("sample") is False:
        raise UsageError(f"`sample` and `{filters[0]}` exclude each other: got `sample` False")
    if filters:
        changes = {"sample": True} | changes
    if changes.get("mbr") is not None or changes.get("exact") or changes.get("beam", 1) != 1:
        changes = {"draft": ()} | changes  # one that the model usually has
    if changes.get("mbr") is not None:
        return {"exact": False} | changes
    if changes.get("sample"):
        return {"mbr": None, "exact": False} | changes
    if changes.get("exact") or "beam" in changes or "sample" in changes:
        neutral = {"mbr": None, "sample": False} | {name: getattr(_DEFAULT, name) for name in FILTERS}
        return neutral | ({} if "exact" in changes else {"exact": False}) | changes
    return changes


def _check_names(options: Mapping[str, object], known: list[str], kind: str, also: str = "") -> None:
    for name in options:
        if name not in known:
            near = nearest(name, [*known, also] if also and name != also else known, our_option(name))
            raise UsageError(f"unknown {kind} option {name!r}{near}")
