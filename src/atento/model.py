"""What a user holds: a loaded model with its text in and text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from atento.attention.positions import ALiBi, Sinusoidal
from atento.config.recipe import DecodingConfig
from atento.config.schema import Reading, as_written
from atento.errors import CapabilityError, TokenizerError, UsageError, nearest
from atento.networks import build_network
from atento.networks.encoder_decoder import EncoderDecoder
from atento.precision import resolve_device
from atento.tasks.attend import attention_record
from atento.tasks.locate import check_weights, decoding_config, network_config, read_model, write_model
from atento.tasks.translation import Translation, translate
from atento.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from atento.inspection import AttentionRecord

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def load(model: str | Path, device: str = "auto", precision: str = "float32") -> Model:
    """A model in evaluation mode, from a run folder (its best checkpoint), a model folder or a hub name.

    Args:
        device: "auto", "cpu", "cuda" ... precision: "float32", or "bfloat16" where that is asked for.

    Raises:
        UsageError, ModelError: nothing loadable there. CheckpointError: truncated or altered; names the file.
    """
    if precision not in DTYPES:
        raise UsageError(f"`precision` must be one of {', '.join(DTYPES)}: got {precision!r}")
    found = read_model(model)
    config = network_config(found.config, found.path)
    decoding_config(found.config, found.path)  # wrong there is found here, not at the first text
    tokenizer = Tokenizer.load(found.path) if (found.path / "tokenizer.json").exists() else None
    if tokenizer is not None and config.tokenizer_fingerprint not in (None, tokenizer.fingerprint):
        raise TokenizerError(f"{found.path}: the tokenizer is not the one the model was trained with")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"{found.path}: the tokenizer has {tokenizer.vocab_size} pieces and the model {config.vocab_size}"
        )
    with torch.device("meta"):
        network = build_network(config)
    check_weights(network, found)
    network.load_state_dict(found.weights, assign=True)
    for module in network.modules():  # buffers that are computed, not stored
        if isinstance(module, ALiBi | Sinusoidal):
            module.reset_buffers()
    network = network.to(device=resolve_device(device), dtype=DTYPES[precision]).eval().requires_grad_(False)
    return Model(network, tokenizer, found.config, found.path)


class Model:
    """A network with its tokenizer and configuration; every method takes text and gives text."""

    def __init__(
        self, network: EncoderDecoder, tokenizer: Tokenizer | None, config: dict[str, Any], path: Path | None
    ) -> None:
        self.network, self.tokenizer, self.config, self.path = network, tokenizer, config, path

    @property
    def decoding(self) -> DecodingConfig:
        """How this model decodes unless told otherwise: as its recipe said."""
        return decoding_config(self.config, self.path or Path())

    @overload
    def translate(self, text: str, **options: Any) -> str: ...
    @overload
    def translate(self, text: Sequence[str], **options: Any) -> list[str]: ...

    def translate(self, text: str | Sequence[str], *, n_best: int | None = None, **options: Any) -> Any:
        """Translate a text (str in, str out) or texts (list in, list out); with `n_best`, lists of that many.

        Options: beam (1 is greedy), length_penalty, max_new_tokens, batch_tokens; the recipe's where not given.
        A blank text gives a blank translation.
        """
        one = isinstance(text, str)
        given: object = text
        if not isinstance(given, Iterable) or isinstance(given, bytes):
            raise UsageError(f"give a text or a list of texts: got {type(text).__name__}")
        outputs = self.translations([text] if isinstance(text, str) else list(text), n_best=n_best, **options)
        texts: list[Any] = [[o.text for o in found] if n_best is not None else found[0].text for found in outputs]
        return texts[0] if one else texts

    def translations(
        self, texts: Sequence[str], *, n_best: int | None = None, **options: Any
    ) -> list[list[Translation]]:
        """As `translate`, with each output's hypothesis: ids, score, log-probability, token scores."""
        if self.config.get("task") != "translation":
            raise CapabilityError(f"this model does {self.config.get('task')}, not translation")
        unknown = set(options) - set(DecodingConfig.__dataclass_fields__)
        if unknown:
            name = min(unknown)
            raise UsageError(
                f"unknown decoding option {name!r}{nearest(name, list(DecodingConfig.__dataclass_fields__))}"
            )
        for text in texts:
            if not isinstance(text, str):
                raise UsageError(f"a text must be a str: got {type(text).__name__}")
        usual = self.decoding
        beam = options.get("beam", usual.beam)
        if n_best is not None:
            options["n_best"] = n_best
        elif isinstance(beam, int) and 0 < beam < usual.n_best:  # a narrower beam than the recipe's n_best
            options["n_best"] = beam
        decoding: DecodingConfig = Reading().fit(as_written(options, "options"), DecodingConfig, "decoding", usual)
        return translate(self.network, self._tokenizer(), texts, decoding)

    def attend(self, text: str, target: str | None = None) -> AttentionRecord:
        """What attends to what: encoder self-attention, masked decoder self-attention, cross-attention (A11).

        `target` is the output to look at; the model's own translation when None.
        """
        return attention_record(self, text, target)

    def save(self, directory: str | Path, layout: str = "atento") -> Path:
        """Write a folder that `load` reads: config.json, model.safetensors, tokenizer files, model card, manifest."""
        if layout != "atento":
            raise UsageError(f"`layout` must be 'atento' for this model: got {layout!r}")
        config = self.config | {"network": asdict(self.network.config)}
        files = {} if self.tokenizer is None else self.tokenizer.files()
        return write_model(Path(directory), config, self.network.state_dict(), files)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(f"{self.path}: the model has no tokenizer files, so it cannot read text")
        return self.tokenizer

    def __repr__(self) -> str:
        return f"Model({self.config.get('name')!r}, task={self.config.get('task')!r}, path={str(self.path)!r})"
