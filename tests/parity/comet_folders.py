"""Folders as COMET writes them, of tiny networks at random weights."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml
from torch import Tensor, nn

from released_folders import _spm, randomised

WIDTH, LAYERS, POSITIONS = 16, 3, 42
HPARAMS: dict[str, Any] = {"encoder_model": "XLM-RoBERTa", "hidden_sizes": [24, 10], "activations": "Tanh"}
HPARAMS |= {"final_activation": None, "dropout": 0.1}
REGRESSION = HPARAMS | {"class_identifier": "regression_metric", "pool": "avg", "layer": "mix"}
UNIFIED = HPARAMS | {"class_identifier": "unified_metric", "sent_layer": "mix", "input_segments": ["mt", "src"]}
_WORDS = {"word_level_training": True, "word_layer": 2}
CASES = {
    "wmt22-comet-da": REGRESSION | {"layer_transformation": "sparsemax", "layer_norm": False},
    "sparsemax_patch": REGRESSION | {"layer_transformation": "sparsemax_patch", "layer_norm": True},
    "one layer": REGRESSION | {"layer": 2, "layer_norm": True, "pool": "max", "final_activation": "Sigmoid"},
    "wmt22-cometkiwi-da": UNIFIED | {"layer_transformation": "sparsemax", "layer_norm": True},
    "words": UNIFIED | {"layer_transformation": "softmax", "layer_norm": False, **_WORDS},
}


@torch.no_grad()
def write_comet(folder: Path, hparams: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """A folder as COMET writes it, the encoder's files beside; returns the encoder of transformers and the head."""
    folder.mkdir(parents=True)
    _spm(folder, "sentencepiece.bpe", model_type="unigram")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    read = hf.XLMRobertaTokenizerFast.from_pretrained(folder)
    torch.manual_seed(3)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 24}
    config = hf.XLMRobertaConfig(
        vocab_size=len(read), type_vocab_size=1, max_position_embeddings=POSITIONS + 2, layer_norm_eps=1e-5, **sizes
    )
    encoder = randomised(hf.XLMRobertaModel(config, add_pooling_layer=False).eval())
    widths = [WIDTH if hparams["class_identifier"] == "unified_metric" else 6 * WIDTH, *hparams["hidden_sizes"], 1]
    head: dict[str, Tensor] = {}
    for n, (inner, outer) in enumerate(pairwise(widths)):
        linear = nn.Linear(inner, outer)
        head |= {f"estimator.ff.{3 * n}.{name}": value.clone() for name, value in linear.state_dict().items()}
    if "mix" in (hparams.get("layer"), hparams.get("sent_layer")):
        head |= {f"layerwise_attention.scalar_parameters.{n}": torch.randn(1) for n in range(LAYERS + 1)}
        head["layerwise_attention.gamma"] = torch.tensor([1.3])
    if hparams.get("word_level_training"):
        head |= {"hidden2tag.weight": torch.randn(3, WIDTH), "hidden2tag.bias": torch.randn(3)}
    state = {f"encoder.model.{name}": value for name, value in encoder.state_dict().items()} | head
    checkpoint = {"state_dict": state, "hyper_parameters": hparams, "epoch": 1, "pytorch-lightning_version": "1.8.2"}
    (folder / "checkpoints").mkdir()
    torch.save(checkpoint, folder / "checkpoints" / "model.ckpt")
    (folder / "hparams.yaml").write_text(yaml.safe_dump(hparams | {"pretrained_model": str(folder)}))
    saved = config.to_dict() | {"architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta"}
    (folder / "config.json").write_text(json.dumps(saved))
    return encoder, head
