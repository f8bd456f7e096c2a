"""Toy languages for search algorithms: chains whose next token depends on source and prefix."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

EOS = 0
Prefix = tuple[int, ...]
LogProbs = Callable[[Prefix, Prefix], Tensor]


@dataclass
class _Rows:
    """Source and prefix of each row."""

    sources: list[Prefix]
    prefixes: list[Prefix]

    def select(self, rows: Tensor) -> "_Rows":
        indices = rows.tolist()
        return _Rows([self.sources[row] for row in indices], [self.prefixes[row] for row in indices])


class Chain:
    """A step function for `atento.decoding` whose tokens are 0 (EOS) to `vocab_size` - 1."""

    start_id, eos_id, pad_id = -1, EOS, EOS

    def __init__(self, log_probs: LogProbs, vocab_size: int, names: Sequence[str] = ()) -> None:
        self.log_probs, self.vocab_size, self.names = log_probs, vocab_size, names

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> _Rows:
        """Start with empty prefixes; ids (B,S)."""
        return _Rows([tuple(row) for row in ids.tolist()], [()] * len(ids))

    def step(self, tokens: Tensor, state: _Rows) -> tuple[Tensor, _Rows]:
        """Return log-probabilities (R,V) of the next token and the extended prefixes; tokens (R,)."""
        new = [() if token == self.start_id else (token,) for token in tokens.tolist()]
        prefixes = [(*old, *more) for old, more in zip(state.prefixes, new)]
        scores = [self.log_probs(source, prefix) for source, prefix in zip(state.sources, prefixes)]
        return torch.stack(scores), _Rows(state.sources, prefixes)

    def log_prob(self, source: Prefix, output: Prefix) -> float:
        """Return the sum of log p over the tokens of an output."""
        return sum(float(self.log_probs(source, output[:i])[token]) for i, token in enumerate(output))

    def text(self, ids: Sequence[int]) -> str:
        """Return the words of these ids."""
        return " ".join(self.names[i] for i in ids)


def random_chain(vocab_size: int) -> Chain:
    """Return a chain with a random distribution for every source and prefix, drawn once."""
    drawn: dict[tuple[Prefix, Prefix], Tensor] = {}

    def log_probs(source: Prefix, prefix: Prefix) -> Tensor:
        if (source, prefix) not in drawn:
            drawn[source, prefix] = torch.log_softmax(1.5 * torch.randn(vocab_size, dtype=torch.float64), dim=0)
        return drawn[source, prefix]

    return Chain(log_probs, vocab_size)


def table_chain(table: Mapping[tuple[str, ...], Mapping[str, float]]) -> Chain:
    """Return a chain from words and probabilities; a prefix that is not in the table is followed by EOS."""
    names = ["</s>", *dict.fromkeys(word for row in table.values() for word in row if word != "</s>")]

    def log_probs(source: Prefix, prefix: Prefix) -> Tensor:
        row = table.get(tuple(names[i] for i in prefix), {"</s>": 1.0})
        return torch.tensor([row.get(name, 0.0) for name in names], dtype=torch.float64).log()

    return Chain(log_probs, len(names), names)


@torch.no_grad()
def spread_out(network: nn.Module, output: nn.Linear) -> None:
    """Initialise with large random weights, so that outputs vary by position and do not end immediately."""
    for parameter in network.parameters():
        parameter.normal_()
    output.bias[EOS] = -1.0


class ToyLanguageModel(nn.Module):
    """A language model in the notes' call shape: ids (B,L) -> logits (B,L,V).

    Each token depends on all earlier ones.
    """

    eos_token = EOS

    def __init__(self, vocab_size: int = 7, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, vocab_size)
        spread_out(self, self.output)

    def forward(self, ids: Tensor) -> Tensor:
        """(B,L) -> (B,L,V)."""
        logits: Tensor = self.output(self.recurrent(self.embedding(ids))[0])
        return logits


class ToySeq2Seq(nn.Module):
    """An LSTM encoder and decoder in the notes' call shape; the decoder returns logits, not log-probabilities."""

    sos_token, eos_token = 1, EOS

    def __init__(self, vocab_size: int = 7, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.reader, self.writer = nn.LSTM(width, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.output = nn.Linear(width, vocab_size)
        spread_out(self, self.output)

    def encoder(self, src: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B,S) -> outputs (B,S,D), hidden and cell (1,B,D)."""
        outputs, (hidden, cell) = self.reader(self.embedding(src))
        return outputs, hidden, cell

    def decoder(self, token: Tensor, hidden: Tensor, cell: Tensor, outputs: Tensor) -> tuple[Any, Tensor, Tensor]:
        """token (B,1) -> logits (B,V), hidden, cell."""
        hidden_states, (hidden, cell) = self.writer(self.embedding(token), (hidden, cell))
        return self.output(hidden_states[:, -1] + outputs.mean(dim=1)), hidden, cell
