"""The tables of sentence patterns: the ordinary ones, and the held-out structures."""

from collections.abc import Callable

from atento_world import held_out as longer
from atento_world import questions, relatives, statements
from atento_world.events import Sentence
from atento_world.sentence import Draft

Pattern = Callable[[Draft], Sentence]

#: Every pattern of train, valid and combinations, with its relative frequency.
PATTERNS: dict[str, tuple[Pattern, int]] = {
    "simple": (statements.simple, 16),
    "field": (statements.fields, 3),
    "movement": (statements.movements, 4),
    "manner": (statements.with_manner, 5),
    "place": (statements.with_place, 6),
    "company": (statements.with_company, 4),
    "time": (statements.with_time, 6),
    "frequency": (statements.with_frequency, 4),
    "modal": (statements.with_modal, 4),
    "infinitive": (statements.with_infinitive, 4),
    "quality": (statements.qualities, 10),
    "profession": (statements.professions, 2),
    "origin": (statements.origins, 2),
    "location": (statements.locations, 5),
    "posture": (statements.postures, 3),
    "dative": (statements.datives, 4),
    "passive": (statements.passives, 5),
    "existence": (statements.existence, 4),
    "comparison": (statements.comparisons, 6),
    "part": (statements.parts, 3),
    "joined-subjects": (statements.joined_subjects, 3),
    "joined-clauses": (statements.joined_clauses, 4),
    "reported": (statements.reported, 4),
    "organisation": (statements.organisations, 3),
    "command": (statements.commands, 3),
    "exclamation": (statements.exclamations, 2),
    "yes-no": (questions.yes_no, 6),
    "who": (questions.who, 3),
    "what": (questions.what, 3),
    "adverb-question": (questions.adverb_question, 4),
    "whereabouts": (questions.whereabouts, 3),
    "subject-relative": (relatives.subject_relative, 5),
    "object-relative": (relatives.object_relative, 5),
}

#: Every pattern of the split `structures`, with its relative frequency; the ordinary splits have none of them.
HELD_OUT: dict[str, tuple[Pattern, int]] = {
    "two-adjectives": (longer.two_adjectives, 5),
    "relative-adverbial-conjunction": (longer.relative_adverbial_conjunction, 2),
    "time-relative-conjunction": (longer.time_relative_conjunction, 2),
    "two-relatives": (longer.two_relatives, 2),
    "reported-relative": (longer.reported_relative, 2),
    "place-and-time": (longer.place_and_time, 2),
    "relative-with-place": (longer.nested_relatives, 1),
}
