"""Model folders: found, read, written."""
