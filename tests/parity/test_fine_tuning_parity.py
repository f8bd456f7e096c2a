"""Fine-tuning beside a plain loop of transformers and torch: texts (G1), tags (G4), answers (G3), rates (F4)."""

import json
import random
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import atento
from atento.config.sections.training import TrainingConfig
from atento.runs.train import train
from atento.tasks.tagging import word_tags
from atento.training.optimizer import SCHEDULES, learning_rate
from atento_world import write
from fine_tuning import STILL, planned, same_losses, their_loop, training, write_bert
from released_folders import MINILM, write_released

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
    path.write_text("".join(f"{text}\t{label}\n" for text, label in records), encoding="utf-8")


def both_splits(count: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """So many texts of training and half as many of validation, which are written too."""
    made = labelled("train", count), labelled("valid", count // 2, seed=3)
    for name, records in zip(("train.tsv", "valid.tsv"), made):
        as_tsv(Path(name), records)
    return made


def tiny_bert(folder: Path, texts: Sequence[str]) -> Path:
    """A BERT with a classifier and its tokenizer, as transformers makes and saves them."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    more = {"max_position_embeddings": 48, "id2label": dict(enumerate(LABELS))}
    return write_bert(folder, "SequenceClassification", words, strip_accents=None, **more)


def recipe_of(init: Path, steps: int, rate: float, **more: Any) -> dict[str, Any]:
    """No dropout anywhere, every loss in the log."""
    data = {name: {"file": f"{name}.tsv", "text": 0, "label": 1} for name in ("train", "valid")}
    made: dict[str, Any] = {"task": "classification", "init": str(init), "data": data}
    return made | {"network": {"max_len": 48, **STILL}, "training": training(steps, rate, **more)}


def inputs_of(encode: Any, updates: Sequence[Sequence[tuple[str, int]]]) -> list[dict[str, Any]]:
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
    records, valid = both_splits(120)
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
    out = model.save(tmp_path / "out", layout="huggingface")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    for name, value in back.state_dict().items():
        if not name.endswith("key.bias"):  # its gradient is 0 but for rounding, and Adam divides it by its own size
            assert torch.allclose(value, network.state_dict()[name], atol=2e-3), name
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
    records, valid = both_splits(160)
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


TAGS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
FRAMES = ["{PER} mora em {LOC} .", "Ontem , {PER} viu {LOC} .", "Em {LOC} não há ninguém .", "Isto é tudo"]
NAMES = {"PER": ["Ana", "Rui Costa", "Inês de Castro", "Lia"], "LOC": ["Lisboa", "Porto Alegre", "Rio", "Évora"]}
Sentence = tuple[list[str], list[str]]  # words and tags
SENTENCES: list[Sentence] = []
for frame, person, city in product(FRAMES, NAMES["PER"], NAMES["LOC"]):  # every name in the slots of each
    SENTENCES.append(([], []))
    for word in frame.split():
        kind = word.strip("{}") if word.startswith("{") else None
        parts = {"PER": person, "LOC": city}[kind].split() if kind else [word]
        SENTENCES[-1][0].extend(parts)
        SENTENCES[-1][1].extend(f"{'I' if number else 'B'}-{kind}" if kind else "O" for number in range(len(parts)))


def tagger(folder: Path) -> Path:
    """A BERT with a tagging head, whose tokenizer has no long word whole."""
    words = sorted({word.lower() for words, _ in SENTENCES for word in words})
    pieces = sorted({letter for word in words for letter in word})
    words = [*(word for word in words if 1 < len(word) < 5), *pieces, *(f"##{piece}" for piece in pieces)]
    more = {"max_position_embeddings": 64, "id2label": dict(enumerate(TAGS))}
    return write_bert(folder, "TokenClassification", words, **more)


def their_inputs(tokenizer: Any, update: list[Sentence]) -> dict[str, Any]:
    """Sentences as their example of token classification prepares them: -100 but for the first token of each word."""
    encoded = tokenizer([words for words, _ in update], is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full_like(encoded["input_ids"], -100)
    for row, (_, tags) in enumerate(update):
        for word, tag in enumerate(tags):
            labels[row, encoded.word_ids(row).index(word)] = TAGS.index(tag)
    return dict(encoded) | {"labels": labels}


def test_g4_every_loss_and_the_tags_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, head included, the same sentences in the same order, no dropout."""
    monkeypatch.chdir(tmp_path)
    init = tagger(tmp_path / "bert")
    as_tsv(Path("train.tsv"), [(" ".join(words), " ".join(tags)) for words, tags in SENTENCES])
    source = {"file": "train.tsv", "tokens": 0, "tags": 1}
    recipe: dict[str, Any] = {"task": "tagging", "init": str(init), "data": {"train": source, "valid": source}}
    recipe |= {"network": STILL, "training": training(30, 3e-3, batch_tokens=40)}
    run = train(recipe, out="run", threads=1)
    model = atento.load(run.folder)
    assert model.tokenizer is not None and [head.kind for head in model.network.config.heads] == ["tagging"]
    network = transformers.AutoModelForTokenClassification.from_pretrained(init)
    tokenizer = transformers.AutoTokenizer.from_pretrained(init)
    updates = [[SENTENCES[row] for row in rows] for rows in planned(recipe, run.folder, tmp_path)[2]]
    theirs = their_loop(network, [their_inputs(tokenizer, update) for update in updates], rate=3e-3)
    same_losses(run.folder, theirs)
    assert theirs[-1] < 0.5 * theirs[0]  # something was learned
    network.eval()
    words = [words for words, _ in SENTENCES[:20]]
    for sentence, probabilities in zip(words, word_tags(model, words)):
        encoded = tokenizer(sentence, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            softmax = network(**encoded).logits[0].softmax(dim=-1)
        firsts = [encoded.word_ids(0).index(word) for word in range(len(sentence))]
        assert np.allclose(probabilities, softmax[firsts].numpy(), atol=5e-3)
    assert any(re.search("##", piece) for piece in model.tokenizer.tokens(model.tokenizer.encode("Inês de Castro")))


def test_g4_the_pipeline_that_the_card_shows_finds_our_entities(tmp_path: Path) -> None:
    """A word has the tag of its first token; what the head says of the others was not learned."""
    model = atento.load(tagger(tmp_path / "bert"))
    (head,) = model.network.config.heads
    assert model.config["task"] == "tagging" and not model.network.config.pooler and head.labels == tuple(TAGS)
    model.save(tmp_path / "out", layout="huggingface")
    strategy = (tmp_path / "out" / "README.md").read_text("utf-8").split("aggregation_strategy='")[1].split("'")[0]
    theirs = transformers.pipeline("token-classification", model=str(tmp_path / "out"), aggregation_strategy=strategy)
    assert theirs.model.config.id2label == dict(enumerate(TAGS))
    for words, _ in SENTENCES:
        text = " ".join(words)
        ours = [(entity.label, entity.start, entity.end) for entity in model.tag(text, constrained=False)]
        assert [(one["entity_group"], one["start"], one["end"]) for one in theirs(text)] == ours


WINDOW, STRIDE = 20, 5  # tokens; 14 of a window are context
LENGTH = 14 + 9 + 9  # of each context: three full windows, so that no row has padding
WHO, WHAT, WHERE = ["ana", "rui", "noé", "zoé"], ["maçã", "pera", "uva"], ["faro", "évora", "braga"]
NOISE = ["hoje", "ontem", "então", "depois", "logo", "sempre"]


def records(count: int, seed: int) -> list[dict[str, Any]]:
    """Who ate what and where, anywhere in a text that says nothing else; a third does not answer the question."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        facts = {"quem": draw.choice(WHO), "que": draw.choice(WHAT), "onde": draw.choice(WHERE)}
        key = draw.choice(list(facts))
        stated = [word for fact, word in facts.items() if fact != key or draw.random() < 0.7]
        words = [draw.choice(NOISE) for _ in range(LENGTH - len(stated) - 1)]
        position = draw.randrange(len(words))
        context = " ".join([*words[:position], "comeu", *stated, *words[position:]])
        start = context.find(facts[key])
        answers = [{"text": facts[key], "answer_start": start}] if start >= 0 else []
        made.append({"question": f"{key} comeu ?", "context": context, "answers": answers})
    return made


def their_windows(tokenizer: Any, made: Sequence[dict[str, Any]]) -> Any:
    """Questions and windows of their contexts as transformers' example of question answering makes them."""
    columns = [[record[name] for record in made] for name in ("question", "context")]
    options = {"return_overflowing_tokens": True, "return_offsets_mapping": True, "truncation": "only_second"}
    return tokenizer(*columns, max_length=WINDOW, stride=STRIDE, **options)


def their_spans(windows: Any, made: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """The first and last token of the answer in each window, as in that example; [CLS] where it is not whole."""
    labels = []
    for row, record in enumerate(windows["overflow_to_sample_mapping"]):
        offsets, sides, answers = windows["offset_mapping"][row], windows.sequence_ids(row), made[record]["answers"]
        context = [position for position, side in enumerate(sides) if side == 1]
        start = answers[0]["answer_start"] if answers else -1  # before every context
        end = start + len(answers[0]["text"]) if answers else -1
        if offsets[context[0]][0] > start or offsets[context[-1]][1] < end:
            labels.append((0, 0))
            continue
        first = max(position for position in context if offsets[position][0] <= start)
        labels.append((first, min(position for position in context if offsets[position][1] >= end)))
    return labels


@torch.no_grad()
def their_answers(network: Any, tokenizer: Any, made: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    """The best span of all windows, and whether the lowest score of [CLS] is higher, as in that example."""
    network.eval()
    windows = their_windows(tokenizer, made)
    null = [float("inf")] * len(made)
    best = [(float("-inf"), "")] * len(made)
    for row, record in enumerate(windows["overflow_to_sample_mapping"]):
        out = network(**{name: torch.tensor([windows[name][row]]) for name in ("input_ids", "token_type_ids")})
        start, end = out.start_logits[0].tolist(), out.end_logits[0].tolist()
        null[record] = min(null[record], start[0] + end[0])
        offsets, sides = windows["offset_mapping"][row], windows.sequence_ids(row)
        context = [position for position, side in enumerate(sides) if side == 1]
        for first in context:
            for last in range(first, min(context[-1], first + 29) + 1):
                text = made[record]["context"][offsets[first][0] : offsets[last][1]]
                best[record] = max(best[record], (start[first] + end[last], text), key=lambda pair: pair[0])
    return [(text, nothing > score) for (score, text), nothing in zip(best, null)]


def test_g3_windows_labels_losses_and_answers_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, head included, the same windows in the same order, no dropout."""
    monkeypatch.chdir(tmp_path)
    made, valid = records(120, 1), records(60, 3)
    for split, rows in (("train", made), ("valid", valid)):
        Path(f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    words = [*WHO, *WHAT, *WHERE, *NOISE, "comeu", "?", "quem", "que", "onde"]
    init = write_bert(tmp_path / "bert", "QuestionAnswering", words, max_position_embeddings=WINDOW)
    columns = {name: name for name in ("question", "context", "answers")}
    files: dict[str, Any] = {name: {"file": f"{name}.jsonl", **columns} for name in ("train", "valid")}
    recipe = {"task": "question-answering", "init": str(init), "data": files | {"max_len": WINDOW, "stride": STRIDE}}
    recipe |= {"network": {"max_len": WINDOW, **STILL}, "training": training(60, 3e-3)}
    run = train(recipe, out="run", threads=1)
    network = transformers.AutoModelForQuestionAnswering.from_pretrained(init)
    tokenizer = transformers.AutoTokenizer.from_pretrained(init)
    windows = their_windows(tokenizer, made)
    labels = their_spans(windows, made)
    _, batches, plan = planned(recipe, run.folder, tmp_path)
    store = batches.stores.first
    assert [store["ids"][row].tolist() for row in range(len(store))] == windows["input_ids"]
    assert [store["segments"][row].tolist() for row in range(len(store))] == windows["token_type_ids"]
    assert [tuple(store["span"][row].tolist()) for row in range(len(store))] == labels
    assert {len(ids) for ids in windows["input_ids"]} == {WINDOW} and len(set(labels)) > 10
    updates = []
    for rows in plan:
        first, last = zip(*(labels[row] for row in rows))
        update = {name: [windows[name][row] for row in rows] for name in ("input_ids", "token_type_ids")}
        update |= {"start_positions": first, "end_positions": last}
        updates.append({name: torch.tensor(value) for name, value in update.items()})
    theirs = their_loop(network, updates, 3e-3)
    same_losses(run.folder, theirs, within=3e-4)
    assert theirs[0] > 2 * theirs[-1]  # something was learned
    model = atento.load(run.folder)
    back = transformers.AutoModelForQuestionAnswering.from_pretrained(model.save(tmp_path / "out", "huggingface"))
    predicted = their_answers(back, tokenizer, valid)
    pairs = [record["question"] for record in valid], [record["context"] for record in valid]
    assert [answer.text for answer in model.answer(*pairs)] == ["" if nothing else text for text, nothing in predicted]
    spans = model.answer(*pairs, null_threshold=float("inf"))
    assert [answer.text for answer in spans] == [text for text, _ in predicted] and len(set(predicted)) > 9
    # A shift of all keys, or of all positions before the softmax over positions, changes nothing: these gradients are 0
    # but for rounding, which Adam divides by its own size.
    shifts = ("key.bias", "layer.1.output.LayerNorm.bias", "qa_outputs.bias")
    for name, value in back.state_dict().items():
        if not name.endswith(shifts):
            assert torch.allclose(value, network.state_dict()[name], atol=3e-3), name


UPDATES, WARM = 59, 10
THEIRS: dict[str, tuple[Any, ...]] = {  # schedule -> the function of transformers and its arguments
    **{name: (f"{name}_schedule_with_warmup", WARM, UPDATES + 1) for name in ("linear", "cosine")},
    "constant": ("constant_schedule_with_warmup", WARM),
    "inverse-sqrt": ("inverse_sqrt_schedule", WARM),
    "wsd": ("wsd_schedule", WARM, 25, UPDATES + 1, None, "linear", "linear"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_f4_the_rates_are_those_of_transformers_without_its_first_update_of_rate_zero(schedule: str) -> None:
    """Theirs begin a warm-up at 0, in an update that changes nothing; their last update has a rate above 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    name, *arguments = THEIRS[schedule]
    theirs = getattr(transformers, f"get_{name}")(optimizer, *arguments)
    rates = []
    for _ in range(UPDATES + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    config = TrainingConfig(learning_rate=0.8, warmup=WARM, schedule=schedule, decay=0.5)  # type: ignore[arg-type]
    ours = [learning_rate(config, step, UPDATES) for step in range(1, UPDATES + 1)]
    assert rates[0] == 0 and ours == pytest.approx(rates[1:], rel=1e-12) and ours[-1] > 0
