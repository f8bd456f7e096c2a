"""Every message about a wrong recipe: its place, the key, the rule and the value got."""

# ruff: noqa: E501 (a table of whole messages is read line by line)

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, FeedForwardConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.tasks import TASKS
from failing import fails

BUILT = ", ".join(TASKS)
HEAD = "task: translation\ndata: {train: {source: a.en, target: a.pt}}\n"  # what follows begins on line 3


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def message(text: str, *overrides: str, **variables: str) -> str:
    Path("my.yaml").write_text(text, encoding="utf-8", newline="\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe("my.yaml", overrides, environment=variables)
    return str(caught.value)


IN_THE_FILE = [
    ("training:\n  learning_rat: 1", "my.yaml:4:3: unknown key 'learning_rat' in training; did you mean 'learning_rate'? Known: activation_checkpointing, "),
    ("trainin: {}", "my.yaml:3:1: unknown key 'trainin'; did you mean 'training'? Known: data, "),
    ("zzz: 1", "my.yaml:3:1: unknown key 'zzz'. Known: data, "),
    ("network:\n  n_layer: 1", "my.yaml:4:3: unknown key 'n_layer' in network; did you mean 'n_layers'? Known: "),
    ("network: {positions: {bas: 1}}", "my.yaml:3:23: unknown key 'bas' in network.positions; did you mean 'base'? Known: base, fraction, "),
    ("training.steps: 5", "my.yaml:3:1: unknown key 'training.steps'"),
    ("training:\n  steps: many", "my.yaml:4:10: training.steps must be an integer: got 'many'"),
    ("training: {steps: '5'}", "my.yaml:3:19: training.steps must be an integer: got '5'"),
    ("training: {steps: 1.5}", "my.yaml:3:19: training.steps must be an integer: got 1.5"),
    ("training: {steps: 1.000}", "my.yaml:3:19: training.steps must be an integer: got 1.000; a thousand has no point: 1000"),
    ("training:\n  clip: 0,5", "my.yaml:4:9: training.clip must be a number: got '0,5'; the sign of decimals is a point"),
    ("training: {clip: 0,5}", "my.yaml:3:20: a key must be text (in quotes if need be): got 5; a comma ends an entry, and the sign of decimals is a point"),
    ("training: {steps: [1, 2]}", "my.yaml:3:19: training.steps must be an integer: got a list of 2"),
    ("training: {steps: }", "my.yaml:3:18: training.steps must be an integer: got null or nothing (leave the key out for the default)"),
    ("training: {clip: null}", "my.yaml:3:18: training.clip must be a number: got null or nothing (0 switches it off; leave the key out for the default)"),
    ("training: {learning_rate: 1e+30}", "my.yaml:3:27: `training.learning_rate` must be at most 10: got 1e+30"),
    ("training: {weight_decay: 1e+30}", "my.yaml:3:26: `training.weight_decay` times `training.learning_rate` must be below 1, for every update"),
    ("training: {steps: 9223372036854775808}", "my.yaml:3:19: training.steps must lie below 2^63: got 9223372036854775808"),
    ("training: {steps: 1" + "0" * 99 + "}", "my.yaml:3:19: training.steps must lie below 2^63: got an integer of about"),
    ("training: {steps: .nan}", "my.yaml:3:19: training.steps must be a finite number: got nan"),
    ("training: {clip: 1e999}", "my.yaml:3:18: training.clip must be a finite number: got inf"),
    ("training: {epochs: x}", "my.yaml:3:20: training.epochs must be a number or null: got 'x'"),
    ("training: {betas: [0.9, x]}", "my.yaml:3:25: training.betas.1 must be a number: got 'x'"),
    ("training: {betas: 0.9}", "my.yaml:3:19: training.betas must be a list of 2 numbers: got 0.9"),
    ("training: {betas: [0.9]}", "my.yaml:3:19: training.betas must be a list of 2 numbers: got a list of 1"),
    ("training: {schedule: cosin}", "my.yaml:3:22: training.schedule must be one of inverse-sqrt, cosine, linear, constant, wsd: got 'cosin'; did you mean 'cosine'?"),
    ("training: [{steps: 1}]", "my.yaml:3:11: training must be a mapping: got a list of 1"),
    ("training: {seed: -1}", "my.yaml:3:18: training.seed must not be negative: got -1"),
    ("tokenizer: {shared: yes}", "my.yaml:3:21: tokenizer.shared must be true or false: got 'yes'"),
    ("tokenizer: word", "my.yaml:3:12: 'word' reads as the path of a tokenizer; write {kind: word} for the kind, ./word for a folder of that name"),
    ("init: 5", "my.yaml:3:7: init must be a mapping or null: got 5"),
    ("init: {train: lora}", "my.yaml:3:7: init.model is missing: text"),
    ("init: {model: m, train: last}", "my.yaml:3:25: `init.train` must be all, head, last-N with a number of layers such as last-2, decoder, bias or lora: got 'last'"),
    ("init: {model: m, train: lora, lora: {targets: [querry]}}", "my.yaml:3:47: `init.lora.targets`: unknown linear map 'querry'; did you mean 'query'? Known: all-linear, inner, input, key, outer, output, query, value"),
    ("init: {model: m, train: head, unfreeze: gradual}", "my.yaml:3:41: `init.unfreeze` trains layers below the head, and `init.train` is head: leave it out"),
    ("init: {model: m, layer_decay: 1.5}", "my.yaml:3:31: `init.layer_decay` must lie above 0 and be at most 1: got 1.5"),
    ("init: {model: m, unfreeze: {steps: 9, epochs: 2}}", "my.yaml:3:36: `init.unfreeze.steps` stands instead of `epochs`: got 9 and 2.0; give one"),
    ("name: 5", "my.yaml:3:7: name must be text: got 5 (put it in quotes if it is text)"),
    ("name: a/b", "my.yaml:3:7: name must be the name of a folder, without slashes: got 'a/b'"),
    ("name: ..", "my.yaml:3:7: name must be the name of a folder, without slashes: got '..'"),
    ("network: {architecture: decoder}", "my.yaml:3:25: task translation needs network.architecture encoder-decoder or recurrent-seq2seq, which read a source and write: got 'decoder'"),
    ("metrics: blue", "my.yaml:3:10: unknown metric 'blue'; did you mean 'bleu'? Known: bleu, chrf, exact-match, f1-bleu-rouge, rouge, rouge1, rouge2, ter, token-f1"),
    ("metrics: [bleu, bleu]", "my.yaml:3:10: metrics names 'bleu' twice"),
    ("metrics: [bleu, 1]", "my.yaml:3:17: metrics.1 must be text or a mapping: got 1 (put it in quotes if it is text)"),
    ("metrics: {a: 1}", "my.yaml:3:14: metrics.0.a must be a mapping: got 1"),
    ("metrics: {bleu: {tokenize: 7}}", "my.yaml:3:28: metrics.0.bleu.tokenize must be text: got 7 (put it in quotes"),
    ("metrics: {bleu: {tokenize: zz}}", "my.yaml:3:10: unknown BLEU tokenizer 'zz'"),
    ("metrics: [{chrf: {tokenize: zh}}]", "my.yaml:3:10: the metric chrf has no option 'tokenize'"),
    ("metrics: [bleu, {bleu: {tokenize: zh}}]", "my.yaml:3:10: metrics names 'bleu' twice"),
    ("metrics: [{}]", "my.yaml:3:10: metrics: a mapping names a metric and its options: got an empty one"),
    ("network: transformer-tny", "my.yaml:3:10: unknown preset 'transformer-tny'; did you mean 'transformer-tiny'?"),
    ("network: {preset: 5}", "my.yaml:3:19: network.preset must be text: got 5"),
    ("network: {positions: 5}", "my.yaml:3:22: network.positions must be a mapping or a list of mappings: got 5"),
    ("network: {positions: alib}", "my.yaml:3:22: network.positions.kind must be one of "),
    # rules of the dataclasses themselves, with the place of the key that they name
    ("network: {d_model: 10, n_heads: 3}", "my.yaml:3:33: `n_heads` must divide `d_model`: got 3 and 10"),
    ("network: {d_model: 10}", "my.yaml:3:20: `n_heads` must divide `d_model`: got 8 and 10"),
    ("training: {seed: 1, steps: 0}", "my.yaml:3:28: `training.steps` must be at least 1: got 0"),
    ("network: {preset: transformer-tiny, dropout: 1}", "my.yaml:3:46: `dropout` must lie in [0, 1): got 1.0"),
    ("objective: {kind: denoising, rate: x}", "my.yaml:3:36: objective.rate must be a number"),
    ("extends: {a: b}", "my.yaml:3:10: extends must be the path or name of a recipe: got a mapping of 1"),
    ("extends: nowhere.yaml", "my.yaml:3:10: extends: there is no recipe file"),
    ("extends: my.yaml", "my.yaml:3:10: recipes extend one another in a circle: my.yaml -> my.yaml"),
    ("a: [", "my.yaml:4:1: not valid YAML: "),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "start"), IN_THE_FILE, ids=[lines[:30] for lines, _ in IN_THE_FILE])
def test_in_the_file(lines: str, start: str) -> None:
    got = message(HEAD + lines + "\n")
    assert got.startswith(start)
    assert "pydantic" not in got and "Input should" not in got and "validation error" not in got


SOURCES = [
    ("{}", "data.train names no data: give `source` and `target` paths, or `file`"),
    ("5", "data.train must be a mapping: got 5"),
    ("{source: a}", "data.train is two parallel files, so `target` is missing"),
    ("{file: a, target: 0}", "data.train is one file with columns, so `source` is missing"),
    ("{file: a}", "data.train is one file with columns, so `source` is missing"),
    ("[{file: a}]", "data.train.0 is one file with columns, so `source` is missing"),
    ("{source: 0, target: b}", "data.train is two parallel files, so `source` must be a path: got 0 (a column needs `file`)"),
    ("{file: a, source: -1, target: 1}", "data.train must count its columns from 0: `source` is -1"),
    ("{file: a, source: 1, target: 1}", "data.train must have two columns: `source` and `target` are both 1"),
    ("{file: a, source: 0, target: pt}", "data.train must name both columns by number (no header) or both by name (a header): got 0 and 'pt'"),
    ("{file: '', source: 0, target: 1}", "data.train must name a path: `file` is ''"),
    ("{source: '', target: b}", "data.train must name a path or a column: `source` is ''"),
    ("{world: train, file: a}", "data.train is a split of the micro-world, so `file` cannot be combined with `world`: got 'a'"),
    ("{world: train, count: 0}", "`count` must be at least 1: got 0"),
    ("{world: trai}", "data.train.world must be one of train, valid, combinations, structures or null: got 'trai'; did you mean 'train'?"),
    ("[{world: train}, {source: true, target: b}]", "data.train.1.source must be an integer or text or null: got true"),
    ("[]", "data.train is missing: give `source` and `target` paths"),
]  # fmt: skip

FORMATS = [
    *(("translation", *row) for row in SOURCES),
    ("tagging", "{file: a.xml}", "must end in one of .tsv, .csv, .xlsx, .jsonl, .json, .conll, .bio, .iob, .iob2, .conllu (or that and .gz or .zst): `file` is 'a.xml'"),
    ("tagging", "{file: a.conll, tokens: w}", "is in the format conll, whose columns have numbers: `tokens` is 'w'"),
    ("tagging", "{file: a.conll, tags: 0}", "must have a column for each field: 0 appears twice"),
    ("tagging", "{file: a.tsv}", "is one file with columns, so `tokens` is missing"),
    ("tagging", "{file: a.tsv, tokens: 0, tags: -1}", "must count its columns from 0: `tags` is -1"),
    ("tagging", "{file: a.jsonl, tokens: 0, tags: 1}", "is in the format jsonl, whose columns have names: `tokens` is 0"),
    ("tagging", "{file: a.tsv, format: assin}", "is assin, which has no `tags`: give `file` and the column of each field: `tokens`, `tags` (or a file that ends in .conll or"),
    ("tagging", "{file: a.tsv, format: conl}", "format must be one of tsv, csv, xlsx, jsonl, json, conll, conllu, assin, tmx, xliff, po, folders, text or null: got 'conl'; did you mean 'conll'?"),
    ("tagging", "{file: a.conll, label: 1}", "has a `label`, and this task reads tokens, tags"),
    ("tagging", "{dataset: a, file: b}", "is a data set, so `file` cannot be combined with `dataset`: got 'b'"),
    ("tagging", "{dataset: a, tags: 2}", "is a data set, whose columns have names: `tags` is 2"),
    ("tagging", "{dataset: ''}", "must name a folder or a data set: `dataset` is ''"),
    ("tagging", "{file: a.conll, split: train}", "has a `split`, which needs `dataset`"),
    ("classification", "{file: a.xml, label: 2}", "is in the format assin, whose columns have names: `label` is 2"),
    ("classification", "{file: a.txt, format: text}", "is text, which has no `label`: give `file` and the column of each field: `text`, `label` (or a file that ends in .xml)"),
    ("question-answering", "{file: a.conll}", "must end in one of .tsv, .csv, .xlsx, .jsonl, .json (or that and .gz or .zst): `file` is 'a.conll'"),
    ("question-answering", "{file: a.csv}", "is one file with columns, so `question` is missing"),
    ("language-modeling", "{file: a.txt, format: conll}", "is conll, and this task reads texts: give `file` (one text per line"),
    ("classification", "{world: train}", "is a split of the micro-world without labels, and this task reads text, pair, label: use `labels: tense`, `negation`, `number`, `question`, `entailment`"),
    ("tagging", "{world: train, labels: tense}", "has the labels tense, which are of records with text, label, and this task reads tokens, tags: use `labels: pos`, `entities`"),
    ("tagging", "{world: train, labels: po}", "labels must be one of tense, negation, number, question, similarity, entailment, pos, entities, answers or null: got 'po'"),
    ("tagging", "{file: a.conll, labels: pos}", "has `labels`, which are of the micro-world and need `world`"),
    ("tagging", "{world: train, labels: pos, tags: 0}", "is a split of the micro-world, so `tags` cannot be combined with `world`: got 0"),
    ("tagging", "{world: train, labels: pos, text: fr}", "is a split of the micro-world, so `text` must be pt or en: got 'fr'"),
    ("classification", "{world: structures, labels: question}", "is the split structures, which has no questions"),
    ("language-modeling", "{world: train, labels: tense}", "has `labels`, and this task reads texts without labels"),
    ("translation", "{world: train, labels: tense}", "has `labels`, and this task reads pairs without labels"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "written", "sentence"), FORMATS)
def test_formats_of_sources(task: str, written: str, sentence: str) -> None:
    got = message(f"task: {task}\ndata:\n  train: {written}\n")
    assert got.startswith("my.yaml:3:") and sentence in got


ENOUGH = [
    ("tagging", "{file: a.conll}"), ("tagging", "{file: esp.train.gz, tags: -2}"), ("tagging", "{file: a.conllu}"),
    ("tagging", "{file: a.tsv, format: conll, tokens: 1}"), ("tagging", "{dataset: a, split: train, tags: ner_tags}"),
    ("question-answering", "{file: a.json.gz}"), ("question-answering", "{file: a.jsonl, question: q}"),
    ("classification", "{file: a.xml}"), ("classification", "{file: a.txt, format: tsv, text: 0, label: 1}"),
    ("language-modeling", "{file: a.xml}"),
    ("translation", "{dataset: a, source: translation.en, target: translation.pt}"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "written"), ENOUGH)
def test_sources_that_say_enough(task: str, written: str) -> None:
    Path("my.yaml").write_text(f"task: {task}\ndata:\n  train: {written}\n")
    assert load_recipe("my.yaml").recipe.data.train


def test_what_has_no_default_and_tasks_that_are_unknown() -> None:
    assert message("data: {train: {world: train}}") == f"my.yaml:1:1: task is missing; this version trains: {BUILT}"
    assert message("task: translation\n").startswith("my.yaml:1:1: data is missing: data.train is required; give ")
    assert message("task: translation\ndata:\n").startswith("my.yaml:2:6: data.train is missing: give ")
    assert message("task: translation\ndata: {valid: {world: valid}}").startswith("my.yaml:2:7: data.train is missing")
    assert message("").startswith("my.yaml:1:1: task is missing")
    rest = "\ndata: {train: {world: train}}"
    for name, end in ("translatoin", "'; did you mean 'translation'?"), ("xyz", "'."):
        assert message(f"task: {name}{rest}") == f"my.yaml:1:7: unknown task '{name}{end} This version trains: {BUILT}"
    assert message("task: 5" + rest).startswith(f"my.yaml:1:7: task must be one of {BUILT}: got 5")


OVERRIDES = [
    ("training.learning_rat=1", "unknown key 'learning_rat' in training; did you mean 'learning_rate'? Known: "),
    ("~trainin", "unknown key 'trainin'; did you mean 'training'?"),
    ("trainin=null", "unknown key 'trainin'; did you mean 'training'?"),
    ("data.train.0.sorce=1", "unknown key 'sorce' in data.train.0; did you mean 'source'?"),
    ("extends=x.yaml", "unknown key 'extends'"),
    ("training={sted: 1}", "unknown key 'sted' in training; did you mean 'seed'?"),
    ("training.steps=10.000", "training.steps must be an integer: got 10.000; a thousand has no point: 10000"),
    ("training.steps.a=1", "training.steps.a: training.steps has no keys to set separately; set the whole value"),
    ("training.betas.0=1", "training.betas.0: training.betas has no keys to set separately; set the whole value"),
    ("data.train.5.file=x", "data.train.5.file: '5' must be an index from 0 into a list of 1"),
    ("metrics.a=x", "metrics.0.a must be a mapping: got 'x'"),
    ("training.steps", "an override is key=value, such as training.steps=1000, or ~key to go back to the default: got"),
    ("=5", "an override is key=value"),
    ("training..steps=5", "an override is key=value"),
    ("~", "an override is key=value"),
    ("init=[a", "init: not valid YAML: expected ',' or ']', but got '<stream end>' (quotes make any value text): got '[a'"),
    ("training.steps=" + "9" * 500, "training.steps: an integer of 500 characters is too large: got '999"),
    ("training.clip=null", "training.clip must be a number: got null or nothing (0 switches it off; ~training.clip goes back"),
    ("training.steps=", "training.steps must be an integer: got null or nothing (~training.steps goes back to the default)"),
    ("data.test=null", "data.test must be a list of mappings: got null or nothing (~data.test goes back to the default)"),
    ("network.preset=", "network.preset must be text: got null or nothing (~network.preset goes back to the default)"),
    ("training.steps=0", "`training.steps` must be at least 1: got 0"),
    ("training.betas=[1, 2]", "`training.betas` must lie in [0, 1): got [1.0, 2.0]"),
    ("network.d_model=10000000", "`d_model` and `d_ff` may be 262,144 at most: got 10000000 and 2048"),
    ("network.attention.n_kv_heads=3", "`attention.n_kv_heads` must divide `n_heads`, or be null for as many: got 3 and 8"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "sentence"), OVERRIDES, ids=[override[:25] for override, _ in OVERRIDES])
def test_on_the_command_line(override: str, sentence: str) -> None:
    assert message(HEAD, override).startswith(f"command line: {sentence}")


def test_overrides_and_the_environment_are_named_with_what_is_wrong() -> None:
    wrong = message(HEAD, ATENTO_TRAINING__STEPS="x")
    assert wrong == "ATENTO_TRAINING__STEPS: training.steps must be an integer: got 'x'"
    wrong = message(HEAD, ATENTO_TRAINING__STEP="5")
    assert wrong.startswith("ATENTO_TRAINING__STEP: unknown key 'step' in training; did you mean 'steps'?")
    got = message("task: translation\ndata: {train: {world: train}}\ntraining: 5\n", "training.steps=4")
    assert got == "command line: training.steps: there is no 'steps' in the value at my.yaml:3:11"
    got = message("task: translation\ndata: {train: 5}\n", "data.train.0.count=4")
    assert "there is no 'count' in the value at my.yaml:2:15" in got
    Path("my.yaml").write_text(HEAD, encoding="utf-8", newline="\n")
    cases: list[tuple[Any, str]] = [
        ("a=b", "overrides are a list of key=value: got the one text 'a=b'"),
        ({5: 1}, "an override's key is dotted text such as 'training.steps': got 5"),
        ({"training.steps": object()}, "command line: training.steps must be an integer: got a value of type object"),
        ({"training.steps": "5"}, "training.steps must be an integer: got '5'"),
    ]
    for overrides, said in cases:
        fails(RecipeError, said, load_recipe, "my.yaml", overrides)


def test_circles_recipes_that_are_not_there_and_files_that_are_none() -> None:
    Path("folder").mkdir()
    Path("receita.yaml").touch()
    for name, start in {
        "receita.yml": "there is no recipe file receita.yml; did you mean 'receita.yaml'?",
        "receita": "there is no recipe file receita; did you mean 'receita.yaml'?",
        "micro-wrld-en-pt": "no recipe named 'micro-wrld-en-pt'; did you mean 'micro-world-en-pt'? Known: ",
        "xyz": "no recipe named 'xyz'. Known: ",
        "xyz.yaml": "there is no recipe file xyz.yaml; shipped recipes: ",
        "folder": "folder is a folder; a recipe is a YAML file or one of ",
        "a\0b.yaml": "there is no recipe file",
        "a" * 300 + ".yaml": "a" * 300 + ".yaml cannot be read: ",
    }.items():
        fails(RecipeError, f"^{re.escape(start)}", load_recipe, name)
    Path("a.yaml").write_text("extends: b.yaml\n", encoding="utf-8", newline="\n")
    Path("b.yaml").write_text("extends: ./a.yaml\n", encoding="utf-8", newline="\n")
    got = message("extends: a.yaml\n")
    assert got == "b.yaml:1:10: recipes extend one another in a circle: a.yaml -> b.yaml -> a.yaml"
    path = Path("my.yaml")
    for content, said in (
        (b"task: translation\nname: caf\xe9\n", "my.yaml:2: not UTF-8 at byte 27"),
        ("task: translation\n".encode("utf-16"), "at byte 0; it looks like UTF-16: .* UTF-8, or `iconv -f UTF-16 -t "),
        (b"#" * (2**20 + 1), "my.yaml: a recipe may hold at most 1048576 bytes"),
    ):
        path.write_bytes(content)
        fails(RecipeError, said, load_recipe, path)
    for text in ("- a\n", "text\n", "5\n"):
        assert message(text).startswith("my.yaml:1:1: a recipe must be a mapping of keys: got ")
    for name in ("a.tsv", "a.jsonl.gz", "a.parquet", "a.txt"):  # in place of the recipe that names it
        path.with_name(name).write_bytes(b"a\tb\n")
        fails(RecipeError, f"{name} is a file of data; a recipe is", load_recipe, path.with_name(name))


MISSPELT: list[tuple[Callable[[], object], str]] = [
    (lambda: PositionConfig("alibbi"), r"`positions.kind` cannot be 'alibbi'; did you mean 'alibi'\? Known: alibi, "),  # type: ignore[arg-type]
    (lambda: NetworkConfig(norm_kind="rmsnrm"), "`norm_kind` cannot be 'rmsnrm'"),  # type: ignore[arg-type]
    (lambda: FeedForwardConfig(activation="gleu"), "`feed_forward.activation` cannot be 'gleu'; did you mean 'gelu'"),  # type: ignore[arg-type]
    (lambda: NetworkConfig(architecture="decoder", attention=AttentionConfig(sparse=SparseConfig(blocks=2))), "`attention.sparse.blocks` is for encoders: got architecture 'decoder'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), MISSPELT)
def test_what_python_misspells_is_refused_as_in_a_recipe(make: Callable[[], object], message: str) -> None:
    fails(RecipeError, message, make)
