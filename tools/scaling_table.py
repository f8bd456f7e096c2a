"""Writes the table of projections in docs/scaling.md."""

import re
from pathlib import Path

from atento_cli.plans.projection import table

page = Path(__file__).parents[1].joinpath("docs", "scaling.md")
text = page.read_text(encoding="utf-8")
page.write_text(re.sub(r"(?m)^\| network \| `shard` .*\n(\|.*\n)+", lambda _: table(), text), encoding="utf-8")
