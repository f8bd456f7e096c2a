"""Checkpoints on disk: written whole or not at all, verified, found, kept, averaged."""
