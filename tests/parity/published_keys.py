"""The JSON files of models as they were published, beside their weights: their keys, with values that matter."""

from typing import Any

Files = dict[str, dict[str, Any]]
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"


def _token(text: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": text, **plain, **flags}


def _added(*texts: str, start: int = 0) -> dict[str, Any]:
    return {str(start + n): _token(text, special=True) for n, text in enumerate(texts)}


_ANGLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_FAIRSEQ = _ANGLES | {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
_SQUARE = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
_BERT_TOKENIZER = _SQUARE | {
    "clean_up_tokenization_spaces": True,
    "added_tokens_decoder": _added("[PAD]") | _added("[UNK]", "[CLS]", "[SEP]", "[MASK]", start=100),
    "do_basic_tokenize": True,
    "do_lower_case": True,
    "model_max_length": 512,
    "never_split": None,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "tokenizer_class": "BertTokenizer",
}
_ROBERTA = _BERT | {
    "architectures": ["XLMRobertaForMaskedLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "xlm-roberta",
    "output_past": True,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 250002,
}
_BART = {
    "_name_or_path": "facebook/bart-large-cnn",
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["BartForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 12,
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "early_stopping": True,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 12,
    "eos_token_id": 2,
    "force_bos_token_to_be_generated": True,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "length_penalty": 2.0,
    "max_length": 142,
    "max_position_embeddings": 1024,
    "min_length": 56,
    "model_type": "bart",
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "num_beams": 4,
    "num_hidden_layers": 12,
    "output_past": True,
    "pad_token_id": 1,
    "prefix": " ",
    "replacing_rate": 0,
    "scale_embedding": False,
    "static_position_embeddings": False,
    "student_decoder_layers": None,
    "student_encoder_layers": None,
    "task_specific_params": {"summarization": {"early_stopping": True, "length_penalty": 2.0, "num_beams": 4}},
    "transformers_version": "4.7.0.dev0",
    "use_cache": True,
    "vocab_size": 50264,
}
_M2M = {
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["M2M100ForConditionalGeneration"],
    "attention_dropout": 0.1,
    "bos_token_id": 0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layerdrop": 0.05,
    "decoder_layers": 12,
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "early_stopping": True,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layerdrop": 0.05,
    "encoder_layers": 12,
    "eos_token_id": 2,
    "gradient_checkpointing": False,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_length": 200,
    "max_position_embeddings": 1024,
    "model_type": "m2m_100",
    "num_beams": 5,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "scale_embedding": True,
    "transformers_version": "4.4.0.dev0",
    "use_cache": True,
    "vocab_size": 128112,
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
_T5 = {
    "_name_or_path": "/home/patrick/hugging_face/mt5/mt5-small",
    "architectures": ["MT5ForConditionalGeneration"],
    "d_ff": 1024,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu",
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "mt5",
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False,
    "tokenizer_class": "T5Tokenizer",
    "transformers_version": "4.10.0.dev0",
    "use_cache": True,
    "vocab_size": 250112,
}
_SENTENCES: Files = {
    "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0"}
    },
    "Pooling": {
        "word_embedding_dimension": 768,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "modules.json": {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    "Normalize": {},
}

PUBLISHED: dict[str, Files] = {
    "bert-base-uncased": {CONFIG: _BERT, TOKENIZER: {"do_lower_case": True, "model_max_length": 512}},
    "roberta-base": {
        CONFIG: {key: value for key, value in _ROBERTA.items() if key != "output_past"}
        | {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "vocab_size": 50265},
        TOKENIZER: {"model_max_length": 512},
    },
    "xlm-roberta-base": {CONFIG: _ROBERTA, TOKENIZER: {"model_max_length": 512}},
    "distilbert-base-uncased": {
        CONFIG: {
            "activation": "gelu",
            "architectures": ["DistilBertForMaskedLM"],
            "attention_dropout": 0.1,
            "dim": 768,
            "dropout": 0.1,
            "hidden_dim": 3072,
            "initializer_range": 0.02,
            "max_position_embeddings": 512,
            "model_type": "distilbert",
            "n_heads": 12,
            "n_layers": 6,
            "pad_token_id": 0,
            "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "sinusoidal_pos_embds": False,
            "tie_weights_": True,
            "transformers_version": "4.10.0.dev0",
            "vocab_size": 30522,
        }
    },
    "deberta-v3-base": {
        CONFIG: {
            "model_type": "deberta-v2",
            "attention_probs_dropout_prob": 0.1,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "layer_norm_eps": 1e-7,
            "max_relative_positions": -1,
            "position_biased_input": False,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "type_vocab_size": 0,
            "vocab_size": 128100,
        },
        TOKENIZER: {"do_lower_case": False, "vocab_type": "spm"},
    },
    "electra-base-discriminator": {
        CONFIG: {key: value for key, value in _BERT.items() if key not in ("use_cache", "gradient_checkpointing")}
        | {"architectures": ["ElectraForPreTraining"], "embedding_size": 768, "model_type": "electra"}
        | {"summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True}
    },
    "albert-base-v2": {
        CONFIG: {
            "architectures": ["AlbertForMaskedLM"],
            "attention_probs_dropout_prob": 0,
            "bos_token_id": 2,
            "classifier_dropout_prob": 0.1,
            "down_scale_factor": 1,
            "embedding_size": 128,
            "eos_token_id": 3,
            "gap_size": 0,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "inner_group_num": 1,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "albert",
            "net_structure_type": 0,
            "num_attention_heads": 12,
            "num_hidden_groups": 1,
            "num_hidden_layers": 12,
            "num_memory_blocks": 0,
            "pad_token_id": 0,
            "type_vocab_size": 2,
            "vocab_size": 30000,
        }
    },
    "gpt2": {
        CONFIG: {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1,
            "bos_token_id": 50256,
            "embd_pdrop": 0.1,
            "eos_token_id": 50256,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "resid_pdrop": 0.1,
            "summary_activation": None,
            "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
        GENERATION: {"bos_token_id": 50256, "eos_token_id": 50256, "transformers_version": "4.26.0.dev0"}
        | {"_from_model_config": True},
    },
    "openai-gpt": {
        CONFIG: {
            "afn": "gelu",
            "architectures": ["OpenAIGPTLMHeadModel"],
            "attn_pdrop": 0.1,
            "embd_pdrop": 0.1,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "openai-gpt",
            "n_ctx": 512,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 512,
            "n_special": 0,
            "predict_special_tokens": True,
            "resid_pdrop": 0.1,
            "vocab_size": 40478,
        }
    },
    "Llama-3.1-8B-Instruct": {
        CONFIG: _LLAMA,
        GENERATION: {
            "bos_token_id": 128000,
            "do_sample": True,
            "eos_token_id": [128001, 128008, 128009],
            "temperature": 0.6,
            "top_p": 0.9,
            "transformers_version": "4.42.3",
        },
        TOKENIZER: {
            "added_tokens_decoder": _added("<|begin_of_text|>", "<|end_of_text|>", start=128000),
            "bos_token": "<|begin_of_text|>",
            "chat_template": "{{ messages }}",
            "clean_up_tokenization_spaces": True,
            "eos_token": "<|eot_id|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        SPECIAL: {"bos_token": _token("<|begin_of_text|>"), "eos_token": _token("<|eot_id|>")},
    },
    "Llama-2-7b-chat": {
        CONFIG: {key: value for key, value in _LLAMA.items() if key not in ("attention_bias", "mlp_bias", "rope_theta")}
        | {"_name_or_path": "meta-llama/Llama-2-7b-chat-hf", "bos_token_id": 1, "eos_token_id": 2, "rope_scaling": None}
        | {"vocab_size": 32000, "max_position_embeddings": 4096, "num_key_value_heads": 32, "intermediate_size": 11008},
        GENERATION: {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "do_sample": True}
        | {"temperature": 0.6, "top_p": 0.9, "transformers_version": "4.32.0.dev0", "_from_model_config": True},
        TOKENIZER: {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": {"__type": "AddedToken", **_token("<s>")},
            "chat_template": "{{ messages }}",
            "clean_up_tokenization_spaces": False,
            "eos_token": {"__type": "AddedToken", **_token("</s>")},
            "legacy": False,
            "model_max_length": 1000000000000000019884624838656,
            "pad_token": None,
            "padding_side": "right",
            "sp_model_kwargs": {},
            "tokenizer_class": "LlamaTokenizer",
            "unk_token": {"__type": "AddedToken", **_token("<unk>")},
            "use_default_system_prompt": False,
        },
    },
    "Qwen2.5-7B-Instruct": {
        CONFIG: {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "hidden_act": "silu",
            "hidden_size": 3584,
            "initializer_range": 0.02,
            "intermediate_size": 18944,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "use_mrope": False,
            "model_type": "qwen2",
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.43.1",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 152064,
        },
        GENERATION: {
            "bos_token_id": 151643,
            "pad_token_id": 151643,
            "do_sample": True,
            "eos_token_id": [151645, 151643],
            "repetition_penalty": 1.05,
            "temperature": 0.7,
            "top_p": 0.8,
            "top_k": 20,
            "transformers_version": "4.37.0",
        },
        TOKENIZER: {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": _added("<|endoftext|>", "<|im_start|>", "<|im_end|>", start=151643),
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": None,
            "chat_template": "{{ messages }}",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    },
    "Qwen3-0.6B": {
        CONFIG: {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "model_type": "qwen3",
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 151936,
        }
    },
    "gemma-2b-it": {
        CONFIG: {
            "architectures": ["GemmaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "head_dim": 256,
            "hidden_act": "gelu",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 16384,
            "max_position_embeddings": 8192,
            "model_type": "gemma",
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": 256000,
        },
        GENERATION: {"_from_model_config": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
        | {"cache_implementation": "hybrid", "transformers_version": "4.42.0.dev0"},
        TOKENIZER: {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": _added("<pad>", "<eos>", "<bos>", "<unk>"),
            "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
            "bos_token": "<bos>",
            "chat_template": "{{ messages }}",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<eos>",
            "legacy": None,
            "model_max_length": 1000000000000000019884624838656,
            "pad_token": "<pad>",
            "sp_model_kwargs": {},
            "spaces_between_special_tokens": False,
            "tokenizer_class": "GemmaTokenizer",
            "unk_token": "<unk>",
            "use_default_system_prompt": False,
        },
    },
    "Mistral-7B-Instruct-v0.2": {
        CONFIG: {
            key: value for key, value in _LLAMA.items() if key not in ("mlp_bias", "pretraining_tp", "rope_scaling")
        }
        | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, "eos_token_id": 2}
        | {"bos_token_id": 1, "vocab_size": 32000, "rope_theta": 1000000.0, "max_position_embeddings": 32768},
        GENERATION: {
            "_from_model_config": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "transformers_version": "4.36.0",
        },
        TOKENIZER: {
            "add_bos_token": True,
            "add_eos_token": False,
            "add_prefix_space": None,
            "added_tokens_decoder": _added("<unk>", "<s>", "</s>"),
            "additional_special_tokens": [],
            **_ANGLES,
            "chat_template": "{{ messages }}",
            "clean_up_tokenization_spaces": False,
            "legacy": False,
            "model_max_length": 1000000000000000019884624838656,
            "pad_token": None,
            "sp_model_kwargs": {},
            "spaces_between_special_tokens": False,
            "tokenizer_class": "LlamaTokenizer",
            "use_default_system_prompt": False,
        },
    },
    "mt5-small": {
        CONFIG: _T5,
        GENERATION: {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
        | {"transformers_version": "4.26.0.dev0", "_from_model_config": True},
        TOKENIZER: {
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "extra_ids": 0,
            "additional_special_tokens": None,
            "special_tokens_map_file": "/home/patrick/.cache/torch/transformers/685ac0ca",
            "tokenizer_file": None,
            "name_or_path": "google/mt5-small",
        },
    },
    "t5-small": {
        CONFIG: _T5
        | {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 512, "output_past": True}
        | {"feed_forward_proj": "relu", "tie_word_embeddings": True, "vocab_size": 32128, "num_heads": 8}
        | {"task_specific_params": {"summarization": {"prefix": "summarize: "}}, "num_layers": 6}
        | {"num_decoder_layers": 6, "d_ff": 2048}
    },
    "flan-t5-base": {
        CONFIG: _T5
        | {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 512, "output_past": True}
        | {"classifier_dropout": 0.0, "dense_act_fn": "gelu_new", "is_gated_act": True, "vocab_size": 32128}
        | {"relative_attention_max_distance": 128}
    },
    "nllb-200-distilled-600M": {
        CONFIG: _M2M
        | {"_name_or_path": "facebook/nllb-200-distilled-600M", "torch_dtype": "float32", "vocab_size": 256206}
        | {"tokenizer_class": "NllbTokenizer", "early_stopping": True},
        GENERATION: {"_from_model_config": True, "bos_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 2}
        | {"max_length": 200, "pad_token_id": 1, "transformers_version": "4.27.0.dev0"},
        TOKENIZER: _FAIRSEQ
        | {
            "mask_token": {"__type": "AddedToken", **_token("<mask>", lstrip=True)},
            "name_or_path": "facebook/nllb-200-distilled-600M",
            "sp_model_kwargs": {},
            "special_tokens_map_file": None,
            "src_lang": None,
            "tgt_lang": None,
            "tokenizer_class": "NllbTokenizer",
            "tokenizer_file": None,
            "additional_special_tokens": ["ace_Arab", "por_Latn"],
            "legacy_behaviour": False,
            "model_max_length": 1024,
        },
        SPECIAL: _FAIRSEQ | {"additional_special_tokens": ["ace_Arab", "por_Latn"]},
    },
    "m2m100_418M": {
        CONFIG: _M2M,
        GENERATION: {"_from_model_config": True, "bos_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 2}
        | {"early_stopping": True, "max_length": 200, "num_beams": 5, "pad_token_id": 1},
        TOKENIZER: _ANGLES
        | {"src_lang": None, "tgt_lang": None, "sep_token": "</s>", "pad_token": "<pad>", "num_madeup_words": 8}
        | {"language_codes": "m2m100", "model_max_length": 1024, "special_tokens_map_file": "m2m_100_1.2B_v2/x.json"}
        | {"name_or_path": "m2m_100_1.2B_v2", "tokenizer_class": "M2M100Tokenizer", "tokenizer_file": None}
        | {"additional_special_tokens": ["__af__", "__pt__"], "sp_model_kwargs": {}},
    },
    "bart-large-cnn": {
        CONFIG: _BART,
        GENERATION: {
            "_from_model_config": True,
            "bos_token_id": 0,
            "decoder_start_token_id": 2,
            "early_stopping": True,
            "eos_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "length_penalty": 2.0,
            "max_length": 142,
            "min_length": 56,
            "no_repeat_ngram_size": 3,
            "num_beams": 4,
            "pad_token_id": 1,
            "transformers_version": "4.27.0.dev0",
        },
    },
    "mbart-large-50": {
        CONFIG: _BART
        | {"architectures": ["MBartForConditionalGeneration"], "model_type": "mbart", "add_final_layer_norm": True}
        | {"normalize_before": True, "normalize_embedding": True, "scale_embedding": True, "vocab_size": 250054}
        | {"activation_function": "gelu", "tokenizer_class": "MBart50Tokenizer"}
        | {"force_bos_token_to_be_generated": False, "forced_bos_token_id": None, "min_length": 0},
        TOKENIZER: _FAIRSEQ
        | {"src_lang": None, "tgt_lang": None, "language_codes": "ML50", "tokenizer_class": "MBart50Tokenizer"}
        | {"special_tokens_map_file": "/home/suraj/x.json", "name_or_path": "mbart-50-large"},
    },
    "opus-mt-en-de": {
        CONFIG: {key: value for key, value in _BART.items() if key not in ("force_bos_token_to_be_generated", "prefix")}
        | {"activation_function": "swish", "architectures": ["MarianMTModel"], "bad_words_ids": [[58100]]}
        | {"bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0, "forced_eos_token_id": 0}
        | {"max_length": 512, "max_position_embeddings": 512, "model_type": "marian", "num_beams": 6}
        | {"decoder_vocab_size": 58101, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
        | {"normalize_embedding": False, "pad_token_id": 58100, "scale_embedding": True, "d_model": 512}
        | {"static_position_embeddings": True, "vocab_size": 58101, "forced_bos_token_id": None, "min_length": 0}
        | {"length_penalty": 1.0, "no_repeat_ngram_size": 0, "extra_pos_embeddings": 58101},
        GENERATION: {"bad_words_ids": [[58100]], "bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0}
        | {"forced_eos_token_id": 0, "max_length": 512, "num_beams": 6, "pad_token_id": 58100}
        | {"renormalize_logits": True, "transformers_version": "4.32.0.dev0"},
        TOKENIZER: {"target_lang": "de", "source_lang": "en", "model_max_length": 512},
    },
    "pegasus-xsum": {
        CONFIG: _BART
        | {"activation_function": "relu", "architectures": ["PegasusForConditionalGeneration"], "model_type": "pegasus"}
        | {"add_final_layer_norm": True, "normalize_before": True, "normalize_embedding": False, "vocab_size": 96103}
        | {"decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1, "pad_token_id": 0}
        | {"extra_pos_embeddings": 1, "length_penalty": 0.6, "max_length": 64, "max_position_embeddings": 512}
        | {"num_beams": 8, "scale_embedding": True, "static_position_embeddings": True, "min_length": 0}
        | {"force_bos_token_to_be_generated": False, "forced_bos_token_id": None, "no_repeat_ngram_size": 0},
        TOKENIZER: {
            "pad_token": "<pad>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "mask_token": "<mask_2>",
            "mask_token_sent": "<mask_1>",
            "model_max_length": 512,
            "offset": 103,
            "additional_special_tokens": ["<mask_1>", "<unk_2>"],
            "special_tokens_map_file": "x.json",
            "full_tokenizer_file": None,
            "name_or_path": "google/pegasus-xsum",
            "tokenizer_file": None,
        },
    },
    "ModernBERT-base": {
        CONFIG: {
            "architectures": ["ModernBertForMaskedLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 50281,
            "classifier_activation": "gelu",
            "classifier_bias": False,
            "classifier_dropout": 0.0,
            "classifier_pooling": "mean",
            "cls_token_id": 50281,
            "decoder_bias": True,
            "deterministic_flash_attn": False,
            "embedding_dropout": 0.0,
            "eos_token_id": 50282,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "gradient_checkpointing": False,
            "hidden_activation": "gelu",
            "hidden_size": 768,
            "initializer_cutoff_factor": 2.0,
            "initializer_range": 0.02,
            "intermediate_size": 1152,
            "layer_norm_eps": 1e-05,
            "local_attention": 128,
            "local_rope_theta": 10000.0,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "mlp_dropout": 0.0,
            "model_type": "modernbert",
            "norm_bias": False,
            "norm_eps": 1e-05,
            "num_attention_heads": 12,
            "num_hidden_layers": 22,
            "pad_token_id": 50283,
            "position_embedding_type": "absolute",
            "repad_logits_with_grad": False,
            "sep_token_id": 50282,
            "sparse_pred_ignore_index": -100,
            "sparse_prediction": False,
            "torch_dtype": "float32",
            "transformers_version": "4.47.0.dev0",
            "vocab_size": 50368,
        },
        TOKENIZER: _SQUARE
        | {
            "added_tokens_decoder": _added("|||IP_ADDRESS|||") | _added("[UNK]", "[CLS]", start=50280),
            "clean_up_tokenization_spaces": True,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 8192,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "extra_special_tokens": {},
        },
        SPECIAL: {key: _token(value) for key, value in _SQUARE.items()},
    },
    "multilingual-e5-base": {
        **_SENTENCES,
        CONFIG: _ROBERTA | {"architectures": ["XLMRobertaModel"], "classifier_dropout": None, "torch_dtype": "float32"},
        TOKENIZER: _FAIRSEQ
        | {"clean_up_tokenization_spaces": True, "model_max_length": 512, "tokenizer_class": "XLMRobertaTokenizer"}
        | {"mask_token": {"__type": "AddedToken", **_token("<mask>", lstrip=True)}},
    },
    "bge-base-en-v1.5": {
        **_SENTENCES,
        CONFIG: _BERT
        | {"_name_or_path": "/root/.cache/torch/x", "architectures": ["BertModel"], "classifier_dropout": None}
        | {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "torch_dtype": "float32"},
        TOKENIZER: _BERT_TOKENIZER,
    },
    "gte-base": {
        **_SENTENCES,
        CONFIG: _BERT | {"_name_or_path": "bert-base-uncased", "classifier_dropout": None, "torch_dtype": "float16"},
        TOKENIZER: _BERT_TOKENIZER
        | {"max_length": 128, "stride": 0, "truncation_side": "right", "truncation_strategy": "longest_first"}
        | {"pad_to_multiple_of": None, "pad_token_type_id": 0, "padding_side": "right"},
    },
    "all-MiniLM-L6-v2": {
        **_SENTENCES,
        CONFIG: _BERT | {"_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"]},
        TOKENIZER: _SQUARE
        | {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None, "model_max_length": 512}
        | {"name_or_path": "nreimers/MiniLM-L6-H384-uncased", "do_basic_tokenize": True, "never_split": None}
        | {"tokenizer_class": "BertTokenizer", "special_tokens_map_file": "x.json"},
    },
    "nomic-embed-text-v1.5": {  # its network is of no family here
        **_SENTENCES,
        TOKENIZER: _BERT_TOKENIZER | {"model_max_length": 8192},
        "sentence_bert_config.json": {"max_seq_length": 8192, "do_lower_case": False},
        "config_sentence_transformers.json": {"__version__": {"transformers": "4.37.2"}, "prompts": {}}
        | {"default_prompt_name": None, "similarity_fn_name": None},
    },
    "alpaca-lora-7b": {
        "adapter_config.json": {
            "base_model_name_or_path": "decapoda-research/llama-7b-hf",
            "bias": "none",
            "enable_lora": None,
            "fan_in_fan_out": False,
            "inference_mode": True,
            "lora_alpha": 16,
            "lora_dropout": 0.05,
            "merge_weights": False,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": 16,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "task_type": "CAUSAL_LM",
        }
    },
}
