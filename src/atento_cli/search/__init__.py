"""Hyper-parameter search: a recipe and a space of values in, ordinary runs and the best of them out."""
