"""Make the training files of the translators from the gathered pairs: cleaned, by kind, rules marked.

    python -m models.prepare PAIRS       after `models.pairs --out PAIRS` and `models.pivot --out PAIRS/spanish.tsv`

PAIRS gets tatoeba.tsv, phrases.tsv of `models/phrases`, spanish.tsv's clean pairs as pivot.tsv, the same behind
`<rules>` as rules.tsv, texts.tsv, words.tsv of dictionaries, and world.tsv, which the micro-world's grammar writes,
all with the columns source and target; what `atento data clean` dropped is in *.dropped.tsv. A file that is there
stays.
"""

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from atento_world import write
from models.held_out import overlapping, read_table

MARK = "<rules>"  # before a source whose target was made by rules: the network learns how such targets differ
WORDS, FEWEST = 60, 3  # of a side at the most; of an entry of a catalogue at the least
PHRASES = Path(__file__).with_name("phrases")  # everyday pairs that a large language model wrote for this purpose
WORLD = 150_000  # short sentences whose agreement and verbs are right, which few others show so plainly


def is_text(source: str, origin: str) -> bool:
    """Whether a pair is no everyday pair, no dictionary entry, and no entry of a menu of one or two words."""
    is_entry = origin.startswith("catalogue:") and len(source.split()) < FEWEST
    return origin != "tatoeba" and not origin.startswith("words:") and not is_entry


def prepare(folder: Path) -> None:
    """Write the files that are missing."""
    kinds: dict[str, Callable[[str, str], bool]] = {"tatoeba": lambda _, origin: origin == "tatoeba", "texts": is_text}
    for name, is_wanted in kinds.items():
        if not (folder / f"{name}.tsv").exists():
            rows = read_rows(folder / "train.tsv")
            kept = ((source, target) for source, target, origin in rows if is_wanted(source, origin))
            write_pairs(folder / f"{name}.all.tsv", kept)
            clean(folder / f"{name}.all.tsv", folder / f"{name}.tsv")
    if not (folder / "phrases.tsv").exists():
        _write_new(folder / "phrases.tsv", (row for file in sorted(PHRASES.glob("*.tsv")) for row in read_rows(file)))
    if not (folder / "pivot.tsv").exists():
        write_pairs(
            folder / "pivot.all.tsv", ((source, target) for source, target, _ in read_rows(folder / "spanish.tsv"))
        )
        clean(folder / "pivot.all.tsv", folder / "pivot.tsv")
    _, *pairs = read_rows(folder / "pivot.tsv")
    write_pairs(folder / "rules.tsv", ((f"{MARK} {source}", target) for source, target in pairs))
    if not (folder / "words.tsv").exists():
        rows = read_rows(folder / "train.tsv")
        write_pairs(folder / "words.tsv", ((one, other) for one, other, origin in rows if origin.startswith("words:")))
    if not (folder / "world.tsv").exists():
        _write_new(folder / "world.tsv", ([pair.source, pair.target] for pair in write("train", WORLD)))


def _write_new(path: Path, rows: Iterable[list[str]]) -> None:
    """Write the pairs of which neither side is held out."""
    written = [(row[0], row[1]) for row in rows]
    held_out = {number for number, _ in overlapping(map("\t".join, written), read_table())}
    write_pairs(path, (pair for number, pair in enumerate(written, start=1) if number not in held_out))


def read_rows(path: Path) -> Iterable[list[str]]:
    """The cells of each line of a table."""
    return csv.reader(path.read_text("utf-8").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)


def write_pairs(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Write a table with the columns source and target."""
    lines = ["source\ttarget", *(f"{source}\t{target}" for source, target in pairs)]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def clean(path: Path, out: Path) -> None:
    """Write what `atento data clean` keeps of a table, which goes."""
    dropped = path.with_name(f"{out.stem}.dropped.tsv")
    options = ["--out", out, "--dropped", dropped, "--columns", "source=source,target=target", "--max-words", WORDS]
    subprocess.run([sys.executable, "-m", "atento", "data", "clean", *map(str, [path, *options])], check=True)
    path.unlink()


def main() -> None:
    """Read the command line and prepare."""
    parser = argparse.ArgumentParser(prog="python -m models.prepare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="PAIRS")
    prepare(parser.parse_args().folder)


if __name__ == "__main__":
    main()
