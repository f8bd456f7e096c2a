"""The files of the page: read once at the start, and answered with a policy that lets the page load nothing else."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The `Content-Security-Policy`: nothing from another address, no script or style in the markup, no text as markup."""
SHARED = ("page_heat.js", "page_lines.js")
"""The drawings of the attention page, which the page uses as they are."""


@dataclass(frozen=True)
class StaticFile:
    """A file of the page: what it holds, its media type, and a mark that changes with it."""

    content: bytes
    kind: str
    tag: str

    @property
    def headers(self) -> dict[str, str]:
        """The fields of its answer."""
        return {
            "Content-Type": self.kind,
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",  # a browser asks each time, and is told that nothing has changed
            "ETag": self.tag,
        }


def static_files() -> dict[str, StaticFile]:
    """The files by their path below the page's; "" is the page."""
    found = dict(_inside(files("atento_serve.studio").joinpath("static"), ""))
    found |= {name: _read(files("atento.inspection").joinpath(name)) for name in SHARED}
    return {"": found["index.html"], **found}


def _inside(folder: Traversable, path: str) -> list[tuple[str, StaticFile]]:
    rows = []
    for entry in folder.iterdir():
        if entry.is_dir():
            rows += _inside(entry, f"{path}{entry.name}/")
        elif entry.name.rpartition(".")[2] in KINDS:
            rows.append((path + entry.name, _read(entry)))
    return rows


def _read(entry: Traversable) -> StaticFile:
    content = entry.read_bytes()
    return StaticFile(content, KINDS[entry.name.rpartition(".")[2]], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
