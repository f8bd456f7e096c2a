"""Explanations of predictions: which words of a text, a pair, a question or a source it comes from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.masks import causal, prefix
from atento.base.errors import CapabilityError, UsageError, nearest
from atento.config.tables.tasks import task_with, verb_of
from atento.config.tables.verbs import EXPLANATIONS
from atento.data.batches.special_tokens import WITH_SOURCE, special_tokens_of
from atento.data.batches.whole_words import characters_of_words
from atento.inspection.attributions import (
    AttributedInput,
    Attribution,
    Inputs,
    gradient_input,
    integrated_gradients,
    leave_out,
    rollout,
)
from atento.inspection.explanation import Explanation
from atento.networks import Encoder, Network
from atento.tasks.explainable_outputs import (
    Explained,
    explained_answer,
    explained_label,
    explained_similarity,
    explained_tags,
    summed,
)
from atento.tasks.explained_tokens import TextTokens, TokenGroups, mean_rows, of_ids, text_tokens
from atento.tasks.mask_filling import mask_log_probs, predicts_masks, target_ids, why_not_filled
from atento.tasks.model_outputs import generator_of, network_for
from atento.tasks.prompt_ids import continuation_ids
from atento.tasks.task_model import TaskModel, for_head, tokenizer_of
from atento.tasks.translation_languages import TranslationOptions, begin_in, in_languages
from atento.text.kinds import check_texts


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
        output = generator_of(model, task_with(verb), 1, options, embedder=model.embedder).write(texts)[0][0]
        # EOS counts, if the model chose to end
        ids = [*output.hypothesis.ids, *([config.eos_id] if output.hypothesis.finished else [])]
        name = output.text
    else:
        reads_source, name = config.architecture in WITH_SOURCE, target
        ids = written.encode(target) if reads_source else continuation_ids(tokenizer, texts, [target])[0]
        ids = [*begin_in(model, options), *ids, config.eos_id] if ids else ids
    if not ids:
        raise UsageError("the output is empty, so there is nothing to explain")
    tokens, groups = of_ids(written, ids, "output"), TokenGroups()
    if config.architecture in WITH_SOURCE:
        template = in_languages(model, options)[0] or special_tokens_of(config, tokenizer)
        source, _, of_source = groups.row(tokenizer, template, text_tokens(model, texts[0], "source"))
        start = groups.of_special(written, config.start_id, -1, "output")  # -1: a group of its own, before the words
        # each token is predicted from those before it
        rows = {"source_ids": source, "target_ids": [config.start_id, *ids[:-1]]}
        columns, first = {"source_ids": of_source, "target_ids": [start]}, 0
    else:
        template = tokenizer.template(model.prompt_template)
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
    prefixed = last == "ids" and model.prompt == "prefix"

    def values(network: Network, given: Inputs) -> Tensor:
        own: dict[str, object] = {key: value for key, value in given.items() if key != "positions"}
        positions = given["positions"]
        if prefixed:
            # the prompt, to its last column, is read from both sides
            own["mask"] = network.with_own_window(prefix(positions[:, 0]))
        elif isinstance(network, Encoder) and not masked:
            own["mask"] = network.with_own_window(causal())  # an encoder that writes sees what is before
        hidden = network(**own, project=False).hidden
        logits = network.project(hidden[torch.arange(len(hidden), device=device)[:, None], positions])  # (B,P,V)
        logs = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
        return summed(logs.gather(2, labels.expand(len(logs), -1)[..., None])[..., 0], member, len(order))  # (B,O)

    reads = {last: mean_rows(places, len(rows[last]))}
    reading = AttributedInput(
        inputs,
        columns,
        groups.special,
        values,
        reads,
        positions={"positions": last},
        width=len(tokens.ids) * network.config.target_vocab_size,
    )
    return Explained([reading], groups, name, "log-probability of the words", [tokens.words[word] for word in order])


EXPLAINED: dict[str, Callable[..., Explained]] = {
    "classify": explained_label,
    "tag": explained_tags,
    "answer": explained_answer,
    "similarity": explained_similarity,
    "translate": explained_output,
    "summarize": explained_output,
    "generate": explained_output,
    "fill": explained_mask,
}


@torch.inference_mode(False)
def explain(
    model: TaskModel,
    text: str | tuple[str, str],
    method: str = "integrated-gradients",
    target: str | int | tuple[int, str] | None = None,
    *,
    verb: str | None = None,
    steps: int | None = None,
    head: str | None = None,
    **options: Unpack[TranslationOptions],
) -> Explanation:
    """Explain a prediction: how much each word that the model reads adds to the number that it predicts.

    The number is the log-odds of a label or of the tags of entities; the log-probability of each word of an output, or
    of what fills each mask; the sum of the scores of the start and the end of an answer; the cosine of two texts, or
    the number of a regression.
    See docs/explanations.md.

    Args:
        text: a text, a source or a prompt; a tuple of two texts, or of a question and its context.
        method: integrated-gradients (Sundararajan et al. 2017), gradient-input (Shrikumar et al. 2016), rollout
            (Abnar & Zuidema 2020) or leave-out.
        target: another prediction than the model's own: a label; the number of a word, from 0, with its tag or without;
            an answer, which is part of the context; an output; a word for each mask.
        verb: what the model does, where it does several things: classify, tag, answer, similarity, translate,
            summarize, generate or fill. None: what it was trained for.
        steps: of integrated gradients; None: as many as keep the error below 1 % of the total, at most 512.
        head: the name of a head, of a model that has several; None: the only one that does it.
        options: of `translate` or `generate`, for the output that is explained.

    Raises:
        UsageError: no such method or target, or an empty text. CapabilityError: the model predicts nothing that can be
            explained, or the method does not fit its network.
    """
    if method not in EXPLANATIONS:
        raise UsageError(f"unknown method {method!r}{nearest(method, list(EXPLANATIONS))}")
    if steps is not None and (method != EXPLANATIONS[0] or not 1 <= steps <= 4096):
        raise UsageError(f"`steps`, 1 to 4096, are those of {EXPLANATIONS[0]}: got {steps} with {method}")
    texts = list(text) if isinstance(text, tuple | list) else [text]
    check_texts(texts)
    if len(texts) > 2 or not all(part.strip() for part in texts):
        raise UsageError(f"give a text to explain, or a tuple of two texts: got {text!r:.60}")
    model = for_head(model, head, verb)
    if not verb:
        verb = str(verb_of(model.config.get("task")))
        if len(texts) == 2 and (verb == "fill" or verb not in EXPLAINED):
            verb = "similarity"  # of two vectors, which every encoder has
        if verb not in EXPLAINED:
            raise CapabilityError(
                f"this model does {model.config.get('task')}, which has no prediction to explain: give a tuple of two "
                "texts, whose similarity is explained"
            )
    if verb not in EXPLAINED:
        raise UsageError(f"`verb` {verb!r} cannot be explained{nearest(verb, list(EXPLAINED))}")
    if model.words is not None and not model.network.config.heads:
        raise CapabilityError("a model of words alone has no prediction to explain: explain a model with a head")
    if options and EXPLAINED[verb] is not explained_output:
        raise UsageError(f"`{next(iter(options))}` has no effect: the model writes nothing")
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode is
        explained = EXPLAINED[verb](model, verb, texts, target, **options)
        attributions = [_attribution(model, reading, method, steps) for reading in explained.readings]
    return _explanation(model, explained, attributions, method, " | ".join(texts))


def _mask_id(model: TaskModel) -> int | None:
    """The mask of an encoder that reads tokens, which takes the place of what is left out."""
    tokenizer = tokenizer_of(model)
    return tokenizer.mask_id if isinstance(model.network, Encoder) and "mask" in tokenizer.specials.roles else None


def _attribution(model: TaskModel, reading: AttributedInput, method: str, steps: int | None) -> Attribution:
    if method == "integrated-gradients":
        config, mask_id = model.network.config, _mask_id(model)  # the mask is the baseline, else padding
        baseline = tokenizer_of(model).pad_id if mask_id is None else mask_id
        reads_characters = characters_of_words(config) is not None
        return integrated_gradients(model.network, reading, None if reads_characters else baseline, steps)
    if method == "leave-out":
        return leave_out(model.network, reading, _mask_id(model))
    return (gradient_input if method == "gradient-input" else rollout)(model.network, reading)


def _explanation(
    model: TaskModel, explained: Explained, attributions: Sequence[Attribution], method: str, title: str
) -> Explanation:
    """The explanation of numbers that one or several rows give."""
    groups, count = explained.groups, len(explained.groups.words)
    rows = [np.pad(one.scores, [(0, 0), (0, count - one.scores.shape[1])]) for one in attributions]
    scores = np.sum(rows, axis=0) + 0.0  # no -0.0
    totals = np.sum([one.totals for one in attributions], axis=0)
    values = np.sum([one.values for one in attributions], axis=0)
    mask_id, characters = _mask_id(model), characters_of_words(model.network.config) is not None
    token = "zero" if characters else "padding token's" if mask_id is None else "mask token's"
    baseline = {  # what a method compares with, in words
        "integrated-gradients": f"the {token} vector in place of each word's, special tokens as they are",
        "gradient-input": "zero vectors in place of all tokens, by the slope alone",
        "leave-out": "the text without the word" if mask_id is None else "the mask token in place of the word",
        "rollout": "",
    }[method]
    whole = Explanation(
        groups.words,
        scores.sum(axis=0).tolist(),
        method,
        explained.target,
        float(totals.sum()),
        explained.quantity,
        float(values.sum()),
        baseline,
        abs(float((scores.sum(axis=1) - totals).sum())),
        max(one.steps for one in attributions),
        groups.special,
        groups.sides,
        title=title,
        model=str(model.config.get("name", "")),
    )
    if method == "rollout":  # the shares of each number add up to 1, and so does their mean
        whole = replace(whole, scores=scores.mean(axis=0).tolist(), total=float(totals.mean()))
    parts = [
        replace(
            whole,
            scores=row.tolist(),
            target=name,
            total=float(total),
            value=float(value),
            error=abs(float(row.sum() - total)),
        )
        for name, row, total, value in zip(explained.parts, scores, totals, values)
    ]
    return replace(whole, parts=parts)
