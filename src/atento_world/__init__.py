"""The embedded micro-world: a small English–Portuguese grammar that writes sentence pairs with gold labels."""

from atento_world import lexicon
from atento_world.labelling import LABELLINGS, labelled
from atento_world.notes import notes_sentences
from atento_world.pairs import Clause, Entity, Pair
from atento_world.splits import SPLITS, write

__all__ = ["LABELLINGS", "SPLITS", "Clause", "Entity", "Pair", "labelled", "lexicon", "notes_sentences", "write"]
