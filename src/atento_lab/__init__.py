"""The laboratory: the notes, row by row, and studies of what networks learn. See README.md."""
