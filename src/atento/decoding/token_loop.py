"""The token loop: greedy search and sampling, one token of each output a step; outputs that have ended leave.

An output is a function of its request alone, whatever is beside it: the rows of one step share the network and nothing
else. Offline the outputs of a call begin together (`token_steps`); in a `ContinuousBatch` they come and go. See
docs/notes.md#h1 to #h5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from atento.decoding.choosing import (
    best_token,
    hypothesis,
    most_probable,
    moved_up,
    no_distribution,
    rule_stages,
    stream_key,
)
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.filters import draw, stages
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.running import Rows, StateRows
from atento.decoding.strategies import Greedy, Sample
from atento.decoding.trace import MODEL, NOT_BEST, NOT_DRAWN, Trace

End = Literal["eos", "stop", "limit"]
GREEDY = Sample(temperature=0.0)


class Drawn(NamedTuple):
    """One token of one output, and how that output ended with it, if it did."""

    row: int
    number: int  # the number of the sample in its row
    id: int
    log_prob: float  # by the model, before any rule or filter
    end: End | None
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens at this place, where they are asked for


@dataclass(eq=False)
class Output:
    """One output that is being written.

    Attributes:
        input_ids: the source, or the prompt, for a continuous batch that reads it.
        strategy: greedy search, or sampling.
        request: of this output alone, or of all rows of a batch.
        number: of the sample, where the input has several.
        top: how many of the most probable tokens are recorded beside each token.
        row: of the request.
        drawn: its tokens so far.
        ids: their ids, EOS included.
        has_ended: no token will follow.
        error: why it failed.
    """

    input_ids: Sequence[int]
    strategy: Greedy | Sample
    request: Request
    number: int = 0
    top: int = 0
    row: int = 0
    drawn: list[Drawn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    has_ended: bool = False
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.filters = GREEDY if isinstance(self.strategy, Greedy) else self.strategy
        self.key = 0 if self.filters.temperature == 0 else stream_key(self.request.seeds[self.row], self.number)
        self.limit = self.request.max_new_tokens[self.row]
        self.has_ended = self.limit < 1

    @property
    def has_rules(self) -> bool:
        """Whether a rule or the minimum length changes the scores of its next token."""
        return bool(self.request.rules) or len(self.ids) < self.request.min_new_tokens

    def append(self, token: int, log_prob: float, top: tuple[tuple[int, float], ...] = ()) -> Drawn | None:
        """Add a token; None if the stop function fails, and so the output."""
        self.ids.append(token)
        end: End | None = None
        try:
            if token in self.request.eos_ids:
                end = "eos"
            elif self.request.stop is not None and self.request.stop(self.ids):
                end = "stop"
            elif len(self.ids) >= self.limit:
                end = "limit"
        except Exception as error:
            self.fail(error)
            return None
        self.has_ended = end is not None
        self.drawn.append(Drawn(self.row, self.number, token, log_prob, end, top))
        return self.drawn[-1]

    def fail(self, error: Exception) -> None:
        """End with an error, which is that of this output alone."""
        self.error, self.has_ended = error, True

    @property
    def hypothesis(self) -> Hypothesis:
        """What was written."""
        end = self.drawn[-1].end if self.drawn else None
        ids = [token.id for token in self.drawn if token.end != "eos"]
        return hypothesis(ids, [token.log_prob for token in self.drawn], end in ("eos", "stop"), 0.0)


class TokenLoop:
    """Outputs that are written side by side.

    Args:
        batch: its rows are those of the outputs.
        outputs: in the order of the rows.
        tokens: what the next step reads, (R,) or (R,P).
    """

    def __init__(self, batch: Rows, outputs: list[Output], tokens: Tensor) -> None:
        self.batch, self.outputs, self.tokens = batch, outputs, tokens

    @property
    def rows(self) -> int:
        """The number of outputs that have not ended."""
        return sum(not output.has_ended for output in self.outputs)

    def step(self) -> list[tuple[Output, Drawn | None]]:
        """One token of each output; None for an output that ended without another token."""
        self._change_rows()
        if not self.outputs:
            return []
        drawn, self.tokens = advance(self.outputs, self.batch.step(self.tokens))
        return list(zip(self.outputs, drawn))

    def _change_rows(self) -> None:
        """Drop the outputs that have ended."""
        if not any(output.has_ended for output in self.outputs):
            return
        rows = moved_up([not output.has_ended for output in self.outputs])  # those behind move up into the gaps
        self.outputs, self.tokens = [self.outputs[row] for row in rows], self.tokens[rows]
        self.batch.keep(rows)


def advance(outputs: Sequence[Output], logits: Tensor) -> tuple[list[Drawn | None], Tensor]:
    """Choose a token of each of R outputs from logits (R,V): what was chosen, and the tokens (R,).

    Rules change the logits before the choice; the returned scores are the model's own log-probabilities. An output for
    which the rules leave no token ends there, unfinished: None, and token 0.
    """
    log_probs = torch.log_softmax(logits, dim=-1)  # (R,V), by the model
    is_plain = all(output.filters.temperature == 0 and not output.has_rules for output in outputs)
    if not is_plain:  # rules and draws are given numbers alone
        _fail_where_not_numbers(outputs, log_probs)
    allowed, changed = _after_rules(outputs, logits)
    live = [row for row, output in enumerate(outputs) if not output.has_ended]
    tokens = _chosen(outputs, allowed, live)  # (R), 0 for outputs that have ended
    scores = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()  # (R,) as numbers
    if is_plain and any(map(isnan, scores)):
        _fail_where_not_numbers(outputs, log_probs)
        live = [row for row in live if not outputs[row].has_ended]
    trace = outputs[0].request.trace
    before = [list(output.ids) for output in outputs] if trace is not None else []  # as they were before this token
    drawn: list[Drawn | None] = [None] * len(outputs)
    ids = tokens.tolist()
    for row in live:
        top = most_probable(log_probs[row], outputs[row].top) if outputs[row].top else ()
        drawn[row] = outputs[row].append(ids[row], scores[row], top)
    if trace is not None:
        record(trace, outputs, before, log_probs, allowed, changed, tokens, live)
    return drawn, tokens


def _fail_where_not_numbers(outputs: Sequence[Output], log_probs: Tensor) -> None:
    """End the outputs whose logits are NaN or infinite; they fail."""
    first = log_probs[:, 0]  # (R); one logit of NaN or +inf makes the whole row NaN
    if isnan(float(first.sum())):  # no log-probability is +inf, so only a NaN makes the sum NaN
        for row in first.isnan().nonzero().flatten().tolist():
            outputs[row].fail(no_distribution(outputs[row].row, len(outputs[row].ids)))


def _after_rules(outputs: Sequence[Output], logits: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """The logits (R,V) after the rules of each output, and the stages of the last; one that is left no token ends.

    Rows of one request that have written equally much are changed together.
    """
    together: dict[tuple[int, int], list[int]] = {}
    for row, output in enumerate(outputs):
        if output.has_rules and not output.has_ended:
            together.setdefault((id(output.request), len(output.ids)), []).append(row)  # rules read (rows, length) ids
    allowed, changed = logits, list[tuple[str, Tensor]]()
    for (_, length), rows in together.items():
        request, is_all = outputs[rows[0]].request, len(rows) == len(outputs)
        written = torch.tensor([outputs[row].ids for row in rows], dtype=torch.long, device=logits.device)
        try:
            scores = logits if is_all else logits[rows]
            changed = list(rule_stages(scores, request, [outputs[row].row for row in rows], written, length))
            scores = changed[-1][1] if changed else scores
            possible = (scores.amax(dim=-1) > float("-inf")).tolist()  # some token is left
        except Exception as error:
            for row in rows:
                outputs[row].fail(error)
            continue
        if is_all:
            allowed = scores
        else:
            allowed = logits.clone() if allowed is logits else allowed  # the caller's logits stay as they are
            allowed[rows] = scores
        for row, has_token in zip(rows, possible):
            outputs[row].has_ended = not has_token  # ends unfinished
    return allowed, changed


def _chosen(outputs: Sequence[Output], allowed: Tensor, live: list[int]) -> Tensor:
    """A token of each live output; rows with the same filters are drawn together. 0 for the others."""
    by_filters: dict[Sample, list[int]] = {}
    if live and all(outputs[row].filters is outputs[live[0]].filters for row in live):  # no hash of each is computed
        by_filters[outputs[live[0]].filters] = live
    else:
        for row in live:
            by_filters.setdefault(outputs[row].filters, []).append(row)
    tokens: Tensor | None = None
    for filters, rows in by_filters.items():
        is_all = len(rows) == len(outputs)
        scores = allowed if is_all else allowed[rows]
        if filters.temperature == 0:
            chosen = best_token(scores)
        else:
            keys = torch.tensor([outputs[row].key for row in rows], device=allowed.device)
            lengths = [len(outputs[row].ids) for row in rows]  # positions in the streams of random numbers
            equal_lengths = min(lengths) == max(lengths)  # as in a batch: one number for all is faster
            chosen = draw(
                scores, filters, keys, lengths[0] if equal_lengths else torch.tensor(lengths, device=keys.device)
            )
        if is_all:
            return chosen
        tokens = torch.zeros(len(outputs), dtype=torch.long, device=chosen.device) if tokens is None else tokens
        tokens[rows] = chosen
    return torch.zeros(len(outputs), dtype=torch.long, device=allowed.device) if tokens is None else tokens


def record(
    trace: Trace,
    outputs: Sequence[Output],
    written: list[list[int]],
    log_probs: Tensor,
    allowed: Tensor,
    changed: list[tuple[str, Tensor]],
    tokens: Tensor,
    live: list[int],
) -> None:
    """Record one step of a request in its trace: the distribution after every rule and filter, and the tokens."""
    is_greedy = isinstance(outputs[0].strategy, Greedy)
    rows = list(range(len(outputs))) if is_greedy else live  # nothing is drawn where rules leave no token
    if not rows:
        return
    filters = [] if is_greedy else stages(allowed[rows], outputs[0].filters)
    ids = torch.tensor([written[row] for row in rows], dtype=torch.long)
    trace.step([outputs[row].row for row in rows], ids, log_probs[rows])
    for name, scores in [*((name, scores[rows]) for name, scores in changed), *filters]:
        if name != MODEL:
            trace.filter(name, scores)
    ends = [bool(outputs[row].drawn) and outputs[row].drawn[-1].end in ("eos", "stop") for row in rows]
    trace.choose(tokens[rows], ends, NOT_BEST if is_greedy else NOT_DRAWN)


def token_steps(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Greedy | Sample, request: Request
) -> Iterator[list[Drawn]]:
    """The tokens of each step, EOS included; arguments as in `token_search`."""
    return _steps(step_function, state, first, _outputs(len(first), strategy, request))


def token_search(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Greedy | Sample, request: Request
) -> list[list[Hypothesis]]:
    """The hypothesis of each row by greedy search, or its n samples in the order drawn.

    Samples are not sorted by score: the first one is a sample like the others, and the first ones do not depend on n. A
    row's samples are a function of its seed, `strategy` and the network's scores.

    Args:
        step_function, first: as in `beam`.
        state: its state after the sources or prompts (B rows).
        strategy: the filters and the number of samples, or greedy search.
        request: limits, rules, seeds, stop function and trace.

    Raises AtentoError: the network's logits are NaN or infinite.
    """
    outputs = _outputs(len(first), strategy, request)
    if request.trace is not None:
        request.trace.begin("greedy" if isinstance(strategy, Greedy) else "sample", len(first))
    for _ in _steps(step_function, state, first, outputs):
        pass
    hypotheses = hypotheses_of(outputs, len(first))
    if request.trace is not None:
        request.trace.end(hypotheses)
    return hypotheses


def hypotheses_of(outputs: Sequence[Output], count: int) -> list[list[Hypothesis]]:
    """What was written for each of `count` rows."""
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(count)]
    for output in outputs:
        hypotheses[output.row].append(output.hypothesis)
    return hypotheses


def _outputs(count: int, strategy: Greedy | Sample, request: Request) -> list[Output]:
    """The outputs of `count` rows, the samples of each side by side."""
    samples = strategy.n if isinstance(strategy, Sample) else 1
    return [Output((), strategy, request, number, row=row) for row in range(count) for number in range(samples)]


def _steps(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, outputs: Sequence[Output]
) -> Iterator[list[Drawn]]:
    """The tokens of each step of outputs that begin together."""
    live = [output for output in outputs if not output.has_ended]
    rows = [output.row for output in live]
    if rows and rows != list(range(len(first))):  # rows that may write nothing are left out
        index = torch.tensor(rows, dtype=torch.long, device=first.device)
        state, first = state.select(index), first[index]
    loop = TokenLoop(StateRows(step_function, state, first.device), live, first)
    while loop.rows:
        steps = loop.step()
        for output, _ in steps:
            if output.error is not None:
                raise output.error
        if drawn := [token for _, token in steps if token is not None]:
            yield drawn
