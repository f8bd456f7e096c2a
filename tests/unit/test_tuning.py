"""F7: which weights are trained, from when on and at which rate; frozen ones bit-equal; LoRA as its equation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from atento.attention.dropout import Randomness
from atento.attention.lora import AdaptedLinear, adapters_joined
from atento.base.errors import RecipeError, UsageError
from atento.config.presets import preset
from atento.config.sections.initial import InitConfig, LoraConfig, UnfreezeConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import CBOWConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.networks import Network, build_network
from atento.networks.adapters import adapt, is_adapter, join_adapters, without_effect
from atento.networks.weight_depths import layer_depths
from atento.training.losses import Call, losses
from atento.training.optimizer import TrainedWeights
from atento.training.selected_weights import check_stages, trained_weights
from atento.training.step import Updater
from failing import fails
from test_step import CONFIG, NETWORK, data, first_batch, make, plain_gradients, same, weights

SMALL = {"vocab_size": 31, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3, "max_len": 16}
LABELS = (HeadConfig("classification", ("a", "b")),)


def tuned(
    network: Network, steps: int = 3, precision: str = "float32", **init: Any
) -> tuple[Updater, dict[str, Tensor]]:
    """An updater after some updates, and the weights from before."""
    config = InitConfig("model", **init)
    if config.adapters is not None:
        adapt(network, config.adapters)
    before = weights(network)
    updater = Updater(network, CONFIG, precision, trained_weights(network, config, 2.0))
    for step in range(1, steps + 1):
        updater.update(data().parts(step - 1), step, 1e-2)
    return updater, before


def moved(updater: Updater, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in updater.network.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("train", ["all", "last-1", "last-3", "bias", "lora"])
def test_frozen_weights_keep_their_bits_and_have_no_optimizer_state(train: str, precision: str) -> None:
    network = make(n_layers=2, n_decoder_layers=2)
    updater, before = tuned(network, precision=precision, train=train)
    last = ("decoder.blocks.1.", "decoder.norm.")
    last_three = ("decoder.blocks.", "decoder.norm.", "encoder.blocks.1.", "encoder.norm")
    chosen = {"all": "", "last-1": last, "last-3": last_three, "bias": "", "lora": ""}[train]
    expected = {name for name in before if name.startswith(chosen)}
    if train in ("bias", "lora"):
        expected = {name for name in before if (name.endswith("bias") if train == "bias" else is_adapter(name))}
    assert moved(updater, before) == expected
    assert {name.rpartition(".")[0] for name in updater.optimizer.tensors()} == moved(updater, before)
    computed = updater.compute_network.state_dict()
    assert all(torch.equal(value.to(computed[name].dtype), computed[name]) for name, value in weights(network).items())


def test_nothing_below_the_lowest_trained_layer_is_kept_and_rates_fall_from_layer_to_layer() -> None:
    """No graph below it, and fewer tensors saved: what autograd keeps is what is left to do."""
    every, last = kept_for_backward("all"), kept_for_backward("last-1")
    assert all(every[0].values()) and [name for name, needed in last[0].items() if needed] == ["decoder.blocks.1"]
    assert last[1] < 0.5 * every[1]
    # A frozen output matrix costs no gradient
    network = make()
    network.requires_grad_(False)
    network.decoder.norm.weight.requires_grad_(True)
    sizes: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(tuple(t.shape)) or t, lambda t: t):
        losses(network, first_batch(), Call())
    assert (31, 16) not in sizes
    # AdamW with one group a level, its rates computed by hand; float64
    ours, theirs = make(torch.float64), make(torch.float64)
    levels = {"embedding.": 0.5**3, "encoder.": 0.5**2, "decoder.": 0.5}  # one layer each; the head is the embedding
    groups: list[dict[str, Any]] = []
    for name, parameter in theirs.named_parameters():  # each weight a group
        (scale,) = (scale for start, scale in levels.items() if name.startswith(start))
        decay = CONFIG.weight_decay * (parameter.dim() > 1)
        groups.append({"params": [parameter], "lr": 1e-2 * scale, "weight_decay": decay})
    optimizer = torch.optim.AdamW(groups, betas=CONFIG.betas, foreach=False)
    for step in range(1, 4):
        plain_gradients(theirs, [part.batch for part in data().parts(step - 1)], CONFIG.label_smoothing)
        nn.utils.clip_grad_norm_(theirs.parameters(), CONFIG.clip)
        optimizer.step()
    tuned(ours, layer_decay=0.5)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-7)


def kept_for_backward(train: str) -> tuple[dict[str, bool], int]:
    """Whether the output of each block needs a gradient, and the bytes that autograd keeps."""
    network = make(n_layers=2, n_decoder_layers=2, dropout=0.1)
    updater, _ = tuned(network, steps=1, train=train)
    graphs: dict[str, bool] = {}
    for name, block in network.named_modules():
        if name.rpartition(".")[2] in ("0", "1") and "blocks" in name:
            block.register_forward_hook(lambda _, __, out, name=name: graphs.update({name: out.requires_grad}))
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
        losses(updater.compute_network, first_batch(), Call(Randomness(1, 1, 0)))
    return graphs, sum(sizes)


def test_stages_are_a_function_of_the_update_so_resuming_is_exact_in_epochs_too() -> None:
    """Stopped in the middle of each stage and at each change of stage; the same bits as in one go."""
    for kind in ("gradual", "head-first"):
        init = InitConfig("model", unfreeze=UnfreezeConfig(kind, steps=2), layer_decay=0.9)

        def untied() -> Network:
            torch.manual_seed(0)
            return build_network(changed(NETWORK, output={"tied": False}, n_layers=2, n_decoder_layers=1))

        straight = untied()
        trained = trained_weights(straight, init, 9.0)
        levels = layer_depths(straight).of
        ranges = [min(levels[name] for name in trained.names(step)) for step in range(1, 10)]
        assert ranges == ([4, 4, 3, 3, 2, 2, 1, 1, 0] if kind == "gradual" else [4, 4, 0, 0, 0, 0, 0, 0, 0])
        updater = Updater(straight, CONFIG, "float32", trained)
        for step in range(1, 10):
            before = weights(straight)
            updater.update(data().parts(step - 1), step, 1e-2)
            assert moved(updater, before) == trained.names(step)
        for stop in (2, 5):
            parts = Updater(untied(), CONFIG, "float32", trained)
            for step in range(1, stop + 1):
                parts.update(data().parts(step - 1), step, 1e-2)
            resumed = Updater(untied(), CONFIG, "float32", trained)
            resumed.network.load_state_dict(parts.network.state_dict())
            resumed.optimizer.load(parts.optimizer.tensors())
            for step in range(stop + 1, 10):
                resumed.update(data().parts(step - 1), step, 1e-2)
            assert same(weights(resumed.network), weights(straight))
    network = build_network(changed(preset("bert-tiny", **SMALL), heads=LABELS))
    trained = trained_weights(network, InitConfig("m", train="last-2", unfreeze=UnfreezeConfig(epochs=0.5)), 7.0)
    level_of, begins = layer_depths(network).of, trained.begins
    lowest = {step: min(level_of[name] for name in trained.names(step)) for step in begins.values()}
    assert lowest == {1: 4, 5: 3, 9: 2}  # round(3.5) is 4 updates; the head, then two layers
    check_stages(trained, 9)
    fails(UsageError, "the last stage begins at update 9, and the run has 8", check_stages, trained, 8)
    for config, what, message in REFUSED:
        init = {"train": what} if isinstance(what, str) else {"unfreeze": what}
        fails(RecipeError, message, tuned, build_network(config), steps=0, **init)


def adapted(dtype: torch.dtype = torch.float64, dropout: float = 0.0, **changes: Any) -> Network:
    """An encoder-decoder whose adapters do something: B is random."""
    network = make(dtype, **changes)
    adapt(network, LoraConfig(rank=3, alpha=5.0, dropout=dropout, targets=("query", "value", "output", "inner")))
    for name, value in network.named_parameters():
        if is_adapter(name):
            nn.init.normal_(value.data, std=0.3)
    return network.to(dtype)


def test_lora_computes_its_equation_forward_and_backward_on_families_with_gates_and_groups_of_heads() -> None:
    """Against a network of full matrices W + alpha/r B A: outputs, and the gradients of A and B by the chain rule."""
    network, batch = adapted(), first_batch()
    full = {name: value for name, value in network.state_dict().items() if not is_adapter(name)}
    for name, module in network.named_modules():
        if isinstance(module, AdaptedLinear):
            weight = module.weight.detach().clone()
            for part, adapter in module.adapters.items():
                start = {"value": 32}.get(part, 0)  # of 48 rows for query, key and value
                weight[start : start + len(adapter.b)] += 5.0 / 3.0 * (adapter.b @ adapter.a).detach()
            full[f"{name}.weight"] = weight
    plain = make(torch.float64)
    plain.load_state_dict(full)
    ours, theirs = (losses(each, batch, Call())["vocabulary"][0] for each in (network, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    ours.backward()
    theirs.backward()
    for name, module in network.named_modules():
        if isinstance(module, AdaptedLinear):
            gradient = plain.get_parameter(f"{name}.weight").grad
            for part, adapter in module.adapters.items():
                start = {"value": 32}.get(part, 0)
                rows = gradient[start : start + len(adapter.b)]
                torch.testing.assert_close(adapter.b.grad, 5.0 / 3.0 * rows @ adapter.a.t(), rtol=1e-9, atol=1e-12)
                torch.testing.assert_close(adapter.a.grad, 5.0 / 3.0 * adapter.b.t() @ rows, rtol=1e-9, atol=1e-12)
    # Llama's shape: fewer key heads than query heads, a gated feed-forward network; both halves get adapters
    sizes = SMALL | {"n_heads": 4, "attention": {"n_kv_heads": 2}}
    torch.manual_seed(0)
    network = build_network(changed(preset("llama2-7b", vocab_size=31), sizes))
    adapt(network, LoraConfig(targets=("inner", "value")))
    inner, attention = network.stack.blocks[0].feed_forward.inner, network.stack.blocks[0].self_attention
    assert list(inner.adapters) == ["inner", "gate"] and inner.adapters["gate"].start == 32
    assert (attention.input.adapters["value"].start, attention.input.adapters["value"].stop) == (24, 32)
    ids = torch.randint(0, 31, (2, 5))
    for value in (inner.adapters["gate"].b, attention.input.adapters["value"].b):
        nn.init.normal_(value)
    with torch.no_grad(), adapters_joined(network):
        together = network(ids).logits
    with torch.no_grad():
        torch.testing.assert_close(network(ids).logits, together, rtol=1e-4, atol=1e-5)
        without_gate = {"stack.blocks.0.feed_forward.inner.adapters.gate.b": 0 * inner.adapters["gate"].b}
        swapped = functional_call(network, without_gate, (ids,))
    assert not torch.equal(swapped.logits, together)


def test_joined_weights_give_what_adapters_give_and_go_back_bit_for_bit() -> None:
    network, batch = adapted(torch.float32).eval(), first_batch()
    before = weights(network)
    with torch.no_grad():
        apart = losses(network, batch, Call())["vocabulary"][0]
        with adapters_joined(network):
            together = losses(network, batch, Call())["vocabulary"][0]
            name = "decoder.blocks.0.self_attention.input.weight"
            assert not torch.equal(network.get_parameter(name), before[name])
        assert same(weights(network), before)
        lora = LoraConfig(rank=3, alpha=5.0, targets=("query", "value", "output", "inner"))
        saved = join_adapters(network.state_dict(), lora, network.config)
        loaded = make().eval()
        loaded.load_state_dict(saved)
        from_file = losses(loaded, batch, Call())["vocabulary"][0]
        torch.testing.assert_close(apart, together, rtol=1e-6, atol=0)
        torch.testing.assert_close(together, from_file, rtol=1e-6, atol=0)
        network.load_state_dict(saved | without_effect(network))
        assert torch.equal(losses(network, batch, Call())["vocabulary"][0], from_file)


def test_new_adapters_change_nothing_all_linear_is_every_map_and_dropout_goes_by_seed_and_step() -> None:
    network, batch = make(), first_batch()
    before = losses(network, batch, Call())["vocabulary"][0]
    maps = {name for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    adapt(network, LoraConfig(targets=("all-linear",)))
    assert torch.equal(losses(network, batch, Call())["vocabulary"][0], before)
    assert {name for name, module in network.named_modules() if isinstance(module, AdaptedLinear)} == maps
    network, batch = adapted(torch.float32, dropout=0.5).train(), first_batch()

    def loss(step: int) -> Tensor:
        return losses(network, batch, Call(Randomness(3, step, 0)))["vocabulary"][0]

    assert torch.equal(loss(1), loss(1)) and not torch.equal(loss(1), loss(2))
    network.eval()
    assert torch.equal(loss(1), loss(2))


CBOW, T5 = {"architecture": "cbow", "cbow": CBOWConfig()}, {k: v for k, v in SMALL.items() if k != "max_len"}
REFUSED: list[tuple[NetworkConfig, str | UnfreezeConfig, str]] = [
    (NETWORK, "last-3", "`init.train` last-3: the network has 2 layers; train all, or fewer"),
    (changed(NETWORK, shared_layers=True), "last-3", "the layers of this network share .* one level; train last-1 or"),
    (NETWORK, "head", "has no head with weights of its own; its output matrix is the embeddings"),
    (NETWORK, UnfreezeConfig("head-first"), "head-first needs a head with weights of its own"),
    (preset("t5-small", **T5), "bias", "the layers of this network .encoder-decoder. have no biases; try lora"),
    (changed(NETWORK, architecture="recurrent-lm"), "lora", "'recurrent-lm' has no linear map query or value"),
    (changed(NETWORK, CBOW), "head", "a network of architecture 'cbow' has no head; train all"),
    (changed(NETWORK, CBOW), "last-1", "the network has 0 layers"),
]


def test_the_last_layers_of_an_encoder_read_alone_and_of_recurrent_networks() -> None:
    """Of an encoder-decoder that is read alone, the last layer is the encoder's last."""
    network = build_network(changed(NETWORK, heads=LABELS, n_layers=2))
    trained: TrainedWeights = trained_weights(network, InitConfig("m", train="last-1"), 1.0, reads_only=True)
    starts = {name.partition(".")[0] + "." + name.split(".")[1] for name in trained.begins}
    assert starts == {"encoder.blocks", "encoder.norm", "heads.classification"}
    assert not any("blocks.0" in name for name in trained.begins)
    for architecture in ("recurrent-seq2seq", "recurrent-lm"):
        network = build_network(changed(NETWORK, architecture=architecture, n_layers=2))
        trained = trained_weights(network, InitConfig("m", train="last-1"), 1.0)
        assert trained.begins and not any(".layers.0." in name or "embedding" in name for name in trained.begins)
        assert any(".layers.1." in name for name in trained.begins)
    # Its encoder's two layers, then the decoder's; the bridge makes the state of the decoder's first layer
    levels = layer_depths(build_network(NetworkConfig("recurrent-seq2seq", vocab_size=11, d_model=8, n_layers=2)))
    found = {name.rpartition(".")[0]: level for name, level in levels.of.items()}
    sides = {f"encoder.layers.{n}": n + 1 for n in range(2)} | {f"decoder.stack.layers.{n}": n + 3 for n in range(2)}
    above = {f"decoder.attention.score.{part}": 4 for part in ("query", "key", "weigh")} | {"decoder.join": 4}
    assert levels.layers == 4 and found == sides | above | {"embedding": 0, "decoder.bridge": 3}
