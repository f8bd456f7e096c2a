"""Folders written by version 1 (flat keys of `network`, old names of tensors) load and give the same numbers.

`version_1.json` was written by the code of version 1: for a tiny network of each architecture its `config.json`, the
shapes of its tensors by name in the order of its parameters, and what it gave for a fixed input.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import atento
from atento.base.errors import ModelError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.tables.renamed_keys import VERSION, nested, renamed
from atento.models.migration import migrated
from failing import fails

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))
IDS, CHARACTERS = torch.tensor([[4, 9, 7, 10, 5]]), torch.arange(10).view(1, 2, 5)


def written(folder: Path, case: Any) -> Path:
    """The folder as version 1 wrote it."""
    weights = {
        name: torch.rand(shape, generator=torch.Generator().manual_seed(n)) - 0.5
        for n, (name, shape) in enumerate(sorted(case["shapes"].items()))
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


@torch.no_grad()
def outputs(name: str, network: Any) -> dict[str, Tensor]:
    ids = CHARACTERS if name == "elmo-characters" else IDS
    out = network(ids, ids[:, :3]) if network.config.reads_source else network(ids)
    found = {"hidden": out.hidden, "logits": out.logits, "pooled": out.pooled}
    if name == "encoder":
        found |= {head: network.read(head, out) for head in ("next-sentence", "classification")}
    if name.startswith("elmo"):
        found["logits"] = network.project(network.directions(ids)[-1][0])
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_version_1_gives_the_same_numbers_in_order_and_saved_again_its_bits(tmp_path, name) -> None:
    case = CASES[name]
    network = atento.load(written(tmp_path / "old", case), device="cpu").network
    found = outputs(name, network)
    assert found.keys() == case["outputs"].keys()
    for key, value in found.items():
        assert list(value.shape) == case["outputs"][key]["shape"]
        wanted = torch.tensor(case["outputs"][key]["values"])
        torch.testing.assert_close(value.flatten()[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)
    # The order decides the bits of the gradient's norm: every weight stands where its old self stood
    old = {key: torch.tensor(float(n)) for n, key in enumerate(case["order"])}
    _, moved = migrated(case["config"], old, "x")
    assert [float(moved[key]) for key, _ in network.named_parameters()] == list(range(len(old)))
    model = atento.load(written(tmp_path / "older", case), device="cpu")
    if model.words is not None:  # word vectors are kept as text
        return
    again = atento.load(model.save(tmp_path / "new"), device="cpu")
    config = json.loads((tmp_path / "new" / "config.json").read_text(encoding="utf-8"))
    assert config["version"] == VERSION and config["network"]["attention"].keys() >= {"dropout", "bias"}
    assert again.network.config == model.network.config
    one, two = outputs(name, model.network), outputs(name, again.network)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "new", {**CASES["decoder"], "config": CASES["decoder"]["config"] | {"version": 3}})
    fails(ModelError, r"new: config\.json is of version 3, .* up to 2", atento.load, folder, device="cpu")
    recipe = tmp_path / "my.yaml"
    recipe.write_text("task: translation\ndata: {train: {world: train, count: 9}}\nnetwork: {attention_dropout: 0.1}\n")
    fails(RecipeError, r"my\.yaml:3:11: network\.attention_dropout is now network\.attention\.dro", load_recipe, recipe)
    assert renamed("network", "bias") == "network.bias is now network.attention.bias and network.feed_forward.bias"
    assert renamed("network", "d_model") is None
    now = {"attention": {"bias": False}, "feed_forward": {"bias": False}, "d_model": 4, "ids": {"pad": 1}}
    assert nested({"bias": False, "d_model": 4, "ids": {"pad": 1}}) == now
