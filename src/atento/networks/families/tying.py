"""Which tensors of a file repeat another one: their values decide, whatever the configuration says.

See docs/notes.md#c5, #c16.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Repeat:
    """`name` usually repeats `source`, so that a file may leave out either of the two.

    `replaces`: where both stand in a file and differ, `source` is read by nothing, as the first bias of BERT's output.
    """

    name: str
    source: str
    replaces: bool = False


@dataclass(frozen=True)
class Tying:
    """What became of a family's `Repeat`s in one file; names are without the family's prefix but in `places`.

    `places` says under which name of the file a tensor is read; `repeated` are equal to another one, or stand in its
    place; `untied` are names of the file: they stand beside another one and differ from it; `sources` are what others
    repeat.
    """

    places: dict[str, str]
    repeated: frozenset[str]
    untied: tuple[str, ...]
    sources: frozenset[str]

    def same(self, one: str, two: str) -> bool:
        """Whether both names are read from one tensor of the file."""
        return self.places.get(one, one) == self.places.get(two, two)


def resolve(
    repeats: Iterable[Repeat],
    names: Collection[str],
    prefix: str = "",
    equal: Callable[[str, str], bool] = lambda one, two: False,
    *,
    fill: bool = True,
) -> Tying:
    """Compare what a file holds of the tensors that may repeat one another.

    Args:
        names: of the file's tensors. prefix: what the file puts before the names of the base model.
        equal: whether two of the file's tensors hold the same numbers.
        fill: whether what the file leaves out is read from the other of the two.
    """
    places: dict[str, str] = {}
    repeated: set[str] = set()
    untied: list[str] = []

    def named(bare: str) -> str:
        return places.get(bare, prefix + bare if prefix + bare in names else bare)

    repeats = [repeat for repeat in repeats if fill or repeat.replaces or named(repeat.name) in names]
    for repeat in repeats:  # the first that is there stands for a source that is not
        if named(repeat.source) not in names and named(repeat.name) in names and (fill or repeat.replaces):
            places[repeat.source] = named(repeat.name)
    for repeat in repeats:
        own, other = named(repeat.name), named(repeat.source)
        if other not in names:
            continue
        places[repeat.source] = places[repeat.name] = other
        if own == other or (own in names and equal(own, other)):
            repeated.add(repeat.name)
        elif own in names:
            untied.append(own)
            places[repeat.name] = own
            if repeat.replaces:
                places[repeat.source] = own
    sources = frozenset(repeat.source for repeat in repeats)
    return Tying(places, frozenset(repeated), tuple(untied), sources)
