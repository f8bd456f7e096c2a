"""N-grams for the family race: interpolated Kneser-Ney smoothing (Kneser & Ney 1995; Chen & Goodman 1999, 3.6)."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from atento.text.tokenizer import Tokenizer
from atento_lab.studies.race_probes import Question, answer_ids
from atento_lab.studies.seeds import Row

DISCOUNT = 0.75


class NGrams:
    """P(w|h) = max(c(hw) - D, 0)/c(h) + D·N(h·)/c(h) · P(w|h'), where h' is h without its first word.

    The counts c of the highest order are those of the text, and of lower orders the numbers of different words before.
    A single word is interpolated with the uniform distribution over the vocabulary.
    """

    def __init__(self, texts: Sequence[Sequence[int]], order: int, vocab_size: int) -> None:
        """Count texts; each begins with `order` - 1 BOS, which are not predicted, and ends with EOS."""
        self.order, self.vocab_size = order, vocab_size
        highest = Counter(tuple(text[at - order + 1 : at + 1]) for text in texts for at in range(order - 1, len(text)))
        self.followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for gram, count in highest.items():
            self.followers[gram[:-1]][gram[-1]] = count
        grams = set(highest)
        for _ in range(order - 1):
            for gram in grams:  # each is one word before the rest of it
                self.followers[gram[1:-1]][gram[-1]] += 1
            grams = {gram[1:] for gram in grams}
        self.totals = {history: sum(counts.values()) for history, counts in self.followers.items()}

    @property
    def parameters(self) -> int:
        """The number of counts."""
        return sum(map(len, self.followers.values()))

    def probability(self, history: Sequence[int], word: int) -> float:
        """Return P(word | history), of which the last `order` - 1 words count."""
        share = 1 / self.vocab_size
        longest = tuple(history)[max(0, len(history) - self.order + 1) :]
        for length in range(len(longest) + 1):
            context = longest[len(longest) - length :]
            counts = self.followers.get(context)
            if counts is None:
                break
            total, smoothing = self.totals[context], DISCOUNT * len(counts) / self.totals[context]
            share = max(counts.get(word, 0) - DISCOUNT, 0) / total + smoothing * share
        return share

    def scores(self, tokenizer: Tokenizer, question: Question, both: bool) -> list[float]:
        """Return log p of each answer after the words on its left; with `both`, also of the words behind it."""
        left, answers, right = answer_ids(tokenizer, question)
        tail = [*right, tokenizer.eos_id] if both else []
        begin = [tokenizer.bos_id] * (self.order - 1) + left
        return [self._log_prob(begin, [answer, *tail]) for answer in answers]

    def _log_prob(self, history: list[int], words: list[int]) -> float:
        text = history + words
        return sum(math.log(self.probability(text[:at], text[at])) for at in range(len(history), len(text)))


def ngram_scores(texts: Sequence[str], tokenizer: Tokenizer, order: int, asked: Sequence[Question]) -> Row:
    """Count the n-grams of texts and ask the questions: `parameters`, and the accuracies `fill` and `continue`."""
    ids = tokenizer.encode_batch(list(texts))
    begin = [tokenizer.bos_id] * (order - 1)
    model = NGrams([[*begin, *row, tokenizer.eos_id] for row in ids], order, tokenizer.vocab_size)
    scores = {}
    for name, both in (("fill", True), ("continue", False)):
        ranked = [model.scores(tokenizer, question, both) for question in asked]
        scores[name] = sum(max(row) == row[0] > max(row[1:]) for row in ranked) / len(asked)
    return {"parameters": model.parameters, **scores}
