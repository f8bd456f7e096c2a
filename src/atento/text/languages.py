"""The languages of a multilingual tokenizer: the tokens that name them (mBART, M2M-100, NLLB, Marian)."""

import re
from collections.abc import Iterable

_TOKEN = re.compile(r"__([a-z]{2,3})__|([a-z]{2}_[A-Z]{2})|([a-z]{3}_[A-Z][a-z]{3})|>>([^<>\s]+)<<")


def languages_of(specials: Iterable[str]) -> dict[str, str]:
    """The languages among the special tokens: name -> token.

    The name is that of `transformers`: `pt_XX` (mBART), `pt` for `__pt__` (M2M-100), `por_Latn` (NLLB), and `por` for
    `>>por<<` (Marian).
    """
    matches = {token: _TOKEN.fullmatch(token) for token in specials}
    return {next(filter(None, match.groups())): token for token, match in matches.items() if match is not None}


def chooses_by_source(token: str) -> bool:
    """Whether a token of the target language stands in front of the source, as in Marian's multilingual models."""
    return token.startswith(">>")
