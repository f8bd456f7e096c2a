"""Beam search: its step, candidates and paths."""
