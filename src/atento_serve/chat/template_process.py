"""The process that renders a chat template, as a worker sees it: started when needed, ended when it passes a limit."""

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from atento.base.errors import UsageError
from atento.base.processes import Child
from atento_serve.chat.folder import ChatTemplate
from atento_serve.chat.rendering import SECONDS
from atento_serve.engine.messages import decoded, encoded

_WAIT = 5 * SECONDS  # seconds by the clock: others may have the processor
_FAILED = "the chat template of the model fails: "


class TemplateError(UsageError):
    """The chat template of the model is wrong, or passes a limit."""


class RenderingProcess:
    """A process that renders the conversations of one model, one after another."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._process: Child | None = None

    def parts(self, conversation: Mapping[str, object]) -> list[str]:
        """A conversation, cut at the special tokens that the template writes, as `Renderer.parts` has it.

        Args:
            conversation: its `messages`, and the `variables` of the template.

        Raises:
            UsageError: the template refuses the messages. TemplateError: it is wrong, or passes a limit.
        """
        answer = self._answer(encoded(conversation))
        if "refused" in answer:
            raise UsageError(f"the chat template of the model refuses the messages: {answer['refused']}")
        if "failed" in answer:
            raise TemplateError(f"{_FAILED}{answer['failed']}")
        parts: list[str] = answer["parts"]
        return parts

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _answer(self, line: bytes) -> dict[str, Any]:
        if self._process is None:
            self._process = Child("-m", "atento_serve.chat.rendering")
            self._process.stdin.write(encoded(asdict(self._template)))
        process = self._process
        until, answer = time.monotonic() + _WAIT, b""
        with suppress(BrokenPipeError):  # it has ended: reading says so below
            process.stdin.write(line)
            process.stdin.flush()
        while not answer.endswith(b"\n"):
            # by the clock; the process itself is limited by processor time
            is_late = not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]
            part = b"" if is_late else os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                status = None if is_late else process.wait()  # it closed its output: it has ended, or is about to
                self.close()
                limit = is_late or status == -signal.SIGPROF  # SIGPROF: its processor time is spent
                raise TemplateError(
                    _FAILED + (f"it takes more than {SECONDS:g} seconds" if limit else "its process ended")
                )
            answer += part
        return decoded(answer)
