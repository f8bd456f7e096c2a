"""Plants wrong pairs of six kinds in clean sentence pairs, and counts what `atento data clean` finds and loses.

    python tools/planted_noise.py pairs.tsv --foreign other.tsv --foreign another.tsv [-- OPTIONS OF data clean]

Every tenth pair becomes wrong, a sixth of these by each kind: the target of another pair; one in another language; a
copy of the source; the beginning of the target, every other time with its last mark; another number; and a placeholder,
a tag or characters that are broken. Files may end in .gz; of the second column of a file of `--foreign` targets in
another language are taken.
"""

import argparse
import csv
import gzip
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

Pair = tuple[str, str]
SHARE, KINDS = 0.1, ("misaligned", "language", "copy", "truncated", "numbers", "broken")
BROKEN = [("%s", "%d"), ("%(name)s", "%(nome)s"), ("{count}", "{contagem}"), ("<b>", "<b"), ("%1$s", "%1$")]
RUBBISH = "#@*~^|\\¤§¬{}[]<>_=+0"


def read(path: str) -> list[Pair]:
    """The pairs of a table of two columns, each once."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return list(dict.fromkeys((row[0], row[1]) for row in rows))


def inserted(text: str, piece: str, draw: random.Random) -> str:
    """A text with a word more."""
    words = text.split()
    words.insert(draw.randrange(len(words) + 1), piece)
    return " ".join(words)


def other_number(target: str, draw: random.Random) -> str:
    """A target with other digits in one of its numbers."""
    number = draw.choice(list(re.finditer(r"\d+", target)))
    digits = number[0]
    while digits == number[0]:
        digits = "".join(draw.choice("0123456789") for _ in digits)
    return target[: number.start()] + digits + target[number.end() :]


def truncated(target: str, turn: int, draw: random.Random) -> str:
    """The beginning of a target of three words at least."""
    words, last = target.split(), target[-1]
    count = max(1, min(len(words) - 1, round(len(words) * draw.uniform(0.2, 0.7))))
    cut = " ".join(words[:count])
    return cut if turn % 2 or last.isalnum() else cut.rstrip(",;:.?!") + last


def broken(pair: Pair, turn: int, draw: random.Random) -> Pair:
    """A pair with a placeholder, a tag or characters that are broken, in turn."""
    source, target = pair
    if turn % 4 == 0:
        right, wrong = draw.choice(BROKEN)
        return inserted(source, right, draw), inserted(target, wrong, draw)
    if turn % 4 == 1:
        tags = ("<i>%s", "%s</i>", "%s")
        sides = [(text.split(), form) for text, form in ((source, "<i>%s</i>"), (target, draw.choice(tags)))]
        for words, form in sides:
            place = draw.randrange(len(words))
            words[place] = form.replace("%s", words[place])
        return " ".join(sides[0][0]), " ".join(sides[1][0])
    if turn % 4 == 2:  # UTF-8 that was read as Latin-1, where that shows
        misread = target.encode().decode("latin-1")
        half = len(target) // 2
        return source, misread if misread != target else f"{target[:half]}\ufffd\ufffd{target[half:]}"
    place = draw.randrange(len(target))
    rubbish = "".join(draw.choice(RUBBISH) for _ in range(draw.randint(8, 25)))
    return source, target[:place] + rubbish + target[place:]


def planted(pairs: list[Pair], foreign: list[str], seed: int = 1) -> tuple[list[Pair], dict[int, str]]:
    """Pairs of which a tenth is wrong, and the kind of each that is."""
    draw, rows, kinds = random.Random(seed), list(pairs), dict[int, str]()
    free = list(range(len(pairs)))
    draw.shuffle(free)
    each = round(len(pairs) * SHARE / len(KINDS))

    def take(kind: str, fits: Callable[[Pair], object]) -> list[int]:
        chosen = [number for number in free if fits(pairs[number])][:each]
        kinds.update(dict.fromkeys(chosen, kind))
        free[:] = [number for number in free if number not in kinds]
        return chosen

    for number in take("numbers", lambda pair: all(re.search(r"\d", text) for text in pair)):
        rows[number] = (pairs[number][0], other_number(pairs[number][1], draw))
    for turn, number in enumerate(take("broken", lambda pair: len(pair[1]) > 8)):
        rows[number] = broken(pairs[number], turn, draw)
    for turn, number in enumerate(take("truncated", lambda pair: len(pair[1].split()) > 2)):
        rows[number] = (pairs[number][0], truncated(pairs[number][1], turn, draw))
    for number in take("copy", bool):
        rows[number] = (pairs[number][0],) * 2
    for number, target in zip(take("language", bool), draw.sample(foreign, each)):
        rows[number] = (pairs[number][0], target)
    shifted = take("misaligned", bool)
    for number, other in zip(shifted, [*shifted[1:], *shifted[:1]]):
        rows[number] = (pairs[number][0], pairs[other][1])
    return rows, kinds


def shown(names: Iterable[str], found: Counter[str], planned: Counter[str]) -> str:
    """A row of a table: the share of each that was dropped."""
    return " | ".join(f"{found[name] / max(1, planned[name]):.1%}" for name in names)


def main() -> None:
    """Plant, clean, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs")
    parser.add_argument("--foreign", action="append", required=True)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    foreign = [target for path in given.foreign for _, target in read(path)[:6000]]
    pairs, kinds = planted(read(given.pairs), foreign)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
        files = [place / "pairs.tsv", "--out", place / "kept.tsv", "--dropped", place / "dropped.tsv"]
        begin = time.monotonic()
        subprocess.run([sys.executable, "-m", "atento", "data", "clean", *map(str, files), *given.options], check=True)
        seconds = time.monotonic() - begin
        with (place / "dropped.tsv").open(encoding="utf-8", newline="") as file:
            lines = [int(row["line"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    found = Counter(kinds.get(line - 1, "good") for line in lines)
    planned = Counter(kinds.get(number, "good") for number in range(len(pairs)))
    every = sum(found[kind] for kind in KINDS) / len(kinds)
    print(f"| pairs | seconds | found | {' | '.join(KINDS)} | good pairs lost |")
    print(f"| {len(pairs):,} | {seconds:.0f} | {every:.1%} | {shown((*KINDS, 'good'), found, planned)} |")


if __name__ == "__main__":
    main()
