"""Outputs past the positions that a network with rotations was trained with: a warning, in the service an end."""

import warnings
from functools import partial
from typing import Any

import pytest

from atento.base.errors import AtentoWarning
from atento.config import presets
from atento.model import Model
from atento.tasks.task_model import context_limit
from atento.text.tokenizer import Tokenizer
from atento_serve.engine.requests import generation_jobs_of, generator_for
from atento_serve.engine.verbs import TooLong, describe, fitted
from atento_serve.jobs import Job
from failing import fails
from tiny_families import OF_FAMILY, tiny_config, tiny_model

ROTARY = ["llama3-8b", "mistral-7b", "qwen2-0-5b", "qwen3-0-6b", "gemma-2b"]
LIMIT, PROMPT = 24, "abcabcabcabc"


def model(preset: str) -> Model:
    letters = Tokenizer.from_vocabulary("character", [chr(0x61 + at) for at in range(26)])
    config = tiny_config(preset, max_len=LIMIT, vocab_size=letters.vocab_size)
    return tiny_model(config, letters, task="language-modeling")


def said(run: Any, *arguments: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        list(run(*arguments, **options))
    return [str(one.message) for one in caught if issubclass(one.category, AtentoWarning)]


@pytest.mark.parametrize("preset", ROTARY)
def test_an_output_past_the_positions_is_warned_of_once_and_one_within_is_not(preset: str) -> None:
    made = model(preset)
    assert context_limit(made.network.config) == LIMIT
    length = len(made.tokenizer.encode(PROMPT)) if made.tokenizer else 0
    room = LIMIT - length
    for options in ({"greedy": True}, {"sample": True, "seed": 3}, {"beam": 2}):
        shared: dict[str, Any] = {"ignore_eos": True, **options}
        assert said(made.generate, [PROMPT] * 2, max_new_tokens=room - 2, **shared) == []
        [message] = said(made.generate, [PROMPT] * 2, max_new_tokens=room + 9, **shared)
        assert message.startswith(f"2 outputs of 2 go past the {LIMIT} positions that the model was trained with")
    [message] = said(made.stream, PROMPT, greedy=True, ignore_eos=True, max_new_tokens=room + 9)
    assert message.startswith(f"1 output of 1 goes past the {LIMIT} positions")
    assert said(made.stream, PROMPT, greedy=True, ignore_eos=True, max_new_tokens=room - 2) == []


@pytest.mark.parametrize("preset", ROTARY)
def test_in_the_service_an_output_ends_at_the_positions_and_a_longer_prompt_is_refused(preset: str) -> None:
    made = model(preset)
    job = Job("1", "m", "generate", [PROMPT, "ab"], {"max_new_tokens": 200, "greedy": True})
    generator, inputs = generation_jobs_of(partial(generator_for, made), job, job.items, 100)
    assert generator.decoding.max_new_tokens == 200
    for one in inputs:
        assert one is not None and one.max_new_tokens == LIMIT - len(one.ids)
        assert one.generator.decoding.max_new_tokens == one.max_new_tokens
    job = Job("2", "m", "generate", ["ab"], {"max_new_tokens": 2, "greedy": True})
    generator, (short,) = generation_jobs_of(partial(generator_for, made), job, job.items, 100)
    assert short is not None and short.generator is generator and short.max_new_tokens == 2
    fails(TooLong, f"at most {LIMIT} are read", fitted, made, "generate", ["ab" * LIMIT], 512, "error")
    assert describe(made, {"input_tokens": 512, "output_tokens": 256}).max_new_tokens == LIMIT


def test_networks_without_that_limit_have_none() -> None:
    """Learned positions are a limit of their own, other schemes go on; so do rotations that go by the length."""
    for name in OF_FAMILY:
        config = tiny_config(name)
        kinds = {scheme.kind for scheme in config.schemes}
        assert (context_limit(config) is not None) == ("rotary" in kinds), name
    assert context_limit(presets.gpt2()) is None and context_limit(presets.transformer_base()) is None
