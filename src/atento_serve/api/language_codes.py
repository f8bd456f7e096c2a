"""Languages by their codes: those of requests (`pt`, `pt-BR`, `pt_BR`, `pb`), and the names of a model's tokenizer."""

import re
from collections.abc import Sequence

import langcodes

from atento.base.errors import nearest
from atento_serve.http.errors import ServiceError

# LibreTranslate's codes of Brazilian Portuguese and traditional Chinese, and its one code of Tagalog and Filipino
_ALIASES = {"pb": "pt", "zt": "zh", "fil": "tl"}
_NAMED = (  # by their codes
    "ar Arabic, bg Bulgarian, ca Catalan, cs Czech, da Danish, de German, el Greek, en English, eo Esperanto, es "
    "Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fr French, ga Irish, gl Galician, he Hebrew, hi Hindi, "
    "hr Croatian, hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean, lt Lithuanian, lv Latvian, nb "
    "Norwegian, nl Dutch, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak, sl Slovenian, sr Serbian, sv "
    "Swedish, sw Swahili, ta Tamil, th Thai, tr Turkish, uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese"
)
NAMES = dict(pair.split() for pair in _NAMED.split(", "))


def code_of(name: str) -> str:
    """The code of a language: "pt" for pt, pt-BR, pt_BR, pb, pt_XX, por and por_Latn; other names as they are."""
    base = name.strip().replace("_", "-").partition("-")[0].lower()
    code = langcodes.standardize_tag(base, macro=True) if re.fullmatch("[a-z]{3}", base) else base
    return _ALIASES.get(code, code)


def named_language(name: str, known: Sequence[str], pointer: str) -> str:
    """The name by which a tokenizer knows a language of a request.

    Raises:
        ServiceError: 400, the model does not have it.
    """
    if name in known:
        return name
    matches = [language for language in known if code_of(language) == code_of(name)]
    if not matches:
        message = f"the model has no language {name[:40]!r}{nearest(name[:40], list(known))}"
        raise ServiceError(400, message, "unknown_language", param=pointer)
    return matches[0]


def pair_in(name: str) -> tuple[str, str] | None:
    """The languages in the name of a model, such as ("en", "pt") in "micro-world-en-pt"; None if there are none."""
    parts = [part.lower() for part in name.replace("_", "-").split("-") if part]
    if len(parts) < 2 or not all(code_of(part) in NAMES for part in parts[-2:]):
        return None
    source, target = (code_of(part) for part in parts[-2:])
    return None if source == target else (source, target)
