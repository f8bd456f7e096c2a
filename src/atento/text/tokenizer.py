"""Strings <-> ids: the tokenizer a model holds, of any kind, ours or read from another project's files."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tokenizers

from atento.errors import TokenizerError
from atento.text.detokenize import detokenize
from atento.text.folder import DEFINITION, folder_files, read_folder, specials_of, write_folder
from atento.text.normalization import is_blank, normalize_with_spans, require_unicode
from atento.text.pipelines import KINDS, SPACE, build, front, guard, kind_named, spellings
from atento.text.sampling import Sampler, parsed
from atento.text.specials import SpecialTokens, standard_specials
from atento.text.words import Words, align_words

Span = tuple[int, int]

_KIND_OF_MODEL = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "word"}
_UNREADABLE = "\ufffd"


@dataclass(frozen=True)
class Encoded:
    """A text as ids, and where each came from.

    `offsets[i]`: (start, end) in characters of the text as the user gave it, without the blank in front of a word; a
    piece that is only such a blank has an empty span. `word_ids[i]`: the word it belongs to, None for bare spaces;
    `words`: their strings. Pieces that share a character (its bytes, say) share its span.
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[Span]
    word_ids: list[int | None]
    words: list[str]


class Tokenizer:
    """A trained tokenizer; made by `train_tokenizer`, `Tokenizer.load` or `Tokenizer.from_vocabulary`.

    Every text is normalised first (`atento.text.normalization` states the rule). `decode` gives back exactly the
    normalised text for unigram, bpe and byte, and for character where no letter is unknown; word and wordpiece do not
    store spaces, so they are put by rule. User text never makes a special id, except `unk` where the kind knows no
    other way (spec error 12).
    """

    def __init__(
        self,
        definition: str,
        kind: str,
        specials: SpecialTokens,
        *,
        lowercase: bool = False,
        notes: tuple[str, ...] = (),
        own: bool = True,
    ) -> None:
        """Args:
        definition: the text of `tokenizer.json`.
        kind: one of unigram, bpe, wordpiece, word, character, byte.
        specials: its table of special tokens.
        lowercase: whether it lower-cases text.
        notes: what training had to say.
        own: False for files of other projects, whose normalisation is theirs.

        Raises:
            TokenizerError: the library cannot read the definition.
        """
        self._kind_row = kind_named(kind)
        self.kind = kind
        self.specials = specials
        self.lowercase = lowercase
        self.notes = notes
        self._own = own
        self._definition = definition
        self._data = parsed(definition)
        try:
            self._backend = tokenizers.Tokenizer.from_str(definition)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises bare Exception, and its panics are no Exception
            raise TokenizerError(f"{DEFINITION} cannot be read as a tokenizer: {error}") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        guard(self._backend, specials)
        self._spell: Callable[[str], bytes | str] = spellings(self._data)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1  # rows an embedding needs
        self._special_ids = frozenset(specials.ids.values())
        unk = specials.get("unk")
        self._hidden = self._special_ids - {unk}

    # Made from something

    @classmethod
    def from_vocabulary(
        cls,
        kind: str,
        pieces: Sequence[str],
        *,
        scores: Sequence[float] = (),
        merges: Sequence[tuple[str, str]] = (),
        lowercase: bool = False,
        extra_specials: Iterable[str] = (),
    ) -> "Tokenizer":
        """A tokenizer with exactly these pieces behind the special tokens (and the 256 bytes, for unigram and bpe).

        Args:
            kind: the kind; WordPiece marks pieces inside a word by `##`, unigram and bpe write a space as `▁`.
            pieces: the vocabulary (spec row D3: the notes' two vocabularies).
            scores: unigram: one log-probability a piece.
            merges: bpe: the pairs to join, first the first.
            lowercase: whether text is lower-cased.
            extra_specials: as in `train_tokenizer`.

        Raises:
            TokenizerError: a piece twice, no `▁` where it is needed, scores or merges that do not fit.
        """
        row = kind_named(kind)
        specials = standard_specials(extra_specials)
        if row.spaces and row.bytes and kind != "byte" and SPACE not in pieces:
            raise TokenizerError(f"a {kind} vocabulary must hold the piece {SPACE!r}, the space")
        if kind == "unigram" and len(scores) != len(pieces):
            raise TokenizerError(f"a unigram vocabulary needs one score a piece: got {len(scores)} for {len(pieces)}")
        if kind == "byte" and pieces:
            raise TokenizerError(f"a byte vocabulary has no pieces but the bytes: got {len(pieces)}")
        if kind == "character" and any(len(piece) != 1 for piece in pieces):
            raise TokenizerError("the pieces of a character vocabulary must be single characters")
        known = {*front(kind, specials), *pieces}
        for left, right in merges:
            if not {left, right, left + right} <= known:
                raise TokenizerError(f"a merge must join two pieces into a third: got {left!r} and {right!r}")
        backend = build(kind, specials, pieces, scores=scores, merges=merges, lowercase=lowercase)
        return cls(backend.to_str(pretty=True), kind, specials, lowercase=lowercase)

    @classmethod
    def load(cls, directory: str | Path) -> "Tokenizer":
        """Reads a folder with `tokenizer.json`, ours or any in the Hugging Face layout.

        Raises:
            TokenizerError: nothing there, or not a tokenizer; the message names the file.
        """
        directory = Path(directory)
        text, data, config = read_folder(directory)
        ours = config.get("atento")
        specials = specials_of(data, config, directory)
        model_type = data["model"].get("type")
        try:
            if isinstance(ours, dict):
                kind, lowercase = ours.get("kind"), ours.get("lowercase")
                if not isinstance(kind, str) or kind not in KINDS or not isinstance(lowercase, bool):
                    raise TokenizerError(f"`atento` must name a kind and `lowercase`: got {ours!r}")
                if KINDS[kind].model != model_type:
                    raise TokenizerError(
                        f"a {kind} tokenizer must have a {KINDS[kind].model} model: got {model_type!r}"
                    )
                return cls(text, kind, specials, lowercase=lowercase)
            if model_type not in _KIND_OF_MODEL:
                raise TokenizerError(f"unknown model type {model_type!r}")
            return cls(text, _KIND_OF_MODEL[model_type], specials, own=False)
        except TokenizerError as error:
            raise TokenizerError(f"{directory}: {error}") from None

    def files(self) -> dict[str, bytes]:
        """`tokenizer.json` and `tokenizer_config.json` as bytes, by name."""
        return folder_files(self._definition, self.kind if self._own else None, self.lowercase, self.specials)

    def save(self, directory: str | Path) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`; `transformers` reads them and gives the same ids.

        Raises:
            TokenizerError: the folder cannot be written.
        """
        write_folder(Path(directory), self.files())

    # What it is

    @property
    def pad_id(self) -> int:
        """The id of padding. Here and in the next four: TokenizerError where another project's file has none."""
        return self.specials.id("pad")

    @property
    def unk_id(self) -> int:
        """The id of what is not in the vocabulary."""
        return self.specials.id("unk")

    @property
    def bos_id(self) -> int:
        """The id a sequence begins with."""
        return self.specials.id("bos")

    @property
    def eos_id(self) -> int:
        """The id a sequence ends with."""
        return self.specials.id("eos")

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden token."""
        return self.specials.id("mask")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides ids and text: equal for equal tokenizers, kept by `save` and `load` (row D5)."""
        content = [self._data, self.kind, self.lowercase, self.specials.roles, self.specials.ids]
        canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    # Text -> ids

    def normalize(self, text: str) -> str:
        """The text as the model will see it; what `decode` gives back where spaces are kept."""
        require_unicode(text)
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def encode(self, text: str) -> list[int]:
        """The ids of one text, no special ids added.

        Raises:
            TokenizerError: the text is not Unicode (a lone surrogate); the message names the position.
        """
        require_unicode(text)
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def encode_batch(
        self, texts: Sequence[str], *, dropout: float = 0.0, seed: int | Sequence[int] = 0
    ) -> list[list[int]]:
        """The ids of many texts, in order.

        Args:
            texts: the texts.
            dropout: in [0, 1]; above 0 each text gets one drawn segmentation (`atento.text.sampling` says how).
            seed: of the draw; a sequence gives each text its own, so that a text's draw does not depend on its batch.

        Raises:
            TokenizerError: a text that is not Unicode, named by its number from 0; a dropout or seeds that do not fit.
            CapabilityError: dropout with a kind that knows but one segmentation.
        """
        for i, text in enumerate(texts):
            require_unicode(text, f"text {i}")
        if not 0.0 <= dropout <= 1.0:
            raise TokenizerError(f"`dropout` must lie in [0, 1]: got {dropout}")
        if dropout == 0.0:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [list(encoding.ids) for encoding in encodings]
        seeds: Sequence[int | str]
        seeds = [f"{seed} {i}" for i in range(len(texts))] if isinstance(seed, int) else seed
        if len(seeds) != len(texts):
            raise TokenizerError(f"`seed` must be one number or one a text: got {len(seeds)} for {len(texts)} texts")
        return [self._sampler.encode(text, dropout, s) for text, s in zip(texts, seeds, strict=True)]

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self._backend, self._data, self.kind)

    def encode_with_offsets(self, text: str) -> Encoded:
        """The ids of one text with the place of each in it, exact where normalisation changes lengths too (row D4).

        Raises:
            TokenizerError: the text is not Unicode.
        """
        require_unicode(text)
        normal = normalize_with_spans(text, self.lowercase)
        if not self._own or normal.text != self.normalize(text):
            # Another project's rules, or characters newer than one of the two Unicode tables: as the library counts.
            encoding = self._backend.encode(text, add_special_tokens=False)
            return self._encoded(text, encoding.ids, encoding.tokens, [_trim(text, s) for s in encoding.offsets])
        encoding = self._backend.encode(normal.text, add_special_tokens=False)
        inner = self._walk(encoding.ids, normal.text) if self._kind_row.spaces else None
        if inner is None:
            last = len(normal.text)
            inner = [(min(start, last), min(end, last)) for start, end in encoding.offsets]
        spans = [*normal.spans, (len(text), len(text))]
        offsets = [
            (spans[start][0], spans[end - 1][1]) if end > start else (spans[start][0], spans[start][0])
            for start, end in inner
        ]
        return self._encoded(text, encoding.ids, encoding.tokens, offsets)

    def _encoded(self, text: str, ids: list[int], tokens: list[str], offsets: list[Span]) -> Encoded:
        words = align_words(text, offsets)
        return Encoded(list(ids), list(tokens), offsets, words.index, words.words)

    def _walk(self, ids: Sequence[int], text: str) -> list[Span] | None:
        """The span of each piece in the normalised text, which they spell one after the other; None if they do not."""
        spans: list[Span] = []
        at = 0
        owed = 0  # bytes of the character at `at` that are already written
        prefixed = self.kind in ("unigram", "bpe")
        for i, spelling in enumerate(map(self._spelling, ids)):
            if isinstance(spelling, bytes):
                if at >= len(text):
                    return None
                spans.append((at, at + 1))
                owed += 1
                if owed == len(text[at].encode("utf-8")):
                    at, owed = at + 1, 0
                continue
            end = at + len(spelling) - (1 if prefixed and i == 0 else 0)  # the first space is not in the text
            spans.append((at + 1 if prefixed and i and spelling.startswith(" ") else at, end))
            at = end
        return spans if at == len(text) else None

    def _spelling(self, i: int) -> bytes | str:
        if i == self.specials.get("unk"):
            return _UNREADABLE if self._kind_row.spaces else " " + _UNREADABLE
        return self._spell(self._backend.id_to_token(i) or "")

    # Ids -> text

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of these ids; `unk` stays to be seen, the other special tokens only if `skip_special` is False.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        kept = [i for i in self._checked(ids) if not (skip_special and i in self._hidden)]
        if self._kind_row.spaces:
            return str(self._backend.decode(kept, skip_special_tokens=False))
        words: list[str] = []
        for i in kept:
            token = self._backend.id_to_token(i) or ""
            spelling = " " + token if i in self._special_ids else self._spell(token)
            if isinstance(spelling, bytes):
                spelling = spelling.decode("utf-8", "replace")
            if spelling.startswith(" ") or not words:
                words.append(spelling.removeprefix(" "))
            else:
                words[-1] += spelling
        return detokenize(words)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id, as the vocabulary writes it.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        return [self._backend.id_to_token(i) or "" for i in self._checked(ids)]

    def token_id(self, piece: str) -> int | None:
        """The id of a piece, None if it is not in the vocabulary."""
        found: int | None = self._backend.token_to_id(piece)
        return found

    def words(self, ids: Iterable[int]) -> Words:
        """Subwords grouped into words, from the ids alone (spec rows D4, E2); an unknown piece reads U+FFFD."""
        spelt = bytearray()
        cuts: list[Span | None] = []
        for i in self._checked(ids):
            if i in self._hidden:
                cuts.append(None)
                spelt += b" "
                continue
            spelling = self._spelling(i)
            start = len(spelt)
            spelt += spelling if isinstance(spelling, bytes) else spelling.encode("utf-8")
            cuts.append((start, len(spelt)))
        text = spelt.decode("utf-8", "surrogateescape")  # a byte that is no UTF-8 becomes one character
        char_at: list[int] = []
        for number, char in enumerate(text):
            char_at += [number] * (1 if "\udc80" <= char <= "\udcff" else len(char.encode("utf-8")))
        offsets = [None if c is None or c[0] == c[1] else (char_at[c[0]], char_at[c[1] - 1] + 1) for c in cuts]
        words = align_words(text, offsets)
        readable = [word.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for word in words.words]
        return Words(words.index, readable)

    def _checked(self, ids: Iterable[int]) -> list[int]:
        out = [int(i) for i in ids]
        for i in out:
            if not 0 <= i < self.vocab_size:
                raise TokenizerError(f"an id must lie in 0 ... {self.vocab_size - 1}: got {i}")
        return out

    def encode_words(self, words: Sequence[str]) -> Encoded:
        """The ids of a sentence that comes cut into words, as data for tagging do: `word_ids` count those words.

        Every word keeps at least one token: one that normalises to nothing is read as U+FFFD. Offsets point into the
        words joined by single spaces.
        """
        for i, word in enumerate(words):
            require_unicode(word, f"word {i}")
        shown = [word if self.normalize(word) else _UNREADABLE for word in words]
        text = " ".join(shown)
        encoded = self.encode_with_offsets(text)
        at: list[int | None] = []
        for i, word in enumerate(shown):
            at += [None if is_blank(char) else i for char in word] + [None]
        index = [next((w for w in at[start:end] if w is not None), None) for start, end in encoded.offsets]
        return Encoded(encoded.ids, encoded.tokens, encoded.offsets, index, shown)


def _trim(text: str, span: Span) -> Span:
    """The span without the blanks in front."""
    start, end = min(span[0], len(text)), min(span[1], len(text))
    while start < end and is_blank(text[start]):
        start += 1
    return (start, end)
