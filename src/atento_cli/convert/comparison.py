"""A converted model beside the network that it was made from: the same random ids, outputs and speed of both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from atento.base.errors import AtentoError
from atento.config.sections.network import NetworkConfig
from atento.decoding import Greedy, generate
from atento.inference.choose import NetworkStepFunction
from atento.networks import Network
from atento.text.lengths import pad_batch

Rows = list[list[int]]
Result = TypeVar("Result")
_ROWS, _SHORTEST, _LONGEST = 8, 3, 24
NEW_TOKENS = 24
_ROUNDING = 1e-2  # the largest difference that rounding in float32 explains, in logits or log-probabilities


@dataclass(frozen=True)
class Comparison:
    """What was compared, and how near it is."""

    compared: str  # "log-probabilities", "logits", "hidden vectors" or "text vectors"
    max_difference: float  # the largest absolute difference of those
    agreement: float  # share of equal choices, 0 to 1
    choices: str  # what the choices are, such as "greedy tokens"
    before: float  # tokens a second of Atento in float32. after: of the engine
    after: float


def sample_rows(config: NetworkConfig, seed: int) -> Rows:
    """Rows of random ids without special tokens, of several lengths; sources end with EOS."""
    rng = np.random.default_rng(seed)
    specials = {config.pad_id, config.unk_id, config.bos_id, config.eos_id, config.start_id, config.mask_id}
    ids = np.array([number for number in range(config.vocab_size) if number not in specials] or [config.unk_id])
    longest = min(_LONGEST, max(1, (config.position_limit or 2 * _LONGEST) // 2))
    lengths = rng.integers(min(_SHORTEST, longest), longest + 1, _ROWS)
    end = [config.eos_id] if config.reads_source else []
    return [[*rng.choice(ids, length).tolist(), *end][-longest:] for length in lengths]


def new_tokens(config: NetworkConfig, rows: Rows) -> int:
    """How many tokens fit behind the rows."""
    read = 1 if config.reads_source else max(map(len, rows))
    return min(NEW_TOKENS, (config.position_limit or NEW_TOKENS + read) - read)


def padded(rows: Rows, pad_id: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as ids (B,L) and their token mask."""
    ids, real = pad_batch(rows, pad_id, side="left" if side == "left" else "right")
    return torch.from_numpy(ids), torch.from_numpy(real)


def greedy_outputs(function: NetworkStepFunction, config: NetworkConfig, rows: Rows) -> Rows:
    """What Atento writes for the rows, greedily."""
    ids, token_mask = padded(rows, config.pad_id)
    outputs = generate(function, ids, Greedy(), max_new_tokens=new_tokens(config, rows), token_mask=token_mask)
    return [hypotheses[0].ids for hypotheses in outputs]


@torch.inference_mode()
def token_log_probs(network: Network, sources: Rows, outputs: Rows) -> list[list[float]]:
    """The log-probability of each token of the outputs and of EOS behind them, for the sources."""
    config = network.config
    source_ids, source_mask = padded(sources, config.pad_id)  # (B,S) each
    read, _ = padded([[config.start_id, *row] for row in outputs], config.pad_id)  # (B,T)
    target, _ = padded([[*row, config.eos_id] for row in outputs], config.pad_id)  # (B,T)
    logits = network(source_ids, read, source_token_mask=source_mask).logits  # (B,T,V)
    log_probs = torch.log_softmax(logits.float(), dim=-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)  # (B,T)
    return [row[: len(output) + 1].tolist() for row, output in zip(log_probs, outputs)]  # + 1: EOS


def same_tokens(outputs: Rows, expected: Rows) -> float:
    """The share of tokens that stand at the same position in both."""
    same = sum(a == b for row, expected_row in zip(outputs, expected) for a, b in zip(row, expected_row))
    total = sum(max(len(row), len(expected_row)) for row, expected_row in zip(outputs, expected))
    return same / total if total else 1.0


def largest_difference(computed: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest absolute difference of arrays of equal shapes; infinite where one is not finite."""
    differences = [np.abs(a.astype(np.float64) - b).max(initial=0.0) for a, b in zip(computed, expected, strict=True)]
    return float(np.nan_to_num(max(differences, default=0.0), nan=np.inf))


def timed(call: Callable[[], Result], rounds: int = 3) -> tuple[Result, float]:
    """The result of a call, and the least seconds of some more calls."""
    result, seconds = call(), []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return result, max(min(seconds), 1e-9)


def check_exact(comparison: Comparison, engine: str, precision: str) -> None:
    """Raises AtentoError: in float32 the outputs differ by more than rounding."""
    if precision == "float32" and not comparison.max_difference <= _ROUNDING:
        raise AtentoError(
            f"{engine} gives other {comparison.compared} than Atento: they differ by {comparison.max_difference:.2g}, "
            f"and rounding explains {_ROUNDING} at most; nothing was written"
        )


def cosine(computed: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The least cosine of a vector (..., D) and the expected one."""
    least = 1.0
    for a, b in zip(computed, expected, strict=True):
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        least = min(least, float(((a * b).sum(axis=-1) / np.maximum(norms, 1e-30)).min()))
    return least
