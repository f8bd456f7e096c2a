"""Names that look the same: the NFC form of a text, accented letters in one piece, and tags of languages."""

import unicodedata
from itertools import groupby

_LONG_RUN = 64  # characters that may be marks of one letter


def nfc(text: str) -> str:
    """The NFC form, in n log n: `unicodedata` orders a run of marks by exchanging neighbours, which is quadratic."""
    if unicodedata.is_normalized("NFC", text):
        return text
    if len(text) > _LONG_RUN:
        codes = "".join(unicodedata.normalize("NFD", char) for char in text)
        runs = groupby(codes, key=lambda char: unicodedata.combining(char) > 0)
        text = "".join(
            char for marks, run in runs for char in (sorted(run, key=unicodedata.combining) if marks else run)
        )
    return unicodedata.normalize("NFC", text)


def tag_of(language: str) -> str:
    """What names of languages are compared by: pt_BR, pt-BR and pt-br are one."""
    return language.lower().replace("_", "-")
