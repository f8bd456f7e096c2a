"""Checkpoints on disk: written whole or not at all, verified, listed, selected, retained, averaged."""
