"""Training objectives, one file each or one for those of a kind, and the table of their names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batches
from atento.data.batches.mixture import Mixture, Shares
from atento.data.objectives.causal import causal, prefix
from atento.data.objectives.denoising import denoising, span_corruption
from atento.data.objectives.labels import label_sets, labels, numbers
from atento.data.objectives.masked import masked, next_sentence, replaced_token, span_boundary
from atento.data.objectives.multiple_negatives import cosent, cosine, multiple_negatives, simcse, triplet, tsdae
from atento.data.objectives.preparation import Make, Preparation
from atento.data.objectives.ranked_documents import each_document, first_documents, ranked_documents, worse_documents
from atento.data.objectives.sequence_to_sequence import sequence_to_sequence
from atento.data.objectives.tags import spans, tags
from atento.data.objectives.window import bidirectional, window
from atento.data.store.stored_batches import stored_batches

OBJECTIVES: dict[str, Make] = {
    "sequence-to-sequence": sequence_to_sequence,
    "causal": causal,
    "prefix": prefix,
    "masked": masked,
    "next-sentence": next_sentence,
    "span-boundary": span_boundary,
    "replaced-token": replaced_token,
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
    "cosent": cosent,
    "triplet": triplet,
    "simcse": simcse,
    "tsdae": tsdae,
    "pointwise": partial(ranked_documents, targets=each_document, compares=False),
    "ranknet": partial(ranked_documents, targets=worse_documents),
    "listnet": partial(ranked_documents, targets=first_documents),
    "lambda-loss": partial(ranked_documents, targets=worse_documents),
}


def batches_for(preparation: Preparation, objectives: Sequence[ObjectiveConfig]) -> Batches:
    """Return the batches of a split: of one objective, of a mixture of several, or of a mixture of its sources.

    The sources are mixed in training alone, as `data.mixing` says. With several objectives too, each pair of a source
    and an objective is a member of the mixture.
    """
    training, mixing = preparation.recipe.training, preparation.recipe.data.mixing
    sources = [preparation] if preparation.held_out or mixing.concatenates else preparation.by_source()
    if len(objectives) == len(sources) == 1:
        return _batches(preparation, objectives[0])

    def member(source: Preparation, config: ObjectiveConfig) -> Callable[[int], Batches]:
        return lambda tokens: _batches(source.with_budget(tokens), config)  # the mixture says how many tokens

    def shares(members: Sequence[Batches]) -> Shares:
        of_objectives = [config.share for config in objectives]  # of the recipe, for one source
        if len(sources) == 1:
            return Shares.constant(of_objectives)
        sizes = tuple(float(batches.targets) for batches in members[:: len(objectives)])  # each source once
        points = [
            (at, [share * weight for weight in _shares(weights) for share in _shares(of_objectives)])
            for at, weights in mixing.rates(sizes)
        ]
        return Shares.over(points, training.steps)

    members = [member(source, config) for source in sources for config in objectives]  # in the order of `shares`
    return Mixture(members, shares, budget=training.batch_tokens, seed=training.seed, sources=len(sources))


def _shares(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def _batches(preparation: Preparation, config: ObjectiveConfig) -> Batches:
    """Return the batches of one objective, of records in memory or of a store of token ids."""
    store, training = preparation.split.tokens, preparation.recipe.training
    if store is None:
        return _made(preparation, config)
    quiet = replace(preparation, report=lambda line: None)
    return stored_batches(
        store, lambda ids: _made(replace(quiet, ids=ids), config), budget=training.batch_tokens, seed=training.seed
    )


def _made(preparation: Preparation, config: ObjectiveConfig) -> Batches:
    """Return the batches of one objective, with what teachers say of their examples."""
    make = OBJECTIVES[config.kind]
    return make(preparation, config) if preparation.teach is None else preparation.teach(preparation, config, make)
