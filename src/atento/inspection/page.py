"""Attention records as a standalone HTML page, with every layer and head."""

import base64
from collections.abc import Sequence

import numpy as np

from atento.base.errors import UsageError
from atento.inspection.figures.attention_map import kind_name
from atento.inspection.maps import AttentionMaps, Head
from atento.inspection.standalone import scripted
from atento.inspection.token_display import visible
from atento.inspection.word_groups import Matrix

SCRIPTS = ("page_data.js", "page_heat.js", "page_lines.js", "page_overview.js", "page_details.js", "page.js")
EXACT_LIMIT = 4_000_000  # weights; above this they are stored in two bytes each, exact to 0.00001
LIMIT = 48_000_000  # weights; 12 layers of 12 heads over 512 tokens are 37.7 million


def attention_page(
    record: AttentionMaps | Sequence[AttentionMaps],
    layer: int = -1,
    head: Head = "mean",
    kind: str | None = None,
    *,
    words: bool = False,
) -> str:
    """Attention records as an HTML page.

    The page contains its style, script and data, so that it works offline. Its content security policy allows only
    that style and that script, by hash.

    Args:
        record: one or several records; the page has a menu for several.
        layer: layer that the page shows first.
        head: head that the page shows first: a number, "mean" or "max".
        kind: kind that the page shows first; the record's default if not given.
        words: whether the page begins with subwords merged into words.

    Returns:
        The page as text.

    Raises UsageError: there is no record, or there are more than 48 million weights.
    """
    records = list(record) if isinstance(record, Sequence) else [record]
    if not records:
        raise UsageError("a page needs at least one record: got none")
    count = sum(layer.size for one in records for layers in one.kinds.values() for layer in layers)
    if count > LIMIT:
        advice = "attend to a shorter text, or save one map as .svg"
        raise UsageError(f"a page holds at most {LIMIT:,} weights: got {count:,}; {advice}")
    # the map that the page shows first
    record = records[0]
    kind = record.default_kind if kind is None else kind
    record.weights(layer, head, kind)  # fails if there is no such map
    start = {
        "kind": kind,
        "layer": layer % len(record.layers(kind)),
        "head": head if isinstance(head, str) else head % len(record.layers(kind)[layer]),
        "merge": words,
    }
    exact = count <= EXACT_LIMIT  # in four bytes each, or in two
    sentences = [
        {
            "title": visible(one.title) if one.title else "",
            "model": visible(one.model) if one.model else "",
            "start": start,
            "exact": exact,
            "kinds": {
                kind: {
                    "name": kind_name(one, kind),
                    "mask": visible(one.masks[kind]) if one.masks.get(kind) else "",
                    "writes": kind == "cross" and bool(one.output_tokens),
                    "sides": [
                        {
                            name: [[group.label, group.start, group.end, group.special] for group in groups]
                            for name, groups in (("tokens", side.single_groups()), ("words", side.groups()))
                        }
                        for side in one.sides(kind)
                    ],
                    "same": kind != "cross",
                    "layers": [[_encoded(head, exact) for head in heads] for heads in layers],
                }
                for kind, layers in one.kinds.items()
            },
        }
        for one in records
    ]
    data = {"sentences": sentences}
    return scripted("page.html", ["page.css"], SCRIPTS, records[0].title or "Attention", data)


def _encoded(head: Matrix, exact: bool) -> str:
    values = head.astype("<f4") if exact else np.round(np.clip(head, 0, 1) * 65535).astype("<u2")
    return base64.b64encode(values.tobytes()).decode("ascii")
