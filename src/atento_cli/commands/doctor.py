"""`atento doctor`: versions, features of this machine and optional packages."""

import json
import platform
import re
import sys
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer

from atento.base.errors import UsageError, install_hint
from atento.base.terminal import echo
from atento.base.version import __version__
from atento_cli.options import AsJson, Device, progress

if TYPE_CHECKING:
    from atento.training.replica.health import Health

_PATIENCE = 60.0  # seconds that the processes wait for each other


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor", epilog="Example:  atento doctor --json")(doctor)


def doctor(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check the processes that train together, as torchrun starts them.")
    ] = False,
    nproc: Annotated[
        int | None, typer.Option(metavar="N", min=2, max=1024, help="With --cluster: start N processes here.")
    ] = None,
    folder: Annotated[
        str, typer.Option(metavar="FOLDER", help="With --cluster: the folder of the run, which all machines share.")
    ] = ".",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Print versions, processor features, memory, the precision that `auto` chooses, and optional packages.

    With --cluster, print the links between the processes of a run, their clocks, what the shared folder can do, and
    whether versions and random numbers are equal. The exit status is 1 if something is wrong.
    """
    if not cluster:
        _check_machine(as_json)
        return
    from pathlib import Path

    from atento.base.precision import resolve_device
    from atento.config.sections.training import ParallelConfig
    from atento.training.replica import environment
    from atento.training.replica.data_parallel import Processes
    from atento.training.replica.health import examine
    from atento.training.replica.joined import replica_joined
    from atento.training.replica.launcher import launch

    if not environment.launched() and nproc is not None:
        raise typer.Exit(launch(nproc, "atento_cli.start", sys.argv[1:], progress, ""))
    if environment.world_size() < 2:
        raise UsageError("--cluster checks several processes: give --nproc N, or start it by torchrun on all machines")
    kind = resolve_device(device)
    with replica_joined(ParallelConfig(timeout=_PATIENCE), kind) as processes:
        assert isinstance(processes, Processes)
        health = examine(processes, Path(folder), __version__, kind)
    if environment.rank() == 0:
        echo(json.dumps(asdict(health), ensure_ascii=False) if as_json else _cluster_table(health))
    if health.differences:
        raise typer.Exit(1)


def _cluster_table(health: "Health") -> str:
    lines = []
    for rank, facts in enumerate(health.processes):
        versions = ", ".join(f"{name} {facts[name]}" for name in ("python", "torch", "atento"))
        lines.append(f"{f'process {rank}':<29} {facts['host']}, {facts['processor']}, {versions}")
    for rank, (delay, speed) in enumerate(health.links, start=1):  # process 0 with each: seconds, bytes a second
        lines.append(f"{f'link 0 - {rank}':<29} {delay * 1e6:,.0f} us there and back, {speed / 2**20:,.0f} MiB/s")
    lines.append(f"{'clocks':<29} {max(health.clocks) - min(health.clocks):.3f} s apart")
    lines += [f"{f'folder: {what}':<29} {seconds * 1e3:,.1f} ms" for what, seconds in health.folder.items()]
    lines += [f"wrong: {difference}" for difference in health.differences] or ["all processes can train together"]
    return "\n".join(lines)


def missing_packages() -> dict[str, list[str]]:
    """The packages of each extra that are not installed, but for the extra of developers."""
    missing: dict[str, list[str]] = {}
    for requirement in metadata.requires("atento") or ():
        wanted, _, extra = requirement.partition("extra ==")
        name, extra = re.split(r"[^\w.-]", wanted, maxsplit=1)[0], extra.strip(" '\"")
        if extra in ("", "dev"):
            continue
        absent = missing.setdefault(extra, [])
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
    return missing


def _check_machine(as_json: bool) -> None:
    import os

    import torch

    from atento.base.precision import best_precision, cpu_features, resolve_device
    from atento.inference.engine import engine_here
    from atento.inference.packed_linear import has_packed_products
    from atento.models.shipped import shipped_models

    device = resolve_device("auto")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    facts: dict[str, object] = {
        "atento": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": torch.__version__,
        "device": device if device == "cpu" else f"{device}: {torch.cuda.get_device_name()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": f"{pages / 2**30:.1f} GiB",
        "processor": ", ".join(name for name, present in cpu_features().items() if present) or "no bf16, amx or vnni",
        "training precision (auto)": best_precision(device),
        "attention on this processor": "plain to 64 x 64 scores a head and in bfloat16, fused above",
        "decoding and reading on a CPU": "packed by oneDNN"
        if has_packed_products()
        else "plain: no oneDNN products here",
        "small networks on a CPU": engine_here(),
        "models that come with Atento": ", ".join(shipped_models()) or "none",
        "tokenizers": metadata.version("tokenizers"),
        "sacrebleu": metadata.version("sacrebleu"),
    }
    for extra, missing in missing_packages().items():
        command = f"missing {', '.join(missing)}: {install_hint(extra)}"
        facts[f"extra {extra}"] = command if missing else "present"
    if as_json:
        echo(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        echo(f"{name:<29} {value}")
