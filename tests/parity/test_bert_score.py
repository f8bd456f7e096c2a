"""BERTScore beside its equations on the outputs of transformers, text by text, and beside the package `bert-score`."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from atento.base.errors import ScoreWarning
from atento.metrics import paired_test
from atento.tasks.learned_metrics import learned_metric
from released_folders import TEXTS, write_released

OUTPUTS = [*TEXTS[:30], "", "x", TEXTS[30]]
REFERENCES = [*(" ".join(text.split()[::-1]) for text in TEXTS[:28]), TEXTS[3], "  ", TEXTS[5], TEXTS[6], ""]
SECOND = [*TEXTS[10:42], TEXTS[1]]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_released(request.param, tmp_path_factory.mktemp("encoder") / request.param)


def by_hand(folder: Path, references: list[str], layer: int, idf: bool) -> np.ndarray[Any, Any]:
    """Precision, recall and F1 of each output, one pair at a time."""
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()

    def ids_of(text: str) -> list[int]:
        start = " " if isinstance(tokenizer, hf.RobertaTokenizer) else ""
        return list(tokenizer(start + text.strip())["input_ids"]) if text.strip() else list(tokenizer("")["input_ids"])

    special = set(tokenizer("")["input_ids"])
    counts = Counter(token for text in references for token in set(ids_of(text)))
    n = len(references)

    def weight(token: int) -> float:
        return math.log((n + 1) / (counts[token] + 1)) if idf else float(token not in special)

    rows = []
    for output, reference in zip(OUTPUTS, references):
        ours, theirs = ids_of(output), ids_of(reference)
        if set(ours) <= special or set(theirs) <= special:
            rows.append([0.0, 0.0, 0.0])
            continue
        with torch.no_grad():
            outputs = (network(torch.tensor([ids]), output_hidden_states=True) for ids in (ours, theirs))
            vectors = [one.hidden_states[layer + 1][0] for one in outputs]
        cosine = torch.nn.functional.cosine_similarity(vectors[0][:, None], vectors[1][None], dim=-1)
        precision, recall = (
            sum(weight(token) * float(row.max()) for token, row in zip(ids, rows_of)) / sum(map(weight, ids))
            for ids, rows_of in ((ours, cosine), (theirs, cosine.T))
        )
        rows.append([precision, recall, 2 * precision * recall / (precision + recall)])
    return np.array(rows)


@pytest.mark.parametrize(("layer", "idf"), [(1, False), (0, True)])
def test_it_is_the_equation(folder: Path, layer: int, idf: bool) -> None:
    score = learned_metric("bertscore", folder, device="cpu", layer=layer, idf=idf)(OUTPUTS, REFERENCES)
    expected = by_hand(folder, REFERENCES, layer, idf)
    np.testing.assert_allclose(np.array(score.segments)[:, :3], expected, atol=1e-5)
    assert score.value == pytest.approx(expected[:, 2].mean(), abs=1e-6)
    assert score.parts["precision"] == pytest.approx(expected[:, 0].mean(), abs=1e-6)
    assert score.settings == f"model:{folder.name}|layer:{layer}|idf:{'yes' if idf else 'no'}|rescaled:no|nrefs:1"


def test_several_references_count_by_the_best(folder: Path) -> None:
    metric = learned_metric("bertscore", folder, device="cpu", layer=1)
    expected = np.maximum(by_hand(folder, REFERENCES, 1, False), by_hand(folder, SECOND, 1, False))
    score = metric(OUTPUTS, [REFERENCES, SECOND])
    np.testing.assert_allclose(np.array(score.segments)[:, :3], expected, atol=1e-5)
    assert score.interval()[0] < score.value < score.interval()[1]


def test_a_text_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metric, read = learned_metric("bertscore", folder, device="cpu"), []
    scores: Any = metric.scores
    monkeypatch.setattr(scores, "read_all", lambda rows, plain=scores.read_all: (read.extend(rows), plain(rows))[1])
    paired_test(metric, OUTPUTS, SECOND, REFERENCES, samples=2)
    assert len(read) == len({*OUTPUTS, *SECOND, *REFERENCES})


def test_equal_texts_are_at_the_best_also_where_no_frequency_tells(folder: Path) -> None:
    """One reference, or a text whose tokens are in every reference: they weigh alike; a text without tokens has 0."""
    metric = learned_metric("bertscore", folder, device="cpu", layer=1, idf=True)
    for texts in (REFERENCES[:1], REFERENCES[:1] * 3):
        with pytest.warns(ScoreWarning, match="idf has no effect: all references are the same text"):
            assert metric(texts, texts).value == pytest.approx(1, abs=1e-6)
    inside = [REFERENCES[0], f"{REFERENCES[0]} {REFERENCES[1]}"]
    assert metric(inside, inside).per_sentence() == pytest.approx([1, 1], abs=1e-6)
    assert metric(["", REFERENCES[0]], ["", REFERENCES[0]]).per_sentence()[0] == 0


@pytest.mark.parametrize("idf", [False, True])
def test_it_is_what_bert_score_computes(tmp_path: Path, idf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = pytest.importorskip("bert_score", reason="the package bert-score is not installed")
    folder = write_released("bert", tmp_path / "bert")  # version 5 of transformers reads no space before a RoBERTa text
    ends = "build_inputs_with_special_tokens"  # which version 5 of transformers does not have: here of no tokens
    monkeypatch.setattr(hf.PreTrainedTokenizerBase, ends, lambda self, _: self("")["input_ids"], raising=False)
    hf.AutoTokenizer.from_pretrained(folder, model_max_length=48).save_pretrained(folder)
    grouped = [list(both) for both in zip(REFERENCES, SECOND)]
    about = {"model_type": str(folder), "num_layers": 2, "idf": idf, "nthreads": 0, "device": "cpu"}
    theirs = peer.score(OUTPUTS, grouped, batch_size=1, **about)  # beside padding, its best cosine is never below 0
    score = learned_metric("bertscore", folder, device="cpu", layer=1, idf=idf)(OUTPUTS, [REFERENCES, SECOND])
    np.testing.assert_allclose(np.array(score.segments)[:, :3], torch.stack(theirs, dim=1).numpy(), atol=1e-5)
