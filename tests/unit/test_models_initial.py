"""The model that training starts from: its learned positions become longer, its other weights stay."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atento.config.reading.loading import load_recipe
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.position_scheme import PositionConfig
from atento.errors import ModelError, RecipeError
from atento.models.initial_model import check_new_positions, fine_tuned, first_weights, lengthened
from atento.models.load import ModelFiles, check_weights
from atento.models.model_folder import network_config
from atento.networks import EncoderDecoder, build_network
from atento.runs.fine_tuning import with_inherited
from atento.text import Tokenizer


@pytest.mark.parametrize("longer", ["grown", "interpolated"])
def test_b2_a_learned_table_is_made_longer_when_training_starts_from_a_shorter_one(tmp_path: Path, longer: str) -> None:
    """Grown: the old rows, then new ones. Interpolated: old ends stay ends, and the middle row is the old middle."""
    learned = PositionConfig("learned", longer=longer, shift=1)  # type: ignore[arg-type]
    sizes: dict[str, Any] = {
        "vocab_size": 9,
        "d_model": 8,
        "d_ff": 8,
        "n_heads": 2,
        "n_layers": 1,
        "positions": learned,
    }
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b", "c", "d"])
    old = EncoderDecoder(NetworkConfig(max_len=3, tokenizer_fingerprint=tokenizer.fingerprint, **sizes))
    start = ModelFiles(tmp_path, {"model_type": "atento", "network": network_to_dict(old.config)}, old.state_dict())
    wanted = NetworkConfig(max_len=5, **sizes)
    config = fine_tuned(start, wanted, tokenizer)
    assert config.max_len == 5
    network = EncoderDecoder(config)
    with pytest.raises(ModelError, match=r"positions\.schemes\.0\.weight has shape \(4, 8\), config\.json says"):
        check_weights(network, start)
    ready = lengthened(start, network, wanted)
    check_weights(network, ready)
    name = "target_inputs.positions.schemes.0.weight"
    before, after = start.weights[name], ready.weights[name]
    assert before.shape == (4, 8) and after.shape == (6, 8)
    assert torch.equal(after[0], before[0])  # the row left free
    if longer == "grown":
        assert torch.equal(after[:4], before) and bool((after[4:] != 0).all())
    else:
        torch.testing.assert_close(after[[1, 3, 5]], before[[1, 2, 3]])
    assert all(torch.equal(ready.weights[other], start.weights[other]) for other in start.weights if "pos" not in other)


def test_b2_what_is_not_learned_stays_as_it_is(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b", "c", "d"])
    sizes: dict[str, Any] = {"vocab_size": 9, "d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1}
    old = EncoderDecoder(NetworkConfig(max_len=3, tokenizer_fingerprint=tokenizer.fingerprint, **sizes))
    start = ModelFiles(tmp_path, {"model_type": "atento", "network": network_to_dict(old.config)}, old.state_dict())
    wanted = NetworkConfig(max_len=5, **sizes)
    assert fine_tuned(start, wanted, tokenizer).max_len == 3
    assert lengthened(start, old, wanted).weights.keys() == start.weights.keys()


TABLES = [("encoder", "classification"), ("decoder", "language-modeling"), ("encoder-decoder", "translation")]


def started(folder: Path, architecture: str) -> tuple[ModelFiles, Tokenizer]:
    """A model of three learned positions, with its tokenizer."""
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b", "c", "d"])
    config = NetworkConfig(
        architecture=architecture,  # type: ignore[arg-type]
        vocab_size=9,
        d_model=8,
        d_ff=8,
        n_heads=2,
        n_layers=1,
        max_len=3,
        positions=PositionConfig("learned"),
        tokenizer_fingerprint=tokenizer.fingerprint,
    )
    network = build_network(config)
    files = ModelFiles(folder, {"model_type": "atento", "network": network_to_dict(config)}, network.state_dict())
    return files, tokenizer


def tuned(start: ModelFiles, tokenizer: Tokenizer, task: str, train: str, **network: Any) -> NetworkConfig:
    """The network of a recipe that fine-tunes the model."""
    columns = {"classification": {"text": 0, "label": 1}, "translation": {"source": 0, "target": 1}}
    data = {"train": {"file": "train.tsv", **columns.get(task, {"text": 0})}}
    sections = {"task": task, "data": data, "init": {"model": "model", "train": train}, "network": network}
    loaded = with_inherited(load_recipe(sections, environment={}), network_config(start.config, start.path))
    config = fine_tuned(start, loaded.recipe.network, tokenizer, loaded.recipe.init)
    check_new_positions(start, config, loaded.recipe)
    return config


@pytest.mark.parametrize(("architecture", "task"), TABLES)
@pytest.mark.parametrize("train", ["all", "head", "bias", "lora", "last-1"])
def test_f7_no_table_of_the_model_becomes_longer_unasked(
    tmp_path: Path, architecture: str, task: str, train: str
) -> None:
    """A table of 160 positions became 512, whose new random rows `head`, `lora`, `bias` and `last-N` never trained."""
    start, tokenizer = started(tmp_path, architecture)
    config = tuned(start, tokenizer, task, train)
    assert config.position_limit == 3
    fresh = {name: value.shape for name, value in build_network(config).state_dict().items()}
    assert fresh == {name: value.shape for name, value in start.weights.items()}


@pytest.mark.parametrize("train", ["all", "head", "bias", "lora", "last-1"])
def test_f7_new_rows_are_trained_or_refused(tmp_path: Path, train: str) -> None:
    start, tokenizer = started(tmp_path, "encoder")
    longer = {"positions": {"kind": "learned", "longer": "interpolated"}}
    assert tuned(start, tokenizer, "classification", train, max_len=5, **longer).max_len == 5
    if train == "all":
        assert tuned(start, tokenizer, "classification", train, max_len=5).max_len == 5
    else:
        with pytest.raises(RecipeError, match=rf"at most 3, .* with `init.train` {train}, .*: got 5; leave it out"):
            tuned(start, tokenizer, "classification", train, max_len=5)


@pytest.mark.parametrize(("architecture", "stack"), [("encoder", "stack"), ("encoder-decoder", "decoder")])
def test_fewer_layers_keep_their_relative_positions(tmp_path: Path, architecture: Any, stack: str) -> None:
    """Tables of each layer (Shaw) are numbered through the layers, so that what follows them has another number."""
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b"])
    schemes = PositionConfig("shaw", heads=(0,)), PositionConfig("shaw", heads=(1,)), PositionConfig("t5")
    config = NetworkConfig(
        architecture, vocab_size=7, d_model=8, d_ff=8, n_heads=2, n_layers=3, positions=schemes,
        tokenizer_fingerprint=tokenizer.fingerprint,
    )  # fmt: skip
    old = build_network(config)
    start = ModelFiles(tmp_path, {"model_type": "atento", "network": network_to_dict(config)}, old.state_dict())
    network = build_network(fine_tuned(start, config, tokenizer, InitConfig(model="x", layers=1)))
    first_weights(network, start, config)
    before, after = (one.get_submodule(f"{stack}.positions") for one in (old, network))
    assert len(before.relative) == 3 and len(after.relative) == 1
    pairs = [one.relative_schemes(0) for one in (before, after)]
    assert len(pairs[0]) == 3
    for ours, theirs in zip(*pairs):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
