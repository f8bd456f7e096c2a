"""Checkpoints on disk: written atomically, verified, listed, selected, retained, averaged."""
