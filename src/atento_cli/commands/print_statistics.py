"""The statistics of `atento data stats`, as JSON or as text."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from atento.base.errors import RecipeError
from atento_cli.options import progress, warn

if TYPE_CHECKING:
    from atento.config.reading.loading import LoadedRecipe
    from atento.data.records.reader import Records
    from atento.text import Tokenizer

_LABELS = 20  # most labels in a line
_WIDTH = 40  # of the longest bar of a histogram


def measured(loaded: "LoadedRecipe", *, tokens: bool) -> list[dict[str, object]]:
    """Statistics of each split: counts, lengths, ratios, suspicious records; with `tokens` also token counts."""
    from atento.config.reading.task_defaults import task_of_records
    from atento.config.tables.tasks import TASKS
    from atento.data.records.splits import held_out, overlap, split_of
    from atento.runs.prepare import read_sources
    from atento.runs.task_heads import labels_by_record
    from atento.runs.token_data import is_stored
    from atento_cli.corpus import corpus_statistics

    if is_stored(loaded):
        return _stored(loaded)
    recipe, spec = loaded.recipe, TASKS[loaded.recipe.task]
    kind, splits, parts, merged = spec.records, [], {}, {}
    for name in ("train", "valid", "test"):
        if not getattr(recipe.data, name):
            continue
        parts[name] = read_sources(recipe, name, loaded.folder)
        merged[name] = split_of(parts[name])  # sources of unlike columns are refused, as in training
        warn(text for part in parts[name] for text in part.warnings())
    if "train" not in parts:
        raise RecipeError("`data.train` names no data")
    train = merged["train"]
    assert train is not None
    texts = {split: tuple(name for name in read[0].columns if name in spec.texts) for split, read in parts.items()}
    tokenizer = _tokenizer(loaded, parts["train"]) if tokens else None
    for name, split_parts in parts.items():
        columns = texts[name]  # a split may lack an optional one
        lengths = corpus_statistics.lengths(split_parts, columns)
        wrong = corpus_statistics.suspicious(split_parts)
        record: dict[str, object] = {
            "split": name,
            kind: sum(map(len, split_parts)),
            "repeated": wrong["repeated"]["count"],
        }
        for side in columns:
            record[f"{side}_words"] = lengths[side]["words"]["total"]
            record[f"{side}_longest"] = lengths[side]["words"]["max"]
            record[f"{side}_characters"] = lengths[side]["characters"]["total"]
        record |= corpus_statistics.labels_of(split_parts, spec.fields)
        record |= {"lengths": lengths, "suspicious": wrong}
        fields = TASKS[task_of_records(recipe, name)].fields
        record["files"] = corpus_statistics.columns_seen(getattr(recipe.data, name), loaded.folder, fields)
        if kind == "pairs":
            record["ratio"] = corpus_statistics.percentiles(corpus_statistics.ratios(split_parts))
        if name != "train":
            record["also_in_train"] = sum(overlap(parts["train"], part) for part in split_parts)
        elif recipe.data.held_out:
            record["held_out"] = len(held_out(train.columns, recipe.data.held_out, labels_by_record(recipe, train))[1])
        if name == "train" and tokenizer is not None and not recipe.data.mixing.concatenates:
            from atento.runs.mixing_preview import planned_sources

            record["mixing"] = planned_sources(loaded, train, tokenizer)  # of each source: share of tokens, epochs
        if tokenizer is not None:
            sides = {side: _token_counts(tokenizer, split_parts, side) for side in columns}
            for side, counts in sides.items():
                lengths[side]["tokens"] = {"total": sum(counts), **corpus_statistics.percentiles(counts)}
            if "data.max_len" not in spec.unused:
                if kind == "examples":  # a text and its pair are in one row
                    sides = {"text": [sum(counts) for counts in zip(*sides.values())]}
                over = corpus_statistics.over(sides, recipe.data.max_len, spec.special_tokens + ("pair" in columns))
                windows = "context" in columns or recipe.data.windows is not None
                record["over_max_len"] = over | {"cut": "windows" if windows else recipe.data.truncate}
        splits.append(record)
    return splits


def _stored(loaded: "LoadedRecipe") -> list[dict[str, object]]:
    """Statistics of a recipe whose training texts are in a store of token ids; the store is made if needed."""
    from atento.config.tables.tasks import TASKS
    from atento.data.store.token_store import stored_overlap, stored_statistics
    from atento.runs.prepare import read_sources
    from atento.runs.token_data import make_store
    from atento.text import Tokenizer
    from atento_cli.corpus import corpus_statistics

    data = loaded.recipe.data
    store = make_store(loaded, progress).store  # made, or found whole
    tokenizer = Tokenizer.load(store.folder / "tokenizer")
    train = {"split": "train", **stored_statistics(store, data.max_len, TASKS[loaded.recipe.task].special_tokens)}
    # as `held_out_rows` limits it
    splits = [train | ({"held_out": min(data.held_out, max(1, train["texts"] // 10))} if data.held_out else {})]
    for name in ("valid", "test"):
        parts = read_sources(loaded.recipe, name, loaded.folder)
        warn(text for part in parts for text in part.warnings())
        if parts:
            texts = [text for part in parts for text in part["text"]]
            record: dict[str, object] = {"split": name, "texts": len(texts)}
            record |= {"lengths": corpus_statistics.lengths(parts, ("text",))}
            record |= {"suspicious": corpus_statistics.suspicious(parts), "files": []}
            splits.append(record | stored_overlap(store, tokenizer.encode_batch(texts)))
    return splits


def _tokenizer(loaded: "LoadedRecipe", read: "list[Records]") -> "Tokenizer":
    """The tokenizer that training would use: of the initial model, an existing one, or one trained now."""
    from atento.config.reading.task_defaults import has_own_tokenizer
    from atento.data.records.values import as_text
    from atento.models.model_folder import find_model
    from atento.runs.run_tokenizer import tokenizer_of_columns, tokenizer_of_init

    def texts(names: Sequence[str]) -> Iterator[str]:
        columns = ([part[name] for name in names if name in part.columns] for part in read)
        return (as_text(value) for sides in columns for record in zip(*sides) for value in record)

    if loaded.recipe.init is not None and not has_own_tokenizer(loaded.recipe):
        model = loaded.recipe.init.model
        folder = find_model(loaded.home / model if (loaded.home / model).exists() else model)
        return tokenizer_of_init(loaded.recipe, loaded.home, folder, texts, progress)
    return tokenizer_of_columns(loaded.recipe, loaded.home, texts, progress)


def _token_counts(tokenizer: "Tokenizer", read: "list[Records]", side: str) -> list[int]:
    from atento.data.records.values import as_text

    side_of = tokenizer.target if side == "target" else tokenizer
    return [len(ids) for part in read for ids in side_of.encode_batch([as_text(value) for value in part[side]])]


def text_lines(record: dict[str, Any]) -> Iterator[str]:
    """The statistics of a split as lines of text."""
    kind = next(kind for kind in ("pairs", "texts", "examples") if kind in record)
    held_out = f", {record['held_out']:,} of them held out for validation" if "held_out" in record else ""
    yield f"{record['split']}: {record[kind]:,} {kind}{held_out}"
    yield from _label_lines(record, record[kind])
    for file in record["files"]:
        columns = ", ".join(map(repr, file["columns"]))
        used = " and ".join(map(repr, file["used"]))
        label = "columns" if file["header"] else "the first line, read as data,"
        yield f"  {file['file']}: {label} {columns}; used: {used}"
    yield f"  {'':<20}{'total':>12}" + "".join(f"{name:>8}" for name in ("5 %", "median", "95 %", "99 %", "longest"))
    for side, units in record["lengths"].items():
        for unit in ("words", "characters", "tokens"):
            if unit in units:
                numbers = [units[unit][name] for name in ("p5", "p50", "p95", "p99", "max")]
                name = f"{side} {unit}"
                yield f"  {name:<20}{units[unit]['total']:>12,}" + "".join(f"{number:>8,}" for number in numbers)
        yield f"  {'':<20}longest {side}: {units['longest']}"
    if "ratio" in record:
        low, middle, high = (record["ratio"][name] for name in ("p1", "p50", "p99"))
        yield f"  target / source characters: median {middle:.2f}, 1 % below {low:.2f}, 1 % above {high:.2f}"
    if "over_max_len" in record:
        yield f"  {_over_long(record, kind)}"
    if "mixing" in record:
        from atento.runs.mixing_preview import mixing_lines

        yield from (f"  {line}" for line in mixing_lines(record["mixing"]))
    if "also_in_train" in record:
        yield f"  also in the training data: {record['also_in_train']:,}"
    if "shared_runs" in record:
        runs = record["shared_runs"]
        yield f"  with {runs['tokens']} tokens in a row of a training text: {runs['texts']:,} ({runs['runs']:,} runs)"
    for reason, entry in record["suspicious"].items():
        if entry["count"]:
            first = f" (first: {'; '.join(entry['first'])})" if entry["first"] else ""
            yield f"  {_WORDS[reason]}: {entry['count']:,}{first}"


def _label_lines(record: dict[str, Any], records: int) -> Iterator[str]:
    """Lines about labels, entities, answers and numbers."""
    if "labels" in record:
        yield f"  labels: {_most_frequent(record['labels'])}"
    if "entities" in record:
        yield f"  entities ({record['scheme']}): {_most_frequent(record['entities'])}"
    if "unanswerable" in record:
        yield f"  questions without an answer: {record['unanswerable']:,} ({record['unanswerable'] / records:.1%})"
    if "scores" in record:
        scores = record["scores"]
        low, middle, high = (scores[name] for name in ("min", "p50", "max"))
        yield f"  scores: mean {scores['mean']:.4g}, median {middle:.4g}, from {low:.4g} to {high:.4g}"
        most = max(count for _, _, count in scores["histogram"])
        for begin, end, count in scores["histogram"]:
            yield f"  {begin:>12.4g} to {end:<10.4g}{count:>8,}  {'#' * round(_WIDTH * count / most)}"


def _most_frequent(counts: dict[str, int]) -> str:
    """Labels with their counts, in alphabetical order; of many, the most frequent and the number of the others."""
    shown = counts
    if len(counts) > _LABELS:
        shown = dict(sorted(counts.items(), key=lambda item: -item[1])[:_LABELS])
    more = f" and {len(counts) - _LABELS:,} more" if len(counts) > _LABELS else ""
    return ", ".join(f"{label!r} {count:,}" for label, count in shown.items()) + more


def _over_long(record: dict[str, Any], kind: str) -> str:
    """The number of records too long for training, and what training does with them."""
    over = record["over_max_len"]
    text = f"longer than data.max_len {over['max_len']}: {over['records']:,} {kind}"
    if not over["records"]:
        return text
    text += f" ({over['records'] / record[kind]:.1%})"
    if record["split"] != "train":
        return text
    if kind == "texts":
        return f"{text}, which continue in further examples"
    if over["cut"] == "windows":
        return f"{text}, which are read in windows"
    if over["cut"] == "head-tail":
        return f"{text}, which lose their middle"
    if kind == "examples":
        return f"{text}, which lose their end"
    sides = {"none": "are left out of training", "source": "lose the end of a long source", "both": "lose their end"}
    return f"{text}, which {sides[over['cut']]} (data.truncate {over['cut']})"


_WORDS = {
    "repeated": "repeated",
    "equal": "source and target equal",
    "ratio": "unusual length ratio",
    "empty": "an empty side, left out",
}
