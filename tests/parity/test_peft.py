"""PEFT's adapters in and out (F7): its folders load here and ours load there, with equal outputs on random weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from torch import Tensor

from atento.base.errors import CapabilityError, UsageError
from atento.config.sections.initial import LoraConfig
from atento.config.sections.network import network_to_dict
from atento.model import load
from atento.models.load import read_model, read_network
from atento.models.peft import save_adapter
from atento.networks import Decoder, Network
from atento.networks.adapters import adapt, is_adapter
from atento.storage.checkpoint import save_checkpoint
from failing import fails
from released import CASES, Inputs, saved, theirs

_CLASSIFIER = (hf.AutoModelForSequenceClassification, "SEQ_CLS")
AUTO = {  # case -> the class that PEFT's documentation loads the base with, and its name of the task
    **dict.fromkeys(("bert classification", "roberta classification", "gpt2 classification"), _CLASSIFIER),
    **dict.fromkeys(("gpt2", "llama", "llama tied, wide heads"), (hf.AutoModelForCausalLM, "CAUSAL_LM")),
    **dict.fromkeys(("t5", "t5 gated", "bart"), (hf.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM")),
    "bert tagging": (hf.AutoModelForTokenClassification, "TOKEN_CLS"),
    "qwen3 answer": (hf.AutoModelForQuestionAnswering, "QUESTION_ANS"),
}
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
    """Of three rows of unequal length; the network is theirs or ours."""
    inputs = Inputs.padded("right", 1 if name in ("roberta classification", "bart") else 0)
    both = AUTO[name][1] == "SEQ_2_SEQ_LM"
    if isinstance(network, Network):
        if both:
            return network(inputs.ids, inputs.ids, source_token_mask=inputs.real).logits
        out = network(inputs.ids, token_mask=inputs.real)
        heads = network.config.heads if isinstance(network, Decoder) else ()
        return network.read(heads[0].name, out, inputs.real) if heads else out.logits
    extra = {"decoder_input_ids": inputs.ids} if both else {}
    output = network(input_ids=inputs.ids, attention_mask=inputs.real.long(), **extra)
    if name.endswith("answer"):
        return torch.stack([output.start_logits, output.end_logits], dim=-1)[inputs.real]
    out = output.logits
    return out if both or name.endswith("classification") else out[inputs.real]


def compared(ours: Tensor, name: str) -> Tensor:
    """Ours at real tokens, as `logits` gives theirs."""
    inputs = Inputs.padded("right", 0)
    return ours if AUTO[name][1] == "SEQ_2_SEQ_LM" or name.endswith("classification") else ours[inputs.real]


def wrapped(network: Any, settings: peft.LoraConfig) -> Any:
    """With an adapter whose factors, trained biases and new heads are random: B begins as zeros."""
    adapted = peft.get_peft_model(network, settings).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name or (name.endswith("bias") and parameter.requires_grad):
                parameter.normal_(std=0.2)
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
    network = tuned(name, base, tmp_path / "run", LoraConfig(rank=2, alpha=3.0, targets=targets))
    expected = compared(logits(network, name), name)
    folder = save_adapter(tmp_path / "run", tmp_path / "adapter", base=base)
    adapted = peft.PeftModel.from_pretrained(AUTO[name][0].from_pretrained(base), folder).eval()
    torch.testing.assert_close(logits(adapted, name), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compared(logits(load(folder).network, name), name), expected, rtol=1e-4, atol=1e-4)
    joined = compared(logits(load(tmp_path / "run").network, name), name)
    torch.testing.assert_close(joined, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "scale"), [("bert", {"center": 3.0, "spread": 1.2}), ("mistral", {"spread": 1.2})], ids=lambda item: item
)
def test_a_head_for_numbers_has_its_scale_there_and_here(case: str, scale: dict[str, float], tmp_path: Path) -> None:
    """A new head has the mean and deviation of its data, which PEFT's layout has in the weights of the last layer."""
    base = saved(theirs(f"{case} regression"), tmp_path / "base")
    network = tuned("bert classification", base, tmp_path / "run", LoraConfig(), **scale)
    expected = logits(network, "bert classification")  # (B, 1), of texts
    folder = save_adapter(tmp_path / "run", tmp_path / "adapter", base=base)
    adapted = peft.PeftModel.from_pretrained(hf.AutoModelForSequenceClassification.from_pretrained(base), folder).eval()
    for found in (adapted, load(folder).network, load(tmp_path / "run").network):
        torch.testing.assert_close(logits(found, "bert classification"), expected, rtol=1e-4, atol=1e-4)


def test_a_center_without_a_bias_to_hold_it_is_not_left_out(tmp_path: Path) -> None:
    base = saved(theirs("mistral regression"), tmp_path / "base")
    tuned("bert classification", base, tmp_path / "run", LoraConfig(), center=1e6)
    said = "no place for the center of a head without a bias"
    fails(CapabilityError, said, save_adapter, tmp_path / "run", tmp_path / "out", base=base)


@pytest.mark.parametrize("bias", ["lora_only", "all"])
def test_biases_that_were_trained_beside_an_adapter_are_read(bias: Any, tmp_path: Path) -> None:
    base = saved(theirs("bert classification"), tmp_path / "base")
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], bias=bias, task_type="SEQ_CLS")
    adapted = wrapped(hf.AutoModelForSequenceClassification.from_pretrained(base), settings)
    adapted.save_pretrained(tmp_path / "adapter")
    name = "bert classification"
    found = compared(logits(load(tmp_path / "adapter").network, name), name)
    torch.testing.assert_close(found, logits(adapted, name), rtol=1e-4, atol=1e-4)


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
    torch.testing.assert_close(logits(model.network, name), logits(adapted, name), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_read_or_written_says_why(tmp_path: Path) -> None:
    base = saved(theirs("bert classification"), tmp_path / "base")
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "gone"}')
    fails(UsageError, "no model at gone", load, tmp_path / "lost")
    fails(UsageError, "is no checkpoint of a run", save_adapter, base, tmp_path / "out")
    tuned("bert classification", base, tmp_path / "run", LoraConfig())
    load(base).save(tmp_path / "ours")
    said = "is not in the Hugging Face layout, which PEFT loads"
    fails(UsageError, said, save_adapter, tmp_path / "run", tmp_path / "out", base=tmp_path / "ours")


assert set(MODULES) <= set(CASES)
