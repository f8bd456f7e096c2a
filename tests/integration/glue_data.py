"""Made-up data in the published layout of each task of GLUE and of the Portuguese table; labels follow one word."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

WORDS = ("gato", "casa", "livro", "vento", "mesa", "rio", "pão", "sol")
COUNTS = {"train": 24, "dev": 8, "test": 6, "dev_matched": 8, "dev_mismatched": 8, "test_matched": 6}
COUNTS |= {"test_mismatched": 6, "diagnostic": 5}


def texts(number: int) -> tuple[str, str, bool]:
    """Two sentences that differ by the number, and whether the first word of both is the same."""
    first, second = WORDS[number % 8], WORDS[(number * 3) % 8 if number % 2 else number % 8]
    return f'the {first} number {number} is "here"', f"the {second} is here", first == second


def numbers(split: str) -> range:
    """The numbers of the records of a split; those of `dev` follow those of `train`."""
    first = COUNTS["train"] if split.startswith("dev") else 0
    return range(first, first + COUNTS[split])


def write_glue(folder: Path, leave_out: Sequence[str] = ()) -> Path:
    """All nine tasks and the diagnostic set, as the archives of GLUE unpack; quotes stand alone and mean nothing."""
    for name, write in GLUE.items():
        if name not in leave_out:
            write(folder / name)
    return folder


def table(path: Path, header: Sequence[str] | None, row: Callable[[int], Sequence[object]]) -> None:
    """A file with as many rows as `COUNTS` says of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [] if header is None else ["\t".join(header)]
    lines += ["\t".join(map(str, row(number))) for number in numbers(path.stem)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def cola(folder: Path) -> None:
    for split in ("train", "dev"):
        table(folder / f"{split}.tsv", None, lambda n: ("gj04", int(texts(n)[2]), "*"[texts(n)[2] :], texts(n)[0]))
    table(folder / "test.tsv", ("index", "sentence"), lambda n: (n, texts(n)[0]))


def sst2(folder: Path) -> None:
    for split in ("train", "dev"):
        table(folder / f"{split}.tsv", ("sentence", "label"), lambda n: (texts(n)[0], int(texts(n)[2])))
    table(folder / "test.tsv", ("index", "sentence"), lambda n: (n, texts(n)[0]))


def mrpc(folder: Path) -> None:
    ids = ("#1 ID", "#2 ID", "#1 String", "#2 String")
    for split in ("train", "dev"):
        header = ("\ufeffQuality", *ids)  # the published files begin with a byte order mark
        table(folder / f"{split}.tsv", header, lambda n: (int(texts(n)[2]), n, n + 1, *texts(n)[:2]))
    table(folder / "test.tsv", ("\ufeffindex", *ids), lambda n: (n, n, n + 1, *texts(n)[:2]))


def stsb(folder: Path) -> None:
    head = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")
    row = ("main-news", "file", "2016", "0007", "none", "none")
    for split in ("train", "dev"):
        table(folder / f"{split}.tsv", (*head, "score"), lambda n: (n, *row, *texts(n)[:2], f"{n % 6}.000"))
    table(folder / "test.tsv", head, lambda n: (n, *row, *texts(n)[:2]))


def qqp(folder: Path) -> None:
    head = ("qid1", "qid2", "question1", "question2", "is_duplicate")
    for split in ("train", "dev"):
        table(folder / f"{split}.tsv", ("id", *head), lambda n: (n, n, n, *texts(n)[:2], int(texts(n)[2])))
    with (folder / "train.tsv").open("a", encoding="utf-8") as stream:
        stream.write("99\t1\t2\tbroken\n")  # as some rows of the published file
    table(folder / "test.tsv", ("id", "question1", "question2"), lambda n: (n, texts(n)[0], texts(n)[1] * (n != 2)))


def mnli(folder: Path) -> None:
    kinds = ("contradiction", "entailment", "neutral")
    trees = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
    head = ("index", "promptID", "pairID", "genre", *trees, "sentence1", "sentence2")
    row = ("31193", "31193n", "government", "( a )", "( b )", "(ROOT a)", "(ROOT b)")
    table(folder / "train.tsv", (*head, "label1", "gold_label"), lambda n: (n, *row, *texts(n)[:2], "x", kinds[n % 3]))
    labels = ("label1", "label2", "label3", "label4", "label5", "gold_label")
    for kind in ("matched", "mismatched"):
        table(folder / f"dev_{kind}.tsv", (*head, *labels), lambda n: (n, *row, *texts(n)[:2], *"xxxxx", kinds[n % 3]))
        table(folder / f"test_{kind}.tsv", head, lambda n: (n, *row, *texts(n)[:2]))


def diagnostic(folder: Path) -> None:
    table(folder / "diagnostic.tsv", ("index", "sentence1", "sentence2"), lambda n: (n, *texts(n)[:2]))


def _pairs(first: str, second: str, labels: tuple[str, str]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for split in ("train", "dev"):
            head = ("index", first, second, "label")
            table(folder / f"{split}.tsv", head, lambda n: (n, *texts(n)[:2], labels[texts(n)[2]]))
        table(folder / "test.tsv", ("index", first, second), lambda n: (n, *texts(n)[:2]))

    return write


ENTAILMENT = ("not_entailment", "entailment")
GLUE: dict[str, Callable[[Path], None]] = {"CoLA": cola, "SST-2": sst2, "MRPC": mrpc, "STS-B": stsb, "QQP": qqp}
GLUE |= {"MNLI": mnli, "diagnostic": diagnostic, "QNLI": _pairs("question", "sentence", ENTAILMENT)}
GLUE |= {"RTE": _pairs("sentence1", "sentence2", ENTAILMENT), "WNLI": _pairs("sentence1", "sentence2", ("0", "1"))}


def write_portuguese(folder: Path) -> Path:
    """The Portuguese sets, each as its repository has it; of PLUE, two tasks."""
    three, two = ("Entailment", "None", "Paraphrase"), ("Entailment", "None")
    for kind in ("ptbr", "ptpt"):
        for split in ("train", "dev", "test"):
            assin(folder / "assin" / f"assin-{kind}-{split}.xml", split, three)
    for split in ("train", "dev", "test"):
        name = "train-only" if split == "train" else split
        assin(folder / "assin2" / f"assin2-{name}.xml", split, two)
        rows = [f'"{texts(n)[1]}, ""yes""",{texts(n)[1]},{n % 6}.5' for n in numbers(split) if n % 6 < 5]
        put(folder / "stsb_multi_mt" / f"stsb-pt-{split}.csv", rows)
        put(folder / "leNER-Br" / split / f"{split}.conll", entities(numbers(split), "", " "))
        put(folder / "wikiann" / "pt" / split, entities(numbers(split), "pt:", "\t"))
    for split in ("train", "dev"):
        put(folder / "faquad" / "data" / f"{split}.json", [json.dumps(questions(numbers(split)), ensure_ascii=False)])
    GLUE["RTE"](folder / "PLUE" / "RTE")
    GLUE["MNLI"](folder / "PLUE" / "MNLI")
    return folder


def put(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def assin(path: Path, split: str, labels: Sequence[str]) -> None:
    pairs = [
        f'<pair entailment="{labels[n % len(labels)]}" id="{n}" similarity="{1 + n % 5}.0">'
        f"<t>{texts(n)[1]}</t><h>the {WORDS[n % 8]}</h></pair>"
        for n in numbers(split)
    ]
    put(path, ["<?xml version='1.0' encoding='utf-8'?>", "<entailment-corpus>", *pairs, "</entailment-corpus>"])


def entities(rows: range, mark: str, separator: str) -> list[str]:
    lines = []
    for n in rows:
        for word, tag in (("the", "O"), (WORDS[n % 8], "B-LOC"), ("number", "I-LOC"), (str(n), "O")):
            lines.append(f"{mark}{word}{separator}{tag}")
        lines.append("")
    return lines


def questions(rows: range) -> dict[str, object]:
    paragraphs = []
    for n in rows:
        context = f"the {WORDS[n % 8]} number {n} is here"
        answer = {"text": WORDS[n % 8], "answer_start": 4}
        paragraphs.append({"context": context, "qas": [{"id": str(n), "question": "what is?", "answers": [answer]}]})
    return {"version": "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]}
