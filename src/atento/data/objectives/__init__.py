"""Training objectives, one file each, and the table of their names."""

from collections.abc import Callable, Sequence

from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batches
from atento.data.mixture import Mixture
from atento.data.objectives.bidirectional import bidirectional
from atento.data.objectives.causal import causal
from atento.data.objectives.cosine import cosine
from atento.data.objectives.denoising import denoising
from atento.data.objectives.label_sets import label_sets
from atento.data.objectives.labels import labels
from atento.data.objectives.masked import masked
from atento.data.objectives.multiple_negatives import multiple_negatives
from atento.data.objectives.next_sentence import next_sentence
from atento.data.objectives.numbers import numbers
from atento.data.objectives.prefix import prefix
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.sequence_to_sequence import sequence_to_sequence
from atento.data.objectives.span_boundary import span_boundary
from atento.data.objectives.span_corruption import span_corruption
from atento.data.objectives.spans import spans
from atento.data.objectives.tags import tags
from atento.data.objectives.window import window

OBJECTIVES: dict[str, Callable[[Preparation, ObjectiveConfig], Batches]] = {
    "sequence-to-sequence": sequence_to_sequence,
    "causal": causal,
    "prefix": prefix,
    "masked": masked,
    "next-sentence": next_sentence,
    "span-boundary": span_boundary,
    "span-corruption": span_corruption,
    "denoising": denoising,
    "bidirectional": bidirectional,
    "window": window,
    "labels": labels,
    "tags": tags,
    "spans": spans,
    "label-sets": label_sets,
    "numbers": numbers,
    "multiple-negatives": multiple_negatives,
    "cosine": cosine,
}


def batches_for(preparation: Preparation, objectives: Sequence[ObjectiveConfig]) -> Batches:
    """Return the batches of a split, for one objective or for a mixture of several."""
    if len(objectives) == 1:
        return OBJECTIVES[objectives[0].kind](preparation, objectives[0])
    budget = preparation.recipe.training.batch_tokens

    def member(config: ObjectiveConfig) -> Callable[[int], Batches]:
        return lambda tokens: OBJECTIVES[config.kind](preparation.with_budget(tokens), config)

    members = [(member(config), config.share) for config in objectives]
    return Mixture(members, budget=budget, seed=preparation.recipe.training.seed)
