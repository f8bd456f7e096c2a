"""Portuguese models as the hub has them: the same files and kinds of tokenizers, tiny, with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from released_folders import _SMALL, _T5, FRONT, _byte_level, _scored, _spm, randomised, trained, wordpiece

_LONG = _SMALL | {"max_position_embeddings": 514}
_BERT_FRONT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_BERT_TOKENS = {f"{part[1:-1].lower()}_token": part for part in _BERT_FRONT}


def _put(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _name(folder: Path, tokenizer_class: str, **keys: Any) -> None:
    """Write the class of a tokenizer, as older versions had it."""
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    _put(folder, "tokenizer_config.json", settings | {"tokenizer_class": tokenizer_class} | keys)


def _bertimbau(folder: Path) -> Any:
    """`vocab.txt` alone, cased; the weights are a pytorch_model.bin."""
    vocabulary = wordpiece(_BERT_FRONT, normalizers.BertNormalizer(lowercase=False))
    _put(folder, "vocab.txt", "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__)))
    _put(folder, "tokenizer_config.json", {"do_lower_case": False, "max_len": 512})
    _put(folder, "added_tokens.json", {})
    _put(folder, "special_tokens_map.json", _BERT_TOKENS)
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(vocabulary), **_LONG))


def _albertina(folder: Path) -> Any:
    """DeBERTa v2 with a convolution; the mask stands behind the pieces of `spm.model`."""
    ids = {"pad_id": 0, "pad_piece": "[PAD]", "bos_id": 1, "bos_piece": "[CLS]", "eos_id": 2, "eos_piece": "[SEP]"}
    size = len(_scored(_spm(folder, "spm", unk_id=3, unk_piece="[UNK]", **ids)))
    _put(folder, "added_tokens.json", {"[MASK]": size})
    read = {"do_lower_case": False, "vocab_type": "spm", "tokenizer_class": "DebertaV2Tokenizer", "sp_model_kwargs": {}}
    _put(folder, "tokenizer_config.json", read)
    settings: dict[str, Any] = {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"]}
    settings |= {"relative_attention": True, "share_att_key": True, "position_biased_input": False}
    settings |= {"type_vocab_size": 0, "conv_kernel_size": 3, "conv_act": "gelu"}
    return hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(vocab_size=size + 20, **_LONG, **settings))


def _ptt5(folder: Path, version: int = 1) -> Any:
    size = len(_scored(_spm(folder, "spiece", pad_id=0, eos_id=1, unk_id=2, bos_id=-1))) + 100
    later: dict[str, Any] = {}
    if version == 2:  # without a `tokenizer_config.json` in the first
        later = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
        _put(folder, "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "legacy": False})
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=size + 28, **_T5, **later))


def _tucano(folder: Path) -> Any:
    """Llama with a `tokenizer.json` of BPE over characters that falls back to bytes."""
    front = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256))]
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=front, show_progress=False, max_token_length=8)
    backend = trained(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), trainer, normalizer=normalizer)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    peer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    peer.save_pretrained(folder)
    _name(folder, "LlamaTokenizer", add_bos_token=True)
    config = hf.LlamaConfig(vocab_size=len(peer), num_key_value_heads=1, **_SMALL | {"max_position_embeddings": 2048})
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 3
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
    hf.PreTrainedTokenizerFast(tokenizer_object=backend, **_BERT_TOKENS).save_pretrained(folder)
    ids = {f"{name}_token_id": files["vocab"][f"[{name.upper()}]"] for name in ("pad", "cls", "sep")}
    ids |= {"bos_token_id": cls, "eos_token_id": sep}
    sizes = _SMALL | {"max_position_embeddings": 8192, "num_hidden_layers": 4}
    return hf.ModernBertForMaskedLM(hf.ModernBertConfig(vocab_size=512, **ids, **sizes))


def _e5(folder: Path) -> Any:
    """BERT with the tokenizer of XLM-R, in the layout of sentence-transformers."""
    vocabulary = [*((name, 0.0) for name in FRONT), *_scored(_spm(folder, "sentencepiece.bpe"), 3), ("<mask>", 0.0)]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=3))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    roles = {f"{role}_token": piece for role, piece in names.items()}
    peer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
    peer.save_pretrained(folder)
    _name(folder, "XLMRobertaTokenizer")
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(("Transformer", "Pooling", "Normalize"))
    ]
    _put(folder, "modules.json", modules)
    _put(folder, "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    _put(folder, "1_Pooling/config.json", {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    sizes = _SMALL | {"max_position_embeddings": 512}
    return hf.BertModel(hf.BertConfig(vocab_size=len(peer), pad_token_id=0, **sizes))


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


def write_portuguese(name: str, folder: Path, seed: int = 0) -> Path:
    """A folder like that model's; BERTimbau has a pytorch_model.bin and no safetensors, as on the hub."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    network = randomised(PORTUGUESE[name](folder))
    network.save_pretrained(folder)
    if name.startswith("neuralmind/"):
        torch.save(network.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder
