"""The contenders of the encoding benchmark on one BERT: Atento, sentence-transformers, ONNX Runtime, OpenVINO."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.tables.tasks import EMBEDDING
from atento.model import load
from atento.models.write import write_model
from atento.networks import build_network
from atento.tasks.length_batching import length_batches
from atento_cli.convert.layouts import convert
from atento_cli.convert.onnx_engine import quantize, write_graph
from atento_cli.convert.onnx_graphs import graphs_of
from benchmarks.devices import SDPA, attend_by

BATCH_TOKENS = 1024  # padded tokens per batch, ours and ONNX Runtime's: 2 to 3 % of them are padding
PEER_BATCH = 32  # sentences per batch of sentence-transformers, its default
_ON_GPU = 16  # times as many in a batch on a GPU, of either side
_SPECIALS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}

Vectors = NDArray[np.float32]


def vocabulary(size: int, words: Sequence[str]) -> list[str]:
    """Return BERT's special tokens at their ids, the words at the others, and numbered words for the remaining ids."""
    new_words = iter([word for word in dict.fromkeys(words) if word not in _SPECIALS.values()])
    return [_SPECIALS.get(index) or next(new_words, f"w{index}") for index in range(size)]


@torch.no_grad()
def write_encoder(folder: Path, config: NetworkConfig, words: Sequence[str], seed: int = 1) -> None:
    """Write a BERT with random weights over these words, in the layout that all contenders read."""
    torch.manual_seed(seed)
    network = build_network(config)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": config.max_len}
    files = {
        "vocab.txt": "".join(word + "\n" for word in vocabulary(config.vocab_size, words)).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }
    about = {"model_type": "atento", "name": "random", "task": EMBEDDING, "network": network_to_dict(config)}
    write_model(folder, about, network.state_dict(), files, layout="huggingface")


def batch_tokens(device: str) -> int:
    """Padded tokens of our batches on a device."""
    return BATCH_TOKENS if device == "cpu" else _ON_GPU * BATCH_TOKENS


def peer_batch(device: str) -> int:
    """Sentences of a batch of sentence-transformers on a device."""
    return PEER_BATCH if device == "cpu" else _ON_GPU * PEER_BATCH


class OurEncoder:
    """`model.embed`: the mean over each text's last layer, in batches of similar lengths."""

    def load(self, folder: Path, precision: str, device: str = "cpu") -> None:
        """Load a folder of `write_encoder`; precision is float32, bfloat16 or int8."""
        self.model, self.batch_tokens = load(folder, device=device, precision=precision), batch_tokens(device)

    def run(self, texts: Sequence[str]) -> Vectors:
        """Return a vector per text (N,D)."""
        return self.model.embed(texts, pooling="mean", batch_tokens=self.batch_tokens)


class FixedScales:
    """Makes the folder in 8 bits with fixed scales that `OurEncoder` loads; as `OnnxExport`."""

    def load(self, *arguments: object) -> None:
        """Do nothing."""

    def run(self, work: tuple[Path, Sequence[str], Path]) -> None:
        """Convert (folder of `write_encoder`, texts for the scales, folder to write)."""
        folder, texts, target = work
        file = target.with_suffix(".txt")
        file.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        convert(folder, target, "atento", precision="int8", calibrate=file)


class SentenceTransformers:
    """`SentenceTransformer.encode` with default options, but for larger batches on a GPU."""

    other_library = True

    def __init__(self) -> None:
        import sentence_transformers

        self.library = sentence_transformers

    def load(self, folder: Path, device: str = "cpu", precision: str = "float32", attention: str = SDPA) -> None:
        """Load a folder of `write_encoder`; without settings the library also uses the mean."""
        self.model: Any = self.library.SentenceTransformer(str(folder), device=device)
        self.model.to(getattr(torch, precision))
        attend_by(self.model[0].auto_model, attention)
        self.batch = peer_batch(device)

    def run(self, texts: Sequence[str]) -> Vectors:
        """Return a vector per text (N,D)."""
        vectors: Vectors = self.model.encode(
            list(texts), batch_size=self.batch, convert_to_numpy=True, show_progress_bar=False
        )
        return vectors


class OnnxExport:
    """Makes the files of ONNX Runtime; a separate contender, so that its memory does not count for the session."""

    def load(self, *arguments: Any) -> None:
        """Do nothing."""

    def run(self, work: tuple[Path, NetworkConfig, Path]) -> None:
        """Export (folder of `write_encoder`, its configuration, folder for float32.onnx and int8.onnx).

        The graph is that of `atento convert`; ONNX Runtime's optimizer for BERT fuses it, and the weights of its
        products are quantised dynamically, as the guide of that library recommends.
        """
        from onnxruntime.transformers.optimizer import optimize_model

        source, config, target = work
        target.mkdir()
        raw = target / "raw.onnx"
        [graph] = graphs_of(load(source, device="cpu").network, None).values()
        write_graph(graph, raw, "float32")
        fused = optimize_model(str(raw), "bert", num_heads=config.n_heads, hidden_size=config.d_model)
        fused.save_model_to_file(str(target / "float32.onnx"))
        quantize(target / "float32.onnx", target / "int8.onnx")


class OnnxRuntime:
    """ONNX Runtime on the CPU, with our batches."""

    other_library = True

    def __init__(self) -> None:
        import onnxruntime
        import transformers

        self.library, self.transformers = onnxruntime, transformers

    def load(self, folder: Path, file: Path) -> None:
        """Load the tokenizer's folder and a file of `OnnxExport`."""
        options = self.library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        self.session = self.library.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.tokenizer = self.transformers.AutoTokenizer.from_pretrained(folder)

    def run(self, texts: Sequence[str]) -> Vectors:
        """Return a vector per text (N,D): the mean over real tokens."""
        return batched(texts, self.tokenizer, lambda inputs: self.session.run(None, inputs)[0])


class OpenVinoExport:
    """Makes the file of OpenVINO in int8 by NNCF, with its usual settings for Transformers; as `OnnxExport`."""

    other_library = True

    def load(self, *arguments: object) -> None:
        """Do nothing."""

    def run(self, work: tuple[Path, Sequence[str], Path]) -> None:
        """Convert and quantise (folder of `write_encoder`, texts for the scales, file for the network)."""
        import nncf
        import openvino
        from transformers import AutoModel, AutoTokenizer

        folder, texts, file = work
        tokenizer = AutoTokenizer.from_pretrained(folder)
        network = AutoModel.from_pretrained(folder).eval()
        converted = openvino.convert_model(network, example_input=dict(tokenizer([texts[0]], return_tensors="pt")))
        names = [tensor.get_any_name() for tensor in converted.inputs]

        def inputs(text: str) -> dict[str, object]:
            encoded = tokenizer([text], truncation=True, return_tensors="np")
            return {name: encoded[name] for name in names}

        data = nncf.Dataset(list(texts), inputs)
        kind = nncf.ModelType.TRANSFORMER
        quantized = nncf.quantize(converted, data, model_type=kind, subset_size=len(texts))
        openvino.save_model(quantized, file, compress_to_fp16=False)


class OpenVino:
    """OpenVINO on the CPU, with our batches, several at a time."""

    other_library = True

    def load(self, folder: Path, file: Path) -> None:
        """Load the tokenizer's folder and a file of `OpenVinoExport`."""
        import openvino
        from transformers import AutoTokenizer

        options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "THROUGHPUT"}
        self.queue = openvino.AsyncInferQueue(openvino.Core().compile_model(file, "CPU", options))
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def run(self, texts: Sequence[str]) -> Vectors:
        """Return a vector per text (N,D): the mean over real tokens."""
        vectors: dict[int, Vectors] = {}

        def finish(request: Any, batch: tuple[Sequence[int], Vectors]) -> None:
            vectors.update(zip(batch[0], means(request.get_output_tensor(0).data, batch[1])))

        self.queue.set_callback(finish)
        for rows, inputs in batches(texts, self.tokenizer):
            self.queue.start_async(inputs, (rows, inputs["attention_mask"]))
        self.queue.wait_all()
        return np.stack([vectors[row] for row in range(len(texts))])


def batched(texts: Sequence[str], tokenizer: Any, read: Callable[[dict[str, Any]], Any]) -> Vectors:
    """The mean over each text's real tokens (N,D), of what `read` gives for batches of similar lengths."""
    vectors: dict[int, Vectors] = {}
    for rows, inputs in batches(texts, tokenizer):
        vectors.update(zip(rows, means(read(inputs), inputs["attention_mask"])))
    return np.stack([vectors[row] for row in range(len(texts))])


def means(hidden: Any, token_mask: Any) -> Vectors:
    """The mean over real tokens (B,D), of hidden (B,L,D) and a mask (B,L)."""
    pooled: Vectors = (hidden * token_mask[..., None]).sum(axis=1) / token_mask.sum(axis=1, keepdims=True)
    return pooled.astype(np.float32)


def batches(texts: Sequence[str], tokenizer: Any) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Rows of texts of similar lengths, and their inputs."""
    rows = tokenizer(list(texts), truncation=True)["input_ids"]
    for batch in length_batches([len(row) for row in rows], BATCH_TOKENS):
        ids = np.zeros((len(batch), len(rows[batch[0]])), dtype=np.int64)  # (B,L), the first row is the longest
        token_mask = np.zeros_like(ids)  # 1 = a real token
        for index, row in enumerate(batch):
            ids[index, : len(rows[row])] = rows[row]
            token_mask[index, : len(rows[row])] = 1
        yield batch, {"input_ids": ids, "attention_mask": token_mask, "token_type_ids": np.zeros_like(ids)}
