"""The decoding flags, which all commands that write share."""

import functools
import inspect
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from atento.cli.completion import utilities, words


def _number(kind: type, text: str, **limits: Any) -> Any:
    return Annotated[kind | None, typer.Option(help=text, **limits)]


def _switch(flag: str, text: str) -> Any:
    return Annotated[bool | None, typer.Option(f"--{flag}/--no-{flag}", help=text)]


def _word(text: str, *choices: str) -> Any:
    return Annotated[str | None, typer.Option(metavar="WORD", help=text, autocompletion=words(*choices))]


def _text(text: str, metavar: str = "TEXT") -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, help=text)]


def _texts(text: str, metavar: str = "TEXT") -> Any:
    return Annotated[list[str] | None, typer.Option(metavar=metavar, help=f"{text}; may be repeated.")]


# Heading of the help -> option -> type of its flag. Where a flag is not given the model's own value holds.
_HEADINGS: dict[str, dict[str, Any]] = {
    "Search": {
        "greedy": Annotated[bool, typer.Option("--greedy", help="The most probable token at every step.")],
        "beam": _number(int, "Beam width; the model's own if not given.", min=1),
        "length_penalty": _number(float, "Score = log-probability / length ** this."),
        "stopping": _word("What an ended hypothesis does to the beam: fixed or shrinking.", "fixed", "shrinking"),
        "until": _word("When a beam search ends: filled, likely or sure.", "filled", "likely", "sure"),
        "groups": _number(int, "Diverse beam search: groups that the beam is divided into.", min=1),
        "diversity": _number(float, "What --groups subtract for a token that an earlier group took.", min=0),
        "exact": _switch("exact", "Find the best output there is, by branch and bound."),
        "exact_limit": _number(int, "Unfinished hypotheses that --exact may read for a text.", min=1),
        "n_best": _number(int, "So many outputs a line, TAB between them; no text twice but of --sample.", min=1),
    },
    "Sampling": {
        "sample": Annotated[bool, typer.Option("--sample", help="Draw tokens; the options below imply it.")],
        "temperature": _number(float, "Divides the logits; 0 is greedy.", min=0),
        "top_k": _number(int, "Draw among the k most probable tokens.", min=0),
        "top_p": _number(float, "Draw among the smallest set of tokens with this probability."),
        "min_p": _number(float, "Draw among tokens with at least this share of the best one's probability."),
        "typical_p": _number(float, "Draw among tokens of nearly the expected surprise, up to this probability."),
    },
    "Minimum Bayes risk": {
        "mbr": Annotated[
            str | None,
            typer.Option(
                metavar="UTILITY",
                help="Minimum Bayes risk by bleu, chrf, rouge, f1 or embeddings:MODEL.",
                autocompletion=utilities,
            ),
        ],
        "candidates": _number(int, "How many outputs --mbr chooses among.", min=1),
        "candidates_from": _word("How candidates are written: sample, beam or both.", "sample", "beam", "both"),
        "evidence": _number(int, "Outputs drawn to compare candidates with; 0: the candidates.", min=0),
        "evidence_weights": _word("What evidence counts: uniform or model.", "uniform", "model"),
        "self_comparison": _switch("self-comparison", "Whether a candidate is compared with itself."),
        "mbr_method": _word("Method: full, aggregated, coarse or pruned.", "full", "aggregated", "coarse", "pruned"),
        "mbr_keep": _number(int, "Candidates that coarse and pruned compare in full at least.", min=1),
        "mbr_confidence": _number(float, "How sure pruned is before it drops a candidate."),
    },
    "Words and tokens": {
        "repetition_penalty": _number(float, "Above 1: what was written is made less likely."),
        "no_repeat_ngrams": _number(int, "No n-gram of this length twice.", min=0),
        "count_prompt": _switch("count-prompt", "Let these two also count the source or prompt."),
        "banned_words": _texts("A word or phrase that no output contains"),
        "banned_tokens": _texts("A token of the vocabulary that is never written", "TOKEN"),
        "required_words": _texts("A word or phrase that every output contains"),
        "prefix": _text("Text that every output begins with."),
        "forced_bos": _text("Token of the vocabulary that every output begins with.", "TOKEN"),
        "forced_eos": _switch("forced-eos", "End with EOS at --max-new-tokens."),
    },
    "Length": {
        "min_new_tokens": _number(int, "At least so many.", min=0),
        "max_new_tokens": _number(int, "At most so many; if not given 2 x source + 16, or 128 after a prompt.", min=1),
        "ignore_eos": _switch("ignore-eos", "Do not end at EOS."),
        "stop": _texts("Text that an output ends before"),
        "stop_tokens": _texts("Token of the vocabulary that ends an output", "TOKEN"),
        "batch_tokens": _number(int, "Source tokens times outputs at once.", min=1),
    },
}
_FLAGS = {name: kind for flags in _HEADINGS.values() for name, kind in flags.items()}
for _heading, _flags in _HEADINGS.items():
    for _kind in _flags.values():
        _kind.__metadata__[0].rich_help_panel = _heading


def with_decoding(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """The command with the decoding flags, except `without`; its parameter `decoding` is a dict of those given."""
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "decoding"]
    first = next((n for n, one in enumerate(own) if one.name == "skip_bad"), len(own))
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=False if name in ("greedy", "sample") else None,
            annotation=annotation,
        )
        for name, annotation in _FLAGS.items()
        if name not in without
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        from atento.errors import RecipeError, UsageError

        try:
            command(decoding=_chosen({name: given.pop(name) for name in _FLAGS if name not in without}), **given)
        except (RecipeError, UsageError) as error:  # of the options that were made from these flags
            message = _by_flag(str(error))
            if message == str(error):
                raise
            raise UsageError(message) from None

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
    options = {name: value for name, value in flags.items() if value is not None and value != []}
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
    for name in ("mbr", "exact"):
        if greedy and options.get(name):
            raise UsageError(f"--greedy and --{name} exclude each other")
    if "beam" in options and "mbr" in options:
        raise UsageError("--beam has no part in --mbr: --candidates-from beam takes a beam as wide as --candidates")
    _refuse_unused(options, greedy, sample)
    return options | {name: True for name, given in (("greedy", greedy), ("sample", sample)) if given}


def _refuse_unused(options: dict[str, Any], greedy: bool, sample: bool) -> None:
    """Raises UsageError: a flag that has no effect in the strategy that the flags beside it ask for."""
    from atento.config.decoding import FILTERS, DecodingConfig
    from atento.config.effects import unused_options
    from atento.errors import UsageError

    deciding = ("beam", "mbr", "candidates_from", "evidence", "exact", "required_words", *FILTERS)
    named = {name: options[name] for name in deciding if name in options} | ({"beam": 1} if greedy else {})
    drawn = sample or any(name in named for name in FILTERS)
    if not (greedy or drawn or named.keys() & {"beam", "mbr", "exact"}):
        return  # the model's own strategy: it is looked at when the model is loaded
    if "required_words" in named:
        named["required_words"] = tuple(named["required_words"])
    strategy = DecodingConfig(**named | {"sample": drawn})
    for name, why in unused_options(strategy, {*options, *(["sample"] if sample else [])}, partial=True):
        raise UsageError(f"--{name.replace('_', '-')} has no effect: {why}")
