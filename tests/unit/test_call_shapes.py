"""The call shapes of the lower layer: arguments that users give by position keep their places (docs/python.md)."""

import inspect
from importlib import metadata

import pytest

from atento.attention import attend, attention_weights, observe
from atento.decoding import MBR, Beam, Sample, generate
from atento_cli.commands.doctor import missing_packages


def test_arguments_have_their_places() -> None:
    for function, positional, named in (
        (Sample, "temperature top_k top_p min_p n", ""),
        (Beam, "width length_penalty n_best stopping", ""),
        (MBR, "utility candidates", ""),
        (generate, "network ids strategy", "max_new_tokens min_new_tokens eos_id token_mask prefix_ids trace seed"),
        (attend, "q k v", "mask bias value_bias scale dropout kernel"),
        (attention_weights, "q k", "mask bias scale rows"),
        (observe, "network layers heads rows", ""),
    ):
        parameters = inspect.signature(function).parameters
        assert list(parameters)[: len(positional.split())] == positional.split()
        assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in named.split())


def test_doctor_knows_every_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = set(metadata.metadata("atento").get_all("Provides-Extra") or ()) - {"dev"}
    assert set(missing_packages()) == extras
    version = metadata.version

    def without_matplotlib(name: str) -> str:
        if name == "matplotlib":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_matplotlib)
    assert missing_packages()["plot"] == ["matplotlib"]
