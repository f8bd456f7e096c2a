"""Model folders: find, read and write them."""
