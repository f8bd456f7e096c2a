"""The special tokens: one table of roles, strings and ids, fixed at the front of every vocabulary we train."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from atento.errors import TokenizerError

STANDARD = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
"""Role -> string, in the order of the ids: pad 0, unk 1, bos 2, eos 3, mask 4."""


@dataclass(frozen=True)
class SpecialTokens:
    """Which id plays which role (docs/notes.md#d5).

    `roles` maps a role (pad, unk, bos, eos, mask) to its string, `ids` every special string to its id; strings in
    `ids` that have no role (T5 sentinels, language tags) are asked for by their own string.
    """

    roles: dict[str, str] = field(default_factory=lambda: dict(STANDARD))
    ids: dict[str, int] = field(default_factory=lambda: {text: i for i, text in enumerate(STANDARD.values())})

    def id(self, role: str) -> int:
        """The id of that role, or of that special string.

        Raises:
            TokenizerError: this tokenizer has no such special token; the message lists those it has.
        """
        text = self.roles.get(role, role)
        if text not in self.ids:
            known = ", ".join(list(self.roles) + [text for text in self.ids if text not in self.roles.values()])
            raise TokenizerError(f"this tokenizer has no special token {role!r}; it has: {known or 'none'}")
        return self.ids[text]

    def get(self, role: str) -> int | None:
        """The id of that role or string, None where the tokenizer has none."""
        return self.ids.get(self.roles.get(role, role))

    @property
    def shown(self) -> frozenset[int]:
        """The special ids that stay to be seen in text: the unknown, unless it is another token too, as GPT-2's is."""
        unk = self.get("unk")
        others = {self.ids[text] for role, text in self.roles.items() if role != "unk" and text in self.ids}
        return frozenset() if unk is None or unk in others else frozenset([unk])


def standard_specials(extra: Iterable[str] = ()) -> SpecialTokens:
    """The standard table, with further special strings (`sentinels(100)`, language tags) right behind it.

    Raises:
        TokenizerError: an extra string stands there twice, or does not begin with `<` and end with `>`: that is what
            keeps user text from ever making a special id.
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
    """The strings of `n` sentinels, `<extra_id_0>` first (Raffel et al. 2020; docs/notes.md#d5, #e3)."""
    return tuple(f"<extra_id_{i}>" for i in range(n))
