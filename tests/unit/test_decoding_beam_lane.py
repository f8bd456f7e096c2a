"""Beams of several requests in one search find what each finds alone: random arrivals, ends and cancellations."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import Beam, Hypothesis
from atento.decoding.beam.beam_batch import WIDEST, BeamBatch, BeamBatches
from atento.decoding.beam.beam_search import beam_steps
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.contract import Request
from atento.decoding.generate import search
from atento.decoding.rules import CountPenalty, Forced, ForcedLast, NoRepeatNGrams, RepetitionPenalty
from atento.decoding.running import JoinedRows, RunningBatch
from atento.decoding.source import Prepared
from atento.decoding.trace import Trace
from atento.inference.fast import FastStepFunction
from atento.inference.plain import PlainStepFunction, padded
from atento.inference.prompts import PrefixCache
from atento.inference.slots import Slots
from test_networks_fast import DECODERS, ENCODER_DECODERS, SIZES, V, network_of

CPU = torch.device("cpu")
EOS = 2
RECURRENT = NetworkConfig(**SIZES | {"n_heads": 1}, architecture="recurrent-seq2seq", recurrent=RecurrentConfig())
NETWORKS: dict[str, tuple[NetworkConfig, bool]] = {  # configuration, and whether its steps are fast
    "transformer": (ENCODER_DECODERS["transformer"], True),
    "t5": (ENCODER_DECODERS["t5"], True),
    "rotary, grouped heads": (ENCODER_DECODERS["rotary, grouped heads"], True),
    "gpt2": (DECODERS["gpt2"], True),
    "alibi": (DECODERS["alibi"], True),
    "transformer, plain": (ENCODER_DECODERS["transformer"], False),
    "gpt2, plain": (DECODERS["gpt2"], False),
    "recurrent": (RECURRENT, False),
}


def steps_of(name: str) -> Any:
    config, fast = NETWORKS[name]
    network: Any = network_of(config)
    return FastStepFunction(network) if fast else PlainStepFunction(network)


def batch_of(steps: Any, width: int) -> RunningBatch:
    if isinstance(steps, FastStepFunction):
        return Slots(steps, None if steps.reader is None else PrefixCache(300, shortest=4), width)
    return JoinedRows(steps, part=4, device=CPU, width=width)


def random_asked(rng: random.Random, width: int) -> BeamRequest:
    """A search for one or two inputs under any options that beams can share a step with."""
    penalty, n_best = rng.choice([0.0, 0.6, 1.0]), rng.randint(1, width)
    ends = rng.choice(["fixed", "shrinking"]), rng.choice(["filled", "likely", "sure"])
    strategy = Beam(width, penalty, n_best, *ends)
    count = rng.choice([1, 1, 2])
    limits = [rng.randint(0, 12) for _ in range(count)]
    penalties = (RepetitionPenalty(1.2, prompt=True), NoRepeatNGrams(2)), (CountPenalty(1.0, 0.5),)
    forced = (Forced({0: 5, 2: 9}),), (ForcedLast(EOS, limits),)
    rules = rng.choice([*[()] * 4, (RepetitionPenalty(1.3),), *penalties, *forced])
    least, ends = rng.choice([0, 0, 0, 1, 4]), rng.choice([(EOS,), (EOS,), (EOS,), (5, 6), ()])
    prompts = [[rng.randrange(4, V) for _ in range(rng.choice([1, 2, 5, 9, 30]))] for _ in range(count)]
    stop = (lambda ids: ids[-1] % 7 == 3) if rng.random() < 0.15 else None
    return BeamRequest(strategy, Request(limits, least, ends, rules, prompts=prompts, stop=stop))


@dataclass(eq=False)
class Expected:
    """What a request finds alone, and what is certain of it after each step."""

    asked: BeamRequest
    results: list[list[Hypothesis]]
    certain: list[list[int]] = field(default_factory=list)


def alone(steps: Any, asked: BeamRequest) -> Expected:
    prepared = Prepared(steps, *padded([*map(list, asked.request.prompts)], 0, CPU), asked.request)
    expected = Expected(asked, search(prepared, asked.strategy))
    if len(asked.request.prompts) == 1:
        again = BeamRequest(asked.strategy, asked.request)
        with torch.inference_mode():
            for one in beam_steps(steps, prepared.begin, prepared.first, again):
                expected.certain.append(one.certain(again)[0])
    return expected


def check_equal(expected: Expected) -> None:
    for rows, wanted in zip(expected.asked.results, expected.results, strict=True):
        assert [row.ids for row in rows] == [row.ids for row in wanted]
        for row, other in zip(rows, wanted):
            assert row.finished == other.finished
            torch.testing.assert_close(row.token_scores, other.token_scores, rtol=0, atol=1e-9)
            assert row.score == pytest.approx(other.score, abs=1e-9)


def interleave(beam_batches: BeamBatches, waiting: list[Expected], rng: random.Random) -> int:
    """Let searches come and go at random; how many were under way at most. Checks those that were not cancelled."""
    live: list[tuple[Expected, BeamBatch, int]] = []
    most = 0
    while waiting or live:
        for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
            if waiting:
                expected = waiting.pop()
                live.append((expected, beam_batches.add(expected.asked), 0))
        if live and rng.random() < 0.05:
            live.pop(rng.randrange(len(live)))[0].asked.drop()
        most = max(most, len(live))
        before = [[group.length for group in expected.asked.groups] for expected, _, _ in live]
        sum(beam_batches.steps())
        remaining = []
        for (expected, beam_batch, step), lengths in zip(live, before):
            asked = expected.asked
            if expected.certain and asked.groups[0].length > lengths[0]:
                assert beam_batch.search.certain(asked)[0] == expected.certain[step]
                step += 1
            if asked.open:
                remaining.append((expected, beam_batch, step))
            else:
                check_equal(expected)
        live = remaining
    sum(beam_batches.steps())  # those that were cancelled at last leave
    assert beam_batches.rows == 0
    return most


@pytest.mark.parametrize("count", [12, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_beams_that_share_steps_find_what_each_finds_alone(name: str, count: int) -> None:
    steps, rng = steps_of(name), random.Random(3)
    waiting = [alone(steps, random_asked(rng, rng.choice([1, 2, 2, 4, 4, 5]))) for _ in range(count)]
    with torch.inference_mode():
        assert interleave(BeamBatches(lambda w: batch_of(steps, w), part=16, device=CPU), waiting, rng) > 5


def test_slots_and_their_plain_twin_find_the_same() -> None:
    """Searches alone on plain steps; fast steps share them in slots, and by joined states."""
    network: Any = network_of(ENCODER_DECODERS["transformer"])
    fast, rng = FastStepFunction(network), random.Random(5)
    makes: list[Any] = [lambda w: Slots(fast, width=w), lambda w: JoinedRows(fast, part=4, device=CPU, width=w)]
    for make in makes:
        waiting = [alone(PlainStepFunction(network), random_asked(rng, 3)) for _ in range(20)]
        with torch.inference_mode():
            interleave(BeamBatches(make, part=64, device=CPU), waiting, rng)


def test_a_search_whose_logits_are_no_numbers_fails_alone() -> None:
    class Breaking:
        """A running batch that gives NaN for a row of the second group at the third step."""

        def __init__(self, batch: RunningBatch) -> None:
            self.batch, self.count = batch, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.batch, name)

        def step(self, tokens: torch.Tensor) -> torch.Tensor:
            logits, self.count = self.batch.step(tokens), self.count + 1
            if self.count == 3:
                logits[2] = torch.nan
            return logits

    steps = steps_of("transformer")
    request = Request([9], 0, (), prompts=[[5, 6, 7]])
    asked = [BeamRequest(Beam(2), replace(request, prompts=[[5, 6, 7 + n]])) for n in range(3)]
    expected = [alone(steps, one) for one in asked]
    beam_batch: Any = BeamBatch(Breaking(batch_of(steps, 2)), 2, 4, part=64, device=CPU)  # type: ignore[arg-type]
    with torch.inference_mode():
        for one in asked:
            beam_batch.add(one)
        while beam_batch.rows:
            beam_batch.step()
    assert str(asked[1].error).startswith("the network gave no distribution over token 3")
    assert asked[0].error is None and asked[2].error is None and asked[1].results == [[]]
    for number in (0, 2):
        check_equal(expected[number])


def test_only_beams_of_one_group_without_required_words_share_steps() -> None:
    request = Request([4], 0, (EOS,), prompts=[[5]])
    shared = (Beam(4), {}), (Beam(WIDEST), {"required": [[]]})
    alone: Any = (Beam(WIDEST + 1), {}), (Beam(4, groups=2), {}), (Beam(4), {"required": [[[5]]]})
    for strategy, changes in (*shared, *alone, (Beam(4), {"trace": Trace()})):
        takes = BeamBatches.takes(BeamRequest(strategy, replace(request, **changes)))
        assert takes == ((strategy, changes) in shared)


def test_a_lane_holds_nothing_of_searches_that_have_ended() -> None:
    steps = steps_of("transformer")
    beam_batches = BeamBatches(lambda w: batch_of(steps, w), part=16, device=CPU)
    asked = BeamRequest(Beam(3), Request([6], 0, (), (RepetitionPenalty(1.1),), prompts=[[5, 6]]))
    with torch.inference_mode():
        beam_batch = beam_batches.add(asked)
        while beam_batches.rows:
            sum(beam_batches.steps())
        beam_batches.add(later := BeamRequest(Beam(3), Request([6], 0, (), prompts=[[7]])))
        sum(beam_batches.steps())
    assert beam_batch.search.groups == later.groups and beam_batch.search.written is None
    assert not asked.groups[0].steps and len(asked.results[0][0].ids) == 6
    slots: Any = beam_batch.batch
    assert len(slots.lengths) == 1
