"""Writes a model for CTranslate2, which does not hold every network, and compares what it computes with it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import ADDED, PositionConfig
from atento.config.tables.head_kinds import OF_TRAINING
from atento.inference.choose import reader, step_function
from atento.model import Model
from atento.networks import Network
from atento_cli.convert.comparison import (
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
from atento_cli.convert.ctranslate2_spec import specification
from atento_cli.convert.token_names import Vocabulary, vocabulary_of

PRECISIONS = ("float32", "bfloat16", "float16", "int8")


def why_not(model: Model) -> str | None:
    """The first part of the model that CTranslate2 does not hold; None if it holds all."""
    return why_not_held(model.network.config)


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

    config, function = network.config, step_function(network, engine="auto")
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

    config, function = network.config, step_function(network, engine="auto")
    expected, ours = timed(lambda: greedy_outputs(function, config, rows))
    generator = ctranslate2.Generator(str(folder), **_options())
    prompts = _names(rows, vocabulary.target)
    options = {"max_length": new_tokens(config, rows), "include_prompt_in_result": False}
    results, theirs = timed(lambda: generator.generate_batch(prompts, **options, end_token=list(config.eos_ids)))
    outputs = [list(result.sequences_ids[0]) for result in results]
    logits = np.array(generator.forward_batch(prompts))  # (B,L,V)
    ids, token_mask = padded(rows, config.pad_id)
    with torch.inference_mode():
        reference = network(ids, token_mask=token_mask).logits.numpy()  # (B,L,V)
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
        expected, ours = timed(lambda: reading(ids, token_mask=token_mask, project=False).hidden)  # (B,L,D)
    encoder = ctranslate2.Encoder(str(folder), **_options())
    texts = _names(rows, vocabulary.source)
    hidden, theirs = timed(lambda: np.array(encoder.forward_batch(texts).last_hidden_state))  # (B,L,D)
    computed = [vectors[: len(row)] for vectors, row in zip(hidden, rows)]
    references = [vectors[: len(row)].numpy() for vectors, row in zip(expected, rows)]
    difference, tokens = largest_difference(computed, references), sum(map(len, rows))
    return Comparison(
        "hidden vectors", difference, cosine(computed, references), "directions", tokens / ours, tokens / theirs
    )


PRETRAINING_HEADS = ("masked-language-model", "next-sentence", "replaced-token", *OF_TRAINING)
"""Heads that a converted encoder leaves out: it gives hidden vectors."""
FEATURES = "vectors of a trained encoder as inputs (`network.features`)"
_RELATIVE = {"rotary": "rotary", "t5": "T5", "alibi": "ALiBi", "shaw": "Shaw's", "disentangled": "disentangled"}


def why_not_held(config: NetworkConfig) -> str | None:
    """The first part of the network that CTranslate2 does not hold; None if it holds all."""
    return next(_not_held(config), None)


def _not_held(config: NetworkConfig) -> Iterator[str]:
    if config.architecture not in ("encoder", "decoder", "encoder-decoder"):
        yield f"networks of architecture {config.architecture}"
        return
    for present, part in (
        (config.layer_mix, "a learned mix of layers"),
        (config.features is not None, FEATURES),
        (config.attention.sparse is not None, "sparse attention"),
        (config.convolution is not None, "a convolution over the input"),
        (config.embedding.width is not None, "embeddings narrower than the layers"),
        (config.norm == "pre" and not config.first_norm, "a first layer without a norm"),
        (bool(config.projections), "linear maps of text vectors"),
        (config.attention.norm and config.reads_source, "normalised queries and keys in an encoder-decoder"),
    ):
        if present:
            yield part
    # the engine has a window for decoders, but reads prompts of several lengths in one batch wrongly with it
    mask, usual = config.mask, "causal" if config.architecture == "decoder" else "bidirectional"
    if mask is not None and mask.kind != usual:
        yield f"a {mask.kind} mask"
    relative = [scheme for scheme in config.schemes if scheme.kind not in ADDED]
    if len(relative) > 1 or (relative and len(relative) < len(config.schemes)):
        yield "several position schemes together"
    for scheme in config.schemes:
        yield from _scheme(config, scheme)
    for head in config.heads:
        if config.architecture != "encoder" or head.kind not in PRETRAINING_HEADS:
            yield f"{'an' if head.kind == 'answer' else 'a'} {head.kind} head"


def _scheme(config: NetworkConfig, scheme: PositionConfig) -> Iterator[str]:
    if scheme.layers is not None:
        yield "positions in single layers"
    if scheme.kind in ADDED:
        return
    name = _RELATIVE.get(scheme.kind, scheme.kind)
    if scheme.heads is not None or scheme.gate:
        yield f"{name} positions of single heads" if scheme.heads is not None else f"gated {name} positions"
    if scheme.kind in ("matrix", "disentangled"):
        yield f"{name} positions"
    if scheme.kind == "alibi" and config.architecture != "decoder":
        yield "ALiBi positions in an encoder"
    if scheme.kind == "t5" and scheme.shared is False:
        yield "T5 positions of each layer"
    if scheme.kind == "shaw" and (scheme.shared or not scheme.values):
        yield "Shaw's positions without a table of values" if not scheme.values else "Shaw's positions shared by layers"
    if scheme.stretch is not None and config.architecture != "decoder":
        yield "stretched rotary positions in an encoder"
    if scheme.stretch is not None and scheme.stretch.yarn:
        yield "rotary positions that scale queries and keys (YaRN)"
    if scheme.stretch is not None and (scheme.stretch.dynamic or scheme.stretch.long):
        yield "rotary positions that go by the length of a text"
