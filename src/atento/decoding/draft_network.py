"""A draft by a small network: it continues each output by its own greedy search or sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.decoding.contract import PromptReader, Rewinding, State
from atento.decoding.draft_proposals import Draft, Proposal
from atento.decoding.source import Prepared, first_tokens, step_function_of

Choose = Callable[[Tensor, Sequence[int], Sequence[int]], tuple[Tensor, Tensor | None]]
"""Scores (R,V) of some outputs, their numbers, the positions of their next tokens -> tokens (R,), and the probabilities
(R,V) that they were drawn from, if they were."""


class DraftNetwork:
    """Proposes the tokens that a small network writes after each output.

    Its state holds what it read of each output, proposals included; those that were not accepted are taken back.

    Args:
        draft: with the network.
        prepared: what it reads too: the request of the network that it drafts for.
        rows: the row of the request of each output.
        choose: draws or takes its tokens.

    Raises:
        CapabilityError: tokens of its states cannot be taken back.
    """

    def __init__(self, draft: Draft, prepared: Prepared, rows: Sequence[int], choose: Choose) -> None:
        assert draft.network is not None
        steps = step_function_of(draft.network)
        ids, token_mask, prefix_ids = prepared.ids, prepared.token_mask, prepared.prefix_ids
        if not isinstance(steps, Rewinding):
            raise CapabilityError(
                f"a network that drafts takes tokens back: the steps of a {type(steps).__name__} cannot"
            )
        self._steps, self._choose, self._device, self._vocab_size = steps, choose, ids.device, draft.vocab_size
        self._last_id = (1 << 62) - 1  # of the small network, known after its first step
        lengths = [ids.shape[1]] * len(ids) if token_mask is None else token_mask.sum(dim=1).tolist()
        prefix = 0 if prefix_ids is None else prefix_ids.shape[1]
        self._rooms = [self._room(lengths[row], prefix, draft.longest) for row in rows]
        self._outputs = [output for output, room in enumerate(self._rooms) if room > 0]  # those in the state
        read_rows = sorted({rows[output] for output in self._outputs})  # rows of `ids` with room
        if not read_rows:
            return
        index = torch.tensor(read_rows, dtype=torch.long, device=self._device)
        ids, token_mask = ids[index], None if token_mask is None else token_mask[index]
        prefix_ids = None if prefix_ids is None else prefix_ids[index]
        if token_mask is not None:  # columns that only rows without room need would take positions too
            columns = token_mask.any(dim=0)
            ids, token_mask = ids[:, columns], token_mask[:, columns]
        order = torch.tensor([read_rows.index(rows[output]) for output in self._outputs], device=self._device)
        self._state: State | None = steps.rewindable(steps.begin(ids, token_mask)).select(order)
        first = first_tokens(steps, ids, token_mask, prefix_ids)[order]
        first_ids = (first if first.dim() == 2 else first.unsqueeze(1)).tolist()
        self._unread_first = dict(zip(self._outputs, first_ids))  # of the outputs of which nothing was read
        self._read: dict[int, list[int]] = {output: [] for output in self._outputs}  # behind the first tokens

    def _room(self, length: int, prefix: int, longest: int | None) -> int:
        """How many tokens of an output may be read after an input of that length."""
        if longest is None:
            return 1 << 62  # no limit
        if isinstance(self._steps, PromptReader):  # the last token of the prompt takes the position of `first`
            return longest - max(length, 1) - prefix
        return longest - 1 - prefix if length <= longest else 0

    def propose(self, outputs: Sequence[int], written: Sequence[list[int]], most: Sequence[int]) -> list[Proposal]:
        """As `PromptLookup.propose`. Outputs that are not among `outputs` have ended."""
        proposals = [Proposal([]) for _ in outputs]
        held = set(self._outputs)
        # it reads the output, and all but the last of the tokens that it proposes
        rooms = [self._rooms[output] - len(ids) + 1 for output, ids in zip(outputs, written)]
        positions = [n for n, (output, room) in enumerate(zip(outputs, rooms)) if output in held and room > 0]
        if len(positions) < len(self._outputs):  # drop those that have ended, or for which there is no room
            index = torch.tensor([self._outputs.index(outputs[n]) for n in positions], device=self._device)
            self._state = self._state.select(index) if positions and self._state is not None else None
            self._outputs = [outputs[n] for n in positions]
        if positions and any(most[n] for n in positions):
            counts = [min(most[n], rooms[n]) for n in positions]
            for n, proposal in zip(positions, self._proposed([written[n] for n in positions], counts)):
                proposals[n] = proposal
        return proposals

    def _proposed(self, written: Sequence[list[int]], most: Sequence[int]) -> list[Proposal]:
        """The proposals for the outputs in the state."""
        ids: list[list[int]] = [[] for _ in written]
        probabilities: list[list[Tensor]] = [[] for _ in written]
        # take back what was not accepted; the tokens of each output that have still to be read, one at least
        unread, too_many = list[list[int]](), list[int]()
        for output, new in zip(self._outputs, written):
            read = self._read[output]
            same = next((n for n, (mine, its) in enumerate(zip(read, new)) if mine != its), min(len(read), len(new)))
            if same == len(new) and new:  # the last token is read again, for its logits
                same -= 1
            too_many.append(len(read) - same)
            unread.append([*self._unread_first.pop(output, []), *new[same:]])
            self._read[output] = list(new)
        if any(too_many) and self._state is not None:
            self._state = self._steps.crop(self._state, too_many)
        for step in range(max(most)):
            logits = self._step(unread)
            rows = [row for row, count in enumerate(most) if count > step]  # those that propose this many
            index = torch.tensor(rows, dtype=torch.long, device=self._device)
            numbers = [self._outputs[row] for row in rows]
            tokens, drawn_from = self._choose(logits[index], numbers, [len(written[row]) + step for row in rows])
            unread = [[] for _ in written]  # rows that have enough read nothing
            for number, (row, token) in enumerate(zip(rows, tokens.tolist())):
                ids[row].append(token)
                if drawn_from is not None:
                    probabilities[row].append(drawn_from[number])
                if most[row] > step + 1:  # the last one is not read
                    unread[row] = [token]
                    self._read[self._outputs[row]].append(token)
        return [Proposal(row, torch.stack(drawn) if drawn else None) for row, drawn in zip(ids, probabilities)]

    def _step(self, unread: Sequence[Sequence[int]]) -> Tensor:
        """Read the tokens of each output, none of some; the logits (R,V) after the last of each."""
        counts = [len(ids) for ids in unread]
        padded = [[*ids, *[0] * (max(counts) - len(ids))] for ids in unread]
        tokens = torch.tensor(padded, dtype=torch.long, device=self._device).clamp_(max=self._last_id)
        assert self._state is not None  # while there are outputs
        logits, self._state = self._steps.step_all(tokens, counts, self._state)
        self._last_id = logits.shape[-1] - 1
        last = torch.tensor(counts, device=self._device).sub_(1).clamp_(min=0)
        logits = logits[torch.arange(len(counts), device=self._device), last]  # (R,V)
        added = 0 if self._vocab_size is None else self._vocab_size - logits.shape[-1]
        return logits if not added else F.pad(logits, (0, added), value=float("-inf"))  # below 0: cut
