"""The options of one call, checked, and a decoding as what `generate` takes: a strategy, rules, words as ids."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from atento.base.errors import UsageError, nearest
from atento.config.reading.schema import Reader, as_node, plain
from atento.config.reading.unused_options import unused_options
from atento.config.sections.decoding import FILTERS, DecodingConfig, DecodingOptions
from atento.config.sections.embedding import EmbeddingConfig, EmbeddingOptions
from atento.config.sections.network_parts import WritingConfig
from atento.config.tables.foreign import our_option
from atento.decoding import MBR, Beam, Greedy, Sample
from atento.decoding.beam.required import Automaton
from atento.decoding.contract import Rule
from atento.decoding.rules import (
    Banned,
    CountPenalty,
    Forced,
    ForcedLast,
    NoRepeatNGrams,
    RepetitionPenalty,
    SuppressedAt,
    SuppressedBehind,
    renormalized,
)
from atento.decoding.strategies import Strategy
from atento.tasks.task_model import check_flags
from atento.text.other_spellings import all_spellings
from atento.text.tokenizer import Tokenizer

_DEFAULT = DecodingConfig()  # its filters change nothing


def decoding_for(usual: DecodingConfig, n_best: int | None, options: DecodingOptions) -> DecodingConfig:
    """The model's usual decoding, changed by the options of a call.

    A filter (`temperature`, `top_k`, ...) implies sampling, even at a value that filters nothing. A strategy that the
    call names replaces the usual one: a beam (or `sample=False`) replaces sampling, `mbr` and `exact`; sampling
    replaces `mbr` and `exact`. A beam that is narrower than the usual `n_best` lowers it, and a
    limit below the usual minimum of tokens that.
    Raises UsageError: an option that does not exist (names the nearest), one that excludes another, or one that has no
    effect in the strategy (`beam` beside `sample`, a `length_penalty` beside `greedy`). RecipeError: a value of the
    wrong type or out of range.
    """
    changes: dict[str, object] = {name: plain(value) for name, value in options.items()}
    _check_names(changes, [*DecodingOptions.__annotations__], "decoding", also="n_best")
    check_flags(greedy=changes.get("greedy"))
    if changes.pop("greedy", False):  # a beam of 1 and no sampling, instead of the defaults
        neutral: dict[str, object] = {"beam": 1, "groups": 1, "sample": False, "mbr": None, "exact": False}
        neutral |= {name: getattr(_DEFAULT, name) for name in FILTERS}
        for name, value in neutral.items():
            if changes.get(name, value) != value:
                raise UsageError(f"`greedy` and `{name}` exclude each other: got `{name}` {changes[name]!r}")
        changes = neutral | changes
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
    try:
        decoding = _decoding_of(usual, json.dumps(changes))
    except TypeError:  # a value that is no JSON, which is refused
        decoding = _fitted(usual, changes)
    for name, why in unused_options(decoding, options):
        raise UsageError(f"`{name}` has no effect: {why}")
    return decoding


@lru_cache(maxsize=64)
def _decoding_of(usual: DecodingConfig, changes: str) -> DecodingConfig:
    """A decoding changed by JSON, remembered because calls in a row have the same options."""
    return _fitted(usual, json.loads(changes))


def _fitted(usual: DecodingConfig, changes: dict[str, object]) -> DecodingConfig:
    decoding: DecodingConfig = Reader().fit(as_node(changes, "options"), DecodingConfig, "decoding", usual)
    return decoding


def one_output(usual: DecodingConfig) -> DecodingConfig:
    """A model's usual decoding as a stream takes it: greedy search in place of a beam."""
    return replace(usual, beam=1, n_best=1, groups=1, exact=False)


def embedding_for(saved: Mapping[str, object], position: str, options: EmbeddingOptions) -> EmbeddingConfig:
    """The embedding of a model's configuration (`saved`, at `position` in messages), changed by the options of a call.
    Raises UsageError: an option or a prompt that does not exist, a length of 0. RecipeError: a value of the wrong type.
    """
    _check_names(options, [*EmbeddingOptions.__annotations__], "embedding")
    default = Reader().fit(as_node(saved, position), EmbeddingConfig, "embedding")
    given = {name: value for name, value in options.items() if name not in ("prompt_name", "dimensions")}
    if "prompt_name" in options:
        if "prompt" in options:
            raise UsageError("`prompt` and `prompt_name` exclude each other")
        default = default.named(str(options["prompt_name"]))
    config: EmbeddingConfig = Reader().fit(as_node(given, "options"), EmbeddingConfig, "embedding", default)
    if config.max_len == 0:
        raise UsageError("`max_len` must be at least 1: got 0")
    return config


def kept_dimensions(options: EmbeddingOptions, width: int) -> int | None:
    """How many numbers of each vector a call keeps; None: all.
    Raises UsageError: `dimensions` is no whole number from 1 to the width of a vector.
    """
    kept = plain(options.get("dimensions"))
    if kept is None or (isinstance(kept, int) and 1 <= kept <= width):
        return kept
    raise UsageError(f"`dimensions` must lie in 1 to {width}, the length of a vector: got {kept!r}")


def refuse_options(options: Mapping[str, object], why: str) -> None:
    """Check that an evaluation of outputs that are not written has no options of decoding.

    Args:
        options: of the call; `seed`, by which the command also draws the intervals of scores, is accepted.
        why: what the model gives instead, for the message.

    Raises UsageError: there is such an option.
    """
    for name in sorted(options.keys() - {"seed"}):
        raise UsageError(f"`{name}` has no effect on {why}")


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


T = TypeVar("T")
Ids = tuple[int, ...]
ToText = Callable[[list[int]], str]
Utility = Callable[[list[str], list[str]], object]  # candidates, evidence -> (N,M) in 0-1
_MOST_BANNED = 10_000  # spellings of all banned words
_CONTINUING = WeakKeyDictionary[Tokenizer, Ids]()  # `_continuing` reads the whole vocabulary
_ANCHOR = "a"  # a word before another one, which shows how the tokenizer cuts that inside a text


@dataclass(frozen=True)
class Constraints:
    """The words and tokens of a decoding configuration, as ids."""

    banned: tuple[Ids, ...] = ()  # sequences that no output may contain
    required: tuple[Ids, ...] = ()  # sequences that every output must contain
    prefix: Ids = ()  # the ids that every output begins with
    stop_ids: Ids = ()  # ids that end an output in addition to EOS
    continuing: Ids = ()  # ids that would go on with the last word of the prefix, where that is over
    over: tuple[Ids, ...] = ()  # required sequences whose last word is over
    within: Ids = ()  # ids that would go on with that word

    @property
    def length(self) -> int:
        """The room that an output needs for all that it must contain, in tokens."""
        if not self.required:
            return len(self.prefix)
        automaton = Automaton.of(self.required)
        # leave room for EOS after required words, unless these take all tokens
        eos = 1 if self.prefix else 0
        return len(self.prefix) + automaton.missing[automaton.read(self.prefix)] + eos


NO_CONSTRAINTS = Constraints()


def strategy_of(config: DecodingConfig, text: ToText | None = None, utility: Utility | None = None) -> Strategy:
    """Return the strategy of a decoding configuration.

    Args:
        text: ids -> text, where a utility compares outputs.
        utility: a function that compares outputs, in place of the metric that the configuration names.
    """
    filters = {name: getattr(config, name) for name in FILTERS}
    if config.mbr is not None:
        n = config.candidates
        candidates: Any = Sample(**filters, n=n)
        if config.candidates_from == "beam":
            candidates = _beam(config, n, n)
        elif config.candidates_from == "both" and n > 1:
            candidates = (Sample(**filters, n=n - n // 2), _beam(config, n // 2, n // 2))
        return MBR(
            utility or config.mbr,
            candidates,
            Sample(**filters, n=config.evidence) if config.evidence else None,
            config.evidence_weights,
            config.self_comparison,
            text,
            config.n_best,
            config.mbr_method,
            config.mbr_keep,
            config.mbr_confidence,
        )
    if config.samples:
        return Sample(**filters, n=config.n_best)
    if config.beam == 1 and not config.required_words and not config.exact:
        return Greedy()
    return _beam(config, config.beam, config.n_best)


def _beam(config: DecodingConfig, width: int, n_best: int) -> Beam:
    """A beam search of that width, as the configuration has it."""
    return Beam(width, config.length_penalty, n_best, config.stopping, config.until, config.groups, config.diversity)


RULES: dict[tuple[str, ...], Callable[[DecodingConfig, int], Rule]] = {  # options, one of which is not its default
    ("repetition_penalty",): lambda config, _: RepetitionPenalty(config.repetition_penalty, config.count_prompt),
    ("presence_penalty", "frequency_penalty"): lambda config, _: CountPenalty(
        config.presence_penalty, config.frequency_penalty
    ),
    ("no_repeat_ngrams",): lambda config, _: NoRepeatNGrams(config.no_repeat_ngrams, config.count_prompt),
}
"""The rules that follow from options alone, in their order: of a configuration and the id of EOS."""


def rules_of(
    config: DecodingConfig,
    constraints: Sequence[Constraints] = (NO_CONSTRAINTS,),
    *,
    eos_id: int = 0,
    writing: WritingConfig | None = None,
    max_new_tokens: Sequence[int] = (),
) -> tuple[Rule, ...]:
    """Return the rules of a configuration, which change scores before a choice; those that force a token are last.

    Args:
        constraints: its words and tokens, as ids: those of all rows, or those of each; the banned ones are the same.
        eos_id: what `forced_eos` ends an output with, after `max_new_tokens`, a number a row.
        writing: the rules of the network.
    """
    own = writing or WritingConfig()
    rules = [rule(config, eos_id) for options, rule in RULES.items() if config.changes(*options)]
    prefixes = [one.prefix for one in constraints]
    banned = (*constraints[0].banned, *own.banned, *((token,) for token in own.suppressed))
    if banned:
        rules.append(Banned(banned))
    if own.suppressed_first:
        rules.append(SuppressedAt(_one_or_each([len(prefix) for prefix in prefixes]), own.suppressed_first))
    if continuing := next((one.continuing for one in constraints if one.continuing), ()):
        ends = [len(one.prefix) if one.continuing else -1 for one in constraints]  # -1: no such place
        rules.append(SuppressedAt(_one_or_each(ends), continuing))
    if within := next((one.within for one in constraints if one.within), ()):
        rules.append(SuppressedBehind([one.over for one in constraints], within))
    if config.forced_eos:
        rules.append(ForcedLast(eos_id, max_new_tokens))
    elif own.last is not None and not config.ignore_eos:
        rules.append(ForcedLast(own.last, max_new_tokens, certain=True))
    if any(prefixes):  # they force, so they have the last word
        certain = own.first is not None and config.forced_bos is None
        rules.append(Forced(_one_or_each([dict(enumerate(prefix)) for prefix in prefixes]), certain))
    return (*rules, renormalized) if own.renormalized else tuple(rules)


def _one_or_each(values: list[T]) -> T | list[T]:
    """What a rule takes for all rows, or for each."""
    return values[0] if len(values) == 1 else values


def constraints_of(
    config: DecodingConfig, tokenizer: Tokenizer, writing: WritingConfig | None = None, *, behind: bool = False
) -> Constraints:
    """The words and tokens that a configuration names, as ids.

    Args:
        tokenizer: of the outputs (`Tokenizer.target`).
        writing: the rules of the network, which may have a first token.
        behind: whether outputs stand behind a prompt: a prefix that begins with a space begins a new word there.

    Raises UsageError: a word that the vocabulary cannot write, a token that it does not hold, a banned word inside of
    what must be written, or nothing that may be written; names the option.
    """
    own = writing or WritingConfig()
    words = [ids for word in config.banned_words for ids in _spellings(word, tokenizer, "banned_words")]
    most = min(256, _MOST_BANNED // max(1, len(words)))  # a step compares with each
    banned = [ids for word in words for ids in all_spellings(word, tokenizer, most)]
    banned += [(_token(name, tokenizer, "banned_tokens"),) for name in config.banned_tokens]
    # spelled as inside a text
    required = tuple(_spellings(word, tokenizer, "required_words")[-1] for word in config.required_words)
    first = own.first if config.forced_bos is None else _token(config.forced_bos, tokenizer, "forced_bos")
    prefix: Ids = () if first is None else (first,)
    if config.prefix.strip():
        spelled = _ids(config.prefix, tokenizer, "prefix")
        new_word = ids_inside(config.prefix, tokenizer) if behind and config.prefix[0].isspace() else ()
        prefix += new_word or spelled
    for name, must in (("prefix", [prefix]), ("required_words", required)):
        for ids in must:
            inside = [banned_ids for banned_ids in banned if _contains(ids, banned_ids)]
            if inside:
                text = tokenizer.decode(inside[0], skip_special=False)
                raise UsageError(
                    f"`{name}` must not contain banned words or tokens: got {text!r} in {tokenizer.decode(ids)!r}"
                )
    never = {*tokenizer.specials.ids.values(), *own.suppressed, *(ids[0] for ids in banned if len(ids) == 1)}
    if banned and all(id in never or not (tokenizer.spelling(id) or "").strip() for id in range(tokenizer.vocab_size)):
        raise UsageError("`banned_words` and `banned_tokens` leave no token of the vocabulary that a text could have")
    stop_ids = tuple(_token(name, tokenizer, "stop_tokens") for name in config.stop_tokens)
    continuing = _continuing(tokenizer) if config.prefix.strip() and config.prefix[-1].isspace() else ()
    over = tuple(ids for word, ids in zip(config.required_words, required) if word[-1:].isspace())
    within = _continuing(tokenizer) if over else ()
    return Constraints(tuple(dict.fromkeys(banned)), required, prefix, stop_ids, continuing, over, within)


def _continuing(tokenizer: Tokenizer) -> Ids:
    """The ids of pieces that go on with a word."""
    if tokenizer not in _CONTINUING:
        spellings = map(tokenizer.spelling, range(tokenizer.vocab_size))
        texts = (text.decode("latin-1") if isinstance(text, bytes) else text or "" for text in spellings)
        _CONTINUING[tokenizer] = tuple(token for token, text in enumerate(texts) if text[:1].isalnum())
    return _CONTINUING[tokenizer]


def ids_inside(word: str, tokenizer: Tokenizer) -> Ids:
    """Return the ids of a word behind another one; empty if the tokenizer does not cut the text between them."""
    before = tokenizer.encode(_ANCHOR)
    joined = tokenizer.encode(f"{_ANCHOR} {word.strip()}")
    return tuple(joined[len(before) :]) if joined[: len(before)] == before else ()


def _spellings(word: str, tokenizer: Tokenizer, option: str) -> list[Ids]:
    """Return the ids of a word at the beginning of a text and inside it; only one if it ends with the other."""
    first = _ids(word, tokenizer, option)
    inside = ids_inside(word, tokenizer) or first
    shorter = min(first, inside, key=len)
    return [shorter] if _contains(first, shorter) and _contains(inside, shorter) else [first, inside]


def _ids(text: str, tokenizer: Tokenizer, option: str) -> Ids:
    """The ids of a text. Raises UsageError where the vocabulary cannot write it."""
    ids = tuple(tokenizer.encode(text.strip()))
    if not ids or tokenizer.specials.get("unk") in ids:
        raise UsageError(f"`{option}`: the model's vocabulary cannot write {text!r}")
    return ids


def _token(name: str, tokenizer: Tokenizer, option: str) -> int:
    """The id of a token. Raises UsageError where the vocabulary has none of that name."""
    token = tokenizer.token_id(name)
    if token is None:
        near = nearest(name, list(tokenizer.specials.ids)).partition(" Known:")[0].rstrip(".")
        raise UsageError(f"`{option}`: the model's vocabulary has no token {name!r}{near}")
    return token


def _contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[at : at + len(part)]) == tuple(part) for at in range(len(ids) - len(part) + 1))
