"""`atento score`: what it prints for each kind of outputs, its gates, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from atento.base.errors import AtentoError, DataError, UsageError
from atento.metrics import bleu, entity_f1, f1, paired_test, squad
from atento_cli.main import application
from failing import fails


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "out.pt": "o gato está no tapete\nbom dia\n",
        "other.pt": "o cão está na cama\nbom dia\n",
        "ref.pt": "o gato está sentado no tapete\nbom dia\n",
        "ref2.pt": "o gato está no tapete\nolá\n",
        "short.pt": "bom dia\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="\n")
    return tmp_path


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(application("score"), ["score", *arguments], input=stdin)
    if isinstance(result.exception, AtentoError):
        raise result.exception
    return result


def test_one_line_with_the_settings_an_example_in_the_help_and_the_tokenizer(files: Path) -> None:
    result = run("bleu", "out.pt", "ref.pt")
    assert (result.exit_code, result.stderr) == (0, "")
    expected = bleu(["o gato está no tapete", "bom dia"], ["o gato está sentado no tapete", "bom dia"])
    assert result.stdout == f"BLEU {expected.value:.2f} {expected.settings}\n"
    assert run("exact-match", "out.pt", "ref.pt", "ref2.pt").stdout == "exact match 100.00 nrefs:2|case:mixed\n"
    assert "atento score bleu output.pt reference.pt" in run("--help").stdout
    (files / "out.zh").write_text("我每天读一本新书。\n", encoding="utf-8")
    assert run("bleu", "out.zh", "out.zh").stdout.startswith("BLEU 100.00 nrefs:1|case:mixed|eff:no|tok:zh|")
    assert "tok:char" in run("bleu", "out.zh", "out.zh", "--tokenize", "char").stdout
    fails(UsageError, "--tokenize has no effect on chrf", run, "chrf", "out.zh", "out.zh", "--tokenize", "char")
    fails(UsageError, "BLEU tokenizer 'chars'", run, "bleu", "out.zh", "out.zh", "--tokenize", "chars")


def test_columns_of_tables(files: Path) -> None:
    """One table or several, beside files of lines; messages name lines of the file."""
    lines = {name: (files / name).read_text(encoding="utf-8").splitlines() for name in ("out.pt", "ref.pt")}
    rows = "".join(f'"{out}","{ref}\n"\n' for out, ref in zip(*lines.values()))
    (files / "t.csv").write_text(f"out,ref\n{rows}", encoding="utf-8")
    (files / "t.jsonl").write_text("\n".join([json.dumps({"ref": line}) for line in lines["ref.pt"]]), encoding="utf-8")
    expected = run("bleu", "out.pt", "ref.pt").stdout
    for words in (
        ("out.pt", "t.csv", "--column", "ref"),
        ("t.csv", "t.csv", "--column", "out", "--column", "ref"),
        ("t.csv", "t.jsonl", "--column", "out", "--column", "ref"),
        ("out.pt", "t.csv", "--column", "ref", "--reading", "encoding=utf-8"),
    ):
        result = run("bleu", *words)
        assert (result.stdout, result.stderr) == (expected, "")
    fails(UsageError, "one for each table .* 1 name and 0", run, "bleu", "out.pt", "ref.pt", "--column", "ref")
    fails(UsageError, "got 2 names and 1", run, "bleu", "out.pt", "t.csv", "--column", "a", "--column", "b")
    fails(DataError, r"t.csv:1: column 'reg' .* 'ref'", run, "bleu", "out.pt", "t.csv", "--column", "reg")
    (files / "n.csv").write_text('n,"a\nb"\n1,x\ny,2\n', encoding="utf-8")
    fails(DataError, r"n.csv:4: .* finite number: got 'y'", run, "pearson", "n.csv", "n.csv", "--column", "n")


def test_interval_paired_test_json_standard_input_and_what_is_refused(files: Path) -> None:
    low, high = bleu(["o gato está no tapete", "bom dia"], ["o gato está sentado no tapete", "bom dia"]).interval()
    assert f" [{low:.2f}, {high:.2f}] nrefs:1|case:mixed" in run("bleu", "out.pt", "ref.pt", "--interval").stdout
    lines = run("bleu", "out.pt", "ref.pt", "--against", "other.pt", "--samples", "50").stdout.splitlines()
    assert len(lines) == 3 and lines[1].endswith("(other.pt)")
    texts = [(files / name).read_text(encoding="utf-8").splitlines() for name in ("out.pt", "other.pt", "ref.pt")]
    assert lines[2] == str(paired_test("bleu", *texts, samples=50))
    result = run("ter", "out.pt", "ref.pt", "--json", "--interval", "--against", "other.pt", "--seed", "3")
    record = json.loads(result.stdout)
    assert record["metric"] == "ter" and record["parts"] == {"edits": 1, "reference_length": 8}
    assert record["interval"]["seed"] == 3 and record["interval"]["low"] <= record["value"]
    assert record["against"]["difference"] == pytest.approx(record["value"] - record["against"]["value"])
    assert 0 < record["against"]["p_value"] <= 1
    assert run("exact-match", "-", "ref.pt", stdin="o gato\nbom dia\n").stdout.startswith("exact match 50.00 ")
    fails(UsageError, "standard input can be read once", run, "bleu", "-", "-", stdin="a\n")
    fails(UsageError, r"line N of out\.pt .* of short\.pt: got 2 and 1 lines", run, "bleu", "out.pt", "short.pt")
    fails(UsageError, r"short\.pt .* ref\.pt: got 1 and 2", run, "bleu", "out.pt", "ref.pt", "--against", "short.pt")
    fails(UsageError, r"'blue'.*: accuracy, bertscore, bleu, calib", run, "blue", "missing.pt", "missing.pt")
    fails(DataError, r"missing\.pt: no such file", run, "bleu", "missing.pt", "ref.pt")
    (files / "empty.pt").touch()
    fails(UsageError, r"there is nothing to score: empty\.pt is empty", run, "accuracy", "empty.pt", "empty.pt")
    fails(UsageError, "there is nothing to score", run, "bleu", "empty.pt", "empty.pt")
    fails(UsageError, "bleu needs references: give .* behind that of the outputs", run, "bleu", "out.pt")
    for option in (("--average", "micro"), ("--scheme", "IOB2"), ("--language", "pt"), ("--positive", "a")):
        fails(UsageError, f"{option[0]} has no effect on bleu", run, "bleu", "out.pt", "ref.pt", *option)


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def test_labels_several_of_them_and_probabilities(files: Path) -> None:
    write(files, {"out": "yes\nno\nyes\n", "right": "yes\nyes\nyes\n", "other": "no\nno\nyes\n"})
    expected = f1(["yes", "no", "yes"], ["yes"] * 3)
    assert run("f1", "out", "right").stdout == f"F1 {expected.value:.4f} average:macro\n"
    assert run("f1", "out", "right", "--average", "binary", "--positive", "yes").stdout.startswith("F1 0.8000 ")
    assert run("accuracy", "out", "right").stdout == "accuracy 0.6667\n"
    assert run("matthews", "out", "right").stdout == "Matthews 0.0000 constant:references\n"
    write(files, {"classified": "yes\t0.9\nno\t0.6\nyes\t0.7\n"})
    fails(DataError, r"classified:1: .* a label alone, without a tab", run, "accuracy", "classified", "right")
    lines = run("report", "out", "right").stdout.splitlines()
    assert lines[0] == "accuracy 0.6667" and lines[3].split() == ["yes", "1.0000", "0.6667", "0.8000", "3"]
    record = json.loads(run("f1", "out", "right", "--json", "--against", "other", "--samples", "20").stdout)
    assert record["parts"]["f1[yes]"] == pytest.approx(0.8) and record["against"]["difference"] > 0
    write(files, {"out": "a|b\n\n", "right": "b | a\nc\n"})
    assert run("subset-accuracy", "out", "right").stdout == "subset accuracy 0.5000\n"
    assert run("multilabel-f1", "out", "right").stdout.startswith("multi-label F1 0.8000 ")
    lines = run("multilabel-report", "out", "right").stdout.splitlines()
    assert lines[0].startswith("multi-label F1 0.8000 ")
    assert lines[4].split() == ["c", "0.0000", "0.0000", "0.0000", "1"]
    write(files, {"probable": "a\t0.75\nb\t0.25\n", "right": "a\nb\n"})
    assert run("calibration-error", "probable", "right").stdout == "calibration error 0.5000 bins:10\n"
    # what `atento classify` prints for an empty text, whose label may be blank, and where it abstains
    write(files, {"some": "a\t0.75\n\nb\t0.25\n\n", "gold": "a\n \nb\na\n", "other": "a\t0.5\n\n\nb\t0.9\n"})
    done = run("calibration-error", "some", "gold")
    assert done.stdout == "calibration error 0.5000 bins:10\n"
    assert done.stderr == "warning: 2 empty lines of predictions left out of the score\n"
    against = run("calibration-error", "some", "gold", "--against", "other", "--samples", "9")
    assert against.stdout.startswith("calibration error 0.2500 ") and "warning: 3 empty lines" in against.stderr
    write(files, {"all": "a\t0.75\na\t0.75\nb\t0.25\n\n", "none": "\n\n\n\n"})
    fails(DataError, "gold:2: a blank line .*; remove the line", run, "calibration-error", "all", "gold")
    fails(DataError, "nothing to score: all lines of none are", run, "calibration-error", "none", "gold")
    write(files, {"probable": "a\t0.75\nb 0.25\n"})
    fails(DataError, "probable:2: .* a tab and a probability", run, "calibration-error", "probable", "right")


def test_numbers(files: Path) -> None:
    write(files, {"out": "1\n2.5\n3e0\n", "right": "1\n2\n4\n", "bad": "1\ntwo\n3\n", "inf": "1\n2\ninf\n"})
    assert run("spearman", "out", "right").stdout == "Spearman 1.0000\n"
    assert run("pearson", "out", "right", "--interval").stdout.startswith("Pearson 0.8910 [")
    for name, line in (("bad", 2), ("inf", 3)):
        fails(DataError, f"{name}:{line}: .* a finite number: got", run, "pearson", name, "right")


SENTENCES = [["B-PER", "I-PER", "O"], ["O", "B-LOC"]]


def test_tags_on_lines_in_columns_and_refused(files: Path) -> None:
    write(files, {"out": "B-PER I-PER O\nO B-PER\n", "right": "B-PER I-PER O\nO B-LOC\n"})
    columns = "-DOCSTART- O\n\nAna B-PER\nSilva I-PER\nri O\n\nem O\nParis B-LOC\n"
    write(files, {"right.conll": columns, "right.txt": columns})
    expected = entity_f1([SENTENCES[0], ["O", "B-PER"]], SENTENCES)
    lines = run("entity-f1", "out", "right").stdout.splitlines()
    assert lines[0] == f"entity F1 {expected.value:.4f} average:micro|scheme:any|mode:conlleval"
    assert [line.split()[0] for line in lines[2:4]] == ["LOC", "PER"]
    assert run("entity-f1", "out", "right.conll").stdout.splitlines() == lines
    done = run("entity-f1", "right.txt", "right.conll", "--columns", "--scheme", "IOB2")
    assert done.stdout.startswith("entity F1 1.0000 average:micro|scheme:IOB2|mode:strict")
    assert run("tag-accuracy", "out", "right").stdout == "tag accuracy 0.8000\n"
    conllu = "# text = Ana ri\n1\tAna\tana\tPROPN\t_\n2\tri\trir\tVERB\t_\n"
    write(files, {"right.conllu": conllu, "out": "PROPN NOUN\n"})
    assert run("tag-accuracy", "out", "right.conllu").stdout == "tag accuracy 0.5000\n"
    assert run("entity-f1", "-", "right.conll", "--columns", stdin=columns).stdout.startswith("entity F1 1.0000")
    write(files, {"out": "O O\nO\n", "right.conll": "a O\nb O\n\nc O\nd O\n", "words": "O O\nem Paris\n"})
    fails(DataError, r"out:2: 1 tag, and right\.conll:4 has 2;", run, "tag-accuracy", "out", "right.conll")
    fails(DataError, r"words:2: a tag is O, or a .* got 'em'", run, "entity-f1", "words", "right.conll")
    write(files, {"short.conll": "a O\n", "broken.conll": "a O\nb x O\n"})
    fails(DataError, r"broken\.conll:2: 3 columns, and .* has 2", run, "tag-accuracy", "out", "broken.conll")
    fails(DataError, r"of out must .* short\.conll: got 2 and 1", run, "tag-accuracy", "out", "short.conll")
    fails(UsageError, "--columns has no effect on bleu", run, "bleu", "out.pt", "ref.pt", "--columns")
    fails(UsageError, "tag-accuracy takes one file .*: got 2", run, "tag-accuracy", "out", "out", "out")


ANSWERS = [{"text": "o gato", "answer_start": 0}, {"text": "gato preto"}]
ASKED = [{"id": "q1", "answers": ANSWERS}, {"id": "q2", "answers": [], "is_impossible": True}]
QUESTIONS = {"data": [{"paragraphs": [{"context": "...", "qas": ASKED}]}]}


def test_answers_in_json_on_lines_and_refused(files: Path) -> None:
    write(files, {"right.json": json.dumps(QUESTIONS), "out.json": '{"q2": "", "q1": "Gato."}', "out": "Gato.\n\n"})
    expected = squad(["Gato.", ""], [("o gato", "gato preto"), ()], language="pt")
    record = json.loads(run("squad", "out.json", "right.json", "--language", "pt", "--json").stdout)
    assert record["value"] == expected.value == 100 and record["parts"] == expected.parts
    assert run("squad", "out", "right.json", "--language", "pt").stdout == f"{expected}\n"
    write(files, {"right": "o gato\n\n", "right2": "cão\n\n"})
    assert run("squad", "out", "right", "right2").stdout == f"{squad(['Gato.', ''], ['o gato', ''])}\n"
    for out, right, message in (
        ('{"q1": "x"}', QUESTIONS, r"out\.json: has nothing for 1 id, the first is 'q2'"),
        ('{"q1": "x", "q2": "", "q9": ""}', QUESTIONS, r"right\.json: has nothing for 1 id, the first is 'q9'"),
        ('{"q1": 3}', QUESTIONS, r"out\.json: the answer of id 'q1' must be a string: got 3"),
        ("[]", QUESTIONS, r"out\.json: predictions must be one object of ids and answers"),
        ('{"q1":\n', QUESTIONS, r"out\.json:2: is no JSON"),
        ("{}", {"data": [{"qas": []}]}, r"right\.json: is not in the format of SQuAD"),
        ("{}", {"data": QUESTIONS["data"] * 2}, r"right\.json: two questions have the id 'q1'"),
    ):
        write(files, {"right.json": json.dumps(right), "out.json": out})
        fails(DataError, message, run, "squad", "out.json", "right.json")


def test_gates_go_by_the_metric_or_a_part_of_it(files: Path) -> None:
    write(files, {"out": "yes\nno\nyes\n", "right": "yes\nyes\nyes\n"})
    assert run("f1", "out", "right", "--fail-under", "f1=0.4", "--fail-under", "f1[yes]=0.8").exit_code == 0
    missed = run("f1", "out", "right", "--fail-under", "f1=0.5", "--fail-under", "f1_micro=0.1")
    assert missed.exit_code == 3 and missed.stderr == "gate missed: f1 0.40 < 0.5\n"
    assert missed.stdout.startswith("F1 0.4000")
    assert run("ter", "out.pt", "ref.pt", "--fail-under", "ter=13").exit_code == 0
    assert run("ter", "out.pt", "ref.pt", "--fail-under", "ter=12.5").exit_code == 0
    assert "ter 12.50 > 12.4" in run("ter", "out.pt", "ref.pt", "--fail-under", "ter=12.4").stderr
    for gate, message in (("f1=x", "takes METRIC=VALUE"), ("=3", "takes METRIC=VALUE"), ("bleu=3", "no part 'bleu'")):
        fails(UsageError, message, run, "f1", "out", "right", "--fail-under", gate)
