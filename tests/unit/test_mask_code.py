"""Masks from code: what the code says, and one sentence for what is no mask."""

import pytest
import torch

from atento.attention import masks
from atento.base.errors import UsageError

pytest.importorskip("pydantic", reason="the extra serve is not installed")
from atento_serve.studio.mask_code import NAMES, mask_of, painted

ALL = {
    "bidirectional()": masks.bidirectional(),
    "causal()": masks.causal(),
    "lookahead(2)": masks.lookahead(2),
    "prefix(3)": masks.prefix(3),
    "prefix([1, 3])": masks.prefix(torch.tensor([1, 3])),
    "window(2, 1)": masks.window(2, 1),
    "window(left=2, right=1)": masks.window(2, 1),
    "dilated(2, 4)": masks.dilated(2, 4),
    "dilated(2, None)": masks.dilated(2),
    "global_tokens([0, 3])": masks.global_tokens([0, 3]),
    "padding([5, 3])": masks.padding(torch.tensor([5, 3])),
    "documents([0, 0, 0, 1, 1, -1])": masks.documents(torch.tensor([[0, 0, 0, 1, 1, -1]])),
    "allowed_pairs({(0, 3), (2, 5)})": masks.allowed_pairs([(0, 3), (2, 5)]),
    "blocks([[1, 0], [1, 1]], 3)": masks.blocks(torch.tensor([[True, False], [True, True]]), 3),
    "per_head([causal(), window(1, 1)])": masks.per_head([masks.causal(), masks.window(1, 1)]),
    "causal() & ~window(0, 0) | prefix(2)": masks.causal() & ~masks.window(0, 0) | masks.prefix(2),
}


@pytest.mark.parametrize("code", ALL)
def test_code_is_the_mask_that_it_names(code: str) -> None:
    assert torch.equal(mask_of(code).dense(6), ALL[code].dense(6))


def test_every_named_mask_has_a_case_and_what_is_none_is_one_sentence() -> None:
    assert {*NAMES, "predicate", "Mask"} == set(masks.__all__)
    assert all(any(name in code for code in ALL) for name in NAMES)
    code = painted("causal() | prefix(2)", [(0, 3)], [(5, 1)])
    assert code == "(causal() | prefix(2) | allowed_pairs([(0, 3)])) & ~allowed_pairs([(5, 1)])"
    expected = (masks.causal() | masks.prefix(2)).dense(6).clone()
    expected[..., 0, 3], expected[..., 5, 1] = True, False
    assert torch.equal(mask_of(code).dense(6), expected)
    for code, said in (
        ("", "this is no code of a mask"),
        ("causal(", "this is no code of a mask"),
        ("causal", "a mask is one of"),
        ("causal() + causal()", "a mask is one of"),
        ("__import__('os').system('true')", "a mask is one of"),
        ("predicate(lambda b, h, q, k: q > k)", "a mask is one of"),
        ("causal().rule", "a mask is one of"),
        ("window(1)", "the mask cannot be made"),
        ("window(-1, 0)", "whole number"),
        ("window('a', 0)", "a mask is one of"),
        ("prefix(99999)", "at most 4,096"),
        ("padding([[1]])", "the mask cannot be made"),
        ("allowed_pairs([1])", "the mask cannot be made"),
        ("per_head([padding([1, 2]), 3])", "the mask cannot be made"),
        ("padding([1, 2]) & padding([1, 2, 3])", "cannot be combined"),
        ("~" * 3000 + "causal()", "this is no code of a mask"),
        ("~" * 70 + "causal()", "at most 64 masks within one another"),
        ("causal() & " * 500 + "causal()", "at most 4,000 characters"),
    ):
        with pytest.raises(UsageError, match=said.replace("(", r"\(")) as caught:
            mask_of(code)
        assert "\n" not in str(caught.value)
