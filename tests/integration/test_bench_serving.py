"""`atento bench serving`: real servers of small models, all of which answer every client with the same outputs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atento import train
from atento.base.errors import UsageError
from benchmarks.serving import WORKLOADS, measure_serving
from failing import fails

pytest.importorskip("fastapi", reason="fastapi is not installed (extra serve)")
pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra ctranslate2)")


@pytest.mark.slow
@pytest.mark.parametrize("name, servers", list(zip(WORKLOADS, (4, 4, 4, 6, 6, 8, 2), strict=True)))
def test_every_server_gives_every_client_the_same_outputs(name: str, servers: int) -> None:
    about, *rows = measure_serving(1.0, workloads=[name], clients=(1, 3), size="tiny")
    same, measured = [row for row in rows if "same" in row], [row for row in rows if "failed" in row]
    assert about["bench"] == "serving" and len({row["who"] for row in measured}) == servers
    assert len(measured) == 2 * servers and any("ratio" in row for row in rows)
    assert all(row["same"] > (0.98 if "float32" in row["who"] else 0.5) for row in same)
    assert all("pip install" in row["skipped"] for row in rows if "skipped" in row)
    for row in measured:
        assert row["failed"] == 0 and row["requests_per_second"] > 0.2 and 0 < row["p50_ms"] <= row["p99_ms"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"workloads": ["embed-minlm"]}, "unknown workload 'embed-minlm'.*embed-minilm"),
        ({"model": "runs/x"}, "--model and --sources together"),
        ({"workloads": ["embed-minilm"], "model": "runs/x", "sources": "a.en"}, "'embed-minilm' has its own model"),
        ({"model": "runs/x", "sources": "empty.en"}, "empty.en has no sentence"),
    ],
)
def test_an_unknown_workload_or_model_or_no_sentence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.en").write_text("a cat\n")
    Path("empty.en").write_text("\n")
    if "sources" in options:
        options = options | {"sources": Path(options["sources"])}
    fails(UsageError, message, next, measure_serving(1.0, **options))


@pytest.mark.slow
def test_servers_of_a_given_model_agree(tmp_path: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six"]
    pairs = [words[first : first + count] for first in range(5) for count in range(1, 7 - first)]
    lines = [" ".join(pair) + "\t" + " ".join(reversed(pair)) for pair in pairs] * 8
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    recipe = {
        "task": "translation",
        "data": {"train": {"file": "pairs.tsv", "source": 0, "target": 1}},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "network": {"preset": "marian", "d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1},
        "training": {"steps": 5, "batch_tokens": 256, "learning_rate": 3e-3, "warmup": 5, "precision": "float32"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    train(tmp_path / "recipe.yaml", out=tmp_path / "run")
    (tmp_path / "sources.txt").write_text("\n".join(" ".join(pair) for pair in pairs) + "\n")
    given = {"model": str(tmp_path / "run"), "sources": tmp_path / "sources.txt"}
    _, *rows = measure_serving(1.0, workloads=["translate-greedy"], clients=(1, 3), **given)
    same = {row["who"]: row["same"] for row in rows if "same" in row}
    assert len(same) == 6 and all(share > 0.98 for who, share in same.items() if "float32" in who)
    assert all(row["failed"] == 0 for row in rows if "failed" in row)
