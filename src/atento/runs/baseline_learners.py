"""The simple learners that a model is compared with: counts, overlaps of words, and TF-IDF with a linear model."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from atento.base.errors import MissingPartError, install_hint
from atento.data.records.splits import Split, pairs_of, qrels_of
from atento.metrics.score import Outputs
from atento.text.words import split_sentences

Predict = Callable[[Split], Sequence[object]]

_WORD = r"(?u)\b\w+\b"
_FEATURES = 200_000  # words and pairs of words of a TF-IDF table at most
_OF_VECTORS = 4096  # the same where the vectors are stored without gaps
_MANY = 1000  # training records
_SHORT = 0.5  # targets of less than this share of their sources' words are summaries


@dataclass(frozen=True)
class Learner:
    """A learner without a network."""

    name: str  # what it is called in the table of scores
    # from the training records to a function that gives the outputs for those of another split
    fit: Callable[[Split], Predict]
    fields: tuple[str, ...]  # what it reads of a record; a task of a program's own may have others
    fits: Callable[[Split], bool] = lambda train: True  # whether it says something of such training records

    def applies(self, train: Split) -> bool:
        """Whether these training records have its fields, and it says something of them."""
        return train.columns.keys() >= {*self.fields} and self.fits(train)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(_WORD, text.lower())


def overlap(first: str, second: str) -> float:
    """The share of the words of two texts that both have (Jaccard), 0 to 1."""
    one, other = set(words_of(first)), set(words_of(second))
    return len(one & other) / max(1, len(one | other))


def _most_frequent(field: str, train: Split) -> Predict:
    """The most frequent value of a field; the first in order where several are."""
    counts = Counter(train[field])
    value = min(counts, key=lambda value: (-counts[value], str(value)))
    return lambda split: [list(value) if isinstance(value, tuple) else value] * len(split)


def _tag_of_word(train: Split) -> Predict:
    """The most frequent tag of each word, and of all words for an unknown one."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(train["tokens"], train["tags"]):
        for word, tag in zip(words, tags):
            counts[word][tag] += 1
    every = sum(counts.values(), Counter[str]())
    best = {word: of_word.most_common(1)[0][0] for word, of_word in counts.items()}
    usual = every.most_common(1)[0][0]
    return lambda split: [[best.get(word, usual) for word in words] for words in split["tokens"]]


def _overlap_of_pairs(train: Split) -> Predict:
    return lambda split: [overlap(first, second) for first, second in zip(split["text"], split["pair"])]


def _overlap_of_documents(train: Split) -> Predict:
    return lambda split: [overlap(query, document) for query, document in pairs_of(qrels_of(split))]


def _bm25(train: Split) -> Predict:
    """BM25 of the words of each query in a document, by the documents of the training data (k1 1.2, b 0.75)."""
    documents = [words_of(text) for text in {document: None for _, document in pairs_of(qrels_of(train))}]
    frequency, mean = Counter(word for words in documents for word in {*words}), np.mean([*map(len, documents)])

    def score(query: str, document: str) -> float:
        counts = Counter(words_of(document))
        length = 1.2 * (0.25 + 0.75 * counts.total() / max(1.0, float(mean)))  # against that of other documents
        shares = {word: counts[word] * 2.2 / (counts[word] + length) for word in words_of(query)}
        rarity = {word: (len(documents) + 1) / (frequency[word] + 0.5) for word in shares}
        return sum(float(np.log(rarity[word])) * share for word, share in shares.items())

    return lambda split: [score(query, document) for query, document in pairs_of(qrels_of(split))]


def _nearest_words(train: Split) -> Predict:
    """For each question, the longest run of words without the question's own in the sentence nearest to it.

    A word of the question counts by its inverse document frequency among the training contexts.
    """
    documents = [set(words_of(context)) for context in dict.fromkeys(train["context"])]
    frequency = Counter(word for document in documents for word in document)
    weight = {word: 1 + float(np.log((1 + len(documents)) / (1 + count))) for word, count in frequency.items()}
    rare = 1 + float(np.log(1 + len(documents)))  # of a word that no context has

    def answer(question: str, context: str) -> str:
        asked = set(words_of(question))
        sentences = split_sentences(context) or [context]
        near = max(sentences, key=lambda text: sum(weight.get(w, rare) for w in asked & set(words_of(text))))
        spans = [match.span() for match in re.finditer(_WORD, near)]
        runs: list[list[tuple[int, int]]] = [[]]  # runs of words between those of the question
        for begin, end in spans:
            if near[begin:end].lower() in asked:
                runs.append([])
            else:
                runs[-1].append((begin, end))
        longest = max(runs, key=len)
        return near[longest[0][0] : longest[-1][1]] if longest else near

    return lambda split: [answer(question, context) for question, context in zip(split["question"], split["context"])]


def _first_words(prefixes: Sequence[str], train: Split) -> Predict:
    """The first words of each source, as many as training targets have on average."""
    count = max(1, round(float(np.mean([len(target.split()) for target in train["target"]]))))
    return lambda split: [" ".join(_without(prefixes, source).split()[:count]) for source in split["source"]]


def _without(prefixes: Sequence[str], source: str) -> str:
    """A source without the longest prefix that the recipe set before it."""
    return source.removeprefix(max((prefix for prefix in prefixes if source.startswith(prefix)), key=len, default=""))


def _repeats(train: Split) -> bool:
    """Whether the targets are few, as labels are."""
    return 2 * len(set(train["target"])) < len(train)


def _shorter(train: Split) -> bool:
    """Whether the targets are so much shorter than their sources that they are summaries."""
    lengths = [sum(len(text.split()) for text in train[field]) for field in ("source", "target")]
    return lengths[1] < _SHORT * lengths[0]


class _Table:
    """Texts, or pairs of them, as sparse rows: TF-IDF of words and pairs of words, logarithmic counts.

    A pair is both rows, their difference without sign, their product, and the overlap of their words.
    """

    def __init__(self, train: Split) -> None:
        self.pairs = "pair" in train.columns
        least = 2 if len(train) >= _MANY else 1  # a word of one text among many says nothing of others
        self.vectors = _scikit_learn().feature_extraction.text.TfidfVectorizer(
            sublinear_tf=True, ngram_range=(1, 2), token_pattern=_WORD, min_df=least, max_features=_FEATURES
        )
        try:
            self.vectors.fit([*train["text"], *(train["pair"] if self.pairs else ())])
        except ValueError:  # no text has a word
            self.vectors.set_params(analyzer="char", min_df=1)
            self.vectors.fit(train["text"])

    def rows(self, split: Split) -> object:
        """(N, columns)."""
        if not self.pairs:
            return self.vectors.transform(split["text"])
        from scipy import sparse

        first, second = (self.vectors.transform(split[name]) for name in ("text", "pair"))
        shared = sparse.csr_matrix(np.array(_overlap_of_pairs(split)(split))[:, None])
        return sparse.hstack([first, second, abs(first - second), first.multiply(second), shared]).tocsr()


def _linear(kind: str, train: Split) -> Predict:
    """TF-IDF with a linear model: logistic regression of labels or sets of labels, ridge regression of numbers."""
    sklearn, table = _scikit_learn(), _Table(train)
    logistic = partial(sklearn.linear_model.LogisticRegression, C=10.0, tol=1e-3, max_iter=200)
    if kind == "ridge":
        model = _fitted(sklearn.linear_model.Ridge(alpha=1.0, random_state=1), table.rows(train), train["score"])
        return lambda split: model.predict(table.rows(split)).tolist()
    if kind == "logistic":
        if len(set(train["label"])) < 2:
            return _most_frequent("label", train)
        model = _fitted(logistic(), table.rows(train), np.array(train["label"]))
        return lambda split: [str(label) for label in model.predict(table.rows(split))]
    sets = sklearn.preprocessing.MultiLabelBinarizer().fit(train["label"])
    one_by_one = sklearn.multiclass.OneVsRestClassifier(logistic())
    model = _fitted(one_by_one, table.rows(train), sets.transform(train["label"]))

    def predict(split: Split) -> list[Any]:
        marks = model.predict(table.rows(split)).reshape(len(split), -1)  # a single label has no second axis
        return [list(labels) for labels in sets.inverse_transform(marks)]

    return predict


def _fitted(model: Any, rows: object, right: object) -> Any:
    """The model after its fit; a simple learner that has not converged is one all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(rows, right)


def _vectors(train: Split) -> Predict:
    """Two TF-IDF vectors of words (2, columns) for each pair of texts."""
    text = _scikit_learn().feature_extraction.text
    table = text.TfidfVectorizer(sublinear_tf=True, token_pattern=_WORD, max_features=_OF_VECTORS, dtype=np.float32)
    table.fit([*train["text"], *train["pair"]])

    def vectors(split: Split) -> Sequence[object]:
        return list(np.stack([table.transform(split[name]).toarray() for name in ("text", "pair")], axis=1))

    return vectors


def _scikit_learn() -> Any:
    """The package scikit-learn with the modules that are used here. Raises MissingPartError: it is not installed."""
    try:
        import sklearn.feature_extraction.text
        import sklearn.linear_model
        import sklearn.multiclass
        import sklearn.preprocessing
    except ImportError as error:
        raise MissingPartError(f"TF-IDF with a linear model needs scikit-learn: {install_hint('eval')}") from error
    return sklearn


LEARNERS: dict[Outputs, tuple[Learner, ...]] = {
    "classes": (
        Learner("majority", partial(_most_frequent, "label"), ("label",)),
        Learner("TF-IDF, logistic regression", partial(_linear, "logistic"), ("text", "label")),
    ),
    "class sets": (
        Learner("majority", partial(_most_frequent, "label"), ("label",)),
        Learner("TF-IDF, logistic regression", partial(_linear, "sets"), ("text", "label")),
    ),
    "numbers": (
        Learner("overlap of words", _overlap_of_pairs, ("text", "pair")),
        Learner("TF-IDF, ridge regression", partial(_linear, "ridge"), ("text", "score")),
    ),
    "rankings": (Learner("overlap of words", _overlap_of_documents, ("query",)), Learner("BM25", _bm25, ("query",))),
    "vector pairs": (Learner("TF-IDF vectors", _vectors, ("text", "pair")),),
    "tags": (Learner("most frequent tag of a word", _tag_of_word, ("tokens", "tags")),),
    "answers": (
        Learner(
            "no answer", lambda _: lambda of: [""] * len(of), ("answers",), lambda train: not all(train["answers"])
        ),
        Learner("overlap of words", _nearest_words, ("question", "context")),
    ),
}


def learners_of(outputs: Outputs | None, prefixes: Sequence[str]) -> tuple[Learner, ...]:
    """The learners for outputs of a kind; none where there is no simple one.

    Args:
        outputs: those of a task.
        prefixes: what the recipe sets before sources, which a copy leaves out.
    """
    if outputs != "texts":
        return () if outputs is None else LEARNERS.get(outputs, ())
    texts = ("source", "target")
    return (
        Learner("majority", partial(_most_frequent, "target"), texts, _repeats),
        Learner("copy of the source", lambda _: lambda split: [_without(prefixes, s) for s in split["source"]], texts),
        Learner("first words of the source", partial(_first_words, prefixes), texts, _shorter),
    )
