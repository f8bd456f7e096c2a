"""The listing of sampling with a temperature of the notes (docs/notes.md#k4, #h3).

Where it goes wrong there (spec error 38): it draws from all positions at once, works on one sentence, divides by a
temperature of 0, and keeps EOS.
"""

from typing import Any

from torch import Tensor

from atento.decoding import Sample, generate
from atento.errors import UsageError
from atento.notes.listing_search import LanguageModelSteps, token_named


def random_sampling_with_temperature(
    model: Any, input_seq: Tensor, max_length: int, temperature: float = 1.0, *, seed: int | None = None
) -> list[int] | list[list[int]]:
    """Tokens drawn from softmax(scores / temperature) until EOS, or `max_length` tokens with EOS counted (H2, H3).

    Args:
        model: a language model: a callable from ids (B,L) to logits or log-probabilities, (B,L,V) or (B,V), with
            `eos_token`; or a network of this library, `input_seq` then being the source.
        input_seq: (L,) or (1,L), what to go on from; or (B,L), B such, all of the same length.
        max_length: at most so many new tokens.
        temperature: 1 leaves the distribution as it is, below it is sharper, above flatter; 0 is greedy search.
        seed: None draws by chance, from PyTorch's generator.

    Returns:
        The new ids without EOS: one list for (L,) and (1,L), as in the notes; B lists for (B,L) with B > 1.

    Raises:
        UsageError: a model without `eos_token`, ids of another shape, or a temperature that cannot be.
    """
    ids = input_seq.unsqueeze(0) if input_seq.dim() == 1 else input_seq
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise UsageError(f"`input_seq` must be ids of shape (L,), (1,L) or (B,L): got {tuple(input_seq.shape)}")
    steps = model if hasattr(model, "step_function") else LanguageModelSteps(model, token_named(model, "eos_token"))
    try:
        strategy = Sample(temperature=temperature)
    except ValueError as error:
        raise UsageError(str(error)) from None
    found = [drawn[0].ids for drawn in generate(steps, ids, strategy, max_new_tokens=max_length, seed=seed)]
    return found[0] if len(found) == 1 else found
