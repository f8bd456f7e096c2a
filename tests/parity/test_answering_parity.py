"""Fine-tuning on questions beside a plain loop of transformers and torch: windows, labels, losses, answers (G3)."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.config.reading.loading import load_recipe
from atento.data.batches.planning import PlannedBatches
from atento.runs.prepare import read_data, training_batches
from atento.runs.train import train
from atento.storage.whole_file import write_whole
from atento.training.journal import read_journal
from fine_tuning import their_loop

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:.*is_torch_tf32_available.*")]

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
    write_whole(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in made))


def tiny_bert(folder: Path) -> Path:
    """A BERT with an answer head and its tokenizer, as transformers makes and saves them."""
    words = [*WHO, *WHAT, *WHERE, *NOISE, "comeu", "?", "quem", "que", "onde"]
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        max_position_embeddings=WINDOW,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
        initializer_range=0.15,
        **sizes,
    )
    torch.manual_seed(5)
    transformers.BertForQuestionAnswering(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=vocabulary, strip_accents=False).save_pretrained(folder)
    return folder


def their_windows(tokenizer: Any, made: Sequence[dict[str, Any]], longest: int, stride: int, **more: Any) -> Any:
    """Questions and windows of their contexts as transformers' example of question answering makes them."""
    return tokenizer(
        [record["question"] for record in made],
        [record["context"] for record in made],
        truncation="only_second",
        max_length=longest,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        **more,
    )


def their_labels(windows: Any, made: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """The first and last token of the answer in each window, as in that example; [CLS] where it is not whole."""
    labels = []
    for row, record in enumerate(windows["overflow_to_sample_mapping"]):
        offsets, sides, answers = windows["offset_mapping"][row], windows.sequence_ids(row), made[record]["answers"]
        context = [position for position, side in enumerate(sides) if side == 1]
        if not answers:
            labels.append((0, 0))
            continue
        start, end = answers[0]["answer_start"], answers[0]["answer_start"] + len(answers[0]["text"])
        if offsets[context[0]][0] > start or offsets[context[-1]][1] < end:
            labels.append((0, 0))
            continue
        first = max(position for position in context if offsets[position][0] <= start)
        labels.append((first, min(position for position in context if offsets[position][1] >= end)))
    return labels


@torch.no_grad()
def their_answers(
    network: Any, tokenizer: Any, made: Sequence[dict[str, Any]], longest: int, stride: int, max_answer: int = 30
) -> list[tuple[str, bool]]:
    """The best span of all windows, and whether the lowest score of [CLS] is higher, as in that example."""
    network.eval()
    windows = their_windows(tokenizer, made, longest, stride)
    null = [float("inf")] * len(made)
    best = [(float("-inf"), "")] * len(made)
    for row, record in enumerate(windows["overflow_to_sample_mapping"]):
        out = network(**{name: torch.tensor([windows[name][row]]) for name in ("input_ids", "token_type_ids")})
        start, end = out.start_logits[0].tolist(), out.end_logits[0].tolist()
        null[record] = min(null[record], start[0] + end[0])
        offsets, sides = windows["offset_mapping"][row], windows.sequence_ids(row)
        context = [position for position, side in enumerate(sides) if side == 1]
        for first in context:
            for last in range(first, min(context[-1], first + max_answer - 1) + 1):
                text = made[record]["context"][offsets[first][0] : offsets[last][1]]
                best[record] = max(best[record], (start[first] + end[last], text), key=lambda pair: pair[0])
    return [(text, nothing > score) for (score, text), nothing in zip(best, null)]


def recipe_of(init: Path, steps: int, rate: float, longest: int, stride: int) -> dict[str, Any]:
    columns = {name: name for name in ("question", "context", "answers")}
    files: dict[str, Any] = {name: {"file": f"{name}.jsonl", **columns} for name in ("train", "valid")}
    return {
        "task": "question-answering",
        "init": str(init),
        "data": files | {"max_len": longest, "stride": stride},
        "training": {
            "steps": steps,
            "batch_tokens": 16,
            "learning_rate": rate,
            "warmup": 4,
            "schedule": "linear",
            "weight_decay": 0.1,
            "precision": "float32",
            "log_every": 1,
            "validate_every": steps,
            "checkpoint_every": steps,
        },
    }


def test_g3_windows_labels_losses_and_answers_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, head included, the same windows in the same order, no dropout."""
    monkeypatch.chdir(tmp_path)
    made, valid = records(120, 1), records(60, 3)
    as_jsonl(Path("train.jsonl"), made)
    as_jsonl(Path("valid.jsonl"), valid)
    init, steps, rate = tiny_bert(tmp_path / "bert"), 60, 3e-3
    recipe = recipe_of(init, steps, rate, WINDOW, STRIDE)
    still = {"max_len": WINDOW, "dropout": 0.0, "attention": {"dropout": 0.0}, "feed_forward": {"dropout": 0.0}}
    recipe["network"] = still
    run = train(recipe, out="run", threads=1)

    network = transformers.AutoModelForQuestionAnswering.from_pretrained(init)
    tokenizer = transformers.AutoTokenizer.from_pretrained(init)
    windows = their_windows(tokenizer, made, WINDOW, STRIDE)
    labels = their_labels(windows, made)
    batches = our_batches(recipe, run.folder, tmp_path)
    store = batches.stores.first
    assert [store["ids"][row].tolist() for row in range(len(store))] == windows["input_ids"]
    assert [store["segments"][row].tolist() for row in range(len(store))] == windows["token_type_ids"]
    assert [tuple(store["span"][row].tolist()) for row in range(len(store))] == labels
    assert {len(ids) for ids in windows["input_ids"]} == {WINDOW} and len(set(labels)) > 10
    updates = []
    for step in range(steps):
        rows = [int(row) for part in batches.rows(step) for row in part]
        first, last = zip(*(labels[row] for row in rows))
        update = {name: [windows[name][row] for row in rows] for name in ("input_ids", "token_type_ids")}
        updates.append(
            {k: torch.tensor(v) for k, v in (update | {"start_positions": first, "end_positions": last}).items()}
        )
    theirs = their_loop(network, updates, rate)
    events = read_journal(run.folder / "metrics.jsonl")
    ours = [event["loss"] for event in events if event["event"] == "train"]
    assert ours == pytest.approx(theirs, abs=3e-4) and ours[0] == pytest.approx(theirs[0], abs=2e-6)
    assert theirs[0] > 2 * theirs[-1]  # something was learned
    model = atento.load(run.folder)
    back = transformers.AutoModelForQuestionAnswering.from_pretrained(model.save(tmp_path / "out", "huggingface"))
    predicted = their_answers(back, tokenizer, valid, WINDOW, STRIDE)
    pairs = [record["question"] for record in valid], [record["context"] for record in valid]
    answers = model.answer(*pairs)
    assert [answer.text for answer in answers] == ["" if nothing else text for text, nothing in predicted]
    spans = model.answer(*pairs, null_threshold=float("inf"))
    assert [answer.text for answer in spans] == [text for text, _ in predicted] and len(set(predicted)) > 9
    state = network.state_dict()
    # A shift of all keys, or of all positions before the softmax over positions, changes nothing: these gradients are 0
    # but for rounding, which Adam divides by its own size.
    shifts = ("key.bias", "layer.1.output.LayerNorm.bias", "qa_outputs.bias")
    for name, value in back.state_dict().items():
        if not name.endswith(shifts):
            assert torch.allclose(value, state[name], atol=3e-3), name


def our_batches(recipe: dict[str, Any], run: Path, folder: Path) -> PlannedBatches:
    model = atento.load(run)
    assert model.tokenizer is not None
    loaded = load_recipe(recipe).recipe
    data = read_data(loaded, folder, print)
    batches = training_batches(loaded, model.network.config, model.tokenizer, data.train, print)
    assert isinstance(batches, PlannedBatches)
    return batches
