"""Updates of equal numbers of examples: windows of contexts, and scored pairs, short or long."""

from typing import Any

import numpy as np
import pytest

from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.data.records.values import Span
from atento.text.tokenizer_training import train_tokenizer

WORDS = ["quem", "viu", "a", "maçã", "ontem", "em", "Évora", "disse", "Ana"]
COUNT, BUDGET = 512, 16


def text(length: int, seed: int) -> str:
    """So many words."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, length).tolist())


def planned(task: str, objective: str, columns: dict[str, list[Any]], max_len: int, held_out: bool) -> PlannedBatches:
    overrides = [f"training.batch_tokens={BUDGET}", f"data.max_len={max_len}", "data.stride=4"]
    recipe = load_recipe({"task": task, "data": {"train": {"memory": "train"}}}, overrides).recipe
    tokenizer = train_tokenizer(TokenizerConfig("word", vocab_size=50), [" ".join(WORDS)] * 3)
    heads = (HeadConfig("answer"),) if task == "question-answering" else ()
    parts: Any = {"heads": heads, "positions": PositionConfig("none"), "embedding": InputConfig(segments=2)}
    sizes: Any = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}
    network = NetworkConfig("encoder", vocab_size=tokenizer.vocab_size, **sizes, **parts)
    preparation = Preparation(recipe, network, tokenizer, Split(columns, ""), "bos-eos", held_out=held_out)
    return batches_for(preparation, (ObjectiveConfig(objective),))  # type: ignore[arg-type,return-value]


def questions(first: int) -> dict[str, list[Any]]:
    """Questions whose contexts have 4 to about 100 words; the answer is the first words of the context."""
    lengths = np.random.default_rng(1).lognormal(3, 0.8, COUNT).astype(int).clip(4, 100).tolist()
    contexts = [text(length, number) for number, length in enumerate(lengths)]
    answers = [(Span(" ".join(context.split()[:first]), 0),) for context in contexts]
    return {"question": ["quem viu a maçã"] * COUNT, "context": contexts, "answers": answers}


def counts(batches: PlannedBatches) -> list[int]:
    """The examples of each update of an epoch; each example is in one."""
    rows = sorted(row for update in batches.plan(0) for part in update for row in part.tolist())
    assert rows == list(range(len(batches)))
    return [sum(map(len, update)) for update in batches.plan(0)]


def test_updates_of_questions_have_equal_numbers_of_windows_and_only_learned_ones() -> None:
    """Else a window, in an update of long ones, would have a larger weight in the gradient than a short one."""
    batches = planned("question-answering", "spans", questions(2), max_len=64, held_out=False)
    lengths = batches.stores.first["ids"].lengths
    assert len(batches) > COUNT and lengths.max() > 4 * lengths.min()
    assert counts(batches).count(BUDGET) >= 0.9 * len(counts(batches)) and max(counts(batches)) <= 1.25 * BUDGET
    # an answer that is whole in no window: validation counts its windows with no label, training leaves them out
    columns = questions(2)
    columns["context"][0] = text(60, 7)
    columns["answers"][0] = (Span(columns["context"][0], 0),)
    trained, validated = (planned("question-answering", "spans", columns, 24, held_out=h) for h in (False, True))
    assert (len(validated) - len(trained)) > 1 and validated.targets == trained.targets == len(trained)
    assert counts(trained).count(BUDGET) >= 0.9 * len(counts(trained)) and max(counts(trained)) <= 1.25 * BUDGET


@pytest.mark.parametrize("long_side", ["text", "pair"])
def test_updates_of_scored_pairs_have_equal_numbers_of_pairs(long_side: str) -> None:
    """Also where one side of the pairs is much longer; long texts are computed in pieces of about 4,096 tokens."""
    lengths = np.random.default_rng(2).lognormal(3, 0.9, COUNT).astype(int).clip(2, 400).tolist()
    texts = {"text": ["Ana"] * COUNT, "pair": ["Ana disse"] * COUNT}
    texts[long_side] = [text(length, number) for number, length in enumerate(lengths)]
    batches = planned("embedding", "cosine", texts | {"score": [0.5] * COUNT}, max_len=500, held_out=False)
    assert counts(batches) == [BUDGET] * (COUNT // BUDGET)
    side = batches.stores.first["ids" if long_side == "text" else "pair_ids"].lengths
    assert max(len(part) * side[part].max() for update in batches.plan(0) for part in update) <= 4096 + 400
