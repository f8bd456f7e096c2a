"""Write a trained translator as a folder in 8 bits, with a card: its data, hours, and scores on what is held out.

python -m models.release RUN PAIRS --out FOLDER --made "an hour of one core" [--directions en-pt pt-en]
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import atento
from atento.metrics import bleu, chrf
from atento.networks import parameter_count
from models.held_out import EVERYDAY
from models.prepare import read_rows

SPLITS = ("test-tatoeba", "test-documentation", "test-interface", "everyday")
CARD = """---
license: apache-2.0
language: [en, pt]
library_name: atento
---

# {name}

English and Brazilian Portuguese, {directions}. {parameters:,} parameters, stored in 8 bits; made with {made}.

**Data**: texts of free packages and of Tatoeba, and everyday pairs by way of Spanish, cleaned: about 680,000 pairs.
What they are, their licences, what is held out and how all is made again: `models/README.md` of Atento. No text of them
is in this folder.
Most are under GPL, LGPL, MPL, CC BY, CC BY-SA and CC0, by their packages: whether a model of them falls under their
terms is not settled everywhere.

**Scores** on pairs that chose nothing, with 95 % intervals; the everyday sentences were written for this purpose:

| held out | direction | pairs | BLEU | chrF |
| --- | --- | --- | --- | --- |
{rows}

**What it does badly**: names, idioms, long sentences, slang, everyday words that documentation lacks. Near copies of
some interface texts were learned. It writes what is likely, not what is true: read what matters again.
"""


def scores_of(model: atento.Model, pairs: Sequence[Sequence[str]], source: int) -> str:
    """BLEU and chrF of the translations of one side of pairs, with intervals, as two cells."""
    outputs = model.translate([pair[source] for pair in pairs])
    cells = []
    for metric in (bleu, chrf):
        score = metric(outputs, [pair[1 - source] for pair in pairs])
        low, high = score.interval()
        cells.append(f"{score.value:.1f} [{low:.1f}, {high:.1f}]")
    return " | ".join(cells)


def release(run: str, folder: Path, out: Path, made: str, directions: Sequence[str]) -> None:
    """Save the run in 8 bits, measure what was saved, and write the card."""
    with TemporaryDirectory() as place:
        saved = atento.load(run, device="cpu").save(Path(place) / out.name, precision="int8")
        model = atento.load(saved, device="cpu")
        rows = []
        for split in SPLITS:
            pairs = list(read_rows(EVERYDAY if split == "everyday" else folder / f"{split}.tsv"))
            for direction in directions:
                cells = scores_of(model, pairs, 0 if direction == "en-pt" else 1)
                rows.append(f"| {split.removeprefix('test-')} | {direction} | {len(pairs):,} | {cells} |")
                sys.stdout.write(f"{rows[-1]}\n")
        about = {"name": out.name, "made": made, "parameters": parameter_count(model.network), "rows": "\n".join(rows)}
        model.path = Path(place)  # whose card `save` keeps
        (model.path / "README.md").write_text(CARD.format(directions=" and ".join(directions), **about), "utf-8")
        shutil.rmtree(out, ignore_errors=True)
        model.save(out, precision="int8")


def main() -> None:
    """Read the command line and release."""
    parser = argparse.ArgumentParser(prog="python -m models.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("folder", type=Path, metavar="PAIRS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--made", required=True, help="with how much work it was made")
    parser.add_argument("--directions", nargs="+", default=["en-pt", "pt-en"], choices=["en-pt", "pt-en"])
    values = parser.parse_args()
    release(values.run, values.folder, values.out, values.made, values.directions)


if __name__ == "__main__":
    main()
