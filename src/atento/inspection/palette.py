"""The colours and sizes of type of every page and figure: of Studio, written pages, the notes and the site."""

_COLOURS = {  # on light and on dark ground
    "ground": ("#f6f7f9", "#0b1118"), "surface": ("#ffffff", "#111a24"), "field": ("#ffffff", "#182330"),
    "ink": ("#16202c", "#e8eef5"), "muted": ("#4c5a6b", "#a5b4c3"), "edge": ("#d6dde5", "#2a3847"),
    "accent": ("#1d66a8", "#7cbcf0"), "on-accent": ("#ffffff", "#08131f"), "tint": ("#e4eff9", "#1a3350"),
    "zero": ("#eef1f4", "#18222d"), "zero-sign": ("#8b96a3", "#66727f"), "mark": ("#b4470c", "#ffb27a"),
    "reads": ("#1d6fb8", "#58a9ec"), "writes": ("#d2600f", "#ff9447"), "bridge": ("#7d6a78", "#c2a7a0"),
    "raises": ("#1b7a4b", "#5fd39a"), "lowers": ("#8a3d9c", "#d69be6"), "wrong": ("#fdeeee", "#3a1d1d"),
}  # fmt: skip
INK, SOFT, PAPER, GRID = (_COLOURS[name][0] for name in ("ink", "muted", "surface", "edge"))
ZERO, ZERO_SIGN, MARK = (_COLOURS[name][0] for name in ("zero", "zero-sign", "mark"))
READS, WRITES, RAISES, LOWERS = (_COLOURS[name][0] for name in ("reads", "writes", "raises", "lowers"))
# Weights: one hue from light to dark, as lightness alone shows the magnitude for all kinds of colour vision.
LIGHT_RAMP = ("#f4f9fe", "#dceafa", "#bdd9f2", "#94c3e6", "#64a6d6", "#3a85c0", "#1f66a5", "#0f4881", "#082c57")
DARK_RAMP = ("#16212e", "#1a3049", "#1f456b", "#265f93", "#3580ba", "#58a3d8", "#8cc4ec", "#c0e0f8", "#f0f8ff")
# Heads, curves and dots in their order, told apart by all kinds of colour vision (Okabe & Ito 2008); brighter on dark.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a3db8", "#3c4b5c")
_DARK_SERIES = ("#4fa8e0", "#ff8a3d", "#2ecc9b", "#e79bc4", "#e0c040", "#8ed0f7", "#b98af0", "#a9b8c6")
_TYPE = {
    "tiny": "12px", "small": "13px", "text": "15px", "lead": "18px", "title": "22px",
    "sans": 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif',
    "mono": 'ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace',
}  # fmt: skip


def palette_sheet() -> str:
    """The palette as a style sheet: variables of the root, light or dark as the system or `data-theme` says."""
    pairs = dict(_COLOURS)
    pairs |= {f"ramp-{step}": pair for step, pair in enumerate(zip(LIGHT_RAMP, DARK_RAMP, strict=True))}
    pairs |= {f"series-{number}": pair for number, pair in enumerate(zip(SERIES, _DARK_SERIES, strict=True))}
    values = {name: f"light-dark({light}, {dark})" for name, (light, dark) in pairs.items()} | _TYPE
    lines = "".join(f"  --{name}: {value};\n" for name, value in values.items())
    themes = "".join(f':root[data-theme="{one}"] {{ color-scheme: {one}; }}\n' for one in ("light", "dark"))
    printed = "@media print { :root:root { color-scheme: light; } }\n"
    return f":root {{\n  color-scheme: light dark;\n{lines}}}\n{themes}{printed}"
