"""Decoding as a standalone HTML page: searches side by side, replayed step by step."""

from collections.abc import Callable

from atento.base.errors import UsageError
from atento.decoding.trace import Trace
from atento.inspection.figures.search_tree import beam_svg, outputs_svg
from atento.inspection.standalone import framed, inline, plain, scripted
from atento.inspection.token_display import visible

LIMIT = 4000  # steps of a sentence in all runs together; browsers are slow with more
NOTEBOOK_STEPS = 200  # of a page inside a notebook, which is saved with it: some 20 KB a step


def decoding_page(
    trace: Trace, row: int = 0, *, name: Callable[[int], str] | None = None, title: str = "", dropped: int = 3
) -> str:
    """The searches of a sentence as an HTML page: their trees, step by step, with candidates and distributions.

    The page contains its style, script and data, so that it works offline. Its content security policy allows only
    that style and that script, by hash. Without scripts it shows the trees and the outputs.

    Args:
        trace: from one or several calls of `generate(..., trace=trace)`.
        row: the sentence.
        name: a function from ids to text; that of the trace, or the ids, if not given.
        dropped: how many dropped continuations of a step are drawn.

    Raises UsageError: the trace has no runs or not this sentence, or there are more than 4,000 steps.
    """
    if not trace.runs:
        raise UsageError("the trace is empty: give it to `generate(..., trace=trace)` first")
    count = sum(len(run.of(row)) for run in trace.runs)
    if count > LIMIT:
        raise UsageError(f"a page holds at most {LIMIT:,} steps: got {count:,}")
    token_name = name or trace.name or str
    trees = [
        f'<div class="tree" data-run="{number}">{inline(beam_svg(run, row, name=token_name, dropped=dropped))}</div>'
        for number, run in enumerate(trace.runs)
    ]
    drawn = {"outputs": inline(outputs_svg(trace.runs, row, name=token_name)), "trees": "\n".join(trees)}
    runs = []  # the steps and outputs of the sentence in every run, with tokens as text
    for run in trace.to_dict()["runs"]:
        steps = [step for step in run["steps"] if step["row"] == row]
        for step in steps:
            step["live"] = [[visible(token_name(token)) for token in ids] for ids in step["live"]]
            for candidate in step["candidates"]:
                candidate["token"] = visible(token_name(candidate["token"]))
            for distribution in step["distributions"]:
                distribution["tokens"] = [visible(token_name(token)) for token in distribution["tokens"]]
        outputs = [
            {"text": [visible(token_name(token)) for token in output["ids"]]}
            | {key: output[key] for key in ("log_prob", "score", "finished")}
            for output in (run["found"][row] if run["found"] else [])
        ]
        stopped = run["stopped"].get(str(row), "")  # keys are text, as in JSON
        runs.append({"strategy": run["strategy"], "stopped": stopped, "steps": steps, "found": outputs})
    sheets, data = ("page.css", "decoding_page.css"), {"runs": runs}
    return scripted("decoding_page.html", sheets, ["decoding_page.js"], title or "Decoding", data, **drawn)


def _in_notebook(trace: Trace) -> str:
    """The page of the first sentence in a sandboxed frame; one line of text if it is too long."""
    steps = sum(len(run.of(0)) for run in trace.runs)
    if steps > NOTEBOOK_STEPS:
        return plain(f"{trace!r}: too many steps for a notebook; write its page, decoding_page(trace), to a file")
    return framed(decoding_page(trace)) if steps else plain(repr(trace))


Trace._repr_html_ = _in_notebook
