"""Memory settings of training: the caches of compiled products, and what the environment says of them."""

import os

import pytest

from atento.training.allocator import keep_programs

SIZES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "2048", "LRU_CACHE_CAPACITY": "8"}


def test_caches_have_their_sizes_and_the_environment_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    keep_programs()
    assert {name: os.environ[name] for name in SIZES} == SIZES
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "64")
    keep_programs()
    assert os.environ["LRU_CACHE_CAPACITY"] == "64"
