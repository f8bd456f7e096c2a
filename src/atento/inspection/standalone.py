"""Parts of standalone pages: files of this folder, embedded data, and a content security policy."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from atento.inspection.palette import palette_sheet
from atento.inspection.token_display import visible

# Characters that could end the element or break a line of JavaScript are written as JSON escapes.
_ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def part(name: str) -> str:
    """A file of this folder as text."""
    return files("atento.inspection").joinpath(name).read_text(encoding="utf-8")


def embedded(data: object) -> str:
    """Data as JSON that is safe inside a `<script type="application/json">`."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def framed(page: str, height: int = 640) -> str:
    """A page as an element of a notebook, in a sandboxed frame.

    Without `allow-same-origin` the frame has no access to cookies, storage and the notebook. `allow-downloads` is for
    the button that saves a picture.
    """
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" referrerpolicy="no-referrer" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


def plain(text: str) -> str:
    """A sentence as an element of a notebook."""
    return f"<p>{escape(text)}</p>"


def inline(svg: str) -> str:
    """An SVG drawing as an element of a page."""
    return svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)


def mark() -> str:
    """The mark of the project, as an element of a page."""
    return inline(part("mark.svg"))


def sheet(*names: str) -> str:
    """The style sheet of a page: the palette, what all pages share, and files of this folder on top of them."""
    return palette_sheet() + "".join(map(part, ("base.css", *names)))


def page(title: str, width: int, style: str, body: str) -> str:
    """A page of at most `width` rem, with a heading and without scripts and external resources."""
    heading = escape(visible(title))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>{heading}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{sheet('document.css')}main {{ max-width: {width}rem }} {style}</style>\n"
        f"<main>\n<header>{mark()}<h1>{heading}</h1></header>\n{body}</main>\n</html>\n"
    )


def scripted(name: str, sheets: Sequence[str], scripts: Sequence[str], title: str, data: object, **parts: str) -> str:
    """A page from the template of that name, with files of this folder as its style and its script, and data."""
    style, script = sheet(*sheets), '"use strict";\n' + "\n".join(map(part, scripts))
    fixed = {"policy": policy(style, script), "style": style, "script": script, "mark": mark()}
    return part(name).format(title=escape(visible(title)), data=embedded(data), **fixed, **parts)


def policy(style: str, script: str) -> str:
    """A content security policy that allows this one style and this one script, by hash, and no other source."""
    sources = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    rest = "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    return f"{sources}; {rest}"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
