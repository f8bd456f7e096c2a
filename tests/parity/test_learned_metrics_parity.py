"""BERTScore and COMET beside their equations on the outputs of transformers, and beside `bert-score` and `comet`."""

import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from atento.base.errors import ScoreWarning
from atento.metrics import paired_test
from atento.tasks.learned_metrics import learned_metric
from atento_cli.convert import comet_checkpoint
from atento_cli.convert.layouts import convert
from atento_cli.convert.unpickle import unpickle
from comet_folders import CASES, LAYERS, POSITIONS, write_comet
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


TRANSLATIONS, RIGHT, SOURCES = TEXTS[0:12], TEXTS[1:13], [*TEXTS[2:13], " ".join(TEXTS[:9])]


def sparsemax(scores: Tensor) -> Tensor:
    """The nearest point of the simplex (Martins and Astudillo 2016), by its threshold."""
    ordered = scores.sort(descending=True).values
    sizes = torch.arange(1, len(scores) + 1)
    size = int(sizes[1 + sizes * ordered > ordered.cumsum(0)].max())
    return (scores - (ordered[:size].sum() - 1) / size).clamp(min=0)


@torch.no_grad()
def comet_by_hand(encoder: Any, head: dict[str, Tensor], hparams: dict[str, Any], read: Any) -> list[float]:
    """The score of each output, one text at a time."""
    unified = hparams["class_identifier"] == "unified_metric"

    def vector(ids: list[int]) -> Tensor:
        layers = [h[0] for h in encoder(torch.tensor([ids]), output_hidden_states=True).hidden_states]
        if "layerwise_attention.gamma" in head:
            logits = torch.cat([head[f"layerwise_attention.scalar_parameters.{n}"] for n in range(LAYERS + 1)])
            sparse = hparams["layer_transformation"] == "sparsemax"
            weights = sparsemax(logits) if sparse else logits.softmax(0)
            if hparams["layer_norm"]:
                layers = [(h - h.mean()) / (h.var(unbiased=False) + 1e-12).sqrt() for h in layers]
            mixed = head["layerwise_attention.gamma"] * sum(w * h for w, h in zip(weights, layers))
        else:
            mixed = layers[hparams["layer"]]
        if unified:
            return mixed[0]
        return mixed.mean(0) if hparams["pool"] == "avg" else mixed.max(0).values

    def ids_of(text: str) -> list[int]:
        return list(read(text, truncation=True, max_length=POSITIONS - 2)["input_ids"])

    scores = []
    for output, reference, source in zip(TRANSLATIONS, RIGHT, SOURCES):
        if unified:
            x = vector([*ids_of(output), 2, *ids_of(source)[1:]][:POSITIONS])
        else:
            h, r, s = (vector(ids_of(text)) for text in (output, reference, source))
            x = torch.cat([h, r, h * r, (h - r).abs(), h * s, (h - s).abs()])
        for n in range(3):
            x = head[f"estimator.ff.{3 * n}.weight"] @ x + head[f"estimator.ff.{3 * n}.bias"]
            x = x.tanh() if n < 2 else x.sigmoid() if hparams["final_activation"] else x
        scores.append(float(x))
    return scores


def converted(place: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Tensor], Any]:
    """Their encoder and head, and our metric: the checkpoint is read in this process, which takes less time."""
    monkeypatch.setattr(comet_checkpoint, "unpickle_into", unpickle)
    encoder, head = write_comet(place / "theirs", CASES[name])
    convert(place / "theirs", place / "ours", "atento")
    kind = "comet-kiwi" if CASES[name]["class_identifier"] == "unified_metric" else "comet"
    return encoder, head, learned_metric(kind, place / "ours", device="cpu")


@pytest.mark.filterwarnings("ignore:.*cut to .* tokens")
@pytest.mark.parametrize("name", CASES)
def test_comet_is_the_equation(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, head, metric = converted(tmp_path, name, monkeypatch)
    read = hf.XLMRobertaTokenizerFast.from_pretrained(tmp_path / "theirs")
    assert len(read(SOURCES[-1])["input_ids"]) > POSITIONS  # it is cut
    expected = comet_by_hand(encoder, head, CASES[name], read)
    unified = CASES[name]["class_identifier"] == "unified_metric"
    score = metric(TRANSLATIONS, () if unified else RIGHT, sources=SOURCES)
    np.testing.assert_allclose(score.per_sentence(), expected, atol=1e-5)
    assert score.value == pytest.approx(np.mean(expected), abs=1e-6)
    utilities = metric.scores.utilities(TRANSLATIONS[:2], RIGHT[:3], SOURCES[0])
    assert utilities.shape == (2, 3) and utilities[0, 0] == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_it_is_what_comet_computes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = pytest.importorskip("comet", reason="the package unbabel-comet is not installed")
    hparams, metric = CASES[name], converted(tmp_path, name, monkeypatch)[2]

    def joined(_: Any, first: list[int], second: list[int]) -> list[int]:  # gone since version 5 of transformers
        return [0, *first, 2, 2, *second, 2]

    monkeypatch.setattr(hf.PreTrainedTokenizerBase, "build_inputs_with_special_tokens", joined, raising=False)
    unified = hparams["class_identifier"] == "unified_metric"
    kind = peer.models.UnifiedMetric if unified else peer.models.RegressionMetric
    options = {key: value for key, value in hparams.items() if key != "class_identifier"}
    if options.get("layer_transformation") == "sparsemax_patch":
        options["layer_transformation"] = "softmax"
    network = kind(**options, pretrained_model=str(tmp_path / "theirs"), load_pretrained_weights=False).eval()
    state = torch.load(tmp_path / "theirs" / "checkpoints" / "model.ckpt", weights_only=True)["state_dict"]
    lacking = network.load_state_dict(state, strict=False)
    assert not lacking.unexpected_keys and not any("estimator" in key for key in lacking.missing_keys)
    read = partial(network.encoder.model, output_hidden_states=True)  # its model has no pooler's output any more
    network.encoder.forward = lambda input_ids, attention_mask, **_: {
        "all_layers": read(input_ids, attention_mask=attention_mask).hidden_states
    }
    samples = [{"mt": mt, "ref": ref, "src": src} for mt, ref, src in zip(TRANSLATIONS, RIGHT, SOURCES)]
    if unified:
        samples = [{key: value for key, value in sample.items() if key != "ref"} for sample in samples]
    with torch.no_grad():
        inputs = network.prepare_sample(samples, stage="predict")
        theirs = network(**inputs[0]).score if unified else network(**inputs).score
    ours = metric(TRANSLATIONS, () if unified else RIGHT, sources=SOURCES).per_sentence()
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)
