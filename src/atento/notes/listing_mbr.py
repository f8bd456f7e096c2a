"""The minimum Bayes risk listing of the notes, corrected (docs/notes.md#k4, #h10).

Errors of the listing in the notes (40 to 42): it passes the candidate to BLEU as the reference, and BLEU is not
symmetric; it compares each candidate with itself; and it weights all candidates equally, though the text describes
a weighted mean.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from atento.base.errors import UsageError
from atento.decoding import MBR, Sample, generate
from atento.decoding.mbr import spelled
from atento.decoding.risk import minimum_bayes_risk_choice
from atento.decoding.source import NetworkOrModel
from atento.metrics.mbr_utilities import Utility, utility_named
from atento.notes.listing_bleu import Tokens, sentence_bleu
from atento.notes.listing_search import EncoderDecoderSteps, LanguageModelSteps, token_named

Bleu = Callable[[Any, Any], float]


def calculate_bleu(reference: Tokens, candidate: Tokens) -> float:
    """Return the BLEU of a tokenised candidate against one tokenised reference, 0-1, as NLTK without smoothing."""
    return sentence_bleu([reference], candidate)


def minimum_bayes_risk(
    model: object,
    input_sequence: object,
    num_candidates: int = 10,
    *,
    utility: str | Utility = "bleu",
    weights: Literal["uniform", "model"] = "uniform",
    self_comparison: bool = True,
    max_len: int = 20,
    seed: int | Sequence[int] | None = None,
    generate_candidates: Callable[[object, object, int], Sequence[Any]] | None = None,
) -> Any:
    """Return the candidate of minimum expected risk, 1 - utility; the candidates are also the evidence (H10).

    Args:
        model: a network of this library; or a sequence-to-sequence or language model in the shapes that `beam_search`
            and `greedy_decoding` take. With `generate_candidates`, any object that it accepts.
        input_sequence: ids (S,) or (1,S), or (B,S); with `generate_candidates`, any object that it accepts.
        num_candidates: the number of outputs to draw from the model.
        utility: a name in `atento.metrics.mbr_utilities.UTILITIES`, or a function of two lists of texts (candidates,
            evidence) that returns (N,M); `from_function` makes one from a function of two texts.
        weights: "uniform": each draw counts once; "model": each distinct output counts by the model's probability.
        self_comparison: whether a candidate is also compared with itself, as in the notes.
        max_len: the maximum number of tokens, including EOS.
        seed: one number, or one per row; None uses PyTorch's global generator.
        generate_candidates: (model, input_sequence, num_candidates) -> candidates, texts or lists of tokens, used
            instead of drawing from the model. The notes name this function and do not define it.

    Returns:
        The ids of the best output without EOS; B lists for (B,S) with B > 1; with `generate_candidates` the best of its
        candidates.

    Raises:
        UsageError: ids of another shape, a model without its tokens, or `weights="model"` with `generate_candidates`.
    """
    if generate_candidates is not None:
        if weights != "uniform":
            raise UsageError(
                "`weights` must be 'uniform' with `generate_candidates`: its candidates have no probabilities"
            )
        candidates = list(generate_candidates(model, input_sequence, num_candidates))
        texts = [candidate if isinstance(candidate, str) else " ".join(map(str, candidate)) for candidate in candidates]
        return candidates[minimum_bayes_risk_choice(texts, None, utility, self_comparison=self_comparison).best]
    if not isinstance(input_sequence, torch.Tensor):
        raise UsageError(
            "`input_sequence` must be ids, a tensor, where no `generate_candidates` is given: got "
            f"{type(input_sequence).__name__}"
        )
    ids = input_sequence.unsqueeze(0) if input_sequence.dim() == 1 else input_sequence
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise UsageError(f"`input_sequence` must be ids of shape (S,) or (B,S): got {tuple(input_sequence.shape)}")
    strategy = MBR(
        utility_named(utility) if isinstance(utility, str) else utility,
        Sample(n=num_candidates),
        weights=weights,
        self_comparison=self_comparison,
        text=spelled,
    )
    steps: Any = model  # a step function, or a network that has one
    if not isinstance(model, NetworkOrModel):
        has_stacks = hasattr(model, "encoder") and hasattr(model, "decoder")
        start_id = token_named(model, "sos_token") if has_stacks else None
        eos_id = token_named(model, "eos_token")
        steps = LanguageModelSteps(steps, eos_id) if start_id is None else EncoderDecoderSteps(steps, start_id, eos_id)
    outputs = [best[0].ids for best in generate(steps, ids, strategy, max_new_tokens=max_len, seed=seed)]
    return outputs[0] if len(outputs) == 1 else outputs


def from_function(calculate: Bleu) -> Utility:
    """Make a utility from a function `calculate(reference, candidate)` of two lists of tokens, as in the notes."""

    def utility(candidates: list[str], evidence: list[str]) -> Any:
        return np.array([[calculate(text.split(), candidate.split()) for text in evidence] for candidate in candidates])

    return utility
