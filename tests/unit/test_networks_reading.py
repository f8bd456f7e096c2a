"""The fast reading pass gives what the encoder gives: every family it takes, every precision, in any company."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from atento.attention.observe import observe
from atento.base.errors import CapabilityError
from atento.base.precision import best_precision
from atento.config.presets import preset
from atento.config.sections.initial import LoraConfig
from atento.config.sections.network import FeedForwardConfig, NetworkConfig, changed
from atento.config.sections.network_parts import AttentionConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.inference import encoder_reading, int8_linear
from atento.inference.choose import reader
from atento.inference.fast_reader import FastReader
from atento.inference.int8_linear import RowInt8Linear
from atento.inference.packed_linear import with_round_number
from atento.model import Model
from atento.networks import build_network
from atento.networks.adapters import adapt
from atento.networks.frozen import FeatureCache, frozen
from failing import fails
from tensors import distance
from tiny_families import of_words, tiny_network

V = 37
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": 32, "d_ff": 48, "n_heads": 4, "n_layers": 2, "max_len": 16}
PLAIN: dict[str, Any] = {**SIZES, "architecture": "encoder"}
NORMED = AttentionConfig(norm=True)
ENCODERS = {
    "bert": replace(preset("bert-base"), **SIZES),
    "roberta": replace(preset("roberta-base"), **SIZES),
    "mpnet": replace(preset("mpnet-base"), **SIZES),
    "albert": changed(preset("albert-base"), **SIZES, embedding={"width": 8}),
    "modernbert": changed(preset("modernbert-base", n_layers=2), **SIZES),
    "pre-norm, rotary, gated": NetworkConfig(
        **PLAIN, norm="pre", positions=PositionConfig("rotary"), feed_forward=FeedForwardConfig("silu", gated=True)
    ),
    "alibi, normed queries, relu": NetworkConfig(**PLAIN, positions=PositionConfig("alibi"), attention=NORMED),
    "shaw": NetworkConfig(**PLAIN, positions=PositionConfig("shaw")),
}
LENGTHS = (7, 12, 7, 1, 0, 12)


random_network: Any = partial(tiny_network, seed=1, scale=1.0, shift=0.2)  # layers change their input
WORDS = tuple(f"palavra{number}" for number in range(24))


def batch(config: NetworkConfig, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    """Rows of these lengths, padded on the right, with segments where the network has them."""
    generator = torch.Generator().manual_seed(2)
    shape = (len(lengths), max(lengths, default=4))
    inputs = {
        "ids": torch.randint(5, V, shape, generator=generator),
        "token_mask": torch.arange(shape[1]) < torch.tensor(lengths, dtype=torch.long).unsqueeze(1),
    }
    if config.embedding.segments > 1:
        inputs["segment_ids"] = torch.randint(0, 2, shape, generator=generator)
    return inputs


@pytest.mark.parametrize("call", [0, encoder_reading.CALL], ids=["rows of one length together", "rows joined"])
@pytest.mark.parametrize("name", ENCODERS)
def test_reader_equals_the_encoder(name: str, call: int) -> None:
    """Hidden vectors of every layer, pooled vectors and logits; zeros at padding."""
    network = random_network(ENCODERS[name])
    inputs = batch(network.config)
    real = inputs["token_mask"]
    fast, plain = reader(network), network(**inputs)
    assert isinstance(fast, FastReader) and fast.packed.call_cost == 0
    fast.packed.call_cost = call
    out = fast(**inputs)
    assert out.hidden.shape == plain.hidden.shape and not out.hidden[~real].any()
    torch.testing.assert_close(out.hidden[real], plain.hidden[real], atol=2e-5, rtol=1e-4)
    rows = real.any(dim=1)
    if plain.pooled is not None:
        torch.testing.assert_close(out.pooled[rows], plain.pooled[rows], atol=2e-5, rtol=1e-4)
    if plain.logits is not None:
        torch.testing.assert_close(out.logits[real], plain.logits[real], atol=1e-4, rtol=1e-4)
    for layer in range(network.config.n_layers):
        found, right = (one.features(inputs["ids"], token_mask=real, layer=layer)[real] for one in (fast, network))
        torch.testing.assert_close(found, right, atol=2e-5, rtol=1e-4)


def test_rows_join_if_padding_costs_less_than_a_call_and_products_have_few_numbers_of_rows() -> None:
    for lengths, width, groups in (
        ([12, 12, 7, 7, 1], 32, [[12, 12, 7, 7, 1]]),  # calls cost more than the padding of a narrow network
        ([12, 12, 7, 7, 1], 10**6, [[12, 12], [7, 7], [1]]),
        ([512, 500] + [30] * 4 + [29] * 4, 256, [[512], [500], [30] * 4, [29] * 4]),  # many tokens are not moved
        ([9] * 64, 768, [[9] * 64]),
        ([], 32, []),
    ):
        assert encoder_reading.groups_of(lengths, encoder_reading.CALL / width) == groups
    # Batches without a token
    for lengths in ((), (0, 0)):
        network = random_network(ENCODERS["bert"])
        inputs = batch(network.config, (*lengths,)) if any(lengths) else {"ids": torch.zeros(len(lengths), 4).long()}
        inputs.setdefault("token_mask", torch.zeros(len(lengths), 4, dtype=torch.bool))
        hidden = reader(network)(**inputs, project=False).hidden
        assert hidden.shape == (len(lengths), 4, 32) and not hidden.any()
    # oneDNN compiles a kernel for each: for 300 numbers of tokens 51, with a sixteenth of padding
    assert len({len(with_round_number(torch.ones(tokens, 1))) for tokens in range(1, 301)}) == 16 + 16 + 16 + 3
    for tokens in range(1, 2_000):
        rounded = with_round_number(torch.ones(tokens, 1))
        assert rounded[:tokens].eq(1).all() and rounded[tokens:].eq(0).all()
        assert len(rounded) - tokens <= max(3, tokens // 16)
    packed = FastReader(random_network(ENCODERS["bert"]))
    seen, product = set[int](), packed.packed.layers[0].input
    packed.packed.layers[0].input = lambda x: (seen.add(len(x)), product(x))[1]  # type: ignore[assignment,func-returns-value]
    for tokens in range(1, 17):
        assert packed(torch.randint(5, V, (1, tokens)), project=False).hidden.shape == (1, tokens, 32)
    assert seen == {4, 8, 12, 16}


def test_int8_reader_is_near_and_a_row_does_not_depend_on_the_others() -> None:
    """The distance of int8 from float32 is bounded: weights and activations of 8 bits have errors of about 1 %."""
    for name in ENCODERS:
        network = random_network(ENCODERS[name])
        inputs = batch(network.config)
        real = inputs["token_mask"]
        assert 1e-5 < distance(reader(network, "int8")(**inputs).hidden[real], network(**inputs).hidden[real]) < 0.06
    # Alone, in a batch and in another order a row has the same vectors, to rounding
    for precision in (None, "int8"):
        network = random_network(ENCODERS["bert"])
        fast, inputs = reader(network, precision), batch(network.config)
        together = fast(**inputs).hidden
        backwards = fast(**{name: value.flip(0) for name, value in inputs.items()}).hidden.flip(0)
        tolerance = 1e-5 if precision is None else 5e-3
        for row, length in enumerate(LENGTHS):
            if length:
                alone = fast(**{name: value[row : row + 1, :length] for name, value in inputs.items()}).hidden
                assert distance(alone[0], together[row, :length]) < tolerance
                assert distance(backwards[row, :length], together[row, :length]) < tolerance


@pytest.mark.skipif(best_precision("cpu") != "bfloat16", reason="slow without bfloat16 products")
def test_bfloat16_reader_is_as_near_as_the_encoder_in_bfloat16() -> None:
    network = random_network(ENCODERS["bert"])
    inputs = batch(network.config)
    real = inputs["token_mask"]
    expected = network(**inputs).hidden[real]
    half = network.bfloat16()
    fast = reader(half)
    assert isinstance(fast, FastReader) and fast(**inputs).hidden.dtype == torch.bfloat16
    ours, theirs = (distance(one(**inputs).hidden[real].float(), expected) for one in (fast, half))
    assert ours < max(0.03, 2 * theirs)


def test_rows_of_int8_products_by_hand_and_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is coded by its own range, and a row of equal values is exact to rounding."""
    torch.manual_seed(3)
    weight, bias = torch.randn(24, 40), torch.randn(24)
    x = torch.randn(5, 40) * torch.tensor([1e-3, 1.0, 1e3, 0.0, 7.0]).unsqueeze(1)
    x[3] = 2.0
    out, expected = RowInt8Linear(weight, bias)(x), x @ weight.t() + bias
    assert distance(out, expected) < 0.02
    assert distance(RowInt8Linear(weight, None, activation="gelu")(x), torch.nn.functional.gelu(x @ weight.t())) < 0.02
    assert distance(RowInt8Linear(weight, bias).plus(x, expected), 2 * expected) < 0.02
    assert torch.equal(RowInt8Linear(weight, bias)(x[1:2]), out[1:2])
    # Without VNNI sums of two products of 8 bits saturate at 16: weights have 7 bits, or activations where PyTorch's do
    monkeypatch.setattr(int8_linear, "cpu_features", lambda: {"vnni": False, "amx": False})
    torch.manual_seed(3)
    weight, x = torch.randn(24, 40), torch.rand(5, 40)
    rows = RowInt8Linear(weight, None)
    codes = rows.unpacked() / rows.scales.unsqueeze(1)
    assert float(codes.abs().max()) == pytest.approx(63) and distance(rows(x), x @ weight.t()) < 0.03
    assert int8_linear.Int8Linear(weight, None).narrow


def test_observed_frozen_left_padded_positioned_and_unsupported_reading_is_plain() -> None:
    network = random_network(ENCODERS["bert"])
    fast, inputs = reader(network, "int8"), batch(network.config)
    with observe(network) as observation:
        assert torch.equal(fast(**inputs).hidden, network(**inputs).hidden)
    assert observation["encoder", 0].shape[-1] == 12
    left = {name: value.flip(1) for name, value in inputs.items()}
    assert torch.equal(fast(**left).hidden, network(**left).hidden)
    positions = torch.arange(12).flip(0).expand(len(LENGTHS), -1)
    assert torch.equal(fast(**inputs, position_ids=positions).hidden, network(**inputs, position_ids=positions).hidden)
    with frozen(FeatureCache(None)) as _:
        assert distance(fast(**inputs).hidden[0, :7], network(**inputs).hidden[0, :7]) < 1e-6
    # Of equal ids in other segments each has its own vectors; padding has 0, and tokens at padding do not count
    ids = torch.tensor([[5, 6, 0], [5, 6, 0], [5, 6, 9]])
    real = torch.tensor([[True, True, False]] * 3)
    segments = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 1, 1]])
    hidden, vectors = torch.randn(3, 3, 4), FeatureCache(None)
    for _ in range(2):
        found = vectors.hidden(lambda: hidden, ids, real, segments)
        assert torch.equal(found[:, :2], hidden[[0, 1, 1], :2]) and not found[:, 2].any()
    assert vectors.computed == 2
    # Those networks read by their own forward pass, and int8 is refused by name
    recurrent = build_network(NetworkConfig(architecture="recurrent-lm", vocab_size=V, d_model=8, n_layers=1))
    sparse = build_network(NetworkConfig(**PLAIN, attention=AttentionConfig(sparse=SparseConfig(top_k=2))))
    adapted = build_network(ENCODERS["bert"])
    adapt(adapted, LoraConfig(rank=2, targets=("query",)))
    mixed = build_network(NetworkConfig(**PLAIN, layer_mix=True))
    disentangled = build_network(replace(preset("deberta-v3-base"), **SIZES))
    assert reader(mixed.eval()) is mixed and reader(disentangled.eval()) is disentangled
    writer = build_network(NetworkConfig(**SIZES))
    parts = {"RecurrentLM": recurrent, "EncoderDecoder": writer, "sparse attention": sparse, "adapters": adapted}
    for part, network in parts.items():
        assert reader(network.eval()) is network
        fails(CapabilityError, f"int8 reading is for encoders on the CPU, not for .*{part}", reader, network, "int8")


def model_of(precision: str = "float32", **changes: Any) -> Model:
    """A BERT of random weights over 24 words."""
    config, tokenizer = of_words(changed(ENCODERS["bert"], max_len=64, **changes), WORDS)
    return Model(random_network(config), tokenizer, {"task": "embedding"}, None, precision=precision)


def sentences(count: int = 16) -> list[str]:
    rng = np.random.default_rng(5)
    return [" ".join(WORDS[word] for word in rng.integers(0, 24, 2 + 5 * rng.integers(0, 3))) for _ in range(count)]


def test_models_read_fast_in_the_order_of_the_input_pack_changed_weights_fill_masks_and_classify_pairs() -> None:
    """`embed` by the reader equals `embed` by the network, text by text; int8 is near."""
    model, texts = model_of(), sentences()
    assert isinstance(model.reader(), FastReader) and model.reader() is model.reader()
    vectors = model.embed(texts, batch_tokens=128)
    for number in (0, 1, 15):
        np.testing.assert_allclose(model.embed(texts[number]), vectors[number], atol=1e-5)
    ids = [model.tokenizer.with_specials(model.tokenizer.encode(text))[0] for text in texts[:3]]  # type: ignore[union-attr]
    for row, vector in zip(ids, vectors):
        expected = model.network(torch.tensor([row]), project=False).hidden[0].mean(dim=0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    error = np.linalg.norm(model_of("int8").embed(texts) - vectors, axis=1) / np.linalg.norm(vectors, axis=1)
    assert 1e-5 < error.max() < 0.06
    # No stale result after a change of the weights in place, nor after `to`
    model = model_of()
    before = model.embed("palavra1 palavra2")
    with torch.no_grad():
        model.network.stack.blocks[0].feed_forward.inner.weight.mul_(2)  # type: ignore[union-attr,operator]
    after = model.embed("palavra1 palavra2")
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(Model(model.network, model.tokenizer, {}, None).embed("palavra1 palavra2"), after)
    assert model.to(precision="int8").reader() is not model.reader().network  # type: ignore[attr-defined]
    assert np.abs(model.embed("palavra1 palavra2") - after).max() < 0.1
    head = HeadConfig(name="vocabulary", kind="masked-language-model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, near = model_of(heads=(head,)), model_of("int8", heads=(head,))
    text = f"palavra1 {plain.tokenizer.specials.roles['mask']} palavra3"  # type: ignore[union-attr]
    expected, candidates = plain.fill(text, top=3), near.fill(text, top=3)
    assert candidates[0].probability == pytest.approx(expected[0].probability, rel=0.3)
    # Labels of pairs with segments are those of the plain pass, and probabilities near
    for precision in ("float32", "int8"):
        head = HeadConfig(name="classification", kind="classification", labels=("sim", "não", "talvez"))
        model = model_of(precision, heads=(head,), pooler=True)
        model.config["pairs"] = True
        pairs = list(zip(sentences(), reversed(sentences())))
        labels = model.classify(pairs)
        fast = model._made["reader"]
        model._made["reader"] = model.network
        expected = model.classify(pairs)
        assert isinstance(fast, FastReader)
        sure = [number for number, label in enumerate(expected) if label.probability > 0.4]
        assert len(sure) > 5 and [labels[number].name for number in sure] == [expected[number].name for number in sure]
        tolerance = 1e-5 if precision == "float32" else 0.05
        assert max(abs(a.probability - b.probability) for a, b in zip(labels, expected)) < tolerance
