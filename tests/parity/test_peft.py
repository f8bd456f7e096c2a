"""PEFT's adapters in and out (F7); every key of LoraConfig: computed as there, without effect, or refused (K2)."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import atento
from atento.base.errors import CapabilityError, ModelError, UsageError
from atento.config.sections.initial import LoraConfig
from atento.config.sections.network import network_to_dict
from atento.config.tables.released_keys import FILES
from atento.model import load
from atento.models.load import read_model, read_network
from atento.models.peft import ADAPTER_CONFIG, save_adapter
from atento.networks import Decoder, Network
from atento.networks.adapters import adapt, is_adapter
from atento.storage.checkpoint import save_checkpoint
from atento_cli.convert.source_model import model_to_convert
from failing import fails, none_left
from folders import edited
from released import Inputs, saved, theirs

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's
_CLASSIFIER = (hf.AutoModelForSequenceClassification, "SEQ_CLS")
AUTO = {  # case -> the class that PEFT's documentation loads the base with, and its name of the task
    **dict.fromkeys(("bert classification", "roberta classification", "gpt2 classification"), _CLASSIFIER),
    **dict.fromkeys(("gpt2", "llama", "llama tied, wide heads"), (hf.AutoModelForCausalLM, "CAUSAL_LM")),
    **dict.fromkeys(("t5", "t5 gated", "bart"), (hf.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM")),
    "bert tagging": (hf.AutoModelForTokenClassification, "TOKEN_CLS"),
    "qwen3 answer": (hf.AutoModelForQuestionAnswering, "QUESTION_ANS"),
}
BERT, TIED = "bert classification", "llama tied, wide heads"
MODULES = {  # what PEFT adapts there
    "bert classification": ["query", "value", "output.dense"],
    "bert tagging": ["key", "intermediate.dense"],
    "roberta classification": ["query", "value"],
    "gpt2": ["c_attn", "c_proj"],
    "gpt2 classification": ["c_attn", "c_fc"],
    "qwen3 answer": ["q_proj", "v_proj", "o_proj"],
    "llama": ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"],
    "t5 gated": ["q", "v", "wi_1"],
    "bart": ["q_proj", "v_proj", "fc1"],
}


@torch.no_grad()
def logits(network: Any, name: str) -> Tensor:
    """Of three rows of unequal length, at real tokens unless they are of texts; the network is theirs or ours."""
    inputs = Inputs.padded("right", 1 if name in ("roberta classification", "bart") else 0)
    both = AUTO[name][1] == "SEQ_2_SEQ_LM"
    if isinstance(network, Network) and both:
        found = network(inputs.ids, inputs.ids, source_token_mask=inputs.real).logits
    elif isinstance(network, Network):
        out = network(inputs.ids, token_mask=inputs.real)
        heads = network.config.heads if isinstance(network, Decoder) else ()
        found = network.read(heads[0].name, out, inputs.real) if heads else out.logits
    else:
        extra = {"decoder_input_ids": inputs.ids} if both else {}
        output = network(input_ids=inputs.ids, attention_mask=inputs.real.long(), **extra)
        answers = name.endswith("answer")
        found = torch.stack([output.start_logits, output.end_logits], dim=-1) if answers else output.logits
    return found if both or name.endswith("classification") else found[inputs.real]


near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def wrapped(network: Any, settings: peft.LoraConfig) -> Any:
    """With an adapter whose trained weights all moved: B begins as zeros."""
    adapted = peft.get_peft_model(network, settings).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if parameter.requires_grad or "lora_" in key:
                parameter.add_(torch.empty_like(parameter).normal_(std=0.2))
    return adapted


def tuned(case: str, base: Path, run: Path, lora: LoraConfig, **scale: float) -> Network:
    """A run with one checkpoint, as LoRA leaves it; its network, whose adapters and heads are random."""
    files = read_model(base)
    config = load(base).network.config
    config = replace(config, heads=tuple(replace(head, **scale) for head in config.heads))
    network = read_network(files, config)
    adapt(network, lora)
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            is_head = name.startswith(("heads.", "pooler.")) and not name.startswith("heads.vocabulary")
            if is_adapter(name) or (is_head and AUTO[case][1] not in ("CAUSAL_LM", "SEQ_2_SEQ_LM")):
                parameter.normal_(std=0.2)
    described = {"rank": lora.rank, "alpha": lora.alpha, "dropout": lora.dropout, "targets": list(lora.targets)}
    config_of_run = {**files.config, "network": network_to_dict(config), "lora": described}
    save_checkpoint(run / "checkpoints", 1, config=config_of_run, weights=network.state_dict(), optimizer={}, state={})
    return network.eval()


@pytest.mark.covering
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("targets", [("query", "value"), ("all-linear",), ("input", "outer")], ids=str)
def test_our_folder_loads_there_and_here_the_same(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    """query and value stand in one matrix of GPT-2, so its rank doubles; input is three matrices of BERT."""
    base = saved(theirs(name), tmp_path / "base")
    expected = logits(tuned(name, base, tmp_path / "run", LoraConfig(rank=2, alpha=3.0, targets=targets)), name)
    folder = save_adapter(tmp_path / "run", tmp_path / "adapter", base=base)
    adapted = peft.PeftModel.from_pretrained(AUTO[name][0].from_pretrained(base), folder).eval()
    for found in (adapted, load(folder).network, load(tmp_path / "run").network):
        near(logits(found, name), expected)


@pytest.mark.parametrize(
    ("case", "scale"), [("bert", {"center": 3.0, "spread": 1.2}), ("mistral", {"spread": 1.2})], ids=lambda item: item
)
def test_a_head_for_numbers_has_its_scale_there_and_here(case: str, scale: dict[str, float], tmp_path: Path) -> None:
    """A new head has the mean and deviation of its data, which PEFT's layout has in the weights of the last layer."""
    base = saved(theirs(f"{case} regression"), tmp_path / "base")
    expected = logits(tuned(BERT, base, tmp_path / "run", LoraConfig(), **scale), BERT)  # (B, 1), of texts
    folder = save_adapter(tmp_path / "run", tmp_path / "adapter", base=base)
    adapted = peft.PeftModel.from_pretrained(hf.AutoModelForSequenceClassification.from_pretrained(base), folder).eval()
    for found in (adapted, load(folder).network, load(tmp_path / "run").network):
        near(logits(found, BERT), expected)


@pytest.mark.parametrize(
    ("base_case", "adapted_class", "modules"),
    [
        ("bert masked", hf.BertForSequenceClassification, {"target_modules": ["query"], "modules_to_save": ["pooler"]}),
        ("gpt2", hf.GPT2ForSequenceClassification, {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
        ("qwen2", hf.Qwen2ForSequenceClassification, {"target_modules": ["v_proj", "down_proj"]}),
    ],
)
def test_an_adapter_brings_its_head_to_a_base_without_one(
    base_case: str, adapted_class: Any, modules: dict[str, Any], tmp_path: Path
) -> None:
    """The usual case: a pretrained encoder or decoder, and an adapter with a new head for four labels."""
    base = saved(theirs(base_case), tmp_path / "base")
    settings = peft.LoraConfig(r=2, task_type="SEQ_CLS", **modules)
    given = {} if base_case == "bert masked" else {"pad_token_id": 0}
    adapted = wrapped(adapted_class.from_pretrained(base, num_labels=4, **given), settings)
    adapted.save_pretrained(tmp_path / "adapter")
    model = load(tmp_path / "adapter")
    assert [(head.kind, len(head.labels)) for head in model.network.config.heads] == [("classification", 4)]
    name = "gpt2 classification"
    near(logits(model.network, name), logits(adapted, name))


def test_what_cannot_be_read_or_written_says_why(tmp_path: Path) -> None:
    base = saved(theirs(BERT), tmp_path / "base")
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "gone"}')
    fails(UsageError, "no model at gone", load, tmp_path / "lost")
    fails(UsageError, "is no checkpoint of a run", save_adapter, base, tmp_path / "out")
    tuned(BERT, base, tmp_path / "run", LoraConfig())
    load(base).save(tmp_path / "ours")
    said = "is not in the Hugging Face layout, which PEFT loads"
    fails(UsageError, said, save_adapter, tmp_path / "run", tmp_path / "out", base=tmp_path / "ours")
    other = saved(theirs("mistral regression"), tmp_path / "other")
    tuned(BERT, other, tmp_path / "centered", LoraConfig(), center=1e6)
    said = "no place for the center of a head without a bias"
    fails(CapabilityError, said, save_adapter, tmp_path / "centered", tmp_path / "out", base=other)


_GPT = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
_BERT = {"target_modules": ["query", "output.dense"]}
_LLAMA = {"target_modules": ["q_proj", "down_proj"]}
_EMBED = {"target_modules": ["embed_tokens", "v_proj"]}
_BART = {"target_modules": ["encoder.embed_tokens", "q_proj"]}
# base, what differs from LoraConfig's defaults
COMPUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "use_dora, linear": (BERT, _BERT | {"use_dora": True}),
    "use_dora, three in one": ("llama", {"target_modules": ["q_proj", "v_proj", "up_proj"], "use_dora": True}),
    "use_dora, Conv1D": ("gpt2", _GPT | {"use_dora": True}),
    "use_dora, embedding": (TIED, _EMBED | {"use_dora": True}),
    "biases beside the adapter": (BERT, _BERT | {"bias": "lora_only"}),
    "all biases": (BERT, _BERT | {"bias": "all"}),
    "lora_bias": (BERT, _BERT | {"lora_bias": True, "lora_alpha": 5}),
    "embedding": ("llama", _EMBED),
    "embedding that the output repeats": (TIED, _EMBED),
    "output that repeats the embedding": (TIED, {"target_modules": ["lm_head", "q_proj"]}),
    "both, tied": (TIED, {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}),
    "embeddings of BERT": (BERT, {"target_modules": ["word_embeddings", "token_type_embeddings"]}),
    "embedding of GPT-2": ("gpt2", {"target_modules": ["wte", "wpe", "c_attn"]}),
    "embedding of one stack of BART": ("bart", _BART),
    "embeddings of T5": ("t5", {"target_modules": ["embed_tokens", "q"]}),
    "embedding of T5's reader": ("t5", {"target_modules": ["encoder.embed_tokens", "q"]}),
    "pissa": (BERT, _BERT | {"init_lora_weights": "pissa", "lora_alpha": 6}),
    "pissa, Conv1D": ("gpt2", _GPT | {"init_lora_weights": "pissa", "use_rslora": True}),
    "pissa, embedding": ("llama", _EMBED | {"init_lora_weights": "pissa"}),
    "olora": ("llama", _LLAMA | {"init_lora_weights": "olora", "lora_alpha": 6}),
    "olora, square Conv1D": ("gpt2", _GPT | {"target_modules": ["attn.c_proj"], "init_lora_weights": "olora"}),
    "gaussian": ("llama", _LLAMA | {"init_lora_weights": "gaussian"}),
    "orthogonal": ("llama", _LLAMA | {"init_lora_weights": "orthogonal"}),
    "eva": ("llama", _LLAMA | {"init_lora_weights": "eva"}),
    "mica": (BERT, _BERT | {"init_lora_weights": "mica"}),
    "init false": ("llama", _LLAMA | {"init_lora_weights": False}),
    "patterns": ("llama", _LLAMA | {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {r"layers\.1\.mlp\.down_proj": 9}}),
    "use_rslora": ("llama", _LLAMA | {"use_rslora": True}),
    "layers_to_transform": ("llama", _LLAMA | {"layers_to_transform": [1], "layers_pattern": "layers"}),
    "exclude_modules": ("llama", {"target_modules": "all-linear", "exclude_modules": ["gate_proj"]}),
    "modules_to_save, the embedding": (TIED, _LLAMA | {"modules_to_save": ["embed_tokens"]}),
    "modules_to_save, tied": (TIED, _LLAMA | {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "modules_to_save, a norm": ("llama", _LLAMA | {"modules_to_save": ["norm"]}),
    "trainable_token_indices": ("llama", _LLAMA | {"trainable_token_indices": [5, 2]}),
    "trainable_token_indices, tied": (TIED, _LLAMA | {"trainable_token_indices": [5, 2]}),
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
IN_TEST_PEFT = {"task_type", "base_model_name_or_path", "r", "lora_alpha", "revision"}


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
    wrapped(kind.from_pretrained(base), config).save_pretrained(folder / "adapter")
    return peft.PeftModel.from_pretrained(kind.from_pretrained(base), folder / "adapter").eval(), folder / "adapter"


@pytest.mark.parametrize("case", COMPUTED)
def test_k2_a_saved_adapter_gives_their_outputs(case: str, tmp_path: Path) -> None:
    """What `PeftModel.from_pretrained` computes of the folder, and not what the base alone computes."""
    name, settings = COMPUTED[case]
    other, folder = _trained(name, settings, tmp_path)
    model = atento.load(folder)
    expected = logits(other, name)
    near(logits(model.network, name), expected)
    plain = logits(atento.load(tmp_path / "base").network, name)
    assert plain.shape == expected.shape and not torch.allclose(plain, expected, atol=1e-2)


def test_k2_keys_of_the_file_are_refused_by_name_or_change_nothing(tmp_path: Path) -> None:
    _, folder = _trained(BERT, _BERT, tmp_path)
    before, settings = logits(atento.load(folder).network, BERT), edited(folder / ADAPTER_CONFIG)
    for key, value in WITHOUT_EFFECT.items():
        edited(folder / ADAPTER_CONFIG, **{key: value})
        assert torch.equal(logits(atento.load(folder).network, BERT), before), key
        edited(folder / ADAPTER_CONFIG, **settings)
    edited(folder / ADAPTER_CONFIG, newest=1)
    assert (report := atento.load(folder).load_report) is not None
    assert report.unread == ["adapter_config.json: newest"]
    for key, value in REFUSED.items():
        edited(folder / ADAPTER_CONFIG, **{key: value})
        fails(ModelError, f"`{key}`", atento.load, folder)
        edited(folder / ADAPTER_CONFIG, **settings)


def test_k2_a_beginning_that_cannot_be_computed_again_is_refused(tmp_path: Path) -> None:
    """PEFT draws anew, quantises, or stops itself there; the message names the value and the way out."""
    _, folder = _trained(BERT, _BERT, tmp_path)
    for value in ("pissa_niter_16", "corda", "lora_ga", "loftq"):
        edited(folder / ADAPTER_CONFIG, init_lora_weights=value)
        fails(ModelError, rf"`init_lora_weights` '{value}' is not read .+ PEFT", atento.load, folder)
    edited(folder / ADAPTER_CONFIG, init_lora_weights=True)
    edited(folder / ADAPTER_CONFIG, base_model_name_or_path="owner/name", revision="v2")
    fails(ModelError, "`revision` 'v2' of the base owner/name is not fetched here", atento.load, folder)
    edited(folder / ADAPTER_CONFIG, base_model_name_or_path=str(tmp_path / "base"), init_lora_weights="tomorrow")
    fails(ModelError, "`init_lora_weights` 'tomorrow' is not known .*: true, false", atento.load, folder)


@pytest.mark.parametrize("name", ["llama", TIED, "gpt2"])
def test_k2_an_adapter_with_new_tokens_brings_its_embedding(name: str, tmp_path: Path) -> None:
    """The base was made longer for them, as usual for a chat; PEFT saves both tables whole."""
    base, kind = saved(theirs(name), tmp_path / "base"), AUTO[name][0]
    network = kind.from_pretrained(base)
    network.resize_token_embeddings(41, mean_resizing=False)
    modules = ["wte", "lm_head"] if name == "gpt2" else ["embed_tokens", "lm_head"]
    targets = ["c_attn" if name == "gpt2" else "q_proj"]
    settings = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=modules, task_type="CAUSAL_LM")
    adapted = wrapped(network, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    model = atento.load(tmp_path / "adapter")
    assert model.network.config.vocab_size == 41
    near(logits(model.network, name), logits(adapted, name))


def test_k2_an_older_file_of_an_adapter_is_converted(tmp_path: Path) -> None:
    """`adapter_model.bin`, by a base that the folder names from where it stands."""
    other, folder = _trained(BERT, _BERT, tmp_path)
    file = folder / "adapter_model.safetensors"
    torch.save(load_file(file), folder / "adapter_model.bin")
    file.unlink()
    edited(folder / ADAPTER_CONFIG, base_model_name_or_path="../base")
    fails(ModelError, r"adapter_model\.bin is an older .*, which `atento convert", atento.load, folder)
    with model_to_convert(folder, "float32") as model:
        near(logits(model.network, BERT), logits(other, BERT))


def test_k2_an_adapter_in_the_folder_of_its_base_is_read(tmp_path: Path) -> None:
    """Trainers write `config.json` beside an adapter; with a whole model in the folder, `from_pretrained` adapts it."""
    other, folder = _trained(BERT, _BERT, tmp_path)
    shutil.copy(tmp_path / "base" / "config.json", folder)
    expected = logits(other, BERT)
    near(logits(atento.load(folder).network, BERT), expected)
    shutil.copy(tmp_path / "base" / "model.safetensors", folder)
    edited(folder / ADAPTER_CONFIG, base_model_name_or_path="owner/elsewhere")
    torch.testing.assert_close(logits(AUTO[BERT][0].from_pretrained(folder).eval(), BERT), expected)
    near(logits(atento.load(folder).network, BERT), expected)


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
        edited(folder / ADAPTER_CONFIG, **changes)
        fails(ModelError, message, atento.load, folder)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({key: value for key, value in tensors.items() if "layers.0.mlp.down_proj.lora_A" not in key}, file)
    edited(folder / ADAPTER_CONFIG, trainable_token_indices=[5, 2])
    fails(ModelError, r"layers\.0\.mlp\.down_proj lacks one of its two matrices", atento.load, folder)
