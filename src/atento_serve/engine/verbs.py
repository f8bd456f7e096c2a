"""What a served model can do: each verb applied to the items of a job, and the length of its texts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from atento.base.errors import CapabilityError, TokenizerError, UsageError, nearest
from atento.config.tables.tasks import TASKS, verb_of
from atento.config.tables.verbs import WRITING
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.objectives.labels import SETS
from atento.model import Model
from atento.networks import parameter_count
from atento.tasks.classification import above, least_probability, sure_labels
from atento.tasks.decoding_setup import embedding_for
from atento.tasks.mask_filling import Candidate, fill_each
from atento.tasks.regression import has_regression_head
from atento.tasks.task_model import Continuing, context_limit, for_head, labels_of, tokenizer_of
from atento.tasks.word_links import word_links
from atento.text.specials import languages_of
from atento.text.tokenizer import Tokenizer
from atento_serve.engine.log_probs import scored_entries
from atento_serve.engine.messages import plain
from atento_serve.jobs import Description

_VECTORS = ("embed", "similarity", "find")
_WINDOWED = ("answer", "tag")  # they read a text of any length, in windows
_CHARACTERS = 64  # of a text, for each token that it may have


class TooLong(UsageError):
    """A text has more tokens than the service or the model reads."""


def seed_decoding(model: Model, seed: int | None) -> None:
    """Give the decoding of a model the seed of the command line; None: its own stays."""
    if seed is not None:
        model.config["decoding"] = model.config.get("decoding", {}) | {"seed": seed}


def _classify(model: Model, items: Sequence[object], options: Mapping[str, Any]) -> list[object]:
    """All labels of each text; with `threshold` or `abstain`, a precision, those that are probable enough for it."""
    given: Any = [tuple(item) if isinstance(item, list) else item for item in items]
    threshold, abstain = options.get("threshold"), options.get("abstain")
    if abstain is None:
        return [above(labels, threshold or 0.0) for labels in model.classifications(given)]
    least = least_probability(model, abstain, threshold)
    return [sure_labels(model, labels, least) for labels in model.classifications(given)]


def _tag(model: Model, items: Sequence[object], options: Mapping[str, object]) -> list[object]:
    method: Callable[..., Sequence[object]] = model.tag_words if options.get("words") else model.tag
    return list(method(list(items), **{name: value for name, value in options.items() if name != "words"}))


def _fill(model: Model, items: Sequence[object], options: Mapping[str, object]) -> list[object]:
    def shown(one: Candidate) -> dict[str, object]:
        number = one.ids[0] if len(one.ids) == 1 else None
        return {"token": one.token, "token_id": number, "probability": one.probability, "text": one.text}

    fill: Callable[..., list[list[list[Candidate]]]] = fill_each
    filled = fill(model, list(items), **options)
    return [[[shown(one) for one in candidates] for candidates in of_masks] for of_masks in filled]


def _paired(name: str) -> Callable[[Model, Sequence[Any], Mapping[str, object]], list[Any]]:
    """The method of that name, which takes two lists, for items that are pairs; for single texts, one list."""

    def call(model: Model, items: Sequence[Any], options: Mapping[str, object]) -> list[Any]:
        if items and all(isinstance(item, str) for item in items):
            return list(getattr(model, name)(list(items), **options))
        if any(isinstance(item, str) or len(item) != 2 for item in items):
            raise UsageError(f"`{name}` takes pairs of texts: got something else")
        first, second = ([item[side] for item in items] for side in (0, 1))
        return list(getattr(model, name)(first, second, **options))

    return call


def _score(model: Model, items: Sequence[object], options: Mapping[str, object]) -> list[object]:
    """As `_paired`, with entries of the tokens as `log_probs.entries` has them, if `top` is given."""
    scores = _paired("score")(model, items, options)
    if "top" not in options:
        return scores
    tokenizer = tokenizer_of(model).target
    return [plain(row) | {"entries": scored_entries(tokenizer, row)} for row in scores]


def _tokenize(model: Model, items: Sequence[Any], options: Mapping[str, object]) -> list[object]:
    tokenizer, values = tokenizer_of(model), list[object]()
    for text in items:
        encoded = tokenizer.encode_with_offsets(text)
        value = {"ids": encoded.ids, "tokens": encoded.tokens, "offsets": encoded.offsets}
        if options.get("special"):
            ids = special_tokens_of(model.network.config, tokenizer, model.config.get("template")).apply(encoded.ids)[0]
            # where the text stands among special tokens
            front = next((at for at in range(len(ids)) if ids[at : at + len(encoded.ids)] == encoded.ids), 0)
            behind = len(ids) - front - len(encoded.ids)
            # special tokens have no place in the text
            offsets = [(0, 0)] * front + list(encoded.offsets) + [(len(text), len(text))] * behind
            value = {"ids": ids, "tokens": tokenizer.tokens(ids), "offsets": offsets}
        values.append(value)
    return values


def _find(model: Model, items: Sequence[Any], options: Mapping[str, Any]) -> list[object]:
    if "index" not in model.config:
        raise CapabilityError("this model has no index: `atento serve NAME=MODEL --index NAME=I` gives it one")
    return list(model.config["index"].find(list(items), **options))


_CALLS: dict[str, Callable[[Model, Sequence[Any], Mapping[str, object]], list[object]]] = {
    "classify": _classify,
    "tag": _tag,
    "fill": _fill,
    "answer": _paired("answers"),
    "similarity": _paired("similarity"),
    "score": _score,
    "tokenize": _tokenize,
    "align": lambda model, items, options: [word_links(model, one, other, options) for one, other in items],
    "detokenize": lambda model, items, options: [tokenizer_of(model).decode(ids) for ids in items],
    "find": _find,
}


def check_verb(verb: str) -> None:
    """Raises UsageError: no model does this."""
    known = {*_CALLS, *(str(spec.verb) for spec in TASKS.values())}
    if verb not in known:
        raise UsageError(f"unknown verb {verb!r}{nearest(verb, sorted(known))}")


def values_of(model: Model, verb: str, items: Sequence[object], options: Mapping[str, Any]) -> list[object]:
    """The result for each item, as plain data.

    Raises:
        AtentoError: what the method of the model raises.
    """
    model, options = for_head(model, options.get("head"), verb), {k: v for k, v in options.items() if k != "head"}
    call = _CALLS.get(verb)
    try:
        values = getattr(model, verb)(list(items), **options) if call is None else call(model, items, options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UsageError(f"`{verb}` has no option {str(error).rpartition(' ')[2]}") from None
    return [plain(value) for value in values]


def longest_read(model: Model, verb: str, longest: int) -> int:
    """The most tokens of a text, special ones included, that a verb reads whole.

    Args:
        longest: the limit of the service. The positions of the network may be fewer, and so may those that it was
            trained with, or the tokens to which the model itself cuts a text that it classifies or embeds.
    """
    limits: list[int | None] = [longest]
    own_way = (model.long_texts.windows or model.long_texts.head_tail) and not model.config.get("pairs")
    if verb in ("classify", *_VECTORS) and own_way:
        return longest  # the model has a way of its own with longer texts
    if verb not in _WINDOWED:
        limits += [model.network.config.source_limit, context_limit(model.network.config)]
    if verb == "classify" or (verb == "similarity" and has_regression_head(model)):
        limits.append(model.trained_length)
    elif verb in _VECTORS:
        limits.append(embedding_for(model.config.get("embedding", {}), str(model.path), {}).max_len)
    return min(limit for limit in limits if limit is not None)


def fitted(
    model: Model,
    verb: str,
    items: Sequence[object],
    longest: int,
    truncate: str,
    first: int = 0,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[list[object], int]:
    """The items within the limit of length, and the number of their tokens.

    Two texts that the network reads as one sequence count together.

    Args:
        longest: the most tokens of a text, special tokens included, as `longest_read` takes it.
        truncate: what becomes of a longer text: "error", or "left" or "right", the end that is cut. A text that is
            scored is never cut.
        first: the number of the first item in errors.
        options: those of the verb; a prompt takes some of the room.

    Raises:
        TooLong: a text is longer and may not be cut; says both lengths. UsageError: an item is of another kind.
    """
    if verb == "detokenize" or model.tokenizer is None:
        return list(items), 0
    model = for_head(model, options.get("head"), verb)
    tokenizer, longest = tokenizer_of(model), longest_read(model, verb, longest)
    template = special_tokens_of(model.network.config, tokenizer, model.config.get("template"))
    total, within, prompt = 0, list[object](), 0
    if verb in _VECTORS:  # it stands before each text
        named: Any = {name: value for name, value in options.items() if name in ("prompt", "prompt_name")}
        config = embedding_for(model.config.get("embedding", {}), str(model.path), named)
        prompt = len(tokenizer.encode(config.prompt)) if config.prompt else 0
    for number, item in enumerate(items, first):
        if verb in WRITING and isinstance(item, list):  # a prompt of ids
            _check_length(number, len(item), longest)
            total, within = total + len(item), [*within, item]
            continue
        parts = list(item) if isinstance(item, list | tuple) else [item]
        texts = [_within(number, _text(part), longest, verb, truncate) for part in parts]
        lengths = [len(tokenizer.encode(text)) for text in texts]
        joined = len(parts) == 2 and _reads_as_one(model, verb)
        added = template.added(joined and verb != "score") + prompt
        rooms = _shares(lengths, longest - added) if joined else [longest - added] * len(parts)
        sizes = [sum(lengths) + added] if joined else [length + added for length in lengths]
        if truncate == "error" or verb == "score" or longest - added < 1:
            _check_length(number, max(sizes, default=0), longest)
        sized = zip(texts, lengths, rooms)
        cut = [_cut(tokenizer, text, room, truncate) if length > room else text for text, length, room in sized]
        total += sum(min(size, longest) for size in sizes)
        within.append(cut if isinstance(item, list | tuple) else cut[0])
    return within, total


def _reads_as_one(model: Model, verb: str) -> bool:
    """Whether the network reads the two texts of an item as one sequence."""
    if verb == "score":
        return isinstance(model.network, Continuing)
    return verb == "classify" or (verb == "similarity" and has_regression_head(model))


def _shares(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens two texts keep of so many in all: the longer one is cut first."""
    shorter, longer = min(*lengths, room // 2), lengths.index(max(lengths))
    return [room - shorter if number == longer else shorter for number in range(2)]


def _text(part: object) -> str:
    if not isinstance(part, str):
        raise UsageError(f"a text must be a str: got {type(part).__name__}")
    return part


def _within(number: int, text: str, longest: int, verb: str, truncate: str) -> str:
    """A text, or as much of it as may be read, before the time is spent to find its tokens."""
    most = _CHARACTERS * longest
    if len(text) > most and (truncate == "error" or verb == "score"):
        raise TooLong(f"text {number} has {len(text)} characters: at most {longest} tokens are read")
    return text if len(text) <= most else text[:most] if truncate == "right" else text[-most:]


def _check_length(number: int, length: int, longest: int) -> None:
    if length > longest:
        raise TooLong(f"text {number} has {length} tokens: at most {longest} are read")


def _cut(tokenizer: Tokenizer, text: str, room: int, truncate: str) -> str:
    """The text without its end ("right") or its beginning ("left"), as long as may be."""
    for least in (2 ** max(0, turn - 8) for turn in count()):  # many tokens may be of one character with its marks
        offsets = tokenizer.encode_with_offsets(text).offsets  # (start, end) of each token
        if len(tokenizer.encode(text)) <= room:
            break
        if truncate == "right":
            text = text[: max(0, min(offsets[room - 1][1], len(text) - least))]  # so that it always ends
        else:
            text = text[max(least, offsets[-room][0]) :]
    return text


def describe(model: Model, limits: Mapping[str, int], *, chats: bool = False) -> Description:
    """What the server says of a loaded model.

    Args:
        limits: `input_tokens` and `output_tokens`.
        chats: whether its folder has a chat template.
    """
    network, tokenizer, config = model.network.config, model.tokenizer, model.config
    task = str(config.get("task"))
    heads = {head.kind for head in network.heads}
    verb, verbs = verb_of(task) or "embed", verbs_of(model)
    embedding = embedding_for(config.get("embedding", {}), str(model.path), {})  # as the model embeds without options
    positions = (network.position_limit, context_limit(network))
    # a context limit bounds prompt and output together
    outputs = [limits["output_tokens"], *(limit for limit in positions if limit is not None)]
    return Description(
        task=task,
        verb=verb,
        verbs=verbs,
        languages=sorted(languages_of(tokenizer.specials.ids)) if tokenizer is not None else [],
        max_length=None if tokenizer is None else longest_read(model, verb, limits["input_tokens"]),
        max_new_tokens=min(outputs) if set(verbs) & set(WRITING) else None,
        beam=model.decoding.beam,
        trained_length=model.trained_length,
        vocabulary=None if tokenizer is None else tokenizer.vocab_size,
        parameters=parameter_count(model.network),
        dtype=model.precision,
        width=embedding.width(network),
        has_chat_template=chats and "generate" in verbs,
        labels=sorted(labels_of(network)),
        heads={name: str(own["task"]) for name, own in config.get("tasks", {}).items()},
        multi_label=SETS in heads,
        pairs=config.get("pairs"),
        gives_number=has_regression_head(model),
        mask_token=None if tokenizer is None else tokenizer.specials.roles.get("mask"),
        search_prompts=embedding.search_prompts(),
        path=str(model.path or ""),
    )


_VERBS: WeakKeyDictionary[Model, list[str]] = WeakKeyDictionary()  # trying them takes 20 ms


def verbs_of(model: Model) -> list[str]:
    """The verbs that the model can do, that of its task first."""
    if model not in _VERBS:
        own = verb_of(model.config.get("task"))
        known = dict.fromkeys([*(spec.verb for spec in TASKS.values()), *_CALLS])
        able = [verb for verb in known if verb is not None and _can(model, verb)]
        _VERBS[model] = sorted(able, key=lambda verb: verb != own)
    return _VERBS[model]


def _can(model: Model, verb: str) -> bool:
    if any(verb_of(own["task"]) == verb for own in model.config.get("tasks", {}).values()):
        return True
    try:
        values_of(model, verb, ["a"] if verb in ("embed", "tokenize") else [], {})
    except (CapabilityError, TokenizerError):
        return False
    return verb != "similarity" or has_regression_head(model) or _can(model, "embed")
