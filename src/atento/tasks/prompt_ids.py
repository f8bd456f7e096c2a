"""How a language model reads prompts, and what follows them, as ids."""

from collections.abc import Sequence

from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.text.kinds import check_texts
from atento.text.tokenizer import Tokenizer


def prompt_ids(model: TaskModel, prompts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """Prompts as the model reads them, with their special tokens; never empty.

    A prompt that is a list of ids has its special tokens already.
    """
    check_texts([prompt for prompt in prompts if not isinstance(prompt, list)])
    tokenizer, template = tokenizer_of(model), model.prompt_template
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = (tokenizer.with_specials(ids, template=template)[0] for ids in tokenizer.encode_batch(texts))
    rows = (next(encoded) if isinstance(prompt, str) else list(prompt) for prompt in prompts)
    return [ids or [model.network.config.start_id] for ids in rows]


def continuation_ids(tokenizer: Tokenizer, prompts: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts; those of one that begins with white space are the ids that it has behind its prompt.

    By themselves they would begin with a space too many where the tokenizer begins every text with one (Llama).
    """
    found = tokenizer.encode_batch(list(texts))
    spaced = [number for number, text in enumerate(texts) if text[:1].isspace()]
    before = tokenizer.encode_batch([prompts[number] for number in spaced])
    whole = tokenizer.encode_batch([prompts[number] + texts[number] for number in spaced])
    for number, prompt, ids in zip(spaced, before, whole):
        if prompt and ids[: len(prompt)] == prompt:
            found[number] = ids[len(prompt) :]
    return found
