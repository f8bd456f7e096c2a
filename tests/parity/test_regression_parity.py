"""Fine-tuning a regression of pairs beside a plain loop of transformers: the losses and the numbers (G5)."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import atento
from atento.runs.train import train
from atento.tasks.regression import numbers_of
from atento.training.metrics_log import read_journal
from fine_tuning import STILL, planned, their_loop, training, write_bert

WORDS = ["gato", "cão", "casa", "rio", "mar", "sol", "lua", "flor"]


def scored(count: int) -> list[tuple[str, str, float]]:
    """Pairs of texts of one to six words; the number is 5 times the share of words of the first in the second."""
    chosen = random.Random(1)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 6))) for _ in range(2 * count)]
    pairs = zip(texts[:count], texts[count:])
    return [(a, b, round(5 * sum(word in b.split() for word in a.split()) / len(a.split()), 2)) for a, b in pairs]


@pytest.mark.parametrize("cls", ["Bert", "Roberta"])
def test_g5_every_loss_and_number_of_a_plain_loop(cls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = scored(160)
    Path("train.tsv").write_text("".join(f"{a}\t{b}\t{number}\n" for a, b, number in records), encoding="utf-8")
    kinds = 2 if cls == "Bert" else 1
    more: dict[str, Any] = {"max_position_embeddings": 48, "num_labels": 1, "type_vocab_size": kinds, "cls": cls}
    init = write_bert(tmp_path / "init", "SequenceClassification", WORDS, **more)
    network = getattr(transformers, f"{cls}ForSequenceClassification").from_pretrained(init)
    tokenizer = transformers.BertTokenizerFast.from_pretrained(init)
    columns = {"file": "train.tsv", "text": 0, "pair": 1, "score": 2}
    data = {"train": columns, "valid": columns}
    recipe = {"task": "regression", "init": str(init), "data": data, "network": STILL, "training": training(40, 3e-3)}
    run = train(recipe, out="run", threads=1)
    model = atento.load(run.folder)

    def encode(pairs: list[tuple[str, str]]) -> dict[str, Any]:
        encoded = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
        return {name: value for name, value in encoded.items() if cls == "Bert" or name != "token_type_ids"}

    updates = []
    for rows in planned(recipe, run.folder, tmp_path)[2]:
        labels = torch.tensor([records[row][2] for row in rows])
        updates.append({**encode([records[row][:2] for row in rows]), "labels": labels})
    theirs = their_loop(network, updates, rate=3e-3)
    ours = [event["loss"] for event in read_journal(run.folder / "metrics.jsonl") if event["event"] == "train"]
    assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-4) and ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert sum(theirs[-10:]) < 0.9 * sum(theirs[:10])  # of the last and the first epoch: something was learned
    pairs = [record[:2] for record in records]
    with torch.no_grad():
        expected = network.eval()(**encode(pairs)).logits.squeeze(-1).tolist()
    assert model.similarity([a for a, _ in pairs], [b for _, b in pairs]) == pytest.approx(expected, abs=2e-2)


@pytest.mark.parametrize("preset", ["bert-tiny", "gpt2"])
def test_a_new_head_has_the_scale_of_its_numbers_and_is_exported_with_it(preset: str, tmp_path: Path) -> None:
    """Scores of 1 to 5 as any others; in their layout center and spread are in the weights of the last layer."""
    records = [{"text": a, "pair": b, "score": 1 + 4 * number / 5} for a, b, number in scored(60)]
    values = torch.tensor([row["score"] for row in records])  # (N,)
    small = {"preset": preset, "d_model": 16, "d_ff": 64, "n_heads": 2, "n_layers": 1, "max_len": 32}
    training = {"steps": 3, "batch_tokens": 16, "baseline": False, "precision": "float32"}
    kind = "wordpiece" if preset == "bert-tiny" else "bpe"
    recipe = {"task": "regression", "data": {}, "network": small, "training": training}
    recipe |= {"tokenizer": {"kind": kind, "vocab_size": 300}}
    model = atento.load(train(recipe, data={"train": records}, out=tmp_path / "run", threads=1).folder)
    (head,) = model.network.config.heads
    mean = float(values.double().mean()) if head.out_bias else 0  # a class of GPT-2 has no bias for it
    assert (head.center, head.spread) == pytest.approx((mean, float(values.double().std(unbiased=False))), rel=1e-5)
    model.save(tmp_path / "theirs", layout="huggingface")
    pairs = [(row["text"], row["pair"]) for row in records[:4]]
    ours = numbers_of(model, pairs)
    assert numbers_of(atento.load(tmp_path / "theirs"), pairs) == pytest.approx(ours, abs=1e-4)
    if preset == "bert-tiny":
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
        read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
        given = read(*map(list, zip(*pairs)), return_tensors="pt", padding=True)
        assert theirs(**given).logits.squeeze(-1).tolist() == pytest.approx(ours, abs=1e-4)
