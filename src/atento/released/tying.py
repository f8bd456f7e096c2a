"""Which tensors of a file repeat another one, decided by their values, not by the configuration.

See docs/notes.md#c5, #c16.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Repeat:
    """`name` usually repeats `source`, so that a file may leave out either of the two.

    `replaces`: where a file holds both and they differ, `source` is not read, as the first bias of BERT's output.
    """

    name: str
    source: str
    replaces: bool = False


@dataclass(frozen=True)
class Tying:
    """The `Repeat`s of a family in one file; names are without the family's prefix except in `stored_names`.

    `stored_names` maps a tensor to the name under which the file stores it; `repeated` are equal to another tensor, or
    replace it; `untied` are names of the file whose tensors differ from the one that they usually repeat; `sources`
    are the tensors that others repeat.
    """

    stored_names: dict[str, str]
    repeated: frozenset[str]
    untied: tuple[str, ...]
    sources: frozenset[str]

    def same(self, name: str, other_name: str) -> bool:
        """Whether both names are read from one tensor of the file."""
        return self.stored_names.get(name, name) == self.stored_names.get(other_name, other_name)


def resolve(
    repeats: Iterable[Repeat],
    names: Collection[str],
    prefix: str = "",
    equal: Callable[[str, str], bool] = lambda first, second: False,
    *,
    fill: bool = True,
) -> Tying:
    """Compare the tensors of a file that may repeat one another.

    Args:
        names: of the file's tensors. prefix: what the file puts before the names of the base model.
        equal: whether two of the file's tensors hold the same numbers.
        fill: whether a tensor that the file leaves out is read from the other one.
    """
    stored_names: dict[str, str] = {}
    repeated: set[str] = set()
    untied: list[str] = []

    def named(bare: str) -> str:
        return stored_names.get(bare, prefix + bare if prefix + bare in names else bare)

    repeats = [repeat for repeat in repeats if fill or repeat.replaces or named(repeat.name) in names]
    for repeat in repeats:  # the first that is stored replaces a source that is not
        if named(repeat.source) not in names and named(repeat.name) in names and (fill or repeat.replaces):
            stored_names[repeat.source] = named(repeat.name)
    for repeat in repeats:
        stored, source = named(repeat.name), named(repeat.source)
        if source not in names:
            continue
        stored_names[repeat.source] = stored_names[repeat.name] = source
        if stored == source or (stored in names and equal(stored, source)):
            repeated.add(repeat.name)
        elif stored in names:
            untied.append(stored)
            stored_names[repeat.name] = stored
            if repeat.replaces:
                stored_names[repeat.source] = stored
    sources = frozenset(repeat.source for repeat in repeats)
    return Tying(stored_names, frozenset(repeated), tuple(untied), sources)
