"""What users of other tools type, and what it is called here; only for messages."""

from collections.abc import Mapping


def _by_theirs(names: Mapping[str, str]) -> dict[str, str]:
    """Ours -> the names that others have for it, as the table of each of those."""
    return {theirs: ours for ours, others in names.items() for theirs in others.split()}


KEYS = _by_theirs(
    {
        "training.epochs": "num_train_epochs max_epochs n_iter",
        "training.steps": "max_steps max_update",
        "training.learning_rate": "lr learning-rate",
        "training.warmup": "warmup_steps warmup_updates",
        "training.batch_tokens": "batch_size per_device_train_batch_size max_tokens",
        "training.micro_batches": "gradient_accumulation_steps",
        "training.clip": "max_grad_norm clip_norm",
        "training.label_smoothing": "label_smoothing_factor",
        "training.schedule": "lr_scheduler_type",
        "training.validate_every": "eval_steps",
        "training.checkpoint_every": "save_steps",
        "training.keep": "save_total_limit",
        "training.log_every": "logging_steps",
        "data.max_len": "max_length max_seq_length",
        "decoding.beam": "num_beams beam_size",
        "decoding.length_penalty": "alpha",
        "tokenizer.vocab_size": "vocab_limit",
        "network.d_model": "hidden_size",
        "network.n_layers": "num_layers num_hidden_layers",
        "network.n_heads": "num_attention_heads",
        "init.model": "model_name_or_path pretrained",
        "training.precision": "fp16 bf16",
        "training.early_stop": "patience early_stopping_patience",
        "training.seed": "random_state",
    }
)
"""Options of the trainers of transformers, fairseq, JoeyNMT, spaCy and scikit-learn -> keys of a recipe."""

OPTIONS = {name: f"--{name}" for name in ("device", "threads", "nproc", "out", "force")}
OPTIONS |= {"num_threads": "--threads", "n_jobs": "--threads", "output_dir": "--out", "use_cpu": "--device cpu"}
"""What others write among their settings, and `atento train` takes as an option."""

FLAGS = _by_theirs(
    {
        "--beam": "--num-beams --beam-size --beams",
        "--n-best": "--nbest --num-return-sequences",
        "--max-new-tokens": "--max-length --max-len",
        "--length-penalty": "--lenpen",
        "--sample": "--do-sample",
        "--top-k": "--topk",
        "--top-p": "--topp",
        "--no-repeat-ngrams": "--no-repeat-ngram-size",
        "--until": "--early-stopping",
        "--groups": "--num-beam-groups",
        "--diversity": "--diversity-penalty",
        "--banned-words": "--bad-words-ids",
        "--stop": "--stop-strings",
        "--draft": "--assistant-model",
        "--source-language": "--src-lang",
        "--target-language": "--tgt-lang",
        "--out": "--output --output-dir --save-dir",
        "--threads": "--n-jobs",
        "--precision": "--fp16",
    }
)
"""Flags of other commands -> ours; one that is a key of a recipe is in `KEYS`."""

COMMANDS = _by_theirs(
    {
        "train": "fit finetune fine-tune pretrain",
        "classify": "predict",
        "evaluate": "eval test score-model",
        "translate": "decode interactive",
        "tag": "ner",
        "answer": "qa",
        "embed": "encode",
        "perplexity": "ppl",
        "attend": "visualize",
        "classify --explain": "explain",
        "convert": "export",
        "bench": "benchmark",
        "data": "preprocess",
        "doctor": "info",
    }
)
"""Commands of other tools -> ours."""


def our_key(name: str) -> str | None:
    """Return the dotted key of a recipe that has the meaning of another tool's option; None: none is known."""
    return KEYS.get(name) or KEYS.get(name.removeprefix("--").replace("-", "_"))


def our_option(name: str) -> str | None:
    """Return the option of a call in Python that has the meaning of another library's; None: none is known."""
    flag = FLAGS.get("--" + name.replace("_", "-"))
    return None if flag is None else flag.removeprefix("--").replace("-", "_")
