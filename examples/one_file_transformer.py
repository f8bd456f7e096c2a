"""The Transformer in one file: learns to translate the micro-world's English into Portuguese, and translates.

    python examples/one_file_transformer.py              2,000 updates, some minutes on two cores
    python examples/one_file_transformer.py --steps 300  less of it

Nothing but PyTorch and the sentences of `atento_world`. The names of the parameters are those of Atento's stack, whose
numbers are equal to these at equal weights (tests/integration/test_examples.py). Pre-norm, as in most networks today.
B: sentences, S: source tokens, T: target tokens, D: width, H: heads, V: words.
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento_world import write

PAD, UNK, BOS, EOS = range(4)


class Vocabulary:
    """Words and their numbers; the first four are padding, unknown, beginning and end."""

    def __init__(self, sentences: list[tuple[str, ...]]) -> None:
        self.words = ["<pad>", "<unk>", "<bos>", "<eos>", *sorted({word for words in sentences for word in words})]
        self.ids = {word: number for number, word in enumerate(self.words)}

    def encode(self, words: tuple[str, ...]) -> list[int]:
        """The numbers of words, and the end."""
        return [*(self.ids.get(word, UNK) for word in words), EOS]

    def decode(self, ids: list[int]) -> str:
        """Words up to the end."""
        return " ".join(self.words[number] for number in ids)


def padded(rows: list[list[int]]) -> Tensor:
    """Rows of different lengths as one tensor (B,L)."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def sinusoids(length: int, width: int) -> Tensor:
    """(L,D): sine and cosine of the position, in turn, with wavelengths from 2 pi to 10,000 times 2 pi."""
    angles = torch.arange(length).unsqueeze(1) / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class Attention(nn.Module):
    """softmax(q k / sqrt(K)) v in H heads of width K = D / H; queries from `x`, keys and values from `read`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.input, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, read: Tensor, mask: Tensor) -> Tensor:
        """x (B,T,D), read (B,S,D), mask (B,1,T or 1,S), true where a query may attend -> (B,T,D)."""
        weights, biases = self.input.weight.chunk(3), self.input.bias.chunk(3)  # of queries, keys, values
        q, k, v = (
            F.linear(what, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B,H,L,K)
            for what, weight, bias in zip((x, read, read), weights, biases)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mixed = scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ v
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The same two layers at every position."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B,L,D) -> (B,L,D)."""
        return self.outer(F.relu(self.inner(x)))


class Residual(nn.Module):
    """x + f(norm(x)), with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,L,D) -> (B,L,D)."""
        return x + self.dropout(sublayer(self.norm(x)))


class Block(nn.Module):
    """One layer: attention to itself, in a decoder attention to the source, feed-forward."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float, reads_source: bool) -> None:
        super().__init__()
        self.self_attention, self.self_attention_residual = Attention(width, heads), Residual(width, dropout)
        if reads_source:
            self.cross_attention, self.cross_attention_residual = Attention(width, heads), Residual(width, dropout)
        self.feed_forward, self.feed_forward_residual = FeedForward(width, inner), Residual(width, dropout)

    def forward(
        self, x: Tensor, mask: Tensor, source: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        """(B,L,D) -> (B,L,D); `source` (B,S,D) and its mask are those of a decoder."""
        x = self.self_attention_residual(x, lambda normed: self.self_attention(normed, normed, mask))
        if source is not None:
            x = self.cross_attention_residual(x, lambda normed: self.cross_attention(normed, source, source_mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Stack(nn.Module):
    """Blocks, and a norm at the end."""

    def __init__(self, blocks: list[Block], width: int) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)

    def forward(self, x: Tensor, *masks_and_source: Tensor) -> Tensor:
        """(B,L,D) -> (B,L,D)."""
        for block in self.blocks:
            x = block(x, *masks_and_source)
        return self.norm(x)


class Transformer(nn.Module):
    """Encoder and decoder; one matrix embeds the words of both languages and gives the logits."""

    def __init__(
        self, words: int, width: int = 128, inner: int = 512, heads: int = 4, layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, width), nn.Dropout(dropout)
        self.encoder = Stack([Block(width, inner, heads, dropout, False) for _ in range(layers)], width)
        self.decoder = Stack([Block(width, inner, heads, dropout, True) for _ in range(layers)], width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def _embedded(self, ids: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        return self.dropout(self.embedding(ids) * math.sqrt(width) + sinusoids(ids.shape[1], width))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B,S) -> vectors (B,S,D) and the mask (B,1,1,S) of the words that are no padding."""
        mask = (source != PAD)[:, None, None]
        return self.encoder(self._embedded(source), mask), mask

    def decode(self, ids: Tensor, encoded: Tensor, source_mask: Tensor) -> Tensor:
        """ids (B,T), the beginning first -> logits (B,T,V) of the word after each."""
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        return self.decoder(self._embedded(ids), causal, encoded, source_mask) @ self.embedding.weight.T

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        """ids (B,S) and (B,T) -> logits (B,T,V)."""
        return self.decode(shifted, *self.encode(source))

    @torch.no_grad()
    def translate(self, source: Tensor, longest: int = 40) -> list[list[int]]:
        """The most probable word at each step (greedy search) until the end: ids (B,S) -> ids of each sentence."""
        encoded, mask = self.encode(source)
        ids = torch.full((len(source), 1), BOS)
        for _ in range(longest):
            ids = torch.cat([ids, self.decode(ids, encoded, mask)[:, -1:].argmax(-1)], dim=1)
            if (ids == EOS).any(dim=1).all():
                break
        return [row[1 : row.index(EOS)] if EOS in row else row[1:] for row in ids.tolist()]


def main() -> None:
    """Train and translate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="updates of 64 sentence pairs")
    steps = parser.parse_args().steps
    torch.manual_seed(1)
    pairs, unseen = write("train", 20000), write("combinations", 200)
    vocabulary = Vocabulary([words for pair in pairs for words in (pair.source_words, pair.target_words)])
    model = Transformer(len(vocabulary.words))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 200))
    started = time.monotonic()
    for step in range(1, steps + 1):
        batch = [pairs[number] for number in torch.randint(len(pairs), (64,)).tolist()]
        source = padded([vocabulary.encode(pair.source_words) for pair in batch])
        target = padded([vocabulary.encode(pair.target_words) for pair in batch])
        shifted = F.pad(target[:, :-1], (1, 0), value=BOS)  # teacher forcing: the right words so far
        logits = model(source, shifted)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step == 1 or step % 100 == 0 or step == steps:
            print(f"update {step}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s")
    model.eval()
    written = model.translate(padded([vocabulary.encode(pair.source_words) for pair in unseen]))
    right = sum(vocabulary.decode(ids) == " ".join(pair.target_words) for ids, pair in zip(written, unseen))
    print(f"{right} of {len(unseen)} sentences in combinations it never saw are translated exactly")
    for ids, pair in list(zip(written, unseen))[:5]:
        print(f"  {' '.join(pair.source_words)}\n    {vocabulary.decode(ids)}")


if __name__ == "__main__":
    main()
