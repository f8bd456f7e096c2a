"""Tiny networks of every released family at random weights, for parity tests: theirs made, saved and run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

_SMALL = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 3}
_SMALL |= {"intermediate_size": 24, "num_attention_heads": 4}
_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ENDS = {"bos_token_id": 3, "eos_token_id": 4}
_PLACES = {"max_position_embeddings": 20}
_BERT = _SMALL | _QUIET | _ENDS | _PLACES
_ROBERTA = _BERT | {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_GPT = {"vocab_size": 37, "n_positions": 20, "n_embd": 16, "n_layer": 3, "n_head": 4, "pad_token_id": 0} | _ENDS
_GPT |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_LLAMA = _SMALL | _ENDS | {"num_key_value_heads": 2, "max_position_embeddings": 32}
_PADDED = _LLAMA | {"pad_token_id": 0}
_T5 = {"vocab_size": 37, "d_model": 16, "d_kv": 5, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
_T5 |= {"dropout_rate": 0.0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16}
_T5 |= {"decoder_start_token_id": 0}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
_LLAMA31 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16}
_LLAMA31 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # some rates are kept, some slowed in part, some wholly
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LONG_YARN = _YARN | {"original_max_position_embeddings": 400}  # the turns that it leaves out divide the six pairs
_SCALED_YARN = _YARN | {"beta_fast": 2.0, "mscale": 1.0, "mscale_all_dim": 0.4}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 6}
_LONGROPE |= {"short_factor": [1.0, 1.1], "long_factor": [1.5, 4.0]}
_SHORT_ROPE = _LONGROPE | {"original_max_position_embeddings": 20, "attention_factor": 1.3}
_BART = {"vocab_size": 37, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 20}
_BART |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
_BART |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
_BART |= dict.fromkeys(("eos_token_id", "decoder_start_token_id", "forced_eos_token_id"), 2)
_BART |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
_BART |= {"pad_token_id": 1, "bos_token_id": 0}
_MARIAN = _BART | {"scale_embedding": True, "activation_function": "swish", "decoder_start_token_id": 1}
_OF_EACH_SIDE = _MARIAN | {"share_encoder_decoder_embeddings": False}
_DISTILBERT = _PLACES | {"vocab_size": 37, "dim": 16, "hidden_dim": 24, "n_heads": 4, "n_layers": 3}
_DISTILBERT |= _ENDS | dict.fromkeys(("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"), 0.0)
_ELECTRA = _BERT | {"embedding_size": 8}
_MPNET = _SMALL | _QUIET | _PLACES
_ALBERT = _BERT | {"embedding_size": 8, "classifier_dropout_prob": 0.0}
_MODERNBERT = _SMALL | _ENDS | {"num_hidden_layers": 4, "local_attention": 4, "max_position_embeddings": 20}
_MODERNBERT |= {"pad_token_id": 0, "cls_token_id": 3, "sep_token_id": 4}
_DEBERTA = _BERT | {"type_vocab_size": 0, "relative_attention": True, "max_relative_positions": -1}
_DEBERTA |= {"norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"]}
_DEBERTA |= {"position_buckets": 4, "position_biased_input": False, "pooler_hidden_size": 16}
_OLD_DEBERTA = _DEBERTA | {"position_buckets": -1, "max_relative_positions": 5, "position_biased_input": True}
_OLD_DEBERTA |= {"norm_rel_ebd": "none", "type_vocab_size": 2, "pos_att_type": "p2c|c2p"}
_TAGS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
_MEAN = {"num_labels": 3, "classifier_pooling": "mean"}
_ABSOLUTE = {"relative_attention": False, "position_biased_input": True}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
_SEVERAL = {"num_labels": 3, "problem_type": "multi_label_classification"}
# head -> how the name of its class ends, and its settings
_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "pretraining": ("PreTraining", {}),
    "masked": ("MaskedLM", {}),
    "classification": ("SequenceClassification", {"num_labels": 3}),
    "regression": ("SequenceClassification", {"num_labels": 1}),
    "tagging": ("TokenClassification", _TAGS),
    "answer": ("QuestionAnswering", {}),
}
# encoder -> how the names of its classes begin, its settings, and its heads; others are in the table below
_ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", _BERT, "pretraining masked classification regression tagging answer"),
    "roberta": ("Roberta", _ROBERTA, "masked classification tagging answer"),
    "xlm-roberta": ("XLMRoberta", _ROBERTA, "masked tagging"),
    "camembert": ("Camembert", _ROBERTA, "masked classification tagging"),
    "distilbert": ("DistilBert", _DISTILBERT, "masked classification tagging answer"),
    "electra": ("Electra", _ELECTRA, "classification regression tagging answer"),
    "mpnet": ("MPNet", _MPNET, "masked classification tagging answer"),
    "albert": ("Albert", _ALBERT, "pretraining masked classification tagging answer"),
    "modernbert": ("ModernBert", _MODERNBERT, "masked answer"),
    "deberta-v2": ("DebertaV2", _DEBERTA, "masked regression tagging answer"),
}
Case = tuple[Callable[..., Any], Any]


def _case(model: Any, settings: dict[str, Any], **changes: Any) -> Case:
    return model, model.config_class(**settings | changes)


def _encoders() -> dict[str, Case]:
    made = {}
    for name, (start, settings, heads) in _ENCODERS.items():
        made[name] = _case(getattr(hf, f"{start}Model"), settings)
        for head in heads.split():
            end, more = _HEADS[head]
            made[f"{name} {head}"] = _case(getattr(hf, f"{start}For{end}"), settings, **more)
    return made


CASES: dict[str, Case] = _encoders() | {
    "bert without pooler": (lambda c: hf.BertModel(c, add_pooling_layer=False), hf.BertConfig(**_BERT)),
    "bert gelu_new": _case(hf.BertModel, _BERT, hidden_act="gelu_new"),
    "bert next sentence": _case(hf.BertForNextSentencePrediction, _BERT),
    "roberta classification": _case(hf.RobertaForSequenceClassification, _ROBERTA, num_labels=4),
    "camembert classification": _case(hf.CamembertForSequenceClassification, _ROBERTA, num_labels=4),
    "distilbert, several labels": _case(hf.DistilBertForSequenceClassification, _DISTILBERT, **_SEVERAL),
    "electra discriminator": _case(hf.ElectraForPreTraining, _BERT, embedding_size=16),
    "electra generator": _case(hf.ElectraForMaskedLM, _ELECTRA),
    "modernbert, biases": _case(hf.ModernBertModel, _MODERNBERT, norm_bias=True, attention_bias=True, mlp_bias=True),
    "modernbert classification": _case(hf.ModernBertForSequenceClassification, _MODERNBERT, **_MEAN),
    "modernbert tagging": _case(hf.ModernBertForTokenClassification, _MODERNBERT, **_TAGS, classifier_bias=True),
    "deberta-v2, distances, learned positions, segments": _case(hf.DebertaV2Model, _OLD_DEBERTA),
    "deberta-v2, absolute positions": _case(hf.DebertaV2Model, _DEBERTA, **_ABSOLUTE),
    "deberta-v2, convolution": _case(hf.DebertaV2Model, _DEBERTA, conv_kernel_size=3, conv_act="gelu", conv_groups=2),
    "deberta-v2 masked, not legacy": _case(hf.DebertaV2ForMaskedLM, _DEBERTA, legacy=False),
    "deberta-v2 classification": _case(
        hf.DebertaV2ForSequenceClassification, _DEBERTA, num_labels=3, pooler_hidden_act="tanh"
    ),
    "gpt1": _case(hf.OpenAIGPTLMHeadModel, _GPT),
    "gpt2": _case(hf.GPT2LMHeadModel, _GPT),
    "gpt2 base": _case(hf.GPT2Model, _GPT, n_inner=20),
    "llama": _case(hf.LlamaForCausalLM, _LLAMA),
    "llama base": _case(hf.LlamaModel, _LLAMA),
    "llama stretched": _case(hf.LlamaForCausalLM, _LLAMA, rope_parameters=_LINEAR),
    "llama 3.1": _case(hf.LlamaForCausalLM, _LLAMA, rope_parameters=_LLAMA31),
    "llama yarn": _case(hf.LlamaForCausalLM, _LLAMA, head_dim=12, rope_parameters=_LONG_YARN),
    "llama dynamic": _case(hf.LlamaForCausalLM, _LLAMA, max_position_embeddings=6, rope_parameters=_DYNAMIC),
    "llama longrope": _case(hf.LlamaForCausalLM, _LLAMA, rope_parameters=_LONGROPE),
    "llama longrope, short texts": _case(hf.LlamaForCausalLM, _LLAMA, rope_parameters=_SHORT_ROPE),
    "llama tied, wide heads": _case(hf.LlamaForCausalLM, _LLAMA, head_dim=6, tie_word_embeddings=True),
    "llama with biases": _case(hf.LlamaForCausalLM, _LLAMA, attention_bias=True, mlp_bias=True),
    "mistral": _case(hf.MistralForCausalLM, _LLAMA, sliding_window=3),
    "mistral, all tokens": _case(hf.MistralForCausalLM, _LLAMA, sliding_window=None),
    "qwen2": _case(hf.Qwen2ForCausalLM, _LLAMA),
    "qwen2, windows from layer 1": _case(hf.Qwen2ForCausalLM, _LLAMA, **_WINDOWS),
    "qwen3": _case(hf.Qwen3ForCausalLM, _LLAMA, head_dim=6),
    "qwen3 yarn": _case(hf.Qwen3ForCausalLM, _LLAMA, head_dim=8, rope_parameters=_SCALED_YARN),
    "gemma": _case(hf.GemmaForCausalLM, _LLAMA, head_dim=6),
    "gpt1 classification": _case(hf.OpenAIGPTForSequenceClassification, _GPT, num_labels=3),
    "gpt2 classification": _case(hf.GPT2ForSequenceClassification, _GPT, num_labels=3),
    "gpt2 tagging": _case(hf.GPT2ForTokenClassification, _GPT, **_TAGS),
    "gpt2 answer": _case(hf.GPT2ForQuestionAnswering, _GPT),
    "llama classification": _case(hf.LlamaForSequenceClassification, _PADDED, num_labels=3),
    "llama tagging": _case(hf.LlamaForTokenClassification, _PADDED, **_TAGS, classifier_dropout=0.2),
    "llama answer": _case(hf.LlamaForQuestionAnswering, _PADDED),
    "mistral regression": _case(hf.MistralForSequenceClassification, _PADDED, num_labels=1),
    "mistral answer": _case(hf.MistralForQuestionAnswering, _PADDED),
    "qwen2, several labels": _case(hf.Qwen2ForSequenceClassification, _PADDED, **_SEVERAL),
    "qwen3 answer": _case(hf.Qwen3ForQuestionAnswering, _PADDED),
    "gemma tagging": _case(hf.GemmaForTokenClassification, _PADDED, **_TAGS),
    "t5": _case(hf.T5ForConditionalGeneration, _T5),
    "t5 gated": _case(hf.T5ForConditionalGeneration, _T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5 encoder": _case(hf.T5EncoderModel, _T5),
    "t5 tagging": _case(hf.T5ForTokenClassification, _T5, **_TAGS, classifier_dropout=0.2),
    "mt5 tagging": _case(hf.MT5ForTokenClassification, _T5, **_TAGS),
    "mt5": _case(hf.MT5ForConditionalGeneration, _T5),
    "mbart": _case(hf.MBartForConditionalGeneration, _BART),
    "m2m_100": _case(hf.M2M100ForConditionalGeneration, _BART),
    "pegasus": _case(hf.PegasusForConditionalGeneration, _BART, pad_token_id=0),
    "bart": _case(hf.BartForConditionalGeneration, _BART),
    "marian": _case(hf.MarianMTModel, _MARIAN),
    "marian, two vocabularies of two sizes": _case(hf.MarianMTModel, _OF_EACH_SIDE, decoder_vocab_size=43),
    "marian, more to read than to write": _case(hf.MarianMTModel, _OF_EACH_SIDE, decoder_vocab_size=36),
    "marian, two vocabularies": _case(hf.MarianMTModel, _OF_EACH_SIDE),
}


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
    network.save_pretrained(folder)  # type: ignore[operator]
    return folder
