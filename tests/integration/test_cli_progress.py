"""What a person sees while a command works: bars on a real terminal, lines in a file, standard output untouched."""

import os
import pty
import re
import threading
from contextlib import suppress
from pathlib import Path

from conftest import Done, ForkServer, lines_of, refused
from http_service import until


def screen_of(server: ForkServer, argv: list[str], cwd: Path) -> tuple[Done, str]:
    """A command with a terminal behind standard error: how it ended, and what the terminal was sent."""
    ours, theirs = pty.openpty()
    screen = bytearray()

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while got := os.read(ours, 4096):
                screen.extend(got)

    reader = threading.Thread(target=read)
    reader.start()
    done = server.run(*argv, cwd=cwd, stderr=Path(os.ttyname(theirs)), env={"NO_COLOR": "1"})
    os.close(theirs)
    reader.join(timeout=30)
    os.close(ours)
    return done, screen.decode()


def typed(server: ForkServer, argv: list[str], cwd: Path, keys: bytes) -> Done:
    """A command with a terminal behind standard input, at which somebody types."""
    ours, theirs = pty.openpty()
    running = server.start(*argv, cwd=cwd, stdin=Path(os.ttyname(theirs)))
    os.write(ours, keys)
    done = running.end()
    os.close(ours)
    os.close(theirs)
    return done


def test_a_bar_on_a_terminal_and_only_results_on_standard_output(server: ForkServer, here: Path) -> None:
    command = ["translate", "run", "in.txt", "--batch-tokens", "40", "--threads", "1"]
    (here / "in.txt").write_text("\n".join(lines_of(here / "train.tsv", 0)) + "\n", encoding="utf-8")
    plain = server.run(*command, cwd=here)
    assert plain.status == 0 and plain.stderr == "" and plain.stdout.count("\n") == 60
    done, screen = screen_of(server, command, here)
    assert done.status == 0 and done.stdout == plain.stdout
    assert "translate" in screen and re.search(r"\d+%", screen) and "100%" in screen and re.search(r"\d s left", screen)
    assert 0 <= screen.index("\x1b[?25l") < screen.index("\x1b[?25h") < screen.index("100%")  # Ctrl-C leaves a cursor


def test_lines_where_standard_error_is_no_terminal(server: ForkServer, here: Path) -> None:
    """The half minute between them is set to nothing, all else is the command itself."""
    (here / "in.txt").write_text("\n".join(lines_of(here / "train.tsv", 0)) + "\n", encoding="utf-8")
    for words in ("translate run in.txt --batch-tokens 40", "evaluate run train.tsv --greedy", "embed run in.txt"):
        what = words.split()[0]
        done = server.good(*words.split(), cwd=here, fault="told_at_once")
        told = done.stderr.splitlines()
        assert told and all(re.fullmatch(rf"{what}: \d+% done, \d+ s left", line) for line in told), told
        assert told[-1] == f"{what}: 100% done, 0 s left" and "% done" not in done.stdout
    done = server.run("translate", "run", cwd=here, stdin=here / "in.txt", fault="told_at_once")
    assert done.stderr == "translate: 60 lines done\n"


def test_a_terminal_that_waits_is_told_so(server: ForkServer, here: Path) -> None:
    said = "reading lines from the terminal; end with Ctrl-D, or give FILE to read a file\n"
    for command in (["translate", "run"], ["tokenizer", "encode", "run/tokenizer"]):
        done = typed(server, command, here, b"A cat.\n\x04")
        assert (done.status, done.stdout.count("\n"), done.stderr) == (0, 1, said)

    assert server.run("translate", "run", cwd=here, stdin="A cat.\n").stderr == ""  # a pipe


def test_who_types_is_answered_line_by_line(server: ForkServer, here: Path) -> None:
    """Without --stream too; from a pipe a thousand lines are translated together."""
    ours, theirs = pty.openpty()
    running = server.start("translate", "run", cwd=here, stdin=Path(os.ttyname(theirs)))
    for number in (1, 2):
        os.write(ours, b"A cat.\n")
        until(lambda number=number: running.stdout.read_text(encoding="utf-8").count("\n") >= number, 30)
    os.write(ours, b"\x04")
    done = running.end()
    os.close(ours)
    os.close(theirs)
    assert done.status == 0 and done.stdout.count("\n") == 2 and len(set(done.stdout.splitlines())) == 1


def test_lines_before_a_bad_one_are_answered(server: ForkServer, here: Path) -> None:
    """An early bad line of standard input lost its window of good ones; now they come first, then the error."""
    good = server.run("translate", "run", cwd=here, stdin="A cat.\nA dog.\n").stdout
    for flags in ([], ["--stream", "--greedy"]):
        done = server.run("translate", "run", *flags, cwd=here, stdin=b"A cat.\nA dog.\n\xff\nmore\n")
        assert (done.status, done.stdout) == (1, good), flags
        assert done.stderr.startswith("error: standard input:3: not UTF-8: byte 0xff") and done.stderr.count("\n") == 1
    refused(server.run("translate", "run", cwd=here, stdin=b"\xff\nA cat.\n"), "standard input:1: not UTF-8")
    done = server.run("translate", "run", "--max-new-tokens", "2", cwd=here, stdin=b"A cat.\n" * 1024 + b"\xff\n")
    assert (done.status, done.stdout.count("\n")) == (1, 1024)
