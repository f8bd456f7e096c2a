"""What is a label, and what is a list of texts."""

import numpy as np
import pytest

from atento.config.recipe import TokenizerConfig
from atento.errors import TokenizerError, UsageError
from atento.metrics import accuracy, bleu
from atento.metrics.label_names import label_name
from atento.sklearn import Tagger
from atento.tasks.filling import target_ids
from atento.tasks.verb_calls import listed
from atento.text import train_tokenizer
from atento.text.bulk import BulkEncoder
from atento.text.kinds import check_texts


def test_a_whole_number_of_a_column_with_gaps_is_that_number() -> None:
    """pandas makes 1.0 of 1 where a value is missing; scikit-learn takes both for one label."""
    assert [label_name(value) for value in (1.0, np.float64(0.0), 1, "1")] == ["1", "0", "1", "1"]
    assert [label_name(value) for value in (0.5, float("nan"), float("inf"), None)] == [None] * 4
    assert accuracy([1.0, 0.0, 1.0], [1, 0, 0]).value == pytest.approx(2 / 3)


def test_texts_without_an_order_are_refused() -> None:
    for texts in ({"a", "b"}, frozenset({"a"}), {"a": 1}):
        with pytest.raises(UsageError, match="give a text or a list of texts"):
            listed(texts)
    assert listed(("a", "b")) == ["a", "b"]


def test_one_string_is_no_list_of_letters() -> None:
    """Where lists of texts, of words or of tags are wanted, a string would be read letter by letter."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocab_size=20), ["o gato", "g"])
    for call in (tokenizer.encode_batch, tokenizer.encode_words, BulkEncoder(tokenizer).encode):
        with pytest.raises(TokenizerError, match=r"a list of (texts|words) is needed: got one string"):
            call("gato")
    with pytest.raises(TokenizerError, match="so are markers: got a single string"):
        train_tokenizer(TokenizerConfig(kind="word"), ["o gato"], markers="[A]")
    with pytest.raises(UsageError, match="give a list of texts: got the text 'ab'"):
        check_texts("ab")
    with pytest.raises(UsageError, match="strings, or lists of them"):
        bleu(["a", "b"], [["a", "b"], "ab"])
    assert target_ids(tokenizer, "gato") == target_ids(tokenizer, ["gato"])
    for X, y in (("ab", ["O", "O"]), (["ab"], [["O", "O"]]), ([["a", "b"]], ["OO"])):
        with pytest.raises(TypeError, match="and not a text"):
            Tagger().fit(X, y)
