"""Classifying, tagging and answering with BERT-base compared with `transformers`, from text to labels and answers."""

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.sections.network import NetworkConfig
from atento.model import load
from benchmarks.encoding import SIZES, natural_sentences
from benchmarks.encoding_sides import vocabulary
from benchmarks.processes import Contender, Measurement, Side, about, alternate, best_seconds, peak_mib

VERBS = {"classify": "SequenceClassification", "tag": "TokenClassification", "answer": "QuestionAnswering"}
_LABELS = [f"label-{number}" for number in range(5)]
_BATCH = 32  # texts of a batch of `transformers`, in the order of their lengths
_COUNTS = {"classify": 1000, "tag": 1000, "answer": 160}
_WINDOW, _STRIDE, _MAX_ANSWER = 384, 128, 15  # tokens
Output = tuple[Any, ...] | str


class OurVerb:
    """`model.classify`, `model.tag` or `model.answer`."""

    def load(self, folder: Path, verb: str, precision: str) -> None:
        """Load a folder of `write_labeller`; precision is float32, bfloat16 or int8."""
        self.verb, self.model = verb, load(folder, device="cpu", precision=precision)

    def run(self, texts: Sequence[str]) -> list[Output]:
        """Return the label, the labels of all words or the answer of each text."""
        if self.verb == "classify":
            return [label.name for label in self.model.classify(list(texts))]
        if self.verb == "tag":
            return [tuple(word.label for word in words) for words in self.model.tag(list(texts))]
        questions, contexts = _questions(texts)
        return [answer.text for answer in self.model.answer(questions, contexts, max_answer=_MAX_ANSWER)]


class Transformers:
    """The `AutoModelFor...` of `transformers` in float32, with batches of 32 texts of like length."""

    other_library = True

    def load(self, folder: Path, verb: str) -> None:
        """Load a folder of `write_labeller`."""
        import transformers

        self.verb = verb
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = getattr(transformers, f"AutoModelFor{VERBS[verb]}").from_pretrained(folder).eval()

    @torch.inference_mode()
    def run(self, texts: Sequence[str]) -> list[Output]:
        """Return the label, the labels of all words or the answer of each text."""
        if self.verb == "answer":
            return self._answers(*_questions(texts))
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # so that texts of a batch are alike
        outputs: list[Output] = [""] * len(texts)
        for at in range(0, len(order), _BATCH):
            rows = order[at : at + _BATCH]
            batch = self.tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
            best = self.model(**batch).logits.argmax(dim=-1).tolist()
            for index, row in enumerate(rows):
                outputs[row] = self._label(best[index], batch.word_ids(index))
        return outputs

    def _label(self, best: Any, words: list[int | None]) -> Output:
        """The label of a text, or those of its words at their first tokens."""
        names = self.model.config.id2label
        if self.verb == "classify":
            return str(names[best])
        first = [word is not None and word != before for before, word in pairwise([None, *words])]
        return tuple(str(names[label]) for label, begins in zip(best, first) if begins)

    def _answers(self, questions: list[str], contexts: list[str]) -> list[Output]:
        answers: list[Output] = []
        for at in range(0, len(questions), _BATCH):
            batch = self.tokenizer(
                questions[at : at + _BATCH],
                contexts[at : at + _BATCH],
                padding=True,
                truncation="only_second",
                max_length=_WINDOW,
                stride=_STRIDE,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_tensors="pt",
            )
            numbers, offsets = batch.pop("overflow_to_sample_mapping").tolist(), batch.pop("offset_mapping").tolist()
            output = self.model(**batch)
            best: dict[int, tuple[float, str]] = {}
            for row, number in enumerate(numbers):
                context = torch.tensor([part == 1 for part in batch.sequence_ids(row)])  # (L,), True = of the context
                start = output.start_logits[row].masked_fill(~context, -torch.inf)  # (L,)
                end = output.end_logits[row].masked_fill(~context, -torch.inf)
                scores = (start[:, None] + end[None, :]).triu().tril(_MAX_ANSWER - 1)  # (L,L), first not behind last
                scores = scores.masked_fill(scores == 0, -torch.inf)
                place = int(scores.argmax())  # in the flat (L,L)
                first, last = divmod(place, scores.shape[1])
                text = contexts[at + number][offsets[row][first][0] : offsets[row][last][1]]
                best[number] = max(best.get(number, (-torch.inf, "")), (float(scores.flatten()[place]), text))
            answers += [best[number][1] for number in sorted(best)]
        return answers


def measure_labelling(
    seconds: float, *, size: str = "bert-base", counts: dict[str, int] | None = None
) -> Iterator[dict[str, object]]:
    """Yield rows of texts per second for each verb and contender, with random weights; the ratios come last.

    Args:
        seconds: about how long each contender is measured.
        size: a name of `encoding.SIZES`.
        counts: texts for each verb.
    """
    if importlib.util.find_spec("transformers") is None:
        yield {"bench": "labelling", "who": "transformers", "skipped": "pip install transformers"}
        return
    yield about("labelling", size, ("transformers",))
    for verb in VERBS:
        texts = natural_sentences((counts or _COUNTS)[verb] * (5 if verb == "answer" else 1), SIZES[size])
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            write_labeller(Path(name), SIZES[size], verb)
            contenders: dict[str, tuple[type[Contender], tuple[object, ...]]] = {
                f"atento {precision}": (OurVerb, (Path(name), verb, precision))
                for precision in ("float32", "bfloat16", "int8")
            }
            contenders["transformers float32"] = (Transformers, (Path(name), verb))
            sides = {who: stack.enter_context(Side(kind, *arguments)) for who, (kind, arguments) in contenders.items()}
            measurements = alternate(sides, texts, seconds, rounds=2, warm_up=texts[:40])
            yield from _rows(verb, len(texts) // (5 if verb == "answer" else 1), measurements)


def write_labeller(folder: Path, config: NetworkConfig, verb: str) -> None:
    """Write a BERT of random weights with the head of a verb."""
    import transformers

    words = vocabulary(config.vocab_size, ())
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in words), encoding="utf-8")
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=config.max_len).save_pretrained(folder)
    labels: dict[str, Any] = {} if verb == "answer" else {"id2label": dict(enumerate(_LABELS))}
    torch.manual_seed(1)
    settings = transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        intermediate_size=config.d_ff,
        num_attention_heads=config.n_heads,
        num_hidden_layers=config.n_layers,
        max_position_embeddings=config.max_len,
        **labels,
    )
    network = getattr(transformers, f"BertFor{VERBS[verb]}")(settings)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)  # large enough for outputs to differ
    network.save_pretrained(folder)


def _questions(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of each five texts the first ten words of the first are a question, and the other four its context."""
    groups = [texts[at : at + 5] for at in range(0, len(texts), 5)]
    return [" ".join(group[0].split()[:10]) for group in groups], [" ".join(group[1:]) for group in groups]


def _labels(outputs: Sequence[Output]) -> NDArray[np.str_]:
    """All labels or answers, one after another."""
    return np.array([part for output in outputs for part in ((output,) if isinstance(output, str) else output)])


def _rows(verb: str, count: int, measurements: dict[str, list[Measurement]]) -> Iterator[dict[str, object]]:
    peer = "transformers float32"
    expected = _labels(measurements[peer][0].result)
    for who, runs in measurements.items():
        yield {
            "bench": "labelling",
            "verb": verb,
            "who": who,
            "texts_per_second": round(count / best_seconds(runs), 1),
            "same_labels": round(float(np.mean(_labels(runs[0].result) == expected)), 3),
            "peak_mib": peak_mib(runs),
            "rounds": len(runs),
        }
    for who, runs in measurements.items():
        if who != peer:
            yield {
                "bench": "labelling",
                "verb": verb,
                "who": who,
                "ratio_to": peer,
                "ratio": round(best_seconds(measurements[peer]) / best_seconds(runs), 2),
                "by_processor_time": round(
                    min(run.processor_seconds for run in measurements[peer])
                    / min(run.processor_seconds for run in runs),
                    2,
                ),
            }
