"""`atento data`: statistics of data, examples as the model reads them, and text to fetch."""

import json
import sys
from contextlib import redirect_stdout
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from atento.base.errors import UsageError, nearest
from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.cluster_option import check_cluster
from atento_cli.commands.clean import EPILOG as CLEAN
from atento_cli.commands.clean import clean
from atento_cli.commands.duplicates import deduplicate, overlap
from atento_cli.commands.mine import EPILOG, mine
from atento_cli.options import AsJson, Overrides, RecipeArgument, progress, recipe_of
from atento_cli.output_paths import output_folder

data_app = typer.Typer(no_args_is_help=True, help="Inspect data before training, or fetch sentence pairs.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = "Example:  atento data deduplicate train.en unique.en --near 0.8"
    data_app.command("deduplicate", epilog=example)(deduplicate)
    data_app.command("overlap", epilog="Example:  atento data overlap train.pt valid.pt --near 0.8")(overlap)
    data_app.command("mine", epilog=EPILOG)(mine)
    data_app.command("clean", epilog=CLEAN)(clean)
    app.add_typer(data_app, name="data")


@data_app.command("stats", epilog="Example:  atento data stats my.yaml")
def stats(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens/--no-tokens", help="Also count tokens; trains the tokenizer of the recipe if needed."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print statistics of each split: lengths, length ratios, suspicious and too long records, and columns."""
    from atento_cli.commands.print_statistics import measured, text_lines

    records = measured(recipe_of(recipe, overrides).one_task("atento data stats"), tokens=tokens)
    if as_json:
        echo(json.dumps(records, ensure_ascii=False))
        return
    for record in records:
        for line in text_lines(record):
            echo(line)


@data_app.command("peek", epilog="Example:  atento data peek my.yaml --count 3")
def peek(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=1, help="Number of examples.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print the first examples exactly as the model reads them: tokens with their ids."""
    from dataclasses import replace

    from atento.config.tables.head_kinds import HEAD_KINDS
    from atento.runs.prepare import tokenizer_and_network, training_batches
    from atento.runs.token_data import data_of

    loaded = recipe_of(recipe, overrides).one_task("atento data peek")
    data = data_of(loaded, progress)
    tokenizer, network = tokenizer_and_network(loaded, data.train, progress)
    once = replace(loaded.recipe, training=replace(loaded.recipe.training, subword_dropout=0.0))
    batches = training_batches(once, network, tokenizer, data.train, progress)
    classes = {head.name: head.labels for head in network.heads if HEAD_KINDS[head.kind] in ("class", "tag", "crf")}
    classes["segment_ids"] = ()  # numbers, and no pieces of the vocabulary
    spans = {head.name for head in network.heads if HEAD_KINDS[head.kind] == "span"}
    parts = (part.batch for part in batches.parts(0))
    examples = ((batch, row, example) for batch in parts for row, example in enumerate(batch.examples()))
    for batch, row, example in islice(examples, count):
        single = next(iter(batch.labels)) if len(batch.labels) == 1 else None
        heads = {name: single if name == "labels" else name for name in example}
        named: dict[str, list[str]] = {}
        for name, ids in ((name, ids) for name, ids in example.items() if heads[name] not in spans):
            labels = classes.get(str(heads[name]))
            if labels is None:
                named[name] = (tokenizer.target if name in ("target_ids", "labels") else tokenizer).tokens(ids)
            else:  # the number itself where a class has no name
                named[name] = [labels[number] if number < len(labels) else str(number) for number in ids]
        for name in example.keys() - named.keys():  # the positions of an answer's first and last token
            read = example.get("ids", example.get("source_ids", []))
            example[name] = [*example[name], int(batch.extras["end"][row])]
            named[name] = tokenizer.tokens(read[position] for position in example[name])
        if as_json:
            record = {name: {"ids": ids, "tokens": named[name]} for name, ids in example.items()}
            echo(json.dumps(record, ensure_ascii=False))
            continue
        for name, ids in example.items():
            pairs = zip(named[name], ids)
            shown = (text if name == "segment_ids" else f"{text}:{number}" for text, number in pairs)
            echo(f"{name:>12}  {' '.join(shown)}")
        echo("")


@data_app.command("tokenize", epilog="Example:  atento data tokenize lm.yaml")
def tokenize(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    processes: Annotated[
        int | None, typer.Option(min=0, help="Number of processes that encode text. [default: one for each CPU]")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Encode by processes here (local) or on a Ray cluster: ray, or ray://HOST:PORT.",
            autocompletion=completion.words("local", "ray", "ray://"),
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Make the store again, if it was made from something else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Encode the training texts into the memory-mapped store that `train` reads; continues a stopped command."""
    from atento.runs.token_data import make_store
    from atento_cli.scale.ray_texts import encoding_tasks

    workers = None
    if check_cluster(cluster) not in (None, "local"):
        if processes is not None:
            raise UsageError("--processes are those of this machine: it excludes --cluster ray")
        workers = partial(encoding_tasks, str(cluster))
    loaded = recipe_of(recipe, overrides).one_task("atento data tokenize")
    with redirect_stdout(sys.stderr):  # Ray prints to standard output
        store = make_store(loaded, progress, processes=processes, force=force, workers=workers).store
    record = {
        "folder": str(store.folder),
        "texts": len(store),
        "tokens": store.tokens,
        "fingerprint": store.fingerprint,
    }
    if as_json:
        echo(json.dumps(record, ensure_ascii=False))
    else:
        echo(f"{store.folder}: {len(store):,} texts, {store.tokens:,} tokens of {store.dtype.itemsize * 8} bits")


@data_app.command("fetch", epilog="Example:  atento data fetch libreoffice-help --to pt-BR --held-out 1000 --out text")
def fetch(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="libreoffice-help, or catalogues (of the installed programs).",
            autocompletion=completion.words("libreoffice-help", "catalogues"),
        ),
    ] = "libreoffice-help",
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="LANGUAGE", help="Target language: pt-BR, es, fr or de; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Output folder, for LANGUAGE.tsv.")] = Path("text"),
    held_out: Annotated[
        int, typer.Option(min=0, help="Number of pairs for LANGUAGE.valid.tsv, and as many for LANGUAGE.test.tsv.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Extract sentence pairs from Debian packages: help pages or translation catalogues. Needs apt, but not root."""
    from atento_cli.corpus import fetch as fetching

    kinds = ["libreoffice-help", "catalogues"]
    if what not in kinds:
        raise UsageError(f"unknown text {what!r}{nearest(what, kinds)}")
    output_folder(out)
    languages = to or ["pt-BR"]
    if what == "libreoffice-help":
        results = fetching.fetch_libreoffice(languages, out, held_out=held_out)
    else:
        for language in languages:  # all of them, before the first is written
            fetching.catalogue_folder(language)
        results = [fetching.fetch_catalogues(language, out, held_out=held_out) for language in languages]
    for result in results:
        pairs = {str(path): count for path, count in result.files.items()}
        record = {"language": result.language, "pairs": pairs, "left_out": result.left_out}
        echo(json.dumps(record, ensure_ascii=False) if as_json else str(result))
