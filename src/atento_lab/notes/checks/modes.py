"""Checks of one checkpoint with several masks, compared with networks built for each (docs/notes.md#a18, #c10)."""

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from atento.attention.masks import Mask, bidirectional, causal, prefix, window
from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import Batch
from atento.inspection import mask_text
from atento.networks import Decoder
from atento.networks.stack.stack import Stack
from atento.training.losses import Call, losses
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.checks.tiny import derivatives, tiny_network
from atento_lab.notes.finding import AtLeast, Finding, compare

MODES = {"both ways": bidirectional(), "causal": causal(), "prefix of 3": prefix(3), "window": window(2, 1)}


def stack_with(mask: Mask, checkpoint: bytes) -> Stack:
    """Return a stack with this mask built in, with the weights of the checkpoint."""
    stack = Stack(tiny_network().config, kind="encoder", n_layers=2, masks=[mask] * 2)
    weights = load(checkpoint)
    stack.load_state_dict(weights)
    return stack.to(next(iter(weights.values())).dtype).eval()


@torch.no_grad()
def one_checkpoint() -> Finding:
    """A18: each mode equals, bit for bit, a network with that mask built in."""
    stack = tiny_network().encoder.float()  # the usual type
    checkpoint = save(stack.state_dict())
    differences = {}
    for name, mask in MODES.items():
        alone, bits = stack_with(mask, checkpoint), 0
        for length in (7, 90):  # the second is long enough for the fused kernel
            x = torch.randn(2, length, 12)
            bits += int((stack(x, mask=mask) != alone(x)).sum())
        differences[name] = bits
    x = torch.randn(1, 6, 12)
    outputs = [stack(x, mask=mask) for mask in MODES.values()]
    minimum = min(apart(output, earlier) for n, output in enumerate(outputs) for earlier in outputs[:n])
    return compare(
        {
            "numbers that differ from the dedicated run": differences,
            "modes unlike each other by": minimum,
            "layers may differ": apart(stack(x, mask=[causal(), bidirectional()]), two_halves(stack, x)),
            "may cache": [caches(stack, x, mask) for mask in MODES.values()],
        },
        {
            "numbers that differ from the dedicated run": dict.fromkeys(MODES, 0),
            "modes unlike each other by": AtLeast(1e-3),
            "layers may differ": 0.0,
            "may cache": [False, True, False, False],
        },
        within=0.0,
        remark="bidirectional for encoding and causal for generation; only the causal mode can cache keys and values",
    )


def two_halves(stack: Stack, x: Tensor) -> Tensor:
    """Apply the first block causally and the second bidirectionally."""
    first, second = stack.blocks
    out: Tensor = second(first(x, mask=causal()), mask=bidirectional())
    return out


def caches(stack: Stack, x: Tensor, mask: Mask) -> bool:
    """Return whether token-by-token calls with a cache give the output of one call over the whole text."""
    state = stack.begin()
    try:
        steps = [stack(x[:, position : position + 1], mask=mask, state=state) for position in range(x.shape[1])]
    except CapabilityError:
        return False
    return apart(torch.cat(steps, dim=1), stack(x, mask=mask)) < 1e-5


def prefix_mask() -> Finding:
    """C10: all see the prefix, after it causal; the loss covers only the target."""
    stack, length = tiny_network().encoder, 6
    rows = [[int(j <= i or j < 3) for j in range(length)] for i in range(length)]
    with torch.no_grad():  # a batch with prefixes of 2 and 4 tokens at once
        x = random(2, length, 12)
        together = stack(x, mask=prefix(torch.tensor([2, 4])))
        one_by_one = torch.cat([stack(x[:1], mask=prefix(2)), stack(x[1:], mask=prefix(4))])
    depends = derivatives(stack, random(length, 12), mask=prefix(3)) > 0
    mask = prefix(3).dense(length)
    positions_learned, error = loss_of_the_target()
    return compare(
        {
            "mask": mask[0, 0].int(),
            "pairs against it": int((depends != torch.tensor(rows).bool()).sum()),
            "no prefix is causal": bool((prefix(0).dense(length) == causal().dense(length)).all()),
            "all of it is both ways": bool((prefix(length).dense(length) == bidirectional().dense(length)).all()),
            "batch away from one by one": apart(together, one_by_one),
            "places learned at": positions_learned,
            "loss away from the target's log-probability": error,
        },
        {
            "mask": rows,
            "pairs against it": 0,
            "no prefix is causal": True,
            "all of it is both ways": True,
            "batch away from one by one": EXACT,
            "places learned at": [0, 0, 1, 1, 1, 0],
            "loss away from the target's log-probability": EXACT,
        },
        drawing=mask_text(mask),
    )


def loss_of_the_target() -> tuple[list[int], float]:
    """Return where the loss of a prefix of 3 and a target of 3 has a gradient, and its error against -log p by hand."""
    config = NetworkConfig("decoder", d_model=12, d_ff=16, n_heads=2, n_layers=2, vocab_size=11, dropout=0.0)
    network = Decoder(config).double()
    ids = torch.tensor([[2, 5, 6, 7, 8, 9]])
    labels = torch.tensor([[-1, -1, 7, 8, 9, -1]])  # the last token predicts nothing
    hidden: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        hidden.append(output)

    hook = network.stack.register_forward_hook(keep)
    loss, _ = losses(network, Batch({"ids": ids}, {"vocabulary": labels}, prefix(3)), Call())["vocabulary"]
    torch.autograd.backward(loss)
    hook.remove()
    assert hidden[0].grad is not None
    with torch.no_grad():
        log_probs = network(ids, mask=prefix(3)).logits[0].log_softmax(dim=-1)
    by_hand = -sum(float(log_probs[at, token]) for at, token in ((2, 7), (3, 8), (4, 9)))
    return (hidden[0].grad[0].abs().sum(dim=-1) > 0).int().tolist(), abs(float(loss.detach()) - by_hand)
