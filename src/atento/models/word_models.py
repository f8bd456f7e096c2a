"""Models that read words instead of pieces: published ELMo folders and word2vec files.

See docs/notes.md#c14, #c15.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.models.model_folder import WORD_ENDINGS
from atento.networks import CBOW, ELMo
from atento.released.elmo_hdf5 import load_published
from atento.text.tokenizer import Tokenizer
from atento.text.word_vectors import Vectors, read_binary_vectors, read_text_vectors


@dataclass(frozen=True)
class WordModel:
    """A network that reads words; of word vectors, also the words."""

    network: ELMo | CBOW
    vectors: Vectors | None = None


def read_word_model(files: Sequence[Path]) -> WordModel:
    """The model of the files that `word_files` names. Raises DataError: a damaged one."""
    if len(files) == 2:
        return WordModel(load_published(*files))
    is_text = files[0].name.removesuffix(".gz").endswith(WORD_ENDINGS[:2])
    vectors = (read_text_vectors if is_text else read_binary_vectors)(files[0])
    count, width = vectors.matrix.shape
    with torch.device("meta"):
        config = NetworkConfig(architecture="cbow", vocab_size=count, d_model=width, n_heads=1, cbow=CBOWConfig())
        network = CBOW(config)
    network.input_weight = nn.Parameter(torch.from_numpy(vectors.matrix))
    network.output_weight = nn.Parameter(torch.zeros(()).expand(count, width))
    return WordModel(network, vectors)


def trained_word_model(network: ELMo | CBOW, tokenizer: Tokenizer | None) -> WordModel | None:
    """The network as a model of words, which are those of its tokenizer; None: it has none."""
    if tokenizer is None:
        return None
    if isinstance(network, ELMo):
        return WordModel(network)
    matrix = network.vectors.float().cpu().numpy()
    return WordModel(network, Vectors(tokenizer.tokens(range(len(matrix))), matrix))
