"""The load report: which weights were loaded from which tensors, which are new, which tensors were not used."""

from dataclasses import dataclass, field, fields
from typing import Any

from atento.base.errors import counted


@dataclass
class LoadReport:
    """The result of loading weights: `loaded` ours -> theirs; `new`: ours, not in the file; `unused`: theirs, not
    loaded.

    `tied` repeat another tensor of theirs, `computed` are not learned: neither is needed. `untied` usually repeat
    another tensor, differ from it here, and are loaded; `replaced` are tensors that another one replaces; `ignored`
    are tensors that released files hold although their network does not use them. `unread` are keys of `config.json`,
    or of another file that is named before the key, that nothing here reads and that may change what the model does.
    `overruled` are rules and keys of the tokenizer's files that another of them overrules, each with what holds.
    `decoding` is the default decoding that the folder's generation settings give the model.
    """

    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    overruled: list[str] = field(default_factory=list)
    decoding: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        sizes = {field_.name: len(getattr(self, field_.name)) for field_ in fields(self) if field_.name != "decoding"}
        counts = (f"{size} {name}" for name, size in sizes.items() if size or name in ("loaded", "new", "unused"))
        return f"LoadReport({', '.join(counts)})"

    def __str__(self) -> str:
        parts = [f"{counted(len(self.loaded), 'tensor')} loaded"]
        for name in ("new", "unused", "tied", "untied", "replaced", "computed", "ignored"):
            names = getattr(self, name)
            if names:
                parts.append(f"{len(names)} {name} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})")
        if self.decoding:
            options = (f"{name} {value}" for name, value in self.decoding.items())
            parts.append(f"decoding by default: {', '.join(options)}")
        if self.unread:
            where = "the folder's files" if any(": " in key for key in self.unread) else "config.json"
            parts.append(f"{counted(len(self.unread), 'key')} of {where} not read ({', '.join(self.unread)})")
        if self.overruled:
            parts.append(f"overruled: {', '.join(self.overruled)}")
        return "; ".join(parts)
