"""The micro-world's sentences: agreement, order, contraction and gold labels, checked on the text itself."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from atento_world import Pair, lexicon, write

UPOS = {"ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT"}
UPOS |= {"SCONJ", "VERB"}

# Forms and what they say of gender and number, written by hand: they are the oracle.
MASCULINE, FEMININE = "o os um este estes aquele aqueles", "a as uma esta estas aquela aquelas"
SINGULAR, PLURAL = "o a um uma este esta aquele aquela", "os as estes estas aqueles aquelas"
MASCULINE += " meu meus nosso nossos seu seus alguns muitos vários poucos dois"
FEMININE += " minha minhas nossa nossas sua suas algumas muitas várias poucas duas"
SINGULAR += " meu minha nosso nossa seu sua cada"
PLURAL += " meus minhas nossos nossas seus suas alguns algumas muitos muitas vários várias poucos poucas"
PLURAL += " dois duas três quatro cinco dez"
_CONTRACTED = {"d": "o a os as", "n": "o a os as", "pel": "o a os as"}
CONTRACTED = {stem + article: article for stem, articles in _CONTRACTED.items() for article in articles.split()}
CONTRACTED |= {"ao": "o", "à": "a", "aos": "os", "às": "as"}
for _word in ["este", "esta", "estes", "estas", "aquele", "aquela", "aqueles", "aquelas"]:
    CONTRACTED |= {f"d{_word}": _word, f"n{_word}": _word, **({f"à{_word[1:]}": _word} if _word[0] == "a" else {})}

NOUN_FORMS: dict[str, set[tuple[str, bool]]] = {}
for _noun in lexicon.NOUNS:
    NOUN_FORMS.setdefault(_noun.portuguese, set()).add((_noun.gender, False))
    NOUN_FORMS.setdefault(_noun.portuguese_plural, set()).add((_noun.gender, True))
ADJECTIVE_FORMS: dict[str, set[tuple[str, bool]]] = {}
for _adjective in lexicon.ADJECTIVES:
    for _i, _form in enumerate(_adjective.forms):
        ADJECTIVE_FORMS.setdefault(_form, set()).add(("mf"[_i % 2], _i >= 2))


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    written = [write(split, count, seed=11) for split, count in (("train", 6000), ("combinations", 3000))]
    return [*written[0], *written[1], *write("valid", 300, seed=11), *write("structures", 3000, seed=11)]


def _target(pair: Pair) -> list[tuple[str, str]]:
    return [(word.lower(), tag) for word, tag in zip(pair.target_words, pair.target_tags)]


def _noun_phrases(pair: Pair) -> Iterator[tuple[str, list[str], str, list[str]]]:
    """(determiner, adjectives before, noun, adjectives after) around every common noun of the Portuguese side."""
    words = _target(pair)
    for i, (word, tag) in enumerate(words):
        if tag != "NOUN" or word not in NOUN_FORMS:
            continue
        start = i
        while start and words[start - 1][1] == "ADJ":
            start -= 1
        end = i + 1
        while end < len(words) and (words[end][1] == "ADJ" or words[end][0] == "muito"):
            end += 1
        determiner = ""
        if start and words[start - 1][1] in ("DET", "NUM", "ADP"):
            before = words[start - 1][0]
            determiner = CONTRACTED.get(before, before if words[start - 1][1] != "ADP" else "")
        late = [text for text, tag in words[i + 1 : end] if tag == "ADJ"]
        yield determiner, [text for text, _ in words[start:i]], word, late


def test_determiners_and_adjectives_agree_with_their_noun_and_few_adjectives_stand_before_it(pairs: list[Pair]) -> None:
    early = {form for adjective in lexicon.ADJECTIVES if adjective.before for form in adjective.forms}
    assert {"bom", "boa", "primeira", "melhores"} <= early
    checked = 0
    for pair in pairs:
        for determiner, before, noun, after in _noun_phrases(pair):
            readings = set(NOUN_FORMS[noun])  # lápis, ônibus: singular and plural alike
            if determiner in f"{MASCULINE} {FEMININE}".split():
                readings &= {("m" if determiner in MASCULINE.split() else "f", many) for many in (False, True)}
            if determiner in f"{SINGULAR} {PLURAL}".split():
                readings &= {(gender, determiner in PLURAL.split()) for gender in "mf"}
            for adjective in [*before, *after]:
                if adjective in ADJECTIVE_FORMS:
                    readings &= ADJECTIVE_FORMS[adjective]
                    checked += 1
            assert readings, (pair.target, determiner, before, noun, after)
            assert set(before) <= early, pair.target
            if pair.structure != "comparison":
                assert not set(after) & early, pair.target
    assert checked > 5000


def test_predicates_agree_with_their_subject_and_articles_are_contracted_or_not_there(pairs: list[Pair]) -> None:
    singular, plural = ["é", "era", "está", "estava", "vai"], ["são", "eram", "estão", "estavam", "vão"]
    checked = 0
    for pair in pairs:
        if pair.structure != "quality" or "NOUN" not in pair.target_tags:
            continue
        phrases = list(_noun_phrases(pair))
        words = [word.lower() for word in pair.target_words]
        verb = next(word for word in words if word in (*singular, *plural))
        last = next(word for word, tag in reversed(_target(pair)) if tag == "ADJ")
        head = phrases[0][2]  # the owner, if any, comes after the noun
        readings = {(g, many) for g, many in NOUN_FORMS[head] if many == (verb in plural)}
        assert readings & ADJECTIVE_FORMS[last], pair.target
        checked += 1
    assert checked > 300
    # People and cities have none; possessives have one only behind a contracting preposition
    articles = {"o", "a", "os", "as", "este", "esta", "estes", "estas", "ele", "ela", "eles", "elas"}
    articles |= {"aquele", "aquela", "aqueles", "aquelas"}
    bare = {name.portuguese[0] for name in (*lexicon.PEOPLE, *lexicon.CITIES)}
    possessives = {"meu", "minha", "meus", "minhas", "nosso", "nossa", "nossos", "nossas"}
    possessives |= {"seu", "sua", "seus", "suas"}
    for pair in pairs:
        words = _target(pair)
        for (first, tag), (second, other) in pairwise(words):
            if tag == "ADP" and other in ("DET", "PRON") and second in articles:
                allowed = first not in ("de", "em") and not (first in ("por", "a") and len(second) <= 2)
                assert allowed and (first, second[:4]) != ("a", "aque"), pair.target
            assert second not in possessives or first not in ("o", "a", "os", "as", "de", "em", "por"), pair.target
        assert "com mim" not in pair.target and "com nós" not in pair.target
        for i, word in enumerate(pair.target_words[1:], 1):
            if word in bare and words[i][1] == "PROPN":
                assert words[i - 1][0] not in ["o", "a", "os", "as"] or words[i - 1][1] == "ADP", pair.target
                assert words[i - 1][0] not in CONTRACTED, pair.target
    text = "\n".join(pair.target for pair in pairs)
    assert "no Brasil" in text and "na França" in text and "em Portugal" in text
    assert "em Brasil" not in text and "no Portugal" not in text


def test_nouns_names_and_adjectives_are_aligned_with_their_translation(pairs: list[Pair]) -> None:
    """The lexicon is the oracle: a noun's links must reach the word that translates it."""
    translations: dict[str, set[str]] = {}
    for noun in lexicon.NOUNS:
        translations.setdefault(noun.english.lower(), set()).update({noun.portuguese, noun.feminine})
        translations.setdefault(noun.english_plural.lower(), set()).add(noun.portuguese_plural)
    people = {name.english[0] for name in lexicon.PEOPLE}
    forms = {a.english: {form.lower() for form in a.forms} for a in lexicon.ADJECTIVES}
    checked = 0
    for pair in pairs:
        for i, (word, tag) in enumerate(zip(pair.source_words, pair.source_tags)):
            linked = [pair.target_words[j] for k, j in pair.alignment if k == i]
            known = translations.get(word.lower().removesuffix("'s")) if tag == "NOUN" else None
            if known is not None:
                assert {one.lower() for one in linked} & {form.lower() for form in known}, pair
                checked += 1
            if word in people:
                assert linked == [word], pair
            elif word in forms and tag == "ADJ":
                assert len(linked) == 1 and linked[0].lower() in forms[word], pair
    assert checked > 10_000


def test_do_support_not_contractions_and_entities_on_both_sides(pairs: list[Pair]) -> None:
    """*did not open*: *did* goes with the verb, *not* with *não*."""
    checked = 0
    for pair in pairs:
        for i, word in enumerate(pair.source_words[:-2]):
            if word in ("did", "does") and pair.source_words[i + 1] == "not":
                linked = {k: {j for m, j in pair.alignment if m == k} for k in (i, i + 1, i + 2)}
                assert {pair.target_words[j].lower() for j in linked[i + 1]} == {"não"}, pair
                assert linked[i] & linked[i + 2], pair
                checked += 1
    assert checked > 100
    pair = next(p for p in write("train", 2000) if " of the " in p.source)
    i = pair.source_words.index("of")
    shared = {j for k, j in pair.alignment if k == i} & {j for k, j in pair.alignment if k == i + 1}
    assert {pair.target_words[j] for j in shared} <= {"do", "da", "dos", "das"} and shared
    labels = {"H": "PER", "Y": "LOC", "Z": "LOC", "G": "ORG"}
    english: dict[str, str] = {}
    portuguese: dict[str, str] = {}
    for name in lexicon.NAMES:
        words = name.english[1:] if name.english[0] == "the" else name.english
        english[" ".join(words)] = portuguese[" ".join(name.portuguese)] = labels[name.kind]
    found = set()
    for pair in pairs:
        sides: dict[str, list[str]] = {"source": [], "target": []}
        for entity in pair.entities:
            words = pair.source_words if entity.side == "source" else pair.target_words
            text = " ".join(words[entity.start : entity.end]).removesuffix("'s")
            first, _, surname = text.rpartition(" ")
            known = english if entity.side == "source" else portuguese
            text = first if surname in lexicon.SURNAMES else text
            assert known[text] == entity.label, pair
            sides[entity.side].append(entity.label)
            found.add(entity.label)
        assert sorted(sides["source"]) == sorted(sides["target"])
        tagged = sum(tag == "PROPN" for tag in pair.target_tags)
        assert tagged == sum(e.end - e.start for e in pair.entities if e.side == "target"), pair
    assert found == {"PER", "LOC", "ORG"}


def test_the_text_is_its_words_which_have_a_universal_tag_and_a_link_each(pairs: list[Pair]) -> None:
    for pair in pairs:
        for text, words in ((pair.source, pair.source_words), (pair.target, pair.target_words)):
            assert text.replace(" ", "") == "".join(words)
            assert text[0] == text[0].upper() and "  " not in text and " ." not in text and " ?" not in text
        assert pair.source[-1] == pair.target[-1] or pair.source[-1].isalpha()
        assert list(pair.alignment) == sorted(set(pair.alignment))
        sources, targets = {i for i, _ in pair.alignment}, {j for _, j in pair.alignment}
        assert sources == set(range(len(pair.source_words))), pair
        assert targets == set(range(len(pair.target_words))), pair
        assert len(pair.source_tags) == len(pair.source_words) and len(pair.target_tags) == len(pair.target_words)
        assert set(pair.source_tags) | set(pair.target_tags) <= UPOS
        assert all(w in ".,?!" for w, t in zip(pair.source_words, pair.source_tags) if t == "PUNCT")
