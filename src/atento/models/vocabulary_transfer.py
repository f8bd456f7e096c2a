"""A trained encoder with another tokenizer (`init.tokenizer: own`): each new row is the mean of old ones.

A piece begins with the mean of the embeddings of the old pieces that spell it: fast vocabulary transfer (Gee et al.
2022). What they cannot spell begins with the mean of all (Hewitt 2021). WECHSEL and FOCUS weigh neighbours in other
vectors instead, which they need for both languages.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from atento.base.errors import UsageError
from atento.config.recipe import Recipe
from atento.config.sections.network import changed, network_to_dict
from atento.config.sections.position_scheme import PositionConfig
from atento.data.batches.special_tokens import ids_of
from atento.models.initial_model import begun_with_encoder
from atento.models.load import ModelFiles, check_tokenizer
from atento.models.transplant import is_by_token
from atento.released import FAMILIES
from atento.text.tokenizer import Tokenizer

_BEFORE = "qxzkjwvyfgbhpdtcmlnrsaeiou0"  # letters to put before a piece inside a word; the first ones join few others
_LIKE = {"bos": "cls", "cls": "bos", "eos": "sep", "sep": "eos"}  # roles that tokenizers have for one another


def begun(initial: ModelFiles, recipe: Recipe, tokenizer: Tokenizer, report: Callable[[str], None]) -> ModelFiles:
    """The initial model as a run begins with it: with a decoder, or with the rows of another tokenizer, if `init` says.
    Raises UsageError: it is not an encoder.
    """
    assert recipe.init is not None
    if recipe.init.new_decoder:
        return begun_with_encoder(initial, recipe, tokenizer)
    if recipe.init.tokenizer == "model":
        return initial
    if recipe.init.train != "all":
        report(f"warning: `init.train` {recipe.init.train} leaves the embeddings of new pieces as they begin")
    return transferred(initial, tokenizer, report)


@torch.no_grad()
def transferred(initial: ModelFiles, tokenizer: Tokenizer, report: Callable[[str], None]) -> ModelFiles:
    """The model with a row of its embedding, and of its outputs over the vocabulary, for each piece of a tokenizer.

    Rows of positions stay. `report` takes a line that counts the rows.
    Raises UsageError: the model is no encoder. TokenizerError: its own tokenizer is missing, or is not its own.
    """
    config = initial.network_config
    if config.architecture != "encoder":
        raise UsageError(
            f"{initial.path}: `init.tokenizer: own` is for encoders such as BERT: got architecture "
            f"{config.architecture!r}"
        )
    old = Tokenizer.load(initial.path)
    check_tokenizer(old, config, initial.path)
    spelled = spelled_by(old, tokenizer)
    counts = torch.tensor(list(map(len, spelled)))  # (new rows,)
    rows = torch.tensor([row for ids in spelled for row in ids])
    of = torch.repeat_interleave(torch.arange(len(spelled)), counts)  # the new row of each of `rows`
    ordinary = torch.tensor(old.ordinary_ids)

    def mean_rows(table: Tensor) -> Tensor:
        sums = table.new_zeros(len(spelled), *table.shape[1:]).index_add_(0, of, table[rows])
        means = sums / counts.clamp_min(1).view(-1, *[1] * (table.dim() - 1)).to(table.dtype)
        means[counts == 0] = table[ordinary].mean(dim=0)
        return means

    weights = {name: mean_rows(value) if is_by_token(name) else value for name, value in initial.weights.items()}
    changes: dict[str, object] = {"vocab_size": tokenizer.vocab_size, "ids": ids_of(tokenizer)}
    scheme, shift = config.positions, tokenizer.pad_id + 1
    # RoBERTa's positions begin behind the id of padding
    if config.family in FAMILIES and FAMILIES[config.family].from_padding and isinstance(scheme, PositionConfig):
        for name in [name for name in weights if name.startswith("inputs.positions.schemes.")]:
            table = weights[name][scheme.shift :]
            weights[name] = torch.cat([table.new_zeros(shift, table.shape[1]), table])
        changes["positions"] = replace(scheme, shift=shift)
    network = changed(config, changes, tokenizer_fingerprint=tokenizer.fingerprint)
    copied, new = int((counts == 1).sum()), int((counts == 0).sum())
    report(
        f"vocabulary: {len(spelled):,} rows in place of {old.vocab_size:,}: {copied:,} copied, "
        f"{len(spelled) - copied - new:,} averaged, {new:,} new (the mean of all)"
    )
    described = initial.config | {"network": network_to_dict(network)}
    return replace(initial, config=described, weights=weights, load_report=None)


def spelled_by(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """The ids of the old pieces that spell each piece of a new tokenizer; none for what these cannot spell.

    A piece at the beginning of a word is encoded as such a text, another one behind a letter that the old tokenizer
    does not join with it. Special tokens are those of the same role, or of the same name.
    """
    spelled: list[list[int]] = [[] for _ in range(new.vocab_size)]
    for text, token in new.specials.ids.items():
        names = [role for role, name in new.specials.roles.items() if name == text]
        names += [_LIKE[role] for role in names if role in _LIKE] + [text]
        spelled[token] = [found for name in names if (found := old.specials.get(name)) is not None][:1]
    known = {old.spelling(token): token for token in reversed(old.ordinary_ids)}  # also bytes, parts of a character
    inner: dict[int, str] = {}
    outer: dict[int, str] = {}
    for token in new.ordinary_ids:
        spelling = new.spelling(token)
        try:
            text = spelling.decode("utf-8") if isinstance(spelling, bytes) else spelling or ""
        except UnicodeDecodeError:
            spelled[token] = [known[spelling]] if spelling in known else []
            continue
        (outer if text.startswith(" ") else inner)[token] = text
    for letter in _BEFORE:
        before = old.encode(letter)
        for token, ids in zip(list(inner), old.encode_batch([letter + text for text in inner.values()])):
            if ids[: len(before)] == before:
                spelled[token] = ids[len(before) :]
                del inner[token]
    outer |= inner  # what joins with every letter
    for token, ids in zip(outer, old.encode_batch(list(outer.values()))):
        spelled[token] = ids
    unknown = old.specials.get("unk")
    ordinary = set(new.ordinary_ids)
    return [[i for i in ids if i != unknown] if token in ordinary else ids for token, ids in enumerate(spelled)]
