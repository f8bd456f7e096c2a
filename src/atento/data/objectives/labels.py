"""What is said of each text, or of a pair of texts: a label, any number of labels, or a number.

ids "[CLS] ótimo filme [SEP]"   label 1, "positive" (docs/notes.md#g1)
ids "[CLS] ótimo filme , longo [SEP]"   labels "positive", "length": 1 for these, 0 for others
ids "[CLS] o gato dorme [SEP] um gato dorme [SEP]"   number 4.6 (docs/notes.md#g5)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from atento.base.errors import CapabilityError, DataError, UsageError, counted, nearest
from atento.config.sections.long_texts import CUT, LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig, Windows
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneTarget, OneText, Ragged, Rows, Store
from atento.data.batches.contexts import WINDOWS, cut_text, opened, windows_of
from atento.data.batches.planning import PlannedBatches, round_length
from atento.data.batches.whole_words import CHARACTERS, characters_of_words, reads_words, words_as_store
from atento.data.objectives.masked import with_token_mask
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer

KIND: Final = "classification"  # kinds of heads
SETS, NUMBER = "multi-label", "regression"


@dataclass(frozen=True)
class Labels(OneText, OneTarget):
    """Batches of labelled texts. Columns "ids" and "segments" of one text or a pair, and "label", one number each.

    Where the loss of the head compares other values than a class, these are the column "values", and labels are 0.
    `class_weights` are the factors of the losses of the classes, 1 where there are none. Texts in windows have these as
    rows of a batch, all of a text in one batch; `extras["ids texts"]` has the text of each, `settings` their pooling.
    """

    network: NetworkConfig
    head: HeadConfig
    has_values: bool = False
    class_weights: tuple[object, ...] = ()
    windows: Windows | None = None

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; it is the same in every epoch."""
        extras: dict[str, Tensor] = {}
        if self.has_values:
            labels = torch.zeros(len(rows), dtype=torch.long)  # only counts the examples: the values are in `extras`
            values = torch.from_numpy(np.stack([store["values"][row] for row in rows.tolist()]))
            extras[self.head.name] = values if self.head.labels else values.squeeze(-1)
        else:
            labels = torch.tensor([int(store["label"][row][0]) for row in rows.tolist()])  # (B,)
        if self.class_weights:
            extras[f"{self.head.name} weights"] = torch.tensor(self.class_weights)  # (C,), of sets (2,C)
        store, rows, texts = opened(store, rows)  # where texts are in windows, rows are windows from here on
        inputs, lengths = rounded_inputs(store, rows, self.network, self.head)
        extras |= {f"{name} texts": torch.from_numpy(texts) for name in lengths if texts is not None}
        settings = {} if self.windows is None else {self.head.name: self.windows}
        return Batch(inputs, {self.head.name: labels}, extras=extras, lengths=lengths, settings=settings)


def network_head(network: NetworkConfig, kind: str = KIND, so: str = "") -> HeadConfig:
    """Return the head for that kind. Raises CapabilityError: the network has none; `so` is the end of the message."""
    heads = [head for head in network.heads if head.role == kind]
    if len(heads) != 1:
        several = f"several {kind} heads, {', '.join(head.name for head in heads)}: name one"
        raise CapabilityError(f"this model has {several if heads else f'no {kind} head'}{so}")
    return heads[0]


def inputs_of(
    store: Store, rows: Rows | list[int], network: NetworkConfig, head: HeadConfig, length: int | None = None
) -> dict[str, Tensor]:
    """Return the texts of these rows as inputs of a network, padded to `length` tokens or to the longest: ids (B,L), or
    the characters (B,L,C) of their words.

    A decoder with the head reads its start token, and behind it the text again if the head is on both sides.
    """
    rows = np.asarray(rows)
    ids = store["ids"].padded(rows, network.pad_id, length=length)  # (B,L)
    inputs = with_token_mask({"ids": ids}, store["ids"].lengths[rows])
    count = characters_of_words(network)
    if count is not None:
        characters = store[CHARACTERS].padded(rows, 0, length=ids.shape[1] * count)  # (B,L·C)
        return inputs | {"ids": characters.unflatten(1, (-1, count))}  # (B,L,C)
    if network.architecture in ("encoder-decoder", "recurrent-seq2seq"):
        inputs = {f"source_{name}": value for name, value in inputs.items()}
        if head.side == "encoder":
            return inputs
        target_ids = torch.full((len(rows), 1), network.start_id)  # (B,1)
        if head.side == "both":
            target_ids = torch.cat([target_ids, inputs["source_ids"][:, :-1]], dim=1)  # (B,S), shifted by one
        return inputs | {"target_ids": target_ids}
    if network.embedding.segments > 1:
        inputs["segment_ids"] = store["segments"].padded(rows, 0, length=length)  # 0 first text, 1 pair
    return inputs


def rounded_inputs(
    store: Store, rows: Rows, network: NetworkConfig, head: HeadConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the inputs of these rows, padded to a round length, and the lengths of what the network reads."""
    lengths = store["ids"].lengths[rows]
    inputs = inputs_of(store, rows, network, head, round_length(lengths, network.position_limit))
    return inputs, {name: torch.from_numpy(lengths) for name in ("ids", "source_ids") if name in inputs}


def store_texts(
    tokenizer: Tokenizer,
    template: Template,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    longest: int | None,
    network: NetworkConfig,
    long_texts: LongTextConfig = CUT,
) -> tuple[MemoryStore, int]:
    """Encode texts or pairs with special tokens, cut to `longest` tokens; return them and how many were cut.

    With windows no text is cut: a row has all windows of a text, one behind the other, and the column `WINDOWS` the
    length of each.
    Raises CapabilityError: windows for a network that reads words. UsageError: windows of pairs.
    """
    if long_texts.windows is not None:
        if reads_words(network):
            raise CapabilityError("a network that reads words has no windows of long texts: leave `data.windows` out")
        if pairs is not None:
            raise UsageError("windows are of single texts: got pairs of texts")
        return windows_of(tokenizer, template, texts, longest, long_texts), 0
    if reads_words(network):
        return words_as_store(tokenizer, template, texts, pairs, longest, network)
    first = tokenizer.encode_batch(list(texts))
    second: list[list[int] | None] = [None] * len(first)
    if pairs is not None:
        second = list(tokenizer.encode_batch(list(pairs)))
    rows, cut = [], 0
    added = template.added(pairs is not None)
    for ids, pair in zip(first, second):
        room = len(ids) + len(pair or ()) if longest is None else max(0, longest - added)
        ids, pair, lost = cut_text(ids, pair, room, tokenizer.truncation_side, long_texts)
        cut += lost > 0  # texts, not tokens
        rows.append(template.apply(ids, pair))
    return MemoryStore({"ids": Ragged([ids for ids, _ in rows]), "segments": Ragged([seg for _, seg in rows])}), cut


def cut_warning(cut: int, total: str, preparation: Preparation, longest: int | None = None) -> str:
    """Return the warning about texts that are cut, with what to do: a label often depends on the whole document."""
    longest = preparation.longest if longest is None else longest
    limit, max_len = preparation.network.position_limit, preparation.recipe.data.max_len
    more = f"raise `data.max_len` {max_len}" + (f", up to {limit} for this network" if limit is not None else "")
    if limit is not None and limit <= max_len:
        more = f"this network reads at most {limit}; one without learned positions, or with more, reads longer texts"
    return f"warning: {cut} of {total} cut to {longest} tokens, and the rest is not read: {more}"


def report_windows(preparation: Preparation, store: MemoryStore, name: str = "ids") -> None:
    """Report into how many windows long texts are cut, if any are."""
    if f"{name} {WINDOWS}" in store:
        count = len(store[f"{name} {WINDOWS}"].flat)  # windows of all texts
        if count > len(store):
            preparation.report(
                f"{counted(len(store), 'text')} in {count:,} windows of at most {preparation.longest} tokens"
            )


def label_numbers(split: Split, names: Sequence[str]) -> list[int]:
    """Return the number of the label of each record.
    Raises DataError: a label that is not among `names`; the message names file and line.
    """
    check_labels(split, names)
    numbers = {name: number for number, name in enumerate(names)}
    return [numbers[label] for label in split["label"]]


def check_labels(split: Split, names: Sequence[str]) -> None:
    """Raises DataError: a label, or one of several, that is not among `names`; the message names file and line."""
    known = set(names)
    for row, given in enumerate(split["label"]):
        for label in (given,) if isinstance(given, str) else given:
            if label not in known:
                raise DataError(f"{split.where(row)}: unknown label {label!r}{nearest(label, list(names))}")


def labels(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of labelled texts; texts longer than `data.max_len` tokens are cut, with a counted warning.
    Raises DataError: a label that the training data does not have.
    """
    head = network_head(preparation.network)
    numbers = label_numbers(preparation.split, head.labels)
    weights: tuple[float, ...] = ()
    if config.class_weights == "balanced" and not preparation.held_out:
        counts = np.bincount(numbers, minlength=len(head.labels))  # (labels,) examples of each
        weights = tuple((len(numbers) / (len(head.labels) * np.maximum(counts, 1))).tolist())  # 1 where all are equal
    return labelled_texts(preparation, config, head, {"label": Ragged([[number] for number in numbers])}, weights)


def label_sets(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of texts with their sets of labels; long texts are cut as for labels.
    Raises DataError: a label that the training data does not have.
    """
    head = network_head(preparation.network, SETS)
    check_labels(preparation.split, head.labels)
    rows = [[float(name in labels) for name in head.labels] for labels in preparation.split["label"]]  # (texts, labels)
    weights: tuple[tuple[float, ...], ...] = ()
    if config.class_weights == "balanced" and not preparation.held_out:  # of texts without and with each label
        present = np.array(rows).sum(axis=0)  # (labels,) texts that have each
        both = (len(rows) - present, present)
        weights = tuple(tuple((len(rows) / (2 * np.maximum(count, 1))).tolist()) for count in both)
    return labelled_texts(preparation, config, head, {"values": Ragged(rows, np.float32)}, weights)


def numbers(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of texts with their numbers; long texts are cut as for labels."""
    values = Ragged([[number] for number in preparation.split["score"]], np.float32)
    return labelled_texts(preparation, config, network_head(preparation.network, NUMBER), {"values": values})


def labelled_texts(
    preparation: Preparation,
    config: ObjectiveConfig,
    head: HeadConfig,
    columns: Mapping[str, Ragged],
    class_weights: tuple[Any, ...] = (),
) -> PlannedBatches:
    """Return batches of the texts or pairs of a split, with these columns of what the head should give.

    `class_weights` are the factors of the loss of the classes (C,); of sets, those of absent and of present ones (2,C).
    """
    split = preparation.split
    pairs = split["pair"] if "pair" in split.columns else None
    network, template = preparation.network, preparation.text_template()
    long_texts = preparation.long_texts
    key = "`data.truncate: head-tail` is" if long_texts.head_tail else "`data.windows` are"
    if (long_texts.head_tail or long_texts.windows is not None) and pairs is not None:
        raise DataError(f"{split.where(0)}: {key} of single texts, and the records have a `pair`")
    if long_texts.head_tail and reads_words(network):
        raise CapabilityError(f"{key} of tokens, and this network reads words: leave it out")
    store, cut = store_texts(
        preparation.tokenizer, template, split["text"], pairs, preparation.longest, network, long_texts
    )
    report_windows(preparation, store)
    if cut:
        preparation.report(cut_warning(cut, counted(len(split), "example"), preparation))
    store.columns.update(columns)
    has_values, windows = "values" in columns, long_texts.windows
    objective = Labels(network, head, has_values=has_values, class_weights=class_weights, windows=windows)
    return preparation.planned(store, objective, config.weight, equal_examples=True)
