"""Log-probabilities of tokens in the shapes of OpenAI's API, from those of `atento_serve.jobs.Piece.log_probs`."""

from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

from atento_serve.jobs import Entry, Token


def completion_log_probs(entries: Sequence[Entry], text: str, offset: int, count: int) -> dict[str, Any]:
    """`logprobs` of a completion: tokens, their log-probabilities by the model, and where each begins in the text.

    Args:
        entries: of the tokens of a text.
        text: that text; the first token may have a space before it that the text has not.
        offset: the characters before it.
        count: how many of the most probable tokens were asked for. `top_logprobs` has them by their texts, and the
            token itself if it is none of them; it is null if none were.
    """
    pieces = [bytes(entry["bytes"] or ()) for entry in entries]
    spaces = int(b"".join(pieces).startswith(b" "))  # the first piece of a text often begins with one
    # two ways in which tokenizers decode bytes
    readings = [_first_bytes(pieces, by_byte=by_byte) for by_byte in (False, True)]
    # the reading with as many characters as the text
    first = next((one for one in readings if 0 <= len(one) - len(text) <= spaces), readings[0])
    extra = min(spaces, max(0, len(first) - len(text)))
    begins = list(accumulate(map(len, pieces), initial=0))  # the first byte of each piece, and the end
    # the character that holds the first byte of a token
    offsets = [bisect_right(first, begin) - 1 if begin < begins[-1] else len(first) for begin in begins[:-1]]
    tops = [{row["token"]: row["log_prob"] for row in (*entry["top"], entry)} if count else None for entry in entries]
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["log_prob"] for entry in entries],
        "top_logprobs": tops if count else None,
        "text_offset": [offset + max(0, at - extra) for at in offsets],
    }


def chat_log_probs(entries: Sequence[Entry]) -> dict[str, object]:
    """`logprobs` of a conversation: each token with its bytes, and the most probable ones in its place."""
    rows = [_row(entry) | {"top_logprobs": [_row(top) for top in entry["top"]]} for entry in entries]
    return {"content": rows, "refusal": None}


def _first_bytes(pieces: Sequence[bytes], *, by_byte: bool) -> list[int]:
    """Where each character of some bytes begins; those of no character are read as U+FFFD, as `bytes.decode` does it.

    `by_byte`: tokens of one byte that follow one another are a run, each byte of which is U+FFFD if not all of it is
    text, as tokenizers with pieces for bytes decode it.
    """
    first, begin = list[int](), 0
    for is_run, run in groupby(pieces, lambda piece: by_byte and len(piece) == 1 and not 0x20 <= piece[0] < 0x7F):
        data, open_at = b"".join(run), 0
        if is_run and "\ufffd" in data.decode("utf-8", "replace"):
            first += range(begin, begin + len(data))
        else:
            decoder = getincrementaldecoder("utf-8")("replace")
            for at in range(len(data)):
                if decoded := decoder.decode(data[at : at + 1]):
                    first += [begin + open_at, begin + at][: len(decoded)]
                    open_at = at + 1 - len(decoder.getstate()[0])
            first += [begin + open_at] if decoder.getstate()[0] else []
        begin += len(data)
    return first


def _row(entry: Token) -> dict[str, object]:
    return {"token": entry["token"], "logprob": entry["log_prob"], "bytes": entry["bytes"]}
