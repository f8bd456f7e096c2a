"""Perplexity of texts by a language model, of pairs, and pseudo-perplexity by a masked model (docs/notes.md#i6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import fsum

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.errors import CapabilityError, UsageError
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.batches.whole_words import word_ids, words_of
from atento.metrics import Score
from atento.metrics import perplexity as score_of
from atento.networks import Decoder, ELMo, EncoderDecoder, Network, RecurrentLM, RecurrentSeq2Seq
from atento.networks.vocabulary import at_least_float32
from atento.tasks.length_batching import run_in_batches
from atento.tasks.scoring import score_outputs
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.tasks.verb_calls import listed
from atento.text.characters import character_batch
from atento.text.lengths import pad_batch

_TOKENS = 4096  # of a batch, padding included
_LOGITS = 2**24  # values of logits in memory at once: 64 MiB in float32
_WINDOW = 1024  # tokens read at a time by a model that no length is known of

Nats = list[list[float]]  # for each text the log-probabilities of the tokens that are scored


def perplexity(
    model: TaskModel,
    texts: str | Sequence[str],
    targets: str | Sequence[str] | None = None,
    *,
    window: int | None = None,
    stride: int | None = None,
) -> Score:
    """Token-weighted perplexity of texts: exp of the mean negative log-probability of a token.

    A language model predicts each token from those before it. If it was trained here, the texts begin with BOS and EOS
    is scored, as in its validation; else the first token counts only if a special token stands before it. A masked
    model predicts each token from all others, with that token masked (pseudo-perplexity, Salazar et al. 2020). An
    encoder-decoder predicts the targets and EOS. ELMo predicts each word from both sides, as in its training.

    Args:
        texts: a text or texts; of an encoder-decoder the sources.
        targets: of an encoder-decoder, the output of each source.
        window: most tokens that are read at a time; None: the length that the model was trained on. A recurrent
            language model reads texts as a whole.
        stride: in a longer text, the number of tokens from one window to the next; None: half a window. Each token is
            scored once, with as much context as its windows have.

    Returns:
        A Score with a segment for each text, lower is better. A text without tokens has none to score.

    Raises:
        CapabilityError: the model predicts no tokens. UsageError: there is no token to score, `targets` are missing or
            have no use, or `window` or `stride` is out of range.

    Paper: Salazar et al. 2020, Masked language model scoring.
    """
    texts, network = listed(texts), model.network
    if isinstance(network, EncoderDecoder | RecurrentSeq2Seq):
        if targets is None:
            raise UsageError("an encoder-decoder predicts targets from sources: give `targets` too")
        if window is not None or stride is not None:
            raise UsageError("`window` and `stride` are for texts, not for pairs")
        targets = listed(targets)
        if len(texts) != len(targets):
            raise UsageError(f"give as many sources as targets: got {len(texts)} and {len(targets)}")
        # each token of a target and EOS from the source and the tokens before it; pairs of two blank texts have none
        full = [bool(source.strip() or target.strip()) for source, target in zip(texts, targets)]
        scores = iter(score_outputs(model, list(compress(texts, full)), list(compress(targets, full))))
        log_probs = [next(scores).log_probs if has_tokens else [] for has_tokens in full]
        return _scored(log_probs, "perplexity", "kind:pairs|eos:scored")
    if targets is not None:
        raise UsageError(f"`targets` are for an encoder-decoder: this network is a {type(network).__name__}")
    if model.precision == "int8":
        raise UsageError("int8 is for writing; the perplexity of texts takes another precision")
    if isinstance(network, ELMo):
        return _scored(_of_words(model, network, texts), "perplexity", "kind:bidirectional|eos:scored")
    windows = _windows_of(model, window, stride)
    if isinstance(network, Decoder | RecurrentLM):
        return _of_language_model(model, network, texts, windows)
    if network.config.architecture == "encoder" and "vocabulary" in network.heads:
        return _scored(_masked(model, texts, windows), "pseudo-perplexity", f"kind:masked|{windows}")
    raise CapabilityError(
        f"perplexity takes a model that predicts tokens: this network ({type(network).__name__}) has no head for them"
    )


def _scored(log_probs: Nats, name: str, settings: str) -> Score:
    score = score_of([fsum(text) for text in log_probs], [len(text) for text in log_probs])
    return replace(score, name=name, settings=f"{score.settings}|{settings}")


# Windows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """How a long text is read: `size` tokens at a time (None: all), `stride` from one window to the next."""

    size: int | None
    stride: int

    def __str__(self) -> str:
        return "window:all" if self.size is None else f"window:{self.size}|stride:{self.stride}"

    def of(self, length: int, *, two_sided: bool) -> Iterator[tuple[int, int, int, int]]:
        """For each window of a text its begin and end, and the begin and end of what is scored in it.

        What two windows share is scored in the earlier one, which is the one with more tokens before it; or, of a
        two-sided model, each half in the window whose border is farther.
        """
        size, begin, scored = self.size or max(1, length), 0, 0
        while scored < length:
            end = min(begin + size, length)
            shared = max(0, end - begin - self.stride) if end < length and two_sided else 0
            until = end - shared // 2
            yield begin, end, scored, until
            begin, scored = begin + self.stride, until


def _windows_of(model: TaskModel, window: int | None, stride: int | None) -> Windows:
    """The windows of a model. Raises UsageError: `window` or `stride` is out of range."""
    network, limit = model.network, model.network.config.position_limit
    if isinstance(network, RecurrentLM) and window is None:
        if stride is not None:
            raise UsageError("`stride` needs a `window`: a recurrent model reads a text as a whole")
        return Windows(None, 1)  # the whole text
    size = window or model.trained_length or limit or _WINDOW
    if limit is not None and window is None:  # a window above it is refused below
        size = min(size, limit)
    # one token predicts another; an encoder has special tokens around its text
    least = 2 if network.config.architecture != "encoder" else 4
    if (window is not None and window < least) or (limit is not None and size > limit):
        most = "" if limit is None else f" and at most {limit}, the positions of the model"
        raise UsageError(f"`window` must be at least {least}{most}: got {window}")
    step = max(1, size // 2) if stride is None else stride
    if not 1 <= step <= size:
        raise UsageError(f"`stride` must lie between 1 and the window, {size}: got {stride}")
    return Windows(size, step)


# Language models ------------------------------------------------------------------------------------------------------


def _of_language_model(
    model: TaskModel, network: Decoder | RecurrentLM, texts: Sequence[str], windows: Windows
) -> Score:
    """Each token from those before it."""
    tokenizer, stated = tokenizer_of(model), model.config.get("template")
    template, ended = tokenizer.template(stated), stated in ("bos", "none")  # as the causal objective trains
    pieces: list[_Piece] = []
    for text, ids in enumerate(tokenizer.encode_batch(list(texts))):
        if not texts[text].strip():
            continue
        row, _ = template.apply(ids)
        before = next((at for at, (content, _) in enumerate(template.single) if content == "A"), 0)
        row = row[: before + len(ids)] + ([network.config.eos_id] if ended else [])
        begin = max(1, before)  # the first token that is scored
        for start, end, scored, until in windows.of(len(row) - 1, two_sided=False):
            targets = range(max(scored + 1, begin), until + 1)
            if targets:
                pieces.append(_Piece(text, row[start:end], [(at - 1 - start, row[at]) for at in targets]))
    settings = f"kind:causal|{windows}|eos:{'scored' if ended else 'none'}"
    return _scored(_predicted(network, pieces, len(texts)), "perplexity", settings)


@dataclass(frozen=True)
class _Piece:
    """What is read at once: the number of its text, its ids, and the tokens scored at some of its positions."""

    text: int
    ids: list[int]
    targets: list[tuple[int, int]]  # position, token


@torch.inference_mode()
def _predicted(network: Network, pieces: Sequence[_Piece], n_texts: int, mask_id: int | None = None) -> Nats:
    """The log-probabilities of the targets of all pieces, by text; with `mask_id`, their positions are masked."""
    device = next(network.parameters()).device
    by_piece: list[list[float]] = [[] for _ in pieces]

    def read(batch: list[int]) -> Iterator[list[float]]:
        padded, real = pad_batch([pieces[number].ids for number in batch], network.config.pad_id)
        # of each target its row in the batch
        rows = [row for row, number in enumerate(batch) for _ in pieces[number].targets]
        columns, tokens = zip(*(target for number in batch for target in pieces[number].targets))
        if mask_id is not None:
            padded[rows, list(columns)] = mask_id  # pieces with `mask_id` have one target
        token_mask = torch.from_numpy(real).to(device)
        hidden = network(ids=torch.from_numpy(padded).to(device), token_mask=token_mask, project=False).hidden
        log_probs = iter(_log_probs(network, hidden[rows, list(columns)], torch.tensor(tokens, device=device)))
        return ([next(log_probs) for _ in pieces[number].targets] for number in batch)

    for number, values in run_in_batches([len(piece.ids) for piece in pieces], _TOKENS, read, network):
        by_piece[number] = values
    results: Nats = [[] for _ in range(n_texts)]
    for piece, values in zip(pieces, by_piece):
        results[piece.text] += values
    return results


def _log_probs(network: Network, hidden: Tensor, labels: Tensor) -> list[float]:
    """log p of each label (N,) from hidden (N,D), in blocks of bounded memory; logits in float32 at least."""
    values: list[float] = []
    size = max(1, _LOGITS // network.config.target_vocab_size)
    for begin in range(0, len(labels), size):
        logits = network.project(hidden[begin : begin + size])
        logits = at_least_float32(logits)
        values += (-F.cross_entropy(logits, labels[begin : begin + size], reduction="none")).tolist()
    return values


# Masked models --------------------------------------------------------------------------------------------------------


def _masked(model: TaskModel, texts: Sequence[str], windows: Windows) -> Nats:
    """Each token from all others of its window, which has the special tokens of a text around it."""
    network, tokenizer = model.network, tokenizer_of(model)
    template = special_tokens_of(network.config, tokenizer, model.config.get("template"))
    before = next(at for at, (content, _) in enumerate(template.single) if content == "A")  # special tokens in front
    size = (windows.size or 0) - template.added(False)
    if size < 1:
        raise UsageError(f"`window` must hold the special tokens and a token: got {windows.size}")
    inner = Windows(size, min(windows.stride, size))
    pieces: list[_Piece] = []
    for text, ids in enumerate(tokenizer.encode_batch(list(texts))):
        for begin, end, scored, until in inner.of(len(ids), two_sided=True):
            row, _ = template.apply(ids[begin:end])
            for at in range(scored, until):
                # a row for each token: the mask is one place at a time
                pieces.append(_Piece(text, row, [(before + at - begin, ids[at])]))
    return _predicted(network, pieces, len(texts), tokenizer.mask_id)


# Pairs, and ELMo ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def _of_words(model: TaskModel, network: ELMo, texts: Sequence[str]) -> Nats:
    """Each word and EOS from the words before it, then BOS and each word from the words after it."""
    if "vocabulary" not in network.heads:
        raise CapabilityError("this ELMo has no vocabulary, so it represents words but predicts none")
    tokenizer, device = tokenizer_of(model), next(network.parameters()).device
    sentences = [next(iter(words_of(tokenizer, [text])), []) for text in texts]
    # a text without words has no ends either
    rows = [[tokenizer.bos_id, *word_ids(tokenizer, words), tokenizer.eos_id] if words else [] for words in sentences]
    results: Nats = [[] for _ in texts]

    def read(batch: list[int]) -> list[list[float]]:
        padded, real = pad_batch([rows[row] for row in batch], 0)
        words, token_mask = torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device)
        elmo, ids = network.config.elmo, words
        if elmo is not None and elmo.characters is not None:
            limit = elmo.characters.max_characters
            ids = torch.from_numpy(character_batch([sentences[row] for row in batch], max_characters=limit)[0])
        # the states of the last layer, by direction
        ahead, behind = network.directions(ids.to(device), token_mask=token_mask)[-1]
        pairs = token_mask[:, 1:] & token_mask[:, :-1]  # (B,L-1): two neighbours that are both real
        rows_of_pairs = pairs.nonzero()[:, 0].tolist()
        # forward predicts the next, backward the one before
        found: list[list[float]] = [[] for _ in batch]
        for states, labels in ((ahead[:, :-1], words[:, 1:]), (behind[:, 1:], words[:, :-1])):
            for row, value in zip(rows_of_pairs, _log_probs(network, states[pairs], labels[pairs])):
                found[row].append(value)
        return found

    for row, values in run_in_batches([len(row) for row in rows], _TOKENS, read, network):
        results[row] = values
    return results
