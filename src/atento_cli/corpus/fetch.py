"""`atento data fetch`: sentence pairs out of the help pages and translation catalogues that ordinary packages ship."""

import gettext
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from atento.base.errors import AtentoError, DataError, MissingPartError, UsageError, nearest
from atento.base.limits import open_plain
from atento.text.protected_spans import has_words
from atento_cli.corpus.fetch_pages import page_pairs

_CREDITS = {"translator-credits", "translator_credits", "Your names", "Your emails"}  # answered by people's names
_ACCELERATORS = ("_", "&")  # GTK and Qt: the letter after it is the menu key


def catalogue_pairs(folder: Path, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """Read every `.mo` file of a folder.

    Plural forms are left out (which English form answers which is the language's own rule), contexts are dropped,
    accelerator marks removed.

    Args:
        folder: such as /usr/share/locale/pt_BR/LC_MESSAGES.
        left_out: counts plurals, credits and damaged catalogues.

    Yields:
        English message, its translation, white space collapsed.
    """
    for path in sorted(folder.glob("*.mo")):
        try:
            with open_plain(path) as stream:
                messages: dict[object, str] = vars(gettext.GNUTranslations(stream))["_catalog"]
        except (OSError, ValueError, LookupError, struct.error):
            left_out["damaged catalogues"] += 1
            continue
        for key, translation in messages.items():
            if not isinstance(key, str):
                left_out["plurals"] += 1
                continue
            message = key.rpartition("\x04")[2]  # the text before it is the context
            if not message:
                continue  # the header
            if message.split("\n")[0] in _CREDITS:
                left_out["credits"] += 1
                continue
            source, target = (" ".join(text.split()) for text in (message, translation))
            for accelerator in _ACCELERATORS:
                source, target = without_accelerator(source, target, accelerator)
            yield source, target


def without_accelerator(source: str, target: str, accelerator: str) -> tuple[str, str]:
    """Remove a menu key's mark where both sides have exactly one: "_Open", "&Abrir", "Abrir (_O)".

    A word with the mark inside that is the same in both ("LC_ALL", "AT&T") is a name and is unchanged.
    """
    doubled = accelerator * 2
    sides = [text.replace(doubled, "\0") for text in (source, target)]  # a doubled mark is the mark itself
    words = [[word for word in text.split() if accelerator in word] for text in sides]
    if all(len(marked_words) == 1 and marked_words[0].count(accelerator) == 1 for marked_words in words):
        source_word, target_word = words[0][0], words[1][0]
        if source_word != target_word or source_word.startswith(accelerator):
            pattern = re.compile(rf"\s*\({re.escape(accelerator)}\w\)|{re.escape(accelerator)}(?=\w)")
            sides = [pattern.sub("", text) for text in sides]
    keep = accelerator if accelerator == "&" else doubled  # "__" is no escape but a name such as __init__
    return sides[0].replace("\0", keep), sides[1].replace("\0", keep)


CATALOGUES = Path("/usr/share/locale")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]{2})?")
# The languages that LibreOffice's help is packaged in, as its folders spell them.
_HELP = "ca cs da de dz el es et eu fi fr gl hi hu id it ja km ko nl om pl pt pt-BR ru sk sl sv tr vi zh-CN zh-TW"
_SECONDS = 600  # for one download


@dataclass(frozen=True)
class Fetched:
    """What was written, for one language: the pairs in each file, and what was left out and why."""

    language: str
    files: dict[Path, int]
    left_out: dict[str, int]

    def __str__(self) -> str:
        files = ", ".join(f"{path} {count:,} pairs" for path, count in self.files.items())
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.left_out.items()))
        return f"{self.language}: {files}" + (f" (left out: {reasons})" if reasons else "")


def fetch_libreoffice(
    languages: Sequence[str], out: Path, *, held_out: int = 0, help_folder: Path | None = None
) -> list[Fetched]:
    """Write `LANG.tsv` (English, tab, translation) from LibreOffice's help, as Debian and Ubuntu package it.

    The packages are downloaded by `apt-get` into a folder that is removed afterwards; nothing is installed, and no
    root is needed. The texts are the LibreOffice contributors', under the Mozilla Public License 2.0.

    Args:
        languages: such as "pt-BR", "es", "fr", "de": every language that has a `libreoffice-help-*` package.
        out: the folder to write to; created if it does not exist.
        held_out: pairs that go to each of `LANG.valid.tsv` and `LANG.test.tsv` instead, whole pages at a time; their
            English sentences are removed from `LANG.tsv`.
        help_folder: installed pages (/usr/lib/libreoffice/help or /usr/share/libreoffice/help, with
            en-US/text and LANG/text below), read instead of downloading.

    Raises UsageError: a language whose help is not packaged, or `held_out` out of range. MissingPartError: no `apt-get`
    or `dpkg-deb` on this machine. AtentoError: the download was refused. DataError: the help holds no pages in that
    language.
    """
    names = [_language(name) for name in languages]
    _check_held_out(held_out)
    if not names:
        raise UsageError("name at least one language to fetch, such as pt-BR")
    for name in names:
        if help_folder is None and name not in _HELP.split():
            raise UsageError(f"LibreOffice's help is not packaged in {name!r}{nearest(name, _HELP.split())}")
    with tempfile.TemporaryDirectory(prefix="atento-fetch-") as scratch:
        root = help_folder or _download(["en-us", *(name.lower() for name in names)], Path(scratch))
        return [_one_help(root, name, out, held_out) for name in names]


def fetch_catalogues(language: str, out: Path, root: Path = CATALOGUES, *, held_out: int = 0) -> Fetched:
    """Write `LANG.catalogues.tsv` (English, tab, translation) from the gettext catalogues installed on this machine.

    Each program's messages are under that program's own licence.

    Args:
        language: such as "pt-BR"; its catalogues are in `root`/pt_BR/LC_MESSAGES.
        out: the folder to write to; created if it does not exist.
        root: the folder of the catalogues of all languages.
        held_out: as for `fetch_libreoffice`, message by message.

    Raises UsageError: a language name that cannot be one, or `held_out` out of range. DataError: no catalogue of that
    language here.
    """
    name = _language(language)
    _check_held_out(held_out)
    folder = catalogue_folder(name, root)
    left_out: Counter[str] = Counter()
    triples = ((message, message, translation) for message, translation in catalogue_pairs(folder, left_out))
    return _write(name, f"{name}.catalogues", triples, left_out, out, held_out)


def catalogue_folder(language: str, root: Path = CATALOGUES) -> Path:
    """Return the folder of a language's catalogues on this machine; raises as `fetch_catalogues`."""
    name = _language(language)
    folder = root / name.replace("-", "_") / "LC_MESSAGES"
    if not any(folder.glob("*.mo")):
        raise DataError(f"{folder}: no translation catalogue (.mo) of {name} is installed here")
    return folder


def _language(name: str) -> str:
    """The name as the packages' folders spell it: "pt_br" is "pt-BR"."""
    low = name.lower().replace("_", "-")
    if not _LANGUAGE.fullmatch(low) or low in ("en", "en-us"):
        raise UsageError(f"a language to fetch is a code such as pt-BR, es, fr or de, other than English: got {name!r}")
    language, _, region = low.partition("-")
    return f"{language}-{region.upper()}" if region else language


def _check_held_out(held_out: int) -> None:
    if held_out < 0:
        raise UsageError(f"`held_out` must be at least 0: got {held_out}")


# LibreOffice ------------------------------------------------------------------------------------------------------


def _download(codes: Iterable[str], scratch: Path) -> Path:
    """Fetch and unpack the help packages into an empty folder; returns the help folder inside."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingPartError(
                f"fetching LibreOffice's help needs apt-get and dpkg-deb (Debian, Ubuntu), and {tool} is not on this "
                "machine; fetch there and copy the .tsv file, or point to an installed help folder"
            )
    packages = [f"libreoffice-help-{code}" for code in dict.fromkeys(codes)]
    _run(["apt-get", "download", *packages], scratch, f"apt-get could not download {', '.join(packages)}")
    for package in sorted(scratch.glob("*.deb")):
        _run(
            ["dpkg-deb", "-x", str(package), str(scratch / "help")],
            scratch,
            f"dpkg-deb could not unpack {package.name}",
        )
    for folder in ("usr/share/libreoffice/help", "usr/lib/libreoffice/help"):
        if (scratch / "help" / folder).is_dir():
            return scratch / "help" / folder
    raise DataError(f"the packages {', '.join(packages)} hold no help folder")


def _run(command: list[str], folder: Path, failure: str) -> None:
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AtentoError(f"{failure}: no end after {_SECONDS} seconds") from None
    if process.returncode:
        output = process.stderr.decode("utf-8", errors="replace").strip().splitlines()
        errors = [line.removeprefix("E: ") for line in output if line.startswith("E: ")] or output[-1:]
        hint = "; `apt-get update` (as root) renews the package lists" if command[0] == "apt-get" else ""
        raise AtentoError(f"{failure}: {'; '.join(errors) or f'exit status {process.returncode}'}{hint}")


def _one_help(root: Path, language: str, out: Path, held_out: int) -> Fetched:
    pages = {name: root / name / "text" for name in ("en-US", language)}
    for name, folder in pages.items():
        if not folder.is_dir():
            raise DataError(f"{root}: holds no help pages in {name} ({name}/text is missing)")
    left_out: Counter[str] = Counter()
    return _write(language, language, page_pairs(pages["en-US"], pages[language], left_out), left_out, out, held_out)


# Both -------------------------------------------------------------------------------------------------------------


def _write(
    language: str, stem: str, triples: Iterable[tuple[str, str, str]], left_out: Counter[str], out: Path, held_out: int
) -> Fetched:
    """Clean (group, English, other) triples, split them by group, and write the files."""
    pairs: dict[tuple[str, str], str] = {}  # the first group that has the pair
    for group, source, translation in triples:
        reason = _reason(source, translation)
        if reason is None and (source, translation) in pairs:
            reason = "repeated"
        if reason is None:
            pairs[source, translation] = group
        else:
            left_out[reason] += 1
    if not pairs:
        raise DataError(f"{stem}: no translated sentence was found")
    files = {}
    for ending, rows in _split(pairs, held_out, left_out).items():
        path = out / f"{stem}{ending}.tsv"
        _replace(path, "".join(f"{source}\t{translation}\n" for source, translation in rows))
        files[path] = len(rows)
    return Fetched(language, files, dict(left_out))


def _reason(source: str, translation: str) -> str | None:
    """Return why a pair is no example of translation, or None."""
    if not source or not translation:
        return "empty"
    if not has_words(source):
        return "without words"
    if source == translation:
        return "untranslated"
    return "with a character that lines must not contain" if "\0" in source + translation else None


def _split(
    pairs: dict[tuple[str, str], str], held_out: int, left_out: Counter[str]
) -> dict[str, list[tuple[str, str]]]:
    """All pairs under ""; with `held_out`, whole groups go to ".test" and ".valid" first, in the order of a hash."""
    if not held_out:
        return {"": list(pairs)}
    if held_out * 4 > len(pairs):  # half of the pairs at least stay
        raise UsageError(f"`held_out` twice must leave at least half of the {len(pairs)} pairs: got {held_out}")
    sizes = Counter(pairs.values())
    ending_of: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for group in sorted(sizes, key=lambda name: sha256(name.encode("utf-8")).digest()):  # whatever is read first
        ending = next((source for source in (".test", ".valid") if counts[source] < held_out), "")  # until it is full
        if ending:
            ending_of[group] = ending
            counts[ending] += sizes[group]
    reserved: dict[str, str] = {}  # the English sentences that are held out, and where
    for ending in (".test", ".valid"):
        for (source, _), group in pairs.items():
            if ending_of.get(group) == ending:
                reserved.setdefault(source, ending)
    files: dict[str, list[tuple[str, str]]] = {"": [], ".valid": [], ".test": []}
    for (source, translation), group in pairs.items():
        ending = ending_of.get(group, "")
        if reserved.get(source, "") == ending:  # an English sentence is in one file alone
            files[ending].append((source, translation))
        else:
            left_out["also in a held-out file"] += 1
    return files


def _replace(path: Path, text: str) -> None:
    """Write a file atomically: to a temporary file beside it, which is then renamed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).chmod(0o644)  # mkstemp's mode allows no other user to read
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise AtentoError(f"{path}: cannot be written: {error.strerror}") from None
