"""The parts of a finished run joined in order, after their hashes are verified."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from atento.base.errors import AtentoError, DataError, UsageError, counted
from atento.base.limits import open_plain
from atento.storage.atomic_files import atomic_file
from atento_cli.scale.parts import MANIFEST, OutputFolder

_CHUNK = 1 << 20  # bytes that are copied at once
_LISTED = 10  # problems in a message


def collectable(path: Path) -> OutputFolder:
    """The folder of a finished run whose parts are all there, bit for bit.
    Raises UsageError: it is no such folder. DataError: parts are missing or altered; the message lists them.
    """
    folder = OutputFolder(path)
    if folder.body is None:
        raise UsageError(f"{path} has no {MANIFEST}: give the --out folder of a command with --cluster")
    total = len(folder.blocks)
    wrong = folder.check()
    absent = [block.number for block in folder.blocks if block.number not in folder.parts.keys() | wrong.keys()]
    if wrong or absent:
        problems = [*wrong.values(), *(f"{numbers} not finished" for numbers in _ranges(absent))]
        more = len(problems) - _LISTED
        shown = "; ".join(problems[:_LISTED]) + (f"; and {more} more" if more > 0 else "")
        raise DataError(
            f"{path}: {counted(len(folder.parts), 'part')} of {total:,} can be joined: {shown}; run the same command "
            "to make the others"
        )
    return folder


def contents(folder: OutputFolder) -> Iterator[bytes]:
    """The bytes of the parts of a verified folder one after another; arrays become one array.
    Raises AtentoError: a part cannot be read, or its array does not fit those before it.
    """
    paths = [folder.part_path(block.number) for block in folder.blocks]
    if folder.ending == ".npy":
        yield _header(paths)
    for path in paths:
        # the bytes of a part; of an array without its header
        try:
            with open_plain(path) as part:
                if folder.ending == ".npy":
                    _read_header(part)
                while content := part.read(_CHUNK):
                    yield content
        except OSError as error:
            raise AtentoError(f"{path} cannot be read: {error.strerror}") from None


def write_joined(folder: OutputFolder, out: Path) -> None:
    """Write the joined parts to a file, which is replaced when it is whole.
    Raises AtentoError: it cannot be written.
    """
    try:
        with atomic_file(out) as partial, partial.open("wb") as stream:
            stream.writelines(contents(folder))
    except OSError as error:
        raise AtentoError(f"{out} cannot be written: {error.strerror}") from error


def _header(paths: list[Path]) -> bytes:
    """The header of the array of all parts, as NumPy writes it."""
    rows, first = 0, None
    for path in paths:
        with open_plain(path) as part:
            shape, dtype = _read_header(part)
        first = first or (shape[1:], dtype)  # width and type of the first part
        if (shape[1:], dtype) != first:
            raise AtentoError(f"{path}: its vectors do not fit those before: {shape} of {dtype}, before {first}")
        rows += shape[0]
    assert first is not None
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(first[1])
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": (rows, *first[0])})
    return stream.getvalue()


def _read_header(part: BinaryIO) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """The shape and type of an array file, which is left at its first value."""
    np.lib.format.read_magic(part)
    shape, _, dtype = np.lib.format.read_array_header_1_0(part)
    return shape, dtype


def _ranges(numbers: list[int]) -> Iterator[str]:
    """Numbers as ranges, each with its verb: "part 3 is", "parts 5-9 are"."""
    start = 0
    for index, number in enumerate(numbers):
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            first = numbers[start]
            yield f"part {first} is" if first == number else f"parts {first}-{number} are"
            start = index + 1
