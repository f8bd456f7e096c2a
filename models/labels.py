"""Write what the Portuguese models of entities, parts of speech and stories learn from, less what is held out.

    python -m models.labels --out LABELS --data DATASETS [--pairs PAIRS] [--draw]
    python -m models.labels --check FILE ...     says how many texts or sentences are held out; 1 if any is

LABELS gets entities-*.conll, tags-*.conll and stories-*.txt (train, valid, test), and texts-*.txt for the encoder that
entities and tags begin with. DATASETS holds the folders that models/README.md names; PAIRS is what `models.pairs`
wrote, whose Portuguese the encoder reads too. `--draw` draws the held-out parts anew; else the committed ones hold.
"""

import argparse
import gzip
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from atento.text.words import word_spans
from models.held_out import text_hash
from models.stories import chapters, stories

TABLE = Path(__file__).with_name("labels.sha256.tsv")
KINDS = {  # LeNER-Br's name -> ours; WikiANN has PER, ORG and LOC alone
    "PESSOA": "PER",
    "ORGANIZACAO": "ORG",
    "LOCAL": "LOC",
    "TEMPO": "TIME",
    "LEGISLACAO": "LAW",
    "JURISPRUDENCIA": "CASE",
}
CONTRACTIONS = {"ADP+DET", "ADP+PRON", "ADP+ADV", "SCONJ+DET", "SCONJ+PRON"}  # do, dele, daqui; "de o" before a verb
WIKIANN_TEST, VALID, TEST_STORIES, VALID_STORIES = 2000, 500, 6, 3
WORDS = 5  # a shorter line is in many texts, and is not held out

_UNSURE = re.compile(  # a word that LeNER-Br may have in a date, a law or a case
    r"\d|(lei|decreto|artigo|art|código|constituição|emenda|súmula|medida|portaria|resolução|processo|recurso|século|"
    r"janeiro|fevereiro|março|abril|maio|junho|julho|agosto|setembro|outubro|novembro|dezembro|(segunda|terça|quarta|"
    r"quinta|sexta)(-feira)?|sábado|domingo|ontem|hoje|amanhã)$",
    re.IGNORECASE,
)


class Sentence(NamedTuple):
    """The words of a sentence and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def hash(self) -> str:
        """The hash of its text."""
        return text_hash(" ".join(self.words))


def lines_of(folder: Path, name: str) -> Iterator[str]:
    """The lines of the one file of a data set whose name ends so, packed by gzip or not."""
    path = min((each for ending in (name, f"{name}.gz") for each in folder.glob(f"*{ending}")), default=folder / name)
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
        yield from stream


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines between blank lines."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line.rstrip("\n"))
        elif block:
            yield block
            block = []


# Entities ---------------------------------------------------------------------------------------------------------


def entities(lines: Iterable[str]) -> Iterator[Sentence]:
    """The sentences of LeNER-Br or WikiANN, with our names of kinds."""
    for block in blocks(lines):
        rows = [line.split() for line in block]
        tags = ("-".join(KINDS.get(part, part) for part in row[-1].split("-")) for row in rows)
        yield Sentence(tuple(row[0].removeprefix("pt:") for row in rows), tuple(tags))


def without_doubt(sentence: Sentence) -> bool:
    """Is no word without a tag part of a date or a law? WikiANN does not tag them, which does not say "no entity"."""
    return not any(tag == "O" and _UNSURE.match(word) for word, tag in zip(*sentence))


def as_read(sentence: Sentence) -> Sentence:
    """Return the sentence in the words that Atento reads in a text: each mark is a word of its own."""
    words, tags = [], []
    for word, tag in zip(*sentence):
        pieces = [word[start:end] for start, end in word_spans(word)]
        words += pieces
        tags += [f"I-{tag[2:]}" if number and tag != "O" else tag for number in range(len(pieces))]
    return Sentence(tuple(words), tuple(tags))


# Parts of speech --------------------------------------------------------------------------------------------------


def parts_of_speech(lines: Iterable[str]) -> Iterator[Sentence]:
    """The sentences of a treebank (CoNLL-U) in the words that Atento reads, with universal parts of speech.

    A contraction of `CONTRACTIONS` has the tags of its parts, do/ADP+DET, and a rarer one that of the first. A mark
    inside a word is a mark: disse/VERB -/PUNCT me/PRON.
    """
    for block in blocks(lines):
        pairs = [pair for form, parts in _surface(block) for pair in _pieces(form, parts)]
        if pairs:
            words, tags = zip(*pairs)
            yield Sentence(words, tags)


def _surface(block: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each word as it is written, with the parts of speech of the one word or the several that it is."""
    last = 0  # number of the last word of a contraction
    rows = [line.split("\t") for line in block if line[0].isdigit()]
    tag_of = {row[0]: row[3] for row in rows}
    for number, form, *_ in rows:
        if "-" in number:
            first, last = map(int, number.split("-"))
            yield form, [tag_of[str(each)] for each in range(first, last + 1)]
        elif "." not in number and int(number) > last:
            yield form, [tag_of[number]]


def _pieces(form: str, parts: list[str]) -> list[tuple[str, str]]:
    pieces = [form[start:end] for start, end in word_spans(form)]
    spoken = [piece for piece in pieces if any(map(str.isalnum, piece))]
    if not spoken or len(pieces) == 1:
        joined = "+".join(parts)
        return [(piece, joined if joined in CONTRACTIONS else parts[0]) for piece in pieces]
    mark = "SYM" if parts == ["SYM"] else "PUNCT"  # R$
    tags = iter([*parts, *parts[-1:] * len(spoken)])
    return [(piece, next(tags) if piece in spoken else mark) for piece in pieces]


# Held out ---------------------------------------------------------------------------------------------------------


class Sources(NamedTuple):
    """What the data sets have, as it is read."""

    lener: dict[str, list[Sentence]]  # train, dev
    wikiann: dict[str, list[Sentence]]
    bosque: dict[str, list[Sentence]]  # train, dev, test
    gsd: list[Sentence]
    stories: dict[str, list[str]]
    other_works: list[list[str]]  # paragraphs of chapters


def read(data: Path) -> Sources:
    """Read the data sets of a folder."""
    machado = data / "machado_de_assis"
    return Sources(
        lener={part: list(entities(lines_of(data / "lener_br", f"{part}.conll"))) for part in ("train", "dev")},
        wikiann={part: list(entities(lines_of(data / "wikiann_pt", f"{part}.tsv"))) for part in ("train", "dev")},
        bosque={
            part: list(parts_of_speech(lines_of(data / "ud_bosque", f"{part}.conllu")))
            for part in ("train", "dev", "test")
        },
        gsd=list(parts_of_speech(lines_of(data / "ud_gsd", "train.conllu"))),
        stories=stories(list(lines_of(machado, "stories.txt"))),
        other_works=[*chapters(lines_of(machado, "novels.txt")), *chapters(lines_of(machado, "plays.txt"))],
    )


def draw(sources: Sources) -> dict[str, str]:
    """Choose what is held out: hash of the text -> "test-lener", "valid-tags" and the like.

    Dev files whose test files are not at hand are test parts here, WikiANN's by 2,000 of its sentences; validation is
    drawn from training files, by hash. Bosque has its own parts. Stories are drawn by their titles, whole.
    """
    titles = sorted(sources.stories, key=text_hash)
    chosen = [
        ("test-lener", _hashes(sources.lener["dev"])),
        ("test-wikiann", sorted(_hashes(sources.wikiann["dev"]))[:WIKIANN_TEST]),
        ("test-tags", _hashes(sources.bosque["test"])),
        ("valid-tags", _hashes(sources.bosque["dev"])),
        ("test-stories", _story_hashes(sources, titles[:TEST_STORIES])),
        ("valid-stories", _story_hashes(sources, titles[TEST_STORIES : TEST_STORIES + VALID_STORIES])),
    ]
    table: dict[str, str] = {}
    for name, hashes in chosen:
        for each in hashes:
            table.setdefault(each, name)
    for name, sentences in (("lener", sources.lener["train"]), ("wikiann", sources.wikiann["train"])):
        for each in sorted(_hashes(sentences) - table.keys())[:VALID]:
            table[each] = f"valid-{name}"
    return table


def _hashes(sentences: Iterable[Sentence]) -> set[str]:
    return {sentence.hash for sentence in sentences}


def _story_hashes(sources: Sources, titles: Iterable[str]) -> set[str]:
    texts = (text for title in titles for chapter in chapters(sources.stories[title]) for text in chapter)
    return {text_hash(text) for text in texts if len(text.split()) >= WORDS}


def read_table(path: Path = TABLE) -> dict[str, str]:
    """Read what `write_table` wrote."""
    rows = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return {hash_: split for split, hash_ in rows}


def write_table(table: dict[str, str], path: Path = TABLE) -> None:
    """Write split and hash, a line each."""
    path.write_text("".join(f"{split}\t{hash_}\n" for hash_, split in sorted(table.items(), key=_split)), "utf-8")


def _split(row: tuple[str, str]) -> tuple[str, str]:
    return row[1], row[0]


def held_out_in(path: Path, table: dict[str, str]) -> int:
    """How many texts of a training file are held out: its sentences (.conll, .conllu), or the columns of its lines."""
    lines = path.read_text("utf-8").splitlines()
    if path.suffix == ".conllu":
        texts = [" ".join(each.words) for each in parts_of_speech(lines)]
    elif path.suffix == ".conll":
        texts = [" ".join(each.words) for each in entities(lines)]
    else:
        texts = [text for line in lines for text in line.split("\t")]
    return sum(text_hash(text) in table for text in texts)


# Files ------------------------------------------------------------------------------------------------------------


def labelled_files(sources: Sources, table: dict[str, str]) -> dict[str, list[Sentence]]:
    """The sentences of each file of entities and tags. Test files repeat a sentence as often as their data sets do."""
    lener, wikiann = sources.lener, sources.wikiann
    files = {
        "entities-test-lener": _part(lener["dev"], table, "test-lener"),
        "entities-test-wikiann": _part(wikiann["dev"], table, "test-wikiann"),
        "entities-valid": _part(lener["train"], table, "valid-lener") + _part(wikiann["train"], table, "valid-wikiann"),
        "entities-train": [*_free(lener["train"], table), *filter(without_doubt, _free(wikiann["train"], table))],
        "tags-test": _part(sources.bosque["test"], table, "test-tags"),
        "tags-valid": _part(sources.bosque["dev"], table, "valid-tags"),
        "tags-train": _free(sources.bosque["train"], table),
        "tags-train-gsd": _free(sources.gsd, table),
    }
    files["entities-train"] = [as_read(sentence) for sentence in files["entities-train"]]
    return files


def _part(sentences: Iterable[Sentence], table: dict[str, str], split: str) -> list[Sentence]:
    return [each for each in sentences if table.get(each.hash) == split]


def _free(sentences: Iterable[Sentence], table: dict[str, str]) -> list[Sentence]:
    return list(dict.fromkeys(each for each in sentences if each.hash not in table))


def story_files(sources: Sources, table: dict[str, str]) -> dict[str, list[list[str]]]:
    """The chapters of each file of stories, as paragraphs. A held-out paragraph is in no training text."""
    files: dict[str, list[list[str]]] = {"stories-train": [], "stories-valid": [], "stories-test": []}
    for lines in sources.stories.values():
        texts = list(chapters(lines))
        splits = [split for chapter in texts for text in chapter if (split := table.get(text_hash(text)))]
        name = max(set(splits), key=splits.count).split("-")[0] if 2 * len(splits) > sum(map(len, texts)) else "train"
        files[f"stories-{name}"] += texts
    files["stories-train"] += sources.other_works
    kept = ([text for text in chapter if text_hash(text) not in table] for chapter in files["stories-train"])
    files["stories-train"] = [chapter for chapter in kept if chapter]
    return files


def pair_texts(folder: Path, table: dict[str, str]) -> Iterator[str]:
    """The different Portuguese texts of pairs, of five words and more, less those that are held out."""
    seen: set[str] = set()
    for name in ("train.tsv", "european.tsv"):
        for line in lines_of(folder, name):
            text = line.split("\t")[1]
            if len(text.split()) >= WORDS and (hash_ := text_hash(text)) not in table and hash_ not in seen:
                seen.add(hash_)
                yield text


def gather(out: Path, data: Path, pairs: Path | None, *, redraw: bool) -> None:
    """Read everything, draw or take what is held out, write the files."""
    sources = read(data)
    if redraw:
        write_table(draw(sources))
    table = read_table()
    out.mkdir(parents=True, exist_ok=True)
    labelled = labelled_files(sources, table)
    for name, sentences in labelled.items():
        text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in zip(*sentence)) for sentence in sentences)
        _write(out / f"{name}.conll", text, f"{len(sentences):,} sentences")
    written = story_files(sources, table)
    for name, texts in written.items():
        text = "\n\n".join("\n".join(chapter) for chapter in texts) + "\n"
        _write(out / f"{name}.txt", text, f"{len(texts):,} chapters")
    prose = [" ".join(each.words) for name in labelled if "-train" in name for each in labelled[name]]
    prose += [text for chapter in written["stories-train"] for text in chapter]
    for name, lines in (("prose", prose), ("pairs", list(pair_texts(pairs, table)) if pairs else [])):
        _write(out / f"texts-{name}.txt", "".join(f"{line}\n" for line in lines), f"{len(lines):,} texts")


def _write(path: Path, text: str, what: str) -> None:
    path.write_text(text, "utf-8")
    sys.stdout.write(f"{path.name}: {what}, {len(text.encode()):,} bytes\n")


def main() -> int:
    """Read the command line and gather, or check; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.labels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the files")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--pairs", type=Path, help="what `models.pairs` wrote")
    parser.add_argument("--draw", action="store_true", help="draw the held-out parts anew")
    parser.add_argument("--check", type=Path, nargs="+", metavar="FILE", help="training files of anyone")
    values = parser.parse_args()
    if values.check:
        found = {path: held_out_in(path, read_table()) for path in values.check}
        sys.stdout.writelines(f"{path}: {count:,} held out\n" for path, count in found.items())
        return int(any(found.values()))
    if values.out is None or values.data is None:
        parser.error("--out and --data, or --check")
    gather(values.out, values.data, values.pairs, redraw=values.draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
