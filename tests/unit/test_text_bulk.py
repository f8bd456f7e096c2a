"""Many texts to ids: looked-up words and worker processes give the ids of the library, text by text."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import AtentoError
from atento.config.recipe import TokenizerConfig
from atento.text import bulk
from atento.text.bulk import BulkEncoder, EncodingPool
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer

LINES = ["o gato pulou alto.", "a casa é azul, não verde", "Σάς ΌΣΟΣ", "한국어 각", "cão co\u0301rrego 123"]
TOKENIZERS = {
    (kind, lower): train_tokenizer(TokenizerConfig(kind=kind, vocab_size=340, lowercase=lower), LINES)  # type: ignore[arg-type]
    for kind in ("bpe", "unigram", "wordpiece", "word", "character", "byte")
    for lower in (False, True)
}
# what normalisation looks at: marks, joining letters, blanks of all kinds, special tokens, capital sigma
PIECES = ["a", "o", "\u0301", "\u1161", "\u11a8", "\u1100", "\u00a0", "\u2028", "\t", " ", "  ", "\u2581", "Σ", "<s>"]
PIECES += ["<mask>", "<0x41>", "gato", "é", "\u00b4", "\u0345", "İ", "漢", ".", "7", "\ufeff", "\u200d", "\U00011127"]
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20), max_size=6)


def by_text(encoder: BulkEncoder, texts: list[str]) -> list[list[int]]:
    encoded = encoder.encode(texts)
    ends = encoded.lengths.cumsum().tolist()
    return [encoded.ids[start:end].tolist() for start, end in zip([0, *ends], ends)]


@pytest.mark.parametrize("kind, lower", TOKENIZERS)
def test_looked_up_words_give_the_ids_of_the_whole_text(kind: str, lower: bool) -> None:
    tokenizer = TOKENIZERS[kind, lower]
    encoder = BulkEncoder(tokenizer)  # one for all examples, so that words are looked up
    assert tokenizer.splits_at_spaces == (kind not in ("character", "byte"))

    @given(TEXTS)
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
