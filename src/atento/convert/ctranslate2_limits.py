"""What CTranslate2's Transformer does not hold of a network, named before any work."""

from collections.abc import Iterator

from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import ADDED, PositionConfig

PRETRAINING_HEADS = ("masked-language-model", "next-sentence", "replaced-token", "span-boundary", "generator")
"""Heads that a converted encoder leaves out: it gives hidden vectors."""
_RELATIVE = {"rotary": "rotary", "t5": "T5", "alibi": "ALiBi", "shaw": "Shaw's", "disentangled": "disentangled"}


def why_not_held(config: NetworkConfig) -> str | None:
    """The first part of the network that CTranslate2 does not hold; None if it holds all."""
    return next(_not_held(config), None)


def _not_held(config: NetworkConfig) -> Iterator[str]:
    if config.architecture not in ("encoder", "decoder", "encoder-decoder"):
        yield f"networks of architecture {config.architecture}"
        return
    for present, part in (
        (config.layer_mix, "a learned mix of layers"),
        (config.attention.sparse is not None, "sparse attention"),
        (config.convolution is not None, "a convolution over the input"),
        (config.embedding.width is not None, "embeddings narrower than the layers"),
        (config.norm == "pre" and not config.first_norm, "a first layer without a norm"),
        (bool(config.projections), "linear maps of text vectors"),
        (config.attention.norm and config.reads_source, "normalised queries and keys in an encoder-decoder"),
    ):
        if present:
            yield part
    yield from _masks(config)
    relative = [scheme for scheme in config.schemes if scheme.kind not in ADDED]
    if len(relative) > 1 or (relative and len(relative) < len(config.schemes)):
        yield "several position schemes together"
    for scheme in config.schemes:
        yield from _scheme(config, scheme)
    for head in config.heads:
        if config.architecture != "encoder" or head.kind not in PRETRAINING_HEADS:
            yield f"{'an' if head.kind == 'answer' else 'a'} {head.kind} head"


def _masks(config: NetworkConfig) -> Iterator[str]:
    """Masks beside the usual one of the architecture.

    The engine has a window for decoders, but reads prompts of several lengths in one batch wrongly with it.
    """
    mask, usual = config.mask, "causal" if config.architecture == "decoder" else "bidirectional"
    if mask is not None and mask.kind != usual:
        yield f"a {mask.kind} mask"


def _scheme(config: NetworkConfig, scheme: PositionConfig) -> Iterator[str]:
    if scheme.layers is not None:
        yield "positions in single layers"
    if scheme.kind in ADDED:
        return
    name = _RELATIVE.get(scheme.kind, scheme.kind)
    if scheme.heads is not None or scheme.gate:
        yield f"{name} positions of single heads" if scheme.heads is not None else f"gated {name} positions"
    if scheme.kind in ("matrix", "disentangled"):
        yield f"{name} positions"
    if scheme.kind == "alibi" and config.architecture != "decoder":
        yield "ALiBi positions in an encoder"
    if scheme.kind == "t5" and scheme.shared is False:
        yield "T5 positions of each layer"
    if scheme.kind == "shaw" and (scheme.shared or not scheme.values):
        yield "Shaw's positions without a table of values" if not scheme.values else "Shaw's positions shared by layers"
    if scheme.stretch is not None and config.architecture != "decoder":
        yield "stretched rotary positions in an encoder"
    if scheme.stretch is not None and scheme.stretch.yarn:
        yield "rotary positions that scale queries and keys (YaRN)"
    if scheme.stretch is not None and (scheme.stretch.dynamic or scheme.stretch.long):
        yield "rotary positions that go by the length of a text"
