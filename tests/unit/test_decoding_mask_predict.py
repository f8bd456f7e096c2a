"""Mask-predict against a slow loop, on a random table, on a toy that needs rounds, and on an encoder."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.decoding.mask_predict import mask_predict
from atento.networks import Encoder

MASK, V = 0, 6


class Table:
    """Logits of each place from a random table by a code of the whole row: every token of a row counts."""

    def __init__(self, seed: int) -> None:
        self.table = 2 * torch.randn(89, 16, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.calls = 0

    def __call__(self, ids: Tensor) -> Tensor:
        self.calls += 1
        code = torch.zeros(len(ids), dtype=torch.long)
        for column in ids.unbind(1):
            code = (code * 7 + column + 1) % 89
        return self.table[code][:, : ids.shape[1]]


def slow(predict: Table, row: list[int], frozen: list[bool], iterations: int) -> tuple[list[int], list[float]]:
    """One row, in lists."""
    ids, sure = list(row), [0.0] * len(row)
    places = [i for i, stays in enumerate(frozen) if not stays]
    for t in range(iterations):
        count = math.floor(len(places) * (iterations - t) / iterations)
        chosen = places if t == 0 else sorted(places, key=lambda i: (sure[i], i))[:count]
        for place in chosen:
            ids[place] = MASK
        logits = predict(torch.tensor([ids]))[0].tolist()
        for place in chosen:
            grown = [math.exp(logits[place][token]) if token != MASK else 0.0 for token in range(V)]
            best = max(range(V), key=lambda token: grown[token])
            ids[place], sure[place] = best, math.log(grown[best] / sum(grown))
    return ids, sure


def rows_of(size: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, V - 1), min_size=size, max_size=size), min_size=1, max_size=4)


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(1, 9).flatmap(rows_of), st.integers(1, 12), st.booleans(), st.data())
def test_error_20_equals_a_slow_loop(seed: int, rows: list[list[int]], iterations: int, draft: bool, data: Any) -> None:
    """A batch of rows with masks in different places, or drafts of which some places stay; each row as if alone."""
    predict, ids = Table(seed), torch.tensor(rows)
    frozen = ids != MASK
    if draft:
        shape = data.draw(st.lists(st.booleans(), min_size=ids.numel(), max_size=ids.numel()))
        frozen = torch.tensor(shape).view_as(ids)
    found = mask_predict(predict, ids, MASK, iterations=iterations, frozen=frozen if draft else None)
    for row, (tokens, sure) in enumerate(zip(found.ids.tolist(), found.log_probs.tolist())):
        expected, log_probs = slow(predict, rows[row], frozen[row].tolist(), iterations)
        assert tokens == expected and sure == pytest.approx(log_probs, abs=1e-9)
    assert torch.equal(found.ids[frozen], ids[frozen]) and not bool((found.ids[~frozen] == MASK).any())


def test_one_iteration_fills_every_mask_and_rounds_stop_where_nothing_is_left() -> None:
    predict, ids = Table(3), torch.tensor([[MASK, 2, MASK, MASK], [1, 2, 3, MASK]])
    found = mask_predict(predict, ids, MASK, iterations=1)
    best = predict(ids)[..., 1:].argmax(dim=-1) + 1
    assert torch.equal(found.ids, torch.where(ids == MASK, best, ids)) and predict.calls == 2
    predict = Table(4)
    mask_predict(predict, torch.tensor([[1, MASK, 2]]), MASK, iterations=10)
    assert predict.calls == 1
    mask_predict(predict, torch.tensor([[1, 2, 3]]), MASK, iterations=10)
    assert predict.calls == 1


def agreeing(ids: Tensor) -> Tensor:
    """Either "1 2" or "3 4" is right: each place depends on the other, and is a coin toss while that is hidden."""
    p = torch.full((len(ids), 2, V), 1e-6)
    for row, (first, second) in enumerate(ids.tolist()):
        p[row, 0, 1], p[row, 0, 3] = {2: (0.99, 0.01), 4: (0.01, 0.99)}.get(second, (0.6, 0.4))
        p[row, 1, 2], p[row, 1, 4] = {1: (0.99, 0.01), 3: (0.01, 0.99)}.get(first, (0.45, 0.55))
    return p.log()


def test_error_20_a_second_round_mends_places_that_were_filled_without_each_other() -> None:
    """All at once takes the best of each, 1 and 4, which do not go together; a second round sees the surer one."""
    hidden = torch.tensor([[MASK, MASK]])
    assert mask_predict(agreeing, hidden, MASK, iterations=1).ids.tolist() == [[1, 4]]
    found = mask_predict(agreeing, hidden, MASK, iterations=2)
    assert found.ids.tolist() == [[1, 2]] and found.log_probs.exp()[0].tolist() == pytest.approx([0.6, 0.99], abs=1e-4)


def test_g2_an_encoder_with_its_vocabulary_head_fills_a_text() -> None:
    """Padding is the model's affair; a row is filled alike alone and in a batch."""
    sizes: Any = {"vocab_size": V, "d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    network = Encoder(NetworkConfig("encoder", heads=(HeadConfig("masked-language-model"),), **sizes)).double().eval()
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    texts = [torch.randint(0, V, (n,), generator=g).index_fill(0, torch.tensor([1, 3]), MASK) for n in (7, 4, 9)]
    batch, real = torch.ones(3, 9, dtype=torch.long), torch.zeros(3, 9, dtype=torch.bool)
    for row, text in enumerate(texts):
        batch[row, : len(text)], real[row, : len(text)] = text, True

    def predict(ids: Tensor) -> Tensor:
        logits: Tensor = network(ids, token_mask=real).logits
        return logits

    together = mask_predict(predict, batch, MASK, iterations=4, frozen=~real | (batch != MASK))
    assert torch.equal(together.ids[~real], batch[~real])
    for row, text in enumerate(texts):
        alone = mask_predict(lambda ids: network(ids).logits, text[None], MASK, iterations=4)
        assert torch.equal(alone.ids[0], together.ids[row, : len(text)])
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[row, : len(text)])
    whole = mask_predict(predict, torch.full((3, 9), MASK), MASK, iterations=3, frozen=~real)
    assert not bool((whole.ids[real] == MASK).any()) and bool((whole.log_probs[real] < 0).all())


def test_what_cannot_be_is_refused() -> None:
    for ids, options, message in (
        (torch.zeros(1, 3).long(), {"iterations": 0}, "`iterations` must be at least 1: got 0"),
        (torch.zeros(3).long(), {}, r"`ids` must be of shape \(B,L\): got \(3,\)"),
        (torch.zeros(1, 3).long(), {"frozen": torch.ones(1, 2).bool()}, r"`ids` \(1, 3\): got torch.bool of \(1, 2\)"),
        (torch.zeros(1, 3).long(), {"frozen": torch.ones(1, 3)}, "`frozen` must be boolean, .*: got torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            mask_predict(Table(0), ids, MASK, **{"iterations": 1} | options)  # type: ignore[arg-type]
