"""sentence-transformers folders (G8): how they pool is read, and what is not built is refused."""

import json
from pathlib import Path

from atento.base.errors import ModelError
from atento.released.sentence_transformers import SentenceModules, sentence_folder
from failing import fails


def modules(folder: Path, *kinds: str, **pooling: object) -> Path:
    """A sentence-transformers folder without its network."""
    paths = [f"{n}_{kind}" if n else "" for n, kind in enumerate(kinds)]
    rows = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in zip(kinds, paths)]
    folder.joinpath("modules.json").write_text(json.dumps(rows))
    for row in rows[1:]:
        folder.joinpath(row["path"]).mkdir()
    if "Pooling" in kinds:
        folder.joinpath(f"{kinds.index('Pooling')}_Pooling", "config.json").write_text(json.dumps(pooling))
    return folder


def test_g8_a_sentence_transformers_folder_says_how_it_pools(tmp_path: Path) -> None:
    folder = modules(tmp_path, "Transformer", "Pooling", "Normalize", pooling_mode_cls_token=True)
    folder.joinpath("sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    expected = SentenceModules(folder, {"pooling": "first", "normalize": True, "max_len": 128})
    assert sentence_folder(folder) == expected and sentence_folder(tmp_path / "1_Pooling") is None


def test_g8_a_module_or_pooling_that_is_not_built_is_refused(tmp_path: Path) -> None:
    folder = modules(tmp_path, "Transformer", "Pooling", pooling_mode_median_tokens=True)
    fails(ModelError, "and no others: got pooling_mode_median_tokens", sentence_folder, folder)
    fails(ModelError, r"\.CNN' is not built", sentence_folder, modules(tmp_path, "Transformer", "CNN"))
    tmp_path.joinpath("modules.json").write_text("{")
    fails(ModelError, r"modules\.json is damaged", sentence_folder, tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    (tmp_path / "modules.json").write_text('[{"type": "a.Pooling", "path": ""}]', encoding="utf-8")
    fails(ModelError, r"config\.json must hold one JSON object: got list", sentence_folder, tmp_path)
