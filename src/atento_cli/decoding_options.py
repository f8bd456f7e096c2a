"""The decoding flags, which all commands that write share."""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from atento.base.errors import RecipeError, UsageError
from atento.config.literals import Rule, rules_of
from atento.config.sections.decoding import FILTERS, DecodingConfig
from atento.config.sections.decoding_option import PANELS, Option, options_of
from atento_cli.completion import utilities, words
from atento_cli.options import with_signature

_GREEDY = Option("Search", "The most probable token at every step.")  # a beam of 1


def flags_of(config: type) -> dict[str, object]:
    """The options of decoding -> the types of their flags, in the order of the help; one not set has the model's value.

    Args:
        config: the class whose fields they are.
    """
    options = {"greedy": _GREEDY} | options_of(config)
    shown = [name for name, option in options.items() if option.panel]
    shown.sort(key=lambda name: (PANELS.index(options[name].panel), options[name].rank))
    kinds = {"greedy": bool} | get_type_hints(config)
    return {name: _flag(name, kinds[name], options[name], rules_of(config).get(name)) for name in shown}


def _flag(name: str, kind: Any, option: Option, rule: object) -> object:
    """The type of the flag of an option of that type."""
    about: dict[str, Any] = {"help": option.help, "rich_help_panel": option.panel}
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        # the contrary of these is another strategy, not a flag
        pair = flag if name in ("greedy", "sample") else f"{flag}/--no-{flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(pair, **about)]
    if get_origin(kind) is Literal:
        return Annotated[str | None, typer.Option(metavar="WORD", autocompletion=words(*get_args(kind)), **about)]
    if get_origin(kind) is tuple:
        about["help"] += "; may be repeated."
        return Annotated[list[str] | None, typer.Option(metavar=option.metavar, **about)]
    if isinstance(rule, Rule):
        return Annotated[kind | None, typer.Option(min=rule.least, max=rule.most, **about)]
    offered = utilities if name == "mbr" else None
    return Annotated[str | None, typer.Option(metavar=option.metavar, autocompletion=offered, **about)]


_FLAGS = flags_of(DecodingConfig)


def with_decoding(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Return the command with the decoding flags, except `without`; its parameter `decoding` is a dict of those set."""
    parameters = [
        parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "decoding"
    ]
    behind = (n for n, each in enumerate(parameters) if each.name == "skip_bad" or each.kind is each.KEYWORD_ONLY)
    first = next(behind, len(parameters))
    flags = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for name, kind in _FLAGS.items()
        if name not in without
    ]

    def run(**options: Any) -> None:
        try:
            command(decoding=_chosen({name: options.pop(name) for name in _FLAGS if name not in without}), **options)
        except (RecipeError, UsageError) as error:  # about the options of these flags
            message = _by_flag(str(error))
            if message == str(error):
                raise
            raise UsageError(message) from None

    return with_signature(command, run, [*parameters[:first], *flags, *parameters[first:]])


def _by_flag(message: str) -> str:
    """Return the message with flags instead of options."""

    def flag(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')}" if match[1] in _FLAGS else match[0]

    return re.sub(r"`(?:decoding\.)?(\w+)`", flag, message.removeprefix("options: "))


def _chosen(flags: dict[str, object]) -> dict[str, object]:
    """Return the flags that were set, as options of a model's methods.
    Raises UsageError: flags that exclude each other.
    """
    greedy, sample = bool(flags.pop("greedy")), bool(flags.pop("sample"))
    options = {name: value for name, value in flags.items() if value is not None and value != []}
    draws = ["--sample"] * sample + [f"--{name.replace('_', '-')}" for name in FILTERS if name in options]
    if greedy and options.get("beam", 1) != 1:
        raise UsageError(f"--greedy and --beam {options['beam']} exclude each other")
    for flag, is_set in (
        ("--greedy", greedy),
        ("--beam", "beam" in options),
        ("--length-penalty", "length_penalty" in options),
    ):
        # `mbr` may search its candidates and draw the evidence
        if is_set and draws and not (flag != "--greedy" and "mbr" in options):
            raise UsageError(f"{flag} and {draws[0]} exclude each other: one searches, the other samples")
    for name in ("mbr", "exact"):
        if greedy and options.get(name):
            raise UsageError(f"--greedy and --{name} exclude each other")
    if "beam" in options and "mbr" in options:
        raise UsageError("--beam has no effect with --mbr: --candidates-from beam uses a beam as wide as --candidates")
    _refuse_unused(options, greedy, sample)
    return options | {name: True for name, is_set in (("greedy", greedy), ("sample", sample)) if is_set}


def _refuse_unused(options: dict[str, Any], greedy: bool, sample: bool) -> None:
    """Check that each flag has an effect in the strategy of the other flags. Raises UsageError otherwise."""
    from atento.config.reading.unused_options import unused_options

    deciding = ("beam", "mbr", "candidates_from", "evidence", "exact", "required_words", *FILTERS)
    named = {name: options[name] for name in deciding if name in options} | ({"beam": 1} if greedy else {})
    drawn = sample or any(name in named for name in FILTERS)
    if not (greedy or drawn or named.keys() & {"beam", "mbr", "exact"}):
        return  # the model's own strategy: it is checked when the model is loaded
    if "required_words" in named:
        named["required_words"] = tuple(named["required_words"])
    strategy = DecodingConfig(**named | {"sample": drawn})
    for name, why in unused_options(strategy, {*options, *(["sample"] if sample else [])}, partial=True):
        raise UsageError(f"--{name.replace('_', '-')} has no effect: {why}")
