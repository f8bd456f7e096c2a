"""The head that a verb of a loaded model reads, and what to do about a model without it."""

from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import task_of_head
from atento.errors import CapabilityError
from atento.tasks.task_model import TaskModel


def head_of(model: TaskModel, kind: str) -> HeadConfig:
    """The model's head of that kind.

    Raises:
        CapabilityError: it has none; says what the model was trained for, and how to give it one.
    """
    head = next((head for head in model.network.config.heads if head.kind == kind), None)
    if head is None:
        raise CapabilityError(
            f"this model was trained for {model.config.get('task')} and has no {kind} head: fine-tune it by a recipe "
            f"with `task: {task_of_head(kind)}` and `init: {model.requested}`"
        )
    return head
