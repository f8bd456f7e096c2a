"""What an objective is prepared from, and how texts are cut to fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atento.config.network import NetworkConfig
from atento.config.recipe import Recipe
from atento.data.records import Split
from atento.errors import DataError
from atento.text.templates import Template
from atento.text.tokenizer import Tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Preparation:
    """A split of a recipe, with what its examples depend on.

    Attributes:
        template: the special tokens around a text, where the tokenizer has none of its own.
        held_out: whether the split is for validation or test: nothing is left out of it then, and nothing drawn anew.
        say: is told what is left out or cut.
    """

    recipe: Recipe
    network: NetworkConfig
    tokenizer: Tokenizer
    split: Split
    template: str | None = None
    held_out: bool = False
    say: Say = lambda line: None

    @property
    def longest(self) -> int:
        """Most tokens of an example: the recipe's, and no more than learned positions have rows for."""
        learned = any(scheme.kind == "learned" for scheme in self.network.schemes)
        longest = self.recipe.data.max_len
        return min(longest, self.network.max_len) if learned else longest

    def with_budget(self, tokens: int) -> "Preparation":
        """The same for updates of so many real targets."""
        training = replace(self.recipe.training, batch_tokens=tokens)
        return replace(self, recipe=replace(self.recipe, training=training))

    def encoded(self) -> list[list[int]]:
        """The texts as ids, without special tokens."""
        return self.tokenizer.encode_batch(self.split["text"])

    def pieces(self, texts: Sequence[Sequence[int]], room: int, overlap: int = 0) -> list[list[int]]:
        """Texts cut in pieces of at most `room` ids, each beginning with the last `overlap` of the one before it.

        Raises:
            DataError: no text is left, or there is no room.
        """
        if room < 1:
            raise DataError(
                f"`data.max_len` must leave room for a token between the special ones: got {self.recipe.data.max_len}"
            )
        found = [piece for text in texts if text for piece in windows(text, room, overlap)]
        if len(found) > len(texts):
            self.say(
                f"{len(texts)} texts in {len(found)} examples: some are longer than {self.recipe.data.max_len} tokens"
            )
        if not found:
            raise DataError("no text is left: all are blank")
        return found

    def around(self) -> Template:
        """The special tokens around a text: the template's, or the tokenizer's own."""
        return self.tokenizer.template(self.template)


def windows(ids: Sequence[int], longest: int, overlap: int) -> list[list[int]]:
    """ids cut in pieces of at most `longest`, each beginning with the last `overlap` of the piece before it."""
    step = longest - overlap
    return [list(ids[start : start + longest]) for start in range(0, max(1, len(ids) - overlap), step)]
