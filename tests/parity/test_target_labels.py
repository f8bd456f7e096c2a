"""Targets of released encoder-decoders: those that transformers trains on, and the same in training and in use."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento_world import write
from fine_tuning import batches_of
from released_folders import _SEQ2SEQ, write_released
from test_tokenizer_families import FAMILIES
from translator_folders import write_translator

hf = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
PAIRS = [(pair.source, pair.target) for pair in write("train", 6)]
NAMES = ("bart", "bart, forced", "t5", "marian", "pegasus", "m2m_100", "mbart50")


def folder_of(name: str, folder: Path) -> Path:
    """A released folder; one of languages names none, as those that are not told them."""
    if name == "pegasus":
        peer = FAMILIES["pegasus"]()
        peer.save_pretrained(folder)
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        torch.manual_seed(0)
        hf.PegasusForConditionalGeneration(
            hf.PegasusConfig(vocab_size=len(peer), **_SEQ2SEQ, **ids)  # <unk_2> ... are tokens too
        ).save_pretrained(folder)
    elif name in ("m2m_100", "mbart50"):
        write_translator(name, folder)
    else:
        write_released(name.partition(",")[0], folder)
    if "forced" in name:
        path = folder / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_bos_token_id": 0}))
    return folder


def their_labels(peer: Any, name: str, target: str) -> list[int]:
    if name == "m2m_100":
        peer.tgt_lang = "pt"
    labels: list[int] = peer(text_target=target)["input_ids"]
    return labels[1:] if name in ("m2m_100", "mbart50") else labels  # theirs have a language that nobody named


def recipe_of(folder: Path, place: Path, **init: Any) -> Path:
    (place / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    file = {"file": str(place / "pairs.tsv"), "source": 0, "target": 1}
    training = {"steps": 1, "learning_rate": 1e-12, "precision": "float32", "warmup": 0, "baseline": False}
    content = {"task": "text-to-text", "data": {"train": file, "valid": file}, "init": {"model": str(folder), **init}}
    content |= {"training": training | {"validate_every": 1, "checkpoint_every": 1}, "metrics": ["exact-match"]}
    content |= {"decoding": {"beam": 1, "max_new_tokens": 7}}
    (place / "r.yaml").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return place / "r.yaml"


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_the_labels_of_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path / "released")
    batches, network, _ = batches_of(recipe_of(folder, tmp_path))
    peer = hf.AutoTokenizer.from_pretrained(folder)
    found, read = set(), set()
    for batch in batches.in_order(1000):
        for labels, ids in zip(batch.labels["vocabulary"].tolist(), batch.inputs["target_ids"].tolist()):
            kept = [label for label in labels if label >= 0]
            found.add(tuple(kept))
            read.add(tuple(ids[: len(kept)]))
    wanted = [their_labels(peer, name, target) for _, target in PAIRS]
    assert found == set(map(tuple, wanted)) and read == {(network.start_id, *labels[:-1]) for labels in wanted}


@pytest.mark.parametrize("name", ["bart", "bart, forced", "t5"])
def test_one_rule_in_training_and_use(name: str, tmp_path: Path) -> None:
    """The loss of validation is that of their labels; so is the perplexity of the model and of its export."""
    folder = folder_of(name, tmp_path / "released")
    theirs, peer = hf.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for source, target in PAIRS:
        given = peer(source, text_target=target, return_tensors="pt")
        size = given["labels"].shape[1]
        with torch.no_grad():
            total += float(theirs(**given).loss) * size
        count += size
    trained = atento.train(recipe_of(folder, tmp_path), out=tmp_path / "run", threads=1)
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert next(row["nll"] for row in rows if row["event"] == "valid") == pytest.approx(total / count, abs=1e-4)
    model = atento.load(trained.folder, device="cpu")
    scores = model.score([source for source, _ in PAIRS], [target for _, target in PAIRS])
    first = 1 if name.startswith("bart") else 0  # the token that every output begins with is given, not scored
    assert sum(len(score.ids) for score in scores) == count - first * len(PAIRS)
    out = model.save(tmp_path / "out", layout="huggingface")
    assert json.loads((out / "generation_config.json").read_text()).get("forced_bos_token_id") == (0 if first else None)
