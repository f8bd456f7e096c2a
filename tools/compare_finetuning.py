"""Fine-tunes a model by a recipe and scores it on held-out records: `compare_finetuning.py RECIPE --side atento`.

One side of a comparison: `atento train` as it comes, or the same model in a plain loop of `transformers` with the same
records, number of updates, examples of an update, rates, weight decay, clipping and seed. The recipe is one of `task`
classification, regression, tagging or question-answering with `init`; what it holds out for validation is the test.
With `init.classifier` both sides fit scikit-learn's logistic regression to vectors of the frozen model. Prints a line
of JSON. Run it with `OMP_NUM_THREADS=1`: the seconds are those of the processor, for the whole process.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import atento
from atento.config.reading.loading import load_recipe
from atento.config.recipe import Recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.splits import Split
from atento.runs.prepare import read_data
from atento.tasks.split_evaluation import metric_scores
from atento.tasks.verb_table import VERBS
from atento.training.optimizer import learning_rate

_TRAINING = [  # of both sides, unless KEY=VALUE says otherwise
    "training.betas=[0.9, 0.999]",
    "training.weight_decay=0.01",
    "training.clip=1.0",
    "training.schedule=linear",
    "training.label_smoothing=0",
    "training.average=0",
]
_LONGEST = 128  # tokens of a text; those of a window of a question are `data.max_len`
_ROWS = 32  # texts of a batch that is only read
_BEST = 20  # beginnings and ends of an answer that are tried


class Loop:
    """A class of `transformers` in a plain loop: shuffled examples padded to the longest, float32.

    A subclass says what its examples are, what the loss needs of them, and what the outputs are.
    """

    kind: str

    def __init__(self, recipe: Recipe, train: Split) -> None:
        import transformers

        assert recipe.init is not None
        torch.manual_seed(recipe.training.seed)
        folder, self.recipe, self.labels = recipe.init.model, recipe, labels_of(train)
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        automatic = getattr(transformers, f"AutoModel{self.kind}")
        more = {"num_labels": self.classes} if self.kind else {}
        self.model: Any = automatic.from_pretrained(folder, **more).train()
        self.examples = list(self.examples_of(train))
        self.count = self.examples_of_an_update(train)

    @property
    def classes(self) -> int:
        """The number of outputs of the head."""
        return max(1, len(self.labels))

    def examples_of_an_update(self, train: Split) -> int:
        """Return what `training.batch_tokens` counts."""
        return self.recipe.training.batch_tokens

    def examples_of(self, split: Split) -> Iterator[dict[str, Any]]:
        """Yield the examples of a split: the ids of a text, its labels, and what else the model reads."""
        raise NotImplementedError

    def outputs(self, split: Split) -> list[Any]:
        """Return the outputs for the records of a split."""
        raise NotImplementedError

    def padded(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the inputs of the model for some examples, and their labels if they have any."""
        names = [name for name in self.tokenizer.model_input_names if name in examples[0]]
        inputs = self.tokenizer.pad([{name: one[name] for name in names} for one in examples], return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        labels = {
            name: torch.tensor(
                [one[name] + [-100] * (length - len(one[name])) if isinstance(one[name], list) else one[name]
                 for one in examples]
            )
            for name in ("labels", "start_positions", "end_positions")
            if name in examples[0]
        }  # fmt: skip
        return {**inputs, **labels}

    def train(self) -> None:
        """Take all updates."""
        training = self.recipe.training
        assert training.steps is not None
        decayed = {id(w): w.dim() > 1 for w in self.model.parameters()}
        groups = [
            {"params": [w for w in self.model.parameters() if decayed[id(w)] is each], "weight_decay": decay}
            for each, decay in ((True, training.weight_decay), (False, 0.0))
        ]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999))
        number, epoch = 0, 0
        while number < training.steps:
            shuffled = np.random.default_rng((training.seed, epoch)).permutation(len(self.examples))
            for rows in shuffled[: len(shuffled) // self.count * self.count].reshape(-1, self.count)[
                : training.steps - number
            ]:
                self.model(**self.padded([self.examples[row] for row in rows])).loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
                number += 1
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(training, number, training.steps)
                optimizer.step()
                optimizer.zero_grad()
            epoch += 1

    @torch.inference_mode()
    def read(self, examples: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield each example and the outputs of the model for it, in some order."""
        self.model.eval()
        by_length = sorted(examples, key=lambda one: len(one["input_ids"]))
        for first in range(0, len(by_length), _ROWS):
            batch = by_length[first : first + _ROWS]
            names = set(self.tokenizer.model_input_names)
            output = self.model(**{name: x for name, x in self.padded(batch).items() if name in names})
            for row, one in enumerate(batch):
                yield one, {name: value[row] for name, value in output.items()}


class Texts(Loop):
    """Texts or pairs with a label or a number."""

    kind = "ForSequenceClassification"

    def examples_of(self, split: Split) -> Iterator[dict[str, Any]]:
        """Yield each text with its label."""
        pairs = split["pair"] if "pair" in split.columns else [None] * len(split)
        for number, (text, pair) in enumerate(zip(split["text"], pairs)):
            label = self.labels.index(split["label"][number]) if self.labels else float(split["score"][number])
            encoded = self.tokenizer(text, pair, truncation=True, max_length=_LONGEST)
            yield {**encoded, "labels": label, "number": number}

    def outputs(self, split: Split) -> list[Any]:
        """Return labels or numbers."""
        found: list[Any] = [None] * len(split)
        for one, output in self.read(list(self.examples_of(split))):
            logits = output["logits"]
            found[one["number"]] = self.labels[int(logits.argmax())] if self.labels else float(logits[0])
        return found


class Words(Loop):
    """Words with tags; the first piece of a word has its tag."""

    kind = "ForTokenClassification"

    def examples_of_an_update(self, train: Split) -> int:
        """Return how many sentences have about as many words as `training.batch_tokens` says."""
        return max(1, round(self.recipe.training.batch_tokens * len(train) / sum(map(len, train["tags"]))))

    def examples_of(self, split: Split) -> Iterator[dict[str, Any]]:
        """Yield each sentence with its tags."""
        for number, (words, tags) in enumerate(zip(split["tokens"], split["tags"])):
            encoded = self.tokenizer(words, is_split_into_words=True, truncation=True, max_length=_LONGEST)
            of_words = encoded.word_ids()
            first = [word is not None and word != before for word, before in zip(of_words, [None, *of_words])]
            labels = [self.labels.index(tags[word]) if is_first else -100 for word, is_first in zip(of_words, first)]
            yield {**encoded, "labels": labels, "number": number}

    def outputs(self, split: Split) -> list[Any]:
        """Return tags; O for words that were cut off."""
        found = [["O"] * len(tags) for tags in split["tags"]]
        for one, output in self.read(list(self.examples_of(split))):
            best = output["logits"].argmax(dim=-1).tolist()
            tags = [self.labels[tag] for tag, label in zip(best, one["labels"]) if label >= 0]
            found[one["number"]][: len(tags)] = tags
        return found


class Questions(Loop):
    """Questions and windows of their contexts, with the places of the answers."""

    kind = "ForQuestionAnswering"

    @property
    def classes(self) -> int:
        """The number of outputs of the head: begin and end."""
        return 2

    def examples_of(self, split: Split) -> Iterator[dict[str, Any]]:
        """Yield each window; an answer outside of it stands at its first token."""
        for number, (question, context) in enumerate(zip(split["question"], split["context"])):
            windows = self.tokenizer(
                question,
                context,
                truncation="only_second",
                max_length=self.recipe.data.max_len,
                stride=self.recipe.data.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            answer = split["answers"][number][0]
            first, last = answer.start, answer.start + len(answer.text)
            for window in range(len(windows["input_ids"])):
                in_context = [part == 1 for part in windows.sequence_ids(window)]
                offsets = windows["offset_mapping"][window]
                tokens = [at for at, inside in enumerate(in_context) if inside]
                begins = [at for at in tokens if offsets[at][0] <= first < offsets[at][1]]
                ends = [at for at in tokens if offsets[at][0] < last <= offsets[at][1]]
                start, end = (begins[0], ends[-1]) if begins and ends else (0, 0)
                inputs = {name: windows[name][window] for name in self.tokenizer.model_input_names if name in windows}
                yield inputs | {
                    "start_positions": start,
                    "end_positions": end,
                    "number": number,
                    "offsets": offsets,
                    "tokens": tokens,
                }

    def outputs(self, split: Split) -> list[Any]:
        """Return the best answer of all windows of a question."""
        longest = self.recipe.data.max_answer
        best: list[tuple[float, str]] = [(float("-inf"), "")] * len(split)
        for one, output in self.read(list(self.examples_of(split))):
            first, last = one["tokens"][0], one["tokens"][-1] + 1
            starts, ends = (output[name][first:last] for name in ("start_logits", "end_logits"))
            for start in starts.topk(min(_BEST, last - first)).indices.tolist():
                for end in ends.topk(min(_BEST, last - first)).indices.tolist():
                    score = float(starts[start] + ends[end])
                    if start <= end < start + longest and score > best[one["number"]][0]:
                        begin, stop = one["offsets"][first + start][0], one["offsets"][first + end][1]
                        best[one["number"]] = score, split["context"][one["number"]][begin:stop]
        return [text for _, text in best]


class Frozen(Loop):
    """A linear classifier on vectors of a frozen network: of the mean of a text, or of each word's first piece."""

    kind = ""

    def vectors(self, one: dict[str, Any], hidden: Tensor) -> Tensor:
        """Return the vectors of an example, (n,D), from those of its tokens (L,D)."""
        if isinstance(one["labels"], list):
            return hidden[[at for at, label in enumerate(one["labels"]) if label >= 0]]
        return hidden[: len(one["input_ids"])].mean(dim=0, keepdim=True)

    def train(self) -> None:
        """Fit the classifier."""
        from sklearn.linear_model import LogisticRegression

        assert self.recipe.init is not None and self.recipe.init.classifier is not None
        rows, labels = [], []
        for one, output in self.read(self.examples):
            rows.append(self.vectors(one, output["last_hidden_state"]))
            own = one["labels"] if isinstance(one["labels"], list) else [one["labels"]]
            labels += [label for label in own if label >= 0]
        c = self.recipe.init.classifier.inverse_regularization
        self.classifier = LogisticRegression(C=c, max_iter=10_000, tol=1e-6)
        self.classifier.fit(torch.cat(rows).double().numpy(), labels)

    def labels_said(self, split: Split) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each record and the labels that it gets."""
        for one, output in self.read(list(self.examples_of(split))):
            said = self.classifier.predict(self.vectors(one, output["last_hidden_state"]).double().numpy())
            yield one["number"], [self.labels[int(label)] for label in said]


class FrozenTexts(Frozen, Texts):
    """Texts or pairs with a label."""

    def outputs(self, split: Split) -> list[Any]:
        """Return labels."""
        found = dict(self.labels_said(split))
        return [found[number][0] for number in range(len(split))]


class FrozenWords(Frozen, Words):
    """Words with tags."""

    def outputs(self, split: Split) -> list[Any]:
        """Return tags; O for words that were cut off."""
        found = dict(self.labels_said(split))
        return [[*found[n], *["O"] * (len(tags) - len(found[n]))] for n, tags in enumerate(split["tags"])]


FROZEN: dict[str, type[Loop]] = {"classification": FrozenTexts, "tagging": FrozenWords}
LOOPS: dict[str, type[Loop]] = {
    "classification": Texts,
    "regression": Texts,
    "tagging": Words,
    "question-answering": Questions,
}


def labels_of(split: Split) -> list[str]:
    """Return the labels or tags of a split in alphabetical order; none for numbers and answers."""
    if "label" in split.columns:
        return sorted(set(split["label"]))
    return sorted({tag for tags in split["tags"] for tag in tags}) if "tags" in split.columns else []


def read(path: Path, changes: Sequence[str]) -> tuple[Recipe, Split, Split]:
    """Read a recipe and its records: those that it trains on, and those that it holds out."""
    loaded = load_recipe(path, changes)
    recipe = loaded.recipe
    ends = recipe.training.steps is not None or (recipe.init is not None and recipe.init.classifier is not None)
    if recipe.task not in LOOPS or recipe.init is None or not recipe.data.held_out or not ends:
        raise SystemExit(f"{path} must have `init`, `data.held_out`, `training.steps` and a task of {', '.join(LOOPS)}")
    data = read_data(recipe, loaded.folder, lambda line: print(line, file=sys.stderr))
    assert data.valid is not None
    return recipe, data.train, data.valid


def main() -> None:
    """Run one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="keys of the recipe, as of `atento train`")
    parser.add_argument("--side", choices=("atento", "transformers"), required=True)
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    changes = [*_TRAINING, *given.changes]
    recipe, train, test = read(given.recipe, changes)
    verb = VERBS[str(TASKS[recipe.task].verb)]
    outputs: Sequence[Any]
    each: Sequence[Any] | None = None  # the most probable tag of each word, whether or not the sequence is legal
    if given.side == "atento":
        del train
        with TemporaryDirectory() as folder:
            run = atento.train(given.recipe, changes, out=Path(folder) / "run", threads=1)
            model = atento.load(run.folder)
            outputs = verb.call(model, test, {})
            if "tags" in test.columns:
                each = [
                    [word.label for word in one] for one in model.tag_words(words=test["tokens"], constrained=False)
                ]
    else:
        assert recipe.init is not None
        loop = (LOOPS if recipe.init.classifier is None else FROZEN)[recipe.task](recipe, train)
        loop.train()
        outputs = loop.outputs(test)
    scores = metric_scores(outputs, verb.gold(test), recipe.metrics)
    if each is not None:
        free = metric_scores(each, verb.gold(test), recipe.metrics)
        scores |= {f"{name}, any sequence": score for name, score in free.items()}
    result = {
        "recipe": given.recipe.stem,
        "side": given.side,
        "seed": recipe.training.seed,
        "records": len(test),
        "scores": {name: [round(x, 4) for x in (score.value, *score.interval())] for name, score in scores.items()},
        "seconds": round(time.process_time(), 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
