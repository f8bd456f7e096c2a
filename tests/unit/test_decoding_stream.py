"""Streams: the tokens that `generate` writes, one by one; and ids as text that never breaks a character."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

import test_decoding_sampling
from atento.config.recipe import TokenizerConfig
from atento.decoding import MBR, Beam, Greedy, Sample, generate
from atento.decoding.rules import Banned, StopStrings
from atento.decoding.stream import Token, stream
from atento.text import Tokenizer, train_tokenizer
from atento.text.streaming import TextStream, stream_text
from atento_lab.notes.checks.toys import EOS, Chain
from failing import fails
from test_decoding_sampling import tiny

KINDS = ["unigram", "bpe", "wordpiece", "word", "character", "byte"]


class Counted(Chain):
    """A chain that counts its steps."""

    steps_taken = 0

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.steps_taken += 1
        return super().step(tokens, state)


def chain(seed: int) -> Counted:
    plain = test_decoding_sampling.chain(seed)
    return Counted(plain.log_probs, plain.vocab_size)


SOURCE = torch.tensor([[3]])


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1000),
    strategy=st.sampled_from(
        [
            *(Greedy(), Sample(), Sample(temperature=1.7, top_p=0.9), Sample(temperature=0.0)),
            *(Beam(2), Beam(3, length_penalty=0.0), Beam(3, stopping="shrinking"), Beam(3, until="sure")),
            Beam(4, groups=2, diversity=0.5),
        ]
    ),
    most=st.integers(0, 9),
    least=st.integers(0, 3),
    eos=st.sampled_from([None, (), (EOS, 2)]),
    draw=st.sampled_from([5, [9]]),
    stop=st.sampled_from([None, StopStrings(lambda ids: "".join("abcdef"[i] for i in ids), ["bc", "d"])]),
)
def test_a_stream_is_what_generate_writes(
    seed: int, strategy: Greedy | Sample | Beam, most: int, least: int, eos: Any, draw: Any, stop: StopStrings | None
) -> None:
    """Ids, scores and how it ended; with the same seed, whatever else is asked for."""
    options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": least, "eos_id": eos, "stop": stop}
    options |= {"rules": [Banned([[1]])], "seed": draw}
    ((whole,),) = generate(chain(seed), SOURCE, strategy, **options)
    tokens = list(stream(chain(seed), SOURCE, strategy, **options))
    assert [one.id for one in tokens if one.end != "eos"] == whole.ids
    assert [one.log_prob for one in tokens] == whole.token_scores
    assert all(one.end is None for one in tokens[:-1])
    if tokens:
        ended = tokens[-1].end
        assert whole.finished == (ended in ("eos", "stop")) and ended is not None
        assert (ended == "eos") == (tokens[-1].id in ((EOS,) if eos is None else eos))
        assert (ended == "stop") == (stop is not None and ended != "eos" and stop(whole.ids))


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_h12_a_network_streams_what_it_generates(kind: str) -> None:
    network, ids = tiny(kind), torch.tensor([[5, 6, 7, 8]])
    options: dict[str, Any] = {"max_new_tokens": 9, "prefix_ids": torch.tensor([[9, 10]]), "eos_id": (), "seed": 4}
    for strategy in (Greedy(), Sample(temperature=1.3)):
        ((whole,),) = generate(network, ids, strategy, **options)
        found = stream(network, ids, strategy, **options)
        assert [one.id for one in found] == whole.ids and len(whole.ids) == 9


def test_tokens_come_as_they_are_written_and_before_a_beam_ends() -> None:
    """As soon as all hypotheses have them: here all agree on two tokens and then part."""
    steps = {(): {2: 1.0}, (2,): {3: 1.0}, (2, 3): {4: 0.6, 5: 0.4}, (2, 3, 4): {4: 0.5, 5: 0.5}}

    def log_probs(source: object, written: tuple[int, ...]) -> Tensor:
        chances = steps.get(written, {4: 0.7, 5: 0.3})
        return torch.tensor([chances.get(token, 1e-9) for token in range(6)], dtype=torch.float64).log()

    toy = Counted(log_probs, 6)
    tokens = stream(toy, SOURCE, Beam(2), max_new_tokens=8, eos_id=())
    taken, ids = zip(*((toy.steps_taken, token.id) for token in tokens))
    assert ids[:3] == (2, 3, 4) and len(ids) == toy.steps_taken == 8
    assert taken[:2] == (2, 3)
    # the network runs once a token, not before one is asked for, and no more when no more is
    toy = chain(2)
    tokens = stream(toy, SOURCE, Sample(), max_new_tokens=50, eos_id=(), seed=1)
    assert isinstance(tokens, Iterator) and toy.steps_taken == 0
    for count in range(1, 5):
        assert isinstance(next(tokens), Token) and toy.steps_taken == count
    tokens.close()  # type: ignore[attr-defined]
    assert toy.steps_taken == 4
    assert torch.is_inference_mode_enabled() is False


def test_streams_that_cannot_be_are_refused_at_once() -> None:
    for ids, strategy, message in (
        (torch.tensor([[1], [2]]), Greedy(), r"`ids` must be one row, of shape \(1,S\): got \(2, 1\)"),
        (torch.tensor([1]), Greedy(), r"`ids` must be one row, of shape \(1,S\): got \(1,\)"),
        (SOURCE, MBR("chrf", Sample(n=2)), "only greedy search, sampling and a beam write token by token: got MBR"),
        (SOURCE, Sample(n=2), "a stream is one output, `n` must be 1: got 2"),
    ):
        fails(ValueError, message, stream, chain(0), ids, strategy, max_new_tokens=3)


@cache
def trained(kind: str) -> Tokenizer:
    subjects = ["o gato", "a gata", "o menino", "uma mulher", "o pássaro", "minha avó", "the guarda-chuva"]
    verbs = ["pulou", "comeu", "vê rapidamente", "não quer", "d'água", "ate"]
    objects = ["o peixe.", "a maçã!", "(o pão)", 'um "coração", sim', "1.234,56 ovos", "the fish?"]
    lines = [f"{s} {v} {o}" for s in subjects for v in verbs for o in objects]
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=420), lines)  # type: ignore[arg-type]


TROUBLE = ["gato", "avó", "a\u0301", "\u0301", "e\u0301\u0327", "\u1100\u1161", "日本", "\ufffd", "</s>", "1.5"]
TROUBLE += ["d'água", "😀", "👩\u200d👩\u200d👧", "🇵🇹", "👍🏽", "guarda-chuva", "pul", "ou", *"().,-!\"'"]
TEXTS = st.lists(st.one_of(st.text(max_size=4), st.sampled_from(TROUBLE), st.just(" ")), max_size=10).map("".join)


def whole_characters(pieces: list[str], text: str) -> None:
    assert "".join(pieces) == text and all(pieces)
    at = 0
    for piece in pieces:  # a piece is a part of the text by characters: so it holds no broken one that the text has not
        assert text[at : at + len(piece)] == piece
        at += len(piece)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "byte"])
@settings(max_examples=30)
@given(data=st.data())
def test_pieces_joined_are_the_text_of_any_ids(kind: str, data: st.DataObject) -> None:
    """Ids that no text has: broken characters, special tokens, pieces that continue nothing."""
    tokenizer = trained(kind)
    near = st.integers(0, min(tokenizer.vocab_size, 140) - 1)  # special tokens and bytes come first
    ids = data.draw(st.lists(st.one_of(near, st.integers(0, tokenizer.vocab_size - 1)), max_size=14))
    whole_characters(list(stream_text(tokenizer, ids)), tokenizer.decode(ids))


@settings(max_examples=50)
@given(text=TEXTS.filter(bool), cut=st.integers(1, 3))
def test_a_byte_model_cut_short_loses_no_whole_character(text: str, cut: int) -> None:
    """What was complete went out as it is; what was not is shown as unreadable."""
    tokenizer = trained("byte")
    ids = tokenizer.encode(text)[:-cut]
    whole = bytes(i - 5 for i in ids)
    pieces = list(stream_text(tokenizer, ids))
    readable = whole.decode("utf-8", "ignore")
    assert "".join(pieces).rstrip("\ufffd") == readable.rstrip("\ufffd")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(text=TEXTS, cut=st.integers(0, 12))
@example(text='um guarda-chuva, d\'água (não) "sim"', cut=2)
@example(text="👩\u200d👩\u200d👧", cut=2)
def test_pieces_joined_are_the_text_and_what_stands_before_decides_about_spaces(kind: str, text: str, cut: int) -> None:
    """Emoji of several code points, accents that combine, scripts without a piece, joiners, quotes.

    A prompt, cut anywhere between two ids, and its continuation give the text of both.
    """
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    before, after = ids[:cut], ids[cut:]
    pieces = list(stream_text(tokenizer, after, before=before))
    whole, prompt = tokenizer.decode(ids), tokenizer.decode(before)
    whole_characters(list(stream_text(tokenizer, ids)), whole)
    if whole.startswith(prompt):
        assert prompt + "".join(pieces) == whole
    else:  # the prompt ends inside a character, or in a mark whose space depends on what follows
        assert whole.endswith("".join(pieces))


def test_a_word_goes_out_when_it_is_complete_and_a_character_when_its_bytes_are(tmp_path: Any) -> None:
    tokenizer = Tokenizer.from_vocabulary("wordpiece", ["o", "gat", "##inho", "##o", "pul", "##ou", "-", "."])
    ids = [tokenizer.token_id(piece) for piece in ["o", "gat", "##inho", "pul", "##ou", "."]]
    text = TextStream(tokenizer)
    assert [text.push(token) for token in ids if token is not None] == ["", "o", "", " gatinho", "", ""]
    assert text.finish() == " pulou."
    tokenizer = trained("byte")
    text = TextStream(tokenizer)
    assert [text.push(token) for token in tokenizer.encode("aé😀\u0301b")] == [
        "a", "", "é", "", "", "", "😀", "", "\u0301", "b"
    ]  # fmt: skip
    assert text.finish() == ""
    # byte-level BPE: a piece may end inside a character
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = LibraryTokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, [], unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    text = " olá 😀 não\u0301 日本"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert list(stream_text(tokenizer, ids)) == list(text)
    broken = [*ids[:8], *ids[10:]]  # the emoji loses its last two bytes
    whole_characters(list(stream_text(tokenizer, broken)), tokenizer.decode(broken))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(
    text=TEXTS, stop=st.lists(st.sampled_from(["ga", "to", "😀", "a a", ".", "gato pu", "oo"]), min_size=1, max_size=3)
)
@example(text="gatogato gato", stop=["to ga", "gato gato"])
@example(text="o gato pulou", stop=["to", "gato pu", "o p"])
def test_text_ends_before_the_first_stop_string(kind: str, text: str, stop: list[str]) -> None:
    """Nothing of it goes out, though it may come in several pieces; without one nothing is lost."""
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    ends = (end for end in range(len(whole) + 1) if whole[:end].endswith(tuple(stop)))
    end = next(ends, None)  # where the first of them is complete
    cut = len(whole) if end is None else min(end - len(one) for one in stop if whole[:end].endswith(one))
    pieces = list(stream_text(tokenizer, ids, stop=stop))
    assert "".join(pieces) == whole[:cut] and all(pieces)


def test_no_more_ids_are_asked_for_once_it_stopped() -> None:
    tokenizer, asked = trained("character"), []

    def ids() -> Iterator[int]:
        for token in tokenizer.encode("o gato pulou"):
            asked.append(token)
            yield token

    assert "".join(stream_text(tokenizer, ids(), stop=["at"])) == "o g" and len(asked) == 5
    for stop, got in (("at", "'at'"), ([""], r"\[''\]")):
        fails(ValueError, f"`stop` .* got {got}", TextStream, tokenizer, stop=stop)
