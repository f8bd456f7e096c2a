"""Decoding options without effect: refused where a call gives them, told of in a recipe; the usual strategies."""

import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch

from atento.base.errors import RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.reading.unused_options import unused_options
from atento.config.recipe import TokenizerConfig
from atento.config.sections.decoding import FILTERS, DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.model import Model
from atento.models.model_folder import decoding_config
from atento.networks import build_network
from atento.tasks.decoding_setup import decoding_for, rules_of, strategy_of
from atento.tasks.verb_table import VERBS
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_cli.decoding_options import _chosen
from failing import fails

NETWORK = NetworkConfig(d_model=16, d_ff=24, n_heads=2, n_layers=1, dropout=0.0)
# another value than the default, for each option
OTHER: dict[str, Any] = {"beam": 7, "length_penalty": 0.3, "stopping": "shrinking", "sample": True, "temperature": 0.7}
OTHER |= {"top_k": 9, "top_p": 0.8, "min_p": 0.2, "typical_p": 0.6, "mbr": "f1", "candidates": 11}
OTHER |= {"candidates_from": "beam"}
STRATEGIES: list[dict[str, Any]] = [{"beam": 1}, {"beam": 5}, {"sample": True}, {"temperature": 0.0}, {"mbr": "chrf"}]
STRATEGIES += [{"mbr": "chrf", "candidates_from": "beam"}, {"mbr": "chrf", "candidates_from": "both"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="character"), ["abcdefgh ij."])


def made(tokenizer: Tokenizer, decoding: dict[str, Any] | None = None, **changes: Any) -> Model:
    torch.manual_seed(0)
    config = replace(NETWORK, vocab_size=tokenizer.vocab_size, **changes)
    task = "language-modeling" if config.architecture == "decoder" else "translation"
    about: dict[str, Any] = {"task": task} | ({} if decoding is None else {"decoding": decoding})
    return Model(build_network(config).eval(), tokenizer, about, None)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_an_option_is_named_unused_exactly_where_it_changes_no_strategy(strategy: dict[str, Any]) -> None:
    """Against the strategies themselves: changed alone, an option that is not named changes what is decoded by."""
    base = DecodingConfig(**strategy)
    for name, value in OTHER.items():
        if name in strategy or (base.mbr is None and name in ("mbr", "sample", *FILTERS) and not base.samples):
            continue  # what asks for another strategy
        changed = replace(base, **{name: value})
        named = dict(unused_options(changed, {name}))
        same = (strategy_of(changed), rules_of(changed)) == (strategy_of(base), rules_of(base))
        if base.temperature == 0 and name in FILTERS:  # another value, the same most probable token
            assert name in named
        elif name == "sample" and not base.mbr:
            assert not named  # it says what is the case
        elif name == "sample":
            assert (name in named) == (base.candidates_from == "beam")
        elif name == "mbr":
            assert not named
        else:
            assert (name in named) == same, name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beam": 4, "top_p": 0.9}, "`beam` has no effect: outputs are drawn, not searched for"),
        ({"beam": 1, "sample": True}, "`beam` has no effect"),
        ({"greedy": True, "length_penalty": 0.5}, "`length_penalty` has no effect: a beam of 1 compares no lengths"),
        ({"greedy": True, "stopping": "shrinking"}, "`stopping` has no effect"),
        ({"mbr": "chrf", "length_penalty": 0.5}, "`length_penalty` has no effect: `mbr` draws its candidates"),
        ({"mbr": "chrf", "candidates_from": "beam", "top_k": 5}, "`mbr` takes its candidates from a beam"),
        ({"sample": False, "top_p": 0.9}, "`sample` and `top_p` exclude each other"),
    ],
    ids=str,
)
def test_options_without_effect_are_refused_in_python(tokenizer: Tokenizer, options: Any, said: str) -> None:
    model = made(tokenizer)
    fails(UsageError, re.escape(said), model.translate, "a", max_new_tokens=2, **options)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"greedy": True, "length_penalty": 0.5}, "--length-penalty has no effect: a beam of 1 compares no lengths"),
        ({"beam": 1, "length_penalty": 0.5}, "--length-penalty has no effect: a beam of 1 compares no lengths"),
        ({"mbr": "chrf", "length_penalty": 0.5}, "--length-penalty has no effect: `mbr` draws its candidates"),
        ({"mbr": "chrf", "candidates_from": "beam", "sample": True}, "--sample has no effect"),
        ({"temperature": 0.0, "top_k": 5}, "--top-k has no effect"),
    ],
    ids=str,
)
def test_flags_without_effect_are_refused_before_the_model_is_loaded(flags: dict[str, Any], said: str) -> None:
    given = {"greedy": False, "sample": False, "stop": None} | flags
    fails(UsageError, re.escape(said), _chosen, given)


def test_flags_that_go_together_are_handed_on() -> None:
    for flags in ({"beam": 4, "length_penalty": 0.5}, {"top_k": 5, "temperature": 0.7}, {"length_penalty": 0.5}):
        assert _chosen({"greedy": False, "sample": False, "stop": None} | flags) == flags


@pytest.mark.parametrize(
    ("decoding", "key"), [("{sample: true, beam: 3}", "beam"), ("{mbr: chrf, length_penalty: 2}", "length_penalty")]
)
def test_recipe_keys_without_effect_are_warned_of(tmp_path: Any, decoding: str, key: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"task: translation\ndata: {{train: {{world: train}}}}\ndecoding: {decoding}\n", encoding="utf-8")
    told = [line for line in load_recipe(file).warnings if "decoding." in line]
    assert len(told) == 1 and f"decoding.{key} has no effect: " in told[0] and "r.yaml:3:" in told[0]


def test_the_strategy_that_a_call_names_takes_the_place_of_the_recipes() -> None:
    drawn = DecodingConfig(sample=True, top_p=0.9, n_best=3)
    risk = DecodingConfig(mbr="chrf", top_p=0.9)
    for usual in (drawn, risk):
        two = DecodingConfig(beam=2, n_best=min(2, usual.n_best))
        assert strategy_of(decoding_for(usual, None, {"beam": 2})) == strategy_of(two)
        assert strategy_of(decoding_for(usual, 1, {"greedy": True})) == strategy_of(DecodingConfig(beam=1))
        assert strategy_of(decoding_for(usual, 1, {"sample": False})) == strategy_of(DecodingConfig())
        assert strategy_of(decoding_for(usual, 1, {"top_k": 5})) == strategy_of(DecodingConfig(top_p=0.9, top_k=5))
        assert decoding_for(usual, 1, {"mbr": "f1"}).mbr == "f1"
    assert decoding_for(risk, 1, {"candidates": 8}).candidates == 8  # nothing names another strategy
    assert decoding_for(drawn, 1, {"max_new_tokens": 8}).samples


@pytest.mark.parametrize("pair", list(combinations(["beam", "sample", "mbr"], 2)), ids=str)
def test_two_strategies_at_once_are_refused_but_for_drawn_candidates(pair: tuple[str, str]) -> None:
    options: Any = {name: OTHER[name] for name in pair}
    if pair == ("sample", "mbr"):
        assert decoding_for(DecodingConfig(), None, options).mbr == "f1"
    else:
        fails(UsageError, "`beam` has no effect", decoding_for, DecodingConfig(), None, options)


def test_a_language_model_is_greedy_and_its_limit_a_constant(tokenizer: Tokenizer, tmp_path: Any) -> None:
    assert decoding_config({"task": "language-modeling"}, tmp_path).beam == 1
    assert decoding_config({"task": "translation"}, tmp_path).beam == 4
    assert decoding_config({"task": "language-modeling", "decoding": {"beam": 3}}, tmp_path).beam == 3
    file = tmp_path / "r.yaml"
    file.write_text("task: language-modeling\ndata: {train: {world: train}}\n", encoding="utf-8")
    loaded = load_recipe(file)
    assert loaded.recipe.decoding.beam == 1 and loaded.origins["decoding.beam"] == "task language-modeling"
    assert not [line for line in loaded.warnings if "decoding" in line]
    model = made(tokenizer, architecture="decoder")
    long, short = (model.generations([prompt])[0][0].hypothesis for prompt in ("ab" * 40, "a"))
    assert short == model.generations(["a"], greedy=True)[0][0].hypothesis
    endless = model.generations(["ab" * 40, "a"], min_new_tokens=128)
    assert [len(row[0].hypothesis.token_scores) for row in endless] == [128, 128]
    assert long.finished or len(long.ids) == 128
    fails(RecipeError, "got 3 and 1; a wider beam gives as many, and so does `sample`", model.generate, "a", n_best=3)
    assert len(set(model.generate("a", n_best=3, beam=4))) == 3


@pytest.mark.parametrize("verb", ["classify", "similarity", "tag", "answer", "embed"])
def test_evaluation_of_what_is_not_written_refuses_decoding_options(verb: str):
    fails(UsageError, r"^`beam` has no effect on ", VERBS[verb].call, None, None, {"beam": 4, "seed": 1})
