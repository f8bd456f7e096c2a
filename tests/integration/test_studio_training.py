"""The screen Training live in a real browser, over a real training that is killed and goes on."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from atento.runs.run_record import RunRecord, read_run
from atento.training.metrics_log import read_journal
from atento_serve.command import _models, _shown
from atento_serve.http.clients import Clients
from atento_serve.http.errors import ServiceError
from atento_serve.settings import Limits
from atento_serve.studio import studio_routes
from atento_serve.studio.run_curves import MOST_POINTS, Mark, RunCurves, thinned
from atento_serve.studio.run_folders import found_runs
from atento_serve.studio.run_process import Follower, FollowFields
from conftest import ForkServer, Running
from http_service import served, until
from studio_page import StudioPage, events_at, write_run

TRAINING = {"steps": 60, "batch_tokens": 400, "samples": 1, "log_every": 2, "validate_every": 12}
TRAINING |= {"checkpoint_every": 12}
SMALL = ["network.d_model=32", "network.d_ff=64", "network.n_heads=2", "network.n_layers=1"]
SMALL += [f"training.{key}={value}" for key, value in TRAINING.items()]
SMALL += ["data.train.count=200", "data.valid.count=4", "data.test.count=4", "decoding.max_new_tokens=8"]


def append(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text)


def rows(seen: StudioPage, at: int) -> list[tuple[str, float, float]]:
    return [(name, float(x), float(y)) for name, x, y in seen.cells(seen.unfolded(at).locator("tbody tr"))]


def same_curves(seen: StudioPage, record: RunRecord) -> bool:
    """Whether the page has the points of a journal, to the last digit."""
    name = record.folder.name
    expected = [(f"{name}: training loss", *point) for point in record.curve("loss", "train")]
    expected += [(f"{name}: validation nll", *point) for point in record.curve("nll", "valid")]
    return rows(seen, 0) == expected


def train(server: ForkServer, folder: Path) -> Running:
    words = ["train", "micro-world-en-pt", *SMALL, "--threads", "1", "--out", str(folder)]
    return server.start(*words, cwd=folder.parent, lasting=True)


def shows(seen: StudioPage, text: str, seconds: float = 60) -> None:
    seen.page.locator(".flags li", has_text=text).wait_for(timeout=1000 * seconds)


def test_a_training_is_watched_is_killed_and_goes_on(browser: Any, server: ForkServer, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with served([str(runs)], command="studio") as running:
        seen = StudioPage(browser, running, fresh=True).go("training")
        assert seen.problem.startswith("No run was given")
        assert seen.page.locator("[data-screen=training].off").count() == 1
        process = train(server, runs / "live")
        journal = runs / "live" / "metrics.jsonl"
        until(lambda: journal.exists() and len(read_journal(journal)) > 2, 120)
        os.kill(process.pid, signal.SIGSTOP)  # or it would end before a page that is slow to open shows it
        seen.page.reload()
        seen.wait()
        shows(seen, "of 60")
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: len(read_journal(journal)) > 12, 120)
        os.kill(process.pid, signal.SIGKILL)
        assert process.end().status == -signal.SIGKILL
        killed = read_run(runs / "live")
        assert not killed.finished and killed.step < 60
        until(lambda: same_curves(seen, killed), pause=0.2)
        process = train(server, runs / "live")  # cuts the events behind its checkpoint, and goes on
        shows(seen, "live: 60 updates, ended.", 180)
        done = process.end(120)
        assert done.status == 0, done.stderr
        record = read_run(runs / "live")
        until(lambda: same_curves(seen, record), pause=0.2)
        assert len(record.curve("loss", "train")) == 30
        samples = [event["output"].split() for event in record.events if event["event"] == "sample"]
        shown = seen.page.locator(".sample li").all_text_contents()
        assert [one.partition(": ")[2].split() for one in reversed(shown)] == samples
        charts = seen.page.locator(".curves h2").all_text_contents()
        assert {"Learning rate", "Targets a second", "validation: bleu", "validation: chrf"} < set(charts)
        rates = [(f"live: {'Learning rate'}", *point) for point in record.curve("learning_rate", "train")]
        assert rows(seen, charts.index("Learning rate")) == rates
        assert [one for one in seen.complaints if "422" not in one] == []  # the folder of runs is no model


def test_axes_smoothing_range_and_several_runs(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", 30)
    with served([str(tmp_path / "runs" / "a")], command="studio") as running:
        seen = StudioPage(browser, running, fresh=True).go("training")
        assert seen.page.locator("#runs label").all_text_contents() == [" a", " b"]
        assert {name for name, _, _ in rows(seen, 0)} == {"a: training loss", "a: validation nll"}
        seen.page.get_by_label("b", exact=True).check()
        seen.wait().page.wait_for_function("() => document.querySelectorAll('.curves polyline').length > 9")
        until(lambda: {name[0] for name, _, _ in rows(seen, 0)} == {"a", "b"})
        assert seen.state["runs"] == "a\nb"
        for axis, factor in (("tokens", 200.0), ("time", 0.5)):  # 200 targets an update, 400 a second
            seen.page.select_option("#x", axis)
            losses = [x for name, x, _ in rows(seen.wait(), 0) if name == "a: training loss"]
            assert losses == [factor * step for step in range(1, 61)]
        seen.go("training", runs="a", smooth="0.9")
        assert seen.page.locator(".curves section").first.locator("polyline[stroke-opacity]").count() == 2
        chart = seen.page.locator(".curves svg").first
        box = chart.bounding_box()
        for place, press in ((0.4, seen.page.mouse.down), (0.7, seen.page.mouse.up)):
            seen.page.mouse.move(box["x"] + place * box["width"], box["y"] + 60)
            press()
        state = seen.wait().state
        assert 15 < float(state["from"]) < float(state["to"]) < 45
        points = str(chart.locator("polyline").first.get_attribute("points")).split()
        assert len(points) == sum(float(state["from"]) <= step <= float(state["to"]) for step in range(1, 61))
        seen.page.locator("#all").click()
        assert "from" not in seen.wait().state
        seen.page.locator("#log").check()
        seen.wait()
        points = str(chart.locator("polyline").first.get_attribute("points")).split()
        heights = [float(one.partition(",")[2]) for one in points]
        expected = -np.log10(np.array([event["loss"] for step in range(1, 61) for event in events_at(step)[:1]]))
        assert np.corrcoef(heights, expected)[0, 1] > 0.99999
        assert "<b>the cat</b>" in seen.text(".sample")
        assert [one for one in seen.complaints if "422" not in one] == []  # a run without a checkpoint has no model yet


def test_a_run_that_goes_lines_that_are_damaged_and_a_service_that_is_restarted(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a")
    with served([str(run)], command="studio") as running:
        port = int(running.url.rpartition(":")[2])
        seen = StudioPage(browser, running, fresh=True).go("training")
        append(run, 'no event\n{"event": "train", "step": 61, "lo')
        shows(seen, "a: 1 damaged lines of metrics.jsonl are left out.")
        assert max(x for _, x, _ in rows(seen, 0)) == 60
        append(run, 'ss": 0.25}\n')
        until(lambda: ("a: training loss", 61.0, 0.25) in rows(seen, 0), pause=0.2)
    seen.page.locator("#connection", has_text="does not answer").wait_for()
    append(run, '{"event": "train", "step": 62, "loss": 0.125}\n')
    with served([str(run)], command="studio", port=port) as running:
        until(lambda: ("a: training loss", 62.0, 0.125) in rows(seen, 0), pause=0.2)
        assert len(rows(seen, 0)) == 62 + 3  # none twice
        shutil.rmtree(run)
        shows(seen, "the run 'a' is not there: it was removed or moved, or never was")
        assert len(rows(seen, 0)) == 65
        write_run(run, 20)
        until(lambda: len(rows(seen, 0)) == 21, pause=0.2)


def test_only_what_the_command_line_named_is_read(tmp_path: Path) -> None:
    secret, runs = write_run(tmp_path / "secret" / "run"), tmp_path / "runs"
    write_run(runs / "a")
    write_run(runs / "b")
    (runs / "link").symlink_to(secret)
    (runs / "b" / "metrics.jsonl").unlink()
    (runs / "b" / "metrics.jsonl").symlink_to(secret / "metrics.jsonl")
    (runs / "other").mkdir()
    assert list(found_runs(_shown(_models([str(runs / "b"), str(tmp_path)], [], {}), 1).runs)) == ["b", "a"]
    assert list(found_runs([str(secret), str(runs), str(runs / "a")])) == ["run", "a", "b"]
    assert found_runs([str(tmp_path), str(tmp_path / "none")]) == {}
    names = ["b", "../secret/run", str(secret), "link", "a/../../secret/run", ""]
    (told, data) = Follower([str(runs)]).follow(FollowFields(runs=names, marks=[]))
    assert "leads out of its folder" in told["errors"]["b"] and data == b"" and told["marks"] == {}
    assert all("is not there" in told["errors"][name] for name in names[1:])
    with served([str(runs / "a"), "--api-key", "k"], command="studio", python=sys.executable) as running:
        assert running.get("/studio/api/runs?run=a").status_code == 401
        address = f"{running.url}/studio/api/runs?run=a"
        with httpx.stream("GET", address, headers={"Authorization": "Bearer k"}) as stream:
            assert next(stream.iter_lines()).startswith("id: ")
        names = {pid: Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8") for pid in running.workers()}
        (reader,) = [pid for pid, name in names.items() if "run_process" in name]
        assert not running.holds_torch() and not running.holds_torch(reader)


def curve(change: dict[str, Any] | None, name: str = "train.loss") -> list[list[float]]:
    return list(change["curves"].get(name, []))


def test_an_interval_without_updates_leaves_the_time_of_later_ones_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All updates of it overflowed in float16: it has no loss, and no tokens a second."""
    run = write_run(tmp_path / "a", 1)
    monkeypatch.setattr("atento_serve.studio.run_curves._about", lambda folder: {"batch_tokens": 100})
    (run / "metrics.jsonl").write_text(
        '{"event": "train", "step": 1, "tokens_per_second": 0.0}\n'
        '{"event": "train", "step": 3, "loss": 0.5, "tokens_per_second": 50.0}\n'
    )
    change = RunCurves(run).changes(Mark())
    assert change is not None and curve(change) == [[3.0, 0.5, 6.0]]  # 300 tokens, as many as of all updates


def test_changes_are_what_is_new_and_thinning_keeps_what_stands_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 3)
    curves = RunCurves(run)
    first = curves.changes(Mark())
    assert first is not None and first["reset"] and len(curve(first)) == 3
    mark = Mark.read(first["mark"])
    assert curves.changes(mark) is None
    append(run, '{"event": "train", "step": 4, "loss": 0.5}\n')
    new = RunCurves(run).changes(mark)  # of a process that is started anew
    assert new is not None and not new["reset"] and curve(new) == [[4.0, 0.5, None]]
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))  # cut in its place
    cut = curves.changes(Mark.read(new["mark"]))
    assert cut is not None and cut["reset"] and len(curve(cut)) == 2
    values = np.random.default_rng(1).normal(size=30_000).tolist()
    append(run, "".join(json.dumps({"event": "train", "step": n + 3, "loss": v}) + "\n" for n, v in enumerate(values)))
    whole = curves.changes(Mark.read(cut["mark"]))
    shown = [value for _, value, _ in curve(whole)]
    assert whole is not None and whole["reset"] and MOST_POINTS // 4 < len(shown) <= MOST_POINTS
    assert {min(values), max(values), values[-1]} <= set(shown)
    mark = Mark.read(whole["mark"])
    for step in range(2 * MOST_POINTS):  # a page never holds more
        append(run, json.dumps({"event": "train", "step": 40_000 + step, "loss": 1.0}) + "\n")
        if step % 500 == 499:
            change = curves.changes(mark)
            shown = ([] if change["reset"] else shown) + [value for _, value, _ in curve(change)]
            mark = Mark.read(change["mark"])
            assert len(shown) <= MOST_POINTS and mark.points >= len(shown)
    values = np.sin(np.arange(100_000) / 7.0)
    values[50_000], values[70_001] = 9.0, -9.0
    kept = thinned(values, 100)
    assert len(kept) <= 100 and {0, 50_000, 70_001, 99_999} <= set(kept.tolist()) and (np.diff(kept) > 0).all()
    assert thinned(values[:100], 100).tolist() == list(range(100))


def test_hostile_journals_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 1)
    bad = [
        "null", "[]", '{"event": "train"}', '{"event": "train", "step": -1}', '{"event": 1, "step": 1}',
        '{"event": "train", "step": 1e3, "loss": 1}', "[" * 100_000, '{"event": "train", "step": 9007199254740993}',
    ]  # fmt: skip
    good = [
        '{"event": "train", "step": 2, "loss": NaN, "nll": Infinity, "b": true, "c": "1", "d": null, "e": [1]}',
        '{"event": "train", "step": 2, "a": 1' + "0" * 400 + "}",
        json.dumps({"event": "train", "step": 3} | {f"k{n}": n for n in range(200)}),
        json.dumps({"event": "sample", "step": 3, "number": "9" * 99, "output": "x" * 9_000, "input": 5}),
        json.dumps({"event": "later", "step": 3, "loss": 1.0}),
    ]
    append(run, "".join(f"{line}\n" for line in [*bad, *good, "x" * (3 << 20)]))
    append(run, '{"event": "train", "step": 4, "loss": 0.5}\n')
    change = RunCurves(run).changes(Mark())
    assert change is not None and change["damaged"] >= len(bad) + 1
    assert [point[:2] for point in curve(change)] == [[1.0, 5.1], [4.0, 0.5]]
    assert len(change["curves"]) == 64 and len(change["samples"][0]["output"]) == 2_000
    json.dumps(change, allow_nan=False)
    for text in ("", "1.2.3", "a.b.c.d", "1.2.3.4.5", "9" * 99 + ".1.1.1", "-1.-1.-1.-1", "1.99999999.3.4"):
        other = RunCurves(run).changes(Mark.read(text))
        assert other is not None and other["reset"], text
    (run / "recipe.yaml").write_text("task: [")
    assert RunCurves(run).changes(Mark())["about"] == {}  # type: ignore[index]


def test_the_stream_beats_tells_an_error_once_and_ends_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio_routes, "PAUSE", 0.01)
    monkeypatch.setattr(studio_routes, "PING_SECONDS", 0.03)
    asked: list[Any] = []

    async def call(function: str, fields: Any) -> tuple[Any, bytes]:
        asked.append((function, fields))
        if 2 <= len(asked) <= 4:
            raise ServiceError(503, "the process ended", "studio_ended")
        told = {"runs": ["a"], "errors": {"a": "gone"} if len(asked) > 5 else {}, "error": None}
        first = len(asked) == 1
        return told | {"marks": {"a": "1.2.3.4"} if first else {}}, b'{"a": {"step": 5}}' if first else b""

    service = SimpleNamespace(clients=Clients([], Limits()), stopping=False, check_open=lambda: None)
    headers = [(b"last-event-id", b"7.7.7.7,8.8.8.8")]
    scope = {"type": "http", "query_string": b"run=a&run=b", "headers": headers, "client": None}
    request = Request(scope | {"atento": {"notes": {}}})

    async def read() -> list[str]:
        answer, found = studio_routes.run_events(request, service, SimpleNamespace(call=call)), list[str]()  # type: ignore[arg-type]
        async for part in answer.body_iterator:
            found.append(str(part))
            service.stopping = part == ": ping\n\n"
        return found

    with ThreadPoolExecutor(1) as thread:  # the browser has a loop in this one
        found = thread.submit(asyncio.run, asyncio.wait_for(read(), 20)).result()
    assert asked[0] == ("follow", {"runs": ["a", "b"], "marks": ["7.7.7.7", "8.8.8.8"]})
    events = [json.loads(part.partition("data: ")[2]) for part in found[:-1]]
    assert found[0].startswith("id: 1.2.3.4,8.8.8.8\n") and found[-1] == ": ping\n\n"
    first = {"runs": ["a"], "errors": {}, "changes": {"a": {"step": 5}}}
    assert events == [first, {"error": "the process ended"}, {"error": None}, {"errors": {"a": "gone"}}]


def test_of_a_long_journal_few_lines_are_read_then_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a", 400)
    append(run, '{"event": "train", "step": 401, "loss": 0.25}\n{"event": "end", "step": 401}\n{"event": "tra')
    size = (run / "metrics.jsonl").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr("atento_serve.studio.run_curves._WHOLE", size // 8)
        patch.setattr("atento_serve.studio.run_curves._BLOCK", size // 3)
        curves = RunCurves(run)
        change: Any = curves.changes(Mark())
        shown = change["curves"]
        assert change["every"] == 9 and change["step"] == 401 and change["ended"] and change["damaged"] == 0
        assert [step for step, _, _ in shown["valid.chrf"]] == list(range(20, 401, 20))
        steps = [step for step, _, _ in shown["train.loss"]]
        assert 40 < len(steps) < 60 and max(np.diff(steps)) <= 9 and steps[0] == 1
        values = {step: value for step, value, _ in shown["train.loss"]}
        assert all(value == pytest.approx(5 / step + 0.1) for step, value in values.items() if step <= 400)
        append(run, 'in", "step": 402, "loss": 0.5}\n')  # what comes is read whole
        news: Any = curves.changes(Mark.read(change["mark"]))
        assert [point[:2] for point in news["curves"]["train.loss"]] == [[402, 0.5]]
        assert not news["reset"] and news["every"] == 9 and news["damaged"] == 0
    run, taken = write_run(tmp_path / "b", 400), list[bytes]()
    curves = RunCurves(run)
    take: Callable[..., None] = curves._take
    monkeypatch.setattr(curves, "_take", lambda line, end: (taken.append(line), take(line, end)))
    curves.changes(Mark())
    before = len(taken)
    append(run, '{"event": "train", "step": 401, "loss": 0.5}\n')
    curves.changes(Mark())
    assert before > 400 and len(taken) == before + 1
