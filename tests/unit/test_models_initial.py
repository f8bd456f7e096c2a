"""The model that training starts from: its learned positions become longer, its other weights stay."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atento.config.network import NetworkConfig, network_to_dict
from atento.config.positions import PositionConfig
from atento.errors import ModelError
from atento.models.initial import fine_tuned, lengthened
from atento.models.read import ModelFiles, check_weights
from atento.networks import EncoderDecoder
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
