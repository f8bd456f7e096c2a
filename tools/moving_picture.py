"""Makes the moving picture of README and of the site: `python tools/moving_picture.py [FOLDER]`, docs/ if not given.

Opens Studio's screen One sentence on the package's translator in Chromium, lets it write a sentence, and joins what the
page draws at each step to one SVG that plays, in the palette of light and of dark pages; a second one is for narrow
pages. Needs playwright, of the development packages, and the extra of the service.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from atento.inspection.palette import palette_sheet

MODEL, TEXT = "atento-en-pt", "The white cat sleeps in the old house."
WIDE, HEAD, PACE, REST = 1130, 96, 1.3, 3  # pixels of the page and above the picture; seconds a step; steps of the last
SETTLED = "() => globalThis.studio && studio.settled"
# What the page draws, without what is only for pointers and for readers of the screen.
TAKEN = """() => {
  const { river, flow } = studio.screen, [, decoder] = river.stacks;
  const text = (group) => {
    const copy = group.cloneNode(true);
    for (const one of copy.querySelectorAll(".hit, title")) one.remove();
    for (const one of copy.querySelectorAll("*")) for (const { name } of [...one.attributes])
      if (/^(role|tabindex|aria-|data-|pathLength)/.test(name)) one.removeAttribute(name);
    const parts = [...copy.childNodes].map((one) => new XMLSerializer().serializeToString(one));
    return parts.join("").replaceAll(/ xmlns="[^"]*"/g, "");
  };
  const still = river.front.cloneNode(true), moving = document.createElementNS("http://www.w3.org/2000/svg", "g");
  for (const one of still.querySelectorAll(".band, .name")) moving.append(one);
  const { threads, lit, fan } = river, defs = river.element.querySelector("defs");
  const parts = { still, moving, threads, lit, fan, defs };
  return { ...Object.fromEntries(Object.entries(parts).map(([name, group]) => [name, text(group)])), size: river.size,
    bridge: decoder.bridge[0], label: decoder.label, tip: river.tip,
    story: document.querySelector(".story").textContent,
    words: flow.sides.output.tokens.map(([label]) => label.replace("▁", " ")) };
}"""
Step = dict[str, Any]


@contextmanager
def studio(*models: str) -> Iterator[str]:
    """The address of Studio with some models."""
    words = [sys.executable, "-m", "atento", "studio", *models, "--port", "0", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(found[1] for line in process.stdout if (found := re.search(r"ready: (http://\S+)", line)))
        finally:
            process.terminate()


def taken(address: str, language: str) -> list[tuple[Step, Step]]:
    """What the page draws at each step, in light and in dark."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        found: list[list[Step]] = []
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": WIDE, "height": 900}, color_scheme=scheme, locale=language)
            page.goto(f"{address}/studio/")
            page.wait_for_function(SETTLED)
            page.evaluate("text => studio.state.set({ text, at: 0 })", TEXT)
            page.wait_for_function(SETTLED)
            found.append([])
            for at in range(page.evaluate("studio.screen.flow.sides.output.tokens.length")):
                page.evaluate("at => studio.state.set({ at })", at)
                page.wait_for_function(SETTLED)
                found[-1].append(page.evaluate(TAKEN))
        browser.close()
    return list(zip(*found, strict=True))


def both(light: str, dark: str) -> str:
    """A drawing whose small images, which have their colours, are there once for light and once for dark pages."""
    images = iter(re.findall(r"<image [^>]*>(?:</image>)?", dark))
    day = r'<image class="day" \1'
    return re.sub(
        r"<image ([^>]*>(?:</image>)?)",
        lambda one: one.expand(day) + next(images).replace("<image ", '<image class="night" '),
        light,
    )


def sheet(count: int, *, narrow: bool) -> str:
    """The style of the picture: the rules of the page's own sheet for it, the palette, and the steps."""
    own = files("atento_serve.studio").joinpath("static", "studio.css").read_text(encoding="utf-8")
    rules = "".join(
        one for one in re.findall(r"^\.river.*\}$", own, flags=re.M) if not re.search("aria|hover|dash", one)
    )
    values = dict(re.findall(r"--([\w-]+): (.+);", palette_sheet()))
    used = {name: value for name, value in values.items() if f"--{name}" in rules + "--mono"}
    themes = [
        "".join(f"--{name}:{re.sub(r'light-dark.(.+), (.+).', pick, value)};" for name, value in used.items())
        for pick in (r"\1", r"\2")
    ]
    slots = count + REST - 1

    def shown(name: str, share: float) -> str:
        return f"@keyframes {name}{{0%{{visibility:visible}}{100 * share / slots:.3f}%,to{{visibility:hidden}}}}"

    return "".join(
        [
            f":root{{{themes[0]}}}@media(prefers-color-scheme:dark){{:root{{{themes[1]}}}.day{{display:none}}}}",
            "@media(prefers-color-scheme:light){.night{display:none}}",
            rules,
            f".head{{font:600 {20 if narrow else 22}px var(--sans);fill:var(--ink)}}",
            ".told{font:15px var(--sans);fill:var(--muted)}",
            ".head .ahead{fill-opacity:.35}.head .now{fill:var(--writes)}",
            f".step{{visibility:hidden;animation:show {slots * PACE:.1f}s step-end infinite}}",
            shown("show", 1) + shown("last", REST),
            *(f".s{at}{{animation-delay:{at * PACE:.1f}s}}" for at in range(count)),
            f".s{count - 1}{{animation-name:last}}",
            "@media(prefers-reduced-motion:reduce){.step{animation:none}.rest{visibility:visible}}",
        ]
    )


def picture(steps: list[tuple[Step, Step]], *, narrow: bool = False) -> str:
    """The whole picture; `narrow`: the words that are read, the bridge, and what is written, without the layers."""
    first, dark = steps[0]
    (width, height), begin, label = first["size"], first["bridge"], first["label"]
    left, shift, nearer = (begin - 74, first["tip"] - label - 10, 60) if narrow else (0, 0, 0)
    wide = width - left - shift - nearer
    cover = "".join(
        [
            f'<rect x="{left}" width="{begin - 2 - left}" height="{height}" class="ground"/>',
            f'<rect x="{label + 4}" width="{width}" height="{height}" class="ground"/>',
            *(
                f'<text class="name" text-anchor="end" x="{begin - 6}" y="{y}">{word}</text>'
                for y, word in re.findall(r' y="([\d.]+)"[^>]*class="name encoder[^>]*>([^<]*)<', first["moving"])
            ),
        ]
    )
    bands = re.findall(r'<path d="([^"]*)"', first["moving"])

    def drawn(at: int, step: Step) -> str:
        spans = [
            f'<tspan class="{"ahead" if place > at else "now" if place == at else "behind"}">{escape(word)}</tspan>'
            for place, word in enumerate(step["words"])
            if not word.startswith("<")
        ]
        fan = re.sub(
            r'(<text[^>]* x=")([\d.]+)("[^>]*text-anchor="end")',
            lambda one: f"{one[1]}{float(one[2]) - nearer:g}{one[3]}",
            step["fan"],
        )
        moving = re.sub(r'<path d="([^"]*)"', lambda one: f'<use href="#b{bands.index(one[1])}"', step["moving"])
        told = "" if narrow else f'<text class="told" x="8" y="84">{escape(step["story"])}</text>'
        line = "".join(spans).replace("> ", ">", 1)
        return (
            f'<g class="step s{at}{" rest" * (at == len(steps) // 2)}">'
            f'<text class="head" xml:space="preserve" x="{left + 8}" y="58">{line}</text>{told}'
            f'<g class="river lighted" transform="translate(0 {HEAD})">{moving}<g class="lit">{step["lit"]}</g>'
            f'{cover * narrow}<g class="fan" transform="translate(-{shift} 0)">{fan}</g></g></g>'
        )

    paths = "".join(f'<path id="b{at}" d="{d}"/>' for at, d in enumerate(bands))
    size = f'viewBox="{left} 0 {wide} {height + HEAD}" width="{wide}" height="{height + HEAD}"'
    title = f"{TEXT} → {''.join(first['words']).removesuffix('</s>').strip()}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        f"<title>{escape(title)}</title><style>{sheet(len(steps), narrow=narrow)}</style>"
        f'<g class="river"><rect x="{left}" width="{wide}" height="100%" rx="12" class="ground"/></g>'
        f'<text class="head" x="{left + 8}" y="28">{escape(TEXT)}</text>'
        f'<g class="river lighted" transform="translate(0 {HEAD})"><defs>{first["defs"]}{paths}</defs>'
        f'<g class="threads">{first["threads"]}</g>{both(first["still"], dark["still"])}</g>'
        f"{''.join(drawn(at, light) for at, (light, _) in enumerate(steps))}</svg>\n"
    )


def main(folder: str = str(Path(__file__).resolve().parents[1] / "docs")) -> None:
    """Write the pictures in both languages."""
    with studio(MODEL) as address:
        for language, ending in (("en-US", ".svg"), ("pt-BR", ".pt-BR.svg")):
            steps = taken(address, language)
            for name, narrow in (("one-sentence", False), ("one-sentence-narrow", True)):
                Path(folder, name + ending).write_text(picture(steps, narrow=narrow), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
