"""The rows of tokens that explanations are about, with the word (group) of each token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import MemoryStore, Ragged
from atento.data.batches.contexts import cut_text
from atento.data.batches.whole_words import CHARACTERS, characters_of_words, reads_words, row_characters, word_ids
from atento.data.objectives.labels import inputs_of
from atento.inspection.attributions import AttributedInput, Inputs, Scores
from atento.networks.heads import POOLINGS, LinearHead
from atento.networks.interface import Network
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.text.encoded import Encoded
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer
from atento.text.words import word_spans


@dataclass(frozen=True)
class TextTokens:
    """A text as a network reads it."""

    ids: list[int]  # the ids, without special tokens
    index: list[int]  # the word of each id; of one that is of no word, the next
    words: list[str]  # the words
    side: str  # the name of the text

    def part(self, positions: Sequence[int]) -> "TextTokens":
        """The tokens at these positions; the words keep their numbers."""
        return TextTokens([self.ids[n] for n in positions], [self.index[n] for n in positions], self.words, self.side)


def text_tokens(model: TaskModel, text: str, side: str) -> TextTokens:
    """The tokens of a text, with its own words as they are spelled in it; whole words where the network reads those."""
    tokenizer = tokenizer_of(model)
    if reads_words(model.network.config):
        normal = tokenizer.normalize(text)
        words = [normal[start:end] for start, end in word_spans(normal)]
        return TextTokens(word_ids(tokenizer, words), list(range(len(words))), words, side)
    return of_encoded(tokenizer.encode_with_offsets(text), side)


def of_encoded(encoded: Encoded, side: str) -> TextTokens:
    """The tokens of a text that is encoded with offsets."""
    return TextTokens(encoded.ids, _joined(encoded.word_ids, len(encoded.words)), encoded.words, side)


def of_ids(tokenizer: Tokenizer, ids: Sequence[int], side: str) -> TextTokens:
    """The tokens of a text that is known by its ids; a special token of it is a word of its own."""
    words = tokenizer.words(ids)
    labels, index = list(words.words), list(words.index)
    for position, (word, token) in enumerate(zip(index, tokenizer.tokens(ids))):
        if word is None and tokenizer.spelling(ids[position]) is None:
            index[position] = len(labels)
            labels.append(token)
    return TextTokens(list(ids), _joined(index, len(labels)), labels, side)


def _joined(index: Sequence[int | None], count: int) -> list[int]:
    """Words of tokens; a token of none, such as a space, is of the word behind it, at the end of that before it."""
    out, following = [], max(0, count - 1)
    for word in reversed(index):
        following = following if word is None else word
        out.append(following)
    return out[::-1]


@dataclass
class TokenGroups:
    """The groups of an explanation, in the order in which they are read: words and special tokens."""

    words: list[str] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)

    def of(self, text: TextTokens, position: int) -> int:
        """The group of a token."""
        word = text.index[position]
        return self._number((text.side, word), text.words[word] if text.words else "", False, text.side)

    def of_special(self, tokenizer: Tokenizer, token: int, place: int, side: str) -> int:
        """The group of a special token; those of one id and place are one group."""
        return self._number((f"special {token}", place), tokenizer.tokens([token])[0], True, side)

    def _number(self, key: tuple[str, int], label: str, special: bool, side: str) -> int:
        if key not in self.numbers:
            self.numbers[key] = len(self.words)
            self.words.append(label)
            self.special.append(special)
            self.sides.append(side)
        return self.numbers[key]

    def row(
        self, tokenizer: Tokenizer, template: Template, first: TextTokens, second: TextTokens | None = None
    ) -> tuple[list[int], list[int], list[int]]:
        """The ids of a text or two with their special tokens, the segment of each, and its group."""
        count = len(first.ids)
        markers = range(-1, -1 - count - (0 if second is None else len(second.ids)), -1)  # below all ids
        slots, segments = template.apply(markers[:count], None if second is None else markers[count:])
        ids, groups, side, place = [], [], first.side, 0
        for slot in slots:
            if slot >= 0:
                ids.append(slot)
                groups.append(self.of_special(tokenizer, slot, place, side))
                place += 1
                continue
            text, position = (first, -1 - slot) if -1 - slot < count or second is None else (second, -1 - slot - count)
            side = text.side
            ids.append(text.ids[position])
            groups.append(self.of(text, position))
        return ids, segments, groups


def head_inputs(
    model: TaskModel,
    head: HeadConfig,
    template: Template,
    first: TextTokens,
    second: TextTokens | None,
    groups: TokenGroups,
) -> tuple[dict[str, Tensor], dict[str, list[int]], dict[str, str]]:
    """One row as the inputs of a network with that head, the group of each column, and the inputs that follow."""
    tokenizer, config = tokenizer_of(model), model.network.config
    ids, segments, of_columns = groups.row(tokenizer, template, first, second)
    store = MemoryStore({"ids": Ragged([ids]), "segments": Ragged([segments])})
    count = characters_of_words(config)
    if count is not None:
        spelled = [[text.words[word] for word in text.index] for text in (first, second) if text is not None]
        pair = spelled[1] if second is not None else None
        store.columns[CHARACTERS] = Ragged.of_arrays([row_characters(template, spelled[0], pair, count)])
    inputs = inputs_of(store, [0], config, head)
    inputs = {name: value for name, value in inputs.items() if not name.endswith("token_mask")}  # nothing is padded
    columns: dict[str, list[int]] = {name: of_columns for name in ("ids", "source_ids") if name in inputs}
    if "target_ids" in inputs:  # the start token, and behind it the text again if the head is on both sides
        start = groups.of_special(tokenizer, config.start_id, -1, first.side)
        columns["target_ids"] = [start, *of_columns][: inputs["target_ids"].shape[1]]
    device = next(model.network.parameters()).device
    follows = {"segment_ids": "ids"} if "segment_ids" in inputs else {}
    return {name: value.to(device) for name, value in inputs.items()}, columns, follows


def cut_to(model: TaskModel, template: Template, longest: int | None, *texts: TextTokens) -> list[TextTokens]:
    """One text or two, cut as the model cuts them: to `longest` tokens, special ones included.
    Raises CapabilityError: the model reads a text of so many tokens in windows.
    """
    if longest is None:
        return list(texts)
    ranges = [list(range(len(text.ids))) for text in texts]
    room = max(0, longest - template.added(len(texts) > 1))
    side = "right" if reads_words(model.network.config) else tokenizer_of(model).truncation_side
    pair = ranges[1] if len(texts) > 1 else None
    first, second, lost = cut_text(ranges[0], pair, room, side, model.long_texts)  # as classification cuts them
    if lost and model.long_texts.windows is not None:
        raise CapabilityError(
            f"an explanation is of one window: got a text of {len(ranges[0])} tokens, and a window has {room} beside "
            "the special ones"
        )
    return [text.part(positions) for text, positions in zip(texts, (first, second or []))]


def head_reading(
    model: TaskModel,
    head: HeadConfig,
    row: tuple[dict[str, Tensor], dict[str, list[int]], dict[str, str]],
    groups: TokenGroups,
    number: Any,
    positions: Sequence[Sequence[int]] | None = None,
) -> AttributedInput:
    """What a head says of one row.

    Args:
        model, head: the head is one of the model's network.
        row: from `head_inputs`.
        groups: of the explanation, complete.
        number: the head's output (B,...) and the positions (B,P), None without, -> the numbers (B,O).
        positions: the columns that each number is read at; None: the head reads the text by its pooling.
    """
    inputs, columns, follows = row
    name = list(columns)[0 if head.side == "encoder" else -1]
    length = inputs[name].shape[1]
    inputs, read_at = dict(inputs), {}
    if positions is None:
        part = model.network.heads[head.name]
        assert isinstance(part, LinearHead)
        pool = POOLINGS["first" if part.pooling in (None, "pooler") else part.pooling]  # it reads the first token
        reads = pool(torch.eye(length)[None], None).double().numpy()  # (L,L): which columns each pooled vector is of
    else:
        # one behind the other; `number` parts them again
        flat = [position for of_number in positions for position in of_number]
        # moved with the columns that are left out
        inputs["positions"], read_at = torch.tensor([flat], device=inputs[name].device), {"positions": name}
        reads = mean_rows(positions, length)

    def values(network: Network, given: Inputs) -> Tensor:
        own = {key: value for key, value in given.items() if key != "positions"}
        out = network.read(head.name, network(**own, project=False))
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        numbers: Tensor = number(out, given.get("positions"))
        return numbers

    return AttributedInput(
        inputs, columns, groups.special, values, {name: reads}, follows, read_at, own_words=positions is not None
    )


def mean_rows(positions: Sequence[Sequence[int]], length: int) -> Scores:
    """The weights (O,L) of numbers that are each read at some positions of L columns."""
    reads = np.zeros((len(positions), length))
    for row, of_number in enumerate(positions):
        for position in of_number:
            reads[row, position] += 1 / len(of_number)
    return reads
