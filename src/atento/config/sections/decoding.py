"""How outputs are searched for or drawn: a recipe's decoding, and the options of the command line and of Python."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypedDict

from atento.base.errors import RecipeError
from atento.config.literals import ABOVE_0, ABOVE_0_TO_1, AT_LEAST_1, FINITE, FROM_0_TO_1, NOT_NEGATIVE, Rule, Section
from atento.config.sections import decoding_option as of

MOST_REQUIRED = 10  # required words: the states of their automaton double with each
NGRAMS = "ngrams"  # the draft that copies; any other names a model
MOST_BEAM = 1024  # time and memory grow with it; `atento.decoding.Beam` takes any
UTILITIES = ("bleu", "chrf", "rouge", "rouge1", "rouge2", "f1")  # of `mbr`, as `atento.metrics.mbr_utilities` has them
CONTINUATION_TOKENS = 128  # default of `max_new_tokens` after a prompt: a paragraph
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")  # each of them implies sampling

_PENALTY = Rule("lie in [-2, 2]", lambda logits: -2 <= logits <= 2, -2, 2)


@dataclass(frozen=True)
class DecodingConfig(Section, path="decoding."):
    """The search or sampling of outputs, in validation and by default afterwards.

    Beam search (a beam of 1 is greedy search), unless `sample` or a filter of the distribution selects sampling, or
    `mbr` names a utility.
    """

    beam: Annotated[int, AT_LEAST_1] = of.search(4, "Beam width; the model's own if not given.", http="num_beams")
    """Hypotheses; 1 is greedy search. [1 to 1,024] 4 or 5 is better in translation, and slower."""
    length_penalty: Annotated[float, Rule("lie in [-50, 50]", lambda power: -50 <= power <= 50)] = of.search(
        1.0, "Exponent of the length: score = log-probability / length ** this.", http=True
    )
    """Hypotheses rank by log-probability / length ** this: above 1 favours long outputs, 0 short ones, below 0 the
    shortest. [-50 to 50]
    """
    n_best: Annotated[int, AT_LEAST_1] = of.search(
        1,
        "Number of outputs per line, separated by TAB; distinct, except with --sample.",
        http="num_return_sequences",
        rank=1,
    )
    """Outputs of each text, different ones except with `sample`. [at least 1; at most `beam` in a search, `candidates`
    with `mbr`]
    """
    stopping: Literal["fixed", "shrinking"] = of.search(
        "fixed", "Effect of a finished hypothesis on the beam width: fixed or shrinking."
    )
    """Width of the beam as hypotheses end: `fixed` until as many have ended, or `shrinking` by one for each."""
    until: Literal["filled", "likely", "sure"] = of.search("filled", "When a beam search ends: filled, likely or sure.")
    """A search ends when `beam` hypotheses have (`filled`), when no unfinished one ranks above them at its length
    (`likely`), or none could up to `max_new_tokens` (`sure`); each takes longer.
    """
    groups: Annotated[int, AT_LEAST_1] = of.search(1, "Diverse beam search: groups that the beam is divided into.")
    """Diverse beam search: groups of the beam, each of which avoids the tokens of earlier ones, by `diversity`. [at
    least 1; must divide `beam`]
    """
    diversity: Annotated[float, FINITE] = of.search(0.0, "Penalty of --groups for a token that an earlier group chose.")
    """Penalty on a token's log-probability for each earlier group that chose it in this step; 0.5 to 1 is usual. [0 or
    more]
    """
    exact: bool = of.search(False, "Find the output with the highest score, by branch and bound.")
    """The output with the highest score, by branch and bound, for short ones; at `exact_limit` that of the beam, with a
    warning.
    """
    exact_limit: Annotated[int, AT_LEAST_1] = of.search(
        1_000, "Maximum number of unfinished hypotheses that --exact reads for a text."
    )
    """Maximum unfinished hypotheses that `exact` reads for a text. [at least 1]"""
    sample: bool = of.sampling(False, "Sample tokens; the options below imply it.", http="do_sample")
    """Sample instead of searching; `temperature`, `top_k`, `top_p`, `min_p` and `typical_p` imply it."""
    temperature: Annotated[float, FINITE] = of.sampling(1.0, "Divisor of the logits; 0 is greedy.")
    """Divisor of the logits: below 1 sharper, above 1 flatter, 0 greedy. [0 or more]"""
    top_k: Annotated[int, NOT_NEGATIVE] = of.sampling(0, "Sample from the k most probable tokens.")
    """Sample from the k most probable tokens. [0 or more; 0: all]"""
    top_p: Annotated[float, ABOVE_0_TO_1] = of.sampling(
        1.0, "Sample from the smallest set of tokens with this total probability.", http=True
    )
    """Nucleus sampling: from the smallest set of tokens with this total probability. [above 0, up to 1; 1: all] 0.9 to
    0.95 for open-ended text.
    """
    min_p: Annotated[float, FROM_0_TO_1] = of.sampling(
        0.0, "Sample from tokens with at least this share of the highest probability."
    )
    """From the tokens with at least this share of the highest probability. [0 to 1; 0: all]"""
    typical_p: Annotated[float, ABOVE_0_TO_1] = of.sampling(
        1.0, "Sample from tokens with information near the entropy, up to this probability.", http=True
    )
    """Locally typical sampling: from the tokens whose information is nearest to the entropy, up to this total
    probability. [above 0, up to 1; 1: all]
    """
    mbr: str | None = of.mbr(
        None, "By bleu, chrf, rouge, f1, embeddings:MODEL, or comet, comet-kiwi or bertscore:FOLDER.", metavar="UTILITY"
    )
    """Choose the one of `candidates` with the highest mean utility: bleu, chrf, rouge, rouge1, rouge2, f1, or, not in
    recipes, embeddings:MODEL, comet:FOLDER, comet-kiwi:FOLDER or bertscore:FOLDER. [null: off]
    """
    candidates: Annotated[int, AT_LEAST_1] = of.mbr(32, "Number of outputs that --mbr chooses from.")
    """Outputs that `mbr` chooses from. [at least 1]"""
    candidates_from: Literal["sample", "beam", "both"] = of.mbr(
        "sample", "Source of the candidates: sample, beam or both."
    )
    """A `sample` of outputs, a `beam` as wide as `candidates`, or `both`, half of each."""
    evidence: Annotated[int, NOT_NEGATIVE] = of.mbr(
        0, "Number of samples to compare candidates with; 0: the candidates."
    )
    """Samples that the candidates are compared with. [0 or more; 0: the candidates themselves]"""
    evidence_weights: Literal["uniform", "model"] = of.mbr("uniform", "Weights of the evidence: uniform or model.")
    """Weight of evidence: `uniform`, by occurrences, or its probability under the `model`."""
    self_comparison: bool = of.mbr(True, "Whether a candidate is compared with itself.")
    """Compare a candidate with itself too, without other evidence."""
    mbr_method: Literal["full", "aggregated", "coarse", "pruned"] = of.mbr(
        "full", "Method: full, aggregated, coarse or pruned."
    )
    """Compare every pair (`full`), each candidate with the mean of the evidence (`aggregated`), pairs of the best
    `mbr_keep` of those (`coarse`), or without unlikely candidates (`pruned`). The last three are faster from about 100
    candidates on.
    """
    mbr_keep: Annotated[int, AT_LEAST_1] = of.mbr(
        16, "Minimum number of candidates that coarse and pruned compare in full."
    )
    """Fewest candidates that coarse and pruned compare with all evidence. [at least 1]"""
    mbr_confidence: Annotated[float, Rule("lie between 0 and 1", lambda share: 0 < share < 1)] = of.mbr(
        0.999, "Confidence at which pruned removes a candidate."
    )
    """Confidence at which pruned removes a candidate. [above 0, below 1]"""
    repetition_penalty: Annotated[float, ABOVE_0] = of.words(
        1.0, "Above 1: tokens that were written before are less likely.", http=True
    )
    """Above 1, lowers the logits of tokens written before. [above 0; 1: off] 1.1 to 1.3 against loops."""
    no_repeat_ngrams: Annotated[int, NOT_NEGATIVE] = of.words(
        0, "Length of n-grams that must not repeat.", http="no_repeat_ngram_size"
    )
    """No n-gram of this many tokens is written twice. [0 or more; 0: off] 3 is usual in summarization."""
    count_prompt: bool = of.words(False, "These two also count the source or prompt.")
    """`repetition_penalty` and `no_repeat_ngrams` count the source or prompt."""
    presence_penalty: Annotated[float, _PENALTY] = of.words(
        0.0, "Subtracted from the logits of tokens that the output has (-2 to 2)."
    )
    """Subtracted from the logits of tokens in the output, however often; below 0 favours repetition. [-2 to 2; 0: off]
    """
    frequency_penalty: Annotated[float, _PENALTY] = of.words(
        0.0, "Subtracted from the logit of a token for each time that the output has it (-2 to 2)."
    )
    """Subtracted from a token's logit for each occurrence in the output. [-2 to 2; 0: off]"""
    banned_words: tuple[str, ...] = of.words((), "A word or phrase that outputs must not contain")
    """Words or phrases that outputs must not contain, in up to 256 spellings by tokens. [not empty]"""
    banned_tokens: tuple[str, ...] = of.words((), "A token of the vocabulary that is never written", metavar="TOKEN")
    """Tokens never written, by name: "<unk>". [in the vocabulary]"""
    required_words: tuple[str, ...] = of.words((), "A word or phrase that outputs must contain")
    """Words or phrases that outputs must contain, in any order; a wider beam is better. [at most 10, not empty]"""
    prefix: str = of.words("", "Text that every output begins with.")
    """Words that every output begins with; a space at the end ends the last one. ["": none]"""
    forced_bos: str | None = of.words(None, "Token of the vocabulary that every output begins with.", metavar="TOKEN")
    """First token of every output, by name, such as a language. [null: none]"""
    forced_eos: bool = of.words(False, "End with EOS at --max-new-tokens.")
    """Outputs at `max_new_tokens` end with EOS."""
    ignore_eos: bool = of.length(False, "Do not end at EOS.", rank=1)
    """EOS does not end an output."""
    stop_tokens: tuple[str, ...] = of.length((), "Token of the vocabulary that ends an output", metavar="TOKEN", rank=2)
    """Tokens that end an output beside EOS, by name; removed from it. [in the vocabulary]"""
    min_new_tokens: Annotated[int, NOT_NEGATIVE] = of.length(0, "Minimum number of new tokens.", http=True)
    """Minimum tokens of an output. [0 or more]"""
    max_new_tokens: Annotated[int, AT_LEAST_1] | None = of.length(
        None,
        "Maximum number of new tokens; 2 x source + 16, or 128 after a prompt, if not given.",
        http=True,
    )
    """Maximum tokens of an output. [at least 1; null: 2 × source + 16 for a model with sources, 128 for a language
    model]
    """
    stop: tuple[str, ...] = of.length((), "Text that an output ends before", rank=1)
    """Texts that end an output; removed from it."""
    draft: tuple[str, ...] = of.draft(
        (), "Proposes tokens to verify: ngrams, or a small MODEL with the same tokenizer", metavar="DRAFT"
    )
    """Proposes tokens in greedy search and sampling, faster with the same outputs: `ngrams` copies source, prompt and
    output; else the folder of a small model with the same tokenizer. [empty: off]
    """
    draft_tokens: Annotated[int, AT_LEAST_1] = of.draft(
        8, "Maximum number of tokens that --draft proposes at a time.", http="prompt_lookup_num_tokens"
    )
    """Maximum tokens that `draft` proposes at a time. [at least 1]"""
    seed: int = of.option("", 1, http=True)
    """Random seed; each text has its own numbers."""
    batch_tokens: Annotated[int, AT_LEAST_1] = of.length(4096, "Source tokens times outputs of a batch.", rank=2)
    """Source tokens times outputs of a batch. [at least 1]"""

    def _check(self) -> None:
        for field in fields(self):
            # a stop may be blank, such as a line break
            texts = getattr(self, field.name) if field.default == () else ()
            if not all(text if field.name == "stop" else text.strip() for text in texts):
                raise RecipeError(f"`decoding.{field.name}` must hold strings that are not empty")
        if self.beam > MOST_BEAM:
            raise RecipeError(f"`decoding.beam` must be at most {MOST_BEAM}: got {self.beam}")
        if len(set(self.required_words)) > MOST_REQUIRED:
            rule = f"takes at most {MOST_REQUIRED} words"
            raise RecipeError(f"`decoding.required_words` {rule}: got {len(set(self.required_words))}")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            rule = "`decoding.min_new_tokens` must not exceed `max_new_tokens`"
            raise RecipeError(f"{rule}: got {self.min_new_tokens} and {self.max_new_tokens}")
        if self.mbr is not None and self.n_best > self.candidates:
            rule = "`decoding.n_best` must not exceed `candidates`"
            raise RecipeError(f"{rule}: got {self.n_best} and {self.candidates}")
        if len(self.draft) > 1 + (NGRAMS in self.draft) or len(set(self.draft)) < len(self.draft):
            raise RecipeError(f"`decoding.draft` takes `{NGRAMS}`, one model, or both: got {', '.join(self.draft)}")
        for first, second, why in self._excluded():
            raise RecipeError(f"`decoding.{first}` and `{second}` exclude each other: {why}")
        if self.mbr is None and not self.samples and self.n_best > self.beam:
            raise RecipeError(
                f"`decoding.n_best` must not exceed `beam`: got {self.n_best} and {self.beam}; "
                "a wider beam gives as many, and so does `sample`"
            )
        width = self.searched_width
        if width and width % self.groups:
            name = "beam" if self.mbr is None else "candidates"
            raise RecipeError(f"`decoding.groups` must divide `{name}`: got {self.groups} and a beam of {width}")

    def _excluded(self) -> Iterator[tuple[str, str, str]]:
        """Two options that are both given and cannot both be heeded, and why."""
        strategy = "mbr" if self.mbr is not None else "sample" if self.samples else None
        if self.exact:
            if strategy is not None:
                yield "exact", strategy, "one searches, the other samples"
            if self.n_best > 1:
                yield "exact", "n_best", "an exact search finds the one best output"
            for name in ("presence_penalty", "frequency_penalty"):
                if getattr(self, name) < 0:
                    yield "exact", name, "a penalty below 0 raises scores, and an exact search needs falling ones"
            for name in ("stop", "required_words"):
                if getattr(self, name):
                    yield "exact", name, "an exact search does not know what an output still lacks or contains"
        if self.required_words:
            if strategy is not None:
                yield "required_words", strategy, "required words need a beam search"
            if self.groups > 1:
                yield "required_words", "groups", "both divide the beam"
            if self.stop:
                yield "required_words", "stop", "a stop string may end an output before its words are written"
            for word in self.required_words:
                if word in self.banned_words:
                    yield "required_words", "banned_words", f"both name {word!r}"
        if self.draft:
            for name in ("exact", "required_words", "mbr"):
                if getattr(self, name):
                    yield "draft", name, "a draft is for greedy search and sampling"
            if strategy is None and self.beam > 1:
                yield "draft", "beam", "a draft is for greedy search (`greedy`, a beam of 1) and sampling"
        if self.ignore_eos and self.forced_eos:
            yield "ignore_eos", "forced_eos", "one ignores EOS, the other ends with it"

    @property
    def samples(self) -> bool:
        """Whether outputs are sampled: by `sample`, or by a filter of the distribution."""
        return self.sample or self.changes(*FILTERS)

    def changes(self, *names: str) -> bool:
        """Whether one of these options is not its default."""
        known = type(self).__dataclass_fields__
        return any(name in known and getattr(self, name) != known[name].default for name in names)

    @property
    def searched_width(self) -> int:
        """The width of the beam search; 0 without one."""
        if self.mbr is None:
            return 0 if self.samples else self.beam
        return {"sample": 0, "beam": self.candidates, "both": self.candidates // 2}[self.candidates_from]

    @property
    def rows(self) -> int:
        """The number of outputs of one text in a batch."""
        if self.mbr is not None:
            return max(self.candidates, self.evidence)
        return self.n_best if self.samples else self.beam


class DecodingOptions(TypedDict, total=False):
    """Options of methods such as `Model.translate`, for type checkers and completion: the fields of `DecodingConfig`.

    `n_best` is a parameter of its own, because it changes what a call returns. `mbr` also takes a function of two lists
    of texts that returns the matrix of their utilities. `stop`, `stop_tokens`, `banned_words`, `banned_tokens`,
    `required_words` and `draft` take one string or any sequence of them. `greedy` is the flag `--greedy`: a beam of 1
    instead of that of the recipe.
    """

    greedy: bool
    beam: int
    length_penalty: float
    stopping: Literal["fixed", "shrinking"]
    until: Literal["filled", "likely", "sure"]
    groups: int
    diversity: float
    exact: bool
    exact_limit: int
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    mbr: str | Callable[[list[str], list[str]], Any] | None
    candidates: int
    candidates_from: Literal["sample", "beam", "both"]
    evidence: int
    evidence_weights: Literal["uniform", "model"]
    self_comparison: bool
    mbr_method: Literal["full", "aggregated", "coarse", "pruned"]
    mbr_keep: int
    mbr_confidence: float
    repetition_penalty: float
    no_repeat_ngrams: int
    count_prompt: bool
    presence_penalty: float
    frequency_penalty: float
    banned_words: str | Sequence[str]
    banned_tokens: str | Sequence[str]
    required_words: str | Sequence[str]
    prefix: str
    forced_bos: str | None
    forced_eos: bool
    ignore_eos: bool
    stop_tokens: str | Sequence[str]
    min_new_tokens: int
    max_new_tokens: int | None
    stop: str | Sequence[str]
    draft: str | Sequence[str]
    draft_tokens: int
    seed: int
    batch_tokens: int
