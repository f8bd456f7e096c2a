"""The kinds of tokenizer: pre-tokenizer, model and decoder of each, built with the `tokenizers` library."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from atento.errors import TokenizerError, nearest
from atento.text.normalization import library_normalizer
from atento.text.specials import SpecialTokens, is_sentinel

SPACE = "▁"  # U+2581, a space in pieces
BYTES = tuple(f"<0x{i:02X}>" for i in range(256))
_HAN = r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{20000}-\x{2ebef}\x{2f800}-\x{2fa1f}]"


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer.

    Attributes:
        model: the library's name for its model.
        spaces: whether its pieces encode spaces.
        bytes: whether it has byte pieces, so that no text is unknown.
        pre_tokenizer: makes its pre-tokenizer. decoder: makes its decoder.
        by_word: whether no piece reaches across a space.
    """

    model: str
    spaces: bool
    bytes: bool
    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer | None]
    decoder: Callable[[], decoders.Decoder | None]
    by_word: bool = True


def _pieces() -> pre_tokenizers.PreTokenizer:
    # Punctuation marks and digits are pieces of their own: "gato." is not a piece, numbers are spelled digit by digit,
    # and strings of special and byte tokens, which begin with "<", are never a piece of user text.
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )


def _words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(_HAN), "isolated"),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )


def _spell() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


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
    """The kind of this name.

    Raises:
        TokenizerError: there is no such kind; the message lists the kinds.
    """
    if name not in KINDS:
        raise TokenizerError(f"unknown kind of tokenizer {name!r}{nearest(name, list(KINDS))}")
    return KINDS[name]


def front(name: str, specials: SpecialTokens) -> list[str]:
    """The first pieces of every vocabulary of this kind: the special tokens, then the 256 bytes if it has them."""
    return [*specials.ids, *(BYTES if kind_named(name).bytes else ())]


def check_vocabulary(
    name: str,
    specials: SpecialTokens,
    pieces: Sequence[str],
    scores: Sequence[float],
    merges: Sequence[tuple[str, str]],
) -> None:
    """Check that pieces, scores and merges make a vocabulary of this kind; arguments as in `build`.

    Raises:
        TokenizerError: the kind is unknown, `▁` is missing, or scores or merges do not fit the pieces.
    """
    row = kind_named(name)
    if row.spaces and row.bytes and name != "byte" and SPACE not in pieces:
        raise TokenizerError(f"a {name} vocabulary must have the piece {SPACE!r}, the space")
    if name == "unigram" and len(scores) != len(pieces):
        raise TokenizerError(f"a unigram vocabulary needs a score for each piece: got {len(scores)} for {len(pieces)}")
    if name == "byte" and pieces:
        raise TokenizerError(f"a byte vocabulary has no pieces except the bytes: got {len(pieces)}")
    if name == "character" and any(len(piece) != 1 for piece in pieces):
        raise TokenizerError("the pieces of a character vocabulary must be single characters")
    known = {*front(name, specials), *pieces}  # pieces of bytes are in front, and merges may join them
    for left, right in merges:
        if not {left, right, left + right} <= known:
            raise TokenizerError(f"a merge must join two pieces into a third: got {left!r} and {right!r}")


def build(
    name: str,
    specials: SpecialTokens,
    pieces: Sequence[str],
    *,
    scores: Sequence[float] = (),
    merges: Sequence[tuple[str, str]] = (),
    lowercase: bool = False,
) -> tokenizers.Tokenizer:
    """Build a tokenizer of the library: normalizer, pre-tokenizer, model, decoder.

    Args:
        name: the kind.
        specials: the special tokens, which come first.
        pieces: the pieces after `front(name, specials)`, in the order of their ids.
        scores: for unigram, the log-probability of each piece.
        merges: for bpe, the pairs to join, in order.
        lowercase: whether text is lower-cased first.
    """
    kind = kind_named(name)
    head = front(name, specials)
    vocabulary = {piece: i for i, piece in enumerate([*head, *pieces])}
    if len(vocabulary) != len(head) + len(pieces):
        known = set(head)
        for piece in pieces:
            if piece in known:
                raise TokenizerError(f"the pieces of a vocabulary must differ from one another: got {piece!r} twice")
            known.add(piece)
    unk = specials.roles["unk"]
    model: models.Model
    if name == "unigram":
        scored = [(piece, 0.0) for piece in head] + list(zip(pieces, scores, strict=True))
        model = models.Unigram(scored, unk_id=specials.id("unk"), byte_fallback=True)
    elif name == "wordpiece":
        model = models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=100)
    elif name == "word":
        model = models.WordLevel(vocabulary, unk_token=unk)
    else:  # character and byte are BPE without merges
        model = models.BPE(vocabulary, list(merges), unk_token=unk, byte_fallback=kind.bytes)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = library_normalizer(lowercase)
    pre_tokenizer, decoder = kind.pre_tokenizer(), kind.decoder()
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(list(specials.ids))
    return backend


def library_backend(definition: str, specials: SpecialTokens) -> tokenizers.Tokenizer:
    """The library's tokenizer of a `tokenizer.json`, without truncation and padding, and with
    `protect_special_strings`.

    Raises:
        TokenizerError: the library cannot read it.
    """
    try:
        backend = tokenizers.Tokenizer.from_str(definition)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception, and its panics are BaseException
        raise TokenizerError(f"tokenizer.json cannot be read as a tokenizer: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    protect_special_strings(backend, specials)
    return backend


def mask_backend(definition: Mapping[str, Any], specials: SpecialTokens) -> tokenizers.Tokenizer:
    """The same tokenizer, except that the strings of its mask and of its sentinels in a text become those tokens.

    Args:
        definition: the parsed `tokenizer.json`.
        specials: its special tokens.
    """
    hidden = {text for text in specials.ids if text == specials.roles.get("mask") or is_sentinel(text)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {token["content"]: token for token in definition.get("added_tokens") or []}
    for text in hidden:
        added[text] = {**added.get(text, {"id": specials.ids[text], "content": text, **plain}), "special": False}
    tokens = sorted(added.values(), key=lambda token: int(token["id"]))
    return library_backend(json.dumps({**definition, "added_tokens": tokens}), specials)


def protect_special_strings(backend: tokenizers.Tokenizer, specials: SpecialTokens) -> None:
    """Ensure that user text never becomes a special id, whatever the vocabulary.

    The library leaves special strings in a text alone. Since some models (XLM-R) have them as ordinary pieces too, each
    such string is split after its first character before the model sees it.
    """
    backend.encode_special_tokens = True
    tails: dict[str, list[str]] = {}
    for text in specials.ids:
        if len(text) > 1:
            tails.setdefault(text[0], []).append(text[1:])
    if not tails or not _may_make(json.loads(backend.to_str())["model"], specials):
        return
    cuts = [f"{_quoted(head)}(?={'|'.join(map(_quoted, suffixes))})" for head, suffixes in tails.items()]
    cut = pre_tokenizers.Split(Regex("|".join(cuts)), "isolated")
    before = backend.pre_tokenizer
    backend.pre_tokenizer = cut if before is None else pre_tokenizers.Sequence([before, cut])


def _may_make(model: Mapping[str, Any], specials: SpecialTokens) -> bool:
    """Whether the model could make a special string of text after the usual pre-tokenization."""
    if model["type"] == "BPE":
        return any("".join(merge).replace(" ", "") in specials.ids for merge in model["merges"])
    if model["type"] == "WordPiece":  # punctuation is split off before
        return any(text.isalnum() for text in specials.ids)
    return True


def _quoted(text: str) -> str:
    """Escape a string for Oniguruma."""
    return re.sub(r"([^\w<>/])", r"\\\1", text)
