"""The `Tokenizer` of a model: text to ids and back, for every kind of tokenizer, trained here or released."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from atento.base.errors import CapabilityError, TokenizerError
from atento.base.limits import path_of
from atento.text.encoded import Encoded, Span, normalize_with_spans, original_offsets, trimmed_offsets, walk
from atento.text.kinds import UNREADABLE, Spelling, kind_named, require_texts, require_unicode
from atento.text.pipelines import build, check_vocabulary
from atento.text.read_tokenizer import read_tokenizer, with_markers, with_target
from atento.text.sampling import Sampler
from atento.text.specials import SpecialTokens, Template, is_sentinel, standard_specials, template_named
from atento.text.tokenizer_folder import Backend, Parts, folder_files, library_backend, mask_backend, write_folder
from atento.text.words import Words, align_words, spelled_words


class Tokenizer:
    """A trained tokenizer, from `train_tokenizer`, `Tokenizer.load` or `Tokenizer.from_vocabulary`.

    Text is normalised first (`atento.text.kinds`; released models have their own rules). `decode` returns
    exactly the normalised text for unigram, bpe and byte, and for character if no character is unknown. Word and
    wordpiece vocabularies do not encode spaces, so `decode` adds them by rule. User text never becomes a special id,
    except `unk` if the kind has no other way to encode it (error 12 of the notes), and mask and sentinels in
    `encode_with_mask`.
    """

    def __init__(
        self,
        definition: str,
        kind: str,
        specials: SpecialTokens,
        *,
        lowercase: bool = False,
        notes: tuple[str, ...] = (),
        parts: Parts | None = None,
    ) -> None:
        """Args:
        definition: the text of `tokenizer.json`.
        kind: one of unigram, bpe, wordpiece, word, character, byte.
        specials: its special tokens.
        lowercase: whether it lower-cases text.
        notes: notes of training, about the size of the vocabulary.
        parts: the files that it was read from, if any.

        Raises:
            TokenizerError: the library cannot read the definition.
        """
        self.kind, self.lowercase = kind, lowercase
        self.specials, self.notes = specials, notes
        if parts is None:
            files = folder_files(definition, kind, lowercase, specials)
            parts = Parts(definition, kind, specials, lowercase, native=True, files=files, template=Template())
        self._parts = parts
        self.family, self.native, self.definition = parts.family, parts.native, definition
        self.truncation_side, self.markers, self.overruled = parts.truncation_side, parts.markers, parts.overruled
        self._template = parts.template
        self._target = None if parts.target is None else Tokenizer._of(parts.target)
        self._data = json.loads(definition)
        self._library = library_backend(definition, specials) if parts.backend is None else None
        self._backend: Any = self._library if parts.backend is None else parts.backend
        self._spelling = Spelling(cast(Backend, self._backend), self._data, kind, specials, self.native)
        self.vocab_size = self._spelling.vocab_size  # number of rows of an embedding
        if not self._template.fits(self.vocab_size):
            raise TokenizerError(f"the template of special tokens must have ids below {self.vocab_size}")

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size:,} pieces{', lowercase' if self.lowercase else ''})"

    # Construction and files

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
        """A tokenizer with these pieces after the special tokens (and after the 256 bytes for unigram and bpe).

        Args:
            kind: the kind. WordPiece has `##` before pieces inside a word; unigram and bpe have `▁` for a space.
            pieces: the vocabulary (docs/notes.md#d3).
            scores: for unigram, the log-probability of each piece.
            merges: for bpe, the pairs to join, in order.
            lowercase: whether text is lower-cased.
            extra_specials: as in `train_tokenizer`.

        Raises:
            TokenizerError: a piece occurs twice, `▁` is missing, or scores or merges do not fit the pieces.
        """
        specials = standard_specials(extra_specials)
        check_vocabulary(kind, specials, pieces, scores, merges)
        backend = build(kind, specials, pieces, scores=scores, merges=merges, lowercase=lowercase)
        return cls(backend.to_str(pretty=True), kind, specials, lowercase=lowercase)

    @classmethod
    def load(cls, directory: str | Path, *, markers: Sequence[str] = (), by_class: bool = True) -> "Tokenizer":
        """Load a tokenizer folder.

        It has a `tokenizer.json`, of Atento or any in the Hugging Face layout, or the files of a released model:
        `vocab.txt` (BERT), `vocab.json` and `merges.txt` (GPT-1, GPT-2, RoBERTa, BART), `spiece.model` (T5),
        `sentencepiece.bpe.model` (XLM-R, mBART; with `vocab.json`: M2M-100), `tokenizer.model` (Llama),
        `source.spm` and two others (Marian).

        Args:
            directory: the folder.
            markers: special tokens of it that texts may spell (`with_markers`); `save` keeps them.
            by_class: whether the class of the settings sets rules of `tokenizer.json`, as in `transformers`.

        Raises:
            TokenizerError: there is no tokenizer, or a file is malformed; the message names the file.
            UsageError: `directory` is not a path.
            MissingPartError: the files need the package `sentencepiece`, which is not installed.
        """
        parts = read_tokenizer(path_of(directory, "directory", "a folder"), by_class=by_class)
        try:
            return cls._of(with_markers(parts, markers))
        except TokenizerError as error:
            raise TokenizerError(f"{directory}: {error}") from None

    @classmethod
    def _of(cls, parts: Parts) -> "Tokenizer":
        return cls(parts.definition, parts.kind, parts.specials, lowercase=parts.lowercase, parts=parts)

    def files(self) -> dict[str, bytes]:
        """The files by name: the original ones if it was loaded, else `tokenizer.json` and its settings."""
        return dict(self._parts.files)

    def with_target(self, target: "Tokenizer") -> "Tokenizer":
        """This tokenizer for sources, and one that Atento trained (else TokenizerError) for targets; in one folder."""
        if not target.target.native:
            raise TokenizerError("the tokenizer of targets must be one that Atento trained: leave `tokenizer.path` out")
        return Tokenizer._of(with_target(self._parts, target.target._parts))

    def save(self, directory: str | Path) -> None:
        """Write `files()` to a folder. `transformers` reads them and gives the same ids.

        Raises:
            AtentoError: the folder cannot be written. UsageError: `directory` is not a path.
        """
        write_folder(path_of(directory, "directory", "a folder"), self.files())

    # Properties

    @property
    def pad_id(self) -> int:
        """The id of padding. This and the next four properties raise TokenizerError if there is no such token."""
        return self.specials.id("pad")

    @property
    def unk_id(self) -> int:
        """The id of the unknown token."""
        return self.specials.id("unk")

    @property
    def bos_id(self) -> int:
        """The id of the begin of a sequence."""
        return self.specials.id("bos")

    @property
    def eos_id(self) -> int:
        """The id of the end of a sequence."""
        return self.specials.id("eos")

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        return self.specials.id("mask")

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the target side: itself, unless each side has one (Marian, `tokenizer.shared` false).

        Then this one is that of the source, and `target` encodes targets and decodes outputs.
        """
        return self._target or self

    @property
    def ordinary_ids(self) -> list[int]:
        """The ids of words and their parts, in order: of all pieces but the special tokens, wherever these stand."""
        return self._spelling.ordinary

    def other_ids(self, rows: int) -> list[int]:
        """The ids below `rows`, the rows of a network, that are not ordinary: special tokens, and ids without a piece.

        Released networks may have more rows than their tokenizer has pieces, to pad their matrices.
        """
        return self._spelling.others(rows)

    def pad_to(self, rows: int, target_rows: int) -> None:
        """Take ids below the rows of a network for ids of the tokenizer (of its `target`): those without a piece have
        no text. Other ids are refused, as those of another tokenizer.
        """
        for tokenizer, size in ((self, rows), (self.target, target_rows)):
            tokenizer._spelling.rows = max(size, tokenizer._spelling.rows)  # networks may share it

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides ids and text. `save` and `load` preserve it (docs/notes.md#d5)."""
        content = [self._data, self.kind, self.lowercase, self.specials.roles, self.specials.ids]
        if self._target is not None and self._target.native:  # Marian's has it
            content.append(self._target.fingerprint)
        canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def splits_at_spaces(self) -> bool:
        """Whether the ids of a text are those of its parts between spaces, one after another.

        It holds for kinds that Atento trains and that split text into words: NFC, the removal of blanks and the split
        never look across a space.
        """
        return self.native and kind_named(self.kind).by_word

    # Text -> ids

    def normalize(self, text: str) -> str:
        """The normalised text, which `decode` returns for kinds that encode spaces."""
        require_unicode(text)
        if self._library is None:
            return str(self._backend.normalize(text))
        return text if (rules := self._library.normalizer) is None else str(rules.normalize_str(text))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens.

        Raises:
            TokenizerError: the text is not valid Unicode (a lone surrogate); the message names the position.
        """
        require_unicode(text)
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def encode_batch(
        self, texts: Sequence[str], *, dropout: float = 0.0, seed: int | Sequence[int] = 0
    ) -> list[list[int]]:
        """The ids of many texts, in order.

        Args:
            texts: the texts.
            dropout: in [0, 1]; above 0 the segmentation of each text is sampled (see `atento.text.sampling`).
            seed: seed of the sampling; a sequence gives each text its own, independent of the batch.

        Raises:
            TokenizerError: a text is not valid Unicode (named by its number from 0), or `dropout` or `seed` is not
                valid.
            CapabilityError: the kind has only one segmentation of a text.
        """
        require_texts(texts, "text")
        if not 0.0 <= dropout <= 1.0:
            raise TokenizerError(f"`dropout` must lie in [0, 1]: got {dropout}")
        if dropout == 0.0:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [list(encoding.ids) for encoding in encodings]
        seeds: Sequence[int | str] = [f"{seed} {i}" for i in range(len(texts))] if isinstance(seed, int) else seed
        if len(seeds) != len(texts):
            raise TokenizerError(
                f"`seed` must be one number, or one for each text: got {len(seeds)} for {len(texts)} texts"
            )
        return [self.sampler.encode(text, dropout, s) for text, s in zip(texts, seeds, strict=True)]

    @cached_property
    def sampler(self) -> Sampler:
        """Samples segmentations, and replays the merges of bpe. Raises CapabilityError: the kind has only one."""
        if self._library is None:
            raise CapabilityError("subword dropout is not supported by tokenizers that run sentencepiece")
        return Sampler(self._library, self._data, self.kind)

    def encode_with_mask(self, text: str) -> list[int]:
        """The ids of a text in which the strings of the mask and of the sentinels of T5 (`<extra_id_0>`) become these
        tokens; no other string becomes special.

        Raises:
            TokenizerError: the tokenizer has neither mask nor sentinels, or the text is not valid Unicode.
        """
        if not any(map(is_sentinel, self.specials.ids)):
            self.specials.id("mask")
        require_unicode(text)
        return list(self._mask_backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    @cached_property
    def _mask_backend(self) -> Any:
        return mask_backend(self._data, self.specials)

    def with_specials(
        self, ids: Sequence[int], pair: Sequence[int] | None = None, *, template: str | None = None
    ) -> tuple[list[int], list[int]]:
        """Add the special tokens of the model to one text or two (docs/notes.md#d5).

        Tokenizers trained by Atento add none unless a template is named.

        Args:
            ids: the first text, from `encode`.
            pair: the second text, if there is one.
            template: a row of `atento.text.specials.TEMPLATES`, instead of that of the model.

        Returns:
            The ids, and the segment of each id.

        Raises:
            TokenizerError: there is no such template, or the tokenizer lacks one of its tokens.
        """
        return self.template(template).apply(ids, pair)

    def added(self, pair: bool = False, *, template: str | None = None) -> int:
        """The number of ids that `with_specials` adds to one text, or to a pair."""
        return self.template(template).added(pair)

    def template(self, name: str | None = None) -> Template:
        """A row of `TEMPLATES` with the ids of this tokenizer; without a name, the template of this tokenizer.

        Raises:
            TokenizerError: there is no such row, or the tokenizer lacks one of its tokens.
        """
        roles = {role: self.specials.ids[text] for role, text in self.specials.roles.items()}
        return self._template if name is None else template_named(name, roles)

    def encode_with_offsets(self, text: str) -> Encoded:
        """The ids of a text with their character offsets, exact even if normalisation changes lengths.

        See docs/notes.md#d4.

        Raises:
            TokenizerError: the text is not valid Unicode.
        """
        require_unicode(text)
        normal = normalize_with_spans(text, self.lowercase) if self.native else None
        if normal is None or normal.text != self.normalize(text):
            # Another normalisation, or characters newer than one of the two Unicode tables: the library's offsets.
            encoding = self._backend.encode(text, add_special_tokens=False)
            offsets = trimmed_offsets(text, encoding.offsets, map(self._spelling.of, encoding.ids))
            return self._encoded(text, encoding.ids, encoding.tokens, offsets)
        encoding = self._backend.encode(normal.text, add_special_tokens=False)
        spelt = map(self._spelling.of, encoding.ids)
        prefixed = self.kind in ("unigram", "bpe")  # the first space is not in the text
        inner = walk(spelt, normal.text, prefixed=prefixed) if kind_named(self.kind).spaces else None
        if inner is None:
            last = len(normal.text)
            inner = [(min(start, last), min(end, last)) for start, end in encoding.offsets]
        return self._encoded(text, encoding.ids, encoding.tokens, original_offsets(text, normal.spans, inner))

    def _encoded(self, text: str, ids: list[int], tokens: list[str], offsets: list[Span]) -> Encoded:
        words = align_words(text, offsets)
        return Encoded(list(ids), list(tokens), offsets, words.index, words.words)

    # Ids -> text

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of ids. It shows `unk`, and other special tokens only if `skip_special` is False.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        checked = self._spelling.checked(ids)
        return self._spelling.text([i for i in checked if not (skip_special and self._spelling.hides(i))])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id, as in the vocabulary; empty for an id without one (`pad_to`).

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return [self._spelling.piece(i) for i in self._spelling.checked(ids)]

    def token_id(self, piece: str) -> int | None:
        """The id of a piece; None if it is not in the vocabulary."""
        token_id: int | None = self._backend.token_to_id(piece)
        return token_id

    def words(self, ids: Iterable[int]) -> Words:
        """Group ids into words (docs/notes.md#d4, #e2); an unknown piece is read as U+FFFD."""
        return spelled_words(map(self.spelling, self._spelling.checked(ids)))

    def spelling(self, token_id: int) -> bytes | str | None:
        """The text of a piece inside a text, or its bytes, which may be a part of a character; None: it has none."""
        return None if self._spelling.hides(token_id) else self._spelling.of(token_id)

    def encode_words(self, words: Sequence[str]) -> Encoded:
        """Encode a sentence that is split into words, as for tagging; `word_ids` are the numbers of these words.

        Each word has at least one token: a word that normalises to nothing is read as U+FFFD, or as the unknown token
        where the tokenizer drops that too. Offsets refer to the words joined by single spaces.

        A piece of a released tokenizer that is only a space (`▁` before a word that is in no piece with its space)
        belongs to the word behind it, as in `transformers`, whose taggers give the tag of a word at its first piece.
        """
        require_texts(words, "word")
        readable = [word if self.normalize(word) else UNREADABLE for word in words]
        encoded = self.encode_with_offsets(" ".join(readable)).of_words(readable, spaces=not self.native)
        if len({word for word in encoded.word_ids if word is not None}) == len(words):
            return encoded
        return encoded.with_every_word(self.unk_id, self.tokens([self.unk_id])[0])
