"""What reads a source and writes, as a step function: encode once, then a token at a time with a kept state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atento.attention.observe import observing, unobserved

if TYPE_CHECKING:
    from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
    from atento.networks.stack.encoder_decoder import EncoderDecoder


def moved_to_front(ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """ids and padding mask (B,S), real tokens first in each row, their order kept."""
    if token_mask is None or not bool((token_mask[:, 1:] & ~token_mask[:, :-1]).any()):
        return ids, token_mask
    order = torch.argsort(token_mask.int(), dim=1, descending=True, stable=True)
    return ids.gather(1, order), token_mask.gather(1, order)


class Seq2SeqSteps:
    """begin (B,S) -> state of B rows; step (R,) tokens of R rows -> logits (R,V) and the state after them.

    See docs/notes.md#h12.
    """

    def __init__(self, network: EncoderDecoder | RecurrentSeq2Seq) -> None:
        self.network = network
        config = network.config
        self.start_id, self.eos_id, self.pad_id = config.start_id, config.eos_id, config.pad_id
        self.source: Tensor
        self.source_token_mask: Tensor | None = None

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> Any:
        """Encodes the source and makes the cross-attention's keys and values, once for all steps.

        Sources padded on the left are moved to the front, so that tokens have the same positions on either side.
        """
        ids, token_mask = moved_to_front(ids, token_mask)
        self.source, self.source_token_mask = ids, token_mask
        with unobserved():
            encoded = self.network.encode(ids, source_token_mask=token_mask)
            return self.network.decoder.read(encoded, token_mask)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        tokens = tokens.unsqueeze(1) if tokens.dim() == 1 else tokens
        with unobserved():
            output = self.network(None, tokens, state=state, project=False)
        logits = self.network.project(output.hidden[:, -1])
        return logits.to(torch.promote_types(logits.dtype, torch.float32)), output.state

    @torch.inference_mode()
    def end(self, written: list[list[int]]) -> None:
        """Told what each sentence's best output read, without the start token: shown to whoever observes.

        Rows past a sentence's end show nothing of it.
        """
        if not observing(self.network):
            return
        longest = max(len(ids) for ids in written)
        rows = [[self.start_id, *ids, *[self.pad_id] * (longest - len(ids))] for ids in written]
        target = torch.tensor(rows, device=self.source.device)
        self.network(self.source, target, source_token_mask=self.source_token_mask, project=False)
