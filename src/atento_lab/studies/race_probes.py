"""What an entrant of the family race has learned: questions with ten answers, frozen features, translation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.masks import Mask, prefix
from atento.base.errors import CapabilityError
from atento.config.tables.tasks import TASKS
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.batches.whole_words import word_ids, words_of
from atento.data.objectives.denoising import sentinel_ids
from atento.metrics import chrf
from atento.model import Model
from atento.networks import ELMo
from atento.text.characters import MAX_CHARACTERS, character_batch
from atento.text.tokenizer import Tokenizer

ANSWERS = 10  # of a question: the word of the text, and words drawn from the other texts
_LEFT = 3  # words that stand before every word that is asked for


@dataclass(frozen=True)
class Question:
    """A word that is left out of a text, and the answers to choose from; the first one is right.

    Attributes:
        words: the words of the text.
        position: index of the word that is left out.
        answers: different words, the right one first.
    """

    words: tuple[str, ...]
    position: int
    answers: tuple[str, ...]


def questions(tokenizer: Tokenizer, texts: Sequence[str], seed: int = 1) -> list[Question]:
    """Return a question for each text that has a known word after its first three.

    The wrong answers are drawn from all words of the texts, so that frequent words are as frequent among them.
    """
    rng = np.random.default_rng(seed)
    lists = [words for words in words_of(tokenizer, list(texts)) if len(words) > _LEFT + 1]
    known = [word for words in lists for word in words if word.isalpha() and tokenizer.token_id(word) is not None]
    drawn = []
    for words in lists:
        positions = [
            position
            for position in range(_LEFT, len(words))
            if words[position].isalpha() and tokenizer.token_id(words[position]) is not None
        ]
        if not positions:
            continue
        position = int(rng.choice(positions))
        wrong: dict[str, None] = {}  # a set in the order of the draws
        for candidate in rng.permutation(len(known)).tolist():
            if known[candidate].lower() != words[position].lower():
                wrong.setdefault(known[candidate])
            if len(wrong) == ANSWERS - 1:
                break
        if len(wrong) == ANSWERS - 1:
            drawn.append(Question(tuple(words), position, (words[position], *wrong)))
    return drawn


Scorer = Callable[[Model, Question, bool], Tensor]  # a model, a question, with the words on the right -> (ANSWERS,)


def prefix_scores(model: Model, question: Question, both: bool) -> Tensor:
    """As `causal_scores`, by a network that reads the words on the left in both directions."""
    return causal_scores(model, question, both, mask=prefix(1 + question.position))  # with BOS


def causal_scores(model: Model, question: Question, both: bool, mask: Mask | None = None) -> Tensor:
    """log p of each answer after the words on its left; with `both`, also of the words on its right after it."""
    tokenizer = _tokenizer(model)
    left, answers, right = answer_ids(tokenizer, question)
    tail = [*right, tokenizer.eos_id] if both else []
    rows = torch.tensor([[tokenizer.bos_id, *left, answer, *tail] for answer in answers])
    log_probs = torch.log_softmax(
        _logits(model.network(rows, **({} if mask is None else {"mask": mask}))).float(), dim=-1
    )
    taken = log_probs[:, :-1].gather(-1, rows[:, 1:].unsqueeze(-1)).squeeze(-1)  # (ANSWERS,L)
    return taken[:, len(left) :].sum(dim=1)


def masked_scores(model: Model, question: Question, both: bool) -> Tensor:
    """log p of each answer at a mask token."""
    tokenizer = _tokenizer(model)
    left, answers, right = answer_ids(tokenizer, question)
    ids, _ = tokenizer.template(model.config.get("template")).apply(
        [*left, tokenizer.mask_id, *(right if both else [])]
    )
    output = model.network(torch.tensor([list(ids)]))
    logits = _logits(output)[0, list(ids).index(tokenizer.mask_id)]
    return torch.log_softmax(logits.float(), dim=-1)[answers]


def span_scores(model: Model, question: Question, both: bool) -> Tensor:
    """log p of each answer after the first sentinel of the target, whose place in the source it has."""
    tokenizer = _tokenizer(model)
    left, answers, right = answer_ids(tokenizer, question)
    first, *_ = sentinel_ids(tokenizer)
    source = torch.tensor([[*left, first, *(right if both else []), tokenizer.eos_id]])
    target = torch.tensor([[model.network.config.start_id, first]])
    return torch.log_softmax(_logits(model.network(source, target))[0, -1].float(), dim=-1)[answers]


def denoising_scores(model: Model, question: Question, both: bool) -> Tensor:
    """log p of each answer, and of the words after it, as the output for a source with a mask in its place."""
    tokenizer, config = _tokenizer(model), model.network.config
    network: Any = model.network
    left, answers, right = answer_ids(tokenizer, question)
    right = right if both else []
    source, _ = special_tokens_of(config, tokenizer).apply([*left, tokenizer.mask_id, *right])
    encoded = network.encode(torch.tensor([list(source)])).expand(len(answers), -1, -1)
    # where both sides are known the output ends there; else anything may follow
    targets = torch.tensor([[*left, answer, *right, *([config.eos_id] if both else [])] for answer in answers])
    inputs = torch.cat([targets.new_full((len(answers), 1), config.start_id), targets[:, :-1]], dim=1)
    log_probs = torch.log_softmax(_logits(network(None, inputs, encoded=encoded)).float(), dim=-1)
    taken = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return taken[:, len(left) :].sum(dim=1)  # the left side is the same for all answers


def bidirectional_scores(model: Model, question: Question, both: bool) -> Tensor:
    """log p of each answer after the words on its left, plus, with `both`, before the words on its right."""
    tokenizer, network = _tokenizer(model), model.network
    assert isinstance(network, ELMo) and network.config.elmo is not None
    _, answers, _ = answer_ids(tokenizer, question)
    words = question.words if both else question.words[: question.position + 1]
    ids = torch.tensor([[tokenizer.bos_id, *word_ids(tokenizer, list(words)), tokenizer.eos_id]])
    if network.characters is not None:
        characters = network.config.elmo.characters
        longest = MAX_CHARACTERS if characters is None else characters.max_characters
        ids = torch.from_numpy(character_batch([list(words)], max_characters=longest)[0])
    ahead, behind = network.directions(ids)[-1]
    at = 1 + question.position  # BOS stands before the words
    scores = torch.log_softmax(network.project(ahead[0, at - 1]).float(), dim=-1)[answers]
    if both:
        scores = scores + torch.log_softmax(network.project(behind[0, at + 1]).float(), dim=-1)[answers]
    return scores


def window_scores(model: Model, question: Question, both: bool) -> Tensor:
    """The product of each answer's output vector with the mean of its neighbours' vectors."""
    options = model.network.config.cbow
    assert options is not None
    left, answers, right = answer_ids(_tokenizer(model), question)
    context = [*left[-options.window :], *(right[: options.window] if both else [])]
    return _logits(model.network(torch.tensor([context])))[0].float()[answers]


SCORERS: Mapping[str, Scorer] = {
    "causal": causal_scores,
    "prefix": prefix_scores,
    "masked": masked_scores,
    "span-corruption": span_scores,
    "denoising": denoising_scores,
    "bidirectional": bidirectional_scores,
    "window": window_scores,
}


@torch.inference_mode()
def accuracy(model: Model, objective: str, asked: Sequence[Question], both: bool) -> float | None:
    """Return the share of questions whose right answer has the highest score; None: there is no scorer."""
    scorer = SCORERS.get(objective)
    if scorer is None:
        return None
    return sum(int(scorer(model, question, both).argmax()) == 0 for question in asked) / len(asked)


def feature_accuracy(
    model: Model, train: tuple[Sequence[str], Sequence[str]], test: tuple[Sequence[str], Sequence[str]]
) -> float | None:
    """Return the accuracy of logistic regression on the mean vector of each text; the network stays as it is.

    Args:
        model: the model whose vectors are used.
        train: texts and their classes.
        test: other texts and their classes.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    try:
        vectors: list[NDArray[np.float32]] = [model.embed(list(texts), pooling="mean") for texts, _ in (train, test)]
    except CapabilityError:
        return None
    classifier: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000, random_state=1))
    classifier.fit(vectors[0], list(train[1]))
    return float(classifier.score(vectors[1], list(test[1])))


def translation_score(model: Model, pairs: Sequence[tuple[str, str]]) -> float | None:
    """Return chrF of greedy translations, 0 to 100; None for a family that does not translate."""
    if TASKS[model.config["task"]].verb != "translate":
        return None
    outputs = model.translate([source for source, _ in pairs], beam=1)
    return chrf(outputs, [target for _, target in pairs]).value


def answer_ids(tokenizer: Tokenizer, question: Question) -> tuple[list[int], list[int], list[int]]:
    """The ids of the words on the left, of the answers, and of the words on the right."""
    left, right = question.words[: question.position], question.words[question.position + 1 :]
    return (
        word_ids(tokenizer, list(left)),
        word_ids(tokenizer, list(question.answers)),
        word_ids(tokenizer, list(right)),
    )


def _tokenizer(model: Model) -> Tokenizer:
    assert model.tokenizer is not None
    return model.tokenizer


def _logits(output: Any) -> Tensor:
    logits: Tensor | None = output.logits
    assert logits is not None
    return logits
