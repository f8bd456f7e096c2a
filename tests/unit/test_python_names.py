"""What Python shows of the library: its names, models that move, reprs of one short line."""

import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.decoding import Beam, generate
from atento.decoding.trace import Trace
from atento.evaluation import calibrate, evaluate
from atento.inspection import AttentionRecord
from atento.metrics import bleu, paired_test
from atento.model import Model
from atento.networks import build_network
from atento.released.load_report import LoadReport
from atento.runs.train import TrainedRun
from atento.tasks.text_outputs import texts_and_pairs
from atento.text.tokenizer_training import train_tokenizer
from atento_world import write
from failing import fails

PAIRS = write("train", 60)
NETWORK = NetworkConfig(d_model=16, d_ff=32, n_heads=2, n_layers=1, norm="pre")


@pytest.fixture(scope="module")
def model() -> Model:
    texts = (text for pair in PAIRS for text in (pair.source, pair.target))
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=360), texts)
    torch.manual_seed(0)
    network = build_network(NetworkConfig(**vars(NETWORK) | {"vocab_size": tokenizer.vocab_size})).eval()
    config = {"task": "translation", "name": "small", "decoding": {"beam": 2, "max_new_tokens": 6}}
    return Model(network, tokenizer, config | {"network": network_to_dict(network.config)}, None)


def test_dir_shows_the_public_names_without_loading_torch() -> None:
    """Python: `dir(atento)` showed none of load, train, evaluate; there was no atento.Model."""
    program = """
import sys, atento
names = {"AtentoError", "Index", "Model", "Tokenizer", "evaluate", "glue", "load", "search", "suggest", "suspect"}
names.add("train")
assert names <= set(dir(atento)) and names | {"__version__"} == set(atento.__all__)
assert "torch" not in sys.modules and issubclass(atento.AtentoError, Exception)
assert atento.Tokenizer.from_vocabulary("word", ["a"]).encode("a") == [5] and "torch" not in sys.modules
from atento import *
assert Model is atento.Model and callable(load) and callable(train) and callable(evaluate) and callable(glue)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_wrong_arguments_are_sentences_and_an_option_that_is_true_or_false_takes_nothing_else(model: Model) -> None:
    pairs = [("a", "b")]
    calls: dict[str, Callable[[], object]] = {
        "a text must be a str: got int": lambda: model.attend(3),  # type: ignore[arg-type]
        "a text must be a str: got list": lambda: model.attend(["a"]),  # type: ignore[arg-type]
        "a recipe is a file, a name or a mapping: got int": lambda: atento.train(3),  # type: ignore[arg-type]
        "`overrides` must be a mapping or a list of key=value: got 5": lambda: atento.train("x", 5),  # type: ignore
        "`overrides` must be a mapping or a list of key=value: got 'a=3'": lambda: atento.train("x", "a=3"),
        "`directory` must be a folder: got int 3": lambda: model.save(3),  # type: ignore[arg-type]
        "`directory` must be a folder: got NoneType None": lambda: atento.Tokenizer.load(None),  # type: ignore
        "`directory` must be a folder: got bytes b'x'": lambda: atento.Tokenizer.load(b"x"),  # type: ignore[arg-type]
        "`out` must be a folder: got int 3": lambda: atento.train("micro-world-en-pt", out=3),  # type: ignore
        "`layout` must be 'atento' or 'huggingface': got 'hf'": lambda: model.save("x", "hf"),
        "give a text or a list of texts: got int": lambda: model.translate(3),  # type: ignore[call-overload]
        "text 0 must not have a NUL character: there is one at character 1": lambda: model.translate("a\0b"),
        "text 1 must not have a NUL character: there is one at character 0": lambda: model.translate(["a", "\0"]),
        "text 0 must not have a NUL character: there is one at character 2": lambda: model.embed("ab\0"),
        "`threads` must be an integer from 1 to 1024: got 0": lambda: atento.evaluate(model, pairs, threads=0),
        "`threads` must be an integer from 1 to 1024: got 9": lambda: atento.evaluate(model, pairs, threads=10**6 * 9),
        "an override is key=value": lambda: atento.train("micro-world-en-pt", [("training.steps", 3)]),  # type: ignore
        "--from must be RUN@STEP": lambda: atento.train("micro-world-en-pt", from_=3),  # type: ignore[arg-type]
        "`max_len` must be at least 1: got 0": lambda: model.embed("a", max_len=0),  # a vector of no token
        "unknown metric '5'": lambda: atento.evaluate(model, pairs, metrics=[5]),  # type: ignore[list-item]
        "`glossary` is a file, a mapping": lambda: model.translate("a", glossary={"a": None}),  # type: ignore
        "text 1 must be Unicode text: got the lone surrogate U+D800": lambda: model.embed(["a", "\ud800"]),
        "unknown metric 'blue'; did you mean 'bleu'": lambda: atento.evaluate(model, pairs, metrics="chrf,blue"),
    }
    for said, call in calls.items():
        fails(UsageError, re.escape(said), call)
    for wrong in (3, None, ["runs/x"]):
        fails(UsageError, "`model` must be a folder, a file or a hub name: got", atento.load, wrong)
    # The text "no" would count as true. Every option of that type, by the signatures
    tagger = atento.load("micro-world-entities")
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        *((call, (model, [("a", "b")])) for call in (evaluate, calibrate)),
        *((model.translate, ("a",)), (tagger.tag, ("a",)), (tagger.tag_words, (["a"],))),
        *((atento.load, ("micro-world-en-pt",)), (atento.train, ({},))),
    ]
    seen = set()
    for call, arguments in calls:
        for name, option in inspect.signature(call).parameters.items():
            if option.kind is option.KEYWORD_ONLY and option.annotation in (bool, "bool", "bool | None", bool | None):
                seen.add(name)
                for wrong in ("no", 1):
                    fails(UsageError, rf"{name}.* must be (?i:true or false)", call, *arguments, **{name: wrong})
    assert seen >= {"split_sentences", "protect", "greedy", "exact", "force", "skip_bad", "fit", "constrained"}
    assert model.translate("a", greedy=np.True_) == model.translate("a", greedy=True)
    with pytest.raises(RecipeError, match="skip_bad must be true or false: got 'no'"):
        load_recipe({"task": "translation", "data": {"train": {"file": "a.tsv"}, "skip_bad": "no"}})


def test_numbers_and_arrays_of_numpy_names_of_texts_and_another_process_change_nothing(model: Model) -> None:
    """Values of `np.arange`, of a table's column or of a random search were refused: "got a value of type int64"."""
    text: str = PAIRS[0].source
    options: dict[str, Any] = {"beam": np.int64(3), "n_best": np.int64(2), "max_new_tokens": torch.tensor(5)}
    assert model.translate(text, **options) == model.translate(text, beam=3, n_best=2, max_new_tokens=5)
    given: dict[str, Any] = {"greedy": np.True_, "stop": np.array(["."])}
    assert model.translate(text, **given) == model.translate(text, greedy=True, stop=["."])
    assert model.embed(text, dimensions=np.int64(3), layer=np.int64(0)).shape == (3,)  # type: ignore[typeddict-item]
    loaded = load_recipe("micro-world-en-pt", {"training.steps": np.int32(7), "metrics": np.array(["bleu"])}).recipe
    assert (loaded.training.steps, loaded.metrics) == (7, ("bleu",))
    rows = np.array([(pair.source, pair.target) for pair in PAIRS[:3]])
    assert atento.evaluate(model, rows)["bleu"].value == atento.evaluate(model, rows.tolist())["bleu"].value
    assert texts_and_pairs(zip(["a", "b"], ["c", "d"])) == (["a", "b"], ["c", "d"])
    # `datasets.map` with several processes and the workers of a `DataLoader` pickle it
    tokenizer = pickle.loads(pickle.dumps(model.tokenizer))
    assert tokenizer.encode("I see.") == model.tokenizer.encode("I see.")
    assert tokenizer.decode([300, 5]) == model.tokenizer.decode([300, 5])
    assert model.translate(text="I see.") == model.translate("I see.") == model.translate(["I see."])[0]
    assert model.translate(one for one in ["I see.", ""]) == [model.translate("I see."), ""]  # type: ignore
    fails(TypeError, r"translate\(\) missing 1 required positional argument: 'text'", model.translate)
    for method, name in ((Model.translate, "text"), (Model.summarize, "text"), (Model.generate, "prompt")):
        parameters = list(inspect.signature(method).parameters)
        assert parameters[:3] == ["self", name, "n_best"] and "beam" in parameters and (method.__doc__ or "").strip()


def test_a_model_moves_and_changes_its_precision(model: Model) -> None:
    texts = [pair.source for pair in PAIRS[:3]]
    before = model.translate(texts)
    assert model.device == torch.device("cpu") and model.to("auto") is model
    assert model.to(precision="float64") is model and model.precision == "float64"
    assert {one.dtype for one in model.network.parameters()} == {torch.float64}
    assert model.to("cpu", "float32").translate(texts) == before
    int8 = Model(deepcopy(model.network), model.tokenizer, model.config, None).to(precision="int8")
    assert int8.precision == "int8" and len(int8.translate(texts)) == 3
    with pytest.raises(UsageError, match="the model has weights of 8 bits, so its precision is int8: got 'float32'"):
        int8.to(precision="float32")
    fails(UsageError, "`device` must exist on this machine: got 'tpu'", model.to, "tpu")
    fails(UsageError, "`precision` must be one of", model.to, precision="int4")
    recurrent = build_network(NetworkConfig(architecture="recurrent-lm", vocab_size=9, d_model=8))
    with pytest.raises(CapabilityError, match="int8 is for Transformers that write and for encoders"):
        Model(recurrent, None, {}, None).to(precision="int8")
    assert model.device.type == "cpu" and model.precision == "float32"


def test_attention_of_a_summary_sentences_that_are_split_and_reprs_of_one_short_line(model: Model) -> None:
    """`attend` without a target asked every model for a translation, which a summariser refuses."""
    summariser = Model(model.network, model.tokenizer, model.config | {"task": "summarization"}, None)
    text = PAIRS[0].source
    record = summariser.attend(text)
    assert record.title == f"{text} → {summariser.summarize(text)}" and set(record.kinds) >= {"cross"}
    outputs, trace = summariser.traced(text)
    assert [one.text for one in outputs] == [summariser.summarize(text)] and len(trace.runs) == 1
    one, two = PAIRS[0].source, PAIRS[1].source
    both = " ".join(model.translate([one, two]))
    assert model.translate(f"{one} {two}", split_sentences=True) == both
    assert model.translate([f"{one} {two}", "", one], split_sentences=True) == [both, "", model.translate(one)]
    with pytest.raises(UsageError, match="`n_best` and `split_sentences` exclude each other"):
        model.translate(one, n_best=2, split_sentences=True)  # type: ignore[call-overload]
    # Python: reprs of 300 characters, or none at all (`Tokenizer`, `TokenScores`)
    trace = Trace()
    written = generate(model.network, torch.tensor([[5, 6, 7]]), Beam(4), max_new_tokens=20, trace=trace)[0][0]
    many = [" ".join(pair.target for pair in PAIRS[n : n + 20]) for n in range(5)]
    weights = [np.full((12, 60, 60), 1 / 60, np.float32)] * 12
    kinds = {"encoder": weights, "decoder": weights, "cross": weights}
    record = AttentionRecord(tokens=["o"] * 60, source_tokens=["the"] * 60, kinds=kinds)
    score = bleu(many, many)
    shown = {
        f"{model!r}": "Model('small', translation, ",
        f"{model.tokenizer!r}": "Tokenizer(bpe, 360 pieces)",
        f"{model.score('I see.', many[0])!r}": "TokenScores(",
        f"{record!r}": "AttentionRecord(encoder 12x12, decoder 12x12, cross 12x12, 60 source tokens, 60 tokens)",
        f"{record.word_weights(0, 0)!r}": "WordWeights(60 x 60 words)",
        f"{score!r}": "Score(BLEU 100, 5 segments)",
        f"{written!r}": "Hypothesis(20 ids, score=-",
        f"{model.translations([many[0]])[0][0]!r}": "GeneratedText('",
        f"{trace!r}": "Trace(1 run: beam; 20 steps)",
        f"{trace.runs[0]!r}": "Run(beam, 1 sentence, 20 steps)",
        f"{trace.runs[0].steps[3]!r}": "Step(row 0, length 3, 4 live, ",
        f"{trace.runs[0].steps[3].distributions[0]!r}": "Distribution(parent 0, model, 10 of 360 tokens)",
        f"{LoadReport({f'weight{n}': (f'theirs{n}',) for n in range(200)})!r}": "LoadReport(200 loaded, 0 new, ",
        f"{TrainedRun(Path('runs') / ('x' * 80), 24, 34.21, 16, None, 'translation')!r}": "TrainedRun('runs/",
    }
    for text, begin in shown.items():
        assert text.startswith(begin) and "\n" not in text and len(text) <= 100, text
    assert len(repr(paired_test("bleu", many, many, many, samples=10))) < 160
    score = bleu(["a b c d"], ["a b c d"])
    table = type(score)("<b>", 12.345, {"<i>": 1.0}, "a<script>&", [[1.0]], sum)._repr_html_()
    assert "<script>" not in table and "<i>" not in table and "&lt;script&gt;&amp;" in table and "12.35" in table
    assert "<td>12,345</td>" in type(score)("TER", 1.0, {"length": 12345.0}, "", [[1.0]], sum)._repr_html_()
    assert "BLEU" in score._repr_html_() and "100" in score._repr_html_()
    table = TrainedRun(Path("runs/<x>"), 24, 34.21, 16, {"bleu": 30.5, "<k>": 1.0}, "translation")._repr_html_()
    assert "runs/&lt;x&gt;" in table and "34.21 at step 16" in table and "30.50" in table and "<k>" not in table
