"""Glossaries and what a translation must not change, without a model: terms found, spans taken out and set again."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import pytest

from atento.base.errors import DataError, UsageError
from atento.data.files.term_files import glossary_of
from atento.text.found_spans import SPANS as EXPRESSION
from atento.text.glossary import Glossary
from atento.text.protected_spans import Link, ProtectedText
from atento.text.span_protection import Align, Output, Translate, protected_outputs
from failing import fails


def found(glossary: Glossary, text: str) -> list[str]:
    return [met.term.source for met in glossary.find(text)]


def test_terms_are_whole_words_in_any_case_and_the_longest_wins() -> None:
    glossary = glossary_of({"house": "casa", "White  House": ["Casa Branca"], "C++": "C++", "猫": "gato", "u": "tu"})
    assert found(glossary, "The white\thouse, a HOUSE; a household of houses.") == ["White  House", "house"]
    assert found(glossary, "C++ and C+, xC++ C++x") == ["C++", "C++"]
    assert found(glossary, "C++x") == ["C++"]  # its end is no letter
    assert found(glossary, "白猫也 U") == ["猫", "u"] and found(glossary, "") == found(glossary, "chouse unu") == []
    begins_alike = glossary_of({"cat": "gato", "cat flap": "portinhola", "catch": "pegar"})
    assert found(begins_alike, "Catch it at the cat  flap, cats or a cat") == ["catch", "cat flap", "cat"]
    assert glossary.report("the house and C++", "As CASAS e c++") == {"house": False, "C++": True}
    assert glossary.report("house, house, u", "casa, lar, tu e tu") == {"house": False, "u": True}
    # Accents behind their letters, in the glossary or in the text; ı and İ are other letters than i
    glossary = glossary_of({"café": "coffee", "na\u0303o": "no", "kapı": "door", "İstanbul": "Istambul"})
    assert found(glossary, "Cafe\u0301, CAFÉ e NÃO") == ["café", "café", "na\u0303o"]
    assert found(glossary, "KAPI, kapı, kapi") == ["kapı"] and found(glossary, "İstanbul istanbul") == ["İstanbul"]
    assert found(glossary_of({"cafe": "x", "o": "y"}), "cafe\u0301 cafe na\u0303o o") == ["cafe", "o"]
    assert glossary_of({"coffee": "cafe\u0301"}).report("coffee", "os cafés") == {"coffee": False}
    assert glossary_of({"coffee": "café"}).report("coffee", "o CAFE\u0301") == {"coffee": True}


def test_terms_are_those_that_an_expression_finds_for_each_alone_in_the_time_of_a_glossarys_length() -> None:
    """On random texts: the longest term at each place, by an expression of its own that is compiled for it."""
    draw = Random(1)
    words = ["cat", "Dog", "T-shirt", "24/7", "10%", "C++", "café", "NÃO", "猫", "ซื้อ", "U.S.", "$5", "a_b"]
    words += ["e", "...", "ab"]
    letter = "[^\\W\u0e00-\u0eff\u3400-\u9fff]"
    for _ in range(80):
        terms = {" ".join(draw.choices(words, k=draw.randint(1, 2))).lower() for _ in range(4)}
        text = "".join(draw.choice(words) + draw.choice([" ", "  ", "\n", "", "-", ", "]) for _ in range(12))

        def pattern(term: str) -> str:
            before, after = (re.match(letter, term[at]) for at in (0, -1))
            between = "\\s+".join(map(re.escape, term.split()))
            return f"(?<!{letter})" * bool(before) + between + f"(?!{letter})" * bool(after)

        whole = re.compile("|".join(map(pattern, sorted(terms, key=len, reverse=True))))
        met = glossary_of(dict.fromkeys(terms, "x")).find(text)
        found = [one.span() for one in whole.finditer(text.lower())]
        assert [(one.start, one.end) for one in met] == found, (terms, text)
    for terms, text in (
        ([f"term{n}x dog" for n in range(10_000)], "The white cat sees a term77x dog. " * 1000),
        (["ab" + "c" * n for n in range(500)], "abcc " * 8_000),  # which begin alike
    ):
        began = process_time()
        found = len(glossary_of(dict.fromkeys(terms, "x")).find(text))
        assert found in (1000, 8_000) and process_time() - began < 5.0  # seen: 0.4 s; an expression a term: minutes


def test_a_file_of_terms_or_a_spreadsheet_is_read_and_a_wrong_one_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text("cat\tgato\tgata\t\n\nhouse \t casa\n", encoding="utf-8")
    terms = [(term.source, term.forms) for term in glossary_of(file).terms]
    assert terms == [("cat", ("gato", "gata")), ("house", ("casa",))]
    for wrong in ({}, [["a", 1]], [("a",)], 3):
        fails((UsageError, DataError), "glossary", glossary_of, wrong)
    for text, message in (
        ("cat\tgato\ndog\tcão\nCat\tgata\n", "terms.tsv:3: the term 'Cat' also stands at .*terms.tsv:1"),
        ("cat\tgato\n\ndog\n", "terms.tsv:3: a row must have a source term and, after a TAB, a target term: got 1"),
        *(("cat\t \n", "terms.tsv:1: the target term is empty"), ("\tgato\n", "terms.tsv:1: the source term is empty")),
        ("\n\t\n", "terms.tsv: holds no term"),
    ):
        file.write_text(text, encoding="utf-8")
        fails(DataError, message, glossary_of, file)
    for sign, encoding in (("\t", "utf-8"), (";", "cp1252"), ("|", "utf-8"), (",", "utf-16")):
        path = tmp_path / "terms.csv"
        path.write_text(f"bread{sign}pão\n\nheart{sign}coração{sign}corações\n", encoding=encoding)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            terms = [(term.source, term.forms) for term in glossary_of(path).terms]
        assert terms == [("bread", ("pão",)), ("heart", ("coração", "corações"))]
        assert len(caught) == (sign != "\t") + (encoding != "utf-8")


SPANS = [  # each within marks
    "⟦%1$s⟧ of ⟦%d⟧, ⟦%s⟧ and ⟦%(name)s⟧; ⟦100%⟧ sure",
    "Hi ⟦{{ name }}⟧ ⟦{0}⟧ ⟦{}⟧ ⟦${x}⟧ ⟦%{y}⟧ {a b}",
    "See ⟦https://a.b/c?d=1⟧, ⟦www.x.pt⟧. or (⟦me.you+x@y.com⟧).",
    '⟦<0>⟧a⟦</0>⟧ ⟦<b class="x">⟧c⟦</b>⟧ ⟦<br/>⟧ ⟦1⟧ < ⟦2⟧ > ⟦1⟧ x<y and z>w',
    '⟦<a title="a > b" open>⟧c⟦</a>⟧ ⟦<details open>⟧ ⟦<![CDATA[a > b]]>⟧ ⟦<!-- a > b -->⟧ '
    "⟦<a\n b=c?d=1 e:f>⟧ x <b and c>",
    "⟦%.3f⟧s ⟦%d⟧m ⟦%1$s⟧How ⟦%1⟧, ⟦%n⟧ ⟦%#x⟧ ⟦%*d⟧ ⟦%-10s⟧ ⟦%lld⟧x ⟦100%⟧ sure, ⟦50⟧%discount",
    "⟦{{{x}}}⟧ ⟦{n, plural, one {# in {m, select, a {b} other {c}}} other {d}}⟧ ⟦<%= x > y %>⟧ ⟦{# x #}⟧ "
    "⟦:name⟧ a:b ⟦9:30⟧ ⟦$x⟧",
    "⟦3.5⟧ ⟦1,000⟧ ⟦2024-01-02⟧ ⟦10:30⟧ B2B v2 x3",
    "⟦10 %⟧ of ⟦$5.99⟧, ⟦5 €⟧, ⟦5⟧ ⟦$10⟧, ⟦100⟧⟦%%⟧ ⟦7⟧⟦%s⟧ ⟦1980s⟧ ⟦2h30⟧ 3rd",
    "a ⟦👍🏽👩‍👩‍👧⟧ ⟦☀️⟧ ⟦&nbsp;⟧ & x",
    "⟦R$ 1.234,56⟧, ⟦R$5⟧ ⟦US$ 10.50⟧ ⟦A$\u00a05⟧, ⟦NZ$\u202f7⟧; PRICE$⟦5⟧ B2",
    "a ⟦1\ufe0f\u20e3⟧ ⟦⌚⟧ ⟦▶\ufe0f⟧ ⟦\U0001f3f4\U000e0067\U000e0062\U000e007f⟧ ™ ⟦2⟧",
]


def test_spans_are_found_end_where_they_should_leave_no_other_number_and_take_linear_time() -> None:
    for marked in SPANS:
        kept = ProtectedText.of(text := re.sub("[⟦⟧]", "", marked))
        assert [match[0] for match in EXPRESSION.finditer(text)] == re.findall("⟦(.*?)⟧", marked, re.DOTALL)
        assert not ProtectedText.of(kept.bare).spans and kept.is_whole(text)
    text = "See https://x.org/a_(b), or (https://x.org/a(b)c_(d)) and «www.x.org/e»."
    spans = [span.text for span in ProtectedText.of(text).spans]
    assert spans == ["https://x.org/a_(b)", "(https://x.org/a(b)c_(d))", "«www.x.org/e»"]
    assert not ProtectedText.of("https://x.org/a_(b)").is_whole("https://x.org/a_(b")
    # Tags between digits leave no other number
    assert ProtectedText.of("10<sup>6</sup> euros", tags_only=True).bare == "euros"
    assert ProtectedText.of("a <b>2</b> c", tags_only=True).bare == "a 2 c"
    assert ProtectedText.of("10<sup>-6</sup> m", tags_only=True).bare == "m"
    assert ProtectedText.of("1,<b>000</b> m", tags_only=True).bare == "m"
    kept = ProtectedText.of("a cat sees {a}, {b} and 1, 2")
    assert kept.is_whole("um gato vê 1 2 {a}, {b}") and not kept.is_whole("um gato vê {a}{b} e 1, 2")
    # A number with other digits or signs is lost
    for text, whole, lost in (
        ("10% of $5.99", ["10 % von 5.99 $", "10\u202f% $5.99"], ["10 2 1 5.99", "10% 5.99", "110% $5.99"]),
        ("a 1980s car in 2h30", ["1980er 2h30", "achtziger 2 h 30"], ["19800-Auto 2h30", "1980er 2030"]),
        ("R$ 1.234,56", ["a R$ 1.234,56."], ["de Roma 1.234,56", "1.234,56", "$ 1.234,56"]),
        ("number 12", ["Nr. 12"], ["Nr. 123", "Nr. 12%", "Nr.12er"]),
    ):
        kept = ProtectedText.of(text)
        assert all(kept.is_whole(output) for output in [text, *whole])
        assert not any(kept.is_whole(output) for output in lost)
    pieces = ["a.", "<a ", "{{", "%1$", "1.", "http://", "&a", "👍", "<a b=", "a@b.", "{a,", "{a,{b}", "<!--"]
    for piece in [*pieces, "<![CDATA[", "<a b='", "<a b=c ", "<a open "]:
        assert ProtectedText.of(piece * 20_000).bare is not None


PLURAL = "{n, plural, one {# file} other {# files}}"


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\w+", text)]


def links(source: str, output: str, order: list[int]) -> list[Link]:
    """Links of words: the n-th word of the output comes from word `order[n]` of the source."""
    sources = words(source)
    return [Link(*place, *sources[word]) for place, word in zip(words(output), order, strict=True)]


@pytest.mark.parametrize(
    ("text", "output", "order", "joined"),
    [
        ("a <b>big dog</b> ran", "um cão grande correu", [0, 2, 1, 3], "um <b>cão grande</b> correu"),
        ("<i>red</i> <b>house</b>", "casa vermelha", [1, 0], "<b>casa</b> <i>vermelha</i>"),
        ("hello {{name}}, go", "olá, vai", [0, 1], "olá {{name}}, vai"),
        ("%d files", "ficheiros", [0], "%d ficheiros"),
        ("see https://x.y now", "veja agora", [0, 1], "veja https://x.y agora"),
        ("go (%s)!", "vai!", [0], "vai (%s)!"),
        ("<b>%s</b> is big", "é grande", [0, 1], "<b>%s</b> é grande"),
        ("<a>x <b>y</b></a> z", "Z y x", [2, 1, 0], "Z <a><b>y</b> x</a>"),
        ("end 🙂", "fim", [0], "fim 🙂"),
        ("open <b>it", "abre isto", [0, 1], "abre <b>isto"),
        ("{% if x %} done", "feito", [0], "{% if x %} feito"),
        (f"you have {PLURAL} now", "você tem agora", [0, 1, 2], f"você tem {PLURAL} agora"),
        ("all %% done", "tudo feito", [0, 1], "tudo %% feito"),
        ("<b>a cat.</b> so", "um gato. assim", [0, 1, 2], "<b>um gato.</b> assim"),
        ("<b>a cat</b>.", "um gato.", [0, 1], "<b>um gato</b>."),
        ("a dog <b></b>ran", "um cão correu", [0, 1, 2], "um cão <b></b>correu"),
        ("a b.</b> cat", "um cão. correu", [0, 1, 2], "um cão.</b> correu"),
        ("a cat<0/> ran", "um gato correu", [0, 1, 2], "um gato<0/> correu"),
        ("a cat,<0/> so", "um gato, assim", [0, 1, 2], "um gato,<0/> assim"),
        ("a <b>cat</b>Red", "um gato Vermelho", [0, 1, 2], "um <b>gato</b>Vermelho"),  # two words for the model
        ("<b>a cat: <0/></b>. so", "um gato: . assim", [0, 1, 2], "<b>um gato: <0/></b>. assim"),
        ("<b>big <b-x>dog</b> ran", "cão grande correu", [1, 0, 2], "<b><b-x>cão grande</b> correu"),
    ],
)
def test_spans_are_set_where_their_neighbours_went(text: str, output: str, order: list[int], joined: str) -> None:
    kept = ProtectedText.of(text)
    assert kept.joined(output, links(kept.bare, output, order)) == joined and kept.is_whole(joined)
    assert kept.joined(kept.bare, links(kept.bare, kept.bare, list(range(len(words(kept.bare)))))) == text


def test_what_is_set_at_the_end_stands_before_the_last_mark_and_spans_keep_what_they_touch() -> None:
    for text, output, joined in (
        ("the ball #123.", "o bola.", "o bola #123."),
        ("the ball %s (%d).", "o bola.", "o bola %s (%d)."),
        ("the ball {name}", "o bola!?", "o bola {name}!?"),
        ("the ball. {name}", "o bola.", "o bola. {name}"),
        ("ball(%s)", "球。", "球(%s)。"),
        ("ball#{n}", "球。", "球#{n}。"),
    ):
        kept = ProtectedText.of(text)
        whole = [Link(len(output) - 1, len(output), len(kept.bare) - 1, len(kept.bare))]  # the last letters
        assert kept.joined(output, whole) == joined
    for text, output, joined in (
        ("a cat<sup>[1]</sup>.", "um gato.", "um gato<sup>[1]</sup>."),
        ("%1$sa cat", "um gato", "%1$sum gato"),
        ("a\u00a0%s\u00a0cat", "um gato", "um\u00a0%s\u00a0gato"),
        ("a cat: {a}, {b}.", "gato: .", "gato: {a}, {b}."),
        ("点击%s按钮", "click button", "click %s button"),
        ("cat <0/>, <1/>, dog <2/>.", "gato e cão vê.", "gato <0/>, <1/> e <2/> cão vê."),
        ("a – <0/>/<1/>.", "um –.", "um – <0/>/<1/>."),
    ):
        kept = ProtectedText.of(text)
        sources, targets = words(kept.bare), words(output)
        assert kept.joined(output, [Link(*b, *a) for a, b in zip(sources, targets)]) == joined


def test_what_ends_a_pair_of_tags_stays_in_it_and_pairs_that_are_apart_stay_apart() -> None:
    kept = ProtectedText.of("see <b>a cat %s</b> now")
    joined = kept.joined("vejo um gato já", links(kept.bare, "vejo um gato já", [0, 1, 2, 3]))
    assert joined == "vejo <b>um gato %s</b> já"
    unlinked = ProtectedText.of("parked <b>of</b> a truck")  # "<b>" stood before "Wagen", and "</b>" behind "geparkt"
    two = [Link(10, 17, 0, 6), Link(0, 5, 12, 17)]
    assert unlinked.joined("Wagen ist geparkt", two) == "Wagen <b>ist</b> geparkt"
    assert unlinked.joined("Wagen     geparkt", two) == "Wagen     geparkt <b></b>"  # no other word
    both = ProtectedText.of("parked <b>of</b> <i>a</i> truck")  # one free word is not for two pairs, crossed in it
    assert both.joined("Wagen ist geparkt", two) == "Wagen <b>ist</b> geparkt <i></i>"
    nested = ProtectedText.of("parked <i><b>of</b></i> a truck")
    assert nested.joined("Wagen ist geparkt", two) == "Wagen <i><b>ist</b></i> geparkt"
    empty = ProtectedText.of("parked <b></b>a truck")
    assert empty.joined("Wagen ist geparkt", [two[0], Link(0, 5, 9, 14)]) == "Wagen ist geparkt <b></b>"
    crossed = ProtectedText.of("<b>a <i>b</b> c</i> d")  # the second tag ends with the first, so its end stays single
    assert crossed.joined("A C B D", links(crossed.bare, "A C B D", [0, 2, 1, 3])) == "<b>A C <i>B</b> </i> D"
    # In any order of the words, and each pair beside others has a word that is its own
    kept = ProtectedText.of("riding <a>a</a> <b>horse</b> now")
    horse = [Link(0, 3, 9, 14, 0.2), Link(4, 9, 7, 8), Link(10, 15, 9, 14, 0.8)]
    assert kept.joined("auf einem Pferd", horse) == "auf <a>einem</a> <b>Pferd</b>"
    random = Random(3)
    for _ in range(60):
        groups = [random.sample("kmnpqr", random.randint(1, 3)) for _ in range(random.randint(2, 5))]
        source = " ".join(
            f"<a{n}>{' '.join(words)}</a{n}>" if n % 2 else f"<a{n}><b{n}>{words[0]}</b{n}> {' '.join(words)}.</a{n}>"
            for n, words in enumerate(groups)
        )
        kept = ProtectedText.of(source + " %s end.", tags_only=random.random() < 0.5)
        order = random.sample(range(len(words_of := words(kept.bare))), len(words_of))
        output = " ".join(kept.bare[slice(*words_of[n])] for n in order) + "."
        joined = kept.joined(output, links(kept.bare, output, order))
        opened = list[str]()
        for closing, name in re.findall(r"<(/?)(\w+)>", joined):
            around = [one[1:] for one in opened]
            assert opened.pop() == name if closing else around == [name[1:]] * (name[0] == "b"), joined
            opened += [] if closing else [name]
        assert not re.search(r"<a\d>\W*</a", re.sub(r"</?b\d>", "", joined)), joined
    assert ProtectedText.of("<a>" * 1100 + "x" + "</a>" * 1100).joined("y", [Link(0, 1, 0, 1)]).count("<a>y</a>") == 1


TAGS = re.compile(r"""<!--.*?-->|</?[A-Za-z](?:[^<>"']|"[^"]*"|'[^']*')*>""")  # in the tests' own words


def drawn(random: Random, depth: int = 0) -> Iterator[str]:
    """Words, placeholders and nested tags, with attributes that hold > or have no value."""
    for _ in range(random.randint(1, 4)):
        if random.random() < 0.3 and depth < 3:
            name = random.choice(["b", "i", "SUP", "details"])
            attributes = ["", " open", " class=x", ' title="Home > a"', " x='a < b'", "\n id=y?z=1"]
            yield f"<{name}{random.choice(attributes)}>"
            yield from drawn(random, depth + 1)
            yield f"</{name}>"
        else:
            yield random.choice(["cat", "dog", "red", "{x}", "12", ",", "<br>", '<img alt="a > b"/>', "<!-- a > b -->"])


def open_tags(text: str) -> tuple[list[str], list[str]]:
    """The names of the ends without a beginning, and of the beginnings without an end; none may cross another."""
    ended, opened = list[str](), list[str]()
    for tag in TAGS.findall(text):
        name = re.sub(r"\W.*", "", tag.strip("</"), flags=re.DOTALL)
        if tag.startswith("</") and opened:
            assert opened.pop() == name, text
        elif tag.startswith("</"):
            ended.append(name)
        elif name not in ("", "br", "img"):
            opened.append(name)
    return ended, opened


def test_no_pair_of_tags_is_crossed_or_ends_before_it_begins() -> None:
    """In whole texts and in sentences of them, by a model that reorders, drops and repeats words."""
    random = Random(5)
    for _ in range(1_000):
        pieces = list(drawn(random))
        begin = random.choice([0, random.randrange(len(pieces))])
        pieces = pieces[begin : random.choice([None, random.randint(begin + 1, len(pieces))])]
        text = "".join(piece + random.choice(["", " "]) * (piece[0] != "<") for piece in pieces)
        kept = ProtectedText.of(text, tags_only=random.random() < 0.5)
        output, found = "", list[Link]()
        spans = words(kept.bare)
        for start, end in random.choices(spans, k=random.randint(0, 2 * len(spans))) if spans else ():
            begin = len(output)
            output += kept.bare[start:end].upper()
            found += [Link(begin, len(output), start, end, random.random())] * (random.random() < 0.9)
            output += random.choice([" ", ", "])
        joined = kept.joined(output.strip(), found)
        assert open_tags(joined) == open_tags(text), (text, output, joined)
        assert sorted(TAGS.findall(joined)) == sorted(TAGS.findall(text))


THINGS = ["{a}", "%s", "{{b}}", "<0/>", "<br/>", "<sup>[1]</sup>", "<a id=x></a>", "🙂", "me@x.org", "<b>{c}</b>"]
THINGS += ["&amp;", "12", "[2]", "(%d)", "“{q}”", "@{u}", "#5", "H<sub>2</sub>O", "cat", "dog", "red", "sees"]
BETWEEN = [", ", " ", "; ", " – ", "—", "/", "", "\u00a0", " | ", "、", "，", "\u200f, \u200f"]
BETWEEN += [" & ", " (", ") ", ": ", ". "]


@pytest.mark.parametrize("tags_only", [False, True])
def test_what_stands_between_two_things_stays_there(tags_only: bool) -> None:
    """By a model that writes in capitals, whole; by one that reorders words, where no words are between."""
    random = Random(3)
    for _ in range(400):
        things = random.choices(THINGS, k=random.randint(2, 7))
        text = "".join(thing + random.choice(BETWEEN) for thing in things).strip() + random.choice(["", ".", "!"])
        kept = ProtectedText.of(text, tags_only=tags_only)
        spans = words(kept.bare)
        assert kept.joined(kept.bare.upper(), [Link(*span, *span) for span in spans]).lower() == text.lower()
        output, found = "", list[Link]()
        for start, end in random.choices(spans, k=len(spans)) if spans else ():
            found.append(Link(len(output), len(output) + end - start, start, end))
            output += kept.bare[start:end].upper() + " "
        joined = kept.joined(output.strip(), found)
        assert not tags_only or all(joined.count(span.text) >= 1 for span in kept.spans), (text, joined)
        for row in re.findall(r"(?:<[0-9]/>|\{a\}|%s)(?:(?:, |; | – |—|/|、|，| \| )(?:<[0-9]/>|\{a\}|%s))+", text):
            assert row in joined or tags_only, (text, joined)


def run(texts, glossary: Glossary | None, translate, *, protect=False, said=None, reverse=False) -> list[str]:
    """`protected_outputs` over a toy translator, whose words stay in order or in the reverse; `said`: its steps."""
    steps, answer = protected_outputs(texts, glossary, protect=protect), None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            return [rows[0].text for rows in end.value]
        if said is not None:
            said.append(asked)
        if isinstance(asked, Translate):
            own = asked.own or [{}] * len(asked.texts)
            assert len({"required_words" in options for options in own}) == 1
            answer = [[Output(*translate(text, **options))] for text, options in zip(asked.texts, own, strict=True)]
        else:
            assert isinstance(asked, Align)
            answer = [links(a, b, [*range(len(words(b)))][:: -1 if reverse else 1]) for a, b in asked.pairs]


def upper(text: str, prefix: str = "", required_words: tuple[str, ...] = ()) -> tuple[str, float]:
    rest = " ".join(text.split()[len(prefix.split()) :]).upper()
    return " ".join([*prefix.split(), rest, *required_words]).strip(), -float(len(prefix))


def test_a_lost_term_is_forced_where_its_words_went_in_the_best_form() -> None:
    glossary = glossary_of({"cat": ["felino", "gato"], "dog": "cão", "tea": "CHÁ"})
    written = run(["the cat saw the dog", "no terms", "tea"], glossary, upper)
    assert written == ["THE gato SAW THE cão", "NO TERMS", "CHÁ"]  # the score is higher, the shorter the form

    # What follows a term stays where a search behind it goes astray
    def astray(text: str, prefix: str = "", **_: object) -> tuple[str, float]:
        return f"{prefix}CAT AGAIN" if prefix else text.upper(), 0.0

    written = run(["the cat sees it.", "the cat and a big dog"], glossary_of({"cat": "gato", "big dog": "cão"}), astray)
    assert written == ["THE gato SEES IT.", "THE gato AND A cão"]

    # A term without aligned words is required
    def silent(text: str, required_words: tuple[str, ...] = (), **_: object) -> tuple[str, float]:
        return " ".join(["?", *(word.removesuffix(" ") for word in required_words)]), 0.0

    assert run(["saw the cat"], glossary_of({"cat": "gato"}), silent) == ["? gato"]


def test_words_joined_by_signs_or_hyphens_are_replaced_as_a_whole() -> None:
    def upper_case(text: str, prefix: str = "", **_: object) -> tuple[str, float]:
        return prefix + text.upper()[len(prefix) :], 0.0

    glossary = glossary_of({"24/7": "sempre", "e-mail": "correio", "and/or not": "talvez", "cats": "gatos"})
    texts = ["we open 24/7, daily", "by e-mail.", "so and/or not."]
    assert run(texts, glossary, upper_case) == ["WE OPEN sempre, DAILY", "BY correio.", "SO talvez."]

    # one word of the source, of which two joined words come
    steps = protected_outputs(["see cats/dogs"], glossary, protect=False)
    next(steps)
    assert steps.send([[Output("vê C-A/dogs", 0.0)]]) == Align([("see cats/dogs", "vê C-A/dogs")])
    places = [(0, 2, 0, 3, 1.0), (3, 4, 4, 8, 0.9), (5, 6, 4, 8, 0.5), (7, 11, 9, 13, 1.0)]
    asked = steps.send([[Link(*place) for place in places]])
    assert asked == Translate(["see cats/dogs"], [{"prefix": "vê gatos/dogs"}])
    for term, source, output, link, joined in (
        ("T-shirt", "a T-shirt", "uma T-Shirt já", Link(6, 11, 4, 9), "uma gato já"),  # no word is linked with its T
        ("shirt", "a shirt", "uma T-Shirt já", Link(6, 11, 2, 7), "uma gato já"),
    ):
        steps = protected_outputs([source], glossary_of({term: "gato"}), protect=False)
        next(steps)
        steps.send([[Output(output, 0.0)]])
        assert steps.send([[link]]) == Translate([source], [{"prefix": joined}])


def test_a_term_keeps_its_form_but_for_the_capital_of_a_sentence_and_is_required_as_often_as_it_occurs() -> None:
    def titles(text: str, prefix: str = "", **_: object) -> tuple[str, float]:
        return prefix + text.title()[len(prefix) :], 0.0

    glossary = glossary_of({"phone": "iPhone", "dog": "ebay", "iPod": "tocador"})
    written = run(["Dog sees phone", "Phone. Dog!", "dog", "iPod", "Ah! iPod"], glossary, titles)
    assert written == ["Ebay Sees iPhone", "iPhone. Ebay!", "ebay", "tocador", "Ah! Tocador"]
    assert glossary.report("phone, dog", "IPhone, EBAY") == {"phone": False, "dog": True}
    # A term that is only added as a sentence is left out
    steps = protected_outputs(["cat."], glossary_of({"cat": "gato"}), protect=False)
    next(steps)
    assert steps.send([[Output("Um cão.", 0.0)]]) == Align([("cat.", "Um cão.")])
    assert steps.send([[]]) == Translate(["cat."], [{"required_words": ["gato "]}])
    with pytest.raises(StopIteration) as end:
        steps.send([[Output("Um cão. Gato.", 0.0)]])
    assert end.value.value == [[Output("Um cão.", 0.0)]]
    # Where words come from it; a term that is there once is required again nowhere else, it may be a pronoun
    glossary = glossary_of({"cat": "gato", "dog": ["cão", "cão grande"]})
    assert run(["the cat saw a cat and a cat"], glossary, upper) == ["THE gato SAW A gato AND A gato"]

    def once(text: str, prefix: str = "", **_: object) -> tuple[str, float]:
        rest = text.replace("cat", "gato", 1).upper().split()
        return " ".join([*prefix.split(), *rest[len(prefix.split()) :]]), 0.0

    assert run(["a cat sees the cat"], glossary, once) == ["A GATO SEES THE gato"]
    assert run(["dog sees dog"], glossary, lambda text, **_: ("cão vê", 0.0)) == ["cão vê"]


def test_the_searches_of_many_texts_are_asked_for_at_once_and_lose_nothing_else_that_is_kept() -> None:
    """As many times as the text with the most terms needs, and each text has what it has alone."""
    glossary = glossary_of({"cat": ["felino", "gato"], "dog": "cão", "sun": "sol"})
    texts = ["the cat saw the dog", "no terms", "a sun a cat a dog", "sun", "dog dog"] * 3
    asked = list[Any]()
    assert run(texts, glossary, upper, said=asked) == [run([text], glossary, upper)[0] for text in texts]
    assert [type(one) for one in asked] == [Translate, *[Align, Translate] * 3]
    assert [len(asked[0].texts), len(asked[1].pairs), len(asked[2].texts)] == [15, 12, 15]  # the cat has two forms
    # Samples depend on them, so that they do not depend on the other texts
    steps = protected_outputs(["a", "b %s", "the cat"], glossary_of({"cat": "gato"}), protect=True)
    answers: Any = None
    rows = []
    with pytest.raises(StopIteration):
        while True:
            asked = steps.send(answers)
            if isinstance(asked, Translate):
                rows.append(asked.rows)
                answers = [[Output(text.replace(" %s", ""), 0.0)] for text in asked.texts]
            else:
                answers = [[Link(4, 7, 4, 7)] for _ in asked.pairs]
    assert rows[:3] == [[0, 1, 2], [1], [2]]
    # The search that requires a term without aligned words drops the placeholder; so it is taken out and set again

    def forgets(text: str, required_words: tuple[str, ...] = (), **_: object) -> tuple[str, float]:
        return " ".join([*["%s"] * ("%s" in text and not required_words), "hat", *map(str.strip, required_words)]), 0.0

    assert run(["%s has the cat"], glossary_of({"cat": "gato"}), forgets, protect=True) == ["%s hat gato"]
    always = glossary_of({"24/7": "sempre"})  # what is in a term is not kept beside it
    assert run(["the 24/7 shop"], always, upper, protect=True) == ["THE sempre SHOP"]
    # Spans that the model copies stay where it puts them
    asked = []

    def copies(text: str) -> tuple[str, float]:
        asked.append(text)
        return " ".join(reversed(text.split())), 0.0

    assert run(["a %s b", "<b>c</b> d"], None, copies, protect=True) == ["b %s a", "<b>d</b> c"]
    assert asked == ["a %s b", "c d"]
