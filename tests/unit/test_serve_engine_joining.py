"""States that are joined give the logits of each row alone: every family, rows that come and go at any step."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from atento.config.sections.network import NetworkConfig
from atento.inference.fast import FastStepFunction
from atento.inference.prompts import PrefixCache, PrefixCachingSteps
from atento.networks import build_network
from test_networks_fast import DECODERS, ENCODER_DECODERS, V


class Row:
    """A row by itself: its input, the tokens that it reads, and the logits after each of them."""

    def __init__(self, steps: FastStepFunction, rng: random.Random, width: int) -> None:
        self.ids = torch.tensor([[rng.randrange(4, V) for _ in range(rng.choice([1, 1, 2, 5, 9]))]])
        self.width, self.read = width, 0
        first = steps.first_tokens(self.ids, None).repeat(width)
        self.tokens = [first, *[torch.tensor([rng.randrange(4, V) for _ in range(width)]) for _ in range(12)]]
        state = steps.begin(self.ids, None).select(torch.zeros(width, dtype=torch.long))
        self.logits = []
        for tokens in self.tokens:
            logits, state = steps.step(tokens, state)
            self.logits.append(logits)


@pytest.mark.covering
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", [*ENCODER_DECODERS, *DECODERS])
def test_joined_rows_have_the_logits_of_each_alone(name: str, width: int) -> None:
    config: NetworkConfig = (ENCODER_DECODERS | DECODERS)[name]
    torch.manual_seed(1)
    steps = FastStepFunction(build_network(config).eval().double())
    rng = random.Random(5)
    waiting = [Row(steps, rng, width) for _ in range(6)]
    live: list[Row] = []
    state: Any = None
    while waiting or live:
        arriving = [waiting.pop() for _ in range(min(len(waiting), rng.choice([0, 1, 2])))]
        if arriving:
            begun = [steps.begin(row.ids, None).select(torch.zeros(width, dtype=torch.long)) for row in arriving]
            state = steps.joined(begun if state is None else [state, *begun])
            live += arriving
            assert state.length == max(row.read + steps.joined([steps.begin(row.ids, None)]).length for row in live)
        if not live:
            continue
        logits, state = steps.step(torch.cat([row.tokens[row.read] for row in live]), state)
        for row, part in zip(live, logits.split(width)):
            torch.testing.assert_close(part, row.logits[row.read], rtol=0, atol=1e-10)
            row.read += 1
        rows = [number for number, row in enumerate(live) if row.read < len(row.tokens) and rng.random() < 0.9]
        live = [live[number] for number in rows]
        if rows:
            state = state.select(torch.tensor([width * row + slot for row in rows for slot in range(width)]))
            apart = state.separated() if state.width > 1 else state  # outputs of a text may part at any time
            assert apart.width == 1 and steps.joined([apart]).length == steps.joined([state]).length
            if rng.random() < 0.2:
                state = apart
        else:
            state = None


@pytest.mark.parametrize("name", ["gpt2", "alibi", "qwen2"])
def test_prompts_read_in_parts_or_once_for_a_common_beginning_give_the_same_logits(name: str) -> None:
    torch.manual_seed(1)
    steps = FastStepFunction(build_network(DECODERS[name]).eval().double())
    ids = torch.randint(4, V, (3, 17))
    real = torch.arange(17) < torch.tensor([[17], [9], [2]])
    expected, _ = steps.step(steps.first_tokens(ids, real), steps.begin(ids, real))
    *pauses, state = steps.prefill_in_chunks(ids, real, 5)
    assert pauses == [None] * 3 and state is not None
    logits, _ = steps.step(steps.first_tokens(ids, real), state)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    torch.manual_seed(1)
    steps = FastStepFunction(build_network(replace(DECODERS[name], max_len=128)).eval().double())
    remembering = PrefixCachingSteps(steps, memory := PrefixCache(200))
    common = torch.randint(4, V, (40,)).tolist()
    prompts = [[*common, *torch.randint(4, V, (n,)).tolist()] for n in (5, 1, 9)] + [[5, 6], common, common[:36]]
    for _ in range(2):
        longest = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        real = torch.arange(longest) < torch.tensor([len(prompt) for prompt in prompts]).unsqueeze(1)
        expected, _ = steps.step(steps.first_tokens(ids, real), steps.begin(ids, real))
        *pauses, state = remembering.prefill_in_chunks(ids, real, 16)
        assert set(pauses) == {None} and state is not None
        logits, _ = remembering.step(remembering.first_tokens(ids, real), state)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    # all but the first one's 44 tokens, and what differs in the others: 0 and 8 of the 2nd and 3rd
    assert memory.skipped >= 2 * (40 + 40 + 39 + 35) and sum(map(len, memory._read)) <= 200
    short = PrefixCachingSteps(steps, PrefixCache(200, shortest=2))  # shorter ones may be worth it too
    short.begin(torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]]), None)
    assert short.memory.skipped == 3


def test_the_prompt_that_was_used_longest_ago_is_dropped() -> None:
    """Used is also what another prompt has begun with; a prompt of fewer tokens than are worth it is not held."""
    memory, part = PrefixCache(10, shortest=3), torch.zeros(1, 1, 4, 2)
    first, second, third = (1, 2, 3, 4), (5, 6, 7, 8), (9, 9, 9, 9)
    for ids in (first, second, (9, 9)):
        memory.remember(ids, [part], [part])
    assert memory.longest([1, 2, 3, 9])[0] == 3 and memory.longest([5, 6])[0] == 0 == memory.longest([9, 9, 1])[0]
    memory.remember(third, [part], [part])
    assert [memory.longest(ids)[0] for ids in (first, second, third)] == [4, 0, 4]
