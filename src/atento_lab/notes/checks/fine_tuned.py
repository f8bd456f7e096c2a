"""Checks of the notes' listings from a data set to predictions, and of the sentiment of two sentences."""

import io
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from atento.config.tables.tasks import task_with
from atento.metrics import report, report_table
from atento.model import Model, load
from atento.runs.train import train
from atento_lab.notes.finding import AtLeast, Finding, compare

SENTENCES = ("This movie was fantastic!", "I did not like this film.")
_SUBJECTS = ("This movie", "This film", "The plot", "The music", "The ending", "That actor")
_GOOD = ("{} was fantastic!", "{} was great.", "I liked {}.", "I loved {} a lot.")
_BAD = ("{} was terrible.", "{} was boring!", "I did not like {}.", "I hated {} a lot.")


def reviews(subjects: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return sentences about these subjects with their labels."""
    forms = [(form, "positive") for form in _GOOD] + [(form, "negative") for form in _BAD]
    return [
        (form.format(subject if form.startswith("{") else subject[0].lower() + subject[1:]), label)
        for subject in subjects
        for form, label in forms
    ]


@cache
def classified() -> tuple[Model, float]:
    """Write a data set, train a classifier, evaluate it, save it and load it: the model and its accuracy."""
    with TemporaryDirectory() as name, redirect_stderr(io.StringIO()):
        folder = Path(name)
        for split, subjects in (("train", _SUBJECTS[:5]), ("test", _SUBJECTS[5:])):
            # the notes' own sentences are classified later, and stay unseen
            rows = [f"{text}\t{label}\n" for text, label in reviews(subjects) if text not in SENTENCES]
            (folder / f"{split}.tsv").write_text("".join(rows), encoding="utf-8", newline="\n")
        recipe = {
            "task": task_with("classify"),
            "data": {
                split: {"file": str(folder / f"{split}.tsv"), "text": 0, "label": 1} for split in ("train", "test")
            },
            "tokenizer": {"kind": "word", "vocab_size": 60},
            "network": {"preset": "bert-tiny", "n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2},
            "training": {"steps": 60, "batch_tokens": 20, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"},
        }
        run = train(recipe, out=folder / "run", device="cpu")
        saved = load(run.folder, device="cpu").save(folder / "saved", layout="huggingface")
        model = load(saved, device="cpu")
    assert run.test is not None
    return model, run.test["accuracy"]


def from_data_to_predictions() -> Finding:
    """K6: tokenizer, classifier, arguments, training, evaluation, save, load, predictions and report."""
    model, accuracy = classified()
    labels = [label.name for label in model.classify([text for text, _ in reviews(_SUBJECTS[5:])])]
    expected = [label for _, label in reviews(_SUBJECTS[5:])]
    table = report_table(report(labels, expected))
    width = model.embed(list(SENTENCES)).shape
    return compare(
        {
            "accuracy on a subject that training lacks": accuracy,
            "the predictions give it": sum(map(str.__eq__, labels, expected)) / len(labels) == accuracy,
            "classes of the report": [name for name in ("negative", "positive") if name in table],
            "features": list(width),
        },
        {
            "accuracy on a subject that training lacks": AtLeast(0.75),
            "the predictions give it": True,
            "classes of the report": ["negative", "positive"],
            "features": [2, 32],
        },
    )


def sentiment() -> Finding:
    """L8: by K6's classifier, whose training data lack them."""
    model = classified()[0]
    return compare([label.name for label in model.classify(list(SENTENCES))], ["positive", "negative"])
