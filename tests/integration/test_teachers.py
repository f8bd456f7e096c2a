"""A network learns from teachers: what it learns by, that they are asked once, exact after a stop; wrong teachers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atento
from atento.base.errors import AtentoError, RecipeError
from atento.config.reading.loading import load_recipe, recipe_schema
from atento.tasks.tagging import word_tags
from failing import fails
from runs import events

NETWORK = {"architecture": "encoder", "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0}
WORDS = {"fruit": ("apple", "pear", "plum"), "tool": ("saw", "drill", "file")}
TEXTS = [(f"the {word} is {place}", label) for label in WORDS for word in WORDS[label] for place in ("here", "there")]
TRAINING = {"steps": 4, "batch_tokens": 6, "precision": "float32", "log_every": 1, "schedule": "constant", "warmup": 0}


def recipe(task: str = "classification", **keys: Any) -> dict[str, Any]:
    given = {"task": task, "data": {"train": {"memory": "train"}}, "tokenizer": {"kind": "word", "vocab_size": 50}}
    return given | {"network": NETWORK} | keys | {"training": TRAINING | keys.get("training", {})}


def trained(given: dict[str, Any], data: list[Any], out: Path) -> Path:
    return atento.train(given, data={"train": data}, out=out, threads=1).folder


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two classifiers whose vocabularies and order of labels differ from the student's."""
    folder = tmp_path_factory.mktemp("teachers")
    network = NETWORK | {"heads": [{"kind": "classification", "labels": ["tool", "fruit"]}]}
    one = recipe(network=network, tokenizer={"kind": "character"}, training={"steps": 30, "learning_rate": 1e-2})
    other = recipe(tokenizer={"kind": "byte"}, training={"seed": 2, "learning_rate": 1e-2})
    return [trained(given, TEXTS, folder / name) for given, name in ((one, "one"), (other, "other"))]


def probabilities(run: Path, temperature: float) -> torch.Tensor:
    """(texts, labels), the labels in alphabetical order."""
    rows = [{one.name: one.probability for one in atento.load(run).classify(text, threshold=0.0)} for text, _ in TEXTS]
    return torch.softmax(torch.tensor([[row["fruit"], row["tool"]] for row in rows]).log() / temperature, dim=-1)


def test_the_loss_is_that_of_the_labels_and_of_the_mean_of_the_teachers(teachers: list[Path], tmp_path: Path) -> None:
    """One update of all texts, that changes the weights by nothing, so that the network can be asked for its own."""
    teacher = {"model": [str(path) for path in teachers], "weight": 0.3, "temperature": 3.0}
    once = {"steps": 1, "batch_tokens": len(TEXTS), "learning_rate": 1e-30}
    run = trained(recipe(teacher=teacher, training=once), TEXTS, tmp_path / "run")
    right = torch.stack([probabilities(path, 3.0) for path in teachers]).mean(dim=0)
    nll = F.nll_loss(probabilities(run, 1.0).log(), torch.tensor([int(label == "tool") for _, label in TEXTS]))
    soft = 9 * F.kl_div(probabilities(run, 3.0).log(), right, reduction="batchmean")
    (event,) = events(run, "train")
    assert event["loss"] == pytest.approx(float(0.7 * nll + 0.3 * soft), rel=1e-4)
    assert event["nll"] == pytest.approx(float(nll), rel=1e-4)


def test_teachers_are_asked_once_and_a_stopped_run_goes_on_bit_for_bit(teachers: list[Path], tmp_path: Path) -> None:
    """Another run, with more texts, asks for these alone; a teacher with other weights is another teacher."""
    given = recipe(teacher={"model": str(teachers[0]), "cache": "outputs"}, training={"checkpoint_every": 2})
    given["network"] = NETWORK | {"dropout": 0.1}
    at = tmp_path / "recipe.yaml"
    at.write_text(json.dumps(given))  # JSON is YAML
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        whole = atento.train(at, data={"train": TEXTS}, out="whole", threads=1).folder
        atento.train(at, {"training.steps": 2}, data={"train": TEXTS}, out="half", threads=1)
        half = atento.train(at, data={"train": TEXTS}, out="half", threads=1).folder
        more = atento.train(at, data={"train": [*TEXTS, ("a plum", "fruit")]}, out="more", threads=1).folder
        gold = atento.train(at, {"teacher": None}, data={"train": TEXTS}, out="gold", threads=1).folder
        weights = [atento.load(run).network.state_dict() for run in (whole, half, gold)]
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
        assert not all(torch.equal(value, weights[2][name]) for name, value in weights[0].items())
        logs = [(run / "train.log").read_text() for run in (whole, half, more)]
        for log, said in zip(logs, ("12 records, 12 computed", "12 records, 0 computed", "13 records, 1 computed")):
            assert f"outputs for {said}, the others from" in log
        assert len(list((tmp_path / "outputs").glob("*.safetensors"))) == 1
        changes = {"training.steps": 6, "teacher.model": [str(teachers[1])]}
        with pytest.raises(AtentoError, match="was trained with another teacher, or its weights have changed"):
            atento.train(at, changes, data={"train": TEXTS}, out="half", threads=1)
        changes["teacher.model"] = [str(shutil.copytree(teachers[0], tmp_path / "moved"))]
        assert atento.train(at, changes, data={"train": TEXTS}, out="half", threads=1).step == 6


def test_a_teacher_may_be_written_as_a_name_or_a_list(tmp_path: Path) -> None:
    """The JSON Schema has all three forms."""
    for written, models in (("a/b", ("a/b",)), (["a/b", "c"], ("a/b", "c")), ({"model": "c"}, ("c",))):
        assert load_recipe(recipe(teacher=written)).recipe.teacher.model == models  # type: ignore[union-attr]
    forms: Any = recipe_schema()["properties"]["teacher"]["anyOf"]  # type: ignore[index]
    assert [form.get("type") for form in forms] == ["string", "array", None, "null"]
    for written, said in (
        ([], r"`teacher.model` must name a model: got \[\]"),
        ({"model": "a", "weight": 0}, "`teacher.weight` must lie above 0 and be at most 1"),
        ({"model": "a", "temperature": -1}, "`teacher.temperature` must be finite and above 0"),
        ({"model": "a", "cache": ""}, "`teacher.cache` must name a folder"),
    ):
        fails(RecipeError, said, load_recipe, recipe(teacher=written))


KNOWN = "it does not know the label 'animal' of kinds.tsv:3: its labels must be those of the training data. Known: "


def test_wrong_teachers_are_one_sentence_with_file_and_line(teachers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS))
    (tmp_path / "kinds.tsv").write_text("text\tlabel\na saw\ttool\na cat\tanimal\n")
    data = "data: {train: {file: train.tsv, text: text, label: label}}\n"
    named = "my.yaml:2:10: teacher "
    for task, teacher, change, said in (
        ("classification", "none", "", f"{named}none: no model at none"),
        ("classification", "micro-world-en-pt", "", f"{named}micro-world-en-pt: it was trained for translation"),
        ("classification", teachers[0], "data.train.0.file=kinds.tsv", KNOWN),
        ("multi-label-classification", teachers[0], "", "was trained for classification and has no multi-label head"),
        ("cbow", teachers[0], "~data.train.label", f"{named}is for the objectives sequence-to-sequence, "),
        ("classification", teachers[0], "init={model: a, train: head, classifier: {}}", "leave init.classifier out"),
    ):
        (tmp_path / "my.yaml").write_text(f"task: {task}\nteacher: {teacher}\n{data}")
        with pytest.raises(RecipeError, match=re.escape(said)) as error:
            atento.train(tmp_path / "my.yaml", [change] if change else [], out=tmp_path / "run")
        assert named in str(error.value) and "\n" not in str(error.value) and not (tmp_path / "run").exists()


ONCE = {"steps": 1, "batch_tokens": 5000, "learning_rate": 1e-30, "label_smoothing": 0.0}
TAGGED = [(["the", "apple", "is", "here"], ["O", "B-X", "O", "O"]), (["a", "saw"], ["O", "B-Y"])]
NUMBERS = [("an apple", "a pear", 0.5), ("a saw", "an apple", -1.0), ("a file", "a saw", 2.0)]
SETS = [("an apple", ["red", "round"]), ("a saw", []), ("a pear", ["round"])]
PAIRS = [("the apple", "an apple"), ("the saw", "a saw"), ("the file", "a file")]


def loss_of_one_update(given: dict[str, Any], data: list[Any], out: Path) -> tuple[float, float]:
    """The loss and the negative log-likelihood of an update that changes the weights by nothing."""
    (event,) = events(trained(given | {"training": given["training"] | ONCE}, data, out), "train")
    return event["loss"], event["nll"]


def sets_of(model: atento.Model) -> list[list[list[float]]]:
    every = model.classify([text for text, _ in SETS], threshold=0.0)
    return [[[{one.name: one.probability for one in labels}[name] for name in ("red", "round")]] for labels in every]


def test_tags_sets_numbers_and_vectors_are_learned(tmp_path: Path) -> None:
    """Each against what the two models say when they are asked."""
    sides = [text for pair in PAIRS for text in pair]
    firsts, seconds = [first for first, _, _ in NUMBERS], [second for _, second, _ in NUMBERS]
    for task, data, asked in (
        ("tagging", TAGGED, lambda model: word_tags(model, [words for words, _ in TAGGED])),
        ("multi-label-classification", SETS, sets_of),
        ("regression", NUMBERS, lambda model: [[[number]] for number in model.similarity(firsts, seconds)]),
        ("embedding", PAIRS, lambda model: [[vector] for vector in model.embed(sides)]),
    ):
        given = recipe(task, training={"label_smoothing": 0.0})
        other = given | {"tokenizer": {"kind": "byte"}, "training": given["training"] | {"seed": 2}}
        teacher = trained(other, data, tmp_path / f"{task}-teacher")
        alone = loss_of_one_update(given, data, tmp_path / f"{task}-alone")
        taught = loss_of_one_update(given | {"teacher": str(teacher)}, data, tmp_path / f"{task}-taught")
        folders = (tmp_path / f"{task}-taught", teacher)
        ours, right = (torch.tensor(np.concatenate(asked(atento.load(run)))) for run in folders)
        if task == "multi-label-classification":  # of each class, present or not, its mean over classes
            ours, right = (torch.stack([p, 1 - p], dim=-1).flatten(0, 1) for p in (ours, right))
        if task in ("tagging", "multi-label-classification"):
            p, q = (torch.softmax(shares.log() / 2, dim=-1) for shares in (ours, right))
            soft = 4 * F.kl_div(p.log(), q, reduction="batchmean")
        else:
            soft = F.mse_loss(ours, right)
        if task == "regression":  # its loss is in units of the spread of its numbers
            soft /= atento.load(tmp_path / f"{task}-taught").network.config.heads[0].spread ** 2
        assert taught[0] == pytest.approx(alone[0] / 2 + float(soft) / 2, rel=1e-4) and taught[1] == alone[1], task


def test_the_sources_of_a_mixture_have_their_own_records(teachers: list[Path], tmp_path: Path) -> None:
    """Of two sources with a share each, the outputs stand beside the records of each."""
    for name, rows in (("one", TEXTS[:5]), ("two", TEXTS[5:])):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    sources = [{"file": f"{name}.tsv", "text": "text", "label": "label"} for name in ("one", "two")]
    data = {"folder": str(tmp_path), "train": sources, "mixing": {"kind": "weights", "weights": [1, 3]}}
    itself = {"model": str(teachers[1]), "weight": 1.0}
    given = recipe(data=data, init=str(teachers[1]), teacher=itself, training=ONCE | {"batch_tokens": 200})
    run = atento.train(given, out=tmp_path / "run", threads=1).folder
    log = (run / "train.log").read_text()
    assert "outputs for 5 records, 5 computed" in log and "outputs for 7 records, 7 computed" in log
    (event,) = events(run, "train")
    assert abs(event["loss"]) < 1e-5 < event["nll"]


def test_tokens_are_learned_from_a_teacher_with_the_same_tokenizer(tmp_path: Path) -> None:
    """A network learns nothing from itself, and something from another one; then its outputs as targets."""
    folder, texts = tmp_path / "own", [text for text, _ in TEXTS]
    pairs, other = list(zip(texts, reversed(texts))), {"kind": "byte"}
    seq2seq = NETWORK | {"architecture": "encoder-decoder"}
    given = recipe("translation", network=seq2seq, tokenizer={"kind": "character"}, decoding={"beam": 3})
    run = trained(given | {"training": given["training"] | {"batch_tokens": 100}}, pairs, folder)
    itself = {"model": str(run), "weight": 1.0, "n_best": 0}
    loss, nll = loss_of_one_update(given | {"init": str(run), "teacher": itself}, pairs, tmp_path / "itself")
    assert abs(loss) < 1e-5 < nll
    path = {"tokenizer": {"path": str(run / "tokenizer")}}
    assert loss_of_one_update(given | path | {"teacher": itself}, pairs, tmp_path / "new")[0] > 1e-4
    best = atento.load(run).translate(texts, n_best=2)
    student = given | {"tokenizer": other, "teacher": {"model": str(run), "n_best": 2, "cache": str(tmp_path)}}
    loss, nll = loss_of_one_update(student, pairs, tmp_path / "student")
    student_model = atento.load(tmp_path / "student")
    rows = [one for text, outputs in zip(texts, best) for one in student_model.score([text] * 2, outputs)]
    scores = [log_prob for one in rows for log_prob in one.log_probs]
    assert loss == nll == pytest.approx(-sum(scores) / len(scores), rel=1e-4)
    masked = recipe("masked-language-modeling", network=NETWORK)
    again = trained(masked, texts, tmp_path / "masked")
    itself["model"] = str(again)
    loss, nll = loss_of_one_update(masked | {"init": str(again), "teacher": itself}, texts, tmp_path / "filled")
    assert abs(loss) < 1e-5 < nll


def test_teachers_of_other_tokens_tasks_and_widths_are_refused(teachers: list[Path], tmp_path: Path) -> None:
    texts = [text for text, _ in TEXTS]
    masked = recipe("masked-language-modeling")
    narrow = masked | {"network": NETWORK | {"max_len": 8, "positions": {"kind": "learned"}}}
    model = trained(narrow, texts, tmp_path / "model")
    vectors = recipe("embedding", network=NETWORK | {"d_model": 8})
    both = recipe(objective=["labels", "masked"]) | {"tokenizer": {"kind": "character"}}
    none = "it was trained for classification, and has no tokens to teach a recipe for"
    for given, data, teacher, said in (
        (masked | {"tokenizer": {"kind": "byte"}}, texts, model, "it has another vocabulary; with `tokenizer.path`"),
        (masked, texts, teachers[0], f"{none} masked-language-modeling"),
        (masked, texts, model, "it reads at most 8 tokens: got `data.max_len` 256"),
        (both, TEXTS, teachers[0], f"{none} classification"),
        (vectors, PAIRS, model, "its vectors have 16 numbers, and those of the network 8"),
    ):
        with pytest.raises(RecipeError, match=re.escape(f"teacher {teacher}: {said}")):
            trained(given | {"teacher": str(teacher)}, data, tmp_path / "run")


def test_outputs_of_several_kinds_are_kept_in_one_folder(teachers: list[Path], tmp_path: Path) -> None:
    """A classifier teaches labels, then its vectors; they have other widths."""
    kept = {"model": str(teachers[0]), "cache": str(tmp_path / "outputs")}
    for task, data in (("classification", TEXTS), ("embedding", PAIRS), ("classification", TEXTS)):
        trained(recipe(task, teacher=kept, training=ONCE), data, tmp_path / f"{task}-{len(list(tmp_path.iterdir()))}")
    stems = sorted(path.stem.partition("-")[2] for path in (tmp_path / "outputs").iterdir())
    assert stems == ["classification", "vectors"]


def test_vectors_are_learned_behind_the_prompts_of_the_recipe(tmp_path: Path) -> None:
    """Where the teacher has prompts of these names, and says of none for which field it is."""
    prompts = {"query": "the ", "passage": "a "}
    given = recipe("embedding", embedding={"prompts": prompts})
    teacher = atento.load(trained(given, PAIRS, tmp_path / "teacher"))
    fields = {"prompts": dict.fromkeys(prompts, ""), "field_prompts": {"text": "query", "pair": "passage"}}
    ours = given | {"embedding": fields, "tokenizer": {"kind": "byte"}}
    alone = loss_of_one_update(ours, PAIRS, tmp_path / "alone")[0]
    taught = loss_of_one_update(ours | {"teacher": str(teacher.path)}, PAIRS, tmp_path / "taught")[0]
    student = atento.load(tmp_path / "taught")
    sides = [[text for text, _ in PAIRS], [text for _, text in PAIRS]]
    right = [teacher.embed(side, prompt_name=name) for side, name in zip(sides, prompts)]
    own = [student.embed(side, prompt="") for side in sides]
    soft = F.mse_loss(torch.tensor(np.concatenate(own)), torch.tensor(np.concatenate(right)))
    assert taught == pytest.approx(alone / 2 + float(soft) / 2, rel=1e-4)


def test_a_teacher_of_tokens_reads_none_of_the_stored_vectors(tmp_path: Path) -> None:
    """They are of the run's own network; equal widths would hide it."""
    texts = [text for text, _ in TEXTS]
    masked = recipe("masked-language-modeling")
    one = trained(masked, texts, tmp_path / "one")
    path = masked | {"tokenizer": {"path": str(one / "tokenizer")}, "training": masked["training"] | {"seed": 5}}
    other = trained(path, texts, tmp_path / "other")
    losses = []
    for cache in (None, str(tmp_path / "vectors")):
        init = {"model": str(one), "train": "head"} | ({} if cache is None else {"cache": cache})
        given = masked | {"init": init, "teacher": {"model": str(other), "weight": 1.0}}
        given["training"] = given["training"] | {"steps": 1}
        losses.append(loss_of_one_update(given, texts, tmp_path / f"run-{cache is None}")[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0] > 1e-4


def test_a_branch_may_have_another_teacher_one_that_reads_less_says_it(teachers: list[Path], tmp_path: Path) -> None:
    given = recipe(training={"checkpoint_every": 2})
    trained(given, TEXTS, tmp_path / "begun")
    taught = given | {"teacher": str(teachers[0])}
    done = atento.train(taught, data={"train": TEXTS}, from_=f"{tmp_path / 'begun'}@2", out=tmp_path / "on", threads=1)
    assert done.step == 4 and "outputs for 12 records" in (tmp_path / "on" / "train.log").read_text()
    teacher = recipe(tokenizer={"kind": "byte"}, data={"train": {"memory": "train"}, "max_len": 12})
    short = trained(teacher, TEXTS, tmp_path / "short")
    run = trained(recipe(teacher=str(short), training=ONCE), TEXTS, tmp_path / "run")
    assert f"warning: teacher {short}: 12 of 12 texts cut to 12 tokens" in (run / "train.log").read_text()
