"""The tags of records as they are read: IOB1 becomes IOB2, and what breaks a scheme is reported."""

from collections.abc import Callable

from atento.errors import counted
from atento.metrics.tag_schemes import converted, illegal, scheme_of


def normalized(
    sentences: list[tuple[str, ...]], where: Callable[[int], str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The tags of sentences, IOB1 as IOB2 and other schemes as they are, and what to say of them.

    Args:
        where: the position of a sentence by its number, for messages.
    """
    scheme = scheme_of(sentences)
    if scheme is None:
        return sentences, []
    if scheme == "IOB1":
        return [converted(tags, "IOB2") for tags in sentences], ["its tags are IOB1, and are read as IOB2"]
    wrong = [(number, place) for number, tags in enumerate(sentences) for place in illegal(tags, scheme)]
    if not wrong:
        return sentences, []
    number, place = wrong[0]
    first = f"the first is {sentences[number][place]!r} of word {place + 1} of the sentence at {where(number)}"
    return sentences, [f"{counted(len(wrong), 'tag')} cannot follow the tag before by the rules of {scheme}; {first}"]
