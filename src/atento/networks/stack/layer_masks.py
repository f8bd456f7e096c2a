"""The masks of the layers of a stack: `network.mask` of a recipe, and a mask that replaces it but for its window."""

from atento.attention.masks import Mask, bidirectional, causal, lookahead, prefix, window
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import MaskConfig

_ALL = 2**30  # neighbours: more than any text has


def default_masks(config: NetworkConfig, *, kind: str, n_layers: int) -> list[Mask]:
    """The self-attention masks of an "encoder" or a "decoder", one a layer; layers with the same mask share one object.

    The decoder of an encoder-decoder is always causal: `config.mask` is for its encoder.
    """
    usual = bidirectional() if kind == "encoder" else causal()
    if config.mask is None or (kind == "decoder" and config.reads_source):
        return [usual] * n_layers
    configured = _mask(config.mask, kind)
    return [configured if config.mask.layers is None or n in config.mask.layers else usual for n in range(n_layers)]


def within_window(mask: Mask, config: NetworkConfig) -> Mask | list[Mask]:
    """Join a mask that replaces the default masks of a network to its window, if it has one (a list: one a layer).

    The window of a decoder has no keys after a query. Under a mask with which queries look ahead, as in a prefix, it
    has as many after as before.
    """
    window_config = config.mask
    if window_config is None or window_config.kind != "window":
        return mask
    left, right = (_ALL if size is None else size for size in (window_config.left, window_config.right))
    joined = mask & window(left, left if config.architecture == "decoder" else right)
    if window_config.layers is None:
        return joined
    return [joined if n in window_config.layers else mask for n in range(config.n_layers)]


def _mask(config: MaskConfig, kind: str) -> Mask:
    """The mask of that configuration; in a decoder no query looks ahead."""
    if config.kind == "window":
        right = _ALL if config.right is None else config.right
        return window(_ALL if config.left is None else config.left, 0 if kind == "decoder" else right)
    if config.kind == "prefix":
        return prefix(config.length)
    if config.kind == "lookahead":
        return lookahead(config.ahead)
    return bidirectional() if config.kind == "bidirectional" else causal()
