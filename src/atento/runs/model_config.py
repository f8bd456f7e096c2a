"""The `config.json` of the model that a run trains."""

from dataclasses import asdict

from atento.base.version import __version__
from atento.config.reading.task_defaults import task_of_records
from atento.config.recipe import READING, Recipe, SourceConfig
from atento.config.sections.long_texts import LongTextConfig
from atento.config.tables.renamed_keys import VERSION
from atento.config.tables.tasks import TASKS
from atento.data.objectives.preparation import long_texts_of
from atento.data.records.splits import Split
from atento.metrics.tag_schemes import scheme_of
from atento.models.model_folder import LORA
from atento.tasks.model_outputs import reads_signs
from atento.tasks.question_answering import learned_settings
from atento.tasks.split_evaluation import prefixes_of


def model_config(recipe: Recipe, network: dict[str, object], template: str | None = None) -> dict[str, object]:
    """Return the content of `config.json`: everything needed to use the model.

    Args:
        recipe: the recipe of the run.
        network: configuration of the network, as plain data.
        template: name of the special tokens around its texts; None: the tokenizer's own.
    """
    config = {
        "model_type": "atento",
        "version": VERSION,
        "atento_version": __version__,
        "task": recipe.task,
        "name": recipe.name,
        "network": network,
        "decoding": asdict(recipe.decoding),
        "max_len": recipe.data.max_len,
    }
    if recipe.objective:
        config["objectives"] = [objective.kind for objective in recipe.objective]
    if recipe.embedding is not None:
        config["embedding"] = asdict(recipe.embedding)
    if (long_texts := long_texts_of(recipe.data)) != LongTextConfig(stride=long_texts.stride):
        config["long_texts"] = asdict(long_texts)
    return config if template is None else config | {"template": template}


def facts_of_data(recipe: Recipe, train: Split) -> dict[str, object]:
    """What `config.json` says of the training data: pairs or not, prefixes, the scheme of tags, sources without words,
    how to find answers."""
    columns = train.columns
    facts: dict[str, object] = {}
    if any(field.name == "pair" for field in TASKS[recipe.task].fields):
        facts["pairs"] = "pair" in columns
    if TASKS[recipe.task].grouped_by is not None:
        facts["pairs"] = True
    if len(prefixes := prefixes_of(recipe)) > 1:
        facts["prefixes"] = prefixes
    # of the first file of training data: columns other than `evaluate` chooses by itself, and how it was read
    source, usual = recipe.data.train[0], SourceConfig()
    if source.file is not None or source.dataset is not None:
        fields = TASKS[task_of_records(recipe, "train")].fields
        written = {one.name: column for one in fields if (column := getattr(source, one.name)) is not None}
        ordered = not any(one.optional for one in fields)  # else the width of a table says which of them it has
        if not all(column == name or (ordered and column == n) for n, (name, column) in enumerate(written.items())):
            facts["columns"] = written
    names = READING if source.file is not None or isinstance(source.source, str) else ()
    reading = {name: getattr(source, name) for name in names if getattr(source, name) != getattr(usual, name)}
    if recipe.data.skip_bad:
        reading["skip_bad"] = True
    if reading:
        facts["reading"] = reading
    if "tags" in columns:
        facts["tag_scheme"] = scheme_of(columns["tags"])
    if reads_signs(train):
        facts["without_words"] = True
    if "answers" in columns:
        facts["answering"] = learned_settings(recipe, train)
    return facts


def adapters_of(recipe: Recipe) -> dict[str, object]:
    """The adapters in the weights of a checkpoint, for `config.json`; loading joins them."""
    lora = None if recipe.init is None else recipe.init.adapters
    return {} if lora is None else {LORA: asdict(lora)}
