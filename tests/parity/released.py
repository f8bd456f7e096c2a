"""Tiny networks of every released family at random weights, for parity tests: theirs made, saved and run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

_SMALL = {
    "vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
}  # fmt: skip
_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = _SMALL | _QUIET | {"max_position_embeddings": 20, "bos_token_id": 3, "eos_token_id": 4}
_ROBERTA = _BERT | {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_GPT = {
    "vocab_size": 37, "n_positions": 20, "n_embd": 16, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 0,
}  # fmt: skip
_LLAMA = _SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 3, "eos_token_id": 4}
_PADDED = _LLAMA | {"pad_token_id": 0}
_T5 = {
    "vocab_size": 37, "d_model": 16, "d_kv": 5, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
_LLAMA31 = {  # of a head's rates some are kept, some slowed in part, some wholly
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1], "long_factor": [1.5, 4.0],
    "original_max_position_embeddings": 6,
}  # fmt: skip
_BART = {
    "vocab_size": 37, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 20,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
_MARIAN = _BART | {"scale_embedding": True, "activation_function": "swish", "decoder_start_token_id": 1}
_DISTILBERT = {
    "vocab_size": 37, "dim": 16, "hidden_dim": 24, "n_heads": 4, "n_layers": 3, "max_position_embeddings": 20,
    "bos_token_id": 3, "eos_token_id": 4,
} | dict.fromkeys(("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"), 0.0)  # fmt: skip
_ELECTRA = _BERT | {"embedding_size": 8}
_MPNET = _SMALL | _QUIET | {"max_position_embeddings": 20}
_ALBERT = _BERT | {"embedding_size": 8, "classifier_dropout_prob": 0.0}
_MODERNBERT = _SMALL | {
    "num_hidden_layers": 4, "local_attention": 4, "max_position_embeddings": 20, "pad_token_id": 0, "bos_token_id": 3,
    "eos_token_id": 4, "cls_token_id": 3, "sep_token_id": 4,
}  # fmt: skip
_DEBERTA = _BERT | {
    "type_vocab_size": 0, "relative_attention": True, "max_relative_positions": -1, "position_buckets": 4,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    "pooler_hidden_size": 16,
}  # fmt: skip
_TAGS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}

# name -> (their class, their configuration)
CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "bert": (hf.BertModel, hf.BertConfig(**_BERT)),
    "bert without pooler": (lambda c: hf.BertModel(c, add_pooling_layer=False), hf.BertConfig(**_BERT)),
    "bert gelu_new": (hf.BertModel, hf.BertConfig(**_BERT, hidden_act="gelu_new")),
    "bert pretraining": (hf.BertForPreTraining, hf.BertConfig(**_BERT)),
    "bert masked": (hf.BertForMaskedLM, hf.BertConfig(**_BERT)),
    "bert next sentence": (hf.BertForNextSentencePrediction, hf.BertConfig(**_BERT)),
    "bert classification": (hf.BertForSequenceClassification, hf.BertConfig(**_BERT, num_labels=3)),
    "bert regression": (hf.BertForSequenceClassification, hf.BertConfig(**_BERT, num_labels=1)),
    "bert tagging": (hf.BertForTokenClassification, hf.BertConfig(**_BERT, **_TAGS)),
    "bert answer": (hf.BertForQuestionAnswering, hf.BertConfig(**_BERT)),
    "roberta": (hf.RobertaModel, hf.RobertaConfig(**_ROBERTA)),
    "roberta masked": (hf.RobertaForMaskedLM, hf.RobertaConfig(**_ROBERTA)),
    "roberta classification": (hf.RobertaForSequenceClassification, hf.RobertaConfig(**_ROBERTA, num_labels=4)),
    "roberta tagging": (hf.RobertaForTokenClassification, hf.RobertaConfig(**_ROBERTA, **_TAGS)),
    "roberta answer": (hf.RobertaForQuestionAnswering, hf.RobertaConfig(**_ROBERTA)),
    "xlm-roberta": (hf.XLMRobertaModel, hf.XLMRobertaConfig(**_ROBERTA)),
    "xlm-roberta masked": (hf.XLMRobertaForMaskedLM, hf.XLMRobertaConfig(**_ROBERTA)),
    "camembert": (hf.CamembertModel, hf.CamembertConfig(**_ROBERTA)),
    "camembert masked": (hf.CamembertForMaskedLM, hf.CamembertConfig(**_ROBERTA)),
    "camembert classification": (hf.CamembertForSequenceClassification, hf.CamembertConfig(**_ROBERTA, num_labels=4)),
    "camembert tagging": (hf.CamembertForTokenClassification, hf.CamembertConfig(**_ROBERTA, **_TAGS)),
    "distilbert": (hf.DistilBertModel, hf.DistilBertConfig(**_DISTILBERT)),
    "distilbert masked": (hf.DistilBertForMaskedLM, hf.DistilBertConfig(**_DISTILBERT)),
    "distilbert classification": (
        hf.DistilBertForSequenceClassification,
        hf.DistilBertConfig(**_DISTILBERT, num_labels=3),
    ),
    "distilbert, several labels": (
        hf.DistilBertForSequenceClassification,
        hf.DistilBertConfig(**_DISTILBERT, num_labels=3, problem_type="multi_label_classification"),
    ),
    "distilbert tagging": (hf.DistilBertForTokenClassification, hf.DistilBertConfig(**_DISTILBERT, **_TAGS)),
    "distilbert answer": (hf.DistilBertForQuestionAnswering, hf.DistilBertConfig(**_DISTILBERT)),
    "electra": (hf.ElectraModel, hf.ElectraConfig(**_ELECTRA)),
    "electra discriminator": (hf.ElectraForPreTraining, hf.ElectraConfig(**_BERT, embedding_size=16)),
    "electra generator": (hf.ElectraForMaskedLM, hf.ElectraConfig(**_ELECTRA)),
    "electra classification": (hf.ElectraForSequenceClassification, hf.ElectraConfig(**_ELECTRA, num_labels=3)),
    "electra regression": (hf.ElectraForSequenceClassification, hf.ElectraConfig(**_ELECTRA, num_labels=1)),
    "electra tagging": (hf.ElectraForTokenClassification, hf.ElectraConfig(**_ELECTRA, **_TAGS)),
    "electra answer": (hf.ElectraForQuestionAnswering, hf.ElectraConfig(**_ELECTRA)),
    "mpnet": (hf.MPNetModel, hf.MPNetConfig(**_MPNET)),
    "mpnet masked": (hf.MPNetForMaskedLM, hf.MPNetConfig(**_MPNET)),
    "mpnet classification": (hf.MPNetForSequenceClassification, hf.MPNetConfig(**_MPNET, num_labels=3)),
    "mpnet tagging": (hf.MPNetForTokenClassification, hf.MPNetConfig(**_MPNET, **_TAGS)),
    "mpnet answer": (hf.MPNetForQuestionAnswering, hf.MPNetConfig(**_MPNET)),
    "albert": (hf.AlbertModel, hf.AlbertConfig(**_ALBERT)),
    "albert pretraining": (hf.AlbertForPreTraining, hf.AlbertConfig(**_ALBERT)),
    "albert masked": (hf.AlbertForMaskedLM, hf.AlbertConfig(**_ALBERT)),
    "albert classification": (hf.AlbertForSequenceClassification, hf.AlbertConfig(**_ALBERT, num_labels=3)),
    "albert tagging": (hf.AlbertForTokenClassification, hf.AlbertConfig(**_ALBERT, **_TAGS)),
    "albert answer": (hf.AlbertForQuestionAnswering, hf.AlbertConfig(**_ALBERT)),
    "modernbert": (hf.ModernBertModel, hf.ModernBertConfig(**_MODERNBERT)),
    "modernbert, biases": (
        hf.ModernBertModel,
        hf.ModernBertConfig(**_MODERNBERT, norm_bias=True, attention_bias=True, mlp_bias=True),
    ),
    "modernbert masked": (hf.ModernBertForMaskedLM, hf.ModernBertConfig(**_MODERNBERT)),
    "modernbert classification": (
        hf.ModernBertForSequenceClassification,
        hf.ModernBertConfig(**_MODERNBERT, num_labels=3, classifier_pooling="mean"),
    ),
    "modernbert tagging": (
        hf.ModernBertForTokenClassification,
        hf.ModernBertConfig(**_MODERNBERT, **_TAGS, classifier_bias=True),
    ),
    "modernbert answer": (hf.ModernBertForQuestionAnswering, hf.ModernBertConfig(**_MODERNBERT)),
    "deberta-v2": (hf.DebertaV2Model, hf.DebertaV2Config(**_DEBERTA)),
    "deberta-v2, distances, learned positions, segments": (
        hf.DebertaV2Model,
        hf.DebertaV2Config(
            **_DEBERTA
            | {
                "position_buckets": -1, "max_relative_positions": 5, "position_biased_input": True,
                "norm_rel_ebd": "none", "type_vocab_size": 2, "pos_att_type": "p2c|c2p",
            }
        ),
    ),
    "deberta-v2, absolute positions": (
        hf.DebertaV2Model,
        hf.DebertaV2Config(**_DEBERTA | {"relative_attention": False, "position_biased_input": True}),
    ),
    "deberta-v2, convolution": (
        hf.DebertaV2Model,
        hf.DebertaV2Config(**_DEBERTA, conv_kernel_size=3, conv_act="gelu", conv_groups=2),
    ),
    "deberta-v2 masked": (hf.DebertaV2ForMaskedLM, hf.DebertaV2Config(**_DEBERTA)),
    "deberta-v2 masked, not legacy": (hf.DebertaV2ForMaskedLM, hf.DebertaV2Config(**_DEBERTA, legacy=False)),
    "deberta-v2 classification": (
        hf.DebertaV2ForSequenceClassification,
        hf.DebertaV2Config(**_DEBERTA, num_labels=3, pooler_hidden_act="tanh"),
    ),
    "deberta-v2 regression": (hf.DebertaV2ForSequenceClassification, hf.DebertaV2Config(**_DEBERTA, num_labels=1)),
    "deberta-v2 tagging": (hf.DebertaV2ForTokenClassification, hf.DebertaV2Config(**_DEBERTA, **_TAGS)),
    "deberta-v2 answer": (hf.DebertaV2ForQuestionAnswering, hf.DebertaV2Config(**_DEBERTA)),
    "gpt1": (hf.OpenAIGPTLMHeadModel, hf.OpenAIGPTConfig(**_GPT)),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**_GPT)),
    "gpt2 base": (hf.GPT2Model, hf.GPT2Config(**_GPT, n_inner=20)),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**_LLAMA)),
    "llama base": (hf.LlamaModel, hf.LlamaConfig(**_LLAMA)),
    "llama stretched": (hf.LlamaForCausalLM, hf.LlamaConfig(**_LLAMA, rope_parameters=_LINEAR)),
    "llama 3.1": (hf.LlamaForCausalLM, hf.LlamaConfig(**_LLAMA, rope_parameters=_LLAMA31)),
    "llama yarn": (  # so that both numbers of turns that it leaves out divide the six pairs
        hf.LlamaForCausalLM,
        hf.LlamaConfig(**_LLAMA | {"head_dim": 12}, rope_parameters=_YARN | {"original_max_position_embeddings": 400}),
    ),
    "llama dynamic": (
        hf.LlamaForCausalLM,
        hf.LlamaConfig(**_LLAMA | {"max_position_embeddings": 6}, rope_parameters=_DYNAMIC),
    ),
    "llama longrope": (hf.LlamaForCausalLM, hf.LlamaConfig(**_LLAMA, rope_parameters=_LONGROPE)),
    "llama longrope, short texts": (
        hf.LlamaForCausalLM,
        hf.LlamaConfig(
            **_LLAMA, rope_parameters=_LONGROPE | {"original_max_position_embeddings": 20, "attention_factor": 1.3}
        ),
    ),
    "llama tied, wide heads": (
        hf.LlamaForCausalLM,
        hf.LlamaConfig(**_LLAMA | {"head_dim": 6, "tie_word_embeddings": True}),
    ),
    "llama with biases": (hf.LlamaForCausalLM, hf.LlamaConfig(**_LLAMA, attention_bias=True, mlp_bias=True)),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**_LLAMA, sliding_window=3)),
    "mistral, all tokens": (hf.MistralForCausalLM, hf.MistralConfig(**_LLAMA, sliding_window=None)),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**_LLAMA)),
    "qwen2, windows from layer 1": (
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config(**_LLAMA, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    ),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**_LLAMA, head_dim=6)),
    "qwen3 yarn": (
        hf.Qwen3ForCausalLM,
        hf.Qwen3Config(
            **_LLAMA, head_dim=8, rope_parameters=_YARN | {"beta_fast": 2.0, "mscale": 1.0, "mscale_all_dim": 0.4}
        ),
    ),
    "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig(**_LLAMA, head_dim=6)),
    "gpt1 classification": (hf.OpenAIGPTForSequenceClassification, hf.OpenAIGPTConfig(**_GPT, num_labels=3)),
    "gpt2 classification": (hf.GPT2ForSequenceClassification, hf.GPT2Config(**_GPT, num_labels=3)),
    "gpt2 tagging": (hf.GPT2ForTokenClassification, hf.GPT2Config(**_GPT, **_TAGS)),
    "gpt2 answer": (hf.GPT2ForQuestionAnswering, hf.GPT2Config(**_GPT)),
    "llama classification": (hf.LlamaForSequenceClassification, hf.LlamaConfig(**_PADDED, num_labels=3)),
    "llama tagging": (hf.LlamaForTokenClassification, hf.LlamaConfig(**_PADDED, **_TAGS, classifier_dropout=0.2)),
    "llama answer": (hf.LlamaForQuestionAnswering, hf.LlamaConfig(**_PADDED)),
    "mistral regression": (hf.MistralForSequenceClassification, hf.MistralConfig(**_PADDED, num_labels=1)),
    "mistral answer": (hf.MistralForQuestionAnswering, hf.MistralConfig(**_PADDED)),
    "qwen2, several labels": (
        hf.Qwen2ForSequenceClassification,
        hf.Qwen2Config(**_PADDED, num_labels=3, problem_type="multi_label_classification"),
    ),
    "qwen3 answer": (hf.Qwen3ForQuestionAnswering, hf.Qwen3Config(**_PADDED)),
    "gemma tagging": (hf.GemmaForTokenClassification, hf.GemmaConfig(**_PADDED, **_TAGS)),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config(**_T5)),
    "t5 gated": (
        hf.T5ForConditionalGeneration,
        hf.T5Config(**_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "t5 encoder": (hf.T5EncoderModel, hf.T5Config(**_T5)),
    "t5 tagging": (hf.T5ForTokenClassification, hf.T5Config(**_T5, **_TAGS, classifier_dropout=0.2)),
    "mt5 tagging": (hf.MT5ForTokenClassification, hf.MT5Config(**_T5, **_TAGS)),
    "mt5": (hf.MT5ForConditionalGeneration, hf.MT5Config(**_T5)),
    "mbart": (hf.MBartForConditionalGeneration, hf.MBartConfig(**_BART)),
    "m2m_100": (hf.M2M100ForConditionalGeneration, hf.M2M100Config(**_BART)),
    "pegasus": (hf.PegasusForConditionalGeneration, hf.PegasusConfig(**_BART | {"pad_token_id": 0})),
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig(**_BART)),
    "marian": (hf.MarianMTModel, hf.MarianConfig(**_MARIAN)),
    "marian, two vocabularies of two sizes": (
        hf.MarianMTModel,
        hf.MarianConfig(**_MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 43}),
    ),
    "marian, more to read than to write": (
        hf.MarianMTModel,
        hf.MarianConfig(**_MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 36}),
    ),
    "marian, two vocabularies": (
        hf.MarianMTModel,
        hf.MarianConfig(**_MARIAN | {"share_encoder_decoder_embeddings": False}),
    ),
}  # fmt: skip


@dataclass
class Inputs:
    """Three rows of unequal length, padded on one side."""

    ids: Tensor
    real: Tensor
    segments: Tensor

    @property
    def written(self) -> Tensor:
        """Five target tokens a row, none of them padding."""
        return self.ids[:1, :5].flip(1).expand(len(self.ids), -1)  # the first row is full

    @classmethod
    def padded(cls, side: str, pad_id: int, seed: int = 0) -> "Inputs":
        """Rows of 9, 6 and 2 tokens, none of them a special one."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(6, 36, (3, 9), generator=generator)
        place = torch.arange(9).expand(3, -1)
        lengths = torch.tensor([[9], [6], [2]])
        real = place < lengths if side == "right" else place >= 9 - lengths
        segments = torch.randint(0, 2, (3, 9), generator=generator)
        return cls(torch.where(real, ids, torch.full_like(ids, pad_id)), real, segments * real)


def theirs(name: str, seed: int = 0) -> Any:
    """Their network of that case: every weight random, norms and biases too, in evaluation mode."""
    make, config = CASES[name]
    torch.manual_seed(seed)
    network = make(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
            else:
                around = 1.0 if bool(parameter.mean() > 0.5) else 0.0
                parameter.normal_(std=0.2).add_(around)
        for key, buffer in network.named_buffers():
            if key == "final_logits_bias":
                buffer.normal_()
        for module in network.modules():  # sinusoids are no weights
            if type(module).__name__.endswith("SinusoidalPositionalEmbedding") and hasattr(module, "create_weight"):
                module.weight.copy_(module.create_weight())
    return network


def saved(network: nn.Module, folder: Path) -> Path:
    """Written as they write it."""
    network.save_pretrained(folder)  # type: ignore[operator]
    return folder
