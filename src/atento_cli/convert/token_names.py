"""The names of a model's tokens, for engines that take tokens by name."""

from collections.abc import Iterable
from dataclasses import dataclass

from atento.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The name of each id: of the tokens that are read, and of those that are written."""

    source: tuple[str, ...]
    target: tuple[str, ...]


def vocabulary_of(tokenizer: Tokenizer | None, size: int, written: int | None = None) -> Vocabulary:
    """The pieces of a tokenizer; without one, token 7 has the name "7".

    Args:
        tokenizer: the model's; None: it has none.
        size: number of rows of the embedding, of which the tokenizer may have fewer; the others get names, too.
        written: as `size`, of the tokens that are written; None: the same.
    """
    if tokenizer is None:
        read, target_numbers = (tuple(map(str, range(count))) for count in (size, written or size))
        return Vocabulary(read, target_numbers)
    source = _named(tokenizer.tokens(range(tokenizer.vocab_size)), size)
    target = tokenizer.target
    if target is tokenizer:
        return Vocabulary(source, source)
    return Vocabulary(source, _named(target.tokens(range(target.vocab_size)), written or size))


def _named(pieces: Iterable[str], size: int) -> tuple[str, ...]:
    """The pieces, and a new name for each id that has no piece, or that of an earlier id."""
    pieces = list(pieces)[:size]
    taken, names = set(pieces), dict[str, None]()
    for number in range(size):
        name = pieces[number] if number < len(pieces) else ""
        if not name or name in names:
            name = next(n for n in (f"<unused_{number}>", f"<atento_unused_{number}>") if n not in taken)
        names[name] = None
    return tuple(names)
