"""Inspect models: attention, explanations of predictions, pages and figures, word alignments, and masks as text."""

from atento.inspection.attention_record import AttentionRecord
from atento.inspection.explanation import Explanation
from atento.inspection.figures.attention_map import attention_png, attention_svg
from atento.inspection.figures.mask import mask_text
from atento.inspection.head_statistics import HeadReport
from atento.inspection.maps import WordWeights
from atento.inspection.page import attention_page
from atento.inspection.word_groups import alignment_error_rate

__all__ = [
    "AttentionRecord",
    "Explanation",
    "HeadReport",
    "WordWeights",
    "alignment_error_rate",
    "attention_page",
    "attention_png",
    "attention_svg",
    "mask_text",
]
