"""Portuguese models as the hub has them: the same files and kinds of tokenizers, tiny, with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from released_folders import _SMALL, _T5, FAIRSEQ, TEXTS, _byte_level, _spm

_LONG = _SMALL | {"max_position_embeddings": 514}
_BERT_FRONT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _put(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _bertimbau(folder: Path) -> Any:
    """`vocab.txt` alone, cased; the weights are a pytorch_model.bin."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=_BERT_FRONT, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    vocabulary = backend.get_vocab()
    _put(folder, "vocab.txt", "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__)))
    _put(folder, "tokenizer_config.json", {"do_lower_case": False, "max_len": 512})
    _put(folder, "added_tokens.json", {})
    names = {f"{part[1:-1].lower()}_token": part for part in _BERT_FRONT}
    _put(folder, "special_tokens_map.json", names)
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(vocabulary), **_LONG))


def _albertina(folder: Path) -> Any:
    """DeBERTa v2 with a convolution; the mask stands behind the pieces of `spm.model`."""
    ids = {"pad_id": 0, "pad_piece": "[PAD]", "bos_id": 1, "bos_piece": "[CLS]", "eos_id": 2, "eos_piece": "[SEP]"}
    model = _spm(folder, "spm", unk_id=3, unk_piece="[UNK]", **ids)
    size = sentencepiece.SentencePieceProcessor(model_file=str(model)).get_piece_size()
    _put(folder, "added_tokens.json", {"[MASK]": size})
    _put(
        folder,
        "tokenizer_config.json",
        {"do_lower_case": False, "vocab_type": "spm", "tokenizer_class": "DebertaV2Tokenizer", "sp_model_kwargs": {}},
    )
    settings: dict[str, Any] = {
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    }
    return hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(vocab_size=size + 20, **_LONG, **settings))


def _ptt5(folder: Path, version: int = 1) -> Any:
    model = _spm(folder, "spiece", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    size = sentencepiece.SentencePieceProcessor(model_file=str(model)).get_piece_size() + 100
    later: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    if version == 2:  # without a `tokenizer_config.json` in the first
        _put(folder, "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "legacy": False})
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=size + 28, **_T5, **(later if version == 2 else {})))


def _tucano(folder: Path) -> Any:
    """Llama with a `tokenizer.json` of BPE over characters that falls back to bytes."""
    front = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=front, show_progress=False, max_token_length=8)
    backend.train_from_iterator(TEXTS, trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    peer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    peer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    _put(folder, "tokenizer_config.json", settings | {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True})
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    config = hf.LlamaConfig(vocab_size=len(peer), num_key_value_heads=1, **_SMALL | {"max_position_embeddings": 2048})
    for name, value in ids.items():
        setattr(config, name, value)
    return hf.LlamaForCausalLM(config).to(torch.bfloat16)


def _moberto(folder: Path) -> Any:
    """ModernBERT with a `tokenizer.json` of BPE over bytes."""
    files = _byte_level(_BERT_FRONT)
    backend = tokenizers.Tokenizer(models.BPE(vocab=files["vocab"], merges=files["merges"]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    cls, sep = (files["vocab"][name] for name in ("[CLS]", "[SEP]"))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )
    names = {f"{part[1:-1].lower()}_token": part for part in _BERT_FRONT}
    hf.PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    ids = {f"{name}_token_id": files["vocab"][f"[{name.upper()}]"] for name in ("pad", "cls", "sep")}
    config = hf.ModernBertConfig(
        vocab_size=512,
        bos_token_id=cls,
        eos_token_id=sep,
        **ids,
        **_SMALL | {"max_position_embeddings": 8192, "num_hidden_layers": 4},
    )
    return hf.ModernBertForMaskedLM(config)


def _e5(folder: Path) -> Any:
    """BERT with the tokenizer of XLM-R, in the layout of sentence-transformers."""
    model = _spm(folder, "sentencepiece.bpe")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, processor.get_piece_size())]
    vocabulary = [*((name, 0.0) for name in FAIRSEQ[:4]), *pieces, ("<mask>", 0.0)]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=3))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    peer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": piece for role, piece in names.items()}
    )
    peer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    _put(folder, "tokenizer_config.json", settings | {"tokenizer_class": "XLMRobertaTokenizer"})
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    _put(folder, "modules.json", modules)
    _put(folder, "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    _put(folder, "1_Pooling/config.json", {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    return hf.BertModel(
        hf.BertConfig(vocab_size=len(peer), pad_token_id=0, **_SMALL | {"max_position_embeddings": 512})
    )


PORTUGUESE: dict[str, Callable[[Path], Any]] = {
    "neuralmind/bert-base-portuguese-cased": _bertimbau,
    "PORTULAN/albertina-900m-portuguese-ptbr-encoder": _albertina,
    "unicamp-dl/ptt5-base-portuguese-vocab": _ptt5,
    "unicamp-dl/ptt5-v2-base": lambda folder: _ptt5(folder, version=2),
    "TucanoBR/Tucano-160m": _tucano,
    "Tropic-AI/moBERTo": _moberto,
    "intfloat/multilingual-e5-small": _e5,
}
"""Hub name -> what writes the tokenizer of a folder like it and returns its network."""


@torch.no_grad()
def write_portuguese(name: str, folder: Path, seed: int = 0) -> Path:
    """A folder like that model's; BERTimbau has a pytorch_model.bin and no safetensors, as on the hub."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    network = PORTUGUESE[name](folder)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.5)
    network.save_pretrained(folder)
    if name.startswith("neuralmind/"):
        torch.save(network.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder
