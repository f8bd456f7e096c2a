"""`atento bench serving`: real servers of small models, both of which answer every client."""

import pytest

from atento.bench.serving import measure_serving

pytestmark = pytest.mark.integration
pytest.importorskip("fastapi", reason="fastapi is not installed (extra serve)")
pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")


@pytest.mark.slow
@pytest.mark.parametrize("work", ["embed MiniLM", "classify BERT-base", "generate GPT-2"])
def test_every_server_answers_every_client(work: str) -> None:
    about, *rows = measure_serving(0.5, works=[work], clients=(1, 3), size="tiny")
    measured, ratios = [row for row in rows if "failed" in row], [row for row in rows if "ratio" in row]
    assert about["bench"] == "serving" and len({row["who"] for row in measured}) == 4
    assert len(measured) == 8 and len(ratios) == 6
    for row in measured:
        assert row["failed"] == 0 and row["requests_per_second"] > 1 and 0 < row["p50_ms"] <= row["p99_ms"]
