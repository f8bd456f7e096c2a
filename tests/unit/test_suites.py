"""The tables of `atento glue`: files in the published layouts, refusals, recipes, averages, submission files."""

from dataclasses import replace
from pathlib import Path

import pytest

import atento
from atento.base.errors import DataError, UsageError
from atento.config.tables.tasks import TASKS
from atento.data.files.conll import without_marks
from atento.metrics import accuracy
from atento_cli.suites.glue_tasks import GLUE
from atento_cli.suites.portuguese_tasks import PORTUGUESE
from atento_cli.suites.row import Row
from atento_cli.suites.run_suite import planned, write_submission
from atento_cli.suites.scores import Result, SuiteResult, TaskResult, result_of
from atento_cli.suites.suite_files import files_of, labelled_records, located, unlabelled_records
from atento_cli.suites.suite_table import rows_named, suite_named
from failing import fails

ROWS = {row.name: row for suite in (GLUE, PORTUGUESE) for row in suite.rows}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_each_row_has_a_task_whose_fields_its_columns_fill_and_names_are_known() -> None:
    assert [row.name for row in GLUE.rows] == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]
    assert len(PORTUGUESE.rows) == 10 + len(GLUE.rows)
    for row in ROWS.values():
        fields = {field.name for field in TASKS[row.task].fields}
        required = {field.name for field in TASKS[row.task].fields if not field.optional}
        assert set(row.columns) <= fields and (not row.columns or required <= set(row.columns)), row.name
    assert ROWS["STS-B"].task == "regression" and ROWS["LeNER-Br"].task == "tagging"
    assert rows_named(GLUE, "wnli, rte") == (ROWS["RTE"], ROWS["WNLI"]) == rows_named(GLUE, ["RTE", "WNLI"])
    fails(UsageError, "unknown task 'RT'; did you mean 'RTE'", rows_named, GLUE, "RT")
    fails(UsageError, "unknown table 'de'", suite_named, "de")


def test_files_are_located_whatever_their_case_and_test_dev_or_held_out_is_scored(tmp_path: Path) -> None:
    path = put(tmp_path / "rte" / "Train.tsv.gz", "")
    assert located(tmp_path, ("RTE/{split}.tsv",), "train") == path.relative_to(tmp_path)
    assert located(tmp_path, ("RTE/{split}.tsv",), "dev") is None
    put(tmp_path / "assin2" / "train.xml", "")
    assert files_of(ROWS["ASSIN-2-RTE"], tmp_path).train == Path("assin2/train.xml")
    put(tmp_path / "assin2" / "assin2-train-only.xml", "")
    put(tmp_path / "ASSIN" / "sources" / "assin-ptpt-dev.xml", "")
    assert files_of(ROWS["ASSIN-PT-RTE"], tmp_path).valid == Path("ASSIN/sources/assin-ptpt-dev.xml")
    put(tmp_path / "plue" / "datasets" / "MNLI" / "dev_mismatched.tsv", "")
    put(tmp_path / "plue" / "datasets" / "diagnostic" / "diagnostic.tsv", "")
    files = files_of(ROWS["PLUE-MNLI"], tmp_path)
    assert files.scored == {"PLUE-MNLI-mm": Path("plue/datasets/MNLI/dev_mismatched.tsv")}
    assert files.unlabelled == {"PLUE-AX": Path("plue/datasets/diagnostic/diagnostic.tsv")}
    row = ROWS["FaQuAD"]
    train, dev, test = (Path("faquad") / f"{split}.json" for split in ("train", "dev", "test"))
    put(tmp_path / train, "")
    files = files_of(row, tmp_path)
    assert (files.train, files.on, files.valid, files.scored) == (train, "held out", None, {"FaQuAD": None})
    put(tmp_path / dev, "")
    files = files_of(row, tmp_path)
    assert (files.on, files.valid, files.scored) == ("dev", dev, {"FaQuAD": dev})
    put(tmp_path / test, "")
    files = files_of(row, tmp_path)
    assert (files.on, files.valid, files.scored, files.unlabelled) == ("test", dev, {"FaQuAD": test}, {})


def test_files_are_read_as_published_and_written_as_submitted(tmp_path: Path) -> None:
    path = put(tmp_path / "train.tsv", 'sentence\tlabel\nthe "end\t1\n"a\t0\n')
    assert labelled_records(ROWS["SST-2"], path, tmp_path).columns == {"text": ['the "end', '"a'], "label": ["1", "0"]}
    path = put(tmp_path / "test.tsv", 'id\tquestion1\tquestion2\n0\ta "b\tc\n1\t\td\n2\te\tf\n')
    assert unlabelled_records(ROWS["QQP"], path, tmp_path) == (["0", "1", "2"], [('a "b', "c"), ("", "d"), ("e", "f")])
    path = put(tmp_path / "cola.tsv", "index\tsentence\n0\tfine\n")
    assert unlabelled_records(ROWS["CoLA"], path, tmp_path) == (["0"], ["fine"])
    path = put(tmp_path / "train", "pt:Rui\tB-PER\npt::\tO\n\npt:Porto\tB-LOC\n\n")
    assert labelled_records(ROWS["WikiANN-PT"], path, tmp_path)["tokens"] == [("Rui", ":"), ("Porto",)]
    mixed = [("pt:a", "pt:b"), ("c",)]
    assert without_marks(mixed) == (mixed, None) and without_marks([]) == ([], None)
    assert without_marks([("pt:a", "pt:")]) == ([("pt:a", "pt:")], None)
    path = write_submission(tmp_path, "STS-B", ROWS["STS-B"], ["0", "1", "2"], [-0.25, 2.34567, 5.5])
    assert path.read_text(encoding="utf-8") == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"
    path = write_submission(tmp_path, "RTE", ROWS["RTE"], ["0"], ["entailment"])
    assert path.read_text(encoding="utf-8") == "index\tprediction\n0\tentailment\n"


def test_the_recipe_of_a_row_follows_the_changes_of_the_user(tmp_path: Path) -> None:
    records = "a\tb\tentailment\nc\td\tnot_entailment\n" * 160
    put(tmp_path / "RTE" / "train.tsv", f"sentence1\tsentence2\tlabel\n{records}")
    files = files_of(ROWS["RTE"], tmp_path)
    recipe = planned(files, "owner/model", ()).recipe
    assert recipe["init"] == {"model": "owner/model"} and recipe["data"]["held_out"] == 2000
    assert recipe["training"]["epochs"] == 3 and recipe["training"]["warmup"] == 3  # a tenth of 3 x 320 / 32 updates
    recipe = planned(files, "owner/model", ["training.steps=50"]).recipe
    assert "epochs" not in recipe["training"] and recipe["training"]["warmup"] == 5
    recipe = planned(files, "owner/model", {"training.epochs": 2, "training.batch_tokens": 16}).recipe
    assert recipe["training"]["epochs"] == 2 and recipe["training"]["warmup"] == 4


def task(row: Row, *by_seed: dict[int, float]) -> TaskResult:
    results = [Result(row.name, "x", sum(one.values()) / len(one), (0.0, 100.0), one, 10) for one in by_seed]
    seeds = by_seed[0]
    return TaskResult(row, "dev", tuple(results), dict.fromkeys(seeds), {seed: Path(str(seed)) for seed in seeds})


def test_the_average_is_that_of_glue_and_the_interval_of_several_seeds_of_shared_samples() -> None:
    """Two scores of a task count as their mean, matched and mismatched too; WNLI is in one average of two."""
    scores = {"CoLA": (40.0,), "MRPC": (80.0, 90.0), "MNLI": (70.0, 72.0), "WNLI": (56.0,)}
    tasks = tuple(task(ROWS[name], *({1: score} for score in of)) for name, of in scores.items())
    result = SuiteResult(GLUE, Path(), (1,), tasks, {"RTE": "RTE/train.tsv"}, ())
    assert result.average == pytest.approx((40 + 85 + 71 + 56) / 4)
    assert result.average_without == pytest.approx((40 + 85 + 71) / 3)
    assert result.values["average-without-wnli"] == result.average_without and result.values["mrpc"] == 85
    text = str(result)
    assert "RTE: missing, there is no RTE/train.tsv" in text and "average of 4 tasks: 63.0" in text
    assert "average without WNLI: 65.3" in text
    only = replace(result, tasks=tasks[-1:])
    assert only.average == 56 and only.average_without is None
    scores = {"PLUE-RTE": (50.0, 60.0), "PLUE-WNLI": (70.0, 80.0), "LeNER-Br": (90.0, 80.0)}
    tasks = tuple(task(ROWS[name], {1: one, 2: two}) for name, (one, two) in scores.items())
    result = SuiteResult(PORTUGUESE, Path(), (1, 2), tasks, {}, ())
    assert result.average == pytest.approx(((60 + 90) / 2 + (70 + 80) / 2) / 2) and result.average_without is None
    assert "average of 3 tasks: 75.0 ± 0.0 over 2 seeds" in str(result)
    assert result.to_dict()["tasks"]["PLUE-RTE"]["scores"][0]["seeds"] == {"1": 50.0, "2": 60.0}
    gold = [str(n % 2) for n in range(40)]
    first = accuracy([label if n % 5 else "0" for n, label in enumerate(gold)], gold)
    one = result_of("RTE", "accuracy", 100.0, {1: first})
    assert one.interval == pytest.approx([100 * bound for bound in first.interval()])
    assert one.value == 100 * first.value
    assert result_of("RTE", "accuracy", 100.0, {1: first, 2: first}).interval == pytest.approx(one.interval)
    opposite = accuracy([label if not n % 5 else "0" for n, label in enumerate(gold)], gold)
    both = result_of("RTE", "accuracy", 100.0, {1: first, 2: opposite})
    assert both.value == pytest.approx(50 * (first.value + opposite.value))
    assert both.interval[1] - both.interval[0] < one.interval[1] - one.interval[0]


def test_what_is_refused_before_any_file_is_read_and_of_a_file_in_another_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a folder; it must have .* each task, such as CoLA/train\.tsv"):
        atento.glue(tmp_path / "none", "model")
    with pytest.raises(DataError, match=r"has no CoLA/train\.tsv for the task CoLA, nor files of 8 more tasks"):
        atento.glue(tmp_path, "model")
    put(tmp_path / "model" / "config.json", "{}")
    with pytest.raises(DataError, match="8 more tasks; it is a model, and the data come before the model"):
        atento.glue(tmp_path / "model", "data")
    put(tmp_path / "RTE" / "train.tsv", "")
    fails(DataError, r"has no WNLI/train\.tsv for the task WNLI$", atento.glue, tmp_path, "model", tasks="rte,wnli")
    with pytest.raises(UsageError, match=r"`seeds` must be different whole numbers .*, at least one: got \[1, 1\]"):
        atento.glue(tmp_path, "model", seeds=[1, 1])
    for name, text, message in (
        ("RTE", "index\ta\tb\tlabel\n", r"train\.tsv:1: column 'sentence1' is not in the header; .* are 'index'"),
        ("CoLA", "sentence\tlabel\n", r"train\.tsv:1: 2 columns separated by a tab, and column 3 \(counted from 0\)"),
        ("CoLA", "x\t1\t\tfine\nx\tyes\t\tfine\n", r"train\.tsv:2: label 'yes' .* CoLA's, which are '0', '1'"),
        ("STS-B", "sentence1\tsentence2\tscore\na\tb\t7\n", r"train\.tsv:2: scores of STS-B lie in 0 to 5: got 7"),
        ("SST-2", "sentence\tlabel\nfine\t1\t1\n", r"train\.tsv:2: 3 columns, and line 1 has 2"),
    ):
        put(tmp_path / name / "train.tsv", text)
        fails(DataError, message, planned, files_of(ROWS[name], tmp_path), "model", ())
        with pytest.raises(DataError, match=message):  # before the model is looked for
            atento.glue(tmp_path, "no-such-model", out=tmp_path / "runs", tasks=name)
        assert not (tmp_path / "runs").exists()
