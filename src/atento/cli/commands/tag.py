"""`atento tag`: the entities of each line, or a tag for each of its words."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from atento.cli.cluster_option import with_cluster
from atento.cli.explain_option import ExplainOptions
from atento.cli.options import ModelArgument, with_options
from atento.errors import UsageError
from atento.terminal import write

if TYPE_CHECKING:
    from atento.model import Model
    from atento.tasks.tagging import Entity


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("tag", epilog="Example:  atento tag MODEL news.txt --json")(with_cluster(tag))


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
) -> None:
    """Print each line with its entities as text/LABEL, those of several words as [two words]/LABEL.

    A model of plain tags, such as parts of speech, tags every word. An empty line stays empty. With --json, print one
    object a line, with characters and probabilities.
    """
    if conll and shared.as_json:
        raise UsageError("--conll and --json exclude each other")
    excluded = {"--words": words, "--conll": conll, "--constrained": constrained}
    if shared.explains("tag", model, str, excluded=excluded):
        return
    show = _show_columns if conll else _show_json if shared.as_json else _show_text
    shared.answer(
        "tag",
        model,
        lambda loaded, lines, *_: show(_tagged(loaded, lines, words, constrained, each_word=conll)),
        ready=lambda loaded: loaded.tag([], constrained=constrained),
        per_line=not conll,
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
