"""Where a tagger reads the tag of a word, in tokenizers that Atento trained and in `transformers` on their files."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, train_tokenizer

TEXTS = ["o juiz leu a lei", "a lei do juiz", "leu o que a lei diz", "(a lei)", "quem leu a lei diz que leu"] * 20
WORDS = ["O", "juiz", "«Silva»", "leu", "ω", "(lei)", "Ørsted", "diz"]  # words in no piece with the space before them


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "word", "character", "byte"])
def test_g4_the_first_piece_of_each_word_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    """Exported taggers read the tag of a word there (row G4); a tokenizer of an earlier version keeps its places."""
    vocab = 300 if kind in ("bpe", "unigram", "byte") else 60  # 256 of them bytes
    trained = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=vocab), TEXTS)
    trained.save(tmp_path / "new")
    settings = tmp_path / "new" / "tokenizer_config.json"
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path / "new")(
        WORDS, is_split_into_words=True, add_special_tokens=False
    )
    ours = Tokenizer.load(tmp_path / "new").encode_words(WORDS)
    if kind not in ("character", "byte"):  # whose pieces are no words in `transformers`
        assert ours.ids == theirs["input_ids"]
        firsts = [theirs.word_ids().index(number) for number in range(len(WORDS))]
        assert [ours.word_ids.index(number) for number in range(len(WORDS))] == firsts
    assert trained.encode_words(WORDS) == ours
    spaces = [ours.tokens[ours.word_ids.index(number)] == "▁" for number in range(len(WORDS))]
    old = json.loads(settings.read_text())
    del old["atento"]["spaces_of_words"]
    settings.write_text(json.dumps(old))
    before = Tokenizer.load(tmp_path / "new").encode_words(WORDS)
    assert (before.word_ids != ours.word_ids) == any(spaces), (kind, spaces)
    assert any(spaces) == (kind in ("bpe", "unigram"))
