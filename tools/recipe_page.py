"""Writes docs/recipe.md from the descriptions of the keys."""

import re
from collections.abc import Iterator
from pathlib import Path

from atento.config.reading import schema
from atento.config.reading.dumping import KeyHelp, section_classes, sections

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipe.md"
INTRODUCTION = """\
# Recipes: every key

A recipe is a YAML 1.2 file; only `task` and `data` are required. [Train a translator](train-a-translator.md) shows
complete recipes.

```bash
atento config explain training.steps               # one entry
atento config check micro-world-en-pt              # finds mistakes
atento config show micro-world-en-pt --origins     # every value and its origin
atento config schema > recipe.schema.json          # a JSON Schema, for editors
```

Set any key on the command line (`atento train my.yaml training.steps=8000`) or by an environment variable
(`ATENTO_TRAINING__STEPS=8000`).

Each entry is a key with its default, in brackets its values, and its meaning. Without a default it is null: off, or
what `null:` says. A default shows the type: with a point it stands for any number, else for an integer. A link leads to
a section and its defaults; *short* names its key whose value can stand in its place.
"""
# What a section is about, and the pages that explain more.
NOTES = {
    "data": "See [data](data.md).",
    "data.train": "One source or a list; `data.valid` and `data.test` are written the same way. "
    "See [file formats](data.md#file-formats) and [fields](data.md#fields).",
    "data.mixing": "See [several sources](data.md#several-sources).",
    "tasks": "See [several tasks at once](several-tasks.md).",
    "tokenizer": "See [tokenizers](data.md#tokenizers).",
    "network": "See [networks](networks.md) and [attention and masks](attention-and-masks.md).",
    "objective": "See [choose an objective](language-models.md#choose-an-objective) and "
    "[sentence encoders](embeddings.md).",
    "init": "See [fine-tune a pretrained model](fine-tuning.md).",
    "teacher": "See [learn from a larger model](fine-tuning.md#learn-from-a-larger-model).",
    "training": "See [the training engine](training.md).",
    "training.parallel": "See [train in several processes](scaling.md).",
    "decoding": "See [decoding](decoding.md).",
}
# The keys of long sections, by what a reader looks for; other sections have the order of their fields.
GROUPS = {
    "data": {
        "Sources": "train valid test mixing held_out folds fold folder skip_bad",
        "Long texts": "max_len truncate windows stride max_answer pack",
        "Languages": "source_language target_language",
        "Corpora larger than memory": "store store_folder",
    },
    "data.train": {
        "Records": "file dataset split world labels memory count seed",
        "How a file is read": "format encoding delimiter decimal header sheet separator paragraphs documents prefix",
        "Columns of the file, by number or name": "source target text pair negative query document grade positive "
        "label score tokens tags question context answers",
    },
    "network": {
        "Architecture and size": "preset architecture family vocab_size d_model d_ff n_heads n_layers n_decoder_layers "
        "shared_layers max_len",
        "Norms and dropout": "dropout norm norm_kind norm_bias first_norm norm_eps initializer",
        "Positions, attention and layers": "positions mask attention feed_forward convolution recurrent elmo cbow",
        "Input, output and heads": "embedding features output pooler layer_mix heads projections ids writing "
        "tokenizer_fingerprint",
    },
    "objective": {
        "Any objective": "kind share weight class_weights",
        "Masks and noise": "rate unit mean_span detection infilling deletion permutation rotation sampled",
        "Vectors of texts": "scale symmetric mask_duplicates score_range margin distance matryoshka",
    },
    "training": {
        "Length": "steps epochs minutes early_stop seed",
        "Batches, memory and speed": "batch_tokens micro_batches precision activation_checkpointing compile parallel",
        "Optimizer and learning rate": "optimizer learning_rate warmup schedule decay weight_decay betas clip "
        "non_finite",
        "Regularization": "label_smoothing r_drop subword_dropout scheduled_sampling ema",
        "Validation and checkpoints": "validate_every checkpoint_every async_checkpoints keep average",
        "Logs": "log_every samples report_to baseline log_gradient_noise log_update_ratios",
    },
    "decoding": {
        "Beam search": "beam length_penalty n_best stopping until groups diversity exact exact_limit",
        "Sampling": "sample temperature top_k top_p min_p typical_p seed",
        "Minimum Bayes risk": "mbr candidates candidates_from evidence evidence_weights self_comparison mbr_method "
        "mbr_keep mbr_confidence",
        "Words and repetition": "repetition_penalty no_repeat_ngrams count_prompt presence_penalty frequency_penalty "
        "banned_words banned_tokens required_words prefix forced_bos",
        "Length and end": "min_new_tokens max_new_tokens stop stop_tokens forced_eos ignore_eos",
        "Speed and memory": "draft draft_tokens batch_tokens",
    },
}
_ARTICLE = re.compile(r"\ban? (?:list of (?=[a-z]))?")
_BY_DEFAULT = ("true or false", "an integer", "a number", "text", "a mapping")  # types that a default shows
_LONG = 6  # choices; a longer list is shown once


def reference() -> str:
    """The page `docs/recipe.md`: every key in the list of its section, in Markdown."""
    lines = [INTRODUCTION.rstrip("\n")]
    places = {tuple(schema.keys_of(cls)): path for cls, (path, _) in zip(section_classes(), sections())}
    shown: set[str] = set()
    for path, entries in sections():
        lines += ["", f"## {path or 'The whole recipe'}"]
        lines += ["", NOTES[path]] if path in NOTES else []
        for heading, group in _groups(path, entries):
            lines += ["", f"### {heading}", ""] if heading else [""]
            lines += [_line(entry, path, places, shown) for entry in group]
    return "\n".join(lines) + "\n"


def _groups(path: str, entries: list[KeyHelp]) -> Iterator[tuple[str, list[KeyHelp]]]:
    """Yield the headings of a section, "" without any, and the keys below.
    Raises ValueError: a key is in no group or in two, or is no key.
    """
    if path not in GROUPS:
        yield "", entries
        return
    keys = {_name(entry, path): entry for entry in entries}
    grouped = [name for names in GROUPS[path].values() for name in names.split()]
    if sorted(grouped) != sorted(keys):
        raise ValueError(
            f"tools/recipe_page.py: GROUPS of {path}: {set(grouped) ^ set(keys) or 'a key is there twice'}"
        )
    for heading, names in GROUPS[path].items():
        yield heading, [keys[name] for name in names.split()]


def _name(entry: KeyHelp, path: str) -> str:
    return entry.key.removeprefix(f"{path}.") if path else entry.key


def _line(entry: KeyHelp, path: str, places: dict[tuple[str, ...], str], shown: set[str]) -> str:
    """Return the entry of a key; `shown` are the long lists of choices that stand above, and gets those of this one."""
    name = _name(entry, path)
    if entry.keys:
        name = f"[`{name}`](#{places[entry.keys].replace('.', '')})"
    else:
        name = f"`{name}`" if entry.default in ("required", "null") else f"`{name}: {entry.default}`"
    required = "required" if entry.default == "required" else ""
    values = "; ".join(part for part in (required, _values(entry, shown), _range(entry)) if part)
    return f"- {name}{f' ({values})' if values else ''}: {entry.meaning}"


def _range(entry: KeyHelp) -> str:
    """Return the range of a key, with signs for its bounds, and without what the introduction says."""
    parts = [part for part in entry.range.split("; ") if entry.keys or part not in ("null: none", "null: off")]
    if entry.keys and entry.default == "null" and "null:" not in entry.range:
        parts.append("null")
    text = re.sub(r"\bat least (?=\d)", "≥", "; ".join(filter(None, parts)))
    text = re.sub(r"(-?[\d,]+) or more\b", r"≥\1", text)
    return re.sub(r"\b(above|below) (?=\d)", lambda found: "<" if found[1] == "below" else ">", text)


def _values(entry: KeyHelp, shown: set[str]) -> str:
    """Return the values of a key, without what its default, its range or its meaning says."""
    if entry.keys:
        several = "list" if "list of them" in entry.type else ""
        short = re.search(r"for its (`\w+`)", entry.type)
        return ", ".join(part for part in (several, f"short {short[1]}" if short else "") if part)
    if entry.key == "network.preset":
        return "see [presets](networks.md#presets)"
    kind = entry.type.removesuffix(" or null") if entry.default == "null" or "null:" in entry.range else entry.type
    if kind == "an integer or text" or (kind in _BY_DEFAULT and entry.default not in ("null", "required")):
        return ""  # the heading of the columns says it, or the default shows it
    if kind.startswith("one of ") and " or " not in kind:
        choices = kind.removeprefix("one of ").split(", ")
        again = kind in shown
        shown |= {kind} if len(choices) > _LONG else set()
        return "" if again or all(f"`{choice}`" in entry.meaning for choice in choices) else ", ".join(choices)
    return _ARTICLE.sub("", kind.removeprefix("one of "))


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
