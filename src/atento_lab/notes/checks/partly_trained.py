"""Check of fine-tuning: which weights `init.train` changes (docs/notes.md#f7)."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from atento.config.tables.tasks import task_with
from atento_lab.notes.checks.transfer_learning import DEEPER, TOPICS, TRAINING, pretrained, reviews_of, trained_model
from atento_lab.notes.finding import AtLeast, Finding, compare


def fine_tuning() -> Finding:
    """F7: a new head and chosen weights are trained; all others keep their bits."""
    base, records = pretrained(), reviews_of(TOPICS)
    before = base.network.state_dict()
    changed: dict[str, list[str]] = {}
    right: dict[str, float] = {}
    with TemporaryDirectory() as name:
        saved = base.save(Path(name) / "base")
        for part in ("head", "bias", "all"):
            init = {"model": str(saved), "train": part}
            model = trained_model(
                task_with("classify"), records, init=init, training=TRAINING | {"steps": 30}, network={"dropout": 0.0}
            )
            after = model.network.state_dict()
            below = [key for key in after if not key.startswith(("heads.", "pooler."))]
            changed[part] = [key for key in below if not torch.equal(before[key], after[key])]
            labels = model.classify([record["text"] for record in records])
            right[part] = sum(label.name == record["label"] for label, record in zip(labels, records)) / len(records)
    return compare(
        {
            "changed by `head`": changed["head"],
            "changed by `bias`: biases alone": all(key.endswith("bias") for key in changed["bias"]),
            "some biases": len(changed["bias"]) > 0,
            "changed by `last-1` of two layers: parts": layers_changed("last-1"),
            "changed by `all`: the embeddings too": "embedding.weight" in changed["all"],
            "right": right,
        },
        {
            "changed by `head`": [],
            "changed by `bias`: biases alone": True,
            "some biases": True,
            "changed by `last-1` of two layers: parts": ["1"],
            "changed by `all`: the embeddings too": True,
            "right": {"head": AtLeast(0.5), "bias": AtLeast(0.9), "all": AtLeast(0.9)},
        },
    )


def layers_changed(part: str) -> list[str]:
    """Return the numbers of the layers that `init.train` changes in a network of two layers."""
    records, few = reviews_of(TOPICS), TRAINING | {"steps": 2, "warmup": 0}
    texts = [{"text": record["text"]} for record in records]
    base = trained_model(task_with("fill"), texts, network=DEEPER, training=few)
    with TemporaryDirectory() as name:
        init = {"model": str(base.save(Path(name) / "base")), "train": part}
        model = trained_model(task_with("classify"), records, init=init, network={"dropout": 0.0}, training=few)
    before, after = base.network.state_dict(), model.network.state_dict()
    below = [key for key in after if key in before and not key.startswith(("heads.", "pooler."))]
    return sorted({key.split(".")[2] for key in below if not torch.equal(before[key], after[key])})
