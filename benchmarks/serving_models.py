"""The models of the benchmark of the service: random weights, in folders that all its servers read."""

from pathlib import Path

import torch

from atento.config import presets
from atento.config.sections.network import NetworkConfig, changed
from atento.config.tables.tasks import task_with
from atento.model import Model
from atento.text import Tokenizer
from benchmarks.decoding_sides import random_network
from benchmarks.encoding import SIZES, natural_sentences
from benchmarks.encoding_sides import write_encoder
from benchmarks.labelling import write_labeller

MINILM = presets.bert_base(d_model=384, d_ff=1536, n_heads=12, n_layers=6)
BERT = SIZES["bert-base"]
GPT2 = presets.gpt2()
# the sizes of the recipe multi30k-en-de, with the order of norms and sums of Marian, which `transformers` has
TRANSLATOR = presets.marian(
    vocab_size=6000, d_model=192, d_ff=768, n_heads=4, n_layers=3, max_len=128, feed_forward={"activation": "relu"}
)
_TINY = {
    "encoder": SIZES["tiny"],
    "decoder": changed(GPT2, vocab_size=600, d_model=32, d_ff=64, n_heads=4, n_layers=2),
    "encoder-decoder": changed(TRANSLATOR, vocab_size=600, d_model=32, d_ff=64, n_layers=2),
}
_SPACE = "▁"
_LETTERS = str.maketrans("0123456789", "abcdefghij")  # our tokenizers of pieces separate digits
_NEVER = -1e4  # a bias that makes a token impossible


def tiny(config: NetworkConfig) -> NetworkConfig:
    """A small network of the same architecture."""
    return _TINY[config.architecture]


def texts_for(config: NetworkConfig, words: int) -> list[str]:
    """400 texts of words that the model knows; the median of their lengths is `words`."""
    if config.architecture == "encoder":
        return natural_sentences(400, config, median=words)
    texts = natural_sentences(400, changed(config, vocab_size=config.vocab_size - _other_pieces()), median=words)
    return [text.translate(_LETTERS) for text in texts]


def write_served(folder: Path, config: NetworkConfig, verb: str) -> None:
    """Write a model for a verb in the Hugging Face layout."""
    if verb == "embed":
        write_encoder(folder, config, [])
    elif verb == "classify":
        folder.mkdir()
        write_labeller(folder, config, verb)
    else:
        _write_writer(folder, config, verb)


@torch.no_grad()
def _write_writer(folder: Path, config: NetworkConfig, verb: str) -> None:
    """A model that writes words alone: it never ends an output, so each has as many tokens as it may."""
    others = _other_pieces()
    words = [f"{_SPACE}w{number}".translate(_LETTERS) for number in range(config.vocab_size - others)]
    tokenizer = Tokenizer.from_vocabulary("unigram", [_SPACE, *words], scores=[-20.0, *[0.0] * len(words)])
    ids = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    network = random_network(changed(config, ids=ids | {"start": tokenizer.bos_id}))
    weights = network.state_dict()
    if config.architecture == "decoder":
        weights["embedding.weight"][:others] = 0.0  # the largest logit is above 0
    else:
        weights["heads.vocabulary.output.bias"][:others] = _NEVER
        weights["embedding.weight"].mul_(4)  # against the positions: else the output is the same for every source
        for name, weight in weights.items():
            if ".cross_attention." in name and weight.dim() > 1:
                weight.mul_(8)
    Model(network, tokenizer, {"task": task_with(verb)}, None).save(folder, layout="huggingface")


def _other_pieces() -> int:
    """The number of pieces before the words: special tokens, bytes and the space."""
    return Tokenizer.from_vocabulary("unigram", [_SPACE], scores=[0.0]).vocab_size
