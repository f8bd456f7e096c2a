"""Decoding options without effect: refused or told of; the usual strategies; the model that a draft names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.reading.unused_options import unused_options
from atento.config.recipe import TokenizerConfig
from atento.config.sections.decoding import FILTERS, DecodingConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.model import Model, load
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


def tokenizer_of(text: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="character"), [text])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of("abcdefgh ij.")


def made(tokenizer: Tokenizer, *, seed: int = 0, decoding: dict[str, Any] | None = None, **changes: Any) -> Model:
    torch.manual_seed(seed)
    config = replace(NETWORK, vocab_size=tokenizer.vocab_size, **changes)
    task = "language-modeling" if config.architecture == "decoder" else "translation"
    about: dict[str, Any] = {"model_type": "atento", "task": task, "network": network_to_dict(config)}
    about |= {} if decoding is None else {"decoding": decoding}
    model = Model(build_network(config).eval(), tokenizer, about, None)
    model.requested = f"model-{seed}"
    return model


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


def test_options_without_effect_are_refused_flags_before_the_model_is_loaded_and_recipe_keys_warned_of(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """What flags and Python alone name, in terms of other options; test_decoding_doors.py has the others."""
    for options, said in (
        ({"beam": 4, "top_p": 0.9}, "`beam` has no effect: outputs are drawn, not searched for"),
        ({"greedy": True, "length_penalty": 0.5}, "`length_penalty` has no effect: a beam of 1 compares no lengths"),
        ({"sample": False, "top_p": 0.9}, "`sample` and `top_p` exclude each other"),
    ):
        fails(UsageError, said, made(tokenizer).translate, "a", max_new_tokens=2, **options)
    given: dict[str, Any] = {"greedy": False, "sample": False, "stop": None}
    for flags, said in (
        ({"greedy": True, "length_penalty": 0.5}, "--length-penalty has no effect: a beam of 1 compares no lengths"),
        ({"beam": 1, "length_penalty": 0.5}, "--length-penalty has no effect: a beam of 1 compares no lengths"),
        ({"mbr": "chrf", "length_penalty": 0.5}, "--length-penalty has no effect: `mbr` draws its candidates"),
        ({"mbr": "chrf", "candidates_from": "beam", "sample": True}, "--sample has no effect"),
        ({"temperature": 0.0, "top_k": 5}, "--top-k has no effect"),
    ):
        fails(UsageError, said, _chosen, given | flags)
    for flags in ({"beam": 4, "length_penalty": 0.5}, {"top_k": 5, "temperature": 0.7}, {"length_penalty": 0.5}):
        assert _chosen(given | flags) == flags
    recipe = "task: translation\ndata: {train: {world: train}}\ndecoding: {sample: true, beam: 3}\n"
    (tmp_path / "r.yaml").write_text(recipe, encoding="utf-8")
    (told,) = (line for line in load_recipe(tmp_path / "r.yaml").warnings if "decoding." in line)
    assert "decoding.beam has no effect: " in told and "r.yaml:3:" in told


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
    assert decoding_for(DecodingConfig(), None, {"sample": True, "mbr": "f1"}).mbr == "f1"


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


PROMPT = "abc abc abc ab"
SMALL: dict[str, Any] = {"architecture": "decoder", "n_layers": 2}


def test_a_model_that_drafts_is_loaded_once_and_changes_no_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(PROMPT)
    model, folder = made(tokenizer, **SMALL), tmp_path / "small"
    made(tokenizer, seed=1, architecture="decoder").save(folder)
    plain = model.generate([PROMPT, "b"], max_new_tokens=20)
    for draft in ("ngrams", str(folder), [str(folder), "ngrams"]):
        assert model.generate([PROMPT, "b"], max_new_tokens=20, draft=draft, draft_tokens=3) == plain
        assert "".join(model.stream(PROMPT, max_new_tokens=20, draft=draft)) == plain[0]
    assert model.drafting_model(str(folder)) is model.drafting_model(str(folder))
    outputs = model.generations([PROMPT], max_new_tokens=20, draft="ngrams")
    assert outputs[0][0].hypothesis.proposed >= outputs[0][0].hypothesis.accepted
    usual = made(tokenizer, decoding={"beam": 1, "draft": ["ngrams"]}, **SMALL)
    assert usual.decoding.draft == ("ngrams",) and usual.generate(PROMPT, max_new_tokens=20) == plain[0]
    assert usual.generate(PROMPT, beam=3, max_new_tokens=5) == model.generate(PROMPT, beam=3, max_new_tokens=5)
    options: dict[str, Any] = {"max_new_tokens": 4, "sample": True, "seed": 3}
    one, other = load(folder), load(folder)
    assert one.generate(PROMPT, draft="ngrams", **options) == other.generate(PROMPT, **options)


def test_what_is_refused() -> None:
    model = made(tokenizer_of(PROMPT), **SMALL)
    others = {
        "other pieces": (
            made(tokenizer_of("xyz xyz"), seed=1, **SMALL),
            "`draft` must have the vocabulary of model-0: that",
        ),
        "source": (made(model.tokenizer, seed=1), "the same architecture as model-0: got EncoderDecoder and Decoder"),
    }
    for name, (other, message) in others.items():
        model._drafting[name] = other
        fails(CapabilityError, message, model.generate, PROMPT, draft=name)
    for options, message in (
        ({"beam": 3}, "`decoding.draft` and `beam` exclude each other: a draft is for greedy search"),
        ({"mbr": "chrf"}, "`decoding.draft` and `mbr` exclude each other"),
        ({"exact": True}, "`decoding.draft` and `exact` exclude each other"),
        ({"draft": ["a", "b"]}, "`decoding.draft` takes `ngrams`, one model, or both: got a, b"),
        ({"draft_tokens": 0}, "`decoding.draft_tokens` must be at least 1: got 0"),
        ({"draft": [""]}, "`decoding.draft` must hold strings that are not empty"),
    ):
        fails(RecipeError, message, model.generate, PROMPT, **{"draft": "ngrams"} | options)
    fails(UsageError, "`draft_tokens` has no effect: it is for `draft`", model.generate, PROMPT, draft_tokens=3)
