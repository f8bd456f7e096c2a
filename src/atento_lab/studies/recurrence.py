"""RNN compared with Transformer in the seven aspects of the notes: gradients, steps, time, memory, quality.

See docs/notes.md#c17, #c13.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from atento.config.recipe import TokenizerConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import RecurrentConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.metrics import METRICS
from atento.networks import build_network, build_seq2seq, parameter_count
from atento.tasks.model_outputs import text_generator
from atento.tasks.task_model import TaskModel
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento.training.allocator import raise_trim_threshold
from atento.training.step import Updater
from atento_world import write

DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (64, 128, 256, 512, 1024)
_VOCAB_SIZE = 64
_WIDTH = 128
_SEEDS = (0, 1, 2)


def readers() -> dict[str, NetworkConfig]:
    """Return configurations of language models of two layers and one width: each recurrence, and a Transformer.

    Equal width is not equal size: 74,240 parameters (RNN), 206,336 (GRU), 272,384 (LSTM) and 207,616 (Transformer). The
    rows of the aspect "parameters" give the sizes.
    """
    base = NetworkConfig(vocab_size=_VOCAB_SIZE, d_model=_WIDTH, n_heads=4, n_layers=2, dropout=0.0, norm="pre")
    recurrent = {
        cell: replace(base, architecture="recurrent-lm", recurrent=RecurrentConfig(cell=cell))
        for cell in ("rnn", "gru", "lstm")
    }
    return recurrent | {"transformer": replace(base, architecture="decoder", d_ff=_WIDTH)}


def translators() -> dict[str, NetworkConfig]:
    """Return configurations of encoder-decoders of one width, in historical order."""
    base = NetworkConfig(d_model=_WIDTH, n_heads=4, n_layers=2, norm="pre")
    recurrent = replace(base, architecture="recurrent-seq2seq", n_layers=1)
    return {
        "lstm": replace(recurrent, n_layers=2, recurrent=RecurrentConfig(attention="none")),
        "lstm, attention": replace(recurrent, recurrent=RecurrentConfig(attention="additive")),
        "gru, attention": replace(recurrent, recurrent=RecurrentConfig(cell="gru", attention="dot")),
        "transformer": replace(base, d_ff=2 * _WIDTH),
    }


def measure_recurrence(seconds: float) -> Iterator[dict[str, object]]:
    """Yield rows by aspect: size and steps, gradient by distance, time and memory by length, quality.

    Args:
        seconds: the training time of each encoder-decoder.
    """
    raise_trim_threshold()
    for name, config in readers().items():
        torch.manual_seed(0)
        network = build_network(config)
        yield _row("parameters", name, value=parameter_count(network))
        for length in LENGTHS:
            steps = 1 if config.architecture == "decoder" else length
            yield _row("steps a layer", name, length=length, value=steps)
        norms = gradient_by_distance(config)
        for distance in DISTANCES:
            yield _row("gradient norm", name, distance=distance, value=norms[distance])
        for length in LENGTHS:
            yield _row("training seconds", name, length=length, value=training_seconds(network, length))
            yield _row("bytes kept for backward", name, length=length, value=saved_bytes(network, length))
    yield from _quality(seconds)


def _row(aspect: str, network: str, **values: object) -> dict[str, object]:
    values["value"] = float(f"{values['value']:.4g}") if isinstance(values["value"], float) else values["value"]
    return {"bench": "recurrence", "aspect": aspect, "network": network} | values


def gradient_by_distance(config: NetworkConfig) -> dict[int, float]:
    """Return the norm of ∂(u·h_T)/∂x_(T-d) for each distance d, relative to distance 0.

    u is a random direction; the norm is the mean over three random networks in float64.
    """
    length = max(DISTANCES) + 1
    total = dict.fromkeys((0, *DISTANCES), 0.0)
    for seed in _SEEDS:
        torch.manual_seed(seed)
        network = build_network(config).double().eval()
        ids = torch.randint(_VOCAB_SIZE, (4, length))
        activations: dict[str, Tensor] = {}

        def keep(
            module: nn.Module, inputs: object, output: Tensor, activations: dict[str, Tensor] = activations
        ) -> Tensor:
            activations["x"] = output.detach().requires_grad_()
            return activations["x"]

        hook = network.get_submodule("embedding").register_forward_hook(keep)
        hidden = network(ids, project=False).hidden[:, -1]
        hook.remove()
        direction = torch.nn.functional.normalize(torch.randn(hidden.shape[-1], dtype=torch.float64), dim=0)
        (gradient,) = torch.autograd.grad((hidden @ direction).sum(), activations["x"])
        norms = gradient.norm(dim=-1).mean(dim=0)  # (T,)
        for distance in total:
            total[distance] += float(norms[length - 1 - distance])
    return {distance: total[distance] / total[0] for distance in DISTANCES}


def _loss(network: nn.Module, length: int) -> Tensor:
    ids = torch.randint(_VOCAB_SIZE, (8, length + 1), generator=torch.Generator().manual_seed(0))
    logits = network(ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def training_seconds(network: nn.Module, length: int) -> float:
    """Return the seconds of forward and backward of 8 texts of this length: the best of three runs, after a warm-up."""
    best = math.inf
    for repetition in range(4):
        start = time.perf_counter()
        torch.autograd.backward(_loss(network.train(), length))
        best = best if repetition == 0 else min(best, time.perf_counter() - start)
        network.zero_grad()
    return best


def saved_bytes(network: nn.Module, length: int) -> int:
    """Return the bytes that the forward pass of 8 texts saves for the backward pass, without the weights."""
    parameter_storages = {parameter.data_ptr() for parameter in network.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in parameter_storages:
            saved[storage] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _loss(network.train(), length)
    del loss
    return sum(saved.values())


def _quality(seconds: float) -> Iterator[dict[str, object]]:
    """Yield the quality of English to Portuguese translation after equal training time on equal data."""
    train, held_out = write("train", 10_000), write("combinations", 200)
    texts = [text for pair in train for text in (pair.source, pair.target)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=1000), texts)
    for name, config in translators().items():
        ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos", "unk")}
        sized = changed(config, vocab_size=tokenizer.vocab_size, ids=ids | {"start": tokenizer.bos_id})
        torch.manual_seed(1)
        network = build_seq2seq(sized)
        updates = train_translator(network, tokenizer, [p.source for p in train], [p.target for p in train], seconds)
        writer = text_generator(TaskModel(network.eval(), tokenizer, {}), DecodingConfig(beam=1))
        outputs = [best[0].text for best in writer.write([pair.source for pair in held_out])]
        references = [pair.target for pair in held_out]
        yield _row("parameters", name, value=parameter_count(network))
        yield _row("updates", name, seconds=seconds, value=updates)
        for metric in ("bleu", "exact-match"):
            yield _row(metric, name, seconds=seconds, value=METRICS[metric].score(outputs, references).value)


def train_translator(
    network: Any, tokenizer: Tokenizer, source: list[str], target: list[str], seconds: float, least: int = 0
) -> int:
    """Train for `seconds`, and for `least` updates; return the number of updates."""
    config = network.config
    batches = parallel(
        Ragged(tokenizer.encode_batch(source)),
        Ragged(tokenizer.encode_batch(target)),
        budget=2048,
        seed=1,
        pad_id=config.pad_id,
        start_id=config.start_id,
        eos_id=config.eos_id,
    )
    updater = Updater(network, TrainingConfig(), "float32")
    rate: Callable[[int], float] = lambda step: 2e-3 * min(step / 100, (100 / step) ** 0.5)  # noqa: E731
    start, step = time.perf_counter(), 0
    while step < least or time.perf_counter() - start < seconds:
        step += 1
        updater.update(batches.parts(step - 1), step, rate(step))
    return step
