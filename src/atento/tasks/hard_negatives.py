"""Hard negatives: documents that an encoder takes for answers of a query, and that are none by their margins."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import UsageError
from atento.config.sections.embedding import EmbeddingOptions
from atento.data.records.values import compared
from atento.metrics.rouge import unicode_words
from atento.tasks.decoding_setup import embedding_for
from atento.tasks.model_vectors import embed
from atento.tasks.regression import numbers_of
from atento.tasks.task_model import TaskModel

_EQUAL = 1e-6  # scores of equal vectors differ by less: products of rows may add in another order
_BLOCK = 4_000_000  # cosines in memory at once: 16 MB


@dataclass(frozen=True)
class Mining:
    """Which documents are negatives of a query."""

    count: int = 1  # the most negatives of a pair
    within: int = 100  # a negative is among so many documents that are nearest to the query
    skip: int = 0  # the nearest of these are left out, since they are often unmarked answers
    margin: float = 0.0  # how much lower than the positive a negative scores at least
    relative_margin: float = 0.0  # the same, as a share of the positive's score

    def __post_init__(self) -> None:
        if self.count < 1 or self.within < 1 or self.skip < 0:
            raise UsageError(
                f"`count` and `within` must be at least 1, and `skip` at least 0: got {self.count}, {self.within} and "
                f"{self.skip}"
            )
        if not (0 <= self.margin < math.inf and 0 <= self.relative_margin < 1):
            raise UsageError(
                f"`margin` must be at least 0, and `relative_margin` lie in [0, 1): got {self.margin:g} and "
                f"{self.relative_margin:g}"
            )


def mined(
    encoder: TaskModel,
    pairs: Sequence[tuple[str, str]],
    corpus: Sequence[str],
    mining: Mining,
    ranker: TaskModel | None = None,
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each pair of a query and its right document with its negatives, the nearest first.

    Scores are cosines, or the numbers of a ranker, of which the logistic function is taken. No document is a negative
    of a query if it has the words of one of its right documents; queries are compared by their words too.

    Args:
        encoder: makes the vectors, with its prompts of queries and documents, if it has such.
        pairs: queries with right documents.
        corpus: the documents to search; those of the pairs if it is empty.
        mining: which documents are negatives.
        ranker: a model of pairs that gives numbers; None: there is none.
    """
    if not pairs:
        return
    right: dict[str, set[str]] = {}
    for query, positive in pairs:
        right.setdefault(_form(query), set()).add(_form(positive))
    documents = list(dict.fromkeys([*corpus, *(positive for _, positive in pairs)]))
    place = {text: number for number, text in enumerate(documents)}
    queries = list(dict.fromkeys(query for query, _ in pairs))
    searched = len(dict.fromkeys(corpus)) or len(documents)  # the positives of the pairs stand behind the corpus
    first, second = search_vectors(encoder, queries, query=True), search_vectors(encoder, documents)
    forms = [*map(_form, documents)]
    twins = Counter(forms)  # documents that look the same
    wanted = mining.within + max(sum(twins[form] for form in own) for own in right.values())
    nearest: dict[str, list[int]] = {}
    block = max(1, _BLOCK // len(documents))
    for begin in range(0, len(queries), block):
        cosines = first[begin : begin + block] @ second[:searched].T
        top = np.argsort(-cosines, axis=1, kind="stable")[:, :wanted]
        for query, row in zip(queries[begin : begin + block], top.tolist()):
            others = [number for number in row if forms[number] not in right[_form(query)]]
            nearest[query] = others[: mining.within][mining.skip :]
    row_of = {query: number for number, query in enumerate(queries)}
    for query, positive in pairs:
        found = nearest[query]
        scored = [place[positive], *found]
        if ranker is None:
            scores = (second[scored] @ first[row_of[query]]).tolist()
        else:
            numbers = numbers_of(ranker, [(query, documents[number]) for number in scored])
            scores = [0.5 * (1 + math.tanh(number / 2)) for number in numbers]
        limit = scores[0] - max(mining.margin, mining.relative_margin * abs(scores[0]), _EQUAL)
        negatives = [documents[number] for number, score in zip(found, scores[1:]) if score <= limit]
        yield query, positive, negatives[: mining.count]


def _form(text: str) -> str:
    """A text by which it is compared: its words without case, signs and spaces; of a text without words, itself."""
    return " ".join(unicode_words(text)) or compared(text.strip())


def search_vectors(encoder: TaskModel, texts: Sequence[str], *, query: bool = False) -> NDArray[np.float32]:
    """The vectors (N,D) of documents, or of queries, of length 1, behind their prompt if the encoder has one."""
    prompts = embedding_for(encoder.config.get("embedding", {}), str(encoder.path), {}).search_prompts()
    prompt, options = prompts[0 if query else 1], EmbeddingOptions(normalize=True)
    return embed(encoder, texts, **(options if prompt is None else {**options, "prompt_name": prompt}))
