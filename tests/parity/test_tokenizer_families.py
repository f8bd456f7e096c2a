"""Tokenizers of further families, as classes of `transformers` make and save them: the same ids of one text and two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra spm)")

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from atento.text.tokenizer import Tokenizer
from released_folders import TEXTS, _byte_level, _wordpiece

pytestmark = pytest.mark.parity
PLAIN = [*TEXTS[:12], "  a menina  viu o cão ", "ação, coração e avó!", "não <x> 12.5%", "", " ", "é"]


def unigram(front: list[str]) -> list[tuple[str, float]]:
    """The pieces of a small Unigram model behind those tokens."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    return [(text, 0.0) for text in front] + [(text, score) for text, score in pieces if text not in front]


def mpnet() -> Any:
    front = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = dict.fromkeys([*front, *_wordpiece().get_vocab(), "<mask>"])
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


@pytest.mark.parametrize("name", FAMILIES)
def test_their_tokenizer_json_gives_their_ids(name: str, tmp_path: Path) -> None:
    peer = FAMILIES[name]()
    peer.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    ids = [ours.with_specials(ours.encode(text))[0] for text in PLAIN]
    assert ids == [peer(text)["input_ids"] for text in PLAIN] and len(set(map(tuple, ids))) > 12
    pair = ours.with_specials(ours.encode("o gato"), ours.encode("a menina"))[0]
    assert pair == peer("o gato", "a menina")["input_ids"]
