"""The codes of languages: those of requests, of tokenizers and of names of models are compared in one form."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from atento_serve.api.languages import chosen, code_of, known_codes, pair_in
from atento_serve.api.libretranslate import directions


def test_the_names_of_a_language_have_one_code() -> None:
    for code, names in (
        ("pt", "pt PT pt-BR pt_BR pb pt_XX por por_Latn"),
        ("ar", "ar arb ara"),  # a macrolanguage and its standard language
        ("arz", "arz_Arab"),  # another language of it, which NLLB has beside
        ("zh", "zh zt zho_Hans cmn_Hans zh-Hant"),
        ("tl", "tl tgl_Latn fil"),
        ("fa", "fa fas pes_Arab"),
        ("in", "in"),  # a word, as in the name of a model; not the old code of Indonesian
        ("quy", "quy_Latn"),
        ("base", "base"),
    ):
        assert {code_of(name) for name in names.split()} == {code}
    assert pair_in("micro-world-en-pt") == ("en", "pt") == pair_in("opus-mt-eng-por")
    assert pair_in("built-in-de") is None is pair_in("gpt-base") is pair_in("en-en")


def test_languages_of_one_code_are_told_apart_by_script_region_and_name() -> None:
    """NLLB has seven languages in two scripts, Dari beside Persian, and Twi beside Akan."""
    names = (
        "zho_Hant zho_Hans arb_Arab arb_Latn kas_Arab kas_Deva pes_Arab prs_Arab aka_Latn twi_Latn por_Latn kor_Hang"
    )
    known = known_codes(tuple(names.split()))
    assert sorted(known.values()) == sorted(names.split())  # each has a code
    assert all(chosen(code, known) == code for code in known)  # by which it can be asked for
    for name, tags in (
        ("zho_Hant", "zt zh-Hant zh-TW zh_HK"),
        ("zho_Hans", "zh zh-CN zh_Hans zho"),
        ("arb_Arab", "ar ara"),
        ("kas_Deva", "ks-Deva"),
        ("pes_Arab", "fa fas fa-IR"),
        ("prs_Arab", "fa-AF prs"),
        ("aka_Latn", "ak"),
        ("twi_Latn", "twi"),
        ("kor_Hang", "ko"),
        ("por_Latn", "pt pb pt-BR PT"),
    ):
        assert {known[chosen(tag, known)] for tag in tags.split()} == {name}
    assert chosen("zh-TW", {"zh"}) == "zh" and chosen("xx", {"zh"}) == "xx"  # the nearest; itself
    released = SimpleNamespace(task="text-to-text", verbs=["generate", "translate"], languages=sorted(known.values()))
    trained = SimpleNamespace(task="translation", verbs=["translate"], languages=[])  # of the pair of its name
    described = {"nllb": released, "news-en-de": trained, "t5": SimpleNamespace(task="text-to-text", languages=[])}
    service: Any = SimpleNamespace(
        models=dict.fromkeys(described, SimpleNamespace(languages=None)), engine=SimpleNamespace(describe=described.get)
    )
    found = directions(service)
    assert len(found) == len(known) * (len(known) - 1) + 1 and found["en", "de"].model == "news-en-de"  # all pairs
    assert found["pt", "zh-Hant"].options == {"source_language": "por_Latn", "target_language": "zho_Hant"}
