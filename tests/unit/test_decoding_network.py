"""Decoding with a real network: cached equals uncached, rows are independent, scores are teacher forcing's."""

import pytest
import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import OutputConfig
from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.networks import EncoderDecoder, build_network

UNTIED = OutputConfig(tied=False)
CONFIG = NetworkConfig(vocab_size=17, d_model=8, d_ff=16, n_heads=2, n_layers=2, dropout=0.0, output=UNTIED)
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [12, 5, 14, 3, 0], [3, 0, 0, 0, 0]])
REAL = SOURCE > 0
STRATEGIES = [Greedy(), Beam(3, 1.0, 3), Beam(4, 0.0, 2, "shrinking")]


def varied(network: EncoderDecoder) -> bool:
    """Outputs of several lengths, some ended and some cut off: otherwise there is little to compare."""
    found = generate(network, SOURCE, Beam(3, 1.0, 3), max_new_tokens=12, token_mask=REAL)
    every = [h for row in found for h in row]
    return len({len(h.ids) for h in every}) > 3 and len({h.finished for h in every}) == 2 and len(found[0][0].ids) > 4


@pytest.fixture(scope="module")
def network() -> EncoderDecoder:
    """The first of some random networks whose outputs differ enough to be worth searching."""
    for seed in range(100):
        torch.manual_seed(seed)
        network = build_network(CONFIG).eval().double()
        with torch.no_grad():
            assert network.vocabulary_head.output.weight is not None
            network.vocabulary_head.output.weight.mul_(2)
        if varied(network):
            return network
    raise AssertionError("no network of a hundred ends its outputs at different lengths")


class Uncached:
    """The same network as a step function that keeps the whole history and reads all of it at every step."""

    def __init__(self, network: EncoderDecoder) -> None:
        self.network = network
        self.start_id, self.eos_id, self.pad_id = CONFIG.start_id, CONFIG.eos_id, CONFIG.pad_id

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> "Whole":
        return Whole(ids, token_mask, torch.zeros(ids.shape[0], 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: "Whole") -> tuple[Tensor, "Whole"]:
        target = torch.cat([state.target, tokens.view(len(tokens), -1)], dim=1)
        out = self.network(state.source, target, source_token_mask=state.real).logits
        assert out is not None
        return out[:, -1], Whole(state.source, state.real, target)


class Whole:
    def __init__(self, source: Tensor, real: Tensor | None, target: Tensor) -> None:
        self.source, self.real, self.target = source, real, target

    def select(self, rows: Tensor) -> "Whole":
        return Whole(self.source[rows], None if self.real is None else self.real[rows], self.target[rows])


def close(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[(h.ids, h.finished) for h in row] for row in one] == [[(h.ids, h.finished) for h in row] for row in other]
    for a, b in zip((h for row in one for h in row), (h for row in other for h in row)):
        assert a.token_scores == pytest.approx(b.token_scores, abs=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("prefix", [None, torch.tensor([[5, 6], [7, 7], [6, 5], [9, 9]])])
def test_h12_cached_equals_uncached(network: EncoderDecoder, strategy: Greedy | Beam, prefix: Tensor | None) -> None:
    options = {"max_new_tokens": [9, 4, 12, 7], "token_mask": REAL, "prefix_ids": prefix, "min_new_tokens": 1}
    close(generate(network, SOURCE, strategy, **options), generate(Uncached(network), SOURCE, strategy, **options))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_h6_v9_the_same_alone_in_a_batch_and_in_another_order(network: EncoderDecoder, strategy: Greedy | Beam) -> None:
    together = generate(network, SOURCE, strategy, max_new_tokens=10, token_mask=REAL)
    order = torch.tensor([2, 0, 3, 1])
    moved = generate(network, SOURCE[order], strategy, max_new_tokens=10, token_mask=REAL[order])
    close(moved, [together[row] for row in order.tolist()])
    for row in range(4):
        alone = generate(network, SOURCE[row : row + 1, : int(REAL[row].sum())], strategy, max_new_tokens=10)
        close(alone, [together[row]])


@torch.no_grad()
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_h9_h11_scores_are_those_of_teacher_forcing(network: EncoderDecoder, strategy: Greedy | Beam) -> None:
    for row, found in enumerate(generate(network, SOURCE, strategy, max_new_tokens=8, token_mask=REAL)):
        for h in found:
            forced = torch.tensor([[CONFIG.start_id, *h.ids, *([CONFIG.eos_id] if h.finished else [])]])
            logits = network(SOURCE[row : row + 1], forced[:, :-1], source_token_mask=REAL[row : row + 1]).logits
            steps = logits.log_softmax(-1)[0].gather(1, forced[0, 1:, None])[:, 0]
            assert h.token_scores == pytest.approx(steps.tolist(), abs=1e-10)
            assert h.log_prob == pytest.approx(float(steps.sum()), abs=1e-9)


def test_generating_leaves_no_trace_on_the_network(network: EncoderDecoder) -> None:
    """Longer than the table of positions it began with; training afterwards works and weights are as they were."""
    before = {name: value.clone() for name, value in network.state_dict().items()}
    generate(network, SOURCE[:1], Greedy(), max_new_tokens=300, eos_id=())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    network(SOURCE, SOURCE, source_token_mask=REAL).logits.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())
    network.zero_grad(set_to_none=True)
