"""The decoding flags that every command that writes shares, gathered in one place."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from atento.cli.completion import utilities, words

_FLAGS: dict[str, tuple[Any, Any]] = {
    "greedy": (Annotated[bool, typer.Option("--greedy", help="The most probable token at every step.")], False),
    "beam": (Annotated[int | None, typer.Option(min=1, help="Beam width; the model's own if not given.")], None),
    "length_penalty": (
        Annotated[float | None, typer.Option(help="Score = log-probability / length ** this.")],
        None,
    ),
    "sample": (Annotated[bool, typer.Option("--sample", help="Draw tokens; the filters below imply it.")], False),
    "temperature": (Annotated[float | None, typer.Option(min=0, help="Divides the logits; 0 is greedy.")], None),
    "top_k": (Annotated[int | None, typer.Option(min=0, help="Draw among the k most probable tokens.")], None),
    "top_p": (Annotated[float | None, typer.Option(help="Draw among the smallest set with this mass.")], None),
    "min_p": (Annotated[float | None, typer.Option(help="... among those with this share of the best's.")], None),
    "mbr": (
        Annotated[
            str | None,
            typer.Option(
                metavar="UTILITY",
                help="Minimum Bayes risk by bleu, chrf, rouge, f1 or embeddings:MODEL.",
                autocompletion=utilities,
            ),
        ],
        None,
    ),
    "candidates": (Annotated[int | None, typer.Option(min=1, help="How many outputs --mbr chooses among.")], None),
    "candidates_from": (
        Annotated[
            str | None,
            typer.Option(
                metavar="HOW", help="sample, beam or both, for --mbr.", autocompletion=words("sample", "beam", "both")
            ),
        ],
        None,
    ),
    "n_best": (
        Annotated[
            int | None,
            typer.Option(min=1, help="So many outputs a line, TAB between them; no text twice but of --sample."),
        ],
        None,
    ),
    "repetition_penalty": (
        Annotated[float | None, typer.Option(help="Above 1: what was written is made less likely.")],
        None,
    ),
    "no_repeat_ngrams": (Annotated[int | None, typer.Option(min=0, help="No n-gram of this length twice.")], None),
    "min_new_tokens": (Annotated[int | None, typer.Option(min=0, help="At least so many.")], None),
    "max_new_tokens": (
        Annotated[
            int | None,
            typer.Option(min=1, help="At most so many; if not given 2 x source + 16, or 128 after a prompt."),
        ],
        None,
    ),
    "stop": (Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this; may be repeated.")], None),
    "batch_tokens": (Annotated[int | None, typer.Option(min=1, help="Source tokens times outputs at once.")], None),
}


def with_decoding(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these flags before its last ones; it is given those that were set, as the dict `decoding`."""
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "decoding"]
    first = next((n for n, one in enumerate(own) if one.name == "skip_bad"), len(own))
    flags = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
        for name, (annotation, default) in _FLAGS.items()
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        from atento.errors import RecipeError, UsageError

        try:
            command(decoding=_chosen({name: given.pop(name) for name in _FLAGS}), **given)
        except RecipeError as error:  # of the options that were made from these flags
            raise UsageError(_by_flag(str(error))) from None

    parameters = [*own[:first], *flags, *own[first:]]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    del run.__wrapped__
    return run


def _by_flag(message: str) -> str:
    """The message with the flags in place of the options made from them."""

    def flag(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')}" if found[1] in _FLAGS else found[0]

    return re.sub(r"`(?:decoding\.)?(\w+)`", flag, message.removeprefix("options: "))


def _chosen(flags: dict[str, Any]) -> dict[str, Any]:
    """Those that were set, as options of a model's methods.

    Raises:
        UsageError: flags that exclude each other.
    """
    from atento.config.decoding import FILTERS
    from atento.errors import UsageError

    greedy, sample = flags.pop("greedy"), flags.pop("sample")
    stop = flags.pop("stop")
    options = {name: value for name, value in flags.items() if value is not None}
    draws = ["--sample"] * sample + [f"--{name.replace('_', '-')}" for name in FILTERS if name in options]
    if greedy and options.get("beam", 1) != 1:
        raise UsageError(f"--greedy and --beam {options['beam']} exclude each other")
    for flag, there in (
        ("--greedy", greedy),
        ("--beam", "beam" in options),
        ("--length-penalty", "length_penalty" in options),
    ):
        if there and draws and not (flag != "--greedy" and "mbr" in options):
            raise UsageError(f"{flag} and {draws[0]} exclude each other: one searches, the other draws")
    if greedy and "mbr" in options:
        raise UsageError("--greedy and --mbr exclude each other")
    if "beam" in options and "mbr" in options:
        raise UsageError("--beam has no part in --mbr: --candidates-from beam takes a beam as wide as --candidates")
    for name in ("candidates", "candidates_from"):
        if name in options and "mbr" not in options:
            raise UsageError(f"--{name.replace('_', '-')} is for --mbr")
    _refuse_unused(options, greedy, sample)
    if greedy:
        options["greedy"] = True
    if sample:
        options["sample"] = True
    if stop:
        options["stop"] = list(stop)
    return options


def _refuse_unused(options: dict[str, Any], greedy: bool, sample: bool) -> None:
    """Raises UsageError: a flag that has no effect in the strategy that the flags beside it ask for."""
    from atento.config.decoding import FILTERS, DecodingConfig
    from atento.config.effects import unused_options
    from atento.errors import UsageError

    named = {name: options[name] for name in ("beam", "mbr", "candidates_from", *FILTERS) if name in options}
    named |= {"beam": 1} if greedy else {}
    drawn = sample or any(name in named for name in FILTERS)
    if not (greedy or drawn or "beam" in named or "mbr" in named):  # the model's own strategy: it is looked at there
        return
    strategy = DecodingConfig(**named | {"sample": drawn})
    for name, why in unused_options(strategy, {*options, *(["sample"] if sample else [])}):
        raise UsageError(f"--{name.replace('_', '-')} has no effect: {why}")
