"""What a process that shares the cores with others is started with."""

import pytest

from atento.precision import sharing_cores


def test_threads_that_share_the_cores_wait_briefly_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("ATENTO_TEST", "x")
    assert sharing_cores()["GOMP_SPINCOUNT"] == "10000" and sharing_cores()["ATENTO_TEST"] == "x"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "GOMP_SPINCOUNT" not in sharing_cores()
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert sharing_cores()["GOMP_SPINCOUNT"] == "7"
