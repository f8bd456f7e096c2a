"""The load report: which weights were loaded from which tensors, which are new, which tensors were not used."""

from dataclasses import dataclass, field, fields

from atento.errors import counted


@dataclass
class LoadReport:
    """The result of loading weights: `loaded` ours -> theirs; `new`: ours, not in the file; `unused`: theirs, not
    loaded.

    `tied` repeat another tensor of theirs, `computed` are not learned: neither is needed. `untied` usually repeat
    another tensor, differ from it here, and are loaded; `replaced` are tensors that another one replaces; `ignored`
    are tensors that released files hold although their network does not use them.
    """

    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        counts = (f"{len(getattr(self, field_.name))} {field_.name}" for field_ in fields(self))
        return f"LoadReport({', '.join(counts)})"

    def __str__(self) -> str:
        parts = [f"{counted(len(self.loaded), 'tensor')} loaded"]
        for name in ("new", "unused", "tied", "untied", "replaced", "computed", "ignored"):
            names = getattr(self, name)
            if names:
                parts.append(f"{len(names)} {name} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})")
        return "; ".join(parts)
