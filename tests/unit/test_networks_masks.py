"""`network.mask` of a recipe: the default mask of self-attention, by layer, equal to the same mask given by call."""

from typing import Any

import pytest
import torch

from atento.attention.masks import bidirectional, causal, lookahead, prefix, window
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import MaskConfig
from atento.networks import build_network
from failing import fails

SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 3, "dropout": 0.0}
IDS = torch.randint(1, 13, (2, 11), generator=torch.Generator().manual_seed(0))
CASES = {
    "causal": (MaskConfig("causal"), causal()),
    "prefix": (MaskConfig("prefix", length=4), prefix(4)),
    "lookahead": (MaskConfig("lookahead", ahead=2), lookahead(2)),
    "window": (MaskConfig("window", left=2, right=1), window(2, 1)),
    "all before, two after": (MaskConfig("window", right=2), lookahead(2)),
    "layers": (MaskConfig("window", left=1, right=0, layers=(1,)), [bidirectional(), window(1, 0), bidirectional()]),
}


def made(architecture: str, mask: MaskConfig | None) -> Any:
    torch.manual_seed(0)
    return build_network(NetworkConfig(**SIZES, architecture=architecture, mask=mask)).double().eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_an_encoder_has_the_mask_of_its_recipe(name: str) -> None:
    config, mask = CASES[name]
    wanted = made("encoder", None)(IDS, mask=mask).hidden
    torch.testing.assert_close(made("encoder", config)(IDS).hidden, wanted, rtol=0, atol=1e-12)
    assert float((wanted - made("encoder", None)(IDS).hidden).abs().max()) > 1e-3
    two = made("encoder-decoder", config)
    expected = made("encoder-decoder", None).encode(IDS, mask=mask)
    torch.testing.assert_close(two.encode(IDS), expected, rtol=0, atol=1e-12)
    assert {one.name for one in two.decoder.masks} == {"causal"}


@torch.no_grad()
def test_a_decoder_with_a_window_reads_on_from_its_cache() -> None:
    """Token by token equal to one pass, in which no token sees further back than the windows of all layers reach."""
    network = made("decoder", MaskConfig("window", left=2, right=5))  # nobody looks ahead all the same
    whole = network(IDS).hidden
    state = network.begin()
    parts = [network(IDS[:, t : t + 1], state=state).hidden for t in range(IDS.shape[1])]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    changed = IDS.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 13
    away = (network(changed).hidden - whole).abs().amax(dim=(0, 2))
    assert (away[:7] > 0).all() and (away[7:] == 0).all()  # three layers of two neighbours


def test_a_mask_in_place_of_its_own_keeps_the_window(tmp_path: Any) -> None:
    """Pair by pair, in its layers alone: of a prefix, a decoder sees as many tokens ahead as behind."""
    for architecture, ahead in (("decoder", 2), ("encoder", 1)):
        network = made(architecture, MaskConfig("window", left=2, right=1, layers=(1,)))
        masks = [mask.dense(7, 7)[0, 0].tolist() for mask in network.with_own_window(prefix(4))]
        for layer, mask in enumerate(masks):
            for q in range(7):
                seen = [k <= q or k < 4 for k in range(7)]
                if layer == 1:
                    seen = [may and q - 2 <= k <= q + ahead for k, may in enumerate(seen)]
                assert mask[q] == seen, (layer, q)
    with pytest.raises(RecipeError, match="`mask` of a decoder must be causal or window: got 'lookahead'"):
        NetworkConfig(**SIZES, architecture="decoder", mask=MaskConfig("lookahead", ahead=1))
    with pytest.raises(RecipeError, match=r"`mask\.layers` count from 0 to 2: got \(3,\)"):
        NetworkConfig(**SIZES, architecture="encoder", mask=MaskConfig("window", left=1, layers=(3,)))
    with pytest.raises(RecipeError, match="`mask` belongs to a Transformer: got architecture 'recurrent-lm'"):
        NetworkConfig(**SIZES, architecture="recurrent-lm", mask=MaskConfig("causal"))
    recipe = tmp_path / "my.yaml"
    recipe.write_text("task: translation\ndata: {train: {world: train, count: 9}}\nnetwork:\n  mask: {ahead: 2}\n")
    fails(RecipeError, r"my\.yaml:4:17: `mask\.ahead` has no meaning for a mask of kind window", load_recipe, recipe)
    assert load_recipe(recipe, ["network.mask.kind=lookahead"]).recipe.network.mask == MaskConfig("lookahead", ahead=2)
