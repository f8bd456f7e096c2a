"""Builds a tokenizer of a kind from its vocabulary, with the `tokenizers` library."""

from collections.abc import Sequence

import tokenizers
from tokenizers import models

from atento.base.errors import TokenizerError
from atento.text.kinds import BYTES, SPACE, kind_named, library_normalizer
from atento.text.specials import SpecialTokens


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
    Raises TokenizerError: the kind is unknown, `▁` is missing, or scores or merges do not fit the pieces.
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
