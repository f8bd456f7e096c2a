"""What a model is used for: its task by architecture, heads and family, and the method of `Model` that does a task."""

from collections.abc import Sequence

EMBEDDING, TEXT_TO_TEXT = "embedding", "text-to-text"
LANGUAGE_MODELING, TRANSLATION, SUMMARIZATION = "language-modeling", "translation", "summarization"

VERBS = {
    TRANSLATION: "translate",
    SUMMARIZATION: "summarize",
    LANGUAGE_MODELING: "generate",
    EMBEDDING: "embed",
    "masked-language-modeling": "embed",
}
"""task -> the method of `Model` that does it."""

_TASK_OF_HEAD = {
    "masked-language-model": "masked-language-modeling",
    "classification": "classification",
    "regression": "regression",
    "tagging": "tagging",
    "answer": "question-answering",
}


def usual_task(architecture: str, heads: Sequence[str], family: str | None) -> str:
    """The task of a released model: by its first head of a known kind, else by its architecture.

    Args:
        architecture: of its network.
        heads: the kinds of its heads.
        family: such as "marian", whose encoder-decoders translate; others take the task as a prefix of the text.
    """
    if architecture == "encoder":
        return next((_TASK_OF_HEAD[kind] for kind in heads if kind in _TASK_OF_HEAD), EMBEDDING)
    if architecture == "decoder":
        return LANGUAGE_MODELING
    return TRANSLATION if family == "marian" else TEXT_TO_TEXT
