"""How texts begin for a multilingual model, and how its tokenizer is run without Atento: parts of the model card."""

from dataclasses import dataclass

from atento.data.batches.special_tokens import special_tokens_of
from atento.model import Model
from atento.text.specials import chooses_by_source, languages_of
from atento.text.tokenizer import Tokenizer

_PORTUGUESE = ("por_Latn", "pt_XX", "pt", "por")  # the target language of the example, where a model has it


@dataclass(frozen=True)
class TokenizerLines:
    """Python that turns a text into tokens and back.

    Attributes:
        from_tokens, from_ids: expressions: the text of `output`, names or ids.
    """

    setup: str  # lines that make the tokenizer
    tokens: str  # an expression: the names of the tokens of a text, special ones included, for `{text}`
    ids: str  # an expression: their ids
    from_tokens: str
    from_ids: str


def output_prefix(model: Model) -> tuple[str, ...]:
    """The tokens that every output begins with, behind the start token: a target language, where the model takes one.

    The language of the example is Portuguese or, where there is none, the first.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not model.network.config.reads_source:
        return ()
    forced, own = model.decoding.forced_bos, model.network.config.writing
    if forced is None and own is not None and own.first is not None:
        forced = tokenizer.target.tokens([own.first])[0]
    languages = languages_of(tokenizer.specials.ids)
    begins = model.network.config.start_id in {tokenizer.specials.ids[token] for token in languages.values()}
    if forced is not None or not languages or begins or _in_source(languages):
        return () if forced is None else (forced,)
    return (_language(languages),)


def source_prefix(model: Model) -> tuple[str, ...]:
    """The token of the target language, which some of Marian's models read in front of the source."""
    ids = {} if model.tokenizer is None else model.tokenizer.specials.ids
    languages = languages_of(ids)
    told = model.tokenizer is not None and any(ids[t] in model.tokenizer.template().ids() for t in languages.values())
    return (_language(languages),) if _in_source(languages) and not told else ()


def _in_source(languages: dict[str, str]) -> bool:
    return any(chooses_by_source(token) for token in languages.values())


def _language(languages: dict[str, str]) -> str:
    return languages[next((name for name in _PORTUGUESE if name in languages), min(languages))]


def tokenizer_lines(model: Model, files: set[str]) -> TokenizerLines | None:
    """The lines for the tokenizer of a folder that has files of these names; None: it has none."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    before = source_prefix(model)
    if "tokenizer.json" not in files:
        return _sentencepiece(model, tokenizer, files, before)
    named, numbered, known = "", "", ""
    if tokenizer.target.vocab_size < model.network.config.target_vocab_size:  # ids without a piece have no text
        known = " if tokenizer.token_to_id(token) is not None"
    if before:
        named, numbered = f"{list(before)} + ", f"[tokenizer.token_to_id({before[0]!r})] + "
    return TokenizerLines(
        'from tokenizers import Tokenizer\n\ntokenizer = Tokenizer.from_file("tokenizer.json")\n',
        named + 'tokenizer.encode("{text}").tokens',
        numbered + 'tokenizer.encode("{text}").ids',
        f"tokenizer.decode([tokenizer.token_to_id(token) for token in output{known}])",
        "tokenizer.decode(output)",
    )


def _sentencepiece(
    model: Model, tokenizer: Tokenizer, files: set[str], before: tuple[str, ...]
) -> TokenizerLines | None:
    """Lines for the package `sentencepiece`, with the special tokens that the model reads around a text."""
    models: list[str] = [name for name in ("source.spm", "target.spm") if name in files]
    models = models or [name for name in files if name.endswith((".model", ".spm"))][:1] * 2  # one for both sides
    if len(models) != 2 or "vocab.json" not in files:
        return None
    template = special_tokens_of(model.network.config, tokenizer, model.config.get("template")).single
    contents = [content for content, _ in template]
    text = contents.index("A")  # where the text stands
    before_ids = [tokenizer.specials.ids[token] for token in before]
    first_ids = [*before_ids, *(content for content in contents[:text] if isinstance(content, int))]
    last_ids = [content for content in contents[text + 1 :] if isinstance(content, int)]
    first, last = tokenizer.tokens(first_ids), tokenizer.tokens(last_ids)
    pieces = 'source.encode("{text}", out_type=str)'
    return TokenizerLines(
        "import json\nfrom pathlib import Path\n\nfrom sentencepiece import SentencePieceProcessor\n\n"
        f'source = SentencePieceProcessor(model_file="{models[0]}")\n'
        f'target = SentencePieceProcessor(model_file="{models[1]}")\n'
        'vocabulary = json.loads(Path("vocab.json").read_text(encoding="utf-8"))\n'
        "pieces = {number: piece for piece, number in vocabulary.items()}\n",
        f"[*{first}, *{pieces}, *{last}]",
        f"[*{first_ids}, *(vocabulary.get(piece, {tokenizer.unk_id}) for piece in {pieces}), *{last_ids}]",
        "target.decode(output)",
        'target.decode([pieces.get(number, "") for number in output])',
    )
