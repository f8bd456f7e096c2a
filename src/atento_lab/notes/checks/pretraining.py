"""Checks of objectives of pretraining: the next sentence, corrupted spans, prefixes (docs/notes.md#e4 to #e7)."""

import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch.nn import functional as F

from atento.attention.masks import prefix as prefix_mask
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Draw, MemoryStore, Ragged
from atento.data.batches.masking import Masking
from atento.data.objectives.causal import Prefix
from atento.data.objectives.denoising import SpanCorruption, corrupt, restored
from atento.data.objectives.masked import FOLLOWS, Masked, NextSentence, SpanBoundary, with_second
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.networks import Decoder, Encoder
from atento.networks.heads import SpanBoundaryHead
from atento.text.specials import Template
from atento.training.losses import Call, losses
from atento_lab.notes.checks.attention import EXACT
from atento_lab.notes.finding import AtMost, Finding, compare

PAD, BEGIN, END, MASK, WORD = range(5)  # WORD is the id of the first word
SMALL = NetworkConfig("encoder", d_model=12, d_ff=16, n_heads=2, n_layers=2, dropout=0.0)
THANKS = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]


def next_sentences() -> Finding:
    """E4: half of the second sentences are the next; the loss of both classes on the first token's vector is added."""
    documents, sentences = 60, 4
    ids = [[WORD + document, WORD + 60 + row] for document in range(documents) for row in range(sentences)]
    rows = [row for row in range(len(ids) - 1) if row % sentences < sentences - 1]
    columns = {
        "ids": Ragged(ids),
        "document": Ragged([[row // sentences] for row in range(len(ids))]),
        "first": Ragged([[row] for row in rows]),
    }
    vocab_size = WORD + 64
    template = Template(pair=((BEGIN, 0), ("A", 0), (END, 0), ("B", 1), (END, 1)))
    objective = NextSentence(PAD, Masking(MASK, np.arange(WORD, vocab_size), rate=0.5), template, 16, segments=True)
    labels, wrong, total = [], 0, 0
    for epoch in range(20):
        batch = objective.batch(with_second(columns, 2, epoch), np.arange(len(rows)), Draw(2, epoch))
        restored_ids = torch.where(batch.labels["vocabulary"] >= 0, batch.labels["vocabulary"], batch.inputs["ids"])
        for row, text, label in zip(rows, restored_ids.tolist(), batch.labels[FOLLOWS].tolist()):
            second = text[4:6]  # [CLS] a a [SEP] b b [SEP]
            wrong += (second == ids[row + 1]) if label else (second != ids[row + 1])
            wrong += label and second[0] == text[1]
        labels += batch.labels[FOLLOWS].tolist()
        total += len(rows)
    heads = (HeadConfig("masked-language-model"), HeadConfig("next-sentence", dropout=0.0))
    config = replace(SMALL, vocab_size=vocab_size, heads=heads, embedding=InputConfig(segments=2))
    network = Encoder(config).double().eval()
    batch = objective.batch(with_second(columns, 1, 0), np.arange(8), Draw(1, 0))
    with torch.no_grad():
        loss = losses(network, batch, Call())
        output = network(**batch.inputs)
        hidden = batch.labels["vocabulary"]
        words = network.project(output.hidden).log_softmax(dim=-1)[hidden >= 0]
        pairs = network.read(FOLLOWS, output, batch.inputs.get("token_mask")).log_softmax(dim=-1)
        by_hand = -float(
            words.gather(1, hidden[hidden >= 0][:, None]).sum() + pairs.gather(1, batch.labels[FOLLOWS][:, None]).sum()
        )
    return compare(
        {
            "deviations from one half": abs(sum(labels) / total - 0.5) / math.sqrt(0.25 / total),
            "pairs with a wrong label": wrong,
            "segments": batch.inputs["segment_ids"][0],
            "sum of both losses, away": abs(float(sum(part[0] for part in loss.values())) - by_hand),
        },
        {
            "deviations from one half": AtMost(3.0),
            "pairs with a wrong label": 0,
            "segments": [0, 0, 0, 0, 1, 1, 1],
            "sum of both losses, away": EXACT,
        },
        remark=f"{total:,} pairs",
    )


def masked_spans() -> Finding:
    """E5: spans of 1 to 10 words, geometric, 3.8 on average; the boundary objective predicts a token from the vectors
    beside its span and its place.
    """
    size, words = WORD + 100, np.arange(4000)
    masking, ids = Masking(MASK, np.arange(WORD, size), unit="spans"), torch.full((5, len(words)), WORD)
    of_rows = np.broadcast_to(words, ids.shape)
    spans = masking.hide_batch(ids, -torch.ones_like(ids), ids == WORD, np.arange(5), Draw(1, 0), of_rows)
    lengths = [int(end - start) for ranges in spans for start, end in ranges]
    law = 0.8 ** np.arange(10)
    mean = float((law * np.arange(1, 11)).sum() / law.sum())
    deviation = float(((law * (np.arange(1, 11) - mean) ** 2).sum() / law.sum()) ** 0.5)
    text = [BEGIN, *range(WORD, WORD + 24), END]
    store = MemoryStore({"ids": Ragged([text, text]), "words": Ragged([list(range(24))] * 2)})
    batch = SpanBoundary(Masked(PAD, masking)).batch(store, np.arange(2), Draw(3, 0))
    heads = (HeadConfig("masked-language-model"), HeadConfig("span-boundary"))
    torch.manual_seed(0)
    network = Encoder(replace(SMALL, vocab_size=size, heads=heads)).double().eval()
    boundary = cast(SpanBoundaryHead, network.heads["span-boundary"])
    hidden = batch.labels["span-boundary"]
    places, by_hand = 0, 0.0
    with torch.no_grad():
        vectors = network(**batch.inputs, project=False).hidden
        for row, at in (hidden >= 0).nonzero().tolist():
            left = next(i for i in range(at, -1, -1) if hidden[row, i] < 0)  # the nearest that is visible
            right = next(i for i in range(at, len(text)) if hidden[row, i] < 0)
            place = torch.tensor([at - left - 1])
            read = boundary.read(vectors[row, left][None], vectors[row, right][None], place)
            logits = F.linear(read, boundary.matrix(network.table), boundary.bias)
            by_hand -= float(logits.log_softmax(dim=-1)[0, hidden[row, at]])
            places += 1
        loss, _ = losses(network, batch, Call())["span-boundary"]
    return compare(
        {
            "longest span": max(lengths),
            "words of a span, deviations from 3.8": abs(np.mean(lengths) - mean) / (deviation / len(lengths) ** 0.5),
            "tokens predicted from boundaries": batch.counts()["span-boundary"],
            "boundary loss, away": abs(float(loss) - by_hand),
        },
        {
            "longest span": 10,
            "words of a span, deviations from 3.8": AtMost(3.0),
            "tokens predicted from boundaries": places,
            "boundary loss, away": EXACT,
        },
        remark=f"{len(lengths):,} spans of {np.mean(lengths):.2f} words on average; {mean:.2f} by the law",
    )


def corrupted_spans() -> Finding:
    """E6: sentinels replace random spans; the target is each sentinel with its span. Both restore the text."""
    names = ("<X>", "<Y>", "<Z>")
    number = {word: WORD + index for index, word in enumerate([*THANKS, *names])}
    words = {index: word for word, index in number.items()}
    marks = tuple(number[name] for name in names)
    ids = [number[word] for word in THANKS]
    source, target = corrupt(ids, [(2, 4), (8, 9)], marks)
    text = torch.randint(WORD, 200, (200, 100)).tolist()
    sentinels = tuple(range(200, 230))
    layout = SequenceToSequence(PAD, BEGIN, END)
    objective, store = SpanCorruption(layout, sentinels), MemoryStore({"ids": Ragged(text)})
    spans = objective.spans(np.full(200, 100), np.arange(200), Draw(1, 0))
    again = [restored(*corrupt(row, cut, sentinels), sentinels) for row, cut in zip(text, spans)]
    batch = objective.batch(store, np.arange(2), Draw(1, 0))
    return compare(
        {
            "source": " ".join(words[index] for index in source),
            "target": " ".join(words[index] for index in target),
            "restored": restored(source, target, marks) == ids,
            "random texts restored": sum(a == b for a, b in zip(again, text)),
            "hidden tokens and spans": [sum(end - start for start, end in spans[0]), len(spans[0])],
            "tokens with a loss": batch.counts()["vocabulary"],
        },
        {
            "source": "Thank you <X> me to your party <Y> week .",
            "target": "<X> for inviting <Y> last <Z>",
            "restored": True,
            "random texts restored": 200,
            "hidden tokens and spans": [15, 5],  # 15 % of 100 tokens, in spans of 3
            "tokens with a loss": 2 * (15 + 5 + 1 + 1),  # spans, their sentinels, the last sentinel and EOS
        },
        remark="the published example (Raffel et al. 2020, figure 2)",
    )


def after_the_prefix() -> Finding:
    """E7: a random prefix is attended to in full; the loss begins after it."""
    network = Decoder(replace(SMALL, architecture="decoder", vocab_size=20)).double().eval()
    texts = torch.randint(WORD, 20, (6, 8)).tolist()
    store = MemoryStore({"ids": Ragged([[BEGIN, *text, END] for text in texts])})
    objective = Prefix(PAD)
    batch = objective.batch(store, np.arange(6), Draw(1, 0))
    labels = batch.labels["vocabulary"]
    lengths = [int((row >= 0).int().argmax()) + 1 for row in labels]  # the prefix ends where the first label stands
    by_hand, tokens = 0.0, 0
    with torch.no_grad():
        loss, _ = losses(network, batch, Call())["vocabulary"]
        for text, length in zip(texts, lengths):
            ids = torch.tensor([[BEGIN, *text, END]])
            for end in range(length, ids.shape[1]):
                logits = network(ids[:, :end], mask=prefix_mask(length)).logits[0, -1]
                by_hand -= float(logits.log_softmax(dim=0)[ids[0, end]])
                tokens += 1
    drawn = torch.cat(
        [objective.batch(store, np.arange(6), Draw(1, epoch)).labels["vocabulary"] for epoch in range(50)]
    )
    return compare(
        {
            "loss away": abs(float(loss) - by_hand),
            "tokens with a loss": batch.counts()["vocabulary"],
            "prefixes of all lengths": sorted({int((row >= 0).int().argmax()) + 1 for row in drawn}),
        },
        {"loss away": EXACT, "tokens with a loss": tokens, "prefixes of all lengths": list(range(1, 10))},
    )
