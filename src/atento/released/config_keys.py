"""Keys of a released `config.json` that nothing reads: what they say may change the computation."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

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
def class_defaults(model_type: str) -> Mapping[str, Any]:
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
        return sorted(key for key in self.keys() - self.read if _may_matter(key) and not self._is_neutral(key))

    def _is_neutral(self, key: str) -> bool:
        """Whether the value of a key changes nothing: that of its class, a neutral one, or that of its other name."""
        value, same = super().get(key), super().get(_ALIASES.get(key, ""))
        return value in (None, self.defaults.get(key), same) or value in _NEUTRAL.get(key, ())


def _may_matter(key: str) -> bool:
    """Whether a key that was not read may change what a network computes."""
    harmless: Iterable[str] = _HARMLESS | _CONDITIONAL
    return key not in harmless and not key.endswith(_HARMLESS_ENDS) and not key.startswith(_HARMLESS_STARTS)
