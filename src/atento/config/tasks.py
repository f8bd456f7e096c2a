"""What each task takes for granted: its architectures and metrics, and the defaults that differ from everybody's."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atento.config.presets import PRESETS
from atento.config.yaml12 import Written


@dataclass(frozen=True)
class TaskRules:
    """One task: what its data are (`pairs` or `texts`), what may learn it, what may score it, what it begins with."""

    data: str
    architectures: tuple[str, ...]
    why: str  # what those architectures do
    metrics: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


_OF_TEXT = ("bleu", "chrf", "ter", "rouge", "token-f1", "f1-bleu-rouge", "exact-match")
_PLAIN: dict[str, Any] = {"training": {"label_smoothing": 0.0}, "metrics": []}

RULES: dict[str, TaskRules] = {
    "translation": TaskRules(
        "pairs", ("encoder-decoder", "recurrent-seq2seq"), "read a source and write", metrics=_OF_TEXT
    ),
    "summarization": TaskRules(
        "pairs",
        ("encoder-decoder", "recurrent-seq2seq"),
        "read a source and write",
        metrics=_OF_TEXT,
        defaults={"metrics": ["rouge"]},
    ),
    "language-modeling": TaskRules(
        "texts",
        ("decoder", "recurrent-lm"),
        "guess each token from those before it",
        defaults=_PLAIN | {"network": {"architecture": "decoder"}, "decoding": {"beam": 1}},
    ),
    "masked-language-modeling": TaskRules(
        "texts",
        ("encoder",),
        "read both ways",
        defaults=_PLAIN | {"network": {"architecture": "encoder", "heads": [{"kind": "masked-language-model"}]}},
    ),
    "bidirectional-language-modeling": TaskRules(
        "texts",
        ("elmo",),
        "guess each word from either side",
        defaults=_PLAIN | {"network": {"architecture": "elmo", "elmo": {}}, "tokenizer": {"kind": "word"}},
    ),
    "cbow": TaskRules(
        "texts",
        ("cbow",),
        "guess words from their neighbours",
        defaults=_PLAIN | {"network": {"architecture": "cbow", "cbow": {}}, "tokenizer": {"kind": "word"}},
    ),
}


def with_defaults(tree: Written) -> Written:
    """The recipe with its task's own defaults beneath what was written, placed at `task NAME`."""
    task = tree.value["task"].value
    if not isinstance(task, str):  # whoever reads it says that it must be text
        return tree
    defaults = dict(RULES[task].defaults)
    network = tree.value.get("network")
    if network is not None and (isinstance(network.value, str) or _named(network)):
        usual = defaults.pop("network", {})  # a network that was named is taken as it is ...
        name = network if isinstance(network.value, str) else network.value.get("preset")
        made = PRESETS[name.value]() if name and isinstance(name.value, str) and name.value in PRESETS else None
        if made and not made.heads and made.architecture in RULES[task].architectures and "heads" in usual:
            defaults["network"] = {"heads": usual["heads"]}  # ... but for what the task reads off it
            if name is network:
                tree = replace(tree, value=tree.value | {"network": replace(network, value={"preset": network})})
    return _beneath(tree, defaults, f"task {task}")


def _named(network: Written) -> bool:
    return isinstance(network.value, dict) and not {"preset", "architecture"}.isdisjoint(network.value)


def _beneath(node: Written, defaults: Mapping[str, Any], place: str) -> Written:
    written = dict(node.value or {})
    for key, value in defaults.items():
        here = written.get(key)
        if here is None:
            written[key] = _written(value, place)
        elif isinstance(value, Mapping) and isinstance(here.value, dict):
            written[key] = _beneath(here, value, place)
    return replace(node, value=written)


def _written(value: Any, place: str) -> Written:
    if isinstance(value, Mapping):
        value = {key: _written(child, place) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_written(child, place) for child in value]
    return Written(value, place, key_place=place)
