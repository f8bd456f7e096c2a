"""The example of Ray Serve on the page of the service, on a local cluster."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import atento
from http_service import SOURCES, write_models

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_the_example_of_the_page_translates_on_a_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    serve = pytest.importorskip("ray.serve", reason="the extra ray is not installed")
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    match = re.search(r"test_ray_serve\.py runs it[^\n]*\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert match is not None and match[1].count("\n") < 30
    folder = write_models(tmp_path)["en-pt"]
    (tmp_path / "translator.py").write_text(match[1].replace("runs/en-pt", str(folder)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))  # of the workers
    for name in ("HEALTH", "READY"):  # a busy machine starts processes slowly
        monkeypatch.setenv(f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S", "120")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")
    ray.init("local", num_cpus=3, include_dashboard=False, logging_level="ERROR")
    try:
        from translator import app

        serve.start(http_options={"host": "127.0.0.1", "port": 8123})
        serve.run(app, name="translator", route_prefix="/")
        texts = SOURCES[:12]

        def ask(text: str) -> str:
            answer = httpx.post("http://127.0.0.1:8123/", json={"inputs": text}, timeout=60)
            return str(answer.json()["translation_text"])

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, texts))
        assert answers == atento.load(folder, device="cpu").translate(texts)
    finally:
        serve.shutdown()
        ray.shutdown()
