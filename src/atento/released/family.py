"""A family of released models: its configuration in both directions, its weight table, its class names."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atento.base.errors import ModelError, nearest
from atento.config.sections.network import DEEPEST, WIDEST, NetworkConfig
from atento.config.sections.network_parts import SpecialIds
from atento.config.tables.head_kinds import HeadKind
from atento.released.weight_rows import Row

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_THEIRS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu", "tanh": "tanh"}


_log = logging.getLogger(__name__)
_NAMED = {  # the sizes that most families name alike, ours -> theirs
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
}
_SIZES = (
    *_NAMED.values(),
    *("max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions"),
    *("d_model", "d_ff", "d_kv", "num_layers", "num_heads", "encoder_layers", "decoder_layers"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "encoder_attention_heads", "decoder_attention_heads"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
    *("embedding_size", "dim", "hidden_dim", "n_heads", "n_layers"),
)
_SIZES_OR_NONE = ("n_inner", "num_key_value_heads", "num_decoder_layers", "head_dim", "num_labels")
_DEPTHS = (
    *("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"),
    "num_decoder_layers",
)
_LARGEST = 2**31 - 1  # of any other size; shapes of tensors say more
_RATES = ("dropout", "pdrop", "dropout_prob", "dropout_rate")
_IDS = {  # theirs -> ours
    "pad_token_id": "pad_id",
    "bos_token_id": "bos_id",
    "eos_token_id": "eos_id",
    "unk_token_id": "unk_id",
    "decoder_start_token_id": "start_id",
}
_SMALL = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "rope_theta")


Settings = Mapping[str, Any]
"""A configuration of theirs, or a part of it."""
NewHead = Callable[[HeadKind, NetworkConfig], dict[str, object] | None]


@dataclass(frozen=True)
class Repeat:
    """`name` usually repeats `source`, so that a file may leave out either of the two.

    `replaces`: where a file holds both and they differ, `source` is not read, as the first bias of BERT's output.
    """

    name: str
    source: str
    replaces: bool = False


@dataclass(frozen=True)
class Tying:
    """The `Repeat`s of a family in one file; names are without the family's prefix except in `stored_names`.

    `stored_names` maps a tensor to the name under which the file stores it; `repeated` are equal to another tensor, or
    replace it; `untied` are names of the file whose tensors differ from the one that they usually repeat; `sources`
    are the tensors that others repeat.
    """

    stored_names: dict[str, str]
    repeated: frozenset[str]
    untied: tuple[str, ...]
    sources: frozenset[str]

    def same(self, name: str, other_name: str) -> bool:
        """Whether both names are read from one tensor of the file."""
        return self.stored_names.get(name, name) == self.stored_names.get(other_name, other_name)


def resolve(
    repeats: Iterable[Repeat],
    names: Collection[str],
    prefix: str = "",
    equal: Callable[[str, str], bool] = lambda first, second: False,
    *,
    fill: bool = True,
) -> Tying:
    """Compare the tensors of a file that may repeat one another.

    Args:
        names: of the file's tensors. prefix: what the file puts before the names of the base model.
        equal: whether two of the file's tensors hold the same numbers.
        fill: whether a tensor that the file leaves out is read from the other one.
    """
    stored_names: dict[str, str] = {}
    repeated: set[str] = set()
    untied: list[str] = []

    def named(bare: str) -> str:
        return stored_names.get(bare, prefix + bare if prefix + bare in names else bare)

    repeats = [repeat for repeat in repeats if fill or repeat.replaces or named(repeat.name) in names]
    for repeat in repeats:  # the first that is stored replaces a source that is not
        if named(repeat.source) not in names and named(repeat.name) in names and (fill or repeat.replaces):
            stored_names[repeat.source] = named(repeat.name)
    for repeat in repeats:
        stored, source = named(repeat.name), named(repeat.source)
        if source not in names:
            continue
        stored_names[repeat.source] = stored_names[repeat.name] = source
        if stored == source or (stored in names and equal(stored, source)):
            repeated.add(repeat.name)
        elif stored in names:
            untied.append(stored)
            stored_names[repeat.name] = stored
            if repeat.replaces:
                stored_names[repeat.source] = stored
    return Tying(stored_names, frozenset(repeated), tuple(untied), frozenset(repeat.source for repeat in repeats))


@dataclass(frozen=True)
class Family:
    """One `model_type` of the Hugging Face layout.

    Attributes:
        prefix: of the base model's names in models with a head. other_prefixes: that of classes where it is another, by
            the end of their name.
        read, write: translate the configuration; `read` also gets the names of the tensors, which decide the heads, and
            which of them repeat one another.
        repeats: the tensors that usually repeat another one, by the configuration.
        tied: whether a tensor that a file leaves out repeats another one, if the configuration has no
            `tie_word_embeddings`; None: it always does.
        ignored: ends of names of tensors that some files hold although their network does not use them.
        new_head: gives the options of a new head for fine-tuning, as the published classes have it; None: the usual.
    """

    model_type: str  # its name in their `config.json`
    prefix: str
    read: Callable[[Mapping[str, object], frozenset[str], Tying], NetworkConfig]
    write: Callable[[NetworkConfig], dict[str, Any]]
    rows: Callable[[NetworkConfig], list[Row]]  # of the weight table, by the configuration
    computed: tuple[str, ...]  # names, or ends of names, of tensors that are not learned
    repeats: Callable[[Mapping[str, object]], tuple[Repeat, ...]]
    tied: bool | None = True
    ignored: tuple[str, ...] = ()
    other_prefixes: Mapping[str, str] = field(default_factory=dict)
    on_encoder: tuple[str, ...] = ()  # the kinds of labels whose class is an encoder without its decoder
    new_head: NewHead = lambda kind, network: None
    pooler: bool = False  # whether a new head of a text reads a pooler
    from_padding: bool = False  # whether positions count the real tokens from behind the id of padding
    transposed: bool = False  # whether linear layers are stored as (in, out)
    denoises: bool = False  # whether its models were trained to write a text without its masks

    def prefix_in(self, names: Collection[str]) -> str:
        """The prefix of the base model's names in a file with those tensors; empty: they have none."""
        return next((prefix for prefix in self._prefixes if any(name.startswith(prefix) for name in names)), "")

    def bare(self, name: str) -> str:
        """A name without the prefix of the base model's names."""
        return name.removeprefix(next((prefix for prefix in self._prefixes if name.startswith(prefix)), ""))

    def prefix_of(self, class_name: str) -> str:
        """The prefix of the base model's names in files of a class of `transformers`."""
        for end, prefix in self.other_prefixes.items():
            if class_name.endswith(end):
                return prefix
        bare = class_name.endswith("Model") and not class_name.endswith(("LMHeadModel", "MTModel"))
        return "" if bare else self.prefix

    @property
    def _prefixes(self) -> list[str]:
        return [prefix for prefix in (self.prefix, *self.other_prefixes.values()) if prefix]

    def tying(
        self,
        data: Mapping[str, object],
        names: Collection[str],
        prefix: str = "",
        equal: Callable[[str, str], bool] = lambda first, second: False,
    ) -> Tying:
        """The `Tying` of `repeats` in a file of that configuration; the other arguments as in `resolve`."""
        fill = self.tied is None or bool(data.get("tie_word_embeddings", self.tied))
        return resolve(self.repeats(data), names, prefix, equal, fill=fill)


def check_numbers(data: Settings) -> None:
    """Raises ModelError: a size, an id, a rate or an epsilon of their configuration is not the number it must be."""
    for key, value in data.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)  # Python's bool is an int
        if key in _SIZES or (key in _SIZES_OR_NONE and value is not None):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelError(f"`{key}` must be a whole number, 1 or more: got {value!r}")
            most = DEEPEST if key in _DEPTHS else WIDEST if key == "num_labels" else _LARGEST
            if value > most:
                raise ModelError(f"`{key}` may be {most:,} at most: got {value:,}")
        elif key.endswith("_token_id"):
            for one in value if isinstance(value, list) else [value]:
                if one is not None and type(one) is not int:
                    raise ModelError(f"`{key}` must be a token id or a list of them: got {value!r:.60}")
        elif key in _SMALL and not (number and 0 < value < float("inf")):
            raise ModelError(f"`{key}` must be a number above 0: got {value!r}")
        elif key.endswith(_RATES) and value is not None and not (number and 0 <= value <= 1):
            raise ModelError(f"`{key}` must be a number from 0 to 1: got {value!r}")


def check_depth(config: NetworkConfig, tensors: int, path: str) -> None:
    """Raises ModelError: a file of so few tensors cannot hold so many layers, which are therefore never built."""
    layers = config.n_layers + (config.decoder_layers if config.reads_source else 0)
    if layers > tensors and not config.shared_layers and config.cbow is None:
        raise ModelError(
            f"{path}: a network of {layers:,} layers has at least as many tensors, and the weights are {tensors:,}: "
            "one of the two files is damaged or of another model"
        )


def segments_of(data: Mapping[str, object]) -> int:
    """The number of segments of BERT's relatives. Raises ModelError: it is not 1 or more."""
    count = data.get("type_vocab_size", 2)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ModelError(f"`type_vocab_size` must be a whole number, 1 or more: got {count!r}")
    return count


def known_ids(data: Settings) -> tuple[dict[str, object], dict[str, int]]:
    """Their configuration without special ids at or beyond `vocab_size`, and all ids that no token has, by key."""
    size = data.get("vocab_size")
    known, outside = dict(data), {}
    for key in _IDS.keys() & data.keys():
        ids = data[key] if isinstance(data[key], list) else [data[key]]
        unknown_ids = [token_id for token_id in ids if isinstance(token_id, int) and token_id < 0]
        if unknown_ids:
            outside[key] = unknown_ids[0]
        unknown_ids = [
            token_id for token_id in ids if isinstance(token_id, int) and isinstance(size, int) and token_id >= size
        ]
        if unknown_ids:
            known[key], outside[key] = [token_id for token_id in ids if token_id not in unknown_ids], unknown_ids[0]
    return known, outside


def warn_of_ids(outside: Mapping[str, int], config: NetworkConfig, path: str) -> None:
    """Warn of special ids that are not in the vocabulary, and say which id replaces each."""
    for key, value in sorted(outside.items()):
        _log.warning(
            "%s: `%s` is %d, outside the vocabulary of %d: no token has that id; %d replaces it",
            path,
            key,
            value,
            config.vocab_size,
            getattr(config, _IDS[key]),
        )


def activation_of(name: object, model_type: str) -> Any:
    """Our name for their activation."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ModelError(f"{model_type}: activation {name!r} is not known here{nearest(str(name), list(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]


def their_activation(config: NetworkConfig, activation: str | None = None) -> str:
    """Their name for our activation; None: that of the network."""
    return _THEIRS[activation or config.feed_forward.activation]


def first_id(value: object, otherwise: int) -> int:
    """A token id of their configuration: the first of several, or `otherwise` if there is none."""
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, int) and value >= 0 else otherwise


def special_ids(data: Settings, *, pad: int, unk: int, bos: int, eos: int, mask: int) -> SpecialIds:
    """The special ids of an encoder by their configuration, with these for what it does not name."""
    start = first_id(data.get("bos_token_id"), bos)
    end = first_id(data.get("eos_token_id"), eos)
    return SpecialIds(first_id(data.get("pad_token_id"), pad), bos=start, eos=end, unk=unk, start=start, mask=mask)


def sizes_of(data: Settings) -> dict[str, Any]:
    """The sizes of a network by their configuration, as `NetworkConfig` names them."""
    return {ours: data[theirs] for ours, theirs in _NAMED.items()}


def their_sizes(config: NetworkConfig) -> dict[str, object]:
    """The same under their keys."""
    return {theirs: getattr(config, ours) for ours, theirs in _NAMED.items()}


def their_ids(config: NetworkConfig) -> dict[str, object]:
    """Whether the output matrix is the embedding, and the special ids of an encoder, under their keys."""
    ids = {"pad_token_id": config.pad_id, "bos_token_id": config.bos_id, "eos_token_id": config.eos_id}
    return {"tie_word_embeddings": config.output.tied, **ids}


GLOBAL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers


def layer_kinds(data: Settings, depth: int, model_type: str) -> Sequence[str] | None:
    """What `layer_types` says of each layer; None: nothing. Raises ModelError: of too few, or a kind not built here."""
    kinds = data.get("layer_types")
    if not kinds:
        return None
    if not isinstance(kinds, list) or len(kinds) < depth:
        got = len(kinds) if isinstance(kinds, list) else repr(kinds)
        raise ModelError(f"{model_type}: `layer_types` must name the kind of each of {depth} layers: got {got}")
    for kind in kinds[:depth]:
        if kind not in (GLOBAL, LOCAL):
            raise ModelError(f"{model_type}: `layer_types` {kind!r} is not built here; known: {GLOBAL!r}, {LOCAL!r}")
    return kinds[:depth]


def refuse(data: Mapping[str, object], supported: Mapping[str, tuple[object, ...]], model_type: str) -> None:
    """Raises ModelError: a key of their configuration has a value that is not supported."""
    for key, allowed in supported.items():
        if key in data and data[key] not in allowed:
            raise ModelError(f"{model_type}: `{key}` {data[key]!r} is not built here; known: {allowed[0]!r}")
