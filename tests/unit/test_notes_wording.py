"""The notes in Portuguese: every row, error and phrase has its translation, and numbers and columns stay in place."""

import ast
import json
import re
from html import unescape
from importlib.resources import files
from pathlib import Path

from atento.base.errors import UsageError
from atento_lab.notes.checks import attention, examples
from atento_lab.notes.checks.figures import all_to_all
from atento_lab.notes.errata import ERRATA
from atento_lab.notes.finding import flat, one_line
from atento_lab.notes.note_pages import five_notes
from atento_lab.notes.page import _HEAD, SECTIONS
from atento_lab.notes.table import ROWS, Result
from atento_lab.notes.wording import CREDIT, ENGLISH, wording
from failing import fails

CATALOGUE = json.loads(files("atento_lab.notes").joinpath("portuguese.json").read_text(encoding="utf-8"))
PORTUGUESE = wording("pt-BR")
# words that no Portuguese text has, names of functions and quoted English apart


def english_in(text: str) -> list[str]:
    """The English words of a text, less what stands in quotation marks, in backticks, or is a published name."""
    plain = re.sub(r'`[^`]+`|"[^"]+"|Raffel et al\.|branch and bound|the × 7|How are you[?]', "", text)
    return re.compile(
        r"\b(?:the|of|and|with|without|from|away|is|are|not|this|that|which|words?|rows?|token's|loss|layers?|heads?|by"
        r"|each|every|all|its|their|than|between|where|other|text|texts|sentence|right|wrong|at least|at most)\b"
    ).findall(plain)


def left_in_english(result: Result) -> list[str]:
    """The texts of a row that has run whose Portuguese has English words: labels, reason, table, figures, answers."""
    finding, said = result.finding, PORTUGUESE.text
    texts = [said(part) for side in (finding.value, finding.expected) for path in flat(side) for part in path]
    texts += [said(part) for path in (flat(finding.notes) if finding.notes else ()) for part in path]
    texts.append(PORTUGUESE.remark(finding.remark))
    texts += [] if finding.answers else PORTUGUESE.drawing(finding.drawing).splitlines()
    for figure in (finding.figure, *(answer.figure for answer in finding.answers)):
        texts += map(unescape, re.findall(r"<(?:text|title)[^>]*>([^<>]+)<", PORTUGUESE.figure(figure)))
    texts += [text for answer in finding.answers for text in (answer.question[1], answer.answer[1])]
    return [text for text in texts if english_in(text)]


def test_every_row_error_phrase_reason_and_heading_has_its_translation_and_nothing_is_left_in_english() -> None:
    assert list(CATALOGUE) == ["yes", "no", "rows", "errors", "phrases", "drawn"]
    assert CATALOGUE["rows"].keys() == ROWS.keys() and list(CATALOGUE["errors"]) == [str(n) for n in ERRATA]
    for name, (title, about) in CATALOGUE["rows"].items():
        assert title.strip() and about.strip().endswith("."), name
    for number, (notes, right) in CATALOGUE["errors"].items():
        assert notes.strip() and right.strip(), number
        assert (notes, right) != (ERRATA[int(number)].notes, ERRATA[int(number)].right), number
    for section in ("phrases", "drawn"):
        for english, portuguese in CATALOGUE[section].items():
            assert portuguese.strip(), english
            assert english.count("{}") == portuguese.count("{}"), english
            assert sorted(re.findall("`[^`]+`", english)) == sorted(re.findall("`[^`]+`", portuguese)), english
    assert len(remarks()) > 75
    assert {text: file for text, file in remarks().items() if text not in CATALOGUE["phrases"]} == {}
    texts = [*SECTIONS.values(), *_HEAD, CREDIT, *(note.title for note in five_notes())]
    texts += [chapter.title for note in five_notes() for chapter in note.chapters]
    same = {"BERT", "T5", "Teacher forcing", "Tokens"}
    assert [text for text in texts if PORTUGUESE.text(text) == text and text not in same] == []
    # Of texts that are long enough to show their language
    told = [text for pair in [*CATALOGUE["rows"].values(), *CATALOGUE["errors"].values()] for text in pair]
    told += [*CATALOGUE["phrases"].values(), *CATALOGUE["drawn"].values()]
    assert {text: left for text in told if (left := english_in(text))} == {}
    english = [text for row in ROWS.values() for text in (row.title, row.about())]
    assert sum(bool(english_in(text)) for text in english) > 100  # the words would be found
    # A translation tells the same numbers: none is lost and none is made up

    def numbers(text: str) -> set[str]:
        return set(re.findall(r"\d{2,}", text.replace(",", "").replace(".", "")))

    for row in ROWS.values():
        assert numbers(row.about(PORTUGUESE)) == numbers(row.about()), row.id
    for number, one in ERRATA.items():
        assert numbers(" ".join(PORTUGUESE.error(number))) == numbers(f"{one.notes} {one.right}"), number


def remarks() -> dict[str, str]:
    """The reasons in the source of the checks, `{}` for what a run fills in, by the file they stand in."""
    found = {}
    for file in sorted(Path(attention.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.keyword) and node.arg == "remark" else None
            if isinstance(value, ast.Constant):
                found[str(value.value)] = file.name
            elif isinstance(value, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in value.values]
                found["".join(map(str, parts))] = file.name
    return found


def test_labels_of_a_row_are_in_portuguese() -> None:
    for check in (attention.roles, attention.sees_everything, examples.three_one_hot_tokens):
        finding = check()
        labels = [
            part for side in (finding.value, finding.expected, finding.notes) for path in flat(side) for part in path
        ]
        assert [label for label in labels if english_in(PORTUGUESE.text(label))] == []
        assert english_in(one_line(finding.expected, PORTUGUESE)) == []
        assert PORTUGUESE.remark(finding.remark) != finding.remark and "(erro" in PORTUGUESE.remark(finding.remark)
    assert wording("pt") is wording("pt-BR") and wording("en") is ENGLISH
    fails(UsageError, r"not written in 'fr'.*Known: en, pt, pt-BR", wording, "fr")


def test_numbers_words_remarks_columns_and_texts_of_a_figure_are_told() -> None:
    value = {"seen": [0.5, 1e-10], "may cache": [True, False], "parameters": 1234567}
    assert one_line(value, PORTUGUESE) == "vistas: [0,5 1e-10]; pode usar cache: [sim não]; parâmetros: 1234567"
    assert PORTUGUESE.text("at most 0.001") == "no máximo 0,001" and PORTUGUESE.number("1,234.5 ms") == "1.234,5 ms"
    assert one_line(value) == "seen: [0.5 1e-10]; may cache: [yes no]; parameters: 1234567"
    # A token or a label that happens to be an English word is what it is
    assert one_line(["no", "yes", "o gato", "que", "3.1.2"], PORTUGUESE) == "[no yes 'o gato' que 3.1.2]"
    assert one_line("<script>", PORTUGUESE) == "<script>"
    first, second = "the listing takes no mask (error 17)", "12 random chains each"
    assert (
        PORTUGUESE.remark(f"{first}; {second}") == "o código não aceita máscara (erro 17); 12 cadeias aleatórias cada"
    )
    assert PORTUGUESE.remark("something new") == "something new" and ENGLISH.remark(first) == first
    table = "position    0    3\nupdates    40   25\nmoved by 0.19 0.02\nby Adam  0.07 0.06"
    drawn = "posição     0    3\natualiz.   40   25\nmovida   0,19 0,02\nAdam     0,07 0,06"
    assert PORTUGUESE.drawing(table) == drawn and ENGLISH.drawing(table) == table
    header = "tokens          plain       blocked  window of 64"
    assert [len(PORTUGUESE.drawing(header)), len(header)] == [len(header)] * 2
    assert PORTUGUESE.drawing("  + um  kept\n  - o gato  1,234 the search was over") == (
        "  + um  fica\n  - o gato  1.234 a busca tinha acabado"
    )
    # Translated, escaped again, narrower if longer; attributes and other elements are as they were
    svg = '<svg><title>the mask</title><text x="1" fill="#kept">left out</text><text>a &lt;b&gt; &amp; c</text></svg>'
    assert PORTUGUESE.figure(svg) == svg.replace("the mask", "a máscara").replace("left out", "fora")
    long = PORTUGUESE.figure('<text x="1">weights</text><text x="1">softmax: weights</text><text>next sentence</text>')
    assert ">pesos<" in long and ">softmax: pesos<" in long and ">próxima frase<" in long
    wide = PORTUGUESE.figure("<text>attention weights</text><text>words</text>")
    assert 'textLength="36"' in PORTUGUESE.figure('<text font-size="10">words</text>')
    assert wide == '<text>pesos da atenção</text><text textLength="43" lengthAdjust="spacingAndGlyphs">palavras</text>'
    assert PORTUGUESE.figure("<text>0.25</text>") == "<text>0,25</text>" and ENGLISH.figure(svg) == svg
    texts = re.findall(r"<(?:text|title)[^>]*>([^<>]+)<", PORTUGUESE.figure(all_to_all().figure))
    assert len(texts) > 30 and [text for text in texts if english_in(text)] == []
