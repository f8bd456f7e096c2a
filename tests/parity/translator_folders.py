"""Multilingual translators as transformers saves them: random weights, tokenizers with tokens of languages."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from atento.text.released.sentencepiece_families import MBART_LANGUAGES
from released_folders import _SEQ2SEQ, FRONT, TEXTS, _byte_level, _scored, _spm, randomised, unigram

SOME = [*TEXTS[:5], "o gato"]
LIMIT = 9  # new tokens


@dataclass(frozen=True)
class Translator:
    """How a family is made; `source` and `target` are not the languages by default."""

    tokenizer: Callable[[Path], Any]
    config: Any
    network: Any
    source: str
    target: str
    first: str  # the source language by default
    starts: bool = False  # whether every output begins with the target language by the configuration


def _m2m_100(folder: Path) -> Any:
    """`vocab.json` and `sentencepiece.bpe.model` alone, as the released folders have them."""
    model = _spm(folder, "sentencepiece.bpe")
    pieces = [piece for piece, _ in _scored(model, 3)]
    dropped = set(pieces[11::17])  # pieces without an id are unknown
    vocabulary = {piece: i for i, piece in enumerate([*FRONT, *(piece for piece in pieces if piece not in dropped)])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    languages = list(hf.M2M100Tokenizer(str(folder / "vocab.json"), str(model)).lang_token_to_id)
    return hf.M2M100Tokenizer(str(folder / "vocab.json"), str(model), additional_special_tokens=languages)


def _mbart(folder: Path) -> Any:
    """`sentencepiece.bpe.model` alone."""
    pieces = _scored(_spm(folder, "sentencepiece.bpe"), 3)
    vocabulary = [*((text, 0.0) for text in FRONT), *pieces, *((text, 0.0) for text in (*MBART_LANGUAGES, "<mask>"))]
    return hf.MBartTokenizer(vocab=vocabulary, src_lang="en_XX", tgt_lang="ro_RO")


TRANSLATORS = {
    "nllb": Translator(
        lambda folder: hf.NllbTokenizer(**_byte_level(FRONT), src_lang="eng_Latn", tgt_lang="fra_Latn"),
        *(hf.M2M100Config, hf.M2M100ForConditionalGeneration, "por_Latn", "deu_Latn", "eng_Latn"),
    ),
    "mbart50": Translator(
        lambda folder: hf.MBart50Tokenizer(vocab=unigram(["<unk>", "<s>", "</s>"]), src_lang="en_XX", tgt_lang="ro_RO"),
        *(hf.MBartConfig, hf.MBartForConditionalGeneration, "pt_XX", "de_DE", "en_XX"),
    ),
    "m2m_100": Translator(_m2m_100, hf.M2M100Config, hf.M2M100ForConditionalGeneration, "pt", "de", "en"),
    "mbart": Translator(_mbart, hf.MBartConfig, hf.MBartForConditionalGeneration, "de_DE", "ro_RO", "en_XX", True),
}


def write_translator(name: str, folder: Path) -> tuple[Any, Any]:
    """Write the folder; their tokenizer and network."""
    row = TRANSLATORS[name]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = row.tokenizer(folder)
    if name in ("nllb", "mbart50"):
        tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    size = max(len(tokenizer), *tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens)) + 1
    start = tokenizer.convert_tokens_to_ids(row.target) if row.starts else 2
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": start}
    network = randomised(row.network(row.config(vocab_size=size, **_SEQ2SEQ, **ids)).eval())
    network.save_pretrained(folder)
    return tokenizer, network


def expected(name: str, tokenizer: Any, network: Any, source: str, target: str, texts: list[str]) -> list[str]:
    """What `greedy` writes in the target language."""
    tokenizer.src_lang = source
    forced: dict[str, int] = {}
    if not TRANSLATORS[name].starts:
        language = tokenizer.get_lang_id(target) if name == "m2m_100" else tokenizer.convert_tokens_to_ids(target)
        forced = {"forced_bos_token_id": language}
    return greedy(tokenizer, network, texts, **forced)


def greedy(tokenizer: Any, network: Any, texts: list[str], **forced: int) -> list[str]:
    """What transformers writes by greedy search, each text by itself."""
    lines = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        ids = network.generate(**inputs, **forced, num_beams=1, do_sample=False, max_new_tokens=LIMIT)
        lines.append(tokenizer.decode(ids[0], skip_special_tokens=True).strip())
    return lines
