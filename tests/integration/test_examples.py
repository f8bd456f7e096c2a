"""What one tries first: the example in one file computes what the stack computes, shipped recipes are put to use."""

import json
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
import atento_world
from atento.config import presets
from atento.config.reading.loading import load_recipe
from atento.config.tables.formats import LABELLINGS
from atento.networks import build_network
from atento.runs.prepare import read_data
from atento.tasks.split_evaluation import held_out_batches, mean_losses
from atento_world import write
from conftest import ForkServer
from runs import events

FILE = Path(__file__).parents[2] / "examples" / "one_file_transformer.py"


def test_the_transformer_in_one_file_has_the_numbers_of_the_stack() -> None:
    """Equal parameters by equal names: logits, the loss's gradients and greedy outputs."""
    torch.manual_seed(3)
    names = runpy.run_path(str(FILE))
    stack: Any = build_network(presets.transformer_tiny(vocab_size=23, d_model=16, d_ff=32, dropout=0.0)).eval()
    one = names["Transformer"](23, 16, 32, 4, 2, 0.0).eval()
    one.load_state_dict(stack.state_dict())
    source = names["padded"]([[5, 6, 7, 3], [8, 9, 10, 11, 12, 3]])
    shifted = torch.tensor([[2, 13, 14, 15], [2, 16, 17, 18]])
    theirs = stack(source, shifted, source_token_mask=source != 0).logits
    ours = one(source, shifted)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    right = dict(stack.named_parameters())
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter.grad, right[name].grad, rtol=1e-4, atol=1e-4, msg=name)


def test_the_one_file_learns_and_translates(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Its whole program, on a twentieth of its sentences."""
    monkeypatch.setattr(atento_world, "write", lambda split, count: write(split, count // 20))
    monkeypatch.setattr(sys, "argv", [str(FILE), "--steps", "15"])
    runpy.run_path(str(FILE), run_name="__main__")
    printed = capsys.readouterr().out
    first, last = map(float, re.findall(r"loss ([\d.]+)", printed))
    assert last < first - 0.3, printed
    assert len(re.findall(r"^  \w+", printed, flags=re.M)) == 5


SMALL = ["network={d_model: 16, d_ff: 32, n_heads: 2, n_layers: 1}", "tokenizer.vocab_size=400", "training.steps=6"]
SMALL += [f"training.{it}" for it in ("precision=float32", "validate_every=3", "batch_tokens=256", "warmup=2")]


def test_w6_readmes_line_validates_on_the_text_that_was_given(server: ForkServer, here: Path) -> None:
    texts = [f"{pair.source} #{number}" for number, pair in enumerate(write("train", 300))]
    (here / "book.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = ["train", "micro-world-lm", "data.train={file: book.txt}", *SMALL, "--out", "book"]
    done = server.good(*command, cwd=here)
    assert "warning: command line: data.train is files, so the recipe's data.valid and data.test" in done.stderr
    assert "30 of 300 training texts held out for validation\n" in done.stderr
    assert [event["step"] for event in events(here / "book", "valid")] == [3, 6]
    assert '"test_' not in (here / "book" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "already finished" in server.good(*command, cwd=here).stderr


def test_a_hard_wrapped_book_is_joined_and_packed(server: ForkServer, here: Path) -> None:
    texts = [pair.target for pair in write("train", 900)]
    whole = [" ".join(texts[at : at + 6]) for at in range(0, 900, 6)]
    (here / "book.txt").write_text("\n\n".join(textwrap.fill(text, 60) for text in whole), encoding="utf-8")
    lines = (here / "book.txt").read_text(encoding="utf-8").count("\n")
    small = [*SMALL, "training.learning_rate=2e-2", "training.steps=12", "data.max_len=48"]
    for pack in ("none", "isolated", "stream"):
        given = ["data.train={file: book.txt, paragraphs: true}", f"data.pack={pack}"]
        done = server.good("train", "micro-world-lm", *given, *small, "--out", pack, cwd=here)
        assert "15 of 150 training texts held out for validation\n" in done.stderr and lines > 500
        assert ("135 texts packed into" in done.stderr) == (pack != "none")
        scores = [event["perplexity"] for event in events(here / pack, "valid")]
        assert scores[-1] < 0.9 * scores[0]
    peeked = server.run("data", "peek", "micro-world-lm", *given, *small, "--count", "1", "--json", cwd=here)
    assert len(json.loads(peeked.stdout)["ids"]["tokens"]) == 48


def test_r1_word_vectors_of_too_little_text(server: ForkServer, here: Path) -> None:
    small = ["network.d_model=8", "training.steps=40", "training.validate_every=20", "~data.valid"]
    one = server.run("train", "micro-world-cbow", "data.train={world: train, count: 1}", *small, cwd=here)
    said = "error: too little text for word vectors: `network.cbow.subsample` 0.001 leaves"
    assert one.status == 2 and one.stderr.splitlines()[-1].startswith(said)
    assert one.stderr.rstrip().endswith("give more text, or network.cbow.subsample=0")
    for name, extra in {
        "two": ["data.train={world: train, count: 3}"],
        "off": ["data.train={world: train, count: 1}", "network.cbow.subsample=0"],
        "tiny": ["data.train={world: train, count: 3}", "training.batch_tokens=1", "training.micro_batches=2"],
    }.items():
        server.good("train", "micro-world-cbow", *small, *extra, "--out", name, cwd=here)


def test_validation_text_that_cannot_be_scored_is_found_before_training(server: ForkServer, here: Path) -> None:
    (here / "words.txt").write_text("um\ndois\n", encoding="utf-8")
    given = ["data.train={world: train, count: 300}", "training.validate_every=1"]
    for split in ("valid", "test"):
        command = ["train", "micro-world-cbow", *given, f"data.{split}={{file: words.txt}}", "--out", split]
        done = server.run(*command, cwd=here)
        assert done.status == 2 and "step 1" not in done.stderr
        said = f"error: data.{split}: no sentence has two words, so there is no context to learn from"
        assert done.stderr.splitlines()[-1] == said


@pytest.mark.parametrize("labels", LABELLINGS)
def test_each_recipe_has_its_labels_and_is_tested_on_held_out_combinations(labels: str) -> None:
    data = load_recipe(f"micro-world-{labels}", environment={}).recipe.data
    assert {source.labels for source in (*data.train, *data.valid, *data.test)} == {labels}
    assert [source.world for source in (*data.train, *data.valid, *data.test)] == ["train", "valid", "combinations"]


CHANGES: dict[str, Any] = {f"training.{it}": 160 for it in ("steps", "validate_every", "checkpoint_every")}
CHANGES |= {"training.warmup": 20, "training.batch_tokens": 256, "training.precision": "float32"}
CHANGES |= {"training.learning_rate": 1e-2, "network.dropout": 0.0}
CHANGES |= {"network.d_model": 32, "network.d_ff": 64, "network.n_layers": 2, "network.n_heads": 2}
CHANGES |= {"tokenizer.kind": "word", "tokenizer.vocab_size": 600}
CHANGES |= {"data.train.0.count": 3000, "data.valid.0.count": 100, "data.test.0.count": 50}


def trained(objective: str | None, folder: Path) -> atento.Model:
    changes = CHANGES if objective is None else CHANGES | {"objective": objective}
    return atento.load(atento.train("micro-world-mixture", changes, out=folder, threads=1).folder)


def nll(model: atento.Model, objective: str) -> float:
    """Mean loss of a token of the validation data, in nats."""
    recipe = load_recipe("micro-world-mixture", CHANGES | {"objective": objective})
    split = read_data(recipe.recipe, recipe.folder, lambda line: None).valid
    assert split is not None and model.tokenizer is not None
    batches = held_out_batches(recipe.recipe, model.network.config, model.tokenizer, split)
    return mean_losses(model.network, batches.in_order(2048))["vocabulary"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_m2_each_skill_of_a_mixture_is_near_that_of_a_specialist_of_the_same_steps(tmp_path: Path) -> None:
    """The mixture has a third of the updates of each specialist for each skill."""
    mixture = trained(None, tmp_path / "mixture")
    losses = {}
    for skill in ("masked", "causal", "prefix"):
        losses[skill] = nll(mixture, skill), nll(trained(skill, tmp_path / skill), skill)
    print(losses)
    assert all(joint < 1.15 * alone for joint, alone in losses.values()), losses
    assert mixture.fill("O gato <mask>.")[0].probability > 0 and mixture.generate("O gato")


def test_w3_micro_world_mlm_is_exported_as_bert(server: ForkServer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    short = [*SMALL, "data.train.count=300", "data.valid.count=20"]
    server.good("train", "micro-world-mlm", *short, "--out", "run", "--threads", "1", cwd=tmp_path)
    server.good("convert", "run", "--to", "huggingface", "--out", "bert", cwd=tmp_path)
    folder = tmp_path / "bert"
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    model = atento.load(tmp_path / "run")
    fill = transformers.pipeline("fill-mask", model=str(folder), top_k=2)
    assert len(fill("o gato <mask> alto.")) == 2
    ids = [model.tokenizer.bos_id, *model.tokenizer.encode("o gato pulou."), model.tokenizer.eos_id]
    assert fill.tokenizer("o gato pulou.")["input_ids"] == ids
    assert atento.load(folder).config["task"] == "masked-language-modeling"
