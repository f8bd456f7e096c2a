"""Transplants: the weights of a trained network in another network, with a load report.

Each returns the new network, in the mode (training or not) and of the type of the old one, and its load report.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import by_key
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.networks.build import build_network
from atento.networks.interface import Network
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.released.load_report import LoadReport
from atento.text.tokenizer import Tokenizer

# the keys that must be equal for the blocks of two networks to be part of one network
_SHARED = (
    "vocab_size",
    "d_model",
    "d_ff",
    "n_heads",
    "attention.n_kv_heads",
    "attention.d_head",
    "attention.bias",
    "attention.output_bias",
    "attention.norm",
    "attention.scale",
    "feed_forward.activation",
    "feed_forward.gated",
    "feed_forward.bias",
    "norm",
    "norm_kind",
    "norm_bias",
    "first_norm",
    "shared_layers",
    "norm_eps",
    "embedding.norm",
    "embedding.scaled",
    "positions",
)
# tensors with a row a token: these, and the output of a head
SOURCE_TABLE = "embedding.weight"
_VOCABULARY = (SOURCE_TABLE, "target_embedding.weight")


def to_decoder(encoder: Encoder) -> tuple[Decoder, LoadReport]:
    """An encoder (BERT) as a language model: with a causal mask, or with a prefix mask that a call gives.

    Under `mask=bidirectional()` its hidden vectors are the encoder's. Segment 0 is folded into the learned positions;
    the output bias of a masked-language-model head is used, its dense layer is not.
    Raises CapabilityError: it is not an encoder, or it has segments but no learned positions to fold them into.
    """
    if not isinstance(encoder, Encoder):
        raise CapabilityError(f"an encoder becomes a decoder: got a network of type {type(encoder).__name__}")
    encoder_config = encoder.config
    config = changed(
        encoder_config,
        architecture="decoder",
        family="",
        heads=(),
        pooler=False,
        embedding={"segments": 0},
        output={
            "tied": encoder_config.output.tied or "vocabulary" not in encoder.heads,
            "bias": "vocabulary" in encoder.heads,
        },
    )
    weights = encoder.state_dict()
    segments, table = weights.get("inputs.segments"), _fold_segments(weights)
    decoder, load_report = _build_with_weights(config, encoder, weights, {})
    if segments is not None:  # its first row is now part of the positions
        load_report.unused.remove("inputs.segments")
        load_report.loaded[table] = (table, "inputs.segments")
    assert isinstance(decoder, Decoder)
    return decoder, load_report


def to_encoder(network: EncoderDecoder, heads: Sequence[HeadConfig] = ()) -> tuple[Encoder, LoadReport]:
    """The encoder of an encoder-decoder (such as T5) as an encoder network, with new heads."""
    network_config = network.config
    if network_config.features is not None:
        raise CapabilityError("an encoder over `network.features` is no encoder by itself")
    config = changed(
        network_config,
        architecture="encoder",
        family=network_config.family if network_config.family in ("t5", "mt5") and not heads else "",
        n_decoder_layers=None,
        heads=tuple(heads),
        output={"tied": True, "bias": False, "scaled": False},
    )
    encoder, load_report = _build_with_weights(
        config, network, network.state_dict(), {"encoder.": "stack.", "source_inputs.": "inputs."}
    )
    assert isinstance(encoder, Encoder)
    return encoder, load_report


def to_encoder_decoder(reader: Encoder | Decoder, writer: Encoder | Decoder) -> tuple[EncoderDecoder, LoadReport]:
    """Two checkpoints as the two halves of an encoder-decoder; the cross-attention is new (Rothe et al. 2020).

    Both must have the same kind of block and the same vocabulary; pass one network twice to use it for both halves.
    Raises CapabilityError: they differ in a key that both halves share; names it.
    """
    first, second = by_key(reader.config), by_key(writer.config)
    for name in _SHARED:
        reader_value, writer_value = first[name], second[name]
        if reader_value != writer_value:
            raise CapabilityError(
                f"the two networks must have the same `{name}`: got {reader_value!r} and {writer_value!r}"
            )
    reader_depth, writer_depth = reader.config.n_layers, writer.config.n_layers
    # one table serves both sides
    same = reader is writer or torch.equal(reader.embedding.weight, writer.embedding.weight)
    config = changed(
        reader.config,
        architecture="encoder-decoder",
        family="",
        heads=(),
        pooler=False,
        embedding={"segments": 0, "shared": same},
        output={
            "tied": writer.config.output.tied,
            "bias": writer.config.output.bias,
            "scaled": writer.config.output.scaled,
        },
        ids={"start": writer.config.start_id, "eos": writer.config.eos_id},
        n_decoder_layers=None if reader_depth == writer_depth else writer_depth,
        max_len=min(reader.config.max_len, writer.config.max_len),
    )
    weights: dict[str, Tensor] = {}
    halves = ((reader, "reader.", "source_inputs.", "encoder."), (writer, "writer.", "target_inputs.", "decoder."))
    names: dict[str, str] = {}
    for network, half_prefix, inputs, stack in halves:
        half = network.state_dict()
        if isinstance(network, Encoder) and network.config.embedding.segments:
            half = to_decoder(network)[0].state_dict()  # segment 0 folded into learned positions
        for name, tensor in half.items():
            is_table = name.startswith("inputs.positions.schemes.") and name.endswith(".weight")
            shift = config.schemes[0].shift if config.schemes else 0  # rows that stand before position 0
            weights[half_prefix + name] = tensor[: config.max_len + shift] if is_table else tensor
        names |= {f"{half_prefix}inputs.": inputs, f"{half_prefix}stack.": stack}
    names |= {"reader.embedding.": "embedding.", "writer.heads.vocabulary.": "heads.vocabulary."}
    if not same:
        names["writer.embedding."] = "target_embedding."
    encoder_decoder, load_report = _build_with_weights(config, reader, weights, names)
    assert isinstance(encoder_decoder, EncoderDecoder)
    return encoder_decoder, load_report


def with_new_decoder(
    config: NetworkConfig, weights: Mapping[str, Tensor], recipe: NetworkConfig, tokenizer: Tokenizer
) -> tuple[NetworkConfig, dict[str, Tensor]]:
    """An encoder as the encoder of an encoder-decoder whose decoder is new, "BERT2RND" (Rothe et al. 2020).

    Args:
        config: of the encoder.
        weights: its weights.
        recipe: the number of layers of the decoder; its other sizes are the encoder's.
        tokenizer: the encoder's, with another one for targets.

    Returns:
        The configuration, and the weights of the encoder by their new names.

    Raises:
        CapabilityError: it is not an encoder of a stack of layers, its embeddings have a width of their own, or it has
            segments but no learned positions to fold them into.
    """
    if config.architecture != "encoder" or config.embedding.width is not None:
        raise CapabilityError(
            "`init.new_decoder` needs an encoder such as BERT, whose embeddings are as wide as its layers: got "
            f"architecture {config.architecture!r}"
        )
    target = tokenizer.target
    config = changed(
        config,
        architecture="encoder-decoder",
        family="",
        heads=(),
        pooler=False,
        projections=(),
        n_decoder_layers=recipe.decoder_layers,
        embedding={"segments": 0, "shared": False, "target_vocab_size": target.vocab_size},
        output={"tied": True, "bias": False, "scaled": False},
        ids={"pad": target.pad_id, "unk": target.unk_id, "bos": target.bos_id, "eos": target.eos_id}
        | {"start": target.bos_id, "mask": None},
        tokenizer_fingerprint=tokenizer.fingerprint,
    )
    folded, renamed = dict(weights), dict[str, Tensor]()
    _fold_segments(folded)
    folded.pop("inputs.segments", None)
    names = {"inputs.": "source_inputs.", "stack.": "encoder.", "embedding.": "embedding."}
    for name, value in folded.items():
        if start := next((start for start in names if name.startswith(start)), None):
            renamed[names[start] + name.removeprefix(start)] = value
    return config, renamed


def with_positions(
    network: Network, positions: PositionConfig | tuple[PositionConfig, ...]
) -> tuple[Network, LoadReport]:
    """The same network with other positions (such as relative for absolute); weights of the new schemes are new."""
    config = replace(network.config, positions=positions, family="")
    other = ("source_features.", *(name for name in network.state_dict() if ".positions." not in name))
    weights = {name: value for name, value in network.state_dict().items() if name.startswith(other)}
    changed_network, load_report = _build_with_weights(config, network, weights, {})
    load_report.unused += [name for name in network.state_dict() if name not in weights]
    return changed_network, load_report


def extended(network: Network, vocab_size: int) -> tuple[Network, LoadReport]:
    """The same network with a longer vocabulary; new tokens begin at the mean of the old ones (Hewitt 2021).
    Raises ValueError: it is not longer.
    """
    old = network.config.vocab_size
    if vocab_size < old:
        raise ValueError(
            f"`vocab_size` must be at least the present {old}: got {vocab_size}; `trimmed` makes it smaller"
        )

    def grow(table: Tensor) -> Tensor:
        mean = table.mean(dim=0, keepdim=True)
        return torch.cat([table, mean.expand(vocab_size - old, *table.shape[1:])])

    return _resized(network, replace(network.config, vocab_size=vocab_size), grow)


def trimmed(network: Network, ids: Sequence[int]) -> tuple[Network, LoadReport]:
    """The same network with those tokens alone; token `ids[i]` becomes i.
    Raises ValueError: an id twice or out of range, or one that the network needs (padding, start, end ...) left out.
    """
    config = network.config
    kept_ids = list(ids)
    if len(set(kept_ids)) < len(kept_ids) or not kept_ids or min(kept_ids) < 0 or max(kept_ids) >= config.vocab_size:
        raise ValueError(f"`ids` must be different ids below {config.vocab_size}")
    new_ids = {old: new for new, old in enumerate(kept_ids)}
    needed = vars(config.ids)
    for name, old in needed.items():
        if old is not None and old not in new_ids:
            raise ValueError(f"`ids` must hold `ids.{name}`: {old}")
    special_ids = {name: None if old is None else new_ids[old] for name, old in needed.items()}
    rows = torch.tensor(kept_ids)
    return _resized(
        network,
        changed(config, vocab_size=len(kept_ids), tokenizer_fingerprint=None, ids=special_ids),
        lambda table: table[rows.to(table.device)],
    )


def _resized(network: Network, config: NetworkConfig, rows: Callable[[Tensor], Tensor]) -> tuple[Network, LoadReport]:
    if config.target_vocab_size != config.vocab_size:
        raise CapabilityError("a network with two vocabularies (`embedding.target_vocab_size`) keeps both")
    weights = {name: rows(value) if is_by_token(name) else value for name, value in network.state_dict().items()}
    return _build_with_weights(config, network, weights, {})


def is_by_token(name: str) -> bool:
    """Whether a tensor has a row a token."""
    return name in _VOCABULARY or (name.startswith("heads.") and ".output." in name)


def _fold_segments(weights: dict[str, Tensor]) -> str:
    """Add segment 0 of an encoder, if it has segments, to its table of positions; return the name of the table.
    Raises CapabilityError: it has segments but no learned positions.
    """
    if "inputs.segments" not in weights:
        return ""
    tables = [name for name in weights if name.startswith("inputs.positions.schemes.") and name.endswith(".weight")]
    if not tables:
        raise CapabilityError("segments can only be folded into learned positions, and this encoder has none")
    weights[tables[0]] = weights[tables[0]] + weights["inputs.segments"][0]
    return tables[0]


@torch.no_grad()
def _build_with_weights(
    config: NetworkConfig, source: nn.Module, weights: dict[str, Tensor], names: dict[str, str]
) -> tuple[Network, LoadReport]:
    """A network of that configuration with the weights whose names, with prefixes replaced by `names`, it has."""
    network = build_network(config)
    like = next(source.parameters())
    network = network.to(device=like.device, dtype=like.dtype).train(source.training)
    target_weights = network.state_dict()
    load_report = LoadReport()
    for name, value in weights.items():
        # the longest prefix that fits
        start = next((old for old in sorted(names, key=len, reverse=True) if name.startswith(old)), "")
        target = names[start] + name.removeprefix(start) if start else name
        known = target in target_weights and target_weights[target].shape == value.shape
        if known and target not in load_report.loaded:
            target_weights[target].copy_(value)
            load_report.loaded[target] = (name,)
        else:
            load_report.unused.append(name)
    load_report.new = [name for name in target_weights if name not in load_report.loaded]
    return network, load_report
