"""Python lines for the model card of a folder of ONNX files: ONNX Runtime and `tokenizers` alone."""

from atento.model import Model

_START = """import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
"""
_ENCODER = """session = onnxruntime.InferenceSession("model.onnx")
text = tokenizer.encode("Hello.")
inputs = {"input_ids": text.ids, "attention_mask": text.attention_mask, "token_type_ids": text.type_ids}
names = [argument.name for argument in session.get_inputs()]
outputs = session.run(None, {name: np.array([inputs[name]], dtype=np.int64) for name in names})
print({output.name: value.shape for output, value in zip(session.get_outputs(), outputs)})
"""
_DECODER = """session = onnxruntime.InferenceSession("model.onnx")
caches = [argument for argument in session.get_inputs() if argument.name.startswith("past_key_values")]
past = {{argument.name: np.zeros((1, argument.shape[1], 0, argument.shape[3]), np.float32) for argument in caches}}
new = written = tokenizer.encode("Once").ids
for _ in range(40):
    ids, mask = np.array([new], dtype=np.int64), np.ones((1, len(written)), dtype=np.int64)
    logits, *present = session.run(None, {{"input_ids": ids, "attention_mask": mask, **past}})
    past = {{argument.name: cache for argument, cache in zip(caches, present)}}
    new = [int(logits[0, -1].argmax())]
    if new == [{eos}]:
        break
    written = [*written, *new]
print(tokenizer.decode(written))
"""
_ENCODER_DECODER = """encoder, first, later = (
    onnxruntime.InferenceSession(f"{{name}}.onnx")
    for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
)
text = tokenizer.encode("Hello.")
ids, mask = np.array([text.ids], dtype=np.int64), np.array([text.attention_mask], dtype=np.int64)
(encoded,) = encoder.run(None, {{"input_ids": ids, "attention_mask": mask}})
given = {{"encoder_attention_mask": mask, "encoder_hidden_states": encoded}}
session, past, written = first, {{}}, [{start}]
for _ in range(100):
    new = np.array([written[-1:]], dtype=np.int64)
    outputs = session.run(None, {{"input_ids": new, **given, **past}})
    names = [output.name.replace("present", "past_key_values") for output in session.get_outputs()]
    past |= dict(zip(names[1:], outputs[1:]))
    session, given = later, {{"encoder_attention_mask": mask}}
    written.append(int(outputs[0][0, -1].argmax()))
    if written[-1] == {eos}:
        break
print(tokenizer.decode(written))
"""
_WITHOUT_TOKENIZER = """# the model has no tokenizer: it takes ids
import onnxruntime

print([argument.name for argument in onnxruntime.InferenceSession("{file}").get_inputs()])
"""


def usage(model: Model, files: set[str]) -> str:
    """Lines that run the folder, which has files of these names; a writer is decoded greedily."""
    config = model.network.config
    if "tokenizer.json" not in files:
        return _WITHOUT_TOKENIZER.format(file=min(name for name in files if name.endswith(".onnx")))
    if config.architecture == "encoder":
        return _START + _ENCODER
    lines = _DECODER if config.architecture == "decoder" else _ENCODER_DECODER
    return _START + lines.format(eos=config.eos_id, start=config.start_id)
