"""What the demo shows of a model trained on the micro-world: scores on what it never saw, translations, alignments."""

from collections.abc import Iterator
from pathlib import Path

from atento.inspection import alignment_error_rate
from atento.metrics import METRICS
from atento.model import Model, load
from atento.world import Pair, notes_sentences, write

SPLITS = {"combinations": "adjectives and nouns never seen together", "structures": "longer clauses, two adjectives"}
LOOKED_AT = "The white cat sleeps."


def show(run: Path, own: list[str], count: int = 500) -> Iterator[str]:
    """Lines for a person: the scores of both held-out splits, translations, the attention page, what to type next."""
    model = load(run)
    yield ""
    for split, meaning in SPLITS.items():
        pairs = write(split, count)
        outputs = model.translate([pair.source for pair in pairs])
        scores = [METRICS[name](outputs, [pair.target for pair in pairs]) for name in ("bleu", "chrf", "exact-match")]
        yield f"{count} unseen {split} ({meaning}): " + ", ".join(f"{s.name} {s.value:.1f}" for s in scores)
        if split == "combinations":
            shown = list(zip(pairs, outputs))[:4]
            yield alignment_line(model, pairs[:100])
    yield ""
    yield "unseen combinations:"
    for pair, output in shown:
        yield f"  {pair.source}  →  {output}" + ("" if output == pair.target else f"    (expected: {pair.target})")
    yield "sentences of the lecture notes, and yours:"
    for text in [pair.source for pair in notes_sentences()] + own:
        yield f"  {text}  →  {model.translate(text)}"
    page = run / "attention.html"
    model.attend(LOOKED_AT).save(page, words=True)
    yield ""
    yield f"attention page: {page} (open it in a browser: in the cross-attention, adjective and noun cross)"
    yield "next:"
    yield f"  echo 'The kitten runs quickly.' | atento translate {run}"
    yield f"  atento attend {run} 'The red house is big.' --out page.html"
    yield "  atento data fetch libreoffice-help --to pt-BR --held-out 1000 --out text  # real text, on Debian or Ubuntu"
    yield "  atento train libreoffice-en-pt data.folder=text"


def alignment_line(model: Model, pairs: list[Pair]) -> str:
    """How well the last cross-attention (mean over heads) finds the words it translates, against the gold alignment."""
    errors: list[float] = []
    for pair in pairs:
        record = model.attend(pair.source, pair.target)
        links = record.word_weights(-1, "mean", "cross")
        seen = [[group.label for group in side if not group.special] for side in (links.columns, links.rows)]
        if seen != [list(pair.source_words), list(pair.target_words)]:
            continue  # the tokenizer sees other words than the grammar
        chosen = links.weights[:, : len(pair.source_words)].argmax(axis=1)
        predicted = {(int(chosen[t]), t) for t in range(len(pair.target_words))}
        errors.append(alignment_error_rate(predicted, set(pair.alignment)))
    if not errors:
        return "alignment: the tokenizer's words are not the grammar's, so it was not scored"
    return (
        f"alignment error rate of the last cross-attention against the gold alignment: "
        f"{sum(errors) / len(errors):.2f} over {len(errors)} sentences (0 is perfect)"
    )
