"""Languages: by the codes of requests (`pt-BR`, `pb`) and the names of a tokenizer; the probable ones of a text."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import langcodes
from langcodes import Language

from atento.base.errors import nearest
from atento.text.language import language_shares
from atento_serve.http.errors import ServiceError

# LibreTranslate's codes of Brazilian Portuguese and traditional Chinese, and its one code of Tagalog and Filipino
_ALIASES = {"pb": "pt-BR", "zt": "zh-Hant", "fil": "tl"}
_NAMED = (  # by their codes
    "ar Arabic, bg Bulgarian, ca Catalan, cs Czech, da Danish, de German, el Greek, en English, eo Esperanto, es "
    "Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fr French, ga Irish, gl Galician, he Hebrew, hi Hindi, "
    "hr Croatian, hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean, lt Lithuanian, lv Latvian, nb "
    "Norwegian, nl Dutch, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak, sl Slovenian, sr Serbian, sv "
    "Swedish, sw Swahili, ta Tamil, th Thai, tr Turkish, uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese, zh-Hant "
    "Chinese (traditional)"
)
NAMES = dict(pair.split(maxsplit=1) for pair in _NAMED.split(", "))


def code_of(name: str) -> str:
    """The code of a language: "pt" for pt, pt-BR, pt_BR, pb, pt_XX, por and por_Latn; other names as they are."""
    return _codes_of(name)[-1]


def _codes_of(name: str) -> list[str]:
    """The codes that a language may have, the closest first: zh-TW, zh-Hant and zh of zh_TW, but zh alone of zho_Hans,
    whose script is the usual one.
    """
    tag = name.strip().replace("_", "-")
    own, *parts = _ALIASES.get(tag.lower(), tag).split("-")
    own = own.lower()
    standard = langcodes.standardize_tag(own, macro=True) if re.fullmatch("[a-z]{3}", own) else own
    base = _ALIASES.get(standard, standard.partition("-")[0])
    script, region = (next((part for part in parts if part.isalpha() and len(part) == size), None) for size in (4, 2))
    written = Language.make(base, script=script and script.title(), territory=region and region.upper())
    letters, usual = (language.maximize().script for language in (written, Language.make(base)))
    codes = [own, standard, f"{base}-{written.territory}", *([f"{base}-{letters}"] if letters != usual else [])]
    return [*(code for code in codes if code != base and not code.endswith("-None")), base]


@lru_cache(maxsize=64)
def known_codes(names: tuple[str, ...]) -> dict[str, str]:
    """The languages of a tokenizer by their codes; of several with one code the most usual has it alone."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: len(_codes_of(name))):  # fewer: nothing is unusual
        found[next((code for code in reversed(_codes_of(name)) if code not in found), name)] = name
    return found


def chosen(name: str, codes: Collection[str]) -> str:
    """The closest of the codes to the name of a language; its own code, if none is."""
    return next((code for code in _codes_of(name) if code in codes), code_of(name))


def named_language(name: str, known: Sequence[str], pointer: str) -> str:
    """The name by which a tokenizer knows a language of a request.

    Raises:
        ServiceError: 400, the model does not have it.
    """
    if name in known:
        return name
    by_code = known_codes(tuple(known))
    if (code := chosen(name, by_code)) not in by_code:
        message = f"the model has no language {name[:40]!r}{nearest(name[:40], list(known))}"
        raise ServiceError(400, message, "unknown_language", param=pointer)
    return by_code[code]


def pair_in(name: str) -> tuple[str, str] | None:
    """The languages in the name of a model, such as ("en", "pt") in "micro-world-en-pt"; None if there are none."""
    parts = [part.lower() for part in name.replace("_", "-").split("-") if part]
    if len(parts) < 2 or not all(code_of(part) in NAMES for part in parts[-2:]):
        return None
    source, target = (code_of(part) for part in parts[-2:])
    return None if source == target else (source, target)


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
    ranked = sorted(scores.items(), key=lambda item: -item[1])[:most] or [(next(iter(among), "en"), 0.0)]
    return [Detected(code, round(100 * min(1.0, score), 1)) for code, score in ranked]
