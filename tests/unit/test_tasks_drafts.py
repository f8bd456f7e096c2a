"""The model that a draft names: loaded once, with the same vocabulary and architecture."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.model import Model, load
from atento.networks import build_network
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from failing import fails

NETWORK = NetworkConfig(d_model=16, d_ff=24, n_heads=2, n_layers=2, dropout=0.0)
PROMPT = "abc abc abc ab"


def tokenizer_of(text: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="character"), [text])


def made(tokenizer: Tokenizer, *, seed: int = 0, decoding: dict[str, Any] | None = None, **changes: Any) -> Model:
    torch.manual_seed(seed)
    config = replace(NETWORK, vocab_size=tokenizer.vocab_size, architecture="decoder", **changes)
    about = {"model_type": "atento", "task": "language-modeling", "network": network_to_dict(config)}
    model = Model(build_network(config).eval(), tokenizer, about | {"decoding": decoding or {"beam": 1}}, None)
    model.requested = f"model-{seed}"
    return model


def test_a_model_that_drafts_is_loaded_once_and_changes_no_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(PROMPT)
    model, folder = made(tokenizer), tmp_path / "small"
    made(tokenizer, seed=1, n_layers=1).save(folder)
    plain = model.generate([PROMPT, "b"], max_new_tokens=20)
    for draft in ("ngrams", str(folder), [str(folder), "ngrams"]):
        assert model.generate([PROMPT, "b"], max_new_tokens=20, draft=draft, draft_tokens=3) == plain
        assert "".join(model.stream(PROMPT, max_new_tokens=20, draft=draft)) == plain[0]
    assert model.drafting_model(str(folder)) is model.drafting_model(str(folder))
    outputs = model.generations([PROMPT], max_new_tokens=20, draft="ngrams")
    assert outputs[0][0].hypothesis.proposed >= outputs[0][0].hypothesis.accepted
    usual = made(tokenizer, decoding={"beam": 1, "draft": ["ngrams"]})
    assert usual.decoding.draft == ("ngrams",) and usual.generate(PROMPT, max_new_tokens=20) == plain[0]
    assert usual.generate(PROMPT, beam=3, max_new_tokens=5) == model.generate(PROMPT, beam=3, max_new_tokens=5)
    options: dict[str, Any] = {"max_new_tokens": 4, "sample": True, "seed": 3}
    one, other = load(folder), load(folder)
    assert one.generate(PROMPT, draft="ngrams", **options) == other.generate(PROMPT, **options)


def test_what_is_refused() -> None:
    model = made(tokenizer_of(PROMPT))
    others = {
        "other pieces": (made(tokenizer_of("xyz xyz"), seed=1), "`draft` must have the vocabulary of model-0: that"),
        "source": (made(model.tokenizer, seed=1), "the same architecture as model-0: got EncoderDecoder and Decoder"),
    }
    others["source"][0].network = build_network(replace(NETWORK, vocab_size=model.tokenizer.vocab_size))
    for name, (other, message) in others.items():
        model._drafting[name] = other
        fails(CapabilityError, message, model.generate, PROMPT, draft=name)
    for options, message in (
        ({"beam": 3}, "`decoding.draft` and `beam` exclude each other: a draft is for greedy search"),
        ({"mbr": "chrf"}, "`decoding.draft` and `mbr` exclude each other"),
        ({"exact": True}, "`decoding.draft` and `exact` exclude each other"),
        ({"draft": ["a", "b"]}, "`decoding.draft` takes `ngrams`, one model, or both: got a, b"),
        ({"draft_tokens": 0}, "`decoding.draft_tokens` must be at least 1: got 0"),
        ({"draft": [""]}, "`decoding.draft` must hold strings that are not empty"),
    ):
        fails(RecipeError, message, model.generate, PROMPT, **{"draft": "ngrams"} | options)
    fails(UsageError, "`draft_tokens` has no effect: it is for `draft`", model.generate, PROMPT, draft_tokens=3)
