"""`atento fill`: the masks of each line filled."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from atento.base.errors import UsageError
from atento.base.terminal import write
from atento_cli.cluster_option import with_cluster
from atento_cli.explain_option import ExplainOptions
from atento_cli.lines import one_line
from atento_cli.options import ModelArgument, with_options

if TYPE_CHECKING:
    from atento.model import Model
    from atento.tasks.mask_filling import Candidate


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("fill", epilog="Example:  echo 'O gato está <mask> no tapete.' | atento fill MODEL")(with_cluster(fill))


@with_options(file="One text a line, with the mask of the model, or <extra_id_0> for T5; - is standard input.")
def fill(
    model: ModelArgument,
    shared: ExplainOptions,
    top: Annotated[
        int | None,
        typer.Option(min=1, max=1000, metavar="N", help="Print the N best tokens with probabilities, not the text."),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, metavar="N", help="Fill all masks at once and refine them in N passes (mask-predict)."
        ),
    ] = None,
) -> None:
    """Print each line with its masks filled; an empty line stays empty.

    With --json, print the tokens, the probability and the text of each candidate.
    """
    if iterations is not None and top is not None:
        raise UsageError("--iterations gives one candidate: it excludes --top")
    if shared.explains("fill", model, str, excluded={"--top": top, "--iterations": iterations}):
        return
    shared.answer(
        "fill",
        model,
        lambda loaded, lines, *_: _show(loaded, lines, top, iterations, shared.as_json),
        ready=lambda loaded: loaded.fill([]),
        model_check=_reason,
    )


def _reason(loaded: "Model", line: str) -> str | None:
    """Why the model cannot fill a line; None if it can."""
    from atento.tasks.mask_filling import why_not_filled

    return why_not_filled(loaded, line)


def _show(loaded: "Model", lines: list[str], top: int | None, iterations: int | None, as_json: bool) -> None:
    n_best = top or (5 if as_json else 1)
    filled = iter(loaded.fill([line for line in lines if line.strip()], top=n_best, iterations=iterations))
    for line in lines:
        candidates: list[Candidate] = next(filled) if line.strip() else []
        if as_json:
            names = ("token", "probability", "text")
            values = [{name: getattr(candidate, name) for name in names} for candidate in candidates]
            write(json.dumps({"text": line, "candidates": values}, ensure_ascii=False) + "\n")
        elif top is None:
            write("".join(one_line(candidate.text) for candidate in candidates[:1]) + "\n")
        else:
            pairs = (f"{one_line(candidate.token)} {candidate.probability:.4f}" for candidate in candidates)
            write("\t".join(pairs) + "\n")
