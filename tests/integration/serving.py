"""What the tests of the service's engine share: tiny models, and the events of jobs as a worker sends them."""

import io
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from atento.config.recipe import TokenizerConfig
from atento.decoding import Sample, filters, token_loop
from atento.model import Model
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_serve.engine.generation import TextGenerators
from atento_serve.engine.messages import decoded, event_of
from atento_serve.engine.outbox import Outbox
from atento_serve.engine.requests import Waiting
from atento_serve.jobs import Event, Failed, Job, Piece, Result, Usage
from atento_world import write
from http_service import random_model

PAIRS = write("train", 60)
TEXTS = sorted({pair.source for pair in PAIRS}, key=lambda text: (len(text), text))


def small_tokenizer() -> Tokenizer:
    texts = (text for pair in PAIRS for text in (pair.source, pair.target))
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), texts)


def small_model(tokenizer: Tokenizer, architecture: str, scale: float = 2.0, **changes: Any) -> Model:
    """A model with random weights, large enough that different texts have different outputs."""
    task = {"encoder": "masked-language-modeling", "decoder": "language-modeling"}.get(architecture, "translation")
    changes = {"n_layers": 2, "decoding": {"beam": 1, "max_new_tokens": 12}, "scale": scale} | changes
    return random_model(tokenizer, task, None, architecture=architecture, **changes)


def written(model: Model, jobs: Sequence[Job], most: int = 256) -> "Sent":
    """What the generators of a model send when they are given all of some jobs at once."""
    sent = Sent()
    generators = TextGenerators(model, sent, most)
    with torch.inference_mode():
        for job in jobs:
            generators.add(Waiting(job, list(job.items), 0))
        while generators.rows:
            generators.step()
    assert generators.jobs == 0
    return sent


class Sent(Outbox):
    """An outbox that holds what it was given: the events of each job."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.events: dict[str, list[Event]] = defaultdict(list)

    def send(self, message: dict[str, Any]) -> None:
        if "of" in message:
            # through the form in which it crosses to the server
            message = decoded(json.dumps(message).encode("utf-8"))
            self.events[message["of"]].append(event_of(message))


def random_options(rng: random.Random, *, translates: bool) -> dict[str, Any]:
    """Options of decoding: greedy search, sampling with every filter, beams, minimum Bayes risk, rules, limits."""
    kind = rng.choice(["greedy", "greedy", "greedy", "sample", "sample", "samples", "beam", "diverse", "mbr", "exact"])
    options: dict[str, Any] = {"max_new_tokens": rng.randint(1, 14)}
    if kind == "greedy":
        options["greedy"] = True
    elif kind in ("sample", "samples"):
        name, value = rng.choice(
            [("temperature", 0.7), ("top_k", 5), ("top_p", 0.8), ("min_p", 0.1), ("typical_p", 0.7), ("sample", True)]
        )
        options |= {name: value, "seed": rng.randint(0, 5)}
        if kind == "samples":
            options["n_best"] = rng.randint(2, 4)
    elif kind == "beam":
        options["beam"] = rng.choice([2, 3, 5])
        options["n_best"] = rng.choice([1, 2])
        options |= {"stopping": rng.choice(["fixed", "shrinking"]), "length_penalty": rng.choice([0.0, 1.0])}
    elif kind == "diverse":
        options |= {"beam": 4, "groups": 2, "diversity": 0.5}
    elif kind == "mbr":
        options |= {"mbr": "chrf", "candidates": 3, "seed": rng.randint(0, 3)}
        options["candidates_from"] = rng.choice(["sample", "both"])
    else:
        options |= {"exact": True, "beam": 2, "max_new_tokens": 3, "exact_limit": 30}
    if kind != "exact" and rng.random() < 0.3:
        rules: list[dict[str, Any]] = [
            {"repetition_penalty": 1.3},
            {"presence_penalty": 1.0, "frequency_penalty": -0.5},
        ]
        rules += [{"no_repeat_ngrams": 2}, {"min_new_tokens": 1}, {"forced_eos": True}]
        rules += [{"repetition_penalty": 1.2, "count_prompt": True}, {"stop": ["e"]}]
        options |= rng.choice(rules)
    return options


def random_job(rng: random.Random, number: int, verb: str, texts: Sequence[str]) -> Job:
    items = [rng.choice(texts) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    if verb == "translate" and rng.random() < 0.05:
        items[0] = "  "
    options = random_options(rng, translates=verb == "translate")
    return Job(str(number), "small", verb, items, options, stream=rng.random() < 0.3)


def alone(model: Model, job: Job) -> list[list[Any]]:
    """What the method of the model writes for the items of a job, and for nothing else."""
    options = dict(job.options)
    n_best = options.pop("n_best", None)
    method = model.translations if job.verb == "translate" else model.generations
    return method(job.items, n_best=n_best, **options)


def real_faults(model: Model, faults: list[tuple[Job, str]]) -> list[str]:
    """The faults of jobs, "" for none, without those that rounding explains: at most one of each 5,000 jobs."""
    real, rounded = list[str](), list[str]()
    for job, fault in faults:
        if fault:
            (rounded if is_on_a_boundary(model, job) else real).append(f"{job}: {fault}")
    return real + rounded[-(-len(faults) // 5_000) :]


def is_on_a_boundary(model: Model, job: Job) -> bool:
    """Whether a number that the job draws lies so near to the boundary between two tokens that rounding decides.

    Other rows change the last digits of attention; near is half a millionth of the sum of probabilities.
    """
    gaps = [1.0]

    def drawn(scores: Tensor, strategy: Sample, keys: Tensor, position: int | Tensor) -> Tensor:
        if strategy.temperature:
            cumulative = filters.shaped(scores, strategy).exp_().double().cumsum_(dim=-1)
            point = filters.uniform(keys, position).unsqueeze(1) * cumulative[:, -1:]
            gaps.append(float(((cumulative - point).abs() / cumulative[:, -1:]).min()))
        return draw(scores, strategy, keys, position)

    draw = filters.draw
    with mock.patch.object(token_loop, "draw", drawn):
        alone(model, job)
    return min(gaps) < 5e-7


def wrong(expected: list[list[Any]], events: list[Event], tolerance: float = 1e-5) -> str:
    """What is wrong with the events of a job; empty: nothing."""
    if not events or not isinstance(events[-1], Usage):
        return f"no end: {events[-1:]}"
    results = {event.item: event.value for event in events if isinstance(event, Result)}
    if any(isinstance(event, Failed) for event in events) or sorted(results) != list(range(len(expected))):
        return "an item has no result"
    for item, outputs in enumerate(expected):
        if [value["text"] for value in results[item]] != [output.text for output in outputs]:
            return f"{[value['text'] for value in results[item]]} is not {[output.text for output in outputs]}"
        for value, output in zip(results[item], outputs):
            scores = output.hypothesis.token_scores
            if value["ids"] != output.hypothesis.ids or value["finished"] != output.hypothesis.finished:
                return "other ids"
            if any(abs(a - b) > tolerance for a, b in zip(value["token_scores"], scores, strict=True)):
                return f"other scores: {value['token_scores']} and {scores}"
        pieces = [event.text for event in events if isinstance(event, Piece) and event.item == item]
        if pieces and "".join(pieces) != outputs[0].text:
            return f"the pieces {pieces} are not {outputs[0].text!r}"
    return ""
