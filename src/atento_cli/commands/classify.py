"""`atento classify` and `atento tag`: labels of lines and of their words, with probabilities."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from atento.base.errors import DataError, UsageError, counted
from atento.base.terminal import write
from atento_cli.cluster_option import with_cluster
from atento_cli.explain_option import ExplainOptions
from atento_cli.options import Head, ModelArgument, with_options

if TYPE_CHECKING:
    from atento.model import Model
    from atento.tasks.tagging import Entity

EPILOG = (
    "Examples:  atento classify MODEL reviews.txt; "
    "a file of any size: atento classify MODEL reviews.txt --cluster local --out parts"
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("classify", epilog=EPILOG)(with_cluster(classify))
    app.command("tag", epilog="Example:  atento tag MODEL news.txt --json")(with_cluster(tag))


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
    head: Head = None,
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
        head=head,
    )
    if explained:
        return
    shared.answer(
        "classify",
        model,
        lambda loaded, lines, *_: _show(loaded, lines, pairs, threshold, abstain, shared.as_json),
        ready=lambda loaded: _check(loaded, threshold, abstain),
        check=_two_texts if pairs else None,
        head=head,
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


@with_options()
def tag(
    model: ModelArgument,
    shared: ExplainOptions,
    words: Annotated[
        bool, typer.Option("--words", help="Each line is split into words already, with spaces between them.")
    ] = False,
    conll: Annotated[
        bool, typer.Option("--conll", help="Print a word and its tag a line, and an empty line after each text.")
    ] = False,
    constrained: Annotated[
        bool | None,
        typer.Option(
            "--constrained/--unconstrained",
            help="Only legal sequences of tags, no I-PER behind O, or the most probable tag of each word; by default "
            "the former for models that were trained here.",
        ),
    ] = None,
    head: Head = None,
) -> None:
    """Print each line with its entities as text/LABEL, those of several words as [two words]/LABEL.

    A model of plain tags, such as parts of speech, tags every word. An empty line stays empty. With --json, print one
    object a line, with characters and probabilities.
    """
    if conll and shared.as_json:
        raise UsageError("--conll and --json exclude each other")
    excluded = {"--words": words, "--conll": conll, "--constrained": constrained}
    if shared.explains("tag", model, str, excluded=excluded, head=head):
        return
    show = _show_columns if conll else _show_json if shared.as_json else _show_text
    shared.answer(
        "tag",
        model,
        lambda loaded, lines, *_: show(_tagged(loaded, lines, words, constrained, each_word=conll)),
        ready=lambda loaded: loaded.tag([], constrained=constrained),
        per_line=not conll,
        head=head,
    )


def _tagged(
    loaded: "Model", lines: list[str], words: bool, constrained: bool | None, *, each_word: bool
) -> "Iterator[tuple[str, list[Entity]]]":
    """Each line as the text that was tagged, with its entities, or with each of its words."""
    verb = loaded.tag_words if each_word else loaded.tag
    if words:
        sentences = [line.split() for line in lines]
        return zip([" ".join(sentence) for sentence in sentences], verb(words=sentences, constrained=constrained))
    return zip(lines, verb(lines, constrained=constrained))


def _show_columns(tagged: "Iterator[tuple[str, list[Entity]]]") -> None:
    for _, tokens in tagged:
        write("".join(f"{token.text}\t{token.label}\n" for token in tokens) + "\n")


def _show_json(tagged: "Iterator[tuple[str, list[Entity]]]") -> None:
    for text, entities in tagged:
        record = {"text": text, "entities": [asdict(entity) for entity in entities]}
        write(json.dumps(record, ensure_ascii=False) + "\n")


def _show_text(tagged: "Iterator[tuple[str, list[Entity]]]") -> None:
    for text, entities in tagged:
        parts, end = [], 0
        for entity in entities:
            marked = f"[{entity.text}]" if " " in entity.text else entity.text
            parts += [text[end : entity.start].strip(), f"{marked}/{entity.label}"]
            end = entity.end
        write(" ".join(part for part in [*parts, text[end:].strip()] if part) + "\n")
