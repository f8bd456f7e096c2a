"""Special tokens: their roles, strings and ids, which come first in every vocabulary that Atento trains."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from atento.errors import TokenizerError

STANDARD = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
"""Role -> string, in the order of the ids: pad 0, unk 1, bos 2, eos 3, mask 4."""


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer (docs/notes.md#d5).

    Attributes:
        roles: role (pad, unk, bos, eos, mask) -> string.
        ids: string -> id of every special token, also of those without a role (T5 sentinels, language tags).
    """

    roles: dict[str, str] = field(default_factory=lambda: dict(STANDARD))
    ids: dict[str, int] = field(default_factory=lambda: {text: i for i, text in enumerate(STANDARD.values())})

    def id(self, role: str) -> int:
        """The id of a role or of a special string.

        Raises:
            TokenizerError: the tokenizer has no such special token; the message lists those it has.
        """
        text = self.roles.get(role, role)
        if text not in self.ids:
            known = ", ".join(list(self.roles) + [text for text in self.ids if text not in self.roles.values()])
            raise TokenizerError(f"this tokenizer has no special token {role!r}; it has: {known or 'none'}")
        return self.ids[text]

    def get(self, role: str) -> int | None:
        """The id of a role or a special string; None if the tokenizer has none."""
        return self.ids.get(self.roles.get(role, role))

    @property
    def visible_ids(self) -> frozenset[int]:
        """The special ids that decoded text shows: that of `unk`, unless it has another role too, as in GPT-2."""
        unk = self.get("unk")
        other_role_ids = {self.ids[text] for role, text in self.roles.items() if role != "unk" and text in self.ids}
        return frozenset() if unk is None or unk in other_role_ids else frozenset([unk])


def standard_specials(extra: Iterable[str] = ()) -> SpecialTokens:
    """The standard special tokens, followed by further ones (`sentinels(100)`, language tags).

    Raises:
        TokenizerError: an extra string occurs twice, or does not begin with `<` and end with `>`, which keeps user
            text from becoming a special id.
    """
    ids = {text: i for i, text in enumerate(STANDARD.values())}
    for text in extra:
        if text in ids:
            raise TokenizerError(f"special tokens must differ from one another: got {text!r} twice")
        if len(text) < 3 or not (text.startswith("<") and text.endswith(">")) or any(c.isspace() for c in text):
            raise TokenizerError(f"a special token must look like <name>, without spaces: got {text!r}")
        if len(text) == 6 and text.startswith("<0x"):
            raise TokenizerError(f"a special token must not look like a byte piece: got {text!r}")
        ids[text] = len(ids)
    return SpecialTokens(dict(STANDARD), ids)


def sentinels(n: int) -> tuple[str, ...]:
    """The strings of `n` sentinels, from `<extra_id_0>` on (Raffel et al. 2020; docs/notes.md#d5, #e3)."""
    return tuple(f"<extra_id_{i}>" for i in range(n))


def is_sentinel(text: str) -> bool:
    """Whether a string is that of a sentinel."""
    return re.fullmatch(r"<extra_id_\d+>", text) is not None
