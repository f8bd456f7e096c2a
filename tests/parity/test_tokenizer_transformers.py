"""Our tokenizers beside `transformers` and `sentencepiece`: the same ids from the same files (spec rows D1, D2)."""

import json
import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, sentinels, train_tokenizer
from released_folders import TEXTS, _byte_level, _spm


def lines() -> list[str]:
    subjects = ["o gato", "a gata", "o menino", "uma mulher", "o pássaro", "minha avó", "the cat", "a child"]
    verbs = ["pulou", "comeu", "vê rapidamente", "não quer", "sees", "ate"]
    objects = ["o peixe.", "a maçã!", "(o pão)", "um coração, sim", "12 ovos", "the fish?", "d'água <x>"]
    return [f"{s} {v} {o}" for s in subjects for v in verbs for o in objects]


@cache
def strings() -> list[str]:
    """500 varied strings: Portuguese, emoji, combining marks, scripts, special-token text, blanks."""
    chance = random.Random(3)
    text = (
        "gato maçã não fazê-lo d'água R$ 1.234,56 21/11/2026 👩\u200d👩\u200d👧 😀 e\u0301 a\u0303 \u0301\u0301 각"
        " 日本語 Привет <s> </s> <pad> <mask> <unk> [MASK] [CLS] <0x41> ▁ ( ) « » — ... ?! ß ǆ İ ﬁ \u202e \ufeff \u00ad"
    )
    parts = text.split(" ")
    blanks = [" ", " ", " ", "  ", "\t", "\xa0", "\u2028", ""]
    pick = chance.choice
    return ["".join(pick(parts) + pick(blanks) for _ in range(chance.randint(0, 12))) for _ in range(500)]


@pytest.mark.covering
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "word", "character", "byte"])
def test_transformers_reads_our_folder_and_gives_the_same_ids(kind: str, lowercase: bool, tmp_path: Path) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=420, lowercase=lowercase)  # type: ignore[arg-type]
    ours = train_tokenizer(config, lines(), extra_specials=sentinels(2))
    ours.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    roles = [theirs.pad_token_id, theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.mask_token_id]
    assert roles == [0, 1, 2, 3, 4] and len(theirs) == ours.vocab_size
    texts = lines() + strings()
    expected = ours.encode_batch(texts)
    assert theirs(texts, add_special_tokens=False)["input_ids"] == expected and auto(texts)["input_ids"] == expected
    assert theirs.convert_ids_to_tokens(list(range(ours.vocab_size))) == ours.tokens(range(ours.vocab_size))
    if kind in ("unigram", "bpe", "byte"):
        assert [theirs.decode(ids) for ids in expected] == [ours.decode(ids) for ids in expected]


def test_wordpiece_is_berts_on_a_shared_vocabulary() -> None:
    """Row D1. BERT drops control and format characters and does not compose: so texts without the one, composed."""
    ours = train_tokenizer(TokenizerConfig(kind="wordpiece", vocab_size=300), lines() + ["日本語 Привет 😀"] * 3)
    vocabulary = {token: i for i, token in enumerate(ours.tokens(range(ours.vocab_size)))}
    names = {"unk": "<unk>", "pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    options = {f"{role}_token": token for role, token in names.items()} | {"split_special_tokens": True}
    bert = transformers.BertTokenizerFast(vocab=vocabulary, do_lower_case=False, strip_accents=False, **options)
    kinds, every = ("Cf", "Cn", "Co"), map(ours.normalize, lines() + strings())
    texts = ["".join(char for char in text if unicodedata.category(char) not in kinds) for text in every]
    assert bert(texts, add_special_tokens=False)["input_ids"] == ours.encode_batch(texts)
    assert sum(ours.unk_id not in ours.encode(text) for text in texts) > 300


def test_a_bert_folder_is_read_with_its_own_rules_and_specials(tmp_path: Path) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "gat", "##o", "a", "[", "]", "mask", "##s", "acao"]
    bert = transformers.BertTokenizerFast(vocab={token: i for i, token in enumerate(vocabulary)}, do_lower_case=True)
    bert.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert (ours.kind, ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id, ours.mask_id) == ("wordpiece", 0, 1, 2, 3, 4)
    text = "Gato [MASK] ação"
    assert ours.tokens(ours.encode(text)) == ["gat", "##o", "[", "mask", "]", "acao"]
    encoded = ours.encode_with_offsets(text)
    assert [text[start:end] for start, end in encoded.offsets] == ["Gat", "o", "[", "MASK", "]", "ação"]
    assert encoded.word_ids == [0, 0, 1, 2, 3, 4] and ours.decode([2, 5, 6, 7, 3]) == "gato a"
    assert ours.words([2, 5, 6, 7, 3]).words == ["gato", "a"]
    ours.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == ours.fingerprint and again.encode(text) == ours.encode(text)


def test_special_strings_that_a_foreign_unigram_holds_as_pieces_stay_text(tmp_path: Path) -> None:
    """XLM-R's file: `<s>` is a piece of score 0, so the model itself would choose it."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("s", -3.0), ("<", -4.0)]
    library = Library(models.Unigram([*pieces, (">", -4.0), ("/", -4.0), ("<mask>", 0.0)], unk_id=3))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    names = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    roles = {f"{name}_token": token for name, token in names.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles).save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.tokens(ours.encode("s<s> </s>s")) == ["▁", "s", "<", "s", ">", "▁", "<", "/", "s", ">", "s"]
    assert ours.mask_id == 9 and 9 not in ours.encode("<mask>")


def test_a_gpt2_folder_groups_its_byte_letters_into_words(tmp_path: Path) -> None:
    data = _byte_level(["<|endoftext|>"])
    library = Library(models.BPE(vocab=data["vocab"], merges=data["merges"]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    ends = dict.fromkeys(("bos_token", "eos_token"), "<|endoftext|>")
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **ends).save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    text = "minha avó comeu 日本 <|endoftext|>"
    ids = ours.encode(text)
    assert ours.decode(ids) == text and ours.bos_id not in ids
    words = ours.words(ids)
    assert words.words == ["minha", "avó", "comeu", "日", "本", "<", "|", "endoftext", "|", ">"]
    encoded = ours.encode_with_offsets(text)
    assert encoded.words == words.words and encoded.word_ids == words.index


def test_the_segmentation_is_the_best_of_all() -> None:
    """Every segmentation of short words is scored; the tokenizer's must have the highest score."""
    chance = random.Random(5)
    pieces = sorted({"".join(chance.choice("abc") for _ in range(chance.randint(2, 4))) for _ in range(30)})
    scores = {piece: -chance.uniform(1, 9) for piece in ["▁", "a", "b", "c", *pieces]}
    tokenizer = Tokenizer.from_vocabulary("unigram", list(scores), scores=list(scores.values()))

    def all_of(word: str) -> Iterator[tuple[str, ...]]:
        if not word:
            yield ()
        for end in range(1, len(word) + 1):
            if word[:end] in scores:
                yield from ((word[:end], *rest) for rest in all_of(word[end:]))

    for _ in range(200):
        word = "".join(chance.choice("abc") for _ in range(chance.randint(1, 10)))
        found = tokenizer.tokens(tokenizer.encode(word))
        best = max(sum(scores[piece] for piece in option) for option in all_of("▁" + word))
        assert sum(scores[piece] for piece in found) == pytest.approx(best, abs=1e-9)


def test_sentencepiece_cuts_alike_with_the_same_pieces(tmp_path: Path) -> None:
    """A model that `sentencepiece` trained; its pieces and scores in our tokenizer; its segmentation is ours."""
    chance = random.Random(2)
    parts = ["ga", "to", "ca", "chor", "ro", "pu", "lou", "mas", "ção", "inho", "mente", "rá", "pi", "da"]
    words = ["".join(chance.choice(parts) for _ in range(chance.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(chance.choice(words) for _ in range(8)) for _ in range(800)]
    options = {"model_prefix": str(tmp_path / "m"), "normalization_rule_name": "identity", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), vocab_size=200, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    numbers = range(3, theirs.get_piece_size())
    pieces, scores = [theirs.id_to_piece(i) for i in numbers], [theirs.get_score(i) for i in numbers]
    ours = Tokenizer.from_vocabulary("unigram", pieces, scores=scores)
    unseen = ["".join(chance.choice(parts) for _ in range(chance.randint(1, 5))) for _ in range(300)]
    for text in [*lines[:200], *unseen]:
        assert ours.tokens(ours.encode(text)) == theirs.encode(text, out_type=str)


SYMBOLS = ["<sep>", "[NAME]"]
CLASSES = {"T5": "spiece", "Llama": "tokenizer", "XLMRoberta": "sentencepiece.bpe"}
SPECIAL: dict[str, dict[str, Any]] = {
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "Llama": {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}


@pytest.mark.parametrize(
    "layout, kind", [(n, k) for n in CLASSES for k in ("unigram", "bpe") if (n, k) != ("XLMRoberta", "bpe")]
)
def test_symbols_of_the_user_are_pieces_as_in_sentencepiece(layout: str, kind: str, tmp_path: Path) -> None:
    """Also in a model of kind BPE in T5's layout; no space beside a symbol is lost."""
    model = _spm(tmp_path, CLASSES[layout], model_type=kind, user_defined_symbols=SYMBOLS, **SPECIAL.get(layout, {}))
    settings = {"tokenizer_class": f"{layout}Tokenizer"} | ({"extra_ids": 5} if layout == "T5" else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    peer, ours = sentencepiece.SentencePieceProcessor(model_file=str(model)), Tokenizer.load(tmp_path)
    chance = random.Random(4)
    parts = [*SYMBOLS, " ", "  ", "o gato", "viu", ".", "[NAM", "<se", "ação"]
    for text in ["a <sep> b", "o gato<sep>viu", *("".join(chance.choices(parts, k=7)) for _ in range(60)), *TEXTS[:20]]:
        ids = peer.encode(text)
        assert [peer.piece_to_id(piece) for piece in ours.tokens(ours.encode(text))] == ids, text
        assert peer.unk_id() in ids or ours.decode(ours.encode(text)) == peer.decode(ids)


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_of_a_byte_level_tokenizer_is_its_text(special: bool, tmp_path: Path) -> None:
    """Theirs reads its letters as bytes."""
    peer = transformers.GPT2Tokenizer(**_byte_level(["<|endoftext|>"]))
    names = ["São", "<|início|>", "ção"]
    peer.add_tokens(names, special_tokens=special)
    peer.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    text = "o gato <|início|>São Paulo, coração e ação: ção 日本São"
    ids = peer(text)["input_ids"]
    assert len({*ids} & {*peer.convert_tokens_to_ids(names)}) == 3
    assert ours.decode(ids, skip_special=False) == text != peer.decode(ids)
    assert [ours.spelling(ours.token_id(name) or 0) for name in names] == [None if special else name for name in names]
    if not special:
        assert ours.encode(text) == ids and [word for word in ours.encode_with_offsets(text).words if "São" in word]
