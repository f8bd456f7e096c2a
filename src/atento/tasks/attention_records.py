"""The attention weights of one text or pair of texts, as a record that can be drawn."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

import atento.inspection.decoding_page  # noqa: F401  notebooks show traces as its pages
from atento.attention import observe
from atento.base.errors import CapabilityError, UsageError, counted
from atento.config.sections.network import NetworkConfig
from atento.data.batches.special_tokens import special_tokens_of
from atento.inspection import AttentionRecord
from atento.networks import Decoder, Encoder, EncoderDecoder, RecurrentSeq2Seq
from atento.tasks.model_outputs import generator_of, writing_task
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.tasks.translation_languages import begin_in, in_languages
from atento.text.tokenizer import Tokenizer

_MOST = 1 << 28  # weights of all layers and heads, of 4 bytes each


@torch.inference_mode()
def attention_record(
    model: TaskModel,
    text: str,
    target: str | None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> AttentionRecord:
    """Run the network once over a text, or a pair with a gold prefix, and record all layers and heads.

    See docs/notes.md#a11. The decoder reads `tokens` (<s> y1 ... yn) and writes `output_tokens` (y1 ... yn </s>): row t
    of "decoder" and "cross" has the weights with which it writes the t-th of these.

    Args:
        target: the output of an encoder-decoder; None: what the model writes for the text.
        options: they name the languages of a multilingual encoder-decoder; that of the target is among the tokens.

    Raises UsageError: a blank text. CapabilityError: a target for a network that reads one text; no attention.
    """
    network, tokenizer = model.network, tokenizer_of(model)
    if not text.strip():
        raise UsageError("give a text to look at: got an empty one")
    if isinstance(network, Encoder | Decoder):
        if target is not None:
            raise CapabilityError("this model reads one text: `target` is for an encoder-decoder")
        ids, _ = special_tokens_of(network.config, tokenizer, model.config.get("template")).apply(
            tokenizer.encode(text)
        )
        return record_of_ids(model, ids, title=text)
    if not isinstance(network, EncoderDecoder | RecurrentSeq2Seq):
        raise CapabilityError(f"there is no attention to look at in {type(network).__name__}")
    if target is None:
        generator = generator_of(model, writing_task(model), None, {}, embedder=model.embedder)
        target = generator.write([text])[0][0].text
    config = network.config
    device = next(network.parameters()).device
    output_tokenizer = tokenizer.target  # of another vocabulary in Marian's models, else the same
    begin = begin_in(model, options)
    target_ids, begun = [*begin, *output_tokenizer.encode(target)], len(begin)
    special_tokens = in_languages(model, options)[0] or special_tokens_of(config, tokenizer)
    source_ids, _ = special_tokens.apply(tokenizer.encode(text))
    _refuse_size(config, len(source_ids), 1 + len(target_ids))
    source = torch.tensor([source_ids], device=device)
    shifted = torch.tensor([[config.start_id, *target_ids]], device=device)
    with observe(network) as recorded:
        network(source, shifted, project=False)
    kinds = {
        kind: [recorded[kind, layer][0].cpu().numpy() for layer in range(depth)]
        for kind, depth in recorded.n_layers.items()
    }
    output_ids = [*target_ids, config.eos_id]
    special = set(tokenizer.specials.ids.values())
    return AttentionRecord(
        tokens=output_tokenizer.tokens(shifted[0].tolist()),
        words=[-1, *_words(output_tokenizer, target_ids)],
        special=[True] * (1 + begun) + [False] * (len(target_ids) - begun),
        output_tokens=output_tokenizer.tokens(output_ids),
        output_words=[*_words(output_tokenizer, target_ids), -1],
        output_special=[True] * begun + [False] * (len(target_ids) - begun) + [True],
        source_tokens=tokenizer.tokens(source_ids),
        source_words=_words(tokenizer, source_ids),
        source_special=[token in special for token in source_ids],
        kinds=kinds,
        masks={"encoder": mask_name(config), "decoder": "causal", "cross": "bidirectional over the source"},
        title=f"{text} → {target}",
        model=str(model.config.get("name", "")),
    )


def record_of_ids(
    model: TaskModel, ids: list[int], *, segments: Sequence[int] = (), title: str = ""
) -> AttentionRecord:
    """Self-attention over ids with the special tokens that training, `generate` and `embed` put around a text.

    Args:
        segments: the segment of each id, where two texts are read; if empty, the network is given none.
    """
    network, tokenizer = model.network, tokenizer_of(model)
    _refuse_size(network.config, len(ids), 0)
    device = next(network.parameters()).device
    inputs = {"segment_ids": torch.tensor([segments], device=device)} if segments else {}
    with observe(network) as recorded:
        network(torch.tensor([ids], device=device), project=False, **inputs)
    kind = "encoder" if isinstance(network, Encoder) else "decoder"
    special = set(tokenizer.specials.ids.values())
    return AttentionRecord(
        tokens=tokenizer.tokens(ids),
        words=_words(tokenizer, ids),
        special=[token in special for token in ids],
        kinds={kind: [recorded[kind, layer][0].cpu().numpy() for layer in range(recorded.n_layers[kind])]},
        masks={kind: mask_name(network.config)},
        title=title,
        model=str(model.config.get("name", "")),
    )


def _refuse_size(config: NetworkConfig, source: int, target: int) -> None:
    """Raises UsageError: there are too many weights to look at for texts of so many tokens."""
    weights = config.n_heads * (config.n_layers * source**2 + config.decoder_layers * target * (target + source))
    if weights > _MOST:
        raise UsageError(
            f"attention has {weights:,} weights for {source + target:,} tokens, and {_MOST:,} can be looked at: give a "
            "shorter text"
        )


def mask_name(config: NetworkConfig) -> str:
    """The mask of self-attention over the text that a network reads, as a page says it."""
    usual, mask = "causal" if config.architecture == "decoder" else "bidirectional", config.mask
    if mask is None:
        return usual
    left, right = ("all" if side is None else f"{side}" for side in (mask.left, mask.right))
    window = f"window of {left} before" if usual == "causal" else f"window of {left} before and {right} after"
    name = {
        "prefix": f"prefix of {counted(mask.length, 'token')}, then causal",
        "lookahead": f"causal with {counted(mask.ahead, 'token')} ahead",
        "window": f"causal, {window}" if usual == "causal" else window,
    }.get(mask.kind, mask.kind)
    if mask.layers is None:
        return name
    layers = "layer" if len(mask.layers) == 1 else "layers"
    return f"{name} in {layers} {', '.join(map(str, mask.layers))}; else {usual}"


def _words(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The word of each token, -1 for a token that belongs to none."""
    return [-1 if word is None else word for word in tokenizer.words(ids).index]
