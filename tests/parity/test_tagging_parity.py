"""Tagging beside transformers: logits of released taggers, and the losses and tags of a plain loop (G4)."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import atento
from atento.runs.train import train
from atento.tasks.tagging import word_tags
from fine_tuning import STILL, planned, same_losses, their_loop, training, write_bert

LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FRAMES = ["{PER} mora em {LOC} .", "Ontem , {PER} viu {LOC} .", "Em {LOC} não há ninguém .", "Isto é tudo"]
NAMES = {"PER": ["Ana", "Rui Costa", "Inês de Castro", "Lia"], "LOC": ["Lisboa", "Porto Alegre", "Rio", "Évora"]}

Sentence = tuple[list[str], list[str]]  # words and tags


def sentences() -> list[Sentence]:
    """The frames with every name in its slots."""
    made = []
    for frame, person, city in product(FRAMES, NAMES["PER"], NAMES["LOC"]):
        words: list[str] = []
        tags: list[str] = []
        for word in frame.split():
            kind = word.strip("{}") if word.startswith("{") else None
            parts = {"PER": person, "LOC": city}[kind].split() if kind else [word]
            words += parts
            tags += [f"{'I' if number else 'B'}-{kind}" if kind else "O" for number in range(len(parts))]
        made.append((words, tags))
    return made


@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta"])
def test_g4_a_released_tagger_loads_and_exports_with_equal_logits(family: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=60, max_position_embeddings=42, pad_token_id=1, id2label=dict(enumerate(LABELS)), **SMALL
    )
    theirs = getattr(transformers, f"{family}ForTokenClassification")(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model = atento.load(tmp_path / "theirs")
    assert model.config["task"] == "tagging" and not model.network.config.pooler
    assert model.network.config.heads[0].labels == tuple(LABELS)
    ids = torch.randint(5, 60, (2, 9))
    real = torch.ones_like(ids).bool()
    real[1, 6:] = False
    ids[~real] = 1
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=real.long()).logits
        logits = model.network.read("tagging", model.network(ids, token_mask=real), real)
    assert torch.allclose(logits[real], wanted[real], atol=1e-5)
    folder = model.save(tmp_path / "out", layout="huggingface")
    back, report = type(theirs).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and back.config.id2label == config.id2label
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in back.state_dict().items())


def tiny_bert(folder: Path) -> Path:
    """A BERT with a tagging head, whose tokenizer has no long word whole."""
    words = sorted({word.lower() for words, _ in sentences() for word in words})
    pieces = sorted({letter for word in words for letter in word})
    whole = [word for word in words if len(word) < 5 and len(word) > 1]
    words = [*whole, *pieces, *(f"##{piece}" for piece in pieces)]
    more: dict[str, Any] = {"max_position_embeddings": 64, "id2label": dict(enumerate(LABELS))}
    return write_bert(folder, "TokenClassification", words, **more)


def their_inputs(tokenizer: Any, update: list[Sentence]) -> dict[str, Any]:
    """Sentences as their example of token classification prepares them: -100 but for the first token of each word."""
    encoded = tokenizer([words for words, _ in update], is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full_like(encoded["input_ids"], -100)
    for row, (_, tags) in enumerate(update):
        index = encoded.word_ids(row)
        for word, tag in enumerate(tags):
            labels[row, index.index(word)] = LABELS.index(tag)
    return dict(encoded) | {"labels": labels}


def test_g4_every_loss_and_the_tags_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, head included, the same sentences in the same order, no dropout."""
    monkeypatch.chdir(tmp_path)
    init = tiny_bert(tmp_path / "bert")
    rows = ["\t".join([" ".join(words), " ".join(tags)]) for words, tags in sentences()]
    Path("train.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    source = {"file": "train.tsv", "tokens": 0, "tags": 1}
    recipe: dict[str, Any] = {"task": "tagging", "init": str(init), "data": {"train": source, "valid": source}}
    recipe |= {"network": STILL, "training": training(30, 3e-3, batch_tokens=40)}
    run = train(recipe, out="run", threads=1)
    model = atento.load(run.folder)
    assert model.tokenizer is not None and [head.kind for head in model.network.config.heads] == ["tagging"]

    network = transformers.AutoModelForTokenClassification.from_pretrained(init)
    tokenizer = transformers.AutoTokenizer.from_pretrained(init)
    updates = [[sentences()[row] for row in rows] for rows in planned(recipe, run.folder, tmp_path)[2]]
    theirs = their_loop(network, [their_inputs(tokenizer, update) for update in updates], rate=3e-3)
    same_losses(run.folder, theirs)
    assert theirs[-1] < 0.5 * theirs[0]  # something was learned

    network.eval()
    words = [words for words, _ in sentences()[:20]]
    for sentence, probabilities in zip(words, word_tags(model, words)):
        encoded = tokenizer(sentence, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            softmax = network(**encoded).logits[0].softmax(dim=-1)
        firsts = [encoded.word_ids(0).index(word) for word in range(len(sentence))]
        assert np.allclose(probabilities, softmax[firsts].numpy(), atol=5e-3)
    assert any(re.search("##", piece) for piece in model.tokenizer.tokens(model.tokenizer.encode("Inês de Castro")))


def test_the_pipeline_that_the_card_shows_finds_our_entities(tmp_path: Path) -> None:
    """A word has the tag of its first token; what the head says of the others was not learned."""
    model = atento.load(tiny_bert(tmp_path / "bert"))
    model.save(tmp_path / "out", layout="huggingface")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    strategy = card.split("aggregation_strategy='")[1].split("'")[0]
    theirs = transformers.pipeline("token-classification", model=str(tmp_path / "out"), aggregation_strategy=strategy)
    for words, _ in sentences():
        text = " ".join(words)
        ours = [(entity.label, entity.start, entity.end) for entity in model.tag(text, constrained=False)]
        assert [(one["entity_group"], one["start"], one["end"]) for one in theirs(text)] == ours
