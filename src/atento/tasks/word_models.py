"""Models that read words and not pieces: published ELMo folders and word2vec files, loaded and used.

See docs/notes.md#c14, #c15, #g8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atento.config.elmo import CBOWConfig
from atento.config.network import NetworkConfig
from atento.errors import CapabilityError, ModelError, UsageError
from atento.networks import CBOW, ELMo, Network
from atento.networks.recurrent.elmo_hdf5 import load_published
from atento.tasks.embedding import POOLINGS, EmbeddingConfig
from atento.tasks.grouping import by_length
from atento.text import word_spans
from atento.text.characters import MAX_CHARACTERS, character_batch
from atento.text.tokenizer import Tokenizer
from atento.text.vectors import Vectors, read_binary_vectors, read_text_vectors

_TEXT, _BINARY = (".txt", ".vec"), (".bin",)


@dataclass(frozen=True)
class WordModel:
    """A network that reads words, and, of word vectors, the words."""

    network: ELMo | CBOW
    vectors: Vectors | None = None


def read_word_model(path: Path) -> WordModel | None:
    """A published ELMo folder (`*options.json` beside `*weights.hdf5`), or a word2vec file (.bin binary, .txt or .vec
    text, each also .gz); None for anything else.

    Raises:
        ModelError: an ELMo folder with several options or weights. DataError: a damaged file.
    """
    try:
        inside = path.is_dir()
    except OSError:  # too long for a path: `locate` says so
        return None
    if inside:
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
    """The vectors as a network, not copied; what its words predict was not in the file, so it is zero."""
    count, width = vectors.matrix.shape
    with torch.device("meta"):
        network = CBOW(
            NetworkConfig(architecture="cbow", vocab_size=count, d_model=width, n_heads=1, cbow=CBOWConfig())
        )
    network.input_weight = nn.Parameter(torch.from_numpy(vectors.matrix))
    network.output_weight = nn.Parameter(torch.zeros(()).expand(count, width))
    return network


def trained_word_model(network: Network, tokenizer: Tokenizer | None) -> WordModel | None:
    """A model of words that we trained, its words those of its tokenizer; None for any other network."""
    if not isinstance(network, ELMo | CBOW) or tokenizer is None:
        return None
    if isinstance(network, ELMo):
        return WordModel(network)
    matrix = network.vectors.float().cpu().numpy()
    return WordModel(network, Vectors(tokenizer.tokens(range(len(matrix))), matrix))


def embed_words(
    model: WordModel, texts: Sequence[str], config: EmbeddingConfig, batch_tokens: int = 4096
) -> NDArray[np.float32]:
    """texts -> vectors (N,D), float32, pooled over each text's words; a text of no (known) word gives zeros.

    ELMo: layer -1 is the mix of all layers, 0 the words' own vectors; sentence marks are read and not pooled.

    Raises:
        UsageError: no such layer or pooling.
    """
    if config.pooling not in POOLINGS:
        raise UsageError(f"`pooling` must be one of {', '.join(POOLINGS)}: got {config.pooling!r}")
    words = [[text[start:end] for start, end in word_spans(text)] for text in texts]
    if model.vectors is not None:
        return _known(model.vectors, words, config)
    network = model.network
    assert isinstance(network, ELMo)
    if network.characters is None:
        raise CapabilityError("an ELMo that reads words by id, not by their characters, embeds no text")
    settings = network.config.elmo.characters if network.config.elmo is not None else None
    longest = MAX_CHARACTERS if settings is None else settings.max_characters
    device = next(network.parameters()).device
    found = np.zeros((len(texts), 2 * network.config.d_model), dtype=np.float32)
    for rows in by_length([len(row) for row in words], batch_tokens, extra=2):
        ids, real = character_batch([words[row] for row in rows], max_characters=longest)
        characters, token_mask = torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device)
        with torch.inference_mode():
            hidden = _layer(network, characters, token_mask, config.layer)[:, 1:]
        ends = token_mask.clone()
        ends[torch.arange(len(rows)), token_mask.sum(dim=1) - 1] = False  # the mark at the end
        pooled = POOLINGS[config.pooling](hidden.float(), ends[:, 1:])
        found[rows] = (nn.functional.normalize(pooled, dim=-1) if config.normalize else pooled).cpu().numpy()
    return found


def _layer(network: ELMo, ids: torch.Tensor, token_mask: torch.Tensor, layer: int) -> torch.Tensor:
    if layer == -1:
        mixed: torch.Tensor = network(ids, token_mask=token_mask).hidden
        return mixed
    layers = network.layers(ids, token_mask=token_mask)
    if not -len(layers) <= layer < len(layers):
        raise UsageError(f"`layer` must lie between {-len(layers)} and {len(layers) - 1}: got {layer}")
    return layers[layer]


def _known(vectors: Vectors, words: list[list[str]], config: EmbeddingConfig) -> NDArray[np.float32]:
    """Word vectors pooled over the words that have one."""
    found = np.zeros((len(words), vectors.matrix.shape[1]), dtype=np.float32)
    for row, text in enumerate(words):
        known = [vectors.index[word] for word in text if word in vectors]
        if known:
            hidden = torch.from_numpy(vectors.matrix[known])[None]
            pooled = POOLINGS[config.pooling](hidden, torch.ones(1, len(known), dtype=torch.bool))
            found[row] = (nn.functional.normalize(pooled, dim=-1) if config.normalize else pooled)[0].numpy()
    return found
