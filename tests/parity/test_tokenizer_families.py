"""Tokenizers of further families, as classes of `transformers` make them; the symbols and tokens that a user adds."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from atento.text.tokenizer import Tokenizer
from released_folders import TEXTS, _byte_level, _spm, _wordpiece


def unigram(front: list[str]) -> list[tuple[str, float]]:
    """The pieces of a small Unigram model behind those tokens."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    return [(text, 0.0) for text in front] + [(text, score) for text, score in pieces if text not in front]


def mpnet() -> Any:
    pieces = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *_wordpiece().get_vocab(), "<mask>"])
    return transformers.MPNetTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)})


def modernbert() -> Any:
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=_wordpiece().backend_tokenizer, **names)


FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
FAMILIES: dict[str, Callable[[], Any]] = {
    "distilbert": lambda: transformers.DistilBertTokenizerFast(vocab=_wordpiece().get_vocab()),
    "electra": lambda: transformers.ElectraTokenizerFast(vocab=_wordpiece().get_vocab()),
    "mpnet": mpnet,
    "albert": lambda: transformers.AlbertTokenizer(vocab=unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])),
    "modernbert": modernbert,
    "deberta-v2": lambda: transformers.DebertaV2Tokenizer(vocab=unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])),
    "qwen2": lambda: transformers.Qwen2TokenizerFast(**_byte_level(["<|endoftext|>"])),
    "mbart": lambda: transformers.MBartTokenizer(vocab=unigram(FAIRSEQ), src_lang="en_XX"),
    "nllb": lambda: transformers.NllbTokenizer(**_byte_level(FAIRSEQ)),
    "pegasus": lambda: transformers.PegasusTokenizer(vocab=unigram(["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk>"])),
}


SYMBOLS = ["<sep>", "[NAME]"]
CLASSES = {"T5": "spiece", "Llama": "tokenizer", "XLMRoberta": "sentencepiece.bpe"}
SPECIAL: dict[str, dict[str, Any]] = {
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "Llama": {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}


@pytest.mark.parametrize(
    "layout, kind", [(n, k) for n in CLASSES for k in ("unigram", "bpe") if (n, k) != ("XLMRoberta", "bpe")]
)
def test_symbols_of_the_user_are_pieces_as_in_sentencepiece(layout: str, kind: str, tmp_path: Path) -> None:
    """Also in a model of kind BPE in T5's layout; no space beside a symbol is lost."""
    model = _spm(tmp_path, CLASSES[layout], model_type=kind, user_defined_symbols=SYMBOLS, **SPECIAL.get(layout, {}))
    settings = {"tokenizer_class": f"{layout}Tokenizer"} | ({"extra_ids": 5} if layout == "T5" else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    peer, ours = sentencepiece.SentencePieceProcessor(model_file=str(model)), Tokenizer.load(tmp_path)
    chance = random.Random(4)
    parts = [*SYMBOLS, " ", "  ", "o gato", "viu", ".", "[NAM", "<se", "ação"]
    for text in ["a <sep> b", "o gato<sep>viu", *("".join(chance.choices(parts, k=7)) for _ in range(60)), *TEXTS[:20]]:
        ids = peer.encode(text)
        assert [peer.piece_to_id(piece) for piece in ours.tokens(ours.encode(text))] == ids, text
        assert peer.unk_id() in ids or ours.decode(ours.encode(text)) == peer.decode(ids)


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_of_a_byte_level_tokenizer_is_its_text(special: bool, tmp_path: Path) -> None:
    """Theirs reads its letters as bytes."""
    peer = transformers.GPT2Tokenizer(**_byte_level(["<|endoftext|>"]))
    names = ["São", "<|início|>", "ção"]
    peer.add_tokens(names, special_tokens=special)
    peer.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    text = "o gato <|início|>São Paulo, coração e ação: ção 日本São"
    ids = peer(text)["input_ids"]
    assert len({*ids} & {*peer.convert_tokens_to_ids(names)}) == 3
    assert ours.decode(ids, skip_special=False) == text != peer.decode(ids)
    assert [ours.spelling(ours.token_id(name) or 0) for name in names] == [None if special else name for name in names]
    if not special:
        assert ours.encode(text) == ids and [word for word in ours.encode_with_offsets(text).words if "São" in word]
