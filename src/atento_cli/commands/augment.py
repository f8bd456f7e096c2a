"""`atento augment`: more training pairs from texts of the target side alone, by a model of the other direction."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import DataError
from atento.base.terminal import echo, write
from atento_cli.cluster_option import with_cluster
from atento_cli.cluster_run import Launch
from atento_cli.commands.text_commands import SourceLanguage, TargetLanguage
from atento_cli.completion import models
from atento_cli.decoding_options import with_decoding
from atento_cli.line_work import Cluster, Work
from atento_cli.options import ModelOptions, Overrides, RecipeArgument, progress, recipe_of, with_options

if TYPE_CHECKING:
    from atento.model import Model
    from atento_cli.corpus.augmented_data import Record


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    example = "Example:  atento augment en-pt.yaml --monolingual more.pt --reverse runs/pt-en --out more"
    app.command("augment", epilog=example)(with_decoding(with_cluster(augment_recipe, "local")))


@with_options()
def augment_recipe(
    recipe: RecipeArgument,
    file: Annotated[str, typer.Option("--monolingual", metavar="FILE", help="Texts of the target side, one a line.")],
    model: Annotated[
        str, typer.Option("--reverse", metavar="MODEL", help="Translates from target to source.", autocompletion=models)
    ],
    decoding: dict[str, Any],
    shared: ModelOptions,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of all that is made; the same command goes on where it was."),
    ] = Path("augmented"),
    overrides: Overrides = None,
    tag: Annotated[
        str, typer.Option(metavar="TOKEN", help="Token in front of synthetic sources; '' for none.")
    ] = "<back-translated>",
    min_score: Annotated[
        float, typer.Option(metavar="NATS", max=0, help="The least log-probability of a source, a token.")
    ] = -3.0,
    max_ratio: Annotated[
        float, typer.Option(metavar="R", min=1, help="The most characters of a side for each of the other.")
    ] = 3.0,
    share: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.01, max=0.99, help="Share in an update; by size, at most half, if not given."),
    ] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    cluster: Launch | None = None,
) -> None:
    """Translate texts of the target side back, and write these pairs with a recipe that trains on them too.

    In --out: synthetic.jsonl, the pairs that are kept, and recipe.yaml, in which `data.mixing` joins them with the real
    ones. With other limits, --tag or --share, nothing is translated again. Decoding is that of --reverse.
    """
    from atento.data.files.source_lines import open_binary
    from atento_cli.corpus import augmented_data as data

    assert cluster is not None and out is None, "the folder is the cluster's"
    loaded = recipe_of(recipe, overrides).one_task("atento augment")
    real = data.real_pairs(loaded, tag)
    data.check_finished(model)
    if file != "-" and "://" not in file:  # others can be read once, or only from afar
        with open_binary(Path(file), file, streamed=True) as stream:
            if not any(line.strip() for line in stream):
                raise DataError(f"--monolingual {file} holds no text")
    shown = {name: getattr(shared, name) for name in ("device", "precision", "engine", "seed", "threads")}
    languages = {"source_language": source_language, "target_language": target_language}
    # each worker calls `augment` with these
    cluster.command, cluster.options = "augment", {"model": model, "file": file, "decoding": decoding, **shown}
    cluster.options |= {**languages, "pairs": real.probes()}
    augment(cluster, **cluster.options)
    options = data.Augmentation(tag, min_score, max_ratio, share)
    report = data.write_augmented(loaded, real, _records(cluster.folder), cluster.folder, options)
    if shared.as_json:
        echo(json.dumps(report))
        return
    what = f"{report['pairs']:,} pairs, {report['share']:.2f} of an update"
    echo(f"{what}; left out: {data.left_out(report) or 'none'}")
    progress(f"to train with them: atento train {cluster.folder / data.RECIPE}")


def _records(folder: Path) -> "Iterator[Record]":
    """The texts with their translations, from the parts."""
    from atento.base.limits import open_plain
    from atento_cli.scale.collect_output import collectable

    finished = collectable(folder)
    for block in finished.blocks:
        with open_plain(finished.part_path(block.number)) as file:
            yield from map(json.loads, file)


def augment(
    cluster: Cluster, *, pairs: Sequence[Sequence[str]], decoding: dict[str, Any], seed: int, **options: Any
) -> None:
    """Hand over the work, or do it in a worker: each text with its translations, as a line of JSON."""
    languages = {name: options[name] for name in ("source_language", "target_language") if options[name] is not None}
    asked = {**decoding, **languages, "seed": seed}

    def ready(loaded: "Model") -> None:
        from atento_cli.corpus.augmented_data import check_direction

        loaded.translations([], **asked)  # wrong options are refused before the first block
        if not languages:
            check_direction(loaded, pairs)

    def answer(loaded: "Model", lines: list[str], before: int, _: list[str] | None) -> None:
        for line, outputs in zip(lines, loaded.translations(lines, row=before, **asked)):
            found = [(one.text, one.hypothesis) for one in outputs]
            sources = [(text, one.log_prob / max(1, len(one.token_scores)), one.finished) for text, one in found]
            write(json.dumps([line, sources], ensure_ascii=False) + "\n")

    cluster.run(Work(answer, ready, ending=".jsonl"))
