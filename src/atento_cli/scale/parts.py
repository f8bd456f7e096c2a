"""The output folder of a run over blocks: one part a block, a manifest of them all, and a journal while it runs."""

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atento.base.errors import AtentoError, DataError, UsageError, reason_of
from atento.base.limits import open_plain, read_plain
from atento.data.store.token_writer import write_durably
from atento.storage.manifest import strict_json
from atento_cli.scale.line_blocks import Block, Plan

MANIFEST = "manifest.json"
PARTS = "parts"
ENDINGS = (".txt", ".jsonl", ".npy")
_JOURNAL = "parts.jsonl"  # a line for each part that was finished since the manifest was written
_FORMAT = "atento-parts-1"
_BLOCK = [field for field in Block.__dataclass_fields__ if field != "number"]  # a block in the manifest is a list
_FLAGS = {"as_json": "--json"}  # whose names are not those of the options with hyphens


@dataclass(frozen=True)
class Part:
    """A finished part: its size in bytes, its SHA-256, its bad lines and the message of the first of them."""

    size: int
    sha256: str
    bad: int = 0
    first_bad: str | None = None


@dataclass(frozen=True)
class Job:
    """What decides the bytes of the parts: another command, model, option or input is another job."""

    command: str  # the name of the command
    model: str  # the model as it was named; its hash counts, not its name
    model_sha256: str  # of the files of the model
    options: Mapping[str, object]  # the options of the command that change its output
    input: str  # the name of the input
    ending: str  # of the parts


class OutputFolder:
    """The folder of a run. It holds `manifest.json`, and `parts/part-00000.txt` and so on, one for each block.

    Each part is there whole or not at all. Its record goes to a journal, since a manifest of thousands of parts is
    written only at the beginning and at the end of a run.

    Raises:
        DataError: there is a manifest that is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.body = _read(path / MANIFEST)
        self.parts: dict[int, Part] = {}
        if self.body is not None:
            self.parts = {n: Part(**part) for n, part in enumerate(self.body["parts"]) if part is not None}
            self.parts.update(self._journal())

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of its manifest."""
        if self.body is None:
            return ()
        return tuple(Block(number, *values) for number, values in enumerate(self.body["blocks"]))

    @property
    def ending(self) -> str:
        """The extension of its parts."""
        return str(self.body["ending"]) if self.body is not None else ""

    def difference(self, job: Job) -> list[str]:
        """How a job differs from the one of the manifest, as sentences; the input is compared by its content."""
        assert self.body is not None
        old, new = self.body["job"], json.loads(json.dumps(asdict(job)))  # as JSON gives it back
        lines = []
        if old["command"] != new["command"]:
            lines.append(f"the command was {old['command']} and is {new['command']}")
        if old["model_sha256"] != new["model_sha256"]:
            names = old["model"], new["model"]
            lines.append(f"the model was {names[0]} and is {names[1]}" if len(set(names)) > 1 else "the model changed")
        for name in sorted(old["options"].keys() | new["options"].keys()):
            before, now = old["options"].get(name), new["options"].get(name)
            if before != now:
                lines.append(f"{flag_of(name)} was {_value(before)} and is {_value(now)}")
        return lines

    def begin(self, job: Job, plan: Plan, version: Mapping[str, Any]) -> None:
        """Write the manifest of a new run, or the new version of an input with the same content."""
        (self.path / PARTS).mkdir(parents=True, exist_ok=True)
        self.body = {
            "format": _FORMAT,
            "job": asdict(job),
            "input": {**version, "sha256": plan.sha256, "lines": plan.lines},
            "ending": job.ending,
            "fields": _BLOCK,
            "blocks": [[getattr(block, field) for field in _BLOCK] for block in plan.blocks],
            "parts": [],
        }
        self.save()

    def part_path(self, number: int) -> Path:
        """The file of a part."""
        return self.path / PARTS / f"part-{number:05d}{self.ending}"

    def check(self) -> dict[int, str]:
        """Compare the parts with their hashes and forget those that are missing or altered.

        Returns:
            The number of each of those, with what is wrong.
        """
        wrong = {}
        for number, part in sorted(self.parts.items()):
            problem = self.problem(number, part)
            if problem is not None:
                wrong[number] = problem
                del self.parts[number]
        return wrong

    def problem(self, number: int, part: Part) -> str | None:
        """What is wrong with a part; None: nothing."""
        path = self.part_path(number)
        try:
            with open_plain(path) as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
        except FileNotFoundError:
            return f"{path.name} is missing"
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"
        return None if same else f"{path.name} was altered: its SHA-256 is not that of the manifest"

    def add(self, block: Block, content: bytes, bad: Sequence[str]) -> None:
        """Write the part of a block, and its record. Raises AtentoError: it cannot be written."""
        path = self.part_path(block.number)
        _write_whole(path, content)
        digest = hashlib.sha256(content).hexdigest()
        part = Part(len(content), digest, len(bad), bad[0] if bad else None)
        self.parts[block.number] = part
        with _errors(self.path / _JOURNAL), (self.path / _JOURNAL).open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps({"number": block.number, **asdict(part)}) + "\n")

    def save(self) -> None:
        """Write the manifest with all parts that are finished, and remove the journal."""
        assert self.body is not None
        parts = [self.parts.get(number) for number in range(len(self.body["blocks"]))]  # by number, None: not done
        self.body["parts"] = [None if part is None else asdict(part) for part in parts]
        _write_whole(self.path / MANIFEST, _rendered(self.body))
        with suppress(OSError):
            (self.path / _JOURNAL).unlink()

    def _journal(self) -> Iterator[tuple[int, Part]]:
        """The records of the journal; the last line may be cut short."""
        try:
            lines = read_plain(self.path / _JOURNAL).splitlines()
        except OSError:
            return
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                yield int(record.pop("number")), Part(**record)


def flag_of(name: str) -> str:
    """The flag that users type for an option of a command."""
    return _FLAGS.get(name) or "--" + name.replace("_", "-")


def _value(value: object) -> str:
    """The value of an option as users type it."""
    if value is None or isinstance(value, bool) or value == []:
        return "given" if value else "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _rendered(body: Mapping[str, Any]) -> bytes:
    """The manifest as JSON: a line for each block and each part."""
    lines = []
    for key, value in body.items():
        text = json.dumps(value, ensure_ascii=False)
        if key in ("blocks", "parts") and value:
            rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in value)
            text = f"[\n{rows}\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "surrogatepass")


def _read(path: Path) -> dict[str, Any] | None:
    """The manifest; None: there is none. Raises DataError: it is malformed."""
    try:
        body = strict_json(read_plain(path))
        if body["format"] != _FORMAT:
            raise DataError(f"{path}: its format must be {_FORMAT}: got {body['format']!r}")
        if body["fields"] != _BLOCK or not all(len(values) == len(_BLOCK) for values in body["blocks"]):
            raise ValueError("its blocks are not those of this version")
        if body["ending"] not in ENDINGS:  # it is a part of file names
            raise ValueError(f"`ending` must be one of {', '.join(ENDINGS)}: got {body['ending']!r}")
        if not isinstance(body["job"], dict) or not isinstance(body["input"], dict):
            raise ValueError("`job` and `input` must be objects")
        [Part(**part) for part in body["parts"] if part is not None]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no manifest of parts ({reason_of(error)}): remove the folder to begin again"
        ) from None
    return dict(body)


def refuse_difference(folder: OutputFolder, job: Job) -> None:
    """Raises UsageError: the manifest of the folder is that of another job; the message says what differs."""
    difference = folder.difference(job)
    if difference:
        raise UsageError(
            f"--out {folder.path} has the parts of another run: {'; '.join(difference)}; give another folder, or the "
            "same command to continue that run"
        )


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into one sentence about a file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AtentoError(
                f"{path}: the disk is full; the parts written so far are good: free space and run the same command to "
                "continue"
            ) from error
        raise AtentoError(f"{path} cannot be written: {error.strerror}") from error


def _write_whole(path: Path, content: bytes) -> None:
    """`write_durably`. Raises AtentoError: it cannot be written."""
    with _errors(path):
        write_durably(path, content)
