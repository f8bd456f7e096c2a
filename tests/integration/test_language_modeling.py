"""Language models from text to their use, cut and gone on with; `atento data tokenize`, its store, mixed sources."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import CapabilityError, DataError, UsageError
from atento.config.reading.loading import load_recipe
from atento.runs.token_data import make_store
from atento.text import bulk
from atento_world import write
from conftest import ForkServer, each_refused
from failing import fails
from runs import events, last, tensors

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
def test_what_cannot_be_right_is_told(server: ForkServer, task: str, overrides: Any, told: str, tmp_path: Path) -> None:
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


RECIPE = """
task: language-modeling
data: {train: text.txt, max_len: 32, pack: isolated, store: disk, store_folder: store, held_out: 20}
tokenizer: {kind: bpe, vocab_size: 330}
network: {architecture: decoder, d_model: 16, n_heads: 2, d_ff: 16, n_layers: 1}
training: {steps: 8, batch_tokens: 256, validate_every: 4, checkpoint_every: 2, log_every: 1, average: 1}
"""
WORDS = ["o", "gato", "pulou", "alto", "a", "casa", "azul", "verde", "não", "é", "de", "que", "um", "céu", "mar", "sol"]


def write_text(folder: Path, lines: int) -> None:
    random = np.random.default_rng(4)
    folder.mkdir(exist_ok=True)
    (folder / "my.yaml").write_text(RECIPE)
    text = [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(lines)]
    (folder / "text.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    os.utime(folder / "text.txt", (1_700_000_000, 1_700_000_000))  # which the store records


def test_train_makes_a_store_and_resumes_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two calls the losses are those of one; it resumes in another directory; other text is refused."""
    for name, steps in (("once", [8]), ("twice", [4, 8])):
        write_text(tmp_path / name, 300)
        monkeypatch.chdir(tmp_path / name)
        for number in steps:
            atento.train("my.yaml", {"training.steps": number, "training.schedule": "constant"}, out="run")
    assert (tmp_path / "once" / "store" / "manifest.json").exists()

    def losses(name: str) -> list[tuple[int, float]]:
        return [(event["step"], event["loss"]) for event in events(tmp_path / name / "run", "train")]

    assert losses("once") == losses("twice") and len(losses("once")) == 8
    monkeypatch.chdir(tmp_path)
    (tmp_path / "once" / "text.txt").touch()
    assert atento.train("once/run", {"training.steps": 9}).step == 9  # the same bytes
    with (tmp_path / "once" / "text.txt").open("a") as file:
        file.write("mais\n")
    fails(DataError, r"text.txt has changed", atento.train, "once/run", {"training.steps": 10})


def small_shards(said: Path) -> None:
    """The command with small shards, so that little text has many; it writes the process of its worker to a file."""
    start = bulk.Child

    def started(*arguments: str, **variables: str) -> Any:
        worker = start(*arguments, **variables)
        (said / "writing").write_text(str(worker.pid))
        (said / "writing").rename(said / "worker")
        return worker

    bulk.Child = started  # type: ignore[assignment,misc]
    make_store(load_recipe("my.yaml", ["data.held_out=0"]), lambda line: None, processes=1, shard_tokens=5_000)


@pytest.mark.parametrize("shard", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_killed_command_leaves_a_store_that_it_completes(server: ForkServer, tmp_path: Path, shard: int) -> None:
    """SIGKILL before the first shard or between two: no process is left over, and the result has the same bytes."""
    contents = []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        write_text(folder, 6_000)
        command = {"cwd": folder, "test": f"{__name__}:small_shards", "said": str(folder)}
        if name == "killed":
            running = server.start(**command)
            until = ["worker", *([f"store/shard-{shard:05}.json"] if shard else [])]
            while not all((folder / name).exists() for name in until):
                assert running.status() is None
                time.sleep(0.002)
            os.kill(running.pid, signal.SIGKILL)
            assert running.end().status == -signal.SIGKILL and not (folder / "store" / "manifest.json").exists()
            worker = int((folder / "worker").read_text())
            for _ in range(500):
                if not Path(f"/proc/{worker}").exists():
                    break
                time.sleep(0.02)
            else:
                raise AssertionError("the worker goes on without its parent")
        server.good(**command)
        files = (path for path in (folder / "store").iterdir() if path.suffix in (".bin", ".json"))
        contents.append({path.name: path.read_bytes() for path in files})
        manifest = json.loads(contents[-1]["manifest.json"])
        assert len(manifest["shards"]) > 6 and manifest["texts"] == 6_000
    assert contents[0] == contents[1]


def test_the_command_prints_what_it_made(server: ForkServer, tmp_path: Path) -> None:
    write_text(tmp_path, 300)
    said = json.loads(server.run("data", "tokenize", "my.yaml", "--json", cwd=tmp_path).stdout)
    assert said["texts"] == 280 and said["folder"].endswith("store") and said["tokens"] > 3000


# The peak of resident memory of making a store, and of reading its texts window by window, in MiB.
PEAK = """
import resource, sys
import numpy as np
from atento.config.reading.loading import load_recipe
from atento.base.splitmix import permuted
from atento.runs.token_data import make_store
loaded = load_recipe("my.yaml", ["data.held_out=0", "tokenizer={path: pieces}"])
store = make_store(loaded, lambda line: None, shard_tokens=1 << 20).store
count = 0
for first in range(0, store.n_blocks, 64):
    blocks = permuted(np.arange(first, min(first + 64, store.n_blocks)), store.n_blocks, 1, 0)
    count += sum(map(len, store.rows(blocks.tolist())))
    store.release()
assert count == store.tokens
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow
def test_memory_is_bounded_for_a_text_of_300_mb(tmp_path: Path) -> None:
    """694 MiB were measured, of which PyTorch takes about 220; the ids as lists would take 3 GiB."""
    write_text(tmp_path, 20_000)
    command = [sys.executable, "-c", "from atento_cli.start import main; main()", "tokenizer", "train", "text.txt"]
    subprocess.run([*command, "--out", "pieces", "--kind", "bpe", "--vocab-size", "330"], cwd=tmp_path, check=True)
    block = (tmp_path / "text.txt").read_bytes()
    with (tmp_path / "text.txt").open("wb") as file:
        for _ in range(192):
            file.write(block)
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 850


def test_the_preview_and_the_run_agree_and_a_run_that_goes_on_is_the_same(server: ForkServer, tmp_path: Path) -> None:
    for name, count in (("long", 200), ("short", 20)):
        lines = (f"{name} text number {number % 17} ." for number in range(count))
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    mixing = {"kind": "temperature", "temperature": 2}
    recipe = {
        "task": "language-modeling",
        "data": {"train": [{"file": "long.txt"}, {"file": "short.txt"}], "mixing": mixing},
        "tokenizer": {"kind": "word", "vocab_size": 40},
        "network": {"architecture": "decoder", "d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1},
        "training": {"steps": 8, "batch_tokens": 64, "precision": "float32", "schedule": "constant"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    plan = json.loads(server.good("data", "stats", "recipe.yaml", "--json", cwd=tmp_path).stdout)[0]["mixing"]
    assert [row["source"] for row in plan] == ["long.txt", "short.txt"]
    roots = [row["targets"] ** 0.5 for row in plan]
    assert [row["share"] for row in plan] == pytest.approx([root / sum(roots) for root in roots], rel=0.1)
    train = ["train", "recipe.yaml", "--threads", "1"]
    whole = server.good(*train, "--out", "whole", cwd=tmp_path)
    shown = [line for line in whole.stderr.splitlines() if line.startswith("mixing: ")]
    lines = server.run("data", "stats", "recipe.yaml", cwd=tmp_path).stdout.splitlines()
    assert shown == [line.strip() for line in lines if "mixing: " in line]
    assert f"mixing: long.txt: {plan[0]['share']:.1%} of the target tokens" in shown[0]
    for steps in (3, 8):
        server.good(*train, f"training.steps={steps}", "--out", "parts", cwd=tmp_path)
    files = [tensors(last(tmp_path / run) / "model.safetensors") for run in ("whole", "parts")]
    assert files[0] == files[1]
