"""What a model is used for: its task by architecture, heads and family, and the method of `Model` that does a task."""

from atento.config.network import NetworkConfig

EMBEDDING, TEXT_TO_TEXT = "embedding", "text-to-text"
LANGUAGE_MODELING, TRANSLATION = "language-modeling", "translation"

_VERBS: dict[str, str] = {
    TRANSLATION: "translate",
    "summarization": "summarize",
    LANGUAGE_MODELING: "generate",
    EMBEDDING: "embed",
    "masked-language-modeling": "embed",
}

_TASK_OF_HEAD = {
    "masked-language-model": "masked-language-modeling",
    "classification": "classification",
    "regression": "regression",
    "tagging": "tagging",
    "answer": "question-answering",
}


def task_of(network: NetworkConfig) -> str:
    """The task of a released model: by its first head of a known kind, else by its architecture.

    Of the families of encoder-decoders, Marian's translate; the others find the task in a prefix of the text.
    """
    if network.architecture == "encoder":
        return next((_TASK_OF_HEAD[head.kind] for head in network.heads if head.kind in _TASK_OF_HEAD), EMBEDDING)
    if network.architecture == "decoder":
        return LANGUAGE_MODELING
    return TRANSLATION if network.family == "marian" else TEXT_TO_TEXT


def task_with(verb: str) -> str:
    """The first task whose models are used by that method."""
    return next(task for task, other in _VERBS.items() if other == verb)


def verb_of(task: object) -> str | None:
    """The method that models of a task are used by; None for an unknown task."""
    return _VERBS.get(task) if isinstance(task, str) else None
