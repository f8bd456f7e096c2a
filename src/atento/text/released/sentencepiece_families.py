"""Tokenizers of released families with a SentencePiece model, built with the `tokenizers` library: T5, XLM-R, Llama.

The library cuts as SentencePiece does, so that the package is not needed (docs/notes.md#d1, #d2).
"""

import re
from dataclasses import replace
from typing import Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from atento.base.errors import TokenizerError
from atento.text.kinds import SPACE
from atento.text.released.families import Built, Sources
from atento.text.released.spm import CONTROL, USER_DEFINED, SentencePieceModel, merges_of, read_model
from atento.text.specials import sentinels
from atento.text.tokenizer_folder import quoted, token_text

_MBART50_CODES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN "
    "pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
MBART50_LANGUAGES = tuple(_MBART50_CODES.split())
"""The languages of mBART-50, in the order of their ids."""
MBART_LANGUAGES = MBART50_LANGUAGES[:25]
"""The languages of the first mBART, in the order of their ids."""


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
    if steps and steps[0].normalize_str("\r") == steps[0].normalize_str("\n") == " ":  # its table makes both a space
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
    backend = tokenizers.Tokenizer(_library(model, pieces, unk_id))
    # what the library's pre-tokenizer does by itself
    usual = model.one_space and prefix and model.kind == "unigram" and not _symbols(model)
    scheme = "always" if prefix else "never"
    if usual:
        table = _charsmap(model)
        backend.normalizer = table[0] if table else None
        spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    else:
        backend.normalizer, backend.pre_tokenizer = _spaces(model, prefix), _symbols_apart(model)
    if model.byte_fallback or not usual:
        backend.decoder = _spelt(strip=prefix)
    else:
        backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True)
    known = {text for text, _ in pieces}
    specials = [p.text for p in model.pieces if p.text in known and (p.type == CONTROL or "<extra_id_" in p.text)]
    return Built(backend, model.kind, specials=tuple(specials), same_as_transformers=usual)


def _library(model: SentencePieceModel, pieces: list[tuple[str, float]], unk_id: int) -> models.Model:
    """The model of the library with these pieces; a text that is a symbol of the user is that piece."""
    if model.kind == "unigram":
        return models.Unigram(pieces, unk_id, model.byte_fallback)
    vocabulary, merges = {text: number for number, (text, _) in enumerate(pieces)}, merges_of(model)
    unk, whole = pieces[unk_id][0], bool(_symbols(model))
    return models.BPE(vocabulary, merges, unk_token=unk, fuse_unk=True, byte_fallback=True, ignore_merges=whole)


def _symbols(model: SentencePieceModel) -> list[str]:
    """The pieces that the user defined, the longest first; sentinels are none."""
    found = [piece.text for piece in model.pieces if piece.type == USER_DEFINED and "<extra_id_" not in piece.text]
    return sorted(found, key=len, reverse=True)


def _symbols_apart(model: SentencePieceModel) -> pre_tokenizers.PreTokenizer | None:
    """A pre-tokenizer that splits off these pieces in normalised text, as SentencePiece does."""
    symbols = _symbols(model)
    return pre_tokenizers.Split(Regex("|".join(map(quoted, symbols))), "isolated") if symbols else None


def _spelt(strip: bool) -> decoders.Decoder:
    """A decoder that reads `▁` as a space and byte pieces as bytes; it removes the first space if `strip`."""
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def t5(sources: Sources) -> Built:
    """T5 and mT5 (Raffel et al. 2020), from `spiece.model`; the sentinels follow its pieces, the last one first.

    Setting: `extra_ids`, the number of sentinels (100, or 0 if the model has its own).
    """
    model = _read(sources, "spiece.model", "t5", "unigram", "bpe")
    has_sentinels = any("<extra_id_" in piece.text for piece in model.pieces)
    count = sources.config.get("extra_ids", 0 if has_sentinels else 100)  # 0: its own are pieces already
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
    return _unigram(model, [*pieces, ("<mask>", 0.0)], 3, bool(sources.flag("add_prefix_space", model.dummy_prefix)))


def mbart(sources: Sources) -> Built:
    """mBART (Liu et al. 2020), from `sentencepiece.bpe.model`: fairseq's ids, then 25 languages and the mask.

    The class of `transformers`, which a saved model keeps, leaves out the model's table of replacements.
    """
    model, pieces = _fairseq(sources, "mbart")
    languages = [(code, 0.0) for code in MBART_LANGUAGES]
    built = _unigram(model, [*pieces, *languages, ("<mask>", 0.0)], 3, model.dummy_prefix)
    return replace(built, specials=(*built.specials, *MBART_LANGUAGES))


def mbart50(sources: Sources) -> Built:
    """mBART-50 (Tang et al. 2020), from `sentencepiece.bpe.model`: fairseq's ids, then 52 languages and the mask."""
    model, pieces = _fairseq(sources, "mbart50")
    languages = [(code, 0.0) for code in MBART50_LANGUAGES]
    return Built(_metaspace(model, [*pieces, *languages, ("<mask>", 0.0)], 3), "unigram", specials=MBART50_LANGUAGES)


def pegasus(sources: Sources) -> Built:
    """PEGASUS (Zhang et al. 2020), from `spiece.model`.

    Before its pieces are padding, the end, the masks of a sentence and of a word, and the tokens of pretraining.

    Settings and their defaults: `offset` (103; 0 leaves out the tokens of pretraining), `mask_token_sent` (`<mask_1>`),
    `mask_token` (`<mask_2>`); null leaves a mask out.
    """
    model = _read(sources, "spiece.model", "pegasus", "unigram")
    offset = sources.config.get("offset", 103)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= 10_000:
        raise TokenizerError(f"`offset` in {sources.directory} must lie in 0 ... 10000: got {offset!r}")
    masks = (("mask_token_sent", "<mask_1>"), ("mask_token", "<mask_2>"))
    named = [token_text(sources.config.get(key, usual)) for key, usual in masks]
    front = [text for text in named if text is not None] if offset else []
    more = [f"<unk_{number}>" for number in range(2, offset)]  # fill the places up to `offset`
    # what is put in front takes `offset` places, so the model's <unk> must come right behind it
    begins = [piece.text for piece in model.pieces[:2]] == ["<pad>", "</s>"]
    if not begins or model.unk_id + offset != 2 + len(front + more):
        path = sources.directory / "spiece.model"
        raise TokenizerError(f"{path} must begin with <pad>, </s> and <unk>, and fit `offset` and the masks")
    own = [(piece.text, piece.score) for piece in model.pieces]
    pieces = [*own[:2], *((text, 0.0) for text in front), *((text, -100.0) for text in more), *own[2:]]
    backend = _metaspace(model, pieces, model.unk_id + offset)
    if not model.charsmap:  # whose table makes the end of a line a space
        backend.normalizer = normalizers.Sequence([normalizers.Replace("\n", " "), backend.normalizer])
    return Built(backend, "unigram", specials=(*front, *more))


def _metaspace(model: SentencePieceModel, pieces: list[tuple[str, float]], unk_id: int) -> tokenizers.Tokenizer:
    """Unigram as the classes of mBART-50 and PEGASUS in `transformers` have it: blanks are cut, not removed."""
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id, False))
    backend.normalizer = normalizers.Sequence([*_charsmap(model), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    return backend


def camembert(sources: Sources) -> Built:
    """CamemBERT (Martin et al. 2020), from `sentencepiece.bpe.model`: five tokens before its pieces, the mask last."""
    model = _read(sources, "sentencepiece.bpe.model", "camembert", "unigram")
    unused = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
    front = [(unused[0], 0.0), ("<pad>", 0.0), (unused[1], 0.0), ("<unk>", 0.0), (unused[2], -100.0)]
    pieces = [*front, *((piece.text, piece.score) for piece in model.pieces[1:]), ("<mask>", 0.0)]
    built = _unigram(model, pieces, 3, bool(sources.flag("add_prefix_space", model.dummy_prefix)))
    return replace(built, specials=(*built.specials, *unused))


def albert(sources: Sources) -> Built:
    """ALBERT (Lan et al. 2020), from `spiece.model`; a number and the comma behind it are two pieces.

    Settings and their defaults: `do_lower_case` (true), `keep_accents` (false).
    """
    model = _read(sources, "spiece.model", "albert", "unigram")
    with_comma = re.compile(r".*[0-9],", re.DOTALL)  # made improbable, so that the comma is cut off
    pieces = [(p.text, p.score - 100 if with_comma.fullmatch(p.text) else p.score) for p in model.pieces]
    backend = _metaspace(model, pieces, model.unk_id)
    lowercase = bool(sources.flag("do_lower_case", True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
    if not sources.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    backend.normalizer = normalizers.Sequence([*steps, *_charsmap(model)])
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), backend.pre_tokenizer])
    specials = tuple(piece.text for piece in model.pieces if piece.type == CONTROL)
    return Built(backend, "unigram", lowercase, specials, mask_takes_space=True)


def deberta(sources: Sources) -> Built:
    """DeBERTa v2 and v3 (He et al. 2021, 2023), from `spm.model`; the mask follows its pieces.

    As in the classes of `transformers`, the model's table of replacements is not used. Settings and their defaults:
    `do_lower_case` (false), `split_by_punct` (false), `add_prefix_space` (true).
    """
    model = _read(sources, "spm.model", "deberta-v2", "unigram")
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, model.unk_id, False))
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
    add_prefix_space = sources.flag("add_prefix_space", None)
    prefix = model.dummy_prefix if add_prefix_space is None else add_prefix_space
    scored = [(piece.text, piece.score) for piece in model.pieces]
    backend = tokenizers.Tokenizer(_library(model, scored, model.unk_id))
    backend.normalizer, backend.pre_tokenizer = _spaces(model, prefix), _symbols_apart(model)
    backend.decoder = _spelt(strip=prefix)
    specials = tuple(piece.text for piece in model.pieces if piece.type == CONTROL)
    return Built(backend, model.kind, specials=specials, same_as_transformers=False)
