"""Fine-tuning on questions beside a plain loop of transformers and torch: windows, labels, losses, answers (G3)."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import atento
from atento.runs.train import train
from atento.storage.atomic_files import write_atomically
from fine_tuning import STILL, planned, same_losses, their_loop, training, write_bert

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


def as_jsonl(path: Path, made: Sequence[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in made))


def their_windows(tokenizer: Any, made: Sequence[dict[str, Any]]) -> Any:
    """Questions and windows of their contexts as transformers' example of question answering makes them."""
    columns = [[record[name] for record in made] for name in ("question", "context")]
    options = {"return_overflowing_tokens": True, "return_offsets_mapping": True, "truncation": "only_second"}
    return tokenizer(*columns, max_length=WINDOW, stride=STRIDE, **options)


def their_labels(windows: Any, made: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
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
    as_jsonl(Path("train.jsonl"), made)
    as_jsonl(Path("valid.jsonl"), valid)
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
    labels = their_labels(windows, made)
    _, batches, plan = planned(recipe, run.folder, tmp_path)
    store = batches.stores.first
    assert [store["ids"][row].tolist() for row in range(len(store))] == windows["input_ids"]
    assert [store["segments"][row].tolist() for row in range(len(store))] == windows["token_type_ids"]
    assert [tuple(store["span"][row].tolist()) for row in range(len(store))] == labels
    assert {len(ids) for ids in windows["input_ids"]} == {WINDOW} and len(set(labels)) > 10
    updates = []
    for rows in plan:
        first, last = zip(*(labels[row] for row in rows))
        update: dict[str, Any] = {
            name: [windows[name][row] for row in rows] for name in ("input_ids", "token_type_ids")
        }
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
    state = network.state_dict()
    # A shift of all keys, or of all positions before the softmax over positions, changes nothing: these gradients are 0
    # but for rounding, which Adam divides by its own size.
    shifts = ("key.bias", "layer.1.output.LayerNorm.bias", "qa_outputs.bias")
    for name, value in back.state_dict().items():
        if not name.endswith(shifts):
            assert torch.allclose(value, state[name], atol=3e-3), name
