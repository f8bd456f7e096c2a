"""The names of the models of a service."""

from pathlib import Path

import pytest

from atento_serve.command import _models


def test_a_model_is_named_as_its_folder_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link has its own name; `.` and `..` that of the folder that they lead to."""
    (tmp_path / "models" / "minilm-l6").mkdir(parents=True)
    (tmp_path / "minilm").symlink_to(tmp_path / "models" / "minilm-l6")
    monkeypatch.chdir(tmp_path / "models")
    words = ("../minilm", "minilm-l6/", ".", "minilm-l6/..")
    for word, name in zip(words, ("minilm", "minilm-l6", "models", "models")):
        assert list(_models([word], [], {})) == [name]
    assert list(_models(["en-pt=minilm-l6", "owner/name"], [], {})) == ["en-pt", "owner/name"]
