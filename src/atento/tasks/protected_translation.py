"""Translations by a model that keep the terms of a glossary, and what must not change."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from atento.base.errors import DataError, UsageError
from atento.data.files.term_files import glossary_of
from atento.tasks.task_model import TaskModel, check_flags, tokenizer_of
from atento.tasks.text_generation import GeneratedText
from atento.tasks.translation_languages import TranslationOptions
from atento.tasks.word_links import word_links
from atento.text.span_protection import Output, Outputs, Translate, protected_outputs


def translate_protected(
    model: TaskModel,
    texts: Sequence[str],
    write: Callable[..., list[list[GeneratedText]]],
    n_best: int | None,
    row: int,
    options: TranslationOptions,
) -> list[list[GeneratedText]]:
    """The translations of texts by a model, which keep what the options `glossary` and `protect` name.

    Args:
        write: gives the outputs of a verb for texts, by the options that are left and those of each text.
        n_best, row, options: as in `Model.translations`.

    Raises:
        DataError: a glossary that is wrong, or has a term that the vocabulary cannot write; says where. UsageError:
            several outputs with a glossary.
    """
    glossary, protect = options.pop("glossary", None), options.pop("protect", False)
    check_flags(protect=protect)
    if glossary is None and not protect:
        return write("translate", texts, n_best, row, options)
    if glossary is not None and (n_best or 1) > 1:
        raise UsageError("`glossary` and `n_best` exclude each other: terms are kept in the best output")
    terms = None if glossary is None else glossary_of(glossary)
    tokenizer = tokenizer_of(model).target
    for term in dict.fromkeys(met.term for text in texts for met in terms.find(text)) if terms else ():
        for form in term.forms:
            ids = tokenizer.encode(form)
            if not ids or tokenizer.specials.get("unk") in ids:
                raise DataError(f"{term.place}: the model's vocabulary cannot write {form!r}")
    steps, answer = protected_outputs(texts, terms, protect=protect), cast(object, None)
    while True:  # `protected_outputs` asks for searches and links, and goes on with the answers
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            outputs: Outputs = end.value  # each made by the model, its text perhaps changed since
            return [[replace(cast(GeneratedText, one.made), text=one.text) for one in rows] for rows in outputs]
        if isinstance(asked, Translate):

            def search(
                texts: Sequence[str], own: Sequence[dict[str, object]], rows: Sequence[int]
            ) -> list[list[GeneratedText]]:
                """The outputs of texts; none of a text whose options the vocabulary, or the room, does not allow."""
                try:
                    return write("translate", texts, n_best, rows, options, own)
                except UsageError:
                    if not own:
                        raise
                    # one by one: which text it is
                    return [[]] if len(texts) == 1 else [search([a], [b], [n])[0] for a, b, n in zip(texts, own, rows)]

            written = search(asked.texts, asked.own, [row + number for number in asked.rows])
            answer = [[Output(one.text, one.hypothesis.score, one) for one in rows] for rows in written]
        else:
            answer = [word_links(model, source, output, options) for source, output in asked.pairs]
