"""Logits that are NaN or infinite end every search with one clear error, plain and fast, at the step they come (W9)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atento.base.errors import AtentoError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import MBR, Beam, Greedy, Sample, generate
from atento.decoding.exact import exact_search
from atento.decoding.forced import forced_scores
from atento.decoding.mask_predict import mask_predict
from atento.decoding.rules import NoRepeatNGrams, RepetitionPenalty
from atento.decoding.stream import stream
from atento.inference.fast import FastStepFunction
from atento.inference.graphs import GraphStepFunction
from atento.networks import build_network
from failing import fails
from test_decoding_chains import Chain

CONFIG = NetworkConfig(vocab_size=23, d_model=16, d_ff=24, n_heads=2, n_layers=1, dropout=0.0)
RECURRENT = replace(CONFIG, architecture="recurrent-seq2seq", recurrent=RecurrentConfig())
STRATEGIES: list[Any] = [Greedy(), Beam(3), Beam(4, groups=2, diversity=0.5), Sample(), Sample(temperature=0.0)]
STRATEGIES += [Sample(top_k=4, n=2), MBR("chrf", Sample(n=3)), MBR("chrf", Beam(3, n_best=3))]
SOURCE = torch.tensor([[5, 6, 7], [8, 9, 4]])


def broken(config: NetworkConfig) -> Any:
    """A network with one NaN in one weight."""
    torch.manual_seed(0)
    network = build_network(config).eval()
    matrices = [one for one in network.parameters() if one.dim() > 1]
    with torch.no_grad():
        matrices[-1].view(-1)[3] = torch.nan
    return network


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("how", ["plain", "fast", "graph", "decoder", "recurrent"])
def test_w9_a_network_with_a_nan_weight_is_refused_by_every_strategy(strategy: Any, how: str) -> None:
    config = {"decoder": replace(CONFIG, architecture="decoder"), "recurrent": RECURRENT}.get(how, CONFIG)
    network = broken(config)
    step_function = {"fast": FastStepFunction, "graph": GraphStepFunction}.get(how, lambda one: one)(network)
    with pytest.raises(AtentoError, match=r"gave no distribution over token 1 of output . of the batch"):
        generate(step_function, SOURCE, strategy, max_new_tokens=6, seed=1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_w9_the_message_names_the_step_and_the_output(strategy: Any, place: int, bad: float) -> None:
    """The second sentence breaks at its third token; one bad logit is enough, or a row of nothing but -inf."""
    chain = Chain.random(3, 2, 6)
    chain.logits[:, :, :, chain.eos_id] = -50.0  # no output ends before
    if bad == -float("inf"):
        chain.logits[1, 3] = bad
    else:
        chain.logits[1, 3, :, place] = bad
    with pytest.raises(AtentoError, match="no distribution over token 3 of output 2 of the batch"):
        generate(chain, torch.tensor([[0], [1]]), strategy, max_new_tokens=6, seed=1)


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3), Sample()], ids=repr)
@pytest.mark.parametrize("rule", [RepetitionPenalty(1.3), NoRepeatNGrams(1)])
def test_w9_rules_do_not_hide_it(strategy: Any, rule: Any) -> None:
    with pytest.raises(AtentoError, match="a logit is NaN or infinite"):
        generate(broken(CONFIG), SOURCE, strategy, max_new_tokens=6, seed=1, rules=[rule])


def test_w9_what_is_not_a_search_and_the_last_step_say_it_too() -> None:
    network = broken(CONFIG)
    fails(AtentoError, "token 1 of output 1", next, stream(network, SOURCE[:1], Greedy(), max_new_tokens=3))
    for step_function in (network, FastStepFunction(network)):
        fails(AtentoError, "token 1 of output 1", forced_scores, step_function, SOURCE, [[5, 6], [7]])
    fails(AtentoError, "token 1 of output 1", exact_search, network, SOURCE[:1], max_new_tokens=3)

    def predict(ids: Tensor) -> Tensor:
        logits = nn.functional.one_hot(ids, 23).double()
        logits[1, 2, 4] = torch.nan
        return logits

    fails(AtentoError, "token 3 of output 2", mask_predict, predict, torch.full((2, 4), 22), 22, iterations=2)
    chain = Chain.random(3, 1, 6)
    chain.logits[:, :, :, chain.eos_id] = -50.0
    chain.logits[0, 2] = float("nan")  # a start token and one more behind it
    for strategy in STRATEGIES:
        generate(chain, torch.tensor([[0]]), strategy, max_new_tokens=1, seed=1)
        with pytest.raises(AtentoError, match="token 2 of output 1"):
            generate(chain, torch.tensor([[0]]), strategy, max_new_tokens=2, seed=1)
