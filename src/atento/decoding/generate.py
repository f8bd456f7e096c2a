"""The entry to decoding: a network, ids and a strategy in; n-best lists of hypotheses out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

import torch
from torch import Tensor

from atento.base.errors import nearest
from atento.decoding.beam.beam_search import beam
from atento.decoding.choosing import row_seed
from atento.decoding.contract import Request, Rule
from atento.decoding.draft_proposals import Draft
from atento.decoding.draft_verification import DraftedSearch
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.mbr import mbr
from atento.decoding.source import Prepared, Source, ends_of, step_function_of
from atento.decoding.strategies import MBR, Beam, Greedy, Sample, Strategy
from atento.decoding.token_loop import token_search
from atento.decoding.trace import Trace

STRATEGIES: dict[type, Callable[..., list[list[Hypothesis]]]] = {
    Greedy: token_search,
    Sample: token_search,
    Beam: beam,
    MBR: mbr,
}

Stop = Callable[[list[int]], bool]


@torch.inference_mode()
def generate(
    network: Source,
    ids: Tensor,
    strategy: Strategy,
    *,
    max_new_tokens: int | Sequence[int],
    min_new_tokens: int = 0,
    eos_id: int | tuple[int, ...] | None = None,
    token_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
    rules: Sequence[Rule] = (),
    required: Sequence[Sequence[Sequence[int]]] | None = None,
    stop: Stop | None = None,
    trace: Trace | None = None,
    seed: int | Sequence[int] | None = None,
    draft: Draft | None = None,
) -> list[list[Hypothesis]]:
    """Write an output for each row of `ids`.

    Args:
        network: a network, a loaded model, or anything with `begin` and `step` (a `contract.StepFunction`).
        ids: (B,S), the source of an encoder-decoder, whose output begins at the network's start token; or the prompt
            of a language model, which is not repeated in the output.
        max_new_tokens: at most so many tokens, EOS counted; one number, or one a row.
        min_new_tokens: no EOS before so many tokens are written.
        eos_id: None = the network's own, () = none.
        token_mask: boolean (B,S), True = a real token.
        prefix_ids: (B,P) tokens that every output continues, as if it had written them; they are not repeated in it.
        rules: functions that change the scores before a token is chosen, in this order (`atento.decoding.rules`).
        required: a row, token sequences that its output must hold; for `Beam`.
        stop: called after every token with the ids of an output so far; where it returns True, the output is finished
            and keeps that token (`atento.decoding.rules.StopStrings`).
        trace: records the candidates of every step.
        seed: for sampling: one number s, from which row i gets `choosing.row_seed(s, i)`, or a number a row; None: from
            PyTorch's generator. A row's samples depend on nothing else of the batch.
        draft: for `Greedy` and `Sample`: what proposes tokens, several of which the network verifies in one step.
            Greedy search writes the same tokens, sampling draws from the same distribution (`draft_verification.py`).

    Returns:
        A list of hypotheses for each row, best first; samples in the order drawn.

    Raises:
        TypeError: ids that are no tensor. ValueError: an unknown strategy; an argument of the wrong shape or length, or
            one that the strategy does not support. CapabilityError: a draft for a network whose tokens cannot be taken
            back, as of a recurrent one. AtentoError: the network's logits are NaN or infinite.
    """
    options = (max_new_tokens, min_new_tokens, eos_id, token_mask, prefix_ids, rules, required, stop, trace, seed)
    return search(prepare(network, ids, strategy, *options), strategy, draft)


@torch.inference_mode()
def search(prepared: Prepared, strategy: Strategy, draft: Draft | None = None) -> list[list[Hypothesis]]:
    """As `generate`, for a request that is prepared."""
    if not len(prepared.ids):
        return []
    if draft is not None:
        hypotheses = DraftedSearch(prepared, draftable(draft, strategy), draft).hypotheses()
    else:
        # MBR begins once for each of its searches, and a step function that runs beams itself begins by itself
        begin = prepared.begin if isinstance(strategy, MBR | Beam) else prepared.begin()
        run = STRATEGIES[type(strategy)]
        hypotheses = run(prepared.step_function, begin, prepared.first, strategy, prepared.request)
    # what each row's best output read: all of its tokens but the last
    prepared.show([row[0].ids[: max(0, len(row[0].token_scores) - 1)] if row else [] for row in hypotheses])
    return hypotheses


def draftable(draft: Draft, strategy: Strategy) -> Greedy | Sample:
    """The strategy, for which there may be a draft.
    Raises TypeError: `draft` is no Draft. ValueError: the strategy searches among several outputs.
    """
    if not isinstance(draft, Draft):
        raise TypeError(f"`draft` must be a Draft: got {type(draft).__name__}")
    if not isinstance(strategy, Greedy | Sample):
        raise ValueError(f"`draft` needs greedy search or sampling: got {type(strategy).__name__}")
    return strategy


def prepare(
    network: Source,
    ids: Tensor,
    strategy: Strategy | None,
    max_new_tokens: int | Sequence[int],
    min_new_tokens: int = 0,
    eos_id: int | tuple[int, ...] | None = None,
    token_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
    rules: Sequence[Rule] = (),
    required: Sequence[Sequence[Sequence[int]]] | None = None,
    stop: Stop | None = None,
    trace: Trace | None = None,
    seed: int | Sequence[int] | None = None,
) -> Prepared:
    """The arguments of `generate`, checked; those of another search have no strategy."""
    step_function = step_function_of(network)
    _check(strategy, ids, token_mask, prefix_ids, rules, trace)
    count = ids.shape[0]
    if min_new_tokens < 0:
        raise ValueError(f"`min_new_tokens` must not be negative: got {min_new_tokens}")
    real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask  # (B,S)
    limits = [int(max_new_tokens)] * count if isinstance(max_new_tokens, int | Integral) else list(max_new_tokens)
    if len(limits) != count:
        raise ValueError(f"`max_new_tokens` gives one number a row: got {len(limits)} for {count} rows")
    if min(limits, default=0) < 0:
        raise ValueError(f"`max_new_tokens` must not be negative: got {min(limits)}")
    if seed is None:  # PyTorch's generator is used only where the strategy samples
        seed = int(torch.randint(0, 1 << 62, ())) if isinstance(strategy, Sample | MBR) else 0
    if isinstance(seed, int | Integral):  # NumPy's too
        seed = [row_seed(int(seed), row) for row in range(count)]
    if len(seed) != count:
        raise ValueError(f"`seed` gives one number, or one a row: got {len(seed)} for {count} rows")
    request = Request(
        limits,
        min_new_tokens,
        ends_of(step_function, eos_id),
        tuple(rules),
        seeds=tuple(map(int, seed)),
        prompts=[row[keep].tolist() for row, keep in zip(ids, real)],  # real tokens alone
        required=_required(required, count, strategy),
        stop=stop,
        trace=trace,
    )
    return Prepared(step_function, ids, token_mask, request, prefix_ids)


def _check(
    strategy: Strategy | None,
    ids: Tensor,
    token_mask: Tensor | None,
    prefix_ids: Tensor | None,
    rules: Sequence[Rule],
    trace: Trace | None,
) -> None:
    if strategy is not None and type(strategy) not in STRATEGIES:
        raise ValueError(
            f"unknown strategy {type(strategy).__name__!r}"
            f"{nearest(type(strategy).__name__, [kind.__name__ for kind in STRATEGIES])}"
        )
    for name, value in (("ids", ids), ("token_mask", token_mask), ("prefix_ids", prefix_ids)):
        if not isinstance(value, Tensor) and (value is not None or name == "ids"):
            raise TypeError(f"`{name}` must be a tensor: got {type(value).__name__}")
    if ids.dim() != 2:
        raise ValueError(f"`ids` must be of shape (B,S): got {tuple(ids.shape)}")
    if trace is not None and not isinstance(trace, Trace):
        raise TypeError(f"`trace` must be a Trace: got {type(trace).__name__}; write trace=Trace()")
    if token_mask is not None and (token_mask.shape != ids.shape or token_mask.dtype != torch.bool):
        raise ValueError(
            f"`token_mask` must be boolean, as large as `ids` {tuple(ids.shape)}: got {token_mask.dtype} of "
            f"{tuple(token_mask.shape)}"
        )
    if prefix_ids is not None and (prefix_ids.dim() != 2 or len(prefix_ids) != len(ids)):
        raise ValueError(f"`prefix_ids` must be of shape (B,P), B {len(ids)}: got {tuple(prefix_ids.shape)}")
    for rule in rules:
        if not callable(rule):
            raise ValueError(f"`rules` must be functions of scores and what is written: got {rule!r}")


def _required(
    required: Sequence[Sequence[Sequence[int]]] | None, count: int, strategy: Strategy | None
) -> Sequence[Sequence[Sequence[int]]] | None:
    if required is None:
        return None
    if not isinstance(strategy, Beam):
        raise ValueError(f"`required` needs a beam search: got {type(strategy).__name__}")
    if len(required) != count:
        raise ValueError(f"`required` gives a list of token sequences a row: got {len(required)} for {count} rows")
    for row, sequences in enumerate(required):
        if not all(len(sequence) for sequence in sequences):
            raise ValueError(f"a required sequence must hold a token at least: got an empty one for row {row}")
    return required
