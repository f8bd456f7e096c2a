"""Writes our configuration and weights in the Hugging Face layout, if the family's layout can hold them."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from atento.base.errors import CapabilityError, ModelError, RecipeError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import by_key
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TRAINING
from atento.released.read_layout import FAMILIES
from atento.released.weight_rows import convert

# Keys of initialisation and training, which do not change what a network computes: their files need not hold them.
_FREE = {
    "family",
    "initializer",
    "tokenizer_fingerprint",
    "ids.unk",
    "ids.mask",
    "ids.bos",
    "dropout",
    "attention.dropout",
    "feed_forward.dropout",
    "max_len",
    "writing",  # `generation_config.json` has it
}


_MATRIX, _ENCODER = "heads.vocabulary.output.weight", "encoder."


def release(config: NetworkConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, object], dict[str, Tensor]]:
    """`config.json` and the tensors, as `transformers` reads them; without what their class has no place for: the
    heads of `OF_TRAINING`, the output matrix of a decoder with another head, and the decoder of an encoder-decoder with
    a head whose class is an encoder alone.
    Raises CapabilityError: the network is of no released family, or its layout cannot hold it; names the fields.
    """
    if config.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CapabilityError(
            f"only networks of a released family have the Hugging Face layout, as a preset makes them ({known}): "
            f"this one is of {f'the family {config.family!r}' if config.family else 'no released family'}"
        )
    family = FAMILIES[config.family]
    config, weights = _without_other_heads(*in_plain_numbers(config, weights))
    on_encoder = (head.side == "encoder" and HEAD_KINDS[head.kind] in family.on_encoder for head in config.heads)
    if config.architecture != "encoder" and any(on_encoder):  # the encoder alone, by the names of an encoder
        inside = {name.removeprefix(_ENCODER): value for name, value in weights.items() if name.startswith(_ENCODER)}
        same = {name: value for name, value in weights.items() if name.startswith(("embedding.", "heads."))}
        weights = {f"stack.{name}": value for name, value in inside.items()} | same
        output = replace(config.output, scaled=False)
        config = replace(config, architecture="encoder", n_decoder_layers=None, output=output)
    try:
        data, rows = family.write(config), family.rows(config)
        our_names = {name: row.ours for row in rows for name in (*row.theirs, *row.copies)}
        names = frozenset(our_names)
        read_back = family.read(  # what is written must give this network again
            data, names, family.tying(data, names, equal=lambda first, second: our_names[first] == our_names[second])
        )
    except (ModelError, RecipeError) as error:
        raise CapabilityError(f"the layout of {config.family} cannot hold this network: {error}") from None
    fields, fields_read_back = _computing_fields(config), _computing_fields(read_back)
    lost = [name for name in fields if fields[name] != fields_read_back[name]]
    lost += sorted(weights.keys() - {row.ours for row in rows})
    if lost:
        raise CapabilityError(f"the layout of {config.family} cannot hold this network's {', '.join(lost)}")
    return data, convert(rows, family.prefix_of(data["architectures"][0]), weights)


def in_plain_numbers(
    config: NetworkConfig, weights: Mapping[str, Tensor]
) -> tuple[NetworkConfig, Mapping[str, Tensor]]:
    """A network whose heads for numbers have center and spread in their last layer, as in released classes, where they
    have a bias for the center."""
    folded, heads = dict(weights), []
    for head in config.heads:
        if (head.center, head.spread) != (0.0, 1.0) and (head.out_bias or not head.center):
            for name, added in ((f"heads.{head.name}.out.weight", 0.0), (f"heads.{head.name}.out.bias", head.center)):
                folded |= {name: weights[name] * head.spread + added} if name in weights else {}
            head = replace(head, center=0.0, spread=1.0)
        heads.append(head)
    return replace(config, heads=tuple(heads)), folded


def _without_other_heads(
    config: NetworkConfig, weights: Mapping[str, Tensor]
) -> tuple[NetworkConfig, Mapping[str, Tensor]]:
    """A network without the heads that only training reads, and without the output matrix of a decoder with another
    head, for which their class has no place."""
    dropped = tuple(f"heads.{head.name}." for head in config.heads if head.kind in OF_TRAINING)
    heads = tuple(head for head in config.heads if head.kind not in OF_TRAINING)
    output = config.output
    if heads and config.architecture != "encoder" and not output.tied:
        dropped, output = (*dropped, _MATRIX), replace(output, tied=True)
    if not dropped:
        return config, weights
    remaining = {name: value for name, value in weights.items() if not name.startswith(dropped)}
    return replace(config, heads=heads, output=output), remaining


def _computing_fields(config: NetworkConfig) -> dict[str, object]:
    """The fields that decide what a network computes."""
    own = config.feed_forward.activation  # which a masked language model's head may leave to the network
    heads = tuple(
        replace(
            head,
            dropout=0.0,
            activation=head.activation
            or (own if head.kind == "masked-language-model" else "tanh" if head.hidden else None),
            pooling=config.pooling(head),
        )
        for head in config.heads
    )
    both = config.architecture == "encoder-decoder"
    plain = changed(
        config,
        heads=heads,
        n_decoder_layers=config.decoder_layers if both else None,
        attention={
            "output_bias": config.output_projection_bias,
            "d_head": config.head_width,
            "n_kv_heads": config.kv_heads,
        },
    )
    free = _FREE if both else _FREE | {"embedding.shared"}
    return {key: value for key, value in by_key(plain).items() if key not in free}
