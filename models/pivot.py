"""Everyday pairs by way of Spanish: Tatoeba's English-Spanish pairs, their Spanish put into Portuguese by Apertium.

    python -m models.pivot --data FOLDER --out FILE

FOLDER holds tatoeba_en_es/train.tsv.gz; Apertium is Debian's (`apt-get install apertium apertium-es-pt`). The
Portuguese is a machine's, by rules: it is for the source side, or for a first stage of training, never for a test.
"""

import argparse
import gzip
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from atento.base.errors import AtentoError
from models.held_out import Pair, read_table
from models.pairs import cleaned
from models.readers import texts_of

ORIGIN = "apertium:tatoeba-es"
_UNSURE = re.compile(r"[*@#]\w")  # a word that the rules or the dictionary do not have


def portuguese(spanish: Sequence[str]) -> list[str]:
    """Translate sentences, a line each; the mark at the end, which Apertium may drop, is kept."""
    command = ["apertium", "-n", "-f", "line", "es-pt_BR"]
    process = subprocess.run(command, input="\n".join(spanish) + "\n", capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    if len(lines) != len(spanish):
        raise AtentoError(f"apertium gave {len(lines)} lines for {len(spanish)}")
    return [line + "." if text.endswith(".") and line[-1:].isalnum() else line for text, line in zip(spanish, lines)]


def pivot_pairs(path: Path) -> Iterator[Pair]:
    """The distinct pairs whose every word Apertium knows, less those that share a side with a held-out one."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = list(texts_of(stream))
    reserved = {side for sides in read_table() for side in sides}
    seen = set()
    for (english, _), text in zip(rows, portuguese([spanish for _, spanish in rows])):
        if not _UNSURE.search(text) and (sides := cleaned(english, text)) and sides not in seen:
            seen.add(sides)
            pair = Pair(*sides, ORIGIN)
            if reserved.isdisjoint(pair.hashes):
                yield pair


def main() -> None:
    """Read the command line, translate, write the file."""
    parser = argparse.ArgumentParser(prog="python -m models.pivot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with tatoeba_en_es/train.tsv.gz")
    parser.add_argument("--out", type=Path, required=True, help="file for English, Portuguese, origin")
    values = parser.parse_args()
    pairs = list(pivot_pairs(values.data / "tatoeba_en_es" / "train.tsv.gz"))
    values.out.write_text("".join(f"{pair.source}\t{pair.target}\t{pair.origin}\n" for pair in pairs), "utf-8")
    sys.stdout.write(f"{values.out}: {len(pairs):,} pairs\n")


if __name__ == "__main__":
    main()
