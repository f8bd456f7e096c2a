"""Rows of a running batch have the logits of each alone, in slots, and joined by plain and by fast steps."""

import random
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
from atento.inference.prompts import PrefixCache
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
    """The plain twin of slots, for every family."""
    torch.manual_seed(1)
    steps = PlainStepFunction(build_network(PLAIN[name]).eval().double())
    rng = random.Random(6)
    batch = JoinedRows(steps, part=4, device=torch.device("cpu"))
    assert check_rows(batch, rows_of_inputs(steps, rng, 8), rng) > 3


@pytest.mark.parametrize("name", ["transformer", "gpt2", "alibi", "t5"])
def test_slots_and_their_plain_twin_agree(name: str) -> None:
    """The rows were computed by plain steps alone; fast steps join them in slots, and by copies."""
    torch.manual_seed(1)
    network = build_network((DECODERS | ENCODER_DECODERS)[name]).eval().double()
    fast = FastStepFunction(network)
    for batch in (Slots(fast), JoinedRows(fast, part=4, device=torch.device("cpu"))):
        rng = random.Random(7)
        check_rows(batch, rows_of_inputs(PlainStepFunction(network), rng, 6), rng)


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
