"""BERT and SpanBERT, RoBERTa and XLM-R: configuration and weight table (docs/notes.md#c6, #c16)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from atento.config.attention import AttentionConfig
from atento.config.heads import HeadConfig
from atento.config.network import FeedForwardConfig, InputConfig, NetworkConfig, OutputConfig, SpecialIds
from atento.config.positions import PositionConfig
from atento.errors import ModelError
from atento.networks.families.family import Family, activation_of, first_id, refuse, their_activation
from atento.networks.families.rows import Row, attention, linear, norm
from atento.networks.families.tying import Repeat, Tying

_CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
_TABLE = "embeddings.word_embeddings.weight"
_HEADS = {
    "masked-language-model": "ForMaskedLM",
    "next-sentence": "ForNextSentencePrediction",
    "classification": "ForSequenceClassification",
    "multi-label": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
}


def _read(model_type: str, data: Mapping[str, Any], names: frozenset[str], tying: Tying) -> NetworkConfig:
    refuse(
        data,
        {
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        model_type,
    )
    roberta = model_type != "bert"
    pad = first_id(data.get("pad_token_id"), 1 if roberta else 0)
    if roberta and data.get("pad_token_id") == []:  # the configured id is beyond the vocabulary
        raise ModelError(f"{model_type}: positions begin behind `pad_token_id`, which must be below `vocab_size`")
    shift = pad + 1 if roberta else 0  # RoBERTa's positions begin behind the id of padding
    vocab_size = data["vocab_size"]
    bos = first_id(data.get("bos_token_id"), 0 if roberta else min(101, vocab_size - 1))
    heads = _heads(data, names, roberta)
    masked = any(head.kind == "masked-language-model" for head in heads)
    return NetworkConfig(
        architecture="encoder",
        family=model_type,
        vocab_size=vocab_size,
        d_model=data["hidden_size"],
        d_ff=data["intermediate_size"],
        n_heads=data["num_attention_heads"],
        n_layers=data["num_hidden_layers"],
        dropout=data.get("hidden_dropout_prob", 0.1),
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.1)),
        feed_forward=FeedForwardConfig(activation=activation_of(data.get("hidden_act", "gelu"), model_type)),
        embedding=InputConfig(norm=True, segments=data.get("type_vocab_size", 2), scaled=False),
        output=OutputConfig(tied=not masked or tying.same(f"{_output(model_type)}.decoder.weight", _TABLE)),
        ids=SpecialIds(
            pad=pad,
            bos=bos,
            start=bos,
            eos=first_id(data.get("eos_token_id"), 2 if roberta else min(102, vocab_size - 1)),
            unk=3 if roberta else min(100, vocab_size - 1),
            mask=(250001 if vocab_size == 250002 else vocab_size - 1) if roberta else min(103, vocab_size - 1),
        ),
        norm_eps=data.get("layer_norm_eps", 1e-12),
        positions=PositionConfig("learned", shift=shift, real_only=roberta),
        max_len=data["max_position_embeddings"] - shift,
        pooler="pooler.dense.weight" in names,
        heads=heads,
        initializer="normal",
    )


def _heads(data: Mapping[str, Any], names: frozenset[str], roberta: bool) -> tuple[HeadConfig, ...]:
    """The heads that the file holds."""
    rate = data.get("classifier_dropout")
    rate = data.get("hidden_dropout_prob", 0.1) if rate is None else rate
    label_names = data.get("id2label") or {}
    count = len(label_names) or data.get("num_labels", 2)
    labels = tuple(str(label_names.get(str(n), label_names.get(n, f"LABEL_{n}"))) for n in range(count))
    activation = data.get("hidden_act", "gelu")
    heads = []
    if ("lm_head.dense.weight" if roberta else "cls.predictions.transform.dense.weight") in names:
        # RoBERTa's head has an activation of its own, whatever the network's
        heads.append(
            HeadConfig("masked-language-model", activation="gelu" if roberta and activation != "gelu" else None)
        )
    if "cls.seq_relationship.weight" in names:
        heads.append(HeadConfig("next-sentence", dropout=0.0))
    if "qa_outputs.weight" in names:
        heads.append(HeadConfig("answer", dropout=0.0))
    dense = "classifier.dense.weight" in names
    if dense or "classifier.weight" in names:
        tags = any("TokenClassification" in str(name) for name in data.get("architectures") or ())
        tags = tags or (not dense and "pooler.dense.weight" not in names)
        tag_head = HeadConfig("tagging", labels, dropout=rate) if tags else None
        several = data.get("problem_type") == "multi_label_classification"
        kind: Any = "regression" if count == 1 else "multi-label" if several else "classification"
        pooled = HeadConfig(
            kind,
            labels if count > 1 else (),
            pooling="first" if dense else "pooler",
            hidden=dense,
            dropout=rate,
        )
        heads.append(tag_head or pooled)
    return tuple(heads)


def _write(model_type: str, config: NetworkConfig) -> dict[str, Any]:
    scheme = config.schemes[0] if config.schemes else PositionConfig("none")
    kinds = [head.kind for head in config.heads]
    cls = _CLASSES[model_type]
    if kinds == ["masked-language-model", "next-sentence"]:
        name = f"{cls}ForPreTraining"
    elif len(kinds) > 1 or any(kind not in _HEADS for kind in kinds):
        raise ModelError(f"no {model_type} class of the Hugging Face layout holds the heads {', '.join(kinds)}")
    else:
        name = f"{cls}{_HEADS[kinds[0]] if kinds else 'Model'}"
    labels = next((head.labels or ("LABEL_0",) for head in config.heads if head.kind in _LABELLED), ())
    data = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "hidden_act": their_activation(config),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_len + scheme.shift,
        "type_vocab_size": config.embedding.segments,
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
    }
    if labels:
        data["id2label"] = {str(n): label for n, label in enumerate(labels)}
        data["label2id"] = {label: n for n, label in enumerate(labels)}
        rates = [head.dropout for head in config.heads if head.kind in _LABELLED]
        data["classifier_dropout"] = rates[0]
    if kinds and kinds[0] in _PROBLEMS:
        data["problem_type"] = _PROBLEMS[kinds[0]]
    return data


_LABELLED = ("classification", "multi-label", "regression", "tagging")
_PROBLEMS = {"regression": "regression", "multi-label": "multi_label_classification"}


def _rows(model_type: str, config: NetworkConfig) -> list[Row]:
    rows = [
        Row("embedding.weight", (_TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        Row("inputs.segments", ("embeddings.token_type_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
    ]
    for n in range(config.n_layers):
        ours, theirs = f"stack.blocks.{n}", f"encoder.layer.{n}"
        inside = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        rows += [
            *attention(f"{ours}.self_attention", inside, f"{theirs}.attention.output.dense", config),
            *norm(f"{ours}.self_attention_residual.norm", f"{theirs}.attention.output.LayerNorm"),
            *linear(f"{ours}.feed_forward.inner", f"{theirs}.intermediate.dense"),
            *linear(f"{ours}.feed_forward.outer", f"{theirs}.output.dense"),
            *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm"),
        ]
    if config.pooler:
        rows += linear("pooler.dense", "pooler.dense")
    for head in config.heads:
        rows += _head_rows(model_type, head, config.output.tied)
    return rows


def _output(model_type: str) -> str:
    """The name of the masked-language-model head in their files."""
    return "cls.predictions" if model_type == "bert" else "lm_head"


def _head_rows(model_type: str, head: HeadConfig, tied: bool) -> list[Row]:
    ours = f"heads.{head.name}"
    if head.kind == "masked-language-model":
        theirs = _output(model_type)
        between, end = (f"{theirs}.transform", "LayerNorm") if model_type == "bert" else (theirs, "layer_norm")
        matrix = [] if tied else [Row(f"{ours}.output.weight", (f"{theirs}.decoder.weight",), head=True)]
        # if the output matrix is untied, `transformers` does not share the bias either
        copies = () if tied else (f"{theirs}.decoder.bias",)
        return [
            *linear(f"{ours}.transform.dense", f"{between}.dense", head=True),
            *norm(f"{ours}.transform.norm", f"{between}.{end}", head=True),
            *matrix,
            Row(f"{ours}.output.bias", (f"{theirs}.bias",), head=True, copies=copies),
        ]
    if head.kind == "span-boundary":
        raise ModelError(f"no {model_type} class of the Hugging Face layout holds a span-boundary head")
    if head.hidden:
        return [
            *linear(f"{ours}.dense", "classifier.dense", head=True),
            *linear(f"{ours}.out", "classifier.out_proj", head=True),
        ]
    their_name = {"next-sentence": "cls.seq_relationship", "answer": "qa_outputs"}.get(head.kind, "classifier")
    return linear(f"{ours}.out", their_name, head=True)


def _family(model_type: str) -> Family:
    output = _output(model_type)
    return Family(
        model_type,
        prefix="bert." if model_type == "bert" else "roberta.",
        read=partial(_read, model_type),
        write=partial(_write, model_type),
        rows=partial(_rows, model_type),
        computed=("embeddings.position_ids", "embeddings.token_type_ids"),
        repeats=lambda data: (
            Repeat(f"{output}.decoder.weight", _TABLE),
            Repeat(f"{output}.decoder.bias", f"{output}.bias", replaces=True),
        ),
    )


BERT, ROBERTA, XLM_ROBERTA = (_family(model_type) for model_type in _CLASSES)
