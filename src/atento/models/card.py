"""The model card (README.md) of a model folder: what the model is, its sizes, and how to use it."""

import re
from collections.abc import Mapping

from atento.base.version import __version__
from atento.config.sections.network import NetworkConfig
from atento.config.tables.tasks import EMBEDDING, verb_of
from atento.config.tables.verbs import VERBS

CARD = "README.md"
_HEADING = "## Written by Atento"
_SECTION = re.compile(rf"^{_HEADING}\n.*?(?=^##? |\Z)", re.MULTILINE | re.DOTALL)
_SEQ2SEQ = (
    "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
    "tokenizer, network = AutoTokenizer.from_pretrained('.'), AutoModelForSeq2SeqLM.from_pretrained('.')\n"
    "written = network.generate(**tokenizer('Hello.', return_tensors='pt'))\n"
    "print(tokenizer.decode(written[0], skip_special_tokens=True))\n"
)
_GENERATION = "from transformers import pipeline\n\nprint(pipeline('text-generation', model='.')('Once'))\n"
_FILL_MASK = (
    "from transformers import pipeline\n\n"
    "fill = pipeline('fill-mask', model='.')\n"
    "print(fill(f'Once {fill.tokenizer.mask_token} a time.'))\n"
)
_CLASSIFICATION = "from transformers import pipeline\n\nprint(pipeline('text-classification', model='.')('Olá.'))\n"
_TAGGING = (
    "from transformers import pipeline\n\n"
    "print(pipeline('token-classification', model='.', aggregation_strategy='first')('Ana mora em Lisboa.'))\n"
)
_ANSWERING = (
    "from transformers import AutoModelForQuestionAnswering, AutoTokenizer\n\n"
    "tokenizer, network = AutoTokenizer.from_pretrained('.'), AutoModelForQuestionAnswering.from_pretrained('.')\n"
    "logits = network(**tokenizer('Quem dorme?', 'O gato dorme.', return_tensors='pt'))\n"
    "print(logits.start_logits.argmax(), logits.end_logits.argmax())  # the answer's first and last token\n"
)
_SENTENCES = "from sentence_transformers import SentenceTransformer\n\nprint(SentenceTransformer('.').encode('Olá.'))\n"
_THEIRS = ("='.')('Olá.')", "='.')({'text': 'Olá.', 'text_pair': 'Oi.'})")
_BESIDE: dict[
    tuple[str | None, object], tuple[tuple[str, str], ...]
] = {  # by verb and `pairs` of config.json: what differs from the row of the verb
    ("classify", True): (
        _THEIRS,
        ("('Olá.')", "(('Olá.', 'Oi.'))"),
        ("classify {run} FILE", "classify {run} PAIRS.tsv --pairs"),
    ),
    ("similarity", True): (_THEIRS,),
    ("similarity", False): (("('Olá.', 'Oi.')", "('Olá.')"), ("PAIRS.tsv", "FILE")),
}


def model_card(
    config: Mapping[str, object], network: NetworkConfig, *, layout: str = "atento", existing: str = "", usage: str = ""
) -> str:
    """The card of a model: task, sizes, how to use it, and which Atento wrote it.

    Args:
        config: the model's configuration, ours.
        network: its network.
        layout: of the folder that the card is for.
        existing: the card of the folder that the model was read from. It is preserved, and our section is added to it
            or replaces an earlier one.
        usage: Python code that uses the folder, for the layout of another engine; empty: code for `layout`.
    """
    blocks = [usage]
    if not usage:  # with Atento and, in the Hugging Face layout, with the libraries that read it
        verb = verb_of(config.get("task"))
        example = VERBS[verb].example if verb else ""
        if isinstance(heads := config.get("tasks"), Mapping):
            example = example.replace("')", f"', head='{next(iter(heads))}')", 1)
        if verb == "fill" and network.architecture == "encoder-decoder":
            example = "print(model.fill('Olá <extra_id_0>.'))\n"
        theirs = _transformers_example(config, network) if layout == "huggingface" else ""
        found = [f"import atento\n\nmodel = atento.load('.')\n{example}", theirs]
        blocks = [fitting(verb, block, config.get("pairs")) for block in found if block]
    code = "\n".join(f"```python\n{block}```\n" for block in blocks)
    family = f" of the family {network.family}" if network.family else ""
    trained = config.get("atento_version")
    depth = f"{network.n_layers} layer{'s' if network.n_layers != 1 else ''}"
    if network.architecture == "encoder-decoder":
        depth = f"{network.n_layers} + {network.decoder_layers} layers"
    heads = config.get("tasks")
    named = ", ".join(f"{name} ({own['task']})" for name, own in heads.items()) if isinstance(heads, Mapping) else ""
    tasks = f"Heads: {named}" if named else f"Task: {config.get('task')}"
    section = (
        f"{_HEADING}\n\n{tasks}. Architecture: {network.architecture}{family}, {network.d_model} wide, "
        f"{depth}, vocabulary {network.vocab_size}. "
        f"{f'Trained with Atento {trained}. ' if trained else ''}These files were written by Atento "
        f"{__version__}.\n\n{code}"
    )
    if not existing.strip():
        theirs = "sentence-transformers" if "embedding" in config else "transformers"
        library = theirs if layout == "huggingface" else layout
        unknown = "The training data, and so what the model may be used for, are known to whoever trained it.\n"
        return f"---\nlibrary_name: {library}\n---\n\n# {config.get('name')}\n\n{unknown}\n{section}"
    if _SECTION.search(existing):
        return _SECTION.sub(lambda _: section, existing, count=1)
    return f"{existing.rstrip()}\n\n{section}"


def fitting(verb: str | None, words: str, pairs: object) -> str:
    """Return words of a row as a model of pairs of texts, or of single ones, takes them; `pairs` is of its config."""
    for usual, other in _BESIDE.get((verb, pairs), ()):
        words = words.replace(usual, other)
    return words


def _transformers_example(config: Mapping[str, object], network: NetworkConfig) -> str:
    if "embedding" in config or config.get("task") == EMBEDDING:
        return _SENTENCES
    verb = verb_of(config.get("task"))
    of_architecture = {"encoder-decoder": _SEQ2SEQ, "decoder": _GENERATION}.get(network.architecture)
    of_masks = _FILL_MASK if any(head.kind == "masked-language-model" for head in network.heads) else ""
    if verb in ("classify", "similarity"):
        return _CLASSIFICATION
    return of_architecture or {"tag": _TAGGING, "answer": _ANSWERING}.get(str(verb), of_masks)
