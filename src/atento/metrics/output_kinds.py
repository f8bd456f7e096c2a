"""The kinds of outputs that metrics score."""

from typing import Literal

# What predictions and references are, one item an example:
#   texts: a string; references may be several sets     classes: a label            class sets: a list of labels
#   tags: a list of tags, one a word                    numbers: a float
#   answers: a string; references are the tuple of acceptable strings, empty where the text has no answer
#   vector pairs: two vectors (2,D); a reference is the tuple of the second text and its score, None without scores
#   probabilities: a label and its probability; references are labels
#   rankings: the score of a document, None where it was not ranked; a reference is query, document and grade
Outputs = Literal[
    "texts", "classes", "class sets", "tags", "answers", "numbers", "probabilities", "vector pairs", "rankings"
]
