"""Agreement of reduced precisions with float32 on a trained model: top tokens and BLEU."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from atento.base.errors import CapabilityError
from atento.config.recipe import SourceConfig
from atento.data.records.reader import SOURCE_AND_TARGET, read_records
from atento.decoding import Beam, Greedy, generate
from atento.decoding.contract import AnyStepFunction
from atento.inference.choose import step_function
from atento.inference.packed_linear import Precision
from atento.inference.plain import PlainStepFunction
from atento.metrics import METRICS
from atento.model import load
from atento.networks import EncoderDecoder
from atento.tasks.length_batching import length_batches
from atento.text.lengths import pad_batch
from benchmarks.decoding import PRECISIONS

_BATCH_TOKENS = 4096
TOP_TOKEN, BLEU = 0.99, 0.1  # goals: share of the steps, and difference of the score

Rows = Sequence[Sequence[int]]


def measure_agreement(
    model: str | Path,
    sources: str | Path,
    references: str | Path,
    *,
    precisions: Sequence[Precision] = PRECISIONS,
    beam: int | None = None,
    count: int | None = None,
) -> Iterator[dict[str, object]]:
    """Yield a row of the plain network's BLEU in float32, then one per precision of the fast step function.

    Each gives the share of steps along the plain network's output with the same most probable token (goal: 99 %), the
    BLEU of its own outputs (goal: within 0.1) and the share of equal outputs. It does not measure time.

    Args:
        model: a run folder or a model folder, of an encoder-decoder.
        sources: a file of source texts.
        references: the parallel file of target texts.
        beam: the beam width; None uses the recipe's.
        count: use only the first `count` pairs.

    Raises:
        CapabilityError: another kind of model.
    """
    loaded = load(model, device="cpu")
    network, tokenizer = loaded.network, loaded.tokenizer
    if not isinstance(network, EncoderDecoder) or tokenizer is None:
        raise CapabilityError(f"agreement is measured on an encoder-decoder with a tokenizer: got {model}")
    pairs = read_records(SourceConfig(source=str(sources), target=str(references), count=count), SOURCE_AND_TARGET)
    texts, answers = pairs["source"][:count], pairs["target"][:count]
    rows = [[*ids, network.config.eos_id] for ids in tokenizer.encode_batch(texts)]
    width = loaded.decoding.beam if beam is None else beam
    strategy = Greedy() if width == 1 else Beam(width, length_penalty=loaded.decoding.length_penalty)

    def score(outputs: Rows) -> float:
        texts = [tokenizer.target.decode(_text(ids, network.config.eos_id)) for ids in outputs]
        return METRICS["bleu"].score(texts, answers).value

    plain = PlainStepFunction(network)
    expected = search(plain, rows, strategy)
    top = top_tokens(plain, rows, expected)
    bleu = score(expected)
    common = {"bench": "agreement", "sentences": len(rows), "beam": width}
    yield common | {"precision": "plain float32", "bleu": round(bleu, 2)}
    for precision in precisions:
        fast = step_function(network, kind="fast", precision=precision)
        along = top_tokens(fast, rows, expected)
        outputs = search(fast, rows, strategy)
        bleu_of_precision = score(outputs)
        yield common | {
            "precision": precision,
            "same_top_token": round(share(along, top), 5),
            "goal": TOP_TOKEN,
            "steps": sum(len(row) for row in top),
            "bleu": round(bleu_of_precision, 2),
            "bleu_difference": round(bleu_of_precision - bleu, 3),
            "bleu_goal": BLEU,
            "same_outputs": round(sum(a == b for a, b in zip(outputs, expected)) / len(expected), 4),
        }


def search(step_function: AnyStepFunction, rows: Rows, strategy: Greedy | Beam) -> list[list[int]]:
    """Return the best output of each row of source ids, with the end token if it ended."""
    outputs_by_row: list[list[int]] = [[] for _ in rows]
    width = strategy.width if isinstance(strategy, Beam) else 1
    for batch in length_batches([len(row) for row in rows], _BATCH_TOKENS // width):
        ids, token_mask = pad_batch([rows[row] for row in batch], step_function.pad_id)
        outputs = generate(
            step_function,
            torch.from_numpy(ids),
            strategy,
            max_new_tokens=[2 * len(rows[row]) + 14 for row in batch],
            token_mask=torch.from_numpy(token_mask),
        )
        for row, (hypothesis, *_) in zip(batch, outputs):
            outputs_by_row[row] = [*hypothesis.ids, *([step_function.eos_id] if hypothesis.finished else [])]
    return outputs_by_row


@torch.inference_mode()
def top_tokens(step_function: AnyStepFunction, rows: Rows, outputs: Rows) -> list[list[int]]:
    """Return the most probable token at each step; every step reads the previous tokens of `outputs`."""
    tokens_by_row: list[list[int]] = [[] for _ in rows]
    for batch in length_batches([len(row) for row in rows], _BATCH_TOKENS):
        ids, token_mask = pad_batch([rows[row] for row in batch], step_function.pad_id)  # (B,S) each
        padded_outputs, _ = pad_batch([outputs[row] for row in batch], step_function.pad_id)  # (B,T)
        inputs = np.concatenate([np.full((len(batch), 1), step_function.start_id), padded_outputs], axis=1)  # (B,1+T)
        state = step_function.begin(torch.from_numpy(ids), torch.from_numpy(token_mask))
        for position in range(padded_outputs.shape[1]):
            logits, state = step_function.step(torch.from_numpy(inputs[:, position].copy()), state)  # (B,V)
            for row, token in zip(batch, logits.argmax(dim=-1).tolist()):
                if position < len(outputs[row]):
                    tokens_by_row[row].append(token)
    return tokens_by_row


def share(rows: Rows, other_rows: Rows) -> float:
    """Return the share of equal tokens in rows of equal lengths."""
    matches = [
        a == b for row, other_row in zip(rows, other_rows, strict=True) for a, b in zip(row, other_row, strict=True)
    ]
    return sum(matches) / len(matches)


def _text(ids: Sequence[int], eos_id: int) -> list[int]:
    return list(ids[:-1] if ids and ids[-1] == eos_id else ids)
