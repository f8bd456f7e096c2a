"""Networks that hold their weights in packed form alone: the bytes they reach, the same outputs, what is refused."""

import gc
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import atento
from atento.base.errors import UsageError
from atento.base.precision import has_bfloat16_products
from atento.config.sections.network import HeadConfig, NetworkConfig, OutputConfig, changed, network_to_dict
from atento.inference.choose import pack_weights, reader, step_function
from atento.inference.packed_linear import Precision, has_packed_products
from atento.inference.packed_modules import PackedModule
from atento.model import Model
from atento.networks import Network, build_network, parameter_count
from atento.networks.int8_projection import Int8Table, multiplies_by_table
from atento.networks.layers import TokenEmbedding
from atento_cli.options import ModelOptions
from failing import fails
from tiny_families import of_words

pytestmark = pytest.mark.skipif(not has_packed_products(), reason="no packed products here")
_CONFIG = NetworkConfig(
    vocab_size=20, max_len=16, d_model=128, d_ff=512, n_heads=2, n_layers=2, dropout=0.0, output=OutputConfig(tied=True)
)


def weight_type(precision: Precision) -> torch.dtype:
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def network_in(architecture: str, precision: Precision = "float32") -> Network:
    torch.manual_seed(3)
    feed_forward = {"activation": "gelu" if architecture == "encoder" else "relu"}
    network = build_network(changed(replace(_CONFIG, architecture=architecture), feed_forward=feed_forward))
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(std=0.2)
    return network.to(weight_type(precision)).eval().requires_grad_(False)


def user_of(network: Network, precision: Precision) -> object:
    """What reads or decodes with the network."""
    chosen: Precision | None = "int8" if precision == "int8" else None
    is_read = network.config.architecture == "encoder"
    return reader(network, chosen) if is_read else step_function(network, precision=chosen)


def outputs(network: Network, user: object) -> Tensor:
    ids = torch.tensor([[5, 6, 7, 8, 9], [9, 4, 4, 12, 3]])
    if network.config.architecture == "encoder":
        return user(ids, project=False).hidden  # type: ignore[operator]
    logits, _ = user.step(ids[:, :3], user.begin(ids, None))  # type: ignore[attr-defined]
    return torch.as_tensor(logits).clone()


def held_bytes(*roots: object) -> int:
    """The bytes of all tensors that these objects reach, shared memory once; int8 weights of PyTorch's own type too."""
    sizes: dict[object, int] = {}
    seen, ahead = set(), list(roots)
    while ahead:
        one = ahead.pop()
        if id(one) in seen or isinstance(one, type | FunctionType | ModuleType):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor) and one.layout == torch.strided:
            sizes[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, Tensor):
            sizes[id(one)] = one.numel() * one.element_size()
        elif isinstance(one, torch.ScriptObject):
            sizes[id(one)] = torch.ops.quantized.linear_unpack(one)[0].numel()
        ahead += gc.get_referents(one)
    return sum(sizes.values())


def in_layers(network: nn.Module) -> int:
    """How many weights the linear maps have that are packed."""
    return sum(module.weight.numel() for module in network.modules() if isinstance(module, nn.Linear | PackedModule))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("architecture", ("encoder", "decoder", "encoder-decoder"))
def test_weights_are_held_once_and_outputs_are_those_of_packed_copies(architecture: str, precision: Precision) -> None:
    """Packed, a network and what decodes or reads with it reach the weights of its layers once, in their type.

    bfloat16 takes 4 bytes a weight where the processor has no such products, as `ConvertedLinear` says."""
    twice, once = network_in(architecture, precision), network_in(architecture, precision)
    alone, weights, slack = held_bytes(once), in_layers(once), 300_000  # a second table of positions, scales
    pack_weights(once, precision)
    before, after = (held_bytes(network, user_of(network, precision)) for network in (twice, once))
    width = {"float32": 4, "bfloat16": 2 if has_bfloat16_products() else 4, "int8": 1}[precision]
    assert before >= alone + width * weights
    if precision != "int8":
        assert after <= alone + (width - weight_type(precision).itemsize) * weights + slack
    elif architecture == "encoder-decoder":  # what is read of a source, once, has 2 or 4 bytes a weight
        assert after <= alone
    else:
        assert after <= alone - 3 * weights + slack
    # To the bit; the network's own pass is near its earlier one
    network = network_in(architecture, precision)
    packed, ids = deepcopy(network), torch.tensor([[5, 6, 7, 8, 9]])
    pack_weights(packed, precision)
    assert torch.equal(outputs(packed, user_of(packed, precision)), outputs(network, user_of(network, precision)))

    def call(one: Network) -> Tensor:
        return one(ids, ids).logits if architecture == "encoder-decoder" else one(ids, project=False).hidden

    expected, own = call(network).float(), call(packed).float()
    error = float((own - expected).norm() / expected.norm())
    assert error < {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.05}[precision]
    assert parameter_count(packed) == parameter_count(network)
    weights, names = packed.state_dict(), network.state_dict()
    assert weights.keys() == names.keys()
    for name, value in weights.items():
        spread = 0.0 if precision != "int8" else 0.01 * float(names[name].abs().max())
        assert float((value.float() - names[name].float()).abs().max()) <= spread, name


@pytest.mark.parametrize("name", ["micro-world-mlm", "micro-world-en-pt"])
def test_a_command_holds_the_weights_of_a_large_model_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that Python loads keeps its own weights, for whoever trains them; both give the same outputs."""

    def results(model: Model) -> object:
        if name == "micro-world-en-pt":
            return model.translate(["the dog sees the cat", "the cat"])
        return [(one.token, round(one.probability, 5)) for one in model.fill("the <mask> sees the cat")]

    kept = atento.load(name, engine="torch")
    with ModelOptions(device="cpu", threads=1).loaded(name) as small:
        assert results(small) == results(kept)
        assert not any(isinstance(module, PackedModule) for module in small.network.modules())
    monkeypatch.setattr("atento.inference.choose._LARGE", 0)
    with ModelOptions(device="cpu", threads=1).loaded(name) as private:
        assert results(private) == results(kept)
        users = [private.reader() if name == "micro-world-mlm" else private.step_function()]
        assert any(isinstance(module, PackedModule) for module in private.network.modules())
        weights = 4 * in_layers(private.network)
        assert held_bytes(kept.network, *kept._made.values()) > (held_bytes(private.network, *users) + 0.7 * weights)
    assert not any(isinstance(module, PackedModule) for module in kept.network.modules())


def test_a_table_of_8_bits_takes_a_quarter_of_the_memory_and_is_rounded_once() -> None:
    """Rows within half a step; a row of zeros stays; a table that a head multiplies by is left as it is."""
    config = changed(replace(_CONFIG, architecture="encoder", output=OutputConfig(tied=False)), vocab_size=5000)
    network = build_network(config).eval().requires_grad_(False)
    exact = network.embedding.weight.normal_(std=0.2).clone()
    exact[0] = network.embedding.weight[0] = 0
    before, in_maps, count = held_bytes(network), 4 * in_layers(network), parameter_count(network)
    network_scale = network.embedding.scale
    pack_weights(network, "int8")
    table = network.embedding
    assert isinstance(table, Int8Table)
    assert before - in_maps * 3 // 4 - held_bytes(network) > 0.7 * exact.numel() * 4
    assert parameter_count(network) == count
    step = exact.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((table.weight - exact).abs() <= 0.5001 * step).all())
    assert torch.equal(Int8Table(table.weight).weight, table.weight)
    ids = torch.tensor([[5, 6, 4999]])
    torch.testing.assert_close(table(ids), F.embedding(ids, table.weight) * network_scale)
    tied = build_network(replace(config, output=OutputConfig(tied=True), heads=(HeadConfig("masked-language-model"),)))
    assert multiplies_by_table(tied) and not multiplies_by_table(network)
    pack_weights(tied, "int8")
    assert type(tied.embedding) is TokenEmbedding


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_tables_of_decoders_have_8_bits_once(architecture: str, tied: bool) -> None:
    """Beside the product of the output, and the reading of sources, which share the integers; one of an own output."""
    config = replace(_CONFIG, architecture=architecture, output=OutputConfig(tied=tied))
    network = build_network(changed(config, vocab_size=9000)).eval().requires_grad_(False)
    numbers, before, layers, count = 9000 * 128, held_bytes(network), in_layers(network), parameter_count(network)
    expected = float(network.projection.norm())
    steps = step_function(network, precision="int8")
    pack_weights(network, "int8")
    assert float(network.projection.norm()) == pytest.approx(expected, rel=1e-3)
    assert parameter_count(network) == count
    packed = step_function(network, precision="int8")
    tables = 1 if tied else 2  # and the packed output
    left = before - 4 * (tables * numbers + layers) + 4 * layers * (architecture != "decoder")
    assert held_bytes(network, packed) < left + (tables + 1) * numbers + 1_000_000
    assert torch.equal(outputs(network, packed), outputs(network, steps))


def test_gradients_of_inputs_and_explanations_pass_through_packed_maps() -> None:
    """As explanations ask for them: those of the weights that the integers stand for."""
    network = network_in("encoder")
    pack_weights(network, "int8")
    module = next(module for module in network.modules() if isinstance(module, PackedModule))
    x = torch.randn(2, 3, 128, requires_grad=True)
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(dim=0).expand(2, 3, 128))
    # Biases of a source's layers are in bfloat16 there, and its inputs in float32 (found: a crash)
    for name in ("micro-world-en-pt", "micro-world-lm", "micro-world-tense"):
        text = "the white cat sleeps ." if name.endswith("pt") else "o gato"
        expected, found = (atento.load(name, precision=precision).explain(text) for precision in ("float32", "int8"))
        assert found.target == expected.target and found.total == pytest.approx(expected.total, rel=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, tokenizer = of_words(network_in("decoder").config, (f"p{number}" for number in range(14)))
    network = build_network(config).eval()
    about = {"name": "tiny", "task": "language-modeling", "network": network_to_dict(config)}
    return Model(network, tokenizer, about, None).save(tmp_path_factory.mktemp("packed") / "model")


def test_a_loaded_int8_model_has_its_8_bits_alone(folder: Path) -> None:
    """It writes, and gives what 8 bits say; other digits are gone, so it is not saved, and stays int8."""
    model, exact = atento.load(folder, precision="int8"), atento.load(folder)
    assert any(isinstance(module, PackedModule) for module in model.network.modules())
    assert not any(isinstance(module, nn.Linear) for module in model.network.stack.modules())  # type: ignore[union-attr]
    assert model.generate("p1 p2", max_new_tokens=3) is not None
    with pytest.raises(UsageError, match="rounded to 8 bits: load the model in another precision to save it"):
        model.save(folder.parent / "again")
    fails(UsageError, "has weights of 8 bits, so its precision is int8: got 'float32'", model.to, precision="float32")
    assert repr(model).replace("int8", "float32") == repr(exact)
