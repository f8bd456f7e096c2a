"""The formats of data files, the columns that they have, and the labellings of the micro-world: the fields of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from unicodedata import normalize

from atento.config.tables.task_spec import Field

Column = int | str


@dataclass(frozen=True)
class Format:
    """One file format."""

    endings: tuple[str, ...] = ()  # endings of file names that say this format
    columns: Mapping[str, Column] = field(default_factory=dict)  # column of each field that the recipe need not name
    # whether other fields can be read, from columns that the recipe names. languages: whether columns are languages,
    # such as pt-BR, so that these fields are texts. lacking: what its records with an empty side are
    any_field: bool = False
    languages: bool = False
    lacking: str = ""
    by_number: bool = False  # whether columns may be numbers. by_name: whether they may be names
    by_name: bool = False
    from_end: bool = False  # whether a negative number counts columns from the end
    table: bool = False  # whether its first line, or the keys of its first record, can be shown


_OF_LANGUAGES = {"source", "target", "text", "pair"}  # fields that can be texts in a language
DATASETS = (".parquet", ".arrow")  # endings of files that the library `datasets` reads
COMPRESSED = (".gz", ".zst")  # endings of compressed files, after that of their format
_UNFINISHED = "untranslated or fuzzy"
_ANSWERING = {"question": "question", "context": "context", "answers": "answers"}
FORMATS: dict[str, Format] = {
    "tsv": Format((".tsv",), any_field=True, by_number=True, by_name=True, table=True),
    "csv": Format((".csv",), any_field=True, by_number=True, by_name=True, table=True),
    "xlsx": Format((".xlsx",), any_field=True, by_number=True, by_name=True, table=True),
    "jsonl": Format((".jsonl",), _ANSWERING, any_field=True, by_name=True, table=True),
    "json": Format((".json",), _ANSWERING, any_field=True, by_name=True, table=True),
    "conll": Format((".conll", ".bio", ".iob", ".iob2"), {"tokens": 0, "tags": -1}, by_number=True, from_end=True),
    "conllu": Format((".conllu",), {"tokens": 1, "tags": 3}, by_number=True, from_end=True),
    "assin": Format((".xml",), {"text": "t", "pair": "h", "label": "entailment", "score": "similarity"}, by_name=True),
    "tmx": Format((".tmx",), languages=True, by_name=True, table=True),
    "xliff": Format((".xlf", ".xliff"), languages=True, lacking=_UNFINISHED, by_name=True, table=True),
    "po": Format((".po",), languages=True, lacking=_UNFINISHED, by_name=True, table=True),
    "folders": Format((), {"text": "text", "label": "label"}, by_name=True),
    "text": Format((".txt",), {"text": 0}),
}


def format_of(file: str, stated: str | None, fields: Sequence[Field]) -> str | None:
    """Return the format of a file with these fields: `stated`, or by the ending of its name.

    Where the ending says nothing, or .txt, a task with words and tags reads columns (`conll`), and a task whose records
    are texts alone reads a text a line. A name without an ending is a folder of labels (`folders`) for a task that
    reads texts with labels. None: no format of such records.
    """
    if stated is not None:
        return stated
    texts = [one.name for one in fields] == ["text"]
    name = file
    for packed in COMPRESSED:
        name = name.removesuffix(packed)
    for kind, form in FORMATS.items():
        if name.endswith(form.endings) and (form.table or not texts) and kind != "text":
            return kind
    if texts:
        return "text"
    if not PurePath(name).suffix and any(one.name == "label" for one in fields) and holds("folders", fields):
        return "folders"
    return "conll" if {"words", "tags"} <= {one.kind for one in fields} else None


def columns_of_source(form: str, source: object, fields: Sequence[Field]) -> dict[str, Column | None]:
    """Return the column of each field of a source in this format: its own, or the default of the format; None: missing.

    An optional field without a column is left out.
    """
    defaults = FORMATS[form].columns
    columns = {}
    for one in fields:
        column = getattr(source, one.name)
        column = defaults.get(one.name) if column is None else column
        if column is not None or not one.optional:
            columns[one.name] = column
    return columns


def holds(form: str, fields: Sequence[Field]) -> bool:
    """Return whether a file of this format can have these fields; optional ones may be missing."""
    required = {one.name for one in fields if not one.optional}
    own = _OF_LANGUAGES if FORMATS[form].languages else FORMATS[form].columns.keys()
    return FORMATS[form].any_field or required <= own


def rule_of_endings(file: str, fields: Sequence[Field]) -> str:
    """Return which endings a file of these fields may have, and what to do with files of the library `datasets`."""
    other = f"; `dataset: {file}` in place of `file` reads it" if file.endswith(DATASETS) else ""
    return f"must end in one of {', '.join(endings_for(fields))} (or that and .gz or .zst){other}"


def endings_for(fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the endings of the files that can have these fields."""
    return tuple(ending for name, form in FORMATS.items() if holds(name, fields) for ending in form.endings)


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


NAMES = {
    "text": "text texts texto textos sentence sentence_a sentence1 premise frase frase1 sentenca sentenca1 "
    "premissa review resenha comment comentario content conteudo body corpo message mensagem msg tweet "
    "post t opiniao avaliacao feedback headline abstract resumo document documento utterance verso verse",
    "pair": "pair sentence_b sentence2 sentence_2 hypothesis hipotese frase2 sentenca2 text2 texto2 h par",
    "label": "label labels rotulo rotulos class classe classes category categoria sentiment sentimento polarity "
    "polaridade etiqueta intent intencao topic topico tema stars estrelas entailment emotion emocao genre "
    "genero",
    "score": "score scores nota notas rating grade similarity similaridade relatedness avaliacao pontuacao valor "
    "preco price",
    "tokens": "tokens words palavras",
    "tags": "tags ner etiquetas entidades entities",
    "question": "question pergunta questao",
    "context": "context contexto passage passagem paragraph",
    "answers": "answers answer resposta respostas",
    "query": "query consulta busca",
    "document": "document documento passage doc",
    "grade": "grade relevance relevancia",
    "positive": "positive positivo pos",
    "negative": "negative negativo neg",
    "source": "source src dialogue dialogo origem fonte input entrada article artigo en eng english ingles",
    "target": "target tgt trg destino alvo output saida summary resumo sumario translation traducao pt pt_br por "
    "portuguese portugues",
}
_FIELD_NAMES = {field: frozenset(names.split()) for field, names in NAMES.items()}


def folded(name: str) -> str:
    """A name in lower case, without accents, with underscores between its words."""
    plain = "".join(letter for letter in normalize("NFD", name) if letter.isascii())
    return re.sub(r"[^a-z0-9]+", "_", plain.casefold()).strip("_")


def is_usual(name: str, field: str) -> bool:
    """Whether a column of this name usually holds the field; the last part of a name with dots counts, or its word."""
    known, plain = _FIELD_NAMES.get(field, frozenset()), folded(name.rpartition(".")[2])
    return plain in known or plain.rpartition("_")[2] in known
