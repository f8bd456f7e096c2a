"""A worker without a model, for tests of the runs over blocks: it answers with the text of a block in capitals."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atento.base.errors import DataError
from atento_cli.scale.inputs import BlockReader, Input
from atento_cli.scale.workers import Answer, Requests, serve


def work(requests: Requests, about: Mapping[str, Any]) -> None:
    """Answer blocks; `die_once` and `die_always` have the numbers of blocks that kill the worker."""
    if about.get("no_model"):
        os.kill(os.getpid(), signal.SIGKILL)
    requests.reply(Answer(warnings=[{"text": "loaded"}]))
    reader = BlockReader(Input(**about["input"])) if "input" in about else None
    for block, raw in requests.blocks():
        if (
            block.number in about.get("die_once", ())
            and not (mark := Path(about["marks"]) / f"{block.number}").exists()
        ):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if block.number in about.get("die_always", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if block.number in about.get("raise", ()):
            raise MemoryError("no room")
        if block.number in about.get("wrong", ()):
            raise DataError(f"line {block.first} is wrong")
        bad: list[str] = []
        if reader is not None:
            raw = "".join(f"{line}\n" for line in reader.lines(block, raw, bad)).encode()
        requests.reply(Answer(raw.upper(), bad))


if __name__ == "__main__":
    serve(work)
