"""Look up and compare the rows of the position laboratory, and format them in two languages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atento_lab.studies.networks import SCHEMES
from atento_lab.studies.seeds import Row, interval

LEARNED = 0.9  # a task with at least this accuracy counts as learned
TOLERATED_LOSS = 0.05  # accuracy that longer texts may lose
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

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row["task"], row["scheme"]): row for row in rows if "task" in row}
        self.tasks = {task for task, _ in self.rows}
        self.length = next((row["length"] for (task, _), row in self.rows.items() if task != "cost"), 0)

    def schemes(self, task: str, among: Sequence[str] = SCHEMES) -> list[str]:
        """Return the schemes that were measured at a task, in the usual order."""
        return [scheme for scheme in among if (task, scheme) in self.rows]

    def mean(self, task: str, scheme: str, name: str) -> float:
        """Return the mean of a measure over seeds."""
        return float(self.rows[task, scheme]["measures"][name]["mean"])

    def best(self, task: str) -> float | None:
        """Return the highest accuracy of a scheme at the trained length; None for a task without accuracies."""
        name = f"accuracy {self.length}"
        schemes = [scheme for scheme in self.schemes(task) if name in self.rows[task, scheme].get("measures", {})]
        return max((self.mean(task, scheme, name) for scheme in schemes), default=None)

    def seeds(self, task: str, scheme: str, name: str) -> list[float]:
        """Return the values of a measure, one per seed."""
        return [float(value) for value in self.rows[task, scheme]["measures"][name]["seeds"]]

    def compare(self, task: str, first: str, second: str, name: str) -> int:
        """Return 1 if `first` has the larger value, -1 if it has the smaller, and 0 if the seeds show no difference.

        Seeds are paired: with the same seed, initial weights and data are the same. A difference counts if the 95 %
        interval of its mean excludes 0.
        """
        differences = [a - b for a, b in zip(self.seeds(task, first, name), self.seeds(task, second, name))]
        mean, within = interval(differences)
        return 0 if within is None or abs(mean) <= within else (1 if mean > 0 else -1)

    def cost(self, scheme: str, name: str) -> float:
        """Return a number of the cost row."""
        return float(self.rows["cost", scheme][name])


@dataclass(frozen=True)
class Language:
    """Portuguese or English: selects texts and formats numbers and names."""

    portuguese: bool

    def text(self, portuguese: str, english: str) -> str:
        """Return the text in this language."""
        return portuguese if self.portuguese else english

    def number(self, value: float, digits: int = 2) -> str:
        """Format a number with a decimal comma or point."""
        text = f"{value:.{digits}f}"
        return text.replace(".", ",") if self.portuguese else text

    def percent(self, value: float) -> str:
        """Format a share as an integral percentage."""
        return f"{100 * value:.0f} %"

    def scheme(self, name: str) -> str:
        """Return the name of a scheme."""
        return self.text(_PORTUGUESE[name], "no positions" if name == "none" else name)

    def series(self, values: Iterable[str]) -> str:
        """Format a list: a, b and c."""
        *first, last = values
        return f"{', '.join(first)} {self.text('e', 'and')} {last}" if first else last


def percents(numbers: Numbers, language: Language, task: str, scheme: str) -> str:
    """Format the accuracies at L, 2L, 4L and 8L."""
    means = [numbers.mean(task, scheme, f"accuracy {times * numbers.length}") for times in (1, 2, 4, 8)]
    return language.series(language.percent(mean) for mean in means)


def lengths(numbers: Numbers, language: Language) -> str:
    """Format the lengths L, 2L, 4L and 8L."""
    return language.series(str(times * numbers.length) for times in (1, 2, 4, 8))


def reached(numbers: Numbers, task: str, scheme: str) -> int:
    """Return the longest text length with high accuracy at all lengths up to it; 0 if the task was not learned."""
    accuracies = {times: numbers.mean(task, scheme, f"accuracy {times * numbers.length}") for times in (1, 2, 4, 8)}
    if accuracies[1] < LEARNED:
        return 0
    longest = 1
    for times in (2, 4, 8):
        if accuracies[times] < accuracies[1] - TOLERATED_LOSS:
            break
        longest = times
    return longest * numbers.length


def generalisation(numbers: Numbers, language: Language, task: str) -> str:
    """State which schemes keep their accuracy at 8L, which lose it, and which did not learn the task."""
    longest_length = 8 * numbers.length
    kinds: dict[str, list[str]] = {"hold": [], "fall": [], "never": []}
    for scheme in numbers.schemes(task):
        reach = reached(numbers, task, scheme)
        trained, longest = (
            numbers.mean(task, scheme, f"accuracy {length}") for length in (numbers.length, longest_length)
        )
        if reach == 0:
            kinds["never"].append(f"{language.scheme(scheme)} ({language.percent(trained)})")
        elif reach == longest_length:
            kinds["hold"].append(f"{language.scheme(scheme)} ({language.percent(longest)})")
        else:
            kinds["fall"].append(
                f"{language.scheme(scheme)} ({language.percent(trained)} → {language.percent(longest)})"
            )
    none = language.text("nenhum", "none of them")
    hold, fall, never = (", ".join(names) or none for names in kinds.values())
    return language.text(
        f"com {longest_length} tokens ainda acertam: {hold}; perdem-se: {fall}; não aprenderam com {numbers.length}: "
        f"{never}.",
        f"at {longest_length} tokens still correct: {hold}; failed beyond the trained length: {fall}; not learned at "
        f"{numbers.length}: {never}.",
    )
