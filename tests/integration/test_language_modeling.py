"""A language model and a masked one from a text file to their use, through the command line, cut and gone on with."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import CapabilityError, UsageError
from atento_world import write
from conftest import ForkServer, each_refused
from failing import fails
from runs import events

TEXTS = [pair.target for pair in write("train", 600)]
SMALL = [
    "network={d_model: 32, d_ff: 64, n_heads: 2, n_layers: 1, dropout: 0.1}",
    "tokenizer={kind: bpe, vocab_size: 400}",
    "training={steps: 60, batch_tokens: 512, learning_rate: 5e-3, warmup: 10, validate_every: 30, "
    "checkpoint_every: 20, label_smoothing: 0, log_every: 5}",
]


def recipe(folder: Path, task: str) -> None:
    """A recipe over a text file of the micro-world's Portuguese."""
    (folder / "train.txt").write_text("\n".join(TEXTS[:500]) + "\n", encoding="utf-8")
    (folder / "valid.txt").write_text("\n".join(TEXTS[500:]) + "\n", encoding="utf-8")
    text = f"task: {task}\ndata: {{train: {{file: train.txt}}, valid: {{file: valid.txt}}}}\n"
    (folder / "r.yaml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def language_model(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm")
    recipe(folder, "language-modeling")
    assert "500 texts" in server.good("train", "r.yaml", *SMALL, "--out", "run", "--threads", "1", cwd=folder).stderr
    return folder / "run"


def test_e1_a_language_model_learns_the_text_and_h11_scores_are_those_of_one_pass(language_model: Path) -> None:
    """By hand: the network reads prompt and output at once; each token is scored after those before it, EOS last."""
    losses = [event["nll"] for event in events(language_model, "train")]
    valid = events(language_model, "valid")
    assert losses[0] > 5.0 and losses[-1] < 0.75 * losses[0]
    assert valid[-1]["nll"] < valid[0]["nll"] and valid[-1]["perplexity"] == pytest.approx(math.exp(valid[-1]["nll"]))
    assert "bleu" not in valid[-1]
    model = atento.load(language_model)
    tokenizer = model.tokenizer
    for prompt, target in (("a menina", "lê um livro"), ("", TEXTS[0]), ("o gato", "")):
        before, ids = [tokenizer.bos_id, *tokenizer.encode(prompt)], [*tokenizer.encode(target), tokenizer.eos_id]
        logits = model.network(torch.tensor([[*before, *ids[:-1]]])).logits[0, len(before) - 1 :]
        expected = torch.log_softmax(logits, dim=-1)[range(len(ids)), ids]
        found = model.score(prompt, target)
        assert found.log_probs == pytest.approx(expected.tolist(), abs=1e-4)
        assert found.tokens == tokenizer.tokens(ids) and found.total == pytest.approx(float(expected.sum()), abs=1e-3)


def test_h12_a_trained_model_goes_on_from_a_prompt(language_model: Path) -> None:
    model = atento.load(language_model)
    one = model.generate("o gato", beam=1, max_new_tokens=6)
    assert isinstance(one, str) and model.generate(["o gato", ""], beam=1, max_new_tokens=6)[0] == one
    assert "".join(model.stream("o gato", max_new_tokens=6)) == one
    drawn = model.generate("o gato", top_p=0.9, seed=3, max_new_tokens=6)
    assert drawn == model.generate("o gato", top_p=0.9, seed=3, max_new_tokens=6)
    assert "".join(model.stream("o gato", top_p=0.9, seed=3, max_new_tokens=6)) == drawn
    drawn = model.generate("o gato", sample=True, n_best=4, seed=3, max_new_tokens=6)
    for filters in ({"temperature": 1.0}, {"top_k": 0}, {"min_p": 0.0}, {"top_p": 1.0}):  # one that leaves all as it is
        assert model.generate("o gato", n_best=4, seed=3, max_new_tokens=6, **filters) == drawn
    assert len(set(model.generate("o gato", temperature=1.5, n_best=5, max_new_tokens=6))) > 1
    fails(CapabilityError, "not translation", model.translate, "o gato")
    searched = model.generate("o gato", beam=4, max_new_tokens=6)
    assert "".join(model.stream("o gato", beam=4, max_new_tokens=6)) == searched
    fails(UsageError, "a stream is one output", model.stream, "o gato", mbr="chrf")


def test_h10_least_risk_by_a_models_vectors_or_any_function(language_model: Path) -> None:
    model = atento.load(language_model)
    options = {"candidates": 8, "max_new_tokens": 6, "seed": 3}
    calls: list[int] = []

    def by_hand(candidates: list[str], evidence: list[str]) -> np.ndarray:
        calls.append(len(candidates))
        one, two = (model.embed(texts).astype(np.float64) for texts in (candidates, evidence))
        sizes = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(two, axis=1)[None]
        return (1 + np.divide(one @ two.T, sizes, where=sizes > 0, out=np.zeros_like(sizes))) / 2

    by_vectors = model.generations(["o gato", "a menina"], mbr=f"embeddings:{language_model}", **options)
    by_function = model.generations(["o gato", "a menina"], mbr=by_hand, **options)
    assert [row[0].text for row in by_vectors] == [row[0].text for row in by_function] and len(calls) >= 2
    for one, two in zip(by_vectors, by_function, strict=True):
        assert one[0].hypothesis.score == pytest.approx(two[0].hypothesis.score, abs=1e-5)
    fails(UsageError, "no model at nowhere", model.generate, "o gato", mbr="embeddings:nowhere")


@pytest.mark.parametrize("texts", [None, 3, {"a": 1}, b"o gato", [None]])
def test_what_is_no_text_is_refused(language_model: Path, texts: Any) -> None:
    model = atento.load(language_model)
    for use in (model.generate, model.embed, lambda texts: model.score(texts, texts)):
        fails(UsageError, r"(give a text or a list of texts|a text must be a str): got ", use, texts)


def test_the_command_line_goes_on_too(server: ForkServer, language_model: Path) -> None:
    folder = language_model.parent
    plain = server.good("generate", "run", "--greedy", "--max-new-tokens", "5", stdin="o gato\n\n", cwd=folder)
    more = ("--max-new-tokens", "5", "--stream")
    streamed = server.run("generate", "run", "--greedy", *more, stdin="o gato\n\n", cwd=folder)
    assert plain.stdout == streamed.stdout and plain.stdout.count("\n") == 2
    refusals = {"generate run --greedy --top-p 0.9": "--greedy and --top-p exclude each other"}
    each_refused(server, folder, refusals | {"translate run": "not translation"}, stdin="o gato\n")


def test_a_run_gone_on_with_equals_an_uninterrupted_one(server: ForkServer, language_model: Path) -> None:
    """Every later loss bit for bit: the data's place is the step, dropout a function of it."""
    folder = language_model.parent
    short = [*SMALL[:2], SMALL[2].replace("steps: 60", "steps: 30, schedule: constant")]
    shorter = [setting.replace("steps: 30", "steps: 20") for setting in short]
    for settings, out in ((short, "whole"), (shorter, "cut"), (short, "cut")):
        server.good("train", "r.yaml", *settings, "--out", out, "--threads", "1", cwd=folder)
    losses = [[(e["step"], e["loss"]) for e in events(folder / name, "train")] for name in ("whole", "cut")]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_e2_e3_a_masked_language_model_learns_and_embeds(server: ForkServer, tmp_path: Path) -> None:
    recipe(tmp_path, "masked-language-modeling")
    longer = SMALL[2].replace("batch_tokens: 512", "batch_tokens: 200").replace("steps: 60", "steps: 90")
    done = server.good("train", "r.yaml", *[*SMALL[:2], longer], "--out", "run", "--threads", "1", cwd=tmp_path)
    assert "an epoch of about 200 masked tokens, " in done.stderr
    losses = [event["nll"] for event in events(tmp_path / "run", "train")]
    assert losses[-1] < 0.85 * losses[0]
    model = atento.load(tmp_path / "run")
    vectors = model.embed(["o gato", "o gato dorme"])
    assert vectors.shape == (2, 32) and model.config["template"] == "bos-eos"
    ids = torch.tensor([[model.tokenizer.bos_id, *model.tokenizer.encode("o gato"), model.tokenizer.eos_id]])
    expected = model.network(ids, project=False).hidden[0].mean(dim=0)
    assert torch.allclose(torch.from_numpy(vectors[0]), expected, atol=1e-5)
    fails(CapabilityError, "cannot continue a text", model.generate, "o gato")


TAGGER = "network.heads=[{kind: tagging, labels: [a, b]}]"


@pytest.mark.parametrize(
    ("task", "overrides", "told"),
    [
        ("language-modeling", ["network.architecture=encoder"], "needs network.architecture decoder or recurrent-lm"),
        ("language-modeling", ["metrics=[bleu]"], "has no outputs that metrics score"),
        ("language-modeling", ["data.train={file: train.txt, source: 0}"], "has a `source`, and this task reads texts"),
        ("language-modeling", ["data.train={file: train.tsv}"], "is one file with columns, so `text` is missing"),
        ("language-modeling", ["data.train={world: train, text: fr}"], "`text` must be pt or en"),
        ("masked-language-modeling", [TAGGER], "needs a masked-language-model head"),
        ("translation", [], "has a `text`|names no data|is one file with columns"),
    ],
)
def test_what_cannot_be_right_is_told_before_work(
    server: ForkServer, task: str, overrides: list[str], told: str, tmp_path: Path
) -> None:
    recipe(tmp_path, task)
    done = server.run("config", "check", "r.yaml", *overrides, cwd=tmp_path)
    assert done.status == 2 and any(part in done.stderr for part in told.split("|")), done.stderr


CHARACTERS = "{d_char: 8, n_highway: 1, filters: [[1, 8], [2, 8]], max_characters: 12}"
ELMO = f"network={{d_model: 16, n_layers: 1, elmo: {{d_cell: 24, characters: {CHARACTERS}}}}}"


@pytest.mark.parametrize(
    ("task", "settings", "width"),
    [
        ("cbow", ["network.d_model=16", "training.learning_rate=2e-2"], 16),
        ("cbow", ["network={d_model: 16, cbow: {mode: skip-gram, negatives: 0}}", "training.learning_rate=2e-2"], 16),
        ("bidirectional-language-modeling", [ELMO, "training.learning_rate=1e-2"], 32),
    ],
)
def test_e9_words_are_learned(server: ForkServer, task: str, settings: list[str], width: int, tmp_path: Path) -> None:
    recipe(tmp_path, task)
    common = ["training.steps=40", "training.batch_tokens=400", "training.validate_every=20", "training.warmup=5"]
    common += ["training.log_every=5", "training.precision=float32", "tokenizer.vocab_size=400"]
    server.good("train", "r.yaml", *common, *settings, "--out", "run", "--threads", "1", cwd=tmp_path)
    losses, valid = [e["nll"] for e in events(tmp_path / "run", "train")], events(tmp_path / "run", "valid")
    assert losses[-1] < 0.985 * losses[0] and valid[-1]["nll"] < valid[0]["nll"]
    if "negatives: 0" in settings[0]:  # a softmax: it begins at the logarithm of the vocabulary, a target
        assert losses[0] < 6.1 < 1.2 * losses[0]
    vectors = atento.load(tmp_path / "run").embed(["o gato", "a menina"])
    assert vectors.shape == (2, width) and float(abs(vectors[0] - vectors[1]).max()) > 1e-4
