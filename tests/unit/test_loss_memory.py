"""The loss of every objective over a vocabulary: computed at targets only, in memory without tokens x vocabulary."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atento.attention.masks import causal, prefix
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig, ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import OBJECTIVES
from atento.data.batches.batch import Batch
from atento.data.objectives.window import word_batch
from atento.networks import build_network
from atento.networks import electra_generator as generator_module
from atento.networks import vocabulary as cross_entropy_module
from atento.networks.interface import Network
from atento.training.losses import Call, losses

B, L, V, D = 16, 32, 4093, 8
BLOCK = 64 * V  # logits in memory at a time, fewer than the targets times the vocabulary
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": D, "d_ff": 8, "n_heads": 1, "n_layers": 1, "dropout": 0.0}


class Logits(TorchDispatchMode):
    """Records the most rows of any tensor whose last dimension is the vocabulary, and the largest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.dim() > 1 and value.shape[-1] == V:
                self.rows = max(self.rows, value.numel() // V)
        return result


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_BLOCK_LOGITS", BLOCK), ("_MIN_ROWS", 64), ("_MAX_ROWS", 64)):
        monkeypatch.setattr(cross_entropy_module, name, value)
    monkeypatch.setattr(generator_module, "_BLOCK_LOGITS", BLOCK)


IDS = torch.randint(5, V, (B, L), generator=torch.Generator().manual_seed(1))
SHIFTED = F.pad(IDS[:, 1:], (0, 1), value=-1)
CHOSEN = torch.where(torch.arange(L) % 4 == 1, IDS, -1)  # every fourth token, one in each span
NEIGHBOURS = {f"span {name}": torch.full_like(IDS, n) for name, n in (("left", 0), ("right", 1), ("position", 1))}


def encoder(*kinds: str) -> Network:
    heads = tuple(HeadConfig(kind) for kind in kinds)  # type: ignore[arg-type]
    return build_network(NetworkConfig("encoder", heads=heads, **SIZES))


def words(architecture: str, **parts: Any) -> Network:
    return build_network(NetworkConfig(architecture, **SIZES | parts))  # type: ignore[arg-type]


MLM = "masked-language-model"
NEXT, PAIR = {"vocabulary": SHIFTED}, {"source_ids": IDS, "target_ids": IDS}
SPANS, REPLACED = {"vocabulary": CHOSEN, "span-boundary": CHOSEN}, {"generator": CHOSEN, "replaced-token": IDS}
WINDOW = {"ids": IDS, "token_mask": torch.ones_like(IDS, dtype=torch.bool)}
ELMO = ELMoConfig(characters=None, d_cell=8)
CASES: dict[str, Any] = {
    "causal": lambda: (words("decoder"), Batch({"ids": IDS}, NEXT)),
    "causal, encoder": lambda: (encoder(MLM), Batch({"ids": IDS}, NEXT, causal())),
    "prefix": lambda: (encoder(MLM), Batch({"ids": IDS}, NEXT, prefix(torch.full((B,), 9)))),
    "masked": lambda: (encoder(MLM), Batch({"ids": IDS}, {"vocabulary": CHOSEN})),
    "span-boundary": lambda: (encoder(MLM, "span-boundary"), Batch({"ids": IDS}, SPANS, extras=NEIGHBOURS)),
    "replaced-token": lambda: (encoder("generator", "replaced-token"), Batch({"ids": IDS}, REPLACED)),
    "sequence-to-sequence": lambda: (words("encoder-decoder"), Batch(PAIR, NEXT)),
    "recurrent": lambda: (words("recurrent-seq2seq"), Batch(PAIR, NEXT)),
    "bidirectional": lambda: (words("elmo", elmo=ELMO), word_batch(IDS, IDS, torch.full((B,), L))),
    "window": lambda: (words("cbow", cbow=CBOWConfig(negatives=0)), Batch(WINDOW, {"window": IDS[:, 0]})),
}


R_DROP = [name for name in CASES if OBJECTIVES.get(name.split(",")[0], OBJECTIVES["causal"]).gives_probabilities]


@pytest.mark.parametrize(("name", "r_drop"), [*((name, 0.0) for name in CASES), *((name, 5.0) for name in R_DROP)])
def test_e8_no_tensor_of_logits_has_more_rows_than_a_block(name: str, r_drop: float) -> None:
    torch.manual_seed(1)
    network, batch = CASES[name]()
    network.train()
    with Logits() as seen:
        total = torch.stack([loss for loss, _ in losses(network, batch, Call(r_drop=r_drop)).values()]).sum()
        torch.autograd.grad(total, [p for p in network.parameters() if p.requires_grad], allow_unused=True)
    assert 0 < seen.rows <= max(64, D), seen.rows


@pytest.mark.parametrize("kind", ["vocabulary", "span-boundary", "generator"])
def test_e8_the_head_reads_the_targets_only(kind: str) -> None:
    name = {"vocabulary": "masked", "span-boundary": "span-boundary", "generator": "replaced-token"}[kind]
    network, batch = CASES[name]()
    head, rows = network.heads[kind], []
    original = head.read
    head.read = lambda *given: rows.append(given[0].numel() // given[0].shape[-1]) or original(*given)
    losses(network, batch, Call())
    assert rows == [int((CHOSEN >= 0).sum())]
