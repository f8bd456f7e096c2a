"""Fine-tuning as the examples of transformers write it: a tiny BERT, the recipe of a run beside it, a plain loop."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import atento
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.data.batches.batch import Batch, Batches
from atento.data.batches.planning import PlannedBatches
from atento.data.records.splits import Split
from atento.runs.prepare import read_data, tokenizer_and_network, training_batches
from atento.text import Tokenizer
from atento.training.losses import Call, losses
from atento.training.metrics_log import read_journal
from released_folders import write_released

STILL = {"dropout": 0.0, "attention": {"dropout": 0.0}, "feed_forward": {"dropout": 0.0}}  # a network without dropout
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_PLAIN = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.0)


def write_bert(
    folder: Path, head: str, words: Sequence[str], *, cls: str = "Bert", strip_accents: bool | None = False, **more: Any
) -> Path:
    """A tiny BERT without dropout, with that head, and its tokenizer, as transformers makes and saves them."""
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    settings = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "initializer_range": 0.15}
    config = getattr(hf, f"{cls}Config")(vocab_size=len(vocabulary), **_SIZES | _PLAIN | settings | more)
    torch.manual_seed(5)
    getattr(hf, f"{cls}For{head}")(config).save_pretrained(folder)
    hf.BertTokenizerFast(vocab=vocabulary, strip_accents=strip_accents).save_pretrained(folder)
    return folder


def write_encoder(folder: Path, **embedding: Any) -> Path:
    """A sentence-transformers folder of a BERT of random weights without dropout, whose vectors are so taken."""
    model = atento.load(write_released("bert", folder / "bert"))
    model.network.config = changed(model.network.config, STILL)
    model.config["embedding"] = {"max_len": 40, **embedding}
    return model.save(folder / "encoder", layout="huggingface")


def training(steps: int, rate: float, batch_tokens: int = 16, **more: Any) -> dict[str, Any]:
    """The section of a recipe that trains as `their_loop` does, with every loss in the log."""
    made = {"steps": steps, "batch_tokens": batch_tokens, "learning_rate": rate, "warmup": 4, "schedule": "linear"}
    made |= {"weight_decay": 0.1, "precision": "float32", "log_every": 1}
    return made | {"validate_every": steps, "checkpoint_every": steps} | more


def batches_of(recipe: Any, records: Any = None, report: Any = print) -> tuple[Batches, NetworkConfig, Tokenizer]:
    """The training batches of a recipe, of these records if there are any, its network and its tokenizer."""
    loaded = load_recipe(recipe, environment={})
    data = read_data(loaded.recipe, loaded.folder, print, None if records is None else {"train": list(records)})
    tokenizer, network = tokenizer_and_network(loaded, data.train, report)
    return training_batches(loaded.recipe, network, tokenizer, data.train, print), network, tokenizer


def loss_of(network: Any, batch: Batch) -> torch.Tensor:
    """Our loss of a batch with one head, as a mean."""
    ((loss, _),) = losses(network, batch, Call()).values()
    return loss / batch.targets


def same_gradients(network: Any, ours: torch.Tensor, peer: Any, theirs: torch.Tensor) -> None:
    """Assert that two networks have equal losses, and gradients of equal size."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    ours.backward()
    theirs.backward()
    every = ([one.grad for one in {*each.parameters()} if one.grad is not None] for each in (network, peer))
    norms = [sum(float(value.square().sum()) for value in gradients) for gradients in every]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4) and norms[0] > 0


def planned(recipe: dict[str, Any], run: Path, folder: Path) -> tuple[Split, PlannedBatches, list[list[int]]]:
    """The training data of a run, its batches, and the rows of each update."""
    model, loaded = atento.load(run), load_recipe(recipe).recipe
    assert model.tokenizer is not None
    data = read_data(loaded, folder, print)
    batches = training_batches(loaded, model.network.config, model.tokenizer, data.train, print)
    assert isinstance(batches, PlannedBatches)
    steps = range(loaded.training.steps)
    return data.train, batches, [[int(row) for part in batches.rows(step) for row in part] for step in steps]


def same_losses(run: Path, theirs: list[float], within: float = 2e-4) -> list[dict[str, Any]]:
    """Assert that the run has the losses of the plain loop; return its journal."""
    events = list(read_journal(run / "metrics.jsonl"))
    ours = [event["loss"] for event in events if event["event"] == "train"]
    assert ours == pytest.approx(theirs, abs=within) and ours[0] == pytest.approx(theirs[0], abs=2e-6)
    return events


def their_loop(network: Any, updates: Sequence[Mapping[str, Any]], rate: float, warmup: int = 4) -> list[float]:
    """Train a network of transformers on the arguments of each update, labels included; return the losses.

    The rate reaches `rate` after `warmup` updates and falls linearly, to 0 one update after the last.
    """
    plain = [weight for name, weight in network.named_parameters() if name.endswith(("bias", "LayerNorm.weight"))]
    others = [weight for weight in network.parameters() if all(weight is not part for part in plain)]
    groups = [{"params": others}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), weight_decay=0.1)
    steps = len(updates)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warmup, (steps - k) / (steps + 1 - warmup))
    )
    network.train()
    losses = []
    for inputs in updates:
        loss = network(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
