"""The labellings of the micro-world: the fields of their records, which a task must read."""

from collections.abc import Sequence

from atento.config.tables.task_spec import Field

# The fields of each labelling of `atento_world.LABELLINGS`.
LABELLINGS: dict[str, tuple[str, ...]] = {
    "tense": ("text", "label"),
    "negation": ("text", "label"),
    "number": ("text", "label"),
    "question": ("text", "label"),
    "similarity": ("text", "pair", "score"),
    "entailment": ("text", "pair", "label"),
    "pos": ("tokens", "tags"),
    "entities": ("tokens", "tags"),
    "answers": ("question", "context", "answers"),
}


def labellings_for(fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the labellings whose records have these fields; optional ones may be missing. A text has one label."""
    known = {field.name for field in fields if field.kind != "classes"}
    required = {field.name for field in fields if not field.optional}
    return tuple(name for name, columns in LABELLINGS.items() if required <= set(columns) <= known)
