"""Translation: text in, text out, in batches of like length, line N of the output answering line N of the input."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atento.config.recipe import DecodingConfig
from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.networks import Seq2Seq
from atento.tasks.grouping import by_length
from atento.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """One output text with the hypothesis it was written from."""

    text: str
    hypothesis: Hypothesis


def strategy_of(config: DecodingConfig) -> Greedy | Beam:
    """The strategy a decoding configuration stands for."""
    if config.beam == 1:
        return Greedy()
    return Beam(config.beam, length_penalty=config.length_penalty, n_best=config.n_best)


def translate(
    network: Seq2Seq,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: DecodingConfig,
) -> list[list[Translation]]:
    """The n best translations of each text, best first; a blank text has one empty translation.

    Texts are sorted by length and decoded `config.batch_tokens` padded source tokens at a time, so memory is bounded
    and no sentence waits for a much longer one; the result does not depend on who shares a batch.
    """
    ids = tokenizer.encode_batch(list(texts))
    results: list[list[Translation]] = [[] for _ in texts]
    strategy = strategy_of(config)
    for rows in by_length([len(row) for row in ids], config.batch_tokens // config.beam, extra=1):
        hypotheses = decode_ids(network, [ids[row] for row in rows], strategy, config.max_new_tokens)
        for row, found in zip(rows, hypotheses):
            results[row] = [Translation(tokenizer.target.decode(h.ids), h) for h in found]
    blank = [Translation("", Hypothesis([], 0.0, 0.0, []))]
    return [found or blank for found in results]


def decode_ids(
    network: Seq2Seq, sources: Sequence[Sequence[int]], strategy: Greedy | Beam, max_new_tokens: int | None
) -> list[list[Hypothesis]]:
    """One batch of sources (without EOS) through the search."""
    config = network.config
    device = next(network.parameters()).device
    lengths = torch.tensor([len(source) + 1 for source in sources])
    ids = torch.full((len(sources), int(lengths.max())), config.pad_id)
    for row, source in enumerate(sources):
        ids[row, : len(source) + 1] = torch.tensor([*source, config.eos_id])
    padding_mask = torch.arange(ids.shape[1]) < lengths[:, None]
    most = [2 * len(source) + 16 for source in sources] if max_new_tokens is None else max_new_tokens
    return generate(network, ids.to(device), strategy, max_new_tokens=most, padding_mask=padding_mask.to(device))
