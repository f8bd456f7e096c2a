"""Row B12 on documents of one's own: what is read, what is trained on, what is tested, and what is refused (B12)."""

import json
from pathlib import Path

import pytest

from atento.base.errors import DataError, UsageError
from atento_lab.notes.checks import summaries
from atento_lab.notes.table import ROWS, run, with_documents
from failing import fails


def lines(count: int) -> list[str]:
    """Documents of 1 to 8 sections of two words, the second of which is one of the summary."""
    texts = [[f"w{(7 * n + k) % 5}" for k in range(1 + n % 8)] for n in range(count)]
    return [f"{' '.join(f'h {word}' for word in words)}\t{' '.join(words)}" for words in texts]


def test_b12_documents_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "STEPS", 60)
    monkeypatch.setattr(summaries, "SCHEMES", {"sinusoidal": summaries.SCHEMES["sinusoidal"]})
    (tmp_path / "own.tsv").write_text("\n".join(lines(64)) + "\n", encoding="utf-8")
    (row,) = with_documents([ROWS["B12"]], tmp_path / "own.tsv")
    found = next(run([row])).finding
    assert found.passed and list(found.value) == list(summaries.SCHEMES)
    # 64 documents of 2, 4 ... 16 words, 8 of each: the shorter half has at most 10, of which one in five is a test
    assert found.remark.startswith("32 documents of at most 10 words in training")
    for of_length in found.value.values():
        assert list(of_length) == ["up to 10 words", "up to 20 words"]
        for shares in of_length.values():
            assert 0 <= shares["order"] <= shares["structure"] <= 1
    assert found.value["sinusoidal"]["up to 10 words"]["structure"] > 0.3  # it has learned something
    records = [dict(zip(("source", "target"), line.split("\t"))) for line in lines(64)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    monkeypatch.setattr(summaries, "STEPS", 2)
    (same,) = with_documents([ROWS["B12"]], tmp_path / "own.jsonl")
    assert next(run([same])).finding.remark == found.remark.replace("60 updates", "2 updates")


def test_b12_padding_changes_no_word(tmp_path: Path) -> None:
    """A document beside a longer one is read as it is alone."""
    short, long = ([33, 34, 35], [34]), ([33, 34, 35, 36, 33, 34], [35, 36])
    config = summaries.NetworkConfig(vocab_size=40, d_model=16, d_ff=16, n_heads=2, n_layers=1, dropout=0.0)
    built = summaries.EncoderDecoder(config).eval()
    alone = summaries.said(built, *summaries._padded([short]))
    assert (alone - summaries.said(built, *summaries._padded([short, long]))[:1, :2]).abs().max() < 1e-5
    (tmp_path / "few.tsv").write_text("\n".join(lines(19)), encoding="utf-8")
    with pytest.raises(DataError, match="the documents must be at least 20, with a summary each: got 19"):
        with_documents([ROWS["B12"]], tmp_path / "few.tsv")
    with pytest.raises(UsageError, match="row A3 takes no documents: those that do are B12"):
        with_documents([ROWS["A3"]], tmp_path / "few.tsv")
    (tmp_path / "one.jsonl").write_text('{"source": "a"}\n', encoding="utf-8")
    fails(DataError, r"one\.jsonl:1", with_documents, [ROWS["B12"]], tmp_path / "one.jsonl")
