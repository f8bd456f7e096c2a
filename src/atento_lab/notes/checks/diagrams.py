"""Checks of block diagrams, compared with the networks as they run (docs/notes.md#j3, #j8, #j9)."""

import torch
from torch import Tensor, nn

from atento.attention import observe
from atento.attention.multihead import MultiHeadAttention
from atento.config import presets
from atento.config.sections.network import NetworkConfig, changed
from atento.inspection.figures.network_diagram import network_svg, network_text
from atento.networks import EncoderDecoder, Network, build_network, parameter_count
from atento.networks.describe import Part, describe
from atento.networks.heads import LinearHead, Pooler
from atento.networks.layers import FeedForward, TokenEmbedding
from atento.networks.vocabulary import VocabularyHead
from atento_lab.notes.checks.families import reversing
from atento_lab.notes.drawing import heat, shaded, sheet
from atento_lab.notes.finding import AtMost, Finding, compare

SIZES: dict[str, object] = {"vocab_size": 50, "d_model": 12, "d_ff": 24, "n_heads": 3, "max_len": 16, "dropout": 0.0}
SIZES["ids"] = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)


def drawn_order(parts: tuple[Part, ...]) -> list[str]:
    """Return the names of the boxes of modules, repeated for each block."""
    names: list[str] = []
    for part in parts:
        names += drawn_order(part.parts) * part.repeats if part.parts else []
        if not part.parts and part.name != "+" and not part.name.startswith("+ "):
            names.append(part.name)
    return names


def running_order(network: Network, *inputs: Tensor) -> list[str]:
    """Return the names of the same modules in the order of their forward calls, recorded by hooks."""
    names: list[str] = []
    hooks = []

    def register(module: nn.Module, name: str) -> None:
        hooks.append(module.register_forward_hook(lambda *_: names.append(name)))

    # a head is one box: its parts are not recorded
    inside = {id(part) for name, part in network.named_modules() if name.startswith("heads.") and name.count(".") > 1}
    for module in network.modules():
        if id(module) in inside:
            continue
        if isinstance(module, MultiHeadAttention):
            register(module, "cross-attention" if module.kind == "cross" else "self-attention")
        elif isinstance(module, FeedForward):
            register(module, "feed-forward")
        elif isinstance(module, nn.LayerNorm):
            register(module, "norm")
        elif isinstance(module, TokenEmbedding):
            register(module, "embedding")
        elif isinstance(module, VocabularyHead):
            register(module, "linear and softmax" if module.transform is None else "vocabulary head")
        elif isinstance(module, Pooler):
            register(module, "pooler")
        elif isinstance(module, LinearHead):
            register(module, f"{module.config.name} head")
    with torch.no_grad():
        output = network(*inputs)
        for name in [name for name in getattr(network, "heads", {}) if name != "vocabulary"]:
            network.read(name, output, None)  # heads run only when they are read
    for hook in hooks:
        hook.remove()
    return names


def drawn_parameters(parts: list[Part]) -> int:
    """Return the number of parameters in a diagram's boxes, counted for each block."""
    total = 0
    for part in parts:
        total += (drawn_parameters(list(part.parts)) if part.parts else part.parameters or 0) * part.repeats
    return total


def ids(rows: int, length: int) -> Tensor:
    """Return random ids (B,L)."""
    return torch.randint(5, 50, (rows, length))


def block_drawn() -> Finding:
    """J3: post-norm and pre-norm, boxes in the order in which the modules run."""
    same_order, figures, texts = {}, [], []
    for norm in ("post", "pre"):
        config = changed(NetworkConfig(), SIZES, architecture="decoder", n_layers=1, norm=norm)
        network = build_network(config)
        columns = describe(network)
        same_order[norm] = drawn_order(columns[0].parts) == running_order(network, ids(1, 4))
        figures.append(columns[0])
        texts.append(network_text(columns))
    return compare(
        {"drawn as it runs": same_order},
        {"drawn as it runs": {"post": True, "pre": True}},
        drawing="\n\n".join(texts),
        figure=network_svg(figures, "one block: the norm after the sum, and before the sublayer"),
    )


def whole_drawn() -> Finding:
    """J9: the Transformer of 2017; every parameter is counted in one box."""
    network = build_network(presets.transformer_tiny(**SIZES, norm="post"))
    columns = describe(network)
    drawn = [name for column in columns for name in drawn_order(column.parts)]
    names = running_order(network, ids(1, 5), ids(1, 4))
    assert isinstance(network, EncoderDecoder)
    shared = network.embedding.weight.numel()
    return compare(
        {"drawn as it runs": drawn == names, "parameters": drawn_parameters(columns) - shared},
        {"drawn as it runs": True, "parameters": parameter_count(network)},
        remark="the embedding is drawn on both sides and is one matrix",
        drawing=network_text(columns),
        figure=network_svg(columns, "Transformer: encoder and decoder"),
    )


@torch.no_grad()
def recurrent_drawn() -> Finding:
    """J8: reversing letters, it attends from right to left."""
    network, _ = reversing("additive")
    source = torch.randint(4, 10, (40, 8), generator=torch.Generator().manual_seed(5))
    target = torch.cat([torch.full((40, 1), 2), source.flip(1)], dim=1)
    with observe(network) as observed:
        network(source, target[:, :-1])
    weights = observed["cross", 0][:, 0]  # (40,8,8)
    positions = torch.arange(8.0)
    mean_positions = weights @ positions  # (40,8): the mean attended position
    pairs = torch.stack([positions.expand(40, -1).flatten(), mean_positions.flatten()])
    slope = float(torch.corrcoef(pairs)[0, 1])
    letters = ["abcdef"[int(i) - 4] for i in source[0]]
    columns = describe(network)
    panel = heat(weights[0], "attention weights", letters[::-1], letters, cell=30)
    return compare(
        {"where it looks against what it writes": slope, "boxes": [column.name for column in columns]},
        {"where it looks against what it writes": AtMost(-0.8), "boxes": ["encoder", "decoder"]},
        drawing=f"{network_text(columns)}\n\n{shaded(weights[0])}",
        figure=sheet("alignment of a recurrent encoder-decoder that reverses texts", [[panel]]),
    )
