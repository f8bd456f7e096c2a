"""Which word of a source each word of its translation comes from, by cross-attention."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from atento.base.errors import CapabilityError, UsageError
from atento.inspection.word_groups import merge_words, strongest_sources
from atento.tasks.attention_records import attention_record
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.text.protected_spans import Link
from atento.text.tokenizer import Tokenizer


def word_links(
    model: TaskModel, source: str, output: str, options: Mapping[str, Any] = MappingProxyType({})
) -> list[Link]:
    """The words of an output with the source word that each attends to most, in the order of the output.

    It is the mean of the heads of the last layer but one, where translators align best (Garg et al. 2019,
    arXiv:1909.02074). A word is not linked with punctuation. Of a network without cross-attention, words are linked by
    their place in their text. The options of the call say the languages of a multilingual model.
    """
    tokenizer = tokenizer_of(model)
    sources, targets = _words(tokenizer, source), _words(tokenizer.target, output)
    if not sources or not targets:
        return []
    try:
        record = attention_record(model, source, output, options)
        if "cross" not in record.kinds:
            raise CapabilityError("the network has no cross-attention")
        rows, columns = (side.groups() for side in record.sides("cross"))
        layers = record.kinds["cross"]
        merged = merge_words(layers[max(0, len(layers) - 2)].mean(axis=0), rows, columns)
        found = strongest_sources(merged, rows, columns)
    except UsageError:  # or a text of too many weights
        places = np.linspace(0, len(sources) - 1, len(targets)).round().astype(int)  # evenly spread
        found = [(list(sources)[place], word, 1.0) for place, word in zip(places, targets)]
    links = [
        Link(*targets[word], *sources[linked], weight)
        for linked, word, weight in found
        if linked in sources and word in targets
    ]
    # letters with letters, signs with signs
    return [link for link in links if _has_letters(output, link.start) == _has_letters(source, link.source_start)]


def _has_letters(text: str, start: int) -> bool:
    """Whether the word that begins there is no punctuation."""
    return text[start].isalnum()


def _words(tokenizer: Tokenizer, text: str) -> dict[int, tuple[int, int]]:
    """The number of each word of a text -> its first letter, and where it ends."""
    encoded, words = tokenizer.encode_with_offsets(text), dict[int, tuple[int, int]]()
    for word, (start, end) in zip(tokenizer.words(encoded.ids).index, encoded.offsets, strict=True):
        if word is not None and end > start:
            words[word] = (words.get(word, (start, end))[0], end)
    return words
