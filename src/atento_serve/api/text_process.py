"""A process that works on the texts of one request at a time, within limits of memory and of processor time."""

import json
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress

from atento.base.processes import receive, send
from atento_serve.api.text_work import WORK, Asked
from atento_serve.http.errors import ServiceError, too_long

_FIRST, _FURTHER = 0.1, 0.2  # seconds of the processor after which work gives way to others, by two steps each time
_LEAST = 6  # steps after which the process is not used again: it cannot take them back


def _answer(first: bytes, second: bytes, memory: int) -> tuple[Asked, bytes] | None:
    """The answer to a request; None: nobody waits for it any longer."""
    given = json.loads(first)
    steps, answer = WORK[given["work"]](given, second), None
    try:
        while True:
            asked = steps.send(answer)
            send(sys.stdout.buffer, json.dumps({"ask": asked}).encode(), b"")
            message = receive(sys.stdin.buffer)
            if message is None:
                sys.exit()
            answer = json.loads(message[0])
            if answer is None:
                return None
    except StopIteration as end:
        return {}, end.value
    except ServiceError as error:
        return {"refused": [error.status, error.message, error.code, error.param]}, b""
    except MemoryError:
        large = too_long(f"the texts of the request need more than {memory:,} bytes of memory")
        return {"refused": [large.status, large.message, large.code, None], "is_last": True}, b""
    except Exception as error:  # its words may be a user's
        last = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(f"{type(error).__name__} in work on texts: {last.filename}:{last.lineno}\n")
        return {"refused": [500, "the service failed; its log says where", "bug", None], "is_last": True}, b""


def main() -> None:
    """Answer requests until standard input ends; the arguments are bytes of memory, and seconds of the processor."""
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    with suppress(ValueError, OSError):  # macOS does not know this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGVTALRM, lambda *_: os.nice(2))
    while message := receive(sys.stdin.buffer):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
        signal.setitimer(signal.ITIMER_VIRTUAL, _FIRST, _FURTHER)
        answer = _answer(*message, memory)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_VIRTUAL):
            signal.setitimer(timer, 0)
        if answer is not None:
            head = {"is_last": os.nice(0) >= _LEAST} | answer[0]
            send(sys.stdout.buffer, json.dumps(head).encode(), answer[1])


if __name__ == "__main__":
    main()
