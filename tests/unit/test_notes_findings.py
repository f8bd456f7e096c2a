"""What a row hands back: agreement, values for JSON and for people, drawings as text and SVG, figures as files."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import typer
from typer.testing import CliRunner

from atento.base.errors import UsageError
from atento.inspection import palette
from atento_lab.notes.command import register
from atento_lab.notes.drawing import arrow, colour, heat, labelled, links, shaded, sheet, wave
from atento_lab.notes.finding import AtLeast, AtMost, agrees, compare, grid, one_line, plain
from atento_lab.notes.table import ROWS, run


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


# Drawings ------------------------------------------------------------------------------------------------------------


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


# Figures as files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def app():
    """An application with this command beside another, as the real one has it."""
    made = typer.Typer()
    register(made)
    made.command("other")(lambda: None)
    return made


def notes(app, *arguments):
    return CliRunner().invoke(app, ["notes", *map(str, arguments)])


def test_out_writes_the_figures_of_the_rows_that_have_one(app, tmp_path) -> None:
    folder = tmp_path / "new" / "figures"
    result = notes(app, "J1", "A7", "J4", "--out", folder, "--json")
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["J1.svg", "J4.svg"]
    assert result.stderr.startswith(f"wrote {folder / 'J1.svg'}, {folder / 'J4.svg'}\n")
    for path in folder.iterdir():
        assert elements(path.read_text(encoding="utf-8"))[0][0] == "svg"
    result = notes(app, "A7", "--out", tmp_path / "none")
    assert result.exit_code == 0 and not list((tmp_path / "none").iterdir())
    assert result.stderr.startswith("--out: none of these rows has a figure\n")
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = notes(app, "J1", "--out", tmp_path / "file")
    assert isinstance(result.exception, UsageError) and result.stdout == ""
    assert "is a file, and a folder is needed" in str(result.exception)
