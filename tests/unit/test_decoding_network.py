"""Networks decode as they read, cached or not, alone or not; recurrent attention pays off (C13, C17b, H12, V9)."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import OutputConfig
from atento.config.sections.recurrent import RecurrentConfig, ScoreName
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Batch, Part
from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.inference.plain import PlainStepFunction
from atento.networks.build import build_network
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from atento.training.step import Updater
from test_recurrent import CONFIG, LM_CONFIG, REAL, SOURCE, shaken

UNTIED = OutputConfig(tied=False)
TRANSFORMER = NetworkConfig(vocab_size=17, d_model=8, d_ff=16, n_heads=2, n_layers=2, dropout=0.0, output=UNTIED)
SOURCES = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [12, 5, 14, 3, 0], [3, 0, 0, 0, 0]])  # of the Transformer
FORMS = [
    RecurrentConfig("lstm", attention="none"),
    RecurrentConfig("gru", attention="none", bidirectional=False),
    RecurrentConfig("lstm"),
    RecurrentConfig("gru", values="projected"),
    RecurrentConfig("gru", attention="bilinear"),
    RecurrentConfig("lstm", attention="dot", input_feeding=True),
]
STRATEGIES: list[Greedy | Beam] = [Greedy(), Beam(3, 1.0, 3), Beam(4, 0.0, 2, "shrinking")]
PROMPT = torch.tensor([[2, 5, 6, 7], [8, 9, 0, 0], [0, 0, 0, 4], [0, 0, 0, 0]])
PROMPT_REAL = PROMPT > 0


class History:
    """Everything a row has to be read again: its source or prompt, and what was written."""

    def __init__(self, rows: list[list[int]], written: Tensor) -> None:
        self.rows, self.written = rows, written

    def select(self, rows: Tensor) -> "History":
        return History([self.rows[row] for row in rows.tolist()], self.written[rows])


class Uncached:
    """A network as a step function that reads each row's whole history, alone and unpadded, at every step."""

    def __init__(self, network: Any) -> None:
        self.network, config = network, network.config
        self.start_id, self.eos_id, self.pad_id = config.start_id, config.eos_id, config.pad_id
        if isinstance(network, RecurrentLM):
            self.first_tokens = self._last_of_prompt

    def _last_of_prompt(self, ids: Tensor, token_mask: Tensor) -> Tensor:
        prompts = [row[keep].tolist() for row, keep in zip(ids, token_mask)]
        return torch.tensor([prompt[-1] if prompt else self.start_id for prompt in prompts])

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> History:
        assert token_mask is not None
        rows = [row[keep].tolist() for row, keep in zip(ids, token_mask)]
        if isinstance(self.network, RecurrentLM):
            rows = [row[:-1] for row in rows]
        return History(rows, torch.zeros(len(ids), 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: History) -> tuple[Tensor, History]:
        written = torch.cat([state.written, tokens.view(len(tokens), -1)], dim=1)
        logits = []
        for row, out in zip(state.rows, written):
            if isinstance(self.network, RecurrentLM):
                found = self.network(torch.tensor([[*row, *out.tolist()]])).logits
            else:
                found = self.network(torch.tensor([row]), out.unsqueeze(0)).logits
            assert found is not None
            logits.append(found[0, -1])
        return torch.stack(logits), History(state.rows, written)


def worth_searching(make: Any, ids: Tensor, real: Tensor) -> Any:
    """The first of a hundred random networks whose outputs differ in length, some ended and some cut off."""
    for seed in range(100):
        network = shaken(make(), seed, size=1.0)
        rows = generate(network, ids, Beam(3, 1.0, 3), max_new_tokens=9, token_mask=real)
        if len({len(h.ids) for row in rows for h in row}) > 3 and len({h.finished for row in rows for h in row}) == 2:
            return network
    raise AssertionError("no network of a hundred ends its outputs at different lengths")


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[(h.ids, h.finished) for h in row] for row in one] == [[(h.ids, h.finished) for h in row] for row in other]
    for a, b in zip((h for row in one for h in row), (h for row in other for h in row)):
        assert a.token_scores == pytest.approx(b.token_scores, abs=1e-10)


def assert_cached_is_uncached(network: Any, ids: Tensor, real: Tensor) -> None:
    """Also from a prefix, each row with a limit of its own."""
    for strategy in STRATEGIES:
        for prefix in (None, torch.tensor([[5, 6], [7, 7], [9, 9], [6, 5]])[: len(ids)]):
            options: dict[str, Any] = {"max_new_tokens": [9, 4, 7, 12][: len(ids)], "prefix_ids": prefix}
            options |= {"token_mask": real, "min_new_tokens": 1}
            same(*(generate(one, ids, strategy, **options) for one in (network, Uncached(network))))


def test_h12_v9_cached_search_of_a_batch_equals_uncached_of_each_row_and_leaves_no_trace_on_the_network() -> None:
    """Longer than the table of positions it began with; training afterwards works and weights are as they were."""
    network = worth_searching(partial(build_network, TRANSFORMER), SOURCES, SOURCES > 0)
    assert_cached_is_uncached(network, SOURCES, SOURCES > 0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    generate(network, SOURCES[:1], Greedy(), max_new_tokens=300, eos_id=())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    network(SOURCES, SOURCES, source_token_mask=SOURCES > 0).logits.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.cell}-{form.attention}")
def test_h12_w21_cached_search_equals_uncached_and_a_source_of_length_0_is_as_one_of_padding(form) -> None:
    network = worth_searching(lambda: RecurrentSeq2Seq(replace(CONFIG, recurrent=form)), SOURCE, REAL)
    assert_cached_is_uncached(network, SOURCE, REAL)
    network = shaken(RecurrentSeq2Seq(replace(CONFIG, recurrent=form)))
    nothing = torch.zeros(2, 0, dtype=torch.long)
    for strategy in STRATEGIES:
        found = generate(network, nothing, strategy, max_new_tokens=6)
        padded = torch.full((2, 3), 5)
        same(found, generate(network, padded, strategy, max_new_tokens=6, token_mask=padded < 0))
    out = network(nothing, SOURCE[:2])
    assert out.encoded.shape == (2, 0, CONFIG.d_model) and bool(out.logits.isfinite().all())


def test_h12_c17b_a_language_model_goes_on_from_prompts_of_any_length_by_their_last_tokens() -> None:
    """Padding on either side; an empty prompt begins at the start token."""
    for cell in ("lstm", "gru"):
        config = replace(LM_CONFIG, recurrent=RecurrentConfig(cell))
        model = worth_searching(partial(RecurrentLM, config), PROMPT, PROMPT_REAL)
        assert_cached_is_uncached(model, PROMPT, PROMPT_REAL)
        padded = generate(model, PROMPT, Greedy(), max_new_tokens=6, token_mask=PROMPT_REAL)
        same(generate(model, PROMPT[:1], Greedy(), max_new_tokens=6), padded[:1])
        same(generate(model, PROMPT[:, :0], Greedy(), max_new_tokens=6)[:1], padded[3:])
    step_function = PlainStepFunction(RecurrentLM(replace(LM_CONFIG, recurrent=RecurrentConfig("gru"))))
    assert step_function.first_tokens(PROMPT, PROMPT_REAL).tolist() == [7, 9, 4, CONFIG.start_id]
    assert step_function.first_tokens(PROMPT, None).tolist() == [7, 0, 4, 0]
    assert step_function.first_tokens(PROMPT[:, :0], None).tolist() == [CONFIG.start_id] * 4
    assert step_function.first_tokens(PROMPT[:, :0], PROMPT_REAL[:, :0]).tolist() == [CONFIG.start_id] * 4


SYMBOLS = 36


def reversed_pairs(count: int, shortest: int, longest: int, generator: torch.Generator) -> Batch:
    """Sequences of symbols, and the same backwards, laid out for teacher forcing."""
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    rows = [torch.randint(4, SYMBOLS, (length,), generator=generator).tolist() for length in lengths]

    def laid_out(before: list[int], after: list[int], turn: int, fill: int) -> Tensor:
        width = longest + 1
        full = [[*before, *row[::turn], *after] for row in rows]
        return torch.tensor([row + [fill] * (width - len(row)) for row in full])

    source = laid_out([], [3], 1, 0)
    inputs = {"source_ids": source, "source_token_mask": source > 0, "target_ids": laid_out([2], [], -1, 0)}
    return Batch(inputs, {"vocabulary": laid_out([], [3], -1, -1)})


def share_reversed(attention: ScoreName, length: int, steps: int) -> float:
    """Train on sequences up to `length`; of 100 new ones of that length, the share of tokens written right."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    form = RecurrentConfig("gru", attention=attention)
    network: Any = build_network(replace(CONFIG, vocab_size=SYMBOLS, d_model=64, n_layers=1, recurrent=form))
    training = TrainingConfig(learning_rate=4e-3, label_smoothing=0.0, weight_decay=0.0)
    updater = Updater(network, training, "float32")
    for step in range(steps):
        rate = training.learning_rate * min(1.0, (step + 1) / 50, 2 * (1 - step / steps))
        updater.update([Part(reversed_pairs(32, 1, length, generator))], step + 1, rate)
    network.eval()
    test = reversed_pairs(100, length, length, generator)
    found = generate(network, test.inputs["source_ids"], Greedy(), max_new_tokens=length + 1)
    right = 0
    for (output,), wanted in zip(found, test.labels["vocabulary"].tolist()):
        right += sum(a == b for a, b in zip(output.ids, wanted[:-1]))
    return right / (100 * length)


@pytest.mark.slow  # row C13 of the notes, which the gate runs, trains the same two networks on fewer updates
def test_c13_attention_reverses_what_one_vector_cannot_hold() -> None:
    """Equal data, steps and width, by the training step of translation: 12 symbols of 32 kinds are 60 bits."""
    assert share_reversed("additive", 12, 250) > 0.85 and share_reversed("none", 12, 250) < 0.4
    # A minute on one core; 0.99 against 0.08 were measured
    assert share_reversed("additive", 40, 500) > 0.9 and share_reversed("none", 40, 500) < 0.3
