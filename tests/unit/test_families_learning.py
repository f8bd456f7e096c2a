"""Every family learns: gradients against finite differences in float64, ten sentences overfitted and written again."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import ELMoConfig, RecurrentConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.decoding import Greedy, generate
from atento.networks import Decoder, ELMo, Encoder, RecurrentLM, build_network, presets

IDS = {"ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "start": 1, "mask": 4}}
QUIET = {"dropout": 0.0, "attention": {"dropout": 0.0}, "feed_forward": {"dropout": 0.0}}
HEADS = (HeadConfig("masked-language-model"), HeadConfig("next-sentence", dropout=0.0))
_RECURRENT = NetworkConfig(architecture="recurrent-seq2seq", n_layers=1)
FAMILIES: dict[str, NetworkConfig] = {
    "transformer": presets.transformer_tiny(),
    "bert": presets.bert_base(heads=HEADS),
    "roberta": presets.roberta_base(heads=HEADS[:1], pooler=False),
    "deberta": presets.deberta_v2_xlarge(heads=HEADS[:1]),
    "gpt1": presets.gpt1(),
    "gpt2": presets.gpt2(),
    "llama": presets.llama3_8b(attention={"n_kv_heads": 1}),
    "prefix LM with ALiBi": presets.gpt2(positions=PositionConfig("alibi"), family=""),
    "t5": presets.t5_small(attention={"d_head": 6}),
    "t5 1.1": presets.t5_11_small(attention={"d_head": 6}),
    "bart": presets.bart_base(),
    "marian": presets.marian(),
    "lstm": replace(_RECURRENT, recurrent=RecurrentConfig(attention="none")),
    "lstm, additive": replace(_RECURRENT, recurrent=RecurrentConfig(attention="additive")),
    "gru, bilinear": replace(_RECURRENT, recurrent=RecurrentConfig(cell="gru", attention="bilinear")),
    "lstm LM": NetworkConfig(architecture="recurrent-lm", n_layers=1, recurrent=RecurrentConfig()),
    "elmo": NetworkConfig(architecture="elmo", elmo=ELMoConfig(characters=None, d_cell=24)),
}


def make(name: str, width: int, vocab_size: int = 17) -> Any:
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "d_model": width, "n_heads": 2, "max_len": 16}
    config = FAMILIES[name]
    if config.architecture in ("encoder", "decoder", "encoder-decoder"):
        sizes |= {"d_ff": 2 * width, "n_layers": 2}
    elif config.architecture == "elmo":
        sizes |= {"n_layers": 2}
    torch.manual_seed(3)
    return build_network(changed(config, sizes, IDS, QUIET))


def sentences(seed: int, vocab_size: int = 17, count: int = 10) -> tuple[Tensor, Tensor]:
    """Random sentences of 3 to 6 tokens (5 is the first word), padded, with their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocab_size, (count, 6), generator=generator)
    real = torch.arange(6) < torch.randint(3, 7, (count, 1), generator=generator)
    return torch.where(real, ids, torch.zeros_like(ids)), real


def framed(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """What a writer reads, from the start token on, and what it is to write, -1 behind its end token."""
    rows = range(len(ids))
    ends = real.sum(dim=1)
    read = torch.cat([torch.ones(len(ids), 1, dtype=torch.long), ids], dim=1)
    labels = torch.cat([torch.where(real, ids, torch.full_like(ids, -1)), torch.full((len(ids), 1), -1)], dim=1)
    labels[rows, ends] = 2
    return read, labels


def loss_of(network: nn.Module, seed: int = 0) -> Tensor:
    """The objective of its kind on ten sentences (a target for those that read a source), nats a target."""
    source, real = sentences(seed)
    if isinstance(network, ELMo):
        found = network.loss(source, source, token_mask=real)
        return found.total / found.targets
    if isinstance(network, Encoder):
        hidden = real & (torch.arange(6) % 3 == 1)
        out = network(torch.where(hidden, torch.full_like(source, 4), source), token_mask=real)
        loss = F.cross_entropy(out.logits[hidden], source[hidden])
        if "next-sentence" in network.heads:
            loss = loss + F.cross_entropy(network.read("next-sentence", out, real), torch.arange(10) % 2)
        return loss
    if isinstance(network, Decoder | RecurrentLM):
        read, labels = framed(source, real)
        logits = network(read).logits
    else:
        target, target_real = sentences(seed + 1)
        read, labels = framed(target, target_real)
        logits = network(source, read, source_token_mask=real).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


@pytest.mark.parametrize("name", FAMILIES)
def test_c16_gradients_equal_finite_differences(name: str) -> None:
    """Along a random direction of every parameter, in float64."""
    network = make(name, 8).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    torch.autograd.backward(loss_of(network))
    step, moved = 1e-5, 0
    for label, parameter in network.named_parameters():
        if parameter.grad is None:
            assert label.startswith(("mix.", "pooler.")), label  # of no part of this objective
            continue
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slope = float((parameter.grad * direction).sum())
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
                ends.append(float(loss_of(network)))
                parameter.sub_(sign * step * direction)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-7), label
        moved += abs(slope) > 1e-9
    assert moved > 4


# The gate trains one of each kind of network; the gradients above are compared for all of them.
IN_THE_GATE = ("bert", "llama", "t5 1.1", "lstm, additive", "lstm LM")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in IN_THE_GATE)) for n in FAMILIES])
def test_c16_ten_sentences_are_overfitted(name: str) -> None:
    """The loss falls near its least, and what writes writes them again, each to its end."""
    network = make(name, 32)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    for _ in range(250):
        optimizer.zero_grad()
        loss = loss_of(network)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if float(loss.detach()) < 0.02:
            break
    network.eval()
    source, real = sentences(0)
    if isinstance(network, Encoder | ELMo):
        # what comes first, or stands under a mask, cannot always be told: that much is left of the loss
        assert float(loss.detach()) < (0.1 if isinstance(network, Encoder) else 1.2)
        return
    if isinstance(network, Decoder | RecurrentLM):  # given the first word and the second, which tell which one it is
        wanted, wanted_real = source, real
        prompt = torch.cat([torch.ones(10, 1, dtype=torch.long), source[:, :2]], dim=1)
        found = generate(network, prompt, Greedy(), max_new_tokens=8)
        given = 2
    else:
        wanted, wanted_real = sentences(1)
        found = generate(network, source, Greedy(), max_new_tokens=8, token_mask=real)
        given = 0
    assert [row[0].ids for row in found] == [ids[keep].tolist()[given:] for ids, keep in zip(wanted, wanted_real)]
    assert all(row[0].finished for row in found)
