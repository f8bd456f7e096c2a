"""Log-probabilities of tokens in the shapes of OpenAI's API, from the entries of `serve.jobs.Piece.log_probs`."""

from collections.abc import Sequence
from typing import Any


def completion_log_probs(entries: Sequence[Any], text: str, offset: int, count: int) -> dict[str, Any]:
    """`logprobs` of a completion: tokens, their log-probabilities by the model, and where each begins in the text.

    Args:
        entries: of the tokens of a text.
        text: that text; the first token may have a space before it that the text has not.
        offset: the characters before it.
        count: how many of the most probable tokens were asked for. `top_logprobs` has them by their texts, and the
            token itself if it is none of them; it is null if none were.
    """
    offsets, data = [], b""
    for entry in entries:
        offsets.append(len(data.decode("utf-8", "ignore")))
        data += bytes(entry["bytes"] or ())
    extra = int(data.startswith(b" ") and not text.startswith(" "))
    tops = [{row["token"]: row["log_prob"] for row in (*entry["top"], entry)} if count else None for entry in entries]
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["log_prob"] for entry in entries],
        "top_logprobs": tops if count else None,
        "text_offset": [offset + max(0, at - extra) for at in offsets],
    }


def chat_log_probs(entries: Sequence[Any]) -> dict[str, Any]:
    """`logprobs` of a conversation: each token with its bytes, and the most probable ones in its place."""
    rows = [_row(entry) | {"top_logprobs": [_row(top) for top in entry["top"]]} for entry in entries]
    return {"content": rows, "refusal": None}


def _row(entry: Any) -> dict[str, Any]:
    return {"token": entry["token"], "logprob": entry["log_prob"], "bytes": entry["bytes"]}
