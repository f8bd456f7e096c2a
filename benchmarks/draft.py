"""Greedy search with a draft compared with greedy search alone, run alternately: tokens a second, tokens accepted.

Three kinds of text. "copying": an encoder-decoder writes summaries of which four fifths are spans of the source, as in
extractive summarisation; its logits are raised towards such a summary, and all else is computed as usual.
"translating": a small Transformer, trained on the micro-world, translates sentences that it was not trained on; a
network with one layer is trained as its draft. "continuing": GPT-2 small with random weights, which soon repeats
itself.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import AtentoError
from atento.config import presets
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.decoding import Greedy, Hypothesis, generate
from atento.decoding.contract import AnyStepFunction
from atento.decoding.draft_proposals import Draft
from atento.inference.choose import step_function
from atento.inference.fast_state import FastState
from atento.inference.ragged_rows import FastRows
from atento.networks import build_network, build_seq2seq
from atento.text.tokenizer_training import train_tokenizer
from atento.training.allocator import raise_trim_threshold
from atento_lab.studies.recurrence import train_translator, translators
from atento_world import write
from benchmarks.processes import about

_RAISED = 50.0  # added to the logit of the next token of a summary: far above the others
_SPAN, _NEW = 6, 0.2  # tokens of a copied span on average, share of tokens that are not copied
_ROUNDS = 3
_UPDATES = 300  # at least, after which the translator writes sentences


@dataclass
class Case:
    """Texts to write, and the drafts to compare.

    Attributes:
        name: of the kind of text.
        steps: the step function.
        ids, real: sources or prompts (B,S), and which tokens are real.
        new_tokens: at most so many a text.
        drafts: name -> draft.
        eos_id: None: the network's own.
    """

    name: str
    steps: AnyStepFunction
    ids: Tensor
    real: Tensor | None
    new_tokens: int
    drafts: dict[str, Draft]
    eos_id: tuple[int, ...] | None = None

    def write(self, draft: Draft | None) -> list[Hypothesis]:
        """The outputs by greedy search."""
        outputs = generate(
            self.steps,
            self.ids,
            Greedy(),
            max_new_tokens=self.new_tokens,
            eos_id=self.eos_id,
            token_mask=self.real,
            draft=draft,
        )
        return [row[0] for row in outputs]


def measure_draft(seconds: float, *, size: str = "usual") -> Iterator[dict[str, object]]:
    """Yield rows of tokens per second and shares of tokens, in about `seconds` a case; the last rows are the ratios.

    Args:
        seconds: also the training time of the translator.
        size: "usual", or "tiny" to try the measurement.

    Raises:
        AtentoError: an output with a draft differs from the one without.
    """
    raise_trim_threshold()
    yield about("draft", size, ())
    ratios = []
    for case in _cases(seconds, is_tiny=size == "tiny"):
        measured = _alternate(case, seconds)
        base = {"bench": "draft", "case": case.name, "rows": len(case.ids)}
        plain = measured.pop("none")
        yield base | {"draft": "none", "tokens_a_second": round(plain.speed, 1)}
        for name, result in measured.items():
            shares = {"accepted": round(result.accepted, 3), "tokens_a_step": round(result.tokens_a_step, 2)}
            yield base | {"draft": name, "tokens_a_second": round(result.speed, 1)} | shares
            ratios.append(base | {"draft": name, "ratio_to_none": round(result.speed / plain.speed, 2)})
    yield from ratios


@dataclass
class _Result:
    """The speed of one contender, and what became of the tokens that it proposed."""

    durations: list[float] = field(default_factory=list)
    tokens: int = 0
    proposed: int = 0
    accepted_tokens: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / median(self.durations)

    @property
    def accepted(self) -> float:
        """The share of the proposed tokens that became part of an output."""
        return self.accepted_tokens / max(1, self.proposed)

    @property
    def tokens_a_step(self) -> float:
        """Tokens of an output for each step of the network: those that were not proposed take one each."""
        return self.tokens / max(1, self.tokens - self.accepted_tokens)


def _alternate(case: Case, seconds: float) -> dict[str, _Result]:
    """The results of greedy search alone, "none", and with each draft, in turns after a warm-up."""
    contenders: dict[str, Draft | None] = {"none": None, **case.drafts}
    results = {name: _Result() for name in contenders}
    expected = [output.ids for output in case.write(None)]
    for each in case.drafts.values():
        case.write(each)
    start = time.perf_counter()
    while len(results["none"].durations) < _ROUNDS or time.perf_counter() - start < seconds:
        for name, draft in contenders.items():
            begun, result = time.perf_counter(), results[name]
            outputs = case.write(draft)
            result.durations.append(time.perf_counter() - begun)
            if [output.ids for output in outputs] != expected:
                raise AtentoError(f"{case.name}: the outputs with the draft {name} differ from those without")
            result.tokens = sum(len(output.token_scores) for output in outputs)
            result.proposed = sum(output.proposed for output in outputs)
            result.accepted_tokens = sum(output.accepted for output in outputs)
    return results


def _cases(seconds: float, *, is_tiny: bool) -> Iterator[Case]:
    rows = (1, 2) if is_tiny else (1, 8)
    for count in rows:
        yield _copying(count, is_tiny)
    yield from _translation(seconds, rows, least=1 if is_tiny else _UPDATES)
    for count in rows:
        yield _continuation(count, is_tiny)


# Copying --------------------------------------------------------------------------------------------------------------


def _copying(count: int, is_tiny: bool) -> Case:
    config = NetworkConfig(vocab_size=32_000, d_model=512, d_ff=2048, n_heads=8, n_layers=6, dropout=0.0, norm="pre")
    config = changed(config, vocab_size=200, d_model=32, d_ff=64, n_heads=4, n_layers=1) if is_tiny else config
    source_length, length = (40, 20) if is_tiny else (200, 40)
    draw = random.Random(1)
    sources = [[draw.randrange(4, config.vocab_size) for _ in range(source_length)] for _ in range(count)]
    summaries = [summary_of(source, length, config.vocab_size, draw) for source in sources]
    torch.manual_seed(1)
    steps = Raised(step_function(build_network(config).eval()), summaries)
    return Case("copying", steps, torch.tensor(sources), None, length, {"ngrams": Draft()}, ())


def summary_of(source: Sequence[int], length: int, vocab_size: int, draw: random.Random) -> list[int]:
    """Spans of the source in their order, with other tokens between them."""
    summary: list[int] = []
    while len(summary) < length:
        if draw.random() < _NEW * _SPAN / (1 + _NEW * _SPAN - _NEW):
            summary.append(draw.randrange(4, vocab_size))
        else:
            span = 1 + int(draw.expovariate(1 / (_SPAN - 0.5)))  # mean about _SPAN
            first = draw.randrange(max(1, len(source) - span))
            summary += source[first : first + span]
    return summary[:length]


class Raised:
    """A step function whose logits are raised towards a given output for each row; the network computes as usual.

    Args:
        inner: the step function of an encoder-decoder.
        outputs: the tokens of each row. A row is found again by its source, whose keys the state holds.
    """

    def __init__(self, inner: Any, outputs: Sequence[Sequence[int]]) -> None:
        self.inner, self.rounding = inner, inner.rounding
        self.start_id, self.eos_id, self.pad_id = inner.start_id, inner.eos_id, inner.pad_id
        self._outputs = torch.tensor([list(output) for output in outputs])
        self._marks = torch.empty(0)

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> FastState:
        """As the step function that it holds."""
        state: FastState = self.inner.begin(ids, token_mask)
        self._marks = state.source[0][0].flatten(1).sum(dim=1)
        return state

    def step(self, tokens: Tensor, state: FastState) -> tuple[Tensor, FastState]:
        """As the step function that it holds."""
        columns = torch.full((len(tokens), 1), state.length)
        logits, state = self.inner.step(tokens, state)
        return self._raised(logits.unsqueeze(1), columns, state.source).squeeze(1), state

    def rewindable(self, state: FastState) -> FastRows:
        """As the step function that it holds."""
        rows: FastRows = self.inner.rewindable(state)
        return rows

    def step_all(self, tokens: Tensor, counts: Sequence[int], state: FastRows) -> tuple[Tensor, FastRows]:
        """As the step function that it holds."""
        columns = torch.tensor(state.lengths).unsqueeze(1) + torch.arange(tokens.shape[1])
        logits, rows = self.inner.step_all(tokens, counts, state)
        return self._raised(logits, columns, rows.source), rows

    def crop(self, state: FastRows, counts: Sequence[int]) -> FastRows:
        """As the step function that it holds."""
        rows: FastRows = self.inner.crop(state, counts)
        return rows

    def _raised(self, logits: Tensor, columns: Tensor, source: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits (R,T,V) after the tokens in those columns (R,T)."""
        marks = source[0][0].flatten(1).sum(dim=1)  # (M,): which source it is, by its keys
        rows = (marks.unsqueeze(1) - self._marks).abs().argmin(dim=1)  # the row of each output
        columns = columns.clamp(max=self._outputs.shape[1] - 1)
        tokens = self._outputs[rows].gather(1, columns).unsqueeze(2)  # (R,T,1)
        return logits.scatter_add(2, tokens, torch.full_like(tokens, _RAISED, dtype=logits.dtype))


# Translation and continuation -----------------------------------------------------------------------------------------


def _translation(seconds: float, rows: Sequence[int], least: int) -> Iterator[Case]:
    train, held_out = write("train", 10_000), write("combinations", 200)
    texts = [text for pair in train for text in (pair.source, pair.target)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=1000), texts)
    roles = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos", "unk")}
    sized = changed(
        translators()["transformer"], vocab_size=tokenizer.vocab_size, ids=roles | {"start": tokenizer.bos_id}
    )
    small = changed(sized, d_model=64, d_ff=128, n_layers=1)
    networks = []
    for config in (changed(sized, n_layers=4), small):
        torch.manual_seed(1)
        network = build_seq2seq(config)
        train_translator(network, tokenizer, [p.source for p in train], [p.target for p in train], seconds, least)
        networks.append(network.eval())
    steps, small_steps = (step_function(network) for network in networks)
    drafts = {
        "ngrams": Draft(),
        "a network": Draft(ngrams=False, network=small_steps, tokens=5),
        "both": Draft(network=small_steps, tokens=5),
    }
    for count in rows:
        sources = [
            [*ids, tokenizer.eos_id] for ids in tokenizer.encode_batch([pair.source for pair in held_out[:count]])
        ]
        longest = max(map(len, sources))
        ids = torch.tensor([[*source, *[sized.pad_id] * (longest - len(source))] for source in sources])
        real = torch.arange(longest) < torch.tensor([[len(source)] for source in sources])  # (B,S)
        yield Case("translating", steps, ids, real, 2 * longest + 16, drafts)


def _continuation(count: int, is_tiny: bool) -> Case:
    ids = {"ids": {"pad": 199, "unk": 199, "bos": 199, "eos": 199, "start": 199}}
    config = presets.gpt2()
    if is_tiny:
        config = changed(config, vocab_size=200, d_model=32, d_ff=64, n_heads=4, n_layers=2, max_len=128, **ids)
    torch.manual_seed(1)
    network = build_network(config).eval()
    prompts = torch.randint(0, config.vocab_size, (count, 24), generator=torch.Generator().manual_seed(1))
    return Case("continuing", step_function(network), prompts, None, 64, {"ngrams": Draft()}, ())
