"""The `atento` application: its commands, and the message and exit status of every failure."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer

from atento.base import terminal
from atento.base.errors import AtentoError
from atento.base.start_up import without_collections
from atento.base.terminal import echo
from atento.base.version import __version__
from atento.config.tables.verbs import VERBS
from atento_cli.messages import CommandLineError, sentence
from atento_cli.options import warnings_as_lines

# Each command and the module that registers it, in `commands/` or of another package, in the order of the help.
COMMANDS = {
    "train": "train",
    "launch": "train",
    "plan": "plan",
    "baseline": "baseline",
    "augment": "augment",
    "search": "search",
    **{verb: spec.module or verb for verb, spec in VERBS.items()},
    "index": "index",
    "find": "index",
    "suspect": "suspect",
    "suggest": "suspect",
    "evaluate": "evaluate",
    "glue": "glue",
    "perplexity": "perplexity",
    "collect": "collect",
    "score": "score",
    "attend": "attend",
    "runs": "runs",
    "average": "runs",
    "convert": "convert",
    "serve": "atento_serve.command",
    "studio": "atento_serve.command",
    "notes": "atento_lab.notes.command",
    "doctor": "doctor",
    "bench": "bench",
    "demo": "demo",
    "tokenizer": "tokenizer",
    "recipes": "recipes",
    "config": "config",
    "data": "data",
}


def command_function(command: str) -> Callable[..., None]:
    """The function of a command of `COMMANDS`, without the flags that decorators add to it."""
    function: Callable[..., None] = getattr(_module(command), command)
    return function


def _module(command: str) -> ModuleType:
    name = COMMANDS[command]
    return import_module(name if "." in name else f"atento_cli.commands.{name}")


def application(command: str | None = None) -> typer.Typer:
    """The application with the module of one command, which starts faster, or with all of them.

    Args:
        command: its name; None, or a name that does not exist: all, for the help, the completion and the message.
    """
    app = typer.Typer(
        name="atento",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Train attention models on your own text, decode with them, measure them and inspect them.",
        epilog="Example:  atento demo",
    )
    app.callback()(options)
    for module in dict.fromkeys(map(_module, [command] if command in COMMANDS else COMMANDS)):
        module.register(app)
    return app


def _version(requested: bool) -> None:
    if requested:
        echo(f"atento {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Options of every command, whose warnings are lines of standard error."""
    context.with_resource(warnings_as_lines())


def main() -> None:
    """Run the command line (`atento_cli.start` is the entry point of the script)."""
    # standard streams that were closed before the start (`<&-`): empty input, output that fails on writing
    for name, mode, way in (("stdin", "r", os.O_RDWR), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_RDWR)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, way)  # gets the lowest free number, which is that of this stream
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", closefd=False))
    terminal.show_log()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends at once with status 130; training handles it itself
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    try:
        with without_collections():
            app = application(_command())
        status = app(prog_name="atento", standalone_mode=False)
        sys.stdout.flush()
        if status:  # from `typer.Exit`; commands return None
            sys.exit(status)
    except AtentoError as error:
        if debug:
            echo(traceback.format_exc(), err=True, nl=False)
        _tell(f"{'' if error.exit_status == 75 else 'error: '}{error}")
        _leave(error.exit_status)
    except CommandLineError as error:
        if debug:
            echo(traceback.format_exc(), err=True, nl=False)
        text = sentence(error)
        _tell(text if type(error).__name__ == "NoArgsIsHelpError" else f"error: {text}")
        _leave(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader closed the pipe
        _leave(0)
    except SystemExit as end:  # Typer turns a closed pipe into status 1
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(0)
    except MemoryError:
        _fail("out of memory; lower `training.batch_tokens` or --batch-tokens")
    except OSError as error:
        if debug:
            raise
        _fail(f"{_place_of(error)}: {error.strerror or error}")
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError) and not (error.name or "atento").startswith("atento"):
            _fail(f"the package {error.name} is not installed: pip install {error.name}, or install Atento once more")
        _fail(f"{type(error).__name__}: {error} (a bug in Atento; --debug shows the traceback)")


def _command() -> str | None:
    """The command of this call: the first argument; None for an option of `atento` itself, or while completing."""
    completing = "_ATENTO_COMPLETE" in os.environ
    return None if completing or len(sys.argv) < 2 else sys.argv[1]


def _place_of(error: OSError) -> str:
    """The file that the system failed at, or standard output if a write to it failed; else the function."""
    if error.filename:
        return str(error.filename)
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    if any(frame.filename == terminal.__file__ or "stdout" in (frame.line or "") for frame in frames):
        return "standard output"
    return f"a file could not be read or written ({frames[-1].name}; --debug shows where)"


def _fail(text: str) -> None:
    _tell(f"error: {text}")
    _leave(1)


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error is closed; the exit status remains
        echo(text, err=True)


def _leave(status: int) -> None:
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
