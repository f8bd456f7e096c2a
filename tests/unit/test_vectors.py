"""Word vectors in files: bytes laid out by hand, round trips, broken files refused; neighbours by cosine (C15)."""

import gzip
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.base.errors import AtentoError, DataError, UsageError
from atento.text.word_vectors import (
    Vectors,
    read_binary_vectors,
    read_text_vectors,
    write_binary_vectors,
    write_text_vectors,
)
from failing import fails

ROWS = {"gato": (1.0, -2.5), "é": (0.1, 3e-40)}
BINARY = b"2 2\ngato " + struct.pack("<2f", 1.0, -2.5) + b"\n" + "é ".encode() + struct.pack("<2f", 0.1, 3e-40) + b"\n"
TEXT = "2 2\ngato 1.0 -2.5\né 0.1 3e-40\n".encode()
PAIRS = [(read_text_vectors, write_text_vectors, TEXT), (read_binary_vectors, write_binary_vectors, BINARY)]
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \n\r\t\0"), min_size=1, max_size=8)
ONE = struct.pack("<2f", 1.0, 2.0)


def sample() -> Vectors:
    return Vectors(list(ROWS), np.array(list(ROWS.values()), dtype=np.float32))


def same(a: Vectors, b: Vectors) -> bool:
    return a.words == b.words and a.matrix.tobytes() == b.matrix.tobytes() and a.matrix.shape == b.matrix.shape


@pytest.mark.parametrize(("read", "write", "data"), PAIRS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_c15_layout_of_files(read: Any, write: Any, data: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    assert same(read(path), sample())
    write(path, sample())
    written = path.read_bytes()
    assert (gzip.decompress(written) if suffix else written) == data
    assert same(read(path), sample()) and [one.name for one in tmp_path.iterdir()] == [path.name]


def test_c15_what_other_programs_write_is_read(tmp_path: Path) -> None:
    """The published program ends a text row with a space; others leave the newline of the binary format out."""
    path = tmp_path / "vectors"
    path.write_bytes(b"2 2\ngato 1.000000 -2.500000 \nse 0.5 1 \n")
    assert read_text_vectors(path).matrix.tolist() == [[1.0, -2.5], [0.5, 1.0]]
    path.write_bytes(BINARY.replace(b"\n", b"").replace(b"2 2", b"2 2\n"))
    assert same(read_binary_vectors(path), sample())
    path.write_bytes(b"1 2\nmais 3.4028235e+38 -0.0\n")  # the largest float32, at its shortest above its exact value
    assert read_text_vectors(path).matrix.tobytes() == struct.pack("<2f", np.finfo(np.float32).max, -0.0)
    path.write_bytes(b"2 2\r\ngato 1 -2.5\r\nse 0.5 1\r\n")
    assert read_text_vectors(path).words == ["gato", "se"]


@settings(max_examples=40)
@given(st.data())
def test_c15_reading_gives_back_the_same_bits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any float32, whose bytes may look like spaces and newlines, and any words."""
    words = data.draw(st.lists(WORD, min_size=1, max_size=5, unique=True))
    width = data.draw(st.integers(1, 4))
    numbers = data.draw(st.lists(FLOATS, min_size=width * len(words), max_size=width * len(words)))
    vectors = Vectors(words, np.array(numbers, dtype=np.float32).reshape(len(words), width))
    folder = tmp_path_factory.mktemp("vectors")
    for read, write, _ in PAIRS:
        for name in ("plain", "packed.gz"):
            write(folder / name, vectors)
            assert same(read(folder / name), vectors)


@pytest.mark.parametrize(("read", "write", "data"), PAIRS)
@pytest.mark.parametrize("packed", [False, True])
def test_cut_files_are_refused(read: Any, write: Any, data: bytes, packed: bool, tmp_path: Path) -> None:
    """All prefixes; only the very last newline of the binary format may be missing."""
    path = tmp_path / ("vectors.gz" if packed else "vectors")
    whole = gzip.compress(data) if packed else data
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if read is read_binary_vectors and not packed and length == len(whole) - 1:
            assert same(read(path), sample())
            continue
        fails(DataError, r"ends|first line|truncated|damaged|nothing", read, path)


@pytest.mark.parametrize(("read", "write", "data"), PAIRS)
def test_every_file_that_goes_on_is_refused(read: Any, write: Any, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    for more in (b"\n", b"x", b" ", b"gata 1 2\n", b"\0"):
        path.write_bytes(data + more)
        fails(DataError, r"has more than the 2 words of its first line", read, path)


def test_text_files_paths_words_and_binary_files_that_are_wrong_are_refused_with_their_place(tmp_path: Path) -> None:
    for text, message in (
        (b"", r"vectors:1: the first line must be `words width`.*got b''"),
        (b"gato 1 2\n", r"vectors:1: the first line must be `words width`.*b'gato 1 2"),
        (b"-1 2\n", r"vectors:1: the first line"),
        (b"1_0 2\n", r"vectors:1: the first line"),
        (b"0 2\n", r"vectors:1: `words width` must be at least 1.*got 0 and 2"),
        (b"1 9999999\na 1\n", r"vectors:1: `words width`.*got 1 and 9999999"),
        (b"2 2\na 1 2\nb 1\n", r"vectors:3: a row must have a word and 2 numbers: got 2 fields"),
        (b"2 2\na 1 2\nb c 1 2\n", r"vectors:3: a row must have .*got 4 fields"),
        (b"2 2\na 1 2\nb 1  2\n", r"vectors:3: a row must have"),
        (b"2 2\na 1 2\nb 1 x\n", r"vectors:3: field 3 must be a finite number of float32: got 'x'"),
        (b"2 2\na 1_0 2\nb 1 2\n", r"vectors:2: field 2 must be a finite number.*got '1_0'"),
        (b"2 2\na nan 2\nb 1 2\n", r"vectors:2: field 2 must be a finite number.*got 'nan'"),
        (b"2 2\na 1 1e39\nb 1 2\n", r"vectors:2: field 3 must be a finite number.*got '1e39'"),
        (b"2 2\na 1 2\na 1 2\n", r"vectors:3: the word 'a' comes twice, first as line 2"),
        (b"2 2\n\xff 1 2\nb 1 2\n", r"vectors:2: the word is not UTF-8"),
        (b"2 2\n 1 2\nb 1 2\n", r"vectors:2: the word is empty"),
        (b"3 2\na 1 2\nb 1 2\n", r"vectors:4: the file ends after 2 of the 3 words"),
        (b"1 2\na 1 2\nb 1 2\n", r"vectors:3: the file has more than the 1 words"),
        (b"1 2\na 1 2", r"vectors:2: the file ends inside this line"),
    ):
        (tmp_path / "vectors").write_bytes(text)
        fails(DataError, message, read_text_vectors, tmp_path / "vectors")
    fails(DataError, r"none: no such file", read_text_vectors, tmp_path / "none")
    fails(DataError, r"Is a directory", read_text_vectors, tmp_path)
    (tmp_path / "vectors.gz").write_bytes(TEXT)
    fails(DataError, r"vectors.gz: the gzip data is damaged", read_text_vectors, tmp_path / "vectors.gz")
    folder = tmp_path / "words"
    folder.mkdir()
    said = "vectors: a word of a vector file must be Unicode text without blanks"
    for word in ("", "a b", "a\nb", "a\udc80"):
        path = folder / "vectors"
        path.write_bytes(TEXT)
        for write in (write_text_vectors, write_binary_vectors):
            fails(DataError, said, write, path, Vectors([word], np.ones((1, 2), dtype=np.float32)))
        assert path.read_bytes() == TEXT and len(list(folder.iterdir())) == 1
    for data, message in (
        (b"2 2\na " + ONE + b"\na " + ONE, r"vectors: byte 14: the word 'a' comes twice, first as word 1"),
        (b"2 2\na " + ONE + b"\n " + ONE, r"vectors: byte 14: the word is empty"),
        (b"1 2\n\xff " + ONE, r"vectors: byte 4: the word is not UTF-8"),
        (b"1 2\n\na " + ONE, r"vectors: byte 4: word 1 of 1: no space ends the word"),
        (b"2 2\na " + ONE + b"\n\nb " + ONE, r"vectors: byte 14: word 2 of 2: no space ends the word"),
        (b"2 2\na " + ONE + b"\nb " + ONE[:7], r"vectors: byte 14: the file ends inside the vector of word 2 of 2"),
        (b"2 2\na " + ONE + b"\nb", r"vectors: byte 14: word 2 of 2: the file ends before the end of the word"),
        (b"1 2\na " + struct.pack("<2f", 1.0, math.nan), r"byte 4: the vector of word 1 is not finite"),
        (b"1 2\n" + b"a" * 70000 + b" " + ONE, r"byte 4: word 1 of 1: no space ends the word"),
        (TEXT, r"vectors: byte"),
    ):
        (tmp_path / "vectors").write_bytes(data)
        fails(DataError, message, read_binary_vectors, tmp_path / "vectors")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize("name", ["vectors", "vectors.gz"])
def test_a_full_disk_leaves_the_file_as_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(TEXT)
    for write in (write_text_vectors, write_binary_vectors):
        (tmp_path / f"{name}.part").symlink_to("/dev/full")
        fails(AtentoError, rf"{name}: cannot be written: No space left", write, path, sample())
        assert path.read_bytes() == TEXT and len(list(tmp_path.iterdir())) == 1


def test_words_and_vectors_that_cannot_be_are_refused() -> None:
    assert "gato" in sample() and "gata" not in sample() and len(sample()) == 2
    assert sample()["gato"].tolist() == [1, -2.5]
    fails(DataError, r"one row a word: got \(2, 3\) for 1 words", Vectors, ["a"], np.zeros((2, 3)))
    fails(DataError, r"words must differ .*: got 'a' twice", Vectors, ["a", "b", "a"], np.zeros((3, 1)))
    fails(DataError, r"vectors must be finite: that of 'b' is not", Vectors, ["a", "b"], np.array([[1.0], [np.inf]]))
    with pytest.raises(UsageError, match=r"no vector for the word 'gata'; did you mean 'gato'\?"):
        sample()["gata"]
    fails(UsageError, r"`top` must be at least 1: got 0", sample().neighbours, "gato", 0)


@settings(max_examples=25)
@given(st.integers(0, 1 << 32))
def test_c15_neighbours_are_those_of_a_plain_loop(seed: int) -> None:
    """By cosine, whatever the lengths; that of a vector of zeros is 0."""
    random = np.random.default_rng(seed)
    matrix = (random.normal(size=(9, 3)) * random.uniform(0.01, 100, (9, 1))).astype(np.float32)
    matrix[8] = 0
    vectors = Vectors([f"w{n}" for n in range(9)], matrix)
    wide = matrix.astype(np.float64)

    def cosine(a: int, b: int) -> float:
        return 0.0 if b == 8 else float(wide[a] @ wide[b] / (np.linalg.norm(wide[a]) * np.linalg.norm(wide[b])))

    expected = sorted((cosine(4, other) for other in range(9) if other != 4), reverse=True)
    found = vectors.neighbours("w4")
    assert [value for _, value in found] == pytest.approx(expected, abs=1e-5)
    assert found[:3] == vectors.neighbours("w4", 3)
    assert all(value == pytest.approx(cosine(4, int(word[1:])), abs=1e-5) for word, value in found)
