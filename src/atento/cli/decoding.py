"""The decoding flags, which all commands that write share."""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from atento.cli.completion import utilities, words
from atento.cli.options import with_signature


def _number(kind: type, text: str, **limits: Any) -> Any:
    return Annotated[kind | None, typer.Option(help=text, **limits)]


def _switch(flag: str, text: str) -> Any:
    return Annotated[bool | None, typer.Option(f"--{flag}/--no-{flag}", help=text)]


def _word(text: str, *choices: str) -> Any:
    return Annotated[str | None, typer.Option(metavar="WORD", help=text, autocompletion=words(*choices))]


def _text(text: str, metavar: str = "TEXT") -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, help=text)]


def _texts(text: str, metavar: str = "TEXT") -> Any:
    return Annotated[list[str] | None, typer.Option(metavar=metavar, help=f"{text}; may be repeated.")]


# Heading of the help -> option -> type of its flag. A flag that is not set has the model's value.
_HEADINGS: dict[str, dict[str, Any]] = {
    "Search": {
        "greedy": Annotated[bool, typer.Option("--greedy", help="The most probable token at every step.")],
        "beam": _number(int, "Beam width; the model's own if not given.", min=1),
        "length_penalty": _number(float, "Exponent of the length: score = log-probability / length ** this."),
        "stopping": _word(
            "Effect of a finished hypothesis on the beam width: fixed or shrinking.", "fixed", "shrinking"
        ),
        "until": _word("When a beam search ends: filled, likely or sure.", "filled", "likely", "sure"),
        "groups": _number(int, "Diverse beam search: groups that the beam is divided into.", min=1),
        "diversity": _number(float, "Penalty of --groups for a token that an earlier group chose.", min=0),
        "exact": _switch("exact", "Find the output with the highest score, by branch and bound."),
        "exact_limit": _number(int, "Maximum number of unfinished hypotheses that --exact reads for a text.", min=1),
        "n_best": _number(int, "Number of outputs per line, separated by TAB; distinct, except with --sample.", min=1),
    },
    "Sampling": {
        "sample": Annotated[bool, typer.Option("--sample", help="Sample tokens; the options below imply it.")],
        "temperature": _number(float, "Divisor of the logits; 0 is greedy.", min=0),
        "top_k": _number(int, "Sample from the k most probable tokens.", min=0),
        "top_p": _number(float, "Sample from the smallest set of tokens with this total probability."),
        "min_p": _number(float, "Sample from tokens with at least this share of the highest probability."),
        "typical_p": _number(float, "Sample from tokens with information near the entropy, up to this probability."),
    },
    "Minimum Bayes risk": {
        "mbr": Annotated[
            str | None,
            typer.Option(
                metavar="UTILITY",
                help="Minimum Bayes risk by bleu, chrf, rouge, f1 or embeddings:MODEL.",
                autocompletion=utilities,
            ),
        ],
        "candidates": _number(int, "Number of outputs that --mbr chooses from.", min=1),
        "candidates_from": _word("Source of the candidates: sample, beam or both.", "sample", "beam", "both"),
        "evidence": _number(int, "Number of samples to compare candidates with; 0: the candidates.", min=0),
        "evidence_weights": _word("Weights of the evidence: uniform or model.", "uniform", "model"),
        "self_comparison": _switch("self-comparison", "Whether a candidate is compared with itself."),
        "mbr_method": _word("Method: full, aggregated, coarse or pruned.", "full", "aggregated", "coarse", "pruned"),
        "mbr_keep": _number(int, "Minimum number of candidates that coarse and pruned compare in full.", min=1),
        "mbr_confidence": _number(float, "Confidence at which pruned removes a candidate."),
    },
    "Words and tokens": {
        "repetition_penalty": _number(float, "Above 1: tokens that were written before are less likely."),
        "no_repeat_ngrams": _number(int, "Length of n-grams that must not repeat.", min=0),
        "count_prompt": _switch("count-prompt", "These two also count the source or prompt."),
        "presence_penalty": _number(
            float, "Subtracted from the logits of tokens that the output has (-2 to 2).", min=-2, max=2
        ),
        "frequency_penalty": _number(
            float, "Subtracted from the logit of a token for each time that the output has it (-2 to 2).", min=-2, max=2
        ),
        "banned_words": _texts("A word or phrase that outputs must not contain"),
        "banned_tokens": _texts("A token of the vocabulary that is never written", "TOKEN"),
        "required_words": _texts("A word or phrase that outputs must contain"),
        "prefix": _text("Text that every output begins with."),
        "forced_bos": _text("Token of the vocabulary that every output begins with.", "TOKEN"),
        "forced_eos": _switch("forced-eos", "End with EOS at --max-new-tokens."),
    },
    "Draft": {
        "draft": _texts("Proposes tokens to verify: ngrams, or a small MODEL with the same tokenizer", "DRAFT"),
        "draft_tokens": _number(int, "Maximum number of tokens that --draft proposes at a time.", min=1),
    },
    "Length": {
        "min_new_tokens": _number(int, "Minimum number of new tokens.", min=0),
        "max_new_tokens": _number(
            int, "Maximum number of new tokens; 2 x source + 16, or 128 after a prompt, if not given.", min=1
        ),
        "ignore_eos": _switch("ignore-eos", "Do not end at EOS."),
        "stop": _texts("Text that an output ends before"),
        "stop_tokens": _texts("Token of the vocabulary that ends an output", "TOKEN"),
        "batch_tokens": _number(int, "Source tokens times outputs of a batch.", min=1),
    },
}
_FLAGS = {name: kind for flags in _HEADINGS.values() for name, kind in flags.items()}
for _heading, _flags in _HEADINGS.items():
    for _kind in _flags.values():
        _kind.__metadata__[0].rich_help_panel = _heading


def with_decoding(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Return the command with the decoding flags, except `without`; its parameter `decoding` is a dict of those set."""
    parameters = [
        parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "decoding"
    ]
    first = next((n for n, parameter in enumerate(parameters) if parameter.name == "skip_bad"), len(parameters))
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=False if name in ("greedy", "sample") else None,
            annotation=annotation,
        )
        for name, annotation in _FLAGS.items()
        if name not in without
    ]

    def run(**options: Any) -> None:
        from atento.errors import RecipeError, UsageError

        try:
            command(decoding=_chosen({name: options.pop(name) for name in _FLAGS if name not in without}), **options)
        except (RecipeError, UsageError) as error:  # about the options of these flags
            message = _by_flag(str(error))
            if message == str(error):
                raise
            raise UsageError(message) from None

    return with_signature(command, run, [*parameters[:first], *flags, *parameters[first:]])


def _by_flag(message: str) -> str:
    """Return the message with flags instead of options."""

    def flag(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')}" if match[1] in _FLAGS else match[0]

    return re.sub(r"`(?:decoding\.)?(\w+)`", flag, message.removeprefix("options: "))


def _chosen(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were set, as options of a model's methods.

    Raises:
        UsageError: flags that exclude each other.
    """
    from atento.config.sections.decoding import FILTERS
    from atento.errors import UsageError

    greedy, sample = flags.pop("greedy"), flags.pop("sample")
    options = {name: value for name, value in flags.items() if value is not None and value != []}
    draws = ["--sample"] * sample + [f"--{name.replace('_', '-')}" for name in FILTERS if name in options]
    if greedy and options.get("beam", 1) != 1:
        raise UsageError(f"--greedy and --beam {options['beam']} exclude each other")
    for flag, is_set in (
        ("--greedy", greedy),
        ("--beam", "beam" in options),
        ("--length-penalty", "length_penalty" in options),
    ):
        if is_set and draws and not (flag != "--greedy" and "mbr" in options):
            raise UsageError(f"{flag} and {draws[0]} exclude each other: one searches, the other samples")
    for name in ("mbr", "exact"):
        if greedy and options.get(name):
            raise UsageError(f"--greedy and --{name} exclude each other")
    if "beam" in options and "mbr" in options:
        raise UsageError("--beam has no effect with --mbr: --candidates-from beam uses a beam as wide as --candidates")
    _refuse_unused(options, greedy, sample)
    return options | {name: True for name, is_set in (("greedy", greedy), ("sample", sample)) if is_set}


def _refuse_unused(options: dict[str, Any], greedy: bool, sample: bool) -> None:
    """Check that each flag has an effect in the strategy of the other flags. Raises UsageError otherwise."""
    from atento.config.reading.effects import unused_options
    from atento.config.sections.decoding import FILTERS, DecodingConfig
    from atento.errors import UsageError

    deciding = ("beam", "mbr", "candidates_from", "evidence", "exact", "required_words", *FILTERS)
    named = {name: options[name] for name in deciding if name in options} | ({"beam": 1} if greedy else {})
    drawn = sample or any(name in named for name in FILTERS)
    if not (greedy or drawn or named.keys() & {"beam", "mbr", "exact"}):
        return  # the model's own strategy: it is checked when the model is loaded
    if "required_words" in named:
        named["required_words"] = tuple(named["required_words"])
    strategy = DecodingConfig(**named | {"sample": drawn})
    for name, why in unused_options(strategy, {*options, *(["sample"] if sample else [])}, partial=True):
        raise UsageError(f"--{name.replace('_', '-')} has no effect: {why}")
