"""Gather the English-Portuguese pairs that the shipped translators learn from, less those that are held out.

    python -m models.pairs --out FOLDER [--data FOLDER] [--packages FOLDER] [--only WORD ...] [--draw]

FOLDER gets train.tsv (English, Portuguese, origin), european.tsv (European Portuguese, likewise), test-*.tsv and
valid-*.tsv, and origins.tsv (origin, pairs, words, section, licence). `--data` names a folder of data sets, each with
a train.tsv.gz; `--packages` where unpacked packages are kept for the next time. `--draw` draws the held-out pairs anew.
"""

import argparse
import gzip
import html
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atento_cli.corpus.fetch import without_accelerator
from models.held_out import Pair, draw, everyday_pairs, read_table, write_table
from models.readers import kde_entities, package_pairs, sentences, texts_of
from models.registries import tree_of, unpack

KDE_NAMES = ("kdoctools5",)  # the package that says what &kate; is
PACKAGES = Path(__file__).with_name("packages.tsv")
DATA_SETS = {  # folder -> origin, section, licence
    "tatoeba_en_pt": ("tatoeba", "everyday", "CC BY 2.0 FR"),
    "python_docs_en_pt": ("python-docs", "doc", "CC0 1.0 (translation), PSF-2.0 (original)"),
    "libreoffice_help_en_pt_BR": ("libreoffice-help", "doc", "MPL-2.0"),
    "debian_handbook_en_pt_BR": ("debian-handbook", "doc", "GPL-2+ or CC BY-SA 3.0"),
    "debian_descriptions_en_pt_BR": ("debian-descriptions", "misc", "each package's own free licence"),
}


class Package(NamedTuple):
    """A line of packages.tsv: registry, packages that are unpacked together, section in Debian, licence."""

    registry: str
    names: tuple[str, ...]
    section: str
    licence: str


def packages() -> list[Package]:
    """The packages to read, as packages.tsv lists them."""
    rows = (line.split("\t") for line in PACKAGES.read_text("utf-8").splitlines())
    return [Package(registry, tuple(names.split()), section, licence) for registry, names, section, licence in rows]


# Gathering --------------------------------------------------------------------------------------------------------


def data_set_pairs(folder: Path) -> Iterator[Pair]:
    """The pairs of the data sets that a folder holds."""
    for name, (origin, _, _) in DATA_SETS.items():
        path = folder / name / "train.tsv.gz"
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for source, target in texts_of(stream):
                if clean := cleaned(source, target):
                    yield Pair(*clean, origin)


def package_texts(chosen: list[Package], folder: Path) -> Iterator[tuple[str, Pair]]:
    """The pairs of packages, each with its language, "pt-BR" or "pt"."""
    wanted = [("debian", KDE_NAMES), *((package.registry, package.names) for package in chosen)]
    for complaint in unpack(wanted, folder):
        sys.stderr.write(f"{complaint}\n")
    entities = kde_entities(tree_of(KDE_NAMES, folder))
    for package in chosen:
        for kind, language, source, target in package_pairs(tree_of(package.names, folder), entities):
            if clean := cleaned(source, target):
                for sides in sentences(*clean):
                    yield language, Pair(*sides, f"{kind}:{package.names[0]}")


# Hygiene ----------------------------------------------------------------------------------------------------------

_INLINE = (
    "a|abbr|acronym|b|big|bold|code|color_\\w+|command|email|em|emphasis|envar|filename|font|good|bad|neutral|guibutton|"
    "guilabel|guimenu|i|icode|info|interface|italic|kbd|link|message|nobr|placeholder|q|qt|resource|shortcut|small|span|"
    "strong|sub|sup|tt|u|application|numid|bcode|samp|var|nowiki"
)
_BLOCK = "body|br|center|div|h[1-6]|hr|html|img|li|nl|note|ol|p|para|pre|table|td|th|tip|title|tr|ul|warning"
_ALSO_VALUES = {"command", "code", "email", "filename", "link", "message", "resource", "title", "envar"}  # "FILE"
_TAG = re.compile(rf"</?(?:{_INLINE}|(?P<block>{_BLOCK}))(?:\s[^<>]*)?/?>|\[/?[biu]\]|'{{2,3}}", re.IGNORECASE)
_CREDITS = re.compile(
    r"(NAMES?|EMAILS?) OF TRANSLATORS|translator[-_ ]?(credits|name|email|info)|^Your (names?|emails?)$|"
    r"@(info|title|label)\b|[\w.]+@[\w.]+\.\w+.*@",
    re.IGNORECASE,
)
_URL = re.compile(r"\S*://\S+|\S+@\S+\.\S+")
_KEY = re.compile(r"\S*\w[._:/\\=]\w\S*|\S*[a-z][A-Z]\S*|[A-Z0-9_]*_[A-Z0-9_]*")  # one word that is a name in a program
_DAMAGED = re.compile(r"Ã[\x80-\xbf£§©¡ªµ³º­]|â€|\ufffd|\ufffc|Â[º°ª»«]")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_MARKUP = re.compile(r"\\f[BIRP]|\b(dst|text)='|\[/?\w+=|^_[n:]:? |\{\{|\[\[|&\w+;")
WORDS = 250  # more than that is no sentence

_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]+")


def cleaned(source: str, target: str) -> tuple[str, str] | None:
    """Return the two texts as a reader sees them, or None if they are no example of translation."""
    tags = [Counter(tag[0].split()[0].lower().strip("</>") for tag in _TAG.finditer(text)) for text in (source, target)]
    if tags[0] != tags[1] or any(name in _ALSO_VALUES and f"</{name}" not in source.lower() for name in tags[0]):
        return None
    source, target = (_plain(text) for text in (source, target))
    for sign in "|^":
        if sign in source and sign not in target:
            source = source.rpartition(sign)[2].strip()  # a context in the old form, "menu|Open", "female^drunk"
    source, target = without_accelerator(source, target, "~")
    source, target = _without_lone_mark(source, target)
    if not _LETTERS.search(source) or not _LETTERS.search(target) or source.casefold() == target.casefold():
        return None
    mark = re.match(r"(?:(?:\d+\.)+|[*•–-]) ", source)
    if mark and target.startswith(mark[0]):  # the number of a section, the dot of a list
        source, target = source[mark.end() :], target[mark.end() :]
    if _KEY.fullmatch(source) or _code(source) or not _LETTERS.search(_URL.sub("", source)):
        return None
    both = f"{source}\n{target}"
    if _CREDITS.search(source) or _DAMAGED.search(both) or _MARKUP.search(both) or source.count(";") > 2:
        return None
    if max(len(source.split()), len(target.split())) > WORDS:
        return None
    if _URL.search(target) and not _URL.search(source):  # people's addresses
        return None
    return source, target


def _code(text: str) -> bool:
    """Is less than half of a longer text letters and blanks?"""
    return len(text) > 12 and 2 * sum(character.isalpha() or character == " " for character in text) < len(text)


def _plain(text: str) -> str:
    """Without markup, entities, invisible characters and doubled blanks."""
    if "<" in text or "[" in text or "''" in text:
        text = _TAG.sub(lambda tag: " " if tag["block"] else "", text)
        text = re.sub(r"\s+(?=[,.;:!?](?:\s|$))", "", text)
    text = html.unescape(text).replace("\u00ad", "")
    text = " ".join(unicodedata.normalize("NFC", _INVISIBLE.sub(" ", text)).split())
    return text


def _without_lone_mark(source: str, target: str) -> tuple[str, str]:
    """Remove the mark of a menu key that only one side has, or that stands at another place."""
    if len(source.split()) > 8:
        return source, target
    marks = [len(re.findall(r"&(?=\w)", text)) for text in (source, target)]
    if sorted(marks) == [0, 1]:
        source, target = (re.sub(r"&(?=\w)", "", text) for text in (source, target))
    marks = [len(re.findall(r"(?<!\S)_(?=[^\W_])", text)) for text in (source, target)]
    if max(marks) == 1 and not re.search(r"\w_\w", source):
        source, target = (re.sub(r"_(?=[^\W_])", "", text) for text in (source, target))
    return source, target


# The command ------------------------------------------------------------------------------------------------------


def gather(out: Path, data: Path | None, folder: Path, only: list[str], *, redraw: bool) -> None:
    """Read everything, take the held-out pairs out, write the files."""
    chosen = [package for package in packages() if not only or any(word in package.names[0] for word in only)]
    brazilian: dict[tuple[str, str], Pair] = {}
    european: dict[tuple[str, str], Pair] = {}
    for pair in data_set_pairs(data) if data else ():
        brazilian.setdefault((pair.source, pair.target), pair)
    for language, pair in package_texts(chosen, folder):
        (brazilian if language == "pt-BR" else european).setdefault((pair.source, pair.target), pair)
    for sides in brazilian.keys() & european.keys():
        del european[sides]
    if redraw:
        own = everyday_pairs()
        write_table(draw(brazilian.values(), own) | {pair.hashes: "test-everyday" for pair in own})
    table = read_table()
    _write(out, chosen, brazilian, european, table)


def _write(
    out: Path,
    chosen: list[Package],
    brazilian: dict[tuple[str, str], Pair],
    european: dict[tuple[str, str], Pair],
    table: dict[tuple[str, str], str],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    reserved = {side for sides in table for side in sides}
    files: dict[str, list[Pair]] = {"train": [], "european": []}
    files |= {split: [] for split in sorted(set(table.values())) if split != "test-everyday"}
    taken: set[tuple[str, str]] = set()
    for name, pairs in (("train", brazilian), ("european", european)):
        for pair in pairs.values():
            hashes = pair.hashes
            split = table.get(hashes, "")
            if split in files and hashes not in taken and name == "train":
                taken.add(hashes)  # texts that differ in case or marks alone have the same hash
                files[split].append(pair)
            elif reserved.isdisjoint(hashes):
                files[name].append(pair)
    for name, rows in files.items():
        text = "".join(f"{pair.source}\t{pair.target}\t{pair.origin}\n" for pair in rows)
        (out / f"{name}.tsv").write_text(text, "utf-8")
        sys.stdout.write(f"{name}: {len(rows):,} pairs\n")
    _write_origins(out / "origins.tsv", files["train"], chosen)


def _write_origins(path: Path, pairs: list[Pair], chosen: list[Package]) -> None:
    counts, english, portuguese = Counter[str](), Counter[str](), Counter[str]()
    for pair in pairs:
        counts[pair.origin] += 1
        english[pair.origin] += len(pair.source.split())
        portuguese[pair.origin] += len(pair.target.split())
    about = {origin: (section, licence) for origin, section, licence in DATA_SETS.values()}
    about |= {package.names[0]: (package.section, package.licence) for package in chosen}
    rows = []
    for origin, count in counts.most_common():
        section, licence = about[origin.rpartition(":")[2]]
        rows.append(
            f"{origin}\t{count}\t{english[origin] / count:.1f}\t{portuguese[origin] / count:.1f}\t{section}\t{licence}"
        )
    path.write_text("\n".join(rows) + "\n", "utf-8")


def main() -> None:
    """Read the command line and gather."""
    parser = argparse.ArgumentParser(prog="python -m models.pairs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--data", type=Path, help=f"folder with {', '.join(DATA_SETS)}, each with train.tsv.gz")
    parser.add_argument("--packages", type=Path, help="folder for unpacked packages (default: OUT/packages)")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="only packages with a word in their name")
    parser.add_argument(
        "--draw", action="store_true", help="draw the held-out pairs anew; else the committed ones hold"
    )
    values = parser.parse_args()
    folder = values.packages or values.out / "packages"
    gather(values.out, values.data, folder, values.only, redraw=values.draw)


if __name__ == "__main__":
    main()
