"""What nobody may train on: the held-out pairs of the translators, as hashes of their texts without case and marks.

python -m models.held_out TRAIN.tsv ...     says how many pairs share a side with a held-out pair; 1 if any does
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

TABLE = Path(__file__).with_name("held_out.sha256.tsv")
EVERYDAY = Path(__file__).with_name("everyday.tsv")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class Pair:
    """One training example: English, Portuguese, and where it comes from ("tatoeba", "catalogue:gimp")."""

    source: str
    target: str
    origin: str

    @property
    def hashes(self) -> tuple[str, str]:
        """The hash of each side."""
        return text_hash(self.source), text_hash(self.target)


@dataclass(frozen=True)
class Quota:
    """How many pairs of the origins that begin with `origin` go to the test and validation part of `split`."""

    split: str
    origin: str
    test: int
    valid: int


QUOTAS = (
    Quota("tatoeba", "tatoeba", 1000, 500),
    Quota("documentation", "python-docs", 400, 120),
    Quota("documentation", "libreoffice-help", 400, 120),
    Quota("documentation", "debian-handbook", 200, 60),
    Quota("interface", "catalogue:", 700, 210),
    Quota("interface", "debian-descriptions", 300, 90),
)


def normalized(text: str) -> str:
    """The words of a text, in lower case, without punctuation; a text without words as it is."""
    words = _WORDS.findall(unicodedata.normalize("NFKC", text).casefold().replace("_", " "))
    return " ".join(words) or " ".join(text.split())


def text_hash(text: str) -> str:
    """16 hexadecimal digits of the SHA-256 of the normalized text."""
    return sha256(normalized(text).encode()).hexdigest()[:16]


def draw(pairs: Iterable[Pair], reserved: Iterable[Pair]) -> dict[tuple[str, str], str]:
    """Choose held-out pairs by the hash of their texts, so that a pair more or less changes little.

    No English and no Portuguese text is drawn twice, and none that `reserved` pairs have.

    Returns: (hash of the English, hash of the Portuguese) -> "test-tatoeba", "valid-interface" and the like.
    """
    candidates: dict[Quota, set[tuple[str, str]]] = {quota: set() for quota in QUOTAS}
    for pair in pairs:
        for quota in QUOTAS:
            if pair.origin.startswith(quota.origin) and _fit(pair):
                candidates[quota].add(pair.hashes)
    drawn: dict[tuple[str, str], str] = {}
    used = {side for pair in reserved for side in pair.hashes}
    for quota, hashes in candidates.items():
        names = [f"test-{quota.split}"] * quota.test + [f"valid-{quota.split}"] * quota.valid
        for source, target in sorted(hashes):
            if not names:
                break
            if source not in used and target not in used:
                drawn[source, target] = names.pop(0)
                used |= {source, target}
    return drawn


def _fit(pair: Pair) -> bool:
    """Is it a sentence whose translation can be judged: three words at least, mostly letters, sides of like length?"""
    words = len(pair.source.split()), len(pair.target.split())
    letters = sum(character.isalpha() or character.isspace() for character in pair.source)
    return 3 <= words[0] <= 60 and letters > 0.8 * len(pair.source) and 0.5 <= (words[1] + 1) / (words[0] + 1) <= 2


def read_table(path: Path = TABLE) -> dict[tuple[str, str], str]:
    """Read what `write_table` wrote."""
    rows = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return {(source, target): split for split, source, target in rows}


def write_table(drawn: dict[tuple[str, str], str], path: Path = TABLE) -> None:
    """Write split, hash of the English, hash of the Portuguese, a line a pair."""
    rows = sorted((split, source, target) for (source, target), split in drawn.items())
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")


def everyday_pairs(path: Path = EVERYDAY) -> list[Pair]:
    """The everyday sentences of the project, with their references."""
    rows = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return [Pair(source, target, "everyday") for source, target in rows]


def overlapping(lines: Iterable[str], table: dict[tuple[str, str], str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each line (English, tab, Portuguese, ...) with a held-out side, and the split it is in."""
    split_of = {side: split for sides, split in table.items() for side in sides}
    for number, line in enumerate(lines, start=1):
        for text in line.rstrip("\n").split("\t")[:2]:
            if split := split_of.get(text_hash(text)):
                yield number, split
                break


def check(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a training file that share a side with a held-out pair: it should have none."""
    with path.open(encoding="utf-8") as stream:
        return list(overlapping(stream, read_table()))


def main(paths: list[str]) -> int:
    """Check each file; returns the exit status."""
    found = {path: check(Path(path)) for path in paths}
    for path, rows in found.items():
        first = f", the first in line {rows[0][0]} ({rows[0][1]})" if rows else ""
        sys.stdout.write(f"{path}: {len(rows):,} held-out lines{first}\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
