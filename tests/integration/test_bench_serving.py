"""`atento bench serving`: real servers of small models, all of which answer every client with the same outputs."""

import pytest

from atento.bench.serving import WORKLOADS, measure_serving
from atento.errors import UsageError

pytestmark = pytest.mark.integration
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


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown workload 'embed-minlm'.*embed-minilm"):
        next(measure_serving(1.0, workloads=["embed-minlm"]))
