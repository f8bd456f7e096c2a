"""Required words: an automaton of the missing words, and a beam that is divided among its stages.

Dynamic beam allocation (Post & Vilar 2018, arXiv:1804.06609): each number of missing tokens is a stage with slots of
its own, so that a hypothesis that already contains a rare word does not compete with one that does not.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atento.decoding.beam.candidates import Candidates, HighestScores, first_live
from atento.decoding.contract import Request

_MAX_SEQUENCES = 10  # an automaton has up to 2 to that power times as many states as there are tokens


@dataclass(frozen=True)
class Automaton:
    """An automaton over tokens that tracks which of several sequences an output contains.

    A state is the set of sequences that are complete, and the longest prefix of a sequence that the output ends with
    (Aho & Corasick 1975). So sequences may overlap, and the end of an incomplete sequence may be the prefix of another
    one.
    """

    alphabet: list[int]  # the tokens of the sequences
    moves: list[list[int]]  # (states, 1 + alphabet): the next state, after any other token and after each
    missing: list[int]  # (states): the fewest tokens that complete every sequence; state 0 is the start

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Automaton":
        """The automaton of sequences of at least one token; a repeated sequence counts once."""
        distinct = list(dict.fromkeys(tuple(sequence) for sequence in sequences))
        alphabet = sorted({token for sequence in distinct for token in sequence})
        begun = {sequence[:length] for sequence in distinct for length in range(len(sequence) + 1)} | {()}

        def after(state: tuple[tuple[int, ...], int], token: int) -> tuple[tuple[int, ...], int]:
            end, complete = (*state[0], token), state[1]  # what the output ends with, and a bit set
            for n, sequence in enumerate(distinct):
                if end[-len(sequence) :] == sequence:
                    complete |= 1 << n  # a bit for each sequence that has been written
            while end not in begun:
                end = end[1:]  # the longest suffix that begins a sequence
            return end, complete

        start: tuple[tuple[int, ...], int] = ((), 0)
        numbers, moves, queue = {start: 0}, [], deque([start])
        while queue:
            state = queue.popleft()
            reached = [((), state[1]), *(after(state, token) for token in alphabet)]  # other tokens first, then ours
            for next_state in reached:
                if next_state not in numbers:
                    numbers[next_state] = len(numbers)
                    queue.append(next_state)
            moves.append([numbers[next_state] for next_state in reached])
        all_complete = (1 << len(distinct)) - 1  # every bit set
        return cls(alphabet, moves, _distances(moves, {n for state, n in numbers.items() if state[1] == all_complete}))

    def read(self, ids: Sequence[int]) -> int:
        """The state after those tokens."""
        state = 0
        for token in ids:
            state = self.moves[state][1 + self.alphabet.index(token) if token in self.alphabet else 0]
        return state


def _distances(moves: list[list[int]], ends: set[int]) -> list[int]:
    """The fewest moves from each state to one of `ends`."""
    backwards: list[list[int]] = [[] for _ in moves]
    for state, reached in enumerate(moves):
        for next_state in reached:
            backwards[next_state].append(state)  # edges turned round, for a search from the ends
    distance = dict.fromkeys(ends, 0)  # breadth first: the first visit is the shortest
    queue = deque(ends)
    while queue:
        state = queue.popleft()
        for before in backwards[state]:
            if before not in distance:
                distance[before] = distance[state] + 1
                queue.append(before)
    return [distance[state] for state in range(len(moves))]


class RequiredWords(HighestScores):
    """The candidates of N sentences that can still contain all required words.

    An output may only end when no word is missing, and a hypothesis may only be extended by tokens that leave room for
    the missing words (and for EOS, where the limit allows that). So every output contains its words. A width above the
    number of required tokens gives each stage a slot of its own.
    """

    def __init__(
        self,
        required: Sequence[Sequence[Sequence[int]]],
        rows: Sequence[int],
        request: Request,
        count: int,
        width: int,
        device: torch.device,
    ) -> None:
        """Build the automata, padded to one size.

        Args:
            required: the token sequences of each of N sentences.
            rows: the row of the request of each sentence.
            request: limits and EOS ids.
            count: how many candidates to propose.
            width: w, the slots of the beam.

        Raises ValueError: the request has a stop function, or no output could contain the words of a row.
        """
        if request.stop is not None:
            raise ValueError(
                "required words and a stop string exclude each other: an output may end before its words are written"
            )
        super().__init__(count)
        self.eos_ids = torch.tensor(request.eos_ids, dtype=torch.long, device=device)
        automata = [
            _checked_automaton(sequences, row, request.max_new_tokens[row], request.eos_ids)
            for sequences, row in zip(required, rows)
        ]
        n_states = max(len(automaton.moves) for automaton in automata)
        alphabet_size = max(len(automaton.alphabet) for automaton in automata)
        self.stages = 1 + max(max(automaton.missing) for automaton in automata)
        # smaller automata are padded with states that nothing leads to
        moves = [
            [
                *(
                    state_moves + state_moves[:1] * (alphabet_size + 1 - len(state_moves))
                    for state_moves in automaton.moves
                ),
                *[[0] * (alphabet_size + 1)] * (n_states - len(automaton.moves)),
            ]
            for automaton in automata
        ]
        missing = [automaton.missing + [0] * (n_states - len(automaton.missing)) for automaton in automata]
        self.alphabet = torch.tensor(
            [automaton.alphabet + [-1] * (alphabet_size - len(automaton.alphabet)) for automaton in automata],
            device=device,
        ).view(len(automata), alphabet_size)  # (N,A)
        # the alphabet with a valid id in place of padding, so that it can index scores
        self.letters = torch.where(self.alphabet < 0, self.alphabet[:, :1].clamp_min(0), self.alphabet)
        self.moves = torch.tensor(moves, device=device)  # (N,states,1+A)
        self.missing = torch.tensor(missing, device=device)  # (N,states)
        limits = [request.max_new_tokens[row] for row in rows]
        eos_room = [
            int(bool(request.eos_ids) and automaton.missing[0] < limit) for automaton, limit in zip(automata, limits)
        ]
        self.max_new_tokens = torch.tensor(limits, device=device)
        self.eos_room = torch.tensor(eos_room, device=device)  # (N,) 1 if EOS needs a token, else 0
        self.state = torch.zeros(len(automata), width, dtype=torch.long, device=device)  # (N,w)

    def propose(self, log_probs: Tensor, scores: Tensor, length: int) -> Candidates:
        """As of the base: the best tokens of each hypothesis, and every token of a required word."""
        count, width = scores.shape
        vocab_size = log_probs.shape[-1]
        if length == 1 and int(self.letters.max()) >= vocab_size:
            raise ValueError(f"`required` holds id {int(self.letters.max())}: the vocabulary ends at {vocab_size - 1}")
        unrequired = log_probs.view(count, width, vocab_size).clone()  # (N,w,V), a copy that is written to
        letters = self.letters.unsqueeze(1).expand(-1, width, -1)  # (N,w,A)
        absent = (self.alphabet < 0).unsqueeze(1)  # (N,1,A) padding of a smaller alphabet
        reached = self.moves.gather(1, self.state.unsqueeze(2).expand(-1, -1, self.moves.shape[2]))  # (N,w,1+A)
        lacking = self.missing.gather(1, reached.flatten(1)).view_as(reached)  # tokens still missing after each move
        remaining = (self.max_new_tokens - length - self.eos_room).view(-1, 1, 1)  # tokens that may follow
        too_late = (lacking > 0) & (lacking > remaining)  # too late: the missing words would not fit
        required = unrequired.gather(2, letters).masked_fill(absent | too_late[..., 1:], -torch.inf)  # (N,w,A)
        # tokens of required words must not be candidates twice; where nothing is required, id 0 keeps its score
        unrequired = unrequired.scatter(
            2, letters, torch.where(absent[..., :1], unrequired.gather(2, letters), -torch.inf)
        )
        ending = unrequired[..., self.eos_ids].masked_fill(  # (N,w,E): an output ends only when no word is missing
            self.missing.gather(1, self.state).unsqueeze(2) > 0, -torch.inf
        )
        unrequired = unrequired.masked_fill(too_late[..., :1], -torch.inf)  # column 0: any other token
        unrequired[..., self.eos_ids] = ending
        token = unrequired.topk(min(self.count, vocab_size), dim=2).indices.sort(dim=2).values  # (N,w,m) by their ids
        best = unrequired.gather(2, token)
        total = torch.cat([best, required], dim=2) + scores.unsqueeze(2)  # (N,w,m+A)
        tokens = torch.cat([token, letters], dim=2)  # (N,w,m+A)
        stages = torch.cat([lacking[..., :1].expand_as(token), lacking[..., 1:]], dim=2)
        parents = torch.arange(width, device=scores.device).view(1, -1, 1).expand_as(tokens)  # (N,w,m+A)
        return self._allocate(Candidates(total.flatten(1), parents.flatten(1), tokens.flatten(1)), stages.flatten(1))

    def _allocate(self, ranked: Candidates, stages: Tensor) -> Candidates:
        """Candidates (N,M) with their stages -> the preferred ones: the best of each stage, then the best."""
        width, order = self.state.shape[1], ranked.scores.argsort(dim=1, descending=True, stable=True)  # best first
        ranked, stages = ranked.select(order), stages.gather(1, order)
        possible = ranked.scores > -torch.inf
        stages = torch.where(possible, stages, self.stages)  # impossible ones get a stage of their own, with no slots
        counts = torch.zeros(len(stages), self.stages + 1, dtype=torch.long, device=stages.device)  # (N,stages+1)
        counts.scatter_add_(1, stages, torch.ones_like(stages))
        present = counts[:, :-1] > 0  # stages that have a candidate
        number = present.long().cumsum(dim=1)  # 1, 2, ... from the most advanced stage on
        stages_present = number[:, -1:].clamp_min(1)  # (N,1)
        share = width // stages_present + (number <= width % stages_present).long()  # (N,stages): slots of each
        share = torch.cat([share * present, torch.zeros_like(stages_present)], dim=1)  # the impossible: no slot
        by_stage = stages.argsort(dim=1, stable=True)  # grouped by stage, the best first
        begin = counts.cumsum(dim=1) - counts  # where each stage begins
        ranks = torch.arange(stages.shape[1], device=stages.device) - begin.gather(1, stages.gather(1, by_stage))
        rank = torch.empty_like(ranks).scatter_(1, by_stage, ranks)  # within the stage
        later = rank >= share.gather(1, stages)  # beyond its stage's share: behind all others
        return ranked.select(first_live(later, self.count))

    def advance(self, chosen: Candidates) -> None:
        """As of the base: the automata move on."""
        letter = (chosen.tokens.unsqueeze(2) == self.alphabet.unsqueeze(1)).long()  # (N,w,A)
        column = (letter * torch.arange(1, letter.shape[2] + 1, device=letter.device)).sum(dim=2)
        state = self.state.gather(1, chosen.parents)
        self.state = self.moves.gather(1, state.unsqueeze(2).expand(-1, -1, self.moves.shape[2]))  # (N,w,1+A)
        self.state = self.state.gather(2, column.unsqueeze(2)).squeeze(2)  # (N,w)

    def select(self, groups: Tensor) -> None:
        """As of the base."""
        for name in ("alphabet", "letters", "moves", "missing", "max_new_tokens", "eos_room", "state"):
            setattr(self, name, getattr(self, name)[groups])


def _checked_automaton(
    sequences: Sequence[Sequence[int]], row: int, max_new_tokens: int, eos_ids: tuple[int, ...]
) -> Automaton:
    """The automaton of one row's sequences. Raises ValueError where no output could contain them."""
    if len(sequences) > _MAX_SEQUENCES:
        raise ValueError(f"`required` takes at most {_MAX_SEQUENCES} sequences a row: row {row} has {len(sequences)}")
    for sequence in sequences:
        if not sequence or set(sequence) & set(eos_ids):
            raise ValueError(
                f"a required sequence is of at least one token, none of them an end: row {row} has {list(sequence)}"
            )
    automaton = Automaton.of(sequences)
    if automaton.missing[0] > max_new_tokens:
        raise ValueError(
            f"`required` must fit into `max_new_tokens`: row {row} needs {automaton.missing[0]} tokens and has "
            f"{max_new_tokens}"
        )
    return automaton
