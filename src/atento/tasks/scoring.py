"""Log-probabilities of given outputs, token by token (docs/notes.md#h11)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from atento.data.batches.batch import Ragged
from atento.data.batches.special_tokens import begin_of_outputs, special_tokens_of
from atento.decoding.contract import AnyStepFunction
from atento.decoding.forced import Top, forced_tokens
from atento.networks import EncoderDecoder, RecurrentSeq2Seq
from atento.tasks.generation import continuation_ids, plain_steps, prompt_ids
from atento.tasks.grouping import results_of
from atento.tasks.task_model import Continuing, check_lengths
from atento.text.tokenizer import Tokenizer

_BATCH_TOKENS = 4096  # padded, of inputs and outputs


@dataclass(frozen=True)
class TokenScores:
    """The tokens of an output, EOS last, log p of each given those before it (nats), and their sum.

    `top` has the most probable tokens at each place with their log-probabilities, best first, if they were asked for.
    `ids` and `top_ids` are the ids of `tokens` and of `top`.
    """

    tokens: list[str]
    log_probs: list[float] = field(repr=False)
    total: float
    top: list[list[tuple[str, float]]] = field(default_factory=list, repr=False)
    ids: list[int] = field(default_factory=list, repr=False)
    top_ids: list[list[int]] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        return f"TokenScores({len(self.tokens)} tokens, total={self.total:.4f})"


def score_texts(
    network: EncoderDecoder | RecurrentSeq2Seq | Continuing,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    template: str | None = None,
    step_function: AnyStepFunction | None = None,
    trained: int | None = None,
    top: int = 0,
) -> list[TokenScores]:
    """The scores of each target, given its source (or its prompt, with the special tokens of `template`).

    `step_function` replaces the network's plain step function. Sources and targets longer than `trained`
    tokens, of a language model both together, are counted in one warning. `top` of the most probable tokens are
    returned for each place.
    """
    if isinstance(network, Continuing):
        writer, inputs = tokenizer, prompt_ids(network, tokenizer, sources, template)
    else:
        writer = tokenizer.target
        special_tokens = special_tokens_of(network.config, tokenizer)
        inputs = [special_tokens.apply(ids)[0] for ids in tokenizer.encode_batch(list(sources))]
    joined = isinstance(network, Continuing)  # prompt and output share the positions
    outputs = continuation_ids(tokenizer, sources, targets) if joined else writer.encode_batch(list(targets))
    begin = begin_of_outputs(network.config)
    ends = [len(target) + 1 for target in outputs]
    read = [n + m - 1 if joined else max(n, m) for n, m in zip(map(len, inputs), ends)]
    check_lengths(read, network.config, trained, "scores")
    device, pad_id = next(network.parameters()).device, network.config.pad_id
    results: list[TokenScores] = [TokenScores([], [], 0.0)] * len(inputs)
    rows_of, lengths = Ragged(inputs), [len(source) + len(output) for source, output in zip(inputs, outputs)]

    def forced(rows: list[int]) -> Iterator[tuple[list[float], list[Top]]]:
        ids = rows_of.padded(np.array(rows), pad_id)
        real = torch.arange(ids.shape[1]) < torch.tensor([len(inputs[row]) for row in rows])[:, None]
        requested = [[*begin, *outputs[row]] for row in rows]
        steps = plain_steps(network) if step_function is None else step_function
        all_scores, tops = forced_tokens(steps, ids.to(device), requested, token_mask=real.to(device), top=top)
        return ((scores[len(begin) :], best[len(begin) :]) for scores, best in zip(all_scores, tops))

    for row, (scores, best) in results_of(lengths, _BATCH_TOKENS, forced, network):
        target = [*outputs[row], network.config.eos_id]
        named = [list(zip(writer.tokens(i for i, _ in place), (p for _, p in place))) for place in best]
        numbers = [[i for i, _ in place] for place in best]
        results[row] = TokenScores(writer.tokens(target), scores, sum(scores), named, target, numbers)
    return results
