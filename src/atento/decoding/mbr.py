"""Minimum Bayes risk decoding: candidates are written and compared with evidence; the one with the lowest risk wins.

See docs/notes.md#h10.

Other strategies take a state, this one a function that makes a state: each strategy that writes candidates or evidence
starts with a new one. The trace gets a run of each of them, and the `RiskMatrix` of each row under the note "risk".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from atento.decoding.beam.beam_search import beam
from atento.decoding.choosing import row_seed
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.risk import minimum_bayes_risk_choice
from atento.decoding.strategies import MBR, Beam, Sample
from atento.decoding.token_loop import token_search

Writers = Sample | Beam | Sequence[Sample | Beam]


def mbr(
    step_function: StepFunction[StateT], begin: Callable[[], StateT], first: Tensor, strategy: MBR, request: Request
) -> list[list[Hypothesis]]:
    """The outputs with the lowest expected risk under the model, for each row by itself (docs/notes.md#h10).

    Args:
        step_function, begin, first: as in `beam`; `begin` is called for each search.
        strategy: how candidates and evidence are written and compared.
        request: as for every strategy. The first strategy of the candidates draws with the row's own seed, so its
            outputs are those that it would give alone; every other one, and the evidence, with a seed made from it.

    Returns:
        A list a row of at most `n_best` hypotheses of different texts (of different ids, without `strategy.text`),
        lowest risk first. Their `score` is the expected utility, 1 - risk, in 0-1; an estimate for candidates that the
        method did not compare in full. `log_prob` and `token_scores` are those of the strategy that wrote them.

    Raises:
        UsageError: an unknown utility, or one that the method cannot take; a utility that gives another matrix.

    Paper: Kumar and Byrne 2004, Minimum Bayes-Risk Decoding for Statistical Machine Translation; Eikema and Aziz 2020,
    Is MAP Decoding All You Need?
    """
    pools = _pools(step_function, begin, first, strategy.candidates, request, 0)  # 0: the candidates' side
    evidence = None if strategy.evidence is None else _pools(step_function, begin, first, strategy.evidence, request, 1)
    text, results = strategy.text or spelled, list[list[Hypothesis]]()
    for row, pool in enumerate(pools):
        utility = strategy.utility
        if of_input := getattr(utility, "of_input", None):  # it reads what the outputs are of
            utility = of_input(request.prompts[row])
        # "uniform" counts each draw, "model" each different output once
        by_model, given = strategy.weights == "model", None if evidence is None else evidence[row]
        pool = _different(pool) if by_model or given is not None else pool  # a repeated draw has one probability
        given = _different(given) if by_model and given is not None else given
        ranking = minimum_bayes_risk_choice(
            [text(hypothesis.ids) for hypothesis in pool],
            None if given is None else [text(hypothesis.ids) for hypothesis in given],
            utility,
            weights=_probabilities(pool if given is None else given) if by_model else None,
            log_probs=[hypothesis.log_prob for hypothesis in pool],
            self_comparison=strategy.self_comparison,
            method=strategy.method,
            keep=max(strategy.keep, strategy.n_best),
            confidence=strategy.confidence,
            seed=request.seeds[row],
        )
        ranked = [replace(pool[index], score=float(ranking.expected[index])) for index in ranking.order]
        results.append(_different(ranked, strategy.text)[: strategy.n_best])
        if request.trace is not None and ranking.matrix is not None:
            request.trace.note("risk", ranking.matrix)
    return results


def _pools(
    step_function: StepFunction[StateT],
    begin: Callable[[], StateT],
    first: Tensor,
    writers: Writers,
    request: Request,
    side: int,
) -> list[list[Hypothesis]]:
    """The outputs that the strategies write for each row, in the order of the strategies."""
    joined: list[list[Hypothesis]] = [[] for _ in range(first.shape[0])]
    for number, writer in enumerate([writers] if isinstance(writers, Sample | Beam) else writers):
        seeds = tuple(strategy_seed(seed, side, number) for seed in request.seeds)  # as if each ran alone
        writer_request = replace(request, seeds=seeds)
        if isinstance(writer, Beam):
            outputs = beam(step_function, begin, first, writer, writer_request)
        else:
            outputs = token_search(step_function, begin(), first, writer, writer_request)
        for pool, row_outputs in zip(joined, outputs):
            pool.extend(row_outputs)
    return joined


def strategy_seed(seed: int, side: int, number: int) -> int:
    """The seed of strategy `number` of the candidates (side 0) or the evidence (side 1), from the row's seed.

    The first strategy of the candidates has the row's own.
    """
    return seed if side == number == 0 else row_seed(seed, 2 * number + side)


def _different(pool: list[Hypothesis], text: Callable[[list[int]], str] | None = None) -> list[Hypothesis]:
    """Each output once, the first of those with the same ids or, where `text` is given, the same text."""
    distinct: dict[tuple[int, ...] | str, Hypothesis] = {}
    for hypothesis in pool:
        distinct.setdefault(tuple(hypothesis.ids) if text is None else text(hypothesis.ids), hypothesis)
    return list(distinct.values())


def _probabilities(pool: list[Hypothesis]) -> list[float]:
    """Weights in proportion to the model's probability, the largest 1; all 1 where every probability is 0."""
    best = max((hypothesis.log_prob for hypothesis in pool), default=-math.inf)
    return [1.0 if best == -math.inf else math.exp(hypothesis.log_prob - best) for hypothesis in pool]


# Letters that no case folding, accent or tokenizer changes: CJK ideographs, in two blocks without gaps.
_BLOCKS = ((0x4E00, 0x51F0), (0x20000, 0xA6D0))
_LETTERS = sum(size for _, size in _BLOCKS)
_SYLLABLES = (0xAC00, 11_172)  # of Hangul, which metrics do not cut into words as ideographs


def spelled(ids: Sequence[int]) -> str:
    """Ids as text, where no tokenizer is given: each a word of one letter, so that n-grams count ids."""
    return " ".join(_word(token) for token in ids)


def _word(token: int) -> str:
    """One letter for an id below 63,680; two above."""
    left = token
    for start, size in _BLOCKS:
        if left < size:
            return chr(start + left)
        left -= size
    start, size = _SYLLABLES
    return "".join(chr(start + part) for part in divmod(left, size))  # two of its letters give 11,172² ids
