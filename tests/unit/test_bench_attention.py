"""The attention bench at tiny sizes: all contenders compute the same, what rows say, what is left out and refused."""

import importlib.util
from typing import Any

import pytest
import torch

from benchmarks import attention as bench
from benchmarks.attention_layers import KERNELS, PEERS, SETTINGS, Case, Inputs, chosen, contenders, results
from failing import fails

MAKES = {**KERNELS, **PEERS}
PEERS_HERE = [name for name in PEERS if name != "x-transformers" or importlib.util.find_spec("x_transformers")]


def case(setting: str, length: int = 300, precision: str = "float32") -> Case:
    """Two batch rows, long enough for two documents, a window's edge and several squares."""
    return Case(setting, length, 2, precision, "cpu")


OWN = [name for name, setting in SETTINGS.items() if setting.weights is not None]
# what peers can do too
SHARED = [name for name, setting in SETTINGS.items() if setting.chosen_blocks is None and name not in OWN]


@pytest.mark.parametrize(("setting", "precision"), [*((name, "float32") for name in SHARED), ("causal", "bfloat16")])
def test_a19_all_contenders_compute_the_same_output_and_gradients(setting: str, precision: str) -> None:
    """Ours and theirs, so that what is timed is one and the same thing; x-transformers where it is installed."""
    given = Inputs.of(case(setting, precision=precision))
    found = {}
    for who in contenders(case(setting)):
        layer = MAKES[who](case(setting, precision=precision), given)
        found[who] = [x.detach().flatten().float() for x in results(layer, given, False)]
    assert set(PEERS_HERE) <= set(found) and "blocked" in found
    bench.check_agreement(found, 1e-5 if precision == "float32" else bench.TOLERANCE[precision])


def test_a19_chosen_blocks_are_dense_where_all_are_chosen() -> None:
    """Eight blocks of 64 are all there is of 300 tokens; of 1,200 they are not."""
    for length, same in ((300, True), (1200, False)):
        own, dense = case("8 chosen blocks of 64", length), case("none", length)
        assert contenders(own) == ["chosen"] == [chosen(own)]
        given = Inputs.of(dense)
        one = results(KERNELS["chosen"](own, given), given, False)[:3]
        other = results(KERNELS["plain"](dense, given), given, False)
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, other)) == same


@pytest.mark.parametrize("setting", OWN)
def test_other_weights_than_softmax_are_timed_beside_dense_attention(setting: str) -> None:
    """Both kernels give the same, most weights are 0, and the last row of a direction has the ratio."""
    own = case(setting)
    given = Inputs.of(own)
    found = {who: results(KERNELS[who](own, given), given, False) for who in contenders(own)}
    assert list(found) == ["plain", "blocked", "dense"] and chosen(own) in found
    for one, other in zip(found["plain"], found["blocked"]):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(found["plain"][0], found["dense"][0], atol=1e-2)
    times = {"blocked": 6.0, "dense": 2.0}
    measured = {name: bench.Measured({"forward": time}, {"forward": None}, []) for name, time in times.items()}
    (row,) = bench._ratios(Case(setting, 8192, 1, "float32", "cpu"), "forward", measured)
    assert row["chosen"] == "blocked" and row["time_to_dense"] == 3.0


@pytest.mark.parametrize("setting", SHARED)
def test_each_setting_asks_something_of_its_own(setting: str) -> None:
    """Else two columns of the table would be one; dropout alone asks nothing more when it is off."""
    given = Inputs.of(case("none"))
    own = case(setting)
    plain = [results(KERNELS["plain"](c, Inputs.of(c)), Inputs.of(c), True)[0] for c in (own, case("none"))]
    assert torch.equal(*plain) == (setting == "none"), given.x.shape


def test_dropout_is_asked_of_all_contenders_and_only_in_training() -> None:
    own = case("causal, dropout 0.1")
    given = Inputs.of(own)
    assert "fused" not in contenders(own)  # which cannot drop weights
    for who in contenders(own):
        layer = MAKES[who](own, given)
        with torch.no_grad():
            still, again, dropped = layer.run(given.x, False), layer.run(given.x, False), layer.run(given.x, True)
        assert torch.equal(still, again), who
        assert not torch.allclose(still, dropped), who


@pytest.mark.slow
def test_a19_rows_of_a_case_say_what_was_measured_ratios_last() -> None:
    settings = ["causal", "causal, dropout 0.1"]
    rows = list(bench.measure_attention(0.05, settings=settings, lengths=[40], precisions=["float32"]))
    rows = [row for row in rows if "mask" in row]  # without the row that says who is not installed
    common = {"bench": "attention", "length": 40, "batch": 1, "precision": "float32"}
    for row in rows:
        assert common.items() <= row.items()
    directions = {"causal": ["forward", "forward+backward"], "causal, dropout 0.1": ["forward+backward"]}
    for setting, expected in directions.items():
        for direction in expected:
            *measured, ratio = [row for row in rows if row["mask"] == setting and row["direction"] == direction]
            assert [row["kernel"] for row in measured] == contenders(case(setting))
            for row in measured:
                assert row["ms"] > 0 and (row["peak_mib"] is None or row["peak_mib"] >= 0)
            ours = {row["kernel"]: row["ms"] for row in measured}
            assert ratio["chosen"] == chosen(Case(setting, 40, 1, "float32", "cpu"))
            peer = min(ours[name] for name in PEERS_HERE)
            assert ratio["time_to_best_peer"] == pytest.approx(ours[ratio["chosen"]] / peer, rel=0.02, abs=0.01)
            assert ratio["best_kernel"] == min((name for name in ours if name in KERNELS), key=lambda name: ours[name])
            assert ratio["time_to_best_kernel"] >= 1
    assert {row["direction"] for row in rows if row["mask"] == "causal, dropout 0.1"} == {"forward+backward"}


@pytest.mark.slow  # long texts
def test_a_case_that_would_take_too_long_is_a_row_that_says_so() -> None:
    """Nothing fits into no time: after the first length, which cannot be foreseen, all are left out."""
    rows = list(bench.measure_attention(1e-9, settings=["none"], lengths=[16, 32, 64], precisions=["float32"]))
    longer = [row for row in rows if row.get("length", 16) > 16]
    assert len(longer) == 2 * len(contenders(case("none")))
    assert all(row["skipped"].startswith("would take about ") and "ms" not in row for row in longer)


def test_a_forecast_grows_as_it_did_last_at_most_with_the_square() -> None:
    seen = bench.Forecast(10.0)
    assert seen.refusal("fused", 1, 100) is None
    seen.record("fused", 1, 100, 2.0)
    assert seen.refusal("fused", 1, 200) is None  # 8 s
    assert seen.refusal("fused", 1, 400) == "would take about 32 s"
    assert seen.refusal("fused", 8, 400) is None and seen.refusal("blocked", 1, 400) is None
    seen.record("fused", 1, 200, 4.0)  # linear, then
    assert seen.refusal("fused", 1, 400) is None  # 8 s
    assert seen.refusal("fused", 1, 800) == "would take about 16 s"
    seen.record("fused", 1, 400, float("inf"))
    assert seen.refusal("fused", 1, 401) == "failed at 400 tokens"


def test_contenders_that_differ_or_fail_stop_the_measurement() -> None:
    one: dict[str, Any] = {"plain": [[1.0, 2.0], [3.0]], "fused": [[1.0, 2.0], [3.0]]}
    bench.check_agreement(one, 1e-6)
    with pytest.raises(RuntimeError, match=r"fused and plain differ in their gradient 1 by 0\.5 of its norm"):
        bench.check_agreement({**one, "fused": [[1.0, 2.0], [4.5]]}, 0.1)
    with pytest.raises(RuntimeError, match="fused and plain differ in their output by nan"):
        bench.check_agreement({**one, "fused": [[float("nan"), 2.0], [3.0]]}, 0.1)
    # the numbers that come back are those of the case asked for, not of the one that warms up
    own = Case("window(128, 128)", 200, 1, "float32", "cpu")
    found, here = bench.in_own_process(own, "blocked", 0.05), bench.measure(own, "blocked", 0.05)
    assert not isinstance(found, str) and found.sample == here.sample
    assert found.ms.keys() == here.ms.keys() == found.peak_mib.keys()
    wrong = Case("causal, dropout 0.1", 40, 1, "float32", "cpu")
    fails(RuntimeError, "measuring fused ended with 1", bench.in_own_process, wrong, "fused", 0.05)


@pytest.mark.slow  # long texts
def test_a19_the_blocked_kernel_takes_memory_linear_in_length() -> None:
    """Of a window, four times the tokens: four times the memory, not sixteen; the weights alone would take 512 MiB."""
    peaks = []
    for length in (2048, 8192):
        found = bench.in_own_process(Case("window(128, 128)", length, 1, "float32", "cpu"), "blocked", 0.01)
        peak = found.peak_mib["forward+backward"]
        if peak is None:
            pytest.skip("the peak memory of a process is not known here")
        peaks.append(peak)
    assert peaks[1] < 8 * peaks[0] and peaks[1] < 256
