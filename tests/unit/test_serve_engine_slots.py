"""Rows of a running batch have the logits of each alone: in slots, and joined by plain and by fast steps."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, MaskConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding.choosing import moved_up
from atento.decoding.running import JoinedRows, RunningBatch
from atento.inference.fast import FastStepFunction
from atento.inference.plain import PlainStepFunction
from atento.inference.prompts import PrefixCache, PrefixCachingSteps
from atento.inference.slot_buffer import SLOTS
from atento.inference.slots import PATIENCE, Slots
from atento.networks import build_network
from test_networks_fast import DECODERS, ENCODER_DECODERS, SIZES, V


class Row:
    """A row by itself: its input, the tokens that it reads, and the logits after each of them."""

    def __init__(self, steps: Any, ids: list[int], rng: random.Random) -> None:
        row = torch.tensor([ids])
        first = int(steps.first_tokens(row, None)) if hasattr(steps, "first_tokens") else steps.start_id
        self.ids, self.logits = ids, list[Tensor]()
        self.tokens = [first, *(rng.randrange(4, V) for _ in range(rng.choice([2, 7, 20])))]
        state = steps.begin(row, None)
        for token in self.tokens:
            logits, state = steps.step(torch.tensor([token]), state)
            self.logits.append(logits[0])


def rows_of_inputs(steps: Any, rng: random.Random, count: int) -> list[list[Row]]:
    """Some inputs, each with the rows that are written for it."""
    inputs = [[rng.randrange(4, V) for _ in range(rng.choice([1, 2, 5, 9, 30]))] for _ in range(count)]
    return [[Row(steps, ids, rng) for _ in range(rng.choice([1, 1, 3]))] for ids in inputs]


def check_rows(
    batch: RunningBatch, waiting: list[list[Row]], rng: random.Random, part: int = 256, atol: float = 1e-10
) -> int:
    """Let rows come and go at random, several of an input at once; the most that were there."""
    reading: list[tuple[list[Row], Any]] = []
    live: list[tuple[Row, int]] = []  # a row, and the number of its next token
    most = 0
    while waiting or reading or live:
        while waiting and rng.random() < 0.5:
            rows = waiting.pop()
            reading.append((rows, batch.reading(rows[0].ids)))
        batch.read([one for _, one in reading], part)
        for rows, one in reading:
            if one.is_read:
                batch.join([one] * len(rows))
                assert all(row.tokens[0] == one.first for row in rows)
                live += [(row, 0) for row in rows]
        reading = [(rows, one) for rows, one in reading if not one.is_read]
        if not live:
            continue
        most = max(most, len(live))
        logits = batch.step(torch.tensor([row.tokens[number] for row, number in live]))
        for (row, number), row_logits in zip(live, logits, strict=True):
            torch.testing.assert_close(row_logits, row.logits[number], rtol=0, atol=atol)
        live = [(row, number + 1) for row, number in live]
        stays = [number < len(row.tokens) and rng.random() < 0.98 for row, number in live]
        if not all(stays):
            last = [number for number in range(sum(stays), len(live)) if stays[number]]
            keep = [number if stays[number] else last.pop() for number in range(sum(stays))]
            batch.keep(keep)
            live = [live[number] for number in keep]
    return most


@pytest.mark.parametrize("name", [*ENCODER_DECODERS, *DECODERS])
def test_rows_in_slots_have_the_logits_of_each_alone(name: str) -> None:
    torch.manual_seed(1)
    steps = FastStepFunction(build_network((ENCODER_DECODERS | DECODERS)[name]).eval().double())
    rng = random.Random(5)
    slots = Slots(steps, PrefixCache(300, shortest=4) if name in DECODERS else None)
    assert check_rows(slots, rows_of_inputs(steps, rng, 12), rng, part=rng.choice([4, 16, 256])) > SLOTS
    assert not slots.lengths


class Beams:
    """The beams of an input by themselves, on plain steps: tokens, logits, and the beam that each continues."""

    def __init__(self, network: Any, ids: list[int], width: int, rng: random.Random) -> None:
        steps, row = PlainStepFunction(network), torch.tensor([ids])
        first = int(steps.first_tokens(row, None)) if hasattr(steps, "first_tokens") else steps.start_id
        self.ids, self.read, self.logits = ids, 0, list[Tensor]()
        count = rng.choice([2, 5, 9])
        self.tokens = [[first] * width, *([rng.randrange(4, V) for _ in range(width)] for _ in range(count))]
        self.parents = [[rng.randrange(width) for _ in range(width)] for _ in self.tokens]
        state = steps.begin(row, None).select(torch.zeros(width, dtype=torch.long))
        for tokens, parents in zip(self.tokens, self.parents):
            logits, state = steps.step(torch.tensor(tokens), state)
            self.logits.append(logits)
            state = state.select(torch.tensor(parents))


@pytest.mark.covering
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("name", [*ENCODER_DECODERS, *DECODERS])
def test_beams_in_slots_have_the_logits_of_each_input_alone(name: str, width: int) -> None:
    torch.manual_seed(1)
    network = build_network((ENCODER_DECODERS | DECODERS)[name]).eval().double()
    rng, steps = random.Random(4), FastStepFunction(network)
    batches: list[Any] = [
        Slots(steps, PrefixCache(300, shortest=4) if name in DECODERS else None, width),
        JoinedRows(steps, part=4, device=torch.device("cpu"), width=width),
    ]
    for batch in batches:
        lengths = [rng.choice([1, 2, 5, 9, 30]) for _ in range(5)]
        waiting = [Beams(network, [rng.randrange(4, V) for _ in range(n)], width, rng) for n in lengths]
        reading, live = list[tuple[Beams, Any]](), list[Beams]()
        while waiting or reading or live:
            if waiting and rng.random() < 0.5:
                beams = waiting.pop()
                reading.append((beams, batch.reading(beams.ids)))
            batch.read([one for _, one in reading], 16)
            joining = [(beams, one) for beams, one in reading if one.is_read]
            if joining:
                batch.join([one for _, one in joining])
                live += [beams for beams, _ in joining]
            reading = [(beams, one) for beams, one in reading if not one.is_read]
            if not live:
                continue
            logits = batch.step(torch.tensor([beams.tokens[beams.read] for beams in live]).flatten())
            for beams, part in zip(live, logits.split(width), strict=True):
                torch.testing.assert_close(part, beams.logits[beams.read], rtol=0, atol=1e-10)
            batch.reorder(torch.tensor([beams.parents[beams.read] for beams in live]))
            for beams in live:
                beams.read += 1
            keep = moved_up([beams.read < len(beams.tokens) and rng.random() < 0.97 for beams in live])
            if len(keep) < len(live):
                batch.keep(keep)
                live = [live[number] for number in keep]


PLAIN = {
    "window": NetworkConfig(**SIZES, architecture="decoder", mask=MaskConfig("window", left=3)),
    "shaw": NetworkConfig(**SIZES, architecture="decoder", positions=PositionConfig("shaw")),
    "norms of queries and keys": NetworkConfig(
        **SIZES, architecture="decoder", positions=PositionConfig("rotary"), attention=AttentionConfig(norm=True)
    ),
    "recurrent": NetworkConfig(**SIZES | {"n_heads": 1}, architecture="recurrent-lm", recurrent=RecurrentConfig()),
    "recurrent pair": NetworkConfig(
        **SIZES | {"n_heads": 1}, architecture="recurrent-seq2seq", recurrent=RecurrentConfig(attention="bilinear")
    ),
    "shaw pair": NetworkConfig(**SIZES, positions=PositionConfig("shaw")),
    "transformer": ENCODER_DECODERS["transformer"],
    "real positions only": ENCODER_DECODERS["real positions only"],
    "t5": ENCODER_DECODERS["t5"],
    "gpt2": DECODERS["gpt2"],
}


@pytest.mark.parametrize("name", PLAIN)
def test_joined_rows_of_plain_steps_have_the_logits_of_each_alone(name: str) -> None:
    torch.manual_seed(1)
    steps = PlainStepFunction(build_network(PLAIN[name]).eval().double())
    rng = random.Random(6)
    assert check_rows(JoinedRows(steps, part=4, device=torch.device("cpu")), rows_of_inputs(steps, rng, 8), rng) > 3


@pytest.mark.parametrize("precision, tolerance", [("int8", 1e-3), ("bfloat16", 0.05)])
def test_rows_in_slots_of_other_precisions_are_those_alone(precision: Any, tolerance: float) -> None:
    """One after the other, because with int8 the rows of a product share a scale; a prompt is read without them."""
    torch.manual_seed(1)
    steps = FastStepFunction(build_network(DECODERS["gpt2"]).eval(), precision)
    rng, slots = random.Random(3), Slots(steps)
    for (row, *_), (other, *_) in zip(rows_of_inputs(steps, rng, 3), rows_of_inputs(steps, rng, 3)):
        reading, later = slots.reading(row.ids), slots.reading(other.ids)
        slots.read([reading], 256)
        slots.join([reading])
        for token, logits in zip(row.tokens, row.logits):
            if precision == "int8":
                slots.read([reading, later], 256)  # before the step, and not with it
            torch.testing.assert_close(slots.step(torch.tensor([token]))[0], logits, rtol=0, atol=tolerance)
        assert later.is_read == (precision == "int8")
        slots.keep([])


def test_a_source_waits_a_few_steps_for_others_that_are_read_with_it() -> None:
    torch.manual_seed(1)
    slots = Slots(FastStepFunction(build_network(ENCODER_DECODERS[next(iter(ENCODER_DECODERS))]).eval()))

    def calls_until_read(count: int, part: int = 256) -> list[int]:
        """The number of the call in which each of some sources is read, from 0."""
        readings, calls = [slots.reading([5, 6, 7]) for _ in range(count)], [-1] * count
        for call in range(20):
            slots.read([one for one in readings if not one.is_read], part)
            calls = [call if one.is_read and number < 0 else number for one, number in zip(readings, calls)]
        slots.join(readings)
        return calls

    assert calls_until_read(1) == [0]  # nothing runs
    assert calls_until_read(1) == [0]  # half as many as the rows
    assert calls_until_read(6) == [0] * 6 and calls_until_read(3) == [PATIENCE] * 3
    assert calls_until_read(3, part=3) == [PATIENCE, PATIENCE + 1, PATIENCE + 2]  # what is left goes on at once
    assert calls_until_read(1) == [PATIENCE]


class Beamed:
    """The outputs of an input by themselves, as many as a beam is wide: their tokens, and the logits after each."""

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
    waiting = [Beamed(steps, rng, width) for _ in range(6)]
    live: list[Beamed] = []
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
