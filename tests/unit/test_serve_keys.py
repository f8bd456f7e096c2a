"""The file of API keys: what is wrong in a line is said with its place, and never with the key."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from atento.base.errors import DataError
from atento_serve.http.clients import read_keys


@pytest.mark.parametrize("option", ["per-minute=0", "per-minute=²", "per-minute=", "in-flight=-1", "a-day=3"])
def test_a_limit_is_a_number_above_0(tmp_path: Path, option: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"small  key-of-small  {option}\n", encoding="utf-8")
    with pytest.raises(DataError, match="keys:1: a limit must be per-minute=N or in-flight=N") as raised:
        read_keys(file)
    assert "key-of-small" not in str(raised.value)
