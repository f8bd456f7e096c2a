"""Sentence splitting for Portuguese and English."""

import time

from hypothesis import given
from hypothesis import strategies as st

from atento.text import split_sentences


def test_sentences_and_time_that_is_linear() -> None:
    for sentences in (
        ["O Sr. Silva chegou.", "A Dra. Ana saiu!", "E agora?"],
        ["Mr. Jones met Mrs. Smith.", "They talked."],
        ["Custa R$ 3.50 ou 1.234,56 reais.", "Barato!"],
        ["J. R. R. Tolkien escreveu muito.", "Li tudo."],
        ["Bem... não sei.", "Talvez…", "Quem sabe?"],
        ["Ele disse: “Venha.”", "Ela foi."],
        ["Espere!!!", "O quê?!", "Nada."],
        ["See Fig. 3, p. 10, e.g. there.", "Done."],
        ["1. Introdução", "2. Método"],
        ["Ficou em 2.", "O resto saiu, e só restou x.", "Veja 1.", "Fim."],
        ["a frase sem ponto"],
        ["Frutas, pão etc.", "Depois saiu."],
        ["Dr. Who?", "(Yes.)", "No."],
        ["<b>One.</b>", "Two.<0/>", "Three.<1>2</1>", "<2>Four."],
        ['<b title="A. B > c">One.</b>', 'Two.<sup class="n">[2]</sup>', "Three.<br>", "Four."],
        ["One.", "🙂🙂", "Two!", "☀️ 🙂", "Three.", "🙂Four."],
        ["<b>Dr.</b> Who and <b>e.g.</b> <i>so</i> on.<0/> and on.", "End."],
    ):
        assert split_sentences(("\n" if sentences[0].startswith("1. ") else " ").join(sentences)) == sentences
    for text in ("", " \n\t ", "\n\n"):
        assert split_sentences(text) == []
    # Rule D3 of the reliability plan: a quadratic scan would take hours here
    for part in (".", "a.", ". ", "a. ", '."', "1. ", "Sr. ", "! ", " "):
        started = time.perf_counter()
        split_sentences(part * 200_000)
        assert time.perf_counter() - started < 10


@given(st.text(st.sampled_from("aBé .!?…\"'()\n1Sr")))
def test_nothing_is_lost(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
