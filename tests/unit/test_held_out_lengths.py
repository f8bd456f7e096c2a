"""Held-out pairs beyond the learned positions of a network: left out or cut as in training, and counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atento import evaluate, load, train
from atento.base.errors import AtentoWarning, DataError
from failing import fails

SHORT = [("a b c", "c b a"), ("d e", "e d"), ("a c e g", "g e c a"), ("b", "b")]
LONG = [(" ".join("abcdefgh" * 3), "a"), ("a", " ".join("hgfedcba" * 3))]  # 24 tokens: too long a source, a target


def run_of(folder: Path, valid: list[tuple[str, str]], truncate: str = "none", positions: str = "learned") -> Any:
    """Train two updates on short pairs, with these pairs for validation and test."""
    network = {"architecture": "encoder-decoder", "d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1}
    recipe = {
        "task": "translation",
        "data": {"max_len": 64, "truncate": truncate},
        "tokenizer": {"kind": "word", "vocab_size": 50},
        "network": network | {"positions": positions, "max_len": 12},
        "training": {"steps": 2, "batch_tokens": 60, "precision": "float32", "warmup": 0, "validate_every": 1},
        "decoding": {"beam": 1},
    }
    return train(recipe, data={"train": SHORT * 4, "valid": valid, "test": valid}, out=folder, device="cpu")


@pytest.mark.parametrize(("truncate", "left_out"), [("none", 2), ("source", 1), ("both", 0)])
def test_pairs_beyond_the_positions_are_left_out_or_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], truncate: str, left_out: int
) -> None:
    """The run scores the pairs that training would take, as if the others were not there, and counts them."""
    run = run_of(tmp_path / "run", [SHORT[0], *LONG, SHORT[1]], truncate)
    said = capsys.readouterr().err
    counted = f"data.valid: {left_out} of 4 pairs left out: longer than the 12 positions of the network"
    assert (counted in said) == (counted.replace("valid", "test") in said) == (left_out > 0)
    cut = [(" ".join(source.split()[:11]), " ".join(target.split()[:11])) for source, target in LONG]
    kept = {"none": [], "source": cut[:1], "both": cut}[truncate]
    same = run_of(tmp_path / "same", [SHORT[0], *kept, SHORT[1]])
    assert run.test is not None and same.test is not None
    assert np.isclose(run.test["nll"], same.test["nll"], atol=1e-6)
    if truncate != "both":  # whose references are not cut
        assert run.test == pytest.approx(same.test)


def test_all_beyond_the_positions_are_refused_and_evaluate_leaves_them_out_too(tmp_path: Path, capsys: Any) -> None:
    fails(DataError, r"data\.valid: 2 of 2 pairs left out: .* 12 pos", run_of, tmp_path / "run", LONG)
    capsys.readouterr()
    run_of(tmp_path / "all", [SHORT[0], *LONG], positions="sinusoidal")
    assert "left out" not in capsys.readouterr().err
    run_of(tmp_path / "run", SHORT)
    model = load(tmp_path / "run", device="cpu")
    with pytest.warns(AtentoWarning, match="2 of 6 pairs left out: longer than the 12 positions of the network"):
        scores = evaluate(model, [*SHORT, *LONG], metrics="chrf")
    assert scores["chrf"].value == evaluate(model, SHORT, metrics="chrf")["chrf"].value
