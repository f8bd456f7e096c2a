"""Transplants (M14): what was carried over computes as before, what is new is named, and what cannot be is refused."""

import pytest
import torch
from torch import Tensor

from atento.attention.masks import bidirectional, causal, prefix
from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.decoding import Greedy, generate
from atento.models.transplant import extended, to_decoder, to_encoder, to_encoder_decoder, trimmed, with_positions
from atento.networks import Decoder, Encoder, EncoderDecoder, build_network, presets
from failing import fails

SIZES = {"vocab_size": 23, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
REAL = IDS != 0


def tiny(config: NetworkConfig, seed: int = 0) -> Encoder | Decoder | EncoderDecoder:
    """A network of that kind, small, every weight random, float64."""
    torch.manual_seed(seed)
    ids = {"pad": 0, "bos": 0, "unk": 0, "eos": 3, "start": 2, "mask": None}
    network = build_network(changed(config, SIZES, ids=ids, dropout=0.0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    return network.double().eval()


def bert(**changes: object) -> Encoder:
    network = tiny(presets.bert_base(max_len=12, **changes))
    assert isinstance(network, Encoder)
    return network


def hidden(network: Encoder | Decoder, **options: object) -> Tensor:
    with torch.no_grad():
        return network(IDS, token_mask=REAL, **options).hidden[REAL]


def test_m14_w4_an_encoder_as_a_language_model_reads_as_before_and_writes_one_way_by_its_matrix() -> None:
    """Bidirectional hidden vectors are the encoder's; causal ones are the encoder's under a causal mask; it writes."""
    encoder = bert(heads=(HeadConfig("masked-language-model"),))
    decoder, load_report = to_decoder(encoder)
    torch.testing.assert_close(hidden(decoder, mask=bidirectional()), hidden(encoder), rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden(decoder), hidden(encoder, mask=causal()), rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden(decoder, mask=prefix(3)), hidden(encoder, mask=prefix(3)), rtol=0, atol=1e-12)
    assert torch.equal(decoder.vocabulary_head.bias, encoder.vocabulary_head.bias) and not load_report.new
    parts = ("heads.vocabulary.transform.dense", "heads.vocabulary.transform.norm", "pooler.dense")
    assert sorted(load_report.unused) == [f"{part}.{name}" for part in parts for name in ("bias", "weight")]
    found = generate(decoder, IDS, Greedy(), max_new_tokens=4, token_mask=REAL, eos_id=())
    assert [len(row[0].ids) for row in found] == [4, 4]
    # An encoder whose head has a matrix beside the embedding: the language model writes with that matrix
    encoder = bert(heads=(HeadConfig("masked-language-model"),), output={"tied": False})
    decoder, load_report = to_decoder(encoder)
    head = encoder.vocabulary_head.output
    assert torch.equal(decoder.vocabulary_head.output.weight, head.weight) and not load_report.new
    assert not torch.equal(head.weight, encoder.embedding.weight)
    plain, load_report = to_decoder(bert(output={"tied": False}))
    assert plain.config.output.tied and not load_report.new
    reader, _ = to_decoder(bert())
    fails(CapabilityError, "looks ahead", reader, IDS, mask=bidirectional(), state=reader.begin())
    with pytest.raises(CapabilityError, match=r"`feed_forward\.activation`: got 'gelu' and 'gelu-tanh'"):
        to_encoder_decoder(bert(), tiny(presets.gpt2(max_len=12)))


def test_m14_two_checkpoints_become_an_encoder_decoder_and_a_vocabulary_trimmed_is_the_old_network() -> None:
    """Both halves carry every weight; the reading half computes as before; cross-attention alone is new."""
    reader, writer = bert(), bert()
    with torch.no_grad():
        for parameter in writer.parameters():
            parameter.add_(0.1)
    both, load_report = to_encoder_decoder(reader, writer)
    assert load_report.new and all(".cross_" in name for name in load_report.new)
    with torch.no_grad():
        read = both.encode(IDS, source_token_mask=REAL)[REAL]
    torch.testing.assert_close(read, hidden(reader), rtol=0, atol=1e-12)
    own = both.state_dict()
    for name, value in writer.state_dict().items():
        if name.startswith("stack."):
            assert torch.equal(own[name.replace("stack.", "decoder.")], value)
    assert torch.equal(both.target_embedding.weight, writer.embedding.weight)
    alone, _ = to_encoder_decoder(reader, reader)
    assert alone.target_embedding is None
    assert all(len(row[0].ids) <= 3 for row in generate(both, IDS, Greedy(), max_new_tokens=3, token_mask=REAL))
    # New tokens change no old logit; kept tokens keep theirs under their new ids
    for tied in (True, False):
        network = tiny(presets.gpt2(max_len=12, output={"tied": tied, "bias": True}))
        longer, load_report = extended(network, 30)
        assert not load_report.new and not load_report.unused and longer.config.vocab_size == 30
        with torch.no_grad():
            before = network(IDS).logits
            torch.testing.assert_close(longer(IDS).logits[..., :23], before, rtol=0, atol=1e-12)
            torch.testing.assert_close(
                longer.embedding.weight[25], network.embedding.weight.mean(0), rtol=0, atol=1e-12
            )
            kept = [3, 0, 2, 13, 12, 11, 10, 9, 8, 7, 6, 5]
            shorter, _ = trimmed(network, kept)
            place = torch.tensor([kept.index(i) if i in kept else -1 for i in range(23)])
            torch.testing.assert_close(shorter(place[IDS]).logits, before[..., kept], rtol=0, atol=1e-12)
        assert (shorter.config.eos_id, shorter.config.pad_id, shorter.config.start_id) == (0, 1, 2)
    network = tiny(presets.gpt2(max_len=12))
    fails(ValueError, "at least the present 23: got 5", extended, network, 5)
    fails(ValueError, r"must hold `ids\.eos`: 3", trimmed, network, [0, 2, 5])
    fails(ValueError, "different ids below 23", trimmed, network, [0, 2, 3, 3])


def test_m14_the_reading_half_of_t5_classifies_and_positions_become_relative() -> None:
    """T5's encoder computes as before; the head is new and reads the mean of real tokens."""
    whole = tiny(presets.t5_small(attention={"d_head": 4}))
    assert isinstance(whole, EncoderDecoder)
    encoder, load_report = to_encoder(whole, [HeadConfig("classification", labels=("no", "yes"), pooling="mean")])
    with torch.no_grad():
        torch.testing.assert_close(hidden(encoder), whole.encode(IDS, source_token_mask=REAL)[REAL], rtol=0, atol=1e-12)
        out = encoder(IDS, token_mask=REAL)
        mean = torch.stack([out.hidden[0].mean(0), out.hidden[1, :3].mean(0)])
        torch.testing.assert_close(out.logits, encoder.heads["classification"](mean), rtol=0, atol=1e-12)
    assert sorted(load_report.new) == ["heads.classification.out.bias", "heads.classification.out.weight"]
    assert all(name.startswith("decoder.") for name in load_report.unused)
    encoder = bert()
    changed, load_report = with_positions(encoder, (PositionConfig("t5"), PositionConfig("rotary")))
    assert load_report.new == ["stack.positions.schemes.0.weight"]
    assert load_report.unused == ["inputs.positions.schemes.0.weight"]
    bare, _ = with_positions(encoder, PositionConfig("none"))
    encoder.load_state_dict(encoder.state_dict() | {"inputs.positions.schemes.0.weight": torch.zeros(12, 8).double()})
    torch.testing.assert_close(hidden(bare), hidden(encoder), rtol=0, atol=1e-12)
    assert isinstance(changed, Encoder) and hidden(changed).shape == (9, 8)
