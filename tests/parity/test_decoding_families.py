"""Decoding by every family that writes: the tokens of `transformers`, cached equal to uncached, padding either side."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.attention import observe
from atento.decoding import Beam, Greedy, generate
from atento.networks import Decoder, EncoderDecoder
from released import Inputs, saved, theirs

WRITERS = ["gpt1", "gpt2", "llama", "llama tied, wide heads", "t5", "t5 gated", "mt5", "bart", "marian"]
WRITERS += ["marian, two vocabularies of two sizes", "marian, more to read than to write"]
WRITERS += ["mistral", "qwen2, windows from layer 1", "qwen3"]
NEW = 7


def load(name: str, folder: Path) -> tuple[Decoder | EncoderDecoder, object]:
    """Ours and theirs in float64, where ties are no matter."""
    other = theirs(name).double()
    network = atento.load(saved(other, folder), precision="float64").network
    assert isinstance(network, Decoder | EncoderDecoder)
    return network, other


def at_the_front(inputs: Inputs) -> Inputs:
    """The same rows, padded on the right."""
    ids, real = torch.full_like(inputs.ids, int(inputs.ids[~inputs.real][0])), torch.zeros_like(inputs.real)
    for row, (one, there) in enumerate(zip(inputs.ids, inputs.real)):
        ids[row, : int(there.sum())], real[row, : int(there.sum())] = one[there], True
    return replace(inputs, ids=ids, real=real)


@pytest.mark.covering
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", WRITERS)
def test_h1_h12_greedy_equals_transformers(name: str, side: str, tmp_path: Path) -> None:
    """NEW tokens a row, no end; theirs wants prompts padded on the left, and counts a source's padding as places."""
    network, other = load(name, tmp_path)
    inputs, left = Inputs.padded(side, network.config.pad_id), Inputs.padded("left", network.config.pad_id)
    if isinstance(network, EncoderDecoder):
        left = at_the_front(inputs)
    elif side == "right":  # the same rows, moved
        for row, ids in enumerate(ids[real] for ids, real in zip(inputs.ids, inputs.real)):
            left.ids[row, 9 - len(ids) :] = ids
    found = generate(network, inputs.ids, Greedy(), max_new_tokens=NEW, token_mask=inputs.real, eos_id=())
    options: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    options |= dict.fromkeys(("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"))
    options |= {"use_cache": False, "pad_token_id": network.config.pad_id}  # no room for a decoder above its encoder
    start = network.config.start_id if isinstance(network, EncoderDecoder) else None
    read = {"attention_mask": left.real.long(), "decoder_start_token_id": start}
    wanted = other.generate(left.ids, **read, **options)  # type: ignore[attr-defined]
    assert [row[0].ids for row in found] == wanted[:, -NEW:].tolist()


@pytest.mark.parametrize("name", ["gpt1", "gpt2", "llama", "mistral", "qwen3", "t5 gated", "bart", "marian"])
def test_h12_cached_equals_uncached(name: str, tmp_path: Path) -> None:
    """Each token's log-probability under the cache is that of one uncached pass over the whole."""
    network, _ = load(name, tmp_path)
    inputs = Inputs.padded("left", network.config.pad_id)
    found = generate(network, inputs.ids, Beam(3), max_new_tokens=NEW, token_mask=inputs.real, eos_id=())
    for row, (best, *_) in enumerate(found):
        ids = inputs.ids[row][inputs.real[row]]
        with torch.no_grad():
            if isinstance(network, EncoderDecoder):
                logits = network(ids[None], torch.tensor([[network.config.start_id, *best.ids[:-1]]])).logits[0]
            else:
                logits = network(torch.cat([ids, torch.tensor(best.ids[:-1])])[None]).logits[0, len(ids) - 1 :]
        scores = torch.log_softmax(logits, dim=-1)[range(NEW), best.ids]
        torch.testing.assert_close(scores, torch.tensor(best.token_scores, dtype=torch.float64), rtol=0, atol=1e-9)


def test_h12_what_was_written_is_shown_with_its_prompt(tmp_path: Path) -> None:
    """Observed under beam search: the weights over prompt and best output, whole."""
    network, _ = load("gpt2", tmp_path)
    inputs = Inputs.padded("right", network.config.pad_id)
    with observe(network) as seen:
        found = generate(network, inputs.ids, Beam(2), max_new_tokens=3, token_mask=inputs.real, eos_id=())
    weights = seen["decoder", -1]
    read = torch.cat([inputs.ids[0], torch.tensor(found[0][0].ids[:-1])])
    with observe(network) as again, torch.no_grad():
        network(read[None])
    torch.testing.assert_close(weights[0, :, : len(read), : len(read)], again["decoder", -1][0])


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("name", ["llama dynamic", "llama longrope"])
def test_k2_rotations_by_the_length_equal_transformers_with_its_cache(name: str, row: int, tmp_path: Path) -> None:
    """Prompts of 9, 6 and 2 tokens go past the 6 of the training: keys in the cache keep their rotations there too."""
    network, other = load(name, tmp_path)
    inputs = Inputs.padded("right", network.config.pad_id)
    prompt = inputs.ids[row : row + 1, inputs.real[row]]
    (found,) = generate(network, prompt, Greedy(), max_new_tokens=NEW, eos_id=())
    wanted = other.generate(  # type: ignore[attr-defined]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, eos_token_id=None
    )
    assert list(found[0].ids) == wanted[0, prompt.shape[1] :].tolist()
