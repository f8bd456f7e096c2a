"""The probable languages of a text, as LibreTranslate shows them."""

from collections.abc import Collection
from dataclasses import dataclass

from atento.text.language import language_shares
from atento_serve.api.language_codes import code_of


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
    scores: dict[str, float] = {}
    for language, share in language_shares(text).items():
        code = code_of(language)
        if not among or code in among:
            scores[code] = scores.get(code, 0.0) + share  # variants of a language add up
    ranked = sorted(scores, key=lambda code: -scores[code])
    shown = [Detected(code, round(100 * min(1.0, scores[code]), 1)) for code in ranked[:most]]
    return shown or [Detected(next(iter(among), "en"), 0.0)]
