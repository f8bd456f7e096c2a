"""The weights that `init` of a recipe trains: all, the head, the last layers, biases or adapters, and their stages."""

from atento.base.errors import RecipeError, UsageError
from atento.config.sections.initial import InitConfig
from atento.networks.adapters import is_adapter
from atento.networks.interface import Network
from atento.networks.weight_depths import LayerDepths, layer_depths
from atento.training.optimizer import TrainedWeights, all_weights

_READS = ("source_features.", "source_inputs.", "encoder.")  # weights that read the source, where targets have a table
_LARGE_HEAD = "heads.vocabulary.output.weight"  # a matrix of the whole vocabulary, which adapters leave as it is


def trained_weights(
    network: Network, init: InitConfig | None, updates_per_epoch: float, *, reads_only: bool = False
) -> TrainedWeights:
    """The weights that a recipe's `init` trains, with their learning rates and the stages of unfreezing.

    Let the embeddings have level 0, the layers 1 to N from the bottom and the head N + 1. The learning rate of level l
    is multiplied by layer_decay^(N + 1 - l), as BEiT does (Bao et al. 2022; ELECTRA, Clark et al. 2020).

    Args:
        network: with its adapters, if `init` asks for them.
        init: the section of the recipe; None: everything is trained.
        updates_per_epoch: updates in a pass over the training data, by which stages may be counted.
        reads_only: as in `layer_depths`.

    Raises RecipeError: the network has no such weights: no such layers, no biases, no head of its own.
    """
    if init is None or (init.train == "all" and init.layer_decay == 1.0 and init.unfreeze is None):
        return all_weights(network)
    levels = layer_depths(network, reads_only=reads_only)
    names = _selected(network, init, levels)
    scales = {name: init.layer_decay ** (levels.layers + 1 - levels.of[name]) for name in names}  # 1 at the head
    present = sorted({levels.of[name] for name in names}, reverse=True)
    if init.unfreeze is None:
        return TrainedWeights(dict.fromkeys(names, 1), scales)
    length = init.unfreeze.updates(updates_per_epoch)
    if init.unfreeze.kind == "head-first":
        if present[0] != levels.layers + 1:
            raise RecipeError(
                "`init.unfreeze` head-first needs a head with weights of its own: this network's shares the embeddings"
            )
        starts = {level: 1 if level == present[0] else 1 + length for level in present}  # the head first
    else:
        starts = {level: 1 + number * length for number, level in enumerate(present)}  # from the head down
    return TrainedWeights({name: starts[levels.of[name]] for name in names}, scales)


def _selected(network: Network, init: InitConfig, levels: LayerDepths) -> list[str]:
    """The weights that `init.train` names, in the order of the network."""
    architecture = network.config.architecture
    of = {name: level for name, level in levels.of.items() if level >= 0}  # -1: never trained
    # 0: embeddings, then the layers, then the heads
    head = [name for name, level in of.items() if level == levels.layers + 1]
    if init.train == "all":
        return list(of)
    if init.train == "head":
        if not head:
            raise RecipeError(
                f"`init.train` head: this network (architecture {architecture!r}) has no head with weights of its own; "
                "its output matrix is the embeddings"
                if levels.layers
                else f"`init.train` head: a network of architecture {architecture!r} has no head; train all"
            )
        return head
    if init.train == "decoder":
        if architecture != "encoder-decoder":
            raise RecipeError(f"`init.train` decoder is for an encoder-decoder: got architecture {architecture!r}")
        reads = _READS if network.config.features is not None else ("embedding.", *_READS)
        return [name for name in of if not name.startswith(reads)]
    if init.last is not None:
        if init.last > levels.layers and network.config.shared_layers:
            raise RecipeError(
                f"`init.train` {init.train}: the layers of this network share their weights, which are one level; "
                "train last-1 or all"
            )
        if init.last > levels.layers:
            raise RecipeError(f"`init.train` {init.train}: the network has {levels.layers} layers; train all, or fewer")
        return [name for name, level in of.items() if level > levels.layers - init.last]  # and the head
    small = [name for name in head if name != _LARGE_HEAD]  # a head's large matrix stays
    if init.train == "lora":
        return [name for name in of if is_adapter(name) or name in small]
    biases = [name for name in of if name.rpartition(".")[2].startswith("bias")]
    if all(name in head for name in biases):  # heads alone
        raise RecipeError(f"`init.train` bias: the layers of this network ({architecture}) have no biases; try lora")
    return [name for name in of if name in biases or name in small]


def check_stages(trained: TrainedWeights, steps: int) -> None:
    """Refuse stages that a run never reaches.
    Raises UsageError: names the update at which the last one begins, and the run's steps.
    """
    last = max(trained.begins.values(), default=1)  # 1: all from the start
    if last > steps:
        raise UsageError(
            f"`init.unfreeze`: the last stage begins at update {last}, and the run has {steps}; shorten the stages or "
            "raise `training.steps`"
        )
