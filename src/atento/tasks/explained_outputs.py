"""Outputs that can be explained: the log-probability of each word that a model writes, or puts in place of a mask."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.masks import causal, prefix
from atento.config.tables.tasks import task_with
from atento.data.batches.special_tokens import WITH_SOURCE, special_tokens_of
from atento.errors import CapabilityError, UsageError
from atento.inspection.attributions import Inputs, Reading
from atento.networks import Encoder, Network
from atento.tasks.explained_predictions import Explained, summed
from atento.tasks.explained_texts import TextTokens, TokenGroups, mean_rows, of_ids, text_tokens
from atento.tasks.filling import mask_log_probs, predicts_masks, target_ids, why_not_filled
from atento.tasks.generation import continuation_ids
from atento.tasks.model_outputs import network_for, writer_of
from atento.tasks.task_model import TaskModel, prompt_mode, prompt_template, tokenizer_of
from atento.tasks.translation_languages import begin_in, in_languages


def explained_output(model: TaskModel, verb: str, texts: Sequence[str], target: object, **named: object) -> Explained:
    """The log-probability of each word of an output: the model's own, or the target; its end counts as a word."""
    if len(texts) != 1:
        raise UsageError("give one text, and an output as `target`: got two texts")
    if target is not None and not isinstance(target, str):
        raise UsageError(f"`target` must be an output, a text: got {target!r}")
    network, tokenizer = network_for(model, task_with(verb)), tokenizer_of(model)
    config, written = network.config, tokenizer.target
    options: Any = named
    if target is None:
        output = writer_of(model, task_with(verb), 1, options, embedder=model.embedder).write(texts)[0][0]
        # EOS counts, if the model chose to end
        ids = [*output.hypothesis.ids, *([config.eos_id] if output.hypothesis.finished else [])]
        name = output.text
    else:
        reads_source, name = config.architecture in WITH_SOURCE, target
        ids = written.encode(target) if reads_source else continuation_ids(tokenizer, texts, [target])[0]
        ids = [*begin_in(config, tokenizer, options), *ids, config.eos_id] if ids else ids
    if not ids:
        raise UsageError("the output is empty, so there is nothing to explain")
    tokens, groups = of_ids(written, ids, "output"), TokenGroups()
    if config.architecture in WITH_SOURCE:
        template = in_languages(config, tokenizer, options)[0] or special_tokens_of(config, tokenizer)
        source, _, of_source = groups.row(tokenizer, template, text_tokens(model, texts[0], "source"))
        start = groups.of_special(written, config.start_id, -1, "output")  # -1: a group of its own, before the words
        # each token is predicted from those before it
        rows = {"source_ids": source, "target_ids": [config.start_id, *ids[:-1]]}
        columns, first = {"source_ids": of_source, "target_ids": [start]}, 0
    else:
        template = tokenizer.template(prompt_template(network, model.config))
        prompt, _, of_prompt = groups.row(tokenizer, template, text_tokens(model, texts[0], "prompt"))
        # the last place of the prompt predicts the first token
        rows, columns, first = {"ids": [*prompt, *ids[:-1]]}, {"ids": of_prompt}, len(prompt) - 1
    last = list(columns)[-1]
    # the last token is only predicted
    columns[last] = [*columns[last], *(groups.of(tokens, place) for place in range(len(ids) - 1))]
    return _explained(model, network, rows, columns, (groups, tokens, range(first, first + len(ids)), name))


def explained_mask(model: TaskModel, verb: str, texts: Sequence[str], target: object) -> Explained:
    """The log-probability of the token at each mask: the most probable one, or the target's word for it."""
    if not predicts_masks(model):
        raise CapabilityError("filled masks are explained of masked models: this one writes what it fills")
    if len(texts) != 1 or (reason := why_not_filled(model, texts[0])) is not None:
        raise UsageError("give one text with masks: got two" if len(texts) != 1 else f"the text {reason}")
    tokenizer, groups = tokenizer_of(model), TokenGroups()
    template = special_tokens_of(model.network.config, tokenizer, model.config.get("template"))
    tokens = of_ids(tokenizer, tokenizer.encode_with_mask(texts[0]), "text")
    row, _, columns = groups.row(tokenizer, template, tokens)
    at = [place for place, token in enumerate(row) if token == tokenizer.mask_id]
    if target is None:
        # each mask with the others in place
        ids = mask_log_probs(model.reader(), tokenizer, [row] * len(at), at).argmax(dim=-1).tolist()
    elif isinstance(target, str) and len(target.split()) == len(at):
        ids = target_ids(tokenizer, target.split())
    else:
        raise UsageError(f"`target` must be a word for each mask, {len(at)} here: got {target!r}")
    words = [tokenizer.decode([token]).strip() or tokenizer.tokens([token])[0] for token in ids]
    filled = TextTokens(ids, list(range(len(ids))), words, "output")
    output = (groups, filled, at, " ".join(words))
    return _explained(model, model.network, {"ids": row}, {"ids": columns}, output, masked=True)


def _explained(
    model: TaskModel,
    network: Network,
    rows: dict[str, list[int]],
    columns: dict[str, list[int]],
    output: tuple[TokenGroups, TextTokens, Sequence[int], str],
    *,
    masked: bool = False,
) -> Explained:
    """The words of an output as numbers; each of its tokens is predicted `at` a column, `masked` reads both sides."""
    groups, tokens, at, name = output
    device, last = next(network.parameters()).device, list(rows)[-1]
    inputs = {key: torch.tensor([ids], device=device) for key, ids in rows.items()}
    inputs["positions"] = torch.tensor([list(at)], device=device)
    order = {word: number for number, word in enumerate(dict.fromkeys(tokens.index))}
    member = [order[word] for word in tokens.index]  # of each token, the number of its word
    # of each word, the columns at which its tokens are predicted
    places = [[at[n] for n, part in enumerate(member) if part == number] for number in range(len(order))]
    labels = torch.tensor(tokens.ids, device=device)
    prefixed = last == "ids" and prompt_mode(network, model.config) == "prefix"

    def values(network: Network, given: Inputs) -> Tensor:
        own: dict[str, object] = {key: value for key, value in given.items() if key != "positions"}
        positions = given["positions"]
        if prefixed:
            # the prompt, to its last column, is read from both sides
            own["mask"] = network.in_place_of_its_mask(prefix(positions[:, 0]))
        elif isinstance(network, Encoder) and not masked:
            own["mask"] = network.in_place_of_its_mask(causal())  # an encoder that writes sees what is before
        hidden = network(**own, project=False).hidden
        logits = network.project(hidden[torch.arange(len(hidden), device=device)[:, None], positions])  # (B,P,V)
        logs = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
        return summed(logs.gather(2, labels.expand(len(logs), -1)[..., None])[..., 0], member, len(order))  # (B,O)

    reads = {last: mean_rows(places, len(rows[last]))}
    reading = Reading(
        inputs,
        columns,
        groups.special,
        values,
        reads,
        positions={"positions": last},
        width=len(tokens.ids) * network.config.target_vocab_size,
    )
    return Explained([reading], groups, name, "log-probability of the words", [tokens.words[word] for word in order])
