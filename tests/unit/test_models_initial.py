"""The model that training starts from: its learned positions become longer, its other weights stay."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from atento.base.errors import ModelError, RecipeError
from atento.config.reading.dumping import sections
from atento.config.reading.loading import load_recipe
from atento.config.reading.recipe_layers import type_at
from atento.config.reading.schema import flatten
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.records.splits import Split
from atento.models.initial_model import check_new_positions, fine_tuned, pretrained_weights, with_longer_positions
from atento.models.load import ModelFiles, check_weights
from atento.models.model_folder import network_config
from atento.networks import EncoderDecoder, build_network
from atento.runs.fine_tuning import changed_heads, with_inherited
from atento.runs.multilingual import network_of_run
from atento.runs.task_heads import with_objective_heads, with_task_heads
from atento.text import Tokenizer


def shorter(folder: Path, **more: Any) -> tuple[ModelFiles, EncoderDecoder, NetworkConfig, Tokenizer]:
    """A model of three positions, its network, the same with five, and the tokenizer."""
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b", "c", "d"])
    sizes: Any = {"vocab_size": 9, "d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1} | more
    old = EncoderDecoder(NetworkConfig(max_len=3, tokenizer_fingerprint=tokenizer.fingerprint, **sizes))
    start = ModelFiles(folder, {"model_type": "atento", "network": network_to_dict(old.config)}, old.state_dict())
    return start, old, NetworkConfig(max_len=5, **sizes), tokenizer


@pytest.mark.parametrize("longer", ["grown", "interpolated"])
def test_b2_a_learned_table_is_made_longer_when_training_starts_from_a_shorter_one(tmp_path: Path, longer: str) -> None:
    """Grown: the old rows, then new ones. Interpolated: old ends stay ends, and the middle row is the old middle."""
    learned = PositionConfig("learned", longer=longer, shift=1)  # type: ignore[arg-type]
    start, _, wanted, tokenizer = shorter(tmp_path, positions=learned)
    config = fine_tuned(start, wanted, tokenizer)
    assert config.max_len == 5
    network = EncoderDecoder(config)
    with pytest.raises(ModelError, match=r"positions\.schemes\.0\.weight has shape \(4, 8\), config\.json says"):
        check_weights(network, start)
    ready = with_longer_positions(start, network, wanted)
    check_weights(network, ready)
    name = "target_inputs.positions.schemes.0.weight"
    before, after = start.weights[name], ready.weights[name]
    assert before.shape == (4, 8) and after.shape == (6, 8)
    assert torch.equal(after[0], before[0])  # the row left free
    if longer == "grown":
        assert torch.equal(after[:4], before) and bool((after[4:] != 0).all())
    else:
        torch.testing.assert_close(after[[1, 3, 5]], before[[1, 2, 3]])
    assert all(torch.equal(ready.weights[other], start.weights[other]) for other in start.weights if "pos" not in other)


TABLES = [("encoder", "classification"), ("decoder", "language-modeling"), ("encoder-decoder", "translation")]


def started(folder: Path, architecture: str) -> tuple[ModelFiles, Tokenizer]:
    """A model of three learned positions, with its tokenizer."""
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b", "c", "d"])
    sizes: Any = {"architecture": architecture, "vocab_size": 9, "d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1}
    learned = PositionConfig("learned")
    config = NetworkConfig(**sizes, max_len=3, positions=learned, tokenizer_fingerprint=tokenizer.fingerprint)
    network = build_network(config)
    files = ModelFiles(folder, {"model_type": "atento", "network": network_to_dict(config)}, network.state_dict())
    return files, tokenizer


def tuned(start: ModelFiles, tokenizer: Tokenizer, task: str, train: str, **network: Any) -> NetworkConfig:
    """The network of a recipe that fine-tunes the model."""
    columns = {"classification": {"text": 0, "label": 1}, "translation": {"source": 0, "target": 1}}
    data = {"train": {"file": "train.tsv", **columns.get(task, {"text": 0})}}
    sections = {"task": task, "data": data, "init": {"model": "model", "train": train}, "network": network}
    loaded = with_inherited(load_recipe(sections, environment={}), network_config(start.config, start.path))
    config = fine_tuned(start, loaded.recipe.network, tokenizer, loaded.recipe.init)
    check_new_positions(start, config, loaded.recipe)
    return config


@pytest.mark.parametrize(("architecture", "task"), TABLES)
@pytest.mark.parametrize("train", ["all", "head", "bias", "lora", "last-1"])
def test_f7_no_table_of_the_model_grows_unasked(tmp_path: Path, architecture: str, task: str, train: str) -> None:
    """A table of 160 positions became 512, whose new random rows `head`, `lora`, `bias` and `last-N` never trained."""
    start, tokenizer = started(tmp_path, architecture)
    config = tuned(start, tokenizer, task, train)
    assert config.position_limit == 3
    fresh = {name: value.shape for name, value in build_network(config).state_dict().items()}
    assert fresh == {name: value.shape for name, value in start.weights.items()}


def test_b2_f7_new_rows_are_trained_or_refused_and_what_is_not_learned_stays_as_it_is(tmp_path: Path) -> None:
    for train in ("all", "head", "bias", "lora", "last-1"):
        start, tokenizer = started(tmp_path, "encoder")
        longer = {"positions": {"kind": "learned", "longer": "interpolated"}}
        assert tuned(start, tokenizer, "classification", train, max_len=5, **longer).max_len == 5
        if train == "all":
            assert tuned(start, tokenizer, "classification", train, max_len=5).max_len == 5
        else:
            with pytest.raises(RecipeError, match=rf"at most 3, .* with `init.train` {train}, .*: got 5; leave it out"):
                tuned(start, tokenizer, "classification", train, max_len=5)
    start, old, wanted, tokenizer = shorter(tmp_path)
    assert fine_tuned(start, wanted, tokenizer).max_len == 3
    assert with_longer_positions(start, old, wanted).weights.keys() == start.weights.keys()


@pytest.mark.parametrize(("architecture", "stack"), [("encoder", "stack"), ("encoder-decoder", "decoder")])
def test_fewer_layers_keep_their_relative_positions(tmp_path: Path, architecture: Any, stack: str) -> None:
    """Tables of each layer (Shaw) are numbered through the layers, so that what follows them has another number."""
    tokenizer = Tokenizer.from_vocabulary("word", ["a", "b"])
    schemes = PositionConfig("shaw", heads=(0,)), PositionConfig("shaw", heads=(1,)), PositionConfig("t5")
    config = NetworkConfig(
        architecture, vocab_size=7, d_model=8, d_ff=8, n_heads=2, n_layers=3, positions=schemes,
        tokenizer_fingerprint=tokenizer.fingerprint,
    )  # fmt: skip
    old = build_network(config)
    start = ModelFiles(tmp_path, {"model_type": "atento", "network": network_to_dict(config)}, old.state_dict())
    network = build_network(fine_tuned(start, config, tokenizer, InitConfig(model="x", layers=1)))
    pretrained_weights(network, start, config)
    before, after = (one.get_submodule(f"{stack}.positions") for one in (old, network))
    assert len(before.relative) == 3 and len(after.relative) == 1
    pairs = [one.relative_schemes(0) for one in (before, after)]
    assert len(pairs[0]) == 3
    for ours, theirs in zip(*pairs):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


# Keys of the network beside an initial model ----------------------------------------------------------------------

# of networks that the task refuses
PARTS_OF_OTHERS = ("network.heads.", "network.features", "network.elmo.", "network.cbow.", "network.recurrent.")
KEYS = [
    entry.key
    for _, entries in sections()
    for entry in entries
    if entry.key.startswith("network.") and not entry.keys and not entry.key.startswith(PARTS_OF_OTHERS)
]


def values_of(hint: object) -> list[object]:
    """Values that a key of a type may have."""
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    if get_origin(hint) is tuple:
        return [list(some) for some in ([0], [[1, 4]])]
    plain: dict[object, list[object]] = {bool: [True, False], int: [1, 2, 4, 7, 9], float: [0.5, 0.25], str: ["x"]}
    return [value for arm in get_args(hint) for value in values_of(arm)] if get_args(hint) else plain.get(hint, [])


def outcome(start: ModelFiles, tokenizer: Tokenizer, task: str, changes: dict[str, Any]) -> tuple[NetworkConfig, Any]:
    """The network of a run, and what is said of it."""
    columns = {"classification": {"text": 0, "label": 1}}.get(task, {"text": 0})
    recipe = {"task": task, "data": {"train": {"file": "train.tsv", **columns}}, "init": "model"}
    loaded = load_recipe(recipe, changes, environment={})
    loaded, said = with_inherited(loaded, network_config(start.config, start.path)), list(loaded.warnings)
    start, config = network_of_run(loaded, start, tokenizer, said.append, True)
    split = Split({"text": ["a", "b"], "label": ["x", "y"]} if task == "classification" else {"text": ["a", "b"]}, "")
    config = with_objective_heads(with_task_heads(config, loaded.recipe, split), loaded.recipe)
    said += changed_heads(loaded.recipe, start.network_config, config)
    return config, [one for one in said if "no effect" in one or "left out" in one]


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        *(("encoder", key) for key in [*KEYS, "network.preset", "network.heads"]),
        *(("decoder", f"network.{key}") for key in ("dropout", "max_len", "preset", "positions.longer", "norm")),
    ],
)
def test_each_key_beside_a_model_has_an_effect_or_a_warning(tmp_path: Path, key: str, architecture: str) -> None:
    """Never both, and never neither: `max_len` made a table longer and was said to have none, a preset was silent."""
    start, tokenizer = started(tmp_path, architecture)
    tokenizer.save(tmp_path)
    task = {"encoder": "classification", "decoder": "language-modeling"}[architecture]
    usual, said = outcome(start, tokenizer, task, {})
    assert said == []
    own: dict[str, list[object]] = {
        "network.preset": [{"encoder": "bert-tiny", "decoder": "gpt1"}[architecture]],
        "network.heads": [[{"kind": "classification", "hidden": True}]]
        + [[{"kind": kind}] for kind in ("next-sentence", "tagging")],
    }
    tried = refused = 0
    for value in own.get(key) or values_of(type_at(key, "key")):
        try:
            config, said = outcome(start, tokenizer, task, {key: value})
        except RecipeError:  # no value of this key, or a part of another architecture
            refused += 1
            continue
        if value == flatten(usual).get(key.removeprefix("network.")) and not said and config == usual:
            continue  # what the model has
        tried += 1
        assert (config != usual) == (not said), (value, said)
        if tried == 2:
            break
    assert tried or refused


def test_a_head_of_other_labels_begins_again_and_has_the_dropout_of_the_recipe(tmp_path: Path) -> None:
    for before, after, way in (
        (("NEG", "POS"), ("neg", "pos"), "data with 'NEG' for 'neg', 'POS' for 'pos' keep it"),
        (("NEG", "POS"), ("0", "1"), "data with 'NEG' for '0', 'POS' for '1' keep it"),
        (("LABEL_0", "LABEL_1"), ("0", "1"), "data with 'LABEL_0' for '0', 'LABEL_1' for '1' keep it"),
        (("0", "1"), ("LABEL_0", "LABEL_1"), "data with '0' for 'LABEL_0', '1' for 'LABEL_1' keep it"),
        (("neg", "pos"), ("neg", "new", "pos"), "data with its labels alone keep it"),
        (("neg", "pos"), ("neg", "pos"), None),
        ((), ("neg", "pos"), None),
    ):
        recipe = {
            "task": "classification",
            "data": {"train": {"file": "a.tsv", "text": 0, "label": 1}},
            "init": "model",
        }
        heads = ((HeadConfig("classification", labels),) if labels else () for labels in (before, after))
        was, now = (NetworkConfig("encoder", heads=own) for own in heads)
        said = list(changed_heads(load_recipe(recipe, environment={}).recipe, was, now))
        if way is None:
            assert said == []
        else:
            assert said[0].startswith(f"the labels of the data are {', '.join(map(repr, after))}, those of the classif")
            assert said[0].endswith(f"its output begins with random weights; {way}")
    # That of a released head stayed where all three rates were 0
    for rate, heads in ((None, 0.3), (0.0, 0.0), (0.2, 0.2)):
        start, tokenizer = started(tmp_path, "encoder")
        tokenizer.save(tmp_path)
        network = network_config(start.config, tmp_path)
        of_labels = HeadConfig("classification", ("x", "y"), dropout=0.3)
        network = replace(network, heads=(of_labels, HeadConfig("answer", dropout=0.0)))
        start = replace(start, config=start.config | {"network": network_to_dict(network)})
        changes: dict[str, object] = {} if rate is None else {"network.dropout": rate}
        config, _ = outcome(start, tokenizer, "classification", changes)
        assert config.heads == (replace(of_labels, dropout=heads),)
