"""The attention page in a real browser: offline, quiet, exact, and usable by mouse, by keys and on a phone."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.decoding import Beam, generate
from atento.decoding.trace import Trace
from atento.inspection import AttentionRecord
from atento.inspection.decoding_page import decoding_page
from atento.inspection.page import attention_page
from atento.networks import build_network, presets
from conftest import Watched


def weights(rows: int, columns: int, seed: int, causal: bool = False) -> list[np.ndarray]:
    layers = np.random.default_rng(seed).dirichlet(np.ones(columns), size=(2, 3, rows)).astype(np.float32)
    if causal:
        layers = np.tril(layers)
        layers /= layers.sum(-1, keepdims=True)
    return list(layers)


def pair(source: list[str], target: list[str], **more: Any) -> AttentionRecord:
    """A translation whose pieces that start with "▁" or "<" open a word; "</s>" and "<s>" are special."""

    def words(tokens: list[str]) -> list[int]:
        found, count = [], -1
        for token in tokens:
            count += token.startswith(("▁", "<script"))
            found.append(-1 if token in ("<s>", "</s>") else count)
        return found

    read, written = ["<s>", *target], [*target, "</s>"]
    sides = {"": read, "output_": written, "source_": source}
    more |= {f"{side}tokens": tokens for side, tokens in sides.items()}
    more |= {f"{side}words": words(tokens) for side, tokens in sides.items()}
    kinds = {"encoder": weights(len(source), len(source), 1)}
    kinds |= {"decoder": weights(len(read), len(read), 2, causal=True), "cross": weights(len(read), len(source), 3)}
    masks = {"encoder": "bidirectional", "decoder": "causal", "cross": "bidirectional"}
    return AttentionRecord(kinds=kinds, masks=masks, **more)


SHORT = (["▁the", "▁cat", "▁jump", "ed", "</s>"], ["▁o", "▁gat", "o", "▁pul", "ou"])
LONG = ([f"▁palavra{n}" for n in range(40)], [f"▁word{n}" for n in range(40)])


class Opened(Watched):
    def open_table(self) -> None:
        if not self.page.locator("#numbers").evaluate("box => box.open"):
            self.page.locator("#numbers summary").click()
            self.page.wait_for_selector("#table table")

    def table(self) -> tuple[list[str], list[str], np.ndarray]:
        """Row labels, column labels and numbers of the table that equals the map."""
        self.open_table()
        cells = "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
        head, *lines = self.page.locator("#table tr").evaluate_all(cells)
        return [line[0] for line in lines], head[1:], np.array([line[1:] for line in lines], dtype=float)

    def picture(self) -> str:
        return str(self.page.locator("#heat-canvas").evaluate("canvas => canvas.toDataURL()"))

    def caption(self) -> str:
        return str(self.page.locator("#caption").text_content())


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    def open_page(record: AttentionRecord, fragment: str = "", width: int = 1200, **context: Any) -> Opened:
        record.save(tmp_path / "page.html")
        return Opened(browser, (tmp_path / "page.html").as_uri() + fragment, width, **context)

    return open_page


def test_the_page_asks_nothing_of_the_network_and_complains_of_nothing(opened: Any) -> None:
    seen = opened(pair(*SHORT, title="o gato pulou"), offline=True)
    for button in ("#view-lines", "#view-heat", "#help-open", "#help-close", "#numbers summary"):
        seen.page.locator(button).click()
    with seen.page.expect_download() as download:
        seen.page.locator("#save").click()
    assert download.value.suggested_filename == "attention-cross-layer-1-head-mean.png"
    assert [url for url in seen.requests if not url.startswith(("file:", "blob:"))] == []
    assert len([url for url in seen.requests if url.startswith("file:")]) == 1
    assert seen.complaints == [] and seen.page.title() == "o gato pulou · attention"


def test_every_map_shows_the_numbers_of_the_record(opened: Any) -> None:
    record = pair(*SHORT)
    seen = opened(record)
    pictures = set()
    heads: tuple[Any, ...] = ("mean", "max", 2)
    for kind, layer, head in product(("encoder", "decoder", "cross"), (0, 1), heads):
        for name, value in (("#kind", kind), ("#layer", str(layer)), ("#head", str(head))):
            seen.page.select_option(name, value)
        rows, columns, numbers = seen.table()
        assert [rows, columns] == [side.tokens for side in record.sides(kind)]
        np.testing.assert_allclose(numbers, record.weights(layer, head, kind), atol=0.00005001)
        pictures.add(seen.picture())
    assert len(pictures) == 3 * 2 * 3  # each switch draws another map
    assert seen.complaints == []


def test_merged_words_are_those_of_python_and_hidden_specials_leave_the_rest_alone(opened: Any) -> None:
    record = pair(*SHORT)
    seen = opened(record)
    before = seen.table()
    seen.page.check("#merge")
    rows, columns, numbers = seen.table()
    merged = record.word_weights(-1, "mean")
    assert rows == ["o", "gato", "pulou", "</s>"] and columns == ["the", "cat", "jumped", "</s>"]
    assert len(rows) < len(before[0])
    np.testing.assert_allclose(numbers, merged.weights, atol=0.00005001)
    seen.page.check("#hide")
    rows, columns, numbers = seen.table()
    assert rows == ["o", "gato", "pulou"] and columns == ["the", "cat", "jumped"]
    np.testing.assert_allclose(numbers, merged.weights[:3, :3], atol=0.00005001)
    seen.page.keyboard.press("ArrowRight")
    hidden = re.search(r"Hidden special tokens hold ([0-9.]+)", seen.page.locator("#details").inner_text())
    assert hidden and float(hidden[1]) == pytest.approx(merged.weights[0, 3], abs=0.00006)


def test_script_tokens_stay_text(opened: Any) -> None:
    hostile = "<script>document.title='owned'</script>"
    record = pair(["▁a", hostile, "<img src=x onerror=alert(1)>"], [hostile], title=hostile, model=hostile)
    seen = opened(record, "#view=lines&kind=encoder&pin=row-1")
    assert seen.page.locator("#column-tokens li").nth(1).text_content() == hostile
    assert seen.page.locator("#details h2").text_content() == hostile and seen.table()[1][1] == hostile
    assert seen.page.locator("h1").text_content() == hostile
    assert seen.page.locator("script").count() == 2 and seen.page.locator("img").count() == 0
    assert seen.page.title() == f"{hostile} · attention" and seen.complaints == []


def test_the_policy_stops_what_escaping_would_have_missed(browser: Any, tmp_path: Path) -> None:
    """As if a token had broken out: neither its script nor its picture gets anywhere."""
    pair(*SHORT, title="clean").save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    bad = "<script>document.title = 'owned'</script><img src='http://127.0.0.1:9/x' onerror='document.title = 1'>"
    (tmp_path / "page.html").write_text(text.replace("</main>", f"{bad}</main>"), encoding="utf-8", newline="\n")
    seen = Opened(browser, (tmp_path / "page.html").as_uri())
    page = seen.page
    assert page.title() == "clean · attention" and seen.table()[0]
    assert len([said for said in seen.complaints if "Content Security Policy" in said]) >= 2
    assert "ERR_CONNECTION" not in " ".join(seen.complaints)
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>owned</b>'")
    page.close()


def test_the_address_restores_the_state(opened: Any) -> None:
    record = pair(*SHORT)
    first, chosen = opened(record), {"kind": "decoder", "layer": "0", "head": "2", "scale": "one"}
    for name, value in chosen.items():
        first.page.select_option(f"#{name}", value)
    first.page.check("#merge")
    first.page.locator("#view-lines").click()
    first.page.locator("#row-tokens button").nth(2).click()
    assert first.page.locator("#details h2").text_content() == "gato"
    fragment = "#" + first.page.url.split("#")[1]
    second = opened(record, fragment)
    assert {name: second.page.locator(f"#{name}").input_value() for name in chosen} == chosen
    assert second.page.is_checked("#merge") and second.page.locator("#lines").is_visible()
    assert second.page.locator("#details h2").text_content() == "gato"
    assert second.caption() == first.caption() and second.table()[0] == first.table()[0]
    second.page.evaluate("location.hash = '#view=heat&kind=encoder&layer=99&head=99&pin=row-99'")
    second.page.wait_for_function("document.getElementById('kind').value === 'encoder'")
    assert second.page.locator("#layer").input_value() == "1" and second.page.locator("#head").input_value() == "2"
    assert second.complaints == []
    senseless = opened(record, "#view=x&kind=__proto__&layer=-1&head=toString&pin=row-x&merge=maybe&%%%")
    assert senseless.page.locator("#kind").input_value() == "cross" and senseless.complaints == []


def test_keys_move_token_layer_and_head(opened: Any) -> None:
    record = pair(*SHORT)
    seen = opened(record, "#kind=cross&layer=0&head=0")
    press, details = seen.page.keyboard.press, seen.page.locator("#details")
    press("ArrowUp")
    press(".")
    assert seen.page.locator("#layer").input_value() == "1" and seen.page.locator("#head").input_value() == "1"
    press("ArrowDown")
    press(",")
    press("ArrowDown")
    assert seen.caption().startswith("Cross-attention, layer 0, head 0 (mask: bidirectional).")
    press("ArrowRight")
    press("ArrowRight")
    assert details.locator("h2").text_content() == "▁gat"
    row = record.weights(0, 0)[1]
    order = np.argsort(-row)
    shown = details.locator(".links").first.locator("li")
    assert shown.locator(".name").all_text_contents() == [record.source_tokens[at] for at in order]
    values = [float(text) for text in shown.locator(".value").all_text_contents()]
    assert values == pytest.approx(row[order], abs=0.0001)
    press("ArrowLeft")
    assert details.locator("h2").text_content() == "▁o"
    press("Shift+ArrowRight")
    press("Shift+ArrowRight")
    assert seen.page.locator("#tip").text_content() == f"▁o reads ▁cat: {record.weights(0, 0)[0, 1]:.4f}"
    press("Escape")
    assert details.locator("h2").text_content() == "Strongest links"
    press("?")
    help_box = seen.page.locator("#help")
    assert help_box.is_visible() and "not say that the output" in help_box.inner_text()
    press("Escape")
    assert not help_box.is_visible()


def test_pointing_tells_the_exact_weight_and_a_click_pins(opened: Any) -> None:
    record = pair(*SHORT)
    seen = opened(record, "#kind=encoder&layer=1&head=1")
    place = seen.page.evaluate("() => ({ left: geo.left, top: geo.top, cell: geo.cell })")
    at = {"x": place["left"] + 3.5 * place["cell"], "y": place["top"] + 2.5 * place["cell"]}
    seen.page.locator("#heat-canvas").hover(position=at)
    assert seen.page.locator("#tip").text_content() == f"▁jump reads ed: {record.weights(1, 1, 'encoder')[2, 3]:.4f}"
    assert seen.page.locator("#tip").evaluate("tip => tip.style.visibility") == "visible"
    seen.page.locator("#heat-canvas").click(position=at)
    assert seen.page.locator("#details h2").text_content() == "▁jump"
    assert "is read most by" in seen.page.locator("#details").inner_text()
    seen.page.locator("#heat-canvas").click(position={"x": at["x"], "y": place["top"] - 9})
    assert "pin=column-3" in seen.page.url
    seen.page.locator("#details button").click()
    assert "pin=" not in seen.page.url


@pytest.mark.parametrize("view", ["heat", "lines"])
def test_a_phone_scrolls_the_map_and_never_the_page_sideways(opened: Any, view: str) -> None:
    long_word = pair(["▁pneumoultramicroscopicossilicovulcanoconiótico" * 3, *LONG[0]], LONG[1], title="x" * 300)
    seen = opened(long_word, f"#view={view}&pin=row-3", width=360)
    seen.table()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    inside = "(control) => !control.offsetWidth || control.getBoundingClientRect().right <= 360"
    assert seen.page.evaluate(f"[...document.querySelectorAll('button, select, input')].every({inside})")
    if view == "heat":
        assert seen.page.evaluate("document.getElementById('heat').scrollWidth") > 360
        before = seen.picture()
        seen.page.evaluate("document.getElementById('heat').scrollLeft = 200")
        seen.page.wait_for_timeout(100)
        assert seen.picture() != before


def test_forty_tokens_fit_a_desk_and_five_hundred_redraw_at_once(opened: Any) -> None:
    seen = opened(pair(*LONG))
    beyond = "b => [b.scrollWidth - b.clientWidth, b.scrollHeight - b.clientHeight]"
    assert seen.page.locator("#heat").evaluate(beyond) == [0, 0] and seen.page.evaluate("geo.cell") >= 15
    length = 512
    layers = np.tril(np.random.default_rng(0).uniform(0, 1, (1, 2, length, length))).astype(np.float32)
    layers /= layers.sum(-1, keepdims=True)
    seen = opened(AttentionRecord(tokens=[f"w{n}" for n in range(length)], kinds={"decoder": list(layers)}))
    redrawn = "(from => { change({ head: 1 }); drawHeatWindow(); return performance.now() - from; })(performance.now())"
    assert seen.page.evaluate(redrawn) < 2000  # about 60 ms on an idle machine
    assert seen.page.locator("#heat-canvas").evaluate("canvas => Math.max(canvas.width, canvas.height)") <= 1200
    seen.open_table()
    assert seen.page.locator("#table tbody tr").count() == length
    assert seen.page.locator("#table tbody tr").last.locator("td").count() == 8
    seen.page.locator("#view-lines").click()
    assert seen.page.locator("#row-tokens li").count() == length and seen.complaints == []


def test_dark_follows_the_system_and_a_long_title_is_folded(opened: Any) -> None:
    record = pair(*SHORT)
    light, dark = opened(record, color_scheme="light"), opened(record, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert light.page.evaluate(ground) != dark.page.evaluate(ground) and light.picture() != dark.picture()
    light.page.emulate_media(color_scheme="dark")
    light.page.wait_for_timeout(100)
    assert light.picture() == dark.picture()
    seen = opened(pair(*SHORT, title="palavra " * 120))
    folded = seen.page.locator("#title").bounding_box()["height"]
    assert folded < 80
    seen.page.locator("#title-more").click()
    assert seen.page.locator("#title").bounding_box()["height"] > 2 * folded
    assert not opened(pair(*SHORT, title="short")).page.locator("#title-more").is_visible()


def test_closed_cells_cells_below_the_threshold_and_even_weights(opened: Any) -> None:
    """Drawn against the largest, even weights of 1/30 had the strongest colour, and the lines were one blue mass."""
    seen = opened(pair(*SHORT), "#kind=decoder&layer=0&head=0")
    assert seen.page.locator("#zero-sign").is_visible()
    numbers = seen.table()[2]
    assert (numbers[np.triu_indices(len(numbers), 1)] == 0).all()
    seen.page.select_option("#kind", "encoder")
    assert not seen.page.locator("#zero-sign").is_visible()
    seen = opened(pair(*SHORT), "#head=0")
    before = seen.picture()
    seen.page.locator("#least").evaluate("s => { s.value = 60; s.dispatchEvent(new Event('input')); }")
    assert seen.picture() != before
    least = float(seen.page.locator("#least-value").text_content())
    assert least == pytest.approx(seen.page.evaluate("0.6 * view.largest"), abs=1e-4)
    assert "least=60" in seen.page.url
    even = [np.full((1, 30, 30), 1 / 30, dtype=np.float32)]
    seen = opened(AttentionRecord(tokens=[f"w{n}" for n in range(30)], kinds={"encoder": even}), "#view=lines")
    drawn = "(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].some(v => v > 0))"
    assert not seen.page.evaluate(f"{drawn}(document.getElementById('lines-canvas'))")
    assert seen.page.evaluate("view.top") == pytest.approx(4 / 30, rel=1e-5)


def test_the_overview_shows_every_head_and_each_is_drawn_in_its_colour(opened: Any) -> None:
    seen = opened(pair(*SHORT), "#view=overview")
    thumbs = seen.page.locator(".thumb")
    assert thumbs.count() == 2 * 3
    seen.page.wait_for_function("[...document.querySelectorAll('.thumb canvas')].every(c => c.width > 1)")
    assert len(set(thumbs.locator("canvas").evaluate_all("all => all.map(c => c.toDataURL())"))) == 6
    seen.page.get_by_label("Layer 0, head 2").click()
    assert "layer 0, head 2" in seen.caption() and seen.page.locator("#heat").is_visible() and seen.complaints == []
    seen = opened(pair(*SHORT), "#view=lines&head=colours")
    drawn = "document.getElementById('lines-canvas').toDataURL()"
    every = seen.page.evaluate(drawn)
    chips = seen.page.locator("#heads button")
    assert chips.count() == 3
    assert len(set(chips.locator("i").evaluate_all("all => all.map(i => getComputedStyle(i).backgroundColor)"))) == 3
    for head in range(3):
        chips.nth(head).click()
    assert seen.page.evaluate(drawn) != every
    empty = "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.every(v => v === 0))"
    assert seen.page.evaluate(f"{empty}(document.getElementById('lines-canvas'))")
    seen.page.locator("#view-heat").click()
    assert "mean of 3 heads" in seen.caption()


@pytest.mark.parametrize("width", [360, 1280])
def test_a_long_map_fits_the_width_where_asked(opened: Any, width: int) -> None:
    length = 200
    layers = [np.random.default_rng(0).dirichlet(np.ones(length), size=(1, length)).astype(np.float32)]
    seen = opened(AttentionRecord(tokens=[f"w{n}" for n in range(length)], kinds={"encoder": layers}), width=width)
    beyond = "document.getElementById('heat').scrollWidth - document.getElementById('heat').clientWidth"
    assert seen.page.evaluate(beyond) > 0
    seen.page.locator("#fit").check()
    assert seen.page.evaluate(beyond) == 0


def test_a_page_of_several_sentences_shows_each(browser: Any, tmp_path: Path) -> None:
    records = [pair(*SHORT, title="first"), pair(SHORT[0][:3], SHORT[1][:2], title="second")]
    (tmp_path / "page.html").write_text(attention_page(records), encoding="utf-8")
    seen = Opened(browser, (tmp_path / "page.html").as_uri())
    assert seen.page.locator("#title").text_content() == "first"
    seen.page.select_option("#sentence", "1")
    assert seen.page.locator("#title").text_content() == "second"
    np.testing.assert_allclose(seen.table()[2], records[1].weights(1, "mean", "cross"), atol=5e-5)
    seen.page.reload()
    assert seen.page.locator("#title").text_content() == "second" and seen.complaints == []


@pytest.mark.parametrize("width", [360, 1280])
def test_the_decoding_page_opens_on_the_root_and_cuts_no_number(browser: Any, tmp_path: Path, width: int) -> None:
    """The root once stood out of view, and the column of log-probabilities was cut."""
    tokens = 12
    torch.manual_seed(0)
    config = presets.gpt2(vocab_size=tokens, d_model=16, d_ff=32, n_heads=2, n_layers=1, max_len=32)
    network = build_network(config).eval()
    trace = Trace(name=lambda token: f"palavra{token}")
    generate(network, torch.tensor([[1, 2]]), Beam(6, n_best=6), max_new_tokens=12, eos_id=(), trace=trace)
    (tmp_path / "page.html").write_text(decoding_page(trace, title="uma frase"), encoding="utf-8")
    seen = Opened(browser, (tmp_path / "page.html").as_uri(), width, 800)
    inside = """(selector) => {
        const box = document.querySelector(selector).getBoundingClientRect();
        const frame = document.querySelector(".trees").getBoundingClientRect();
        return box.top >= frame.top && box.bottom <= frame.bottom && box.left >= frame.left && box.right <= frame.right;
    }"""
    assert seen.page.locator(".trees").evaluate("trees => trees.scrollHeight > trees.clientHeight")
    assert seen.page.evaluate(inside, ".tree .step-0 rect")
    shown = """() => {
        const frame = document.querySelector(".trees").getBoundingClientRect();
        const boxes = [...document.querySelectorAll('.tree path[stroke-width="3.2"]')]
            .map((line) => line.getBoundingClientRect());
        return boxes.filter((at) => at.top >= frame.top && at.bottom <= frame.bottom).length;
    }"""
    assert seen.page.evaluate(shown) >= 2  # lines of the winning path
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    cut = """() => [...document.querySelectorAll("td.number")].filter((cell) => {
        const frame = cell.closest(".scroll").getBoundingClientRect(), box = cell.getBoundingClientRect();
        return box.right > frame.right + 1 || cell.scrollWidth > cell.clientWidth;
    }).length"""
    assert seen.page.locator("td.number").count() > 10 and seen.page.evaluate(cut) == 0
