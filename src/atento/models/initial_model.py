"""The model that training starts from (`init` in a recipe): read, its network configured, its positions extended."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from atento.attention.positions import Learned
from atento.base.errors import CapabilityError, ModelError, RecipeError, UsageError
from atento.config.reading.initial_keys import rates_of
from atento.config.recipe import Recipe
from atento.config.sections.embedding import NO_PROMPT, PROMPTS, EmbeddingConfig, untrainable
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.config.sections.network_parts import FeaturesConfig, WritingConfig
from atento.config.tables.tasks import TASKS
from atento.models.load import ModelFiles, check_tokenizer, check_weights, planned_network, read_model, with_token_ids
from atento.models.model_folder import CALIBRATION, section_of
from atento.models.transplant import SOURCE_TABLE, is_by_token, with_new_decoder
from atento.networks.crf import TRANSITIONS
from atento.networks.interface import Network
from atento.networks.stack.stack_decoders import EncoderDecoder
from atento.networks.stack.stack_positions import LayerPositions
from atento.text.tokenizer import Tokenizer

_HEADS, _POOLER, _MIX, _PROJECTIONS = "heads.", "pooler.", "mix.", "projections."
_FILLS = f"{_HEADS}vocabulary."  # of a masked language model
_DECODER = ("decoder.", "target_embedding.", "target_inputs.")  # new behind an encoder (`init.new_decoder`)
_LAYER = re.compile(r"(?:blocks|positions\.sparse|positions\.added)\.(\d+)\.")


def initial_model(init: str, folder: Path) -> ModelFiles:
    """The model that `init` names: a path relative to the recipe's folder, or a hub name.
    Raises ModelError: its weights have 8 bits.
    """
    files = read_model(folder / init if (folder / init).exists() else init)
    if CALIBRATION in files.config:
        raise ModelError(f"{init} has weights of 8 bits, which are not trained: name the model that it was made from")
    return files


def with_embedding(recipe: Recipe, initial: ModelFiles | None, origins: Mapping[str, str]) -> Recipe:
    """The recipe with `embedding`, if its task trains vectors: its own, else that of the initial model.

    A recipe that writes prompts alone leaves the rest to the initial model, and one that writes none its prompts.

    Args:
        recipe: the recipe.
        initial: the initial model.
        origins: where each key of the recipe comes from.

    Raises:
        UsageError: the initial model makes its vectors of another layer than the last, or has no prompt of that name.
    """
    if not TASKS[recipe.task].vectors:
        return recipe
    ours, config = recipe.embedding or EmbeddingConfig(), EmbeddingConfig()
    theirs = None if initial is None else section_of(EmbeddingConfig, initial.config, initial.path)
    written = {key.split(".")[1] for key in origins if key.startswith("embedding.") and origins[key] != "default"}
    if theirs is None:
        config = ours
    elif written <= set(PROMPTS):  # prompts alone are added to what the model does
        config = replace(theirs, **{key: getattr(ours, key) for key in written})
    else:  # the recipe describes the vectors itself
        config = ours if "prompts" in written else replace(ours, prompts=theirs.prompts)
    if wrong := untrainable(config):
        raise UsageError(
            f"{wrong[1]}"
            if initial is None
            else f"{initial.path}: {wrong[1]}; the recipe's `embedding` may say otherwise"
        )
    for prompt in config.field_prompts.values():
        config.named(prompt)
    if recipe.data.windows is not None:
        if config.prompt or config.field_prompts:
            raise UsageError(f"{NO_PROMPT}: got those of {recipe.name if initial is None else initial.path}")
        config = replace(config, prompts={})  # none is taken by name later
    return replace(recipe, embedding=config)


def encoder_of(features: FeaturesConfig, folder: Path) -> ModelFiles:
    """The encoder that `network.features` names: a path relative to the recipe's folder, or a hub name.
    Raises UsageError: it is not an encoder. ModelError: its weights have 8 bits.
    """
    files = initial_model(features.model, folder)
    if (architecture := files.network_config.architecture) != "encoder":
        raise UsageError(
            f"{files.path}: `network.features` needs an encoder such as BERT: got architecture {architecture!r}"
        )
    return files


def with_features(network: NetworkConfig, files: ModelFiles) -> NetworkConfig:
    """The network with what `features` leaves to its encoder, or to a checkpoint of the run.

    Args:
        network: of the recipe, with `features`.
        files: the encoder, or a checkpoint.

    Raises:
        UsageError: it does not have so many layers.
    """
    config, features = files.network_config, network.features
    assert features is not None
    if config.features is not None:
        return replace(network, features=config.features)
    depth = config.n_layers
    layers = features.layers or tuple(sorted({round(depth * part / 3) for part in range(4)}))
    if max(layers) > depth:
        raise UsageError(f"{files.path}: `network.features.layers` must be at most {depth}: got {max(layers)}")
    encoder = network_to_dict(changed(config, family="", heads=(), pooler=False, projections=(), layer_mix=False))
    name, template = Path(features.model).name, files.config.get("template")  # paths are the recipe's alone
    return replace(
        network, features=FeaturesConfig(name, layers, None, encoder, template, max_len=config.position_limit)
    )


def load_features(network: Network, files: ModelFiles) -> None:
    """Give the encoder of `network.features` its weights: those of the model itself, or of a checkpoint of the run.
    Raises ModelError: a weight is missing or unexpected, or of another shape.
    """
    if isinstance(network, EncoderDecoder) and network.source_features is not None:
        other = (_HEADS, _POOLER, _MIX, _PROJECTIONS)
        start = "" if files.network_config.features is None else "source_features.encoder."
        weights = {name.removeprefix(start): value for name, value in files.weights.items() if name.startswith(start)}
        weights = {name: value for name, value in weights.items() if not name.startswith(other)}
        check_weights(network.source_features.encoder, replace(files, weights=weights))
        network.source_features.encoder.load_state_dict(weights)


def begun_with_encoder(initial: ModelFiles, recipe: Recipe, tokenizer: Tokenizer) -> ModelFiles:
    """The initial model of a run with `init.new_decoder`: an encoder-decoder without the weights of its decoder."""
    try:
        config, weights = with_new_decoder(initial.network_config, initial.weights, recipe.network, tokenizer)
    except CapabilityError as error:
        raise UsageError(f"{initial.path}: {error}") from None
    changed_config = initial.config | {"network": network_to_dict(config)}
    return replace(initial, config=changed_config, weights=weights, load_report=None)


def fine_tuned(
    initial: ModelFiles, recipe: NetworkConfig, tokenizer: Tokenizer, init: InitConfig | None = None
) -> NetworkConfig:
    """The network configuration for fine-tuning.

    It is that of the initial model. The recipe's network sets the dropout rates (the model's own where none is written,
    see `atento.config.reading.initial_keys`), and a longer `max_len` where positions are learned and the recipe writes
    one. `init` may leave out upper layers, and add a mix of layers.
    Raises ModelError: its weights have other sizes than its configuration. TokenizerError: the tokenizer is not the one
    that the model was trained with. RecipeError: the model does not have so many layers; its architecture has no such
    choice.
    """
    config = initial.network_config
    planned_network(initial, config)  # before one of its sizes takes memory
    check_tokenizer(tokenizer, config, initial.path)
    tokenizer.pad_to(config.vocab_size, config.target_vocab_size)
    config = with_token_ids(config, initial, tokenizer)
    changes = rates_of(recipe)
    own = config.writing or WritingConfig()
    first = own.first
    if first is None and config.reads_source and not tokenizer.target.native:  # BART's `<s>`, as in theirs' labels
        begin = tokenizer.target.template().single[0][0]
        first = begin if isinstance(begin, int) and begin == tokenizer.target.specials.get("bos") else None
    # how its own outputs end is not how those of the recipe's data do
    writing = WritingConfig(own.ends, first, suppressed=own.suppressed, banned=own.banned)
    changes["writing"] = None if writing == WritingConfig() else writing
    if any(scheme.kind == "learned" for scheme in config.schemes):
        changes["max_len"] = max(config.max_len, recipe.max_len)
    layers, mixed = (None, False) if init is None else (init.layers, init.layer_mix)
    kinds = {"layers": ("encoder", "decoder", "encoder-decoder"), "layer_mix": ("encoder", "decoder")}
    for key, value in (("layers", layers), ("layer_mix", mixed)):
        if value and config.architecture not in kinds[key]:
            raise RecipeError(
                f"`init.{key}` is for models of architecture {', '.join(kinds[key])}: got {config.architecture}"
            )
    if mixed:
        changes["layer_mix"] = True
    if layers is not None:
        both = config.architecture == "encoder-decoder"
        if layers > config.decoder_layers:
            of = "of the decoder" if both else "of the model"
            raise RecipeError(f"`init.layers` must be at most {config.decoder_layers}, the layers {of}: got {layers}")
        changes["n_decoder_layers" if both else "n_layers"] = layers
    return changed(config, changes)


@torch.no_grad()
def with_new_tokens(initial: ModelFiles, neighbours: Mapping[int, int]) -> ModelFiles:
    """The initial model with a row for each new id of its tokenizer, of the embedding and of the output matrix.

    Rows that pad its matrices are taken first.

    Args:
        initial: the model.
        neighbours: id -> the id whose rows the new ones are copies of.
    """
    config = initial.network_config
    size = max(config.vocab_size, *(token + 1 for token in neighbours))
    joint = config.target_vocab_size == config.vocab_size  # else the tokens stand in sources alone

    def grown(table: Tensor) -> Tensor:
        table = torch.cat([table, table.new_zeros(size - len(table), *table.shape[1:])])
        table[list(neighbours)] = table[list(neighbours.values())]
        return table

    weights = {
        name: grown(value) if is_by_token(name) and (joint or name == SOURCE_TABLE) else value
        for name, value in initial.weights.items()
    }
    network = network_to_dict(replace(config, vocab_size=size))
    return replace(initial, config=initial.config | {"network": network}, weights=weights)


def check_new_positions(initial: ModelFiles, network: NetworkConfig, recipe: Recipe) -> None:
    """Refuse new rows of a learned table of positions that the run would not train.
    Raises RecipeError: the recipe makes the table longer by new rows, and `init.train` is not all.
    """
    limit = initial.network_config.position_limit  # of learned positions
    train = "all" if recipe.init is None else recipe.init.train
    if limit is None or network.max_len <= limit or train == "all" or _longer(recipe.network) == "interpolated":
        return
    raise RecipeError(
        f"`network.max_len` must be at most {limit}, the learned positions of the model, with `init.train` {train}, "
        f"which does not train the new rows: got {recipe.network.max_len}; leave it out, train all, or write "
        "`network.positions` {kind: learned, longer: interpolated}"
    )


def _longer(recipe: NetworkConfig) -> str:
    """How a recipe makes a learned table of positions longer."""
    return next((scheme.longer for scheme in recipe.schemes if scheme.kind == "learned"), "grown")


@torch.no_grad()
def with_longer_positions(initial: ModelFiles, network: nn.Module, recipe: NetworkConfig) -> ModelFiles:
    """The initial model with its learned position tables (L,D) extended to the length of the network's.

    The key `longer` of the recipe's positions says how: new rows, or the old ones interpolated (docs/notes.md#b2).
    """
    method = _longer(recipe)
    weights = dict(initial.weights)
    for name, module in network.named_modules():
        old = weights.get(f"{name}.weight")
        # no position table, or long enough
        if not isinstance(module, Learned) or old is None or old.shape[0] >= module.weight.shape[0]:
            continue
        table = Learned(old.shape[0] - module.shift, old.shape[1], module.shift)
        table.weight.copy_(old)
        extended = table.interpolated(module.max_len) if method == "interpolated" else table.grown(module.max_len)
        weights[f"{name}.weight"] = extended.weight
    return replace(initial, weights=weights)


def pretrained_weights(network: Network, initial: ModelFiles, recipe: NetworkConfig) -> None:
    """Give a new network the weights of the initial model.

    A head for other labels, and a head, a pooler or a mix of layers that the model does not have, or has for another
    number of layers, keep their own weights. Heads, a pooler and upper layers that the network does not have are left
    out.
    Raises ModelError: a weight is missing or unexpected, or of another shape.
    """
    files = with_longer_positions(initial, network, recipe)
    fresh = network.state_dict()
    new = () if any(name.startswith(_DECODER) for name in files.weights) else _DECODER
    labels = {head.name: head.labels for head in initial.network_config.heads}
    labelled_otherwise = (head.name for head in network.config.heads if labels.get(head.name) != head.labels)
    heads_with_other_labels = tuple(f"{_HEADS}{name}." for name in labelled_otherwise)
    ours = network.config
    upper = "" if ours.architecture in ("encoder", "decoder") else "decoder."  # the stack whose top may be left out
    weights = {}
    for name, value in _renumbered(files.weights, network, initial.network_config).items():
        layer = _LAYER.search(name) if name.startswith(upper) else None
        above = layer is not None and int(layer[1]) >= ours.decoder_layers
        if name in fresh or not (name.startswith((_HEADS, _POOLER, _PROJECTIONS)) or above):
            weights[name] = value
    for name, value in files.weights.items():  # the decoder of TSDAE begins with the head of a masked language model
        decoder = name.replace(_FILLS, f"{_HEADS}reconstruction.vocabulary.")
        if name.startswith(_FILLS) and decoder in fresh and decoder not in weights:
            weights[decoder] = value
    for name, value in fresh.items():
        # only the output layer and the transitions of a head depend on its labels
        by_label = name.rpartition(".")[0].endswith(".out") or name.endswith(TRANSITIONS)
        output = name.startswith(heads_with_other_labels) and by_label
        resized = name.startswith(_MIX) and name in weights and weights[name].shape != value.shape
        # a head, a pooler or a mix that is new begins as it was drawn
        if output or resized or (name not in weights and name.startswith((_HEADS, _POOLER, _MIX, *new))):
            weights[name] = value
    files = replace(files, weights=weights)
    check_weights(network, files)
    network.load_state_dict(files.weights)


def _renumbered(weights: Mapping[str, Tensor], network: Network, initial: NetworkConfig) -> dict[str, Tensor]:
    """The weights, those of position schemes by their numbers in a network of fewer layers, where it has them."""
    renumbered = dict(weights)
    for path, positions in network.named_modules():
        if path.startswith("source_features."):
            continue
        depth = initial.decoder_layers if path.startswith("decoder") else initial.n_layers
        if not isinstance(positions, LayerPositions) or len(positions.relative) >= depth:
            continue
        old, prefix = LayerPositions(initial, kind="decoder", n_layers=depth), f"{path}.schemes."
        new = {a: b for olds, news in zip(old.relative, positions.relative) for a, b in zip(olds, news)}
        for name in [name for name in weights if name.startswith(prefix)]:
            number, _, part = name.removeprefix(prefix).partition(".")
            del renumbered[name]
            if int(number) in new:
                renumbered[f"{prefix}{new[int(number)]}.{part}"] = weights[name]
    return renumbered
