"""Special tokens: roles, strings, ids, first in every vocabulary that Atento trains; templates of them around texts."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atento.base.errors import TokenizerError, nearest
from atento.base.nfc import tag_of

STANDARD = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
"""Role -> string, in the order of the ids: pad 0, unk 1, bos 2, eos 3, mask 4."""
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z]{2})|([a-z]{3}_[A-Z][a-z]{3})|>>([^<>\s]+)<<")


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer (docs/notes.md#d5).

    Attributes:
        ids: string -> id of every special token, also of those without a role (T5 sentinels, language tags).
    """

    roles: dict[str, str] = field(default_factory=lambda: dict(STANDARD))  # role (pad, unk, bos, eos, mask) -> string
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


Slot = tuple[str | int, int]
"""A place in a sequence: "A" (the first text), "B" (the second) or the id of a special token; and its segment."""


@dataclass(frozen=True)
class Template:
    """The sequence of special tokens and texts for one text, and for two; by default no special tokens."""

    single: tuple[Slot, ...] = (("A", 0),)
    pair: tuple[Slot, ...] = (("A", 0), ("B", 1))

    def added(self, pair: bool) -> int:
        """The number of ids that the template adds to one text, or to two."""
        return sum(isinstance(content, int) for content, _ in (self.pair if pair else self.single))

    def fits(self, vocab_size: int) -> bool:
        """Whether all its ids are below `vocab_size`."""
        return all(isinstance(content, str) or content < vocab_size for content, _ in self.single + self.pair)

    def ends(self) -> tuple[int, int]:
        """The number of special tokens before one text, and behind it."""
        before = next(n for n, (content, _) in enumerate(self.single) if isinstance(content, str))
        return before, len(self.single) - before - 1

    def ids(self) -> set[int]:
        """The special ids of the template."""
        return {content for content, _ in self.single + self.pair if isinstance(content, int)}

    def ended(self, eos_id: int) -> "Template":
        """The template with EOS at the end, if it does not have EOS behind the last text already.

        Behind EOS there may be the token of a language (mBART).
        """

        def end(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
            last = max((n for n, (content, _) in enumerate(slots) if isinstance(content, str)), default=-1)
            return slots if (eos_id in [c for c, _ in slots[last + 1 :]]) else (*slots, (eos_id, slots[-1][1]))

        return Template(end(self.single), end(self.pair))

    def in_language(self, language: int, languages: Collection[int]) -> "Template":
        """The template with the token of a language in place of those of other languages, or in front."""

        def told(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
            if any(content in languages for content, _ in slots):
                return tuple((language if content in languages else content, segment) for content, segment in slots)
            return ((language, 0), *slots)

        return Template(told(self.single), told(self.pair))

    def apply(self, ids: Sequence[int], pair: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """The sequence with special tokens, and the segment of each id, as two lists of the same length.

        Args:
            ids: the first text.
            pair: the second text, if there is one.
        """
        texts = {"A": ids, "B": () if pair is None else pair}
        out: list[int] = []
        segments: list[int] = []
        for content, segment in self.single if pair is None else self.pair:
            new = [content] if isinstance(content, int) else texts[content]
            out += new
            segments += [segment] * len(new)
        return out, segments


# name -> one text, two texts. A slot is `A`, `B` or a role, with its segment behind a colon if that is not 0.
TEMPLATES = {
    "none": ("A", "A B:1"),
    "bert": ("cls A sep", "cls A sep B:1 sep:1"),
    "roberta": ("cls A sep", "cls A sep sep B sep"),
    "t5": ("A eos", "A eos B eos"),
    "marian": ("A eos", "A B eos"),
    "language": ("language A eos", "language A B eos"),
    "language-last": ("A eos language", "A B eos language"),
    "bos": ("bos A", "bos A bos:1 B:1"),
    "eos": ("A eos", "A eos B:1 eos:1"),
    "bos-eos": ("bos A eos", "bos A eos bos:1 B:1 eos:1"),
}
_INSTEAD = {"cls": "bos", "sep": "eos"}  # the roles that replace those a table lacks


def template_named(name: str, ids: Mapping[str, int]) -> Template:
    """A template of `TEMPLATES` with the ids of a tokenizer.

    Args:
        name: bert (`[CLS] a [SEP] b [SEP]`), roberta (`<s> a </s></s> b </s>`, also BART and XLM-R), t5, marian
            (`a </s>`; they differ on pairs), language (`pt_XX a </s>`), language-last (`a </s> pt_XX`), bos (Llama),
            eos, bos-eos, or none (GPT-1, GPT-2).
        ids: role -> id; `bos` and `eos` are used if `cls` and `sep` are missing.

    Raises:
        TokenizerError: there is no such template, or a role has no id.
    """
    if name not in TEMPLATES:
        raise TokenizerError(f"unknown template of special tokens {name!r}{nearest(name, list(TEMPLATES))}")

    def slot(text: str) -> Slot:
        content, _, segment = text.partition(":")
        if content in ("A", "B"):
            return content, int(segment or 0)
        token_id = ids.get(content, ids.get(_INSTEAD.get(content, content)))
        if token_id is None:
            raise TokenizerError(f"the {name} template needs a token for {content!r}: this tokenizer has none")
        return token_id, int(segment or 0)

    single, pair = TEMPLATES[name]
    return Template(tuple(map(slot, single.split(" "))), tuple(map(slot, pair.split(" "))))


def template_of(post_processor: object) -> Template | None:
    """The template of the `post_processor` of a `tokenizer.json`; None if it has none.
    Raises TokenizerError: the post-processor does not only add tokens before, between and after texts.
    """
    if post_processor is None:
        return None
    try:
        return _read(post_processor)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise TokenizerError("the `post_processor` must say which tokens are added around a text") from None


def _read(data: Any) -> Template | None:
    kind = data["type"]
    if kind == "Sequence":
        templates = [template for template in map(_read, data["processors"]) if template is not None]
        return templates[-1] if templates else None
    if kind == "ByteLevel":
        return None
    if kind == "TemplateProcessing":
        named = {name: [_number(i) for i in token["ids"]] for name, token in data["special_tokens"].items()}
        return Template(_slots(data["single"], named), _slots(data["pair"], named))
    if kind in ("BertProcessing", "RobertaProcessing"):
        ids = {role: _number(data[role][1]) for role in ("cls", "sep")}
        return template_named("bert" if kind == "BertProcessing" else "roberta", ids)
    raise ValueError(kind)


def _slots(pieces: Any, named: Mapping[str, list[int]]) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    for piece in pieces:
        if "Sequence" in piece:
            if piece["Sequence"]["id"] not in ("A", "B"):
                raise ValueError(piece)
            slots.append((piece["Sequence"]["id"], _number(piece["Sequence"]["type_id"])))
        else:
            token = piece["SpecialToken"]
            slots += [(i, _number(token["type_id"])) for i in named[token["id"]]]
    return tuple(slots)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value
