"""Many texts as ids and as examples: the library's ids, what is guessed and hidden, batches to be sought (E1, E2)."""

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import AtentoError
from atento.config.recipe import TokenizerConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged
from atento.data.batches.masking import Masking
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.causal import Causal
from atento.data.objectives.masked import Masked
from atento.data.objectives.preparation import windows
from atento.text import bulk
from atento.text.bulk import BulkEncoder, EncodingPool
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer

PAD, UNK, BOS, EOS, MASK, V = 0, 1, 2, 3, 4, 50


def sequences(count: int, seed: int, longest: int = 20) -> Ragged:
    """Random texts of 1 to `longest` tokens between BOS and EOS."""
    random = np.random.default_rng(seed)
    return Ragged([[BOS, *random.integers(5, V, random.integers(1, longest + 1)).tolist(), EOS] for _ in range(count)])


def masked(rate: float = 0.15) -> Masked:
    return Masked(PAD, Masking(MASK, np.arange(5, V), rate=rate))


def lay_out(objective: Causal | Masked, rows: Ragged, chosen: list[int] | range, epoch: int, seed: int = 1) -> Batch:
    return objective.batch(MemoryStore({"ids": rows}), np.array(chosen), Draw(seed, epoch))


def batches_of(rows: Ragged, objective: Causal | Masked, budget: int) -> PlannedBatches:
    return PlannedBatches(MemoryStore({"ids": rows}), objective, budget=budget, seed=7)


def test_e1_e2_what_is_hidden_is_counted_fairly_and_tokens_are_guessed_from_those_before() -> None:
    """Rates within 3 sigma over a million tokens; the marks at both ends and padding are never chosen."""
    rows = Ragged([[BOS, *np.random.default_rng(i).integers(5, V, 250).tolist(), EOS] for i in range(200)])
    objective, chosen, fates, read = masked(), 0, np.zeros(3), 0
    for epoch in range(20):
        batch = lay_out(objective, rows, range(200), epoch)
        ids, labels = batch.inputs["ids"], batch.labels["vocabulary"]
        whole = rows.padded(np.arange(200), PAD)
        hidden = labels >= 0
        assert not hidden[:, 0].any() and not hidden[:, -1].any() and torch.equal(labels[hidden], whole[hidden])
        assert torch.equal(ids[~hidden], whole[~hidden])
        chosen, read = chosen + int(hidden.sum()), read + 200 * 250
        now, was = ids[hidden], whole[hidden]
        fates += [int((now == MASK).sum()), int(((now != MASK) & (now != was)).sum()), int((now == was).sum())]
        assert int(now.min()) >= MASK and int(now.max()) < V
    assert read == 1_000_000 and abs(chosen - 0.15 * read) < 3 * np.sqrt(read * 0.15 * 0.85)
    same = 0.1 / (V - 5)  # a drawn token may be the one that stood there
    for got, share in zip(fates, (0.8, 0.1 - same, 0.1 + same)):
        assert abs(got - share * chosen) < 3 * np.sqrt(chosen * share * (1 - share))
    rows = Ragged([[BOS, 7, EOS]] * 10 + [[BOS, *range(5, 15), EOS]] * 4000)
    counts = (lay_out(masked(), rows, range(len(rows)), 0).labels["vocabulary"] >= 0).sum(dim=1)
    assert counts[:10].tolist() == [1] * 10
    assert set(counts[10:].tolist()) == {1, 2}  # 15 % of ten
    assert abs(float(counts[10:].float().mean()) - 1.5) < 3 * 0.5 / np.sqrt(4000)
    rows = sequences(50, 3)
    first, second, other = (
        lay_out(masked(), rows, range(50), epoch, seed).labels["vocabulary"] for epoch, seed in ((0, 1), (1, 1), (0, 2))
    )
    assert not torch.equal(first, second) and not torch.equal(first, other)
    batch = lay_out(Causal(PAD), Ragged([[BOS, 7, 8, EOS], [BOS, 9, EOS]]), [0, 1], 0)
    assert batch.inputs.keys() == {"ids"}  # padding is on the right, where no query looks
    assert batch.inputs["ids"].tolist() == [[BOS, 7, 8], [BOS, 9, PAD]]
    assert batch.labels["vocabulary"].tolist() == [[7, 8, EOS], [9, EOS, -1]]
    assert batch.real("ids").tolist() == [[True, True, True], [True, True, False]] and batch.targets == 5


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 5))
def test_hidden_tokens_depend_on_seed_epoch_and_row_alone(count: int, epoch: int, seed: int) -> None:
    rows, objective = sequences(count, seed), masked()
    whole = lay_out(objective, rows, range(count), epoch, seed)
    last = lay_out(objective, rows, [count - 1], epoch, seed)
    length = int(rows.lengths[-1])
    assert torch.equal(last.inputs["ids"][0], whole.inputs["ids"][-1, :length])
    assert torch.equal(last.labels["vocabulary"][0], whole.labels["vocabulary"][-1, :length])


@pytest.mark.parametrize("objective", [Causal(PAD), masked()])
def test_an_epoch_holds_every_text_once_and_can_be_sought(objective: Causal | Masked) -> None:
    rows = sequences(300, 5)
    budget = 200 if isinstance(objective, Causal) else 30
    batches = batches_of(rows, objective, budget)
    assert len(batches) == 300 and batches.updates_per_epoch > 10
    seen = [part.batch for update in range(batches.updates_per_epoch) for part in batches.parts(update)]
    assert sum(len(batch.inputs["ids"]) for batch in seen) == 300
    if isinstance(objective, Causal):
        assert sum(batch.targets for batch in seen) == int((rows.lengths - 1).sum())
    later = batches_of(rows, objective, budget)
    one, other = [part.batch for part in batches.parts(40)], [part.batch for part in later.parts(40)]
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.inputs["ids"], b.inputs["ids"])
        assert torch.equal(a.labels["vocabulary"], b.labels["vocabulary"])
    cut = list(batches.parts(40, micro_batches=2))
    assert sum(part.batch.targets for part in cut) == sum(batch.targets for batch in one)
    whole = list(batches.in_order(150))
    assert sum(len(batch.inputs["ids"]) for batch in whole) == 300
    assert max(int(batch.real("ids").sum()) for batch in whole) <= 150


@given(st.lists(st.integers(5, 49), max_size=30), st.integers(3, 9))
def test_windows_lose_nothing(ids: list[int], longest: int) -> None:
    plain = windows(ids, longest, overlap=0)
    assert [token for piece in plain for token in piece] == ids and max(map(len, plain)) <= longest
    text = [BOS, *ids, EOS]
    lapped = windows(text, longest, overlap=1)
    assert max(map(len, lapped)) <= longest and min(map(len, lapped)) >= 2
    assert [token for piece in lapped for token in piece[1:]] == text[1:]  # each token is a label once
    assert all(a[-1] == b[0] for a, b in pairwise(lapped))


LINES = ["o gato pulou alto.", "a casa é azul, não verde", "Σάς ΌΣΟΣ", "한국어 각", "cão co\u0301rrego 123"]
TOKENIZERS = {
    (kind, lower): train_tokenizer(TokenizerConfig(kind=kind, vocab_size=340, lowercase=lower), LINES)  # type: ignore[arg-type]
    for kind in ("bpe", "unigram", "wordpiece", "word", "character", "byte")
    for lower in (False, True)
}
# what normalisation looks at: marks, joining letters, blanks of all kinds, special tokens, capital sigma
PIECES = ["a", "o", "\u0301", "\u1161", "\u11a8", "\u1100", "\u00a0", "\u2028", "\t", " ", "  ", "\u2581", "Σ", "<s>"]
PIECES += ["<mask>", "<0x41>", "gato", "é", "\u00b4", "\u0345", "İ", "漢", ".", "7", "\ufeff", "\u200d", "\U00011127"]


def by_text(encoder: BulkEncoder, texts: list[str]) -> list[list[int]]:
    encoded = encoder.encode(texts)
    ends = encoded.lengths.cumsum().tolist()
    return [encoded.ids[start:end].tolist() for start, end in zip([0, *ends], ends)]


@pytest.mark.parametrize("kind, lower", TOKENIZERS)
def test_looked_up_words_give_the_ids_of_the_whole_text(kind: str, lower: bool) -> None:
    tokenizer = TOKENIZERS[kind, lower]
    encoder = BulkEncoder(tokenizer)  # one for all examples, so that words are looked up
    assert tokenizer.splits_at_spaces == (kind not in ("character", "byte"))

    @given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20), max_size=6))
    def check(texts: list[str]) -> None:
        assert by_text(encoder, texts) == tokenizer.encode_batch(texts)

    check()


def test_words_share_a_small_table_and_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_SLOTS", 3)
    encoder = BulkEncoder(TOKENIZERS["bpe", False])
    sizes = []
    for text in ["o gato", "a casa", "x" * 80, "o gato alto", "o gato", "o gato"]:
        assert by_text(encoder, [text]) == TOKENIZERS["bpe", False].encode_batch([text])
        sizes.append(len(encoder._words))
    assert sizes == [2, 4, 5, 3, 3, 3]
    # Half the slots taken, so that searches pass over other words; words around 8, 16 and 64 bytes, and prefixes
    monkeypatch.setattr(bulk, "_SLOTS", 8)
    tokenizer = TOKENIZERS["bpe", False]
    encoder = BulkEncoder(tokenizer)
    words = ["gatopulou"[: 1 + n % 9] * (1 + n // 9) + "éa"[: n % 3] for n in range(110)]
    for begin in range(0, 110, 10):
        texts = [" ".join(words[: begin + 10]), "", " ", words[begin] + "  " + words[begin // 2]]
        assert by_text(encoder, texts) == tokenizer.encode_batch(texts)
    assert len(encoder._words) > 100
    assert bulk.id_type(65_536).itemsize == 2 and bulk.id_type(65_537).itemsize == 4


def test_worker_processes_answer_in_order_with_the_same_tokenizer(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["bpe", False]
    tokenizer.save(tmp_path / "tokenizer")
    blocks = [[f"gato {number}", "", LINES[number % 5]] for number in range(20)]
    for processes in (0, 2):
        with EncodingPool(tmp_path / "tokenizer", processes) as pool:
            for block, (texts, encoded) in zip(blocks, pool.encode(iter(blocks)), strict=True):
                assert texts == block
                assert encoded.ids.tolist() == [token for text in block for token in tokenizer.encode(text)]
                assert encoded.lengths.tolist() == [len(tokenizer.encode(text)) for text in block]
    # What a worker loads has the same fingerprint, and is split alike
    for tokenizer in TOKENIZERS.values():
        tokenizer.save(tmp_path / "t")
        assert Tokenizer.load(tmp_path / "t").splits_at_spaces == tokenizer.splits_at_spaces


def test_a_worker_that_ends_is_an_error(tmp_path: Path) -> None:
    TOKENIZERS["bpe", False].save(tmp_path / "tokenizer")

    def blocks(pool: EncodingPool) -> Iterator[list[str]]:
        yield ["gato"]
        for worker in pool._workers._workers:  # type: ignore[union-attr]
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
        yield ["gato"]

    with EncodingPool(tmp_path / "tokenizer", 1) as pool, pytest.raises(AtentoError, match="ended with status -9"):
        list(pool.encode(blocks(pool)))
