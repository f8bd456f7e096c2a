"""All ways in which the pieces of a vocabulary spell a word, not only the one that the tokenizer chooses."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from atento.text.tokenizer import Tokenizer

_Pieces = Mapping[bytes, Sequence[int]]
_PIECES = WeakKeyDictionary[Tokenizer, _Pieces]()  # the whole vocabulary is read once
_LONGEST = 100  # bytes of a text that is spelled in other ways: ways and time grow with its square


def all_spellings(ids: Sequence[int], tokenizer: Tokenizer, most: int = 256) -> list[tuple[int, ...]]:
    """Return `ids`, and the other ids that spell the same text, those of few pieces; of a text of 100 bytes at most.

    A model that was trained with subword regularisation writes all of them.

    Args:
        ids: the tokens of a word or phrase.
        tokenizer: their tokenizer.
        most: how many other ways are returned.
    """
    spelled = [tokenizer.spelling(token) for token in ids]
    text = b"".join(_bytes(one) for one in spelled if one is not None)
    if None in spelled or len(text) > _LONGEST:
        return [tuple(ids)]
    if tokenizer not in _PIECES:
        made: dict[bytes, list[int]] = {}
        for piece in range(tokenizer.vocab_size):
            if spelling := tokenizer.spelling(piece):
                made.setdefault(_bytes(spelling), []).append(piece)
        for spelt, tokens in made.items():  # a byte that is also a letter's piece is written for no letter
            made[spelt] = [one for one in tokens if isinstance(tokenizer.spelling(one), str)] or tokens
        _PIECES[tokenizer] = made
    pieces = _PIECES[tokenizer]
    ways: list[list[tuple[int, ...]]] = [[] for _ in text] + [[()]]  # of the text from each place on
    for begin in reversed(range(len(text))):
        found = [
            (token, *rest)
            for end in range(begin + 1, len(text) + 1)
            for token in pieces.get(text[begin:end], ())
            for rest in ways[end]
        ]
        ways[begin] = sorted(found, key=len)[:most]
    return list(dict.fromkeys([tuple(ids), *ways[0]]))


def _bytes(spelling: bytes | str) -> bytes:
    return spelling.encode() if isinstance(spelling, str) else spelling
