"""The tags of a file as they are read: names of labels, schemes as they are written here, what is said of them."""

from collections.abc import Callable

from atento.base.errors import counted
from atento.metrics.label_names import class_name
from atento.metrics.tag_schemes import converted, illegal, outside_the_scheme, respelled, scheme_of


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
