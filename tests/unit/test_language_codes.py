"""The codes of languages: those of requests, of tokenizers and of names of models are compared in one form."""

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from atento_serve.api.language_codes import code_of, pair_in


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
