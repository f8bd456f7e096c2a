"""The sides of the encoding benchmark on one BERT folder: Atento, sentence-transformers and ONNX Runtime."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.network import NetworkConfig, network_to_dict
from atento.model import load
from atento.models.write import write_model
from atento.networks import build_network
from atento.tasks.grouping import by_length

BATCH_TOKENS = 1024  # padded tokens of a batch, ours and ONNX Runtime's: 2 to 3 % of them padding, and enough rows
PEER_BATCH = 32  # sentences of a batch of sentence-transformers, its default
_SPECIALS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}

Vectors = NDArray[np.float32]


def vocabulary(size: int, words: Sequence[str]) -> list[str]:
    """BERT's special tokens in their places, the words in the others, numbered ones where words do not suffice."""
    own = iter([word for word in dict.fromkeys(words) if word not in _SPECIALS.values()])
    return [_SPECIALS.get(place) or next(own, f"w{place}") for place in range(size)]


@torch.no_grad()
def write_encoder(folder: Path, config: NetworkConfig, words: Sequence[str], seed: int = 1) -> None:
    """A BERT of random weights over those words, in the layout that all sides read."""
    torch.manual_seed(seed)
    network = build_network(config)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": config.max_len}
    files = {
        "vocab.txt": "".join(word + "\n" for word in vocabulary(config.vocab_size, words)).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }
    about = {"model_type": "atento", "name": "random", "task": "embedding", "network": network_to_dict(config)}
    write_model(folder, about, network.state_dict(), files, layout="huggingface")


class OurEncoder:
    """`model.embed`: the mean over each text's last layer, batches of like length."""

    def load(self, folder: Path, precision: str) -> None:
        """A folder of `write_encoder`; precision float32 or bfloat16."""
        self.model = load(folder, device="cpu", precision=precision)

    def run(self, texts: Sequence[str]) -> Vectors:
        """A vector (N,D) a text."""
        return self.model.embed(texts, pooling="mean", batch_tokens=BATCH_TOKENS)


class SentenceTransformers:
    """`SentenceTransformer.encode` in float32, as it comes."""

    def __init__(self) -> None:
        import sentence_transformers

        self.library = sentence_transformers

    def load(self, folder: Path) -> None:
        """A folder of `write_encoder`; without settings of its own it takes the mean, too."""
        self.model: Any = self.library.SentenceTransformer(str(folder), device="cpu")

    def run(self, texts: Sequence[str]) -> Vectors:
        """A vector (N,D) a text."""
        found: Vectors = self.model.encode(
            list(texts), batch_size=PEER_BATCH, convert_to_numpy=True, show_progress_bar=False
        )
        return found


class OnnxExport:
    """Makes the files of ONNX Runtime; a contender of its own so that what this takes is no part of the session's."""

    def load(self, *given: Any) -> None:
        """Nothing to load."""

    def run(self, work: tuple[Path, NetworkConfig, Path]) -> None:
        """(folder of `write_encoder`, its configuration, folder for float32.onnx and int8.onnx).

        `transformers`' model exported by PyTorch, fused by ONNX Runtime's own optimizer for BERT, and its products'
        weights then quantised dynamically: what that library's guide advises.
        """
        from onnx import TensorProto
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.transformers.optimizer import optimize_model

        source, config, target = work
        target.mkdir()
        raw = target / "raw.onnx"
        _export(source, raw)
        fused = optimize_model(str(raw), "bert", num_heads=config.n_heads, hidden_size=config.d_model)
        fused.save_model_to_file(str(target / "float32.onnx"))
        quantize_dynamic(
            target / "float32.onnx",
            target / "int8.onnx",
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": TensorProto.FLOAT},  # of what fused nodes give, which is not inferred
        )


def _export(source: Path, target: Path) -> None:
    from transformers import BertModel

    model: Any = BertModel.from_pretrained(source, attn_implementation="eager", add_pooling_layer=False)
    model.eval()

    class Hidden(torch.nn.Module):
        """ids and padding mask (B,L) -> the last layer (B,L,D)."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            added = (1.0 - real[:, None, None, :].float()) * -10000.0  # the form that the optimizer knows
            hidden: torch.Tensor = self.model(input_ids=ids, attention_mask=added).last_hidden_state
            return hidden

    sample = torch.ones(2, 6, dtype=torch.long)
    axes = {name: {0: "batch", 1: "length"} for name in ("ids", "real", "hidden")}
    torch.onnx.export(
        Hidden(),
        (sample, sample),
        str(target),
        input_names=["ids", "real"],
        output_names=["hidden"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,  # the graph that the optimizer's patterns were written for
    )


class OnnxRuntime:
    """ONNX Runtime on the processor, given the batches that we make."""

    def __init__(self) -> None:
        import onnxruntime
        import transformers

        self.library, self.transformers = onnxruntime, transformers

    def load(self, folder: Path, file: Path) -> None:
        """The tokenizer's folder and a file of `OnnxExport`."""
        options = self.library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        self.session = self.library.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.tokenizer = self.transformers.AutoTokenizer.from_pretrained(folder)

    def run(self, texts: Sequence[str]) -> Vectors:
        """A vector (N,D) a text: the mean over real tokens."""
        rows = self.tokenizer(list(texts), truncation=True)["input_ids"]
        vectors: list[Vectors] = [np.zeros(0, dtype=np.float32)] * len(rows)
        for batch in by_length([len(row) for row in rows], BATCH_TOKENS):
            ids = np.zeros((len(batch), len(rows[batch[0]])), dtype=np.int64)
            real = np.zeros_like(ids)
            for place, row in enumerate(batch):
                ids[place, : len(rows[row])] = rows[row]
                real[place, : len(rows[row])] = 1
            (hidden,) = self.session.run(None, {"ids": ids, "real": real})
            pooled = (hidden * real[..., None]).sum(axis=1) / real.sum(axis=1, keepdims=True)
            for place, row in enumerate(batch):
                vectors[row] = pooled[place].astype(np.float32)
        return np.stack(vectors)
