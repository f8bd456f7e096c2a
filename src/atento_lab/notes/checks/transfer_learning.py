"""Checks of features, fine-tuning and tasks on networks that are trained on files of a few sentences.

See docs/notes.md#f6, #g1 to #g5, #g8, #l6.
"""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from atento.config.tables.tasks import task_with
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.objectives.masked import FOLLOWS
from atento.metrics import entity_f1, report, squad
from atento.model import Model, load
from atento.runs.train import train
from atento_lab.notes.checks.fine_tuned import classified
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

Records = Sequence[Mapping[str, Any]]
SIZES = {"n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2, "dropout": 0.0, "norm": "pre"}
_NETWORK = {"preset": "bert-tiny", **SIZES}
DEEPER = _NETWORK | {"n_layers": 2, "norm": "post"}
TRAINING = {"steps": 100, "batch_tokens": 24, "learning_rate": 1e-2, "warmup": 10, "precision": "float32"}
_SLOWER = TRAINING | {"steps": 300, "learning_rate": 3e-3, "warmup": 30}


def trained_model(task: str, records: Records, **sections: Any) -> Model:
    """Write records to a file, train a recipe of a task on it, and load the run."""
    with TemporaryDirectory() as name, redirect_stderr(io.StringIO()):
        folder = Path(name)
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        (folder / "train.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
        fields = {field: field for field in records[0]}
        recipe = {
            "task": task,
            "data": {"train": {"file": str(folder / "train.jsonl"), **fields}},
            "tokenizer": {"kind": "word", "vocab_size": 200},
            "network": _NETWORK,
            "training": TRAINING,
        }
        return load(train(recipe | sections, out=folder / "run", device="cpu").folder, device="cpu")


TOPICS = (
    ("O gato está {} no tapete.", "Ele está muito confortável.", ("deitado", "sentado")),
    ("A chuva {} na cidade.", "As ruas estão molhadas.", ("cai", "continua")),
    ("O trem {} muito tarde.", "Os passageiros esperam na estação.", ("chega", "parte")),
    ("O cozinheiro {} o peixe.", "O jantar fica pronto às oito.", ("prepara", "tempera")),
)


@cache
def pretrained() -> Model:
    """Train a BERT on documents of two sentences, to fill masks and to tell which sentence is next."""
    documents = [f"{first.format(word)} {second}" for first, second, words in TOPICS for word in words]
    return trained_model(
        task_with("fill"),
        [{"text": document} for document in documents],
        objective="next-sentence",
        training=TRAINING | {"steps": 500, "batch_tokens": 30},  # hidden tokens
    )


def masked_and_next_sentence() -> Finding:
    """L6: "O gato está [MASK] no tapete" and "Ele está muito confortável", by a model trained here."""
    model = pretrained()
    assert model.tokenizer is not None
    sentence, follows, words = TOPICS[0]
    candidates = model.fill(sentence.format(model.tokenizer.specials.roles["mask"]), top=3)
    return compare(
        {
            "best three have the words of training": set(words) <= {candidate.token for candidate in candidates},
            "probability of the best": candidates[0].probability,
            "the next sentence is next": is_next(model, sentence.format(words[0]), follows),
            "that of another document is": is_next(model, sentence.format(words[0]), TOPICS[1][1]),
        },
        {
            "best three have the words of training": True,
            "probability of the best": AtLeast(0.2),
            "the next sentence is next": AtLeast(0.5),
            "that of another document is": AtMost(0.5),
        },
    )


@torch.inference_mode()
def is_next(model: Model, first: str, second: str) -> float:
    """Return the probability that the second sentence follows the first one."""
    assert model.tokenizer is not None
    template = special_tokens_of(model.network.config, model.tokenizer, model.config.get("template"))
    ids, segments = template.apply(model.tokenizer.encode(first), model.tokenizer.encode(second))
    output = model.network(torch.tensor([ids]), segment_ids=torch.tensor([segments]), project=False)
    return float(model.network.read(FOLLOWS, output).softmax(dim=-1)[0, 0])


def filled_masks() -> Finding:
    """G2: words by their probability: the softmax at the mask over words alone."""
    model = pretrained()
    assert model.tokenizer is not None
    text = TOPICS[3][0].format(model.tokenizer.specials.roles["mask"])
    candidates = model.fill(text, top=model.tokenizer.vocab_size)
    template = special_tokens_of(model.network.config, model.tokenizer, model.config.get("template"))
    words = text.replace(".", " .").split()  # the third is the mask
    ids = [model.tokenizer.mask_id if word == words[2] else model.tokenizer.encode(word)[0] for word in words]
    with torch.inference_mode():
        logits = model.network.project(model.network(torch.tensor([template.apply(ids)[0]])).hidden)[0]
    position = template.apply(ids)[0].index(model.tokenizer.mask_id)
    shares = logits[position].softmax(dim=-1)
    best = candidates[0]
    return compare(
        {
            "the best two": sorted(candidate.token for candidate in candidates[:2]),
            "text of the best": best.text == text.replace(words[2], best.token),
            "in order": [one.probability for one in candidates] == sorted(one.probability for one in candidates)[::-1],
            "probability of the best": best.probability,
        },
        {
            "the best two": sorted(TOPICS[3][2]),
            "text of the best": True,
            "in order": True,
            "probability of the best": float(shares[model.tokenizer.encode(best.token)[0]]),
        },
        within=1e-5,
    )


def frozen_features() -> Finding:
    """F6: of any layer or a learned mix, pooled or per token, stored; the encoder gets no gradient."""
    base, records = pretrained(), reviews_of(TOPICS)
    texts = [record["text"] for record in records]
    with TemporaryDirectory() as name:
        saved = base.save(Path(name) / "base")
        init = {"model": str(saved), "train": "head", "layer_mix": True, "cache": str(Path(name) / "vectors")}
        model = trained_model(task_with("classify"), records, init=init, network={"dropout": 0.0})
        mixed = model.features(texts, layer="mix", pooling="first", cache=Path(name) / "vectors")
        files = len(list((Path(name) / "vectors").iterdir()))
    network = model.network
    before, after = base.network.state_dict(), network.state_dict()
    below = [key for key in after if not key.startswith(("heads.", "mix.", "pooler."))]
    layers = [_embedded(model, texts[0]), model.features(texts[0], layer=0)]
    mix = torch.softmax(after["mix.weights"], dim=0)
    normed = [torch.nn.functional.layer_norm(torch.as_tensor(layer), (layer.shape[-1],)) for layer in layers]
    by_hand = after["mix.gamma"] * sum(share * layer for share, layer in zip(mix, normed))
    means = np.stack([vectors.mean(axis=0) for vectors in model.features(texts, layer=0)])
    right = sum(label.name == record["label"] for label, record in zip(model.classify(texts), records))
    return compare(
        {
            "weights below the head that changed": sum(not torch.equal(before[key], after[key]) for key in below),
            "right on the frozen features": right / len(records),
            "mix, away": float((torch.as_tensor(mixed[0]) - by_hand[0]).abs().max()),
            "pooled, away": float(np.abs(model.features(texts, layer=0, pooling="mean") - means).max()),
            "files of vectors": files,
        },
        {
            "weights below the head that changed": 0,
            "right on the frozen features": AtLeast(0.9),
            "mix, away": AtMost(1e-5),
            "pooled, away": AtMost(1e-6),
            "files of vectors": 1,  # training and `features` share it
        },
        remark="a network whose norms stand before the layers: each layer is normalised before it is mixed",
    )


def reviews_of(topics: Any) -> list[dict[str, str]]:
    """Return the first sentences of some topics with a label for each topic."""
    return [{"text": first.format(word), "label": first.split()[1]} for first, _, words in topics for word in words]


@torch.inference_mode()
def _embedded(model: Model, text: str) -> Any:
    """Return what the first layer of an encoder reads, (L,D)."""
    assert model.tokenizer is not None
    template = special_tokens_of(model.network.config, model.tokenizer, model.config.get("template"))
    states: list[torch.Tensor] = []
    stack = model.network.get_submodule("stack")
    handle = stack.register_forward_pre_hook(lambda _, arguments: states.append(arguments[0]))
    model.network(torch.tensor([template.apply(model.tokenizer.encode(text))[0]]))
    handle.remove()
    return states[0][0].numpy()


def texts_classified() -> Finding:
    """G1: from a local file to predictions; precision, recall and F1 of each class."""
    model = classified()[0]
    texts = [("The plot was great.", "positive"), ("I loved the music a lot.", "positive"), ("I hated it.", "negative")]
    texts.append(("That actor was boring!", "negative"))
    labels = model.classifications([text for text, _ in texts])
    predicted = [row[0].name for row in labels]
    expected = [name for _, name in texts]
    parts = report(predicted, expected).parts
    by_hand = {}
    for name in ("negative", "positive"):
        right = sum(a == b == name for a, b in zip(predicted, expected))
        by_hand[name] = 2 * right / (predicted.count(name) + expected.count(name))  # 2 tp / (2 tp + fp + fn)
    return compare(
        {
            "predicted": predicted,
            "probabilities sum to": [sum(label.probability for label in row) for row in labels],
            "F1 of each class": {name: parts[f"f1[{name}]"] for name in by_hand},
        },
        {"predicted": expected, "probabilities sum to": [1.0] * len(texts), "F1 of each class": by_hand},
    )


def questions_answered() -> Finding:
    """G3: a span of the context, found in windows; exact match and F1."""
    people, places = ("Ana", "Rui", "Eva", "Caio"), ("Lisboa", "Porto", "Recife", "Natal")
    records = []
    for person in people:
        for place in places:
            context = f"O dia foi longo. Hoje {person} foi para {place} de trem. O dia foi longo."
            span = {"text": person, "answer_start": context.index(person)}
            records.append({"question": "Quem foi?", "context": context, "answers": [span]})
    model = trained_model(task_with("answer"), records[1:])
    context = "O dia foi longo. " * 60 + "Hoje Ana foi para Lisboa de trem." + " O dia foi longo." * 60
    near = model.answer("Quem foi?", str(records[0]["context"]))
    far = model.answer("Quem foi?", context)
    score = squad([near.text, "em Lisboa"], ["Ana", "Lisboa"])
    articles = squad(["the cat", "the cat", "The"], ["A cat", "a grey cat", "an"], language="en")
    return compare(
        {
            "answer": near.text,
            "in a long context": far.text,
            "its place": context[far.start : far.end],
            "exact match": score.parts["exact_match"],
            "F1": score.parts["f1"],
            "articles do not count": articles.parts,
        },
        {
            "answer": "Ana",
            "in a long context": "Ana",
            "its place": "Ana",
            "exact match": 50.0,
            "F1": 100 * (1 + 2 / 3) / 2,  # one of two words is right, and all of the one expected
            "articles do not count": {"exact_match": 200 / 3, "f1": 100 * (1 + 2 / 3 + 1) / 3},
        },
    )


def words_tagged() -> Finding:
    """G4: entities as spans of the text, and their F1."""
    people, places = ("Ana", "Rui Lima", "Eva", "Caio Reis"), ("Lisboa", "Porto", "São Paulo", "Natal")
    records = []
    for person in people:
        for place in places:
            words, tags = [], []
            for part, kind in (("Hoje", ""), (person, "PER"), ("foi para", ""), (place, "LOC")):
                for number, word in enumerate(part.split()):
                    words.append(word)
                    tags.append(f"{'I' if number else 'B'}-{kind}" if kind else "O")
            records.append({"tokens": words, "tags": tags})
    text = "Hoje Rui Lima foi para São Paulo"
    others = [record for record in records if record["tokens"] != text.split()]  # it is asked, and not trained on
    model = trained_model(task_with("tag"), others, training=TRAINING | {"batch_tokens": 60})
    entities = model.tag(text)
    gold, output = [["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "B-PER"]]
    return compare(
        {
            "entities": [[entity.label, entity.text, text[entity.start : entity.end]] for entity in entities],
            "tags of words": [word.label for word in model.tag_words(text)],
            "F1 of one right entity of two": entity_f1(output, gold).value,
        },
        {
            "entities": [["PER", "Rui Lima", "Rui Lima"], ["LOC", "São Paulo", "São Paulo"]],
            "tags of words": ["O", "B-PER", "I-PER", "O", "O", "B-LOC", "I-LOC"],
            "F1 of one right entity of two": 0.5,
        },
    )


def pairs_and_numbers() -> Finding:
    """G5: whether one follows from the other, and how similar they are."""
    animals, others = ("gato", "cão", "peixe", "pato", "urso", "lobo"), ("trem", "navio")
    inference, similar = [], []
    for first in animals:
        for pair, label in (("há um animal", "entailment"), ("não há animal", "contradiction")):
            inference.append({"text": f"vejo um {first}", "pair": pair, "label": label})
        for second in others:
            inference.append({"text": f"vejo um {first}", "pair": f"há um {second}", "label": "neutral"})
            similar.append({"text": f"um {first}", "pair": f"um {second}", "score": 1.0})
        similar += [{"text": f"um {first}", "pair": f"um {second}", "score": 4.0} for second in animals[:3]]
    # the first record of each is asked below, and not trained on
    classifier = trained_model(task_with("classify"), inference[1:], network=DEEPER, training=_SLOWER)
    regression = trained_model(task_with("similarity"), similar[1:], network=DEEPER, training=_SLOWER)
    pairs = [("vejo um gato", "há um animal"), ("vejo um gato", "não há animal"), ("vejo um gato", "há um trem")]
    return compare(
        {
            "relations": [label.name for label in classifier.classify(pairs)],
            "similar": regression.similarity("um gato", "um cão"),
            "different": regression.similarity("um gato", "um trem"),
        },
        {"relations": ["entailment", "contradiction", "neutral"], "similar": AtLeast(3.0), "different": AtMost(2.0)},
    )


def vectors_of_texts() -> Finding:
    """G8: a word's depends on its text; a text's is the mean over its tokens."""
    model = pretrained()
    texts = ["O gato está deitado no tapete.", "O cozinheiro prepara o gato."]
    tokens = model.features(texts)
    assert model.tokenizer is not None
    words = [model.tokenizer.encode(text) for text in texts]
    word = model.tokenizer.encode("gato")[0]
    rows = [vectors[1 + ids.index(word)] for vectors, ids in zip(tokens, words)]  # 1: the token before the text
    cosine = float(rows[0] @ rows[1] / np.linalg.norm(rows[0]) / np.linalg.norm(rows[1]))
    means = np.stack([vectors.mean(axis=0) for vectors in tokens])
    return compare(
        {
            "cosine of one word in two texts": cosine,
            "in one text twice": float(np.abs(model.features(texts[0]) - tokens[0]).max()),
            "pooled, away": float(np.abs(model.embed(texts) - means).max()),
        },
        {
            "cosine of one word in two texts": AtMost(0.99),
            "in one text twice": AtMost(1e-5),
            "pooled, away": AtMost(1e-5),
        },
    )
