"""Which decoding options change nothing in the strategy that a configuration stands for, and why."""

from collections.abc import Collection, Iterator

from atento.config.decoding import FILTERS, DecodingConfig


def unused_options(config: DecodingConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """(option, reason) for each option among `given` that has no effect.

    Args:
        config: the whole decoding configuration, `given` in it.
        given: the names that somebody wrote. `sample: false` is never named: it asks for nothing.
    """
    for names, reason in _rules(config):
        for name in names:
            if name in given and (name != "sample" or config.sample):
                yield name, reason


def _rules(config: DecodingConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """The options that this strategy does not read, beside the reason."""
    if config.mbr is not None:
        yield ("beam",), "`mbr` searches with a beam as wide as `candidates`, if `candidates_from` asks for one"
        if config.candidates_from == "sample":
            yield ("length_penalty", "stopping"), "`mbr` draws its candidates"
        if config.candidates_from == "beam":
            yield ("sample", *FILTERS), "`mbr` takes its candidates from a beam"
            return
    else:
        yield ("candidates", "candidates_from"), "it is for `mbr`"
        if config.samples:
            yield ("beam", "length_penalty", "stopping"), "outputs are drawn, not searched for"
        elif config.beam == 1:
            yield ("length_penalty",), "a beam of 1 compares no lengths"
            yield ("stopping",), "a beam of 1 ends with its one output"
    if config.temperature == 0:
        others = tuple(name for name in FILTERS if name != "temperature")
        yield others, "a `temperature` of 0 takes the most probable token"
