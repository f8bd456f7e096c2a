"""`step_function` and `reader`: make what decoding and reading run a network by, plain, fast or with CUDA graphs."""

import warnings
from collections.abc import Iterator
from copy import deepcopy
from operator import is_
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

from atento.base.errors import AtentoWarning, CapabilityError
from atento.inference.encoder_reading import pack_stack, why_not_packed
from atento.inference.engine import Engine, check_engine, takes_graph
from atento.inference.fast import FastStepFunction, precision_of_sources
from atento.inference.fast_reader import FastReader, attention_type_of, why_no_fast_reading
from atento.inference.fast_state import why_not_fast
from atento.inference.graphs import GraphStepFunction
from atento.inference.packed_linear import Precision, has_int8_products, has_packed_products
from atento.inference.packed_modules import pack_decoder, pack_modules
from atento.inference.plain import PlainStepFunction, WritingNetwork
from atento.inference.prefix_steps import PrefixStepFunction, Prompt
from atento.networks.int8_projection import has_int8_weights, hold_tables_in_8_bits, multiplies_by_table
from atento.networks.interface import Network
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack import linear_maps
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder, stack_that_writes

Kind = Literal["auto", "plain", "fast", "graphs"]
NetworkStepFunction = PlainStepFunction | PrefixStepFunction | FastStepFunction | GraphStepFunction

_LARGE = 32 << 20


def step_function(
    network: object,
    *,
    kind: Kind = "auto",
    precision: Precision | None = None,
    device: str | torch.device | None = None,
    prompt: Prompt = "causal",
    engine: Engine = "torch",
) -> NetworkStepFunction:
    """The step function of a network, for `atento.decoding`; threads may share it.

    Args:
        network: an encoder-decoder or a language model, on the stack or recurrent, in evaluation mode.
        kind: "plain" is the network's own forward pass. "fast" holds a packed copy of the weights. "graphs" is fast
            with one CUDA graph a step. "auto" is fast on a CPU where the network supports it, else plain, also on a
            GPU (`captured` then has graphs for most searches); and plain, in the type of the weights, while a module
            has a hook, which other passes would not call.
        precision: "float32", "bfloat16", or "int8" (fast on a CPU alone). None: the type of the weights.
        device: None: the device of the weights. Another one: the network is copied to it; the copy is `network` of the
            step function, and the one that `observe` can observe.
        prompt: "prefix" reads prompts in both directions, for an encoder or a decoder that was trained with a prefix;
            these steps are plain. An encoder that was trained with a causal mask continues prompts too.
        engine: of fast steps in float32 on a CPU: "torch", "onnx" (ONNX Runtime), or "auto", the faster one by size.

    Raises:
        CapabilityError: the network writes nothing, or does not support that kind, precision or engine. ValueError:
            an unknown kind. UsageError: an unknown engine. MissingPartError: "onnx" without that extra.
    """
    if (isinstance(network, Encoder) and "vocabulary" not in network.heads) or not isinstance(
        network, WritingNetwork | Encoder
    ):
        raise CapabilityError(f"networks of type {type(network).__name__} write nothing, so they have no step function")
    if kind not in ("auto", "plain", "fast", "graphs"):
        raise ValueError(f"`kind` must be auto, plain, fast or graphs: got {kind!r}")
    if engine != "torch":
        check_engine(engine)
    weight = next(network.parameters())
    requested = weight.device if device is None else torch.device(device)  # "cuda" matches any CUDA device
    if requested.type != weight.device.type or requested.index not in (None, weight.device.index):
        network = deepcopy(network).to(requested)
        weight = next(network.parameters())
    weight_dtype = str(weight.dtype).removeprefix("torch.")
    if isinstance(network, Encoder) or (isinstance(network, Decoder) and prompt == "prefix"):
        if kind not in ("auto", "plain") or precision not in (None, weight_dtype):
            raise CapabilityError(
                "a prompt that is read in both directions, or by an encoder, has plain steps only, in the type of the "
                "weights"
            )
        return PrefixStepFunction(network, prompt)
    reason = why_not_fast(network)
    if kind == "auto" and hooked(network):
        kind, precision, engine = "plain", None, "torch"
    on_cpu = weight.device.type == "cpu"
    if precision == "int8" and (reason is not None or not on_cpu):
        raise CapabilityError(f"int8 is for networks with a fast decoder on the CPU, not for {reason or weight.device}")
    is_fast = kind in ("fast", "graphs") or (kind == "auto" and reason is None and on_cpu)
    if engine == "onnx" and (kind == "graphs" or not is_fast):
        raise CapabilityError(
            f"`engine: onnx` is for fast steps on the CPU, not for {reason or 'plain ones and graphs'}"
        )
    if is_fast:
        if not isinstance(network, EncoderDecoder | Decoder) or reason is not None:
            raise CapabilityError(f"no fast steps for {reason}")
        chosen_precision = precision or ("bfloat16" if weight.dtype == torch.bfloat16 else "float32")
        if kind == "graphs":
            return GraphStepFunction(network, chosen_precision)
        return FastStepFunction(network, chosen_precision, engine)
    if precision not in (None, weight_dtype):
        why = f"no fast steps for {reason}" if reason is not None else f"plain steps on {weight.device}"
        raise CapabilityError(
            f"{why}, and plain steps compute in the type of the weights, {weight_dtype}: got {precision}"
        )
    return PlainStepFunction(network)


_captured: WeakKeyDictionary[PlainStepFunction, GraphStepFunction] = WeakKeyDictionary()


def captured(function: NetworkStepFunction) -> NetworkStepFunction:
    """What a search that continues from its newest state alone (greedy, sampling, beams) takes for a step function.

    On a GPU these are graphs where the network supports them; on an H100 they are 1.9 to 5.8 times as fast as plain
    steps (docs/benchmarks/gpu.md). Elsewhere it is the function itself.
    """
    network = function.network
    if type(function) is not PlainStepFunction or not isinstance(network, EncoderDecoder | Decoder):
        return function
    weight = next(network.parameters())
    of_type: dict[torch.dtype, Precision] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
    if weight.device.type != "cuda" or weight.dtype not in of_type or hooked(network) or why_not_fast(network):
        return function
    if function not in _captured:  # two threads may both make one; the last is kept
        _captured[function] = GraphStepFunction(network, of_type[weight.dtype])
    return _captured[function]


def all_modules(network: nn.Module) -> Iterator[nn.Module]:
    """All modules, in a tenth of the time of `network.modules()`, which names them; a shared one may come twice."""
    ahead = [network]
    while ahead:
        module = ahead.pop()
        yield module
        ahead.extend(part for part in module._modules.values() if part is not None)


def hooked(network: nn.Module) -> bool:
    """Whether a module has a hook (`inspection.ablation.ablate` adds one): the fast passes do not call the modules."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in all_modules(network))


class Watch:
    """What the fast passes of a network are made for: its modules, weights and hooks, listed once."""

    def __init__(self, network: nn.Module) -> None:
        modules = list(all_modules(network))
        held = [part for module in modules for part in (module._modules, module._parameters) if part]
        self._held = [(part, tuple(part.values())) for part in held]
        self._hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self._weights = [value for module in modules for value in module._parameters.values() if value is not None]
        self._state = self._read()

    @property
    def is_changed(self) -> bool:
        """Whether there is another module, weight or hook now, or another number in a weight."""
        replaced = any(len(part) != len(then) or not all(map(is_, part.values(), then)) for part, then in self._held)
        return replaced or self._state != self._read()

    def _read(self) -> tuple[bool, list[int], list[int]]:
        """Whether there are hooks, and the address and the version of each weight, which change when it changes."""
        versions = [0 if weight.is_inference() else weight._version for weight in self._weights]
        return any(self._hooks), [weight.data_ptr() for weight in self._weights], versions


def reader(network: Network, precision: Precision | None = None, engine: Engine = "torch") -> Network:
    """The network that reads texts for a loaded model: with packed weights and no padding where the network supports
    it, else the network itself; also while a module has a hook.

    Args:
        network: any network, in evaluation mode.
        precision: "int8", of encoders on the CPU, and where the weights have 8 bits; None: the type of the weights.
        engine: as in `step_function`.

    Raises:
        CapabilityError: int8 for a network that does not support it, or such an engine.
    """
    reason = why_no_fast_reading(network)
    if has_int8_weights(network) and not has_int8_products():
        warnings.warn(
            "this processor or build of PyTorch has no products of integers: 8-bit weights are multiplied in float32",
            AtentoWarning,
            stacklevel=4,
        )
        return network
    if precision == "int8":
        reason = why_no_int8(network) if isinstance(network, Encoder) else type(network).__name__
        if reason is not None:
            raise CapabilityError(f"int8 reading is for encoders on the CPU, not for {reason}")
    if not isinstance(network, Encoder) or reason is not None or hooked(network):
        return network
    chosen_precision: Precision = "bfloat16" if next(network.parameters()).dtype == torch.bfloat16 else "float32"
    return FastReader(network, precision or chosen_precision, engine).eval()


def pack_weights(network: Network, precision: Precision | None = None) -> None:
    """Let a network on the CPU hold the weights of its layers in packed form alone, where it has fast passes, so that
    its step function and its reader hold no other copy.

    What asks for such a weight, or for gradients of inputs, gets it unpacked: in int8 the numbers that 8 bits stand
    for, else the same numbers.
    """
    weight = next(network.parameters())
    if weight.device.type != "cpu":
        return
    precision = precision or ("bfloat16" if weight.dtype == torch.bfloat16 else "float32")
    if isinstance(network, Encoder):
        if why_no_fast_reading(network) is None:
            pack_stack(network.stack, precision, attention_type_of(network, precision))
            if precision == "int8" and not multiplies_by_table(network):
                hold_tables_in_8_bits(network, outputs=False)
    elif isinstance(network, Decoder | EncoderDecoder) and why_not_fast(network) is None:
        pack_decoder(network.decoder if isinstance(network, EncoderDecoder) else network.stack, precision)
        if precision == "int8":
            hold_tables_in_8_bits(network, outputs=True)
        if isinstance(network, EncoderDecoder) and why_not_packed(network.encoder) is None:
            precision = precision_of_sources(precision)
            for owner, name in linear_maps(network.encoder) if precision == "bfloat16" else ():
                getattr(owner, name).to(torch.bfloat16)
            pack_stack(network.encoder, precision, weight.dtype)
            if network.source_features is not None:
                pack_modules(network.source_features, precision)


def pack_large(network: Network) -> None:
    """`pack_weights` of a network of more than 32 MiB; a smaller one is as fast or faster beside its packed form."""
    if sum(weight.nbytes for weight in network.parameters()) > _LARGE:
        pack_weights(network)


def engine_of(network: object, engine: Engine, precision: str) -> Engine:
    """What runs the layers of a network: "onnx" or "torch"; `engine` as in `step_function`. Raises as `takes_graph`."""
    reason = why_no_fast_reading(network) if isinstance(network, Encoder) else why_not_fast(network)
    if reason is not None or not isinstance(network, Encoder | EncoderDecoder | Decoder):
        if engine == "onnx":
            raise CapabilityError(f"`engine: onnx` is for Transformers on the CPU, not for {reason}")
        return "torch"
    stack = network.stack if isinstance(network, Encoder) else stack_that_writes(network)
    return "onnx" if takes_graph(engine, stack, precision) else "torch"


def why_no_int8(network: object) -> str | None:
    """What does not support int8, neither in decoding nor in reading; None if the network does."""
    if not isinstance(network, Encoder):
        return why_not_fast(network)
    if not has_packed_products() and not has_int8_weights(network):
        return "builds of PyTorch without oneDNN"
    return why_no_fast_reading(network)


def check_int8(network: object) -> None:
    """Raises CapabilityError: the network does not compute in int8."""
    if (reason := why_no_int8(network)) is not None:
        raise CapabilityError(f"int8 is for Transformers that write and for encoders on the CPU, not for {reason}")
