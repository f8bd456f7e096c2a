"""Networks described and drawn: every number in one box, boxes in the order in which they run, a valid picture."""

from xml.etree import ElementTree

import torch

from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.inspection.figures.network_diagram import network_svg, network_text
from atento.networks import Network, build_network, parameter_count
from atento.networks.describe import Part, describe

IDS = {"ids": dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)}
SIZES = {"vocab_size": 30, "d_model": 12, "n_heads": 3, "max_len": 8}
CONFIGS = {
    "pre": presets.transformer_tiny(**SIZES | IDS),
    "bert": presets.bert_tiny(**SIZES | IDS, heads=(HeadConfig("answer"),)),
    "llama": presets.llama3_8b(**SIZES | IDS, d_ff=20, attention={"n_kv_heads": 1}, n_layers=3),
    "t5": presets.t5_small(**SIZES | IDS, n_decoder_layers=1, attention={"d_head": 4}),
    "recurrent": NetworkConfig(architecture="recurrent-seq2seq", recurrent=RecurrentConfig(), **SIZES | IDS),
    "recurrent LM": NetworkConfig(architecture="recurrent-lm", recurrent=RecurrentConfig(), **SIZES | IDS),
}


def counted(parts: list[Part]) -> int:
    return sum((counted(list(p.parts)) if p.parts else p.parameters or 0) * p.repeats for p in parts)


def made(name: str) -> Network:
    torch.manual_seed(0)
    return build_network(CONFIGS[name])


def test_j3_j9_every_number_stands_in_one_box_named_and_lines_say_how_many_blocks() -> None:
    """Relative positions stand beside their stack; an embedding that both sides share is drawn twice."""
    for name in CONFIGS:
        network = made(name)
        columns = describe(network)
        beside = sum(p.numel() for n, p in network.named_parameters() if ".positions." in n and "inputs" not in n)
        assert counted(columns) - (30 * 12 if len(columns) == 2 else 0) + beside == parameter_count(network)
        root = ElementTree.fromstring(network_svg(columns, "a < b"))
        said = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        lines = [line.strip() for line in network_text(columns).splitlines()]
        for column in columns:
            assert column.name in said and column.name in lines
        assert root.attrib["aria-label"] == "a < b" and said[0] == "a < b"
        boxes = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("rx") == "5"]
        assert len(boxes) == len([line for line in lines if not line.startswith("block")]) - len(columns)
        width, height = (float(root.attrib[side]) for side in ("width", "height"))
        for box in boxes:
            x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert x >= 0 and x + w <= width and y >= 0 and y + h <= height
    lines = network_text(describe(made("llama"))).splitlines()
    assert "  block × 3 (Rotary)  1,128" in lines and "    self-attention (3 heads, 1 of keys; causal)  384" in lines
    assert "    feed-forward (20 wide)  720" in lines
