"""The load report of weights: what was taken from where, what is new, what was left."""

from dataclasses import dataclass, field, fields

from atento.errors import counted


@dataclass
class LoadReport:
    """What became of the weights: `loaded` ours -> theirs; `new`: ours, not there; `unused`: theirs, not taken.

    `tied` repeat another tensor of theirs, `computed` hold nothing learned: neither is needed. `untied` usually repeat
    another tensor, differ from it here, and are loaded; `replaced` are tensors that another one stands in for.
    """

    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        counts = (f"{len(getattr(self, one.name))} {one.name}" for one in fields(self))
        return f"LoadReport({', '.join(counts)})"

    def __str__(self) -> str:
        parts = [f"{counted(len(self.loaded), 'tensor')} loaded"]
        for name in ("new", "unused", "tied", "untied", "replaced", "computed"):
            found = getattr(self, name)
            if found:
                parts.append(f"{len(found)} {name} ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''})")
        return "; ".join(parts)
