"""Beam and greedy search under rules, ends, groups and required words: slow references, exhaustive search, by hand."""

import math
from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.decoding.beam.beam_search import beam
from atento.decoding.beam.candidates import highest
from atento.decoding.beam.groups import FILLED, HOPELESS, Group
from atento.decoding.beam.required import Automaton
from atento.decoding.choosing import best_token
from atento.decoding.contract import Request
from atento.decoding.contract import Written as RowsWritten
from atento.decoding.token_loop import token_search as greedy
from failing import fails
from test_decoding_chains import EOS, LONGEST, START, Chain, Written, assert_same, entry, ids

A, C = 2, 3


def dearer(scores: Tensor, written: RowsWritten) -> Tensor:
    """A rule: each earlier use of a token costs 0.7; "2" never follows "3"."""
    out = scores.clone()
    for row, tokens in enumerate(written.ids.tolist()):
        for token in tokens:
            out[row, token] -= 0.7
        if tokens and tokens[-1] == 3:
            out[row, 2] = -math.inf
    return out


def dearer_by_hand(scores: list[float], tokens: list[int]) -> list[float]:
    times = Counter(tokens)
    out = [score - 0.7 * times[token] for token, score in enumerate(scores)]
    if tokens and tokens[-1] == 3 and len(out) > 2:
        out[2] = -math.inf
    return out


class Side:
    """One group of one sentence in the slow search."""

    def __init__(self) -> None:
        self.live: list[tuple[float, list[int], list[float]]] = [(0.0, [], [])]
        self.done: list[tuple[float, list[int], list[float]]] = []  # rank, ids, scores
        self.over = False


def slow(
    chain: Chain,
    sentence: int,
    strategy: Beam,
    most: int,
    ruled: bool = False,
    least: int = 0,
    eos: tuple[int, ...] = (EOS,),
    prefix: tuple[int, ...] = (),
) -> list[Hypothesis]:
    """Beam search with lists and sorting alone, by the rules that `Beam` states."""
    width, penalty = strategy.width // strategy.groups, strategy.length_penalty
    sides = [Side() for _ in range(strategy.groups)]
    for length in range(1, most + 1):
        taken: Counter[int] = Counter()
        for side in sides:
            if side.over:
                continue
            candidates = []
            for total, tokens, scores in side.live:
                own = chain.log_probs(sentence, [START, *prefix, *tokens])
                for token, score in enumerate(dearer_by_hand(own, tokens) if ruled else own):
                    if length <= least and token in eos:
                        continue
                    told_off = total + score - strategy.diversity * taken[token]
                    candidates.append((told_off, [*tokens, token], [*scores, own[token]]))
            candidates = sorted((one for one in candidates if one[0] > -math.inf), key=lambda one: -one[0])
            room = width - len(side.done) if strategy.stopping == "shrinking" else width
            for total, tokens, scores in candidates[: max(0, room)]:
                if tokens[-1] in eos:
                    side.done.append((total / length**penalty, tokens[:-1], scores))
            room = width - len(side.done) if strategy.stopping == "shrinking" else width
            side.live = [one for one in candidates if one[1][-1] not in eos][:width]
            taken.update(tokens[-1] for _, tokens, _ in side.live)
            side.live = side.live[: max(0, room)]
            side.done = sorted(side.done, key=lambda one: -one[0])[:width]
        for side in sides:
            side.over = side.over or over(side, strategy, width, length, most)
            if side.over and length < most:
                side.live = []
        if all(side.over for side in sides):
            break
    return ranked(sides, strategy)


def over(side: Side, strategy: Beam, width: int, length: int, most: int) -> bool:
    if not side.live or length == most:
        return True
    if len(side.done) < width:
        return False
    penalty, best = strategy.length_penalty, side.live[0][0]
    reach = {"likely": [length], "sure": range(length + 1, most + 1)}.get(strategy.until)
    return reach is None or max(best / n**penalty for n in reach) <= side.done[-1][0]


def ranked(sides: list[Side], strategy: Beam) -> list[Hypothesis]:
    done = sorted((one for side in sides for one in side.done), key=lambda one: -one[0])
    cut = sorted((one for side in sides for one in side.live), key=lambda one: -one[0])
    found: dict[tuple[Any, ...], Hypothesis] = {}
    for finished, several in ((True, done), (False, cut)):
        for number, (_, tokens, scores) in enumerate(several):
            key = (finished, *tokens, *([] if strategy.groups > 1 else [number]))  # groups may write the same
            found.setdefault(key, entry(tokens, scores, finished, strategy.length_penalty))
    return list(found.values())[: strategy.n_best]


LIMITS = st.lists(st.integers(0, 7), min_size=3, max_size=3)  # of three rows


@settings(max_examples=110)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(2, 6),
    width=st.integers(1, 6),
    data=st.data(),
    stopping=st.sampled_from(["fixed", "shrinking"]),
    until=st.sampled_from(["filled", "likely", "sure"]),
    penalty=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    most=LIMITS,
    ruled=st.booleans(),
)
def test_h6_h7_h8_beam_equals_the_slow_search_under_rules_and_every_end(
    seed: int, vocab_size: int, width: int, data: Any, stopping: Any, until: Any, penalty: float, most: Any, ruled: bool
) -> None:
    """All stopping rules, every limit, several end tokens or none, a prefix; rows with limits of their own."""
    least, eos = data.draw(st.integers(0, 4)), data.draw(st.sampled_from([(EOS,), (), (EOS, 0)]))
    if set(eos) == set(range(vocab_size)):
        least = 0  # nothing but ends: a minimum could not be reached
    prefix = data.draw(st.sampled_from([(), (0,), (1, 1)]))
    chain = Chain.random(seed, 3, vocab_size)
    strategy = Beam(width, penalty, data.draw(st.integers(1, width)), stopping, until)
    options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": least, "eos_id": eos}
    options["prefix_ids"] = torch.tensor([prefix] * 3, dtype=torch.long) if prefix else None
    found = generate(chain, ids(0, 1, 2), strategy, rules=[dearer] if ruled else [], **options)
    for row in range(3):
        expected = slow(chain, row, strategy, most[row], ruled, least, eos, prefix)
        assert_same(found[row], expected if most[row] else [entry([], [], False, penalty)])


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(2, 3),
    inside=st.integers(1, 3),
    diversity=st.sampled_from([0.0, 0.4, 3.0]),
    until=st.sampled_from(["filled", "sure"]),
    most=st.lists(st.integers(1, 6), min_size=2, max_size=2),
)
def test_h6_groups_equal_the_slow_search(
    seed: int, groups: int, inside: int, diversity: float, until: Any, most: list[int]
) -> None:
    width, chain = groups * inside, Chain.random(seed, 2, 5)
    strategy = Beam(width, 0.6, width, until=until, groups=groups, diversity=diversity)
    found = generate(chain, ids(0, 1), strategy, max_new_tokens=most)
    for row in range(2):
        assert_same(found[row], slow(chain, row, strategy, most[row]))


@settings(max_examples=110)
@given(
    seed=st.integers(0, 10_000),
    most=LIMITS,
    least=st.integers(0, 4),
    eos=st.sampled_from([(EOS,), (), (EOS, 3)]),
    ruled=st.booleans(),
)
def test_h1_greedy_takes_the_best_token_under_rules_and_equals_a_beam_of_one(
    seed: int, most: list[int], least: int, eos: tuple[int, ...], ruled: bool
) -> None:
    """The rule takes off, so logits and log-probabilities are changed alike; scores are unfiltered."""
    chain = Chain.random(seed, 3, 5)
    options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": least, "eos_id": eos}
    options["rules"] = [dearer] if ruled else []
    found = generate(chain, ids(0, 1, 2), Greedy(), **options)
    assert found == generate(chain, ids(0, 1, 2), Beam(1, 0.0), **options)
    for row, [one] in enumerate(found):
        tokens: list[int] = []
        scores: list[float] = []
        while len(scores) < most[row]:
            own = chain.log_probs(row, [START, *tokens])
            changed = dearer_by_hand(own, tokens) if ruled else list(own)
            for end in eos if len(scores) < least else ():
                changed[end] = -math.inf
            token = max(range(5), key=lambda token: changed[token])
            scores.append(own[token])
            if token in eos:
                break
            tokens.append(token)
        assert one.ids == tokens and one.finished == (len(scores) > len(tokens))
        assert one.token_scores == pytest.approx(scores, abs=1e-12)
        assert one.score == one.log_prob == pytest.approx(sum(scores), abs=1e-12)


def test_h1_h6_where_rules_leave_nothing_the_output_stops_unfinished() -> None:
    chain = Chain.random(3, 2, 4)

    def nothing(scores: Tensor, written: RowsWritten) -> Tensor:
        shut = torch.tensor([row == 0 and written.ids.shape[1] == 2 for row in written.rows])
        return scores.masked_fill(shut.unsqueeze(1), -math.inf)

    for strategy in (Greedy(), Beam(3, n_best=3)):
        found = generate(chain, ids(0, 1), strategy, max_new_tokens=5, rules=[nothing], min_new_tokens=4)
        assert_same(found[0], generate(chain, ids(0), strategy, max_new_tokens=2, min_new_tokens=2)[0])
        assert all(len(h.ids) >= 4 for h in found[1])


def holds(output: list[int], wanted: list[list[int]]) -> bool:
    return all(any(output[n : n + len(one)] == one for n in range(len(output) - len(one) + 1)) for one in wanted)


sequences = st.lists(st.lists(st.sampled_from([0, 2, 3]), min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=30)
@given(wanted=sequences, data=st.data())
def test_h6_the_automaton_knows_what_is_there_and_what_is_missing(wanted: list[list[int]], data: st.DataObject) -> None:
    """Whole exactly where every sequence stands in the output; what is missing by trying all continuations."""
    automaton = Automaton.of(wanted)
    output = data.draw(st.lists(st.sampled_from([0, 2, 3, 4]), max_size=6))
    missing = automaton.missing[automaton.read(output)]
    assert (missing == 0) == holds(output, wanted)
    for length in range(min(missing, 5)):
        assert not any(holds([*output, *more], wanted) for more in product([0, 2, 3], repeat=length))
    if missing <= 5:
        assert any(holds([*output, *more], wanted) for more in product([0, 2, 3], repeat=missing))


def test_h6_required_sequences_may_overlap() -> None:
    assert Automaton.of([[2, 3], [3, 4]]).missing[0] == 3
    assert Automaton.of([[2, 2, 3]]).read([2, 2, 2, 3]) == Automaton.of([[2, 2, 3]]).read([2, 2, 3])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    wanted=st.lists(st.lists(st.sampled_from([0, 2, 3]), min_size=1, max_size=2), max_size=2),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_h6_required_words_full_width_finds_the_best_output(seed: int, wanted: list[list[int]], penalty: float) -> None:
    """Against all outputs there are, in a batch with a row that requires nothing."""
    most, vocab_size = 5, 4
    chain = Chain.random(seed, 2, vocab_size)
    wide = Beam(vocab_size**most, penalty, 3, until="sure")
    found = generate(chain, ids(0, 1), wide, max_new_tokens=most, required=[wanted, []])
    for sentence, needs in ((0, wanted), (1, [])):
        outputs = []
        for length in range(most):
            for tokens in product((0, 2, 3), repeat=length):
                if holds(list(tokens), needs):
                    forced = [*tokens, EOS]
                    scores = [chain.log_probs(sentence, [START, *forced[:n]])[t] for n, t in enumerate(forced)]
                    outputs.append(entry(list(tokens), scores, True, penalty))
        outputs.sort(key=lambda one: -one.score)
        assert_same([one for one in found[sentence] if one.finished], outputs[:3])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    wanted=st.lists(
        st.lists(st.lists(st.sampled_from([0, 2, 3, 4]), min_size=1, max_size=3), max_size=3), min_size=3, max_size=3
    ),
    width=st.integers(1, 6),
    spare=st.integers(0, 3),
    stopping=st.sampled_from(["fixed", "shrinking"]),
)
def test_h6_every_output_holds_its_required_words_whenever_the_limit_allows(
    seed: int, wanted: list[list[list[int]]], width: int, spare: int, stopping: Any
) -> None:
    """However narrow the beam and however tight the limit; alone as in company; scores stay the model's own."""
    chain = Chain.random(seed, 3, 6)
    most = [max(1, Automaton.of(needs).missing[0] + spare) for needs in wanted]
    assume(max(most) < LONGEST)
    strategy = Beam(width, 1.0, width, stopping)
    found = generate(chain, ids(0, 1, 2), strategy, max_new_tokens=most, required=wanted)
    for row, needs in enumerate(wanted):
        assert found[row]
        assert_same(found[row], generate(chain, ids(row), strategy, max_new_tokens=most[row], required=[needs])[0])
        for one in found[row]:
            assert holds(one.ids, needs)
            forced = [*one.ids, EOS] if one.finished else one.ids
            scores = [chain.log_probs(row, [START, *forced[:n]])[t] for n, t in enumerate(forced)]
            assert one.token_scores == pytest.approx(scores, abs=1e-9)


def test_h6_required_words_share_the_beam_out_and_what_cannot_be_required() -> None:
    """k = 2. "4" is rare at the start (.02), rarer behind "2" or "3" (.01), and one of the three has to come first.

    By sums alone "2" (.5) and "3" (.48) would be kept and only "2 4" (.005) be found; as "4" lacks nothing any more, it
    has a place of its own, and ends with .02.
    """
    rules = {(): {A: 0.5, C: 0.48, 4: 0.02}, (A,): {A: 0.99, 4: 0.01}, (C,): {C: 0.99, 4: 0.01}}
    [[found]] = generate(Written(5, rules), ids(0), Beam(2, 0.0, until="sure"), max_new_tokens=3, required=[[[4]]])
    assert found.ids == [4] and math.exp(found.log_prob) == pytest.approx(0.02)
    for required, options, message in (
        ([[[2, 3, 2, 3]]], {}, "`required` must fit into `max_new_tokens`: row 0 needs 4 tokens and has 3"),
        ([[[]]], {}, "a required sequence must hold a token at least: got an empty one for row 0"),
        ([[[2, EOS]]], {}, r"none of them an end: row 0 has \[2, 1\]"),
        ([[[n] for n in range(2, 13)]], {}, "at most 10 sequences a row: row 0 has 11"),
        ([[[2]]], {"strategy": Beam(4, groups=2)}, "required words and `groups` exclude each other"),
        ([[[2]]], {"strategy": Greedy()}, "`required` needs a beam search: got Greedy"),
        ([[[2]]], {"stop": lambda ids: False}, "required words and a stop string exclude each other"),
    ):
        options = {"strategy": Beam(2), "max_new_tokens": 3, "required": required} | options
        fails(ValueError, message, generate, Chain.random(0, 1, 4), ids(0), **options)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), most=st.integers(1, 6))
def test_h1_h6_an_output_may_end_by_what_it_says(seed: int, width: int, most: int) -> None:
    """Told to stop after "2 3" or a second "0", a beam of full width still finds the best of all outputs."""

    def stop(written: list[int]) -> bool:
        return written[-2:] == [2, 3] or written.count(0) == 2

    chain = Chain.random(seed, 2, 4)
    first, state = torch.full((2,), START), chain.begin(ids(0, 1), None)
    request = Request([most, most], 0, (EOS,), stop=stop)
    [one], [two] = greedy(chain, state, first, Greedy(), request)
    [a, *_], [b, *_] = beam(chain, lambda: state, first, Beam(1, 0.0), request)
    assert (one, two) == (a, b)
    [narrow, _] = beam(chain, lambda: state, first, Beam(width, 0.0, width), request)
    for h in (one, two, *narrow):
        assert not any(stop(h.ids[:n]) for n in range(1, len(h.ids)))  # nothing is written past a stop
        stopped = bool(h.ids) and stop(h.ids)
        assert h.finished or (len(h.ids) == most and not stopped)
        assert len(h.token_scores) == len(h.ids) + (h.finished and not stopped)
    if most < 5:
        [whole, _] = beam(chain, lambda: state, first, Beam(4**most, 0.0), request)
        best = -math.inf
        for length in range(most + 1):
            for tokens in product((0, 2, 3), repeat=length):
                if any(stop(list(tokens[:n])) for n in range(1, length)):
                    continue
                ended = length > 0 and stop(list(tokens))
                forced = list(tokens) if ended else [*tokens, EOS]
                if len(forced) <= most:
                    best = max(best, sum(chain.log_probs(0, [START, *forced[:n]])[t] for n, t in enumerate(forced)))
        assert whole[0].log_prob == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("vocab_size", [7, 4096, 12_800, 50_257])
@pytest.mark.parametrize("width", [1, 3])
def test_h6_the_highest_sums_are_those_of_topk(vocab_size: int, width: int) -> None:
    """Also where they stand together, in the last tokens, behind one beginning, or among minus infinities."""
    g = torch.Generator().manual_seed(vocab_size)
    log_probs = torch.randn(5, width, vocab_size, generator=g)
    log_probs[1, :, -6:] += 50
    log_probs[2, :, 2:] = -math.inf
    log_probs[3, :, :: max(1, vocab_size // 128)] += 20
    scores = torch.randn(5, width, generator=g)
    scores[4, 1:] = -math.inf
    for count in (1, 8, 40):
        found = highest(log_probs, scores, count)
        wanted = (scores.unsqueeze(2) + log_probs).flatten(1).topk(min(count, width * vocab_size), dim=1)
        assert torch.equal(found.scores, wanted.values)
        places = found.parents * vocab_size + found.tokens
        assert torch.equal(scores.gather(1, found.parents) + log_probs.flatten(1).gather(1, places), found.scores)
        pairs = [set(zip(*row)) for row in zip(found.parents.tolist(), found.tokens.tolist())]
        assert all(len(row) == found.scores.shape[1] for row in pairs)


@pytest.mark.parametrize("vocab_size", [7, 4096, 12_800, 50_257])
def test_h1_the_best_token_is_the_first_of_the_highest(vocab_size: int) -> None:
    """Whole numbers, so that many are equal; the highest also among the last tokens, or nowhere."""
    g = torch.Generator().manual_seed(vocab_size)
    scores = torch.randint(0, 3, (6, vocab_size), generator=g).float()
    scores[1, -3:] = 9.0
    scores[2] = -math.inf
    scores[3, -1], scores[3, :-1] = 0.0, -math.inf
    scores[4, 1:5] = 9.0
    assert torch.equal(best_token(scores), scores.argmax(dim=1))


@settings(max_examples=30)
@given(data=st.data(), width=st.integers(1, 3), vocab_size=st.sampled_from([3, 5000]), spread=st.integers(0, 3))
def test_h6_of_equal_sums_the_first_is_first(data: st.DataObject, width: int, vocab_size: int, spread: int) -> None:
    """Whole numbers, so that most are equal: the order of a stable sort, for as many places as there are."""
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    log_probs = -torch.randint(0, spread + 1, (2, width, vocab_size), generator=g).float()
    scores = -torch.randint(0, 2, (2, width), generator=g).float()
    found = highest(log_probs, scores, 2 * width)
    wanted = (scores.unsqueeze(2) + log_probs).flatten(1).sort(dim=1, descending=True, stable=True).indices
    assert torch.equal((found.parents * vocab_size + found.tokens)[:, :width], wanted[:, :width])


@pytest.mark.parametrize(
    ("penalty", "until", "last", "reason"),
    [
        (1.0, "likely", -1.9, HOPELESS),  # -6 / 3 = -2
        (1.0, "sure", -1.9, ""),  # -6 / 10: the longest ranks best
        (1.0, "sure", -0.5, HOPELESS),
        (-1.0, "sure", -30.0, ""),  # -6 · 4: the next length ranks best
        (-1.0, "sure", -20.0, HOPELESS),
        (1.0, "filled", -9.0, FILLED),
    ],
)
def test_h2_a_search_ends_when_no_live_hypothesis_can_rank_above_its_outputs(
    penalty: float, until: Any, last: float, reason: str
) -> None:
    asked: Any = SimpleNamespace(
        strategy=Beam(1, length_penalty=penalty, until=until), width=1, request=SimpleNamespace(max_new_tokens=[10])
    )
    group = Group(asked, 0, length=3, finished=[SimpleNamespace(rank=last)])  # type: ignore[list-item]
    assert group.reason_to_stop(-6.0) == reason and group.is_waiting == (until != "filled")
