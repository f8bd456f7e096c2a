"""GLUE: the nine tasks with the columns of their published files (Wang et al. 2019)."""

from atento_cli.suites.row import ACCURACY, MATTHEWS, PEARSON, POSITIVE_F1, SPEARMAN, Part, Row, Suite

_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")
_SENTENCES = {"text": "sentence1", "pair": "sentence2"}

ROWS = (
    Row(
        "CoLA",
        "is the sentence acceptable",
        ("CoLA/{split}.tsv",),
        {"text": 3, "label": 1},  # source, label, original mark, sentence; no header
        (MATTHEWS,),
        _BINARY,
        test_columns={"text": "sentence"},
    ),
    Row("SST-2", "sentiment", ("SST-2/{split}.tsv",), {"text": "sentence", "label": "label"}, (ACCURACY,), _BINARY),
    Row(
        "MRPC",
        "do the sentences say the same",
        ("MRPC/{split}.tsv",),
        {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
        (ACCURACY, POSITIVE_F1),
        _BINARY,
    ),
    Row(
        "STS-B",
        "how similar are the sentences, 0 to 5",
        ("STS-B/{split}.tsv",),
        _SENTENCES | {"score": "score"},
        (PEARSON, SPEARMAN),
        range=(0.0, 5.0),
    ),
    Row(
        "QQP",
        "do the questions ask the same",
        ("QQP/{split}.tsv",),
        {"text": "question1", "pair": "question2", "label": "is_duplicate"},
        (ACCURACY, POSITIVE_F1),
        _BINARY,
        index="id",
        recipe={"data": {"skip_bad": True}},  # some rows of the published file are broken
    ),
    Row(
        "MNLI",
        "entailment, in the genres of the training data and in others",
        ("MNLI/{split}.tsv",),
        _SENTENCES | {"label": "gold_label"},
        (ACCURACY,),
        ("contradiction", "entailment", "neutral"),
        parts=(
            Part("MNLI-m", "dev_matched", "test_matched"),
            Part("MNLI-mm", "dev_mismatched", "test_mismatched"),
            Part("AX", "", "diagnostic", ("diagnostic/{split}.tsv", "AX/{split}.tsv", "AX/AX.tsv")),
        ),
    ),
    Row(
        "QNLI",
        "does the sentence answer the question",
        ("QNLI/{split}.tsv",),
        {"text": "question", "pair": "sentence", "label": "label"},
        (ACCURACY,),
        _ENTAILMENT,
    ),
    Row("RTE", "entailment", ("RTE/{split}.tsv",), _SENTENCES | {"label": "label"}, (ACCURACY,), _ENTAILMENT),
    Row(
        "WNLI",
        "entailment that depends on a pronoun",
        ("WNLI/{split}.tsv",),
        _SENTENCES | {"label": "label"},
        (ACCURACY,),
        _BINARY,
    ),
)
GLUE = Suite("glue", ROWS, without="WNLI")
