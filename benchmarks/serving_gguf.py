"""Writes a GPT-2 of the Hugging Face layout as a GGUF file of llama.cpp, its products and embeddings in Q8_0.

The file is run by the interpreter that has the packages `gguf` and `safetensors`, so it imports nothing of Atento. The
GGUF file has no tokenizer: its server gives llama.cpp ids, and reads ids.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

_NAMES = {  # of a layer: theirs -> llama.cpp's
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_OUTSIDE = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}


def gguf_command(python: str, source: Path, target: Path) -> list[str]:
    """The command that writes the folder `target`, with model.gguf and tokenizer.json."""
    return [python, "-P", __file__, str(source), str(target)]


def main() -> None:
    """Write the GGUF file."""
    source, target = map(Path, sys.argv[1:])
    target.mkdir()
    shutil.copy(source / "tokenizer.json", target)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _write(source / "model.safetensors", config, target / "model.gguf")


def _write(weights: Path, config: dict[str, Any], file: Path) -> None:
    import gguf
    from safetensors.numpy import load_file

    q8 = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(str(file), "gpt2")
    writer.add_name("random")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"] or 4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for name, tensor in load_file(weights).items():
        ours = _name(name)
        if ours is None:
            continue
        if ".c_" in name and tensor.ndim == 2:
            tensor = tensor.T.copy()  # theirs are (in,out)
        if tensor.ndim == 2 and ours != "position_embd.weight":
            writer.add_tensor(ours, gguf.quants.quantize(tensor, q8), raw_dtype=q8)
        else:
            writer.add_tensor(ours, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str | None:
    """llama.cpp's name of a tensor; None: it computes it."""
    path, _, kind = name.removeprefix("transformer.").rpartition(".")
    if path in _OUTSIDE:
        return f"{_OUTSIDE[path]}.{kind}"
    if not path.startswith("h."):
        return None
    _, layer, part = path.split(".", 2)
    return f"blk.{layer}.{_NAMES[part]}.{kind}" if part in _NAMES else None


if __name__ == "__main__":
    main()
