"""Loads the published ELMo files, `options.json` and `weights.hdf5` (Peters et al. 2018).

See docs/notes.md#c14.

The layout, K = projection_dim, C = dim of the cell, F = all filters:

    char_embed                                   (261, E)      without our row 0 (no word), which stays zero
    CNN/W_cnn_i  CNN/b_cnn_i                     (1, width, E, count)  (count,)
    CNN_high_j/W_carry b_carry W_transform b_transform         (F, F)  (F,)
    CNN_proj/W_proj b_proj                       (F, K)  (K,)
    RNN_d/RNN/MultiRNNCell/Cell{layer}/LSTMCell/ d = 0 forward, 1 backward
        W_0 (K + K, 4C)   B (4C,)   W_P_0 (C, K)

Matrices are (in, out). W_0 has the layer's input above the previous output; its columns are the gates i, j, f, o,
where j is the candidate, and the forget gate's bias lacks the 1 that TensorFlow adds while running. The softmax of the
language model was never published.
"""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atento.base.errors import MissingPartError, ModelError, RecipeError, install_hint
from atento.base.limits import read_plain_text
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import N_CHARACTERS, CharacterConfig, ELMoConfig
from atento.networks.recurrent.elmo import ELMo, ProjectedLSTM

_Read = Callable[..., Tensor]
_OPTIONS_LIMIT = 1 << 20  # bytes


def published_config(options: str | Path, *, vocab_size: int = 0) -> NetworkConfig:
    """The configuration that an `options.json` describes.

    Args:
        options: the file.
        vocab_size: words of an output matrix to train; the published files hold none.

    Raises:
        ModelError: not JSON, a key missing or of another type, or a model of another kind; names file and key.
    """
    path = Path(options)
    try:
        tree = json.loads(read_plain_text(path, _OPTIONS_LIMIT))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not JSON: {error}") from None

    def option(kind: type, *keys: str, default: object = ...) -> Any:
        """The value at those keys; the default, if there is one, for a missing value or null."""
        value = tree
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None and default is not ...:
            return default
        if (kind is bool) != isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ModelError(f"{path}: {'.'.join(keys)} must be {_KINDS[kind]}: got {repr(value)[:60]}")
        return value

    if not option(bool, "bidirectional", default=True):
        raise ModelError(f"{path}: bidirectional must be true: got false")
    n_characters = option(int, "char_cnn", "n_characters")
    if n_characters not in (N_CHARACTERS - 1, N_CHARACTERS):  # with and without the row for no word
        raise ModelError(f"{path}: char_cnn.n_characters must be {N_CHARACTERS}: got {n_characters}")
    filters = option(list, "char_cnn", "filters")
    if not all(isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair) for pair in filters):
        raise ModelError(f"{path}: char_cnn.filters must be pairs of width and count: got {repr(filters)[:60]}")
    d_model = option(int, "lstm", "projection_dim")
    try:
        characters = CharacterConfig(
            d_char=option(int, "char_cnn", "embedding", "dim"),
            filters=tuple((width, count) for width, count in filters),
            n_highway=option(int, "char_cnn", "n_highway", default=0),
            max_characters=option(int, "char_cnn", "max_characters_per_token"),
            activation=option(str, "char_cnn", "activation"),
            projection=sum(count for _, count in filters) != d_model,
        )
        elmo = ELMoConfig(
            characters=characters,
            d_cell=option(int, "lstm", "dim"),
            cell_clip=option(float, "lstm", "cell_clip", default=None) or None,  # 0 is none too
            projection_clip=option(float, "lstm", "proj_clip", default=None) or None,
            skip=option(bool, "lstm", "use_skip_connections", default=False),
        )
        return NetworkConfig(
            architecture="elmo",
            vocab_size=vocab_size,
            d_model=d_model,
            n_heads=1,
            n_layers=option(int, "lstm", "n_layers"),
            dropout=option(float, "dropout", default=0.0),
            elmo=elmo,
        )
    except RecipeError as error:
        raise ModelError(f"{path}: {error}") from None


_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", list: "a list"}


def load_published(
    options: str | Path, weights: str | Path, *, vocab_size: int = 0, dtype: torch.dtype = torch.float32
) -> ELMo:
    """The network of a published `options.json` and `weights.hdf5`, in evaluation mode, on the CPU.

    Args:
        options, weights: the two files.
        vocab_size: rows of a new output matrix, to train the language model; 0: none.
        dtype: of the network's weights.

    Raises:
        MissingPartError: h5py is not installed.
        ModelError: a weight is missing, of another shape, not finite, in another file, or not described by the options.
    """
    try:
        h5py = import_module("h5py")
    except ImportError:
        raise MissingPartError(f"ELMo's published weights need h5py: {install_hint('elmo')}") from None
    network = ELMo(published_config(options, vocab_size=vocab_size)).to(dtype)
    path = Path(weights)
    read_names: set[str] = set()

    def read(name: str, *shape: int) -> Tensor:
        read_names.add(name)
        part = file
        for key in name.split("/"):  # step by step: a link may lead into another file
            link = part.get(key, getlink=True) if isinstance(part, h5py.Group) else None
            if link is None:
                raise ModelError(f"{path}: has no {name}")
            if not isinstance(link, h5py.HardLink):
                raise ModelError(f"{path}: {name} must be in the file itself: got a link")
            part = part[key]
        if not isinstance(part, h5py.Dataset) or part.dtype.kind != "f":
            raise ModelError(f"{path}: {name} must be an array of floating-point numbers")
        if part.external or part.is_virtual:
            raise ModelError(f"{path}: {name} must be in the file itself: got a reference to another")
        if part.shape != shape:
            raise ModelError(f"{path}: {name} must have the shape {shape}: got {part.shape}")
        try:
            array = np.asarray(part[...])
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{path}: {name} cannot be read: {error}") from None
        if not np.isfinite(array).all():
            raise ModelError(f"{path}: {name} is not finite")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.result_type(array.dtype, np.float32))).to(dtype)

    try:
        with h5py.File(path, "r") as file:
            _fill(network, read)
            names_in_file: list[str] = []
            file.visititems(lambda name, part: names_in_file.append(name) if isinstance(part, h5py.Dataset) else None)
    except OSError as error:
        raise ModelError(f"{path}: is not an HDF5 file that can be read: {error}") from None
    surplus = sorted(set(names_in_file) - read_names)  # all weights are read, or the file is of another model
    if surplus:
        raise ModelError(f"{path}: holds weights that {options} does not describe: {', '.join(surplus[:3])}")
    return network.eval()


@torch.no_grad()
def _fill(network: ELMo, read: _Read) -> None:
    """Read every weight of the network from the file."""
    cnn = network.characters
    assert cnn is not None
    config, width, d_model = cnn.config, cnn.config.n_filters, network.config.d_model
    cnn.embedding[1:] = read("char_embed", N_CHARACTERS - 1, config.d_char)
    for number, (size, count) in enumerate(config.filters):
        kernel = read(f"CNN/W_cnn_{number}", 1, size, config.d_char, count)
        convolution = cnn.get_submodule(f"convolutions.{number}")
        convolution.get_parameter("weight").copy_(kernel.squeeze(0).permute(2, 1, 0))  # -> (count,E,width)
        convolution.get_parameter("bias").copy_(read(f"CNN/b_cnn_{number}", count))
    for number in range(config.n_highway):
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            linear = cnn.get_submodule(f"highways.{number}.{ours}")
            linear.get_parameter("weight").copy_(read(f"CNN_high_{number}/W_{theirs}", width, width).t())
            linear.get_parameter("bias").copy_(read(f"CNN_high_{number}/b_{theirs}", width))
    if cnn.projection is not None:
        cnn.projection.weight.copy_(read("CNN_proj/W_proj", width, d_model).t())
        cnn.projection.bias.copy_(read("CNN_proj/b_proj", d_model))
    for direction, layers in enumerate((network.forward_layers, network.backward_layers)):
        for number, layer in enumerate(layers):
            assert isinstance(layer, ProjectedLSTM)
            prefix, d_cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell", layer.d_cell
            gates = (read(f"{prefix}/W_0", 2 * d_model, 4 * d_cell), read(f"{prefix}/B", 4 * d_cell))
            columns = (one.split(d_cell, dim=-1) for one in gates)
            matrix, bias = (torch.cat([i, f, j, o], dim=-1) for i, j, f, o in columns)  # our order of the gates
            layer.input.weight.copy_(matrix[:d_model].t())
            layer.recurrent.weight.copy_(matrix[d_model:].t())
            layer.input.bias.copy_(bias)
            layer.input.bias[d_cell : 2 * d_cell] += 1.0  # TensorFlow's `forget_bias`
            layer.projection.weight.copy_(read(f"{prefix}/W_P_0", d_cell, d_model).t())
