"""What is sent of a token with its log-probability: its text, the bytes of that, and the likeliest tokens there."""

from collections.abc import Iterable, Sequence
from itertools import repeat

import torch

from atento.decoding.forced import forced_tokens
from atento.model import Model
from atento.tasks.scoring import TokenScores
from atento.text.tokenizer import Tokenizer
from atento_serve.jobs import Entry, Token

Top = Sequence[tuple[int, float]]
_LEAST = -9999.0  # what OpenAI's API gives for a token that cannot be written; JSON has no infinity


def entries(tokenizer: Tokenizer, ids: Iterable[int], log_probs: Iterable[float], tops: Sequence[Top]) -> list[Entry]:
    """An entry for each token.

    Args:
        tokenizer: of the tokens.
        ids, log_probs: of the tokens.
        tops: the most probable tokens at the place of each; empty: they were not asked for.
    """
    return [
        {**_entry(tokenizer, token, log_prob), "top": [_entry(tokenizer, *pair) for pair in top]}
        for token, log_prob, top in zip(ids, log_probs, tops or repeat(()))
    ]


def texts_of_tokens(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """The text of each token, with its space; a character of several tokens is that of the last of them."""
    texts, open_bytes = [], b""
    for token in ids:
        spelling = tokenizer.spelling(token)
        if spelling is None:  # a special token, or a row of the network without a piece: they have no text
            texts.append(tokenizer.tokens([token])[0])
            continue
        open_bytes += spelling if isinstance(spelling, bytes) else spelling.encode("utf-8")
        try:
            text, open_bytes = open_bytes.decode("utf-8"), b""
        except UnicodeDecodeError as error:
            end = error.start if error.reason == "unexpected end of data" else len(open_bytes)  # it may go on
            text, open_bytes = open_bytes[:end].decode("utf-8", "replace"), open_bytes[end:]
        texts.append(text)
    return texts


def lead_of(tokens: Sequence[str], text: str) -> str:
    """The space between a prompt and an output of these texts of tokens, which decoding leaves out of its text."""
    return " " if text and tokens and tokens[0].startswith(" ") and not text.startswith(" ") else ""


def scored_entries(tokenizer: Tokenizer, scores: TokenScores) -> list[Entry]:
    """The entries of a given output; EOS has none."""
    tops = [list(zip(ids, (log_prob for _, log_prob in top))) for ids, top in zip(scores.top_ids, scores.top)]
    return entries(tokenizer, scores.ids[:-1], scores.log_probs, tops)


def most_probable_beside(model: Model, input_ids: Sequence[int], ids: Sequence[int], count: int) -> list[Top]:
    """The most probable tokens at each place of an output that a search has ended with."""
    source = torch.tensor([list(input_ids)], device=model.device)
    _, (tops,) = forced_tokens(model.step_function(), source, [ids], finished=False, top=count)
    return list(tops)


def _entry(tokenizer: Tokenizer, token: int, log_prob: float) -> Token:
    log_prob = max(log_prob, _LEAST)
    spelling = tokenizer.spelling(token)
    if spelling is None:  # a special token, or a row of the network without a piece: they have no text
        return {"id": token, "token": tokenizer.tokens([token])[0], "bytes": None, "log_prob": log_prob}
    data = spelling if isinstance(spelling, bytes) else spelling.encode("utf-8")
    return {"id": token, "token": _text(data), "bytes": list(data), "log_prob": log_prob}


def _text(data: bytes) -> str:
    r"""The text of some bytes; of a part of a character its bytes, as OpenAI's API shows them: bytes:\xc3."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
