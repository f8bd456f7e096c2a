"""Ray on this machine: two nodes, one of which is lost in the middle of a run, and the example of Ray Serve."""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import atento
from conftest import ForkServer
from http_service import SOURCES, write_models
from test_cluster import SOURCES as LINES
from test_cluster import TRANSLATE, finished, wait_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_the_example_of_the_page_translates_on_a_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    serve = pytest.importorskip("ray.serve", reason="the extra ray is not installed")
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    match = re.search(r"test_ray_serve\.py runs it[^\n]*\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert match is not None and match[1].count("\n") < 30
    folder = write_models(tmp_path)["en-pt"]
    (tmp_path / "translator.py").write_text(match[1].replace("runs/en-pt", str(folder)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))  # of the workers
    for name in ("HEALTH", "READY"):  # a busy machine starts processes slowly
        monkeypatch.setenv(f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S", "120")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")
    ray.init("local", num_cpus=3, include_dashboard=False, logging_level="ERROR")
    try:
        from translator import app

        serve.start(http_options={"host": "127.0.0.1", "port": 8123})
        serve.run(app, name="translator", route_prefix="/")
        texts = SOURCES[:12]

        def ask(text: str) -> str:
            answer = httpx.post("http://127.0.0.1:8123/", json={"inputs": text}, timeout=60)
            return str(answer.json()["translation_text"])

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, texts))
        assert answers == atento.load(folder, device="cpu").translate(texts)
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster whose head has no processors; the tests' own process does not join it."""
    pytest.importorskip("ray", reason="needs ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def test_a_node_that_is_lost_costs_its_block(server: ForkServer, here: Path, nodes: Any) -> None:
    """The second node comes later, and has room for one of the two workers, which does what is left."""
    (here / "in.txt").write_text(LINES * 25, encoding="utf-8", newline="\n")
    expected = server.run(*TRANSLATE, cwd=here).stdout
    where = ("--cluster", "ray", "--out", "parts", "--block-lines", "1", "--workers", "2")
    first = nodes.add_node(num_cpus=1)
    running = server.start(*TRANSLATE, *where, cwd=here, env={"RAY_ADDRESS": nodes.address})
    wait_for(lambda: finished(here / "parts") > 3, 180)
    nodes.add_node(num_cpus=1)
    nodes.remove_node(first, allow_graceful=False)
    done = running.end(240)
    assert done.status == 0 and done.stdout == "", done.stderr
    assert "which is done again: its actor ended" in done.stderr
    assert "wrote parts: 1,000 parts for 1,000 lines" in done.stderr
    assert server.run("collect", "parts", cwd=here).stdout == expected


def test_tokenizing_and_hashes_of_near_duplicates_on_two_nodes(server: ForkServer, here: Path, nodes: Any) -> None:
    """The bytes of the commands without a cluster."""
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    (here / "text.txt").write_text(LINES * 400, encoding="utf-8", newline="\n")
    recipe = "task: language-modeling\ndata: {train: text.txt, store: disk}\ntokenizer: {kind: bpe, vocab_size: 330}\n"
    (here / "lm.yaml").write_text(recipe, encoding="utf-8")
    ray = {"RAY_ADDRESS": nodes.address}
    for name, options, environment in (("alone", (), {}), ("cluster", ("--cluster", "ray"), ray)):
        command = ("data", "tokenize", "lm.yaml", f"data.store_folder={name}", *options)
        done = server.start(*command, cwd=here, env=environment).end(240)
        assert done.status == 0 and done.stdout.count("\n") == 1, done.stderr
        command = ("data", "deduplicate", "text.txt", f"{name}.txt", "--near", "0.7", *options)
        done = server.start(*command, cwd=here, env=environment).end(240)
        assert done.status == 0, done.stderr
    for part in ("ids", "starts", "blocks"):
        file = f"{part}-00000.bin"
        assert (here / "alone" / file).read_bytes() == (here / "cluster" / file).read_bytes()
    assert (here / "alone.txt").read_bytes() == (here / "cluster.txt").read_bytes()
