"""The notes' sampling listing by its name (K4), and the rows on sampling: right whatever the seed, wrong if broken."""

from collections.abc import Callable

import pytest
import torch

from atento.base.errors import UsageError
from atento.decoding import filters
from atento.decoding.filters import shaped
from atento.notes.listing_sampling import random_sampling_with_temperature
from atento.notes.listing_search import greedy_decoding
from atento_lab.notes.checks import sampling as rows
from atento_lab.notes.checks.toys import ToyLanguageModel
from atento_lab.notes.finding import Finding

PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6], [3, 3, 1]])


@pytest.fixture
def model() -> ToyLanguageModel:
    torch.manual_seed(1)
    return ToyLanguageModel()


def test_k4_the_notes_call_shapes_temperatures_and_messages(model: ToyLanguageModel) -> None:
    """(L,) and (1,L) give one list, (B,L) one a row; at most `max_length` tokens, EOS not among them."""
    one = random_sampling_with_temperature(model, PROMPTS[0], 6, temperature=0.7, seed=3)
    assert one == random_sampling_with_temperature(model, PROMPTS[:1], 6, 0.7, seed=3)
    many = random_sampling_with_temperature(model, PROMPTS, 6, seed=3)
    assert len(many) == 3 and all(isinstance(ids, list) and len(ids) <= 6 and 0 not in ids for ids in many)
    assert random_sampling_with_temperature(model, PROMPTS, 6, 0.0) == greedy_decoding(model, PROMPTS, 6)

    def different(temperature: float) -> int:
        drawn = random_sampling_with_temperature(model, PROMPTS[:1].expand(200, -1), 3, temperature, seed=1)
        return len({tuple(ids) for ids in drawn if isinstance(ids, list)})

    assert different(0.0) == 1 < different(3.0) < different(30.0)
    with pytest.raises(UsageError, match="the model must have the attribute `eos_token`, an id: function does not"):
        random_sampling_with_temperature(lambda ids: ids, PROMPTS, 3)
    with pytest.raises(UsageError, match=r"`input_seq` must be ids of shape \(L,\), \(1,L\) or \(B,L\)"):
        random_sampling_with_temperature(model, PROMPTS[None], 3)
    with pytest.raises(UsageError, match="`temperature` must be finite and not negative: got -1"):
        random_sampling_with_temperature(model, PROMPTS, 3, -1)


CHECKS = [rows.ancestral_sampling, rows.temperatures, rows.top_k_sampling, rows.nucleus_sampling, rows.sampling_listing]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_h2_h3_h4_h5_rows_pass_for_any_seed(check: Callable[[], Finding], seed: int) -> None:
    torch.manual_seed(seed)
    finding = check()
    assert finding.passed, finding


@pytest.mark.parametrize("check", [rows.ancestral_sampling, rows.nucleus_sampling, rows.sampling_listing])
def test_h2_rows_fail_when_sampling_is_wrong(check: Callable[[], Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another temperature than was asked for: the checks see it."""
    monkeypatch.setattr(filters, "shaped", lambda scores, strategy: shaped(0.6 * scores, strategy))
    torch.manual_seed(1)
    assert not check().passed


def test_j6_the_figure_is_drawn_from_a_trained_network() -> None:
    finding = rows.what_k_keeps()
    assert finding.passed, finding
    assert finding.figure.startswith("<svg") and "flat: top-k" in finding.drawing
    flat, peaked = finding.value["flat: mass of the best 5"], finding.value["peaked: mass of the best 5"]
    assert flat < 0.3 < 0.9 < peaked
