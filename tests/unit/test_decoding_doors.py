"""Every decoding option changes what a model writes, alike through recipe, flag and Python, or says why it does not."""

import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from atento.base.errors import AtentoWarning, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.reading.unused_options import unused_options
from atento.config.recipe import TokenizerConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import SpecialIds
from atento.decoding.contract import Written
from atento.model import Model, load
from atento.models.write import _generation_settings
from atento.networks import build_network
from atento.runs.train import train
from atento.tasks.decoding_setup import RULES, constraints_of
from atento.tasks.model_outputs import text_generator
from atento.text.other_spellings import all_spellings
from atento.text.tokenizer_training import train_tokenizer
from atento_cli.main import application
from atento_serve.engine.requests import generator_for
from failing import fails

TEXTS = ["abcab", "dd c", "e"]
MOST = 6
MBR = {"mbr": "chrf", "candidates": 8}
TABLE: list[tuple[str, Any, dict[str, Any]]] = [  # option, value, the options beside it
    ("beam", 8, {"n_best": 2}),
    ("n_best", 3, {}),
    ("length_penalty", 0.0, {}),
    ("stopping", "shrinking", {"n_best": 4}),
    ("until", "sure", {"n_best": 4}),
    ("groups", 2, {"diversity": 2.0, "n_best": 4}),
    ("diversity", 2.0, {"groups": 2, "n_best": 4}),
    ("exact", True, {"length_penalty": 0.5, "max_new_tokens": 3, "exact_limit": 5000, "beam": 1}),
    ("exact_limit", 1, {"exact": True, "length_penalty": 0.5, "max_new_tokens": 3, "beam": 1}),
    ("sample", True, {}),
    ("temperature", 3.0, {"sample": True}),
    ("top_k", 2, {"sample": True}),
    ("top_p", 0.3, {"sample": True}),
    ("min_p", 0.9, {"sample": True}),
    ("typical_p", 0.2, {"sample": True}),
    ("mbr", "chrf", {"candidates": 8}),
    ("candidates", 5, {"mbr": "chrf"}),
    ("candidates_from", "beam", MBR),
    ("evidence", 5, MBR),
    ("evidence_weights", "model", MBR),
    ("self_comparison", False, MBR),
    ("mbr_method", "aggregated", MBR),
    ("mbr_keep", 1, {"mbr": "chrf", "candidates": 32, "mbr_method": "coarse", "n_best": 5}),
    ("mbr_confidence", 0.5, {"mbr": "chrf", "candidates": 48, "mbr_method": "pruned", "mbr_keep": 1, "n_best": 24}),
    ("repetition_penalty", 5.0, {}),
    ("no_repeat_ngrams", 1, {}),
    ("presence_penalty", 2.0, {}),
    ("frequency_penalty", 2.0, {}),
    ("count_prompt", True, {"no_repeat_ngrams": 1}),
    ("banned_words", [".", "dd"], {}),
    ("banned_tokens", ["b", "</s>"], {"n_best": 4}),
    ("required_words", ["e", "ac"], {}),
    ("prefix", "ec", {}),
    ("forced_bos", "d", {}),
    ("forced_eos", True, {"max_new_tokens": 3, "n_best": 4}),
    ("min_new_tokens", 5, {}),
    ("max_new_tokens", 2, {}),
    ("ignore_eos", True, {}),
    ("stop", ["."], {}),
    ("stop_tokens", ["a", "."], {}),
    ("seed", 9, {"sample": True}),
]
# they change no output: test_v9_neither_batch_size_nor_order_changes_a_translation, test_decoding_draft
ALIKE = {"batch_tokens", "draft", "draft_tokens"}
Outputs = list[list[tuple[str, float]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with random weights, large enough that its distributions are peaked, as a model folder."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="character"), ["abcde fg."])
    torch.manual_seed(5)
    ids = SpecialIds(pad=tokenizer.pad_id, start=tokenizer.bos_id, eos=tokenizer.eos_id)
    sizes = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 1, "vocab_size": tokenizer.vocab_size}
    network = build_network(NetworkConfig(dropout=0.0, ids=ids, **sizes)).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1.6)
    out = tmp_path_factory.mktemp("doors") / "model"
    Model(network, tokenizer, {"task": "translation", "name": "doors"}, None).save(out)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, device="cpu")


def by_python(model: Model, options: dict[str, Any]) -> Outputs:
    with warnings.catch_warnings(action="ignore", category=AtentoWarning):
        found = model.translations(TEXTS, **{"max_new_tokens": MOST, **options})
    return [[(one.text, one.hypothesis.score) for one in row] for row in found]


def flags_of(options: dict[str, Any]) -> list[str]:
    """The flags of these options."""
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [part for v in (value if isinstance(value, list) else [value]) for part in (f"--{flag}", str(v))]
    return flags


def test_the_table_has_every_option() -> None:
    assert {name for name, _, _ in TABLE} | ALIKE == {one.name for one in fields(DecodingConfig)}


@pytest.mark.parametrize(("name", "value", "beside"), TABLE, ids=[name for name, _, _ in TABLE])
def test_an_option_acts_by_all_doors(folder: Path, model: Model, name: str, value: Any, beside: dict[str, Any]) -> None:
    options = {**beside, name: value}
    found = by_python(model, options)
    without = {key: one for key, one in beside.items() if not dict(unused_options(DecodingConfig(**beside), {key}))}
    assert found != by_python(model, without)
    flags = flags_of({"max_new_tokens": MOST, **options})
    command = ["translate", str(folder), "--json", "--device", "cpu", *flags]
    done = CliRunner().invoke(application("translate"), command, input="\n".join(TEXTS) + "\n")
    assert done.exit_code == 0, (done.output, done.stderr)
    rows = [json.loads(line)["translations"] for line in done.stdout.splitlines()]
    assert [[(one["text"], one["score"]) for one in row] for row in rows] == found
    decoding = {"max_new_tokens": MOST, **options}  # as validation decodes: with the recipe's configuration itself
    loaded = load_recipe({"task": "translation", "data": {"train": {"world": "train"}}, "decoding": decoding})
    assert not [line for line in loaded.warnings if "decoding" in line]
    with warnings.catch_warnings(action="ignore", category=AtentoWarning):
        written = text_generator(model, loaded.recipe.decoding).write(TEXTS)
    assert [[(one.text, one.hypothesis.score) for one in row] for row in written] == found


NO_EFFECT: list[tuple[str, Any, dict[str, Any], str]] = [  # option, value, the options beside it, the reason
    ("beam", 2, {"sample": True}, "outputs are drawn, not searched for"),
    ("length_penalty", 0.5, {"sample": True}, "outputs are drawn, not searched for"),
    ("until", "sure", {"sample": True}, "outputs are drawn, not searched for"),
    ("groups", 2, {"sample": True}, "outputs are drawn, not searched for"),
    ("diversity", 0.5, {"sample": True}, "outputs are drawn, not searched for"),
    ("beam", 2, MBR, "`mbr` searches with a beam as wide as `candidates`, if `candidates_from` is beam or both"),
    ("until", "sure", MBR, "`mbr` draws its candidates"),
    ("top_p", 0.5, {**MBR, "candidates_from": "beam"}, "`mbr` takes its candidates from a beam"),
    (
        *("sample", True, {**MBR, "candidates_from": "beam", "evidence": 4}),
        "`mbr` takes its candidates from a beam, and always draws its `evidence`",
    ),
    ("length_penalty", 0.5, {"beam": 1}, "a beam of 1 compares no lengths"),
    ("stopping", "shrinking", {"beam": 1}, "a beam of 1 ends with its one output"),
    ("until", "likely", {"beam": 1}, "a beam of 1 ends with its one output"),
    ("diversity", 0.5, {"beam": 1}, "a beam of 1 has no groups"),
    ("until", "sure", {"exact": True}, "`exact` finds the best output, independently of the beam"),
    ("groups", 2, {"exact": True}, "`exact` finds the best output, independently of the beam"),
    ("top_p", 0.5, {"temperature": 0.0}, "a `temperature` of 0 takes the most probable token"),
    *((name, value, {}, "it is for `mbr`") for name, value in (("candidates", 4), ("candidates_from", "beam"))),
    *((name, value, {}, "it is for `mbr`") for name, value in (("evidence", 4), ("evidence_weights", "model"))),
    *((name, value, {}, "it is for `mbr`") for name, value in (("self_comparison", False), ("mbr_method", "coarse"))),
    *((name, value, {}, "it is for `mbr`") for name, value in (("mbr_keep", 4), ("mbr_confidence", 0.5))),
    ("self_comparison", False, {**MBR, "evidence": 4}, "the `evidence` is drawn for itself"),
    ("mbr_keep", 4, MBR, "it is for `mbr_method` coarse or pruned"),
    ("mbr_confidence", 0.5, {**MBR, "mbr_method": "coarse"}, "it is for `mbr_method` pruned"),
    ("exact_limit", 9, {}, "it is for `exact`"),
    ("until", "sure", {"stopping": "shrinking"}, "a shrinking beam ends when it has no slots left"),
    ("diversity", 0.5, {}, "a beam of one group has no others to differ from: give `groups`"),
    ("count_prompt", True, {}, "it is for `repetition_penalty` and `no_repeat_ngrams`"),
    ("min_new_tokens", 3, {"ignore_eos": True}, "`ignore_eos` leaves no end that it could put off"),
]


@pytest.mark.parametrize(("name", "value", "beside", "why"), NO_EFFECT, ids=[f"{n}-{b}" for n, _, b, _ in NO_EFFECT])
def test_no_effect_is_said(folder: Path, model: Model, name: str, value: Any, beside: dict[str, Any], why: str) -> None:
    options = {**beside, name: value}
    with pytest.raises(UsageError) as refused:
        model.translate("a", **options)
    assert str(refused.value).startswith(f"`{name}` has no effect: {why}")
    done = CliRunner().invoke(application("translate"), ["translate", str(folder), *flags_of(options)], input="a\n")
    assert done.exit_code == 2 or isinstance(done.exception, UsageError)
    message = f"{done.stderr}{done.exception}"
    flag = f"--{name.replace('_', '-')}"
    assert flag in message and ("has no effect" in message or "exclude each other" in message or "no part" in message)
    loaded = load_recipe({"task": "translation", "data": {"train": {"world": "train"}}, "decoding": options})
    told = [line for line in loaded.warnings if f"decoding.{name} has no effect: " in line]
    assert len(told) == 1 and why in told[0]


EXCLUDED: list[tuple[dict[str, Any], str]] = [
    ({"exact": True, "sample": True}, "`exact` and `sample` exclude each other: one searches, the other samples"),
    ({"exact": True, "mbr": "chrf"}, "`exact` and `mbr` exclude each other"),
    ({"exact": True, "n_best": 2}, "`exact` and `n_best` exclude each other: an exact search finds the one best"),
    ({"exact": True, "stop": ["a"]}, "`exact` and `stop` exclude each other"),
    ({"exact": True, "required_words": ["a"]}, "`exact` and `required_words` exclude each other"),
    ({"exact": True, "presence_penalty": -1.0}, "`exact` and `presence_penalty` exclude each other: a penalty below"),
    ({"exact": True, "frequency_penalty": -1.0}, "`exact` and `frequency_penalty` exclude each other: a penalty below"),
    ({"required_words": ["a"], "sample": True}, "`required_words` and `sample` exclude each other"),
    ({"required_words": ["a"], "mbr": "chrf"}, "`required_words` and `mbr` exclude each other"),
    ({"required_words": ["a"], "groups": 2}, "`required_words` and `groups` exclude each other: both divide the beam"),
    ({"required_words": ["a"], "stop": ["b"]}, "`required_words` and `stop` exclude each other"),
    ({"required_words": ["a"], "banned_words": ["a"]}, "`required_words` and `banned_words` exclude each other: both"),
    ({"ignore_eos": True, "forced_eos": True}, "`ignore_eos` and `forced_eos` exclude each other"),
    ({"groups": 3}, "`groups` must divide `beam`: got 3 and a beam of 4"),
    ({"mbr": "chrf", "candidates": 5, "candidates_from": "beam", "groups": 2}, "`groups` must divide `candidates`"),
]


@pytest.mark.parametrize(("options", "said"), EXCLUDED, ids=[str(options) for options, _ in EXCLUDED])
def test_options_that_exclude_each_other_are_refused(model: Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        DecodingConfig(**{name: tuple(one) if isinstance(one, list) else one for name, one in options.items()})
    assert str(refused.value).replace("decoding.", "").startswith(said)
    with pytest.raises((RecipeError, UsageError)) as refused_too:
        model.translate("a", **options)
    assert said.partition(":")[0] in str(refused_too.value).replace("decoding.", "")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"banned_words": ["ü"]}, "`banned_words`: the model's vocabulary cannot write 'ü'"),
    ({"required_words": "xyz"}, "`required_words`: the model's vocabulary cannot write 'xyz'"),
    ({"prefix": "Ω"}, "`prefix`: the model's vocabulary cannot write 'Ω'"),
    ({"banned_tokens": ["<unknown>"]}, "`banned_tokens`: the model's vocabulary has no token '<unknown>'"),
    ({"forced_bos": "<pt>"}, "`forced_bos`: the model's vocabulary has no token '<pt>'"),
    ({"stop_tokens": ["ab"]}, "`stop_tokens`: the model's vocabulary has no token 'ab'"),
    ({"prefix": "abc", "banned_words": ["b"]}, "`prefix` must not contain banned words or tokens: got 'b' in 'abc'"),
    ({"required_words": ["abc"], "banned_tokens": ["c"]}, "`required_words` must not contain banned words or tokens"),
    ({"banned_words": [*"abcdef"], "banned_tokens": ["g", "."]}, "`banned_words` and `banned_tokens` leave no token"),
    ({"prefix": "abcd", "max_new_tokens": 3}, "`prefix` and `required_words` take 4 tokens: an output may have 3"),
    ({"required_words": ["abc", "bcd"], "max_new_tokens": 3}, "`prefix` and `required_words` take 4 tokens"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_words_that_the_vocabulary_cannot_write_are_refused(model: Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        model.translate("a", **options)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"beam": 8, "n_best": 3}], ids=str)
def test_every_output_contains_what_it_must_and_nothing_that_it_must_not(model: Model, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"prefix": "ec", "required_words": ["ab", "d"], "banned_words": ["da", "."], **options}
    for row in model.translations(TEXTS, max_new_tokens=9, **given):
        for one in row:
            assert one.text.startswith("ec") and "ab" in one.text and "d" in one.text
            assert "da" not in one.text and "." not in one.text


def test_a_word_is_banned_as_it_is_cut_at_the_beginning_and_inside() -> None:
    """GPT-2's kind of vocabulary: a word inside a text begins with a space, at the beginning of one it does not."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), ["o gato viu a gata e o gato"] * 9)
    for word in ("gato", "o gato"):
        banned = constraints_of(DecodingConfig(banned_words=(word,)), tokenizer).banned
        for text in (word, f"a {word}", f"a {word} e"):
            ids = tuple(tokenizer.encode(text))
            assert any(ids[at : at + len(one)] == one for one in banned for at in range(len(ids))), (text, banned)


def test_the_exact_search_finds_what_no_beam_beats_with_rules_too(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a beam that is exhaustive: as wide as there are hypotheses of two tokens."""
    options: dict[str, Any] = {"max_new_tokens": 3, "length_penalty": 0.7}
    with warnings.catch_warnings(action="error", category=AtentoWarning):
        found = model.translations(TEXTS, exact=True, beam=1, exact_limit=10_000, **options)
    wide = model.translations(TEXTS, beam=1000, until="sure", **options)
    assert [row[0].text for row in found] == [row[0].text for row in wide]
    assert [row[0].hypothesis.score for row in found] == pytest.approx([row[0].hypothesis.score for row in wide])
    with pytest.warns(AtentoWarning, match="the exact search stopped early for 3 of 3 texts after `exact_limit` 1"):
        assert len(model.translate(TEXTS, exact=True, exact_limit=1, max_new_tokens=3)) == 3
    # not by those of the beam before it, whose score leaves out what the rule takes
    size = model.network.config.vocab_size
    taken = 6 * torch.rand(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    taken[1:, 1:3] = 0  # the end among them, so that beams find one

    def rule(scores: Tensor, written: Written) -> Tensor:
        return scores - taken[written.ids.shape[1]]

    monkeypatch.setitem(RULES, ("length_penalty",), lambda config, eos_id: rule)
    found = model.translations(TEXTS, exact=True, beam=1, exact_limit=10_000, **options)
    wide = model.translations(TEXTS, beam=1000, until="sure", **options)
    assert [row[0].text for row in found] == [row[0].text for row in wide]


def test_a_stream_and_the_service_heed_words_and_load_no_model_to_compare_outputs_with(model: Model) -> None:
    usual = Model(model.network, model.tokenizer, {**model.config, "decoding": {"mbr": "embeddings:x"}}, None)
    for one in (lambda: model.stream("abc", mbr="embeddings:x"), lambda: generator_for(usual, "translate", "{}", None)):
        fails(UsageError, "`mbr` embeddings:x needs another model, which neither a stream nor the", one)
    options: dict[str, Any] = {"prefix": "ec", "banned_words": ["."], "stop_tokens": ["g"], "max_new_tokens": 6}
    assert "".join(model.stream("abc", **options)) == model.translate("abc", greedy=True, **options)
    for beam in ({"beam": 3}, {"beam": 4, "required_words": "a"}, {"beam": 4, "groups": 2, "diversity": 0.5}):
        searched = model.translate("abc", max_new_tokens=12, **beam)
        assert "".join(model.stream("abc", max_new_tokens=12, **beam)) == searched
    usual = Model(model.network, model.tokenizer, {**model.config, "decoding": {"groups": 2, "diversity": 1.0}}, None)
    assert "".join(usual.stream("abc", max_new_tokens=6)) == model.translate("abc", greedy=True, max_new_tokens=6)
    for wrong in ({"mbr": "chrf"}, {"exact": True}, {"n_best": 2}):
        fails(UsageError, "a stream is one output of greedy search, sampling or a beam", model.stream, "abc", **wrong)


def test_words_that_a_recipes_vocabulary_cannot_write_are_refused_before_training(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "task": "translation",
        "tokenizer": {"kind": "character"},
        "network": {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 1},
        "training": {"steps": 1},
        "decoding": {"banned_words": ["Ω"]},
    }
    pairs = {"train": [("a cat", "um gato"), ("a dog", "um cão")] * 4}
    fails(UsageError, r"`banned_words`: .* 'Ω'", train, recipe, data=pairs, out=tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_an_exported_folder_says_when_a_beam_ends_and_what_ends_an_output(model: Model) -> None:
    """As `transformers` names it; test_decoding_parity.py compares the outputs."""
    said = _generation_settings(model.network.config, DecodingConfig(until="sure", forced_eos=True), {})
    assert said["early_stopping"] == "never" and said["forced_eos_token_id"] == model.network.config.eos_id
    plain = _generation_settings(model.network.config, DecodingConfig(), {})
    assert plain["early_stopping"] is True and "forced_eos_token_id" not in plain


@pytest.mark.parametrize("beside", [{}, {"prefix": "ec"}, {"prefix": "ea"}], ids=str)
def test_the_tightest_limit_that_is_accepted_holds_all_words(model: Model, beside: dict[str, Any]) -> None:
    accepted = 0
    for limit in range(1, 7):
        options: dict[str, Any] = {"required_words": ["ab", "d"], "max_new_tokens": limit, **beside}
        try:
            found = model.translate(TEXTS, **options)
        except UsageError:
            assert not accepted
            continue
        accepted += 1
        assert all("ab" in text and "d" in text and text.startswith(beside.get("prefix", "")) for text in found)
    assert accepted >= 1


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_all_spellings_of_a_word_are_those_that_pieces_can_be_joined_to(kind: Any) -> None:
    """Against every sequence of pieces of the word's letters, tried one by one; a ban holds on all of them."""
    settings = TokenizerConfig(kind=kind, vocab_size=40 if kind == "wordpiece" else 275)
    tokenizer = train_tokenizer(settings, ["ana banana", "bana nana ba", "naba ana"] * 3)
    own = tuple(tokenizer.encode("banana"))
    found = all_spellings(own, tokenizer)
    assert found[0] == own and len(found) > 1
    letters = [token for token in range(tokenizer.vocab_size) if set(tokenizer.spelling(token) or "?") <= set(" ban")]
    text = "".join(str(tokenizer.spelling(token)) for token in own)
    by_hand, begun = set(), [((), "")]
    while begun:
        ids, written = begun.pop()
        by_hand |= {ids} if written == text else set()
        begun += [
            ((*ids, token), longer)
            for token in letters
            if text.startswith(longer := written + str(tokenizer.spelling(token))) and longer != written
        ]
    assert set(found) == by_hand
    assert {*constraints_of(DecodingConfig(banned_words=("banana",)), tokenizer).banned} >= by_hand
    assert len(all_spellings(own, tokenizer, most=2)) <= 3
    long = tokenizer.encode("banana " * 2000)  # a request may hold it: neither time nor ways grow with it
    assert all_spellings(long, tokenizer) == [tuple(long)]
