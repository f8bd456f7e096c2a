"""The four layouts of released translators, as they are published: their file names and settings, random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import pre_tokenizers

from atento.text.released.sentencepiece_families import MBART50_LANGUAGES
from released_folders import _SEQ2SEQ, FRONT, TEXTS, _marian_vocabulary, _scored, _spm, bpe, randomised

_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
_OLD = {"gradient_checkpointing": False, "add_bias_logits": False, "classif_dropout": 0.0, "max_length": 200}


def _write(folder: Path, name: str, data: Any) -> None:
    (folder / name).write_text(json.dumps(data, ensure_ascii=False, indent=2), encoding="utf-8")


def _nllb(folder: Path) -> Any:
    """`tokenizer.json` whose frame is that of the first release, and the settings of transformers 4."""
    alphabet = {letter for text in TEXTS for letter in text} - {" "}
    tokenizer = hf.NllbTokenizer(**bpe(FRONT, 300, pre_tokenizer=pre_tokenizers.Metaspace(), alphabet=alphabet))
    tokenizer.save_pretrained(folder)
    _spm(folder, "sentencepiece.bpe")
    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    pieces = definition["post_processor"]["single"]
    definition["post_processor"]["single"] = [*pieces[1:], pieces[0]]
    _write(folder, "tokenizer.json", definition)
    languages = [token["content"] for token in definition["added_tokens"] if "_" in token["content"]]
    mask = {"content": "<mask>", "lstrip": True, "normalized": True, "rstrip": False, "single_word": False}
    tokens = _TOKENS | {"cls_token": "<s>", "mask_token": mask}
    _write(folder, "special_tokens_map.json", tokens | {"additional_special_tokens": languages})
    own = {"src_lang": None, "tgt_lang": None, "sp_model_kwargs": {}, "tokenizer_class": "NllbTokenizer"}
    _write(folder, "tokenizer_config.json", tokens | own | {"special_tokens_map_file": None, "tokenizer_file": None})
    config = hf.M2M100Config(vocab_size=len(tokenizer) + 2, scale_embedding=True, **_SEQ2SEQ, **_IDS)
    return hf.M2M100ForConditionalGeneration(config)


def _m2m100(folder: Path) -> Any:
    """`vocab.json` with fewer pieces than ids, as there are eight made-up words behind the languages."""
    pieces = [piece for piece, _ in _scored(_spm(folder, "sentencepiece.bpe"), 3)]
    _write(folder, "vocab.json", {piece: i for i, piece in enumerate([*FRONT, *pieces])})
    languages = [f"__{code}__" for code in hf.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    _write(folder, "special_tokens_map.json", _TOKENS | {"additional_special_tokens": languages})
    settings = {"src_lang": None, "tgt_lang": None, "num_madeup_words": 8, "special_tokens_map_file": "m2m.json"}
    _write(folder, "tokenizer_config.json", _TOKENS | settings | {"tokenizer_class": "M2M100Tokenizer"})
    size = len(FRONT) + len(pieces) + len(languages) + 8
    config = hf.M2M100Config(
        vocab_size=size, scale_embedding=True, **_SEQ2SEQ, **_IDS, num_beams=5, early_stopping=True
    )
    return hf.M2M100ForConditionalGeneration(config)


def _mbart50(folder: Path) -> Any:
    """`sentencepiece.bpe.model` alone."""
    pieces = _scored(_spm(folder, "sentencepiece.bpe"))
    tokens = _TOKENS | {"cls_token": "<s>", "mask_token": "<mask>"}
    _write(folder, "special_tokens_map.json", tokens | {"additional_special_tokens": list(MBART50_LANGUAGES)})
    settings = {"src_lang": None, "tgt_lang": None, "tokenizer_class": "MBart50Tokenizer"}
    _write(folder, "tokenizer_config.json", tokens | settings)
    size = len(pieces) + 1 + len(MBART50_LANGUAGES) + 1
    config = hf.MBartConfig(vocab_size=size, **_SEQ2SEQ, **_IDS, scale_embedding=True, num_beams=5, **_OLD)
    return hf.MBartForConditionalGeneration(config)


def _marian(folder: Path) -> Any:
    """`source.spm`, `target.spm` and one `vocab.json`, with the languages that outputs may have; padding is last."""
    pad = len(_marian_vocabulary(folder, ">>por<<", ">>spa<<", "<pad>")) - 1
    _write(folder, "tokenizer_config.json", {"target_lang": "ROMANCE", "source_lang": "en"})
    ids = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": pad, "decoder_start_token_id": pad}
    old = {"num_beams": 4, "bad_words_ids": [[pad]], "normalize_embedding": False, "extra_pos_embeddings": pad + 1}
    network = hf.MarianMTModel(hf.MarianConfig(vocab_size=pad + 1, scale_embedding=True, **_SEQ2SEQ, **ids))
    network.old_keys = old | {"static_position_embeddings": True, "add_final_layer_norm": False}
    return network


PUBLISHED: dict[str, Callable[[Path], Any]] = {"nllb": _nllb, "m2m_100": _m2m100, "mbart50": _mbart50}
PUBLISHED["marian of languages"] = _marian
_AT_THE_END = {"nllb": 204, "m2m_100": 108, "mbart50": 53, "marian of languages": 3}  # rows of languages


@torch.no_grad()
def write_published(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    network = randomised(PUBLISHED[name](folder).eval(), but="embed_positions")
    # as in trained models, languages are not written inside of an output
    network.get_input_embeddings().weight[-_AT_THE_END.get(name, 1) :] *= 0.2
    network.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write(folder, "config.json", config | getattr(network, "old_keys", {}))
    return folder
