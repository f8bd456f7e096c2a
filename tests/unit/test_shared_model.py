"""One model shared by threads: each thread sees its own text in attention maps, traces and outputs, and no other's."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from atento.attention import observe
from atento.base.errors import CapabilityError
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.network_parts import OutputConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.stream import stream
from atento.inference.choose import Kind, step_function
from atento.inference.fast import FastStepFunction
from atento.inference.graphs import GraphStepFunction
from atento.inference.plain import PlainStepFunction
from atento.model import Model
from atento.networks import build_network
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_world import write
from failing import fails

THREADS, ROUNDS = 8, 1
PAIRS = write("train", 60)
TEXTS = sorted({pair.source for pair in PAIRS}, key=lambda text: (len(text), text))[:THREADS]
SMALL = NetworkConfig(
    vocab_size=13, d_model=8, d_ff=12, n_heads=2, n_layers=1, dropout=0.0, output=OutputConfig(tied=False)
)
FAMILIES = {
    "encoder-decoder": SMALL,
    "decoder": replace(SMALL, architecture="decoder"),
    "recurrent-seq2seq": replace(SMALL, architecture="recurrent-seq2seq", n_heads=1, recurrent=RecurrentConfig()),
    "recurrent-lm": replace(SMALL, architecture="recurrent-lm", n_heads=1, recurrent=RecurrentConfig("gru")),
}
SOURCES = [[5, 6, 7, 8], [9], [4, 4, 12], [7, 11, 5, 10, 6], [8, 3], [11, 4], [6, 6, 6], [12, 5, 3, 9]]


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Threads take turns far more often than usual, so that a search of one lies within those of the others."""
    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)
    yield
    torch.set_num_threads(threads)
    sys.setswitchinterval(interval)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = (text for pair in PAIRS for text in (pair.source, pair.target))
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=360), texts)


def model_of(tokenizer: Tokenizer, architecture: str) -> Model:
    """A model with random weights, the same at every call, that decodes each text in its own way."""
    known = {"vocab_size": tokenizer.vocab_size, "tokenizer_fingerprint": tokenizer.fingerprint}
    config = NetworkConfig(architecture, d_model=16, d_ff=32, n_heads=2, n_layers=1, **known)  # type: ignore[arg-type]
    torch.manual_seed(3)
    network = build_network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    task = "translation" if architecture == "encoder-decoder" else "language-modeling"
    about = {"model_type": "atento", "task": task, "name": "small", "network": network_to_dict(config)}
    about["decoding"] = {"beam": 2, "max_new_tokens": 5}
    return Model(network.eval().requires_grad_(False), tokenizer, about, None)


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """`work` of each number, all at once: every thread waits until all of them are there."""
    barrier = Barrier(THREADS, timeout=60)

    def one(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def observed(network: Any, call: Callable[[], Any]) -> tuple[Any, dict[Any, np.ndarray]]:
    """What the call returns, and all attention weights that an observer of the network sees meanwhile."""
    with observe(network) as seen:
        found = call()
    return found, {where: torch.cat(parts, dim=-2).cpu().numpy() for where, parts in seen.weights.items()}


def same(one: Any, other: Any) -> None:
    """Equal, arrays to the bit."""
    if isinstance(one, np.ndarray):
        assert np.array_equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            same(a, b)
    else:
        assert one == other


def uses(model: Model, text: str) -> list[Any]:
    """Everything that a model writes for a text or shows of it, with an observer or a trace of this call's own."""
    task = model.config["task"]
    write_it = model.translate if task == "translation" else model.generate
    outputs, trace = model.traced(text, task=task)
    record = model.attend(text)
    return [
        observed(model.network, lambda: write_it(text)),
        observed(model.network, lambda: "".join(model.stream(text, sample=True, seed=5))),
        [output.hypothesis.ids for output in outputs],
        trace.to_dict()["runs"],
        (record.tokens, record.kinds),
        model.score(text, text[::-1]).log_probs,
    ]


def test_a_shared_model_shows_nobody_another_threads_text_and_has_one_step_function(tokenizer: Tokenizer) -> None:
    for architecture in ("encoder-decoder", "decoder"):
        alone = model_of(tokenizer, architecture)
        expected = [uses(alone, text) for text in TEXTS]
        assert len({str(one) for one in expected}) == THREADS
        shared = model_of(tokenizer, architecture)  # its step function is made while all threads ask for it

        def work(number: int, shared: Any = shared) -> list[Any]:
            return [uses(shared, TEXTS[number]) for _ in range(ROUNDS)]

        for found, one in zip(in_threads(work), expected):
            same(found, [one] * ROUNDS)
    for _ in range(3):
        model = model_of(tokenizer, "decoder")
        made = in_threads(lambda _: model.step_function())  # noqa: B023
        assert len({id(one) for one in made}) == 1
    model, ids = model_of(tokenizer, "decoder"), torch.tensor([[5, 6, 7]])
    network: Any = model.network
    each = [network, model, PlainStepFunction(network), model.step_function()]
    written = [generate(one, ids, Greedy(), max_new_tokens=5)[0][0].ids for one in each]
    assert written == [written[0]] * 4
    with pytest.raises(TypeError, match="`network` must be a network, or have `begin` and `step`: got Encoder"):
        generate(build_network(replace(SMALL, architecture="encoder")), ids, Greedy(), max_new_tokens=5)  # type: ignore[arg-type]


def check_shared(network: Any, shared: Any, device: str) -> None:
    """Threads that share a step function write and see what each of them writes and sees alone."""
    before = {name: id(value) for name, value in vars(shared).items()}

    def work(number: int) -> list[Any]:
        ids, found = torch.tensor([SOURCES[number]], device=device), []
        for strategy in (Greedy(), Beam(3, n_best=2), Sample(n=2)):
            more: dict[str, Any] = {"max_new_tokens": 4, "seed": number}
            found.append(observed(network, lambda: generate(shared, ids, strategy, **more)))  # noqa: B023
        return [*found, observed(network, lambda: list(stream(shared, ids, Greedy(), max_new_tokens=4)))]

    expected = [work(number) for number in range(THREADS)]
    if network.config.architecture != "recurrent-lm":  # which has no attention
        assert all(weights for one in expected for _, weights in one)
    same(in_threads(work), expected)
    assert {name: id(value) for name, value in vars(shared).items()} == before


def network_of(architecture: str) -> Any:
    torch.manual_seed(1)
    network = build_network(FAMILIES[architecture]).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.8)
    return network


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["plain", "fast", "graphs"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_step_function_remembers_nothing_of_a_call(architecture: str, kind: Kind) -> None:
    network = network_of(architecture)
    if architecture.startswith("recurrent") and kind != "plain":
        with pytest.raises(CapabilityError, match=f"no fast steps for networks of type {type(network).__name__}"):
            step_function(network, kind=kind)
        return
    check_shared(network, step_function(network, kind=kind), "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder"])
def test_threads_share_captured_steps(architecture: str) -> None:
    network = network_of(architecture).to("cuda")
    check_shared(network, step_function(network, kind="graphs"), "cuda")


def test_one_door_to_step_functions_says_why_it_stays_shut() -> None:
    networks = {name: build_network(config) for name, config in FAMILIES.items()}
    assert isinstance(step_function(networks["decoder"]), FastStepFunction)
    assert isinstance(step_function(networks["decoder"], kind="plain"), PlainStepFunction)
    assert isinstance(step_function(networks["encoder-decoder"], kind="graphs"), GraphStepFunction)
    assert isinstance(step_function(networks["recurrent-seq2seq"]), PlainStepFunction)
    assert isinstance(step_function(networks["recurrent-lm"]), PlainStepFunction)
    fast = step_function(networks["decoder"], precision="bfloat16")
    assert isinstance(fast, FastStepFunction) and fast.dtype == torch.bfloat16
    elsewhere = step_function(networks["decoder"], device="meta")  # a copy of the network, which stays where it is
    assert elsewhere.network is not networks["decoder"]
    assert next(elsewhere.network.parameters()).is_meta  # type: ignore[attr-defined]
    assert step_function(networks["decoder"], device="cpu").network is networks["decoder"]
    half = build_network(FAMILIES["decoder"]).to(torch.bfloat16)
    assert isinstance(made := step_function(half), FastStepFunction) and made.precision == "bfloat16"
    recurrent, decoder = build_network(FAMILIES["recurrent-lm"]), build_network(FAMILIES["decoder"])
    options: dict[str, Any]
    for network, options, said in (
        (recurrent, {"precision": "int8"}, "int8 is for networks with a fast decoder on the CPU, not for networks"),
        (recurrent, {"precision": "bfloat16"}, "no fast steps for networks of type RecurrentLM, and plain steps"),
        (decoder, {"kind": "plain", "precision": "bfloat16"}, "type of the weights, float32: got bfloat16"),
        (build_network(replace(SMALL, architecture="encoder")), {}, "networks of type Encoder write nothing"),
    ):
        fails(CapabilityError, said, step_function, network, **options)
    fails(ValueError, "`kind` must be auto, plain, fast or graphs: got 'quick'", step_function, decoder, kind="quick")
