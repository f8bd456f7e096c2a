"""Write a trained model as a folder in 8 bits, with a card: its data, hours, scores on what is held out, and faults.

python -m models.release RUN DATA --out FOLDER [--made "an hour of one core"]
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import atento
from atento.metrics import Score, bleu, chrf
from atento.networks import parameter_count
from atento.runs.run_record import read_run
from models.bits import compared
from models.held_out import EVERYDAY
from models.prepare import read_rows

CARD = """---
license: {license}
language: [{languages}]
library_name: atento
---

# {name}

{about} {parameters:,} parameters, stored in 8 bits; made with {made}.

**Data**: {data} What is held out and how all is made again: `models/README.md` of Atento.

**Scores** on what chose nothing, with 95 % intervals:

{rows}

**What it does badly**: {badly}
"""
PAIRS = """texts of free packages and of Tatoeba, everyday pairs by way of Spanish, {more}cleaned: about {count} pairs.
Their licences are in `models/README.md`; no text of them is in this folder. Most are under GPL, LGPL, MPL, CC BY, CC
BY-SA and CC0, by their packages: whether a model of them falls under their terms is not settled everywhere."""
TAUGHT = PAIRS.format(more="", count="680,000")
LEARNED = PAIRS.format(more="dictionaries and sentences of Atento's own grammar, ", count="850,000")
PHRASES = """ And 25,000 everyday pairs that a large language model wrote for this purpose without the held-out ones;
{near} of the 200 everyday sentences below share at least 0.6 of their words with one of them, {very} at least 0.8."""
UNSURE = """idioms, slang, names that are also words, long sentences, everyday words that documentation lacks. A pronoun
without its noun may get the wrong person or gender. It writes what is likely, not what is true: read what matters
again."""
READ = """ Of 100 of the everyday sentences, every second one of `everyday.tsv`, a reader found 82 right (57 of the 74
that share less than 0.6 of their words with a pair that it learned from). Of the others: *Good morning!* became *Boa
manhã!*, *too sweet for my taste* became *doce demais para a minha prova*, and *The woman who lives next door is a
well-known writer* became *A mulher que mora ao lado é um escritor bem conhecido*."""
TAGGED = """It reads a sentence at a time, and knows written Brazilian Portuguese best: posts without capitals and
accents, speech and old spelling are read worse."""
PRETRAINED = "Its layers were first trained to fill masks, for an hour of one core, in the same and other free texts."
ABOUT = {  # name -> licence, languages, what it is, its data, what it does badly
    "both-directions": ("apache-2.0", "en, pt", "English and Brazilian Portuguese, both directions.", TAUGHT, UNSURE),
    "atento-en-pt": (
        "apache-2.0",
        "en, pt",
        "Translates English into Brazilian Portuguese.",
        LEARNED + PHRASES.format(near=54, very=7),
        UNSURE + READ,
    ),
    "atento-pt-en": (
        "apache-2.0",
        "en, pt",
        "Translates Portuguese into English.",
        LEARNED + PHRASES.format(near=45, very=6),
        UNSURE,
    ),
    "atento-pt-entities": (
        *("cc-by-sa-3.0", "pt", "Finds people, organisations, places, dates, laws and cases in Portuguese texts."),
        f"LeNER-Br (MIT; courts and laws) and WikiANN (text CC BY-SA 3.0, tags ODC-BY). {PRETRAINED}",
        f"dates, laws and cases outside of legal texts, which LeNER-Br alone has; works, brands, events. {TAGGED}",
    ),
    "atento-pt-tags": (
        *("cc-by-sa-4.0", "pt", "Gives each word of a Portuguese text its universal part of speech."),
        f"Bosque, the treebank of Universal Dependencies (CC BY-SA 4.0; news). {PRETRAINED}",
        f"words that are a name in one place and none in another, and foreign ones. {TAGGED}",
    ),
    "atento-pt-lm": (
        *("apache-2.0", "pt", "Goes on with a text in the Portuguese of Machado de Assis."),
        "his novels, stories and plays (public domain), 4.4 MB.",
        "sense over more than a sentence, facts, and everything after 1908.",
    ),
}


def translations(name: str, model: atento.Model, folder: Path) -> Iterator[str]:
    """BLEU and chrF of a translator's directions, a row each."""
    yield "| held out | direction | pairs | BLEU | chrF |\n| --- | --- | --- | --- | --- |"
    directions = {"atento-en-pt": (0,), "atento-pt-en": (1,)}.get(name, (0, 1))
    for split in ("test-tatoeba", "test-documentation", "test-interface", "everyday"):
        pairs = list(read_rows(EVERYDAY if split == "everyday" else folder / f"{split}.tsv"))
        for source in directions:
            outputs = model.translate([pair[source] for pair in pairs])
            found = (metric(outputs, [pair[1 - source] for pair in pairs]) for metric in (bleu, chrf))
            cells = " | ".join(_cell(score, 1) for score in found)
            direction = ("English to Portuguese", "Portuguese to English")[source]
            yield f"| {split.removeprefix('test-')} | {direction} | {len(pairs):,} | {cells} |"


def tags(name: str, model: atento.Model, folder: Path) -> Iterator[str]:
    """The scores of a tagger on its test files, a row each."""
    yield "| held out | metric | score |\n| --- | --- | --- |"
    for file in sorted(folder.glob(f"{name.removeprefix('atento-pt-')}-test*.conll")):
        for metric, score in atento.evaluate(model, file).items():
            yield f"| {file.stem} | {metric} | {_cell(score, 3)} |"


def stories(model: atento.Model, folder: Path) -> Iterator[str]:
    """Bits a byte of six stories, beside an n-gram model of bytes, a row each."""
    (grams, _, theirs), (_, _, ours) = compared(folder, [model])
    yield "| | bits a byte of six held-out stories |\n| --- | --- |"
    yield f"| this model | {ours:.3f} |"
    yield f"| {grams} of bytes | {theirs:.3f} |"


def _rows(name: str, model: atento.Model, folder: Path) -> Iterator[str]:
    if name in ("atento-pt-entities", "atento-pt-tags"):
        return tags(name, model, folder)
    return stories(model, folder) if name == "atento-pt-lm" else translations(name, model, folder)


def _made(run: Path) -> str:
    record = read_run(run)
    return f"{record.step:,} updates, {(record.seconds or 0) / 60:.0f} minutes"


def _cell(score: Score, digits: int) -> str:
    low, high = score.interval()
    return f"{score.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def release(run: str | Path, folder: Path, out: Path, made: str) -> None:
    """Save the run in 8 bits, measure what was saved, and write the card of the model, which is named as `out`."""
    licence, languages, about, data, badly = ABOUT[out.name]
    with TemporaryDirectory() as place:
        saved = atento.load(run, device="cpu").save(Path(place) / out.name, precision="int8")
        model = atento.load(saved, device="cpu")
        rows = []
        for row in _rows(out.name, model, folder):
            rows.append(row)
            sys.stdout.write(f"{row}\n")
        values = {"about": about, "data": data, "badly": badly, "made": made, "rows": "\n".join(rows)}
        values |= {"name": out.name, "languages": languages, "license": licence}
        card = CARD.format(parameters=parameter_count(model.network), **values)
        model.path = Path(place)  # whose card `save` keeps
        (model.path / "README.md").write_text(card, "utf-8")
        shutil.rmtree(out, ignore_errors=True)
        model.save(out, precision="int8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and release."""
    parser = argparse.ArgumentParser(prog="python -m models.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("folder", type=Path, metavar="DATA", help="what `models.prepare` or `models.labels` wrote")
    parser.add_argument("--out", type=Path, required=True, help=f"a folder with the name of {', '.join(ABOUT)}")
    parser.add_argument("--made", help="with how much work it was made; the time of the run if not given")
    values = parser.parse_args(arguments)
    release(values.run, values.folder, values.out, values.made or _made(Path(values.run)))


if __name__ == "__main__":
    main()
