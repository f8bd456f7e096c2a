"""Pytest whose workers are forks of this process, which has imported what most tests import; `pytest` otherwise.

The fork servers of the workers (`tests/integration/forkserver.py`) are forks of one process too.
"""

import atexit
import contextlib
import gc
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.pathlib import import_path
from execnet.gateway_io import popen_bootstrapline

TESTS = Path(__file__).parents[1] / "tests" / "integration"
IMPORTED = (
    *("transformers.modeling_utils", "transformers.trainer_utils", "sentence_transformers", "peft", "captum.attr"),
    *("scipy.stats", "sklearn.metrics", "matplotlib.pyplot", "pandas", "datasets", "openpyxl", "nltk.translate"),
    *("atento_serve.app", "atento_lab.notes.table", "openai", "hypothesis.strategies"),
)


def main(arguments: list[str]) -> int:
    """Import, and run pytest."""
    sys.path[0] = str(TESTS)
    import forkserver

    forkserver.imports()
    ancestor = forkserver.begin_ancestor()
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path[0] = str(Path(sys.executable).parent)
    workers_are_forked(ancestor)
    return int(pytest.main([*arguments, "-W", "ignore::pytest.PytestAssertRewriteWarning"], [Modules()]))


class Modules:
    """A plugin that imports the modules of the tests before the workers are made, which find them imported."""

    @pytest.hookimpl(tryfirst=True)  # xdist starts the workers in this hook
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Import them as pytest would; what a module cannot import, or skips, each worker finds again and reports."""
        config = session.config
        names = [Path(word.partition("::")[0]) for word in config.args]
        paths = sorted(path for name in names for path in (name.rglob("test_*.py") if name.is_dir() else [name]))
        for path in paths:
            with contextlib.suppress(Exception, pytest.skip.Exception):
                import_path(path.resolve(), root=config.rootpath, consider_namespace_packages=False)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page of what is imported


def workers_are_forked(kept: int = 3) -> None:
    """From here on, the interpreter that xdist starts for a worker is a fork of this process; `kept`: a file it has."""
    real = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_exec(arguments: Any, *rest: Any) -> int:
        if [os.fsdecode(word) for word in arguments][1:] != ["-u", "-c", popen_bootstrapline]:
            return int(real(arguments, *rest))
        pid = os.fork()
        if pid == 0:
            subprocess._fork_exec = real  # type: ignore[attr-defined]
            become_worker(rest[5], rest[8], kept)
        return pid

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]


def become_worker(reads: int, writes: int, kept: int) -> None:
    """Do what the interpreter would, from these files to these; does not return."""
    status = 1
    try:
        os.dup2(reads, 0)
        os.dup2(writes, 1)
        os.closerange(3, kept)
        os.closerange(kept + 1, 1 << 16)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.argv, main = ["-c"], ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(popen_bootstrapline, vars(main))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
