"""Model folders that lie about sizes: every number of every family's configuration, and of our own, is bounded (S1)."""

import copy
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import AtentoError, ModelError
from atento.config.presets import PRESETS
from atento.config.sections.network import DEEPEST, NetworkConfig, network_to_dict
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import CBOWConfig, CharacterConfig, ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.models.initial_model import fine_tuned
from atento.models.load import ModelFiles, read_network
from atento.networks.build import ARCHITECTURES, build_network
from atento.released import FAMILIES
from atento.released.load_report import LoadReport
from atento.released.read_layout import ReadKeys
from failing import fails
from tiny_families import _IDS, _SIZES, OF_FAMILY, tiny_config, tiny_model

HOSTILE = ("1000000000000", "-1", "0", "1e999", "true", "9" * 400, "[[3]]")
SECONDS = 5.0  # of one folder, which is read in some 10 ms: a loop over 10**12 layers or a table of them takes for ever
BYTES = 1 << 30
OURS: dict[str, dict[str, Any]] = {name: {"architecture": name} for name in ARCHITECTURES}
OURS["elmo"]["elmo"] = ELMoConfig(CharacterConfig(filters=((1, 4), (2, 4))), d_cell=8)
OURS["cbow"]["cbow"] = CBOWConfig()
OURS |= {
    kind: {"architecture": "encoder", "positions": PositionConfig(kind)}  # type: ignore[arg-type]
    for kind in ("learned", "rotary", "shaw", "t5", "alibi", "matrix", "disentangled")
}
_ROBERTAS_IDS = {"pad": 1, "unk": 3, "bos": 0, "eos": 2, "start": 0, "mask": 4}


@cache
def of_family() -> dict[str, NetworkConfig]:
    """A tiny network of each released family, from the presets."""
    names = {PRESETS[name]().family: name for name in sorted(PRESETS, key=lambda name: (name in OF_FAMILY, name))}
    ids = {key: {"ids": _ROBERTAS_IDS} for key in ("roberta", "camembert", "xlm-roberta", "mpnet", "m2m_100")}
    own = ids | {"openai-gpt": {"d_ff": 64}}
    return {name: tiny_config(names.get(name, "roberta-base"), family=name, **own.get(name, {})) for name in FAMILIES}


def numbers(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all numbers in JSON data, and of all nulls, which may be numbers."""
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from numbers(item, (*at, key))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield at


def with_value(data: Any, at: tuple[Any, ...], value: str) -> str:
    data = copy.deepcopy(data)
    place = data
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = "<here>"
    return json.dumps(data).replace('"<here>"', value)


def peak() -> int:
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) << 10 if status.exists() else 0


def refused_or_read(folder: Path, data: Any, places: list[tuple[Any, ...]], values: int) -> int:
    """How many of so many hostile values at each place, in turn, are refused: each is read, or refused in a line."""
    file, refused, before = folder / "config.json", 0, peak()
    for number, place in enumerate(places):
        for value in [HOSTILE[(number * values + at) % len(HOSTILE)] for at in range(values)]:
            file.write_text(with_value(data, place, value), encoding="utf-8")
            begun = time.monotonic()
            try:
                atento.load(folder, device="cpu")
            except AtentoError as error:
                refused += 1
                said = str(error)
                assert str(folder) in said and "\n" not in said and len(said) < 1500, (place, value, said)
            seconds = time.monotonic() - begun
            assert seconds < SECONDS, f"{place} = {value}: {seconds:.1f} s"
            assert peak() - before < BYTES, f"{place} = {value}: {(peak() - before) >> 20} MiB"
    return refused


VALUES = [3, pytest.param(len(HOSTILE), marks=pytest.mark.slow, id="all")]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_s1_no_number_of_theirs_costs_more_than_its_folder(family: str, values: int, tmp_path: Path) -> None:
    """Also of keys that the file leaves out and the family reads."""
    folder = tiny_model(of_family()[family]).save(tmp_path / "model", layout="huggingface")
    for name in ("MANIFEST.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    keys = ReadKeys(data)
    row = FAMILIES[family]
    row.read(keys, frozenset(), row.tying(data, []))
    data = dict.fromkeys(sorted(keys.read - data.keys())) | data | {"num_labels": None}
    assert refused_or_read(folder, data, list(numbers(data)), values) > 3 * values


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", sorted(OURS))
def test_s1_no_number_of_our_own_configuration_costs_more_than_its_folder(name: str, values: int, tmp_path) -> None:
    folder = tiny_model(NetworkConfig(**_SIZES | {"ids": _IDS} | OURS[name])).save(tmp_path / "model")
    (folder / "MANIFEST.json").unlink()
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    data |= {"max_len": None, "answering": None, "decoding": {"beam": 2, "max_new_tokens": None, "n_best": 1}}
    schemes = "positions" in OURS[name]  # the others are tried with the plain networks
    places = [place for place in numbers(data) if not schemes or "positions" in place]
    assert refused_or_read(folder, data, places, values) > (2 if schemes else 20) * values


@pytest.mark.parametrize("layers", [DEEPEST + 1, DEEPEST, 200])
@pytest.mark.parametrize("layout", ["atento", "huggingface"])
def test_s1_layers_are_counted_against_the_tensors_before_they_are_built(layout, layers, tmp_path, monkeypatch) -> None:
    """1,001 layers took 34 s to refuse."""
    folder = tiny_model(tiny_config("bert-base")).save(tmp_path / "model", layout=layout)
    (folder / "MANIFEST.json").unlink()
    text = (folder / "config.json").read_text(encoding="utf-8")
    key = "n_layers" if layout == "atento" else "num_hidden_layers"
    (folder / "config.json").write_text(text.replace(f'"{key}": 2', f'"{key}": {layers}'), encoding="utf-8")
    monkeypatch.setattr("atento.models.load.build_network", lambda config: pytest.fail("the network was built"))
    fails(AtentoError, r"config\.json: .*(1,000 at most|a network of [\d,]+ layers)", atento.load, folder)


@pytest.mark.parametrize("key", ["vocab_size", "d_model", "d_ff", "max_len", "labels"])
@pytest.mark.parametrize("use", ["load", "load without a head", "init"])
def test_k12_sizes_are_compared_with_the_tensors_before_they_take_memory(key, use, tmp_path, monkeypatch) -> None:
    """A network as wide as its configuration says was built in memory, and then its shapes were compared."""
    head = HeadConfig("classification", ("a", "b"))
    sizes = _SIZES | {"ids": _IDS, "heads": (head,), "positions": PositionConfig("learned")}
    model = tiny_model(NetworkConfig(architecture="encoder", **sizes))
    wide = {"heads": (replace(head, labels=tuple("abc")),)} if key == "labels" else {key: _SIZES[key] << 12}
    config = replace(model.network.config, **wide)  # type: ignore[arg-type]
    report = LoadReport(new=["pooler.weight"]) if use == "load without a head" else None
    data = {"model_type": "atento", "network": network_to_dict(config)}
    files = ModelFiles(tmp_path, data, dict(model.network.state_dict()), report)

    def built(config: NetworkConfig) -> Any:
        assert torch.get_default_device().type == "meta", "the network takes memory"
        return build_network(config)

    monkeypatch.setattr("atento.models.load.build_network", built)
    with pytest.raises(ModelError, match=r"has shape \(.*config\.json says \("):
        if use == "init":
            fine_tuned(files, NetworkConfig(), model.tokenizer)
        else:
            read_network(files, config)


@pytest.mark.parametrize(
    ("preset", "change", "said"),
    [
        ("mistral-7b", {"head_dim": 1}, "no network of these sizes can be built: rotary positions need a head at"),
        ("modernbert-base", {"layer_types": []}, None),
        ("modernbert-base", {"layer_types": ["full_attention"]}, "must name the kind of each of 4 layers: got 1"),
        ("modernbert-base", {"layer_types": ["chunked_attention"] * 4}, "`layer_types` 'chunked_attention' is not"),
        ("mistral-7b", {"layer_types": ["sliding_attention"]}, "must name the kind of each of 2 layers: got 1"),
        ("mistral-7b", {"layer_types": "sliding_attention"}, "each of 2 layers: got 'sliding_attention'"),
        ("mistral-7b", {"layer_types": ["sliding_attention", "linear_attention"]}, "'linear_attention' is not built"),
    ],
)
def test_s1_a_configuration_of_another_family_ends_in_a_sentence(preset, change, said, tmp_path) -> None:
    """A head too narrow for rotary positions, and too few kinds of layers, ended in a traceback."""
    folder = tiny_model(tiny_config(preset)).save(tmp_path / "model", layout="huggingface")
    (folder / "MANIFEST.json").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    if said is None:  # as if it were not there
        atento.load(folder)
        return
    fails(ModelError, rf"config\.json: .*{said}", atento.load, folder)
