"""How much may be written for an input, and what is said where a network has no places for it."""

import time
import warnings
from typing import Any

import pytest
import torch

from atento.base.errors import AtentoWarning, UsageError
from atento.base.precision import threads
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.inference.plain import PlainStepFunction
from atento.networks import build_network
from atento.tasks import text_generation
from atento.tasks.text_generation import GeneratedText, TextGenerator, token_limit
from atento.training.allocator import check_memory
from failing import fails

SIZES: dict[str, Any] = {"vocab_size": 20, "d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1, "max_len": 12}
LEARNED = NetworkConfig("decoder", **SIZES, positions=PositionConfig("learned"))


def test_the_usual_limit_gives_way_to_the_least_that_is_asked_for_and_outputs_cut_short_are_counted() -> None:
    endless = NetworkConfig(vocab_size=20)
    assert token_limit(5, 1, DecodingConfig(), endless, is_prompt=False) == 2 * 4 + 16
    assert token_limit(5, 1, DecodingConfig(min_new_tokens=100), endless, is_prompt=False) == 100
    assert token_limit(5, 1, DecodingConfig(max_new_tokens=7, min_new_tokens=3), endless, is_prompt=False) == 7
    assert token_limit(5, 0, DecodingConfig(max_new_tokens=50), LEARNED, is_prompt=True) == 12 - 4
    with pytest.raises(UsageError, match="a prompt of 13 tokens fills all 12 positions of the network"):
        token_limit(13, 0, DecodingConfig(), LEARNED, is_prompt=True)
    check_memory(1000, 16 * 1000, "cpu")
    fails(UsageError, r"1,000,000,000,000 parameters need 14901 GiB", check_memory, 10**12, 16 * 10**12, "cpu")
    torch.manual_seed(0)
    network = build_network(LEARNED).eval()

    def written(**options: int) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AtentoWarning)
            decoding = DecodingConfig(beam=1, **options)  # type: ignore[arg-type]
            steps = PlainStepFunction(network)  # type: ignore[arg-type]
            TextGenerator(steps, LEARNED, decoding, str, torch.device("cpu"), is_prompt=True).write([[5], [5] * 6])
        return "\n".join(str(one.message) for one in caught)

    assert written(max_new_tokens=7) == ""
    said = "the network has positions for 12 tokens: 1 of 2 outputs end after 7 or more, not 9"
    assert said in written(max_new_tokens=9) and said in written(min_new_tokens=9)


def test_batches_side_by_side_hold_no_more_than_their_caches_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2 tokens and 10 new ones in batches of 4: 4 x 12 places of 1 layer, keys and values of 16 numbers."""
    torch.manual_seed(0)
    steps = PlainStepFunction(build_network(LEARNED).eval())  # type: ignore[arg-type]
    decoding = DecodingConfig(beam=1, max_new_tokens=10, batch_tokens=8)
    generator = TextGenerator(steps, LEARNED, decoding, str, torch.device("cpu"), is_prompt=True)
    under_way, most = 0, []

    def searched(*arguments: object) -> list[list[GeneratedText]]:
        nonlocal under_way
        under_way += 1
        time.sleep(0.02)
        most.append(under_way)
        under_way -= 1
        return [[] for _ in arguments[1]]  # type: ignore[attr-defined]

    monkeypatch.setattr(TextGenerator, "_searched", searched)
    for caches, expected in ((2 * 4 * 12 * 16 * 8, 2), (2 * 4 * 12 * 16 * 8 - 1, 1)):
        monkeypatch.setattr(text_generation, "_CACHES", caches)
        with threads(4):
            generator.write([[5, 6]] * 40)
        assert max(most) == expected
        most.clear()
