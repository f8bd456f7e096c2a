"""Options that all commands with a network share, the context in which such a command runs, and its warnings."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer
from typer.models import ArgumentInfo

from atento.base.errors import AtentoWarning, LongTextWarning, ReadingNotice, ScoreWarning, UsageError, counted
from atento.base.start_up import without_collections
from atento.base.terminal import echo
from atento_cli.completion import models, overrides, recipes, words

if TYPE_CHECKING:
    from atento.config.reading.loading import LoadedRecipe
    from atento.model import Model
Reading = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="How a table is read: format, delimiter, encoding, sheet; repeatable."),
]


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each `AtentoWarning` as a line `warning: ...` inside this context; other warnings are unchanged.

    The first warning about long texts is printed at once. If the input is read in windows, later ones are added up and
    printed as one line at the end. How a file is read is said once.
    """
    long: list[LongTextWarning] = []
    said: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if not isinstance(message, AtentoWarning):
            default_show(message, *where, **more)
            return
        if isinstance(message, ReadingNotice):
            if str(message) not in said:
                echo(str(message), err=True)
            said.add(str(message))
            return
        if isinstance(message, LongTextWarning):
            long.append(message)
        if not isinstance(message, LongTextWarning) or len(long) == 1:
            echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        default_show = warnings.showwarning
        warnings.simplefilter("always", AtentoWarning)  # Python shows an equal warning once a place otherwise
        warnings.simplefilter("once", ScoreWarning)  # of each validation
        warnings.showwarning = show
        yield
    if len(long) > 1:
        texts, longest = sum(warning.long for warning in long), max(warning.longest for warning in long)
        echo(
            f"warning: in all {counted(texts, 'text')} of the input were longer than the {long[0].trained:,} tokens "
            f"that the model was trained on (the longest had {longest:,})",
            err=True,
        )


SEED_LIMIT = 2**63


def check_seed(seed: int | None) -> int | None:
    """Check that a seed is valid for every random generator; None if it was not given.
    Raises UsageError: the seed is below 0, or 2**63 or more.
    """
    if seed is not None and not 0 <= seed < SEED_LIMIT:
        raise UsageError(f"--seed must lie between 0 and {SEED_LIMIT - 1}: got {seed}")
    return seed


Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", autocompletion=words("auto", "cpu", "cuda"))]
Precision = Annotated[
    str,
    typer.Option(
        help="float32, bfloat16, int8 (on the CPU) or float64.",
        autocompletion=words("float32", "bfloat16", "int8", "float64"),
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto, torch or onnx: what runs small networks on the CPU in float32.",
        autocompletion=words("auto", "torch", "onnx"),
    ),
]
Seed = Annotated[int, typer.Option(metavar="SEED", callback=check_seed, help="Random seed, 0 or more.")]
TrainingPrecision = Annotated[
    str | None,
    typer.Option(
        help="auto, float32, bfloat16 or float16.", autocompletion=words("auto", "float32", "bfloat16", "float16")
    ),
]
TrainingSeed = Annotated[
    int | None, typer.Option(metavar="SEED", callback=check_seed, help="Random seed; the recipe's if not given.")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Number of CPU threads; all cores if not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, a model folder, a model that comes with Atento or a hub name.",
        autocompletion=models,
    ),
]

Head = Annotated[str | None, typer.Option(metavar="NAME", help="One of several heads; else the only one that fits.")]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A YAML file, - for standard input, or a shipped recipe's name.", autocompletion=recipes
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key=value",
        help="Overrides, such as training.steps=1000; ~key restores the default.",
        autocompletion=overrides,
    ),
]


def check_order(model: str, *files: str) -> None:
    """Check that the model comes before the files it reads.
    Raises UsageError: the first argument is a file and a later one is a folder.
    """
    folder = next((name for name in files if Path(name).is_dir()), None)
    if folder is not None and Path(model).is_file():
        raise UsageError(f"the first argument must be the model, followed by its input: got {model} before {folder}")


@contextmanager
def running(seed: int, threads: int | None) -> Iterator[None]:
    """Set the random seed and the number of threads."""
    with without_collections():
        import torch

        from atento.base.precision import threads as thread_scope

    torch.manual_seed(seed)
    with thread_scope(threads):
        yield


@dataclass(frozen=True)
class ModelOptions:
    """The options of commands that load a model, of which `with_options` makes flags."""

    device: Device = "auto"
    precision: Precision = "float32"
    engine: EngineOption = "auto"
    seed: Seed = 1
    threads: Threads = None
    as_json: AsJson = False

    @contextmanager
    def loaded(self, model: str) -> "Iterator[Model]":
        """The model, in the context of `running`."""
        with running(self.seed, self.threads):
            with without_collections():
                from atento.inference.choose import pack_large
                from atento.model import load  # with torch, which the process that hands out blocks does not need

                loaded = load(
                    model, self.device, self.precision, engine=cast(Literal["auto", "torch", "onnx"], self.engine)
                )
            if self.engine != "onnx":  # a large one is then run by PyTorch, without a second copy of its weights
                pack_large(loaded.network)  # nobody asks for them in a command
            yield loaded


def with_options(**texts: str | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the parameter of a command that is a dataclass of options becomes the fields of that.

    Arguments stand in its place, and flags behind those of the command, the fields of a class before those of its base.

    Args:
        texts: field -> its help in place of that of the class; None: the command has no such flag.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command).parameters.values())
        (place,) = (n for n, parameter in enumerate(parameters) if is_dataclass(parameter.annotation))
        shared = parameters.pop(place)
        fields = [
            _parameter(options, name, texts.get(name))
            for options in shared.annotation.__mro__[:-1]  # the class, then its bases; without `object`
            for name in options.__annotations__
            if name not in texts or texts[name] is not None
        ]
        arguments = [field for field in fields if isinstance(get_args(field.annotation)[-1], ArgumentInfo)]

        def run(**values: Any) -> None:
            given = {field.name: values.pop(field.name) for field in fields if field.name in values}
            command(**values, **{shared.name: shared.annotation(**given)})

        parameters[place:place] = arguments
        return with_signature(command, run, [*parameters, *(field for field in fields if field not in arguments)])

    return decorate


def _parameter(options: type, name: str, text: str | None) -> inspect.Parameter:
    """The parameter of a field of a class of options, with that text as its help if it is not None."""
    kind, default = options.__annotations__[name], getattr(options, name)
    if text is not None:
        kind = Annotated[get_args(kind)[0], copy(get_args(kind)[1])]
        get_args(kind)[1].help = text
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)


def with_signature(
    command: Callable[..., None], run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return `run` with the name and the text of a command, and the parameters of which Typer makes flags."""
    functools.update_wrapper(run, command)
    vars(run).pop("__wrapped__")
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def key_and_value(text: str) -> tuple[str, str]:
    """The key and the value of an item of `--reading`."""
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise UsageError(f"--reading has the form KEY=VALUE: got {text!r}")
    return key, value


def progress(text: str) -> None:
    """Print a line to standard error."""
    echo(text, err=True)


def warn(warnings: Iterable[str]) -> None:
    """Print each warning as a line to standard error."""
    for warning in warnings:
        progress(f"warning: {warning}")


def recipe_of(recipe: str, overrides: list[str] | None) -> "LoadedRecipe":
    """Read a recipe with its overrides, and print its warnings."""
    from atento.config.reading.loading import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    warn(loaded.warnings)
    return loaded
