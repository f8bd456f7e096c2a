"""How texts longer than a network reads at once are read: in windows, cut at their end, or as beginning and end."""

from dataclasses import dataclass

from atento.config.literals import Count, Section
from atento.config.tables.head_kinds import Windows


@dataclass(frozen=True)
class LongTextConfig(Section, path="long_texts."):
    """What a model does with long texts; `config.json` keeps it, so that use follows training."""

    windows: Windows | None = None
    """How the vectors of the windows of a text become that of the text. [null: texts are cut]"""
    stride: Count = 128
    """Tokens that neighbouring windows share, at most half of a window. [at least 1]"""
    head_tail: bool = False
    """Whether a cut text keeps its beginning and its end, a quarter and three quarters of its tokens."""


CUT = LongTextConfig()
"""Long texts are cut at their end."""
