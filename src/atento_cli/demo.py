"""The results of the demo: scores on held-out sentences of the micro-world, translations, alignments."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atento.base.errors import counted
from atento.inspection import alignment_error_rate
from atento.metrics import METRICS
from atento.model import Model, load
from atento_world import Pair, notes_sentences, write

SPLITS = {"combinations": "adjectives and nouns never seen together", "structures": "longer clauses, two adjectives"}
ATTENTION_EXAMPLE = "The white cat sleeps."


def results(run: Path, sentences: list[str], count: int = 500, device: str = "auto") -> dict[str, object]:
    """Return the scores of both held-out splits, translations, the alignment error, and the attention page's path."""
    model = load(run, device=device)
    splits = {}
    for split in SPLITS:
        pairs = write(split, count)
        outputs = model.translate([pair.source for pair in pairs])
        scores = [
            METRICS[name].score(outputs, [pair.target for pair in pairs]) for name in ("bleu", "chrf", "exact-match")
        ]
        splits[split] = {"sentences": count, "scores": {score.name: score.value for score in scores}}
        if split == "combinations":
            splits[split]["alignment_error"] = alignment_error(model, pairs[:100])
            splits[split]["examples"] = [
                {"source": pair.source, "output": output, "expected": pair.target}
                for pair, output in list(zip(pairs, outputs))[:4]
            ]
    texts = [pair.source for pair in notes_sentences()] + sentences
    page = run / "attention.html"
    model.attend(ATTENTION_EXAMPLE).save(page, words=True)
    return {
        "run": str(run),
        "splits": splits,
        "translations": [{"source": text, "output": model.translate(text)} for text in texts],
        "page": str(page),
    }


def show(record: dict[str, Any]) -> Iterator[str]:
    """Yield the results as lines of text, and the next commands."""
    run = record["run"]
    yield ""
    yield f"after {counted(record['steps'], 'update')}:"
    for split, meaning in SPLITS.items():
        entry = record["splits"][split]
        scores = ", ".join(f"{name} {value:.1f}" for name, value in entry["scores"].items())
        yield f"{entry['sentences']} unseen {split} ({meaning}): {scores}"
        if (error := entry.get("alignment_error")) is not None:
            yield (
                f"alignment error rate of the last cross-attention against the gold alignment: "
                f"{error['rate']:.2f} over {error['sentences']} sentences (0 is perfect)"
            )
        elif "alignment_error" in entry:
            yield "alignment: the tokenizer's words are not the grammar's, so it was not scored"
    yield ""
    yield "unseen combinations:"
    for example in record["splits"]["combinations"]["examples"]:
        right = example["output"] == example["expected"]
        expected = "" if right else f"    (expected: {example['expected']})"
        yield f"  {example['source']}  →  {example['output']}{expected}"
    yield "sentences of the lecture notes, and yours:"
    for example in record["translations"]:
        yield f"  {example['source']}  →  {example['output']}"
    yield ""
    yield f"attention page: {record['page']} (open it in a browser: in the cross-attention, adjective and noun cross)"
    yield "next:"
    yield f"  echo 'The kitten runs quickly.' | atento translate {run}"
    yield f"  atento attend {run} 'The red house is big.' --out page.html"
    yield "  atento data fetch libreoffice-help --to pt-BR --held-out 1000 --out text  # real text, on Debian or Ubuntu"
    yield "  atento train libreoffice-en-pt data.folder=text"


def alignment_error(model: Model, pairs: list[Pair]) -> dict[str, float] | None:
    """Return the mean alignment error rate of the last cross-attention, averaged over heads, and the sentences scored.

    0 is perfect; None if the tokenizer splits other words than the grammar.
    """
    errors: list[float] = []
    for pair in pairs:
        links = model.attend(pair.source, pair.target).word_weights(-1, "mean", "cross")
        words = [[group.label for group in side if not group.special] for side in (links.columns, links.rows)]
        if words != [list(pair.source_words), list(pair.target_words)]:
            continue  # the tokenizer splits other words than the grammar
        chosen = links.weights[:, : len(pair.source_words)].argmax(axis=1)
        predicted = {(int(chosen[t]), t) for t in range(len(pair.target_words))}
        errors.append(alignment_error_rate(predicted, set(pair.alignment)))
    return {"rate": sum(errors) / len(errors), "sentences": len(errors)} if errors else None
