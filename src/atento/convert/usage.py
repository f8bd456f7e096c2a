"""Python lines for the model card of a converted folder: the engine and its tokenizer, without Atento."""

from atento.convert.beginnings import output_prefix, tokenizer_lines
from atento.model import Model

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
