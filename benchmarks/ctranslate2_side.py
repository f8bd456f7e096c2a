"""CTranslate2 in the decoding benchmark: a model converted by `atento convert`, and its translator."""

import json
from pathlib import Path
from typing import Any

import torch

from atento.convert.ctranslate2_engine import write_network
from atento.convert.vocabulary import vocabulary_of
from atento.model import load
from benchmarks.decoding_sides import Work


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

    def load(self, folder: Path, compute_type: str) -> None:
        """Load a folder of `Conversion`; the compute type is float32 or int8."""
        self.translator = self.library.Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
        )
        self.vocab_size = len(json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8")))

    def run(self, work: Work) -> list[list[int]]:
        """Return the output ids of each row."""
        results = self.translator.translate_batch(
            [[str(token) for token in row] for row in work.rows(self.vocab_size)],
            beam_size=work.beam,
            max_decoding_length=work.new_tokens,
        )
        return [[int(token) for token in result.hypotheses[0]] for result in results]
