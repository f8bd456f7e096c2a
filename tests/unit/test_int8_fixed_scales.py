"""Encoders in 8 bits with fixed scales: the equation, the products of the processor, the folder, verbs, bad input."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from click.testing import Result
from torch import Tensor, nn
from typer.testing import CliRunner

import atento
from atento.base.errors import AtentoWarning, CapabilityError, DataError, ModelError, UsageError
from atento.config.sections.network import changed
from atento.config.tables.head_kinds import HeadConfig
from atento.inference import choose
from atento.inference.choose import reader
from atento.inference.fast_reader import FastReader
from atento.inference.int8_linear import FixedInt8Linear
from atento.inference.packed_linear import has_int8_products
from atento.model import Model
from atento.models.initial_model import initial_model
from atento.networks.int8_projection import Int8Projection
from atento_cli.commands.convert import register
from atento_cli.convert.layouts import _Inputs, calibrate, convert, int8_map
from failing import fails
from tensors import distance
from tiny_families import of_words, tiny_config, tiny_network

ROWS = torch.randint(5, 40, (60, 12), generator=torch.Generator().manual_seed(7)).tolist()
WORDS = tuple(f"palavra{number}" for number in range(40))
KINDS = ("bert-base", "roberta-base", "mpnet-base", "albert-base", "modernbert-base", "electra-small")
needs_products = pytest.mark.skipif(not has_int8_products(), reason="no products of integers here")


network_of: Any = partial(tiny_network, seed=1, scale=1.0, shift=0.2)  # layers change their input


def model_of(name: str = "bert-base", **changes: Any) -> Model:
    config, tokenizer = of_words(changed(tiny_config(name), max_len=64, **changes), WORDS)
    return Model(network_of(config), tokenizer, {"name": "tiny", "task": "embedding"}, None)


def sentences(count: int, seed: int = 5) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(WORDS[word] for word in rng.integers(0, 40, rng.integers(1, 25))) for _ in range(count)]


def written(folder: Path, text: str = "\n".join(sentences(120, seed=6))) -> Path:
    file = folder / "texts.txt"
    file.write_text(text, encoding="utf-8")
    return file


def command(*arguments: object) -> Result:
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def in_int8(folder: Path, model: Model) -> Path:
    options = ("--to", "atento", "--precision", "int8", "--calibrate", written(folder))
    done = command(model.save(folder / "model"), "--out", folder / "int8", *options)
    assert done.exit_code == 0, done.output
    return folder / "int8"


def batch(lengths: tuple[int, ...] = (7, 12, 7, 1, 12)) -> dict[str, Tensor]:
    ids = torch.randint(5, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    return {"ids": ids, "token_mask": torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)}


def test_the_equation_by_hand() -> None:
    """One product with 2 inputs, codes and sums written out; an input beyond the range has the last code."""
    linear = Int8Projection(2, 1, bias=True, uniform=False)
    linear.codes.copy_(torch.tensor([[3, -2]]))
    linear.scales.fill_(0.5)
    linear.rates.copy_(torch.tensor([10.0, 100.0]))
    linear.zero.fill_(20)
    linear.bias.fill_(1.0)
    # codes of (1.26, 0.1) are 33 and 30, so (13·3 - 10·2)·0.5 + 1; of (-9, 9) 0 and 255
    torch.testing.assert_close(linear(torch.tensor([[1.26, 0.1]])), torch.tensor([[10.5]]))
    torch.testing.assert_close(linear(torch.tensor([[-9.0, 9.0]])), torch.tensor([[(-20 * 3 - 235 * 2) * 0.5 + 1]]))
    torch.testing.assert_close(linear.weight, torch.tensor([[15.0, -100.0]]))


@pytest.mark.parametrize("outlier", [1.0, 300.0])
def test_a_map_is_near_and_channels_are_made_alike_where_that_helps(outlier: float) -> None:
    """Without outliers all channels have one rate; with one channel of large numbers, each its own."""
    torch.manual_seed(3)
    linear, x = nn.Linear(64, 48), torch.randn(256, 64)
    x[:, 5] *= outlier
    linear.weight.data[:, 5] /= outlier
    inputs = _Inputs(x.amin(dim=0), x.amax(dim=0), [x])
    with torch.no_grad():
        near = int8_map(linear, inputs, uniform=False)
        assert near.uniform == (outlier == 1.0)
        assert distance(near(x), linear(x)) < 0.06
        assert int8_map(linear, inputs, uniform=True).uniform


@needs_products
@pytest.mark.parametrize("rates", ["one", "each"])
def test_products_of_the_processor_are_the_equation(rates: str) -> None:
    """Also onto a residual, and as codes for the next map after an activation."""
    torch.manual_seed(4)
    linear, x = nn.Linear(64, 48), torch.randn(50, 64)
    inputs = _Inputs(x.amin(dim=0), x.amax(dim=0), [x])
    with torch.no_grad():
        plain = int8_map(linear, inputs, uniform=rates == "one")
        if rates == "each":
            plain.rates = nn.Parameter(plain.rates * torch.linspace(0.5, 1, 64), requires_grad=False)
        expected, residual = plain(x), torch.randn(50, 48)
        inner = torch.nn.functional.gelu(expected)
        after = int8_map(nn.Linear(48, 8), _Inputs(inner.amin(dim=0), inner.amax(dim=0), [inner]), uniform=True)
        product = FixedInt8Linear(plain)
        assert distance(product(x), expected) < 1e-5
        assert distance(product.plus(x, residual), expected + residual) < 1e-5
        whole = FixedInt8Linear(after)(FixedInt8Linear(plain, activation="gelu", reader=after)(x))
        assert distance(whole, after(inner)) < 0.01
        assert torch.equal(plain(x), expected)  # `integers` are still those, unpacked


@needs_products
@pytest.mark.parametrize("name", KINDS)
def test_reading_is_the_equation_and_near_float32(name: str) -> None:
    network = network_of(changed(tiny_config(name), max_len=64))
    inputs = batch((7, 12, 7, 1, 12, *[33] * 8))  # more tokens than have their codes made at a time
    real = inputs["token_mask"]
    expected = network(**inputs, project=False).hidden[real]
    calibrate(network, ROWS)
    plain, fast = network(**inputs, project=False).hidden[real], reader(network, "int8")
    assert isinstance(fast, FastReader)
    assert distance(fast(**inputs, project=False).hidden[real], plain) < 0.1  # codes that fall to the other side
    assert 1e-4 < distance(plain, expected) < 0.3  # networks of 16 channels; their rows differ much


@needs_products
def test_a_row_has_the_same_bits_in_any_company() -> None:
    network = model_of().network
    calibrate(network, ROWS)
    fast, lengths = reader(network, "int8"), tuple(torch.randint(1, 40, (100,)).tolist())
    inputs = batch(lengths)
    together = fast(**inputs, project=False).hidden
    for row, length in enumerate(lengths):
        alone = {name: value[row : row + 1, :length] for name, value in inputs.items()}
        assert torch.equal(fast(**alone, project=False).hidden[0], together[row, :length])


def test_a_folder_is_small_and_read_at_once(tmp_path: Path) -> None:
    """`load` without a precision gives 8 bits; what is saved again is the same; verbs and pages of attention run."""
    model, texts = model_of(), sentences(40)
    loaded = atento.load(in_int8(tmp_path, model), device="cpu")
    assert loaded.precision == "int8" and loaded.config["calibration"]["texts"] == 120
    vectors = loaded.embed(texts)
    assert 1e-4 < distance(vectors, model.embed(texts)) < 0.08
    assert distance(loaded.embed(texts[::-1], batch_tokens=64)[::-1].copy(), vectors) < 1e-6
    loaded.save(tmp_path / "again")
    again = atento.load(tmp_path / "again", precision="int8")
    assert np.array_equal(again.embed(texts), vectors)
    states = loaded.network.state_dict()
    assert states.keys() == again.network.state_dict().keys()
    assert all(torch.equal(states[name], value) for name, value in again.network.state_dict().items())
    assert loaded.attend(texts[0]) is not None
    assert -1.001 < loaded.similarity(texts[0], texts[1]) < 1.001


def test_verbs_give_what_float32_gives_by_the_equation_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 labels at most 1 differs between batches, and nearly all are those of float32."""
    heads = (HeadConfig(name="classification", kind="classification", labels=("a", "b", "c")),)
    model, texts = model_of(heads=heads), sentences(500)
    model.config["task"] = "classification"
    loaded = atento.load(in_int8(tmp_path, model))

    def labels(model: Model, texts: list[str]) -> list[str]:
        return [str(label.name) for label in model.classify(texts)]

    together = labels(loaded, texts)
    differ = [a != b for a, b in zip(together, labels(model, texts))]
    assert len(set(together)) > 0 and sum(differ) <= 25
    for others in (labels(loaded, texts[::-1])[::-1], [labels(loaded, [text])[0] for text in texts[:200]]):
        assert sum(a != b for a, b in zip(together, others)) <= 1
    (tmp_path / "encoder").mkdir()
    folder, texts = in_int8(tmp_path / "encoder", model_of()), sentences(10)
    vectors = atento.load(folder).embed(texts)
    monkeypatch.setattr(choose, "has_int8_products", lambda: False)
    with pytest.warns(AtentoWarning, match="8-bit weights are multiplied in float32"):
        assert distance(atento.load(folder).embed(texts), vectors) < 0.03


def test_texts_that_fix_no_scales(tmp_path: Path) -> None:
    model_of().save(tmp_path / "model")
    for text, message in (
        ("", "has no text"),
        ("\n \n", "has no text"),
        ("palavra1 palavra2\n", "too little text to fix scales by: 2 tokens, and 1,000 are needed"),
        ("um dois três quatro\n" * 400, "is not of the kind that model reads: 100% of its tokens are unknown"),
    ):
        small = {"precision": "int8", "calibrate": written(tmp_path, text)}
        fails(DataError, message, convert, tmp_path / "model", tmp_path / "out", "atento", **small)
        assert not (tmp_path / "out").exists()


def test_what_has_no_fixed_scales(tmp_path: Path) -> None:
    """A missing file, one without int8 or int8 without one, another layout, a decoder, training, other types."""
    folder = in_int8(tmp_path, model_of())
    out, file = tmp_path / "out", tmp_path / "texts.txt"
    plain, small, loaded = tmp_path / "model", {"precision": "int8", "calibrate": file}, atento.load(folder)
    refused: list[tuple[Any, type, str]] = [
        (lambda: convert(plain, out, "atento", **small | {"calibrate": tmp_path / "absent"}), UsageError, "absent"),
        (lambda: convert(plain, out, "atento", calibrate=file), UsageError, "`--calibrate FILE` is for `--to atento"),
        (lambda: convert(plain, out, "huggingface", **small), UsageError, "is for `--to atento --precision int8`"),
        (lambda: convert(plain, out, "huggingface", precision="int8"), UsageError, "`--precision` .* float32"),
        (lambda: loaded.save(out, precision="int8"), UsageError, "for weights that do not have 8 bits yet"),
        (lambda: convert(folder, out, "huggingface"), CapabilityError, "weights of 8 bits already"),
        (lambda: convert("micro-world-lm", out, "atento", **small), CapabilityError, "encoders, not for type Decoder"),
        (lambda: initial_model(str(folder), tmp_path), ModelError, "which are not trained"),
        (lambda: atento.load(folder, precision="bfloat16"), UsageError, "its precision is int8: got 'bfloat16'"),
        (lambda: loaded.to(precision="float32"), UsageError, "its precision is int8: got 'float32'"),
        (lambda: loaded.save(out, layout="huggingface"), CapabilityError, "in the layout atento alone"),
    ]
    for call, error, said in refused:
        fails(error, said, call)
    done = command(plain, "--out", out, "--calibrate", file, "--to", "onnx")
    assert "`--calibrate` is for `--to atento --precision int8`" in str(done.exception)
    assert not out.exists()


@pytest.mark.parametrize("name", ["micro-world-en-pt", "micro-world-lm", "micro-world-tense"])
def test_matrices_are_stored_in_8_bits_and_read_in_float32(name: str, tmp_path: Path) -> None:
    model = atento.load(name, precision="float32")
    convert(name, tmp_path / "small", "atento", precision="int8")
    small = atento.load(tmp_path / "small")
    assert small.precision == "float32"
    for key, value in model.network.state_dict().items():
        found = small.network.state_dict()[key]
        step = value.abs().amax(dim=-1, keepdim=True) / 127 if value.dim() == 2 else torch.zeros(())
        assert found.dtype == torch.float32 and bool(((found - value).abs() <= 0.51 * step).all()), key
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (model.path, tmp_path / "small")]
    assert sizes[1] < 0.6 * sizes[0]  # of 16 bits
    small.save(tmp_path / "again", precision="int8")
    again = atento.load(tmp_path / "again").network.state_dict()  # the same codes and scales
    assert all(torch.equal(value, again[key]) for key, value in small.network.state_dict().items())
    fails(UsageError, "for the layout atento", model.save, tmp_path / "other", layout="huggingface", precision="int8")
    if name == "micro-world-en-pt":
        assert small.translate("The white cat sleeps.") == "O gato branco dorme."
