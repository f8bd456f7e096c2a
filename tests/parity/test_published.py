"""Folders as published (K2), Portuguese ones too, tied or not as their tensors say (W4, W5); real weights (C16, G8)."""

import logging
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

import atento
from atento.base.errors import ModelError, TokenizerError
from atento.model import Model
from atento.networks import parameter_count
from atento.released import FAMILIES
from atento_cli.convert.source_model import model_to_convert
from atento_cli.convert.unpickle import unpickle
from atento_world import write
from failing import fails
from folders import edited, ids_of
from portuguese_folders import PORTUGUESE, write_portuguese
from published import FORMS, NAMES, published
from released import CASES, saved, theirs
from released_folders import MINILM, RELEASED, write_released
from test_families import compare


def test_every_family_has_a_published_form_and_a_case() -> None:
    assert NAMES.keys() == FAMILIES.keys() == {config.model_type for _, config in CASES.values()}


@pytest.mark.parametrize("number, name", list(enumerate(CASES)), ids=lambda value: str(value))
def test_k2_every_case_as_published_gives_their_outputs(number: int, name: str, tmp_path: Path) -> None:
    """All names of all classes, each in one of the forms in turn; few are pickled, which takes a process each."""
    form = "pickled" if name in ("bert", "gpt2", "marian") else list(FORMS)[number % (len(FORMS) - 1)]
    other, folder = theirs(name), tmp_path / "theirs"
    for module in other.modules() if form.startswith("fp16") else ():  # both have the numbers that the file can hold
        for key, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if "Sinusoidal" not in type(module).__name__ and not key.endswith("inv_freq"):  # computed, not stored
                tensor.data.copy_(tensor.half())
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
    other = getattr(hf, data["architectures"][0]).from_pretrained(folder).eval()
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
    model, peer = atento.load(folder), hf.AutoTokenizer.from_pretrained(folder)
    assert caplog.text.count("the model has no row for <pad>, which it never reads") == 1
    assert model.tokenizer is not None and model.tokenizer.vocab_size == len(peer) == size + 1
    assert ids_of(model, "o gato") == peer("o gato").input_ids
    assert max(model.tokenizer.encode("o <pad> gato")) < size == model.network.config.vocab_size
    compare(model.network, hf.LlamaForCausalLM.from_pretrained(folder).eval(), "right")
    edited(folder / "added_tokens.json", covid19=size + 1)
    fails(TokenizerError, f"has {size + 2} pieces and the model {size}: give it rows for all", atento.load, folder)


TEXTS = ["A avó não pôs açúcar à mão, João.", "Ação: R$ 3,50 — “lê-lo-ia” às 14h30?", "  dois  espaços "]
TEXTS += [unicodedata.normalize("NFD", "Ninguém viu a maçã."), "emoji 😀 e 中文", "MAIÚSCULAS ÇÃÕ", "linha\nnova\taba"]


@pytest.mark.parametrize("name", PORTUGUESE)
@torch.no_grad()
def test_tokens_and_vectors_of_portuguese_models(name: str, tmp_path: Path) -> None:
    folder = write_portuguese(name, tmp_path / name)
    if not (folder / "model.safetensors").exists():  # BERTimbau's
        hf.BertForMaskedLM.from_pretrained(folder, use_safetensors=False).save_pretrained(folder)
    model = atento.load(folder)
    if (folder / "tokenizer.json").exists():  # the file decides, which a class of transformers may build anew
        peer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        rows = [peer.encode(text).ids for text in TEXTS]
    else:
        rows = hf.AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    assert [ids_of(model, text) for text in TEXTS] == rows
    network = hf.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    reader = network.encoder if isinstance(network, hf.T5Model) else network
    for text, ids in zip(TEXTS, rows, strict=True):
        vector = reader(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)
        if name.startswith("intfloat/"):
            vector = torch.nn.functional.normalize(vector, dim=-1)
        torch.testing.assert_close(torch.from_numpy(model.embed([text])), vector, atol=5e-6, rtol=2e-5)


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
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def reloaded(folder: Path) -> Any:
    """What `transformers` makes of a folder, by the class that its configuration names; nothing may be missing."""
    config = hf.AutoConfig.from_pretrained(folder)
    network, notes = getattr(hf, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
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
    config = hf.GPT2Config(**{**CASES["gpt2"][1].to_dict(), "tie_word_embeddings": False})
    torch.manual_seed(2)
    other = hf.GPT2LMHeadModel(config).eval()
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


_PAIRS = write("train", 20, seed=7)
MANY = [*(text for pair in _PAIRS for text in (pair.source, pair.target)), "", "ação", "naïve café ☕"]
MANY += [" ".join(3 * [pair.source for pair in _PAIRS])]  # longer than the model reads


@pytest.fixture(scope="module")
def minilm() -> Model:
    return atento.load(MINILM, device="cpu")


@pytest.fixture(scope="module")
def exported(minilm: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minilm.save(tmp_path_factory.mktemp("exported") / "out", layout="huggingface")


def test_g8_sentence_embeddings_equal_sentence_transformers(minilm: Model) -> None:
    """Pooling, normalisation and the cut at its 256 tokens are read from the folder."""
    wanted = SentenceTransformer(str(MINILM), device="cpu").encode(MANY, convert_to_numpy=True)
    with pytest.warns(UserWarning, match="1 of 44 texts cut to 256 tokens"):
        found = minilm.embed(MANY)
    assert found.dtype == np.float32 and found.shape == (44, 384)
    assert float(np.abs(found - wanted).max()) <= 1e-5


def test_c16_every_tensor_is_used(minilm: Model) -> None:
    assert minilm.load_report is not None and not minilm.load_report.new and not minilm.load_report.unused
    assert minilm.config["task"] == "embedding" and minilm.network.config.pooler


def test_w3_the_exported_folder_is_a_sentence_transformers_folder(minilm: Model, exported: Path) -> None:
    """Pooling, length 1 and the cut at 256 tokens, read by `SentenceTransformer`; its card and licence go along."""
    few = MANY[-12:]
    found = SentenceTransformer(str(exported), device="cpu").encode(few, convert_to_numpy=True)
    with pytest.warns(UserWarning, match="1 of 12 texts cut to 256 tokens"):
        wanted = minilm.embed(few)
    assert float(np.abs(found - wanted).max()) <= 1e-5
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card.partition("\n---\n")[0] and "SentenceTransformer('.')" in card


@pytest.mark.parametrize("layout", ["atento", "huggingface"])
def test_g8_how_it_pools_survives_saving(minilm: Model, layout: str, exported: Path, tmp_path: Path) -> None:
    """Normalisation and the cut at 256 tokens too, and the ids that its tokenizer names."""
    folder = exported if layout == "huggingface" else minilm.save(tmp_path / "out", layout=layout)
    again = atento.load(folder, device="cpu")
    assert again.config["embedding"] == minilm.config["embedding"]
    np.testing.assert_array_equal(again.embed("O gato dorme."), minilm.embed("O gato dorme."))
    assert again.network.config == minilm.network.config
    assert again.tokenizer is not None and again.network.config.mask_id == again.tokenizer.mask_id


@pytest.mark.parametrize("flag", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_flags_that_disagree_with_tokenizer_json_hold(flag: str, tmp_path: Path) -> None:
    """As in the class that the settings name; the load report says so, and a copy has one rule."""
    folder = shutil.copytree(MINILM, tmp_path / "changed")
    edited(folder / "tokenizer_config.json", **{flag: False})
    some = ["naïve café AÇÃO", "日本語 text 漢字", *MANY[:3]]
    wanted = SentenceTransformer(str(folder), device="cpu").encode(some, convert_to_numpy=True)
    changed = atento.load(folder, device="cpu")
    for one in (changed, atento.load(changed.save(tmp_path / "again"), device="cpu")):
        assert float(np.abs(one.embed(some) - wanted).max()) <= 1e-5
    assert float(np.abs(atento.load(MINILM, device="cpu").embed(some) - wanted).max()) > 0.01
    held = "tokenizer.json: normalizer (the class and the keys of tokenizer_config.json hold)"
    report = changed.load_report
    assert report is not None and report.overruled == [held] and held in str(report)
