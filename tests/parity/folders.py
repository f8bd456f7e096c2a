"""What tests of folders do again and again: change a JSON file, read a text as a model does."""

import json
from pathlib import Path
from typing import Any

import atento


def edited(file: Path, *gone: str, **changes: Any) -> dict[str, Any]:
    """Write a JSON file again with these keys, and without those that are `gone`; return what it holds."""
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    data = {key: value for key, value in (data | changes).items() if key not in gone}
    file.write_text(json.dumps(data), encoding="utf-8")
    return data


def ids_of(model: atento.Model, text: str) -> list[int]:
    """The ids of a text between the special tokens of its model."""
    assert model.tokenizer is not None
    return list(model.tokenizer.with_specials(model.tokenizer.encode(text))[0])
