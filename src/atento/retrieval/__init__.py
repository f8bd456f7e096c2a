"""Search in own texts: an index of lines by their vectors and their words, and what finds lines in it."""
