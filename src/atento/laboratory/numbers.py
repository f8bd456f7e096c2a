"""Look up and compare the rows of the position laboratory, and format them in two languages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from atento.laboratory.networks import SCHEMES
from atento.laboratory.seeds import interval

LEARNED = 0.9  # share right from which on a task counts as learned
KEPT = 0.05  # how much of it may be lost in longer texts
_PORTUGUESE = {
    "none": "sem posições",
    "sinusoidal": "senoidal",
    "learned": "aprendida",
    "rotary": "rotatória",
    "shaw": "Shaw",
    "t5": "T5",
    "alibi": "ALiBi",
    "matrix": "matriz R",
    "sinusoidal+shaw": "senoidal + Shaw",
    "gated sinusoidal+shaw": "senoidal + Shaw com portas",
}


class Numbers:
    """The laboratory's rows, looked up by task, scheme and name of a measure."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows = {(row["task"], row["scheme"]): row for row in rows if "task" in row}
        self.tasks = {task for task, _ in self.rows}
        self.length = next((row["length"] for (task, _), row in self.rows.items() if task != "cost"), 0)

    def schemes(self, task: str, among: Sequence[str] = SCHEMES) -> list[str]:
        """Those that were measured at the task, in the usual order."""
        return [scheme for scheme in among if (task, scheme) in self.rows]

    def mean(self, task: str, scheme: str, name: str) -> float:
        """Over seeds."""
        return float(self.rows[task, scheme]["measures"][name]["mean"])

    def seeds(self, task: str, scheme: str, name: str) -> list[float]:
        """One value a seed."""
        return [float(value) for value in self.rows[task, scheme]["measures"][name]["seeds"]]

    def apart(self, task: str, one: str, other: str, name: str) -> int:
        """1 where `one` has the larger value, -1 where the smaller, 0 where the seeds cannot tell.

        Seeds are paired: of the same seed, weights and data begin alike. The 95 % interval of the mean difference
        must leave 0 out.
        """
        differences = [a - b for a, b in zip(self.seeds(task, one, name), self.seeds(task, other, name))]
        mean, within = interval(differences)
        return 0 if within is None or abs(mean) <= within else (1 if mean > 0 else -1)

    def cost(self, scheme: str, name: str) -> float:
        """A number of the cost row."""
        return float(self.rows["cost", scheme][name])


@dataclass(frozen=True)
class Voice:
    """Portuguese or English: which of two texts, and how numbers and names are written."""

    portuguese: bool

    def say(self, portuguese: str, english: str) -> str:
        """The text in this language."""
        return portuguese if self.portuguese else english

    def number(self, value: float, digits: int = 2) -> str:
        """With a decimal comma or point."""
        written = f"{value:.{digits}f}"
        return written.replace(".", ",") if self.portuguese else written

    def percent(self, value: float) -> str:
        """A share as a whole percentage."""
        return f"{100 * value:.0f} %"

    def scheme(self, name: str) -> str:
        """What a scheme is called."""
        return self.say(_PORTUGUESE[name], "no positions" if name == "none" else name)

    def series(self, values: Iterable[str]) -> str:
        """a, b and c."""
        *first, last = values
        return f"{', '.join(first)} {self.say('e', 'and')} {last}" if first else last


def percents(numbers: Numbers, voice: Voice, task: str, scheme: str) -> str:
    """Accuracy at L, 2L, 4L and 8L."""
    means = [numbers.mean(task, scheme, f"accuracy {times * numbers.length}") for times in (1, 2, 4, 8)]
    return voice.series(voice.percent(mean) for mean in means)


def lengths(numbers: Numbers, voice: Voice) -> str:
    return voice.series(str(times * numbers.length) for times in (1, 2, 4, 8))


def reached(numbers: Numbers, task: str, scheme: str) -> int:
    """The longest text length with high accuracy at all lengths up to it; 0 if the task was not learned."""
    at = {times: numbers.mean(task, scheme, f"accuracy {times * numbers.length}") for times in (1, 2, 4, 8)}
    if at[1] < LEARNED:
        return 0
    longest = 1
    for times in (2, 4, 8):
        if at[times] < at[1] - KEPT:
            break
        longest = times
    return longest * numbers.length


def sorted_out(numbers: Numbers, voice: Voice, task: str) -> str:
    """Which schemes hold at 8L, which fall on the way, and which did not learn the task."""
    far = 8 * numbers.length
    kinds: dict[str, list[str]] = {"hold": [], "fall": [], "never": []}
    for scheme in numbers.schemes(task):
        reach = reached(numbers, task, scheme)
        at, then = (numbers.mean(task, scheme, f"accuracy {length}") for length in (numbers.length, far))
        if reach == 0:
            kinds["never"].append(f"{voice.scheme(scheme)} ({voice.percent(at)})")
        elif reach == far:
            kinds["hold"].append(f"{voice.scheme(scheme)} ({voice.percent(then)})")
        else:
            kinds["fall"].append(f"{voice.scheme(scheme)} ({voice.percent(at)} → {voice.percent(then)})")
    none = voice.say("nenhum", "none of them")
    hold, fall, never = (", ".join(found) or none for found in kinds.values())
    return voice.say(
        f"com {far} tokens ainda acertam: {hold}; perdem-se: {fall}; não aprenderam com {numbers.length}: {never}.",
        f"at {far} tokens still right: {hold}; lost on the way: {fall}; not learned at {numbers.length}: {never}.",
    )
