"""Texts continued by networks that read a prompt in both directions, and by encoders (C10, E7)."""

import pytest
import torch

from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.decoding import Beam, Greedy, generate
from atento.decoding.forced import forced_scores
from atento.inference.choose import step_function
from atento.inference.prefix_steps import PrefixStepFunction
from atento.networks import build_network
from atento.networks.interface import Network
from failing import fails

MODES = [("encoder", "prefix"), ("encoder", "causal"), ("decoder", "prefix")]


def made(architecture: str) -> Network:
    torch.manual_seed(3)
    heads = (HeadConfig("masked-language-model"),) if architecture == "encoder" else ()
    sizes = {"vocab_size": 17, "d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    network = build_network(NetworkConfig(architecture, heads=heads, **sizes)).double().eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return network


def log_prob(network: Network, prompt: list[int], output: list[int], mode: str) -> float:
    """By hand: each token from one pass under a dense mask, prompt[:-1] seen by all (prefix), causal after."""
    total, text = 0.0, list(prompt)
    for token in output:
        length, prefix = len(text), len(prompt) - 1 if mode == "prefix" else 0
        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        allowed[:, :prefix] = True
        hidden = network(ids=torch.tensor([text]), mask=allowed[None, None], project=False).hidden
        total += float(network.project(hidden[0, -1]).log_softmax(dim=-1)[token])
        text.append(token)
    return total


@pytest.mark.parametrize(("architecture", "mode"), MODES)
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_e7_outputs_are_scored_as_one_pass_under_the_prefix_mask_scores_them(architecture, mode, side) -> None:
    network = made(architecture)
    steps = step_function(network, prompt=mode)  # type: ignore[arg-type]
    assert isinstance(steps, PrefixStepFunction)
    prompts, outputs = [[5, 9, 6, 7, 8], [10, 11]], [[6, 3, 12], [14, 5]]
    ids, real = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        columns = slice(0, len(prompt)) if side == "right" else slice(5 - len(prompt), 5)
        ids[row, columns], real[row, columns] = torch.tensor(prompt), True
    scores = forced_scores(steps, ids, outputs, token_mask=real)
    for prompt, output, row_scores in zip(prompts, outputs, scores):
        expected = log_prob(network, prompt, [*output, steps.eos_id], mode)
        assert sum(row_scores) == pytest.approx(expected, abs=1e-6)


@torch.no_grad()
def test_e7_searches_run_on_an_encoder_and_beams_keep_their_prompts() -> None:
    steps = step_function(made("encoder"), prompt="prefix")
    ids = torch.tensor([[5, 9, 6], [7, 8, 4]])
    for strategy in (Greedy(), Beam(width=3)):
        batch = generate(steps, ids, strategy, max_new_tokens=5, eos_id=())
        alone = [generate(steps, row[None], strategy, max_new_tokens=5, eos_id=())[0] for row in ids]
        assert [n_best[0].ids for n_best in batch] == [n_best[0].ids for n_best in alone]
    best = generate(steps, ids, Beam(width=3), max_new_tokens=5, eos_id=())[0][0]
    assert best.log_prob == pytest.approx(log_prob(steps.network, [5, 9, 6], best.ids, "prefix"), abs=1e-5)


def test_an_encoder_without_a_vocabulary_and_fast_steps_of_a_prefix_are_refused() -> None:
    bare = build_network(NetworkConfig("encoder", vocab_size=17, d_model=16, n_heads=2, n_layers=1))
    fails(CapabilityError, "Encoder write nothing", step_function, bare)
    fails(CapabilityError, "has plain steps only", step_function, made("decoder"), prompt="prefix", kind="fast")
    bfloat16 = {"prompt": "prefix", "precision": "bfloat16"}
    fails(CapabilityError, "in the type of the weights", step_function, made("decoder").float(), **bfloat16)
