"""A row of the table of presets."""

from collections.abc import Callable, Mapping

from atento.config.sections.network import NetworkConfig, changed


class Preset:
    """A published network: `preset(n_layers=4, dropout=0.0)` is its configuration with some fields changed.

    Args:
        about: what it is, its source and its parameters.
        base: the configuration of its family.
        differences: from it, by each mapping in turn.
        sized: the changed configuration -> what else follows from its sizes; changes come after it.
    """

    def __init__(
        self,
        about: str,
        base: NetworkConfig,
        *differences: Mapping[str, object],
        sized: Callable[[NetworkConfig], Mapping[str, object]] = lambda config: {},
    ) -> None:
        self.about = about
        self._base, self._differences, self._sized = base, differences, sized

    def __call__(self, **changes: object) -> NetworkConfig:
        """The configuration with some fields changed; a mapping for a part changes some fields of that part."""
        config = changed(self._base, *self._differences, changes)
        return changed(self._base, *self._differences, more, changes) if (more := self._sized(config)) else config
