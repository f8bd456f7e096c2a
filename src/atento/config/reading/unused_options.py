"""Decoding options without effect in the strategy of a configuration, and the reasons."""

from collections.abc import Collection, Iterator
from dataclasses import fields

from atento.config.sections.decoding import FILTERS, DecodingConfig

BEAM = ("length_penalty", "stopping", "until", "groups", "diversity")  # options of beam search only
MBR = ("candidates", "candidates_from", "evidence", "evidence_weights", "self_comparison", "mbr_method")
_SWITCHES = [field.name for field in fields(DecodingConfig) if field.default is False]

Rules = Iterator[tuple[tuple[str, ...], str]]  # options, and the reason why none of them has an effect


def unused_options(
    config: DecodingConfig, written: Collection[str], *, partial: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (option, reason) for each option of `written` that has no effect.

    Args:
        config: the decoding configuration, with the options of `written`.
        written: the names of options that the user set. A switch that is false is never reported.
        partial: the configuration is not complete yet; options that only need another one are not reported.
    """
    named = set()
    for names, reason in [*_other_strategy(config), *(() if partial else _lacking(config))]:
        for name in names:
            if name in written and name not in named and (name not in _SWITCHES or getattr(config, name)):
                named.add(name)
                yield name, reason


def _other_strategy(config: DecodingConfig) -> Rules:
    """Yield the options of other strategies than that of the configuration."""
    if config.mbr is not None:
        yield ("beam",), "`mbr` searches with a beam as wide as `candidates`, if `candidates_from` is beam or both"
        if config.candidates_from == "sample":
            yield BEAM, "`mbr` draws its candidates"
        if config.candidates_from == "beam" and not config.evidence:
            yield ("sample", *FILTERS), "`mbr` takes its candidates from a beam"
            return  # the filters were named
        if config.candidates_from == "beam":
            yield ("sample",), "`mbr` takes its candidates from a beam, and always draws its `evidence`"
    elif config.samples:
        yield ("beam", *BEAM), "outputs are drawn, not searched for"
    elif config.exact:
        yield ("stopping", "until", "groups", "diversity"), "`exact` finds the best output, independently of the beam"
    elif config.beam == 1 and not config.required_words:
        yield ("length_penalty",), "a beam of 1 compares no lengths"
        yield ("stopping", "until"), "a beam of 1 ends with its one output"
        yield ("groups", "diversity"), "a beam of 1 has no groups"
    if config.temperature == 0:
        other_filters = tuple(name for name in FILTERS if name != "temperature")
        yield other_filters, "a `temperature` of 0 takes the most probable token"


def _lacking(config: DecodingConfig) -> Rules:
    """Yield the options that need another option, which is not set."""
    if config.mbr is None:
        yield (*MBR, "mbr_keep", "mbr_confidence"), "it is for `mbr`"
    if config.evidence:
        yield ("self_comparison",), "the `evidence` is drawn for itself, so no candidate meets itself"
    if config.mbr_method not in ("coarse", "pruned"):
        yield ("mbr_keep",), "it is for `mbr_method` coarse or pruned"
    if config.mbr_method != "pruned":
        yield ("mbr_confidence",), "it is for `mbr_method` pruned"
    if not config.draft:
        yield ("draft_tokens",), "it is for `draft`"
    if not config.exact:
        yield ("exact_limit",), "it is for `exact`"
    if config.stopping == "shrinking":
        yield ("until",), "a shrinking beam ends when it has no slots left"
    if config.groups == 1:
        yield ("diversity",), "a beam of one group has no others to differ from: give `groups`"
    if config.repetition_penalty == 1 and not config.no_repeat_ngrams:
        yield ("count_prompt",), "it is for `repetition_penalty` and `no_repeat_ngrams`"
    if config.ignore_eos and not config.stop_tokens:
        yield ("min_new_tokens",), "`ignore_eos` leaves no end that it could put off"
