"""Writes a model for CTranslate2, and compares what it computes with the network."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from atento.convert import ctranslate2_limits
from atento.convert.comparison import (
    Comparison,
    Rows,
    cosine,
    greedy_outputs,
    largest_difference,
    new_tokens,
    padded,
    same_tokens,
    sample_rows,
    timed,
    token_log_probs,
)
from atento.convert.ctranslate2_spec import specification
from atento.convert.token_names import Vocabulary, vocabulary_of
from atento.inference.choose import reader, step_function
from atento.model import Model
from atento.networks import Network

PRECISIONS = ("float32", "bfloat16", "float16", "int8")


def why_not(model: Model) -> str | None:
    """The first part of the model that CTranslate2 does not hold; None if it holds all."""
    return ctranslate2_limits.why_not_held(model.network.config)


def warnings_of(model: Model) -> tuple[str, ...]:
    """The heads that are not converted: those of pretraining, on an encoder."""
    heads = ", ".join(head.name for head in model.network.config.heads)
    return (f"CTranslate2 gives hidden vectors; left out: the head {heads}",) if heads else ()


def write(model: Model, folder: Path, precision: str) -> None:
    """Write `model.bin`, the vocabulary and `config.json`."""
    config = model.network.config
    vocabulary = vocabulary_of(model.tokenizer, config.vocab_size, config.target_vocab_size)
    write_network(model.network, vocabulary, folder, precision)


def write_network(network: Network, vocabulary: Vocabulary, folder: Path, precision: str) -> None:
    """Write a network; in int8 its linear maps and embeddings have a scale for each row."""
    made = specification(network, vocabulary)
    made.validate()
    made.optimize(quantization=precision)
    made.save(str(folder))


def compare(model: Model, folder: Path, seed: int) -> Comparison:
    """Run the folder's model and the network on the same random ids."""
    config = model.network.config
    vocabulary = vocabulary_of(model.tokenizer, config.vocab_size, config.target_vocab_size)
    compare_kind: Callable[..., Comparison] = {
        "encoder-decoder": _compare_translator,
        "decoder": _compare_generator,
        "encoder": _compare_encoder,
    }[config.architecture]
    return compare_kind(model.network, folder, vocabulary, sample_rows(config, seed))


def _options() -> dict[str, object]:
    return {"device": "cpu", "inter_threads": 1, "intra_threads": torch.get_num_threads()}


def _names(rows: Rows, names: tuple[str, ...]) -> list[list[str]]:
    return [[names[token] for token in row] for row in rows]


def _compare_translator(network: Network, folder: Path, vocabulary: Vocabulary, rows: Rows) -> Comparison:
    import ctranslate2

    config, function = network.config, step_function(network)
    expected, ours = timed(lambda: greedy_outputs(function, config, rows))
    translator = ctranslate2.Translator(str(folder), **_options())
    sources = _names(rows, vocabulary.source)
    limit = new_tokens(config, rows)
    # CTranslate2 by itself writes at least one token
    options: dict[str, object] = {"beam_size": 1, "min_decoding_length": 0, "max_decoding_length": limit}
    results, theirs = timed(lambda: translator.translate_batch(sources, **options, end_token=list(config.eos_ids)))
    numbers = {name: number for number, name in enumerate(vocabulary.target)}
    outputs = [[numbers[token] for token in result.hypotheses[0]] for result in results]
    scored = translator.score_batch(sources, _names(expected, vocabulary.target))
    log_probs = token_log_probs(network, rows, expected)
    difference = largest_difference([np.array(r.log_probs) for r in scored], [np.array(r) for r in log_probs])
    written, tokens = sum(map(len, expected)), sum(map(len, outputs))
    agreement = same_tokens(outputs, expected)
    return Comparison("log-probabilities", difference, agreement, "greedy tokens", written / ours, tokens / theirs)


def _compare_generator(network: Network, folder: Path, vocabulary: Vocabulary, rows: Rows) -> Comparison:
    import ctranslate2

    config, function = network.config, step_function(network)
    expected, ours = timed(lambda: greedy_outputs(function, config, rows))
    generator = ctranslate2.Generator(str(folder), **_options())
    prompts = _names(rows, vocabulary.target)
    options = {"max_length": new_tokens(config, rows), "include_prompt_in_result": False}
    results, theirs = timed(lambda: generator.generate_batch(prompts, **options, end_token=list(config.eos_ids)))
    outputs = [list(result.sequences_ids[0]) for result in results]
    logits = np.array(generator.forward_batch(prompts))
    ids, token_mask = padded(rows, config.pad_id)
    with torch.inference_mode():
        reference = network(ids, token_mask=token_mask).logits.numpy()
    cut = [[vectors[: len(row)] for vectors, row in zip(side, rows)] for side in (logits, reference)]  # without padding
    difference = largest_difference(*cut)
    written, tokens = sum(map(len, expected)), sum(map(len, outputs))
    agreement = same_tokens(outputs, expected)
    return Comparison("logits", difference, agreement, "greedy tokens", written / ours, tokens / theirs)


def _compare_encoder(network: Network, folder: Path, vocabulary: Vocabulary, rows: Rows) -> Comparison:
    import ctranslate2

    config, reading = network.config, reader(network)
    ids, token_mask = padded(rows, config.pad_id)
    with torch.inference_mode():
        expected, ours = timed(lambda: reading(ids, token_mask=token_mask, project=False).hidden)
    encoder = ctranslate2.Encoder(str(folder), **_options())
    texts = _names(rows, vocabulary.source)
    hidden, theirs = timed(lambda: np.array(encoder.forward_batch(texts).last_hidden_state))
    computed = [vectors[: len(row)] for vectors, row in zip(hidden, rows)]
    references = [vectors[: len(row)].numpy() for vectors, row in zip(expected, rows)]
    difference, tokens = largest_difference(computed, references), sum(map(len, rows))
    return Comparison(
        "hidden vectors", difference, cosine(computed, references), "directions", tokens / ours, tokens / theirs
    )
