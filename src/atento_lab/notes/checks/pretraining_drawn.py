"""Checks of the figures of pretrained families, from networks as they run (docs/notes.md#j10, #j11)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.masks import bidirectional, causal, prefix
from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig, ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import TASKS, task_with
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged
from atento.data.batches.masking import Masking
from atento.data.objectives.denoising import corrupt
from atento.data.objectives.masked import FOLLOWS, NextSentence
from atento.inspection.figures.network_diagram import network_svg, network_text
from atento.networks import Network, build_network, parameter_count
from atento.networks.describe import Part, describe
from atento.text.specials import Template
from atento.training.losses import Call, losses
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.diagrams import SIZES, drawn_order, ids, running_order
from atento_lab.notes.checks.text_to_text import NEW, PREFIXES, UNSEEN, fine_tuned, prefixed
from atento_lab.notes.drawing import Panel, arrow, boxes, heat, inside, sheet
from atento_lab.notes.finding import Finding, compare

FIRST, SECOND = ("O", "gato", "está", "no", "tapete"), ("Ele", "está", "confortável")
NAMES = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys([*FIRST, *SECOND]))
_BERT = (HeadConfig("masked-language-model"), HeadConfig("next-sentence", dropout=0.0))


def families_drawn() -> Finding:
    """J10: CBOW, ELMo, GPT, BERT and T5, as built here; BERT's three input vectors and two losses; T5's tasks as
    texts.
    """
    networks: dict[str, Network] = {
        "CBOW": build_network(
            NetworkConfig(architecture="cbow", vocab_size=50, d_model=12, n_heads=3, cbow=CBOWConfig(window=2))
        ),
        "ELMo": build_network(
            NetworkConfig(
                architecture="elmo",
                vocab_size=50,
                d_model=12,
                n_heads=3,
                n_layers=2,
                elmo=ELMoConfig(characters=None, d_cell=16),
            )
        ),
        "GPT": build_network(presets.gpt1(**SIZES, n_layers=2)),
        "BERT": build_network(presets.bert_base(**SIZES, n_layers=2, heads=_BERT)),
        "T5": build_network(presets.t5_small(**SIZES, n_layers=2, attention={"d_head": 4})),
    }
    texts, columns, same_order = [], [], {}
    for name, network in networks.items():
        described = describe(network)
        columns += [
            Part(name if len(described) == 1 else f"{name}: {part.name}", parts=part.parts) for part in described
        ]
        texts.append(f"{name}, {parameter_count(network):,} parameters\n{network_text(described)}")
    for name in ("GPT", "BERT"):
        same_order[name] = drawn_order(describe(networks[name])[0].parts) == running_order(networks[name], ids(1, 4))
    pretraining = _Pretraining(networks["BERT"].double().eval())
    tasks = [(f"{task}{' '.join(UNSEEN[0])}", answer(*UNSEEN[0])) for task, answer in PREFIXES.items()]
    return compare(
        {
            "drawn as it runs": same_order,
            "BERT's input": [part.name for part in describe(networks["BERT"])[0].parts][:4],
            **pretraining.value(),
        },
        {
            "drawn as it runs": {"GPT": True, "BERT": True},
            "BERT's input": ["embedding", "+ positions", "+ segments", "norm"],
            **pretraining.expected(),
        },
        remark="T5 was pretrained to fill spans of C4, together with a mixture of tasks, and its prefix is English: "
        '"translate English to French:" (error 48); its mixture counts at most K examples of a data set (error 51)',
        drawing="\n\n".join([*texts, *pretraining.lines(), *(f"{source} → {target}" for source, target in tasks)]),
        figure=sheet(
            "CBOW, ELMo, GPT, BERT and T5",
            [
                [inside(network_svg(columns[:4])), inside(network_svg(columns[4:]))],
                pretraining.panels(),
                pretraining.outputs_drawn(),
                _flow("T5, tasks as texts", dict(zip(("source", "target"), zip(*tasks)))),
            ],
        ),
    )


class _Pretraining:
    """A pair of sentences as BERT reads it in pretraining, and what the network says of it."""

    @torch.no_grad()
    def __init__(self, network: Any) -> None:
        sentences = [[NAMES.index(word) for word in text] for text in (FIRST, SECOND)]
        columns = {"ids": sentences, "document": [[0], [0]], "first": [[0]], "second": [[1]], "follows": [[0]]}
        template = Template(pair=((1, 0), ("A", 0), (2, 0), ("B", 1), (2, 1)))
        masking = Masking(NAMES.index("[MASK]"), np.arange(4, len(NAMES)), rate=0.25)
        objective = NextSentence(0, masking, template, 16, segments=True)
        store = MemoryStore({name: Ragged(rows) for name, rows in columns.items()})
        self.batch: Batch = objective.batch(store, np.array([0]), Draw(1, 0))
        self.ids: Tensor = self.batch.inputs["ids"]
        self.labels = self.batch.labels["vocabulary"]
        layer, kept = network.inputs, list[Tensor]()
        hook = layer.norm.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0][0]))
        output = network(**self.batch.inputs, project=False)
        hook.remove()
        self.summed = kept[0]  # (L,D), before the norm
        self.vectors = {
            "tokens": F.embedding(self.ids[0], network.embedding.weight),
            "segments": F.embedding(self.batch.inputs["segment_ids"][0], layer.segments),
            "positions": next(iter(layer.positions.parameters()))[: self.ids.shape[1]],
        }
        self.words = network.project(output.hidden)[0].softmax(dim=-1)  # (L,V)
        self.next = network.read(FOLLOWS, output, None)[0].softmax(dim=-1)
        self.losses = {head: float(loss) for head, (loss, _) in losses(network, self.batch, Call()).items()}

    def names(self, numbers: Sequence[int]) -> list[str]:
        """Return the token of each id; "-" for -1."""
        return ["-" if number < 0 else NAMES[number] for number in numbers]

    def value(self) -> dict[str, Any]:
        """Return what the library made of the pair."""
        restored = torch.where(self.labels >= 0, self.labels, self.ids)[0].tolist()
        return {
            "pair": " ".join(self.names(restored)),
            "segments": self.batch.inputs["segment_ids"][0],
            "tokens to predict": self.batch.counts()["vocabulary"],
            "sum of tokens, segments and positions, away": apart(sum(self.vectors.values()), self.summed),
            "outputs": {"words": list(self.words.shape), "next": list(self.next.shape)},
            "loss": sum(self.losses.values()),
        }

    def expected(self) -> dict[str, Any]:
        """Return the same by hand."""
        hidden = (self.labels[0] >= 0).nonzero().flatten().tolist()
        nats = -sum(float(self.words[at, self.labels[0, at]].log()) for at in hidden) - float(self.next[0].log())
        return {
            "pair": f"[CLS] {' '.join(FIRST)} [SEP] {' '.join(SECOND)} [SEP]",
            "segments": [0] * (len(FIRST) + 2) + [1] * (len(SECOND) + 1),
            "tokens to predict": (len(FIRST) + len(SECOND)) // 4,
            "sum of tokens, segments and positions, away": EXACT,
            "outputs": {"words": [self.ids.shape[1], SIZES["vocab_size"]], "next": [2]},
            "loss": nats,
        }

    def lines(self) -> list[str]:
        """Return the tokens read, those to predict, and the losses as text."""
        return [
            f"BERT reads: {' '.join(self.names(self.ids[0].tolist()))}\nit predicts: "
            f"{' '.join(self.names(self.labels[0].tolist()))}; IsNext {float(self.next[0]):.2f}\n"
            f"loss: {' + '.join(f'{loss:.2f} ({head})' for head, loss in self.losses.items())}"
        ]

    def panels(self) -> list[Panel]:
        """Return the three vectors of each token and their sum."""
        read = self.names(self.ids[0].tolist())
        summands = [heat(vectors, name, read, cell=12) for name, vectors in self.vectors.items()]
        return [*summands, arrow(), heat(self.summed, "their sum, BERT's input", read, cell=12)]

    def outputs_drawn(self) -> list[Panel]:
        """Return the tokens read, the two outputs and their losses."""
        read, predicted = self.names(self.ids[0].tolist()), self.names(self.labels[0].tolist())
        nats = [[head, f"{loss:.2f}"] for head, loss in self.losses.items()]
        return [
            boxes([read, predicted], "pretraining: what BERT reads, and what it is to predict", ("reads", "predicts")),
            arrow(32),
            heat(self.words[self.labels[0] >= 0][:, : len(NAMES)], "words at [MASK]", columns=NAMES, cell=44),
            heat(self.next[None], "next sentence", columns=("IsNext", "NotNext"), cell=56),
            boxes([*nats, ["sum", f"{sum(self.losses.values()):.2f}"]], "losses, nats"),
        ]


def _flow(title: str, columns: Mapping[str, Sequence[str]]) -> list[Panel]:
    """Return columns of texts under their names, with arrows between them, as panels of one row."""
    panels: list[Panel] = []
    for number, (name, texts) in enumerate(columns.items()):
        panels += [arrow(32)] if number else []
        panels.append(boxes([[text] for text in texts], f"{title}: {name}" if not number else name))
    return panels


def heads_spans_and_masks_drawn() -> Finding:
    """J11: an encoder's heads; source and target of span corruption; masks of three arrangements; one text with three
    prefixes, and a fourth task by fine-tuning.
    """
    of_text, of_words, of_answers = (TASKS[task_with(verb)].heads[0] for verb in ("classify", "tag", "answer"))
    labels = {of_text: ("-", "+"), of_words: ("O", "B-PER")}
    heads = tuple(HeadConfig(kind, labels.get(kind, ())) for kind in (of_text, of_words, of_answers))
    network = build_network(presets.bert_base(**SIZES, n_layers=2, heads=heads, pooler=True))
    output = network(ids=ids(1, 5), project=False)
    shapes = {head.name: list(network.read(head.name, output, None).shape) for head in heads}
    words = ["o", "gato", "pulou", "no", "muro", "alto"]
    source, target = corrupt(list(range(6)), [(1, 3), (5, 6)], (6, 7, 8))
    names = [*words, "<X>", "<Y>", "<Z>"]
    corrupted, spans = (" ".join(names[token] for token in side) for side in (source, target))
    masks = {"encoder": bidirectional(), "language model": causal(), "prefix of 2": prefix(2)}
    seen = {name: mask.dense(4)[0, 0].int() for name, mask in masks.items()}
    pair = " ".join(UNSEEN[0])
    outputs = dict(zip(PREFIXES, prefixed().generate([f"{prefix}{pair}" for prefix in PREFIXES])))
    before, after = (model.generate(f"{NEW}{pair}") for model in (prefixed(), fine_tuned()))
    flows = [_flow("T5, span corruption", {"text": [" ".join(words)], "source": [corrupted], "target": [spans]})]
    flows.append(_flow("T5, three tasks", {"source": [p + pair for p in PREFIXES], "output": [*outputs.values()]}))
    flows.append(_flow("T5, a fourth task", {"source": [NEW + pair], "before": [before], "fine-tuned": [after]}))
    return compare(
        {
            "outputs of the heads": shapes,
            "source": corrupted,
            "target": spans,
            "seen": seen,
            "by prefix": outputs,
            "a new task, fine-tuned": after,
            "it was new": before != after,
        },
        {
            "outputs of the heads": {of_text: [1, 2], of_words: [1, 5, 2], of_answers: [1, 5, 2]},
            "source": "o <X> no muro <Y>",
            "target": "<X> gato pulou <Y> alto <Z>",
            "seen": {
                "encoder": [[1] * 4] * 4,
                "language model": [[int(k <= q) for k in range(4)] for q in range(4)],
                "prefix of 2": [[int(k <= q or k < 2) for k in range(4)] for q in range(4)],
            },
            "by prefix": {prefix: answer(*UNSEEN[0]) for prefix, answer in PREFIXES.items()},
            "a new task, fine-tuned": pair,
            "it was new": True,
        },
        drawing="\n".join(
            [network_text(describe(network)), *(f"{prefix}{pair} → {outputs[prefix]}" for prefix in outputs)]
        ),
        figure=sheet(
            "Heads, masks, span corruption and prefixes",
            [
                [inside(network_svg(describe(network), "BERT with a head for each task"))],
                [heat(table, name, digits=0) for name, table in seen.items()],
                *flows,
            ],
        ),
    )
