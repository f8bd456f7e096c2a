"""Models that read words instead of pieces: published ELMo folders and word2vec files.

See docs/notes.md#c14, #c15.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from atento.config.sections.elmo_network import CBOWConfig
from atento.config.sections.network import NetworkConfig
from atento.errors import ModelError
from atento.networks import CBOW, ELMo, Network
from atento.released.elmo_hdf5 import load_published
from atento.text.tokenizer import Tokenizer
from atento.text.word_vectors import Vectors, read_binary_vectors, read_text_vectors

_TEXT, _BINARY = (".txt", ".vec"), (".bin",)


@dataclass(frozen=True)
class WordModel:
    """A network that reads words; of word vectors, also the words."""

    network: ELMo | CBOW
    vectors: Vectors | None = None


def read_word_model(path: Path) -> WordModel | None:
    """Read a published ELMo folder (`*options.json` beside `*weights.hdf5`), or a word2vec file: .bin (binary), .txt or
    .vec (text), each also with .gz.

    Returns:
        None for anything else.

    Raises:
        ModelError: an ELMo folder with several options or weights. DataError: a damaged file.
    """
    try:
        is_folder = path.is_dir()
    except OSError:  # too long for a path: `find_model` reports it
        return None
    if is_folder:
        options, weights = sorted(path.glob("*options.json")), sorted(path.glob("*weights.hdf5"))
        if not options or not weights:
            return None
        if len(options) > 1 or len(weights) > 1:
            raise ModelError(f"{path} holds several ELMo models: {', '.join(file.name for file in options + weights)}")
        return WordModel(load_published(options[0], weights[0]))
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if not path.is_file() or suffix not in _TEXT + _BINARY:
        return None
    vectors = (read_text_vectors if suffix in _TEXT else read_binary_vectors)(path)
    return WordModel(_network(vectors), vectors)


def _network(vectors: Vectors) -> CBOW:
    """The vectors as a network that shares their memory; the output matrix is not in the file and is zero."""
    count, width = vectors.matrix.shape
    with torch.device("meta"):
        network = CBOW(
            NetworkConfig(architecture="cbow", vocab_size=count, d_model=width, n_heads=1, cbow=CBOWConfig())
        )
    network.input_weight = nn.Parameter(torch.from_numpy(vectors.matrix))
    network.output_weight = nn.Parameter(torch.zeros(()).expand(count, width))
    return network


def trained_word_model(network: Network, tokenizer: Tokenizer | None) -> WordModel | None:
    """The network as a model of words, which are those of its tokenizer; None for any other network."""
    if not isinstance(network, ELMo | CBOW) or tokenizer is None:
        return None
    if isinstance(network, ELMo):
        return WordModel(network)
    matrix = network.vectors.float().cpu().numpy()
    return WordModel(network, Vectors(tokenizer.tokens(range(len(matrix))), matrix))
