"""Two nodes of a Ray cluster on this machine, as two machines: one is lost in the middle of a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ForkServer
from test_cluster import SOURCES, TRANSLATE, finished, wait_for

pytestmark = pytest.mark.slow


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
    (here / "in.txt").write_text(SOURCES * 25, encoding="utf-8", newline="\n")
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
    (here / "text.txt").write_text(SOURCES * 400, encoding="utf-8", newline="\n")
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
