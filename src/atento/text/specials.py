"""Special tokens: their roles, strings and ids, first in every vocabulary that Atento trains; those of languages."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from atento.errors import TokenizerError, nearest
from atento.nfc import tag_of

STANDARD = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
"""Role -> string, in the order of the ids: pad 0, unk 1, bos 2, eos 3, mask 4."""
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z]{2})|([a-z]{3}_[A-Z][a-z]{3})|>>([^<>\s]+)<<")


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


def languages_of(specials: Iterable[str]) -> dict[str, str]:
    """The languages among the special tokens: name -> token.

    The name is that of `transformers`: `pt_XX` (mBART), `pt` for `__pt__` (M2M-100), `por_Latn` (NLLB), and `por` for
    `>>por<<` (Marian).
    """
    matches = {token: _LANGUAGE.fullmatch(token) for token in specials}
    return {next(filter(None, match.groups())): token for token, match in matches.items() if match is not None}


def token_of(language: str, specials: Iterable[str], option: str = "") -> str:
    """The token of a language. Raises TokenizerError: it is not among the special tokens; suggests one."""
    languages = languages_of(specials)
    name = next((name for name in (language, *languages) if name in languages and tag_of(name) == tag_of(language)), "")
    if not name:
        asked = f"`{option}`: " if option else ""
        raise TokenizerError(f"{asked}the model has no language {language!r}{nearest(str(language), list(languages))}")
    return languages[name]


def token_like(language: str, neighbour: str, token: str) -> str | None:
    """The token of a new language, formed as that of a neighbour; None if a tokenizer would read it as text."""
    made = token.replace(neighbour, language)
    old, new = _LANGUAGE.fullmatch(token), _LANGUAGE.fullmatch(made)
    return made if old and new and old.lastindex == new.lastindex and new[new.lastindex or 0] == language else None


def chooses_by_source(token: str) -> bool:
    """Whether a token of the target language stands in front of the source, as in Marian's multilingual models."""
    return token.startswith(">>")
