"""The JSON files of models as they were published, beside their weights: their keys, with values that matter."""

import json
import re
from typing import Any

Files = dict[str, dict[str, Any]]
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
_PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}  # flags of a token
_SENTENCES: Files = {
    "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0"}
    },
    "Pooling": {"word_embedding_dimension": 768, "pooling_mode_cls_token": True}
    | {f"pooling_mode_{kind}": False for kind in ("mean_tokens", "max_tokens", "mean_sqrt_len_tokens")},
    "modules.json": {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    "Normalize": {},
}
# A row a file: model, file, the model whose keys it repeats, those it lacks; then its own: JSON, or else a string.
# The network of nomic-embed-text is of no family here.
_TABLE = """
bert-base-uncased config.json architectures=["BertForMaskedLM"] attention_probs_dropout_prob=0.1
    gradient_checkpointing=false hidden_act=gelu hidden_dropout_prob=0.1 hidden_size=768 initializer_range=0.02
    intermediate_size=3072 layer_norm_eps=1e-12 max_position_embeddings=512 model_type=bert num_attention_heads=12
    num_hidden_layers=12 pad_token_id=0 position_embedding_type=absolute transformers_version=4.6.0.dev0
    type_vocab_size=2 use_cache=true vocab_size=30522
bert-base-uncased tokenizer_config.json do_lower_case=true model_max_length=512
xlm-roberta-base config.json bert-base-uncased architectures=["XLMRobertaForMaskedLM"] layer_norm_eps=1e-05
    max_position_embeddings=514 model_type=xlm-roberta pad_token_id=1 type_vocab_size=1 vocab_size=250002
    bos_token_id=0 eos_token_id=2 output_past=true
xlm-roberta-base tokenizer_config.json model_max_length=512
roberta-base config.json xlm-roberta-base -output_past architectures=["RobertaForMaskedLM"] model_type=roberta
    vocab_size=50265
roberta-base tokenizer_config.json model_max_length=512
Llama-3.1-8B-Instruct config.json architectures=["LlamaForCausalLM"] attention_bias=false attention_dropout=0.0
    bos_token_id=128000 eos_token_id=[128001, 128008, 128009] hidden_act=silu hidden_size=4096 initializer_range=0.02
    intermediate_size=14336 max_position_embeddings=131072 mlp_bias=false model_type=llama num_attention_heads=32
    num_hidden_layers=32 num_key_value_heads=8 pretraining_tp=1 rms_norm_eps=1e-05 rope_scaling={"factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    rope_theta=500000.0 tie_word_embeddings=false torch_dtype=bfloat16 transformers_version=4.42.3 use_cache=true
    vocab_size=128256
Llama-3.1-8B-Instruct generation_config.json bos_token_id=128000 do_sample=true eos_token_id=[128001, 128008, 128009]
    temperature=0.6 top_p=0.9 transformers_version=4.42.3
Llama-3.1-8B-Instruct tokenizer_config.json added_tokens_decoder={"128000": "<|begin_of_text|>",
    "128001": "<|end_of_text|>"} bos_token=<|begin_of_text|> chat_template={{ messages }}
    clean_up_tokenization_spaces=true eos_token=<|eot_id|> model_input_names=["input_ids", "attention_mask"]
    model_max_length=131072 tokenizer_class=PreTrainedTokenizerFast
Llama-3.1-8B-Instruct special_tokens_map.json bos_token={"content": "<|begin_of_text|>"}
    eos_token={"content": "<|eot_id|>"}
bart-large-cnn config.json _name_or_path=facebook/bart-large-cnn _num_labels=3 activation_dropout=0.0
    activation_function=gelu add_bias_logits=false add_final_layer_norm=false
    architectures=["BartForConditionalGeneration"] attention_dropout=0.0 bos_token_id=0 classif_dropout=0.0
    classifier_dropout=0.0 d_model=1024 decoder_attention_heads=16 decoder_ffn_dim=4096 decoder_layerdrop=0.0
    decoder_layers=12 decoder_start_token_id=2 dropout=0.1 early_stopping=true encoder_attention_heads=16
    encoder_ffn_dim=4096 encoder_layerdrop=0.0 encoder_layers=12 eos_token_id=2 force_bos_token_to_be_generated=true
    forced_bos_token_id=0 forced_eos_token_id=2 gradient_checkpointing=false id2label={"0": "LABEL_0", "1": "LABEL_1",
    "2": "LABEL_2"} init_std=0.02 is_encoder_decoder=true label2id={"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    length_penalty=2.0 max_length=142 max_position_embeddings=1024 min_length=56 model_type=bart
    no_repeat_ngram_size=3 normalize_before=false num_beams=4 num_hidden_layers=12 output_past=true pad_token_id=1
    prefix=" " replacing_rate=0 scale_embedding=false static_position_embeddings=false student_decoder_layers=null
    student_encoder_layers=null task_specific_params={"summarization": {"early_stopping": true, "length_penalty": 2.0,
    "num_beams": 4}} transformers_version=4.7.0.dev0 use_cache=true vocab_size=50264
bart-large-cnn generation_config.json _from_model_config=true bos_token_id=0 decoder_start_token_id=2
    early_stopping=true eos_token_id=2 forced_bos_token_id=0 forced_eos_token_id=2 length_penalty=2.0 max_length=142
    min_length=56 no_repeat_ngram_size=3 num_beams=4 pad_token_id=1 transformers_version=4.27.0.dev0
m2m100_418M config.json activation_dropout=0.0 activation_function=relu
    architectures=["M2M100ForConditionalGeneration"] attention_dropout=0.1 bos_token_id=0 d_model=1024
    decoder_attention_heads=16 decoder_ffn_dim=4096 decoder_layerdrop=0.05 decoder_layers=12 decoder_start_token_id=2
    dropout=0.1 early_stopping=true encoder_attention_heads=16 encoder_ffn_dim=4096 encoder_layerdrop=0.05
    encoder_layers=12 eos_token_id=2 gradient_checkpointing=false init_std=0.02 is_encoder_decoder=true max_length=200
    max_position_embeddings=1024 model_type=m2m_100 num_beams=5 num_hidden_layers=12 pad_token_id=1
    scale_embedding=true transformers_version=4.4.0.dev0 use_cache=true vocab_size=128112
m2m100_418M generation_config.json _from_model_config=true bos_token_id=0 decoder_start_token_id=2 eos_token_id=2
    early_stopping=true max_length=200 num_beams=5 pad_token_id=1
m2m100_418M tokenizer_config.json bos_token=<s> eos_token=</s> unk_token=<unk> src_lang=null tgt_lang=null
    sep_token=</s> pad_token=<pad> num_madeup_words=8 language_codes=m2m100 model_max_length=1024
    special_tokens_map_file=m2m_100_1.2B_v2/x.json name_or_path=m2m_100_1.2B_v2 tokenizer_class=M2M100Tokenizer
    tokenizer_file=null additional_special_tokens=["__af__", "__pt__"] sp_model_kwargs={}
distilbert-base-uncased config.json activation=gelu architectures=["DistilBertForMaskedLM"] attention_dropout=0.1
    dim=768 dropout=0.1 hidden_dim=3072 initializer_range=0.02 max_position_embeddings=512 model_type=distilbert
    n_heads=12 n_layers=6 pad_token_id=0 qa_dropout=0.1 seq_classif_dropout=0.2 sinusoidal_pos_embds=false
    tie_weights_=true transformers_version=4.10.0.dev0 vocab_size=30522
deberta-v3-base config.json model_type=deberta-v2 attention_probs_dropout_prob=0.1 hidden_act=gelu
    hidden_dropout_prob=0.1 hidden_size=768 initializer_range=0.02 intermediate_size=3072 max_position_embeddings=512
    relative_attention=true position_buckets=256 norm_rel_ebd=layer_norm share_att_key=true pos_att_type=p2c|c2p
    layer_norm_eps=1e-07 max_relative_positions=-1 position_biased_input=false num_attention_heads=12
    num_hidden_layers=12 type_vocab_size=0 vocab_size=128100
deberta-v3-base tokenizer_config.json do_lower_case=false vocab_type=spm
electra-base-discriminator config.json bert-base-uncased -gradient_checkpointing -use_cache
    architectures=["ElectraForPreTraining"] model_type=electra embedding_size=768 summary_activation=gelu
    summary_last_dropout=0.1 summary_type=first summary_use_proj=true
albert-base-v2 config.json architectures=["AlbertForMaskedLM"] attention_probs_dropout_prob=0 bos_token_id=2
    classifier_dropout_prob=0.1 down_scale_factor=1 embedding_size=128 eos_token_id=3 gap_size=0 hidden_act=gelu_new
    hidden_dropout_prob=0 hidden_size=768 initializer_range=0.02 inner_group_num=1 intermediate_size=3072
    layer_norm_eps=1e-12 max_position_embeddings=512 model_type=albert net_structure_type=0 num_attention_heads=12
    num_hidden_groups=1 num_hidden_layers=12 num_memory_blocks=0 pad_token_id=0 type_vocab_size=2 vocab_size=30000
gpt2 config.json activation_function=gelu_new architectures=["GPT2LMHeadModel"] attn_pdrop=0.1 bos_token_id=50256
    embd_pdrop=0.1 eos_token_id=50256 initializer_range=0.02 layer_norm_epsilon=1e-05 model_type=gpt2 n_ctx=1024
    n_embd=768 n_head=12 n_layer=12 n_positions=1024 resid_pdrop=0.1 summary_activation=null summary_first_dropout=0.1
    summary_proj_to_labels=true summary_type=cls_index summary_use_proj=true
    task_specific_params={"text-generation": {"do_sample": true, "max_length": 50}} vocab_size=50257
gpt2 generation_config.json bos_token_id=50256 eos_token_id=50256 transformers_version=4.26.0.dev0
    _from_model_config=true
openai-gpt config.json afn=gelu architectures=["OpenAIGPTLMHeadModel"] attn_pdrop=0.1 embd_pdrop=0.1
    initializer_range=0.02 layer_norm_epsilon=1e-05 model_type=openai-gpt n_ctx=512 n_embd=768 n_head=12 n_layer=12
    n_positions=512 n_special=0 predict_special_tokens=true resid_pdrop=0.1 vocab_size=40478
Llama-2-7b-chat config.json Llama-3.1-8B-Instruct -attention_bias -mlp_bias -rope_theta bos_token_id=1 eos_token_id=2
    intermediate_size=11008 max_position_embeddings=4096 num_key_value_heads=32 rope_scaling=null vocab_size=32000
    _name_or_path=meta-llama/Llama-2-7b-chat-hf
Llama-2-7b-chat generation_config.json bos_token_id=1 eos_token_id=2 pad_token_id=0 do_sample=true temperature=0.6
    top_p=0.9 transformers_version=4.32.0.dev0 _from_model_config=true
Llama-2-7b-chat tokenizer_config.json add_bos_token=true add_eos_token=false bos_token={"__type": "AddedToken",
    "content": "<s>"} chat_template={{ messages }} clean_up_tokenization_spaces=false
    eos_token={"__type": "AddedToken", "content": "</s>"} legacy=false
    model_max_length=1000000000000000019884624838656 pad_token=null padding_side=right sp_model_kwargs={}
    tokenizer_class=LlamaTokenizer unk_token={"__type": "AddedToken", "content": "<unk>"}
    use_default_system_prompt=false
Qwen2.5-7B-Instruct config.json Llama-3.1-8B-Instruct -attention_bias -mlp_bias -pretraining_tp -rope_scaling
    architectures=["Qwen2ForCausalLM"] bos_token_id=151643 eos_token_id=151645 hidden_size=3584
    intermediate_size=18944 max_position_embeddings=32768 max_window_layers=28 use_mrope=false model_type=qwen2
    num_attention_heads=28 num_hidden_layers=28 num_key_value_heads=4 rms_norm_eps=1e-06 rope_theta=1000000.0
    sliding_window=131072 transformers_version=4.43.1 use_sliding_window=false vocab_size=152064
Qwen2.5-7B-Instruct generation_config.json bos_token_id=151643 pad_token_id=151643 do_sample=true
    eos_token_id=[151645, 151643] repetition_penalty=1.05 temperature=0.7 top_p=0.8 top_k=20
    transformers_version=4.37.0
Qwen2.5-7B-Instruct tokenizer_config.json add_bos_token=false add_prefix_space=false
    added_tokens_decoder={"151643": "<|endoftext|>", "151644": "<|im_start|>", "151645": "<|im_end|>"}
    additional_special_tokens=["<|im_start|>", "<|im_end|>"] bos_token=null chat_template={{ messages }}
    clean_up_tokenization_spaces=false eos_token=<|im_end|> errors=replace model_max_length=131072
    pad_token=<|endoftext|> split_special_tokens=false tokenizer_class=Qwen2Tokenizer unk_token=null
Qwen3-0.6B config.json Qwen2.5-7B-Instruct -use_mrope -torch_dtype -transformers_version
    architectures=["Qwen3ForCausalLM"] attention_bias=false head_dim=128 hidden_size=1024 intermediate_size=3072
    max_position_embeddings=40960 model_type=qwen3 num_attention_heads=16 num_key_value_heads=8 rope_scaling=null
    rope_theta=1000000 sliding_window=null tie_word_embeddings=true vocab_size=151936
gemma-2b-it config.json architectures=["GemmaForCausalLM"] attention_bias=false attention_dropout=0.0 bos_token_id=2
    eos_token_id=1 head_dim=256 hidden_act=gelu hidden_activation=gelu_pytorch_tanh hidden_size=2048
    initializer_range=0.02 intermediate_size=16384 max_position_embeddings=8192 model_type=gemma num_attention_heads=8
    num_hidden_layers=18 num_key_value_heads=1 pad_token_id=0 rms_norm_eps=1e-06 rope_scaling=null rope_theta=10000.0
    torch_dtype=bfloat16 use_cache=true vocab_size=256000
gemma-2b-it generation_config.json _from_model_config=true bos_token_id=2 eos_token_id=1 pad_token_id=0
    cache_implementation=hybrid transformers_version=4.42.0.dev0
gemma-2b-it tokenizer_config.json Llama-2-7b-chat -padding_side added_tokens_decoder={"0": "<pad>", "1": "<eos>",
    "2": "<bos>", "3": "<unk>"} additional_special_tokens=["<start_of_turn>", "<end_of_turn>"] bos_token=<bos>
    eos_token=<eos> legacy=null pad_token=<pad> spaces_between_special_tokens=false tokenizer_class=GemmaTokenizer
    unk_token=<unk>
Mistral-7B-Instruct-v0.2 config.json Llama-3.1-8B-Instruct -mlp_bias -pretraining_tp -rope_scaling
    architectures=["MistralForCausalLM"] bos_token_id=1 eos_token_id=2 max_position_embeddings=32768
    model_type=mistral rope_theta=1000000.0 vocab_size=32000 sliding_window=null
Mistral-7B-Instruct-v0.2 generation_config.json gpt2 bos_token_id=1 eos_token_id=2 transformers_version=4.36.0
Mistral-7B-Instruct-v0.2 tokenizer_config.json Llama-2-7b-chat -padding_side add_prefix_space=null
    added_tokens_decoder={"0": "<unk>", "1": "<s>", "2": "</s>"} additional_special_tokens=[] bos_token=<s>
    eos_token=</s> unk_token=<unk> spaces_between_special_tokens=false
mt5-small config.json _name_or_path=/home/patrick/hugging_face/mt5/mt5-small
    architectures=["MT5ForConditionalGeneration"] d_ff=1024 d_kv=64 d_model=512 decoder_start_token_id=0
    dropout_rate=0.1 eos_token_id=1 feed_forward_proj=gated-gelu initializer_factor=1.0 is_encoder_decoder=true
    layer_norm_epsilon=1e-06 model_type=mt5 num_decoder_layers=8 num_heads=6 num_layers=8 pad_token_id=0
    relative_attention_num_buckets=32 tie_word_embeddings=false tokenizer_class=T5Tokenizer
    transformers_version=4.10.0.dev0 use_cache=true vocab_size=250112
mt5-small generation_config.json gpt2 -bos_token_id decoder_start_token_id=0 eos_token_id=1 pad_token_id=0
mt5-small tokenizer_config.json eos_token=</s> unk_token=<unk> pad_token=<pad> extra_ids=0
    additional_special_tokens=null special_tokens_map_file=/home/patrick/.cache/torch/transformers/685ac0ca
    tokenizer_file=null name_or_path=google/mt5-small
t5-small config.json mt5-small architectures=["T5ForConditionalGeneration"] d_ff=2048 feed_forward_proj=relu
    model_type=t5 num_decoder_layers=6 num_heads=8 num_layers=6 tie_word_embeddings=true vocab_size=32128
    n_positions=512 output_past=true task_specific_params={"summarization": {"prefix": "summarize: "}}
flan-t5-base config.json mt5-small architectures=["T5ForConditionalGeneration"] model_type=t5 vocab_size=32128
    n_positions=512 output_past=true classifier_dropout=0.0 dense_act_fn=gelu_new is_gated_act=true
    relative_attention_max_distance=128
nllb-200-distilled-600M config.json m2m100_418M vocab_size=256206 _name_or_path=facebook/nllb-200-distilled-600M
    torch_dtype=float32 tokenizer_class=NllbTokenizer
nllb-200-distilled-600M generation_config.json m2m100_418M -early_stopping -num_beams transformers_version=4.27.0.dev0
nllb-200-distilled-600M tokenizer_config.json m2m100_418M -num_madeup_words -language_codes cls_token=<s>
    mask_token={"lstrip": true, "__type": "AddedToken", "content": "<mask>"}
    name_or_path=facebook/nllb-200-distilled-600M special_tokens_map_file=null tokenizer_class=NllbTokenizer
    additional_special_tokens=["ace_Arab", "por_Latn"] legacy_behaviour=false
nllb-200-distilled-600M special_tokens_map.json bos_token=<s> eos_token=</s> unk_token=<unk> cls_token=<s>
    sep_token=</s> pad_token=<pad> mask_token=<mask> additional_special_tokens=["ace_Arab", "por_Latn"]
mbart-large-50 config.json bart-large-cnn add_final_layer_norm=true architectures=["MBartForConditionalGeneration"]
    force_bos_token_to_be_generated=false forced_bos_token_id=null min_length=0 model_type=mbart normalize_before=true
    scale_embedding=true vocab_size=250054 normalize_embedding=true tokenizer_class=MBart50Tokenizer
mbart-large-50 tokenizer_config.json bos_token=<s> eos_token=</s> unk_token=<unk> cls_token=<s> sep_token=</s>
    pad_token=<pad> mask_token=<mask> src_lang=null tgt_lang=null language_codes=ML50 tokenizer_class=MBart50Tokenizer
    special_tokens_map_file=/home/suraj/x.json name_or_path=mbart-50-large
opus-mt-en-de config.json bart-large-cnn -force_bos_token_to_be_generated -prefix activation_function=swish
    architectures=["MarianMTModel"] d_model=512 decoder_start_token_id=58100 eos_token_id=0 forced_bos_token_id=null
    forced_eos_token_id=0 length_penalty=1.0 max_length=512 max_position_embeddings=512 min_length=0 model_type=marian
    no_repeat_ngram_size=0 num_beams=6 pad_token_id=58100 scale_embedding=true static_position_embeddings=true
    vocab_size=58101 bad_words_ids=[[58100]] decoder_vocab_size=58101 share_encoder_decoder_embeddings=true
    tie_word_embeddings=true normalize_embedding=false extra_pos_embeddings=58101
opus-mt-en-de generation_config.json bad_words_ids=[[58100]] bos_token_id=0 decoder_start_token_id=58100
    eos_token_id=0 forced_eos_token_id=0 max_length=512 num_beams=6 pad_token_id=58100 renormalize_logits=true
    transformers_version=4.32.0.dev0
opus-mt-en-de tokenizer_config.json target_lang=de source_lang=en model_max_length=512
pegasus-xsum config.json mbart-large-50 -tokenizer_class activation_function=relu
    architectures=["PegasusForConditionalGeneration"] decoder_start_token_id=0 eos_token_id=1 forced_eos_token_id=1
    length_penalty=0.6 max_length=64 max_position_embeddings=512 model_type=pegasus no_repeat_ngram_size=0 num_beams=8
    pad_token_id=0 static_position_embeddings=true vocab_size=96103 normalize_embedding=false extra_pos_embeddings=1
pegasus-xsum tokenizer_config.json pad_token=<pad> eos_token=</s> unk_token=<unk> mask_token=<mask_2>
    mask_token_sent=<mask_1> model_max_length=512 offset=103 additional_special_tokens=["<mask_1>", "<unk_2>"]
    special_tokens_map_file=x.json full_tokenizer_file=null name_or_path=google/pegasus-xsum tokenizer_file=null
ModernBERT-base config.json architectures=["ModernBertForMaskedLM"] attention_bias=false attention_dropout=0.0
    bos_token_id=50281 classifier_activation=gelu classifier_bias=false classifier_dropout=0.0 classifier_pooling=mean
    cls_token_id=50281 decoder_bias=true deterministic_flash_attn=false embedding_dropout=0.0 eos_token_id=50282
    global_attn_every_n_layers=3 global_rope_theta=160000.0 gradient_checkpointing=false hidden_activation=gelu
    hidden_size=768 initializer_cutoff_factor=2.0 initializer_range=0.02 intermediate_size=1152 layer_norm_eps=1e-05
    local_attention=128 local_rope_theta=10000.0 max_position_embeddings=8192 mlp_bias=false mlp_dropout=0.0
    model_type=modernbert norm_bias=false norm_eps=1e-05 num_attention_heads=12 num_hidden_layers=22
    pad_token_id=50283 position_embedding_type=absolute repad_logits_with_grad=false sep_token_id=50282
    sparse_pred_ignore_index=-100 sparse_prediction=false torch_dtype=float32 transformers_version=4.47.0.dev0
    vocab_size=50368
ModernBERT-base tokenizer_config.json Llama-3.1-8B-Instruct -bos_token -chat_template -eos_token unk_token=[UNK]
    sep_token=[SEP] pad_token=[PAD] cls_token=[CLS] mask_token=[MASK] added_tokens_decoder={"0": "|||IP_ADDRESS|||",
    "50280": "[UNK]", "50281": "[CLS]"} model_max_length=8192 extra_special_tokens={}
multilingual-e5-base config.json xlm-roberta-base architectures=["XLMRobertaModel"] classifier_dropout=null
    torch_dtype=float32
multilingual-e5-base tokenizer_config.json bos_token=<s> eos_token=</s> unk_token=<unk> cls_token=<s> sep_token=</s>
    pad_token=<pad> mask_token={"lstrip": true, "__type": "AddedToken", "content": "<mask>"}
    clean_up_tokenization_spaces=true model_max_length=512 tokenizer_class=XLMRobertaTokenizer
bge-base-en-v1.5 config.json bert-base-uncased architectures=["BertModel"] _name_or_path=/root/.cache/torch/x
    classifier_dropout=null id2label={"0": "LABEL_0"} label2id={"LABEL_0": 0} torch_dtype=float32
bge-base-en-v1.5 tokenizer_config.json unk_token=[UNK] sep_token=[SEP] pad_token=[PAD] cls_token=[CLS]
    mask_token=[MASK] clean_up_tokenization_spaces=true added_tokens_decoder={"0": "[PAD]", "100": "[UNK]",
    "101": "[CLS]", "102": "[SEP]", "103": "[MASK]"} do_basic_tokenize=true do_lower_case=true model_max_length=512
    never_split=null strip_accents=null tokenize_chinese_chars=true tokenizer_class=BertTokenizer
gte-base config.json bert-base-uncased _name_or_path=bert-base-uncased classifier_dropout=null torch_dtype=float16
gte-base tokenizer_config.json bge-base-en-v1.5 max_length=128 stride=0 truncation_side=right
    truncation_strategy=longest_first pad_to_multiple_of=null pad_token_type_id=0 padding_side=right
all-MiniLM-L6-v2 config.json bert-base-uncased architectures=["BertModel"]
    _name_or_path=nreimers/MiniLM-L6-H384-uncased
all-MiniLM-L6-v2 tokenizer_config.json bge-base-en-v1.5 -clean_up_tokenization_spaces -added_tokens_decoder
    name_or_path=nreimers/MiniLM-L6-H384-uncased special_tokens_map_file=x.json
nomic-embed-text-v1.5 sentence_bert_config.json max_seq_length=8192 do_lower_case=false
nomic-embed-text-v1.5 config_sentence_transformers.json __version__={"transformers": "4.37.2"} prompts={}
    default_prompt_name=null similarity_fn_name=null
nomic-embed-text-v1.5 tokenizer_config.json bge-base-en-v1.5 model_max_length=8192
alpaca-lora-7b adapter_config.json base_model_name_or_path=decapoda-research/llama-7b-hf bias=none enable_lora=null
    fan_in_fan_out=false inference_mode=true lora_alpha=16 lora_dropout=0.05 merge_weights=false modules_to_save=null
    peft_type=LORA r=16 target_modules=["q_proj", "k_proj", "v_proj", "o_proj"] task_type=CAUSAL_LM
"""


def _value(key: str, text: str) -> Any:
    """What stands in the file; tokens with the flags that are not in the table."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if key == "added_tokens_decoder":
        return {number: {"content": token} | _PLAIN | {"special": True} for number, token in value.items()}
    return _PLAIN | value if isinstance(value, dict) and "content" in value else value


def _published() -> dict[str, Files]:
    made: dict[str, Files] = {}
    for row in re.split(r"\n(?=\S)", _TABLE.strip()):
        head, *pairs = re.split(r"\s+(\w+)=", row)
        model, file, *rest = head.split()
        bases, lacks = [made[name][file] for name in rest[:1]], {name[1:] for name in rest[1:]}
        data = {key: value for base in bases for key, value in base.items() if key not in lacks}
        own = {key: _value(key, text) for key, text in zip(pairs[::2], pairs[1::2], strict=True)}
        made.setdefault(model, {})[file] = data | own
    tokens = {key: text for key, text in made["ModernBERT-base"][TOKENIZER].items() if key.endswith("_token")}
    made["ModernBERT-base"][SPECIAL] = {key: {"content": text} | _PLAIN for key, text in tokens.items()}
    for name in ("multilingual-e5-base", "bge-base-en-v1.5", "gte-base", "all-MiniLM-L6-v2", "nomic-embed-text-v1.5"):
        made[name] = _SENTENCES | made[name]
    return made


PUBLISHED = _published()
