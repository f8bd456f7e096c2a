"""A file, or the embedded micro-world, to texts: what they are, where each stands, what was left out."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from atento.config.recipe import SourceConfig
from atento.data.memory import Records, called, held, records_in
from atento.data.paragraphs import looks_wrapped, paragraphs
from atento.data.source_lines import open_binary, scan
from atento.data.source_records import pairs_in
from atento.data.sources import FILE_KINDS, Origins, collect, fingerprint, read_pairs
from atento.errors import DataError, RecipeError, counted


@dataclass(frozen=True)
class Texts:
    """Texts in the order of their file; `empty`, `skipped` and `fingerprint` as `Parallel` has them.

    `wrapped` says that they are lines of a file that seems to break them inside sentences.
    """

    text: list[str]
    origins: Origins
    skipped: list[str]
    empty: int
    fingerprint: str
    wrapped: bool = False

    def __len__(self) -> int:
        return len(self.text)

    def where(self, index: int) -> str:
        """File and line of a text, for messages."""
        return self.origins.where(index)

    def warnings(self) -> list[str]:
        """What was left out, counted; blank lines only part texts, so they are not told of."""
        name, said = self.origins.names[0], []
        if self.skipped:
            said.append(f"{name}: {counted(len(self.skipped), 'bad record')} left out, first {self.skipped[0]}")
        if self.wrapped:
            said.append(
                f"{name}: its lines seem to be broken inside sentences, and each is a text of its own; "
                f"`paragraphs: true` beside `file` joins them"
            )
        return said


def read_texts(
    source: SourceConfig, folder: Path, *, skip_bad: bool = False, memory: Mapping[str, Records] | None = None
) -> Texts:
    """Read one source of a recipe: a text a line or a paragraph, a column, one language of the micro-world, or
    texts in memory.

    Args:
        source: what to read. With `count`, reading stops once so many texts are kept.
        folder: what relative paths are relative to.
        skip_bad: leave out and list broken records instead of refusing the file.
        memory: the texts that sources with `memory` name.

    Raises:
        RecipeError: the source itself makes no sense. DataError: names file, line and rule; also where none is left.
    """
    if source.world is not None:
        pairs = read_pairs(SourceConfig(world=source.world, count=source.count, seed=source.seed), folder)
        chosen = pairs.source if source.text == "en" else pairs.target
        return Texts(chosen, pairs.origins, [], 0, fingerprint(chosen))
    if source.memory is not None:
        name, texts = called(source.memory), list[str]()
        given = records_in(held(source.memory, memory), ("text",), name)
        return Texts(texts, *collect(given, (texts,), (name,), source.count, skip_bad, what="text"))
    if source.file is None:
        raise RecipeError("a data source of texts needs `file`, `world` or `memory`")
    with ExitStack() as files:
        stream = files.enter_context(open_binary(folder / Path(source.file).expanduser(), source.file))
        kind = Path(source.file.removesuffix(".gz")).suffix
        found: Iterator[tuple[int, str] | DataError]
        if kind in FILE_KINDS:
            if source.text is None:
                raise RecipeError(f"`file: {source.file}` needs `text`, the column")
            rows = pairs_in(kind, stream, source.file, source.text, source.text)
            found = (row if isinstance(row, DataError) else row[:2] for row in rows)
        else:
            lines = enumerate(scan(stream, source.file), start=1)
            found = (line if isinstance(line, DataError) else (number, line) for number, line in lines)
            found = paragraphs(found) if source.paragraphs else found
        kept: list[str] = []
        read = Texts(kept, *collect(found, (kept,), (source.file,), source.count, skip_bad, what="text"))
        by_line = kind not in FILE_KINDS and not source.paragraphs
        return replace(read, wrapped=by_line and looks_wrapped(kept, read.origins.lines))


def repeated(train: Texts, valid: Texts) -> int:
    """How many validation texts also stand in the training data."""
    seen = set(valid.text).intersection(train.text)
    return sum(text in seen for text in valid.text) if seen else 0
