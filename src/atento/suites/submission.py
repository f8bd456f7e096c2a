"""The outputs of a run for the labelled and unlabelled parts of its row, kept in the run folder; submission files."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atento.data.records.reader import fingerprint
from atento.data.records.splits import Split
from atento.model import Model, load
from atento.precision import threads as thread_scope
from atento.runs.run_record import read_object
from atento.runs.train import TrainedRun
from atento.storage.whole_file import write_whole
from atento.suites.row import Row
from atento.suites.row_recipe import Plan
from atento.suites.suite_files import unlabelled_records
from atento.tasks.verb_table import VERBS, Verb

FOLDER = "outputs"


@dataclass(frozen=True)
class Outputs:
    """What a model gives for the records of a part; `gold` is what is right, or the numbers of unlabelled records."""

    outputs: list[Any]
    gold: list[Any]


@dataclass
class Predictor:
    """The model of a finished run, which is loaded when an output is not in the run folder yet."""

    run: TrainedRun
    device: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    model: Model | None = None

    def outputs(self, name: str, data: str, compute: Callable[[Model], list[object]]) -> list[Any]:
        """The outputs for data with this fingerprint: from the file of an earlier call, or computed and written."""
        path = self.run.folder / FOLDER / f"{name}.json"
        key = {"run": str(read_object(self.run.folder / "run.json").get("run_id")), "step": self.run.step, "data": data}
        written = read_object(path)
        if {name: written.get(name) for name in key} == key:
            return list(written["outputs"])
        with thread_scope(self.threads):
            self.model = self.model or load(self.run.folder, device=self.device, precision=self.precision)
            outputs = compute(self.model)
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(key | {"outputs": outputs}, ensure_ascii=False) + "\n")
        return outputs


def labelled_outputs(predictor: Predictor, plan: Plan) -> dict[str, Outputs]:
    """The outputs for each part that is scored."""
    verb = VERBS[str(plan.row.spec.verb)]
    results = {}
    for part in plan.files.scored:
        split = plan.split(part)
        outputs = predictor.outputs(part, split.fingerprint, partial(_of_split, verb, split))
        results[part] = Outputs(outputs, list(verb.gold(split)))
    return results


def unlabelled_outputs(predictor: Predictor, plan: Plan) -> dict[str, Outputs]:
    """The outputs for each test file without labels, with the numbers of its records."""
    results = {}
    for part, path in plan.files.unlabelled.items():
        numbers, texts = unlabelled_records(plan.row, path, plan.files.folder)
        data = fingerprint(numbers, [text if isinstance(text, str) else "\t".join(text) for text in texts])
        compute = partial(_UNLABELLED[str(plan.row.spec.outputs)], texts)
        results[part] = Outputs(predictor.outputs(f"{part}-test", data, compute), numbers)
    return results


def _of_split(verb: Verb, split: Split, model: Model) -> list[object]:
    return list(verb.call(model, split, {}))


def _labels(texts: list[Any], model: Model) -> list[str]:
    return [label.name for label in model.classify(texts)]


def _numbers(pairs: list[Any], model: Model) -> list[float]:
    return list(model.similarity([first for first, _ in pairs], [second for _, second in pairs]))


_UNLABELLED: Mapping[str, Callable[[list[object], Model], list[Any]]] = {"classes": _labels, "numbers": _numbers}


def write_submission(folder: Path, part: str, row: Row, numbers: Sequence[str], outputs: Sequence[Any]) -> Path:
    """Write `PART.tsv` for GLUE's site: a header, then the number of each record and its label, or a score."""
    lines = ["index\tprediction"]
    for number, output in zip(numbers, outputs, strict=True):
        low, high = row.range or (output, output)  # of a score
        lines.append(f"{number}\t{output if isinstance(output, str) else f'{min(max(output, low), high):.3f}'}")
    path = folder / "submission" / f"{part}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(lines) + "\n")
    return path
