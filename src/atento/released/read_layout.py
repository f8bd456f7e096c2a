"""Reads a folder in the Hugging Face layout: our configuration, our weights, and a report with the keys left unread."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import ModelError, RecipeError, counted, reason_of
from atento.base.precision import side_by_side
from atento.config.sections.network import NetworkConfig
from atento.released.albert import ALBERT
from atento.released.bart import BART_AND_RELATIVES
from atento.released.bert import BERT_AND_RELATIVES
from atento.released.deberta import DEBERTA
from atento.released.distilbert import DISTILBERT
from atento.released.family import Family, Settings, Tying, check_depth, check_numbers, known_ids, warn_of_ids
from atento.released.gpt import GPT1, GPT2
from atento.released.llama import LLAMA_AND_RELATIVES
from atento.released.load_report import LoadReport
from atento.released.modernbert import MODERNBERT
from atento.released.mpnet import MPNET
from atento.released.t5 import MT5, T5
from atento.released.weight_rows import Row
from atento.storage.tensorfile import TensorFiles, check_finite

_AT_ONCE = 4  # tensors read in parallel at most
# ends of classes with another head, or of a decoder without the encoder of its family
_UNBUILT = ("ForMultipleChoice", "DoubleHeadsModel", "BartForCausalLM", "PegasusForCausalLM", "MarianForCausalLM")

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *BERT_AND_RELATIVES,
        DISTILBERT,
        ALBERT,
        MPNET,
        DEBERTA,
        MODERNBERT,
        GPT1,
        GPT2,
        *LLAMA_AND_RELATIVES,
        T5,
        MT5,
        *BART_AND_RELATIVES,
    )
}


def family_of(data: Mapping[str, object], path: str) -> Family:
    """The family that a `config.json` names. Raises ModelError: an unknown family; lists the known ones."""
    name = data.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))  # a family with a similar name is another network
        what = f"model_type {name!r} is a network that is not known here; `transformers` may run it"
        raise ModelError(f"{path}: {what}. Known: {known}")
    return FAMILIES[name]


@dataclass(frozen=True)
class Over:
    """A further file, whose tensors replace those of a folder or are added to them.

    `names`: their names in the file -> those in a model with a head. `changed`: weights, by the latter, that are
    changed after reading. What repeats one of either keeps the tensor of the folder; `tied`: one of `changed` alone.
    """

    file: Path
    names: Mapping[str, str]
    changed: frozenset[str] = frozenset()
    tied: bool = False


def read_released(
    folder: Path, data: Settings, *, allow_missing: bool = False, allow_unused: bool = False, over: Over | None = None
) -> tuple[NetworkConfig, dict[str, Tensor], LoadReport]:
    """Configuration, weights under our names, and the load report.

    Args:
        data: the folder's `config.json`.
        allow_missing: weights that the file lacks are left out (and initialised). allow_unused: weights that the
            network does not have are ignored. Both are errors otherwise.
        over: a further file, read over the folder's.

    Raises:
        ModelError: another family, a configuration that is not supported, missing or unused weights.
        CheckpointError: a damaged file.
    """
    family = family_of(data, str(folder / "config.json"))
    unbuilt = [name for name in map(str, data.get("architectures") or ()) if name.endswith(_UNBUILT)]
    if unbuilt and not allow_unused:
        raise ModelError(f"{folder / 'config.json'}: the class {unbuilt[0]} of transformers is not built here")
    with TensorFiles(folder) as files:
        files.with_todays_names()
        prefix = family.prefix_in(files.entries)
        changed, kept = (frozenset[str](),) * 2 if over is None else _lay_over(files, over, family, data, prefix)
        theirs = files.entries.keys()
        plain = frozenset(name.removeprefix(prefix) for name in theirs)
        try:
            check_numbers(data)
            tying = family.tying(
                data, theirs, prefix, lambda one, other: not changed & {one, other} and files.equal(one, other)
            )
            known, outside = known_ids(data)
            keys = ReadKeys(known)  # records which keys are read
            config = family.read(keys, plain, tying)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecipeError, ModelError) as error:
            raise ModelError(f"{folder / 'config.json'}: {reason_of(error)}") from None
        check_depth(config, len(theirs), str(folder / "config.json"))  # before anything of that size is built
        rows = family.rows(config)
        weights, load_report = _take(files, config, rows, prefix, tying)
        used_names = {name for names in load_report.loaded.values() for name in names}
        for name in sorted(theirs - used_names - kept):  # what no row of the table reads
            getattr(load_report, _kind(family, tying, name.removeprefix(prefix))).append(name)
        load_report.unread = keys.unread()
        load_report.untied = sorted(used_names.intersection(tying.untied))
    if load_report.new and not allow_missing:
        lacking = [", ".join(row.theirs) for row in rows if row.ours in set(load_report.new)]
        of = "".join(f" of a {name}" for name in (data.get("architectures") or ())[:1] if isinstance(name, str))
        why = "; `quantization_config`: give the model that was quantised" if data.get("quantization_config") else ""
        raise ModelError(f"{folder}: missing weights{of} ({len(lacking)}): {', '.join(lacking[:5])}{why}")
    if load_report.unused and not allow_unused:
        raise ModelError(
            f"{folder}: {counted(len(load_report.unused), 'weight has', 'weights have')} no place in this network: "
            f"{', '.join(load_report.unused[:5])}"
        )
    warn_of_ids(outside, config, str(folder / "config.json"))
    return config, weights, load_report


def _lay_over(
    files: TensorFiles, over: Over, family: Family, data: Mapping[str, object], prefix: str
) -> tuple[frozenset[str], frozenset[str]]:
    """Put the tensors of another file over those of the folder.

    Returns:
        The names of the tensors that equal no other after they are changed, and the names that were added for tensors
        of the folder that others repeated.
    """
    names = {name: known if prefix else family.bare(known) for name, known in over.names.items()}
    changed = frozenset(name if prefix else family.bare(name) for name in over.changed)
    stored_names = family.tying(data, files.entries, prefix, files.equal).stored_names
    new = changed if over.tied else changed.union(names.values())
    kept: dict[str, str] = {}
    for stored in set(stored_names.values()):
        repeats = [name for name, source in stored_names.items() if source == stored]
        if any(name in new or prefix + name in new for name in repeats):
            kept |= {prefix + name if prefix + name in new else name: stored for name in repeats}
    kept = {name: stored for name, stored in kept.items() if not {name, prefix + name} & files.entries.keys()}
    files.entries |= {name: files.entries[stored] for name, stored in kept.items()}
    files.lay_over(over.file, names)
    return changed, frozenset(kept)


def _kind(family: Family, tying: Tying, name: str) -> str:
    """The list of the load report for a tensor that no row uses."""
    if name.endswith(family.computed):
        return "computed"
    if name.endswith(family.ignored):
        return "ignored"
    if name in tying.repeated:
        return "tied"
    return "replaced" if name in tying.sources else "unused"


def _take(
    files: TensorFiles, config: NetworkConfig, rows: list[Row], prefix: str, tying: Tying
) -> tuple[dict[str, Tensor], LoadReport]:
    weights: dict[str, Tensor] = {}
    load_report = LoadReport()
    present_rows: list[Row] = []
    zeros: list[str] = []
    for row in rows:
        before = "" if row.head else prefix
        names = tuple(tying.stored_names.get(name, before + name) for name in row.theirs)
        if all(name in files.entries for name in names):
            load_report.loaded[row.ours] = names
            present_rows.append(row)
        elif row.optional:  # a bias that some files leave out is zero
            zeros.append(row.ours)
        else:
            load_report.new.append(row.ours)
    with side_by_side(min(_AT_ONCE, torch.get_num_threads()), 1) as pool:  # transposing takes longer than reading
        tensors = pool.map(lambda row: _read(files, row, load_report.loaded[row.ours]), present_rows)
        weights |= {row.ours: tensor for row, tensor in zip(present_rows, tensors)}
    dtype = next((tensor.dtype for tensor in weights.values()), torch.float32)
    weights |= {name: torch.zeros(config.target_vocab_size, dtype=dtype) for name in zeros}
    return weights, load_report


def _read(files: TensorFiles, row: Row, names: tuple[str, ...]) -> Tensor:
    """One of our tensors from theirs. Raises CheckpointError: it holds NaN or infinity. ModelError: it holds
    integers."""
    if len(names) > 1:
        tensor = files.joined(names)
    else:
        tensor = files.transposed(names[0]) if row.transposed else files.read(names[0])
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(f"{files.folder}: tensor {', '.join(names)} is of {kind}: quantised weights are not read here")
    tensor = tensor.flatten() if row.flat else tensor
    check_finite(files.folder, ", ".join(names), tensor)
    return tensor


# Keys without effect on what a network computes: names, initialisation, dropout, outputs, decoding, training.
_HARMLESS = frozenset(
    (
        *("architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path", "atento"),
        *("torch_dtype", "dtype", "tokenizer_class", "model_max_length", "finetuning_task", "language", "license"),
        *("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "is_encoder_decoder", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_past", "return_dict", "chunk_size_feed_forward"),
        *("gradient_checkpointing", "torchscript", "use_bfloat16", "initializer_range", "initializer_factor"),
        *("initializer_cutoff_factor", "init_std", "directionality", "cls_token_id", "sep_token_id", "mask_token_id"),
        *(
            "classifier_dropout",
            "classif_dropout",
            "decoder_layerdrop",
            "encoder_layerdrop",
            "n_ctx",
            "afn",
            "n_special",
        ),
        *("forced_bos_token_id", "forced_eos_token_id", "task_specific_params", "prefix", "max_length", "min_length"),
        *("do_sample", "temperature", "top_k", "top_p", "num_beams", "num_beam_groups", "length_penalty"),
        *("no_repeat_ngram_size", "repetition_penalty", "early_stopping", "bad_words_ids", "num_return_sequences"),
        *("diversity_penalty", "typical_p", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "encoder_no_repeat_ngram_size", "static_position_embeddings"),
        *("pruned_heads", "tie_encoder_decoder", "cross_attention_hidden_size", "sparse_prediction"),
        *("sparse_pred_ignore_index", "deterministic_flash_attn", "reorder_and_upcast_attn", "reference_compile"),
        *("save_step", "total_flos", "adapters", "adaptation_config", "gradient_checkpointing_kwargs"),
        *("force_bos_token_to_be_generated", "extra_pos_embeddings", "normalize_embedding", "repad_logits_with_grad"),
        *("predict_special_tokens", "max_sequence_length"),
        "n_positions",  # T5's, which has no table of positions
    )
)
_HARMLESS_ENDS = ("dropout", "dropout_rate", "pdrop", "dropout_prob")
_HARMLESS_STARTS = ("summary_", "pooler_", "_attn_implementation")
_NEUTRAL: Mapping[str, tuple[object, ...]] = {  # keys of older files, and the values that change nothing
    "add_bias_logits": (False,),
    "replacing_rate": (0,),
    "tie_weights_": (True,),
    "down_scale_factor": (1,),
    "gap_size": (0,),
    "net_structure_type": (0,),
    "num_memory_blocks": (0,),
    "position_embedding_type": ("absolute",),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_mrope": (False,),
}
_ALIASES = {"num_hidden_layers": "encoder_layers", "layer_norm_eps": "norm_eps"}  # second names of keys
# Keys that a family reads only together with another one, or under another name.
_CONDITIONAL = frozenset(
    (
        *("layer_types", "max_window_layers", "use_sliding_window", "sliding_window", "is_decoder", "legacy"),
        *("num_decoder_layers", "is_gated_act", "dense_act_fn", "position_buckets", "norm_rel_ebd", "share_att_key"),
        *("max_relative_positions", "classifier_pooling", "sinusoidal_pos_embds", "tie_word_embeddings"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "decoder_start_token_id"),
        "share_encoder_decoder_embeddings",
    )
)


@cache
def class_defaults(model_type: str) -> Settings:
    """The keys of a family's configuration class in transformers, and the values of those that a file leaves out.

    A value of null is one that the class leaves open, or derives from other keys.
    """
    table = files(__package__).joinpath("class_defaults.json").read_text(encoding="utf-8")
    found: Mapping[str, object] = json.loads(table).get(model_type, {})
    return found


class ReadKeys(dict[str, object]):
    """A `config.json` that notes which of its keys were read, and has the defaults of its class for others.

    Sizes that a family reads by `[]` have no default: a file without them is damaged.
    """

    def __init__(self, data: Mapping[str, object]) -> None:
        super().__init__(data)
        self.read: set[str] = set()
        model_type, size = data.get("model_type"), data.get("vocab_size")
        self.defaults = {
            key: value
            for key, value in class_defaults(str(model_type)).items()
            if value is not None and not (key.endswith("_token_id") and isinstance(size, int) and value >= size)
        }

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        self.read.add(key)
        return super().get(key, self.defaults.get(key, default))

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def unread(self) -> list[str]:
        """The keys with a value that were not read, without those that change no computation."""
        found = []
        for key in self.keys() - self.read - _HARMLESS - _CONDITIONAL:
            value, same = super().get(key), super().get(_ALIASES.get(key, ""))
            # changes nothing: that of its class, a neutral one, or that of its other name
            neutral = value in (None, self.defaults.get(key), same) or value in _NEUTRAL.get(key, ())
            if not (neutral or key.endswith(_HARMLESS_ENDS) or key.startswith(_HARMLESS_STARTS)):
                found.append(key)
        return sorted(found)
