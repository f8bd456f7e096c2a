"""Filling masks: the most probable tokens for the masks of a text, or the spans for the sentinels of T5."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import Tensor

from atento.base.errors import AtentoWarning, CapabilityError, UsageError
from atento.config.sections.decoding import DecodingOptions
from atento.config.tables.tasks import TASKS
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.objectives.denoising import restored, sentinel_ids
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.mask_predict import mask_predict
from atento.networks import EncoderDecoder, Network
from atento.released import FAMILIES
from atento.tasks.decoding_setup import decoding_for, ids_inside
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import TaskModel, max_input_tokens, tokenizer_of
from atento.tasks.text_generation import TextGenerator
from atento.tasks.verb_calls import Texts, listed
from atento.text.lengths import pad_batch
from atento.text.tokenizer import Tokenizer

_TOKENS = 4096  # of a batch
_NARROWEST = 4  # width of the beam that fills the sentinels of a T5


@dataclass(frozen=True)
class Candidate:
    """One way to fill the masks of a text."""

    token: str  # the tokens for the masks; those of several masks are separated by spaces
    # of these tokens given the text: the product over the masks, each given the masks filled before it
    probability: float
    text: str  # the filled text, as the tokenizer decodes it
    ids: tuple[int, ...] = field(default=(), repr=False)  # of these tokens


class _Options(TypedDict, total=False):
    top: int
    iterations: int | None
    targets: str | Sequence[str] | None


@overload
def fill(model: TaskModel, text: str, **options: Unpack[_Options]) -> list[Candidate]: ...
@overload
def fill(model: TaskModel, text: Texts, **options: Unpack[_Options]) -> list[list[Candidate]]: ...


def fill(
    model: TaskModel,
    text: str | Texts,
    *,
    top: int = 5,
    iterations: int | None = None,
    targets: str | Sequence[str] | None = None,
) -> Any:
    """The most probable ways to fill the masks of a text, best first (docs/notes.md#g2).

    A masked model fills several masks from left to right: each is predicted given those before it, and the `top` best
    combinations are kept. A T5 writes the span of each sentinel by beam search, a BART the text without masks; the
    token of such a candidate is what stands between the parts of the text without masks, or all of it if the model
    changed these. Special tokens, and rows of the network that the tokenizer has no piece for, are never candidates.

    Args:
        model: a masked model, or an encoder-decoder trained on span corruption or denoising.
        text: a text or texts with the model's mask token (`model.tokenizer.specials.roles["mask"]`), or with sentinels:
            `<extra_id_0>`, `<extra_id_1>` ...
        top: number of candidates for each text.
        iterations: fill all masks at once and then refine the least probable ones, in that many forward passes
            (mask-predict, Ghazvininejad et al. 2019), which gives one candidate; for masked models.
        targets: the only words that may fill a mask, each of one token, as it is inside a text or as a piece of
            the vocabulary; their probabilities are those among all tokens. For masked models, without `iterations`.

    Raises:
        CapabilityError: the model predicts no masked tokens. UsageError: a text has no mask or is too long, or an
            option is out of range.
    """
    texts = listed(text)
    numbers: list[object] = [top, 1 if iterations is None else iterations]
    if any(not isinstance(number, Integral) or number < 1 for number in numbers):
        raise UsageError(f"`top` and `iterations` must be integers of at least 1: got {top} and {iterations}")
    network, masked = model.network, predicts_masks(model)
    if iterations is not None and not masked:
        raise UsageError("`iterations` is for masked models; an encoder-decoder writes what it fills by beam search")
    if targets is not None and (not masked or iterations is not None):
        raise UsageError("`targets` is for masked models, and for masks that are filled in their order")
    ids = None if targets is None else target_ids(tokenizer_of(model), targets)  # refused before anything is read
    _check_texts(model, texts)
    if isinstance(network, EncoderDecoder):
        candidates = _fill_by_writing(model, texts, top)
    else:
        tokenizer = tokenizer_of(model)
        template = special_tokens_of(network.config, tokenizer, model.config.get("template"))
        rows = [template.apply(tokenizer.encode_with_mask(text))[0] for text in texts]
        places = [[at for at, token in enumerate(row) if token == tokenizer.mask_id] for row in rows]
        if iterations is None:
            filled = _fill_in_order(model, rows, places, top, ids)
        else:
            filled = _fill_repeatedly(model, rows, iterations)
        candidates = [
            [_candidate(tokenizer, one, [one[at] for at in positions], log_prob) for one, log_prob in combinations]
            for combinations, positions in zip(filled, places)
        ]
    return candidates[0] if isinstance(text, str) else candidates


def fill_each(
    model: TaskModel, texts: Sequence[str], *, top: int = 5, targets: str | Sequence[str] | None = None
) -> list[list[list[Candidate]]]:
    """The most probable tokens for each mask by itself, best first: for each text a list for each of its masks.

    The probabilities are those given the text with all its masks, as in `transformers`; the text of a candidate has the
    other masks, and then the special tokens too. An encoder-decoder, which has no such probabilities, has one list for
    all masks, that of `fill`. Arguments and errors are those of `fill`.
    """
    if top < 1:
        raise UsageError(f"`top` must be an integer of at least 1: got {top}")
    if not predicts_masks(model):
        return [[candidates] for candidates in fill(model, list(texts), top=top, targets=targets)]
    _check_texts(model, texts)
    tokenizer = tokenizer_of(model)
    template = special_tokens_of(model.network.config, tokenizer, model.config.get("template"))
    rows = [template.apply(tokenizer.encode_with_mask(text))[0] for text in texts]
    masks = [(text, at) for text, row in enumerate(rows) for at, token in enumerate(row) if token == tokenizer.mask_id]
    only = None if targets is None else target_ids(tokenizer, targets)
    found: dict[tuple[int, int], list[Candidate]] = {}
    read, positions = [rows[text] for text, _ in masks], [at for _, at in masks]
    for number, best in _candidates_at(model, read, positions, top, only):
        text, at = masks[number]
        alone = rows[text].count(tokenizer.mask_id) == 1
        filled = [([*rows[text][:at], token, *rows[text][at + 1 :]], value) for value, token in best]
        found[masks[number]] = [
            replace(_candidate(tokenizer, ids, [ids[at]], value), text=tokenizer.decode(ids, skip_special=alone))
            for ids, value in filled
        ]
    return [[found[text, at] for of, at in masks if of == text] for text in range(len(texts))]


def predicts_masks(model: TaskModel) -> bool:
    """Whether a model is a masked one. Raises CapabilityError: nor does it write what fills masks."""
    network, task = model.network, model.config.get("task")
    masked = network.config.architecture == "encoder" and "vocabulary" in network.heads
    verb, family = TASKS[str(task)].verb if task in TASKS else None, FAMILIES.get(network.config.family)
    # whether an encoder-decoder was trained to write a text without its masks
    denoises = (family is not None and family.denoises) or verb == "fill"
    if not masked and not (isinstance(network, EncoderDecoder) and (_writes_spans(model) or denoises)):
        use = f"; this one can {verb}" if verb is not None and verb != "fill" else ""
        raise CapabilityError(f"filling masks takes a masked model, a T5 or a BART{use}")
    return masked


def _check_texts(model: TaskModel, texts: Sequence[str]) -> None:
    for number, item in enumerate(texts):
        if (reason := why_not_filled(model, item)) is not None:
            raise UsageError(f"text {number} {reason}: {item[:60]!r}")


def why_not_filled(model: TaskModel, text: str) -> str | None:
    """Why a model that fills masks cannot fill those of a text, as what is said of the text; None if it can."""
    network, tokenizer = model.network, tokenizer_of(model)
    sentinels = _writes_spans(model)
    filled = sentinel_ids(tokenizer) if sentinels else [tokenizer.mask_id]
    ids = tokenizer.encode_with_mask(text)
    if not set(filled) & set(ids):
        return f"has no {'<extra_id_0>' if sentinels else tokenizer.specials.roles['mask']} to fill"
    template = special_tokens_of(network.config, tokenizer, model.config.get("template"))
    length, limit = len(template.apply(ids)[0]), max_input_tokens(network.config, model.trained_length)
    if network.config.architecture == "encoder" and limit is not None and length > limit:
        return f"has {length} tokens, and the model reads at most {limit}"
    return None


def _writes_spans(model: TaskModel) -> bool:
    """Whether a model writes the spans of sentinels, as T5 does."""
    return isinstance(model.network, EncoderDecoder) and tokenizer_of(model).specials.get("<extra_id_0>") is not None


def target_ids(tokenizer: Tokenizer, targets: str | Sequence[str]) -> list[int]:
    """The token of each target. Raises UsageError: there is none, or a target that the vocabulary writes otherwise."""
    ids = []
    for target in [targets] if isinstance(targets, str) else targets:
        piece = tokenizer.token_id(target)
        spellings: tuple[Sequence[int], ...] = (
            ids_inside(target, tokenizer),
            () if piece is None else (piece,),
            tokenizer.encode(target.strip()),
        )
        written = next((spelling for spelling in spellings if len(spelling) == 1), None)
        if written is None or written[0] in tokenizer.specials.ids.values():
            raise UsageError(f"`targets` must be of one token each: the vocabulary has none for {target[:60]!r}")
        ids.append(written[0])
    if not ids:
        raise UsageError("`targets` must have at least one word: got none")
    return ids


Combination = tuple[list[int], float]  # ids of a text with some masks filled, and their summed log-probability


def _fill_in_order(
    model: TaskModel, rows: list[list[int]], masked: list[list[int]], top: int, targets: Sequence[int] | None
) -> list[list[Combination]]:
    """The best combinations for each text: a beam search over its masks from left to right."""
    combinations: list[list[Combination]] = [[(row, 0.0)] for row in rows]
    for number in range(max(map(len, masked), default=0)):  # the mask of that number in all texts at once
        open_rows = [
            (text, ids, log_prob)
            for text, beam in enumerate(combinations)
            if number < len(masked[text])
            for ids, log_prob in beam
        ]
        extended: dict[int, list[Combination]] = {text: [] for text, _, _ in open_rows}
        read, places = [ids for _, ids, _ in open_rows], [masked[text][number] for text, _, _ in open_rows]
        for row, best in _candidates_at(model, read, places, top, targets):
            (text, ids, log_prob), at = open_rows[row], places[row]
            extended[text] += [([*ids[:at], token, *ids[at + 1 :]], log_prob + value) for value, token in best]
        for text, beam in extended.items():
            combinations[text] = sorted(beam, key=lambda combination: -combination[1])[:top]
    return combinations


def _candidates_at(
    model: TaskModel, rows: Sequence[list[int]], positions: Sequence[int], top: int, targets: Sequence[int] | None
) -> Iterator[tuple[int, list[tuple[float, int]]]]:
    """The number of each row, and the `top` log-probabilities at its position with their tokens, best first; of
    `targets` alone, if given.
    """

    network, tokenizer = model.reader(), tokenizer_of(model)

    def read(batch: list[int]) -> list[list[tuple[float, int]]]:
        log_probs = mask_log_probs(network, tokenizer, [rows[row] for row in batch], [positions[row] for row in batch])
        if targets is not None:
            log_probs = torch.full_like(log_probs, float("-inf")).index_copy(1, only, log_probs[:, only])
        best = log_probs.topk(min(top, log_probs.shape[1]), dim=-1)
        return [
            [(value, token) for value, token in zip(values, tokens) if value > float("-inf")]
            for values, tokens in zip(best.values.tolist(), best.indices.tolist())
        ]

    only = torch.tensor(list(targets or ()), dtype=torch.long, device=next(network.parameters()).device)
    return run_in_batches(list(map(len, rows)), _TOKENS, read, network)


def _fill_repeatedly(model: TaskModel, rows: list[list[int]], iterations: int) -> list[list[Combination]]:
    """One combination for each text, by mask-predict."""
    network, tokenizer = model.reader(), tokenizer_of(model)
    device = next(network.parameters()).device
    others = torch.tensor(tokenizer.other_ids(network.config.vocab_size), device=device)

    def filled_rows(batch: list[int]) -> Iterator[Combination]:
        padded, real = pad_batch([rows[row] for row in batch], network.config.pad_id)
        token_mask = torch.from_numpy(real).to(device)

        def predict(ids: Tensor) -> Tensor:
            logits = network.project(network(ids=ids, token_mask=token_mask, project=False).hidden)
            return logits.float().index_fill(-1, others, float("-inf"))

        filled = mask_predict(predict, torch.from_numpy(padded).to(device), tokenizer.mask_id, iterations=iterations)
        unpadded = (ids[: len(rows[row])] for row, ids in zip(batch, filled.ids.tolist()))
        return zip(unpadded, filled.log_probs.double().sum(dim=1).tolist())

    found = dict(run_in_batches([len(row) for row in rows], _TOKENS, filled_rows, network))
    return [[found[row]] for row in range(len(rows))]


@torch.inference_mode()
def mask_log_probs(network: Network, tokenizer: Tokenizer, rows: list[list[int]], positions: list[int]) -> Tensor:
    """Log-probabilities (B,V) of the token at one position of each row; -inf for those that are not ordinary."""
    device = next(network.parameters()).device
    padded, real = pad_batch(rows, network.config.pad_id)
    output = network(
        ids=torch.from_numpy(padded).to(device), token_mask=torch.from_numpy(real).to(device), project=False
    )
    log_probs = torch.log_softmax(network.project(output.hidden[torch.arange(len(rows)), positions]).double(), dim=-1)
    others = torch.tensor(tokenizer.other_ids(network.config.vocab_size), device=device)
    return log_probs.index_fill(-1, others, float("-inf"))


def _fill_by_writing(model: TaskModel, texts: Sequence[str], top: int) -> list[list[Candidate]]:
    """Candidates by an encoder-decoder, which writes each sentinel and its span, or the text without masks."""
    network, tokenizer = model.network, tokenizer_of(model)
    sentinels = sentinel_ids(tokenizer) if _writes_spans(model) else ()
    others = set(tokenizer.other_ids(network.config.target_vocab_size))

    def candidate(source: list[int], written: Hypothesis) -> Candidate:
        if sentinels:
            masks = [token for token in source if token in sentinels]
            ids, filled = (restored(tokens, written.ids, sentinels) for tokens in (source, masks))
        else:
            ids = [token for token in written.ids if token not in others]
            filled = between(source, ids, tokenizer.mask_id)
        return _candidate(tokenizer, ids, filled, written.log_prob)

    template = special_tokens_of(network.config, tokenizer)
    sources = [tokenizer.encode_with_mask(text) for text in texts]
    options: DecodingOptions = {"beam": max(top, _NARROWEST), "groups": 1, "length_penalty": 0.0, "min_new_tokens": 0}
    decoding = decoding_for(model.decoding, top, options)  # ranked by probability
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # fewer than `top` different outputs are no defect
        outputs = TextGenerator(
            model.step_function(),
            network.config,
            decoding,
            lambda ids: " ".join(map(str, ids)),  # sentinels too: outputs that differ in them differ
            next(network.parameters()).device,
            n_special=template.added(False),
            trained=model.trained_length,
        ).written([template.apply(source)[0] for source in sources])
    return [[candidate(source, one.hypothesis) for one in written] for source, written in zip(sources, outputs)]


def between(source: Sequence[int], written: Sequence[int], mask_id: int) -> list[int]:
    """Return what stands in a written text for the masks of its source; all of it, if the text around them differs."""
    parts: list[list[int]] = [[]]
    for token in source:
        if token == mask_id:
            parts.append([])
        else:
            parts[-1].append(token)
    text, last = list(written), parts.pop()  # what stands before, between and behind the masks
    end = len(text) - len(last)
    if text[: len(parts[0])] != parts[0] or end < len(parts[0]) or text[end:] != last:
        return text
    at, filled = len(parts[0]), []
    for part in parts[1:]:
        start = next((i for i in range(at, end - len(part) + 1) if text[i : i + len(part)] == part), None)
        if start is None:
            return text
        filled += text[at:start]
        at = start + len(part)
    return filled + text[at:end]


def _candidate(tokenizer: Tokenizer, ids: Sequence[int], tokens: Sequence[int], log_prob: float) -> Candidate:
    pieces = [tokenizer.decode([token]).strip() or tokenizer.tokens([token])[0] for token in tokens]
    probability = float(torch.tensor(log_prob, dtype=torch.float64).exp())
    return Candidate(" ".join(filter(None, pieces)), probability, tokenizer.decode(ids), tuple(tokens))
