"""Models that read words (C14, C15, G8): word2vec files and ELMo through `atento.load` and `embed`."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import CapabilityError, DataError, UsageError
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CharacterConfig, ELMoConfig
from atento.models.word_models import WordModel
from atento.networks import CBOW, ELMo
from atento.tasks.model_vectors import embed_words
from atento.text.characters import character_batch
from atento.text.word_vectors import Vectors, write_binary_vectors, write_text_vectors
from failing import fails

MATRIX = np.array([[1, 0, 2], [0, 4, 0], [3, 3, -1]], dtype=np.float32)
VECTORS = Vectors(["gato", "ação", ","], MATRIX)


@pytest.mark.parametrize("name", ["words.txt", "words.vec", "words.bin", "words.txt.gz"])
def test_c15_word2vec_files_load_and_pool(name: str, tmp_path: Path) -> None:
    """The mean over known words; a text of none gives zeros; the network holds the same numbers."""
    path = tmp_path / name
    plain = tmp_path / "plain"
    (write_binary_vectors if name == "words.bin" else write_text_vectors)(plain, VECTORS)
    content = plain.read_bytes()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    model = atento.load(path)
    assert isinstance(model.network, CBOW) and model.tokenizer is None
    np.testing.assert_array_equal(model.network.vectors.numpy(), MATRIX)
    found = model.embed(["gato, ação", "nada", "gato"])
    np.testing.assert_allclose(found, [MATRIX.mean(axis=0), [0, 0, 0], MATRIX[0]], atol=1e-7)
    np.testing.assert_allclose(model.embed("ação", normalize=True), [0, 1, 0])
    assert model.similarity("gato", "gato ,") == pytest.approx(
        float(MATRIX[0] @ (MATRIX[0] + MATRIX[2])) / np.linalg.norm(MATRIX[0]) / np.linalg.norm(MATRIX[0] + MATRIX[2])
    )
    assert [word for word, _ in model.words.vectors.neighbours("gato", 2)] == [",", "ação"]


def test_c14_c15_a_damaged_file_is_named_saving_is_refused_and_elmo_pools_words_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("2 3\ngato 1 2 3\n", encoding="utf-8")
    fails(DataError, r"bad\.txt", atento.load, tmp_path / "bad.txt")
    write_text_vectors(tmp_path / "good.txt", VECTORS)
    fails(CapabilityError, "word models stay as published", atento.load(tmp_path / "good.txt").save, tmp_path / "out")
    # It said float32 in any precision, and int8 was taken in silence
    write_text_vectors(tmp_path / "words.txt", VECTORS)
    for asked, known in (("float32", "float32"), ("float64", "float64"), ("auto", "float32")):
        model = atento.load(tmp_path / "words.txt", precision=asked)
        assert model.precision == known == str(next(model.network.parameters()).dtype).removeprefix("torch.")
    with pytest.raises(CapabilityError, match="int8 is for Transformers that write and for encoders"):
        atento.load(tmp_path / "words.txt", precision="int8")
    # By hand: the mix at the places of the words; the same word has another vector in another sentence
    network = elmo()
    found = embed_words(WordModel(network), ["o gato pulou", "", "gato"], EmbeddingConfig())
    ids, _ = character_batch([["o", "gato", "pulou"]])
    with torch.no_grad():
        hidden = network(torch.from_numpy(ids)).hidden[0]
        lowest = network.layers(torch.from_numpy(ids))[0, 0]
    np.testing.assert_allclose(found[0], hidden[1:4].mean(dim=0).numpy(), atol=1e-6)
    assert not found[1].any() and np.abs(found[2]).max() > 0
    below = embed_words(WordModel(network), ["o gato pulou", "gato"], EmbeddingConfig(layer=0))
    np.testing.assert_allclose(below[0], lowest[1:4].mean(dim=0).numpy(), atol=1e-6)
    np.testing.assert_allclose(below[1], lowest[2].numpy(), atol=1e-6)
    other = embed_words(WordModel(network), ["gato", "gato alto"], EmbeddingConfig(pooling="first"))
    assert np.abs(other[0] - other[1]).max() > 1e-6
    with pytest.raises(UsageError, match="`layer` must lie between -3 and 2: got 3"):
        embed_words(WordModel(elmo()), ["gato"], EmbeddingConfig(layer=3))
    fails(UsageError, "unknown pooling 'sum'", embed_words, WordModel(elmo()), ["gato"], EmbeddingConfig(pooling="sum"))


def elmo() -> ELMo:
    of_characters = ELMoConfig(characters=CharacterConfig(d_char=4, filters=((1, 4), (2, 4)), n_highway=1), d_cell=8)
    config = NetworkConfig("elmo", d_model=6, n_heads=1, n_layers=2, dropout=0.0, elmo=of_characters)
    torch.manual_seed(0)
    return ELMo(config).double().eval()
