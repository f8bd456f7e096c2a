"""Writes a model folder completely or not at all: configuration, weights, tokenizer files, model card, manifest.

In the Hugging Face layout also what `AutoTokenizer`, `pipeline` and `generate` of transformers and
`SentenceTransformer` read: the tokenizer, generation settings, pooling.
"""

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from atento.base.errors import AtentoWarning, CapabilityError, UsageError
from atento.base.limits import read_plain
from atento.config.sections.decoding import CONTINUATION_TOKENS, FILTERS, DecodingConfig
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import WritingConfig
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TEXT
from atento.data.batches.special_tokens import WITH_SOURCE, special_tokens_of
from atento.models.card import CARD, model_card
from atento.models.generation_settings import GENERATION, generation_settings, lost_options, read_generation
from atento.models.model_folder import (
    CALIBRATION,
    CONFIG,
    OUR_KEYS,
    decoding_config,
    network_config,
    read_config,
    reads_prompts_both_ways,
    section_of,
)
from atento.models.weight_files import MAX_SHARD_SIZE, type_name, weight_files, widest
from atento.released import release
from atento.released.sentence_transformers import CROSS_ENCODER, sentence_files, without_projections
from atento.storage.atomic_files import atomic_folder
from atento.storage.manifest import directory as open_directory
from atento.storage.manifest import is_plain_name, write_file, write_manifest
from atento.storage.tensorfile import to_bytes
from atento.text.exporting import exported_files
from atento.text.tokenizer import Tokenizer

LAYOUTS = ("atento", "huggingface")
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|USE_POLICY)([._-].*)?", re.IGNORECASE)
_PRESERVED = ("chat_template.jinja", "config_sentence_transformers.json", GENERATION)
_MAX_BYTES = 4 * 2**20
_OUTPUT_TOKENS = 256  # if the model has no limit; ours depends on the source, which the layout cannot express
_SPACE_PIECES = ("bpe", "unigram")  # kinds with a piece that is only a space
_NO_SPACES = ("word", "wordpiece")
_REPLACED = (  # settings that the default decoding states in other keys
    *("max_length", "min_length", "num_beam_groups", "diversity_penalty", "early_stopping", "length_penalty"),
    *(*FILTERS, "repetition_penalty", "no_repeat_ngram_size"),
)


def save_model(
    directory: Path,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    *,
    layout: str = "atento",
    source: Path | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> Path:
    """Write a model as `load` reads it, and in the Hugging Face layout as stock transformers reads it.

    Args:
        directory: the folder to write; it must be empty or not exist.
        config: the model's configuration, in our layout.
        weights: tensors by our names.
        tokenizer: the model's; None: it has none.
        layout: "atento" or "huggingface".
        source: the folder that the model was read from; its card and licence are preserved.
        max_shard_size: above it the weights are split into several files, as in `weight_files`.

    Raises:
        UsageError: no such layout, or the folder is not empty. CapabilityError: the layout cannot represent this
            model. AtentoError: it cannot be written; no partial folder remains.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"`layout` must be {' or '.join(map(repr, LAYOUTS))}: got {layout!r}")
    files = preserved_files(source)
    if layout == "huggingface":
        if CALIBRATION in config:
            raise CapabilityError("a model with weights of 8 bits is saved in the layout atento alone")
        if "decoding" in config:
            files.pop(GENERATION, None)  # written again
        network = network_config(config, directory)
        if network.architecture == "decoder" and not network.heads and reads_prompts_both_ways(config, "decoder"):
            raise CapabilityError(
                "the Hugging Face layout has no decoder that reads a prompt in both directions, as this one was "
                "trained to (objective prefix): `generate` of transformers would read it causally"
            )
        theirs = {} if tokenizer is None else _tokenizer_files(network, config, tokenizer)
        lost: list[str] = []
        if network.architecture != "encoder":
            settings, usual = _their_generation(source, network)
            unchanged = bool(usual) and config.get("decoding") == usual
            decoding = decoding_config(config, directory) if "decoding" in config and not unchanged else None
            data = _generation_settings(network, decoding, settings)
            theirs[GENERATION] = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
            if decoding is not None and not network.heads and "embedding" not in config:
                lost = lost_options(decoding, data, network)
        tags = any(HEAD_KINDS[head.kind] == "tag" for head in network.heads)
        spaces = tags and tokenizer is not None and tokenizer.native and tokenizer.kind in _SPACE_PIECES
        # what transformers does otherwise: those options of the decoding, and how it reads a text
        penalties = " (there repetition penalties and n-grams count a prompt, but no source)"
        differences = [f"decoding.{name}{penalties if name == 'count_prompt' else ''}" for name in lost]
        differences += ["long_texts"] if config.get("long_texts") else []
        confidence = config.get("confidence")
        if isinstance(confidence, dict) and confidence.get("temperature", 1.0) != 1.0:
            differences.append("confidence.temperature")
        if spaces:
            differences.append("the places of tags (it reads a word at `▁` where that is a piece)")
        if differences:
            warnings.warn(
                f"transformers does not follow {', '.join(differences)} of this model; `atento.load` does",
                AtentoWarning,
                stacklevel=2,
            )
        if "embedding" in config or network.projections:
            embedding = section_of(EmbeddingConfig, config, directory)
            theirs |= sentence_files(network, embedding, _max_positions(network))
        files = theirs | files
    elif tokenizer is not None:
        files |= tokenizer.files()
    return write_model(directory, config, weights, files, layout=layout, max_shard_size=max_shard_size)


def is_preserved(name: str) -> bool:
    """Whether a file of that name is copied as it is, whatever the layout: card, licence, chat template, decoding."""
    return name == CARD or name in _PRESERVED or _LICENCE.fullmatch(name) is not None


def terms(source: Path | None) -> dict[str, bytes]:
    """Card and licence of a model, by file name: they also apply to a model that is trained from it."""
    return {name: content for name, content in preserved_files(source).items() if name not in _PRESERVED}


def preserved_files(source: Path | None) -> dict[str, bytes]:
    """Files of a model folder that are for people or other tools: card, licence, chat template, decoding."""
    if source is None:
        return {}
    folders = [source, *([source.parent] if (source.parent / "modules.json").exists() else [])]
    files: dict[str, bytes] = {}
    for folder in folders:
        try:
            for file in sorted(folder.iterdir()):
                preserved = is_preserved(file.name) and is_plain_name(file.name)
                if preserved and file.is_file() and file.stat().st_size <= _MAX_BYTES:
                    files.setdefault(file.name, read_plain(file, _MAX_BYTES))
        except OSError:  # the folder was deleted: the weights in memory can still be written
            continue
    return files


def write_model(
    directory: Path,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    files: Mapping[str, bytes],
    *,
    layout: str = "atento",
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> Path:
    """Write a model folder: into a temporary folder beside it, which is then renamed.

    Args:
        directory: the folder to write; it must be empty or not exist.
        config: the model's configuration, in our layout.
        weights: tensors by our names.
        files: further files by name (`folder/name` for one in a folder); a card among them is preserved and added to.
        layout: "atento" or "huggingface".
        max_shard_size: above it the weights are split into several files, as in `weight_files`.

    Raises:
        UsageError: the folder is not empty. CapabilityError: the layout cannot represent this network.
        AtentoError: it cannot be written; no partial folder remains.
    """
    network = network_config(config, directory)
    if layout == "huggingface" and isinstance(heads := config.get("tasks"), Mapping):
        raise CapabilityError(f"the Hugging Face layout holds one head of {', '.join(heads)}: --head NAME takes it")
    # before the layout changes the network
    card = model_card(config, network, layout=layout, existing=files.get(CARD, b"").decode("utf-8", "replace"))
    if layout == "huggingface":
        if network.projections:  # layers behind the pooling are modules of sentence-transformers
            network, weights, dense = without_projections(network, weights)
            files = {**files, **dense}
        released, weights = release(network, weights)
        ours = {name: config[name] for name in OUR_KEYS if name in config}
        # a number of pairs is raw, where CrossEncoder would take its logistic function
        if any(HEAD_KINDS[head.kind] == "number" for head in network.heads) and config.get("pairs"):
            released = released | CROSS_ENCODER
        config = released | {"atento": ours, "torch_dtype": type_name(widest(weights.values()))}
    tensors = weight_files(weights, max_shard_size)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    contents = {**files, CONFIG: text.encode(), CARD: card.encode()}
    with atomic_folder(directory) as temporary:
        # one level: names are `folder/name`
        for folder in sorted({name.rpartition("/")[0] for name in contents} - {""}):
            (temporary / folder).mkdir()
        with open_directory(temporary) as fd:
            entries = [write_file(fd, name, [content]) for name, content in contents.items()]
            entries += [write_file(fd, name, to_bytes(chunks)) for name, chunks in tensors.items()]
        write_manifest(temporary, entries=entries)
    return directory


def _tokenizer_files(network: NetworkConfig, config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer's files, its special tokens and lengths as this model uses them."""
    writes = network.architecture != "encoder" and not network.heads
    # a network of no family is refused for that, later
    if writes and network.family and tokenizer.native and tokenizer.kind in _NO_SPACES:
        raise CapabilityError(
            f"the Hugging Face layout cannot express where a {tokenizer.kind} tokenizer puts spaces when it decodes; "
            "a model that writes needs one of kind unigram, bpe, character or byte there"
        )
    if network.family and tokenizer.native and tokenizer.target is not tokenizer:
        raise CapabilityError("the Hugging Face layout holds one tokenizer, and this model has one for each side")
    inputs = ["input_ids", "attention_mask"]
    if network.embedding.segments > 1:
        inputs.insert(1, "token_type_ids")
    settings: dict[str, object] = {"model_input_names": inputs}
    of_text = any(HEAD_KINDS[head.kind] in OF_TEXT for head in network.heads)  # longer texts are cut before the head
    lengths = (_max_positions(network), config.get("max_len") if of_text else None)
    longest = min((length for length in lengths if length is not None), default=None)
    if longest is not None:
        settings["model_max_length"] = longest
    if network.architecture == "decoder" and writes and "embedding" not in config:
        settings["padding_side"] = "left"  # `generate` appends to the last position of a prompt
    template = special_tokens_of(network, tokenizer, config.get("template"))
    return exported_files(tokenizer, template, network.family, settings)


def _max_positions(network: NetworkConfig) -> int | None:
    """The number of positions of the network in their layout, which also stores tables of sinusoids; None: no limit."""
    in_table = ("learned", "sinusoidal")
    return network.max_len if any(scheme.kind in in_table for scheme in network.schemes) else None


def _generation_settings(
    network: NetworkConfig, decoding: DecodingConfig | None, source: Mapping[str, object]
) -> dict[str, object]:
    """`generation_config.json` of a network that writes, so that `generate()` decodes as `atento.load` does.

    Args:
        network: the network.
        decoding: the default decoding of the model; None: it has none, or that of the settings.
        source: the settings of the folder that the model was read from.
    """
    seq2seq = network.architecture in WITH_SOURCE
    writing = network.writing or WritingConfig()
    rules = {
        "forced_bos_token_id": writing.first,
        "forced_eos_token_id": writing.last,
        "suppress_tokens": list(writing.suppressed),
        "begin_suppress_tokens": list(writing.suppressed_first),
        "bad_words_ids": [list(ids) for ids in writing.banned],
        "renormalize_logits": writing.renormalized,
    }
    stated = {name: value for name, value in rules.items() if value or (value == 0 and value is not False)}  # 0: an id
    data = dict[str, object](stated | dict(source)) | {
        "bos_token_id": network.bos_id if seq2seq else network.start_id,
        "eos_token_id": list(network.eos_ids) if len(network.eos_ids) > 1 else network.eos_id,
        "pad_token_id": network.pad_id,
    }
    if seq2seq:
        data["decoder_start_token_id"] = network.start_id
    if decoding is not None:
        data = {name: value for name, value in data.items() if name not in _REPLACED}
        # without the options that they have no key for: MBR, a shrinking beam, words, groups
        data |= {"do_sample": decoding.samples and decoding.temperature > 0, "num_beams": 1}
        if decoding.samples and decoding.temperature:  # theirs refuses 0, which is greedy search
            data |= {name: getattr(decoding, name) for name in FILTERS}
        elif decoding.mbr is None and not decoding.samples and decoding.beam > 1:
            data |= {"num_beams": decoding.beam, "length_penalty": decoding.length_penalty}
            data["early_stopping"] = {"filled": True, "likely": False, "sure": "never"}[decoding.until]
        if decoding.stop:
            data["stop_strings"] = list(decoding.stop)
        if decoding.repetition_penalty != 1.0:
            data["repetition_penalty"] = decoding.repetition_penalty
        if decoding.no_repeat_ngrams:
            data["no_repeat_ngram_size"] = decoding.no_repeat_ngrams
        if decoding.forced_eos:
            data["forced_eos_token_id"] = network.eos_id
        if decoding.min_new_tokens:
            data["min_new_tokens"] = decoding.min_new_tokens
        usual = _OUTPUT_TOKENS if seq2seq else CONTINUATION_TOKENS
        data["max_new_tokens"] = min(decoding.max_new_tokens or usual, _max_positions(network) or usual)
    return data


def _their_generation(folder: Path | None, network: NetworkConfig) -> tuple[dict[str, object], dict[str, object]]:
    """The generation settings of a folder in the Hugging Face layout, and the default decoding that they give."""
    if folder is None or not (folder / CONFIG).is_file():
        return {}, {}
    config = read_config(folder / CONFIG)
    if config.get("model_type") == "atento":
        return {}, {}
    usual = read_generation(folder, config, network).decoding if network.writes else {}
    return generation_settings(folder, config), usual
