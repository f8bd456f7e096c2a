"""Objectives of a recipe: span corruption, next sentences, mixtures; trained, validated, resumed, refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.data.batches.masking import Masking
from atento.data.objectives.denoising import restored, sentinel_ids
from atento.decoding import Greedy, generate
from atento.inference.prefix_steps import PrefixStepFunction
from atento.tasks.mask_filling import between
from failing import fails
from runs import differences, events

TINY = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1, "dropout": 0.0}
ENCODER = TINY | {"architecture": "encoder"}  # heads are added
SEGMENTS = ENCODER | {"embedding": {"segments": 2}, "pooler": True}
TRAINING = {"steps": 8, "batch_tokens": 128, "warmup": 2, "precision": "float32", "log_every": 1}
TRAINING |= {"validate_every": 4, "checkpoint_every": 4}
WIDER, TEXT = TINY | {"d_model": 64, "d_ff": 128}, "o gato pulou alto e caiu"
WORLD = {"train": {"world": "train", "count": 60}, "valid": {"world": "valid", "count": 10}, "max_len": 48}


def recipe(task: str, **parts: Any) -> dict[str, Any]:
    return {"task": task, "data": WORLD, "tokenizer": {"kind": "bpe", "vocab_size": 400}, "training": TRAINING} | parts


def documents(folder: Path) -> dict[str, Any]:
    """Two files of documents, a paragraph of sentences each."""
    for name, count in (("train.txt", 30), ("valid.txt", 6)):
        lines = [f"O gato {n} dorme. Ele sonha {n} vezes. Depois acorda." for n in range(count)]
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return {name: {"file": str(folder / f"{name}.txt")} for name in ("train", "valid")} | {"max_len": 48}


def learned(folder: Path, task: str, lines: list[str], steps: int, **parts: Any) -> tuple[Path, atento.Model]:
    """The run and the model of a task that is trained on the same few lines again and again."""
    (folder / "text.txt").write_text("\n".join(lines * 4), encoding="utf-8")
    given = recipe(task, **parts) | {"data": {"train": {"file": str(folder / "text.txt")}, "max_len": 48}}
    given["training"] = TRAINING | {"steps": steps, "learning_rate": 1e-2, "log_every": 50, "checkpoint_every": steps}
    given["tokenizer"] = {"kind": "word", "vocab_size": 300}
    run = atento.train(given, out=folder / "run", threads=1).folder
    return run, atento.load(run)


def test_e3_span_corruption_trains_a_t5_that_restores_its_training_text(tmp_path: Path) -> None:
    """One short text again and again: the model writes what stood behind the sentinels, and the inverse restores it."""
    run, model = learned(tmp_path, "span-corruption", [TEXT], 150, network=WIDER)
    tokenizer = model.tokenizer
    assert tokenizer is not None and events(run, "train")[-1]["loss"] < 0.5
    words, marks = tokenizer.encode(TEXT), sentinel_ids(tokenizer)
    source = torch.tensor([[*words[:2], marks[0], *words[3:], tokenizer.eos_id]])
    written = generate(model.network, source, Greedy(), max_new_tokens=8)[0][0].ids
    assert restored(source[0, :-1].tolist(), written, marks) == words


def test_a_denoiser_fills_masks_with_what_stands_between_the_unmasked_parts(tmp_path: Path) -> None:
    _, model = learned(tmp_path, "span-corruption", [TEXT], 30, objective="denoising", network=WIDER)
    best = model.fill("o <mask> alto e <mask>", top=2)[0]
    assert (best.token, best.text) == ("gato pulou caiu", TEXT) and best.probability > 0.5
    fails(UsageError, "text 0 has no <mask> to fill", model.fill, "o gato")
    assert between([9, 1, 9, 2], [5, 6, 1, 7, 2], 9) == [5, 6, 7] and between([1, 9, 1, 9], [1, 1, 3], 9) == [3]
    assert between([1, 9, 2], [1, 2], 9) == []
    for written in ([1, 2], [3, 5, 2], [1, 4, 3]):  # the text around the masks differs
        assert between([1, 9, 3, 9, 2], written, 9) == written


def test_e4_sentences_are_learned_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Where no token may be hidden, the run ends with the sentence labels alone, and says so."""
    given = recipe("masked-language-modeling", network=SEGMENTS, objective="next-sentence")
    given["data"] = documents(tmp_path)
    run = atento.train(given, out=tmp_path / "run", threads=1)
    last = events(run.folder, "train")[-1]
    assert last["nll"] == pytest.approx(last["nll_vocabulary"] + last["nll_next-sentence"])
    valid = events(run.folder, "valid")[-1]
    assert 0 < valid["nll_next-sentence"] < 2 and valid["perplexity"] > 1
    assert set(atento.load(run.folder).network.heads) == {"vocabulary", "next-sentence"}
    assert "learns nothing" not in capsys.readouterr().err
    monkeypatch.setattr(Masking, "is_ordinary", lambda self, ids: torch.zeros_like(ids, dtype=torch.bool))
    atento.train(given, out=tmp_path / "none", threads=1)
    said = capsys.readouterr().err
    assert said.count("warning: the head 'vocabulary' has had no target in ") == 1 and "'next-sentence'" not in said


MIXED = [{"kind": "masked", "share": 2}, {"kind": "causal"}, {"kind": "prefix", "weight": 0.5}]


def test_a_mixture_on_one_encoder_fills_masks_continues_a_prompt_and_scores_what_follows_it(tmp_path: Path) -> None:
    network = ENCODER | {"heads": [{"kind": "masked-language-model"}]}
    given = recipe("masked-language-modeling", objective=MIXED, network=network)
    model = atento.load(atento.train(given, out=tmp_path / "run", threads=1).folder)
    assert len(model.fill("O gato <mask>.", top=2)) == 2
    (best,) = model.generations(["O gato"], beam=2, max_new_tokens=4)[0]
    assert model.score("O gato", best.text).total <= 0 and len(best.hypothesis.ids) <= 4


RECIPES: dict[str, tuple[str, Any, dict[str, Any]]] = {  # task, objective, network
    "words": ("masked-language-modeling", {"kind": "masked", "unit": "words"}, ENCODER),
    "sentences of spans": ("masked-language-modeling", {"kind": "next-sentence", "unit": "spans"}, SEGMENTS),
    "mixture": ("masked-language-modeling", MIXED, ENCODER | {"heads": [{"kind": "masked-language-model"}]}),
    "span-boundary": ("masked-language-modeling", "span-boundary", ENCODER),
    "replaced-token": ("masked-language-modeling", "replaced-token", ENCODER),
    "denoising": ("span-corruption", "denoising", TINY),
    "other noise": ("span-corruption", {"kind": "denoising", "infilling": 0.0, "deletion": 0.2, "rotation": 0.5}, TINY),
}


@pytest.mark.parametrize("name", RECIPES)
def test_an_objective_is_trained_and_resumed_bit_for_bit(name: str, tmp_path: Path) -> None:
    task, objective, network = RECIPES[name]
    given = recipe(task, objective=objective, network=network) | {"data": documents(tmp_path)}
    given["training"] = TRAINING | {"steps": 4, "schedule": "constant", "checkpoint_every": 2, "validate_every": 2}
    atento.train(given, {"training.steps": 2}, out=tmp_path / "resumed", threads=1)
    resumed = atento.train(given, out=tmp_path / "resumed", threads=1)
    straight = atento.train(given, out=tmp_path / "straight", threads=1)
    assert differences(resumed.folder, straight.folder) == [] and len(events(straight.folder, "train")) == 4
    assert events(straight.folder, "valid")[-1]["perplexity"] > 1


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_e7_a_prefix_language_model_reads_prompts_in_both_directions(architecture: str, tmp_path: Path) -> None:
    """The word after "e" is the first word of the text, which is the same as in any other text up to then."""
    texts = [f"{first} pulou alto e {first} caiu" for first in ("gato", "rato", "pato")]
    _, model = learned(tmp_path, "prefix-language-modeling", texts, 80, network=TINY | {"architecture": architecture})
    assert isinstance(model.step_function(), PrefixStepFunction)
    assert [model.generate(f"{first} pulou alto e") for first in ("gato", "rato")] == ["gato caiu", "rato caiu"]
    assert "".join(model.stream("pato pulou")).split() == ["alto", "e", "pato", "caiu"]


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("maskd", "'maskd'.*masked"),
        ({"kind": "masked", "mean_span": 2}, "`mean_span` has no effect on the objective masked"),
        ({"kind": "masked", "rate": 1.5}, "`rate` must lie in"),
        ({"kind": "causal", "share": 0}, "`share` must be finite and above 0"),
        ("sequence-to-sequence", "needs records of source and target"),
        ("span-corruption", "needs network.architecture encoder-decoder"),
    ],
)
def test_an_objective_that_cannot_be_is_refused_with_its_place(objective: Any, message: str) -> None:
    fails(RecipeError, message, load_recipe, recipe("masked-language-modeling", network=ENCODER, objective=objective))


def test_an_initial_model_gets_the_heads_that_an_objective_needs(tmp_path: Path) -> None:
    """Masked modelling goes on with next sentences; the head for tokens keeps what it has learned."""
    network = ENCODER | {"embedding": {"segments": 2}, "heads": [{"kind": "masked-language-model"}]}
    data = documents(tmp_path)
    first = atento.train(recipe("masked-language-modeling", network=network) | {"data": data}, out=tmp_path / "a")
    then = {"task": "masked-language-modeling", "data": data, "init": str(first.folder), "objective": "next-sentence"}
    then["training"] = TRAINING | {"steps": 1, "learning_rate": 0.0}
    second = atento.load(atento.train(then, out=tmp_path / "b").folder).network
    assert set(second.heads) == {"vocabulary", "next-sentence"}
    before = atento.load(first.folder).network.state_dict()
    assert all(torch.equal(second.state_dict()[name], value) for name, value in before.items())
    with pytest.raises(atento.AtentoError, match="objective span-corruption needs encoder-decoder"):
        atento.train(then | {"objective": "span-corruption"}, out=tmp_path / "c")


def test_a_recipe_names_the_heads_that_its_objectives_train_and_no_others() -> None:
    preset = {"preset": "bert-tiny", "pooler": False}  # with the task's head for masked tokens
    for objective, heads in (
        ("masked", ["masked-language-model"]),
        ("replaced-token", ["generator", "replaced-token"]),
        (["masked", "span-boundary"], ["masked-language-model", "span-boundary"]),
    ):
        objectives = [{"kind": kind} for kind in objective] if isinstance(objective, list) else objective
        loaded = load_recipe(recipe("masked-language-modeling", network=preset, objective=objectives))
        assert [head.kind for head in loaded.recipe.network.heads] == heads
    written = preset | {"heads": [{"kind": "masked-language-model"}, {"kind": "regression"}]}
    loaded = load_recipe(recipe("masked-language-modeling", network=written))
    assert [head.kind for head in loaded.recipe.network.heads] == ["masked-language-model", "regression"]
    network = ENCODER | {"heads": [{"kind": "regression"}]}
    given = recipe("masked-language-modeling", network=network, objective="next-sentence")
    fails(RecipeError, r"needs a masked-language-model and a next-sentence head in network.heads", load_recipe, given)
