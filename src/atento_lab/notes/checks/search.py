"""Checks of search algorithms by their traces (docs/notes.md#j7, #l4)."""

import math

import torch

from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.exact import exact_search, search_error
from atento.decoding.trace import CUT, FINISHED, KEPT, OUTSIDE, Run, Trace
from atento.inspection.figures.search_tree import beam_svg, outputs_svg
from atento_lab.notes.checks.toys import Chain, table_chain
from atento_lab.notes.finding import Finding, compare

SOURCE = torch.tensor([[0]])


# e^-1.2 = .301, e^-1.5 = .223; e^-0.8 = .449 and e^-1.1 = .333 extend "Je" to -2.0 and -2.3; others sum to 1.
FRENCH = {
    (): {"Je": 0.301194, "Tu": 0.22313, "Il": 0.15, "Elle": 0.14, "On": 0.12, "Nous": 0.065676},
    ("Je",): {"suis": 0.449329, "vais": 0.332871, "</s>": 0.2178},
    ("Tu",): {"es": 0.4, "vas": 0.38, "</s>": 0.22},
}


def candidates_with(chain: Chain, run: Run, step: int, *fates: str) -> dict[str, float]:
    """Return the candidates of a step with one of these fates and the sum of their log-probabilities, best first."""
    search_step = run.of(0)[step]
    totals = {
        chain.text([*search_step.live[candidate.parent], candidate.token]): candidate.total
        for candidate in search_step.candidates
        if candidate.fate in fates
    }
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def beam_step_by_step() -> Finding:
    """L4: from "I am": Je -1.2, Tu -1.5; then Je suis -2.0, Je vais -2.3."""
    chain, trace = table_chain(FRENCH), Trace(top=4)
    generate(chain, SOURCE, Beam(2, length_penalty=0.0), max_new_tokens=2, trace=trace)
    [run] = trace.runs
    dropped = candidates_with(chain, run, 1, OUTSIDE)
    best_dropped = next(iter(dropped))
    return compare(
        {
            "step 1": candidates_with(chain, run, 0, KEPT),
            "step 2": candidates_with(chain, run, 1, CUT),
            "first one dropped": {best_dropped: dropped[best_dropped]},
        },
        {
            "step 1": {"Je": -1.2, "Tu": -1.5},
            "step 2": {"Je suis": -2.0, "Je vais": -2.3},
            "first one dropped": {"Tu es": math.log(0.22313 * 0.4)},
        },
        within=1e-3,
        remark='"Tu" is kept at the first step, and all its continuations are dropped at the second',
        figure=beam_svg(run, name=lambda token: chain.names[token], title='A beam of 2 from "I am"', dropped=2),
        drawing=lines(chain, run),
    )


def lines(chain: Chain, run: Run) -> str:
    """Return the steps of a search as text: the candidates that continued, ended or were dropped, and why."""
    written = []
    for number, step in enumerate(run.of(0), start=1):
        written.append(f"step {number}")
        for candidate in sorted(step.candidates, key=lambda candidate: -candidate.total):
            sign = "+" if candidate.alive else "-"
            text = chain.text([*step.live[candidate.parent], candidate.token])
            if candidate.total > -math.inf:
                written.append(f"  {sign} {candidate.total:6.2f}  {text:<16} {candidate.fate}")
    return "\n".join(written)


# "o" is the best first word (.6), but its continuations are uncertain; "um gato" has .4·.9·.9.
ONE_STEP_AHEAD = {
    (): {"o": 0.6, "um": 0.4},
    ("o",): {"gato": 0.4, "cão": 0.35, "</s>": 0.25},
    ("um",): {"gato": 0.9, "cão": 0.1},
    ("o", "gato"): {"</s>": 0.8, "cão": 0.2},
    ("um", "gato"): {"</s>": 0.9, "cão": 0.1},
}


def paths_drawn() -> Finding:
    """J7: the tree with its scores; a beam of 2 finds the path."""
    chain, trace = table_chain(ONE_STEP_AHEAD), Trace(top=3)

    def name(token: int) -> str:
        return chain.names[token]

    hypotheses = {}
    for strategy in (Greedy(), Beam(2, length_penalty=0.0), Sample(n=3)):
        [hypotheses[type(strategy)]] = generate(chain, SOURCE, strategy, max_new_tokens=4, trace=trace, seed=0)
    [exact] = exact_search(chain, SOURCE, max_new_tokens=4)
    greedy, beam = hypotheses[Greedy][0], hypotheses[Beam][0]
    tree = beam_svg(trace.runs[1], name=name, title="A beam of 2 and its candidates")  # the second run
    outputs_figure = outputs_svg(trace.runs, name=name, title="Greedy, a beam of 2, three samples")
    return compare(
        {
            "greedy": {"text": chain.text(greedy.ids), "probability": math.exp(greedy.log_prob)},
            "beam of 2": {"text": chain.text(beam.ids), "probability": math.exp(beam.log_prob)},
            "certified optimum": exact.optimal and exact.best is not None and exact.best.ids == beam.ids,
            "greedy lost (nats)": search_error(greedy, exact),
            "kept at the first step": sorted(candidates_with(chain, trace.runs[1], 0, KEPT)),
            "ended in the tree": sorted(candidates_with(chain, trace.runs[1], 2, FINISHED)),
            "drawn": all(word in tree and word in outputs_figure for word in ("um", "gato", f"{beam.log_prob:.2f}")),
        },
        {
            "greedy": {"text": "o gato", "probability": 0.6 * 0.4 * 0.8},
            "beam of 2": {"text": "um gato", "probability": 0.4 * 0.9 * 0.9},
            "certified optimum": True,
            "greedy lost (nats)": math.log((0.4 * 0.9 * 0.9) / (0.6 * 0.4 * 0.8)),
            "kept at the first step": ["o", "um"],
            "ended in the tree": ["o gato </s>", "um gato </s>"],
            "drawn": True,
        },
        remark="the best first word is not the first word of the best output; branch and bound certifies the optimum",
        drawing=lines(chain, trace.runs[1]),
        figure=tree,
    )
