"""The contenders of the decoding and generation benchmarks: plain and fast search, `transformers`, CTranslate2."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.decoding import Beam, Greedy, generate
from atento.inference.choose import Kind, step_function
from atento.inference.packed_linear import Precision
from atento.model import load
from atento.models.write import write_model
from atento.networks import Network, build_network
from atento.text.lengths import pad_batch
from atento.training.allocator import raise_trim_threshold
from atento_cli.convert.ctranslate2_engine import write_network
from atento_cli.convert.token_names import vocabulary_of
from benchmarks.devices import SDPA, attend_by

_NEVER = -1e4  # a bias that makes a token impossible


@dataclass(frozen=True)
class Work:
    """Sources or prompts of these lengths, each with exactly `new_tokens` output tokens, by a beam (1: greedy)."""

    lengths: tuple[int, ...]
    beam: int
    new_tokens: int

    @property
    def tokens(self) -> int:
        """The total number of output tokens."""
        return len(self.lengths) * self.new_tokens

    def rows(self, vocab_size: int) -> list[list[int]]:
        """Return the same random ids for every contender, without special tokens (the first four and the last)."""
        rng = np.random.default_rng(len(self.lengths))
        return [rng.integers(4, vocab_size - 1, length).tolist() for length in self.lengths]


def write_weights(folder: Path, config: NetworkConfig, seed: int = 1) -> None:
    """Write the weights of `random_network` in the layout that all contenders read."""
    about = {"model_type": "atento", "name": "random", "task": "bench", "network": network_to_dict(config)}
    write_model(folder, about, random_network(config, seed).state_dict(), {}, layout="huggingface")


@torch.no_grad()
def random_network(config: NetworkConfig, seed: int = 1) -> Network:
    """Return a network with random weights that generates various tokens.

    If the network has an output bias, it makes padding and EOS impossible, so all contenders generate the same number
    of tokens; for other networks the number is an argument. A newly initialised network repeats one token, on which any
    two contenders would agree: here the products are halved, so the last token still has an effect at the top, and the
    last norm has random weights of 1 and -1, so a token's own vector does not predict the same token.
    """
    torch.manual_seed(seed)
    network = build_network(config)
    weights = network.state_dict()
    if "heads.vocabulary.output.bias" in weights:
        weights["heads.vocabulary.output.bias"][[config.pad_id, config.eos_id]] = _NEVER  # no output ends early
    for name, value in weights.items():
        if value.dim() > 1 and "embedding" not in name and ".schemes." not in name:
            value.mul_(0.5)  # matrices
    last = "stack" if config.architecture == "decoder" else f"decoder.blocks.{config.decoder_layers - 1}"
    norm = weights[f"{last}.norm.weight" if last == "stack" else f"{last}.feed_forward_residual.norm.weight"]
    norm.copy_(torch.randint(0, 2, norm.shape) * 2 - 1)  # -1 or 1 for each feature
    return network


class Ours:
    """`atento.decoding.generate` on the network ("plain"), or on its fast step function at a precision."""

    def load(
        self,
        folder: Path,
        precision: Precision | Literal["plain", "plain bfloat16", "onnx", "onnx int8"],
        device: str = "cpu",
        graphs: bool = False,
    ) -> None:
        """Load a folder of `write_weights`; precision is plain (float32), plain bfloat16, or one of the fast steps;
        onnx is float32 by ONNX Runtime, onnx int8 the same in 8 bits; `graphs` uses steps of fixed shapes.
        """
        raise_trim_threshold()  # as a loaded model does in decoding
        stored = "bfloat16" if precision == "plain bfloat16" else "float32"
        network: Any = load(folder, device=device, precision=stored).network
        self.config: NetworkConfig = network.config
        self.device = device
        if precision == "plain" or precision == "plain bfloat16":
            self.step_function = step_function(network, kind="plain")
        elif precision == "onnx":
            self.step_function = step_function(network, engine="onnx")
        elif precision == "onnx int8":
            self.step_function = step_function(network, precision="int8", engine="onnx")
        else:
            kind: Kind = "graphs" if graphs else "fast"
            self.step_function = step_function(network, kind=kind, precision=precision)

    def run(self, work: Work) -> list[list[int]]:
        """Return the output ids of each row."""
        left = self.config.architecture == "decoder"  # of the source, or of the prompt
        ids, token_mask = pad_batch(
            work.rows(self.config.vocab_size), self.config.pad_id, side="left" if left else "right"
        )
        outputs = generate(
            self.step_function,
            torch.from_numpy(ids).to(self.device),
            Greedy() if work.beam == 1 else Beam(work.beam),
            max_new_tokens=work.new_tokens,
            min_new_tokens=work.new_tokens if left else 0,
            token_mask=torch.from_numpy(token_mask).to(self.device),
        )
        return [hypotheses[0].ids for hypotheses in outputs]


class Transformers:
    """`generate` of `transformers` with its default options."""

    other_library = True

    def __init__(self) -> None:
        import transformers

        self.library: Any = transformers
        self.classes: dict[str, Any] = {"marian": transformers.MarianMTModel, "gpt2": transformers.GPT2LMHeadModel}

    def load(self, folder: Path, device: str = "cpu", precision: str = "float32", attention: str = SDPA) -> None:
        """Load a folder of `write_weights`."""
        config = self.library.AutoConfig.from_pretrained(folder)
        model: Any = self.classes[config.model_type].from_pretrained(folder)
        self.model = model.to(device, getattr(torch, precision)).eval()
        attend_by(self.model, attention)
        self.config, self.device = self.model.config, device
        # the defaults: the folder's decoding configuration (EOS forced at the last step) is ignored
        self.model.generation_config = self.library.GenerationConfig(
            decoder_start_token_id=getattr(self.config, "decoder_start_token_id", None),
            pad_token_id=self.config.pad_token_id,
            bos_token_id=self.config.bos_token_id,
            eos_token_id=self.config.eos_token_id,
        )

    def run(self, work: Work) -> list[list[int]]:
        """Return the output ids of each row."""
        left = not self.config.is_encoder_decoder
        rows = work.rows(self.config.vocab_size)
        ids, token_mask = pad_batch(rows, self.config.pad_token_id, side="left" if left else "right")
        minimum = {"min_new_tokens": work.new_tokens} if left else {}
        with torch.inference_mode():
            generated = self.model.generate(
                input_ids=torch.from_numpy(ids).to(self.device),
                attention_mask=torch.from_numpy(token_mask).long().to(self.device),
                max_new_tokens=work.new_tokens,
                num_beams=work.beam,
                do_sample=False,
                **minimum,
            )
        outputs: list[list[int]] = generated[:, ids.shape[1] if left else 1 :].tolist()
        return outputs


class Conversion:
    """Makes CTranslate2's folder; a separate contender, so that its memory does not count for the translator."""

    def load(self, *arguments: Any) -> None:
        """Do nothing."""

    def run(self, work: tuple[Path, Path, str]) -> None:
        """Convert (folder of `write_weights`, folder to create, float32 or int8)."""
        source, target, precision = work
        network = load(source, device="cpu").network
        target.mkdir()
        write_network(network, vocabulary_of(None, network.config.vocab_size), target, precision)


class CTranslate2:
    """Its `translate_batch` with all sentences in one batch, at a compute type."""

    other_library = True

    def __init__(self) -> None:
        import ctranslate2

        self.library = ctranslate2

    def load(self, folder: Path, compute_type: str, device: str = "cpu") -> None:
        """Load a folder of `Conversion`; the compute type is float32 or int8, or float16 on a GPU."""
        threads = torch.get_num_threads()
        try:
            self.translator = self.library.Translator(
                str(folder), device=device, compute_type=compute_type, inter_threads=1, intra_threads=threads
            )
            if device != "cpu":  # its CUDA libraries are loaded by the first product
                self.translator.translate_batch([["4"]], max_decoding_length=1)
        except (RuntimeError, ValueError) as error:  # a build, or a GPU, without it
            raise CapabilityError(f"CTranslate2 in {compute_type} on {device}: {error}") from None
        self.vocab_size = len(json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8")))

    def run(self, work: Work) -> list[list[int]]:
        """Return the output ids of each row."""
        results = self.translator.translate_batch(
            [[str(token) for token in row] for row in work.rows(self.vocab_size)],
            beam_size=work.beam,
            max_decoding_length=work.new_tokens,
        )
        return [[int(token) for token in result.hypotheses[0]] for result in results]
