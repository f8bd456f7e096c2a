"""Writing through the command line: long lines, traces, options without effect, and what a person sees meanwhile."""

import json
import os
import pty
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

import atento
from atento.inspection.decoding_page import decoding_page
from conftest import ForkServer, each_refused, lines_of, refused
from http_service import until

LONG = "zq" * 400  # more than the 256 tokens of `data.max_len`


def test_w15_long_lines_are_counted_before_the_work_once_over_all_windows(server: ForkServer, here: Path) -> None:
    assert json.loads(next((here / "run").glob("checkpoints/*/config.json")).read_text())["max_len"] == 256
    flags = ["translate", "run", "--greedy", "--max-new-tokens", "2"]
    said = "longer than the 256 tokens that the model was trained on (the longest has"
    one = server.run(*flags, cwd=here, stdin=f"{LONG}\nA cat.\n\n{LONG}\n")
    assert one.status == 0 and len(one.stdout.split("\n")) == 5
    assert one.stderr.startswith("warning: 2 texts of 3 are " + said) and one.stderr.count("\n") == 1
    (here / "long.txt").write_text(f"A cat.\n{LONG}\n", encoding="utf-8")
    done = server.run(*flags, "long.txt", "--stream", cwd=here)
    assert done.stderr.startswith("warning: 1 text of 1 is " + said) and done.stderr.count("\n") == 1
    short = "A cat.\n" * 1024
    many = server.run(*flags, cwd=here, stdin=f"{LONG}\n{short}{LONG}\n{short}{LONG}{LONG}\n")
    first, last = many.stderr.splitlines()
    assert first.startswith("warning: 1 text of 1,024 is " + said)
    assert last.startswith("warning: in all 3 texts of the input were longer than the 256 tokens")
    sentences = server.run(*flags, "--split-sentences", cwd=here, stdin="A cat sleeps. " * 200 + "\n")
    assert sentences.status == 0 and sentences.stderr == ""
    (here / "pairs.tsv").write_text(f"{LONG}\tum gato\n", encoding="utf-8")
    scored = server.run("evaluate", "run", "pairs.tsv", "--greedy", cwd=here)
    assert scored.status == 0 and "warning: 1 text of 1 is " + said in scored.stderr
    vectors = server.run("embed", "run", "long.txt", cwd=here)
    assert "warning: 1 text of 2 is " + said in vectors.stderr and "such vectors may be wrong" in vectors.stderr


def test_translate_trace_writes_a_page_of_each_line(server: ForkServer, here: Path) -> None:
    model = atento.load(here / "run")
    one = server.run("translate", "run", "--trace", "page.html", "--beam", "3", cwd=here, stdin="A cat.\n")
    assert (one.status, one.stdout, one.stderr) == (0, *(f"{model.translate('A cat.', beam=3)}\n", "wrote page.html\n"))
    found, trace = model.traced("A cat.", task="translation", beam=3)
    assert (here / "page.html").read_text(encoding="utf-8") == decoding_page(trace, title="A cat.")
    assert trace.runs[0].hypotheses[0][0].ids == found[0].hypothesis.ids and trace.runs[0].strategy == "beam"
    some = server.run("translate", "run", "--trace", "page.html", "--greedy", cwd=here, stdin="A cat.\n\nA dog.\n")
    none = "line 2 has no page: nothing is searched for it"
    assert some.stderr.splitlines() == ["wrote page-1.html", none, "wrote page-3.html"] and some.stdout.count("\n") == 3
    assert "A dog." in (here / "page-3.html").read_text(encoding="utf-8") and not (here / "page-2.html").exists()
    flags = ("--trace", "n.html", "--n-best", "2", "--beam", "3", "--json")
    several = server.run("translate", "run", *flags, cwd=here, stdin="A cat.\n")
    assert several.status == 0 and len(json.loads(several.stdout)["translations"]) == 2 and (here / "n.html").exists()


def test_translate_trace_and_flags_without_effect_are_refused(server: ForkServer, here: Path) -> None:
    refusals = {
        "no/page.html": "--trace no/page.html cannot be written: there is",
        "page.png": "--trace must end in .html: got 'page.png'",
        "p.html --stream": "--trace and --stream exclude each other",
        "p.html --split-sentences": "--trace and --split-sentences exclude each",
        "p.html": "--trace takes at most 16 lines, one page",
    }
    lines = {f"translate run --trace {rest}": said for rest, said in refusals.items()}
    each_refused(server, here, lines, stdin="a\n" * 17)
    assert not list(here.glob("p*.html"))
    said = "--length-penalty has no effect: a beam of 1 compares no lengths"
    commands = ("translate run --greedy", "translate run", "evaluate run valid.tsv --greedy")  # the recipe's beam is 1
    each_refused(server, here, {f"{command} --length-penalty 2": said for command in commands}, stdin="a\n")


def test_w16_attend_reads_standard_input_and_heeds_or_refuses_what_is_chosen(server: ForkServer, here: Path) -> None:
    given = server.run("attend", "run", "A cat.", "--target", "um gato", "--out", "a.json", cwd=here)
    piped = server.run("attend", "run", "-", "--target", "um gato", "--out", "b.json", cwd=here, stdin="A cat.\n\n")
    assert given.status == piped.status == 0, piped.stderr
    assert (here / "a.json").read_bytes() == (here / "b.json").read_bytes()
    record = json.loads((here / "a.json").read_text(encoding="utf-8"))
    wanted = atento.load(here / "run").attend("A cat.", "um gato")
    assert record["source_tokens"] == wanted.source_tokens and len(record["source_tokens"]) > 2
    np.testing.assert_allclose(record["kinds"]["cross"][0], wanted.kinds["cross"][0], atol=1e-6)
    each_refused(server, here, {"attend run - --out x.html": "must have one text on one line: got 0 lines"})
    refused(server.run("attend", "run", "-", "--out", "x.svg", cwd=here, stdin="a\nb\n"), "got 2 lines with text")
    server.good("attend", "run", "-", "--out", "two.html", cwd=here, stdin="A cat.\nA dog.\n")
    page = (here / "two.html").read_text(encoding="utf-8")
    data = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    assert [one["title"][:6] for one in data["sentences"]] == ["A cat.", "A dog."]
    for flag in (["--kind", "encoder"], ["--layer", "0"], ["--head", "1"], ["--words"]):
        done = server.run("attend", "run", "a", "--out", "x.json", *flag, cwd=here)
        refused(done, f"x.json contains every kind, layer and head, token by token: `{flag[0][2:]}` is for .html")
    assert not list(here.glob("x.*"))


def test_average_says_where_there_are_fewer_checkpoints(server: ForkServer, here: Path) -> None:
    (here / "run").unlink()
    shutil.copytree(here.parent / "trained", here / "run")
    more = server.run("average", "run", "--last", "99", cwd=here)
    count = len(list((here / "run" / "checkpoints").glob("step-*")))
    assert f"warning: run has {count} checkpoints to average, and --last is 99\n" in more.stderr
    assert more.status == 0 and count > 1 and f"averaged {count} checkpoints: " in more.stderr
    one = server.run("average", "run", "--last", "1", cwd=here)
    assert one.stderr.startswith("averaged 1 checkpoint: step-") and "warning" not in one.stderr
    assert "warning" not in server.run("average", "run", cwd=here).stderr  # nobody asked for five


def test_a_draft_writes_the_same_lines_and_says_what_it_proposed(server: ForkServer, here: Path) -> None:
    """By copies, and by another model, which must have the same vocabulary."""
    lines = "A cat sleeps.\nThe white cat sees the white cat and the white cat.\n"
    flags = ["translate", "run", "--greedy", "--max-new-tokens", "20"]
    plain = server.run(*flags, cwd=here, stdin=lines)
    for draft in (["--draft", "ngrams"], ["--draft", "run", "--draft-tokens", "3"], ["--draft", "ngrams", "--stream"]):
        done = server.run(*flags, *draft, cwd=here, stdin=lines)
        assert (done.status, done.stdout) == (0, plain.stdout), done.stderr
    counted = server.run(*flags, "--draft", "run", "--json", cwd=here, stdin=lines)
    outputs = [json.loads(line)["translations"][0] for line in counted.stdout.splitlines()]
    assert all(output["accepted"] == output["proposed"] > 0 for output in outputs)  # it drafts for itself
    model = atento.load(here / "run")
    drafted = model.translate(lines.splitlines(), greedy=True, max_new_tokens=20, draft=["ngrams", str(here / "run")])
    assert drafted == plain.stdout.splitlines()
    both = "--draft and --beam exclude each other: a draft is for greedy search"
    refusals = {"--beam 4 --draft ngrams": both, "--greedy --draft-tokens 3": "--draft-tokens has no effect: it is for"}
    each_refused(server, here, {f"translate run {more}": said for more, said in refusals.items()}, stdin="a\n")


def test_a_bar_on_a_terminal_and_only_results_on_standard_output(server: ForkServer, here: Path) -> None:
    command = ["translate", "run", "in.txt", "--batch-tokens", "40", "--threads", "1"]
    (here / "in.txt").write_text("\n".join(lines_of(here / "train.tsv", 0)) + "\n", encoding="utf-8")
    plain = server.run(*command, cwd=here)
    assert plain.status == 0 and plain.stderr == "" and plain.stdout.count("\n") == 60
    ours, theirs = pty.openpty()
    sent = bytearray()

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while got := os.read(ours, 4096):
                sent.extend(got)

    reader = threading.Thread(target=read)
    reader.start()
    done = server.run(*command, cwd=here, stderr=Path(os.ttyname(theirs)), env={"NO_COLOR": "1"})
    os.close(theirs)
    reader.join(timeout=30)
    os.close(ours)
    screen = sent.decode()
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


def test_who_types_is_told_that_lines_are_read_and_is_answered_line_by_line(server: ForkServer, here: Path) -> None:
    """Without --stream too; from a pipe a thousand lines are translated together."""
    said = "reading lines from the terminal; end with Ctrl-D, or give FILE to read a file\n"
    for command in (["translate", "run"], ["tokenizer", "encode", "run/tokenizer"]):
        ours, theirs = pty.openpty()
        running = server.start(*command, cwd=here, stdin=Path(os.ttyname(theirs)))
        for number in (1, 2):
            os.write(ours, b"A cat.\n")
            if command[0] == "translate":
                until(lambda number=number, out=running.stdout: out.read_text("utf-8").count("\n") >= number, 30)
        os.write(ours, b"\x04")
        done = running.end()
        os.close(ours)
        os.close(theirs)
        assert (done.status, done.stdout.count("\n"), done.stderr) == (0, 2, said)
        assert len(set(done.stdout.splitlines())) == 1
    assert server.run("translate", "run", cwd=here, stdin="A cat.\n").stderr == ""  # a pipe


def test_lines_before_a_bad_one_are_answered(server: ForkServer, here: Path) -> None:
    """An early bad line of standard input lost its window of good ones; now they come first, then the error."""
    good = server.run("translate", "run", cwd=here, stdin="A cat.\nA dog.\n").stdout
    for flags in ([], ["--stream", "--greedy"]):
        done = server.run("translate", "run", *flags, cwd=here, stdin=b"A cat.\nA dog.\n\xff\nmore\n")
        assert (done.status, done.stdout) == (1, good), flags
        assert done.stderr.startswith("error: standard input:3: not UTF-8: byte 0xff") and done.stderr.count("\n") == 1
    done = server.run("translate", "run", "--max-new-tokens", "2", cwd=here, stdin=b"A cat.\n" * 1024 + b"\xff\n")
    assert (done.status, done.stdout.count("\n")) == (1, 1024)
