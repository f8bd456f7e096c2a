"""Entity F1 beside seqeval: 1,000 random tag sequences of each scheme, illegal ones included, in both modes."""

import random

import pytest

from atento.metrics import entity_f1
from atento.metrics.tag_schemes import SCHEMES

seqeval = pytest.importorskip("seqeval.metrics")
from seqeval import scheme as schemes  # noqa: E402

PREFIXES = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}
THEIRS = {"IOB1": schemes.IOB1, "IOB2": schemes.IOB2, "BIOES": schemes.IOBES, "BILOU": schemes.BILOU}


def sequences(scheme: str, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """300 right sequences of tags drawn freely, most of them illegal, and predictions that change some tags."""
    draw = random.Random(seed)
    tags = ["O", "O", *(f"{prefix}-{kind}" for prefix in PREFIXES[scheme] for kind in ("PER", "LOC", "A-B"))]
    right = [[draw.choice(tags) for _ in range(draw.randint(0, 9))] for _ in range(300)]
    return [[draw.choice(tags) if draw.random() < 0.2 else tag for tag in sentence] for sentence in right], right


@pytest.mark.parametrize(
    ("scheme", "strict"),
    [(scheme, strict) for scheme in SCHEMES for strict in (True, False) if strict or scheme != "BILOU"],
)  # the lenient mode of seqeval does not know L and U
def test_entity_f1_equals_seqeval(scheme: str, strict: bool) -> None:
    predicted, right = sequences(scheme, seed=len(scheme) + strict)
    options = {"mode": "strict", "scheme": THEIRS[scheme]} if strict else {}
    for average in ("micro", "macro", "weighted"):
        score = entity_f1(predicted, right, scheme=scheme if strict else None, average=average)
        assert score.value == pytest.approx(seqeval.f1_score(right, predicted, average=average, **options), abs=1e-12)
        for side in ("precision", "recall"):
            expected = getattr(seqeval, f"{side}_score")(right, predicted, average=average, **options)
            assert score.parts[side] == pytest.approx(expected, abs=1e-12)
    types = seqeval.classification_report(right, predicted, output_dict=True, **options)
    for kind in ("PER", "LOC", "A-B"):
        for ours, theirs in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score"), ("support",) * 2):
            assert score.parts[f"{ours}[{kind}]"] == pytest.approx(types[kind][theirs], abs=1e-12)
    assert 0.1 < score.value < 0.9
