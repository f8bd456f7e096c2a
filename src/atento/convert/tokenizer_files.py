"""The tokenizer of a model for other engines: `tokenizer.json` adds the special tokens that the model reads."""

import json

from atento.data.batches.special_tokens import special_tokens_of
from atento.model import Model
from atento.text.exporting import exported_files, post_processor
from atento.text.folder import DEFINITION
from atento.text.released.sentencepiece_ids import TYPES


def tokenizer_files(model: Model) -> dict[str, bytes]:
    """File name -> bytes; none for a model without a tokenizer.

    The package `tokenizers` alone reads `tokenizer.json`, which no padding or cutting is set in. The tokenizers of
    Marian and M2M-100 that run SentencePiece have their original files only.
    """
    tokenizer, config = model.tokenizer, model.network.config
    if tokenizer is None:
        return {}
    template = special_tokens_of(config, tokenizer, model.config.get("template"))
    files = exported_files(tokenizer, template, config.family, {})
    data = json.loads(tokenizer.definition)
    if data["model"].get("type") in TYPES:
        return files
    names = {token: tokenizer.tokens([token])[0] for token in template.ids()}
    data |= {"post_processor": post_processor(template, names), "truncation": None, "padding": None}
    return files | {DEFINITION: (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode()}
