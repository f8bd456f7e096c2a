"""Question answering through recipe, command and Python: files, offsets, windows, architectures, refusals (G3)."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import DataError, ModelError, UsageError
from atento.runs.train import TrainedRun
from atento.tasks import question_answering
from conftest import ForkServer, refused
from failing import fails
from runs import events

TINY = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 2, "dropout": 0.0, "max_len": 64}
ENCODER = {"architecture": "encoder", **TINY, "positions": {"kind": "learned"}, "embedding": {"segments": 2}}
WHO, WHAT = ["Ana", "Rui", "Noe\u0301", "Zoé"], ["uma maçã", "um figo 🍇", "uma pera"]  # one accent is a combining mark
WHERE = ["Faro", "Évora", "Braga"]


def records(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Who ate what, where, after some words that say nothing; two in five do not say where."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        who, what, where = draw.choice(WHO), draw.choice(WHAT), draw.choice(WHERE)
        words = [draw.choice(["hoje", "ontem", "então", "depois", "logo"]) for _ in range(draw.randrange(8))]
        context = " ".join([*words, who, "comeu", what, f"em {where} . fim" if draw.random() < 0.6 else ". fim"])
        question, answer = draw.choice([("quem comeu ?", who), ("o que comeu ?", what), ("onde comeu ?", where)])
        answers = [{"text": answer, "answer_start": context.index(answer)}] if answer in context else []
        made.append({"question": question, "context": context, "answers": answers})
    return made


def as_jsonl(made: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in made)


def squad_json(made: list[dict[str, Any]]) -> str:
    """The records in the layout of SQuAD 2.0."""
    paragraphs = []
    for number, record in enumerate(made):
        asked = {"id": str(number), "is_impossible": not record["answers"]}
        asked |= {name: record[name] for name in ("question", "answers")}
        paragraphs.append({"context": record["context"], "qas": [asked]})
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}, ensure_ascii=False)


def recipe(network: dict[str, Any] = ENCODER, data: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    usual = {"steps": 100, "batch_tokens": 16, "learning_rate": 5e-3, "warmup": 10, "precision": "float32"}
    usual |= {"validate_every": 50, "checkpoint_every": 50}
    made = {"task": "question-answering", "network": network, "tokenizer": {"kind": "word", "vocab_size": 200}}
    return made | {"data": {"max_len": 18, "stride": 5} | (data or {}), "training": usual | training}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    data = {"train": records(250), "valid": records(40, 2)}
    return atento.train(recipe(), data=data, out=tmp_path_factory.mktemp("answering") / "run", threads=1)


def test_answers_are_spans_of_the_context_or_empty(run: TrainedRun) -> None:
    assert run.best is not None and run.best > 97
    log = (run.folder / "train.log").read_text(encoding="utf-8")
    assert "250 questions in" in log and "windows of at most 18 tokens" in log and "about 16 windows" in log
    model = atento.load(run.folder)
    assert model.config["answering"] == {"stride": 5, "max_answer": 30, "unanswerable": True}
    noise = "hoje ontem então depois logo " * 6  # an answer is found in any window of a long context
    for before in range(0, len(noise), 29):
        assert model.answer("quem comeu ?", f"{noise[:before]} Zoé comeu uma pera . fim {noise[before:]}").text == "Zoé"
    context = "hoje Noe\u0301 comeu um figo 🍇 . fim"
    answer = model.answer("quem comeu ?", context)
    assert (answer.text, answer.start, answer.end) == ("Noe\u0301", 5, 9) and 0.5 < answer.probability <= 1
    several = model.answer(["o que comeu ?", "onde comeu ?"], [context, context])
    assert [answer.text for answer in several] == ["um figo 🍇", ""] and several[1].start == several[1].end == 0
    best = model.answer("quem comeu ?", context, n_best=4)
    assert best[0] == answer and len({(choice.start, choice.end) for choice in best}) == 4
    assert sum(choice.probability for choice in best) <= 1 + 1e-9
    assert model.answer("onde comeu ?", context, null_threshold=float("inf")).text != ""
    assert len(model.answer(["quem comeu ?"], [context], n_best=2, max_answer=1)[0][0].text.split()) == 1
    fails(UsageError, "give a question and its context, or a list of each", model.answer, "quem ?", [context])
    fails(UsageError, "`n_best` must be at least 1: got 0", lambda: model.answer("quem ?", context, n_best=0))
    fails(UsageError, "as many questions as contexts: got 1 and 2", model.answer, ["quem ?"], [context, context])
    score = atento.evaluate(model, records(40, 3))["squad"]
    low, high = score.interval()
    assert score.value > 95 and score.parts["exact_match_unanswerable"] > 90 and 80 < low <= score.value <= high


def test_commands(run: TrainedRun, server: ForkServer, tmp_path: Path) -> None:
    held_out = records(60, 4)
    ours = atento.evaluate(atento.load(run.folder), held_out)["squad"]
    for name, text in (("valid.jsonl", as_jsonl(held_out)), ("valid.json", squad_json(held_out))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = server.run("evaluate", run.folder, name, "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["squad"]["value"] == pytest.approx(ours.value)
    context = "logo Zoé comeu um figo 🍇 em Évora . fim"
    lines = [f"quem comeu ?\t{context}", "", f"onde comeu ?\t{context[:-15]} . fim", f"onde comeu ?\t{context}"]
    done = server.run("answer", run.folder, cwd=tmp_path, stdin="\n".join(lines) + "\n")
    assert done.status == 0 and done.stdout.splitlines() == ["Zoé", "", "", "Évora"]
    objects = [json.dumps({"question": "o que comeu ?", "context": context, "id": 7}), ""]
    (tmp_path / "questions.jsonl").write_text("\n".join(objects), encoding="utf-8")
    done = server.run("answer", run.folder, "questions.jsonl", "--json", "--n-best", "2", cwd=tmp_path)
    first = json.loads(done.stdout.splitlines()[0])
    assert first["question"] == "o que comeu ?" and len(first["answers"]) == 2
    best = first["answers"][0]
    assert best["text"] == context[best["start"] : best["end"]] == "um figo 🍇" and 0 < best["probability"] <= 1
    assert server.run("answer", run.folder, "--jsonl", cwd=tmp_path, stdin=objects[0] + "\n").stdout == "um figo 🍇\n"
    spoken = server.run("answer", run.folder, "valid.jsonl", cwd=tmp_path).stdout
    without_answers = [{**record, "answers": None} for record in held_out]
    (tmp_path / "asked.json").write_text(squad_json(without_answers).replace('"is_impossible": true', '"x": 1'))
    (tmp_path / "rows.json").write_text(json.dumps(held_out), encoding="utf-8")
    cells = "".join(f"7,{record['context']},{record['question']}\n" for record in held_out)
    (tmp_path / "asked.csv").write_text(f"id,context,question\n{cells}", encoding="utf-8")
    for name in ("valid.json", "asked.json", "rows.json", "asked.csv"):
        assert server.run("answer", run.folder, name, cwd=tmp_path).stdout == spoken, name
    (tmp_path / "text.txt").write_text(f"hoje\n{context}\n", encoding="utf-8")
    done = server.run("answer", run.folder, "--question", "onde comeu ?", "--context", "text.txt", cwd=tmp_path)
    assert done.stdout == "Évora\n"
    done = server.run("answer", run.folder, "--n-best", "3", cwd=tmp_path, stdin=lines[0] + "\n")
    assert done.stdout.startswith("Zoé\t") and done.stdout.count("\t") == 2


def test_what_the_command_refuses(run: TrainedRun, server: ForkServer, tmp_path: Path) -> None:
    def answer(text: str, *options: str) -> Any:
        return server.run("answer", run.folder, *options, cwd=tmp_path, stdin=text)

    refused(answer("a\n"), "standard input:1: a line must hold a question and its context with a tab", ": got 1 text")
    refused(answer("a\t \n"), "standard input:1: the context is blank")
    refused(answer("{\n", "--jsonl"), "standard input:1: the line is not JSON")
    refused(answer('{"question": 1}\n', "--jsonl"), "must be an object with the strings `question` and `context`")
    (tmp_path / "a.csv").write_text("question,context\nquem comeu ?,Ana comeu uma pera . fim\nquem ?,\n")
    refused(answer("", "a.csv"), "a.csv:3: the context is blank")
    assert answer("", "a.csv", "--skip-bad").stdout == "Ana\n\n"
    refused(answer("", "--question", "quem ?"), "--question and --context belong together")
    refused(answer("", "file.tsv", "--question", "quem ?", "--context", "-"), "replace FILE")
    done = answer("quem comeu ?\tAna comeu uma pera . fim\na\n")
    assert done.status == 1 and done.stdout == "Ana\n" and "standard input:2: a line must hold" in done.stderr
    long = f"quem comeu ?\tAna comeu uma pera . fim\n{'quem ' * 20}?\tAna\nb\n"
    refused(answer(long.removesuffix("b\n")), "standard input:2: the question 'quem quem", "' has 21 tokens", "no room")
    done = answer(long, "--skip-bad")
    assert done.stdout == "Ana\n\n\n" and "warning: 2 bad lines skipped, first: standard input:3" in done.stderr


def test_data_commands(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(squad_json(records(30)), encoding="utf-8")
    (tmp_path / "qa.yaml").write_text(json.dumps(recipe(data={"train": {"file": "train.json"}})), encoding="utf-8")
    assert server.run("config", "check", "qa.yaml", cwd=tmp_path).status == 0
    done = server.run("data", "peek", "qa.yaml", "--count", "8", "--json", cwd=tmp_path)
    examples = [json.loads(line) for line in done.stdout.splitlines()]
    for example in examples:
        first, last = example["labels"]["ids"]
        assert example["labels"]["tokens"] == [example["ids"]["tokens"][first], example["ids"]["tokens"][last]]
    starts = {example["labels"]["tokens"][0] for example in examples}
    assert "<s>" in starts and starts & {"Ana", "Rui", "Noé", "Zoé", "uma", "um", *WHERE}
    done = server.run("data", "stats", "qa.yaml", cwd=tmp_path)
    assert "train: 30 examples" in done.stdout and "read in windows" in done.stdout


def test_what_is_refused_before_training(tmp_path: Path) -> None:
    made = records(20)

    def refuse(message: str, data: list[dict[str, Any]], changes: dict[str, Any] | None = None) -> None:
        fails(DataError, message, atento.train, recipe(data=changes), data=data, out=tmp_path / "run", threads=1)

    answer = "Ana comeu um figo e uma maçã e uma pera e tudo o resto"
    long = [{"question": "q ?", "context": answer, "answers": [{"text": answer, "answer_start": 0}]}]
    refuse("no answer is whole in a window of 18 tokens: raise `data.max_len`", long)
    mark = {"question": "q ?", "context": "a \u0007 b", "answers": [{"text": "\u0007", "answer_start": 2}]}
    refuse(r"the tokenizer has no token for the answer '\\x07'", [*made, mark])
    refuse("no question is left", [mark], {"skip_bad": True})
    atento.train(recipe(data={"max_answer": 1}, steps=1), data=[*made, *long], out=tmp_path / "some", threads=1)
    log = (tmp_path / "some" / "train.log").read_text(encoding="utf-8")
    assert "warning: 1 of 21 questions left out: the answer is whole in no window of 18 tokens" in log
    lengths = [len(record["answers"][0]["text"].split()) for record in [*made, *long] if record["answers"]]
    several = sum(length > 1 for length in lengths)  # a token is a word
    warned = f"warning: {several} of 21 questions have an answer of more than `data.max_answer` 1 tokens"
    assert 2 in lengths and warned in log
    # with `skip_bad` a question without a token is left out and counted: the model is that of the other records
    run = atento.train(recipe(data={"skip_bad": True}, steps=1), data=[*made, mark], out=tmp_path / "run", threads=1)
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "warning: 1 question left out, first data['train']:20: the tokenizer has no token for the answer" in log
    assert "is whole in no window" not in log and run.step == 1


def test_a_model_that_always_had_an_answer_always_gives_one(tmp_path: Path) -> None:
    """As SQuAD 1.1: windows without the answer still teach that they hold none."""
    answerable = [record for record in records(200) if record["answers"]]
    model = atento.load(atento.train(recipe(steps=40), data=answerable, out=tmp_path / "run", threads=1).folder)
    assert model.config["answering"]["unanswerable"] is False
    assert all(answer.text for answer in model.answer(["onde comeu ?"] * 2, ["Ana comeu . fim", "hoje . fim"]))


ELMO = {"architecture": "elmo", "d_model": 32, "n_layers": 1, "dropout": 0.0}  # reads whole words
CHARACTERS = {"filters": [[1, 16], [2, 16]], "n_highway": 1, "d_char": 8}


@pytest.mark.parametrize(
    ("network", "least"),
    [
        ({"architecture": "decoder", **TINY}, 90),
        pytest.param({"architecture": "encoder-decoder", **TINY}, 90, marks=pytest.mark.slow),
        pytest.param({"preset": "gpt2", **TINY}, 60, marks=pytest.mark.slow),  # a decoder, as above
        ({"preset": "t5-small", **TINY, "attention": {"d_head": 16}}, 90),
        ({"architecture": "recurrent-seq2seq", "d_model": 32, "n_layers": 1, "dropout": 0.0, "recurrent": {}}, 45),
        ({"architecture": "recurrent-lm", "d_model": 32, "n_layers": 1, "dropout": 0.0, "recurrent": {}}, 45),
        pytest.param({**ELMO, "elmo": {"d_cell": 32, "characters": None}}, 45, marks=pytest.mark.slow),
        # as test_classification.py has it
        pytest.param({**ELMO, "elmo": {"d_cell": 32, "characters": CHARACTERS}}, 30, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.get("preset", value.get("architecture")) if isinstance(value, dict) else "",
)
def test_every_architecture_learns_spans(network: dict[str, Any], least: float, tmp_path: Path) -> None:
    """A decoder reads the question before the context; of a network that reads a source, the encoder answers (F9)."""
    data = {"train": records(250), "valid": records(40, 2)}
    run = atento.train(recipe(network, validate_every=100), data=data, out=tmp_path / "run", threads=1)
    assert run.best is not None and run.best > least
    model = atento.load(run.folder)
    pairs = [(record["question"], record["context"]) for record in records(6, 5)]
    together = model.answer(*map(list, zip(*pairs)))
    assert [model.answer(*pair).text for pair in pairs] == [answer.text for answer in together]  # padding is not read


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "byte"])
def test_every_tokenizer_gives_characters(kind: str, tmp_path: Path) -> None:
    made = records(60)
    given = recipe(data={"max_len": 64, "stride": 16}, steps=6) | {"tokenizer": {"kind": kind, "vocab_size": 330}}
    model = atento.load(atento.train(given, data=made, out=tmp_path / "run", threads=1).folder)
    for record in made[:8]:
        for answer in model.answer(record["question"], record["context"], n_best=5):
            assert record["context"][answer.start : answer.end] == answer.text
            assert not record["context"][answer.end :].startswith("\u0301")


@pytest.mark.parametrize("preset", ["bert-tiny", "roberta-base", "modernbert-base"])
def test_export_to_transformers_and_back(preset: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    made = records(60)
    given = recipe({"preset": preset, **TINY}, {"max_len": 64}, steps=10)
    given["tokenizer"] = {"kind": "bpe", "vocab_size": 330}
    model = atento.load(atento.train(given, data=made, out=tmp_path / "run", threads=1).folder)
    assert not model.network.config.pooler
    folder = model.save(tmp_path / "out", layout="huggingface")
    network, report = transformers.AutoModelForQuestionAnswering.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    back = atento.load(folder)
    assert back.config["task"] == "question-answering"
    for record in made[:4]:
        inputs = tokenizer(record["question"], record["context"], return_tensors="pt")
        with torch.no_grad():
            theirs = network(**inputs)
            segments = {"segment_ids": inputs["token_type_ids"]} if "token_type_ids" in inputs else {}
            ours = back.network.read("answer", back.network(ids=inputs["input_ids"], **segments))
        torch.testing.assert_close(torch.stack([theirs.start_logits, theirs.end_logits], dim=-1), ours)
        answers = [loaded.answer(record["question"], record["context"]) for loaded in (model, back)]
        assert (answers[0].text, answers[0].start) == (answers[1].text, answers[1].start)
        assert answers[0].probability == pytest.approx(answers[1].probability, abs=1e-5)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "AutoModelForQuestionAnswering" in card and "model.answer(" in card


def test_fine_tuning_keeps_an_answer_head_and_gives_others_a_new_one(run: TrainedRun, tmp_path: Path) -> None:
    still = recipe(steps=1, learning_rate=0.0) | {"init": str(run.folder)}
    before = atento.load(run.folder).network.state_dict()
    again = atento.load(atento.train(still, data=records(20), out=tmp_path / "again", threads=1).folder)
    assert all(torch.equal(value, before[name]) for name, value in again.network.state_dict().items())
    classifier = {"task": "classification", "init": str(run.folder), "data": {}, "training": {"steps": 1}}
    texts = [("hoje", "a"), ("ontem", "b")]
    labels = atento.load(atento.train(classifier, data=texts, out=tmp_path / "labels", threads=1).folder)
    assert [head.kind for head in labels.network.config.heads] == ["classification"]
    changes = recipe(steps=1) | {"init": str(tmp_path / "labels")}
    answers = atento.load(atento.train(changes, data=records(20), out=tmp_path / "answers", threads=1).folder)
    assert [head.kind for head in answers.network.config.heads] == ["answer"]
    assert events(tmp_path / "answers", "train")[0]["loss"] > 0


def test_with_skip_bad_a_question_too_long_for_a_window_is_counted(tmp_path: Path, server: ForkServer) -> None:
    made = records(30)
    long = {**made[3], "question": " ".join(["quem"] * 40) + " ?"}
    (tmp_path / "bad.jsonl").write_text(as_jsonl([*made[:3], long, *made[4:]]), encoding="utf-8")
    source = {name: name for name in ("question", "context", "answers")} | {"file": "bad.jsonl"}
    settings = recipe(data={"train": source, "valid": source}, steps=2, validate_every=2)
    (tmp_path / "recipe.json").write_text(json.dumps(settings), encoding="utf-8")
    command = ["train", "recipe.json", "--out", "run", "--threads", "1"]
    refused(server.run(*command, cwd=tmp_path), "bad.jsonl:4: the question 'quem quem", "' has 41 tokens")
    done = server.good(*command, "data.skip_bad=true", cwd=tmp_path)
    for name in ("train", "valid"):
        assert f"warning: data.{name}: 1 of 30 questions skipped; the first: bad.jsonl:4: the question" in done.stderr
    scored = server.run("evaluate", "run", "bad.jsonl", "--no-skip-bad", cwd=tmp_path)
    refused(scored, "bad.jsonl:4: the question 'quem quem", "' has 41 tokens")
    assert "1 of 30 questions skipped" in server.good("evaluate", "run", "bad.jsonl", cwd=tmp_path).stderr


def test_a_file_in_the_layout_of_squad_is_trained_on_by_the_command(tmp_path: Path, server: ForkServer) -> None:
    """Long contexts, questions without an answer, emoji and accents before answers; two bad answers."""
    made = records(60)
    for record in made[::3]:  # many windows, with characters of two code points before the answer
        before = "então 😀 Noe\u0301 depois 👋🏽 " * 8
        record["context"] = before + record["context"]
        for answer in record["answers"]:
            answer["answer_start"] += len(before)
    good = squad_json(made)
    for number in (4, 10):
        made[number] = {**made[number], "answers": [{"text": "Ana", "answer_start": 1}]}
    (tmp_path / "good.json").write_text(good, encoding="utf-8")
    text = squad_json(made).replace('{"context"', '\n{"context"')  # a paragraph a line, the fifth is bad
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    sources = {"train": {"file": "bad.json"}, "valid": {"file": "good.json"}}
    settings = recipe(data=sources, steps=40, validate_every=20, log_every=10)
    (tmp_path / "recipe.json").write_text(json.dumps(settings), encoding="utf-8")
    command = ["train", "recipe.json", "--out", "run", "--threads", "1"]
    done = server.run(*command, cwd=tmp_path)
    refused(done, "bad.json:6: question '4': answer 'Ana' is not at character 1 of its context")
    done = server.good(*command, "data.skip_bad=true", cwd=tmp_path)
    assert "2 bad" in done.stderr and "bad.json:6: question '4'" in done.stderr
    assert "58 questions in" in done.stderr and "windows of at most 18 tokens" in done.stderr
    trained = [event["loss"] for event in events(tmp_path / "run", "train")]
    assert trained[-1] < 0.7 * trained[0]
    assert json.loads(server.good("evaluate", "run", "good.json", "--json", cwd=tmp_path).stdout)["squad"]["value"] > 40


def test_the_answering_section_of_a_model_is_checked_when_it_is_loaded(run: TrainedRun, tmp_path: Path) -> None:
    model = atento.load(run.folder)
    negative = ({"stride": -1}, "`answering.stride` must not be negative: got -1")
    wrong = (negative, ({"max_answer": "ten"}, "answering.max_answer"), ({"windows": 3}, "unknown"))
    for number, (section, message) in enumerate(wrong):
        model.config["answering"] = section
        fails(ModelError, message, atento.load, model.save(tmp_path / str(number)))


def test_a_language_says_which_articles_count(run: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, answers = tmp_path / "one.jsonl", [{"text": "uma pera", "answer_start": 10}]
    record = {"question": "o que comeu ?", "context": "Ana comeu uma pera . fim", "answers": answers}
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    monkeypatch.setattr(question_answering, "_best", lambda *_: [question_answering.Answer("pera", 14, 18, 1.0)])
    model = atento.load(run.folder)
    scores = {language: atento.evaluate(model, path, language=language)["squad"] for language in ("en", "pt")}
    assert scores["pt"].parts["exact_match"] == 100 and scores["en"].parts["exact_match"] == 0
    fails(UsageError, "`language` must be a code such as en: got 'x!'", atento.evaluate, model, path, language="x!")
