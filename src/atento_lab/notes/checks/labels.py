"""Checks of the metrics of labels and numbers, and of perplexity, beside counts by hand (docs/notes.md#i4 to #i6)."""

import math
from collections.abc import Sequence

import torch

from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.tables.tasks import task_with
from atento.metrics import accuracy, f1, matthews, pearson, perplexity, report, spearman
from atento.model import Model
from atento.networks import build_network
from atento_lab.notes.checks.tiny import words
from atento_lab.notes.finding import AtMost, Finding, compare

ALMOST = AtMost(1e-9)
# Seven labels and their predictions: of "yes" three of four are found, and two of three "no" are called "yes".
RIGHT = ["yes", "yes", "yes", "yes", "no", "no", "no"]
PREDICTED = ["yes", "yes", "yes", "no", "yes", "yes", "no"]


def class_score(predicted: Sequence[str], right: Sequence[str], label: str) -> tuple[float, float, float]:
    """Return precision, recall and F1 of a label, counted example by example."""
    hits = sum(ours == label == theirs for ours, theirs in zip(predicted, right))
    n_predicted, n_right = list(predicted).count(label), list(right).count(label)
    recall = hits / n_right if n_right else 0.0
    return hits / n_predicted if n_predicted else 0.0, recall, 2 * hits / (n_predicted + n_right)


def by_definition(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the mean product of two lists in standard units."""
    count = len(first)
    means = [sum(side) / count for side in (first, second)]
    spreads = [math.sqrt(sum((x - mean) ** 2 for x in side)) for side, mean in zip((first, second), means)]
    return sum((x - means[0]) * (y - means[1]) for x, y in zip(first, second)) / (spreads[0] * spreads[1])


def ranked(values: Sequence[float]) -> list[float]:
    """Return the rank of each value: how many are smaller, and half of those that are equal."""
    return [sum((y < x) + (y == x) / 2 for y in values) for x in values]


def scores_away(draws: int = 20) -> float:
    """Return the largest error over random labels and numbers, with ties, against the definitions."""
    error = 0.0
    for _ in range(draws):
        predicted, right = ([f"c{n}" for n in torch.randint(3, (30,)).tolist()] for _ in range(2))
        labels = sorted({*predicted, *right})
        mean = sum(class_score(predicted, right, label)[2] for label in labels) / len(labels)
        one_hot = [[float(name == label) for name in side for label in labels] for side in (predicted, right)]
        x, y = (torch.randint(6, (20,)).tolist() for _ in range(2))
        error = max(
            error,
            abs(f1(predicted, right).value - mean),
            abs(f1(predicted, right).parts["f1_micro"] - accuracy(predicted, right).value),
            abs(pearson(x, y).value - by_definition(x, y)),
            abs(spearman(x, y).value - by_definition(ranked(x), ranked(y))),
            abs(matthews(predicted, right).value - matthews_by_definition(one_hot, len(labels))),
        )
    return error


def matthews_by_definition(one_hot: list[list[float]], width: int) -> float:
    """Return the correlation of two lists of one-hot rows, each column less its mean (Gorodkin 2004)."""
    sides = [torch.tensor(side, dtype=torch.float64).view(-1, width) for side in one_hot]
    first, second = (side - side.mean(dim=0) for side in sides)
    return float((first * second).sum() / math.sqrt(float((first**2).sum()) * float((second**2).sum())))


def label_scores() -> Finding:
    """I4: by hand and by their definitions."""
    tp, fn, fp, tn = 3, 1, 2, 1
    score = f1(PREDICTED, RIGHT)
    return compare(
        {
            "accuracy": accuracy(PREDICTED, RIGHT).value,
            "F1 of yes, of no, macro": [score.parts["f1[yes]"], score.parts["f1[no]"], score.value],
            "Matthews": matthews(PREDICTED, RIGHT).value,
            "Pearson and Spearman of 1 2 3 and 1 2 9": [
                pearson([1, 2, 3], [1, 2, 9]).value,
                spearman([1, 2, 3], [1, 2, 9]).value,
            ],
            "a constant": [matthews(["yes"] * 7, RIGHT).value, pearson([1, 1, 1], [1, 2, 3]).value],
            "random labels and numbers away from the definitions": scores_away(),
        },
        {
            "accuracy": 4 / 7,
            "F1 of yes, of no, macro": [6 / 9, 2 / 5, (6 / 9 + 2 / 5) / 2],
            "Matthews": (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)),
            "Pearson and Spearman of 1 2 3 and 1 2 9": [8 / math.sqrt(2 * 38), 1.0],
            "a constant": [0.0, 0.0],
            "random labels and numbers away from the definitions": ALMOST,
        },
        within=1e-9,
        remark="where one side is constant, the correlation is 0/0; its value is 0, and the settings say so",
    )


def classification_report() -> Finding:
    """I5: precision, recall, F1 and support of each label."""
    parts = report(PREDICTED, RIGHT).parts
    try:
        report(["yes", "no"], RIGHT[:5])
        refused = "no"
    except UsageError as error:
        refused = str(error)
    sides = ("precision", "recall", "f1")
    return compare(
        {
            **{label: [parts[f"{side}[{label}]"] for side in sides] for label in ("yes", "no")},
            "support": [parts["support[yes]"], parts["support[no]"]],
            "macro": [parts[f"{side}_macro"] for side in sides],
            "weighted": [parts[f"{side}_weighted"] for side in sides],
            "two predictions for five labels": "2 predictions, and the references have 5" in refused,
        },
        {
            "yes": [3 / 5, 3 / 4, 6 / 9],
            "no": [1 / 2, 1 / 3, 2 / 5],
            "support": [4.0, 3.0],
            "macro": [11 / 20, 13 / 24, 8 / 15],
            "weighted": [(4 * 3 / 5 + 3 / 2) / 7, 4 / 7, (4 * 6 / 9 + 3 * 2 / 5) / 7],
            "two predictions for five labels": True,
        },
        within=1e-9,
        remark="the notes give the report five labels and the predictions of two texts (error 44)",
    )


def weighted_perplexity() -> Finding:
    """I6: per token, and its exp; texts weigh by their tokens, batches do not count."""
    tokenizer = words()
    torch.manual_seed(3)
    config = NetworkConfig(
        architecture="decoder", d_model=8, d_ff=16, n_heads=2, n_layers=1, vocab_size=tokenizer.vocab_size
    )
    network = build_network(config).eval().double()
    settings = {"task": task_with("generate"), "template": "bos", "network": network_to_dict(network.config)}
    model = Model(network, tokenizer, settings, None, precision="float64")
    texts = ["Eu amo PLN", "I love NLP Eu gostar I amo PLN love", "NLP"]
    nats, tokens = 0.0, 0
    for text in texts:
        row = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        for at in range(1, len(row)):
            logits = network(ids=torch.tensor([row[:at]])).logits[0, -1].tolist()
            nats += math.log(sum(map(math.exp, logits))) - logits[row[at]]
            tokens += 1
    together, alone = model.perplexity(texts), [model.perplexity(text).parts for text in texts]
    one_by_one = sum(parts["nll"] * parts["tokens"] for parts in alone) / sum(parts["tokens"] for parts in alone)
    # Four tokens of 1/2 and one of 1/8 are seven bits over five tokens; the mean of 2 and 8 is 5.
    pair = perplexity([4 * math.log(1 / 2), math.log(1 / 8)], [4, 1])
    return compare(
        {
            "four tokens of 1/2 and one of 1/8": pair.value,
            "bits per token": pair.parts["bits"],
            "uniform over 50 words": perplexity([-3 * math.log(50)], [3]).value,
            "a model, away from token by token": abs(together.value / math.exp(nats / tokens) - 1),
            "together away from one by one": abs(together.parts["nll"] - one_by_one),
        },
        {
            "four tokens of 1/2 and one of 1/8": 2 ** (7 / 5),
            "bits per token": 7 / 5,
            "uniform over 50 words": 50.0,
            "a model, away from token by token": ALMOST,
            "together away from one by one": ALMOST,
        },
        within=1e-9,
    )
