"""Checks of teacher forcing, its gradient, the trainer and saving (docs/notes.md#e8, #f1, #f4, #f5, #f8, #g6)."""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from atento.config.recipe import DataConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.tasks import task_with
from atento.decoding import Greedy, generate
from atento.metrics import bleu, chrf
from atento.model import Model, load
from atento.networks import EncoderDecoder
from atento.runs.train import train
from atento.training.losses import Call, losses
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.shared_network import EPOCHS, PEAK, VALIDATE_EVERY, WARMUP, trained
from atento_lab.notes.checks.tiny import gold_batch, some_ids, tiny_network, words
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

# The notes' argument names; batch sizes count tokens here and sentences there.
ARGUMENTS = {
    "output_dir": "--out",
    "num_train_epochs": "training.epochs",
    "per_device_train_batch_size": "training.batch_tokens",
    "per_device_eval_batch_size": "decoding.batch_tokens",
    "warmup_steps": "training.warmup",
    "weight_decay": "training.weight_decay",
    "logging_dir": "metrics.jsonl and train.log in --out",
    "train_dataset": "data.train",
    "eval_dataset": "data.valid",
}


def maximum_likelihood() -> Finding:
    """E8: the loss is -Σ log p(y_t | y_<t, x), its gradient by the output matrix Σ_t (p_t - 1[y_t]) h_tᵀ."""
    network, batch = tiny_network(vocab_size=12, output={"tied": False}), gold_batch("I love NLP", "Eu amo PLN")
    loss, _ = losses(network, batch, Call())["vocabulary"]
    torch.autograd.backward(loss)
    assert network.vocabulary_head.output.weight is not None and network.vocabulary_head.output.weight.grad is not None
    with torch.no_grad():
        output = network(**batch.inputs)
        wrong = torch.softmax(output.logits[0], dim=-1)  # (T,V)
        probabilities = wrong[range(4), batch.labels["vocabulary"][0]].tolist()
        wrong[range(4), batch.labels["vocabulary"][0]] -= 1.0
        gradient = wrong.T @ output.hidden[0]
    by_hand = -sum(torch.tensor(p, dtype=torch.float64).log().item() for p in probabilities)
    return compare(
        {"loss": float(loss.detach()), "gradient away": apart(network.vocabulary_head.output.weight.grad, gradient)},
        {"loss": by_hand, "gradient away": EXACT},
        within=1e-10,
    )


def teacher_forcing() -> Finding:
    """F1: the next input is the gold token, or the prediction."""
    network, tokenizer = tiny_network(vocab_size=12, output={"tied": False}), words()
    batch = gold_batch("I love NLP", "Eu amo PLN")
    with torch.no_grad():
        predicted = network(**batch.inputs).logits[0].argmax(dim=-1).tolist()
        free_running = generate(network, batch.inputs["source_ids"], Greedy(), max_new_tokens=4, eos_id=())[0][0].ids
        inputs_of_free = torch.tensor([[tokenizer.bos_id, *free_running[:-1]]])  # shifted right
        repeated = network(batch.inputs["source_ids"], inputs_of_free).logits[0].argmax(dim=-1).tolist()
    inputs = tokenizer.tokens(batch.inputs["target_ids"][0].tolist())
    gold = tokenizer.tokens(batch.labels["vocabulary"][0].tolist())
    predicted_tokens = tokenizer.tokens(predicted)
    steps = [f"input {a:<5} gold {b:<5} untrained network {c}" for a, b, c in zip(inputs, gold, predicted_tokens)]
    return compare(
        {"inputs": inputs, "to be said": gold, "off: fed with its own words it says them": repeated == free_running},
        {
            "inputs": ["<s>", "Eu", "amo", "PLN"],
            "to be said": ["Eu", "amo", "PLN", "</s>"],
            "off: fed with its own words it says them": True,
        },
        drawing="\n".join(steps),
        remark='the difference between the two is "exposure bias", in Portuguese "viés de exposição", not "exposição '
        'ao viés" '
        "(error 37)",
    )


def trainer_arguments() -> Finding:
    """F4: each argument of the notes has a key; epochs, warm-up, validation as in a real run."""
    sections = {"training": TrainingConfig, "decoding": DecodingConfig, "data": DataConfig}
    known = {f"{name}.{field.name}" for name, section in sections.items() for field in fields(section)}
    known |= {f"--{name}" for name in inspect.signature(train).parameters}
    without = [name for name, ours in ARGUMENTS.items() if ours not in known and "metrics.jsonl" not in ours]
    shared = trained()
    rates = {event["step"]: event["learning_rate"] for event in shared.events if event["event"] == "train"}
    updates = shared.run.step / EPOCHS
    validated = [event["step"] for event in shared.events if event["event"] == "valid"]
    return compare(
        {
            "names without a key here": without,
            "our keys used twice": len(ARGUMENTS) - len(set(ARGUMENTS.values())),
            "updates an epoch are whole": updates == int(updates),
            "learning rate half-way up": rates[WARMUP // 2],
            "validated": validated,
        },
        {
            "names without a key here": [],
            "our keys used twice": 0,
            "updates an epoch are whole": True,
            "learning rate half-way up": PEAK / 2,
            "validated": [*range(VALIDATE_EVERY, shared.run.step, VALIDATE_EVERY), shared.run.step],
        },
        drawing="\n".join(f"{name:<28} {ours}" for name, ours in ARGUMENTS.items()),
        remark="current releases of that library refuse `logging_dir` (error 45); the report that follows has five "
        "labels and two predictions, which cannot be compared (error 44)",
    )


def save_and_load() -> Finding:
    """F5: bit-equal logits, with the tokenizer."""
    tokenizer = words()
    config = replace(tiny_network().config, vocab_size=12, tokenizer_fingerprint=tokenizer.fingerprint)
    network = EncoderDecoder(config).eval()
    source, target = some_ids(2, 6), some_ids(2, 5)
    with TemporaryDirectory() as folder:
        saved = Model(
            network, tokenizer, {"model_type": "atento", "task": task_with("translate"), "name": "tiny"}, None
        )
        loaded = load(saved.save(Path(folder) / "model"), device="cpu")
    assert loaded.tokenizer is not None
    value = {
        "bit-equal logits": torch.equal(network(source, target).logits, loaded.network(source, target).logits),
        "the same tokenizer": loaded.tokenizer.encode("Eu amo PLN") == tokenizer.encode("Eu amo PLN"),
    }
    return compare(value, dict.fromkeys(value, True))


def all_positions_at_once() -> Finding:
    """F8: one pass gives the result of one pass per token."""
    network, source, target = tiny_network(), some_ids(2, 6), some_ids(2, 8)
    calls = []
    hook = network.decoder.register_forward_pre_hook(lambda stack, inputs: calls.append(1))
    at_once = network(source, target).logits
    parallel_calls = len(calls)
    by_token = torch.stack([network(source, target[:, : t + 1]).logits[:, -1] for t in range(8)], dim=1)
    hook.remove()
    return compare(
        {
            "passes at once": parallel_calls,
            "passes token by token": len(calls) - parallel_calls,
            "apart": apart(at_once, by_token),
        },
        {"passes at once": 1, "passes token by token": 8, "apart": EXACT},
        remark="this holds in training; generation needs one step per token in every such network (error 32). `atento "
        "bench recurrence` compares the time with an RNN's",
    )


def translation() -> Finding:
    """G6: BLEU and chrF on the training pairs and on unseen ones."""
    shared = trained()

    def scores(pairs: list[tuple[str, str]]) -> tuple[float, float]:
        written = shared.model.translate([source for source, _ in pairs])
        references = [target for _, target in pairs]
        return bleu(written, references).value, chrf(written, references).value

    learnt = scores([(pair.source, pair.target) for pair in shared.pairs])
    unseen = scores([(pair.source, pair.target) for pair in shared.unseen])
    losses = [event["nll"] for event in shared.events if event["event"] == "train"]
    return compare(
        {"BLEU": learnt[0], "chrF": learnt[1], "nats a token, last": losses[-1], "first": losses[0]},
        {
            "BLEU": AtLeast(90.0),
            "chrF": AtLeast(90.0),
            "nats a token, last": AtMost(losses[0] / 5),
            "first": AtLeast(1.0),
        },
        remark=f"{len(shared.pairs)} pairs, {shared.run.step} steps. On {len(shared.unseen)} unseen pairs: "
        f"BLEU {unseen[0]:.1f}, chrF {unseen[1]:.1f}: so few pairs teach sentences, not the language; `atento demo` "
        f"trains on more",
    )
