"""Writes docs/recipe.md from the descriptions of the keys."""

from pathlib import Path

from atento.config.reading.explaining import reference

Path(__file__).parents[1].joinpath("docs", "recipe.md").write_text(reference(), encoding="utf-8")
