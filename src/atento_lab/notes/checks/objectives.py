"""Checks of objectives and losses, compared with single probabilities (docs/notes.md#e1 to #e3, #e9)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig, ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged
from atento.data.batches.masking import Masking
from atento.data.batches.windows import Windows
from atento.data.objectives.causal import Causal, PackedCausal, packed
from atento.data.objectives.masked import Masked
from atento.data.objectives.window import window_batch, word_batch
from atento.decoding.mask_predict import mask_predict
from atento.networks import CBOW, Decoder, ELMo, Encoder, build_network
from atento.training.losses import Call, losses
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.tiny import Adam, some_ids
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

PAD, UNKNOWN, BEGIN, END, MASK, WORD = range(6)  # WORD is the id of the first word


def next_token() -> Finding:
    """E1: the loss is -Σ log p(w_t+1 | w_1 ... w_t) over real tokens; packed texts do not see each other."""
    config = NetworkConfig("decoder", d_model=12, d_ff=16, n_heads=2, n_layers=2, vocab_size=11, dropout=0.0)
    network = Decoder(config).double()
    texts = [[BEGIN, 7, 5, 9, 6, END], [BEGIN, 8, 10, END]]
    batch = Causal(PAD).batch(MemoryStore({"ids": Ragged(texts)}), np.array([0, 1]), Draw(1, 0))
    with torch.no_grad():
        loss, _ = losses(network, batch, Call())["vocabulary"]
        rows = packed(texts, 9)  # nine tokens fill one row
        row = PackedCausal(PAD, isolated=True).batch(rows, np.array([0]), Draw(1, 0))
        together, _ = losses(network, row, Call())["vocabulary"]
        by_hand = 0.0
        for text in texts:  # each text and each prefix separately
            for end in range(1, len(text)):
                logits = network(torch.tensor([text[:end]])).logits[0, -1]
                by_hand -= float(logits.log_softmax(dim=0)[text[end]])
    return compare(
        {
            "read": batch.inputs["ids"],
            "to be guessed": batch.labels["vocabulary"],
            "loss away": abs(float(loss) - by_hand),
            "rows of both texts": len(rows),
            "packed, away": abs(float(together) - by_hand),
        },
        {
            "read": [[BEGIN, 7, 5, 9, 6], [BEGIN, 8, 10, PAD, PAD]],
            "to be guessed": [[7, 5, 9, 6, END], [8, 10, END, -1, -1]],
            "loss away": EXACT,
            "rows of both texts": 1,
            "packed, away": EXACT,
        },
    )


def masking_rates() -> Finding:
    """E2: 15 %, anew in every epoch, of them 80 % become the mask, 10 % another token, 10 % stay. Special tokens are
    never selected.
    """
    rows, length, words = 1000, 1007, 400
    ids = WORD + torch.randint(words, (rows, length))
    ids[:, 0], ids[:, -1] = BEGIN, END
    objective = Masked(PAD, Masking(MASK, np.arange(WORD, WORD + words)))
    texts, indices = MemoryStore({"ids": Ragged(ids.tolist())}), np.arange(rows)
    batch = objective.batch(texts, indices, Draw(1, 0))
    inputs, labels = batch.inputs["ids"], batch.labels["vocabulary"]
    chosen = labels >= 0
    inside, count = rows * (length - 2), int(chosen.sum())
    hidden = chosen & (inputs == MASK)
    swapped = chosen & ~hidden & (inputs != ids)
    rates = {
        "chosen": (count, inside, 0.15),
        "mask": (int(hidden.sum()), count, 0.8),
        "another": (int(swapped.sum()), count, 0.1 * (1 - 1 / words)),  # one in `words` draws is the token itself
        "kept": (count - int(hidden.sum()) - int(swapped.sum()), count, 0.1 * (1 + 1 / words)),
    }
    deviations = {name: abs(n / total - p) / math.sqrt(p * (1 - p) / total) for name, (n, total, p) in rates.items()}
    repeated, next_epoch = (objective.batch(texts, indices, Draw(1, epoch)) for epoch in (0, 1))
    return compare(
        {
            "deviations from the rate": deviations,
            "labels that are not the token": int((labels[chosen] != ids[chosen]).sum()),
            "changed where nothing is asked": int((inputs != ids)[~chosen].sum()),
            "marks chosen": int(chosen[:, [0, -1]].sum()),
            "ids that are no word, mask apart": int((inputs[chosen & ~hidden] < WORD).sum()),
            "the same epoch again": torch.equal(repeated.inputs["ids"], inputs),
            "another epoch, another choice": not torch.equal(next_epoch.labels["vocabulary"], labels),
        },
        {
            "deviations from the rate": dict.fromkeys(deviations, AtMost(3.0)),
            "labels that are not the token": 0,
            "changed where nothing is asked": 0,
            "marks chosen": 0,
            "ids that are no word, mask apart": 0,
            "the same epoch again": True,
            "another epoch, another choice": True,
        },
        remark=f"{inside:,} tokens, {count:,} of them chosen",
    )


def masked_network() -> Encoder:
    """Return a small BERT with its masked-language-model head and random parameters."""
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)
    sizes = {"vocab_size": 11, "d_model": 12, "d_ff": 20, "n_heads": 3, "n_layers": 2, "max_len": 16}
    head = HeadConfig("masked-language-model")
    network = build_network(presets.bert_base(**sizes, ids=ids, dropout=0.0, heads=(head,))).double().eval()
    assert isinstance(network, Encoder)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
    return network


def masked_tokens() -> Finding:
    """E3: the loss covers only the selected tokens; all others are attended to."""
    network = masked_network()
    ids = torch.tensor([[BEGIN, 7, MASK, 9, 6, MASK, END]])
    labels = torch.tensor([[-1, -1, 8, -1, -1, 10, -1]])
    with with_gradients(network.stack) as (hidden, inputs_of_first):
        loss, _ = losses(network, Batch({"ids": ids}, {"vocabulary": labels}), Call())["vocabulary"]
    torch.autograd.backward(loss)
    assert hidden[0].grad is not None and inputs_of_first[0].grad is not None
    with torch.no_grad():
        head = network.vocabulary_head
        log_probs = head(network(ids).hidden, network.embedding)[0].log_softmax(dim=-1)
    by_hand = -float(log_probs[2, 8] + log_probs[5, 10])

    def predict(ids: Tensor) -> Tensor:
        logits: Tensor = head(network(ids).hidden, network.embedding)
        return logits

    text = [BEGIN, MASK, MASK, 7, MASK, 9, MASK, MASK, MASK, END]
    with torch.no_grad():
        filled = mask_predict(predict, torch.tensor([text]), MASK, iterations=3)
        by_rounds, log_probs_by_rounds = filled_by_rounds(lambda masked: predict(torch.tensor([masked]))[0], text, 3)
    return compare(
        {
            "loss away": abs(float(loss.detach()) - by_hand),
            "places the loss asks": (hidden[0].grad[0].abs().sum(dim=-1) > 0).int(),
            "least gradient of a token read": float(inputs_of_first[0].grad[0].norm(dim=-1).min()),
            "six masks filled in three rounds": filled.ids[0],
            "log-probabilities by rounds away": apart(filled.log_probs[0], torch.tensor(log_probs_by_rounds)),
        },
        {
            "loss away": EXACT,
            "places the loss asks": [0, 0, 1, 0, 0, 1, 0],
            "least gradient of a token read": AtLeast(1e-6),
            "six masks filled in three rounds": by_rounds,
            "log-probabilities by rounds away": AtMost(1e-5),
        },
        remark="the notes say that such models cannot generate; they can, by filling masks in rounds, though not "
        "token by token (error 20)",
    )


@contextmanager
def with_gradients(stack: nn.Module) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Record the outputs of a stack and the inputs of its first block, both with their gradients."""
    outputs: list[Tensor] = []
    inputs_of_first: list[Tensor] = []

    def keep_output(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        outputs.append(output)

    def keep_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        inputs[0].retain_grad()
        inputs_of_first.append(inputs[0])

    first = stack.get_submodule("blocks.0")
    hooks = [stack.register_forward_hook(keep_output), first.register_forward_pre_hook(keep_input)]
    try:
        yield outputs, inputs_of_first
    finally:
        for hook in hooks:
            hook.remove()


def filled_by_rounds(
    predict: Callable[[list[int]], Tensor], text: list[int], rounds: int
) -> tuple[list[int], list[float]]:
    """Fill masks with the most probable token, then mask the least certain again, fewer in each round.

    Return log p of each.
    """
    ids, log_prob_of = list(text), [0.0] * len(text)
    empty = [position for position, token in enumerate(text) if token == MASK]
    for completed in range(rounds):
        hidden = sorted(empty, key=lambda position: log_prob_of[position])[
            : len(empty) * (rounds - completed) // rounds
        ]
        step_log_probs = predict([MASK if position in hidden else token for position, token in enumerate(ids)])
        step_log_probs[:, MASK] = -math.inf  # a mask is never the word for a mask
        step_log_probs = step_log_probs.log_softmax(dim=-1)
        for position in hidden:
            ids[position] = int(step_log_probs[position].argmax())
            log_prob_of[position] = float(step_log_probs[position, ids[position]])
    return ids, log_prob_of


# E9 ------------------------------------------------------------------------------------------------------------------


def tiny_elmo() -> ELMo:
    """Return a small ELMo of two layers that reads words by id."""
    elmo_config = ELMoConfig(characters=None, d_cell=8)
    network = ELMo(
        NetworkConfig("elmo", vocab_size=11, d_model=8, n_heads=1, n_layers=2, dropout=0.0, elmo=elmo_config)
    ).double()
    return network


def cycles(rows: int, length: int) -> Tensor:
    """Return texts (B,L) in which each word determines its neighbours: 5 6 7 8 9 10 5 6 ..., from a random start."""
    return WORD + (torch.randint(6, (rows, 1)) + torch.arange(length)) % 6


def cut_batch(words: Tensor, lengths: Tensor) -> Batch:
    """Return a batch of these texts, cut to their lengths."""
    token_mask = torch.arange(words.shape[1]) < lengths[:, None]
    return word_batch(words * token_mask, words * token_mask, lengths)


@torch.no_grad()
def bidirectional_by_hand(network: ELMo, batch: Batch) -> tuple[float, float]:
    """Return -Σ log p of each word's right neighbour (forward states) and left neighbour (backward states)."""
    forward = backward = 0.0
    for ids, token_mask in zip(batch.inputs["ids"], batch.inputs["token_mask"]):
        text = ids[token_mask][None]
        forward_states, backward_states = network.directions(text)[-1]
        for t in range(text.shape[1] - 1):
            forward -= float(network.project(forward_states[0, t]).log_softmax(dim=0)[text[0, t + 1]])
            backward -= float(network.project(backward_states[0, t + 1]).log_softmax(dim=0)[text[0, t]])
    return forward, backward


def both_neighbours() -> Finding:
    """E9: ELMo predicts the next and the previous word, CBOW a word from its window."""
    network = tiny_elmo()
    batch = cut_batch(some_ids(3, 6), torch.tensor([6, 4, 2]))
    loss = network.loss(batch.inputs["ids"], batch.extras["words"], token_mask=batch.inputs["token_mask"])
    forward, backward = bidirectional_by_hand(network, batch)
    total_loss, _ = losses(network, batch, Call())["bidirectional"]
    pairs = 5 + 3 + 1  # neighbours in texts of 6, 4 and 2 words
    adam, lengths = Adam(network.parameters(), 3e-2), torch.tensor([8] * 8)
    before = network.loss(*[cycles(8, 8)] * 2).perplexities
    for _ in range(40):
        total, _ = losses(network, cut_batch(cycles(8, 8), lengths), Call())["bidirectional"]
        torch.autograd.backward(total / (8 * 7 * 2))  # 8 texts of 7 pairs, both ways
        adam.step()
    after = network.loss(*[cycles(8, 8)] * 2).perplexities
    first, last = window_losses()
    return compare(
        {
            "loss away, forward and backward": [
                abs(float(loss.forward.detach()) - forward),
                abs(float(loss.backward.detach()) - backward),
            ],
            "their sum away": abs(float(total_loss.detach()) - forward - backward),
            "real targets": [loss.forward_targets, loss.backward_targets, batch.targets],
            "perplexities": list(loss.perplexities),
            "perplexities after over before": max(late / early for late, early in zip(after, before)),
            "CBOW, loss after over before": last / first,
        },
        {
            "loss away, forward and backward": [EXACT, EXACT],
            "their sum away": EXACT,
            "real targets": [pairs, pairs, 2 * pairs],
            "perplexities": [math.exp(forward / pairs), math.exp(backward / pairs)],
            "perplexities after over before": AtMost(0.5),
            "CBOW, loss after over before": AtMost(0.7),
        },
        within=1e-9,
        remark=f"on texts where each word determines its neighbours, 40 updates: perplexity {after[0]:.1f} forward and "
        f"{after[1]:.1f} backward, {before[0]:.1f} and {before[1]:.1f} before",
    )


def window_losses() -> tuple[float, float]:
    """Return the mean loss per word of CBOW over the whole vocabulary, in the first and in the last epoch."""
    cbow_config = CBOWConfig(window=1, negatives=0, subsample=0.0)
    windows = Windows(cycles(12, 8).tolist(), 11, cbow_config, seed=1, batch_size=48)
    network = CBOW(NetworkConfig("cbow", vocab_size=11, d_model=8, n_heads=1, dropout=0.0, cbow=cbow_config))
    network.reset_parameters(torch.Generator().manual_seed(1))
    adam, means = Adam(network.parameters(), 3e-2), []
    for epoch in range(12):
        total, count = 0.0, 0
        for batch in map(window_batch, windows.epoch(epoch)):
            loss, _ = losses(network, batch, Call())["window"]
            torch.autograd.backward(loss / batch.targets)
            adam.step()
            total, count = total + float(loss.detach()), count + batch.targets
        means.append(total / count)
    return means[0], means[-1]
