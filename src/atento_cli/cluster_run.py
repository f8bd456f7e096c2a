"""A command with `--cluster` in the process that the user started: blocks planned, workers started, parts written."""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atento.base.errors import AtentoError, AtentoWarning, LongTextWarning, UsageError, counted
from atento.base.precision import available_cores
from atento_cli.command_progress import Progress
from atento_cli.options import check_order, progress, warnings_as_lines
from atento_cli.output_paths import output_folder

if TYPE_CHECKING:
    from atento_cli.line_work import Work
    from atento_cli.scale.inputs import Input
    from atento_cli.scale.line_blocks import Block
    from atento_cli.scale.parts import Job, OutputFolder
    from atento_cli.scale.run_blocks import Start
    from atento_cli.scale.workers import Answer

WORKER = "atento_cli.block_worker"
_NOT_OF_OUTPUT = ("model", "file", "device", "threads", "out", "pairs")  # options that do not change the output
_GPU_FILES = ("nvidia[0-9]*", "kfd", "dxg")  # in /dev, where there is a GPU


class Launch:
    """The process that the user started: plans the blocks, starts the workers and writes the parts."""

    def __init__(
        self,
        command: str,
        options: Mapping[str, Any],
        *,
        cluster: str,
        out: Path | None,
        workers: int | None,
        block_lines: int | None,
        columns: str | None,
    ) -> None:
        if out is None:
            raise UsageError("--cluster needs --out DIR, the folder of the parts")
        self.command, self.options, self.where, self.folder = command, options, cluster, out
        self.workers, self.block_lines = workers, block_lines
        self.columns = tuple(columns.split(",")) if columns else ()

    def run(self, work: "Work") -> None:
        """Make the parts that are missing."""
        from atento.models.model_hash import model_files
        from atento.storage.atomic_files import NewFolder
        from atento.storage.lock import RunLock
        from atento_cli.scale.inputs import Input
        from atento_cli.scale.parts import PARTS, Job, OutputFolder

        model, file = self.options["model"], self.options["file"]
        if file == "-":
            raise UsageError("--cluster needs a FILE: standard input can be read once only")
        check_order(model, file)
        output_folder(self.folder)
        path = file if "://" in file else str(Path(file).absolute())
        source = Input(path, self.columns, name=file)
        source.version()  # whether it is there
        model_path, digest = model_files(model)
        ending = work.ending or (".jsonl" if self.options.get("as_json") else ".txt")
        job = Job(self.command, model, digest, self._output_options(), file, ending)
        new = NewFolder(self.folder, lambda: any((self.folder / PARTS).glob("part-*")))
        with RunLock(self.folder, "--out"), new, warnings_as_lines():
            output = OutputFolder(self.folder)
            self._prepare(output, job, source, work)
            for problem in output.check().values():
                progress(f"warning: {problem}; it is made again")
            todo = [block for block in output.blocks if block.number not in output.parts]
            total = counted(len(output.blocks), "part")
            if not todo:
                progress(f"{self.folder}: all {total} are there already")
                return
            try:
                with _stopped_by_signals():
                    self._answer(output, todo, source, work, model_path)
            except _Stopped as stop:
                output.save()
                done = len(output.parts)
                progress(f"stopped by {stop.signal.name}: {done:,} of {total} are finished; the same command continues")
                os.kill(os.getpid(), stop.signal)
            except BaseException:
                output.save()
                raise
            output.save()
            # what was written, how many lines were bad, and how to join the parts
            bad = sum(part.bad for part in output.parts.values())
            first = next((part.first_bad for _, part in sorted(output.parts.items()) if part.first_bad), None)
            if bad:
                progress(f"warning: {counted(bad, 'bad line')} skipped, first: {first}")
            lines = sum(block.lines for block in output.blocks)
            parts, folder = counted(len(output.blocks), "part"), output.path
            way = f"; to join them: atento collect {folder}" if self.command != "augment" else ""
            progress(f"wrote {folder}: {parts} for {counted(lines, 'line')}{way}")

    def _output_options(self) -> dict[str, object]:
        """The options that decide the bytes of the parts."""
        from atento.base.limits import read_plain
        from atento.models.model_hash import model_files

        options = {name: value for name, value in self.options.items() if name not in _NOT_OF_OUTPUT}
        options |= options.pop("decoding", {})
        if options.get("glossary"):  # its terms, not its name
            options["glossary"] = hashlib.sha256(read_plain(options["glossary"])).hexdigest()
        kind, _, folder = str(options.get("mbr") or "").partition(":")
        if folder:  # a model that outputs are compared by
            options["mbr"] = f"{kind}:{model_files(folder)[1]}"
        return options | {"columns": list(self.columns), "block_lines": self.block_lines}

    def _prepare(self, output: "OutputFolder", job: "Job", source: "Input", work: "Work") -> None:
        """Plan the blocks and write the manifest, or compare it with this command."""
        from atento_cli.lines import table_warning
        from atento_cli.scale.line_blocks import Reading
        from atento_cli.scale.parts import refuse_difference

        version = source.version()
        if output.body is not None:
            refuse_difference(output, job)
            same = {name: output.body["input"].get(name) for name in version} == version
            if same and len(version) > 1:  # a size alone says little
                return
        elif any(path.name != ".lock" for path in self.folder.iterdir()):
            raise UsageError(f"--out {self.folder} must be a new or empty folder, or one of this command's parts")
        with Progress(f"{self.command}: reading") as bar:
            size = version.get("size") if not (source.is_packed or source.is_parquet) else None
            report = (
                (lambda done: bar.share(done, size))
                if size
                else (lambda done: bar.count(counted(done, "row" if source.is_parquet else "byte")))
            )
            skip_bad = bool(self.options.get("skip_bad"))
            plan = source.plan(Reading(self.block_lines, None, work.check, work.rows, skip_bad, report))
        if output.body is None:
            if not self.columns:
                table_warning(source.shown, plan.head, () if work.check is None else (".tsv", ".jsonl"))
        elif output.body["input"]["sha256"] != plan.sha256:
            raise UsageError(
                f"--out {self.folder} has the parts of another run: the content of {source.shown} has changed; give "
                "another folder"
            )
        output.begin(job, plan, version)

    def _answer(
        self, output: "OutputFolder", todo: "list[Block]", source: "Input", work: "Work", model_path: Path
    ) -> None:
        """Have workers answer the blocks, and write their parts."""
        from atento_cli.scale.run_blocks import BlockRun

        total = sum(block.lines for block in output.blocks)
        left = sum(block.lines for block in todo)  # less, where a stopped run goes on
        heard = _Warnings()
        version = source.version()
        with Progress(self.command) as bar:

            def done(block: "Block", answer: "Answer") -> None:
                nonlocal left
                if work.per_line and output.ending != ".npy" and answer.content.count(b"\n") != block.lines:
                    raise AtentoError(
                        f"{block.range} has {answer.content.count(10):,} lines of output (a bug in Atento)"
                    )
                heard.repeat(answer)
                output.add(block, answer.content, answer.bad)
                left -= block.lines
                bar.share(total - left, total)

            with self._workers(len(todo), source, model_path) as (count, start):
                # with their bytes if workers cannot read them by themselves
                blocks = zip(todo, source.bytes_in_order(iter(todo)) if source.is_packed else repeat(b""))
                BlockRun(count, start, done, heard.repeat, lambda text: progress(f"warning: {text}")).run(blocks)
        if source.version() != version:  # the planned places of lines are those of the old content
            raise AtentoError(f"{source.shown} has changed while it was read: delete {self.folder} and begin again")

    @contextmanager
    def _workers(self, blocks: int, source: "Input", model_path: Path) -> "Iterator[tuple[int, Start]]":
        """The number of workers, and how one is started."""
        from atento_cli.scale.ray_workers import RayCluster
        from atento_cli.scale.workers import WorkerProcess, share_of_threads

        options = {**self.options, "model": str(model_path)}
        request = {"command": self.command, "options": options, "input": asdict(source)}
        device, threads = self.options["device"], self.options["threads"]
        if self.where == "local":
            devices = _devices(device)
            count = min(self.workers or len(devices) or max(1, available_cores() // 2), blocks)
            each = threads or share_of_threads(count, available_cores())

            def start(number: int) -> WorkerProcess:
                own = {"threads": each, "device": devices[number % len(devices)] if devices else device}
                return WorkerProcess(WORKER, {**request, "options": options | own, "quiet": number > 0}, each)

            yield count, start
            return
        with redirect_stdout(sys.stderr), closing(RayCluster(self.where)) as cluster:  # Ray prints to standard output
            gpu = device.startswith(("auto", "cuda")) and cluster.gpus > 0
            each = threads or (1 if gpu else 2)
            count = min(self.workers or (cluster.gpus if gpu else max(1, cluster.cpus // each)), blocks)
            asked = {**request, "options": options | {"threads": each}}
            yield count, lambda number: cluster.start(WORKER, {**asked, "quiet": number > 0}, each, gpu)


class _Warnings:
    """Repeats the warnings of workers in this process: those about long texts are added up, others are shown once."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def repeat(self, answer: "Answer") -> None:
        """Warn of what a worker warned of."""
        import warnings

        for warning in answer.warnings:
            long_texts = warning.get("long_texts")
            if long_texts is not None:
                warnings.warn(LongTextWarning(**long_texts), stacklevel=2)
            elif warning["text"] not in self._shown:
                self._shown.add(warning["text"])
                warnings.warn(warning["text"], AtentoWarning, stacklevel=2)


class _Stopped(BaseException):
    """A signal asks the run to stop."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `_Stopped` at the first SIGINT or SIGTERM in this context; the second one ends the process."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, frame: object) -> None:
        for name in signals:
            signal.signal(name, signal.SIG_DFL)
        raise _Stopped(number)

    before = {name: signal.signal(name, stop) for name in signals}
    try:
        yield
    finally:
        for name, handler in before.items():
            if signal.getsignal(name) is stop:
                signal.signal(name, handler)


def _devices(device: str) -> list[str]:
    """The GPUs of this machine that workers share; empty: the device that was named, or the CPU."""
    if device not in ("auto", "cuda") or not any(any(Path("/dev").glob(name)) for name in _GPU_FILES):
        return []  # before torch is imported, which takes seconds
    import torch

    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
