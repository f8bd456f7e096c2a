"""Portuguese tasks with the columns of their published files: ASSIN, STS-B, entities, FaQuAD, and GLUE as PLUE."""

from dataclasses import replace

from atento_cli.suites.glue_tasks import GLUE
from atento_cli.suites.row import ACCURACY, ANSWER_F1, ENTITY_F1, EXACT_MATCH, MACRO_F1, PEARSON, SPEARMAN, Row, Suite

_TEXTS = {"text": "t", "pair": "h"}
_ENTAILMENT = _TEXTS | {"label": "entailment"}
_SIMILARITY = _TEXTS | {"score": "similarity"}
_THREE = ("Entailment", "None", "Paraphrase")


def _assin(name: str, file: str, short: str, labels: tuple[str, ...], set: str) -> tuple[Row, Row]:
    """The two tasks of one variety of ASSIN: entailment and similarity, in the same files."""
    files = (file, file.replace("/", "/sources/"), short)
    entailment = Row(f"{name}-RTE", "entailment", files, _ENTAILMENT, (ACCURACY, MACRO_F1), labels)
    similarity = Row(f"{name}-STS", "similarity, 1 to 5", files, _SIMILARITY, (PEARSON, SPEARMAN), range=(1.0, 5.0))
    train = ("train", "train-only")  # of ASSIN and of ASSIN 2
    return replace(entailment, labelled_test=True, train=train, set=set), replace(
        similarity, labelled_test=True, train=train, set=set
    )


def _entities(name: str, source: str, *files: str) -> Row:
    columns: dict[str, int | str] = {"tokens": 0, "tags": -1}
    about = f"entities in {source}"
    return Row(name, about, files, columns, (ENTITY_F1,), labelled_test=True, format="conll")


def _plue(row: Row) -> Row:
    """A task of GLUE in Portuguese: the same files in a folder of their own."""
    parts = tuple(
        replace(part, name=f"PLUE-{part.name}", files=_in_plue(part.files) if part.files else ()) for part in row.scored
    )
    return replace(row, name=f"PLUE-{row.name}", files=_in_plue(row.files), parts=parts, set="PLUE")


def _in_plue(files: tuple[str, ...]) -> tuple[str, ...]:
    """These files in the folder of PLUE, or in that of its repository."""
    return tuple(f"{folder}/{file}" for folder in ("PLUE", "PLUE/datasets") for file in files)


ROWS = (
    *_assin("ASSIN-BR", "assin/assin-ptbr-{split}.xml", "assin_ptbr/{split}.xml", _THREE, "ASSIN"),
    *_assin("ASSIN-PT", "assin/assin-ptpt-{split}.xml", "assin_ptpt/{split}.xml", _THREE, "ASSIN"),
    *_assin("ASSIN-2", "assin2/assin2-{split}.xml", "assin2/{split}.xml", ("Entailment", "None"), "ASSIN 2"),
    Row(
        "STS-B-PT",
        "similarity, 0 to 5",
        ("stsb_multi_mt/stsb-pt-{split}.csv", "stsb_multi_mt/data/stsb-pt-{split}.csv", "stsb_pt/{split}.csv"),
        {"text": 0, "pair": 1, "score": 2},
        (PEARSON, SPEARMAN),
        range=(0.0, 5.0),
        labelled_test=True,
    ),
    _entities("LeNER-Br", "legal texts", "leNER-Br/{split}/{split}.conll", "lener_br/{split}.conll"),
    _entities("WikiANN-PT", "Wikipedia", "wikiann/pt/{split}", "wikiann_pt/{split}", "wikiann_pt/{split}.tsv"),
    Row(
        "FaQuAD",
        "questions about a text",
        ("faquad/data/{split}.json", "faquad/{split}.json"),
        {},
        (ANSWER_F1, EXACT_MATCH),
        labelled_test=True,
        recipe={"data": {"skip_bad": True}},  # 30 answers of the published files do not stand at their offset
    ),
    *(_plue(row) for row in GLUE.rows),
)
PORTUGUESE = Suite("pt", ROWS)
