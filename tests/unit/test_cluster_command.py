"""Clusters: a command's blocks go to workers, which may be lost; `atento launch` writes files that torchrun reads."""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from atento.base.errors import AtentoError, AtentoWarning, LongTextWarning, UsageError
from atento_cli import cluster_run, lines
from atento_cli.cluster_option import with_cluster
from atento_cli.commands.collect import collect
from atento_cli.line_work import Cluster, Work
from atento_cli.main import COMMANDS, application
from atento_cli.scale import line_blocks
from atento_cli.scale.inputs import Input
from atento_cli.scale.line_blocks import Block
from atento_cli.scale.parts import flag_of
from atento_cli.scale.run_blocks import BlockRun
from atento_cli.scale.workers import Answer, WorkerLost, WorkerProcess
from failing import fails


def capitals(
    model: str,
    file: str,
    loudness: int = 1,
    skip_bad: bool = False,
    device: str = "cpu",
    threads: int | None = 1,
    cluster: Cluster | None = None,
) -> None:
    cluster.run(Work(answer=lambda *_: None, ready=lambda _: None))


def flags_of(name: str) -> dict[str, Any]:
    """The flags of a command, with the option that each sets."""
    command: Any = typer.main.get_command(application(name))
    command = command.commands[name] if hasattr(command, "commands") else command
    return {flag: parameter for parameter in command.params for flag in parameter.opts}


class Made:
    """A folder with a model, a file, and the parts of `capitals`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.out = folder, folder / "in.txt", folder / "parts"
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}", encoding="utf-8")
        self.file.write_text("".join(f"line {n}\n" for n in range(10)), encoding="utf-8")
        self._command: Any = with_cluster(capitals)

    def run(self, **options: Any) -> None:
        usual = {"cluster": "local", "out": self.out, "workers": 1, "block_lines": 3, "columns": None, "reading": None}
        own = {"model": str(self.folder / "model"), "file": str(self.file), "loudness": 1, "skip_bad": False}
        self._command(**own | {"device": "cpu", "threads": 1} | usual | options)

    def times(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (self.out / "parts").iterdir()}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(cluster_run, "WORKER", "echo_worker")
    return Made(tmp_path)


def test_parts_their_manifest_and_what_is_made_again(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.run(workers=2)
    said = capsys.readouterr().err
    assert "wrote" in said and "4 parts for 10 lines" in said and "warning: loaded" in said
    collect(made.out, made.folder / "all.txt", as_json=True)
    assert json.loads(capsys.readouterr().out)["lines"] == 10
    fails(UsageError, "--json prints what was written", collect, made.out, as_json=True)
    assert (made.folder / "all.txt").read_text(encoding="utf-8") == made.file.read_text(encoding="utf-8").upper()
    manifest = json.loads((made.out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["job"]["options"] == {"loudness": 1, "skip_bad": False, "columns": [], "block_lines": 3}
    before = made.times()
    (made.out / "parts" / "part-00001.txt").unlink()
    (made.out / "parts" / "part-00003.txt").write_text("LINE 8\n", encoding="utf-8")
    made.run()
    said = capsys.readouterr().err
    assert "part-00001.txt is missing; it is made again" in said and "part-00003.txt was altered" in said
    after = made.times()
    assert [name for name in sorted(after) if after[name] != before[name]] == ["part-00001.txt", "part-00003.txt"]
    collect(made.out, made.folder / "again.txt")
    assert (made.folder / "again.txt").read_bytes() == (made.folder / "all.txt").read_bytes()


def test_what_is_whole_is_not_made_again_and_what_differs_is_refused(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run()
    monkeypatch.setattr(cluster_run, "WORKER", "no_such_module")
    made.run(threads=2, workers=2)
    assert "all 4 parts are there already" in capsys.readouterr().err
    made.file.touch()  # another time, the same content
    made.run()
    assert "all 4 parts are there already" in capsys.readouterr().err
    for options, said in (({"loudness": 2}, "--loudness was 1 and is 2"), ({"block_lines": 4}, "--block-lines was 3")):
        fails(UsageError, said, made.run, **options)
    (made.folder / "model" / "config.json").write_text("{ }", encoding="utf-8")
    fails(UsageError, "the model changed", made.run)
    (made.folder / "model" / "config.json").write_text("{}", encoding="utf-8")
    made.file.write_text("line\n" * 10, encoding="utf-8")
    fails(UsageError, r"the content of .* has changed", made.run)
    assert len(made.times()) == 4


def test_a_run_that_failed_leaves_its_parts(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is bad where the file was changed behind the plan; the parts before it are in the manifest."""
    plan = cluster_run.Launch._prepare

    def changed_later(self: Any, *arguments: Any) -> None:
        plan(self, *arguments)
        content = made.file.read_bytes()
        made.file.write_bytes(content.replace(b"7", b"\n"))

    monkeypatch.setattr(cluster_run.Launch, "_prepare", changed_later)
    fails(UsageError, "the file has changed: block 2", made.run)
    manifest = json.loads((made.out / "manifest.json").read_text(encoding="utf-8"))
    assert [part is not None for part in manifest["parts"]] == [True, True, False, False]


def test_bad_lines_and_warnings_are_added_up_and_workers_have_their_share_of_the_cores(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.file.write_bytes(b"good\nb\xffd\ngood\ngood\ngood\n\xff\n")
    fails(UsageError, r"in\.txt:2: not UTF-8", made.run)
    made.run(skip_bad=True)
    assert "warning: 2 bad lines skipped, first: " in capsys.readouterr().err
    assert not list(made.out.glob("parts.jsonl"))
    fails(UsageError, "must be a new or empty folder", made.run, out=made.folder)
    started: list[Any] = []
    monkeypatch.setattr(cluster_run, "available_cores", lambda: 7)
    worker = "atento_cli.scale.workers.WorkerProcess"
    monkeypatch.setattr(worker, lambda module, request, threads: started.append((request, threads)))
    for workers, threads, size, count, each in ((None, None, 9, 3, 2), (2, None, 9, 2, 3), (4, 5, 3, 3, 5)):
        options = {"model": "m", "file": "f", "device": "cpu", "threads": threads}
        more: Any = {"cluster": "local", "out": Path("x"), "block_lines": None, "columns": None}
        launch = cluster_run.Launch("tag", options, workers=workers, **more)
        with launch._workers(size, Input("f"), Path("/m")) as (number, start):
            start(0)
        assert number == count and started[-1][1] == each and started[-1][0]["options"]["threads"] == each
    heard = cluster_run._Warnings()
    fields = {"long": 2, "total": 5, "longest": 90, "trained": 64, "result": "outputs"}
    with pytest.warns(AtentoWarning) as warned:
        for _ in range(2):
            heard.repeat(Answer(warnings=[{"text": "odd"}, {"text": "long", "long_texts": fields}]))
    assert [type(entry.message) for entry in warned] == [AtentoWarning, LongTextWarning, LongTextWarning]
    assert str(LongTextWarning(**fields)) == str(warned[1].message)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in COMMANDS if "--columns" in flags_of(name)])
def test_messages_name_the_flags_that_users_type(name: str) -> None:
    """Each option of a command that decides its parts, decoding flags included."""
    command = flags_of(name)
    options = {parameter.name for parameter in command.values() if parameter.param_type_name == "option"}
    for option in options - {"cluster", *cluster_run._NOT_OF_OUTPUT}:
        assert flag_of(option) in command and command[flag_of(option)].name == option


def test_a_parquet_file_without_columns_is_refused_and_blocks_are_whole_windows(tmp_path: Path) -> None:
    assert line_blocks.STEP % lines.WINDOW == 0
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    for read in (lambda name: lines.input_lines(name, None), lines.file_lines):
        fails(UsageError, r"lines of text; --columns names the column", read, str(tmp_path / "in.parquet"))


BLOCKS = [(Block(n, 10 * n + 1, 10, 0, 0, 0), f"block {n}".encode()) for n in range(6)]
RIGHT = {n: f"BLOCK {n}".encode() for n in range(6)}


class Recorded:
    """A run with workers of `echo_worker`, and what it called."""

    def __init__(self, folder: Path, workers: int, **about: Any) -> None:
        self.answers: dict[int, bytes] = {}
        self.lost: list[str] = []
        self.loaded = 0
        self.started: list[WorkerProcess] = []

        def start(number: int) -> WorkerProcess:
            self.started.append(WorkerProcess("echo_worker", {"marks": str(folder), **about}))
            return self.started[-1]

        self.run = BlockRun(workers, start, self._done, self._heard, self.lost.append)

    def _done(self, block: Block, answer: Answer) -> None:
        assert block.number not in self.answers
        self.answers[block.number] = answer.content

    def _heard(self, answer: Answer) -> None:
        assert answer.warnings == [{"text": "loaded"}]
        self.loaded += 1

    def ended(self) -> bool:
        return all(not Path(f"/proc/{worker.pid}").exists() for worker in self.started)


def test_a_killed_worker_costs_its_block_which_another_does(tmp_path: Path) -> None:
    run = Recorded(tmp_path, 2, die_once=[1, 4])
    run.run.run(BLOCKS)
    assert run.answers == RIGHT
    assert len(run.lost) == 2 and all("SIGKILL" in text and "which is done again" in text for text in run.lost)
    assert run.loaded in (3, 4) and run.ended()


def test_a_block_that_fails_three_times_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    run = Recorded(tmp_path, 2, die_always=[2])
    fails(AtentoError, r"block 2 \(lines 21-30\) failed 3 times; the last time .*SIGKILL", run.run.run, BLOCKS)
    assert run.answers == {n: content for n, content in RIGHT.items() if n != 2}
    assert len(run.lost) == 2 and run.ended()


def test_errors_of_work_of_loading_and_of_the_user(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "bc":
        (tmp_path / name).mkdir()
    run = Recorded(tmp_path, 1, **{"raise": [0]})
    fails(AtentoError, r"block 0 .* failed 3 times; the last time .* MemoryError: no room", run.run.run, BLOCKS[:2])
    assert run.answers == {1: b"BLOCK 1"}
    run = Recorded(tmp_path / "b", 1, no_model=True)
    fails(AtentoError, r"model could not be loaded in 3 workers; the last time its process ended", run.run.run, BLOCKS)
    assert len(run.started) in (3, 4) and run.answers == {}  # a fourth may be starting
    run = Recorded(tmp_path / "c", 2, wrong=[3])
    fails(UsageError, r"^line 31 is wrong$", run.run.run, BLOCKS)
    assert run.ended()


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """As when that process is killed: its end of the pipe is closed."""
    worker = WorkerProcess("echo_worker", {"marks": str(tmp_path)})
    worker.ready()
    os.close(worker.stdin.fileno())
    deadline = time.monotonic() + 10
    while worker._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker._process.poll() == 0


class Waiting:
    """A worker in this process; one that replaces a lost one waits for a machine until it is closed."""

    def __init__(self, lost_at: int | None, waits: bool) -> None:
        self.lost_at, self.waits, self.closed = lost_at, waits, threading.Event()

    def ready(self) -> Answer:
        if self.waits:
            self.closed.wait(60)
            raise WorkerLost("it was never started")
        return Answer(warnings=[{"text": "loaded"}])

    def answer(self, block: Block, raw: bytes) -> Answer:
        if self.lost_at is not None and block.number >= self.lost_at:
            raise WorkerLost("its machine has gone")
        time.sleep(0.01)
        return Answer(raw.upper())

    def close(self) -> None:
        self.closed.set()


def test_a_worker_that_finds_no_machine_any_more_keeps_no_block(tmp_path: Path) -> None:
    """The others do the block of the machine that was lost, though its worker is never started again."""
    started: list[int] = []

    def start(number: int) -> Waiting:
        started.append(number)
        return Waiting(2 if number == 1 else None, waits=started.count(number) > 1)

    answers: dict[int, bytes] = {}
    run = BlockRun(2, start, lambda block, answer: answers.setdefault(block.number, answer.content))
    thread = threading.Thread(target=run.run, args=(BLOCKS,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and answers == RIGHT and started.count(1) == 2


# the fields of a JobSet of jobset.x-k8s.io/v1alpha2, of a Job and of a pod, as far as the file may use them
FIELDS: dict[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"failurePolicy", "network", "replicatedJobs", "successPolicy", "startupPolicy", "suspend"},
    "spec.failurePolicy": {"maxRestarts", "rules"},
    "spec.network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
    "spec.replicatedJobs": {"name", "replicas", "template", "dependsOn", "groupName"},
    "spec.replicatedJobs.template.spec": {
        *("completionMode", "parallelism", "completions", "backoffLimit", "template", "activeDeadlineSeconds")
    },
    "spec.replicatedJobs.template.spec.template.spec": {
        *("restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes", "nodeSelector", "tolerations")
    },
    "spec.replicatedJobs.template.spec.template.spec.containers": {
        *("name", "image", "workingDir", "command", "args", "env", "resources", "volumeMounts")
    },
}
SAYS_ITS_WORDS = "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


def launched(*words: str, refused: bool = False) -> str:
    """What `atento launch` prints, or its message."""
    done = CliRunner().invoke(application(), ["launch", *words])
    if refused:
        assert isinstance(done.exception, UsageError)
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.stdout


def words_of_torchrun(folder: Path, command: list[str], **environment: str) -> list[str]:
    """Run a command where `torchrun` says its words, `srun` runs its command, and `scontrol` names two machines."""
    programs = {
        "torchrun": SAYS_ITS_WORDS,
        "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho first\necho second\n",
    }
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": path, **environment}, timeout=30)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def check_words(words: list[str], nodes: str, endpoint: str, host: bool) -> None:
    """The words as torchrun itself reads them."""
    read = get_args_parser().parse_args(words)
    assert (read.nnodes, read.nproc_per_node, read.max_restarts) == (nodes, "4", 3)
    assert (read.rdzv_backend, read.rdzv_endpoint, read.rdzv_conf) == ("c10d", endpoint, f"is_host={int(host)}")
    assert read.module and read.training_script == "atento_cli.start"
    assert read.training_script_args == [
        *("train", "micro-world-lm", "name=it's", "data.folder=two words", "--out", "runs/a b")
    ]


RECIPE = ("micro-world-lm", "name=it's", "data.folder=two words", "--nodes", "2", "--nproc", "4", "--out", "runs/a b")


@pytest.mark.parametrize("node", [0, 1])
def test_the_slurm_script_and_the_jobset_start_torchrun_on_each_machine(tmp_path: Path, node: int) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(launched("slurm", *RECIPE), encoding="utf-8")
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "77", "SLURM_NODEID": str(node)}
    words = words_of_torchrun(tmp_path, ["bash", str(script)], **slurm)
    check_words(words, "2", "first:29500", host=node == 0)
    assert "--rdzv-id=77" in words
    text = script.read_text(encoding="utf-8")
    for setting in ("nodes=2", "gpus-per-node=4", "job-name=it-s"):
        assert f"#SBATCH --{setting}\n" in text
    cpu = launched("slurm", *RECIPE, "--no-gpus").split()
    assert cpu[cpu.index("--device") + 2] == "cpu" and not any("gpus" in word for word in cpu)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
    text = launched("kubernetes", *RECIPE, "--name", "lm", "--image", "registry/atento:1", "--claim", "shared")
    jobset = yaml.safe_load(text)
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    check_fields(jobset, "")
    (group,) = jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    assert (job["completionMode"], job["parallelism"], job["completions"]) == ("Indexed", 2, 2)
    (container,) = job["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    words = words_of_torchrun(tmp_path, container["command"], JOB_COMPLETION_INDEX=str(node))
    # the first pod, as JobSet names it: JOBSET-GROUP-JOB-POD.SUBDOMAIN
    check_words(words, "2", f"lm-{group['name']}-0-0.{jobset['spec']['network']['subdomain']}:29500", host=node == 0)
    mounted = {volume["name"] for volume in job["template"]["spec"]["volumes"]}
    assert mounted == {mount["name"] for mount in container["volumeMounts"]}


def check_fields(value: Any, path: str) -> None:
    """Refuse fields that the schema does not have."""
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict):
            assert part.keys() <= FIELDS.get(path, part.keys()), path
            for name, child in part.items():
                check_fields(child, f"{path}.{name}" if path else name)


def test_what_is_refused() -> None:
    assert "there is no cluster 'slrum'; did you mean 'slurm'?" in launched("slrum", *RECIPE, refused=True)
    assert "needs --image" in launched("kubernetes", *RECIPE, refused=True)
    options = ("--image", "a", "--claim", "b", "--name", "Not_This")
    assert "small letters, digits and hyphens" in launched("kubernetes", *RECIPE, *options, refused=True)
    assert "unknown key 'stops'" in launched("slurm", "micro-world-lm", "training.stops=3", refused=True)
