"""`atento data`: what is in the data, examples as the model sees them, and text to fetch."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atento.cli.options import AsJson, progress

data_app = typer.Typer(no_args_is_help=True, help="Look at data before training on it, or fetch some.")
RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", help="Changes to the recipe.")]


@data_app.command("stats", epilog="Example:  atento data stats my.yaml")
def stats(recipe: RecipeArgument, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Pairs, words and characters of every split, repeated pairs, validation pairs that stand in the training data."""
    from atento.config.loading import load_recipe
    from atento.tasks.prepare import read_data

    loaded = load_recipe(recipe, overrides or [])
    data = read_data(loaded.recipe, loaded.folder, progress)
    records = []
    for name, pairs in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        if pairs is None:
            continue
        record: dict[str, object] = {"split": name, "pairs": len(pairs.source)}
        record["repeated"] = len(pairs.source) - len(set(zip(pairs.source, pairs.target)))
        for side, texts in (("source", pairs.source), ("target", pairs.target)):
            words = [len(text.split()) for text in texts]
            record[f"{side}_words"] = sum(words)
            record[f"{side}_longest"] = max(words, default=0)
            record[f"{side}_characters"] = sum(map(len, texts))
        records.append(record)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    for record in records:
        typer.echo(
            "\t".join(f"{key} {value:,}" if isinstance(value, int) else str(value) for key, value in record.items())
        )


@data_app.command("peek", epilog="Example:  atento data peek my.yaml --count 3")
def peek(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=1, help="How many examples.")] = 10,
    as_json: AsJson = False,
) -> None:
    """The first examples of the first batch, exactly as the model sees them: tokens with their ids."""
    from dataclasses import replace

    from atento.config.loading import load_recipe
    from atento.tasks.prepare import batches_for, network_for, read_data, tokenizer_for

    loaded = load_recipe(recipe, overrides or [])
    data = read_data(loaded.recipe, loaded.folder, progress)
    texts = (text for pair in zip(data.train.source, data.train.target) for text in pair)
    tokenizer = tokenizer_for(loaded.recipe, loaded.home, texts, progress)
    network = network_for(loaded.recipe, tokenizer)
    once = replace(loaded.recipe, training=replace(loaded.recipe.training, subword_dropout=0.0))
    batches = batches_for(once, network, tokenizer, data.train, progress)
    batch = batches.batch(batches.rows(0)[0][:count])
    for i in range(len(batch.source)):
        sides = {
            "source": batch.source[i][batch.source_padding_mask[i]].tolist(),
            "target_input": batch.target_input[i][batch.labels[i] >= 0].tolist(),
            "labels": batch.labels[i][batch.labels[i] >= 0].tolist(),
        }
        if as_json:
            shown = {name: {"ids": ids, "tokens": tokenizer.tokens(ids)} for name, ids in sides.items()}
            typer.echo(json.dumps(shown, ensure_ascii=False))
            continue
        for name, ids in sides.items():
            typer.echo(
                f"{name:>12}  " + " ".join(f"{token}:{number}" for token, number in zip(tokenizer.tokens(ids), ids))
            )
        typer.echo("")


@data_app.command("fetch", epilog="Example:  atento data fetch libreoffice-help --to pt-BR --held-out 1000 --out text")
def fetch(
    what: Annotated[
        str, typer.Argument(help="libreoffice-help, or catalogues (of the programs installed here).")
    ] = "libreoffice-help",
    to: Annotated[
        list[str] | None, typer.Option(metavar="LANGUAGE", help="pt-BR, es, fr, de; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where LANGUAGE.tsv is written.")] = Path("text"),
    held_out: Annotated[int, typer.Option(min=0, help="So many pairs each to LANGUAGE.valid.tsv and .test.tsv.")] = 0,
) -> None:
    """Sentence pairs out of what Debian packages ship: help pages, or translation catalogues. Needs apt, no root."""
    from atento.data import fetch as fetching
    from atento.errors import UsageError, nearest

    kinds = ["libreoffice-help", "catalogues"]
    if what not in kinds:
        raise UsageError(f"unknown text {what!r}{nearest(what, kinds)}")
    languages = to or ["pt-BR"]
    if what == "libreoffice-help":
        written = fetching.fetch_libreoffice(languages, out, held_out=held_out)
    else:
        written = [fetching.fetch_catalogues(language, out, held_out=held_out) for language in languages]
    for result in written:
        typer.echo(str(result))
