"""The embedded micro-world: a small English–Portuguese grammar that writes sentence pairs with gold labels."""

from atento.world import lexicon
from atento.world.labelling import LABELLINGS, labelled
from atento.world.notes import notes_sentences
from atento.world.pairs import Clause, Entity, Pair
from atento.world.splits import SPLITS, write

__all__ = ["LABELLINGS", "SPLITS", "Clause", "Entity", "Pair", "labelled", "lexicon", "notes_sentences", "write"]
