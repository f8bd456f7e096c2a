"""Runs ONNX files under ONNX Runtime, and compares what they compute with the network."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.tables.head_kinds import OF_TEXT
from atento.inference.choose import reader, step_function
from atento.model import Model
from atento.networks import Network
from atento.networks.heads import pool_text
from atento_cli.convert.comparison import (
    Comparison,
    Rows,
    cosine,
    greedy_outputs,
    largest_difference,
    new_tokens,
    padded,
    same_tokens,
    sample_rows,
    timed,
)
from atento_cli.convert.onnx_graphs import head_names, text_vectors_of

Array = NDArray[np.float32]
Ids = NDArray[np.int64]


class Session:
    """An ONNX file under ONNX Runtime on the CPU; `inputs` and `outputs` are their names."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.arguments = self._session.get_inputs()
        self.inputs = [argument.name for argument in self.arguments]
        self.outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, values: Mapping[str, object]) -> dict[str, Any]:
        """The outputs by name for the inputs by name; values that the file does not take are ignored."""
        return dict(zip(self.outputs, self._session.run(None, {name: values[name] for name in self.inputs})))


def compare(model: Model, folder: Path, seed: int) -> Comparison:
    """Run the folder's files and the network on the same random ids."""
    config = model.network.config
    rows = sample_rows(config, seed)
    if config.architecture == "encoder":
        return _compare_encoder(model, Session(folder / "model.onnx"), rows)
    writer = Decoding(folder) if config.architecture == "decoder" else Translating(folder)
    function = step_function(model.network, engine="auto")
    expected, ours = timed(lambda: greedy_outputs(function, config, rows))
    outputs, theirs = timed(lambda: writer.greedy(model.network, rows, new_tokens(config, rows)))
    difference = largest_difference(*writer.logits(model.network, rows, expected))
    written, tokens = sum(map(len, expected)), sum(map(len, outputs))
    agreement = same_tokens(outputs, expected)
    return Comparison("logits", difference, agreement, "greedy tokens", written / ours, tokens / theirs)


def _compare_encoder(model: Model, session: Session, rows: Rows) -> Comparison:
    network, reading = model.network, reader(model.network, engine="auto")
    ids, token_mask = padded(rows, network.config.pad_id)
    inputs = {"input_ids": ids.numpy(), "attention_mask": token_mask.long().numpy()}
    inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
    names = head_names(network.config)
    kinds = [reading.heads[name].kind for name in names]

    @torch.inference_mode()
    def predict() -> list[Array]:
        output = reading(ids, token_mask=token_mask, project=False)
        if not names:
            return [output.hidden.numpy(), *_text_vectors(model, output.hidden, token_mask)]
        tensors = [reading.read(name, output, token_mask) for name in names]
        spans = [kind == "span" for kind in kinds]
        parts = [part for tensor, span in zip(tensors, spans) for part in (tensor.unbind(-1) if span else (tensor,))]
        return [part.numpy() for part in parts]

    expected, ours = timed(predict)
    results, theirs = timed(lambda: session(inputs))
    real = token_mask.numpy()
    of_heads = [kind not in OF_TEXT for kind in kinds for _ in range(2 if kind == "span" else 1)]
    by_token = of_heads or [number == 0 for number in range(len(expected))]  # hidden vectors, then one of each text
    computed = [array[real] if tokens else array for array, tokens in zip(results.values(), by_token)]
    references = [  # the file leaves out a last dimension of 1
        array.reshape(array.shape[:2])[real] if tokens and array.shape[-1] == 1 else array[real] if tokens else array
        for array, tokens in zip(expected, by_token)
    ]
    count = sum(map(len, rows))
    difference = largest_difference(computed, references)
    if not names:
        return Comparison(
            "hidden vectors", difference, cosine(computed, references), "directions", count / ours, count / theirs
        )
    same = [(a.argmax(-1) == b.argmax(-1)) if a.ndim > 1 else (a > 0) == (b > 0) for a, b in zip(computed, references)]
    agreement = float(np.concatenate([np.atleast_1d(part) for part in same]).mean())
    return Comparison("logits", difference, agreement, "predictions", count / ours, count / theirs)


def _text_vectors(model: Model, hidden: torch.Tensor, token_mask: torch.Tensor) -> list[Array]:
    """The vectors of texts, as `embed` makes them, of a model of text vectors; else nothing."""
    config = text_vectors_of(model)
    if config is None:
        return []
    vectors = model.network.text_vectors(pool_text(config.pooling, hidden, token_mask))
    return [(torch.nn.functional.normalize(vectors, dim=-1) if config.normalize else vectors).numpy()]


class Decoding:
    """A decoder's file: prompts are padded on the left, and each step reads one token behind the cache."""

    def __init__(self, folder: Path) -> None:
        self.session = Session(folder / "model.onnx")

    def greedy(self, network: Network, rows: Rows, limit: int) -> Rows:
        """What the file writes for the rows."""
        ids, token_mask = padded(rows, network.config.pad_id, side="left")  # what is written follows a text
        new, mask = ids.numpy(), token_mask.long().numpy()  # (B,L) each
        past = self._empty(len(rows))

        def step(new: Ids) -> Array:
            nonlocal mask, past
            results = self.session({"input_ids": new, "attention_mask": mask, **past})
            past = {name.replace("present", "past_key_values"): value for name, value in results.items()}
            mask = np.concatenate([mask, np.ones_like(new[:, :1])], axis=1)  # for the token that is written now
            return np.asarray(results["logits"][:, -1])

        return _greedy(step, new, limit, network.config.eos_ids)

    def logits(self, network: Network, rows: Rows, expected: Rows) -> tuple[list[Array], list[Array]]:
        """Those of the file and of the network behind each token of the prompts and of what the network writes."""
        ids, token_mask = padded([[*row, *output] for row, output in zip(rows, expected)], network.config.pad_id)
        inputs = {"input_ids": ids.numpy(), "attention_mask": token_mask.long().numpy(), **self._empty(len(rows))}
        with torch.inference_mode():
            reference = network(ids, token_mask=token_mask).logits
        return [self.session(inputs)["logits"][token_mask.numpy()]], [reference[token_mask].numpy()]

    def _empty(self, count: int) -> dict[str, Array]:
        """A cache without tokens."""
        caches = [argument for argument in self.session.arguments if argument.name.startswith("past")]
        return {a.name: np.zeros((count, a.shape[1], 0, a.shape[3]), dtype=np.float32) for a in caches}


class Translating:
    """The three files of an encoder-decoder."""

    def __init__(self, folder: Path) -> None:
        self.encoder = Session(folder / "encoder_model.onnx")
        self.first = Session(folder / "decoder_model.onnx")
        self.later = Session(folder / "decoder_with_past_model.onnx")

    def _source(self, network: Network, rows: Rows) -> dict[str, Any]:
        ids, token_mask = padded(rows, network.config.pad_id)
        mask = token_mask.long().numpy()
        encoded = self.encoder({"input_ids": ids.numpy(), "attention_mask": mask})["last_hidden_state"]
        return {"encoder_attention_mask": mask, "encoder_hidden_states": encoded}

    def greedy(self, network: Network, rows: Rows, limit: int) -> Rows:
        """What the files write for the rows."""
        inputs, session = self._source(network, rows), self.first
        new = np.full((len(rows), 1), network.config.start_id, dtype=np.int64)

        def step(new: Ids) -> Array:
            nonlocal inputs, session
            results = session(inputs | {"input_ids": new})
            inputs |= {name.replace("present", "past_key_values"): value for name, value in results.items()}
            session = self.later
            return np.asarray(results["logits"][:, -1])

        return _greedy(step, new, limit, network.config.eos_ids)

    def logits(self, network: Network, rows: Rows, expected: Rows) -> tuple[list[Array], list[Array]]:
        """Those of the files and of the network behind the start token and each token that the network writes."""
        config = network.config
        read, read_mask = padded([[config.start_id, *row] for row in expected], config.pad_id)
        ids, token_mask = padded(rows, config.pad_id)
        computed = self.first(self._source(network, rows) | {"input_ids": read.numpy()})["logits"]
        with torch.inference_mode():
            reference = network(ids, read, source_token_mask=token_mask).logits
        return [computed[read_mask.numpy()]], [reference[read_mask].numpy()]


def _greedy(step: Callable[[Ids], Array], new: Ids, limit: int, eos_ids: tuple[int, ...]) -> Rows:
    """The tokens that are written behind ids (B,L), without EOS; `step` gives the logits (B,V) behind new ids."""
    written: list[Ids] = []
    ended = np.zeros(len(new), dtype=bool)
    while len(written) < limit and not ended.all():
        tokens: Ids = step(new).argmax(axis=-1).astype(np.int64)
        written.append(tokens)
        ended |= np.isin(tokens, eos_ids)
        new = tokens[:, None]
    columns = np.stack(written, axis=1).tolist()
    return [list(takewhile(lambda token: token not in eos_ids, row)) for row in columns]
