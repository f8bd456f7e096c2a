"""Decoding options as types: equal to the recipe's, checked by mypy, and the same names as the command's flags."""

import inspect
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from atento.base.errors import RecipeError, UsageError
from atento.config.sections.decoding import DecodingConfig, DecodingOptions
from atento.config.sections.embedding import PROMPTS, EmbeddingConfig, EmbeddingOptions
from atento.evaluation import evaluate
from atento.inspection import AttentionRecord
from atento.model import Model, load
from atento.runs.train import train
from atento.storage.average_weights import average_run
from atento.tasks.decoding_setup import decoding_for
from atento.tasks.translation_languages import LanguageOptions
from atento_cli.commands.attend import attend as attend_command
from atento_cli.commands.convert import convert as convert_command
from atento_cli.commands.embed import embed as embed_command
from atento_cli.commands.embed import similarity as similarity_command
from atento_cli.commands.evaluate import evaluate as evaluate_command
from atento_cli.commands.runs import average as average_command
from atento_cli.commands.train import train as train_command
from atento_cli.convert.engines import convert_for
from atento_cli.convert.layouts import convert
from atento_cli.decoding_options import _FLAGS
from atento_cli.search.cross_validation import cross_validate
from failing import fails

LISTS = ("stop", "stop_tokens", "banned_words", "banned_tokens", "required_words", "draft")
WIDER = ("mbr", *LISTS)  # also a function; also one string or any sequence


def test_the_typed_options_are_the_fields_of_the_configurations_and_the_flags_of_the_commands() -> None:
    options, fields = get_type_hints(DecodingOptions), get_type_hints(DecodingConfig)
    assert options.keys() - fields.keys() == {"greedy"} and fields.keys() - options.keys() == {"n_best"}
    assert {name: kind for name, kind in options.items() if name in fields and name not in WIDER} == {
        name: kind for name, kind in fields.items() if name != "n_best" and name not in WIDER
    }
    assert set(get_args(fields["mbr"])) < set(get_args(options["mbr"]))
    assert {options[name] for name in LISTS} == {str | Sequence[str]}
    options, fields = get_type_hints(EmbeddingOptions), get_type_hints(EmbeddingConfig)
    assert options.keys() - fields.keys() == {"prompt_name", "dimensions", "head"}
    assert fields.items() - options.items() == {(name, fields[name]) for name in PROMPTS}
    assert {*_FLAGS, "seed"} == {*DecodingOptions.__annotations__, "n_best"}  # --seed is every command's
    for method in (Model.translate, Model.summarize, Model.generate):
        assert "n_best" in inspect.signature(method).parameters
    assert "split_sentences" in inspect.signature(Model.translate).parameters
    embedding = {*EmbeddingOptions.__annotations__}
    explain = {"explain", "explain_method", "explain_out"}  # a method of its own, `Model.explain`
    loaded = {"engine", "head"}  # `evaluate` takes a model that was loaded with one, and its options the head
    # which file is read, how, and where results go is not Python's
    files = {"out", "file", "as_json", "report", "confusion", "cluster", "table", "reliability"}
    for command, functions, more in (
        (train_command, [train, cross_validate], {"nproc"}),  # a script is started by torchrun
        (evaluate_command, [evaluate], {*LanguageOptions.__annotations__, "fail_under", "calibrate"} | loaded),
        (attend_command, [load, Model.attend, AttentionRecord.save], {"seed", "threads"}),
        (embed_command, [load, Model.embed], embedding | {"seed", "threads", "skip_bad"}),
        (similarity_command, [load, Model.similarity], embedding | {"seed", "threads", "skip_bad"} | explain),
        (convert_command, [convert, convert_for], {"threads"}),
        (average_command, [average_run], set()),
    ):
        known = {name for one in functions for name in inspect.signature(one).parameters}
        assert inspect.signature(command).parameters.keys() <= known | more | files, command


SNIPPET = """
import atento
model = atento.load("x")
reveal_type(model.translate("x"))
reveal_type(model.translate(["x"], beam=2))
reveal_type(model.translate("x", n_best=3))
reveal_type(model.generate(["x"], n_best=3, top_p=0.9))
model.translate("x", lenght_penalty=0.6)
model.summarize("x", beam="4")
model.translate("x", n_best=3, split_sentences=True)
reveal_type(atento.Model)
reveal_type(model.generate(prompt="x"))
reveal_type(model.summarize(text=["x"], n_best=2))

from collections.abc import Sequence
from atento.tasks.verb_calls import per_text

class Loud:
    @per_text
    def count(self, text: Sequence[str], *, upto: int = 9) -> list[int]:
        return [min(len(one), upto) for one in text]

reveal_type(Loud().count("x"))
reveal_type(Loud().count(["x"], upto=3))
Loud().count("x", up=3)

reveal_type(model.classify("x"))
reveal_type(model.classify(("x", "y")))
reveal_type(model.classify(["x"]))
reveal_type(model.classify([("x", "y")]))
reveal_type(model.classify("x", threshold=0.5))
reveal_type(model.classify([("x", "y")], threshold=0.5))
model.classify(3)
"""


def test_mypy_knows_the_options_and_what_n_best_returns(tmp_path: Path) -> None:
    """Python: a misspelt option was typed Any, `n_best=3` was typed str."""
    (tmp_path / "user.py").write_text(SNIPPET, encoding="utf-8")
    root = Path(__file__).parents[2]  # with the cache of `make lint`, which has read the package already
    command = [sys.executable, "-m", "mypy", str(tmp_path / "user.py")]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=400).stdout
    by_line: dict[int, str] = {}
    for line in said.splitlines():
        found = re.search(r"user\.py:(\d+): (?:error|note): (.*)", line)
        if found:
            by_line.setdefault(int(found[1]), found[2])  # the first of a line
    want = {4: "str", 5: "list[str]", 6: "list[str]", 7: "list[list[str]]", 12: "str", 13: "list[list[str]]"}
    want |= {23: "int", 24: "list[int]"}  # a method of a user's own
    want |= {27: "Label", 28: "Label", 29: "list[Label]", 30: "list[Label]", 31: "list[Label]", 32: "list[list[Label]]"}
    for number, kind in want.items():
        revealed = by_line[number].replace("builtins.", "").replace("atento.tasks.classification.", "")
        assert revealed == f'Revealed type is "{kind}"', said
    assert by_line[8].startswith('Unexpected keyword argument "lenght_penalty"'), said
    assert by_line[9].startswith('No overload variant of "__call__" of "Writes"'), said
    assert by_line[10].startswith('No overload variant of "__call__" of "Translates"'), said
    assert by_line[11].endswith('-> atento.model.Model"'), said
    assert by_line[25].startswith('Unexpected keyword argument "up"'), said
    assert by_line[33].startswith('No overload variant matches argument type "int"'), said


def test_greedy_wins_over_a_recipe_and_excludes_what_is_not() -> None:
    """`--greedy` of a run whose recipe samples sampled all the same."""
    usual = DecodingConfig(sample=True, temperature=0.7, n_best=3)
    made = decoding_for(usual, None, {"greedy": True, "max_new_tokens": 5})
    assert not made.samples and (made.beam, made.n_best, made.mbr, made.max_new_tokens) == (1, 1, None, 5)
    for other in [{"beam": 4}, {"top_p": 0.9}, {"mbr": "chrf"}, {"sample": True}]:
        name = next(iter(other))
        with pytest.raises(UsageError, match=f"`greedy` and `{name}` exclude each other"):
            decoding_for(DecodingConfig(), None, {"greedy": True, **other})
    # Unknown and wrong options are told with the nearest
    with pytest.raises(UsageError, match="unknown decoding option 'n_bests'; did you mean 'n_best'"):
        decoding_for(DecodingConfig(), None, {"n_bests": 2})  # type: ignore[typeddict-unknown-key]
    fails(RecipeError, "beam must be an integer: got '4'", decoding_for, DecodingConfig(), None, {"beam": "4"})
