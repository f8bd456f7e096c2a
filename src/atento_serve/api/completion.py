"""One completion of OpenAI's API: its fields, the work that they ask for, the choices of its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atento_serve.api.decoding import SEED_LIMIT, drafts, stop_strings
from atento_serve.api.openai_log_probs import completion_log_probs
from atento_serve.http.errors import too_long, wrong_field
from atento_serve.http.fields import Fields, Prompts, Texts, bounded, listed
from atento_serve.http.request_jobs import Outcome, Work
from atento_serve.jobs import Entry, GeneratedOutput
from atento_serve.settings import Limits

_DEFAULT_TOKENS = 16  # OpenAI's default
MOST_LOG_PROBS = 20  # most probable tokens at a place
PENALTIES = ("presence_penalty", "frequency_penalty")
NAMES = {"max_new_tokens": "max_tokens", "beam": "beam_size", "n_best": "n"}  # our name of an option -> OpenAI's
NEUTRAL: dict[str, tuple[object, ...]] = {"logit_bias": ({},)}
"""Fields of completions and chats that are not supported, with the values that ask for nothing."""


class StreamOptions(Fields):
    """`stream_options` of a completion."""

    include_usage: bool = False
    include_obfuscation: bool = False


class SharedFields(Fields):
    """The fields of completions and chats; `top_k` and those after it are ours."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: Texts | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, object] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    draft: Texts | None = None


class CompletionFields(SharedFields):
    """The body of `POST /v1/completions`; `beam_size` and `length_penalty` are ours."""

    NOT_NULL = frozenset({"prompt"})

    prompt: Prompts = ""
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    beam_size: int | None = None
    length_penalty: float | None = None


@dataclass(frozen=True)
class Plan:
    """The work that a completion asks for.

    Attributes:
        prompts: texts or lists of ids.
        options: of `Model.generate`.
        n: choices of each prompt. best_of: outputs that they are chosen from.
        repeats: how often each prompt is an item of the job: once for a beam, which gives all outputs itself.
        log_probs: how many of the most probable tokens are sent beside each; None: no log-probabilities.
        writes: whether anything is written; with `max_tokens` 0 the prompts are only scored.
    """

    prompts: list[Any]
    options: dict[str, object]
    n: int
    best_of: int
    repeats: int
    writes: bool
    log_probs: int | None = None

    def best(self, outputs: Sequence[GeneratedOutput]) -> list[GeneratedOutput]:
        """The `n` choices of a prompt among its outputs; without output, one that is empty."""
        if not outputs:
            none = GeneratedOutput(text="", lead="", ids=[], tokens=[], token_scores=[], log_prob=0.0, finished=False)
            none["log_probs"] = []
            return [none]
        if self.best_of == self.n or self.repeats == 1:
            return list(outputs[: self.n])
        return sorted(outputs, key=lambda output: -output["log_prob"] / max(1, len(output["token_scores"])))[: self.n]


def planned(fields: CompletionFields, limits: Limits) -> Plan:
    """The work that a completion asks for.

    Without `temperature` it is 1, as in OpenAI's API; 0 is greedy search; `beam_size` is beam search.

    Raises:
        ServiceError: 422, a field out of its range, or fields that exclude each other; 413, too many outputs.
    """
    max_tokens = _DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
    # 0 with `echo`: the prompt alone is scored
    bounded("max_tokens", max_tokens, 0 if fields.echo else 1, limits.output_tokens)
    bounded("temperature", fields.temperature, 0, 100)
    bounded("logprobs", fields.logprobs, 0, MOST_LOG_PROBS)
    for name in PENALTIES:
        bounded(name, getattr(fields, name), -2, 2)
    n = 1 if fields.n is None else fields.n
    best_of = n if fields.best_of is None else fields.best_of
    bounded("n", n, 1, limits.n)  # of `best_of` outputs the `n` best are returned
    bounded("best_of", best_of, n, limits.n)
    bounded("beam_size", fields.beam_size, 1, limits.beam)
    prompts = listed(fields.prompt)
    if not prompts:
        raise wrong_field("/prompt", "`prompt` must have at least one text: got none")
    if len(prompts) * best_of > limits.texts:  # each is written by itself
        got = f"{len(prompts):,} prompts of {best_of}"
        raise too_long(f"a request may have at most {limits.texts:,} outputs: got {got}", "/prompt")
    options: dict[str, object] = {"max_new_tokens": max_tokens}
    if fields.seed is not None:
        options["seed"] = fields.seed % SEED_LIMIT  # clients send any 64 bits
    stop = stop_strings(fields.stop, "stop")
    options |= {"stop": stop} if stop else {}
    for name in ("repetition_penalty", *PENALTIES):
        if getattr(fields, name) is not None:
            options[name] = getattr(fields, name)
    draft = drafts(fields.draft)
    if draft and fields.beam_size is not None:
        excludes = "`draft` and `beam_size` exclude each other: a draft is for greedy search and sampling"
        raise wrong_field("/draft", excludes)
    options |= {"draft": draft} if draft else {}
    options |= _beam(fields, n, best_of) if fields.beam_size is not None else _sampling(fields)
    # a beam makes its outputs at once; draws are items of their own
    repeats = 1 if fields.beam_size is not None else best_of
    return Plan(prompts, options, n, best_of, repeats, max_tokens > 0, fields.logprobs)


_NO_SAMPLING = {"temperature": (0, 1), "top_p": (1,), "top_k": (0, -1), "min_p": (0,)}
"""The values that ask for nothing beside a beam: clients send their defaults."""


def _beam(fields: CompletionFields, n: int, best_of: int) -> Mapping[str, object]:
    for name, neutral in _NO_SAMPLING.items():
        if getattr(fields, name) not in (None, *neutral):
            excludes = f"`{name}` and `beam_size` exclude each other: one samples, the other searches"
            raise wrong_field(f"/{name}", excludes)
    if best_of != n:
        raise wrong_field("/best_of", "`best_of` and `beam_size` exclude each other: a beam ranks its outputs itself")
    assert fields.beam_size is not None
    if n > fields.beam_size:
        raise wrong_field("/n", f"`n` must not exceed `beam_size`: got {n} and {fields.beam_size}")
    penalty = {} if fields.length_penalty is None else {"length_penalty": fields.length_penalty}
    if penalty and fields.beam_size == 1:
        raise wrong_field("/length_penalty", "`length_penalty` takes a `beam_size` above 1: one beam is greedy search")
    return {"beam": fields.beam_size} | penalty | ({"n_best": n} if n > 1 else {})


def _sampling(fields: CompletionFields) -> Mapping[str, object]:
    if fields.length_penalty is not None:
        raise wrong_field("/length_penalty", "`length_penalty` takes `beam_size`: without a beam it has no effect")
    if fields.temperature == 0:
        return {"greedy": True}
    top_k = None if fields.top_k == -1 else fields.top_k  # -1: off
    filters = {"top_p": fields.top_p, "top_k": top_k, "min_p": fields.min_p}
    temperature = 1.0 if fields.temperature is None else fields.temperature
    given = {name: value for name, value in filters.items() if value is not None}
    return {"sample": True, "temperature": temperature} | given


def finish_reason(output: GeneratedOutput) -> str:
    """Why an output ended, in OpenAI's words."""
    return "stop" if output["finished"] else "length"


async def echoed(work: Work, fields: CompletionFields, prompts: list[str], verb: str) -> Outcome:
    """The entries of the tokens of each prompt (`atento_serve.jobs.Piece.log_probs`), if asked for; else None for each.

    Raises:
        ServiceError: 422, the model reads its prompts as sources, whose tokens have no probability.
    """
    if fields.logprobs is None:
        return Outcome([None] * len(prompts))
    if work.service.describe(fields.model).verb != "generate" or verb != "generate":
        raise wrong_field("/echo", "`echo` with `logprobs` takes a language model: this model reads prompts as sources")
    outcome = await work.run(fields.model, "score", [["", prompt] for prompt in prompts], {"top": fields.logprobs})
    outcome.values = [value["entries"] for value in outcome.values]
    return outcome


def choice(
    index: int, prompt: Any, output: GeneratedOutput, before: list[Entry] | None, fields: CompletionFields
) -> dict[str, object]:
    """One entry of `choices`.

    Args:
        index: its number.
        prompt: the prompt, a text where `echo` puts it before the output.
        output: of the engine.
        before: the entries of the tokens of the prompt, for `echo` with `logprobs`.
        fields: of the request.
    """
    before_it = prompt if fields.echo else ""
    own = joined(prompt, output["lead"], output["text"])
    logs = None
    if fields.logprobs is not None:
        logs = completion_log_probs(output["log_probs"], own, len(before_it), fields.logprobs)
        if before is not None:
            first = completion_log_probs(before, prompt, 0, fields.logprobs)
            logs = {name: None if logs[name] is None else first[name] + logs[name] for name in logs}
    return {"index": index, "text": before_it + own, "logprobs": logs, "finish_reason": finish_reason(output)}


def joined(prompt: object, lead: str, text: str) -> str:
    """The text of an output as it stands behind its prompt, a text or ids, with the space between them."""
    apart = isinstance(prompt, str) and (not prompt or prompt[-1].isspace())
    return text if apart else lead + text


def usage_of(prompt_tokens: int, new_tokens: int) -> dict[str, int]:
    """The tokens of a request as OpenAI counts them."""
    return {"prompt_tokens": prompt_tokens, "completion_tokens": new_tokens, "total_tokens": prompt_tokens + new_tokens}
