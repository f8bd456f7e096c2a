"""Sizes that fit the data where a recipe names none: which are left open, what is chosen, what stays as it is."""

from pathlib import Path

import pytest

from atento.config.reading.loading import LoadedRecipe, dump_recipe, load_recipe
from atento.config.reading.sizes_by_data import FITTED, fitted

MINIMAL = "task: {task}\ndata: {{train: {{world: train}}}}\n"
NETWORK = {"network.d_model", "network.d_ff", "network.n_heads", "network.n_layers", "network.norm"}


def load(tmp_path: Path, *overrides: str, task: str = "translation") -> LoadedRecipe:
    (tmp_path / "my.yaml").write_text(MINIMAL.format(task=task), encoding="utf-8")
    return load_recipe(tmp_path / "my.yaml", overrides, environment={})


def keys(loaded: LoadedRecipe) -> set[str]:
    return {key for key, origin in loaded.origins.items() if origin == FITTED}


STEPS, VOCABULARY = "training.steps", "tokenizer.vocab_size"
DROPOUT, RATE = "network.dropout", {"training.learning_rate", "training.schedule"}
WRITING = NETWORK | RATE | {DROPOUT}
OPEN = [
    ([], WRITING | {STEPS, VOCABULARY}),
    (["network.dropout=0.3", "network.positions=rotary"], NETWORK | RATE | {STEPS, VOCABULARY}),  # not sizes
    *(([f"training.{key}"], NETWORK | {DROPOUT, STEPS, VOCABULARY}) for key in (
        "learning_rate=1e-4", "schedule=constant", "optimizer=adafactor")),
    *(([f"training.{key}=5"], WRITING | {VOCABULARY}) for key in ("steps", "epochs", "minutes")),
    *(([f"tokenizer.{key}"], WRITING | {STEPS}) for key in ("vocab_size=9", "path=x")),
    *(([f"network{key}"], {STEPS}) for key in (
        "=transformer-base", ".n_layers=3", ".architecture=recurrent-seq2seq",
        ".positions={kind: shaw, layers: [4]}")),  # there must be a layer 4
    (["init=some/model"], set()),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "wanted"), OPEN, ids=[" ".join(row[0]) for row in OPEN])
def test_what_is_written_is_never_fitted(tmp_path: Path, overrides: list[str], wanted: set[str]) -> None:
    assert keys(load(tmp_path, *overrides)) == wanted


MODELING = ("language-modeling", "masked-language-modeling", "bidirectional-language-modeling")


@pytest.mark.parametrize("task", ["translation", "summarization", *MODELING, "cbow"])
def test_every_task_gets_more_with_more_data_and_a_recipe_that_holds(tmp_path: Path, task: str) -> None:
    """The resolved recipe reads back equal, with nothing left open and no warning."""
    loaded = load(tmp_path, task=task)
    widths, steps = [], []
    for characters in (100_000, 10_000_000, 1_000_000_000):
        recipe, said = fitted(loaded.recipe, list(keys(loaded)), characters, characters // 2)
        (tmp_path / "run.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
        back = load_recipe(tmp_path / "run.yaml", environment={})
        assert back.recipe == recipe and keys(back) == set() and back.warnings == []
        assert f"{recipe.network.d_model} wide" in said and f"{recipe.training.steps:,} steps" in said
        rate = ", `training.learning_rate`" if DROPOUT in keys(loaded) else ""
        assert f"(write `network`, `tokenizer.vocab_size`{rate} or `training.steps` to choose otherwise)" in said
        widths.append((recipe.network.d_model, recipe.tokenizer.vocab_size))
        steps.append(recipe.training.steps)
    assert widths == sorted(widths) and len(set(widths)) == 3 and steps == sorted(steps) and steps[0] == 1000


def test_steps_go_through_the_data_or_count_examples(tmp_path: Path) -> None:
    """7 million characters of target text are some 2 million subwords: 20 times, 4,096 an update."""
    recipe, _ = fitted(load(tmp_path).recipe, [STEPS], 14_000_000, 7_000_000)
    assert recipe.training.steps == pytest.approx(20 * 2_000_000 / 4096, abs=100)
    assert recipe.network == load(tmp_path).recipe.network  # nothing but what was asked for
    bytewise, _ = fitted(load(tmp_path, "tokenizer.kind=byte").recipe, [STEPS], 14_000_000, 7_000_000)
    assert bytewise.training.steps == pytest.approx(20 * 7_000_000 / 4096, abs=100)
    # 100,000 texts, 20 times, 32 an update; characters, which are no targets of a label, do not matter
    for targets in (10, 10**9):
        recipe, _ = fitted(load(tmp_path, "training.batch_tokens=32").recipe, [STEPS], 14_000_000, targets, 100_000)
        assert recipe.training.steps == 62_500


def test_little_text_for_writing_gets_more_dropout_and_a_rate_that_falls(tmp_path: Path) -> None:
    """What docs/benchmarks/translation.md measured; more text, and tasks that write nothing, keep the usual."""
    for task, characters, wanted in (
        ("translation", 200_000, (0.3, 2e-3, "cosine")),
        ("translation", 640_000, (0.1, 2e-3, "cosine")),
        ("translation", 20_000_000, (0.2, 2e-3, "cosine")),
        ("translation", 80_000_000, (0.1, 1e-3, "inverse-sqrt")),
        ("language-modeling", 200_000, (0.1, 1e-3, "inverse-sqrt")),
    ):
        loaded = load(tmp_path, task=task)
        recipe, said = fitted(loaded.recipe, list(keys(loaded)), characters, characters // 2)
        training = recipe.training
        assert (recipe.network.dropout, training.learning_rate, training.schedule) == wanted
        assert ("dropout 0.3, a learning rate" in said) == (wanted[0] == 0.3)
        assert ("a learning rate of 0.002 that falls as a cosine" in said) == (wanted[1] == 2e-3)
