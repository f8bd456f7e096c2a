"""The names of a model's tokens, for engines that take tokens by name."""

from collections.abc import Iterable
from dataclasses import dataclass

from atento.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The name of each id: of the tokens that are read, and of those that are written."""

    source: tuple[str, ...]
    target: tuple[str, ...]


def vocabulary_of(tokenizer: Tokenizer | None, size: int) -> Vocabulary:
    """The pieces of a tokenizer; without one, token 7 has the name "7".

    Args:
        tokenizer: the model's; None: it has none.
        size: number of rows of the embedding, of which the tokenizer may have fewer; the others get names, too.
    """
    if tokenizer is None:
        numbers = tuple(str(number) for number in range(size))
        return Vocabulary(numbers, numbers)
    source = _named(tokenizer.tokens(range(tokenizer.vocab_size)), size)
    target = tokenizer.target
    return Vocabulary(source, source if target is tokenizer else _named(target.tokens(range(target.vocab_size)), size))


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
