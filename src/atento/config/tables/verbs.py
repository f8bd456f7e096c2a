"""The verbs, one row each: what a user sees of a use of a model. Their code is in `atento.tasks.verb_table`."""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class VerbSpec:
    """One verb: a method of `atento.Model`, and the command of that name."""

    example: str  # Python code with a loaded `model`, for a model card
    next: tuple[str, ...]  # commands that use a trained model, with {run} for its folder
    hub: str | None = None  # what Hugging Face calls the task; None: as Atento does
    module: str | None = None  # the file in `atento_cli` that has the command; None: that of the verb's name
    writes: bool = False  # whether the outputs are texts
    by_token: bool = False  # whether they are written token by token, so that they can be streamed


_writes = partial(VerbSpec, module="text_commands", writes=True, by_token=True)

VERBS: dict[str, VerbSpec] = {  # in the order of `atento --help`
    "translate": _writes(
        "model.translate('Hello.')\n",
        ("translate {run} FILE", "attend {run} TEXT --out page.html", "evaluate {run} FILE.tsv"),
    ),
    "summarize": _writes("model.summarize('A long text ...')\n", ("summarize {run} FILE", "evaluate {run} FILE.tsv")),
    "generate": _writes(
        "model.generate('Once')\n",
        ("generate {run} FILE --top-p 0.9", "generate {run} FILE --beam 4"),
        hub="text-generation",
    ),
    "fill": VerbSpec(
        "mask = model.tokenizer.specials.roles['mask']\nprint(model.fill(f'Olá {mask}.'))\n",
        ("fill {run} FILE", "embed {run} FILE", "similarity {run} PAIRS.tsv"),
        hub="fill-mask",
        writes=True,
    ),
    "classify": VerbSpec(
        "print(model.classify('Olá.'))\n", ("classify {run} FILE", "evaluate {run} FILE.tsv"), hub="text-classification"
    ),
    "tag": VerbSpec(
        "print(model.tag('Ana mora em Lisboa.'))\n",
        ("tag {run} FILE", "evaluate {run} FILE.conll"),
        module="classify",
        hub="token-classification",
    ),
    "answer": VerbSpec(
        "print(model.answer('Quem dorme?', 'O gato dorme.'))\n",
        ("answer {run} QUESTIONS.tsv", "evaluate {run} FILE.json"),
    ),
    "embed": VerbSpec(
        "model.embed(['Olá.'])\n", ("embed {run} FILE", "similarity {run} PAIRS.tsv"), hub="feature-extraction"
    ),
    "similarity": VerbSpec(
        "print(model.similarity('Olá.', 'Oi.'))\n",
        ("similarity {run} PAIRS.tsv", "evaluate {run} FILE.tsv"),
        module="embed",
        hub="sentence-similarity",
    ),
}
EXPLANATIONS = ("integrated-gradients", "gradient-input", "rollout", "leave-out")
"""The methods of `Model.explain`, the usual one first."""
WRITING = tuple(name for name, spec in VERBS.items() if spec.by_token)
"""The verbs whose outputs are texts that a model writes token by token."""
