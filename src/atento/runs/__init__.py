"""Runs: from a recipe to a run folder and back."""
