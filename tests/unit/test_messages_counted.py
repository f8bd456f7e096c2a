"""Numbers with their nouns in messages (found.md: "1 of 1 texts were", "1 threads", "averaged 1 checkpoints")."""

from atento.base.errors import counted


def test_a_number_with_its_noun() -> None:
    expected = {0: "0 texts", 1: "1 text", 2: "2 texts", 12_000: "12,000 texts", -1: "-1 texts"}
    assert {number: counted(number, "text") for number in expected} == expected
    assert [counted(n, "entry", "entries") for n in (1, 3)] == ["1 entry", "3 entries"]
