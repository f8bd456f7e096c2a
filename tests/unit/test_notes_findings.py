"""What a row hands back: agreement, values, drawings, all in Portuguese too; row B12 on documents of one's own."""

import ast
import json
import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from atento.base.errors import DataError, UsageError
from atento.inspection import palette
from atento_lab.notes.checks import attention, examples, summaries
from atento_lab.notes.checks.figures import all_to_all
from atento_lab.notes.drawing import arrow, colour, heat, labelled, links, shaded, sheet, wave
from atento_lab.notes.errata import ERRATA
from atento_lab.notes.finding import AtLeast, AtMost, agrees, compare, flat, grid, one_line, plain
from atento_lab.notes.note_pages import five_notes
from atento_lab.notes.page import _HEAD, SECTIONS
from atento_lab.notes.table import ROWS, Result, run, with_documents
from atento_lab.notes.wording import CREDIT, ENGLISH, wording
from failing import fails


def test_what_agrees_values_for_json_for_people_as_text_and_parts_of_a_drawing() -> None:
    for value, expected, within, right in (
        (1.0, 1.0 + 1e-7, 1e-6, True),
        (1.0, 1.0 + 1e-5, 1e-6, False),
        (1.0e-77, 1.1e-77, 1e-6, False),
        (0.0, 0.0, 0.0, True),
        (1e-9, 0.0, 0.0, False),
        (float("nan"), 1.0, 1e9, False),
        (float("nan"), AtMost(1.0), 0.0, False),
        (0.5, AtMost(0.5), 0.0, True),
        (0.6, AtMost(0.5), 0.0, False),
        (0.4, AtLeast(0.5), 0.0, False),
        (True, AtLeast(0.5), 0.0, False),
        ("high", AtLeast(0.5), 0.0, False),
        (True, 1, 0.0, False),
        (1, 1.0, 0.0, True),
        (2, 1, 5.0, False),
        ([1, 2], [1, 2], 0.0, True),
        ([1, 2], [1, 2, 3], 0.0, False),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0], 0.0, True),
        ({"a": 1}, {"a": 1, "b": 2}, 0.0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 0.0, False),
        ({"a": [0.1]}, {"a": [AtMost(0.2)]}, 0.0, True),
        ("a", "b", 0.0, False),
        (None, None, 0.0, True),
    ):
        assert agrees(value, expected, within) is right and compare(value, expected, within=within).passed is right
    value = {"a": torch.tensor([1.5, float("-inf")]), "b": AtMost(1e-5), "c": {"d": (True, None)}}
    assert plain(value) == {"a": [1.5, "-inf"], "b": "at most 1e-05", "c": {"d": [True, None]}}
    assert one_line(plain(value)) == "a: [1.5 -inf]; b: at most 1e-05; c: (d: [yes -])"
    assert one_line(["two words", "one"]) == "['two words' one]"
    assert grid([[1.0, 0.25], [-3.0, float("-inf")]]) == "    1 0.250\n   -3  -inf"
    assert labelled([[1.0, -0.001], [2.5, float("-inf")]], ["a", "bcd"], ["x", "y"]) == "\n".join(
        ["       x    y", "a   1.00 0.00", "bcd 2.50 -inf"]
    )
    assert shaded([[-1.0, 0.0, 1.0], [0.99, -0.5, 0.3]]) == "··▒▒██\n██░░▓▓"
    # Names are escaped, negative numbers brown, what is masked grey; text maps need no colour
    panel = heat([[1.0, -1.0], [float("-inf"), -0.001]], "a <b>", ["<x>", "y"], ["&", "z"])
    text = "".join(panel.parts)
    assert "<b>" not in text and "&lt;x&gt;" in text and "&amp;" in text
    assert text.count("<rect") == 4 and "−∞" in text and ">0.00<" in text and "-0.00" not in text
    assert panel.width > 2 * 38 and panel.height > 2 * 38
    assert colour(float("-inf"), 1.0) == palette.ZERO
    blue, brown = (tuple(int(colour(x, 2.0)[i : i + 2], 16) for i in (1, 3, 5)) for x in (2.0, -2.0))
    assert blue[2] > blue[0] and brown[0] > brown[2]
    assert colour(0.0, 0.0) == colour(0.0, 1.0) and colour(3.0, 1.0) == colour(1.0, 1.0)
    assert "".join(heat([[1.0]], "small", cell=10).parts).count("<text") == 1  # no room for numbers
    assert len([part for part in links([[0.0, 0.5], [0.0, 1.0]], ["a", "b"], "").parts if "<line" in part]) == 2
    tall = wave([0.5, -0.5], "two")
    assert [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', "".join(tall.parts))] == [50.0, 70.0]
    picture = sheet("t & u", [[panel, arrow(), tall], [panel]])
    ElementTree.fromstring(picture)
    assert picture.count("<g ") == 4


def elements(svg):
    """Every element of a drawing, without the namespace."""
    return [(one.tag.rpartition("}")[2], one) for one in ElementTree.fromstring(svg).iter()]


def test_j1_j2_j4_figures_stand_alone_and_draw_weights_masks_and_distances() -> None:
    """Well-formed, nothing that acts or is fetched, all of it inside the picture; the JSON record leaves it out."""
    for name in ["J1", "J2", "J4"]:
        result = next(run([ROWS[name]]))
        found = elements(result.finding.figure)
        assert found[0][0] == "svg" and {tag for tag, _ in found} <= {
            "svg",
            "title",
            "rect",
            "text",
            "g",
            "line",
            "path",
        }
        assert not re.search(r"href|url\(|@import|<!|on[a-z]+=", result.finding.figure)
        width, height = (float(found[0][1].get(side)) for side in ("width", "height"))
        for group in ElementTree.fromstring(result.finding.figure).findall("{*}g"):
            left, top = map(float, re.findall(r"[\d.]+", group.get("transform")))
            for rect in group.findall("{*}rect"):
                x, y, w, h = (float(rect.get(side)) for side in ("x", "y", "width", "height"))
                assert left + x + w <= width and top + y + h <= height
        assert "figure" not in result.record() and result.record()["drawing"]
    # A line for each of 16 pairs, the strongest the thickest, as the text's matrix says
    finding = next(run([ROWS["J1"]])).finding
    rows = [line.split()[1:] for line in finding.drawing.splitlines()[2:6]]
    lines = [one for tag, one in elements(finding.figure) if tag == "line"]
    thick = [float(one.get("stroke-width")) for one in lines]
    weights = [float(cell) for row in rows for cell in row]
    assert len(lines) == 16 and thick.index(max(thick)) == weights.index(max(weights))
    assert thick == pytest.approx([0.6 + 5 * weight for weight in weights], abs=0.04)
    # -inf above the diagonal in the text, as many signs in the drawing; y_3 reads three inputs
    finding = next(run([ROWS["J2"]])).finding
    rows = [line.split()[1:] for line in finding.drawing.splitlines()[1:5]]
    assert [[cell == "-inf" for cell in row] for row in rows] == [[j > i for j in range(4)] for i in range(4)]
    assert finding.figure.count("−∞") == 6
    titles = [one.find("{*}title").text for tag, one in elements(finding.figure) if tag == "line"]
    assert [title.split(":")[0] for title in titles] == [f"y_3 reads {x}" for x in ("x_1 o", "x_2 gato", "x_3 pulou")]
    lines = next(run([ROWS["J4"]])).finding.drawing.splitlines()
    start = lines.index("absolute: the position of each token; relative: the distance of each key") + 2
    told = [[int(cell) for cell in line.split()[1:]] for line in lines[start : start + 4]]
    assert told == [[i, *(j - i for j in range(4))] for i in range(4)]
    assert lines[lines.index("position 1, width 8") + 1].split()[1:5] == ["0.8415", "0.5403", "0.0998", "0.9950"]


def lines(count: int) -> list[str]:
    """Documents of 1 to 8 sections of two words, the second of which is one of the summary."""
    texts = [[f"w{(7 * n + k) % 5}" for k in range(1 + n % 8)] for n in range(count)]
    return [f"{' '.join(f'h {word}' for word in words)}\t{' '.join(words)}" for words in texts]


def test_b12_documents_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "STEPS", 60)
    monkeypatch.setattr(summaries, "SCHEMES", {"sinusoidal": summaries.SCHEMES["sinusoidal"]})
    (tmp_path / "own.tsv").write_text("\n".join(lines(64)) + "\n", encoding="utf-8")
    (row,) = with_documents([ROWS["B12"]], tmp_path / "own.tsv")
    found = next(run([row])).finding
    assert found.passed and list(found.value) == list(summaries.SCHEMES)
    # 64 documents of 2, 4 ... 16 words, 8 of each: the shorter half has at most 10, of which one in five is a test
    assert found.remark.startswith("32 documents of at most 10 words in training")
    for of_length in found.value.values():
        assert list(of_length) == ["up to 10 words", "up to 20 words"]
        for shares in of_length.values():
            assert 0 <= shares["order"] <= shares["structure"] <= 1
    assert found.value["sinusoidal"]["up to 10 words"]["structure"] > 0.3  # it has learned something
    records = [dict(zip(("source", "target"), line.split("\t"))) for line in lines(64)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    monkeypatch.setattr(summaries, "STEPS", 2)
    (same,) = with_documents([ROWS["B12"]], tmp_path / "own.jsonl")
    assert next(run([same])).finding.remark == found.remark.replace("60 updates", "2 updates")


def test_b12_padding_changes_no_word(tmp_path: Path) -> None:
    """A document beside a longer one is read as it is alone."""
    short, long = ([33, 34, 35], [34]), ([33, 34, 35, 36, 33, 34], [35, 36])
    config = summaries.NetworkConfig(vocab_size=40, d_model=16, d_ff=16, n_heads=2, n_layers=1, dropout=0.0)
    built = summaries.EncoderDecoder(config).eval()
    alone = summaries.said(built, *summaries._padded([short]))
    assert (alone - summaries.said(built, *summaries._padded([short, long]))[:1, :2]).abs().max() < 1e-5
    (tmp_path / "few.tsv").write_text("\n".join(lines(19)), encoding="utf-8")
    with pytest.raises(DataError, match="the documents must be at least 20, with a summary each: got 19"):
        with_documents([ROWS["B12"]], tmp_path / "few.tsv")
    with pytest.raises(UsageError, match="row A3 takes no documents: those that do are B12"):
        with_documents([ROWS["A3"]], tmp_path / "few.tsv")
    (tmp_path / "one.jsonl").write_text('{"source": "a"}\n', encoding="utf-8")
    fails(DataError, r"one\.jsonl:1", with_documents, [ROWS["B12"]], tmp_path / "one.jsonl")


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
