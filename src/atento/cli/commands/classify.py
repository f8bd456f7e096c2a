"""`atento classify`: a label for each line, with its probability."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atento.cli.cluster_option import with_cluster
from atento.cli.explain_option import ExplainOptions
from atento.cli.options import ModelArgument, with_options
from atento.errors import DataError, counted
from atento.terminal import write

if TYPE_CHECKING:
    from atento.model import Model

EPILOG = (
    "Examples:  atento classify MODEL reviews.txt; "
    "a file of any size: atento classify MODEL reviews.txt --cluster local --out parts"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("classify", epilog=EPILOG)(with_cluster(classify))


@with_options()
def classify(
    model: ModelArgument,
    shared: ExplainOptions,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Each line holds two texts with a tab between, for a model of pairs.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Print all labels at least this probable, not the best one; 0.5 for models of several labels.",
        ),
    ] = None,
    abstain: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Print no label where a precision of P, above 0 and below 1, cannot be kept; the model must be "
            "calibrated (atento evaluate --calibrate).",
        ),
    ] = None,
) -> None:
    """Print the most probable label of each line and its probability; an empty line stays empty.

    A model of several labels prints all those above the threshold, separated by |, and their probabilities. With
    --json, print the probability of every label.
    """
    explained = shared.explains(
        "classify",
        model,
        _pair if pairs else str,
        excluded={"--threshold": threshold, "--abstain": abstain},
        check=_two_texts if pairs else None,
    )
    if explained:
        return
    shared.answer(
        "classify",
        model,
        lambda loaded, lines, *_: _show(loaded, lines, pairs, threshold, abstain, shared.as_json),
        ready=lambda loaded: _check(loaded, threshold, abstain),
        check=_two_texts if pairs else None,
    )


def _check(loaded: "Model", threshold: float | None, abstain: float | None) -> None:
    """Refuse a model that gives no labels, or whose precision is not known where it may abstain."""
    from atento.tasks.classification import least_probability

    loaded.classifications([])
    if abstain is not None:
        least_probability(loaded, abstain, threshold)


def _show(
    loaded: "Model", lines: Sequence[str], pairs: bool, threshold: float | None, abstain: float | None, as_json: bool
) -> None:
    from atento.tasks.classification import above, gives_label_sets, least_probability

    texts = [line for line in lines if line.strip()]
    results = iter(loaded.classifications([_pair(line) for line in texts] if pairs else texts))
    least = 0.0 if abstain is None else least_probability(loaded, abstain)
    several = threshold is not None or gives_label_sets(loaded.network)  # each label by itself, or the best alone
    for line in lines:
        labels = next(results) if line.strip() else []
        if as_json:
            values = [{"name": label.name, "probability": label.probability} for label in labels]
            silent = {} if abstain is None else {"silent": not above(labels, least)}
            write(json.dumps({"text": line, "labels": values, **silent}, ensure_ascii=False) + "\n")
            continue
        printed = above(above(labels, threshold) if several else labels[:1], least)
        names, shares = ([label.name for label in printed], [f"{label.probability:.4f}" for label in printed])
        write(f"{'|'.join(names)}\t{'|'.join(shares)}\n" if printed else "\n")


def _two_texts(line: str, position: str) -> None:
    """Raises DataError: the line has another number of texts than two."""
    texts = line.split("\t")
    if len(texts) != 2:
        raise DataError(f"{position}: --pairs takes two texts with a tab between: got {counted(len(texts), 'text')}")


def _pair(line: str) -> tuple[str, str]:
    """The two texts of a checked line."""
    first, second = line.split("\t")
    return first, second
