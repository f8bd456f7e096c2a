"""`atento bench labelling`: both sides give the same labels and answers."""

from pathlib import Path

import pytest

from benchmarks.encoding import SIZES, natural_sentences
from benchmarks.labelling import VERBS, OurVerb, Transformers, _rows, write_labeller
from benchmarks.processes import Measurement

pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")


@pytest.mark.parametrize("verb", VERBS)
def test_both_sides_give_the_same_outputs(verb: str, tmp_path: Path) -> None:
    write_labeller(tmp_path, SIZES["tiny"], verb)
    texts = natural_sentences(20, SIZES["tiny"])
    ours, peer = OurVerb(), Transformers()
    ours.load(tmp_path, verb, "float32")
    peer.load(tmp_path, verb)
    expected = peer.run(texts)
    assert ours.run(texts) == expected and len(set(map(str, expected))) > 1
    count = len(expected)
    sides = {"atento float32": ours.run(texts), "transformers float32": expected}
    rows = list(_rows(verb, count, {who: [Measurement(0.5, result, None, 0.25)] for who, result in sides.items()}))
    assert [row.get("same_labels") for row in rows] == [1.0, 1.0, None] and rows[2]["ratio"] == 1.0
    assert rows[0]["texts_per_second"] == count * 2
