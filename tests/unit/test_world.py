"""The micro-world: its words and forms, and its splits: disjoint, complete, unique, the same everywhere."""

import hashlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.base.errors import UsageError
from atento_world import SPLITS, Pair, inflection, lexicon, notes_sentences, write
from atento_world.inflection import conjugate
from atento_world.pairs import Word, contract, spell
from atento_world.sentence import adjectives_for, held_out
from atento_world.splits import HELD_OUT, PATTERNS, collect
from failing import fails

NOUN = {form: noun for noun in lexicon.NOUNS for form in (noun.english, noun.english_plural)}
ADJECTIVE = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}


def _plain(pair: Pair) -> str:
    """The English sentence without case and final mark."""
    return pair.source.rstrip(".!?").lower()


def _attributes(pair: Pair) -> list[tuple[str, str]]:
    """(adjective, noun) wherever an adjective stands before a noun of the English side."""
    found = []
    for i, word in enumerate(pair.source_words):
        bare = word.removesuffix("'s")
        if pair.source_tags[i] == "NOUN" and bare in NOUN:
            j = i - 1
            while j >= 0 and pair.source_tags[j] == "ADJ" and pair.source_words[j] in ADJECTIVE:
                found.append((pair.source_words[j], bare))
                j -= 1
    return found


def _predicates(pair: Pair) -> list[tuple[str, str]]:
    """(adjective, subject noun) of a plain *the house is big*."""
    if pair.structure != "quality" or pair.source_tags[-2 if pair.source_tags[-1] == "PUNCT" else -1] != "ADJ":
        return []
    words = [w for w, t in zip(pair.source_words, pair.source_tags) if t == "NOUN" and w in NOUN]
    return [(pair.source_words[-2 if pair.source_tags[-1] == "PUNCT" else -1], words[-1])] if words else []


@pytest.fixture(scope="module")
def train() -> list[Pair]:
    return write("train", 20_000)


@pytest.fixture(scope="module")
def others() -> dict[str, list[Pair]]:
    return {split: write(split, count, seed=2) for split, count in zip(SPLITS[1:], (600, 1500, 2500))}


def test_the_notes_sentences_begin_train_from_100_on_and_are_never_valid() -> None:
    """Spec rows L2, L3, L6, L7."""
    assert [(pair.source, pair.target) for pair in notes_sentences()] == [
        ("I love NLP", "Eu amo PLN"),
        ("The cat jumped high", "O gato pulou alto"),
        ("The kitten runs quickly", "O gatinho corre rapidamente"),
        ("The cat is sitting on the mat", "O gato está sentado no tapete"),
        ("He is very comfortable", "Ele está muito confortável"),
        ("How are you?", "Como você está?"),
    ]
    how = notes_sentences()[-1]
    assert how.alignment == ((0, 0), (1, 2), (2, 1), (3, 3)) and how.source_tags == ("ADV", "AUX", "PRON", "PUNCT")
    assert write("train", 100)[:6] == notes_sentences() and len(write("train", 100)) == 100
    assert write("train", 99)[:6] != notes_sentences()
    assert not {_plain(pair) for pair in notes_sentences()} & {_plain(pair) for pair in write("valid", 800)}


def test_train_and_valid_never_meet_nor_bring_a_held_out_pair_together(train, others) -> None:
    first = {_plain(pair) for pair in train} | {_plain(pair) for pair in write("train", 2000, seed=9)}
    second = {_plain(pair) for pair in others["valid"]} | {_plain(pair) for pair in write("valid", 400, seed=9)}
    assert not first & second
    for split in ("combinations", "structures"):
        assert not (first | second) & {_plain(pair) for pair in others[split]}
    checked = 0
    for pair in [*train, *others["valid"], *others["structures"]]:
        for adjective, noun in _attributes(pair) + _predicates(pair):
            assert not held_out(ADJECTIVE[adjective], NOUN[noun]), pair.source
            checked += 1
    assert checked > 10_000
    translation: dict[str, str] = {}
    for pair in [*train, *(p for split in others.values() for p in split), *write("train", 3000, seed=8)]:
        target = pair.target.rstrip(".!?").lower()
        assert translation.setdefault(_plain(pair), target) == target


def test_every_sentence_of_combinations_has_a_held_out_pair_of_words_well_known_from_train(others, train) -> None:
    attributes = 0
    comparatives = {a.comparative.removeprefix("more "): a for a in lexicon.ADJECTIVES if a.comparative}
    for pair in others["combinations"]:
        if any(held_out(ADJECTIVE[a], NOUN[n]) for a, n in _attributes(pair)):
            attributes += 1
            continue
        said = [ADJECTIVE.get(word) or comparatives.get(word) for word in pair.source_words]
        nouns = [NOUN[word] for word in pair.source_words if word in NOUN]
        assert any(a is not None and held_out(a, n) for a in said for n in nouns), pair.source
    assert attributes > len(others["combinations"]) / 2
    known = Counter(word for pair in train for word in pair.source_words)
    for pair in others["combinations"]:
        for adjective, noun in _attributes(pair):
            assert known[adjective] >= 15 and known[NOUN[noun].english] + known[NOUN[noun].english_plural] >= 20


def test_held_out_structures_are_not_in_the_other_splits(train: list[Pair], others: dict[str, list[Pair]]) -> None:
    assert not set(PATTERNS) & set(HELD_OUT)
    ordinary = [*train, *others["valid"], *others["combinations"]]
    assert {pair.structure for pair in ordinary} == set(PATTERNS)
    assert {pair.structure for pair in others["structures"]} == set(HELD_OUT)
    for pair in ordinary:
        assert not any(a in ADJECTIVE and b in ADJECTIVE for a, b in pairwise(pair.source_words)), pair.source
    groups = lexicon.GROUPS
    doubled = [pair for pair in others["structures"] if pair.structure == "two-adjectives"]
    assert len(doubled) > 500
    for pair in doubled:
        words = pair.source_words
        i = next(i for i in range(len(words)) if words[i] in ADJECTIVE and words[i + 1] in ADJECTIVE)
        first, second = ADJECTIVE[words[i]], ADJECTIVE[words[i + 1]]
        assert groups.index(first.group) < groups.index(second.group)
        where = dict(pair.alignment)
        assert where[i] < where[i + 1], pair
        assert where[i + 2] < where[i + 1], pair  # the noun stands before at least the second
        assert (where[i] < where[i + 2]) == first.before


@pytest.mark.parametrize("count", [20_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_train_gives_that_many_sentences(train: list[Pair], count: int) -> None:
    pairs = train if count == len(train) else write("train", count)
    assert len({pair.source for pair in pairs}) == count


def test_no_word_is_rare_in_train_and_sentences_are_unique_and_short(train: list[Pair]) -> None:
    counts = Counter(word.lower() for pair in train for word in pair.source_words)
    for noun in lexicon.NOUNS:
        assert counts[noun.english.lower()] + counts[noun.english_plural.lower()] >= 20, noun.english
    for adjective in lexicon.ADJECTIVES:
        assert counts[adjective.english.lower()] >= 15, adjective.english
    for verb in lexicon.VERBS:
        forms = {verb.english, verb.third, verb.past, verb.gerund, verb.participle}
        assert sum(counts[form] for form in forms) >= 20, verb.english
    for split in SPLITS:
        pairs = write(split, 1500, seed=4)
        assert len({_plain(pair) for pair in pairs}) == 1500
        lengths = [len(pair.source_words) for pair in pairs]
        assert max(lengths) <= 32
        if split != "structures":
            assert sum(4 <= length <= 14 for length in lengths) > 0.93 * len(lengths)


def test_a_shorter_list_begins_a_longer_one_seeds_differ_but_no_process_and_errors_name_the_split() -> None:
    assert write("train", 300)[:120] == write("train", 120)
    assert write("combinations", 60, seed=5)[:10] == write("combinations", 10, seed=5)
    assert write("train", 50, seed=1) != write("train", 50, seed=2)
    with pytest.raises(UsageError, match=r"got 'combination'; did you mean 'combinations'\? Known: combinations, "):
        write("combination", 5)
    fails(UsageError, "`count` must be 0 or more: got -1", write, "train", -1)
    assert write("valid", 0) == []
    supply = [("how are you", notes_sentences()[5]), ("i love nlp", notes_sentences()[0]), None]
    turn = iter(range(10**6))
    with pytest.raises(UsageError, match="split 'toy' is too small: asked for 3 different sentences, found 2"):
        collect(lambda: supply[next(turn) % 3], 3, "split 'toy'", [])
    here = hashlib.sha256(repr([pair for split in SPLITS for pair in write(split, 120)]).encode()).hexdigest()
    for seed in ("0", "4242"):
        own = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run([sys.executable, "-c", _PRINT], env=own, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, here), done.stderr


@given(seed=st.integers(0, 2**40), split=st.sampled_from(SPLITS))
@settings(max_examples=15)
def test_the_same_arguments_give_the_same_pairs(seed: int, split: str) -> None:
    assert write(split, 5, seed) == write(split, 5, seed)


_PRINT = """
import hashlib, sys
from atento_world import write
assert not any(name == "torch" or name.startswith("torch.") for name in sys.modules), "torch was imported"
pairs = [pair for split in ("train", "valid", "combinations", "structures") for pair in write(split, 120)]
print(hashlib.sha256(repr(pairs).encode()).hexdigest())
"""


BUILDS = "construo constrói construímos constroem"


def test_portuguese_verbs_adjectives_and_plurals() -> None:
    for infinitive, present, past, gerund, participle, command in (
        ("falar", "falo fala falamos falam", "falei falou falamos falaram", "falando", "falado", "fale"),
        ("vender", "vendo vende vendemos vendem", "vendi vendeu vendemos venderam", "vendendo", "vendido", "venda"),
        ("abrir", "abro abre abrimos abrem", "abri abriu abrimos abriram", "abrindo", "aberto", "abra"),
        ("tocar", "toco toca tocamos tocam", "toquei tocou tocamos tocaram", "tocando", "tocado", "toque"),
        ("jogar", "jogo joga jogamos jogam", "joguei jogou jogamos jogaram", "jogando", "jogado", "jogue"),
        ("dançar", "danço dança dançamos dançam", "dancei dançou dançamos dançaram", "dançando", "dançado", "dance"),
        ("dormir", "durmo dorme dormimos dormem", "dormi dormiu dormimos dormiram", "dormindo", "dormido", "durma"),
        ("seguir", "sigo segue seguimos seguem", "segui seguiu seguimos seguiram", "seguindo", "seguido", "siga"),
        ("ver", "vejo vê vemos veem", "vi viu vimos viram", "vendo", "visto", "veja"),
        ("trazer", "trago traz trazemos trazem", "trouxe trouxe trouxemos trouxeram", "trazendo", "trazido", "traga"),
        ("dar", "dou dá damos dão", "dei deu demos deram", "dando", "dado", "dê"),
        ("ir", "vou vai vamos vão", "fui foi fomos foram", "indo", "ido", "vá"),
        ("sair", "saio sai saímos saem", "saí saiu saímos saíram", "saindo", "saído", "saia"),
        ("construir", BUILDS, "construí construiu construímos construíram", "construindo", "construído", "construa"),
        ("odiar", "odeio odeia odiamos odeiam", "odiei odiou odiamos odiaram", "odiando", "odiado", "odeie"),
        ("ser", "sou é somos são", "era era éramos eram", "sendo", "sido", "seja"),
    ):
        verb = conjugate(infinitive)
        assert (verb.present, verb.past) == (tuple(present.split()), tuple(past.split()))
        assert (verb.gerund, verb.participle, verb.command) == (gerund, participle, command)
    for lemma, forms in (
        ("alto", "alto alta altos altas"),
        ("feliz", "feliz feliz felizes felizes"),
        ("fácil", "fácil fácil fáceis fáceis"),
        ("gentil", "gentil gentil gentis gentis"),
        ("terrível", "terrível terrível terríveis terríveis"),
        ("azul", "azul azul azuis azuis"),
        ("jovem", "jovem jovem jovens jovens"),
        ("simples", "simples simples simples simples"),
        ("leal", "leal leal leais leais"),
        ("francês", "francês francesa franceses francesas"),
        ("bom/boa", "bom boa bons boas"),
        ("alemão/alemã/alemães/alemãs", "alemão alemã alemães alemãs"),
    ):
        assert inflection.adjective_forms(lemma) == tuple(forms.split())
    for singular, plural in (
        *(("casa", "casas"), ("jardim", "jardins"), ("hotel", "hotéis"), ("jornal", "jornais"), ("flor", "flores")),
        *(("cachecol", "cachecóis"), ("ônibus", "ônibus"), ("lápis", "lápis"), ("chapéu", "chapéus")),
    ):
        assert inflection.portuguese_plural(singular) == plural
    for noun in lexicon.NOUNS:
        if noun.portuguese.endswith("ão") and noun.countable:
            assert noun.portuguese_plural.endswith(("ões", "ães", "ãos")), noun.portuguese


def test_english_forms_contractions_and_spelling() -> None:
    for form, words, expected in (
        (inflection.english_plural, "city box boy church cat", "cities boxes boys churches cats"),
        (inflection.english_third, "go have carry wash run", "goes has carries washes runs"),
        (inflection.english_past, "love carry play hug prefer", "loved carried played hugged preferred"),
        (inflection.english_gerund, "write see run lie study open", "writing seeing running lying studying opening"),
    ):
        assert list(map(form, words.split())) == expected.split()
    articles = {w: inflection.indefinite_article(w) for w in ("apple", "university", "honest", "useful", "ugly", "dog")}
    assert articles == {"apple": "an", "university": "a", "honest": "an", "useful": "a", "ugly": "an", "dog": "a"}
    for apart, together in (
        ("de/ADP o/DET gato/NOUN", "do gato"),
        ("em/ADP as/DET casas/NOUN", "nas casas"),
        ("por/ADP a/DET mãe/NOUN", "pela mãe"),
        ("a/ADP a/DET mãe/NOUN", "à mãe"),
        ("a/ADP o/DET rei/NOUN", "ao rei"),
        ("a/ADP aquele/DET rei/NOUN", "àquele rei"),
        ("em/ADP estas/DET casas/NOUN", "nestas casas"),
        ("de/ADP ele/PRON", "dele"),
        ("com/ADP mim/PRON", "comigo"),
        ("de/ADP um/DET gato/NOUN", "de um gato"),
        ("para/ADP o/DET rei/NOUN", "para o rei"),
        ("a/ADP este/DET rei/NOUN", "a este rei"),
        ("a/DET a/NOUN", "a a"),
    ):
        assert [word.text for word in contract(_words(apart))] == together.split()
    assert contract(_words("de/ADP o/DET"))[0] == Word("do", "ADP", (0, 1))
    assert spell(["Sim", ",", "ele", "corre", "."]) == "Sim, ele corre."


def _words(text: str) -> list[Word]:
    return [Word(*pair.split("/"), (i,)) for i, pair in enumerate(text.split())]


def test_the_lexicon_has_several_hundred_words_of_one_meaning_with_enough_partners_in_train() -> None:
    assert 400 <= lexicon.size() <= 700
    # No form of one word is a form of another, but where both have the same Portuguese word or the grammar decides
    meanings: dict[str, set[str]] = defaultdict(set)
    for noun in lexicon.NOUNS:
        for form in {noun.english, noun.english_plural if noun.countable else noun.english}:
            meanings[form].add(noun.portuguese)
    for adjective in lexicon.ADJECTIVES:
        meanings[adjective.english].add(adjective.forms[0])
    for verb in lexicon.VERBS:
        for form in {verb.english, verb.third, verb.past, verb.participle, verb.gerund}:
            meanings[form].add(verb.portuguese.infinitive)
    several = {form: found for form, found in meanings.items() if len(found) > 1}
    # the word after these decides: think that, think about; look at, look for
    assert set(several) == {"think", "thinks", "thought", "thinking", "look", "looks", "looked", "looking"}
    for verb in lexicon.VERBS:
        assert verb.past not in (verb.english, verb.third), verb.english
    fails(UsageError, "no noun 'unicorn'", lexicon.noun, "unicorn")
    fails(UsageError, "no such verb 'put'", lexicon.verb, "put")
    partners: Counter[str] = Counter()
    held = total = 0
    for noun in lexicon.NOUNS:
        if "S" in noun.kinds:
            continue
        seen = {*adjectives_for(noun, "attribute", False), *adjectives_for(noun, "predicate", False)}
        unseen = {*adjectives_for(noun, "attribute", True), *adjectives_for(noun, "predicate", True)}
        assert not seen & unseen
        assert len(seen) >= 10, noun.english
        partners.update(adjective.english for adjective in seen)
        held, total = held + len(unseen), total + len(seen) + len(unseen)
    assert min(partners[adjective.english] for adjective in lexicon.ADJECTIVES) >= 10
    assert 0.12 < held / total < 0.18
    # blake2b of the words, computed here by hand for one pair
    adjective, noun = lexicon.ADJECTIVES[0], lexicon.NOUNS[0]
    number = int(hashlib.blake2b(f"{adjective.english} {noun.english}".encode(), digest_size=4).hexdigest(), 16)
    assert held_out(adjective, noun) == (number % 100 < 15)
