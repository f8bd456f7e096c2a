"""A worker of `--cluster`: a process that loads the model once and answers blocks with the code of the command."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from atento.base.errors import AtentoWarning, LongTextWarning
from atento.base.terminal import show_log
from atento_cli.line_work import Work
from atento_cli.main import command_function
from atento_cli.options import ModelOptions

if TYPE_CHECKING:
    from atento_cli.scale.workers import Requests


class BlockServer:
    """What a command gets as its cluster in a worker: it answers the blocks that the worker is sent.

    Args:
        requests: of the process that started the worker.
        about: the first of them: command, options and input.
    """

    def __init__(self, requests: "Requests", about: Mapping[str, Any]) -> None:
        self._requests, self._options, self._input = requests, about["options"], about["input"]
        self.columns = tuple(self._input["columns"])

    def run(self, work: Work) -> None:
        """Load the model and answer blocks for ever."""
        from atento_cli.scale.inputs import BlockReader, Input
        from atento_cli.scale.workers import Answer

        options = self._options
        reader = BlockReader(Input(self._input["path"], self.columns, self._input["name"]))
        shared = ModelOptions(**{one.name: options[one.name] for one in fields(ModelOptions) if one.name in options})
        with ExitStack() as stack:
            with _noted_warnings() as noted:
                loaded = stack.enter_context(shared.loaded(options["model"]))
                work.ready(loaded)
            self._requests.reply(Answer(warnings=noted))  # "the model is loaded": the first reply has no content
            for block, raw in self._requests.blocks():
                bad: list[str] | None = [] if options.get("skip_bad") else None  # None: a bad line ends the command
                lines = reader.lines(block, raw, bad, work.check)
                with _noted_warnings() as noted, _captured() as written:
                    work.answer(loaded, lines, block.row, bad)  # draws follow the number of its first row in the file
                self._requests.reply(Answer(written.getvalue(), bad or [], noted))


@contextlib.contextmanager
def _captured() -> Iterator[io.BytesIO]:
    """Collect what is written to standard output, text in UTF-8 or bytes to its buffer."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="utf-8", newline="\n", write_through=True)
    with contextlib.redirect_stdout(stream):
        yield written
        stream.flush()
    stream.detach()


@contextlib.contextmanager
def _noted_warnings() -> Iterator[list[dict[str, object]]]:
    """Collect the warnings of the package as plain data, for the process that prints them."""
    noted: list[dict[str, object]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AtentoWarning)
        yield noted
    for entry in caught:
        message = entry.message
        if isinstance(message, LongTextWarning):
            noted.append({"text": str(message), "long_texts": vars(message)})
        else:
            noted.append({"text": str(message)})


def _work(requests: "Requests", about: Mapping[str, Any]) -> None:
    """Run the command of the first message, with a cluster that serves blocks."""
    if about["quiet"]:
        logging.disable(logging.WARNING)  # the first worker has said it
    command_function(about["command"])(cluster=BlockServer(requests, about), **about["options"])


def main() -> None:
    """Serve until the process that started this one ends."""
    from atento_cli.scale.workers import serve

    show_log()
    serve(_work)


if __name__ == "__main__":
    main()
