"""Traces: the same search with one as without, every candidate with its fate, the notes' beam step by step."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding import trace as traces
from atento_lab.notes.checks.search import FRENCH
from atento_lab.notes.checks.toys import table_chain
from failing import fails
from test_decoding_chains import EOS, Chain, Written, ids

A, C = 2, 3
SEARCHES = [Greedy(), Beam(1), Beam(3, 0.6, 3), Beam(4, 1.0, 4, "shrinking"), Sample(n=2, top_k=3)]
SEARCHES += [Beam(4, 1.0, 2, until="sure", groups=2, diversity=0.5)]


def fates(step: traces.Step) -> dict[tuple[int, ...], str]:
    """Each candidate's beginning and token, and what became of it."""
    return {(*step.live[one.parent], one.token): one.fate for one in step.candidates}


def test_l4_the_notes_beam_step_by_step() -> None:
    """Je -1.2 / Tu -1.5 -> Je suis -2.0 / Je vais -2.3; "Tu es" (-2.42) is weighed and falls outside the best two."""
    chain, trace = table_chain(FRENCH), traces.Trace(top=4)
    generate(chain, torch.tensor([[0]]), Beam(2, 0.0), max_new_tokens=2, trace=trace)
    [run] = trace.runs
    first, second = run.of(0)

    def said(step: traces.Step, *wanted: str) -> dict[str, float]:
        return {
            chain.text([*step.live[one.parent], one.token]): round(one.total, 2)
            for one in step.candidates
            if one.fate in wanted
        }

    assert first.live == [[]] and [chain.text(one) for one in second.live] == ["Je", "Tu"]
    assert said(first, traces.KEPT) == {"Je": -1.2, "Tu": -1.5}
    assert second.totals == pytest.approx([-1.2, -1.5], abs=1e-3)
    assert said(second, traces.CUT) == {"Je suis": -2.0, "Je vais": -2.3}
    outside = said(second, traces.OUTSIDE)
    assert outside["Tu es"] == -2.42 and outside["Je </s>"] == -2.72 and outside["Tu vas"] == -2.47
    assert run.stopped == {0: "the length limit"} and [chain.text(one.ids) for one in run.hypotheses[0]] == ["Je suis"]


def test_m7_places_go_to_what_ended_and_to_words_that_have_to_come() -> None:
    """k = 2: "</s>" (.4) ends and takes a place, "2" (.35) keeps the other, "3" (.25) would have had it."""
    rules = {(): {EOS: 0.4, A: 0.35, C: 0.25}, (A,): {EOS: 0.1, A: 0.45, C: 0.45}}
    for stopping, last in (("shrinking", traces.PLACE), ("fixed", traces.KEPT)):
        trace = traces.Trace()
        generate(Written(4, rules), ids(0), Beam(2, stopping=stopping), max_new_tokens=5, trace=trace)  # type: ignore
        assert fates(trace.runs[0].steps[0]) == {(EOS,): traces.FINISHED, (A,): traces.KEPT, (C,): last}
    # k = 1: "2" (.6), then the end (.7) and the search is over, before "2 3" (.3) may go on
    toy, trace = Written(4, {(): {A: 0.6, C: 0.4}, (A,): {EOS: 0.7, C: 0.3}}), traces.Trace()
    generate(toy, ids(0), Beam(1), max_new_tokens=5, trace=trace)
    assert fates(trace.runs[0].steps[1]) == {(A, EOS): traces.FINISHED, (A, C): traces.OVER}
    assert trace.runs[0].stopped == {0: "as many outputs as the beam is wide have ended"}
    # k = 2: "3" (.48) falls to the required "4" (.02), which has a place of its own
    toy, trace = Written(5, {(): {A: 0.5, C: 0.48, 4: 0.02}}), traces.Trace(top=3)
    generate(toy, ids(0), Beam(2, 0.0), max_new_tokens=4, required=[[[4]]], trace=trace)
    assert fates(trace.runs[0].steps[0]) == {(A,): traces.KEPT, (C,): traces.STAGE, (4,): traces.KEPT}


class NoTwo:
    name = "no 2"

    def __call__(self, scores: torch.Tensor, written: Any) -> torch.Tensor:
        out = scores.clone()
        out[:, A] = -math.inf
        return out


@pytest.mark.parametrize("strategy", [Greedy(), Beam(1), Sample(top_k=1)])
def test_m7_distributions_before_and_after_each_filter(strategy: Any) -> None:
    """The rule takes "2" (.6) out; .1 and .3 are scaled to .25 and .75."""
    trace = traces.Trace(top=3)
    toy = Written(4, {(): {A: 0.6, C: 0.3, EOS: 0.1}})
    found = generate(toy, ids(0), strategy, max_new_tokens=3, rules=[NoTwo()], trace=trace, seed=0)
    step = trace.runs[0].of(0)[0]
    before, after = step.distributions[:2]
    assert (before.filter, before.tokens, before.left) == (traces.MODEL, [A, C, EOS], 3)
    assert before.probabilities == pytest.approx([0.6, 0.3, 0.1])
    assert (after.filter, after.tokens, after.left) == ("no 2", [C, EOS], 2)
    assert after.probabilities == pytest.approx([0.75, 0.25])
    by_token = {one.token: one for one in step.candidates}
    assert by_token[A].fate == traces.TAKEN_OUT + "no 2" and by_token[A].log_prob == pytest.approx(math.log(0.6))
    assert by_token[A].score == -math.inf and by_token[C].fate == traces.KEPT
    otherwise = {Greedy: traces.NOT_BEST, Beam: traces.OUTSIDE, Sample: traces.TAKEN_OUT + "top_k"}[type(strategy)]
    assert by_token[EOS].fate.replace("-", "_").startswith(otherwise.replace("-", "_"))
    assert found[0][0].ids == [C] and trace.runs[0].hypotheses == found


def test_m7_what_is_not_drawn_and_what_several_samples_share() -> None:
    trace = traces.Trace()
    toy = Written(4, {(): {A: 0.5, C: 0.5}})
    found = generate(toy, ids(0), Sample(n=8), max_new_tokens=3, trace=trace, seed=1)
    step = trace.runs[0].of(0)[0]
    assert len(step.live) == 8
    for parent, one in enumerate(found[0]):
        mine = {c.token: c.fate for c in step.candidates if c.parent == parent}
        assert mine[one.ids[0]] == traces.KEPT and set(mine.values()) == {traces.KEPT, traces.NOT_DRAWN}


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    strategy=st.sampled_from(SEARCHES),
    most=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    least=st.integers(0, 2),
)
def test_m7_a_trace_changes_nothing_and_agrees_with_all(seed: int, strategy: Any, most: list[int], least: int) -> None:
    """Live beginnings are those that were kept; every output is a way of kept candidates with its own scores."""
    chain, trace = Chain.random(seed, 3, 5), traces.Trace(top=2)
    options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": least, "seed": 0}
    found = generate(chain, ids(0, 1, 2), strategy, trace=trace, **options)
    assert found == generate(chain, ids(0, 1, 2), strategy, **options)
    [run] = trace.runs
    for row in range(3):
        steps = run.of(row)
        assert [step.length for step in steps] == list(range(len(steps)))
        for step, after in pairwise(steps):
            kept = {(*step.live[c.parent], c.token) for c in step.candidates if c.fate == traces.KEPT}
            live = {tuple(one) for one in after.live}
            assert live <= kept if getattr(strategy, "groups", 1) > 1 else live == kept  # a group may be over
        for one in found[row]:
            whole = [*one.ids, EOS] if one.finished else one.ids
            for length, (token, score) in enumerate(zip(whole, one.token_scores)):
                candidate = of(steps[length], whole[:length], token)
                assert candidate.alive and candidate.log_prob == pytest.approx(score, abs=1e-9)
                if length == len(whole) - 1 and not getattr(strategy, "diversity", 0):
                    assert candidate.total == pytest.approx(one.log_prob, abs=1e-9)
    json.dumps(trace.to_dict(), allow_nan=False)


def of(step: traces.Step, live: list[int], token: int) -> traces.Candidate:
    """The living one, where two samples share a beginning."""
    every = [c for c in step.candidates if step.live[c.parent] == live and c.token == token]
    return max(every, key=lambda c: c.alive)


def test_m7_a_trace_names_tokens_keeps_notes_and_is_heard_step_by_step() -> None:
    words = {A: "dois", C: "três", EOS: "</s>"}
    trace = traces.Trace(name=lambda token: words.get(token, "?"), top=2)
    generate(Written(4, {(): {A: 0.6, C: 0.4}}), ids(0), Greedy(), max_new_tokens=3, trace=trace)
    trace.note("risk", torch.tensor([[0.5, math.inf]]))
    trace.note("risk", {"row": 1})
    told = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    assert told["names"] == {"1": "</s>", "2": "dois", "3": "três"}
    assert told["notes"] == {"risk": [[[0.5, None]], {"row": 1}]}
    [run] = told["runs"]
    assert run["strategy"] == "greedy" and run["found"][0][0]["ids"] == [A]
    numbers = dict.fromkeys(("log_prob", "score", "total"), pytest.approx(math.log(0.6)))
    assert run["steps"][0]["candidates"][0] == {"parent": 0, "token": A, "fate": traces.KEPT} | numbers
    heard: list[tuple[str, int, int, int]] = []
    trace = traces.Trace(listen=lambda name, step: heard.append((name, step.row, step.length, len(step.candidates))))
    generate(Chain.random(0, 2, 4), ids(0, 1), Beam(2), max_new_tokens=4, trace=trace)
    told = [("beam", step.row, step.length, len(step.candidates)) for step in trace.runs[0].steps]
    assert sorted(heard) == sorted(told) and all(count for *_, count in heard)
    fails(ValueError, "`top` must be at least 1: got 0", traces.Trace, top=0)
    assert traces.rule_name(NoTwo()) == "no 2" and traces.rule_name(fates) == "fates"
    assert traces.rule_name(object()) == "object"
