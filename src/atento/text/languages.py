"""The languages of a multilingual tokenizer: the tokens that name them (mBART, M2M-100, NLLB, Marian)."""

import re
from collections.abc import Iterable
from dataclasses import replace

from atento.errors import TokenizerError, nearest
from atento.text.tokenizer_folder import as_settings
from atento.text.tokenizer_parts import Parts

READS = "language"
"""Key of `tokenizer_config.json`, ours: the language whose token a source has, by name; it wins over `src_lang`."""
_TOKEN = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z]{2})|([a-z]{3}_[A-Z][a-z]{3})|>>([^<>\s]+)<<")


def languages_of(specials: Iterable[str]) -> dict[str, str]:
    """The languages among the special tokens: name -> token.

    The name is that of `transformers`: `pt_XX` (mBART), `pt` for `__pt__` (M2M-100), `por_Latn` (NLLB), and `por` for
    `>>por<<` (Marian).
    """
    matches = {token: _TOKEN.fullmatch(token) for token in specials}
    return {next(filter(None, match.groups())): token for token, match in matches.items() if match is not None}


def reading(parts: Parts) -> Parts:
    """A tokenizer whose template has the language that its settings name. Raises TokenizerError: it is unknown."""
    name, ids = as_settings(parts.files).get(READS), parts.specials.ids
    if name is None:
        return parts
    numbers = {ids[token] for token in languages_of(ids).values()}
    return replace(parts, template=parts.template.in_language(ids[token_of(str(name), ids)], numbers))


def token_of(language: str, specials: Iterable[str]) -> str:
    """The token of a language. Raises TokenizerError: it is not among the special tokens; suggests one."""
    languages = languages_of(specials)
    if language not in languages:
        raise TokenizerError(f"the model has no language {language!r}{nearest(language, list(languages))}")
    return languages[language]


def token_like(language: str, neighbour: str, token: str) -> str | None:
    """The token of a new language, formed as that of a neighbour; None if a tokenizer would read it as text."""
    made = token.replace(neighbour, language)
    old, new = _TOKEN.fullmatch(token), _TOKEN.fullmatch(made)
    return made if old and new and old.lastindex == new.lastindex and new[new.lastindex or 0] == language else None


def chooses_by_source(token: str) -> bool:
    """Whether a token of the target language stands in front of the source, as in Marian's multilingual models."""
    return token.startswith(">>")
