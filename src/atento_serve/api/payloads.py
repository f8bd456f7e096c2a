"""What each verb reads of a Hugging Face payload, and what it answers."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal

from atento.config.tables.tasks import TASKS, task_with
from atento_serve.api.decoding import NAMES, DecodingFields, decoding_options
from atento_serve.api.languages import code_of, named_language, pair_in
from atento_serve.api.payload_generation import Call, generate, inputs_of, of_inputs
from atento_serve.http.errors import ServiceError, wrong_field
from atento_serve.http.fields import Fields, Row, Texts, bounded, described, listed, read, unsupported
from atento_serve.http.request_jobs import check_texts, fit_of
from atento_serve.http.service import Service

_MOST_CANDIDATES = 100


class _Fill(Fields):
    top_k: int | None = None
    targets: Texts | None = None


async def fill_mask(call: Call) -> object:
    """[{score, token, token_str, sequence}] of a text; of several masks, such a list for each mask."""
    fields = read(_Fill, call.parameters, "/parameters")
    bounded("parameters/top_k", fields.top_k, 1, _MOST_CANDIDATES)
    texts, single = inputs_of(call)
    options: dict[str, object] = {"top": fields.top_k or 5}
    if fields.targets is not None:
        options["targets"] = listed(fields.targets)
    outcome = await call.work.run(call.model, "fill", texts, options)
    names = {"score": "probability", "token": "token_id", "token_str": "token", "sequence": "text"}
    results = [[[_renamed(one, names) for one in of_mask] for of_mask in of_masks] for of_masks in outcome.values]
    return of_inputs([rows if len(rows) > 1 else rows[0] for rows in results], single)


def _renamed(row: dict[str, object], names: dict[str, str]) -> dict[str, object]:
    """A row by the names of the hub, in their order; `names` gives ours for each."""
    return {theirs: row[ours] for theirs, ours in names.items()}


class _Classify(Fields):
    top_k: int | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    abstain: float | None = None
    threshold: float | None = None


async def text_classification(call: Call) -> object:
    """[[{label, score}]]: the labels of each text, most probable first; a list of them for one text too, as on the hub.

    Labels below `threshold`, a probability, are left out, or those not probable enough for `abstain`, a precision. A
    pair of texts is {"text", "text_pair"} or a list of two texts in a list.
    """
    fields = read(_Classify, call.parameters, "/parameters")
    bounded("parameters/top_k", fields.top_k, 1, 10_000)
    bounded("parameters/threshold", fields.threshold, 0, 1)
    description = call.service.describe(call.model)
    of_head = TASKS.get(description.heads.get(call.work.head or "", ""))
    sets = description.multi_label if of_head is None else of_head.outputs == "class sets"
    usual = "sigmoid" if sets else "softmax"  # fixed by how the model was trained
    if fields.function_to_apply not in (None, usual):
        raise wrong_field("/parameters/function_to_apply", f"`function_to_apply` must be {usual} for this model")
    inputs = call.inputs if isinstance(call.inputs, list) else [call.inputs]
    check_texts(call.service, len(inputs), "/inputs")
    items = [_text_or_pair(item, number) for number, item in enumerate(inputs)]
    options = {name: getattr(fields, name) for name in ("abstain", "threshold") if getattr(fields, name) is not None}
    outcome = await call.work.run(call.model, "classify", items, options)
    ranked = [value[: fields.top_k] for value in outcome.values]
    return [[{"label": one["name"], "score": one["probability"]} for one in labels] for labels in ranked]


def _text_or_pair(item: object, number: int) -> object:
    if isinstance(item, dict) and item.keys() <= {"text", "text_pair"} and "text" in item:
        item = [item["text"], item["text_pair"]] if "text_pair" in item else item["text"]
    if isinstance(item, str) or (
        isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item)
    ):
        return item
    raise wrong_field(f"/inputs/{number}", f"an input must be a text or a pair of texts: got {described(item)}")


class _ZeroShot(Fields):
    candidate_labels: Texts
    hypothesis_template: str | None = None
    multi_label: bool | None = None


async def zero_shot(call: Call) -> object:
    """[{label, score}] by a model of pairs with a label "entailment": the text entails "This example is LABEL.".

    With `multi_label`, entailment against contradiction, label by label; without, the odds of entailment normalised
    over the labels.
    """
    fields = read(_ZeroShot, call.parameters, "/parameters")
    labels = fields.candidate_labels
    labels = [label.strip() for label in labels.split(",")] if isinstance(labels, str) else labels
    template = "This example is {}." if fields.hypothesis_template is None else fields.hypothesis_template
    if template.count("{}") != 1:
        raise wrong_field("/parameters/hypothesis_template", "`hypothesis_template` must have one {} for the label")
    description = call.service.describe(call.model)
    entail = _entailment(description.labels)
    contradict = _label_like(description.labels, "contra")
    if entail is None:
        why = f"zero-shot classification takes a model with a label entailment: {call.model!r} has none"
        raise ServiceError(400, why, "wrong_model", param="/model")
    texts, single = inputs_of(call)
    check_texts(call.service, len(texts) * len(labels), "/parameters/candidate_labels")  # pairs, not texts
    items = [[text, template.replace("{}", label)] for text in texts for label in labels]
    outcome = await call.work.run(call.model, "classify", items)
    results = []
    for number in range(len(texts)):
        values = outcome.values[number * len(labels) : (number + 1) * len(labels)]
        scores = _entailed(values, entail, contradict, multi_label=bool(fields.multi_label))
        ranked = sorted(zip(labels, scores), key=lambda pair: -pair[1])
        results.append([{"label": label, "score": score} for label, score in ranked])
    return of_inputs(results, single)


def entailing_model(service: Service) -> str | None:
    """The first model with a label for entailment; None: there is none."""
    return next((name for name in service.models if _entailment(service.describe(name).labels)), None)


def _entailment(labels: list[str]) -> str | None:
    return _label_like(labels, "entail", "not")


def _label_like(labels: list[str], part: str, without: str = "\0") -> str | None:
    return next((label for label in labels if part in label.lower() and without not in label.lower()), None)


def _entailed(values: list[Any], entail: str, contradict: str | None, *, multi_label: bool) -> list[float]:
    """The score of each label from the probabilities of its pair."""
    shares = [{label["name"]: float(label["probability"]) for label in value} for value in values]
    yes = [share[entail] for share in shares]
    no = [share[contradict] if contradict is not None else 1 - share[entail] for share in shares]
    if multi_label or len(values) == 1:  # one label has no others to be compared with
        return [a / (a + b) if a + b else 0.0 for a, b in zip(yes, no)]
    # in logarithms, which 0 and 1 have here too
    odds = [math.log(max(a, 1e-300)) - math.log(max(b, 1e-300)) for a, b in zip(yes, no)]
    total = sum(math.exp(value - max(odds)) for value in odds)  # minus the largest: exp does not overflow
    return [math.exp(value - max(odds)) / total for value in odds]


class _Tag(Fields):
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: Row[str] | None = None
    stride: int | None = None


async def token_classification(call: Call) -> object:
    """[{entity_group, score, word, start, end}] of a text; with `aggregation_strategy` none, `entity` of each word."""
    fields = read(_Tag, call.parameters, "/parameters")
    words = fields.aggregation_strategy == "none"
    names = {"entity" if words else "entity_group": "label", "score": "probability", "word": "text"}
    names |= {"start": "start", "end": "end"}
    ignored = {"O"} if fields.ignore_labels is None else set(fields.ignore_labels)
    texts, single = inputs_of(call)
    outcome = await call.work.run(call.model, "tag", texts, {"words": True} if words else {})
    rows = [[_renamed(one, names) for one in value if one["label"] not in ignored] for value in outcome.values]
    return of_inputs(rows, single)


class _Answer(Fields):
    top_k: int | None = None
    max_answer_len: int | None = None
    handle_impossible_answer: bool | None = None
    doc_stride: int | None = None
    max_question_len: int | None = None
    max_seq_len: int | None = None
    align_to_words: bool | None = None


class _Question(Fields):
    question: str
    context: str


async def question_answering(call: Call) -> object:
    """{answer, score, start, end}, or a list of them with `top_k`; offsets are characters of the context."""
    fields = read(_Answer, call.parameters, "/parameters")
    bounded("parameters/top_k", fields.top_k, 1, call.service.limits.n)
    bounded("parameters/max_answer_len", fields.max_answer_len, 1, call.service.limits.input_tokens)
    unsupported(fields, {"doc_stride": (), "max_question_len": (), "max_seq_len": (), "align_to_words": (True,)})
    single = not isinstance(call.inputs, list)
    inputs = [call.inputs] if single else call.inputs
    check_texts(call.service, len(inputs), "/inputs")
    pointers = ["/inputs"] if single else [f"/inputs/{number}" for number in range(len(inputs))]
    questions = [read(_Question, value, pointer) for value, pointer in zip(inputs, pointers)]
    options: dict[str, object] = {"n_best": (fields.top_k or 1) + 1}  # one may be "no answer", which is left out
    if fields.max_answer_len is not None:
        options["max_answer"] = fields.max_answer_len
    if not fields.handle_impossible_answer:
        options["null_threshold"] = 1e30
    outcome = await call.work.run(call.model, "answer", [[q.question, q.context] for q in questions], options)
    names = {"answer": "text", "score": "probability", "start": "start", "end": "end"}
    results = []
    for value in outcome.values:
        rows = [_renamed(row, names) for row in value]
        if not fields.handle_impossible_answer:
            rows = [row for row in rows if row["answer"]] or rows
        results.append(rows[: fields.top_k or 1])
    return of_inputs([rows if fields.top_k and fields.top_k > 1 else rows[0] for rows in results], single)


class _Translate(DecodingFields):
    src_lang: str | None = None
    tgt_lang: str | None = None
    truncation: str | None = None
    clean_up_tokenization_spaces: bool | None = None
    generate_parameters: dict[str, object] | None = None


async def translation(call: Call) -> object:
    """[{translation_text}], one a text."""
    fields = read(_Translate, call.parameters, "/parameters")
    options = _writing_options(call, fields)
    known = call.service.describe(call.model).languages
    # the pair that is set for the model, else the one in its name
    pair = call.service.models[call.model].languages or pair_in(call.model) or (None, None)
    names = (("src_lang", "source_language"), ("tgt_lang", "target_language"))
    for (name, option), own in zip(names, pair):
        value = getattr(fields, name)
        if value is not None and known:  # a multilingual model takes the language as an option
            options[option] = named_language(value, known, f"/parameters/{name}")
        elif value is not None and own is not None and code_of(value) != code_of(own):
            message = f"the model {call.model!r} translates {pair[0]} to {pair[1]}: got {name} {value[:40]!r}"
            raise ServiceError(400, message, "unknown_language", param=f"/parameters/{name}")
    return await _written(call, options, f"{task_with('translate')}_text")


async def summarization(call: Call) -> object:
    """[{summary_text}], one a text."""
    fields = read(_Translate, call.parameters, "/parameters")
    if fields.src_lang is not None or fields.tgt_lang is not None:
        raise wrong_field("/parameters/src_lang", "`src_lang` and `tgt_lang` are for translation")
    return await _written(call, _writing_options(call, fields), "summary_text")


def _writing_options(call: Call, fields: _Translate) -> dict[str, object]:
    inner = read(DecodingFields, fields.generate_parameters or {}, "/parameters/generate_parameters")
    of_section = decoding_options(inner, call.service.limits)
    section = {ours: f"generate_parameters/{NAMES.get(ours, ours)}" for ours in of_section}
    call.work.pointers = replace(call.work.pointers, names={**call.work.pointers.names, **section})
    return decoding_options(fields, call.service.limits) | of_section


async def _written(call: Call, options: dict[str, object], key: str) -> object:
    texts, _ = inputs_of(call)
    outcome = await call.work.run(call.model, call.verb, texts, options)
    return [{key: output["text"]} for value in outcome.values for output in value]


class _Embed(Fields):
    normalize: bool | None = None
    truncate: bool | None = None
    prompt_name: str | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


async def feature_extraction(call: Call) -> object:
    """The vector of each text, pooled as the model does."""
    fields = read(_Embed, call.parameters, "/parameters")
    texts, _ = inputs_of(call)
    options = fields.model_dump(include={"normalize", "prompt_name"}, exclude_none=True)
    fit = fit_of(fields.truncate, fields.truncation_direction or "right")
    outcome = await call.work.run(call.model, "embed", texts, options, fit=fit)
    return [vector.tolist() for vector in outcome.values]


class _Sentences(Fields):
    source_sentence: str
    sentences: Row[str]


async def sentence_similarity(call: Call) -> object:
    """The similarity of a sentence to each of some sentences."""
    read(Fields, call.parameters, "/parameters")
    inputs = read(_Sentences, call.inputs, "/inputs")
    check_texts(call.service, len(inputs.sentences), "/inputs/sentences")
    pairs = [[inputs.source_sentence, sentence] for sentence in inputs.sentences]
    return (await call.work.run(call.model, "similarity", pairs)).values


async def plain_payload(call: Call) -> object:
    """The values of any other verb for a text or texts, as they come; `parameters` are its options."""
    texts, single = inputs_of(call)
    outcome = await call.work.run(call.model, call.verb, texts, call.parameters)
    return of_inputs([value.tolist() if hasattr(value, "tolist") else value for value in outcome.values], single)


PAYLOADS: dict[str, Callable[[Call], Coroutine[object, object, object]]] = {
    "fill": fill_mask,
    "classify": text_classification,
    "tag": token_classification,
    "answer": question_answering,
    "translate": translation,
    "summarize": summarization,
    "embed": feature_extraction,
    "similarity": sentence_similarity,
    "generate": generate,
}
