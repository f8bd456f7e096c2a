"""Greedy search and sampling with a draft: one step of the network verifies several proposed tokens of each output.

The step gives the distribution after every proposed token. Tokens are chosen from these one after the other, as without
a draft, for as long as the choice is the proposed token; the choice behind that costs no further step.

Greedy search chooses the tokens that it chooses without a draft. Logits of a step over several tokens may differ in
their last digits from those of a step over one, so where the two highest scores of an output are closer than
`Rewinding.rounding`, its tokens are read again one by one, and the choice is that of these steps (`_OneByOne`).

Sampling draws from the same distribution. Where a token was copied, the choice is the draw without a draft, from the
same random number, and accepted if it is the copied token: with probability p of it. Where a network drew it from q, it
is accepted with probability min(1, p / q), and otherwise replaced by a draw from max(0, p - q), scaled to sum to 1
(Leviathan et al. 2023, https://arxiv.org/abs/2211.17192; Chen et al. 2023). A seed gives the same output each time,
with a draft by a network not the one without a draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.decoding.choosing import best_token, next_log_probs, no_distribution, rule_stages, stream_key, uniform
from atento.decoding.contract import AnyStepFunction, Rewinding, State
from atento.decoding.draft_network import DraftNetwork
from atento.decoding.draft_proposals import Draft, PromptLookup, Proposal
from atento.decoding.filters import draw, shaped
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.source import Prepared
from atento.decoding.strategies import Greedy, Sample
from atento.decoding.token_loop import GREEDY, Drawn, Output, hypotheses_of, record

_PROPOSED, _ACCEPTED = 1, 2  # uses of random numbers besides the choice of a token
_FIRST = 4  # tokens of the first proposal


@dataclass(eq=False, kw_only=True)
class _Output(Output):
    """One output of a search with a draft."""

    index: int  # of the output among all
    size: int  # the most tokens of its next proposal
    proposed: int = 0
    accepted: int = 0
    one_by_one: _OneByOne | None = None  # reads its tokens again; made at the first near tie

    def __post_init__(self) -> None:
        super().__post_init__()
        seed = self.request.seeds[self.row] if self.request.seeds else 0
        # streams of random numbers: of its tokens, of proposed tokens, of acceptances
        self.keys = [stream_key(seed, self.number, *use) for use in ((), (_PROPOSED,), (_ACCEPTED,))]

    @property
    def hypothesis(self) -> Hypothesis:
        """What was written, with the numbers of proposed and accepted tokens."""
        return replace(super().hypothesis, proposed=self.proposed, accepted=self.accepted)


class _Choice(NamedTuple):
    """A token, with the log-probabilities (1,V) by the model and what each rule changed."""

    token: int
    log_probs: Tensor
    changed: list[tuple[str, Tensor]]


class _OneByOne:
    """Steps over one token, as without a draft, for one output: only as far as a near tie needs them."""

    def __init__(self, step_function: AnyStepFunction, state: State, first: Tensor) -> None:
        self._step_function, self._state, self._next = step_function, state, first
        self._length = 0  # tokens of the output that were read
        self._logits: Tensor | None = None

    def logits(self, ids: Sequence[int]) -> Tensor:
        """The logits (1,V) after these tokens, of which those of the last call are the first."""
        while self._logits is None or self._length < len(ids):
            if self._logits is not None:
                self._next = torch.tensor([ids[self._length]], device=self._next.device)
                self._length += 1
            self._logits, self._state = self._step_function.step(self._next, self._state)
        return self._logits


class DraftedSearch:
    """Greedy search or sampling with a draft.

    Args:
        prepared: what the network, and one that drafts, reads.
        strategy: as in `token_search`.
        draft: what proposes tokens.

    Attributes:
        outputs: all outputs, with the numbers of tokens that were proposed and accepted.

    Raises:
        CapabilityError: states of this step function, or of the network that drafts, cannot give tokens back.
    """

    def __init__(self, prepared: Prepared, strategy: Greedy | Sample, draft: Draft) -> None:
        step_function, request = prepared.step_function, prepared.request
        state, first = prepared.begin(), prepared.first
        if not isinstance(step_function, Rewinding):
            raise CapabilityError(
                "a draft needs steps over several tokens that can be taken back, which recurrent networks and CUDA "
                f"graphs do not have: got {type(step_function).__name__}"
            )
        self._step_function: Any = step_function
        self._initial, self._first, self._request, self._draft = state, first, request, draft
        self._kind = "greedy" if isinstance(strategy, Greedy) else "sample"
        self.filters = GREEDY if isinstance(strategy, Greedy) else strategy
        self._is_greedy = self.filters.temperature == 0
        rows = [(row, number) for row in range(first.shape[0]) for number in range(self.filters.n)]
        size = min(_FIRST, draft.tokens)  # grows with what is accepted
        self.outputs = [
            _Output((), Greedy() if self._is_greedy else strategy, request, number, row=row, index=index, size=size)
            for index, (row, number) in enumerate(rows)
        ]
        self._live = [output for output in self.outputs if not output.has_ended]
        self._state = step_function.rewindable(state)
        self._drafters: list[PromptLookup | DraftNetwork] = []  # the cheapest first
        if draft.ngrams:
            continues = hasattr(step_function, "first_tokens")
            before, prefixes = [], prepared.prefixes
            for output in self.outputs:
                source = list(request.prompts[output.row]) if draft.source else []
                prefix = prefixes[output.row]
                before.append([[*source, *prefix]] if continues else [source, prefix])
            self._drafters.append(PromptLookup(before))
        if draft.network is not None and self.outputs:
            self._drafters.append(DraftNetwork(draft, prepared, [row for row, _ in rows], self._choose_proposed))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Search; the hypotheses of each row, with the numbers of proposed and accepted tokens."""
        trace, count = self._request.trace, self._first.shape[0]
        if trace is not None:
            trace.begin(self._kind, count)
        for _ in self.steps():
            pass
        found = hypotheses_of(self.outputs, count)
        if trace is not None:
            for output in self.outputs:
                counts = {"proposed": output.proposed, "accepted": output.accepted}
                trace.note("draft", {"row": output.row, "number": output.number, **counts})
            trace.end(found)
        return found

    def steps(self) -> Iterator[list[Drawn]]:
        """The tokens that each step of the network gives: those of an output in their order, EOS included."""
        if not self._live:
            return
        device = self._first.device
        index = torch.tensor([output.row for output in self._live], dtype=torch.long, device=device)
        self._state = self._state.select(index)
        unread = self._first[index]  # what is read before the proposals, (R,) or (R,1+P)
        unread = unread if unread.dim() == 2 else unread.unsqueeze(1)
        while self._live:
            proposals = self._proposals()
            before = unread.shape[1]  # tokens before the proposals
            counts = [before + len(proposal.ids) for proposal in proposals]  # tokens of each row that count
            longest = max(counts) - before
            padded = [[*proposal.ids, *[0] * (longest - len(proposal.ids))] for proposal in proposals]
            tokens = torch.cat(  # (R, before + longest)
                [unread, torch.tensor(padded, dtype=torch.long, device=device).view(len(padded), longest)], 1
            )
            logits, self._state = self._step_function.step_all(tokens, counts, self._state)
            drawn = self._verified(logits[:, before - 1 :], proposals)
            yield [token for tokens in drawn for token in tokens]
            positions = [position for position, output in enumerate(self._live) if not output.has_ended]
            # of the proposed tokens that were read, those before the last token of the output remain
            wrong = [len(proposal.ids) - len(tokens) + 1 for proposal, tokens in zip(proposals, drawn)]
            if len(positions) < len(self._live):
                rows = torch.tensor(positions, dtype=torch.long, device=device)
                self._live = [self._live[position] for position in positions]
                wrong = [wrong[position] for position in positions]
                self._state = self._state.select(rows) if positions else self._state
            if any(wrong) and self._live:
                self._state = self._step_function.crop(self._state, wrong)
            unread = torch.tensor([output.ids[-1:] for output in self._live], dtype=torch.long, device=device)

    def _proposals(self) -> list[Proposal]:
        """A proposal for each output, of the first drafter that has one; it ends with EOS."""
        request = self._request
        most = [
            min(output.size, self._draft.tokens, request.max_new_tokens[output.row] - len(output.ids) - 1)
            for output in self._live
        ]
        indices, written = [output.index for output in self._live], [output.ids for output in self._live]
        proposals = [Proposal([]) for _ in self._live]
        for drafter in self._drafters:
            missing = [0 if proposal.ids else count for proposal, count in zip(proposals, most)]
            if any(missing):
                new = drafter.propose(indices, written, missing)
                proposals = [proposal if proposal.ids else late for proposal, late in zip(proposals, new)]
        ends = [[token in request.eos_ids for token in proposal.ids] for proposal in proposals]
        return [
            replace(proposal, ids=proposal.ids[: is_end.index(True) + 1]) if any(is_end) else proposal
            for proposal, is_end in zip(proposals, ends)
        ]

    def _verified(self, logits: Tensor, proposals: Sequence[Proposal]) -> list[list[Drawn]]:
        """The tokens of each output that logits (R,1+k,V) give; sets `has_ended`."""
        is_simple = not self._request.rules and self._request.trace is None
        simple = self._simple_choices(logits, proposals) if is_simple else None
        drawn = []
        for position, (output, proposal) in enumerate(zip(self._live, proposals)):
            output.proposed += len(proposal.ids)
            tokens: list[Drawn] = []
            for step in range(len(proposal.ids) + 1):  # the last one is the choice behind the proposal
                after = len(output.ids)
                if simple is not None and after >= self._request.min_new_tokens and proposal.probabilities is None:
                    token, log_prob, is_close = simple[position][step]
                    chosen = self._chosen(output, self._exact_logits(output), None, 0) if is_close else None
                else:
                    chosen = self._chosen(output, logits[position, step : step + 1], proposal, step)
                    if chosen is None:  # the rules leave no token: the output ends here, unfinished
                        output.has_ended = True
                        break
                if chosen is not None:
                    token, log_prob = chosen.token, float(chosen.log_probs[0, chosen.token])
                if log_prob != log_prob:
                    raise no_distribution(output.row, after)
                drawn_token = output.append(token, log_prob)
                if drawn_token is None:
                    assert output.error is not None
                    raise output.error
                tokens.append(drawn_token)
                if chosen is not None and self._request.trace is not None:
                    allowed = chosen.changed[-1][1] if chosen.changed else chosen.log_probs
                    ids, steps = [output.ids[:-1]], (chosen.log_probs, allowed, chosen.changed)
                    record(self._request.trace, [output], ids, *steps, torch.tensor([token]), [0])
                is_accepted = step < len(proposal.ids) and token == proposal.ids[step]
                output.accepted += is_accepted
                if output.has_ended or not is_accepted:  # what follows was proposed after another token
                    break
            if proposal.ids:
                kept = sum(token.id == proposed for token, proposed in zip(tokens, proposal.ids))
                output.size = min(self._draft.tokens, 2 * kept + 1)
            drawn.append(tokens)
        return drawn

    def _simple_choices(self, logits: Tensor, proposals: Sequence[Proposal]) -> list[list[tuple[int, float, bool]]]:
        """Without rules, for each output and proposed token: the choice, its log-probability, whether it is close."""
        counts = [len(proposal.ids) + 1 for proposal in proposals]
        rows = torch.tensor([position for position, count in enumerate(counts) for _ in range(count)])
        steps = torch.tensor([step for count in counts for step in range(count)])
        flat = logits[rows.to(logits.device), steps.to(logits.device)]  # (N,V)
        if self._is_greedy:
            tokens = best_token(flat)
            close = self._is_close(flat, tokens).tolist()
        else:
            outputs = [self._live[row] for row in rows.tolist()]
            lengths = [len(output.ids) + step for output, step in zip(outputs, steps.tolist())]
            keys = torch.tensor([output.keys[0] for output in outputs], device=flat.device)  # (N,)
            tokens = draw(flat, self.filters, keys, torch.tensor(lengths, device=flat.device))
            close = [False] * len(flat)
        log_probs = torch.log_softmax(flat, dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)  # (N,)
        choices = iter(zip(tokens.tolist(), log_probs.tolist(), close))
        return [[next(choices) for _ in range(count)] for count in counts]

    def _is_close(self, scores: Tensor, best: Tensor) -> Tensor:
        """Whether rounding may decide between the two highest of scores (N,V): booleans (N,)."""
        column = best.unsqueeze(1)
        highest = scores.gather(1, column)  # (N,1)
        second = scores.scatter(1, column, float("-inf")).amax(dim=1, keepdim=True)  # (N,1)
        bound = self._step_function.rounding * highest.abs().clamp(min=1.0)  # below 1 an absolute bound
        return cast(Tensor, (highest - second <= bound).squeeze(1))

    def _exact_logits(self, output: _Output) -> Tensor:
        """The logits (1,V) of the next token from steps over one token."""
        if output.one_by_one is None:
            row = torch.tensor([output.row], dtype=torch.long, device=self._first.device)
            output.one_by_one = _OneByOne(self._step_function, self._initial.select(row), self._first[row])
        return output.one_by_one.logits(output.ids)

    def _chosen(self, output: _Output, logits: Tensor, proposal: Proposal | None, step: int) -> _Choice | None:
        """The next token of an output from logits (1,V); None if the rules leave none.

        Args:
            proposal: what was proposed; None: `logits` are those of a step over one token.
            step: the number of the proposed token that is verified.
        """
        written = torch.tensor([output.ids], dtype=torch.long, device=logits.device)  # (1,t)
        changed = list(rule_stages(logits, self._request, [output.row], written, len(output.ids)))
        scores = changed[-1][1] if changed else logits
        if float(scores.amax()) == float("-inf"):
            return None
        position = len(output.ids)
        if self._is_greedy:
            best = best_token(scores)
            if proposal is not None and bool(self._is_close(scores, best)):  # rounding of a longer call may turn a tie
                return self._chosen(output, self._exact_logits(output), None, step)
            token = int(best)
        elif proposal is not None and proposal.probabilities is not None and step < len(proposal.ids):
            token = self._accepted_or_drawn(output, scores, proposal.ids[step], proposal.probabilities[step])
        else:
            token = int(draw(scores, self.filters, torch.tensor([output.keys[0]], device=scores.device), position))
        return _Choice(token, next_log_probs(logits, [output.row], position), changed)

    def _accepted_or_drawn(self, output: _Output, scores: Tensor, proposed: int, q: Tensor) -> int:
        """A token with the distribution p of scores (1,V), from one that was drawn from q (V,)."""
        p = shaped(scores, self.filters)[0].exp().double()  # (V)
        p, position = p / p.sum(), len(output.ids)  # float32 does not sum to 1 exactly
        token_key, _, acceptance_key = (torch.tensor([key], device=p.device) for key in output.keys)
        if float(uniform(acceptance_key, position)) * float(q[proposed]) < float(p[proposed]):
            return proposed
        remaining = (p - q).clamp_(min=0.0)  # what p has beyond q (Leviathan et al. 2023)
        cumulative = (remaining if float(remaining.sum()) > 0 else p).cumsum(dim=0)  # p = q but for rounding: from p
        return int(torch.searchsorted(cumulative, uniform(token_key, position) * cumulative[-1], right=True))

    def _choose_proposed(
        self, logits: Tensor, outputs: Sequence[int], positions: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """What a network that drafts proposes: its best tokens, or tokens drawn as those of the output are."""
        if self._is_greedy:
            return best_token(logits), None
        keys = torch.tensor([self.outputs[output].keys[1] for output in outputs], device=logits.device)
        tokens = draw(logits, self.filters, keys, torch.tensor(positions, device=logits.device))
        probabilities = shaped(logits, self.filters).exp().double()
        return tokens, probabilities / probabilities.sum(dim=1, keepdim=True)  # float32 does not sum to 1 exactly
