"""Words and tags as files have them: texts with marked entities, and names of labels and schemes as written here."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from atento.base.errors import counted
from atento.metrics.label_counts import class_name
from atento.metrics.tag_schemes import converted, illegal, outside_the_scheme, respelled, scheme_of
from atento.text.words import word_spans


def words_and_tags(text: str, entities: Sequence[object], subject: str) -> tuple[list[str], list[str]]:
    """The words of a text, as a tagger splits it in use, and their tags in IOB2.

    Args:
        text: the entities count its characters.
        entities: of each the start, the end (the character behind it) and the label: a list of the three, or an object
            with `start`, `end` and `label`, or `labels`, of which the first counts. An entity has every word that it
            touches. Where an object has the `text` of its entity, the position is checked by it, and may count letters
            outside of the basic plane, such as emoji, twice, as JavaScript does.
        subject: what holds the entities, for messages.

    Raises:
        ValueError: something else, an entity outside of the text or without a word, or two that share a word.
    """
    spans = word_spans(text)  # (start, end) of each word
    tags: list[str] = ["O"] * len(spans)
    for number, entity in enumerate(entities, 1):
        what = f"{subject}, entity {number},"
        start, end, label = _parts(entity, what)
        if isinstance(entity, Mapping) and isinstance(said := entity.get("text"), str):
            start, end = _checked(text, start, end, said, what)
        if not 0 <= start < end <= len(text):
            raise ValueError(f"{what} must lie in its text of {len(text)} characters: got {start} to {end}")
        touched = range(bisect_right(spans, start, key=itemgetter(1)), bisect_left(spans, end, key=itemgetter(0)))
        if not touched:
            raise ValueError(f"{what} has no word: characters {start} to {end} are blank")
        taken = next((word for word in touched if tags[word] != "O"), None)
        if taken is not None:
            shared = text[slice(*spans[taken])]
            raise ValueError(f"{what} shares the word {shared!r} with another one; each word has one tag")
        for word in touched:
            tags[word] = f"{'B' if word == touched[0] else 'I'}-{label}"
    return [text[first:last] for first, last in spans], tags


def of_label_studio(annotations: Sequence[object], kind: str, subject: str) -> object:
    """What the tasks of Label Studio's JSON have under `annotations`: their entities, or the labels that were chosen.

    The first annotation counts that was not cancelled; None: all were, the task has no labels. What it has beside
    them, such as relations, is left out.

    Args:
        annotations: those of a task.
        kind: that of the field: "tags" takes entities, "class" the one label chosen, any other all labels chosen.
        subject: what holds the annotations, for messages.

    Raises:
        ValueError: an annotation without results; choices that are no list; not one label for a class.
    """
    given = [one.get("result") for one in annotations if isinstance(one, Mapping) and not one.get("was_cancelled")]
    if not given:
        return None
    kept = next((results for results in given if isinstance(results, list)), None)
    if kept is None:
        raise ValueError(f"{subject} has no annotation with a list of results")
    values = [result.get("value") for result in kept if isinstance(result, Mapping)]  # of the first that was kept
    found = [value for value in values if isinstance(value, Mapping)]
    if kind == "tags":
        return [value for value in found if "labels" in value]
    choices = [value["choices"] for value in found if "choices" in value]
    if not all(isinstance(chosen, list) for chosen in choices):
        raise ValueError(f"{subject} must have its choices in a list")
    labels = [label for chosen in choices for label in chosen]
    if kind == "class" and len(labels) != 1:
        raise ValueError(f"{subject} must have one choice: got {len(labels)}")
    return labels[0] if kind == "class" else labels


def _checked(text: str, start: int, end: int, said: str, what: str) -> tuple[int, int]:
    """The position of an entity in Python's characters. Raises ValueError: it has another text there."""
    units = text.encode("utf-16-le", "surrogatepass")  # a character of JavaScript has two bytes
    by_units = [len(units[: 2 * max(place, 0)].decode("utf-16-le", "ignore")) for place in (start, end)]
    for first, last in ((start, end), by_units):
        if _letters(text[first:last]) == _letters(said):
            return first, last
    raise ValueError(f"{what} is {said!r:.60}, and its text has {text[start:end]!r:.60} from {start} to {end}")


def _letters(text: str) -> str:
    """A text without blanks, whose line ends may be written out."""
    return "".join(text.replace("\\n", "").split())


def _parts(entity: object, what: str) -> tuple[int, int, str]:
    """The start, the end and the label of an entity."""
    if isinstance(entity, Mapping):
        labels = entity.get("labels")
        label = entity.get("label", labels[0] if isinstance(labels, list) and labels else None)
        entity = entity.get("start"), entity.get("end"), label
    match entity:
        case [int(start), int(end), str(label)] if label.strip() and not isinstance(start, bool):
            return start, end, class_name(label)
    raise ValueError(f'{what} must have a start, an end and a label: [0, 3, "PER"], or an object of the three')


def normalized(
    sentences: list[tuple[str, ...]], where: Callable[[int], str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The tags of sentences, IOB1 as IOB2 and other schemes as they are, and what to say of them.

    Args:
        sentences: the tags of each sentence.
        where: the position of a sentence by its number, for messages.
    """
    names = {tag: class_name(tag) for tags in sentences for tag in tags}  # each tag once: there are few
    if any(tag != name for tag, name in names.items()):
        sentences = [tuple(names[tag] for tag in tags) for tags in sentences]
    sentences, spelling = respelled(sentences)
    notes = [] if spelling is None else [f"tags such as {spelling[0]!r} are read as {spelling[1]!r}"]

    def first(places: list[tuple[int, int]]) -> str:
        number, word = places[0]
        return f"the first is {sentences[number][word]!r} of word {word + 1} of the sentence at {where(number)}"

    scheme = scheme_of(sentences)
    if scheme is None:
        odd = outside_the_scheme(sentences)
        if odd:
            some = f"{counted(len(odd), 'tag')} {'is' if len(odd) == 1 else 'are'} not of entities"
            notes.append(f"{some}, so all tags are plain tags and no entities; {first(odd)}")
        elif names and all(name.isdecimal() for name in names.values()):
            notes.append("its tags are numbers, and are plain tags; entities need their names, such as B-PER")
        return sentences, notes
    if scheme == "IOB1":
        return [converted(tags, "IOB2") for tags in sentences], [*notes, "its tags are IOB1, and are read as IOB2"]
    wrong = [(number, word) for number, tags in enumerate(sentences) for word in illegal(tags, scheme)]
    if wrong:
        notes.append(
            f"{counted(len(wrong), 'tag')} cannot follow the tag before by the rules of {scheme}; {first(wrong)}"
        )
    return sentences, notes
