"""What a row hands back: agreement, values, drawings as text and SVG; row B12 on documents of one's own (B12)."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from atento.base.errors import DataError, UsageError
from atento.inspection import palette
from atento_lab.notes.checks import summaries
from atento_lab.notes.drawing import arrow, colour, heat, labelled, links, shaded, sheet, wave
from atento_lab.notes.finding import AtLeast, AtMost, agrees, compare, grid, one_line, plain
from atento_lab.notes.table import ROWS, run, with_documents
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
