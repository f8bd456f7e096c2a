"""Servers under the same load, one after the other: whether their answers agree, rates, latencies and ratios."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.serving_load import Load, load, replies, running
from benchmarks.serving_sides import Server

Answer = list[str] | list[float]  # the words of a text or label, or a vector
_PROBES = 8  # texts whose answers are compared
_WARM_UP_SECONDS = 1.0
_FIELDS = ("data", "choices", "embedding", "text", "label")  # of a reply, that have answers
_OURS = "atento "  # begins the names of our servers
# part of a peer's name, clients, and how many times as many requests a second ours is to answer
_GOALS = (("transformers", 64, 3.0), ("CTranslate2", 64, 1.3), ("llama.cpp", 1, 1.0), ("llama.cpp", 16, 1.5))


class Comparison:
    """The servers of one workload.

    Args:
        texts: what the clients send, in turn.
        seconds: about how long each server is measured, all numbers of clients together.
    """

    def __init__(self, texts: Sequence[str], seconds: float) -> None:
        self._texts, self._seconds = texts, seconds
        self._expected: list[Answer] = []
        self._loads: dict[str, dict[int, Load]] = {}

    def measure(self, who: str, server: Server, clients: Sequence[int]) -> Iterator[dict[str, object]]:
        """Yield the share of the first server's answers that this one gives, then a row for each number of clients."""
        requests = [server.request(text) for text in self._texts]
        waiting, compared = list(clients), False
        while waiting or not compared:
            with running(server) as (port, _):
                if not compared:
                    answers = [answer_of(reply) for reply in replies(port, requests[:_PROBES])]
                    self._expected = self._expected or answers
                    shares = [share(answer, expected) for answer, expected in zip(answers, self._expected)]
                    yield {"who": who, "same": round(sum(shares) / len(shares), 4), "of_texts": len(shares)}
                    compared = True
                if waiting:
                    load(port, requests, 2, _WARM_UP_SECONDS)
                gave_up = False
                while waiting and not gave_up:  # else it still computes what was given up, and is started again
                    count = waiting.pop(0)
                    seen = load(port, requests, count, self._seconds / len(clients))
                    gave_up = bool(seen.unanswered)
                    self._loads.setdefault(who, {})[count] = seen
                    yield {"who": who, "clients": count} | _numbers(seen)

    def ratios(self) -> Iterator[dict[str, object]]:
        """Yield how our servers compare with each peer."""
        yield from ratios(self._loads)


def ratios(loads: Mapping[str, Mapping[int, Load]]) -> Iterator[dict[str, object]]:
    """Yield how many times as many requests a second ours answers as each peer: the fastest, and float32.

    Args:
        loads: of each server by name, for each number of clients.
    """
    ours = {who: seen for who, seen in loads.items() if who.startswith(_OURS)}
    for peer, theirs in loads.items():
        for count, seen in theirs.items() if peer not in ours else ():
            fastest = max(ours, key=lambda who: ours[who][count].rate)
            goal = next((times for part, clients, times in _GOALS if part in peer and clients == count), None)
            yield _ratio(f"{fastest} (fastest)", ours[fastest][count], peer, seen, count, goal)
            exact = f"{_OURS}float32"
            if exact in ours and exact != fastest and not peer.endswith(("int8", "Q8_0")):
                yield _ratio(exact, ours[exact][count], peer, seen, count, None)


def _numbers(seen: Load) -> dict[str, object]:
    return {
        "requests_per_second": round(seen.rate, 1),
        "p50_ms": round(seen.milliseconds(50), 1),
        "p99_ms": round(seen.milliseconds(99), 1),
        "failed": seen.failed,
        "unanswered": len(seen.unanswered),
    }


def _ratio(who: str, ours: Load, peer: str, theirs: Load, clients: int, goal: float | None) -> dict[str, object]:
    row: dict[str, object] = {"who": who, "clients": clients, "ratio_to": peer}
    row["ratio"] = round(ours.rate / theirs.rate, 2) if theirs.rate else None
    row["p99_ratio"] = round(ours.milliseconds(99) / theirs.milliseconds(99), 2) if theirs.rate else None
    return row if goal is None else row | {"goal": goal}


def answer_of(reply: Any) -> Answer:
    """The answer to the first text in a reply of any of the servers: a vector, or the words of a text or label.

    It is the first element of each list, and the value of each field that has answers.
    """
    while not isinstance(reply, str):
        if isinstance(reply, dict):
            reply = next(value for name, value in reply.items() if name in _FIELDS or name.endswith("_text"))
        elif isinstance(reply[0], float):
            return list(reply)
        else:
            reply = reply[0]
    return reply.split()


def share(answer: Answer, expected: Answer) -> float:
    """The share of words at the same position; of vectors, the cosine."""
    if isinstance(answer[0], float):
        a, b = np.array(answer, dtype=float), np.array(expected, dtype=float)
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return sum(x == y for x, y in zip(answer, expected)) / max(len(answer), len(expected))
