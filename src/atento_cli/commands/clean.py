"""`atento data clean`: sentence pairs that pass filters of rules, words and models, and those that do not."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import OptionInfo

from atento.base.errors import DataError, MissingPartError, UsageError, counted, nearest
from atento.base.terminal import echo
from atento_cli.commands.evaluate import columns_given
from atento_cli.commands.mine import check_cells, write_rows
from atento_cli.completion import models
from atento_cli.options import ModelOptions, Reading, key_and_value, progress, with_options
from atento_cli.output_paths import output_file

if TYPE_CHECKING:
    from atento_cli.corpus.pair_evidence import Floats, Pair, Rows

EPILOG = "Example:  atento data clean pairs.tsv --out kept.tsv --dropped dropped.tsv --near 0.9"


def _model(text: str) -> OptionInfo:
    option: OptionInfo = typer.Option(metavar="MODEL", help=text, autocompletion=models)
    return option


@dataclass(frozen=True)
class Cleaning(ModelOptions):
    """The options of the command, but for its files."""

    columns: Annotated[
        str | None, typer.Option(metavar="FIELD=COLUMN,...", help="Columns by number or name: source=0,target=a.pt.")
    ] = None
    reading: Reading = None
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Drop broken lines too, with what is wrong.")] = False
    near: Annotated[
        float | None,
        typer.Option(metavar="SIMILARITY", min=0.05, max=1, help="Also drop near-duplicates, as deduplicate does."),
    ] = None
    max_words: Annotated[int, typer.Option(metavar="N", min=1, help="The most words of a side.")] = 250
    min_score: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="The least probability that a target is right, and whole.")
    ] = 0.5
    without: Annotated[
        list[str] | None, typer.Option(metavar="FILTER", help="Leave out a filter, such as numbers; repeatable.")
    ] = None
    encoder: Annotated[str | None, _model("Compare the sides by a bilingual encoder.")] = None
    forward: Annotated[str | None, _model("Score targets by a translator, source to target.")] = None
    reverse: Annotated[str | None, _model("Score sources by a translator, target to source.")] = None


@with_options()
def clean(
    pairs: Annotated[
        str,
        typer.Argument(
            metavar="PAIRS",
            help="A table (.tsv, .csv, .xlsx, .jsonl, .tmx, .parquet ...) with the columns source and target; without "
            "a header line the first two columns.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="KEPT", help="A .tsv or .jsonl file of source and target. Replaced.")],
    dropped: Annotated[
        Path, typer.Option(metavar="DROPPED", help="A .tsv or .jsonl file of line, reason, source, target. Replaced.")
    ],
    shared: Cleaning,
) -> None:
    """Drop sentence pairs that are no good translations, and say of each why.

    Filters: empty, duplicate, long, ratio, copy, characters, language, numbers, placeholders, tags, misaligned,
    truncated. What the last two know of words and lengths they learn from the file itself; models make them surer.
    A command that was stopped goes on where it was. The pairs must fit into the memory.
    """
    from atento.data.records.reader import fingerprint
    from atento.models.model_hash import model_files
    from atento_cli.corpus.clean_pairs import FILTERS, Filters
    from atento_cli.corpus.pair_evidence import FEWEST

    for path, option in ((out, "--out"), (dropped, "--dropped")):
        output_file(path, (".tsv", ".jsonl"), option)
    if len({os.path.realpath(path) for path in (pairs, out, dropped)}) < 3:
        raise UsageError("PAIRS, --out and --dropped must be three files")
    without = tuple(shared.without or ())
    for name in without:
        if name not in FILTERS:
            raise UsageError(f"--without: unknown filter {name!r}{nearest(name, list(FILTERS))}")
    named = {name: str(model) for name in ("encoder", "forward", "reverse") if (model := getattr(shared, name))}
    hashes = {name: model_files(model)[1] for name, model in named.items()}
    lines, read, broken = _read(pairs, shared)
    check_cells(out, read)
    check_cells(dropped, read, "--dropped")
    languages = None if "language" in without else _languages(read)
    filters = Filters(languages, shared.max_words, shared.near, shared.min_score, without)
    with ExitStack() as stack:
        loaded = {name: stack.enter_context(shared.loaded(model)) for name, model in named.items()}
        remembered = _Remembered(out.with_name(f".{out.name}.steps"), fingerprint(*zip(*read)), repr((filters, hashes)))
        reasons = filters.reasons(read, _scores(loaded) if loaded else None, remembered.rows)
    rows = [(line, ", ".join(why), *pair) for line, why, pair in zip(lines, reasons, read) if why]
    rows += [(line, f"broken: {error}", "", "") for line, error in broken]
    write_rows(dropped, ("line", "reason", "source", "target"), sorted(rows, key=lambda row: row[0]))
    write_rows(out, ("source", "target"), [pair for pair, why in zip(read, reasons) if not why])
    remembered.end()
    counts, total = Counter(name for why in reasons for name in why), len(read) + len(broken)
    if shared.as_json:
        sizes = {"pairs": total, "kept": total - len(rows), "dropped": len(rows), "languages": languages}
        echo(json.dumps({**sizes, "filters": {name: counts[name] for name in FILTERS} | {"broken": len(broken)}}))
        return
    share = f"{len(rows):,} dropped ({len(rows) / total:.1%})"
    echo(f"{counted(total, 'pair')}: {total - len(rows):,} kept in {out}, {share} in {dropped}")
    for name, count in counts.most_common():
        echo(f"{count:>10,}  {name:<14}{FILTERS[name]}")
    if total - len(rows) < FEWEST:
        progress(f"fewer than {FEWEST} good pairs: misaligned and truncated ones were not looked for")


def _read(path: str, options: Cleaning) -> "tuple[list[int], list[Pair], list[tuple[int, DataError]]]":
    """The pairs of a file with their lines, and the broken ones. Raises DataError, UsageError: names file and line."""
    from atento.config.tables.formats import format_of, holds, rule_of_endings
    from atento.config.tables.tasks import TASKS
    from atento.data.files.hub import dataset_rows
    from atento.data.records.labelled_data import reading_of, source_of
    from atento.data.records.reader import SOURCE_AND_TARGET, file_rows

    task = next(name for name, spec in TASKS.items() if spec.records == "pairs")
    reading = dict(map(key_and_value, options.reading or []))
    source = source_of(path, task, columns_given(options.columns) if options.columns else None, reading)
    lines, pairs, broken = list[int](), list[tuple[str, str]](), list[tuple[int, DataError]]()
    with ExitStack() as files:
        if source.dataset is not None:
            rows = dataset_rows(source, SOURCE_AND_TARGET, Path())[1]
        else:
            source = replace(source, **reading_of(path, reading))
            form = format_of(path, source.format, SOURCE_AND_TARGET)
            if form is None or not holds(form, SOURCE_AND_TARGET):
                raise UsageError(f"PAIRS {path} {rule_of_endings(path, SOURCE_AND_TARGET)}")
            rows = file_rows(source, form, SOURCE_AND_TARGET, Path(), files)[1]
        for row in rows:
            if isinstance(row, DataError):
                if not options.skip_bad:
                    raise row
                broken.append((lines[-1] + 1 if lines else 1, row))
            else:
                lines.append(row[0])
                pairs.append((row[1][0], row[1][1]))
    if not pairs:
        raise DataError(f"{path}: holds no sentence pair")
    return lines, pairs, broken


def _languages(pairs: "list[Pair]") -> tuple[str, str] | None:
    """The languages of both sides, which are said; None: they cannot be told here."""
    from atento_cli.corpus.clean_pairs import usual_languages

    try:
        languages = usual_languages(pairs)
    except MissingPartError as error:
        progress(f"languages are not compared: {error}")
        return None
    progress("most sources are in {} and most targets in {}".format(*(language or "?" for language in languages)))
    return languages


def _scores(loaded: dict[str, Any]) -> "Rows":
    """A cosine, the cross-entropies of a token in both directions, and their difference, as far as there are models.

    The last is that of dual conditional cross-entropy (Junczys-Dowmunt 2018).
    """
    import numpy as np

    def scores(pairs: "Sequence[Pair]") -> "Floats":
        sources, targets = (list(side) for side in zip(*pairs))
        columns = []
        for name, sides in (("forward", (sources, targets)), ("reverse", (targets, sources))):
            if name in loaded:
                nats, tokens = np.array(loaded[name].perplexity(*sides).segments).T[:2]
                columns.append(nats / np.maximum(tokens, 1))
        columns += [np.abs(columns[0] - columns[1])] if len(columns) == 2 else []
        if "encoder" in loaded:
            first, second = (loaded["encoder"].embed(side, normalize=True) for side in (sources, targets))
            columns.append((first * second).sum(axis=1))
        return np.stack(columns, axis=1).astype(np.float64)

    return scores


class _Remembered:
    """What steps of the command have computed, in a file that is there until it is done.

    Args:
        path: of the file.
        identity: of the pairs and the command; what another one has computed is forgotten.
    """

    def __init__(self, path: Path, *identity: str) -> None:
        from atento.training.metrics_log import MetricsLog, read_journal

        begin = {"event": "clean", "step": 0, "identity": list(identity)}
        first, *known = read_journal(path) if path.exists() else [{}]
        if first != begin:
            path.unlink(missing_ok=True)
            known = []
        self._path, self._journal = path, MetricsLog(path)
        if known:
            progress(f"{path}: {counted(len(known), 'block')} computed before; continuing")
        elif first != begin:
            self._journal.append(begin)
        self._known = {(event["event"], event["pairs"]): event["rows"] for event in known}

    def rows(self, name: str, rows: "Rows") -> "Rows":
        """A function that computes nothing again."""
        import numpy as np

        from atento.data.records.reader import fingerprint

        def remembered(pairs: "Sequence[Pair]") -> "Floats":
            key = name, fingerprint(*zip(*pairs))
            if key not in self._known:
                self._known[key] = rows(pairs).tolist()
                self._journal.append({"event": name, "step": 1, "pairs": key[1], "rows": self._known[key]})
            return np.array(self._known[key], dtype=np.float64)

        return remembered

    def end(self) -> None:
        """Remove the file."""
        self._journal.close()
        self._path.unlink(missing_ok=True)
