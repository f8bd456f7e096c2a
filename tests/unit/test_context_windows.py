"""Answers in contexts: windows, offsets of every kind of tokenizer, labels, loss, the best span beside every span."""

import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.errors import CapabilityError, DataError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import CharacterConfig, ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches import contexts as windows_module
from atento.data.batches.batch import Batch
from atento.data.batches.contexts import ContextWindows, context_windows
from atento.data.batches.whole_words import CHARACTERS
from atento.data.objectives.tags import NO_ANSWER, answer_head, answer_tokens, label_windows
from atento.data.records.values import Span
from atento.networks import Network, build_network
from atento.tasks.question_answering import Answer, answers, span_scores
from atento.tasks.task_model import TaskModel
from atento.text import Tokenizer, train_tokenizer
from atento.text.characters import word_characters
from atento.text.encoded import whole_characters
from atento.training.losses import Call, losses
from failing import fails

KINDS = ["unigram", "bpe", "wordpiece", "word", "character", "byte"]
ASTRONAUT, WAVE = "👩\u200d🚀", "👋🏽"
CONTEXT = (
    f"A avo\u0301 de Zoé viu\ta maçã\n no cafe\u0301 , e {ASTRONAUT} disse {WAVE} a  Iñigo ; ontem 12 gatos dormiam "
    "em Évora, perto de Ãlvaro e do co\u0327ro."
)
READER = NetworkConfig("encoder", vocab_size=330)  # of pieces
ELMO = NetworkConfig("elmo", vocab_size=330, d_model=8, elmo=ELMoConfig(characters=CharacterConfig(max_characters=9)))


@cache
def trained(kind: str) -> Tokenizer:
    text = [CONTEXT, "quem viu a maçã ?", "quem disse ?", "onde dormiam os gatos ?", "a casa de Ana"] * 3
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=330), text)  # type: ignore[arg-type]


@cache
def without_accents() -> Tokenizer:
    """A released tokenizer that drops accents and joiners: BERT's, uncased."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,;?12👩🚀👋🏽"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789🚀🏽"]
    folder = Path(tempfile.mkdtemp())
    transformers.BertTokenizerFast(vocab={piece: n for n, piece in enumerate(pieces)}).save_pretrained(folder)
    return Tokenizer.load(folder)


def cut(tokenizer, question, context, longest, stride, template="bos-eos") -> ContextWindows:
    slots, where = tokenizer.template(template), "file:{}".format
    return context_windows([question], [context], tokenizer, slots, READER, longest, stride, where)


@pytest.mark.parametrize(("room", "stride"), [(1, 0), (5, 0), (5, 2), (6, 3), (9, 100), (1000, 128)])
@pytest.mark.parametrize("kind", ["unigram", "word"])
def test_every_token_is_in_a_window_and_neighbours_share_the_stride(kind: str, room: int, stride: int) -> None:
    tokenizer, question = trained(kind), "quem viu a maçã ?"
    question_ids, encoded = tokenizer.encode(question), tokenizer.encode_with_offsets(CONTEXT)
    windows = cut(tokenizer, question, CONTEXT, len(question_ids) + 4 + room, stride)
    covered: set[int] = set()
    end = None
    for row in range(len(windows)):
        first, position, size = (int(column[row]) for column in (windows.first, windows.position, windows.size))
        ids = windows.store["ids"][row].tolist()
        assert len(ids) <= len(question_ids) + 4 + room and ids[1 : 1 + len(question_ids)] == question_ids
        assert ids[position : position + size] == encoded.ids[first : first + size]
        assert windows.store["segments"][row].tolist()[position : position + size] == [1] * size
        assert end is None or end - first == min(stride, room // 2)
        covered |= set(range(first, first + size))
        end = first + size
    assert covered == set(range(len(encoded.ids)))
    characters = {n for start, end in windows.offsets[0].tolist() for n in range(start, end)}
    assert all(n in characters for n, letter in enumerate(CONTEXT) if not letter.isspace())


@pytest.mark.parametrize("template", ["bert", "roberta", "t5", "bos", "eos", "none"])
def test_the_context_stands_where_the_template_puts_it(template: str) -> None:
    tokenizer = trained("word")
    windows = cut(tokenizer, "quem disse ?", CONTEXT, 20, 4, template)
    ids = tokenizer.encode(CONTEXT)
    for row in range(len(windows)):
        first, position, size = (int(column[row]) for column in (windows.first, windows.position, windows.size))
        assert windows.store["ids"][row].tolist()[position : position + size] == ids[first : first + size]


def test_a_network_that_reads_words_gets_their_characters_also_of_several_records() -> None:
    """Each word of each window, spelled, in its place; offsets are those of the given text (F9)."""
    tokenizer = trained("word")
    template = tokenizer.template("bos-eos")
    windows = context_windows(["quem disse ?"], [CONTEXT], tokenizer, template, ELMO, 20, 4, str)
    plain = context_windows(["quem disse ?"], [CONTEXT], tokenizer, template, READER, 20, 4, str)
    assert len(windows) > 2 and windows.offsets[0].tolist() == plain.offsets[0].tolist()
    words = [tokenizer.normalize(CONTEXT[start:end]) for start, end in windows.offsets[0].tolist()]
    assert "avó" in words and words[-1] == "."
    for row in range(len(windows)):
        assert windows.store["ids"][row].tolist() == plain.store["ids"][row].tolist()
        spelled = windows.store[CHARACTERS][row].reshape(-1, 9).tolist()
        first, position, size = (int(column[row]) for column in (windows.first, windows.position, windows.size))
        expected = [word_characters(word, 9) for word in words[first : first + size]]
        assert spelled[position : position + size] == [list(word) for word in expected]
        assert spelled[1:4] == [list(word_characters(word, 9)) for word in ("quem", "disse", "?")]
    windows = context_windows(["quem ?"] * 3, [CONTEXT, " ", CONTEXT], tokenizer, template, READER, 16, 4, str)
    first, empty, last = windows.of_records()
    assert len(first) == len(last) > 1 and len(empty) == 1 and windows.size[empty[0]] == 0
    assert windows.offsets[0] is windows.offsets[2]  # encoded once
    assert [len(numbers) for numbers in windows.of_records()] == np.bincount(windows.records).tolist()


@pytest.mark.parametrize("kind", [*KINDS, "bert"])
def test_the_tokens_of_an_answer_give_back_its_characters(kind: str) -> None:
    """Also where characters are composed, of several code points, or dropped by the tokenizer."""
    tokenizer = without_accents() if kind == "bert" else trained(kind)
    offsets = np.array(tokenizer.encode_with_offsets(CONTEXT).offsets)
    words = ["avo\u0301", "Zoé", "maçã", "cafe\u0301", "Iñigo", "12 gatos", "Évora", "co\u0327ro", "avo\u0301 de Zoé"]
    for text in [*words, ASTRONAUT, WAVE, f"{ASTRONAUT} disse {WAVE} a  Iñigo", "maçã\n no cafe\u0301", "a maçã"]:
        answer = Span(text, CONTEXT.index(text))
        tokens = answer_tokens(offsets, answer)
        assert tokens is not None, text
        start, end = whole_characters(CONTEXT, (int(offsets[tokens[0]][0]), int(offsets[tokens[1]][1])))
        assert (CONTEXT[start:end], start) == (text, answer.start)


def test_whole_characters() -> None:
    text = f"e\u0301a {ASTRONAUT}{WAVE}\u200d"
    assert whole_characters(text, (0, 1)) == (0, 2) and whole_characters(text, (1, 3)) == (0, 3)
    assert whole_characters(text, (4, 5)) == whole_characters(text, (6, 7)) == (4, 7)
    assert whole_characters(text, (7, 8)) == (7, 10) and whole_characters(text, (2, 3)) == (2, 3)
    assert whole_characters("\u0301a", (0, 1)) == (0, 1) and whole_characters(text, (3, 3)) == (3, 3)


def test_an_answer_is_labelled_where_it_is_whole_and_what_windows_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained("word")
    windows = cut(tokenizer, "quem ?", CONTEXT, 6 + 8, 4)  # windows of 8 tokens, of which 4 are shared
    for answer in ((3, 4), (5, 8), (0, 0)):
        labels = label_windows(windows, [answer])
        holds = [first <= answer[0] and answer[1] < first + 8 for first in windows.first.tolist()]
        assert [label != NO_ANSWER for label in labels] == holds and any(holds)
        for row, (first, last) in enumerate(labels):
            if holds[row]:
                ids = windows.store["ids"][row].tolist()[first : last + 1]
                assert ids == tokenizer.encode(CONTEXT)[answer[0] : answer[1] + 1]
    assert set(label_windows(windows, [None])) == {NO_ANSWER}
    assert set(label_windows(windows, [(1, 10)])) == {(-1, -1)}  # it is longer than a window
    fails(DataError, r"file:0: the question '(quem ){8}' has 8 tokens", cut, tokenizer, "quem " * 8, CONTEXT, 12, 4)
    assert len(cut(tokenizer, "quem " * 8, CONTEXT, 13, 4)) == len(tokenizer.encode(CONTEXT))
    monkeypatch.setattr(windows_module, "MAX_WINDOWS", 3)
    fails(DataError, r"file:0: the question .* \d+ windows .* at most 3", cut, tokenizer, "quem ?", CONTEXT, 12, 4)
    monkeypatch.setattr(windows_module, "MAX_CHARACTERS", 100)
    fails(DataError, f"file:0: .* at most 100 characters: got {len(CONTEXT)}", cut, tokenizer, "quem ?", CONTEXT, 12, 4)


@pytest.mark.parametrize("max_answer", [1, 4, 50])
def test_span_scores_are_those_of_every_span_in_every_window(max_answer: int) -> None:
    draw = np.random.default_rng(7)
    valid = draw.random(17) > 0.2
    windows = [(first, draw.normal(size=(min(8, 17 - first), 2))) for first in (0, 5, 10)]
    scores = span_scores(windows, valid, max_answer)
    assert scores.shape == (min(max_answer, 17), 17)
    for further in range(len(scores)):
        for first in range(17):
            held = [
                logits[first - start, 0] + logits[first + further - start, 1]
                for start, logits in windows
                if start <= first and first + further < start + len(logits)
            ]
            possible = held and valid[first] and valid[min(first + further, 16)]
            assert scores[further, first] == (max(held) if possible else -math.inf)


def network_for(tokenizer: Tokenizer, **changes: Any) -> Network:
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "max_len": 64}
    parts = {"embedding": InputConfig(segments=2), "positions": PositionConfig("learned"), "pooler": False}
    config: dict[str, Any] = sizes | parts | {"heads": (HeadConfig("answer", dropout=0.0),)} | changes
    network = build_network(NetworkConfig("encoder", vocab_size=tokenizer.vocab_size, **config))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)  # so that spans differ
    return network.eval()


def answers_of(network, tokenizer, questions, contexts, unanswerable, **options) -> list[list[Answer]]:
    """The answers of a model that was trained with windows of 32 tokens, of which neighbours share 4."""
    config = {"template": "bos-eos", "max_len": 32, "answering": {"stride": 4, "unanswerable": unanswerable}}
    return answers(TaskModel(network, tokenizer, config), questions, contexts, **options)


@torch.no_grad()
def every_span(network, tokenizer, question, context, longest, stride, max_answer):
    """The score of each span of tokens and of "no answer", window by window and pair by pair."""
    encoded, question_ids = tokenizer.encode_with_offsets(context), tokenizer.encode(question)
    windows = cut(tokenizer, question, context, longest, stride)
    scores: dict[tuple[int, int], float] = {}
    null = math.inf
    for row in range(len(windows)):
        ids = torch.from_numpy(windows.store["ids"][row].astype(np.int64))[None]
        segments = torch.from_numpy(windows.store["segments"][row].astype(np.int64))[None]
        logits = network.read("answer", network(ids=ids, segment_ids=segments, project=False))[0].double()
        null = min(null, float(logits[0].sum()))
        start = len(question_ids) + 3
        for first in range(start, ids.shape[1] - 1):
            for last in range(first, min(ids.shape[1] - 1, first + max_answer)):
                ends = [encoded.offsets[int(windows.first[row]) + position - start] for position in (first, last)]
                if all(left < right for left, right in ends):
                    tokens = int(windows.first[row]) + first - start, int(windows.first[row]) + last - start
                    score = float(logits[first, 0] + logits[last, 1])
                    scores[tokens] = max(score, scores.get(tokens, -math.inf))
    return scores, null


@pytest.mark.parametrize("kind", ["word", "unigram", "wordpiece", "byte"])
def test_answers_are_the_best_of_every_span(kind: str) -> None:
    """Texts, order and probabilities, of several questions at once."""
    tokenizer = trained(kind)
    network = network_for(tokenizer)
    questions, contexts = ["quem disse ?", "onde ?", "quem viu a maçã ?"], [CONTEXT, CONTEXT[30:90], CONTEXT[::-1]]
    for unanswerable in (True, False):
        found = answers_of(network, tokenizer, questions, contexts, unanswerable, n_best=4, max_answer=5)
        for question, context, best in zip(questions, contexts, found, strict=True):
            spans, null = every_span(network, tokenizer, question, context, 32, 4, 5)
            offsets = tokenizer.encode_with_offsets(context).offsets
            characters = {(0, 0): null} if unanswerable else {}
            for (first, last), score in spans.items():
                span = whole_characters(context, (offsets[first][0], offsets[last][1]))
                characters[span] = max(score, characters.get(span, -math.inf))
            total = sum(map(math.exp, spans.values())) + (math.exp(null) if unanswerable else 0)
            ranked = sorted(characters, key=lambda span: -characters[span])[:4]
            assert [(answer.start, answer.end) for answer in best] == ranked
            for answer in best:
                assert answer.text == context[answer.start : answer.end]
                share = math.exp(characters[answer.start, answer.end]) / total
                assert answer.probability == pytest.approx(share, rel=1e-4)


def test_the_threshold_decides_between_an_answer_and_none() -> None:
    tokenizer = trained("word")
    network = network_for(tokenizer)
    spans, null = every_span(network, tokenizer, "onde ?", CONTEXT, 32, 4, 30)
    difference = null - max(spans.values())

    def best(threshold: float, context: str = CONTEXT, unanswerable: bool = True, **changes: int) -> list[str]:
        options = {"n_best": 2, "max_answer": 30, "null_threshold": threshold} | changes
        return [one.text for one in answers_of(network, tokenizer, ["onde ?"], [context], unanswerable, **options)[0]]

    assert best(difference - 0.01)[0] == "" and best(difference + 0.01)[0] != ""
    assert best(difference - 0.01, unanswerable=False)[0] != ""
    for threshold in (0.0, math.inf):
        assert best(threshold, " ") == best(threshold, "\n", unanswerable=False) == [""]  # there is no span
    for name in ("n_best", "max_answer"):
        fails(UsageError, f"`{name}` must be at least 1: got 0", best, 0.0, **{name: 0})
    fails(UsageError, "`null_threshold` must be a number: got nan", best, math.nan)


def test_the_loss_is_the_mean_of_both_ends_and_a_head_on_the_decoder_reads_no_context() -> None:
    network = network_for(trained("word"))
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 9, 8, 0, 0]])
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    labels, ends = {"answer": torch.tensor([1, 0])}, {"end": torch.tensor([3, 0])}
    batch = Batch({"ids": ids, "token_mask": real}, labels, extras=ends)
    assert batch.counts() == {"answer": 2}
    loss, nll = losses(network, batch, Call())["answer"]
    by_hand = 0.0
    for row, (first, last, length) in enumerate(((1, 3, 5), (0, 0, 3))):
        logits = network.read("answer", network(ids=ids[row : row + 1, :length]))[0]
        log_probs = logits.log_softmax(dim=0)
        by_hand -= (log_probs[first, 0] + log_probs[last, 1]).item() / 2
    assert loss.item() == nll.item() == pytest.approx(by_hand, rel=1e-5)
    skipped = Batch(batch.inputs, {"answer": torch.tensor([-1, 0])}, extras={"end": torch.tensor([-1, 0])})
    assert skipped.counts() == {"answer": 1} and losses(network, skipped, Call())["answer"][0].item() < by_hand
    sizes: dict[str, Any] = {"vocab_size": 9, "d_model": 8, "d_ff": 8, "n_heads": 1}
    with pytest.raises(CapabilityError, match="must stand on the encoder"):
        answer_head(NetworkConfig("encoder-decoder", heads=(HeadConfig("answer", side="decoder"),), **sizes))
    fails(CapabilityError, "has no answer head", answer_head, NetworkConfig("encoder", **sizes))


def test_windows_that_would_share_more_than_half_are_said() -> None:
    train = {"train": {"file": "a.tsv", "text": 0, "label": 1}, "max_len": 64}
    contexts = {"train": "squad.json", "max_len": 64}
    half = "recipe: data.stride 33 is more than half of data.max_len: windows share at most 32 tokens"
    for task, data, said in (
        ("classification", train | {"windows": "mean", "stride": 33}, [half]),
        ("question-answering", contexts | {"stride": 33}, [half]),
        ("question-answering", contexts | {"stride": 32}, []),
        ("question-answering", contexts, []),  # the default is no wish
        ("classification", train | {"windows": "mean"}, []),
        ("classification", train | {"windows": "first-last", "stride": 9}, ["data.stride has no effect: nothing is"]),
    ):
        warnings = load_recipe({"task": task, "data": data}, environment={}).warnings
        found = [warning for warning in warnings if "stride" in warning]
        assert len(found) == len(said) and all(one in warning for one, warning in zip(said, found))
    recipe = {"task": "translation", "data": {"train": {"world": "train"}, "stride": 5, "max_answer": 3}}  # of others
    for key in ("data.stride", "data.max_answer"):
        (text,) = (text for text in load_recipe(recipe).warnings if f"{key} has no effect" in text)
        assert "this task has no contexts of questions" in text or "nothing is read in windows" in text
