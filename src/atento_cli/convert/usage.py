"""Python lines for the model card of a converted folder: the engine, its tokenizer, how texts begin."""

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


_CTRANSLATE2 = {
    "encoder-decoder": """translator = ctranslate2.Translator(".")
source_tokens = {tokens}
output = translator.translate_batch([source_tokens], beam_size=4{prefix}{ends})[0].hypotheses[0]
print({from_tokens})
""",
    "decoder": """generator = ctranslate2.Generator(".")
prompt = {tokens}
output = generator.generate_batch([prompt], max_length=40, include_prompt_in_result=False{ends})[0].sequences_ids[0]
print({from_ids})
""",
    "encoder": """encoder = ctranslate2.Encoder(".")
vectors = encoder.forward_batch([{tokens}]).last_hidden_state  # (1, tokens, width)
print(vectors)
""",
}
_ONNX = {
    "encoder": """session = onnxruntime.InferenceSession("model.onnx")
ids = np.array([{ids}], dtype=np.int64)
inputs = {{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}}
names = [argument.name for argument in session.get_inputs()]
outputs = session.run(None, {{name: inputs[name] for name in names}})
print({{output.name: value.shape for output, value in zip(session.get_outputs(), outputs)}})
""",
    "decoder": """session = onnxruntime.InferenceSession("model.onnx")
caches = [argument for argument in session.get_inputs() if argument.name.startswith("past_key_values")]
past = {{argument.name: np.zeros((1, argument.shape[1], 0, argument.shape[3]), np.float32) for argument in caches}}
new, output = {ids}, []
length = 0
for _ in range(40):
    length += len(new)
    inputs = {{"input_ids": np.array([new], dtype=np.int64), "attention_mask": np.ones((1, length), dtype=np.int64)}}
    logits, *present = session.run(None, inputs | past)
    past = {{argument.name: cache for argument, cache in zip(caches, present)}}
    new = [int(logits[0, -1].argmax())]
    if {ended}:
        break
    output += new
print({from_ids})
""",
    "encoder-decoder": """encoder, first, later = (
    onnxruntime.InferenceSession(f"{{name}}.onnx")
    for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
)
ids = np.array([{ids}], dtype=np.int64)
(encoded,) = encoder.run(None, {{"input_ids": ids, "attention_mask": np.ones_like(ids)}})
inputs = {{"encoder_attention_mask": np.ones_like(ids), "encoder_hidden_states": encoded}}
session, new, output = first, {start}, []
for _ in range(100):
    inputs["input_ids"] = np.array([new], dtype=np.int64)
    names = [argument.name for argument in session.get_inputs()]
    logits, *present = session.run(None, {{name: inputs[name] for name in names}})
    names = [argument.name.replace("present", "past_key_values") for argument in session.get_outputs()[1:]]
    inputs |= dict(zip(names, present))
    session, new = later, [int(logits[0, -1].argmax())]
    if {ended}:
        break
    output += new
print({from_ids})
""",
}
_WITHOUT_TOKENIZER = {
    "ctranslate2": """# the tokens have the names in the vocabulary file
import ctranslate2

print(ctranslate2.contains_model("."))
""",
    "onnx": """# the files take ids
import onnxruntime

print(onnxruntime.InferenceSession("{file}").get_inputs()[0])
""",
}


def ctranslate2_usage(model: Model, files: set[str]) -> str:
    """Lines that run a folder of CTranslate2, which has files of these names."""
    lines = tokenizer_lines(model, files)
    if lines is None:
        return _WITHOUT_TOKENIZER["ctranslate2"]
    architecture, ends = model.network.config.architecture, model.network.config.eos_ids
    prefix = list(output_prefix(model))
    text = "Once" if architecture == "decoder" else "Hello."
    return f"import ctranslate2\n{lines.setup}" + _CTRANSLATE2[architecture].format(
        tokens=lines.tokens.format(text=text),
        prefix=f", target_prefix=[{prefix}]" if prefix else "",
        ends=f", end_token={list(ends)}" if len(ends) > 1 else "",
        from_tokens=lines.from_tokens.replace("output", f"output[{len(prefix)}:]" if prefix else "output"),
        from_ids=lines.from_ids,
    )


def onnx_usage(model: Model, files: set[str]) -> str:
    """Lines that run a folder of ONNX files, which has files of these names; a writer is decoded greedily."""
    lines, config = tokenizer_lines(model, files), model.network.config
    if lines is None or model.tokenizer is None:
        return _WITHOUT_TOKENIZER["onnx"].format(file=min(name for name in files if name.endswith(".onnx")))
    prefix = [model.tokenizer.token_id(token) for token in output_prefix(model)]
    text = "Once" if config.architecture == "decoder" else "Hello."
    return f"import numpy as np\nimport onnxruntime\n{lines.setup}" + _ONNX[config.architecture].format(
        ids=lines.ids.format(text=text),
        ended=f"new == [{config.eos_id}]" if len(config.eos_ids) == 1 else f"new[0] in {config.eos_ids}",
        start=[config.start_id, *prefix],
        from_ids=lines.from_ids,
    )
