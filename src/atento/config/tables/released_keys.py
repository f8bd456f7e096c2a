"""The keys of the files of a released folder: what is computed, what changes nothing, and what is refused.

A key of a file that stands in no row, or a refused one with another value than its neutral ones, is named in the load
report. The keys of `config.json` that are computed are those that its family reads (`released/`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Keys:
    """The rows of one file."""

    computed: tuple[str, ...] = ()  # what they say is done
    harmless: tuple[str, ...] = ()  # they change nothing that is computed here
    # what they say is not done, and their neutral values; null is neutral everywhere
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def known(self, key: str) -> bool:
        """Whether a row has that key."""
        return key in self.computed or key in self.harmless or key in self.refused

    def unread(self, data: Mapping[str, object]) -> list[str]:
        """The keys of a file that are in no row, or refused with a value that is not neutral."""
        return sorted(
            key
            for key, value in data.items()
            if value is not None and (value not in self.refused[key] if key in self.refused else not self.known(key))
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FORWARD, _HIDDEN_OR_LOGITS = {"method": "forward"}, ("last_hidden_state", "logits")
FILES: dict[str, Keys] = {
    "generation_config.json": Keys(
        computed=_names(
            """
            eos_token_id forced_bos_token_id forced_eos_token_id decoder_start_token_id suppress_tokens
            begin_suppress_tokens bad_words_ids renormalize_logits
            num_beams length_penalty early_stopping num_beam_groups diversity_penalty do_sample temperature top_k top_p
            min_p typical_p repetition_penalty no_repeat_ngram_size stop_strings
            max_length max_new_tokens min_length min_new_tokens
            """
        ),
        harmless=_names(
            """
            bos_token_id pad_token_id transformers_version _from_model_config use_cache cache_implementation
            cache_config max_cache_len return_dict_in_generate output_attentions output_hidden_states output_scores
            output_logits compile_config disable_compile continuous_batching_config low_memory prefill_chunk_size
            remove_invalid_values is_assistant num_assistant_tokens num_assistant_tokens_schedule
            assistant_confidence_threshold assistant_early_exit assistant_lookbehind assistant_ensemble_weight
            target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size speculation_type use_mtp max_time
            """
        ),
        refused={
            **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (0.0,)),
            **dict.fromkeys(("encoder_repetition_penalty", "top_h", "guidance_scale"), (1.0,)),
            **dict.fromkeys(("dola_layers", "constraints", "force_words_ids"), ([],)),
            "encoder_no_repeat_ngram_size": (0,),
            "exponential_decay_length_penalty": (),
            "sequence_bias": ({}, []),
            "token_healing": (False,),
            "watermarking_config": ({},),
            "num_return_sequences": (1,),
        },
    ),
    "tokenizer_config.json": Keys(
        computed=_names(
            """
            tokenizer_class bos_token eos_token unk_token sep_token pad_token cls_token mask_token
            additional_special_tokens extra_special_tokens model_specific_special_tokens added_tokens_decoder
            model_max_length model_input_names chat_template
            add_bos_token add_eos_token add_prefix_space do_lower_case strip_accents tokenize_chinese_chars
            keep_accents split_by_punct extra_ids offset mask_token_sent src_lang language_codes separate_vocabs
            language legacy_behaviour
            split_special_tokens truncation_side markers atento
            """
        ),
        harmless=_names(
            """
            name_or_path special_tokens_map_file tokenizer_file vocab_file merges_file auto_map use_fast backend
            is_local local_files_only processor_class padding_side padding pad_to_multiple_of
            pad_token_type_id cls_token_type_id return_token_type_ids truncation truncation_strategy max_length max_len
            stride add_prefix_space_char trim_offsets errors from_slow
            clean_up_tokenization_spaces do_basic_tokenize never_split spaces_between_special_tokens num_madeup_words
            use_default_system_prompt
            tgt_lang source_lang target_lang legacy vocab_type do_split
            sep add_special_tokens special_tokens spm_file source_spm target_spm
            """
        ),
        refused={"sp_model_kwargs": ({},), "remove_space": (True,)},
    ),
    "special_tokens_map.json": Keys(
        computed=_names(
            """
            bos_token eos_token unk_token sep_token pad_token cls_token mask_token additional_special_tokens
            extra_special_tokens
            """
        )
    ),
    "sentence_bert_config.json": Keys(
        computed=("max_seq_length", "do_lower_case"),
        harmless=("unpad_inputs",),
        refused={
            "transformer_task": ("feature-extraction", "sequence-classification"),
            "modality_config": ({}, *({"text": _FORWARD | {"method_output_name": out}} for out in _HIDDEN_OR_LOGITS)),
            "module_output_name": ("token_embeddings", "scores"),
            **dict.fromkeys(("query_length", "document_length", "query_expansion"), ()),
            **dict.fromkeys(("processing_kwargs", "model_args", "tokenizer_args", "config_args"), ({},)),
        },
    ),
    "config_sentence_transformers.json": Keys(
        computed=("prompts", "default_prompt_name"),
        harmless=("__version__", "model_type"),
        refused={
            "similarity_fn_name": ("cosine",),
            "activation_fn": ("torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"),
        },
    ),
    "adapter_config.json": Keys(
        computed=_names(
            """
            task_type base_model_name_or_path revision r lora_alpha rank_pattern alpha_pattern use_rslora bias lora_bias
            use_dora init_lora_weights target_modules exclude_modules layers_to_transform layers_pattern modules_to_save
            trainable_token_indices ensure_weight_tying monteclora_config velora_config
            """
        ),
        harmless=_names(
            """
            auto_mapping peft_version inference_mode lora_dropout fan_in_fan_out megatron_core corda_config eva_config
            lora_ga_config loftq_config qalora_group_size runtime_config merge_weights unsloth_fixed
            """
        ),
        refused={  # no adapter is read with another value
            "peft_type": ("LORA",),
            "use_qalora": (False,),
            "use_bdlora": (False, {}),
            **dict.fromkeys(("arrow_config", "kasa_config", "megatron_config"), ({},)),
            **dict.fromkeys(
                ("alora_invocation_tokens", "target_parameters", "layer_replication", "enable_lora"), ([],)
            ),
        },
    ),
}

_PLACES = {f"module_{side}_name": ("sentence_embedding",) for side in ("input", "output")}
MODULES: dict[str, Keys] = {  # a row of `modules.json`, and `config.json` of each type of module behind the network
    "modules.json": Keys(computed=("path", "type"), harmless=("idx", "name"), refused={"kwargs": ([],)}),
    "Pooling": Keys(
        computed=_names(
            """
            pooling_mode pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens
            pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens pooling_mode_lasttoken include_prompt
            """
        ),
        harmless=("word_embedding_dimension", "embedding_dimension"),
    ),
    "Dense": Keys(
        computed=("activation_function", "bias", "in_features", "out_features"),
        refused={**_PLACES, "use_residual": (False,)},
    ),
    "Normalize": Keys(refused=_PLACES),
}
