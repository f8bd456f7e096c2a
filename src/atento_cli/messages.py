"""Usage errors as one sentence: the option or argument, the rule, and the value got."""

import re
from difflib import get_close_matches
from typing import Any

import typer

from atento.base.errors import nearest
from atento.config.tables.foreign import COMMANDS, FLAGS, our_key

# the base class of Typer's usage errors (Click's class; Typer has its own copy of Click since 0.27)
CommandLineError: type[Exception] = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")


def sentence(error: Exception) -> str:
    """A usage error as one sentence; the help text if that is what the error contains."""
    usage_error: Any = error
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    command = "atento" if context is None else context.command_path
    if kind == "NoArgsIsHelpError":
        return str(usage_error.format_message())
    if kind == "NoSuchOption":
        return _unknown_option(usage_error.option_name, context, command)
    if kind == "MissingParameter":
        meaning = f" ({usage_error.param.help.rstrip('.')})" if getattr(usage_error.param, "help", None) else ""
        return f"`{command}` needs {_name(usage_error.param)}{meaning}: got none; see: {command} --help"
    if kind == "BadOptionUsage":
        needs = "takes no value" if "not take" in usage_error.message else "needs a value: got none"
        return f"{usage_error.option_name} {needs}"
    if kind == "BadParameter" and usage_error.param is not None:
        name, found = usage_error.param.name, usage_error.ctx  # where the value came from, if that is known
        source = getattr(None if found is None else found.get_parameter_source(name), "name", "")
        origin = f" (from {usage_error.param.envvar})" if source == "ENVIRONMENT" else ""
        return f"{_name(usage_error.param)}{origin} {_rule(usage_error)}"
    # click's own words, with or without its guess
    named = re.match(r"No such command ['\"](.*?)['\"]\.(?: Did you mean|$)", usage_error.message)
    if named and context is not None:
        meant = COMMANDS.get(named[1])  # what other tools call it
        return f"unknown command {named[1]!r}{nearest(named[1], list(context.command.commands), meant)}"
    extra = re.match(r"Got unexpected extra argument\S* \((.*)\)", usage_error.message)
    if extra and context is not None:
        return f"`{command}` takes {_takes(context)}: got {extra[1]!r} as well"
    text = str(usage_error.format_message()).rstrip(".")
    return text[:1].lower() + text[1:]


def _unknown_option(name: str, context: typer.Context | None, command: str) -> str:
    params = [] if context is None else context.command.params
    known = [option for param in params for option in param.opts]
    theirs = FLAGS.get(name)
    bare = {option.lstrip("-"): option for option in known}  # dashes make any two options alike
    close = get_close_matches(name.lstrip("-"), bare, n=1, cutoff=0.6)
    close = [theirs] if theirs in known else [bare[option] for option in close]
    key = our_key(name) or elsewhere_key(name)
    if key is not None and any(param.name == "overrides" for param in params) and theirs not in known:
        return f"`{command}` has no option {name}; it is a key of the recipe: {key}=VALUE"
    hint = f"; did you mean {close[0]}?" if close else f"; see: {command} --help"
    return f"`{command}` has no option {name}{hint}"


def elsewhere_key(name: str) -> str | None:
    """Return the dotted key that has the name of an option; None: there is none."""
    from atento.config.tables.renamed_keys import elsewhere  # with the reader of YAML

    found = re.search(r"did you mean ([\w.]+)", elsewhere("", name.removeprefix("--").replace("-", "_")) or "")
    return None if found is None else found[1]


def _rule(error: Any) -> str:
    """The rule that a value violates, and the value; from the validator if it is known, else Typer's message."""
    cause = error.__cause__
    if cause is None or not hasattr(cause, "errors"):
        return f"is wrong: {error.message}"
    first = cause.errors()[0]
    limits = first.get("ctx", {})
    rules = {
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "less_than_equal": f"must be at most {limits.get('le')}",
        "int_parsing": "must be a whole number",
        "float_parsing": "must be a number",
    }
    value = str(first["input"])
    quoted = value if re.fullmatch(r"-?[\d.]+", value) else repr(value)
    return f"{rules.get(first['type'], 'is wrong: ' + first['msg'])}: got {quoted}"


def _name(param: Any) -> str:
    """The longest name of an option, or the name of an argument in the help text."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _takes(context: typer.Context) -> str:
    """The arguments of a command: MODEL [FILE]."""
    words = []
    for param in context.command.params:
        if param.param_type_name == "argument":
            name = f"{_name(param)}{'' if param.nargs == 1 else ' ...'}"
            words.append(name if param.required else f"[{name}]")
    return " ".join(words) or "no arguments"
