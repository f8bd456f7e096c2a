"""Tied or not, as the tensors of a file are equal or not, and RoBERTa's own activation: as `transformers` (W4, W5)."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import atento
from atento.base.errors import ModelError
from atento.networks import parameter_count
from atento_cli.convert.unpickle import unpickle
from failing import fails
from released import CASES, saved, theirs
from test_families import compare

# case -> (output matrix, embedding that it usually repeats), as their files name them
_WORDS = "embeddings.word_embeddings.weight"
OUTPUTS = {
    **dict.fromkeys(("bert masked", "bert pretraining"), ("cls.predictions.decoder.weight", f"bert.{_WORDS}")),
    **dict.fromkeys(("roberta masked", "xlm-roberta masked"), ("lm_head.decoder.weight", f"roberta.{_WORDS}")),
    "distilbert masked": ("vocab_projector.weight", f"distilbert.{_WORDS}"),
    "electra generator": ("generator_lm_head.weight", f"electra.{_WORDS}"),
    "mpnet masked": ("lm_head.decoder.weight", f"mpnet.{_WORDS}"),
    "albert masked": ("predictions.decoder.weight", f"albert.{_WORDS}"),
    "modernbert masked": ("decoder.weight", "model.embeddings.tok_embeddings.weight"),
    **dict.fromkeys(("gemma", "llama tied, wide heads"), ("lm_head.weight", "model.embed_tokens.weight")),
    **dict.fromkeys(("mbart", "m2m_100", "pegasus", "bart", "marian"), ("lm_head.weight", "model.shared.weight")),
    "gpt1": ("lm_head.weight", "transformer.tokens_embed.weight"),
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    **dict.fromkeys(("t5", "mt5"), ("lm_head.weight", "shared.weight")),
    "marian, two vocabularies": ("lm_head.weight", "model.decoder.embed_tokens.weight"),
}


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """The folder with its weights changed."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def reloaded(folder: Path) -> Any:
    """What `transformers` makes of a folder, by the class that its configuration names; nothing may be missing."""
    config = transformers.AutoConfig.from_pretrained(folder)
    network, notes = getattr(transformers, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
    computed = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    missing = notes["missing_keys"] - (computed if config.model_type == "pegasus" else set())
    assert not missing and not notes["mismatched_keys"]
    return network.eval()


def moved(like: Tensor, seed: int = 5) -> Tensor:
    return like + torch.empty_like(like).normal_(generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", OUTPUTS)
def test_w4_an_output_matrix_of_its_own_is_used(name: str, tmp_path: Path) -> None:
    """Beside an embedding that it does not repeat: in, out, and in again, it gives the logits of `transformers`."""
    matrix, table = OUTPUTS[name]
    folder = saved(theirs(name), tmp_path / "theirs")
    rewritten(folder, lambda weights: weights.update({matrix: moved(weights[table])}))
    model, other = atento.load(folder), reloaded(folder)
    assert not torch.equal(other.get_output_embeddings().weight, other.get_input_embeddings().weight)
    compare(model.network, other, "right")
    assert model.load_report is not None and matrix in model.load_report.untied and matrix not in model.load_report.tied
    assert f"untied ({', '.join(model.load_report.untied)})" in str(model.load_report)
    compare(model.network, reloaded(model.save(tmp_path / "ours", layout="huggingface")), "right")
    compare(atento.load(model.save(tmp_path / "plain")).network, other, "right")


def named(name: str) -> dict[str, str]:
    """How the file of a family calls the matrix; every family has its turn in the test above."""
    return {"matrix": OUTPUTS.get(name, (name,))[0]}


@pytest.mark.covering(of=named)
@pytest.mark.parametrize("name", [*OUTPUTS, "t5 gated"])
def test_w4_a_matrix_that_is_repeated_is_tied(name: str, tmp_path: Path) -> None:
    """Older files hold every name; one that repeats the embedding is tied, as many numbers are learned as there."""
    other = theirs(name)
    if name == "t5 gated":  # its configuration says that they are not tied; their values say that they are
        with torch.no_grad():
            other.lm_head.weight.copy_(other.shared.weight)
    folder = saved(other, tmp_path / "older")
    (folder / "model.safetensors").unlink()
    torch.save(other.state_dict(), folder / "pytorch_model.bin")
    unpickle(folder, folder)
    model = atento.load(folder)
    compare(model.network, other, "right")
    matrix = OUTPUTS.get(name, ("lm_head.weight", ""))[0]
    assert " tied (" in str(model.load_report) and model.network.config.output.tied
    places = {parameter.data_ptr() for parameter in other.parameters()}
    if name != "t5 gated":
        assert matrix in other.state_dict() and other.state_dict()[matrix].data_ptr() in places
        computed = "positions" if name.partition(",")[0] in ("marian", "pegasus") else "no parameter"
        learned = [one.numel() for key, one in other.named_parameters() if computed not in key]
        learned += [one.numel() for key, one in other.named_buffers() if key == "final_logits_bias"]
        assert parameter_count(model.network) == sum(learned)


@pytest.mark.parametrize("name", ["t5", "bart", "t5 encoder"])
def test_w4_a_reader_with_a_table_of_its_own(name: str, tmp_path: Path) -> None:
    """The table of the encoder beside another that the decoder and the output share."""
    folder = saved(theirs(name), tmp_path / "theirs")
    start = "model." if name == "bart" else ""
    reader, shared = f"{start}encoder.embed_tokens.weight", f"{start}shared.weight"
    rewritten(folder, lambda weights: weights.update({reader: moved(weights[shared])}))
    model, other = atento.load(folder), reloaded(folder)
    compare(model.network, other, "right")
    assert model.load_report is not None and model.load_report.untied == [reader]
    compare(model.network, reloaded(model.save(tmp_path / "ours", layout="huggingface")), "right")


@pytest.mark.covering(of=named)
@pytest.mark.parametrize("name", OUTPUTS)
def test_w4_a_file_may_keep_either_of_the_two(name: str, tmp_path: Path) -> None:
    """The matrix under the output's name alone stands for the embedding too."""
    matrix, table = OUTPUTS[name]
    other = theirs(name)
    folder = saved(other, tmp_path / "theirs")
    rewritten(folder, lambda weights: weights.update({matrix: weights.pop(table)}))
    model = atento.load(folder)
    compare(model.network, other, "right")
    compare(model.network, reloaded(folder), "right")


@pytest.mark.parametrize("name", ["bert masked", "roberta masked"])
def test_w4_the_second_bias_of_a_head_is_the_one_that_is_read(name: str, tmp_path: Path) -> None:
    folder = saved(theirs(name), tmp_path / "theirs")
    start = "cls.predictions" if name == "bert masked" else "lm_head"
    rewritten(folder, lambda weights: weights.update({f"{start}.decoder.bias": moved(weights[f"{start}.bias"])}))
    model = atento.load(folder)
    compare(model.network, reloaded(folder), "right")
    assert model.load_report is not None and model.load_report.replaced == [f"{start}.bias"]


def test_w4_a_configuration_that_says_untied_needs_the_matrix(tmp_path: Path) -> None:
    """`tie_word_embeddings: false` without the matrix is a gap, not a tie; a head of its own is read as it stands."""
    config = transformers.GPT2Config(**{**CASES["gpt2"][1].to_dict(), "tie_word_embeddings": False})
    torch.manual_seed(2)
    other = transformers.GPT2LMHeadModel(config).eval()
    folder = saved(other, tmp_path / "theirs")
    compare(atento.load(folder).network, other, "left")
    rewritten(folder, lambda weights: weights.pop("lm_head.weight"))
    fails(ModelError, r"missing weights of a GPT2LMHeadModel \(1\): lm_head\.weight", atento.load, folder)


@pytest.mark.parametrize("name", ["roberta masked", "xlm-roberta masked", "bert masked"])
def test_w5_robertas_head_is_gelu(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make, config = CASES[name]
    torch.manual_seed(1)
    other = make(type(config)(**{**config.to_dict(), "hidden_act": "relu"})).eval()
    model = atento.load(saved(other, tmp_path / "theirs"))
    compare(model.network, other, "right")
    compare(model.network, reloaded(model.save(tmp_path / "ours", layout="huggingface")), "right")
    compare(atento.load(model.save(tmp_path / "plain")).network, other, "right")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
