"""The teachers of a run (`teacher`): loaded, checked, asked once for each text; their answers are kept in a folder."""

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from atento.base.errors import CapabilityError, RecipeError, UsageError, counted
from atento.config.recipe import Recipe
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.initial import TeacherConfig
from atento.config.sections.network import network_to_dict
from atento.config.tables.objective import OBJECTIVES, ObjectiveConfig
from atento.config.tables.tasks import TASKS, TEXT_TO_TEXT, verb_of
from atento.data.batches.batch import SIDES, Batches, Distillation
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.multiple_negatives import PairBatches
from atento.data.objectives.preparation import Make, Preparation, Report
from atento.runs.setup import Setup
from atento.storage.vectors import fingerprint_of, read_vectors, write_vectors
from atento.tasks import teacher_outputs
from atento.tasks.decoding_setup import embedding_for
from atento.tasks.model_outputs import generator_of
from atento.tasks.model_vectors import embed
from atento.tasks.task_model import TaskModel, load_for_tasks, tokenizer_of
from atento.tasks.text_generation import TextGenerator
from atento.tasks.translation_languages import LANGUAGES
from atento.text.specials import chooses_by_source, languages_of

_READING = ("template", "max_len", "long_texts", "embedding", "decoding")  # keys of a model that its outputs depend on
Many = list[Any]  # records, which JSON can hold; or arrays, what a teacher says of each
_LEAST, _PARTS = 1024, 16  # records that are asked for and kept at a time, and how often at most


@dataclass(frozen=True)
class Teacher:
    """A teacher: what the recipe names it, the model, and the file in which its outputs are kept."""

    name: str
    model: TaskModel
    file: Path

    def answers(self, kind: str, records: Many, compute: Callable[[Many], Many], report: Report) -> Many:
        """Return the outputs of a kind for records, arrays; those that its file lacks are computed and added to it."""
        file = self.file.with_stem(f"{self.file.stem}-{kind}")
        known, started = read_vectors(file), time.monotonic()
        keys = [sha256(json.dumps(record).encode()).digest()[:16] for record in records]
        # equal records are asked once
        missing = [(key, record) for key, record in dict(zip(keys, records)).items() if key not in known]
        size = max(_LEAST, -(-len(missing) // _PARTS))  # each part writes the whole file anew, so there are few parts
        with warnings.catch_warnings(record=True) as caught:
            for start in range(0, len(missing), size):
                part = missing[start : start + size]
                known.update(zip(dict(part), compute([record for _, record in part])))
                write_vectors(file, known)
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            report(f"warning: teacher {self.name}: {message}")
        report(
            f"teacher {self.name}: outputs for {counted(len(records), 'record')}, {len(missing):,} computed, "
            f"the others from {file}, in {time.monotonic() - started:.1f} s"
        )
        return [known[key] for key in keys]


@dataclass(frozen=True)
class Teachers:
    """The teachers of a run; `position` is that of the key in the recipe, for messages."""

    config: TeacherConfig
    every: Sequence[Teacher]
    position: str

    def teach(self, preparation: Preparation, config: ObjectiveConfig, make: Make) -> Batches:
        """Return the batches of an objective, with what the teachers say of them; it is `Preparation.teach`."""
        of_tokens, outputs, tokens = OBJECTIVES[config.kind].taught == "tokens", None, None
        if of_tokens and self.config.n_best and "source" in preparation.split.columns:
            return make(self._with_their_targets(preparation), config)
        batches = make(preparation, config)
        assert isinstance(batches, PlannedBatches | PairBatches)
        if of_tokens:
            for teacher in self.every:
                with named(self.position, teacher.name):
                    teacher_outputs.check_writer(teacher.model, preparation)
            tokens = partial(teacher_outputs.token_vectors, [teacher.model.network for teacher in self.every])
        else:
            ask = self._vectors if OBJECTIVES[config.kind].of_vectors else self._head_outputs
            by_teacher = []
            for teacher in self.every:
                with named(self.position, teacher.name):
                    by_teacher.append(ask(teacher, preparation))
            outputs = [np.stack(of_record, axis=1) for of_record in zip(*by_teacher)]  # (T,K,C)
        teaching = Distillation(self.config.weight, self.config.temperature, tokens)
        batches.teach = partial(teacher_outputs.with_outputs, teaching=teaching, outputs=outputs)
        return batches

    def _head_outputs(self, teacher: Teacher, preparation: Preparation) -> teacher_outputs.Outputs:
        """What a teacher gives for the labels of each record, in the order of the network."""
        (kind,), columns = TASKS[preparation.recipe.task].heads, preparation.split.columns
        head = next(head for head in preparation.network.heads if head.role == kind)
        own = teacher_outputs.teaching_head(teacher.model, head, preparation.split)
        read = [columns[name] for name in ("tokens", "text", "pair") if name in columns]
        records = read[0] if len(read) == 1 else list(zip(*read))
        ask = partial(teacher_outputs.head_outputs, teacher.model, own)
        rows = teacher.answers(kind, records, ask, preparation.report)
        # the labels as the network has them; a number has none
        order = [own.labels.index(name) for name in head.labels] or [0]
        return [row[:, order] for row in rows]

    def _vectors(self, teacher: Teacher, preparation: Preparation) -> teacher_outputs.Outputs:
        """The vectors of the sides of each record, one behind the other (1,S·D)."""
        sides, prompts = [], (preparation.recipe.embedding or EmbeddingConfig()).field_prompts
        known = embedding_for(teacher.model.config.get("embedding", {}), teacher.name, {})
        if known.field_prompts or not {*prompts.values()} <= known.prompts.keys():
            prompts = {}  # the teacher's own
        for field in (field for field in SIDES if field in preparation.split.columns):
            prompt = replace(known, field_prompts=prompts or known.field_prompts).of_field(field).prompt

            def compute(records: Many, prompt: str = prompt) -> Many:
                return list(embed(teacher.model, [text for _, text in records], prompt=prompt)[:, np.newaxis])

            records = [(prompt, text) for text in preparation.split[field]]
            sides.append(teacher.answers("vectors", records, compute, preparation.report))
        width = (preparation.recipe.embedding or EmbeddingConfig()).width(preparation.network)
        if sides[0][0].shape[-1] != width:
            raise CapabilityError(f"its vectors have {sides[0][0].shape[-1]} numbers, and those of the network {width}")
        return [np.concatenate(of_record, axis=-1) for of_record in zip(*sides)]

    def _with_their_targets(self, preparation: Preparation) -> Preparation:
        """Return the records with the best outputs of each teacher as targets, in place of their own."""
        n_best, split, pairs = self.config.n_best, preparation.split, list[tuple[int, str]]()
        for teacher in self.every:
            with named(self.position, teacher.name):
                languages = _languages(teacher.model, preparation.recipe)
                generator = generator_of(teacher.model, preparation.recipe.task, n_best, languages)

            def write(records: Many, generator: TextGenerator = generator) -> Many:
                texts = ([one.text for one in best] for best in generator.write([source for _, source, *_ in records]))
                # the cache holds arrays: texts as bytes of JSON
                return [np.frombuffer(json.dumps(best).encode(), dtype=np.uint8) for best in texts]

            records = [(n_best, source, *languages.values()) for source in split["source"]]
            for row, packed in enumerate(teacher.answers("outputs", records, write, preparation.report)):
                pairs += [(row, text) for text in json.loads(packed.tobytes())]
        taken = split.taken([row for row, _ in pairs])
        columns = {**taken.columns, "target": [text for _, text in pairs]}
        return replace(preparation, split=replace(taken, columns=columns))


def _languages(model: TaskModel, recipe: Recipe) -> Any:
    """The languages that a multilingual teacher is told. Raises CapabilityError: the recipe does not say them."""
    languages, told = languages_of(tokenizer_of(model).specials.ids), tuple[str, ...]()
    if "atento_version" not in model.config:  # else it was trained for one direction
        if any(map(chooses_by_source, languages.values())):
            told = LANGUAGES[1:]
        elif languages and model.config.get("task") == TEXT_TO_TEXT:
            told = LANGUAGES
    given = {key: getattr(recipe.data, key) for key in told}
    if verb_of(recipe.task) == "translate" and None in given.values():
        raise CapabilityError(f"it is multilingual: {' and '.join(f'`data.{key}`' for key in told)} must be given")
    return {key: value for key, value in given.items() if value is not None}


@contextmanager
def named(position: str, name: str) -> Iterator[None]:
    """Raises RecipeError: a wrong use inside, of the teacher of that name."""
    try:
        yield
    except UsageError as error:
        raise RecipeError(f"{position}: teacher {name}: {error}") from None


def load_teachers(setup: Setup) -> None:
    """Load the teachers that the recipe names; the run knows them by their hashes."""
    config, home = setup.recipe.teacher, setup.loaded.home
    if config is None:
        return
    position = setup.loaded.origins.get("teacher.model", "teacher")
    folder, every = setup.folder / "teacher" if config.cache is None else home / config.cache, []
    for name in config.model:
        with named(position, name):
            model = load_for_tasks(home / name if (home / name).exists() else name, setup.device, name)
            if setup.recipe.data.truncate != "none":
                model.source_limit = model.network.config.source_limit  # its sources are cut too
            network, tokenizer = model.network.config, tokenizer_of(model)
        # the network may have more rows than the tokenizer pieces
        tokenizer.pad_to(network.vocab_size, network.target_vocab_size)
        parts = [network_to_dict(network), tokenizer.fingerprint, *(model.config.get(key) for key in _READING)]
        fingerprint = fingerprint_of(model.network.state_dict(), json.dumps(parts, sort_keys=True))
        every.append(Teacher(name, model, folder / f"{fingerprint}.safetensors"))
    setup.identity["teachers"] = [teacher.file.stem for teacher in every]
    setup.teach = Teachers(config, every, position).teach
