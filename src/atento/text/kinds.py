"""The kinds of tokenizer: what text they take, how all normalise it, how each cuts it into pieces and spells them.

All kinds share the rule of normalisation. Text is lower-cased if requested and converted to Unicode NFC (accents are
kept). Each run of spaces, tabs, line ends, other separators (Z*), control characters (Cc, also NUL) and U+2581, which
is the space in pieces, becomes one space; spaces at both ends are removed. Format characters (joiners in emoji,
direction marks, U+FEFF) are kept.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from atento.base.errors import DataError, TokenizerError, UsageError, nearest
from atento.text.specials import SpecialTokens
from atento.text.tokenizer_folder import Backend, token_text

SPACE = "▁"  # U+2581, a space in pieces
BYTES = tuple(f"<0x{i:02X}>" for i in range(256))
_HAN = r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{20000}-\x{2ebef}\x{2f800}-\x{2fa1f}]"
# Cc, Z* and U+2581, in one class for both engines: Python's `re` and Oniguruma read it alike.
_BLANK = "\\u0000-\\u0020\\u007f-\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u2581\\u3000"
_BLANKS = re.compile(f"[{_BLANK}]+")
BLANK_CHARS = frozenset(chr(i) for i in range(0x3001) if _BLANKS.fullmatch(chr(i)))


def require_unicode(text: str, what: str = "text") -> None:
    """Check that a text is valid Unicode.
    Raises TokenizerError: it is not a string, or has a lone surrogate; the message names its position.
    """
    if not isinstance(text, str):
        raise TokenizerError(f"{what} must be a string: got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise TokenizerError(
            f"{what} must be Unicode text: got the lone surrogate {code} at character {error.start}"
        ) from None


def require_texts(texts: Sequence[str], what: str = "text") -> None:
    """Check several texts, or words, as `require_unicode` does; one string is none, although it has letters."""
    if isinstance(texts, str):
        raise TokenizerError(f"a list of {what}s is needed: got one string")
    for number, text in enumerate(texts):
        require_unicode(text, f"{what} {number}")


def check_texts(texts: Sequence[object]) -> None:
    """Raises UsageError: one is no str, or all are one. DataError: one has a NUL character, which no line may have."""
    if isinstance(texts, str):
        raise UsageError(f"give a list of texts: got the text {texts[:60]!r}")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            place = f" in place of text {number}" if len(texts) > 1 else ""
            raise UsageError(f"a text must be a str: got {type(text).__name__}{place}")
        if "\0" in text:
            at = text.index("\0")
            raise DataError(f"text {number} must not have a NUL character: there is one at character {at}")
        require_unicode(text, f"text {number}")


def is_blank(char: str) -> bool:
    """Whether normalisation replaces this character by a space."""
    return char in BLANK_CHARS


def library_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """The rule as a normalizer of the `tokenizers` library, as stored in `tokenizer.json`."""
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    spelled = re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", _BLANK)
    steps += [normalizers.NFC(), normalizers.Replace(Regex(f"[{spelled}]+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer.

    Attributes:
        pre_tokenizer: makes its pre-tokenizer. decoder: makes its decoder.
    """

    model: str  # the library's name for its model
    spaces: bool  # whether its pieces encode spaces
    bytes: bool  # whether it has byte pieces, so that no text is unknown
    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer | None]
    decoder: Callable[[], decoders.Decoder | None]
    by_word: bool = True  # whether no piece reaches across a space


def _pieces() -> pre_tokenizers.PreTokenizer:
    # Punctuation marks and digits are pieces of their own: "gato." is not a piece, numbers are spelled digit by digit,
    # and strings of special and byte tokens, which begin with "<", are never a piece of user text.
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    marks, digits = pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([spaces, marks, digits])


def _words() -> pre_tokenizers.PreTokenizer:
    han, marks = pre_tokenizers.Split(Regex(_HAN), "isolated"), pre_tokenizers.Punctuation("isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), han, marks])


def _spell() -> decoders.Decoder:
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def _letters() -> decoders.Decoder:
    return decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])


KINDS: Mapping[str, Kind] = {
    "unigram": Kind("Unigram", True, True, _pieces, _spell),
    "bpe": Kind("BPE", True, True, _pieces, _spell),
    "wordpiece": Kind("WordPiece", False, False, _words, lambda: decoders.WordPiece(prefix="##", cleanup=True)),
    "word": Kind("WordLevel", False, False, _words, lambda: None),
    "character": Kind("BPE", True, False, lambda: None, _letters, by_word=False),
    "byte": Kind("BPE", True, True, lambda: None, _letters, by_word=False),
}


def kind_named(name: str) -> Kind:
    """The kind of this name. Raises TokenizerError: there is no such kind; the message lists the kinds."""
    if name not in KINDS:
        raise TokenizerError(f"unknown kind of tokenizer {name!r}{nearest(name, list(KINDS))}")
    return KINDS[name]


_NO_SPACE_BEFORE = frozenset(",.!?;:)]}%»”’…ºª°")
_NO_SPACE_AFTER = frozenset("([{«“‘¿¡$€£#@")
_JOINS_LETTERS = frozenset("-'’_/")
_JOINS_DIGITS = frozenset(".,:/-")
_QUOTES = frozenset('"')
_BYTE = re.compile("<0x([0-9A-F]{2})>")
UNREADABLE = "\ufffd"
"""The replacement character, which stands for an unknown piece."""


class Spelling:
    """The spelling of the ids of a tokenizer.

    Attributes:
        hidden: the ids below `vocab_size` that have no text: of special tokens, and without a piece.
        vocab_size: the number of rows of an embedding: the highest id of a piece, plus 1.
        rows: the ids that are read are below it. A network may have more rows than the tokenizer, to pad its matrices;
            the ids of those rows have no piece and no text, as in `transformers`.
    """

    def __init__(
        self, backend: Backend, definition: Mapping[str, object], kind: str, specials: SpecialTokens, native: bool
    ) -> None:
        """Args:
        backend: the tokenizer of the library.
        definition: the parsed `tokenizer.json`.
        kind: the kind of tokenizer.
        specials: its special tokens.
        native: whether Atento trained it.
        """
        self._backend, self._kind, self._native = backend, kind, native
        self._definition = definition
        self._unk = specials.get("unk")
        self._special_ids = frozenset(specials.ids.values())
        numbers = frozenset(backend.get_vocab(with_added_tokens=True).values())
        self.vocab_size = self.rows = max(numbers, default=-1) + 1
        gaps = frozenset(range(self.vocab_size)) - numbers if len(numbers) < self.vocab_size else frozenset()
        self.hidden = (self._special_ids - specials.visible_ids) | gaps
        self._others = self._special_ids | gaps

    @cached_property
    def _whole(self) -> frozenset[int]:
        """Added tokens with letters that a byte-level decoder takes for bytes (transformers too), as `São`."""
        added = self._definition.get("added_tokens") if "ByteLevel" in str(self._definition.get("decoder")) else None
        texts = {text for token in added if (text := token_text(token))} if isinstance(added, list) else ()
        numbers = (self._backend.token_to_id(text) for text in texts if not text.isascii())
        return frozenset(number for number in numbers if number is not None)

    @cached_property
    def _spell(self) -> Callable[[str], bytes | str]:
        return spellings(self._definition)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_spell"}  # a function has no pickle

    @cached_property
    def ordinary(self) -> list[int]:
        """The ids of the pieces that are not special, in order."""
        return [token_id for token_id in range(self.vocab_size) if token_id not in self._others]

    def others(self, rows: int) -> list[int]:
        """The ids below `rows` that are not ordinary, in order."""
        return [*sorted(self._others), *range(self.vocab_size, rows)]

    def hides(self, token_id: int) -> bool:
        """Whether text shows nothing for an id: it has no piece, or is special and not the unknown token."""
        return token_id in self.hidden or token_id >= self.vocab_size

    def checked(self, ids: Iterable[int]) -> list[int]:
        """The ids. Raises TokenizerError: one is outside the vocabulary."""
        out = [int(i) for i in ids]
        for i in out:
            if not 0 <= i < self.rows:
                raise TokenizerError(f"an id must lie in 0 ... {self.rows - 1}: got {i}")
        return out

    def piece(self, token_id: int) -> str:
        """The piece of an id, as in the vocabulary; empty if it has none."""
        return self._backend.id_to_token(token_id) or ""

    def of(self, token_id: int) -> bytes | str:
        """The text of an id, or its bytes, which may be part of a character; U+FFFD for the unknown token."""
        if token_id == self._unk:
            return UNREADABLE if kind_named(self._kind).spaces else " " + UNREADABLE
        return self.piece(token_id) if token_id in self._whole else self._spell(self.piece(token_id))

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, special ones included."""
        ids = [i for i in ids if i < self.vocab_size]
        if not self._whole.isdisjoint(ids):
            runs = groupby(ids, self._whole.__contains__)
            return "".join("".join(map(self.piece, run)) if whole else self.text(list(run)) for whole, run in runs)
        if not kind_named(self._kind).spaces and self._native:
            words: list[list[str]] = []  # pieces do not encode spaces, which are added by rule
            for token_id in ids:
                piece = self.piece(token_id)
                spelling = " " + piece if token_id in self._special_ids else self._spell(piece)
                if isinstance(spelling, bytes):
                    spelling = spelling.decode("utf-8", "replace")
                if spelling.startswith(" ") or not words:
                    words.append([spelling.removeprefix(" ")])
                else:
                    words[-1].append(spelling)
            return detokenize(["".join(word) for word in words])
        text = str(self._backend.decode(ids, skip_special_tokens=False))
        if not (self._native and UNREADABLE in text and kind_named(self._kind).bytes):
            return text
        # byte by byte: the library makes a whole run unreadable for one broken character
        spelt = [self._spell(self.piece(token_id)) for token_id in ids]
        joined = b"".join(one if isinstance(one, bytes) else one.encode("utf-8") for one in spelt)
        return joined.decode("utf-8", "replace").removeprefix("" if self._kind == "byte" else " ")


def detokenize(words: Sequence[str]) -> str:
    """Join words with the usual spaces: none before a comma or inside brackets; quotes are paired.

    Word and WordPiece vocabularies do not encode spaces, so this is a heuristic: hyphens and apostrophes join letters
    ("guarda-chuva", "d'água"), points and commas join digits ("1.234,56").
    """
    out: list[str] = []
    open_quote = False
    glue = True  # no space before the next word
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        after = words[i + 1] if i + 1 < len(words) else ""
        joins = word in _JOINS_LETTERS and before[-1:].isalnum() and after[:1].isalnum()
        joins = joins or (word in _JOINS_DIGITS and before[-1:].isdigit() and after[:1].isdigit())
        closing = word in _QUOTES and open_quote
        if not (glue or joins or closing or word in _NO_SPACE_BEFORE):
            out.append(" ")
        out.append(word)
        opening = word in _QUOTES and not open_quote
        if word in _QUOTES:
            open_quote = not open_quote
        glue = joins or opening or word in _NO_SPACE_AFTER
    return "".join(out)


def spellings(definition: Mapping[str, object]) -> Callable[[str], bytes | str]:
    """A function from a piece of a `tokenizer.json` to its text, or to its bytes.

    Kinds that do not encode spaces get one before each piece that begins a word. It knows the end-of-word suffix of
    GPT-1, the byte letters of GPT-2, and the byte pieces `<0x41>` of Llama and Atento.
    """
    # steps may be nested in one another: as text, a name is found at any depth
    text = json.dumps([definition.get("pre_tokenizer"), definition.get("decoder")])
    model = definition.get("model")
    model_type = model.get("type") if isinstance(model, dict) else None
    prefix = str(model.get("continuing_subword_prefix") or "##") if isinstance(model, dict) else "##"
    if model_type == "WordPiece":
        return lambda piece: piece.removeprefix(prefix) if piece.startswith(prefix) else " " + piece
    if model_type == "WordLevel":
        return lambda piece: " " + piece
    suffix = str(model.get("end_of_word_suffix") or "") if isinstance(model, dict) else ""
    if suffix:
        return lambda piece: piece.removesuffix(suffix) + " " if piece.endswith(suffix) else piece
    if '"ByteLevel"' in text:
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        unprintable = [b for b in range(256) if b not in plain]
        table = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(unprintable)}
        return lambda piece: bytes(table[c] for c in piece) if all(c in table for c in piece) else piece

    def spell(piece: str) -> bytes | str:
        match = _BYTE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.replace(SPACE, " ")

    return spell
