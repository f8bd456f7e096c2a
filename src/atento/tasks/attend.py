"""What attends to what for one pair of texts, as a record that can be drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atento.attention import observe
from atento.errors import UsageError
from atento.inspection import AttentionRecord
from atento.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from atento.model import Model


@torch.inference_mode()
def attention_record(model: Model, text: str, target: str | None) -> AttentionRecord:
    """Runs the pair once with gold prefixes, every layer and head observed (A11).

    The decoder reads `tokens` (<s> y1 ... yn) and writes `output_tokens` (y1 ... yn </s>): row t of "decoder" and
    "cross" is where the network looks when it writes the t-th of these.
    """
    tokenizer, network = model._tokenizer(), model.network
    if not text.strip():
        raise UsageError("give a text to look at: got an empty one")
    if target is None:
        target = model.translate(text)
    config = network.config
    device = next(network.parameters()).device
    source_ids, target_ids = tokenizer.encode(text), tokenizer.encode(target)
    source = torch.tensor([[*source_ids, config.eos_id]], device=device)
    shifted = torch.tensor([[config.start_id, *target_ids]], device=device)
    with observe(network) as seen:
        network(source, shifted, project=False)
    kinds = {
        kind: [seen[kind, layer][0].cpu().numpy() for layer in range(depth)] for kind, depth in seen.n_layers.items()
    }
    written = [*target_ids, config.eos_id]
    return AttentionRecord(
        tokens=tokenizer.tokens(shifted[0].tolist()),
        words=[-1, *_words(tokenizer, target_ids)],
        special=[True] + [False] * len(target_ids),
        output_tokens=tokenizer.tokens(written),
        output_words=[*_words(tokenizer, target_ids), -1],
        output_special=[False] * len(target_ids) + [True],
        source_tokens=tokenizer.tokens(source[0].tolist()),
        source_words=[*_words(tokenizer, source_ids), -1],
        source_special=[False] * len(source_ids) + [True],
        kinds=kinds,
        masks={"encoder": "bidirectional", "decoder": "causal", "cross": "bidirectional over the source"},
        title=f"{text} → {target}",
        model=str(model.config.get("name", "")),
    )


def _words(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The word of each token, -1 for a token that belongs to none."""
    return [-1 if word is None else word for word in tokenizer.words(ids).index]
