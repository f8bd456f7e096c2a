"""What is written side by side is what is written alone, in float64, so that a fault is told from rounding."""

import random
from typing import Any

import pytest
import torch

from atento.config.sections.recurrent import RecurrentConfig
from atento.inference.fast import FastStepFunction
from atento.model import Model
from atento.text.tokenizer import Tokenizer
from atento_serve.engine import generation
from atento_serve.engine.generation import MOST_ROWS, TextGenerators
from atento_serve.engine.requests import Waiting
from atento_serve.engine.searches import shared_steps
from atento_serve.jobs import Job, Piece, Result, Usage
from serving import TEXTS, Sent, alone, random_job, small_model, small_tokenizer, written, wrong

VERBS = {"encoder-decoder": "translate", "decoder": "generate", "recurrent-seq2seq": "translate"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def model_of(tokenizer: Tokenizer, architecture: str) -> Model:
    changes = {"recurrent": RecurrentConfig(), "n_heads": 1} if architecture.startswith("recurrent") else {}
    return small_model(tokenizer, architecture, **changes).to(precision="float64")


def interleaved(model: Model, verb: str, count: int, seed: int, *, drafts: bool = False) -> dict[str, str]:
    """What is wrong with each of some jobs that come and go at random; with `drafts`, half of them have one."""
    rng, sent = random.Random(seed), Sent()
    jobs = [random_job(rng, number, verb, TEXTS) for number in range(count)]
    if drafts:
        for job in jobs[::2]:
            if not job.options.keys() & {"beam", "groups", "mbr", "exact"}:
                job.options["draft"] = "ngrams"
    generators, cancelled, waiting = TextGenerators(model, sent, 256), set[str](), list(jobs)
    with torch.inference_mode():
        while waiting or generators.rows:
            for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
                if waiting:
                    job = waiting.pop()
                    generators.add(Waiting(job, job.items, 0))
            if rng.random() < 0.1 and generators.jobs:
                victim = rng.choice(sorted(generators._written))
                generators.cancel(victim)
                cancelled.add(victim)
            generators.step()
    assert generators.jobs == 0
    for job_id in cancelled:
        assert not any(isinstance(event, Usage) for event in sent.events[job_id])
    assert len(cancelled) < count / 2
    checked = [job for job in jobs if job.id not in cancelled]
    faults = {job.id: wrong(alone(model, job), sent.events[job.id], 1e-10) for job in checked}
    return {job_id: f"{jobs[int(job_id)]}: {fault}" for job_id, fault in faults.items() if fault}


LONG = [pytest.param(name, 2000, marks=pytest.mark.slow) for name in ("encoder-decoder", "decoder")]


@pytest.mark.parametrize(
    "architecture, count", [("encoder-decoder", 40), ("decoder", 40), ("recurrent-seq2seq", 8), *LONG]
)
@pytest.mark.filterwarnings("ignore:the exact search")
def test_v9_an_output_does_not_depend_on_what_is_beside_it(tokenizer: Tokenizer, architecture: str, count: int) -> None:
    assert interleaved(model_of(tokenizer, architecture), VERBS[architecture], count, seed=1) == {}


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder"])
@pytest.mark.filterwarnings("ignore:the exact search")
def test_jobs_with_a_draft_write_what_they_write_alone(tokenizer: Tokenizer, architecture: str) -> None:
    assert interleaved(model_of(tokenizer, architecture), VERBS[architecture], 16, seed=2, drafts=True) == {}


def test_a_cancelled_output_leaves_before_the_next_step_and_further_jobs_wait(tokenizer: Tokenizer) -> None:
    """Each of the jobs that wait is of one text, of a search as wide as its options say."""
    model, sent = model_of(tokenizer, "encoder-decoder"), Sent()
    generators = TextGenerators(model, sent, 256)
    options = {"greedy": True, "max_new_tokens": 50, "ignore_eos": True}
    with torch.inference_mode():
        for number, text in enumerate(TEXTS[:3]):
            generators.add(Waiting(Job(str(number), "small", "translate", [text], options), [text], 0))
        generators.add(Waiting(Job("beam", "small", "translate", TEXTS[:2], {"beam": 3}), TEXTS[:2], 0))
        for _ in range(3):
            generators.step()
        assert generators.rows == 3 + 2 * 3
        generators.cancel("1")
        generators.cancel("beam")
        assert generators.rows == 2
        generators.step()
        assert generators._continuous_batch is not None and len(generators._continuous_batch.outputs) == 2
        while generators.rows:
            generators.step()
    assert not sent.events["1"] and not sent.events["beam"]
    assert [type(event).__name__ for event in sent.events["0"]] == ["Result", "Usage"]
    model, most = model_of(tokenizer, "decoder"), 0
    for kind in ({"beam": 16}, {"sample": True, "n_best": 16}, {"mbr": "chrf", "candidates": 16}):
        options = kind | {"max_new_tokens": 2}
        generators = TextGenerators(model, Sent(), 256)
        with torch.inference_mode():
            for number in range(100):
                if generators.is_full:
                    break
                generators.add(Waiting(Job(str(number), "small", "generate", [TEXTS[0]], options), [TEXTS[0]], 0))
            assert generators.jobs == MOST_ROWS // 16
            while generators.rows:
                generators.step()
                most = max(most, generators.rows)
        assert generators.jobs == 0 and most <= MOST_ROWS


def test_an_output_has_at_most_the_tokens_of_the_service_and_equal_options_are_checked(tokenizer: Tokenizer) -> None:
    """Of its texts only those whose own limit is higher; of options, 1 and True are the same key of a dict."""
    model = model_of(tokenizer, "encoder-decoder")
    model.config["decoding"] = {}
    lengths = [len(tokenizer.encode(text)) for text in TEXTS]
    short, long = TEXTS[0], TEXTS[lengths.index(max(lengths))]
    most = 2 * max(lengths)  # the usual limit is 2 tokens a source token, and 16
    assert 2 * lengths[0] + 16 < most
    for options in ({"greedy": True}, {"beam": 2}):
        job = Job("0", "small", "translate", [short, long, short], options | {"ignore_eos": True})
        sent = written(model, [job], most)
        results = {event.item: event.value for event in sent.events["0"] if isinstance(event, Result)}
        assert [len(results[n][0]["ids"]) for n in range(3)] == [2 * lengths[0] + 16, most, 2 * lengths[0] + 16]
        assert isinstance(sent.events["0"][-1], Usage)
    jobs = [Job(str(n), "small", "translate", [TEXTS[0]], {"beam": beam}) for n, beam in enumerate([1, True, 1])]
    sent = written(model_of(tokenizer, "encoder-decoder"), jobs)
    assert [isinstance(sent.events[str(number)][-1], Usage) for number in range(3)] == [True, False, True]


def test_prompts_that_begin_alike_are_read_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when they come together; several outputs of a prompt read it once."""
    model, counts = model_of(tokenizer, "decoder"), list[int]()
    embed = FastStepFunction.embed

    def counted(self: FastStepFunction, tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        counts.append(len(tokens))
        return embed(self, tokens, *others)

    monkeypatch.setattr(FastStepFunction, "embed", counted)
    common, options = list(range(10, 50)), {"max_new_tokens": 5, "ignore_eos": True}
    prompts = [[*common, 60, 61, 62], [*common, 63], [*common, 64, 65], list(range(100, 108))]
    kinds = [*[options | {"greedy": True}] * 3, options | {"sample": True, "n_best": 4, "seed": 1}]
    written(model, [Job(str(n), "small", "generate", [one], kinds[n]) for n, one in enumerate(prompts)])
    read = (40 + 2) + 0 + 1 + 7  # the last token of a prompt is read by a step, as are 4 of the 5 that are written
    assert sum(counts) == read + 5 * (3 + 4)


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder", "recurrent-seq2seq"])
def test_a_beam_is_streamed_as_far_as_its_hypotheses_agree(tokenizer: Tokenizer, architecture: str) -> None:
    model, verb, pieces = model_of(tokenizer, architecture), VERBS[architecture], 0
    options = {"beam": 3, "max_new_tokens": 20}
    jobs = [Job(str(n), "small", verb, [TEXTS[n], TEXTS[-n - 1]], options, stream=True) for n in range(6)]
    sent = written(model, jobs)
    for job in jobs:
        assert wrong(alone(model, job), sent.events[job.id], 1e-10) == ""
        pieces += sum(isinstance(event, Piece) for event in sent.events[job.id])
    assert pieces > 12  # more than one an output


@pytest.mark.parametrize(
    "part, options", [("_continuous_batch", {"greedy": True}), ("_searches", {"beam": 3}), ("_exact", {"exact": True})]
)
@pytest.mark.filterwarnings("ignore:the exact search")
def test_a_failed_step_ends_the_jobs_that_shared_it_and_later_ones_get_steps_made_anew(
    tokenizer: Tokenizer, part: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sent = model_of(tokenizer, "encoder-decoder"), Sent()
    jobs = [Waiting(Job(name, "small", "translate", TEXTS[:4], options), TEXTS[:4], 0) for name in ("1", "2", "3")]
    generators = TextGenerators(model, sent, 256)
    with torch.inference_mode():
        generators.add(jobs[0])
        generators.add(jobs[1])
        generators.step()
        before = {name: getattr(generators, name) for name in ("_continuous_batch", "_searches", "_exact")}
        with monkeypatch.context() as broken:
            for steps in (
                "decoding.continuous_batch.ContinuousBatch.step",
                "decoding.beam.beam_batch.BeamBatches.steps",
            ):
                broken.setattr(f"atento.{steps}", None)
            broken.setattr(FastStepFunction, "step", None)
            generators.step()
        assert generators.rows == 0 and generators.jobs == 0
        generators.add(jobs[2])
        assert [name for name, value in before.items() if getattr(generators, name) is not value] == [part]
        while generators.rows:
            generators.step()
    assert [[type(event).__name__ for event in sent.events[name]] for name in ("1", "2")] == [["Failed"]] * 2
    assert wrong(alone(model, jobs[2].job), sent.events["3"], 1e-10) == ""


def test_what_jobs_share_is_made_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a network whose states cannot be joined, since it reads prompts in both directions."""
    model, made = model_of(tokenizer, "decoder"), []
    model.config["objectives"] = ["prefix"]
    monkeypatch.setattr(generation, "shared_steps", lambda *given: made.append(given) or shared_steps(*given))
    sent = written(model, [Job(name, "small", "generate", TEXTS[:1], {"greedy": True}) for name in ("1", "2")])
    assert len(made) == 1 and [len(events) for events in sent.events.values()] == [2, 2]
