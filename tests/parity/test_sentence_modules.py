"""sentence-transformers folders with Dense and Normalize modules: read, written back and trained, equal vectors."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import atento
from atento.base.errors import AtentoError, AtentoWarning, ModelError
from atento.config.tables.released_keys import FILES
from atento.config.tables.released_keys import MODULES as KEYS
from atento_cli.convert.layouts import convert
from failing import fails, none_left
from fine_tuning import STILL
from folders import edited
from released_folders import TEXTS, write_released

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra dev)")
from sentence_transformers.sentence_transformer import losses, modules  # noqa: E402

ROUNDING = 2e-5  # of float32 through some layers, which other processors round otherwise
SOME = [*TEXTS[:9], "a", "ação e avó"]
Theirs = tuple[Any, Path]


def peer_of(folder: Path) -> Any:
    return library.SentenceTransformer(str(folder), device="cpu")


def vectors(model: Any, texts: list[str]) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return model.encode(texts, convert_to_numpy=True)


def same(found: Any, expected: Any, atol: float = 5e-6, rtol: float = ROUNDING) -> None:
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def first_loss(run: Path) -> float:
    """Before any update."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float(next(event["loss"] for event in events if event["event"] == "train"))


def scores(first: Any, second: Any) -> torch.Tensor:
    """Cosines of each vector of a side with each of the other."""
    sides = [torch.nn.functional.normalize(torch.from_numpy(side), dim=1) for side in (first, second)]
    return sides[0] @ sides[1].T


def loss_of(cosines: torch.Tensor) -> float:
    return torch.nn.functional.cross_entropy(20 * cosines, torch.arange(len(cosines))).item()


def recipe_of(folder: Path, **training: Any) -> dict[str, Any]:
    """Vectors of pairs, without dropout; a step that moves nothing unless told."""
    recipe = {"task": "embedding", "data": {"train": {"memory": "train"}}, "init": str(folder)}
    one = {"steps": 1, "learning_rate": 1e-9, "warmup": 0, "log_every": 1, "precision": "float32"}
    return recipe | {"network": STILL, "training": one | training}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """Their model with two maps and a norm, and the folder that they write."""
    path = tmp_path_factory.mktemp("dense")
    write_released("bert", path / "bert")
    torch.manual_seed(3)
    parts = [
        modules.Transformer(str(path / "bert"), max_seq_length=40),
        modules.Pooling(16, pooling_mode="mean"),
        modules.Dense(16, 12),
        modules.Dense(12, 7, bias=False, activation_function=torch.nn.Identity()),
        modules.Normalize(),
    ]
    model = library.SentenceTransformer(modules=parts, device="cpu")
    model.save(str(path / "sentences"))
    return model, path / "sentences"


MODES = modules.Pooling.POOLING_MODES
PROMPT = {"prompts": {"query": "QUERY: ", "other": "x"}, "default_prompt_name": "query"}
# what the pooling, the whole folder, the network's limits and its tokenizer say
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    **{mode: ({"pooling_mode": mode}, {}, {}, {}) for mode in MODES},
    "all modes": ({"pooling_mode": list(MODES)}, {}, {}, {}),
    "two, in another order": ({"pooling_mode": ["mean", "cls"]}, {}, {}, {}),
    "flags": ({"pooling_mode": None, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, {}, {}, {}),
    "cut at the left": ({}, {}, {}, {"truncation_side": "left"}),
    "prompt": ({}, PROMPT, {}, {}),
    "prompt, left out": ({"pooling_mode": list(MODES), "include_prompt": False}, PROMPT, {}, {}),
    "prompt, left out, in lower case": ({"include_prompt": False}, PROMPT, {"do_lower_case": True}, {}),
    "lower case": ({}, {}, {"do_lower_case": True}, {}),
    "prompt, cut at the left": ({}, PROMPT, {}, {"truncation_side": "left"}),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their folder of a network of one layer with a mean, a map of each width that the settings have beside it."""
    path = tmp_path_factory.mktemp("small")
    write_released("bert", path / "bert", num_hidden_layers=1)
    parts = [modules.Transformer(str(path / "bert"), max_seq_length=24), modules.Pooling(16)]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(path / "theirs"), create_model_card=False)
    # since version 5 the longest text is in the configuration of the tokenizer
    assert "max_seq_length" not in (path / "theirs" / "sentence_bert_config.json").read_text(encoding="utf-8")
    torch.manual_seed(5)
    for width in (32, 16 * len(MODES)):
        (path / f"{width}").mkdir()
        modules.Dense(width, 9).save(str(path / f"{width}"))
    return path


@pytest.mark.parametrize("pooled", [True, False])
def test_k2_prompts_by_name_are_trained_used_and_exported(pooled: bool, small: Path, tmp_path: Path) -> None:
    """Each side behind its own prompt, as theirs encodes them; the recipe writes prompts, the rest is the model's."""
    folder = shutil.copytree(small / "theirs", tmp_path / "theirs")
    prompts = {"query": "a avó: ", "passage": "o livro e o sol ", "none": ""}
    edited(folder / "config_sentence_transformers.json", prompts=prompts)
    (pooling,) = folder.glob("*_Pooling/config.json")
    edited(pooling, pooling_mode="cls" if pooled else "mean", include_prompt=pooled)
    peer, texts = peer_of(folder), list(TEXTS[:6])
    expected = {name: peer.encode(texts, prompt_name=name) for name in prompts}
    model = atento.load(folder)
    for name in prompts:
        same(model.embed(texts, prompt_name=name), expected[name])
    assert np.abs(expected["query"] - expected["passage"]).max() > 1e-3
    recipe = recipe_of(folder, batch_tokens=3) | {"embedding": {"field_prompts": {"text": "query", "pair": "passage"}}}
    pairs = list(zip(texts[:3], texts[3:]))
    atento.train(recipe, out=tmp_path / "run", data={"train": pairs}, threads=1)
    cosines = scores(expected["query"][:3], expected["passage"][3:])
    assert first_loss(tmp_path / "run") == pytest.approx(loss_of(cosines), rel=1e-3)
    trained = atento.load(tmp_path / "run")
    assert trained.config["embedding"]["prompts"] == prompts
    ranks = [1 + int((row > row[n]).sum()) for n, row in enumerate(cosines)]
    assert atento.evaluate(trained, pairs)["mrr"].value == pytest.approx(np.mean([1 / rank for rank in ranks]))
    again = peer_of(trained.save(tmp_path / "exported", layout="huggingface"))
    for name in prompts:
        same(again.encode(texts, prompt_name=name), expected[name], 2e-5, 1e-7)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "xlm-roberta"])
def test_k2_the_limit_of_a_text_under_the_name_of_older_folders(family: str, small: Path, tmp_path: Path) -> None:
    folder, texts = shutil.copytree(small / "theirs", tmp_path / "theirs"), [*TEXTS[:2], " ".join(TEXTS[:8])]
    (folder / "sentence_bert_config.json").rename(folder / f"sentence_{family}_config.json")
    edited(folder / f"sentence_{family}_config.json", max_seq_length=7, do_lower_case=True)
    expected = vectors(peer_of(folder), texts)
    with pytest.warns(AtentoWarning, match="cut to 7 tokens"):
        same(atento.load(folder).embed(texts), expected)


@pytest.mark.parametrize("case", SETTINGS)
def test_k2_every_setting_gives_their_vectors(case: str, small: Path, tmp_path: Path) -> None:
    """Read, saved in both layouts, and trained on: the settings hold, and theirs reads what we save."""
    pooling, settings, limits, cutting = SETTINGS[case]
    named = pooling.get("pooling_mode", "mean") or ("cls", "mean")
    width = 16 * (1 if isinstance(named, str) else len(named))
    folder = shutil.copytree(small / "theirs", tmp_path / "theirs")
    if width > 16:
        shutil.copytree(small / f"{width}", folder / "2_Dense")
        (folder / "3_Normalize").mkdir()
        rows = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        for number, kind in ((2, "Dense"), (3, "Normalize")):
            row = {"idx": number, "name": f"{number}", "path": f"{number}_{kind}"}
            rows.append(row | {"type": f"sentence_transformers.models.{kind}"})
        (folder / "modules.json").write_text(json.dumps(rows), encoding="utf-8")
    (pooled,) = folder.glob("*_Pooling/config.json")
    edited(pooled, *(key for key, value in pooling.items() if value is None), **pooling)
    edited(folder / "config_sentence_transformers.json", **settings)
    edited(folder / "sentence_bert_config.json", **limits)
    edited(folder / "tokenizer_config.json", **cutting)
    texts = [*TEXTS[:4], "a", TEXTS[0].upper(), " ".join(TEXTS[:8])]
    expected = vectors(peer_of(folder), texts)
    run, pairs = tmp_path / "run", list(zip(texts[:4:2], texts[1:4:2]))
    with warnings.catch_warnings(action="ignore"):  # of texts that are cut
        model = atento.load(folder)
        assert model.load_report is not None and not model.load_report.unread
        for one in (model, atento.load(model.save(tmp_path / "atento"))):
            same(one.embed(texts), expected)
        atento.train(recipe_of(folder, batch_tokens=2), out=run, data={"train": pairs}, threads=1)
        atento.load(run).save(tmp_path / "exported", layout="huggingface")
        exported = tmp_path / "exported"
        for found in (vectors(peer_of(exported), texts), atento.load(exported).embed(texts)):
            same(found, expected, 2e-5, 1e-7)
    assert expected.shape[1] == (9 if width > 16 else width)
    assert first_loss(run) == pytest.approx(loss_of(scores(expected[:4:2], expected[1:4:2])), rel=1e-3)


@pytest.mark.parametrize("layout", ["huggingface", "atento"])
def test_their_folder_and_what_is_saved_of_it_give_their_vectors(layout: str, theirs: Theirs, tmp_path: Path) -> None:
    peer, folder = theirs
    model = atento.load(folder)
    found = model.embed(SOME)
    assert found.shape == (len(SOME), 7)
    same(found, vectors(peer, SOME), 2e-6)
    assert model.similarity(SOME[0], SOME[1]) == pytest.approx(float(found[0] @ found[1]), abs=1e-5)
    saved = model.save(tmp_path / "saved", layout=layout)
    np.testing.assert_array_equal(atento.load(saved).embed(SOME), found)
    if layout == "huggingface":
        names = [row["path"] for row in json.loads((saved / "modules.json").read_text())]
        assert names == ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
        same(vectors(peer_of(saved), SOME), vectors(peer, SOME), 2e-6)


def test_training_moves_the_maps_as_theirs_do(theirs: Theirs, tmp_path: Path) -> None:
    """The loss of pairs before the first update is theirs, and the maps are trained."""
    peer, folder = theirs
    pairs = list(zip(SOME[:8:2], SOME[1:8:2]))
    recipe = recipe_of(folder, steps=2, batch_tokens=4, learning_rate=1e-2)
    atento.train(recipe, out=tmp_path / "run", data={"train": pairs})
    features = [peer.preprocess([pair[side] for pair in pairs]) for side in range(2)]
    with torch.no_grad():
        expected = losses.MultipleNegativesRankingLoss(peer)(features, None).item()
    assert first_loss(tmp_path / "run") == pytest.approx(expected, rel=1e-4)
    before, after = atento.load(folder).network.state_dict(), atento.load(tmp_path / "run").network.state_dict()
    for name in ("projections.0.weight", "projections.0.bias", "projections.1.weight"):
        assert not torch.equal(before[name], after[name])


def test_maps_that_are_not_built_are_refused(theirs: Theirs, tmp_path: Path) -> None:
    def broken(**changes: Any) -> Path:
        shutil.rmtree(tmp_path / "broken", ignore_errors=True)
        folder = shutil.copytree(theirs[1], tmp_path / "broken")
        edited(folder / "2_Dense" / "config.json", **changes)
        return folder

    said = r"config\.json: activation 'Mish' is not known here"
    fails(ModelError, said, atento.load, broken(activation_function="torch.nn.Mish"))
    said = "only on the vector of the text, without a residual"
    fails(ModelError, said, atento.load, broken(use_residual=True))
    said = r"must have \['linear.weight'\]: got \['linear.bias', 'linear.weight'\]"
    fails(ModelError, said, atento.load, broken(bias=False))
    folder = broken()
    rows = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*rows[:2], rows[4], *rows[2:4]]))
    said = "in the order Transformer, Pooling, Dense, Normalize: got Transformer, Pool"
    fails(ModelError, said, atento.load, folder)


def test_older_weight_files_of_modules_are_converted(theirs: Theirs, tmp_path: Path) -> None:
    """Loading unpickles nothing and names the command; converted, the vectors are theirs."""
    peer, source = theirs
    folder = shutil.copytree(source, tmp_path / "older")
    for name in (".", "3_Dense"):
        file = folder / name / "model.safetensors"
        torch.save(load_file(file), folder / name / "pytorch_model.bin")
        file.unlink()
    said = rf"is an older format, which `atento convert {folder} --to atento --out DIR`"
    fails(ModelError, said, atento.load, folder)
    convert(folder, tmp_path / "new", "huggingface")
    same(atento.load(tmp_path / "new").embed(SOME), vectors(peer, SOME), 2e-6)


def test_k2_every_key_that_they_write_has_a_row(theirs: Theirs) -> None:
    """Of the modules that are read, of a row of `modules.json`, and of the whole model; older names too."""
    older = [f"pooling_mode_{mode}_tokens" for mode in ("cls", "max", "mean", "mean_sqrt_len", "weightedmean")]
    older = [name.replace("cls_tokens", "cls_token") for name in older] + ["pooling_mode_lasttoken"]
    written: dict[str, list[str]] = {
        "Pooling": [*modules.Pooling.config_keys, *modules.Pooling.config_key_renames, *older],
        "Dense": modules.Dense.config_keys,
        "Normalize": modules.Normalize.config_keys,
        "sentence_bert_config.json": [*modules.Transformer.config_keys, "max_seq_length", "do_lower_case"],
        "config_sentence_transformers.json": list(theirs[0]._get_model_config()),
        "modules.json": [*json.loads((theirs[1] / "modules.json").read_text(encoding="utf-8"))[0], "kwargs"],
    }
    assert KEYS.keys() <= written.keys()
    for file, names in written.items():
        keys = KEYS.get(file) or FILES[file]
        none_left([name for name in names if not keys.known(name)], f"{file}: keys without a row", library)


def test_k2_keys_of_modules_are_named_in_the_load_report(theirs: Theirs, tmp_path: Path) -> None:
    folder = shutil.copytree(theirs[1], tmp_path / "changed")
    rows = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    rows[1] |= {"kwargs": ["task"], "newest": 1}
    (folder / "modules.json").write_text(json.dumps(rows), encoding="utf-8")
    files = ("1_Pooling/config.json", "2_Dense/config.json", "4_Normalize/config.json", "sentence_bert_config.json")
    for name in (*files, "config_sentence_transformers.json"):
        edited(folder / name, newest=1)
    edited(folder / "4_Normalize/config.json", module_input_name="token_embeddings")
    report = atento.load(folder).load_report
    expected = [f"{name}: newest" for name in files] + ["config_sentence_transformers.json: newest"]
    expected += ["modules.json: kwargs", "modules.json: newest", "4_Normalize/config.json: module_input_name"]
    assert report is not None and sorted(report.unread) == sorted(expected)


def test_k2_an_adapter_with_modules_gives_their_vectors(small: Path, tmp_path: Path) -> None:
    """sentence-transformers keeps adapters beside the pooling: base, adapter and modules are read together."""
    peft = pytest.importorskip("peft")
    folder = tmp_path / "adapted"
    shutil.copytree(small / "theirs", folder, ignore=shutil.ignore_patterns("config.json", "model.safetensors"))
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 16, "pooling_mode": "max"}')
    peer = peer_of(small / "theirs")
    adapted = peft.get_peft_model(peer[0].model, peft.LoraConfig(r=2, target_modules=["query", "output.dense"])).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(folder)
    edited(folder / "adapter_config.json", base_model_name_or_path=str(small / "theirs"))
    peer[1] = modules.Pooling(16, pooling_mode="max")
    model = atento.load(folder)
    same(model.embed(SOME), vectors(peer, SOME))
    assert model.load_report is not None and not model.load_report.unread
    edited(folder / "1_Pooling" / "config.json", pooling_mode="mean")
    assert not np.allclose(atento.load(folder).embed(SOME), model.embed(SOME), atol=1e-2)


_POOLING, _DENSE = "1_Pooling/config.json", "2_Dense/config.json"
CHANGED: dict[tuple[str, str], tuple[Any, ...]] = {  # file and key -> values that a file may have in place of its own
    ("sentence_bert_config.json", "max_seq_length"): (5, None),
    ("sentence_bert_config.json", "do_lower_case"): (True,),
    ("sentence_bert_config.json", "unpad_inputs"): (False,),
    ("sentence_bert_config.json", "transformer_task"): ("fill-mask",),
    ("sentence_bert_config.json", "module_output_name"): ("other",),
    ("sentence_bert_config.json", "model_args"): ({"other": 1},),
    ("config_sentence_transformers.json", "prompts"): ({"query": "o gato "},),
    ("config_sentence_transformers.json", "default_prompt_name"): ("query",),
    ("config_sentence_transformers.json", "similarity_fn_name"): ("dot",),
    ("config_sentence_transformers.json", "__version__"): ({"sentence_transformers": "2.0.0"},),
    (_POOLING, "pooling_mode"): ("cls", "max", "lasttoken", ["mean"]),
    (_POOLING, "include_prompt"): (False,),
    (_POOLING, "embedding_dimension"): (16,),
    (_DENSE, "activation_function"): ("torch.nn.modules.activation.ReLU", "torch.nn.modules.linear.Identity"),
    (_DENSE, "use_residual"): (True,),
    (_DENSE, "module_input_name"): ("token_embeddings",),
    (_DENSE, "in_features"): (15,),
    (_DENSE, "out_features"): (11,),
    (_DENSE, "bias"): (False,),
    ("tokenizer_config.json", "do_lower_case"): (False,),
    ("tokenizer_config.json", "model_max_length"): (5,),
    ("tokenizer_config.json", "truncation_side"): ("left",),
    ("tokenizer_config.json", "padding_side"): ("left",),
}
OTHER_BY_DESIGN = {
    "padding_side": "theirs gives a padded row of BERT other positions; here no vector depends on its company",
    "in_features": "theirs is refused; here the sizes are those of the weights",
    "out_features": "as `in_features`",
}


@pytest.mark.parametrize("file, key", CHANGED, ids=lambda name: str(name))
def test_each_key_changed_in_turn(file: str, key: str, theirs: Theirs, tmp_path: Path) -> None:
    """Their vectors of the changed folder, or a load report that names the key, or a refusal."""
    texts = [*SOME[:4], "AÇÃO e Avó"]
    for value in CHANGED[file, key]:
        shutil.rmtree(tmp_path / "changed", ignore_errors=True)
        folder = shutil.copytree(theirs[1], tmp_path / "changed")
        edited(folder / file, **{key: value})
        try:
            model = atento.load(folder)
        except AtentoError as error:
            assert len(str(error)) > 30
            continue
        assert model.load_report is not None
        if f"{file}: {key}" in model.load_report.unread:
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # of texts that are cut
                found = model.embed(texts)
                wanted = vectors(peer_of(folder), texts)
        except RuntimeError:  # theirs
            assert key in OTHER_BY_DESIGN
            continue
        assert np.allclose(found, wanted, atol=3e-6) != (key in OTHER_BY_DESIGN), f"{key}: {value!r}"
