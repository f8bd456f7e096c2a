"""The table of projections in docs/scaling.md: made by the formulas of `atento plan`, and true to published sizes."""

from pathlib import Path

import pytest

from atento_cli.plans.projection import BETWEEN_FAILURES, CASES, plan_by_shapes, table

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_the_page_has_the_table_as_it_is_computed_by_shapes_with_the_published_parameters() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "run `python tools/scaling_table.py`"
    # One in about three hours on 16,384 GPUs
    assert abs(BETWEEN_FAILURES / 16_384 - 3.1) < 0.05
    for case, parameters in (*zip(CASES, (124_439_808, 8_030_261_248, 70_553_706_496), strict=True),):
        plan = plan_by_shapes(case)  # type: ignore[arg-type]
        assert plan.parameters == parameters
        assert plan.flops_per_update == pytest.approx(6 * parameters * plan.tokens_per_update, rel=0.01)
        assert plan.memory["weights"] == plan.memory["gradients"] == 4 * parameters
        assert plan.memory["optimizer"] == pytest.approx(8 * parameters, rel=1e-4)
