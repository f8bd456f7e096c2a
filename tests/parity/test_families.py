"""Every released family in and out: the outputs of `transformers` on the same weights, within 2e-5 of the largest."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import atento
from atento.base.errors import ModelError
from atento.data.batches.batch import MemoryStore, Ragged
from atento.data.objectives.labels import inputs_of
from atento.networks import Decoder, Encoder, EncoderDecoder, Output, build_network, parameter_count, presets
from atento.released import FAMILIES
from failing import fails
from folders import edited
from released import CASES, Inputs, saved, theirs

SIDES = ("right", "left")


def close(got: Tensor, wanted: Tensor, within: float = 2e-5) -> None:
    assert got.shape == wanted.shape
    assert float((got - wanted).abs().max()) <= within * max(1.0, float(wanted.abs().max()))


def ours_of(network: Any, inputs: Inputs) -> Output:
    """Our network on the inputs."""
    with torch.no_grad():
        if isinstance(network, EncoderDecoder):
            start = torch.full((3, 1), network.config.start_id)
            return network(inputs.ids, torch.cat([start, inputs.written], dim=1), source_token_mask=inputs.real)
        if isinstance(network, Encoder) and network.config.embedding.segments > 1:
            return network(inputs.ids, token_mask=inputs.real, segment_ids=inputs.segments)
        out: Output = network(inputs.ids, token_mask=inputs.real)
        return out


def theirs_of(network: Any, inputs: Inputs) -> Any:
    """Theirs on the same."""
    given: dict[str, Any] = {"input_ids": inputs.ids, "attention_mask": inputs.real.long()}
    given["output_hidden_states"] = True
    config = network.config
    if getattr(config, "is_encoder_decoder", False) and hasattr(network, "get_decoder") and hasattr(network, "lm_head"):
        start = torch.full((3, 1), config.decoder_start_token_id)
        given["decoder_input_ids"] = torch.cat([start, inputs.written], dim=1)
    elif getattr(config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = inputs.segments
    with torch.no_grad():
        return network(**given)


def compare(network: Any, other: Any, side: str, within: float = 2e-5) -> None:
    """Hidden vectors of real tokens, and whatever logits there are."""
    inputs = Inputs.padded(side, network.config.pad_id)
    out, wanted = ours_of(network, inputs), theirs_of(other, inputs)
    if isinstance(network, EncoderDecoder):
        close(out.encoded[inputs.real], wanted.encoder_last_hidden_state[inputs.real], within)
        close(out.hidden, wanted.decoder_hidden_states[-1], within)
        close(out.logits, wanted.logits, within)
        return
    close(out.hidden[inputs.real], wanted.hidden_states[-1][inputs.real], within)
    if isinstance(network, Decoder):
        for head in network.config.heads:
            got = network.read(head.name, out, inputs.real)
            both = (wanted.start_logits, wanted.end_logits) if head.kind == "answer" else ()
            real = inputs.real if head.kind in ("tagging", "answer") else slice(None)
            close(got[real], (torch.stack(both, dim=-1) if both else wanted.logits)[real], within)
        if not network.config.heads and hasattr(wanted, "logits"):
            close(out.logits[inputs.real], wanted.logits[inputs.real], within)
        return
    # of a row padded on the left they pool the padding
    pooled = slice(None) if side == "right" else slice(0, 1)
    if out.pooled is not None and getattr(wanted, "pooler_output", None) is not None:
        close(out.pooled[pooled], wanted.pooler_output[pooled], within)
    kinds = list(network.heads)
    if kinds == ["vocabulary", "next-sentence"]:
        close(out.logits[inputs.real], wanted.prediction_logits[inputs.real], within)
        order = wanted.sop_logits if "sop_logits" in wanted else wanted.seq_relationship_logits
        close(network.read("next-sentence", out, inputs.real)[pooled], order[pooled], within)
    elif kinds == ["answer"]:
        close(out.logits[..., 0][inputs.real], wanted.start_logits[inputs.real], within)
        close(out.logits[..., 1][inputs.real], wanted.end_logits[inputs.real], within)
    elif kinds == ["replaced-token"]:
        close(out.logits.squeeze(-1)[inputs.real], wanted.logits[inputs.real], within)
    elif kinds and out.logits.dim() == 3:
        close(out.logits[inputs.real], wanted.logits[inputs.real], within)
    elif kinds:
        close(out.logits[pooled], wanted.logits[pooled], within)


@pytest.mark.parametrize("name", CASES)
def test_c6_c8_c9_c16_loaded_equals_transformers(name: str, tmp_path: Path) -> None:
    """A folder that `transformers` wrote loads, nothing new, nothing unused, and gives its outputs."""
    other = theirs(name)
    model = atento.load(saved(other, tmp_path / "theirs"))
    assert (report := model.load_report) is not None and report.new == report.unused == report.unread == []
    for side in SIDES:
        compare(model.network, other, side)


HEADS = ("masked", "classification", "regression", "tagging", "answer", "pretraining")


def told(name: str) -> dict[str, str]:
    """The family and the head of a case; what is neither, such as a kind of positions, is a head of its own."""
    family, _, rest = name.partition(" ")
    return {"family": CASES[name][1].model_type, "head": rest if rest in HEADS else name if rest else family}


@pytest.mark.covering(of=told)
@pytest.mark.parametrize("name", CASES)
def test_c16_saved_is_read_by_transformers(name: str, tmp_path: Path) -> None:
    """Out and in again: `from_pretrained` of the class that config.json names gives our outputs; nothing is missing."""
    model = atento.load(saved(theirs(name), tmp_path / "theirs"))
    folder = model.save(tmp_path / "ours", layout="huggingface")
    config = hf.AutoConfig.from_pretrained(folder)
    again, notes = getattr(hf, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
    computed = "embed_positions" if name == "pegasus" else "pooler" if "without" in name else None
    missing = {key for key in notes["missing_keys"] if computed is None or computed not in key}
    # BertModel makes a pooler where there was none, Pegasus its sinusoids
    assert not missing and not notes["mismatched_keys"] and not notes["unexpected_keys"]
    for side in SIDES:
        compare(model.network, again.eval(), side)
    twice = atento.load(folder)
    for key, value in model.network.state_dict().items():
        assert torch.equal(twice.network.state_dict()[key], value)
    assert twice.network.config == model.network.config


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart", "marian"])
def test_c16_bfloat16_is_within_its_rounding(name: str, tmp_path: Path) -> None:
    """In bfloat16 ours is no further from the float32 truth than twice theirs."""
    other = theirs(name)
    model = atento.load(saved(other, tmp_path / "theirs"), precision="bfloat16")
    inputs = Inputs.padded("right", model.network.config.pad_id)
    truth = theirs_of(other, inputs)
    rough = theirs_of(other.to(torch.bfloat16), inputs)
    out = ours_of(model.network, inputs)
    last = "decoder_hidden_states" if isinstance(model.network, EncoderDecoder) else "hidden_states"
    real = inputs.real if last == "hidden_states" else slice(None)
    wanted = getattr(truth, last)[-1][real]
    allowed = 2 * float((getattr(rough, last)[-1][real].float() - wanted).abs().max())
    assert float((out.hidden[real].float() - wanted).abs().max()) <= allowed


COUNTS = {"bert_base": 109_482_240, "bert_base_pretraining": 110_106_428, "bert_large": 335_141_888}
COUNTS |= {"roberta_base": 124_645_632, "roberta_large": 355_359_744}
COUNTS |= {"xlm_roberta_base": 278_043_648, "xlm_roberta_large": 559_890_432}
COUNTS |= {"distilbert_base": 66_362_880, "electra_small": 13_483_008, "electra_base": 108_891_648}
COUNTS |= {"electra_large": 334_092_288}
COUNTS |= {"mpnet_base": 109_486_464, "albert_base": 11_683_584, "albert_large": 17_683_968}
COUNTS |= {"deberta_v3_base": 183_831_552, "deberta_v3_large": 434_012_160, "deberta_v2_xlarge": 884_593_152}
COUNTS |= {"modernbert_base": 149_014_272, "modernbert_large": 394_781_696, "gemma_2b": 2_506_172_416}
COUNTS |= {"nllb_200_600m": 615_073_792, "spanbert_base": 108_310_272}
COUNTS |= {"gpt1": 116_534_784, "gpt2": 124_439_808, "gpt2_medium": 354_823_168}
COUNTS |= {"t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096}
COUNTS |= {"t5_11_small": 76_961_152, "t5_11_base": 247_577_856, "mt5_small": 300_176_768}
COUNTS |= {"llama2_7b": 6_738_415_616, "llama3_8b": 8_030_261_248, "llama3_70b": 70_553_706_496}


@pytest.mark.parametrize("name", COUNTS)
def test_c16_presets_have_the_published_parameter_counts(name: str) -> None:
    """Section 3 of the specification, errors 7 to 9; built on the meta device, no memory spent."""
    with torch.device("meta"):
        network = build_network(getattr(presets, name)())
    assert parameter_count(network) == COUNTS[name]


@pytest.mark.parametrize(
    "name",
    [
        *("bert_base", "roberta_base", "distilbert_base", "electra_small", "mpnet_base", "albert_large"),
        *("deberta_v3_base", "deberta_v2_xlarge", "modernbert_base", "gemma_2b", "mbart_large_50", "pegasus_large"),
        *("nllb_200_600m", "gpt1", "gpt2", "t5_small", "bart_base", "marian", "llama3_8b"),
    ],
)
def test_c16_presets_are_the_sizes_of_transformers(name: str) -> None:
    """Their class, built of the configuration that we write for the preset, has as many parameters (error 7)."""
    config = getattr(presets, name)()
    data = FAMILIES[config.family].write(config)
    made = hf.AutoConfig.for_model(**data)
    with torch.device("meta"):
        ours = build_network(config)
        other = getattr(hf, data["architectures"][0])(made)
    computed = "embed_positions" if name in ("marian", "pegasus_large") else "no name"
    learned = {id(p): p.numel() for n, p in other.named_parameters() if computed not in n}
    bias = config.vocab_size if config.output.bias else 0  # a buffer there
    assert parameter_count(ours) == sum(learned.values()) + bias


@pytest.mark.parametrize("name", [name for name in CASES if name == CASES[name][1].model_type or name == "gpt1"])
def test_an_id_beyond_the_vocabulary_is_a_warning(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in small test models, which have the ids of the large one's vocabulary; the outputs are the same."""
    other = theirs(name)
    folder = saved(other, tmp_path / "theirs")
    for file in folder.glob("*config.json"):
        edited(file, bos_token_id=50256, eos_token_id=50256)
    model = atento.load(folder)
    assert "`bos_token_id` is 50256, outside the vocabulary of 37" in caplog.text
    if not isinstance(model.network, EncoderDecoder):
        compare(model.network, other, "right")


def test_roberta_without_an_id_of_padding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`pad_token_id` -1 is a warning on both sides, positions begin at 0; one beyond the table loads on neither."""
    config = hf.RobertaConfig(**CASES["roberta"][1].to_dict() | {"pad_token_id": -1})
    torch.manual_seed(0)
    folder = saved(hf.RobertaModel(config, add_pooling_layer=False).eval(), tmp_path / "theirs")
    other, ids = hf.RobertaModel.from_pretrained(folder, add_pooling_layer=False).eval(), torch.tensor([[5, 6, 7, 4]])
    model = atento.load(folder)
    assert "`pad_token_id` is -1, outside the vocabulary of 37: no token has that id; 1 replaces it" in caplog.text
    for network in (model.network, atento.load(model.save(tmp_path / "back", layout="huggingface")).network):
        torch.testing.assert_close(network(ids=ids).hidden, other(ids).last_hidden_state, atol=1e-5, rtol=1e-4)
    beyond = hf.RobertaConfig(**config.to_dict() | {"pad_token_id": 37})
    fails(AssertionError, "Padding_idx must be within num_embeddings", hf.RobertaModel, beyond)
    edited(folder / "config.json", pad_token_id=37)
    fails(ModelError, "behind `pad_token_id`, which must be below `vocab_size`", atento.load, folder)


# case -> what its configuration has besides
REREADING: dict[str, dict[str, Any]] = {"bart": {}, "mbart": {}, "t5 gated": {"eos_token_id": 2}}
REREADING |= {"mt5": {"eos_token_id": 2}, "t5": {"eos_token_id": 2, "classifier_dropout": 0.1}}


@pytest.mark.parametrize("ending", ["SequenceClassification", "QuestionAnswering"])
@pytest.mark.parametrize("name", REREADING)
def test_c16_a_head_on_the_decoder_that_reads_a_text_again(name: str, ending: str, tmp_path: Path, caplog: Any) -> None:
    """BART and T5 classify by the vector of the last EOS in the decoder, and answer by each vector; in and out."""
    made, config = CASES[name]
    classes = made.__name__.removesuffix("ForConditionalGeneration")  # type: ignore[attr-defined]
    count = 3 if ending == "SequenceClassification" else 2
    config = type(config)(**config.to_dict() | REREADING[name] | {"num_labels": count})
    cls = getattr(hf, f"{classes}For{ending}")
    torch.manual_seed(0)
    other = cls(config).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_(std=0.3)
    inputs = Inputs.padded("right", config.pad_token_id)
    ids, real = inputs.ids.clone(), inputs.real
    ids[torch.arange(3), real.sum(dim=1) - 1] = 2  # each text ends with EOS

    def theirs_say(network: Any) -> Tensor:
        with torch.no_grad():
            out = network(input_ids=ids, attention_mask=real.long())
        both = () if ending == "SequenceClassification" else (out.start_logits, out.end_logits)
        return torch.stack(both, dim=-1)[real] if both else out.logits

    ids_of = [row[part].tolist() for row, part in zip(ids, real)]
    store = MemoryStore({"ids": Ragged(ids_of), "segments": Ragged([[]] * 3)})

    def ours_say(model: atento.Model) -> Tensor:
        network: Any = model.network
        (head,) = network.config.heads
        with torch.no_grad():
            given = inputs_of(store, [0, 1, 2], network.config, head)
            found: Tensor = network.read(head.name, network(**given, project=False), given["source_token_mask"])
            return found[real] if found.dim() == 3 else found

    expected = theirs_say(other)
    model = atento.load(saved(other, tmp_path / "theirs"))
    assert (report := model.load_report) is not None and report.new == report.unused == report.unread == []
    assert ("the code of a language" in caplog.text) == (name == "mbart")
    close(ours_say(model), expected)
    folder = model.save(tmp_path / "ours", layout="huggingface")
    again, notes = cls.from_pretrained(folder, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"] and not notes["mismatched_keys"]
    close(ours_say(atento.load(folder)), expected)
    close(theirs_say(again.eval()), expected)


def test_deberta_learns_as_transformers_does(tmp_path: Path) -> None:
    """The same losses in every step: gradients reach the vectors of positions through shared projections."""
    config = CASES["deberta-v2, convolution"][1].to_dict() | {"num_labels": 3}
    torch.manual_seed(0)
    other = hf.DebertaV2ForSequenceClassification(hf.DebertaV2Config(**config))
    network: Any = atento.load(saved(other, tmp_path / "theirs")).network.requires_grad_(True).train()
    inputs, labels = Inputs.padded("right", 0), torch.tensor([2, 0, 1])
    losses: list[list[float]] = []
    for one, given in ((network, {"token_mask": inputs.real}), (other.train(), {"attention_mask": inputs.real.long()})):
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-2)
        losses.append([])
        for _ in range(5):
            loss = torch.nn.functional.cross_entropy(one(inputs.ids, **given).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][-1] < losses[0][0] - 0.1
