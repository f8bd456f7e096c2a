"""`atento doctor`: versions, features of this machine and optional packages."""

import json
import platform
import sys
from importlib import metadata, util

import typer

import atento
from atento.cli.options import AsJson

EXTRAS = {"plot": "matplotlib", "bench": "transformers"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor", epilog="Example:  atento doctor --json")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Print versions, processor features, memory, the precision that `auto` chooses, and optional packages."""
    import os

    import torch

    from atento.networks.steps.packed_linear import has_packed_products
    from atento.precision import best_precision, cpu_features, resolve_device

    device = resolve_device("auto")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    facts: dict[str, object] = {
        "atento": atento.__version__,
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
        "tokenizers": metadata.version("tokenizers"),
        "sacrebleu": metadata.version("sacrebleu"),
    }
    for extra, package in EXTRAS.items():
        installed = util.find_spec(package) is not None
        facts[f"extra {extra}"] = "present" if installed else f"missing: pip install 'atento[{extra}]'"
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        typer.echo(f"{name:<29} {value}")
