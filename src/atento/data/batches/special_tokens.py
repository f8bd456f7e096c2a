"""The special tokens that a model reads around its texts: one answer for training, use, attention maps and export."""

from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.tasks import TASKS
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer

WITH_SOURCE = ("encoder-decoder", "recurrent-seq2seq")


def special_tokens_of(config: NetworkConfig, tokenizer: Tokenizer, stated: str | None = None) -> Template:
    """The template of a model's input; of an encoder-decoder, that of its source, which always ends with EOS.

    Args:
        stated: the template that the model's configuration names; None: that of `network.features`, or the tokenizer's
            own.

    Raises TokenizerError: the template needs a token that the tokenizer has not.
    """
    if stated is None and config.features is not None:
        stated = config.features.template
    template = tokenizer.template(stated)
    if config.architecture not in WITH_SOURCE:
        return template
    own = tokenizer.specials.get("eos")  # a vocabulary of sources may have another than that of targets
    return template.ended(config.eos_id if own is None else own)


def template_for(task: str, tokenizer: Tokenizer) -> str | None:
    """The special tokens that a model of that task reads around a text or before it; None: the tokenizer's own.

    A released tokenizer without BOS, or whose padding is its EOS (Qwen, GPT-2), adds no ends that its models do not
    know: the released classes take EOS at the end for padding. Without BOS, a text that is continued has none.
    """
    template = TASKS[task].template
    if template == "bos" and not begin_of(tokenizer):
        return "none"
    roles = tokenizer.specials.roles
    has_ends = "bos" in roles and "eos" in roles and roles.get("pad", roles["eos"]) != roles["eos"]
    return None if template == "bos-eos" and (tokenizer.added() or not has_ends) else template


def prompt_length(config: EmbeddingConfig, tokenizer: Tokenizer, template: Template) -> int:
    """The tokens at the beginning of a text that its vector leaves out: those of the prompt and special ones before.

    As sentence-transformers counts them: the prompt is encoded alone.
    """
    return 0 if config.pool_prompt or not config.prompt else template.ends()[0] + len(tokenizer.encode(config.read("")))


def begin_of_outputs(config: NetworkConfig) -> tuple[int, ...]:
    """The ids that outputs begin with behind the start token, unless an option names others, such as a language."""
    return () if config.writing is None or config.writing.first is None else (config.writing.first,)


def ids_of(tokenizer: Tokenizer) -> dict[str, int | None]:
    """The special ids of a network of this tokenizer, as `NetworkConfig.ids` names them."""
    eos, unk = tokenizer.eos_id, tokenizer.specials.get("unk")  # a tokenizer of characters or bytes may have no unk
    start = next(iter(begin_of(tokenizer)), eos)  # a tokenizer without BOS begins with EOS
    ids = {"pad": tokenizer.pad_id, "unk": eos if unk is None else unk, "bos": start, "eos": eos, "start": start}
    return {**ids, "mask": tokenizer.specials.get("mask")}


def begin_of(tokenizer: Tokenizer) -> list[int]:
    """What a text begins with in language modelling: BOS, or nothing where the tokenizer has none (Qwen)."""
    return [tokenizer.bos_id] if "bos" in tokenizer.specials.roles else []
