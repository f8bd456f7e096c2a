"""Log-probabilities of given outputs, token by token (docs/notes.md#h11)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from atento.base.errors import CapabilityError, UsageError
from atento.data.batches.batch import Ragged
from atento.data.batches.special_tokens import begin_of_outputs, special_tokens_of
from atento.decoding.contract import AnyStepFunction
from atento.decoding.forced import Top, forced_tokens
from atento.networks import Encoder, EncoderDecoder, RecurrentSeq2Seq
from atento.tasks.length_batching import run_in_batches
from atento.tasks.prompt_ids import continuation_ids, prompt_ids
from atento.tasks.task_model import Continuing, TaskModel, can_continue, check_lengths, tokenizer_of

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


def score_outputs(
    model: TaskModel,
    sources: Sequence[str],
    targets: Sequence[str],
    top: int = 0,
    step_function: AnyStepFunction | None = None,
) -> list[TokenScores]:
    """The scores of given outputs, with `top` of the most probable tokens at each place.

    Sources and targets longer than in training, of a language model both together, are counted in one warning.
    `step_function` replaces the model's.
    Raises CapabilityError: the network writes nothing. UsageError: the lists are not equally long.
    """
    network = model.network
    joined = isinstance(network, Continuing)  # prompt and output share the positions
    if not isinstance(network, EncoderDecoder | RecurrentSeq2Seq | Continuing) or (
        isinstance(network, Encoder) and not can_continue(network, model.config)
    ):
        raise CapabilityError(f"this network ({type(network).__name__}) writes nothing that could be scored")
    if len(sources) != len(targets):
        raise UsageError(f"as many sources as targets: got {len(sources)} and {len(targets)}")
    tokenizer = tokenizer_of(model)
    writer, steps = tokenizer.target, step_function or model.step_function()
    if joined:
        inputs, outputs = prompt_ids(model, sources), continuation_ids(tokenizer, sources, targets)
    else:
        special_tokens = special_tokens_of(network.config, tokenizer)
        inputs = [special_tokens.apply(ids)[0] for ids in tokenizer.encode_batch(list(sources))]
        outputs = writer.encode_batch(list(targets))
    begin = begin_of_outputs(network.config)
    ends = [len(target) + 1 for target in outputs]
    read = [n + m - 1 if joined else max(n, m) for n, m in zip(map(len, inputs), ends)]
    check_lengths(read, network.config, model.trained_length, "scores")
    device, pad_id = next(network.parameters()).device, network.config.pad_id
    results: list[TokenScores] = [TokenScores([], [], 0.0)] * len(inputs)
    rows_of, lengths = Ragged(inputs), [len(source) + len(output) for source, output in zip(inputs, outputs)]

    def forced(rows: list[int]) -> Iterator[tuple[list[float], list[Top]]]:
        ids = rows_of.padded(np.array(rows), pad_id)
        real = torch.arange(ids.shape[1]) < torch.tensor([len(inputs[row]) for row in rows])[:, None]
        requested = [[*begin, *outputs[row]] for row in rows]
        all_scores, tops = forced_tokens(steps, ids.to(device), requested, token_mask=real.to(device), top=top)
        return ((scores[len(begin) :], best[len(begin) :]) for scores, best in zip(all_scores, tops))

    for row, (scores, best) in run_in_batches(lengths, _BATCH_TOKENS, forced, network):
        target = [*outputs[row], network.config.eos_id]
        named = [list(zip(writer.tokens(i for i, _ in place), (p for _, p in place))) for place in best]
        numbers = [[i for i, _ in place] for place in best]
        results[row] = TokenScores(writer.tokens(target), scores, sum(scores), named, target, numbers)
    return results
