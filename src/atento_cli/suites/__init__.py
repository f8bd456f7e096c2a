"""Suites: tables of published tasks, each fine-tuned and scored from local files (GLUE, and sets in Portuguese)."""
