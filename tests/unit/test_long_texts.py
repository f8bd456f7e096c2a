"""Texts longer than a model was trained on are counted, and how much may be written (W15, R5)."""

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from atento.base.errors import AtentoWarning, DataError, LongTextWarning, UsageError
from atento.base.precision import threads
from atento.config.presets import preset
from atento.config.recipe import TokenizerConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import TASKS
from atento.decoding import Beam, generate
from atento.decoding.trace import Trace
from atento.inference.plain import PlainStepFunction
from atento.model import Model
from atento.networks import build_network
from atento.tasks import text_generation
from atento.tasks.task_model import trained_length
from atento.tasks.text_generation import GeneratedText, TextGenerator, token_limit
from atento.tasks.verb_table import VERBS
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento.training.allocator import check_memory
from failing import fails

NETWORK = NetworkConfig(d_model=16, d_ff=24, n_heads=2, n_layers=1, dropout=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="character"), ["abcdefgh ij."])


def made(tokenizer: Tokenizer, task: str, trained: int | None = 12, **changes: Any) -> Model:
    torch.manual_seed(0)
    config = changed(NETWORK, vocab_size=tokenizer.vocab_size, **changes)
    about: dict[str, Any] = {"task": task, "decoding": {"beam": 2, "max_new_tokens": 3}}
    about |= {} if trained is None else {"max_len": trained}
    return Model(build_network(config).eval(), tokenizer, about, None)


def warned(work: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        work()
    assert all(issubclass(one.category, LongTextWarning) for one in caught), [str(one.message) for one in caught]
    return [str(one.message) for one in caught]


def test_w15_the_trained_length_and_what_learned_positions_cannot_hold(tokenizer: Tokenizer) -> None:
    assert trained_length({"max_len": 64}, NETWORK) == 64
    assert trained_length({}, NETWORK) is None  # sinusoids have no end, and 512 is nobody's choice
    assert trained_length({}, replace(NETWORK, max_len=40, positions=PositionConfig("learned"))) == 40
    assert trained_length({}, preset("llama3-8b")) == 8192 and trained_length({"max_len": True}, NETWORK) is None
    model = made(tokenizer, "translation", None, max_len=12, positions=PositionConfig("learned"))
    with warnings.catch_warnings(action="ignore"):
        fails(UsageError, "positions holds 12: got a text of 21 tokens", model.translate, "a" * 20)
    # A user who interrupts a line of forty thousand words has been told why it takes so long
    model = made(tokenizer, "translation")
    model.network.encode = lambda *_, **__: pytest.fail("the network was run first")  # type: ignore[union-attr, method-assign, assignment]
    with warnings.catch_warnings(action="error", category=LongTextWarning):
        fails(LongTextWarning, "the longest has 40,001", model.translate, "a" * 40_000)


def test_w15_r5_every_use_warns_once_with_counts(tokenizer: Tokenizer) -> None:
    translator, writer = made(tokenizer, "translation"), made(tokenizer, "language-modeling", architecture="decoder")
    reader = made(tokenizer, "masked-language-modeling", architecture="encoder")
    summarizer = Model(translator.network, translator.tokenizer, translator.config | {"task": "summarization"}, None)
    # of a source EOS is a token; 12 fit
    for use in (translator.translate, summarizer.summarize):
        assert warned(lambda use=use: use(["a" * 11, "", "bc"])) == []
        (said,) = warned(lambda use=use: use(["a" * 12, "bc", "", "a" * 20]))
        assert said.startswith("2 texts of 3 are longer than the 12 tokens that the model was trained on (the longest")
    told = "1 text of 1 is longer than the 12 tokens that the model was trained on (the longest has {}): such {} may be"
    for call, tokens, what in (
        (lambda: writer.generate("a" * 14), 14, "outputs"),
        (lambda: list(translator.stream("a" * 14)), 15, "outputs"),
        (lambda: list(writer.stream("a" * 14)), 14, "outputs"),
        (lambda: reader.embed(["a" * 14]), 14, "vectors"),
        (lambda: translator.score("a", "b" * 14), 15, "scores"),
        (lambda: writer.score("a" * 7, "b" * 7), 14, "scores"),
    ):
        (said,) = warned(call)
        assert said.startswith(told.format(tokens, what))
    assert warned(lambda: (translator.score("a", "b" * 11), writer.score("a" * 5, "b" * 6))) == []
    (said,) = warned(lambda: translator.translate("🏏蟡§¶" * 100, length_penalty=-3.0))  # a long odd line
    assert "1 text of 1 is longer than the 12 tokens" in said


def test_r5_a_length_penalty_ranks_outputs_and_lengthens_no_search() -> None:
    """What took long was the length of the line: its limit is 2 x source + 16 steps, at any penalty."""
    torch.manual_seed(0)
    network = build_network(changed(NETWORK, vocab_size=30)).eval()
    ids = torch.randint(4, 30, (1, 12))
    steps, found = {}, {}
    for penalty in (-50.0, -3.0, 0.0, 1.0, 50.0):
        trace = Trace(top=1)
        found[penalty] = generate(network, ids, Beam(4, penalty, n_best=4), max_new_tokens=40, trace=trace)
        steps[penalty] = len(trace.runs[0].steps)
    assert len(set(steps.values())) == 1
    assert len({frozenset(tuple(one.ids) for one in outputs[0]) for outputs in found.values()}) == 1
    for penalty, outputs in found.items():
        ranks = [one.log_prob / (len(one.ids) + 1) ** penalty for one in outputs[0] if one.finished]
        assert ranks == sorted(ranks, reverse=True)


WORDS = "ab cd " * 100  # 600 tokens
USES: dict[str, tuple[str, dict[str, Any], Callable[[Model], object]]] = {
    "translate": ("encoder-decoder", {}, lambda model: model.translate([WORDS])),
    "summarize": ("encoder-decoder", {}, lambda model: model.summarize([WORDS])),
    "stream": ("encoder-decoder", {}, lambda model: list(model.stream(WORDS, beam=1))),
    "score": ("encoder-decoder", {}, lambda model: model.score([WORDS], ["ab"])),
    "attend to a source": ("encoder-decoder", {}, lambda model: model.attend(WORDS, "ab")),
    "generate": ("decoder", {}, lambda model: model.generate([WORDS])),
    "perplexity": ("decoder", {}, lambda model: model.perplexity([WORDS], window=50)),
    "attend": ("encoder", {}, lambda model: model.attend(WORDS)),
    "fill": ("encoder", {"kind": "masked-language-model"}, lambda model: model.fill([WORDS + "<mask>"])),
    "embed": ("encoder", {}, lambda model: model.embed([WORDS])),
    "features": ("encoder", {}, lambda model: model.features([WORDS])),
    "similarity": ("encoder", {}, lambda model: model.similarity([WORDS], ["ab"])),
    "classify": ("encoder", {"kind": "classification", "labels": ("a", "b")}, lambda model: model.classify([WORDS])),
    "tag": ("encoder", {"kind": "tagging", "labels": ("O", "B-X")}, lambda model: model.tag([WORDS])),
    "answer": ("encoder", {"kind": "answer"}, lambda model: model.answer(["ab"], [WORDS])),
}
READ_WHOLE = {"translate", "summarize", "stream", "score", "attend to a source", "generate", "attend", "fill"}


@pytest.mark.parametrize("use", USES)
def test_no_use_compares_more_than_it_says(tokenizer: Tokenizer, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 200,000 words ran for hours: it is refused, cut with a warning, or read in windows (K12)."""
    monkeypatch.setattr("atento.tasks.task_model._LONGEST", 64)
    monkeypatch.setattr("atento.tasks.attention_records._MOST", 2 * 64**2)
    architecture, head, work = USES[use]
    heads = (HeadConfig(**head),) if head else ()
    task = next((name for name in TASKS if TASKS[name].verb == use), "translation")
    model = made(tokenizer, task, None, architecture=architecture, heads=heads)
    longest = [0]
    embedding = torch.nn.functional.embedding

    def noted(ids: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        longest.append(ids.numel())
        return embedding(ids, *others, **named)

    monkeypatch.setattr(torch.nn.functional, "embedding", noted)
    for windowed in ("tagging", "question_answering", "text_perplexity"):
        monkeypatch.setattr(f"atento.tasks.{windowed}._TOKENS", 64)  # one window at a time
    refused = pytest.raises((UsageError, DataError), match=r"59\d|60\d") if use in READ_WHOLE else nullcontext()
    with warnings.catch_warnings(action="ignore"), refused:
        work(model)
    assert max(longest) <= 64 + 4  # the other text of a pair
    assert (max(longest) > 40) == (use not in READ_WHOLE)  # the others read as much as they may


def test_every_verb_has_a_use_with_a_long_text() -> None:
    assert VERBS.keys() <= USES.keys()


SIZES: dict[str, Any] = {"vocab_size": 20, "d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1, "max_len": 12}
LEARNED = NetworkConfig("decoder", **SIZES, positions=PositionConfig("learned"))


def test_the_usual_limit_gives_way_to_the_least_that_is_asked_for_and_outputs_cut_short_are_counted() -> None:
    endless = NetworkConfig(vocab_size=20)
    assert token_limit(5, 1, DecodingConfig(), endless, is_prompt=False) == 2 * 4 + 16
    assert token_limit(5, 1, DecodingConfig(min_new_tokens=100), endless, is_prompt=False) == 100
    assert token_limit(5, 1, DecodingConfig(max_new_tokens=7, min_new_tokens=3), endless, is_prompt=False) == 7
    assert token_limit(5, 0, DecodingConfig(max_new_tokens=50), LEARNED, is_prompt=True) == 12 - 4
    with pytest.raises(UsageError, match="a prompt of 13 tokens fills all 12 positions of the network"):
        token_limit(13, 0, DecodingConfig(), LEARNED, is_prompt=True)
    check_memory(1000, 16 * 1000, "cpu")
    fails(UsageError, r"1,000,000,000,000 parameters need 14901 GiB", check_memory, 10**12, 16 * 10**12, "cpu")
    torch.manual_seed(0)
    network = build_network(LEARNED).eval()

    def written(**options: int) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AtentoWarning)
            decoding = DecodingConfig(beam=1, **options)  # type: ignore[arg-type]
            steps = PlainStepFunction(network)  # type: ignore[arg-type]
            TextGenerator(steps, LEARNED, decoding, str, torch.device("cpu"), is_prompt=True).write([[5], [5] * 6])
        return "\n".join(str(one.message) for one in caught)

    assert written(max_new_tokens=7) == ""
    said = "the network has positions for 12 tokens: 1 of 2 outputs end after 7 or more, not 9"
    assert said in written(max_new_tokens=9) and said in written(min_new_tokens=9)


def test_batches_side_by_side_hold_no_more_than_their_caches_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2 tokens and 10 new ones in batches of 4: 4 x 12 places of 1 layer, keys and values of 16 numbers."""
    torch.manual_seed(0)
    steps = PlainStepFunction(build_network(LEARNED).eval())  # type: ignore[arg-type]
    decoding = DecodingConfig(beam=1, max_new_tokens=10, batch_tokens=8)
    generator = TextGenerator(steps, LEARNED, decoding, str, torch.device("cpu"), is_prompt=True)
    under_way, most = 0, []

    def searched(*arguments: object) -> list[list[GeneratedText]]:
        nonlocal under_way
        under_way += 1
        time.sleep(0.02)
        most.append(under_way)
        under_way -= 1
        return [[] for _ in arguments[1]]  # type: ignore[attr-defined]

    monkeypatch.setattr(TextGenerator, "_searched", searched)
    for caches, expected in ((2 * 4 * 12 * 16 * 8, 2), (2 * 4 * 12 * 16 * 8 - 1, 1)):
        monkeypatch.setattr(text_generation, "_CACHES", caches)
        with threads(4):
            generator.write([[5, 6]] * 40)
        assert max(most) == expected
        most.clear()
