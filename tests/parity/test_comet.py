"""COMET and COMET-Kiwi beside their equations on XLM-R of transformers, and beside the package `unbabel-comet`."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from atento.tasks.learned_metrics import learned_metric
from atento_cli.convert import comet_checkpoint
from atento_cli.convert.layouts import convert
from atento_cli.convert.unpickle import unpickle
from comet_folders import CASES, LAYERS, POSITIONS, write_comet
from released_folders import TEXTS

OUTPUTS, REFERENCES, SOURCES = TEXTS[0:12], TEXTS[1:13], [*TEXTS[2:13], " ".join(TEXTS[:9])]


def sparsemax(scores: Tensor) -> Tensor:
    """The nearest point of the simplex (Martins and Astudillo 2016), by its threshold."""
    ordered = scores.sort(descending=True).values
    sizes = torch.arange(1, len(scores) + 1)
    size = int(sizes[1 + sizes * ordered > ordered.cumsum(0)].max())
    return (scores - (ordered[:size].sum() - 1) / size).clamp(min=0)


@torch.no_grad()
def by_hand(encoder: Any, head: dict[str, Tensor], hparams: dict[str, Any], read: Any) -> list[float]:
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
    for output, reference, source in zip(OUTPUTS, REFERENCES, SOURCES):
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


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are read in this process, which takes less time; tests of the command have the other one."""
    monkeypatch.setattr(comet_checkpoint, "unpickle_into", unpickle)


@pytest.mark.filterwarnings("ignore:.*cut to .* tokens")
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_equation(name: str, tmp_path: Path) -> None:
    hparams = CASES[name]
    encoder, head = write_comet(tmp_path / "theirs", hparams)
    read = hf.XLMRobertaTokenizerFast.from_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", "atento")
    assert len(read(SOURCES[-1])["input_ids"]) > POSITIONS  # it is cut
    expected = by_hand(encoder, head, hparams, read)
    unified = hparams["class_identifier"] == "unified_metric"
    metric = learned_metric("comet-kiwi" if unified else "comet", tmp_path / "ours", device="cpu")
    score = metric(OUTPUTS, () if unified else REFERENCES, sources=SOURCES)
    np.testing.assert_allclose(score.per_sentence(), expected, atol=1e-5)
    assert score.value == pytest.approx(np.mean(expected), abs=1e-6)
    utilities = metric.scores.utilities(OUTPUTS[:2], REFERENCES[:3], SOURCES[0])
    assert utilities.shape == (2, 3) and utilities[0, 0] == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_it_is_what_comet_computes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = pytest.importorskip("comet", reason="the package unbabel-comet is not installed")
    hparams = CASES[name]
    write_comet(tmp_path / "theirs", hparams)
    convert(tmp_path / "theirs", tmp_path / "ours", "atento")

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
    samples = [{"mt": mt, "ref": ref, "src": src} for mt, ref, src in zip(OUTPUTS, REFERENCES, SOURCES)]
    if unified:
        samples = [{key: value for key, value in sample.items() if key != "ref"} for sample in samples]
    with torch.no_grad():
        inputs = network.prepare_sample(samples, stage="predict")
        theirs = network(**inputs[0]).score if unified else network(**inputs).score
    metric = learned_metric("comet-kiwi" if unified else "comet", tmp_path / "ours", device="cpu")
    ours = metric(OUTPUTS, () if unified else REFERENCES, sources=SOURCES).per_sentence()
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)
