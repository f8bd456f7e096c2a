"""Folders as published, for every family of the table: `load` and `convert` give the outputs of `transformers` (K2)."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import atento
from atento.base.errors import ModelError, TokenizerError
from atento.released import FAMILIES
from atento_cli.convert.source_model import model_to_convert
from failing import fails
from folders import edited, ids_of
from published import FORMS, NAMES, published
from released import CASES, saved, theirs
from released_folders import RELEASED, write_released
from test_families import compare

_FORMS = list(FORMS)


def test_every_family_has_a_published_form_and_a_case() -> None:
    assert NAMES.keys() == FAMILIES.keys() == {config.model_type for _, config in CASES.values()}


@torch.no_grad()
def _round_to_half(network: nn.Module) -> None:
    for module in network.modules():
        if "Sinusoidal" in type(module).__name__:
            continue  # computed, not stored
        for key, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if not key.endswith("inv_freq"):
                tensor.copy_(tensor.half())


@pytest.mark.parametrize("number, name", list(enumerate(CASES)), ids=lambda value: str(value))
def test_k2_every_case_as_published_gives_their_outputs(number: int, name: str, tmp_path: Path) -> None:
    """All names of all classes, each in one of the forms in turn; few are pickled, which takes a process each."""
    form = "pickled" if name in ("bert", "gpt2", "marian") else _FORMS[number % (len(_FORMS) - 1)]
    other, folder = theirs(name), tmp_path / "theirs"
    if form.startswith("fp16"):  # both have the numbers that the file can hold
        _round_to_half(other)
    published(saved(other, folder), CASES[name][1].model_type, form)
    if form == "pickled":
        with model_to_convert(folder, "float32") as model:
            compare(model.network, other, "right")
        return
    model = atento.load(folder)
    assert model.load_report is not None and not model.load_report.new and not model.load_report.unused
    compare(model.network, other, "right")


@pytest.mark.parametrize("name", RELEASED)
def test_k2_a_vocabulary_padded_beyond_the_tokenizer(name: str, tmp_path: Path) -> None:
    """Rows that no token has, as in Qwen, T5 and ModernBERT; in shards, under old names."""
    folder = write_released(name, tmp_path, padding=13)
    data = edited(folder / "config.json")
    published(folder, data["model_type"], "shards")
    model = atento.load(folder)
    config = model.network.config
    assert model.tokenizer and model.tokenizer.vocab_size <= config.vocab_size - 13 == data["vocab_size"] - 13
    other = getattr(transformers, data["architectures"][0]).from_pretrained(folder).eval()
    assert other.get_input_embeddings().weight.shape[0] == config.vocab_size
    compare(model.network, other, "right")


@pytest.mark.parametrize("name", ["llama stretched", "llama 3.1", "llama yarn", "llama dynamic", "llama longrope"])
def test_k2_rotations_under_the_keys_of_older_versions(name: str, tmp_path: Path) -> None:
    """`rope_scaling` with a `type`, and the length of the training beside it, as in the files of Phi-3."""
    other = theirs(name)
    folder = saved(other, tmp_path / "theirs")
    rope = edited(folder / "config.json")["rope_parameters"]
    beside = ("rope_theta", *(["original_max_position_embeddings"] if name == "llama longrope" else []))
    changes = {key: rope.pop(key) for key in beside} | {"rope_scaling": rope | {"type": rope.pop("rope_type")}}
    edited(folder / "config.json", "rope_parameters", **changes)
    model = atento.load(folder)
    assert model.load_report is not None and not model.load_report.unread
    compare(model.network, other, "right")
    compare(model.network, type(other).from_pretrained(folder).eval(), "right")


@pytest.mark.parametrize("name", ["roberta tagging", "mpnet tagging"])
def test_k2_tags_beside_a_pooler_that_no_head_reads(name: str, tmp_path: Path) -> None:
    """A file of older versions, whose configuration names no class: a head for classes has one more layer."""
    other = theirs(name)
    folder = saved(other, tmp_path / "theirs")
    tensors, start = load_file(folder / "model.safetensors"), other.base_model_prefix
    pooler = {f"{start}.pooler.dense.weight": torch.ones(16, 16), f"{start}.pooler.dense.bias": torch.ones(16)}
    save_file(tensors | pooler, folder / "model.safetensors")
    edited(folder / "config.json", "architectures")
    compare(atento.load(folder).network, other, "right")


def test_a_class_that_is_not_built_is_named(tmp_path: Path) -> None:
    """What its weights lack or have too many of was told instead, as of a damaged folder."""
    folder = write_released("bart", tmp_path)
    for name in ("BartForCausalLM", "BertForMultipleChoice", "GPT2DoubleHeadsModel"):
        edited(folder / "config.json", architectures=[name])
        fails(ModelError, f"config.json: the class {name} .* is not built here", atento.load, folder)


def test_k2_a_special_token_without_a_row_is_never_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`<pad>` in the `added_tokens.json` of mirrors of Llama 2; a word without a row is refused."""
    folder = write_released("llama", tmp_path)
    size = edited(folder / "config.json")["vocab_size"]
    edited(folder / "tokenizer_config.json", pad_token="<pad>")
    edited(folder / "added_tokens.json", **{"<pad>": size})
    model, peer = atento.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert caplog.text.count("the model has no row for <pad>, which it never reads") == 1
    assert model.tokenizer is not None and model.tokenizer.vocab_size == len(peer) == size + 1
    assert ids_of(model, "o gato") == peer("o gato").input_ids
    assert max(model.tokenizer.encode("o <pad> gato")) < size == model.network.config.vocab_size
    compare(model.network, transformers.LlamaForCausalLM.from_pretrained(folder).eval(), "right")
    edited(folder / "added_tokens.json", covid19=size + 1)
    fails(TokenizerError, f"has {size + 2} pieces and the model {size}: give it rows for all", atento.load, folder)
