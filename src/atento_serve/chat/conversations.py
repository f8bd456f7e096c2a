"""Conversations as token ids: rendered by the chat template of a model, encoded by its tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from atento.errors import UsageError
from atento.text.placed import PlacedSpecials
from atento.text.tokenizer import Tokenizer
from atento_serve.chat.folder import ChatTemplate, template_of
from atento_serve.chat.template_process import RenderingProcess


class Conversations:
    """The conversations of a model.

    Args:
        template: of its folder.
        tokenizer: its tokenizer.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._process, self._placed = RenderingProcess(template), PlacedSpecials(tokenizer)

    @classmethod
    def of(cls, path: str | Path | None, tokenizer: Tokenizer | None) -> "Conversations | None":
        """Those of a loaded model; None if its folder has no chat template.

        Raises:
            TokenizerError: a file of the template is malformed.
        """
        if path is None or tokenizer is None:
            return None
        template = template_of(Path(path), tokenizer.specials)
        return None if template is None else cls(template, tokenizer)

    def ids(self, conversation: Mapping[str, object]) -> list[int]:
        """The ids of a conversation up to where the answer begins.

        Args:
            conversation: `messages`, each with `role`, `content` and further fields; `variables` of the template.

        Raises:
            UsageError: the template refuses the messages, or is wrong, or passes a limit of time, memory or length.
        """
        return self._placed.encode(self._process.parts(conversation))

    def close(self) -> None:
        """End the process that renders."""
        self._process.close()


def prompts(conversations: Conversations | None, items: Sequence[object]) -> list[object]:
    """The items of a job with the ids of each conversation in its place; one after an equal one has the same.

    Raises:
        UsageError: the model has no chat template, or as `Conversations.ids` says.
    """
    given: list[object] = []
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            given.append(item)
        elif conversations is None:
            raise UsageError("the tokenizer of the model has no chat template")
        else:
            is_repeated = number > 0 and item == items[number - 1]
            given.append(given[-1] if is_repeated else conversations.ids(item))
    return given
