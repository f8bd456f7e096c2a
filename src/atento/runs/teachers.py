"""The teachers of a run (`teacher`): loaded, checked, asked once for each text; their answers are kept in a folder."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from atento.config.sections.network import network_to_dict
from atento.config.sections.teacher import TeacherConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.tasks import TASKS
from atento.data.batches.batch import Batches, PlannedBatches, Teaching
from atento.data.batches.taught import Taught
from atento.data.objectives.preparation import Preparation
from atento.errors import RecipeError, UsageError, counted
from atento.models.load import load_model
from atento.runs.setup import Setup
from atento.storage.vectors import fingerprint_of, read_vectors, write_vectors
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.tasks.teacher_outputs import Outputs, head_outputs, head_records, teaching_head

_READING = ("template", "max_len", "long_texts", "embedding")  # keys of a model that its outputs depend on


@dataclass(frozen=True)
class Teacher:
    """A teacher.

    Attributes:
        name: what the recipe names it.
        model: the model.
        fingerprint: a hash of what its outputs depend on.
        folder: where its outputs are kept.
    """

    name: str
    model: TaskModel
    fingerprint: str
    folder: Path

    def answers(
        self, records: Sequence[Any], compute: Callable[[list[Any]], Outputs], report: Callable[[str], None]
    ) -> Outputs:
        """Return the outputs for records; those that the folder lacks are computed and added to it.

        Raises:
            CheckpointError: the folder cannot be written.
        """
        path, started = self.folder / f"{self.fingerprint}.safetensors", time.monotonic()
        known = read_vectors(path)
        keys = [sha256(json.dumps(record).encode()).digest()[:16] for record in records]
        missing = {key: record for key, record in zip(keys, records) if key not in known}
        if missing:
            known.update(zip(missing, compute(list(missing.values()))))
            write_vectors(path, known)
        report(
            f"teacher {self.name}: outputs for {counted(len(records), 'record')}, {len(missing):,} computed, "
            f"the others from {path}, in {time.monotonic() - started:.1f} s"
        )
        return [known[key] for key in keys]


@dataclass(frozen=True)
class Teachers:
    """The teachers of a run; `position` is that of the key in the recipe, for messages."""

    config: TeacherConfig
    every: Sequence[Teacher]
    position: str

    def teach(self, preparation: Preparation, config: ObjectiveConfig, batches: Batches) -> Batches:
        """Add the outputs of the teachers to the batches of an objective; it is `Preparation.teach`.

        Raises:
            RecipeError: a teacher was trained for something else, or for other labels.
        """
        assert isinstance(batches, PlannedBatches)
        by_teacher = [self._outputs(teacher, preparation, config) for teacher in self.every]
        outputs = [np.stack(of_record, axis=1) for of_record in zip(*by_teacher)]  # (T,K,C)
        batches.objective = Taught(batches.objective, Teaching(self.config.weight, self.config.temperature), outputs)
        return batches

    def _outputs(self, teacher: Teacher, preparation: Preparation, config: ObjectiveConfig) -> Outputs:
        """What a teacher gives for the labels of each record, with the classes in the order of the network."""
        (kind,) = TASKS[preparation.recipe.task].heads
        head = next(head for head in preparation.network.heads if head.kind == kind)
        try:
            own = teaching_head(teacher.model, head)
            records = head_records(preparation.split)
            outputs = teacher.answers(
                records, lambda missing: head_outputs(teacher.model, own, missing), preparation.report
            )
        except UsageError as error:
            raise RecipeError(f"{self.position}: teacher {teacher.name}: {error}") from None
        order = [own.labels.index(name) for name in head.labels] or [0]
        return [rows[:, order] for rows in outputs]


def load_teachers(setup: Setup) -> None:
    """Load the teachers that the recipe names; the run knows them by their hashes.

    Raises:
        RecipeError: there is no such model.
    """
    config, home = setup.recipe.teacher, setup.loaded.home
    if config is None:
        return
    position = setup.loaded.origins.get("teacher.model", "teacher")
    folder = setup.folder / "teacher" if config.cache is None else home / config.cache
    every = []
    for name in config.model:
        try:
            loaded = load_model(home / name if (home / name).exists() else name, setup.device, "float32")
        except UsageError as error:
            raise RecipeError(f"{position}: teacher {name}: {error}") from None
        model = TaskModel(loaded.network, loaded.tokenizer, loaded.config, loaded.path, loaded.words, requested=name)
        tokenizer_of(model).pad_to(model.network.config.vocab_size, model.network.config.target_vocab_size)
        settings: dict[str, object] = {"network": network_to_dict(model.network.config)}
        settings |= {key: model.config.get(key) for key in _READING}
        fingerprint = fingerprint_of(
            model.network.state_dict(),
            json.dumps([settings, tokenizer_of(model).fingerprint], sort_keys=True),
        )
        every.append(Teacher(name, model, fingerprint, folder))
    setup.identity["teachers"] = [teacher.fingerprint for teacher in every]
    setup.teach = Teachers(config, every, position).teach
