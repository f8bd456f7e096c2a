"""A command over files of any size: blocks of lines, workers that answer them, and parts of the output."""
