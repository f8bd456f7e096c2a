"""The interface of networks: the calls that training, decoding and the tasks may make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.cuda_kernels import RowMask
from atento.attention.dropout import Randomness, dropout
from atento.base.errors import CapabilityError, UsageError, nearest
from atento.config.sections.network import NetworkConfig
from atento.networks.heads import Heads, LinearHead, TextWindows
from atento.networks.large_vocabulary import AdaptiveSoftmax
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.vocabulary import VocabularyHead


class Network(nn.Module, ABC):
    """The interface of all networks. No code outside `networks/` needs to know the class of a network.

    A network computes hidden vectors, from which its heads predict. Calling it returns an `Output`; it takes tensors by
    keyword, as each network documents them, and `random` and `project` (False leaves `Output.logits` None).
    """

    config: NetworkConfig
    heads: Heads
    stepwise = False  # whether it reads one token after another, as recurrent networks do, and `begin` gives its state

    @property
    @abstractmethod
    def table(self) -> TokenEmbedding | None:
        """The embedding of the tokens that the network predicts, which a tied vocabulary head uses as its matrix."""

    @abstractmethod
    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """ids (B,L) -> the hidden vectors (B,L,D) of one layer, of the source if the network has one.

        Args:
            ids: tokens (B,L).
            token_mask: boolean (B,L), True = a real token; None: all are.
            layer: 0 is the first layer, -1 the last one, whose vectors are those that heads read.

        Raises:
            UsageError: no such layer. CapabilityError: the network cannot give the vectors of that layer.
        """

    def text_vectors(self, pooled: Tensor) -> Tensor:
        """The vectors of texts (N,E) from their pooled hidden vectors (N,D): the same if there are no projections."""
        return pooled

    def dropped(self, x: Tensor, random: Randomness | None) -> Tensor:
        """x with elements dropped while training; same shape."""
        return dropout(x, self.config.dropout, random) if self.training else x

    def cost(self) -> Tensor | None:
        """The cost of learned sparsity, added to the loss, in nats a target; None: no cost (docs/notes.md#a17)."""
        return None

    def replaced(
        self, head: str, inputs: Mapping[str, Tensor], labels: Tensor, random: Randomness | None = None
    ) -> Output:
        """Sample a token for each mask from the generator `head`, and read the text with these tokens.

        No gradient passes through the samples. Without `random` they are the same every time (Clark et al. 2020).

        Args:
            head: name of the generator.
            inputs: as for `forward`; `ids` (B,L) are masked texts.
            labels: (B,L) the masked tokens, -1 elsewhere.
            random: the random numbers of dropout and samples.

        Returns:
            Output without logits, whose state is a `Replaced`.

        Raises:
            CapabilityError: the network has no generator.
        """
        raise CapabilityError(f"a network of type {type(self).__name__} has no generator")

    def with_own_window(self, mask: Mask) -> Mask | list[Mask]:
        """A mask that replaces the network's own, within the window that the network has; the argument `mask`."""
        return mask

    @property
    def vocabulary_head(self) -> VocabularyHead:
        """The head that gives logits over the vocabulary.

        Raises:
            CapabilityError: the network has none, or an adaptive softmax.
        """
        head = self.heads["vocabulary"]
        if not isinstance(head, VocabularyHead):
            raise CapabilityError("an adaptive softmax has several output matrices and no single one")
        return head

    @property
    def projection(self) -> Tensor:
        """The output matrix (V,D) of the vocabulary head."""
        return self.vocabulary_head.matrix(self.table)

    def project(self, hidden: Tensor) -> Tensor:
        """hidden (...,D) -> logits (...,V), by the vocabulary head (docs/notes.md#c5)."""
        return cast(Tensor, self.heads["vocabulary"](hidden, self.table))

    def read(
        self,
        name: str,
        output: Output,
        token_mask: Tensor | None = None,
        random: Randomness | None = None,
        windows: TextWindows | None = None,
    ) -> Tensor:
        """The prediction of the head of that name for an output of this network: (B,L,V), (B,L,C) or (B,C).

        Args:
            name: of the head.
            output: the result of `forward`.
            token_mask: boolean (B,L), True = a real token, of the text that the head reads.
            random: the random numbers of dropout in training.
            windows: the text of each row, where rows are windows of longer texts; the head then gives (N,C).

        Raises:
            CapabilityError: there is no such head; or it reads chosen positions: call `network.heads[name]` instead.
        """
        head = self.heads[name]
        if isinstance(head, VocabularyHead | AdaptiveSoftmax):
            return cast(Tensor, head(output.hidden, self.table))
        if not isinstance(head, LinearHead):
            raise CapabilityError(f"the {name} head reads chosen positions: call `network.heads[{name!r}]`")
        return cast(Tensor, head(head.of_texts(head.pooled(output, token_mask), windows), random))


N = TypeVar("N", bound=Network)


def with_head(network: N, name: str) -> N:
    """A view of a network that shares all its weights, and has one of its heads alone, under the name of its kind.
    Raises UsageError: there is no such head; names the nearest one.
    """
    heads = {head.name: head for head in network.config.heads}
    if name not in heads:
        known = nearest(name, list(heads)) if heads else ": it has none"
        raise UsageError(f"`head`: the model has no head {name!r}{known}")
    head = replace(heads[name], name="")
    kept = [(other, network.heads[other]) for other in network.heads if other not in heads]
    view = copy(network)  # the modules are those of the network
    view.config = replace(network.config, heads=(head,))
    view._modules = network._modules | {"heads": Heads([*kept, (head.name, network.heads[name])])}
    return view


class BlockStack(Protocol):
    """What training sets in a stack of blocks, whose class is `Stack`."""

    recompute: bool
    compiled: bool
    blocks: nn.ModuleList
    masks: list[Mask]

    def takes_rows(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the layers learn from all real tokens of a batch as one row now."""


def stacks_of(network: nn.Module) -> list[BlockStack]:
    """The stacks of blocks of a network."""
    return [cast(BlockStack, module) for module in network.modules() if hasattr(module, "recompute")]


def token_mask_of(inputs: Mapping[str, Tensor]) -> Tensor | None:
    """Return the token mask (B,L) among the inputs of a network: that of its text, or of its source; None: neither."""
    return inputs.get("token_mask", inputs.get("source_token_mask"))


def of_new_tokens(token_mask: Tensor | None, ids: Tensor) -> Tensor | None:
    """The columns (B,T) of a token mask for the new tokens (B,T); the mask may cover those in a state before them."""
    return None if token_mask is None else token_mask[:, token_mask.shape[1] - ids.shape[1] :]


def mask_of(network: Network, mask: Mask | RowMask | None) -> dict[str, object]:
    """The mask of a batch as an argument of the network, whose window stays; nothing where it has none."""
    if mask is None or isinstance(mask, RowMask):
        return {} if mask is None else {"mask": mask}
    return {"mask": network.with_own_window(mask)}


def layer_count(layer: int, n_layers: int) -> int:
    """How many layers to run for the vectors of `layer`, which counts from 0 or, below 0, from the end.
    Raises UsageError: no such layer.
    """
    if not -n_layers <= layer < n_layers:
        raise UsageError(f"`layer` must lie between {-n_layers} and {n_layers - 1}: got {layer}")
    return layer % n_layers + 1  # -1 is `n_layers` - 1, and so all of them


def refuse_inner_layer(layer: int, n_layers: int, what: str) -> None:
    """Raises UsageError: no such layer. CapabilityError: it is not the last, and `what` (a kind of network) gives no
    other."""
    if layer_count(layer, n_layers) != n_layers:
        raise CapabilityError(f"{what} gives the vectors of its last layer alone: got `layer` {layer} of {n_layers}")
