"""The listing of sampling with a temperature of the notes (docs/notes.md#k4, #h3).

Errors of the listing in the notes (38): it draws from all positions at once, processes one sentence, divides by a
temperature of 0, and keeps EOS.
"""

from typing import Any

from torch import Tensor

from atento.base.errors import UsageError
from atento.decoding import Sample, generate
from atento.decoding.source import NetworkOrModel
from atento.notes.listing_search import LanguageModelSteps, token_named


def random_sampling_with_temperature(
    model: Any, input_seq: Tensor, max_length: int, temperature: float = 1.0, *, seed: int | None = None
) -> list[int] | list[list[int]]:
    """Draw tokens from softmax(scores / temperature) until EOS, or `max_length` tokens including EOS (H2, H3).

    Args:
        model: a language model: a callable from ids (B,L) to logits or log-probabilities, (B,L,V) or (B,V), with
            `eos_token`; or a network of this library, whose source is `input_seq`.
        input_seq: the prompt, (L,) or (1,L); or (B,L), B prompts of the same length.
        max_length: the maximum number of new tokens.
        temperature: 1 leaves the distribution unchanged, lower values sharpen it, higher ones flatten it; 0 is greedy
            search.
        seed: None uses PyTorch's global generator.

    Returns:
        The new ids without EOS: one list for (L,) and (1,L), as in the notes; B lists for (B,L) with B > 1.

    Raises:
        UsageError: a model without `eos_token`, ids of another shape, or an invalid temperature.
    """
    ids = input_seq.unsqueeze(0) if input_seq.dim() == 1 else input_seq
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise UsageError(f"`input_seq` must be ids of shape (L,), (1,L) or (B,L): got {tuple(input_seq.shape)}")
    steps = model if isinstance(model, NetworkOrModel) else LanguageModelSteps(model, token_named(model, "eos_token"))
    try:
        strategy = Sample(temperature=temperature)
    except ValueError as error:
        raise UsageError(str(error)) from None
    outputs = [hypotheses[0].ids for hypotheses in generate(steps, ids, strategy, max_new_tokens=max_length, seed=seed)]
    return outputs[0] if len(outputs) == 1 else outputs
