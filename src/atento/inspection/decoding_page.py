"""Searches as one web page: replayed step by step, side by side, standalone and offline."""

from collections.abc import Callable
from html import escape
from typing import Any

from atento.decoding.trace import Trace
from atento.errors import UsageError
from atento.inspection.beam_figure import beam_svg, outputs_svg
from atento.inspection.labels import visible
from atento.inspection.standalone import embedded, part, policy

LIMIT = 4000  # steps of one sentence in all runs together; more make a page that no browser draws gladly


def decoding_page(
    trace: Trace, row: int = 0, *, name: Callable[[int], str] | None = None, title: str = "", dropped: int = 3
) -> str:
    """The runs of a trace for one sentence as a page: trees to be walked step by step, candidates, distributions.

    Style, script and data stand inside, so that it opens offline and asks nothing of the network; its content security
    policy allows this one style and this one script, by hash, and text becomes text nodes only. Without scripts the
    trees and outputs are there all the same.

    Args:
        trace: what one or several searches told (`generate(..., trace=trace)`, as often as strategies are compared).
        row: which sentence.
        name: id -> text; None: the trace's own, or the ids.
        title: stands above.
        dropped: how many dropped continuations of a step are drawn.

    Raises:
        UsageError: a trace without runs, a sentence that it does not have, or more than 4,000 steps.
    """
    if not trace.runs:
        raise UsageError("the trace is empty: give it to `generate(..., trace=trace)` first")
    count = sum(len(run.of(row)) for run in trace.runs)
    if count > LIMIT:
        raise UsageError(f"a page holds at most {LIMIT:,} steps: got {count:,}")
    called = name or trace.name or str
    trees = [
        f'<div class="tree" data-run="{number}">{_inline(beam_svg(run, row, name=called, dropped=dropped))}</div>'
        for number, run in enumerate(trace.runs)
    ]
    style, script = part("page.css") + part("decoding_page.css"), '"use strict";\n' + part("decoding_page.js")
    shown = visible(title) if title else "Decoding"
    return part("decoding_page.html").format(
        policy=policy(style, script),
        title=escape(shown),
        style=style,
        outputs=_inline(outputs_svg(trace.runs, row, name=called)),
        trees="\n".join(trees),
        data=embedded(_data(trace, row, called)),
        script=script,
    )


def _inline(svg: str) -> str:
    """An SVG drawing as an element of the page."""
    return svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)


def _data(trace: Trace, row: int, name: Callable[[int], str]) -> dict[str, Any]:
    """One sentence of every run, tokens by their names."""
    told = trace.to_dict()
    runs = []
    for run in told["runs"]:
        steps = [step for step in run["steps"] if step["row"] == row]
        for step in steps:
            step["live"] = [[visible(name(token)) for token in ids] for ids in step["live"]]
            for one in step["candidates"]:
                one["token"] = visible(name(one["token"]))
            for one in step["distributions"]:
                one["tokens"] = [visible(name(token)) for token in one["tokens"]]
        found = [
            {
                "text": [visible(name(token)) for token in one["ids"]],
                "log_prob": one["log_prob"],
                "score": one["score"],
                "finished": one["finished"],
            }
            for one in (run["found"][row] if run["found"] else [])
        ]
        runs.append(
            {
                "strategy": run["strategy"],
                "stopped": run["stopped"].get(str(row), ""),
                "steps": steps,
                "found": found,
            }
        )
    return {"runs": runs}
