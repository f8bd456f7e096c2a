"""Explanations: sums that hold, cases by hand, rows that are left out, rollout as a product, and bad input."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from atento.base.errors import CapabilityError, UsageError
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import CharacterConfig, ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.verbs import EXPLANATIONS
from atento.inspection.attributions import (
    AttributedInput,
    Inputs,
    gradient_input,
    integrated_gradients,
    leave_out,
    rolled_out,
)
from atento.model import Model, load
from atento.networks import Network
from atento.tasks.mask_filling import fill_each
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_world import write
from failing import fails
from tiny_families import tiny_config, tiny_model

PAIRS = write("train", 60)
TEXT, OTHER = PAIRS[0].source, PAIRS[1].source
MASKED = " ".join(["<mask>" if n in (1, 3) else word for n, word in enumerate(TEXT.split())])
HEADS = {
    "classification": HeadConfig(kind="classification", labels=("good", "bad", "fair"), name="classification"),
    "multi-label": HeadConfig(kind="multi-label", labels=("x", "y", "z"), name="multi-label"),
    "regression": HeadConfig(kind="regression", name="regression"),
    "tagging": HeadConfig(kind="tagging", labels=("B-PER", "I-PER", "O"), name="tagging"),
    "question-answering": HeadConfig(kind="answer", name="answer"),
    "masked-language-modeling": HeadConfig("masked-language-model"),
}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = (text for pair in PAIRS for text in (pair.source, pair.target))
    return train_tokenizer(TokenizerConfig(kind="wordpiece", vocab_size=300), texts)


def make(tokenizer: Tokenizer, preset: str, task: str, **changes: Any) -> Model:
    """A tiny model of a family with random weights and the head of a task."""
    roles = {"pad": "pad", "unk": "unk", "bos": "bos", "eos": "eos", "start": "bos", "mask": "mask"}
    ids = {name: tokenizer.specials.id(role) for name, role in roles.items()}
    heads = {"heads": (HEADS[task],)} if task in HEADS else {}
    config = tiny_config(preset, vocab_size=tokenizer.vocab_size, ids=ids, **heads, **changes)
    return tiny_model(config, tokenizer, task="classification" if task == "multi-label" else task)


def recurrent(tokenizer: Tokenizer, architecture: str, task: str) -> Model:
    heads = (HEADS[task],) if task in HEADS else ()
    config = NetworkConfig(d_model=16, d_ff=24, n_heads=1, n_layers=2, architecture=architecture, heads=heads)  # type: ignore[arg-type]
    return tiny_model(changed(config, vocab_size=tokenizer.vocab_size), tokenizer, task=task)


def log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def predicted(model: Model, given: Any, target: str | None = None) -> float:
    """The number that is explained, as the other methods of the model give it."""
    task = model.config["task"]
    if task == "classification":
        return log_odds(model.classifications([given])[0][0].probability)
    if task in ("regression", "embedding"):
        return float(model.similarity(*given) if isinstance(given, tuple) else model.similarity(given))
    if task == "masked-language-modeling":
        return math.log(math.prod(best[0].probability for best in fill_each(model, [given])[0]))
    if task == "tagging":
        return sum(log_odds(word.probability) for word in model.tag_words(given))
    return model.score(given, target).total


BEGUN = " ".join(PAIRS[0].target.split()[:2])  # each token of a target is explained by itself
CASES: list[tuple[str, str, Any, str | None]] = [
    ("bert-base", "classification", TEXT, None),
    ("bert-base", "multi-label", TEXT, None),
    ("bert-base", "classification", (TEXT, OTHER), None),
    ("modernbert-base", "classification", TEXT, None),
    ("bert-base", "masked-language-modeling", MASKED, None),
    ("roberta-base", "masked-language-modeling", MASKED, None),
    ("bart-base", "classification", TEXT, None),
    ("t5-small", "classification", TEXT, None),
    ("gpt2", "classification", TEXT, None),
    ("llama3-8b", "regression", (TEXT, OTHER), None),
    ("roberta-base", "embedding", (TEXT, OTHER), None),
    ("transformer-base", "translation", TEXT, BEGUN),
    ("t5-small", "translation", TEXT, PAIRS[0].target),
    ("gpt2", "language-modeling", TEXT, OTHER),
    ("llama3-8b", "language-modeling", TEXT, OTHER),
    ("recurrent-seq2seq", "translation", TEXT, BEGUN),
    ("recurrent-lm", "language-modeling", TEXT, OTHER),
    ("recurrent-lm", "classification", TEXT, None),
]


# Slow: T5's translator, whose parts its classifier has and whose task the translators above and below have.
@pytest.mark.parametrize(
    "family, task, given, target",
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[:2] == ("t5-small", "translation"))) for case in CASES],
)
def test_scores_add_up_completely(tokenizer: Tokenizer, family: str, task: str, given: Any, target: str | None) -> None:
    """`value` is the model's own number, `total` its difference from the baseline, and the scores add up to it."""
    model = (recurrent if family.startswith("recurrent") else make)(tokenizer, family, task)
    explanation = model.explain(given, target=target)
    assert explanation.value == pytest.approx(predicted(model, given, target), abs=2e-4)
    assert abs(sum(explanation.scores) - explanation.total) == pytest.approx(explanation.error, abs=1e-9)
    assert explanation.error <= 0.02 * max(0.5, abs(explanation.total)), (explanation.error, explanation.steps)
    assert len(explanation.words) == len(explanation.scores) == len(explanation.special) == len(explanation.sides)
    assert all(score == 0 for score, special in zip(explanation.scores, explanation.special) if special)
    if explanation.parts:
        assert np.sum([part.scores for part in explanation.parts], axis=0) == pytest.approx(explanation.scores)
        assert sum(part.value for part in explanation.parts) == pytest.approx(explanation.value)


def test_words_of_the_text_are_the_words(tokenizer: Tokenizer) -> None:
    explanation = make(tokenizer, "transformer-base", "translation").explain("The Zyzzyva is big.", target="o gato")
    sources = [word for word, side in zip(explanation.words, explanation.sides) if side == "source"]
    assert sources[:5] == ["The", "Zyzzyva", "is", "big", "."] and len(sources) == 6  # and the end
    assert [word for word, side in zip(explanation.words, explanation.sides) if side == "output"][1:] == ["o", "gato"]
    assert [part.target for part in explanation.parts][:2] == ["o", "gato"] and len(explanation.parts) == 3
    first, second, end = explanation.parts
    after = len(explanation.words) - 2  # the first word has read none of the output, the second has read the first
    assert not any(first.scores[after:]) and second.scores[after] and all(end.scores[after:])


def test_a_linear_number_is_divided_as_by_hand(tokenizer: Tokenizer) -> None:
    """Σ over columns of w · vector · column."""
    network = make(tokenizer, "bert-base", "classification").network
    ids, direction = [5, 9, 9, 7], torch.linspace(-1, 1, 16)

    def values(network: Network, inputs: Inputs) -> Tensor:
        vectors = network.embedding(inputs["ids"])  # type: ignore[operator]
        return ((vectors @ direction) * torch.arange(1.0, vectors.shape[1] + 1)).sum(dim=1, keepdim=True)

    reading = AttributedInput({"ids": torch.tensor([ids])}, {"ids": [0, 1, 1, 2]}, [True, False, False], values, {})
    table = network.embedding.weight @ direction  # type: ignore[union-attr, operator]
    products = (table[ids] * torch.arange(1.0, 5)).tolist()
    baseline = float(table[4])
    exact = integrated_gradients(network, reading, baseline_id=4, steps=1)
    expected = [0.0, products[1] + products[2] - 5 * baseline, products[3] - 4 * baseline]
    np.testing.assert_allclose(exact.scores[0], expected, atol=1e-5)
    assert exact.error < 1e-5 and exact.totals[0] == pytest.approx(sum(expected), abs=1e-5)
    slope = gradient_input(network, reading)
    np.testing.assert_allclose(slope.scores[0], [products[0], products[1] + products[2], products[3]], atol=1e-5)
    np.testing.assert_allclose(leave_out(network, reading, 4).scores[0], expected, atol=1e-5)
    without = leave_out(network, reading).scores[0]  # those behind move to the front
    moved = [products[1] + products[2] + products[3] * 2 / 4, products[3]]
    np.testing.assert_allclose(without, [0.0, *moved], atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama3-8b", "t5-small", "recurrent-lm"])
def test_leaving_a_word_out_is_two_calls_of_classify(tokenizer: Tokenizer, family: str) -> None:
    model = (recurrent if family.startswith("recurrent") else make)(tokenizer, family, "classification")
    explanation = model.explain(TEXT, "leave-out", "bad")

    def odds(text: str) -> float:
        (labels,) = model.classifications([text])
        return log_odds(next(label.probability for label in labels if label.name == "bad"))

    words = [number for number, special in enumerate(explanation.special) if not special]
    assert [explanation.words[number] for number in words] == [*TEXT.rstrip(".").split(), "."]
    for place, number in enumerate(words):
        left = " ".join(explanation.words[n] for n in words if n != words[place])
        assert explanation.scores[number] == pytest.approx(odds(TEXT) - odds(left), abs=1e-5)
    assert explanation.total == pytest.approx(sum(explanation.scores)) and "without" in explanation.baseline


def test_a_masked_word_is_the_mask_token_or_left_out_as_zero(tokenizer: Tokenizer) -> None:
    model = make(tokenizer, "bert-base", "classification")
    explanation = model.explain("red red", "leave-out", "good")
    ids = tokenizer.with_specials(tokenizer.encode("red red"))[0]

    def odds(row: list[int]) -> float:
        output = model.network(torch.tensor([row]), project=False)
        return log_odds(float(torch.softmax(model.network.read("classification", output), dim=-1)[0, 0]))

    half = len(tokenizer.encode("red"))
    masked = [tokenizer.mask_id] * half + ids[half:]
    assert explanation.words == ["red", "red"] and "mask" in explanation.baseline
    assert explanation.scores[0] == pytest.approx(odds(ids) - odds(masked), abs=1e-5)
    model = make(tokenizer, "gpt2", "tagging")  # without a mask
    explanation = model.explain(TEXT, "leave-out", 1)
    assert explanation.target.startswith(TEXT.split()[1] + "/") and abs(explanation.scores[1]) > 1e-3
    assert all(abs(score) < 1e-6 for score in explanation.scores[2:])  # a causal network has not read them
    left = model.explain(TEXT.split(maxsplit=1)[1], "leave-out", (0, explanation.target.split("/")[1]))
    assert explanation.scores[0] == pytest.approx(explanation.value - left.value, abs=1e-5)


def test_rollout_is_the_product_of_the_layers_also_of_a_decoder(tokenizer: Tokenizer) -> None:
    model = make(tokenizer, "bert-base", "classification")
    record = model.attend(TEXT)
    joint = np.eye(len(record.tokens))
    for layer in range(2):
        joint = (0.5 * record.weights(layer, "mean").astype(np.float64) + 0.5 * np.eye(len(joint))) @ joint
    columns = joint[0]  # the pooler reads the first token
    explanation = model.explain(TEXT, "rollout")
    expected = [columns[group.start : group.end].sum() for group in record.word_weights(0, 0).columns]
    np.testing.assert_allclose(explanation.scores, expected, atol=1e-6)
    assert explanation.total == pytest.approx(1)
    np.testing.assert_allclose(rolled_out([np.full((2, 2), 0.5)]), [[0.75, 0.25], [0.25, 0.75]])
    model = make(tokenizer, "transformer-base", "translation")
    record, target = model.attend(TEXT, PAIRS[0].target), PAIRS[0].target
    encoded = np.eye(len(record.source_tokens))
    for layer in range(2):
        encoded = (0.5 * record.weights(layer, "mean", "encoder") + 0.5 * np.eye(len(encoded))) @ encoded
    source = np.zeros((len(record.tokens), len(encoded)))
    for layer in range(2):
        mixed = 0.5 * record.weights(layer, "mean", "decoder") + 0.5 * np.eye(len(source))
        source = 0.5 * record.weights(layer, "mean", "cross") @ encoded + 0.5 * mixed @ source
    end = model.explain(TEXT, "rollout", target).parts[-1]
    sides = [side == "source" for side, special in zip(end.sides, end.special) if side == "source" or special]
    assert sum(s for s, of in zip(end.scores, end.sides) if of == "source") == pytest.approx(source[-1].sum(), abs=1e-6)
    assert end.total == pytest.approx(1) and any(sides)


@pytest.mark.parametrize("method", EXPLANATIONS)
def test_nothing_of_the_model_is_changed(tokenizer: Tokenizer, method: str) -> None:
    model = make(tokenizer, "transformer-base", "translation")
    model.network.requires_grad_(True)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    model.explain(TEXT, method, BEGUN)
    after = model.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    modules = list(model.network.modules())
    assert not any(module.training or module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert all(weight.requires_grad and weight.grad is None for weight in model.network.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_callers_mode_without_gradients_changes_nothing(tokenizer: Tokenizer, mode: Callable[[], Any]) -> None:
    model = make(tokenizer, "bert-base", "classification")
    tagger, expected = make(tokenizer, "bert-base", "tagging"), model.explain(TEXT, "gradient-input")
    with mode():
        assert model.explain(TEXT, "gradient-input").scores == expected.scores
        assert tagger.explain(TEXT, target=0).error < 1e-3


def test_answers_and_tags_of_long_texts_are_explained_in_their_windows(tokenizer: Tokenizer) -> None:
    """A context longer than the network reads: the number is the best score of the windows that hold the answer."""
    model = make(tokenizer, "bert-base", "question-answering", max_len=32)
    context = " ".join(pair.source for pair in PAIRS[:8])
    explanation = model.explain((OTHER, context), target="bicycle")
    assert explanation.target == "bicycle" and explanation.error < 1e-3
    assert {"question", "context"} == set(explanation.sides) and "bicycle" in explanation.words
    own = model.explain((OTHER, context), "leave-out")
    assert own.target in context and len(own.words) < 32
    fails(UsageError, "must be a part of the context", model.explain, (OTHER, context), target="submarine")
    model = make(tokenizer, "bert-base", "tagging", max_len=16)
    text = " ".join(pair.source for pair in PAIRS[:3])
    words = model.tag_words(text)
    assert model.explain(text, target=len(words) - 1).value == pytest.approx(log_odds(words[-1].probability), abs=1e-5)
    entities = model.tag(text)
    whole = model.explain(text, "leave-out")
    assert [part.target for part in whole.parts] == [f"{one.text}/{one.label}" for one in entities or words]
    explained = [word for word in words if word.label != "O" or not entities]
    assert whole.value == pytest.approx(sum(log_odds(word.probability) for word in explained), abs=1e-4)


def test_a_target_is_another_prediction_or_the_models_own_output(tokenizer: Tokenizer) -> None:
    model = make(tokenizer, "bert-base", "classification")
    ranked = model.classifications([TEXT])[0]
    worst = model.explain(TEXT, "leave-out", ranked[-1].name)
    assert worst.target == ranked[-1].name and worst.value == pytest.approx(log_odds(ranked[-1].probability), abs=1e-5)
    model = make(tokenizer, "transformer-base", "translation")
    (output,) = model.translations([TEXT], max_new_tokens=5)[0]
    explanation = model.explain(TEXT, "gradient-input", max_new_tokens=5)
    assert explanation.target == output.text
    assert explanation.value == pytest.approx(output.hypothesis.log_prob, abs=1e-4)


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_characters_have_the_zero_vector_as_baseline(tokenizer: Tokenizer, task: str) -> None:
    """An ELMo reads whole words, each from its characters."""
    characters = CharacterConfig(d_char=4, filters=((1, 4), (2, 6)), n_highway=1, max_characters=20)
    elmo = ELMoConfig(characters=characters, d_cell=12)
    config = NetworkConfig(architecture="elmo", d_model=8, n_heads=1, n_layers=2, elmo=elmo, heads=(HEADS[task],))
    model = tiny_model(changed(config, vocab_size=tokenizer.vocab_size), tokenizer, task=task, template="bos-eos")
    explanation = model.explain("The Zyzzyva is big.")
    assert explanation.words == ["<s>", "The", "Zyzzyva", "is", "big", ".", "</s>"]
    assert "zero vector" in explanation.baseline and explanation.error < 0.02
    if task == "classification":
        assert explanation.value == pytest.approx(predicted(model, "The Zyzzyva is big."), abs=1e-4)


def test_an_encoder_that_continues_a_prompt_is_explained_under_its_mask(tokenizer: Tokenizer) -> None:
    head = HeadConfig(kind="masked-language-model", name="vocabulary")
    config = tiny_config("bert-base", vocab_size=tokenizer.vocab_size, heads=(head,))
    model = tiny_model(config, tokenizer, task="prefix-language-modeling", objectives=["prefix"])
    explanation = model.explain(TEXT, target="o gato")
    assert explanation.value == pytest.approx(model.score(TEXT, "o gato").total, abs=1e-4)
    assert explanation.parts[0].scores[-1] == 0  # a word of the output does not read those behind it


def test_threads_share_a_model_and_one_that_writes_nothing_is_explained_by_its_end(tokenizer: Tokenizer) -> None:
    model = make(tokenizer, "transformer-base", "translation")
    texts = [(pair.source, pair.target) for pair in PAIRS[:4]]
    alone = [model.explain(text, "gradient-input", target).scores for text, target in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: model.explain(pair[0], "gradient-input", pair[1]).scores, texts))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    explanation = load("micro-world-lm").explain("The cat sees the old house.", "gradient-input")
    assert explanation.target == "" and [part.target for part in explanation.parts] == ["</s>"]
    assert len(explanation.words) == 8


REFUSED: list[tuple[str, str, Callable[[Model], object], str]] = [
    ("bert-base", "classification", lambda m: m.explain(TEXT, "saliency"), "unknown method 'saliency'"),
    ("bert-base", "classification", lambda m: m.explain(" "), "give a text to explain"),
    ("bert-base", "classification", lambda m: m.explain(3), "must be a str"),  # type: ignore[arg-type]
    ("bert-base", "classification", lambda m: m.explain(TEXT, target="ugly"), "no label 'ugly'"),
    ("bert-base", "classification", lambda m: m.explain(TEXT, "rollout", steps=9), "`steps`"),
    ("bert-base", "classification", lambda m: m.explain(TEXT, steps=0), "`steps`"),
    ("bert-base", "classification", lambda m: m.explain(TEXT, verb="sing"), "'sing' cannot be explained"),
    ("bert-base", "classification", lambda m: m.explain(TEXT, beam=3), "`beam` has no effect"),
    ("bert-base", "classification", lambda m: m.explain(TEXT, verb="tag"), "no tagging head"),
    ("bert-base", "tagging", lambda m: m.explain(TEXT, target=99), "`target` names a word"),
    ("bert-base", "tagging", lambda m: m.explain(TEXT, target=(0, "B-LOC")), "no tag 'B-LOC'"),
    ("bert-base", "tagging", lambda m: m.explain((TEXT, OTHER)), "reads one text"),
    ("bert-base", "question-answering", lambda m: m.explain(TEXT), "a question and its context"),
    ("bert-base", "embedding", lambda m: m.explain(TEXT), "give a tuple of two texts"),
    ("bert-base", "embedding", lambda m: m.explain((TEXT, OTHER), target="x"), "has no `target`"),
    ("transformer-base", "translation", lambda m: m.explain(TEXT, target=3), "`target` must be an output"),
    ("transformer-base", "translation", lambda m: m.explain(TEXT, target=""), "the output is empty"),
    ("bert-base", "masked-language-modeling", lambda m: m.explain(TEXT), "the text has no .* to fill"),
    ("bert-base", "masked-language-modeling", lambda m: m.explain(MASKED, target="a"), "a word for each mask, 2 here"),
    ("bert-base", "masked-language-modeling", lambda m: m.explain(MASKED, target="a zzzzzzzz"), "of one token each"),
    ("transformer-base", "translation", lambda m: m.explain(MASKED, verb="fill"), "filling masks takes a masked model"),
    ("recurrent-seq2seq", "translation", lambda m: m.explain(TEXT, "rollout", "o"), "attention rollout"),
    ("recurrent-lm", "language-modeling", lambda m: m.explain(TEXT, "rollout", "o"), "attention rollout"),
]


@pytest.mark.parametrize("family, task, call, message", REFUSED)
def test_what_cannot_be_explained_is_one_sentence(
    tokenizer: Tokenizer, family: str, task: str, call: Callable[[Model], object], message: str
) -> None:
    made = recurrent if family.startswith("recurrent") else make
    with pytest.raises((UsageError, CapabilityError), match=message) as raised:
        call(made(tokenizer, family, task))
    assert "\n" not in str(raised.value)
