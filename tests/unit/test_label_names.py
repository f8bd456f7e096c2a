"""What is a label, and what is a list of texts."""

from pathlib import Path

import numpy as np
import pytest

from atento.base.errors import TokenizerError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig, TokenizerConfig
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import read_records
from atento.metrics import accuracy, bleu
from atento.metrics.label_counts import class_name, label_name
from atento.runs.prepare import read_data
from atento.sklearn import Tagger
from atento.tasks.mask_filling import target_ids
from atento.tasks.verb_calls import listed
from atento.text import train_tokenizer
from atento.text.bulk import BulkEncoder
from atento.text.kinds import check_texts
from failing import fails


def test_names_are_whole_numbers_and_texts_in_an_order_and_no_letters() -> None:
    """pandas makes 1.0 of 1 where a value is missing; scikit-learn takes both for one label."""
    assert [label_name(value) for value in (1.0, np.float64(0.0), 1, "1")] == ["1", "0", "1", "1"]
    assert [label_name(value) for value in (0.5, float("nan"), float("inf"), None)] == [None] * 4
    assert accuracy([1.0, 0.0, 1.0], [1, 0, 0]).value == pytest.approx(2 / 3)
    for texts in ({"a", "b"}, frozenset({"a"}), {"a": 1}):
        fails(UsageError, "give a text or a list of texts", listed, texts)
    assert listed(("a", "b")) == ["a", "b"]
    # where lists of texts, of words or of tags are wanted, a string would be read letter by letter
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocab_size=20), ["o gato", "g"])
    for call in (tokenizer.encode_batch, tokenizer.encode_words, BulkEncoder(tokenizer).encode):
        fails(TokenizerError, r"a list of (texts|words) is needed: got one string", call, "gato")
    with pytest.raises(TokenizerError, match="so are markers: got a single string"):
        train_tokenizer(TokenizerConfig(kind="word"), ["o gato"], markers="[A]")
    fails(UsageError, "give a list of texts: got the text 'ab'", check_texts, "ab")
    fails(UsageError, "strings, or lists of them", bleu, ["a", "b"], [["a", "b"], "ab"])
    assert target_ids(tokenizer, "gato") == target_ids(tokenizer, ["gato"])
    for X, y in (("ab", ["O", "O"]), (["ab"], [["O", "O"]]), ([["a", "b"]], ["OO"])):
        fails(TypeError, "and not a text", Tagger().fit, X, y)


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", "text,label\na,0.0\nb,1\nc,0\nd,1.00\n"),
    ("a.tsv", "text\tlabel\na\t0.0\nb\t1\nc\t0\nd\t1.0\n"),
    ("a.jsonl", "".join(f'{{"text": "a", "label": {label}}}\n' for label in ("0.0", "1", '"0"', '"1.0"'))),
])  # fmt: skip
def test_one_form_of_a_number_is_one_label_to_every_reader(tmp_path: Path, name: str, content: str) -> None:
    """A column of whole numbers with a gap becomes 0.0 and 1.0 where pandas writes it."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    source = SourceConfig(file=name, text="text", label="label")
    assert read_records(source, TASKS["classification"].fields, tmp_path)["label"] == ["0", "1", "0", "1"]
    names = [class_name(label) for label in ("1.5", "1.0.0", "v1.0", "-2.0", "007", "yes ")]
    assert names == ["1.5", "1.0.0", "v1.0", "-2", "007", "yes"]


def test_tags_that_are_numbers_or_alike_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": ["Ana", "vive"], "tags": [1, 0]}\n' * 2, encoding="utf-8")
    source = SourceConfig(file="a.jsonl", tokens="tokens", tags="tags")
    records = read_records(source, TASKS["tagging"].fields, tmp_path)
    assert records["tags"][0] == ("1", "0")
    said = "a.jsonl: its tags are numbers, and are plain tags; entities need their names, such as B-PER"
    assert records.warnings() == [said]
    for task, rows in (
        ("tagging", [(("a", "b"), ("Noun", "noun")), (("c", "d"), ("X", "noun"))]),
        ("multi-label-classification", [("a", ("yes",)), ("b", ("Yes", "x"))]),
    ):
        recipe = load_recipe({"task": task, "data": {"train": {"memory": "train"}}}, environment={}, memory=["train"])
        said: list[str] = []
        read_data(recipe.recipe, tmp_path, said.append, {"train": rows})
        assert any("are two labels here; write one form if they mean the same" in one for one in said), said
