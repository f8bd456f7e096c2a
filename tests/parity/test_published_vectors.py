"""Published files: ELMo's HDF5 weights against the published equations in loops; word2vec files against gensim."""

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from gensim import models
from numpy.typing import NDArray

import atento
from atento.base.errors import MissingPartError, ModelError
from atento.config.sections.recurrent import ELMoConfig
from atento.released.elmo_hdf5 import load_published, published_config
from atento.text import word_vectors
from atento.text.characters import character_batch
from failing import fails

Array = NDArray[np.float64]
FILTERS = [[1, 2], [2, 3], [4, 4]]
WIDTH, D_CHAR, D_MODEL, D_CELL, N_HIGHWAY, N_LAYERS = 9, 3, 5, 6, 2, 2
SENTENCES = [["I", "love", "NLP"], ["Ação", "!"], ["x" * 60]]


def options(**changes: Any) -> dict[str, Any]:
    """As the published file has them, smaller."""
    lstm = {"use_skip_connections": True, "projection_dim": D_MODEL, "cell_clip": 3, "proj_clip": 3, "dim": D_CELL}
    characters = {"activation": "relu", "filters": FILTERS, "n_highway": N_HIGHWAY, "embedding": {"dim": D_CHAR}}
    characters |= {"n_characters": 262, "max_characters_per_token": 50}
    tree: dict[str, Any] = {"lstm": {**lstm, "n_layers": N_LAYERS}, "char_cnn": characters}
    for place, value in changes.items():
        section, _, key = place.partition("__")
        tree[section] = {**tree[section], key: value} if key else value
    return tree


def weights(seed: int = 0, scale: float = 0.6) -> dict[str, Array]:
    """Random numbers under the published names."""
    chance = np.random.default_rng(seed)

    def random(*shape: int) -> Array:
        return chance.normal(size=shape) * scale

    found = {"char_embed": random(261, D_CHAR), "CNN_proj/W_proj": random(WIDTH, D_MODEL)}
    found["CNN_proj/b_proj"] = random(D_MODEL)
    for number, (size, count) in enumerate(FILTERS):
        found[f"CNN/W_cnn_{number}"] = random(1, size, D_CHAR, count)
        found[f"CNN/b_cnn_{number}"] = random(count)
    for number in range(N_HIGHWAY):
        for kind in ("carry", "transform"):
            found[f"CNN_high_{number}/W_{kind}"] = random(WIDTH, WIDTH)
            found[f"CNN_high_{number}/b_{kind}"] = random(WIDTH)
    for direction in (0, 1):
        for layer in range(N_LAYERS):
            place = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found[f"{place}/W_0"] = random(2 * D_MODEL, 4 * D_CELL)
            found[f"{place}/B"] = random(4 * D_CELL)
            found[f"{place}/W_P_0"] = random(D_CELL, D_MODEL)
    return found


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def word_vector(w: dict[str, Array], ids: NDArray[np.int64], activation: str) -> Array:
    """One word from its characters: every window of every filter, the largest, two highways, the projection."""
    x = np.concatenate([np.zeros((1, D_CHAR)), w["char_embed"]])[ids]  # ids are one higher than rows: 0 is no word
    found = []
    for number, (size, count) in enumerate(FILTERS):
        best = np.full(count, -np.inf)
        for start in range(len(x) - size + 1):
            total = w[f"CNN/b_cnn_{number}"].copy()
            for offset in range(size):
                total += x[start + offset] @ w[f"CNN/W_cnn_{number}"][0, offset]
            best = np.maximum(best, total)
        found.append(np.maximum(best, 0) if activation == "relu" else np.tanh(best))
    y = np.concatenate(found)
    for number in range(N_HIGHWAY):
        carry = sigmoid(y @ w[f"CNN_high_{number}/W_carry"] + w[f"CNN_high_{number}/b_carry"])
        transform = np.maximum(y @ w[f"CNN_high_{number}/W_transform"] + w[f"CNN_high_{number}/b_transform"], 0)
        y = carry * transform + (1 - carry) * y
    return y @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"]


def lstm(w: dict[str, Array], place: str, xs: list[Array], cell_clip: float, proj_clip: float) -> list[Array]:
    """TensorFlow's LSTMCell with num_proj, cell_clip, proj_clip and forget_bias 1, over one sentence."""
    cell, hidden = np.zeros(D_CELL), np.zeros(D_MODEL)
    found = []
    for x in xs:
        gates = np.concatenate([x, hidden]) @ w[f"{place}/W_0"] + w[f"{place}/B"]
        i, j, f, o = (gates[k * D_CELL : (k + 1) * D_CELL] for k in range(4))
        cell = np.clip(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j), -cell_clip, cell_clip)
        hidden = np.clip((sigmoid(o) * np.tanh(cell)) @ w[f"{place}/W_P_0"], -proj_clip, proj_clip)
        found.append(hidden)
    return found


def layers_of(w: dict[str, Array], tree: dict[str, Any], words: NDArray[np.int64]) -> list[Array]:
    """Every layer of one sentence, forward beside backward, (L,2K)."""
    part = tree["lstm"]
    xs = [word_vector(w, ids, tree["char_cnn"]["activation"]) for ids in words]
    both: list[list[Array]] = []
    for direction in (0, 1):
        below = xs[::-1] if direction else xs
        stack = [below]
        for layer in range(N_LAYERS):
            place = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            out = lstm(w, place, below, part["cell_clip"] or np.inf, part["proj_clip"] or np.inf)
            if layer > 0 and part["use_skip_connections"]:
                out = [a + b for a, b in zip(out, below)]
            stack.append(out)
            below = out
        both.append([np.stack(one[::-1] if direction else one) for one in stack])
    return [np.concatenate(pair, axis=-1) for pair in zip(*both)]


def saved(folder: Path, tree: dict[str, Any], arrays: dict[str, Array], dtype: str) -> tuple[Path, Path]:
    (folder / "options.json").write_text(json.dumps(tree), encoding="utf-8")
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array.astype(dtype))
    return folder / "options.json", folder / "weights.hdf5"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lstm__cell_clip": 0.4, "lstm__proj_clip": 0.25},  # both bounds are met
        {"lstm__use_skip_connections": False, "lstm__cell_clip": None, "lstm__proj_clip": 0},
        {"char_cnn__activation": "tanh"},
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_c14_the_published_layout_gives_the_published_equations(
    changes: Any, dtype: str, tolerance: float, tmp_path: Path
) -> None:
    tree, arrays = options(**changes), weights()
    network = load_published(*saved(tmp_path, tree, arrays, dtype), dtype=getattr(torch, dtype))
    assert not network.training and "vocabulary" not in network.heads
    ids, real = character_batch(SENTENCES)
    with torch.no_grad():
        found = network.layers(torch.from_numpy(ids), token_mask=torch.from_numpy(real)).numpy()
        hidden = network(torch.from_numpy(ids), token_mask=torch.from_numpy(real)).hidden.numpy()
    for row, mask in enumerate(real):
        stored = {name: array.astype(dtype).astype(np.float64) for name, array in arrays.items()}
        expected = layers_of(stored, tree, ids[row, mask])
        for layer, one in enumerate(expected):
            assert np.abs(found[layer, row, mask] - one).max() < tolerance, (row, layer)
        assert np.abs(hidden[row, mask] - sum(expected) / 3).max() < tolerance


def test_c14_the_published_options_are_the_default(tmp_path: Path) -> None:
    """`elmo_2x4096_512_2048cnn_2xhighway_options.json`, by its published values."""
    filters = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
    tree = options(lstm__dim=4096, lstm__projection_dim=512, char_cnn__filters=filters, char_cnn__embedding={"dim": 16})
    path = tmp_path / "options.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    config = published_config(path)
    assert config.elmo == ELMoConfig() and (config.d_model, config.n_layers, config.dropout) == (512, 2, 0.0)
    assert config.architecture == "elmo" and config.vocab_size == 0
    path.write_text(json.dumps({**tree, "dropout": 0.1}), encoding="utf-8")
    assert published_config(path).dropout == 0.1


def test_c14_an_output_matrix_may_be_added_for_training_on(tmp_path: Path) -> None:
    network = load_published(*saved(tmp_path, options(), weights(), "float32"), vocab_size=11)
    loss = network.loss(torch.from_numpy(character_batch(SENTENCES[:1])[0]), torch.tensor([[0, 4, 5, 6, 1]]))
    assert loss.targets == 8 and torch.isfinite(loss.total)


def test_c14_filters_as_wide_as_the_network_need_no_projection(tmp_path: Path) -> None:
    """The published program then leaves the projection out of the file."""
    tree = options(char_cnn__filters=[[1, 2], [2, 3]])
    arrays = {name: array for name, array in weights().items() if "CNN_proj" not in name and "cnn_2" not in name}
    for name in list(arrays):
        if "CNN_high" in name:
            arrays[name] = arrays[name][..., :5] if arrays[name].ndim == 1 else arrays[name][:5, :5]
    network = load_published(*saved(tmp_path, tree, arrays, "float32"))
    assert network.characters is not None and network.characters.projection is None


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("CNN/b_cnn_1", None, r"has no CNN/b_cnn_1"),
        ("char_embed", np.zeros((262, 3)), r"char_embed must have the shape \(261, 3\): got \(262, 3\)"),
        ("RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B", np.full(24, np.nan), r"Cell1/LSTMCell/B is not finite"),
        ("CNN_proj/b_proj", np.zeros(5, dtype=np.int64), r"CNN_proj/b_proj must be an array of floating-point"),
        ("RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B", np.zeros(24), r"options.json does not describe: RNN_0.*Cell2"),
    ],
)
def test_weights_that_do_not_fit_are_named(name: str, change: Any, message: str, tmp_path: Path) -> None:
    files = saved(tmp_path, options(), weights(), "float64")
    with h5py.File(files[1], "a") as file:
        if name in file:
            del file[name]
        if change is not None:
            file.create_dataset(name, data=change)
    fails(ModelError, message, load_published, *files)


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    """A weight file may point to others; none is followed."""
    files = saved(tmp_path, options(), weights(), "float64")
    other = tmp_path / "other.hdf5"
    files[1].rename(other)
    place = "CNN_proj/b_proj"
    for link in (h5py.ExternalLink(str(other), place), h5py.SoftLink("/CNN/b_cnn_0")):
        saved(tmp_path, options(), weights(), "float64")
        with h5py.File(files[1], "a") as file:
            del file[place]
            file[place] = link
        fails(ModelError, r"CNN_proj/b_proj must be in the file .*: got a link", load_published, *files)
    (tmp_path / "raw").write_bytes(bytes(40))
    saved(tmp_path, options(), weights(), "float64")
    with h5py.File(files[1], "a") as file:
        del file[place]
        file.create_dataset(place, (5,), dtype="f8", external=[(str(tmp_path / "raw"), 0, 40)])
    fails(ModelError, r"CNN_proj/b_proj must be in the file .*: got a reference", load_published, *files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lstm__dim": None}, r"lstm.dim must be an integer: got None"),
        ({"lstm__dim": True}, r"lstm.dim must be an integer: got True"),
        ({"lstm__dim": 0}, r"`d_cell` must be at least 1: got 0"),
        ({"lstm": []}, r"lstm.projection_dim must be an integer: got None"),
        ({"lstm__cell_clip": "3"}, r"lstm.cell_clip must be a number: got '3'"),
        ({"char_cnn__filters": [[1, 2, 3]]}, r"char_cnn.filters must be pairs of width and count: got \[\[1, 2, 3\]\]"),
        ({"char_cnn__n_characters": 300}, r"char_cnn.n_characters must be 262: got 300"),
        ({"char_cnn__activation": "gelu"}, r"`activation` cannot be 'gelu'"),
        ({"bidirectional": False}, r"bidirectional must be true: got false"),
    ],
)
def test_options_that_cannot_be_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options(**changes)), encoding="utf-8")
    fails(ModelError, rf"options.json: {message}", published_config, path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    files = saved(tmp_path, options(), weights(), "float32")
    whole = files[1].read_bytes()
    for data in (b"", b"not HDF5", whole[: len(whole) // 2], whole[:-1]):
        files[1].write_bytes(data)
        fails(ModelError, r"weights.hdf5: is not an HDF5 file that can be read", load_published, *files)
    fails(ModelError, r"none.hdf5: is not an HDF5 file", load_published, files[0], tmp_path / "none.hdf5")
    path = tmp_path / "options.json"
    for data in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(data)
        fails(ModelError, r"options.json: is not JSON", published_config, path)
    path.write_bytes(b" " * (1 << 21))
    fails(ModelError, "and 1,048,576 are the most", published_config, path)
    fails(ModelError, r"none.json: cannot be read: No such", published_config, tmp_path / "none.json")


def test_without_h5py_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    files = tmp_path / "options.json", tmp_path / "weights.hdf5"
    fails(MissingPartError, r"need h5py: pip install -e '\.\[elmo\]'", load_published, *files)


@pytest.mark.parametrize("binary", [False, True])
def test_c15_gensim_reads_what_we_write_and_we_what_it_writes(binary: bool, tmp_path: Path) -> None:
    matrix = np.random.default_rng(7).normal(size=(40, 8)).astype(np.float32)
    matrix[0] = np.frombuffer(b"\n " * 16, dtype="<f4")  # bytes that look like the ends of words and rows
    vectors = word_vectors.Vectors([f"palavra-{number}-ç" for number in range(40)], matrix)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    kind = "binary" if binary else "text"
    getattr(word_vectors, f"write_{kind}_vectors")(ours, vectors)
    read = models.KeyedVectors.load_word2vec_format(str(ours), binary=binary)
    assert read.index_to_key == vectors.words and np.array_equal(read.vectors, vectors.matrix)
    read.save_word2vec_format(str(theirs), binary=binary)
    again = getattr(word_vectors, f"read_{kind}_vectors")(theirs)
    assert again.words == vectors.words and np.array_equal(again.matrix, vectors.matrix)
    for word in vectors.words[:5]:
        expected = read.most_similar(word, topn=6)
        found = vectors.neighbours(word, 6)
        assert [name for name, _ in found] == [name for name, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-5)


def test_c14_a_published_folder_is_loaded_by_its_files(tmp_path: Path) -> None:
    """`atento.load` finds the pair by the ends of their names, and reads what `load_published` reads."""
    files = saved(tmp_path, options(), weights(), "float32")
    wanted = load_published(*files)
    for file in files:
        file.rename(tmp_path / f"elmo_small_{file.name}")
    model = atento.load(tmp_path)
    found = model.network.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.state_dict().items())
    vectors = model.embed(["o gato pulou", "alto"])
    assert vectors.shape == (2, 2 * wanted.config.d_model) and float(abs(vectors[0] - vectors[1]).max()) > 0
    (tmp_path / "other_options.json").write_text("{}", encoding="utf-8")
    fails(ModelError, "holds several ELMo models", atento.load, tmp_path)
