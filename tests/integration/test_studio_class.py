"""A class opens Studio: thirty browsers' requests at once, each with a sentence of its own, are all answered."""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_service import Served
from test_studio import children

CLASS = 30
MODEL = "atento-en-pt"
BEFORE = [("card", {"model": MODEL}), ("screens", {"model": MODEL, "b": ""})]


def opened(studio: Served, text: str) -> tuple[list[float], list[float]]:
    """What a browser asks to show a chapter along One sentence: its files, then the numbers; the seconds of each."""
    from atento_serve.studio.studio_routes import static_files

    seconds: list[float] = []
    with httpx.Client(base_url=studio.url, timeout=120) as client, ThreadPoolExecutor(6) as connections:

        def get(path: str, method: str = "GET", **options: Any) -> Any:
            began = time.perf_counter()
            answer = client.request(method, f"/studio/{path}", **options)
            seconds.append(time.perf_counter() - began)
            assert answer.status_code == 200, (path, answer.text[:200])
            return answer

        def ask(function: str, **fields: Any) -> Any:
            return get(f"api/{function}", "POST", json=fields)

        list(connections.map(get, [name for name in static_files() if name != "index.html"]))
        files = len(seconds)
        get("api/about")
        list(connections.map(lambda one: ask(one[0], **one[1]), BEFORE))
        trace = ask("trace", model=MODEL, text=text).json()
        whole = {"model": MODEL, "text": text, "target": trace["target"]}
        assert ask("flow", model=MODEL, text=text).json()["target"] == trace["target"]
        asked = [("flow_links", whole), *(("overview", {**whole, "kind": kind}) for kind in trace["kinds"])]
        asked.append(("weights", {**whole, "kind": "cross", "layer": 0, "head": "mean", "words": True}))
        list(connections.map(lambda one: ask(one[0], **one[1]), asked))
        assert json.dumps(ask("said", **whole, place=1).json()["tokens"]) != "[]"
    return seconds[:files], seconds[files:]


def test_thirty_browsers_at_once_are_answered(small: Served) -> None:
    nouns = ("cat", "dog", "house", "car", "book", "garden")
    texts = [f"The {one} sees the old {other}." for one in nouns for other in nouns if one != other][:CLASS]
    assert len(set(texts)) == CLASS
    opened(small, "The cat sleeps.")  # the model is loaded
    began = time.perf_counter()
    with ThreadPoolExecutor(CLASS) as browsers:
        found = list(browsers.map(lambda text: opened(small, text), texts))
    whole, answers = time.perf_counter() - began, sorted(one for _, asked in found for one in asked)
    slowest = f"median {statistics.median(answers):.3f}, slowest {answers[-1]:.3f} s"
    print(f"\n{CLASS} browsers: {whole:.2f} s; answers: {slowest}")
    assert len(answers) == CLASS * 11 and answers[-1] < 60  # seconds, on a machine that computes other things too


def test_what_a_model_can_is_tried_once(small: Served) -> None:
    """The cards and reasons of thirty browsers cost as much as one."""
    for function, fields in BEFORE:
        assert small.post(f"/studio/api/{function}", fields).status_code == 200
    ticks = Path("/proc") / str(children(small)[0]) / "stat"
    if not ticks.exists():
        pytest.skip("needs /proc")
    before = processor(ticks)
    for _ in range(CLASS):
        for function, fields in BEFORE:
            small.post(f"/studio/api/{function}", fields)
    assert processor(ticks) - before < 1.0  # 84 ms of processor time each before


def processor(stat: Path) -> float:
    fields = stat.read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
