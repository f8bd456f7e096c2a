"""Two network namespaces as two machines, each with an agent of torchrun: a run over a link, and one that is cut."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ForkServer
from runs import differences, events
from test_replicas import EXACT, train, wait_for

pytestmark = pytest.mark.slow


def command(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(words, check=True, capture_output=True, timeout=30)


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """The names of two namespaces with a link between them: 10.77.0.1 and 10.77.0.2."""
    names = [f"atento-{os.getpid()}-{node}" for node in (1, 2)]
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    try:
        command("ip", "netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr!r}")
    try:
        command("ip", "netns", "add", names[1])
        ends = [f"at{os.getpid() % 100000}n{node}" for node in (1, 2)]
        command("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends), start=1):
            command("ip", "link", "set", end, "netns", name, "name", "link0")
            for words in (f"addr add 10.77.0.{number}/24 dev link0", "link set link0 up", "link set lo up"):
                command("ip", "-n", name, *words.split())
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def agents(nodes: list[str], cwd: Path, *settings: str) -> "list[subprocess.Popen[str]]":
    """An agent of torchrun with one process on each node."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "link0"}
    started = []
    for number, name in enumerate(nodes, start=1):
        words = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        words += ["--nproc-per-node=1", "--max-restarts=0", "--rdzv-backend=c10d", "--rdzv-id=run"]
        words += [f"--local-addr=10.77.0.{number}", "--rdzv-endpoint=10.77.0.1:29500"]
        words += [f"--rdzv-conf=is_host={int(number == 1)}", "-m", "atento_cli.start", "train", "tiny.yaml"]
        words += ["--out", "run", *settings]
        started.append(subprocess.Popen(words, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True))
    return started


def test_a_run_on_two_nodes_has_the_bits_of_one_process(server: ForkServer, place: Path, nodes: list[str]) -> None:
    for agent in agents(nodes, place, *EXACT):
        _, stderr = agent.communicate(timeout=240)
        assert agent.returncode == 0, stderr
    train(server, 1, "--out", "alone", *EXACT, cwd=place)
    assert differences(place / "alone", place / "run") == []


def test_a_link_that_is_cut_ends_the_run_and_it_continues(server: ForkServer, place: Path, nodes: list[str]) -> None:
    settings = (*EXACT, "training.steps=2000", "training.validate_every=2000", "training.checkpoint_every=20")
    started = agents(nodes, place, *settings, "training.parallel.timeout=5")
    wait_for(place / "run", 20, started[0])
    command("ip", "-n", nodes[1], "link", "set", "link0", "down")
    cut = time.monotonic()
    try:
        _, stderr = started[0].communicate(timeout=120)
        assert "another process has ended, or has not answered within 5 s" in stderr
        assert started[0].returncode != 0 and time.monotonic() - cut < 90
    finally:
        for agent in started:  # the agent of the other node still waits for the first one
            agent.kill()
            agent.communicate(timeout=60)
    step = events(place / "run", "checkpoint")[-1]["step"]
    settings = (*EXACT, f"training.steps={step + 8}", "training.validate_every=2000", "training.checkpoint_every=20")
    for run in ("run", "alone"):
        done = train(server, 1, "--out", run, *settings, cwd=place)
        assert done[0].status == 0, done
    assert differences(place / "alone", place / "run") == []
