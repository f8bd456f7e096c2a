"""Tokenizers of released model families, built from their own files with the `tokenizers` library.

BERT's WordPiece, the byte-level BPE of GPT-2 and RoBERTa, GPT-1's lower-cased BPE, and the SentencePiece models of T5,
XLM-R and Llama (docs/notes.md#d1, #d2).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from atento.errors import TokenizerError
from atento.text.folder import as_object, as_text, token_text
from atento.text.pipelines import SPACE
from atento.text.specials import sentinels
from atento.text.spm import CONTROL, USER_DEFINED, SentencePieceModel, merges_of, read_model

_MBART50_CODES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN "
    "pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
MBART50_LANGUAGES = tuple(_MBART50_CODES.split())
"""The languages of mBART-50, in the order of their ids."""
MBART_LANGUAGES = MBART50_LANGUAGES[:25]
"""The languages of the first mBART, in the order of their ids."""


@dataclass(frozen=True)
class Sources:
    """A tokenizer folder: path, settings, and the bytes of its files by name."""

    directory: Path
    config: Mapping[str, Any]
    files: Mapping[str, bytes]

    def flag(self, name: str, default: bool | None) -> bool | None:
        """A boolean setting.

        Raises:
            TokenizerError: the value is not a boolean.
        """
        value = self.config.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise TokenizerError(f"`{name}` in {self.directory} must be true or false: got {value!r}")
        return value


@dataclass(frozen=True)
class Built:
    """A tokenizer of the library.

    Attributes:
        specials: special strings that the files declare.
        same_as_transformers: whether the classes of `transformers` give the same ids from the same files.
        mask_takes_space: whether the mask token includes the space before it, unless the settings say.
    """

    backend: tokenizers.Tokenizer
    kind: str
    lowercase: bool = False
    specials: tuple[str, ...] = ()
    same_as_transformers: bool = True
    mask_takes_space: bool = True


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


# Vocabulary files


def numbered(content: bytes, path: Path) -> dict[str, int]:
    """Read a vocabulary from JSON: piece -> id.

    Raises:
        TokenizerError: it is not JSON or empty, or an id is not an integer from 0 on, or occurs twice.
    """
    data = as_object(as_text(content, path), path)
    if not data:
        raise TokenizerError(f"{path} must hold a vocabulary: it is empty")
    piece_of_id: dict[int, str] = {}
    for piece, number in data.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
            raise TokenizerError(f"{path} must give each piece an id: got {number!r} for {piece!r}")
        if number in piece_of_id:
            raise TokenizerError(
                f"{path} must give each piece its own id: {piece_of_id[number]!r} and {piece!r} have {number}"
            )
        piece_of_id[number] = piece
    return data


def listed(content: bytes, path: Path) -> dict[str, int]:
    """Read a vocabulary with one piece per line, from id 0 on.

    Raises:
        TokenizerError: it is empty, has an empty line, or a piece twice; the message names the line.
    """
    lines = as_text(content, path).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise TokenizerError(f"{path} must hold a vocabulary: it is empty")
    vocabulary: dict[str, int] = {}
    for number, line in enumerate(lines):
        piece = line.rstrip() or line.rstrip("\r")
        if not piece:
            raise TokenizerError(
                f"{path}, line {number + 1}: a vocabulary must have one piece a line: got an empty line"
            )
        if piece in vocabulary:
            raise TokenizerError(
                f"{path}, line {number + 1}: the pieces of a vocabulary must differ from one another: "
                f"got {piece!r}, which is on line {vocabulary[piece] + 1} too"
            )
        vocabulary[piece] = number
    return vocabulary


def merged(content: bytes, path: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Read the merges of a `merges.txt`, in order.

    Raises:
        TokenizerError: a line is not two pieces, or a piece or the result of a merge is not in the vocabulary.
    """
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(as_text(content, path).split("\n"), 1):
        line = line.rstrip("\r")
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise TokenizerError(f"{path}, line {number}: a merge must be two pieces and a space between: got {line!r}")
        for piece in (parts[0], parts[1], parts[0] + parts[1]):
            if piece not in vocabulary:
                raise TokenizerError(f"{path}, line {number}: the vocabulary has no piece {piece!r}")
        merges.append((parts[0], parts[1]))
    return merges


def unknown(config: Mapping[str, Any], default: str, vocabulary: Mapping[str, int], path: Path) -> str:
    """The unknown token, from the settings or the family.

    Raises:
        TokenizerError: it is not in the vocabulary.
    """
    unk = token_text(config.get("unk_token")) or default
    if unk not in vocabulary:
        raise TokenizerError(f"{path} must hold {unk!r}, the piece for what is unknown")
    return unk


# Families


def bert(sources: Sources) -> Built:
    """WordPiece with BERT's pre-tokenization (Devlin et al. 2019), from `vocab.txt`.

    Settings and their defaults: `do_lower_case` (true), `strip_accents` (that of `do_lower_case`),
    `tokenize_chinese_chars` (true).
    """
    path = sources.directory / "vocab.txt"
    vocabulary = listed(sources.files["vocab.txt"], path)
    lowercase = bool(sources.flag("do_lower_case", True))
    unk = unknown(sources.config, "[UNK]", vocabulary, path)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(sources.flag("tokenize_chinese_chars", True)),
        strip_accents=sources.flag("strip_accents", None),
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return Built(backend, "wordpiece", lowercase, mask_takes_space=False)


def _vocabulary_and_merges(sources: Sources) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocabulary = numbered(sources.files["vocab.json"], sources.directory / "vocab.json")
    return vocabulary, merged(sources.files["merges.txt"], sources.directory / "merges.txt", vocabulary)


def byte_level(sources: Sources) -> Built:
    """Byte-level BPE (Radford et al. 2019) of GPT-2, RoBERTa and BART.

    Setting: `add_prefix_space` (false), whether the first word gets a space like the others.
    """
    vocabulary, merges = _vocabulary_and_merges(sources)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
    prefix = bool(sources.flag("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    return Built(backend, "bpe")


def gpt1(sources: Sources) -> Built:
    """Lower-cased BPE with `</w>` at the end of words (Radford et al. 2018), with BERT's pre-tokenization."""
    vocabulary, merges = _vocabulary_and_merges(sources)
    unk = unknown(sources.config, "<unk>", vocabulary, sources.directory / "vocab.json")
    model = models.BPE(vocabulary, merges, unk_token=unk, end_of_word_suffix="</w>", fuse_unk=False)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return Built(backend, "bpe", True)


def _read(sources: Sources, name: str, family: str, *kinds: str) -> SentencePieceModel:
    model = read_model(sources.files[name], sources.directory / name)
    if model.kind not in kinds:
        raise TokenizerError(f"{sources.directory / name}: a {family} tokenizer must be unigram: got {model.kind}")
    return model


def _charsmap(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """The model's table of replacements as a normalizer of the library, if it has one."""
    if not model.charsmap:
        return []
    try:
        return [normalizers.Precompiled(model.charsmap)]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception, and its panics are BaseException
        raise TokenizerError(f"the table of replacements of the model cannot be read: {error}") from None


def _spaces(model: SentencePieceModel, prefix: bool) -> normalizers.Normalizer:
    """SentencePiece's normalisation: replacements, removal of extra spaces, a space in front, `▁` for each space.

    There is no pre-tokenizer, which would lose spaces at both ends of the text.
    """
    steps = _charsmap(model)
    if steps and steps[0].normalize_str("\r") == steps[0].normalize_str("\n") == " ":
        steps.insert(0, normalizers.Replace("\r\n", "  "))  # two characters to SentencePiece, one to the library
    if model.one_space:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _unigram(model: SentencePieceModel, pieces: list[tuple[str, float]], unk_id: int, prefix: bool) -> Built:
    """Unigram with the model's own normalisation and `▁` before words, also before the first if `prefix`.

    The library applies the table of replacements to a letter together with its combining marks, where SentencePiece
    takes the longest entry, so that rare combinations of marks differ; `transformers` has the same difference.
    """
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id, model.byte_fallback))
    usual = model.one_space and prefix
    scheme = "always" if prefix else "never"
    if usual:
        table = _charsmap(model)
        backend.normalizer = table[0] if table else None
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.WhitespaceSplit(),
                pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True),
            ]
        )
    else:
        backend.normalizer = _spaces(model, prefix)
    if model.byte_fallback or not usual:
        backend.decoder = _spelt(strip=prefix)
    else:
        backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True)
    backend.add_tokens(
        [
            AddedToken(piece.text, normalized=False, special=False)
            for piece in model.pieces
            if piece.type == USER_DEFINED and "<extra_id_" not in piece.text
        ]
    )
    known = {text for text, _ in pieces}
    specials = [p.text for p in model.pieces if p.text in known and (p.type == CONTROL or "<extra_id_" in p.text)]
    return Built(backend, "unigram", specials=tuple(specials), same_as_transformers=usual)


def _spelt(strip: bool) -> decoders.Decoder:
    """A decoder that reads `▁` as a space and byte pieces as bytes; it removes the first space if `strip`."""
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def t5(sources: Sources) -> Built:
    """T5 and mT5 (Raffel et al. 2020), from `spiece.model`; the sentinels follow its pieces, the last one first.

    Setting: `extra_ids`, the number of sentinels (100, or 0 if the model has its own).
    """
    model = _read(sources, "spiece.model", "t5", "unigram")
    has_sentinels = any("<extra_id_" in piece.text for piece in model.pieces)
    count = sources.config.get("extra_ids", 0 if has_sentinels else 100)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 10_000:
        raise TokenizerError(f"`extra_ids` in {sources.directory} must lie in 0 ... 10000: got {count!r}")
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    extra = sentinels(count)
    built = _unigram(model, [*pieces, *((text, 0.0) for text in reversed(extra))], model.unk_id, model.dummy_prefix)
    return replace(built, specials=(*built.specials, *extra))


def _fairseq(sources: Sources, family: str) -> tuple[SentencePieceModel, list[tuple[str, float]]]:
    """The model of `sentencepiece.bpe.model`, and its pieces with fairseq's four tokens in place of its own three.

    The tokens are `<s> <pad> </s> <unk>`.
    """
    model = _read(sources, "sentencepiece.bpe.model", family, "unigram")
    if [piece.text for piece in model.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        path = sources.directory / "sentencepiece.bpe.model"
        raise TokenizerError(f"{path} must begin with <unk>, <s> and </s>, which fairseq's ids count on")
    front = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return model, [*front, *((piece.text, piece.score) for piece in model.pieces[3:])]


def xlm_roberta(sources: Sources) -> Built:
    """XLM-R (Conneau et al. 2020), from `sentencepiece.bpe.model`, with fairseq's ids and the mask last."""
    model, pieces = _fairseq(sources, "xlm-roberta")
    prefix = bool(sources.flag("add_prefix_space", model.dummy_prefix))
    return _unigram(model, [*pieces, ("<mask>", 0.0)], 3, prefix)


def mbart(sources: Sources) -> Built:
    """mBART (Liu et al. 2020), from `sentencepiece.bpe.model`: fairseq's ids, then 25 languages and the mask.

    The class of `transformers` leaves out the model's table of replacements.
    """
    model, pieces = _fairseq(sources, "mbart")
    languages = [(code, 0.0) for code in MBART_LANGUAGES]
    built = _unigram(model, [*pieces, *languages, ("<mask>", 0.0)], 3, model.dummy_prefix)
    specials = (*built.specials, *MBART_LANGUAGES)
    return replace(built, specials=specials, same_as_transformers=not model.charsmap)


def mbart50(sources: Sources) -> Built:
    """mBART-50 (Tang et al. 2020), from `sentencepiece.bpe.model`: fairseq's ids, then 52 languages and the mask."""
    model, pieces = _fairseq(sources, "mbart50")
    languages = [(code, 0.0) for code in MBART50_LANGUAGES]
    backend = tokenizers.Tokenizer(models.Unigram([*pieces, *languages, ("<mask>", 0.0)], 3, False))
    backend.normalizer = normalizers.Sequence([*_charsmap(model), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    return Built(backend, "unigram", specials=MBART50_LANGUAGES)


def deberta(sources: Sources) -> Built:
    """DeBERTa v2 and v3 (He et al. 2021, 2023), from `spm.model`; the mask follows its pieces.

    As in the classes of `transformers`, the model's table of replacements is not used. Settings and their defaults:
    `do_lower_case` (false), `split_by_punct` (false), `add_prefix_space` (true).
    """
    model = _read(sources, "spm.model", "deberta-v2", "unigram")
    backend = tokenizers.Tokenizer(
        models.Unigram([(piece.text, piece.score) for piece in model.pieces], model.unk_id, False)
    )
    lowercase = bool(sources.flag("do_lower_case", False))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
    backend.normalizer = normalizers.Sequence(steps)
    scheme: Literal["always", "first"] = "always" if sources.flag("add_prefix_space", True) else "first"
    splits: list[pre_tokenizers.PreTokenizer] = []
    if sources.flag("split_by_punct", False):
        splits.append(pre_tokenizers.Punctuation(behavior="isolated"))
    splits.append(pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    mask = token_text(sources.config.get("mask_token")) or "[MASK]"
    backend.add_special_tokens([AddedToken(mask, normalized=False, special=True)])
    specials = tuple(piece.text for piece in model.pieces if piece.type == CONTROL)
    return Built(backend, "unigram", lowercase, specials, mask_takes_space=False)


def llama(sources: Sources) -> Built:
    """Llama 1 and 2 (Touvron et al. 2023), from `tokenizer.model`: no normalisation, unknown characters as bytes.

    Setting: `add_prefix_space` (that of the model). As in SentencePiece, a text that begins with a space gets another
    one in front; the classes of `transformers` add none.
    """
    model = _read(sources, "tokenizer.model", "llama", "bpe", "unigram")
    vocabulary = {piece.text: i for i, piece in enumerate(model.pieces)}
    add_prefix_space = sources.flag("add_prefix_space", None)
    prefix = model.dummy_prefix if add_prefix_space is None else add_prefix_space
    unk = model.pieces[model.unk_id].text
    library: models.Model
    if model.kind == "bpe":
        library = models.BPE(vocabulary, merges_of(model), unk_token=unk, fuse_unk=True, byte_fallback=True)
    else:
        scored = [(piece.text, piece.score) for piece in model.pieces]
        library = models.Unigram(scored, model.unk_id, model.byte_fallback)
    backend = tokenizers.Tokenizer(library)
    backend.normalizer = _spaces(model, prefix)
    backend.decoder = _spelt(strip=prefix)
    backend.add_tokens(
        [AddedToken(p.text, normalized=False, special=False) for p in model.pieces if p.type == USER_DEFINED]
    )
    specials = tuple(piece.text for piece in model.pieces if piece.type == CONTROL)
    return Built(backend, model.kind, specials=specials, same_as_transformers=False)
