"""What users of other tools type, and what it is called here; only for messages."""

KEYS = {
    "num_train_epochs": "training.epochs",
    "max_epochs": "training.epochs",
    "max_steps": "training.steps",
    "n_iter": "training.epochs",
    "lr": "training.learning_rate",
    "learning-rate": "training.learning_rate",
    "warmup_steps": "training.warmup",
    "warmup_updates": "training.warmup",
    "batch_size": "training.batch_tokens",
    "per_device_train_batch_size": "training.batch_tokens",
    "max_tokens": "training.batch_tokens",
    "max_update": "training.steps",
    "gradient_accumulation_steps": "training.micro_batches",
    "max_grad_norm": "training.clip",
    "clip_norm": "training.clip",
    "label_smoothing_factor": "training.label_smoothing",
    "lr_scheduler_type": "training.schedule",
    "eval_steps": "training.validate_every",
    "save_steps": "training.checkpoint_every",
    "save_total_limit": "training.keep",
    "logging_steps": "training.log_every",
    "max_length": "data.max_len",
    "max_seq_length": "data.max_len",
    "num_beams": "decoding.beam",
    "beam_size": "decoding.beam",
    "alpha": "decoding.length_penalty",
    "vocab_limit": "tokenizer.vocab_size",
    "hidden_size": "network.d_model",
    "num_layers": "network.n_layers",
    "num_hidden_layers": "network.n_layers",
    "num_attention_heads": "network.n_heads",
    "model_name_or_path": "init.model",
    "pretrained": "init.model",
    "fp16": "training.precision",
    "bf16": "training.precision",
    "patience": "training.early_stop",
    "early_stopping_patience": "training.early_stop",
    "random_state": "training.seed",
}
"""Options of the trainers of transformers, fairseq, JoeyNMT, spaCy and scikit-learn -> keys of a recipe."""

OPTIONS = {name: f"--{name}" for name in ("device", "threads", "nproc", "out", "force")}
OPTIONS |= {"num_threads": "--threads", "n_jobs": "--threads", "output_dir": "--out", "use_cpu": "--device cpu"}
"""What others write among their settings, and `atento train` takes as an option."""

FLAGS = {
    "--num-beams": "--beam",
    "--beam-size": "--beam",
    "--beams": "--beam",
    "--nbest": "--n-best",
    "--num-return-sequences": "--n-best",
    "--max-length": "--max-new-tokens",
    "--max-len": "--max-new-tokens",
    "--lenpen": "--length-penalty",
    "--do-sample": "--sample",
    "--topk": "--top-k",
    "--topp": "--top-p",
    "--no-repeat-ngram-size": "--no-repeat-ngrams",
    "--early-stopping": "--until",
    "--num-beam-groups": "--groups",
    "--diversity-penalty": "--diversity",
    "--bad-words-ids": "--banned-words",
    "--stop-strings": "--stop",
    "--assistant-model": "--draft",
    "--src-lang": "--source-language",
    "--tgt-lang": "--target-language",
    "--output": "--out",
    "--output-dir": "--out",
    "--save-dir": "--out",
    "--n-jobs": "--threads",
    "--fp16": "--precision",
}
"""Flags of other commands -> ours; one that is a key of a recipe is in `KEYS`."""

COMMANDS = {
    "fit": "train",
    "finetune": "train",
    "fine-tune": "train",
    "pretrain": "train",
    "predict": "classify",
    "eval": "evaluate",
    "test": "evaluate",
    "score-model": "evaluate",
    "decode": "translate",
    "interactive": "translate",
    "ner": "tag",
    "qa": "answer",
    "encode": "embed",
    "ppl": "perplexity",
    "visualize": "attend",
    "explain": "classify --explain",
    "export": "convert",
    "benchmark": "bench",
    "preprocess": "data",
    "info": "doctor",
}
"""Commands of other tools -> ours."""


def our_key(name: str) -> str | None:
    """Return the dotted key of a recipe that has the meaning of another tool's option; None: none is known."""
    return KEYS.get(name) or KEYS.get(name.removeprefix("--").replace("-", "_"))


def our_option(name: str) -> str | None:
    """Return the option of a call in Python that has the meaning of another library's; None: none is known."""
    flag = FLAGS.get("--" + name.replace("_", "-"))
    return None if flag is None else flag.removeprefix("--").replace("-", "_")
