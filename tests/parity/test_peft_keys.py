"""Every key of PEFT's LoraConfig: computed as PEFT does, without effect on a saved adapter, or refused by name (K2)."""

import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import atento
from atento.base.errors import ModelError
from atento.config.tables.released_keys import FILES
from atento.models.peft import ADAPTER_CONFIG
from atento_cli.convert.source_model import model_to_convert
from failing import fails
from folders import edited
from locked import none_left
from released import saved, theirs
from test_peft import AUTO, MODULES, compared, logits

pytestmark = pytest.mark.filterwarnings("ignore")

_GPT = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
_BERT = {"target_modules": ["query", "output.dense"]}
_LLAMA = {"target_modules": ["q_proj", "down_proj"]}
_EMBED = {"target_modules": ["embed_tokens", "v_proj"]}
_BART = {"target_modules": ["encoder.embed_tokens", "q_proj"]}
BERT, TIED = "bert classification", "llama tied, wide heads"
# base, what differs from LoraConfig's defaults
COMPUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "use_dora, linear": ("bert classification", _BERT | {"use_dora": True}),
    "use_dora, three in one": ("llama", {"target_modules": ["q_proj", "v_proj", "up_proj"], "use_dora": True}),
    "use_dora, Conv1D": ("gpt2", _GPT | {"use_dora": True}),
    "use_dora, embedding": ("llama tied, wide heads", _EMBED | {"use_dora": True}),
    "lora_bias": ("bert classification", _BERT | {"lora_bias": True, "lora_alpha": 5}),
    "embedding": ("llama", _EMBED),
    "embedding that the output repeats": ("llama tied, wide heads", _EMBED),
    "output that repeats the embedding": ("llama tied, wide heads", {"target_modules": ["lm_head", "q_proj"]}),
    "both, tied": (TIED, {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}),
    "embeddings of BERT": ("bert classification", {"target_modules": ["word_embeddings", "token_type_embeddings"]}),
    "embedding of GPT-2": ("gpt2", {"target_modules": ["wte", "wpe", "c_attn"]}),
    "embedding of one stack of BART": ("bart", _BART),
    "embeddings of T5": ("t5", {"target_modules": ["embed_tokens", "q"]}),
    "embedding of T5's reader": ("t5", {"target_modules": ["encoder.embed_tokens", "q"]}),
    "pissa": ("bert classification", _BERT | {"init_lora_weights": "pissa", "lora_alpha": 6}),
    "pissa, Conv1D": ("gpt2", _GPT | {"init_lora_weights": "pissa", "use_rslora": True}),
    "pissa, embedding": ("llama", _EMBED | {"init_lora_weights": "pissa"}),
    "olora": ("llama", _LLAMA | {"init_lora_weights": "olora", "lora_alpha": 6}),
    "olora, square Conv1D": ("gpt2", _GPT | {"target_modules": ["attn.c_proj"], "init_lora_weights": "olora"}),
    "gaussian": ("llama", _LLAMA | {"init_lora_weights": "gaussian"}),
    "orthogonal": ("llama", _LLAMA | {"init_lora_weights": "orthogonal"}),
    "eva": ("llama", _LLAMA | {"init_lora_weights": "eva"}),
    "mica": ("bert classification", _BERT | {"init_lora_weights": "mica"}),
    "init false": ("llama", _LLAMA | {"init_lora_weights": False}),
    "patterns": ("llama", _LLAMA | {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {r"layers\.1\.mlp\.down_proj": 9}}),
    "use_rslora": ("llama", _LLAMA | {"use_rslora": True}),
    "layers_to_transform": ("llama", _LLAMA | {"layers_to_transform": [1], "layers_pattern": "layers"}),
    "exclude_modules": ("llama", {"target_modules": "all-linear", "exclude_modules": ["gate_proj"]}),
    "modules_to_save, the embedding": ("llama tied, wide heads", _LLAMA | {"modules_to_save": ["embed_tokens"]}),
    "modules_to_save, tied": (TIED, _LLAMA | {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "modules_to_save, a norm": ("llama", _LLAMA | {"modules_to_save": ["norm"]}),
    "trainable_token_indices": ("llama", _LLAMA | {"trainable_token_indices": [5, 2]}),
    "trainable_token_indices, tied": ("llama tied, wide heads", _LLAMA | {"trainable_token_indices": [5, 2]}),
    "trainable_token_indices, by name": (BERT, _BERT | {"trainable_token_indices": {"word_embeddings": [7]}}),
    "monteclora_config": ("llama", _LLAMA | {"monteclora_config": peft.MontecloraConfig(num_samples=2)}),
    "velora_config": ("llama", _LLAMA | {"velora_config": peft.VeloraConfig(num_groups=2)}),
}
for _name, (_first, _second, *_rest) in MODULES.items():
    _scale = {"r": 3, "lora_alpha": 5, "rank_pattern": {_first: 2}, "alpha_pattern": {_second: 9}, "lora_dropout": 0.1}
    _scale |= {"use_rslora": _name == "llama", "fan_in_fan_out": _name.startswith("gpt2")}
    COMPUTED[f"modules of {_name}"] = (_name, _scale | {"target_modules": [_first, _second, *_rest]})
# another value in the file of a saved adapter changes nothing
WITHOUT_EFFECT: dict[str, Any] = {"auto_mapping": {"base_model_class": "X", "parent_library": "y"}, "revision": "main"}
WITHOUT_EFFECT |= {"peft_version": "0.1.0", "inference_mode": False, "lora_dropout": 0.5, "fan_in_fan_out": True}
WITHOUT_EFFECT |= {"megatron_core": "elsewhere", "merge_weights": True, "corda_config": {"corda_method": "kpm"}}
WITHOUT_EFFECT |= {"eva_config": {"rho": 2.0}, "lora_ga_config": {"direction": "random"}}
WITHOUT_EFFECT |= {"loftq_config": {"loftq_bits": 4}, "qalora_group_size": 8}
REFUSED: dict[str, Any] = {"peft_type": "IA3", "use_qalora": True, "alora_invocation_tokens": [5, 6]}
REFUSED |= {"use_bdlora": {"nblocks": 2}, "arrow_config": {"top_k": 3}, "kasa_config": {"beta": 1e-4}}
REFUSED |= {"target_parameters": ["mlp.weight"], "layer_replication": [[0, 2]], "enable_lora": [True, False, True]}
REFUSED |= {"megatron_config": {"hidden_size": 16}}
IN_TEST_PEFT = {"bias", "task_type", "base_model_name_or_path", "r", "lora_alpha", "revision"}


def test_every_key_of_the_library_has_a_row_and_every_row_a_case() -> None:
    keys, written = FILES[ADAPTER_CONFIG], peft.LoraConfig().to_dict()
    none_left([key for key in written if not keys.known(key)], "keys of LoraConfig without a row", peft)
    tried = {key for _, settings in COMPUTED.values() for key in settings}
    none_left(set(keys.computed) & written.keys() - tried - IN_TEST_PEFT, "computed keys without a case", peft)
    none_left(set(keys.harmless) & written.keys() - WITHOUT_EFFECT.keys(), "keys without effect and a case", peft)
    assert keys.refused.keys() == REFUSED.keys()
    none_left(keys.unread(written | {"peft_type": "LORA"}), "keys that a default configuration refuses", peft)


def _trained(name: str, settings: dict[str, Any], folder: Path) -> tuple[nn.Module, Path]:
    """An adapter whose trained weights all moved, saved; and its base as it stands in the folder."""
    base = saved(theirs(name), folder / "base")
    kind, task = AUTO[name]
    config = peft.LoraConfig(**{"r": 2, "task_type": task} | settings)
    adapted = peft.get_peft_model(kind.from_pretrained(base), config).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if parameter.requires_grad or "lora_" in key:
                parameter.add_(torch.empty_like(parameter).normal_(std=0.2))
    adapted.save_pretrained(folder / "adapter")
    return peft.PeftModel.from_pretrained(kind.from_pretrained(base), folder / "adapter").eval(), folder / "adapter"


@pytest.mark.parametrize("case", COMPUTED)
def test_k2_a_saved_adapter_gives_their_outputs(case: str, tmp_path: Path) -> None:
    """What `PeftModel.from_pretrained` computes of the folder, and not what the base alone computes."""
    name, settings = COMPUTED[case]
    other, folder = _trained(name, settings, tmp_path)
    model = atento.load(folder)
    expected = logits(other, name)
    torch.testing.assert_close(compared(logits(model.network, name), name), expected, rtol=1e-4, atol=1e-4)
    plain = compared(logits(atento.load(tmp_path / "base").network, name), name)
    assert plain.shape == expected.shape and not torch.allclose(plain, expected, atol=1e-2)


def _configure(folder: Path, **changes: Any) -> None:
    edited(folder / "adapter_config.json", **changes)


def test_k2_keys_of_the_file_are_refused_by_name_or_change_nothing(tmp_path: Path) -> None:
    name = "bert classification"
    _, folder = _trained(name, _BERT, tmp_path)
    before, settings = logits(atento.load(folder).network, name), edited(folder / "adapter_config.json")
    for key, value in WITHOUT_EFFECT.items():
        _configure(folder, **{key: value})
        assert torch.equal(logits(atento.load(folder).network, name), before), key
        _configure(folder, **settings)
    _configure(folder, newest=1)
    assert (report := atento.load(folder).load_report) is not None
    assert report.unread == ["adapter_config.json: newest"]
    for key, value in REFUSED.items():
        _configure(folder, **{key: value})
        fails(ModelError, f"`{key}`", atento.load, folder)
        _configure(folder, **settings)


def test_k2_a_beginning_that_cannot_be_computed_again_is_refused(tmp_path: Path) -> None:
    """PEFT draws anew, quantises, or stops itself there; the message names the value and the way out."""
    _, folder = _trained("bert classification", _BERT, tmp_path)
    for value in ("pissa_niter_16", "corda", "lora_ga", "loftq"):
        _configure(folder, init_lora_weights=value)
        fails(ModelError, rf"`init_lora_weights` '{value}' is not read .+ PEFT", atento.load, folder)
    _configure(folder, init_lora_weights=True)
    _configure(folder, base_model_name_or_path="owner/name", revision="v2")
    fails(ModelError, "`revision` 'v2' of the base owner/name is not fetched here", atento.load, folder)
    _configure(folder, base_model_name_or_path=str(tmp_path / "base"), init_lora_weights="tomorrow")
    fails(ModelError, "`init_lora_weights` 'tomorrow' is not known .*: true, false", atento.load, folder)


@pytest.mark.parametrize("name", ["llama", "llama tied, wide heads", "gpt2"])
def test_k2_an_adapter_with_new_tokens_brings_its_embedding(name: str, tmp_path: Path) -> None:
    """The base was made longer for them, as usual for a chat; PEFT saves both tables whole."""
    base, kind = saved(theirs(name), tmp_path / "base"), AUTO[name][0]
    network = kind.from_pretrained(base)
    network.resize_token_embeddings(41, mean_resizing=False)
    modules = ["wte", "lm_head"] if name == "gpt2" else ["embed_tokens", "lm_head"]
    targets = ["c_attn" if name == "gpt2" else "q_proj"]
    settings = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=modules, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(network, settings).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.empty_like(parameter).normal_(std=0.2))
    adapted.save_pretrained(tmp_path / "adapter")
    model = atento.load(tmp_path / "adapter")
    assert model.network.config.vocab_size == 41
    torch.testing.assert_close(compared(logits(model.network, name), name), logits(adapted, name), rtol=1e-4, atol=1e-4)


def test_k2_an_older_file_of_an_adapter_is_converted(tmp_path: Path) -> None:
    """`adapter_model.bin`, by a base that the folder names from where it stands."""
    name = "bert classification"
    other, folder = _trained(name, _BERT, tmp_path)
    file = folder / "adapter_model.safetensors"
    torch.save(load_file(file), folder / "adapter_model.bin")
    file.unlink()
    _configure(folder, base_model_name_or_path="../base")
    fails(ModelError, r"adapter_model\.bin is an older .*, which `atento convert", atento.load, folder)
    with model_to_convert(folder, "float32") as model:
        torch.testing.assert_close(logits(model.network, name), logits(other, name), rtol=1e-4, atol=1e-4)


def test_k2_an_adapter_in_the_folder_of_its_base_is_read(tmp_path: Path) -> None:
    """Trainers write `config.json` beside an adapter; with a whole model in the folder, `from_pretrained` adapts it."""
    name = "bert classification"
    other, folder = _trained(name, _BERT, tmp_path)
    shutil.copy(tmp_path / "base" / "config.json", folder)
    expected = logits(other, name)
    torch.testing.assert_close(logits(atento.load(folder).network, name), expected, rtol=1e-4, atol=1e-4)
    shutil.copy(tmp_path / "base" / "model.safetensors", folder)
    _configure(folder, base_model_name_or_path="owner/elsewhere")
    torch.testing.assert_close(logits(AUTO[name][0].from_pretrained(folder).eval(), name), expected)
    torch.testing.assert_close(logits(atento.load(folder).network, name), expected, rtol=1e-4, atol=1e-4)


def test_k2_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """A table that nothing reads, a bias that the base lacks, other tokens than the file holds, a missing factor."""
    for number, (name, settings, changes, message) in enumerate(
        (
            ("t5", {"target_modules": ["shared"]}, {}, "for shared, which is no matrix of the base model"),
            ("llama", _LLAMA | {"lora_bias": True}, {}, "`lora_bias` needs a bias of the base model, and model.layers"),
            ("llama", _LLAMA | {"trainable_token_indices": [5, 2]}, {"trainable_token_indices": [5]}, "names 1 row"),
        )
    ):
        _, folder = _trained(name, settings, tmp_path / str(number))
        _configure(folder, **changes)
        fails(ModelError, message, atento.load, folder)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({key: value for key, value in tensors.items() if "layers.0.mlp.down_proj.lora_A" not in key}, file)
    _configure(folder, trainable_token_indices=[5, 2])
    fails(ModelError, r"layers\.0\.mlp\.down_proj lacks one of its two matrices", atento.load, folder)
