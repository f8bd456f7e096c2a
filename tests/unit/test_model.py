"""The model a user holds: saved and loaded bit for bit, whatever is wrong with its folder named, any text answered."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import atento
from atento.base.errors import (
    CapabilityError,
    CheckpointError,
    DataError,
    ModelError,
    RecipeError,
    TokenizerError,
    UsageError,
)
from atento.config.recipe import TokenizerConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.config.sections.network_parts import MaskConfig
from atento.decoding.choosing import hypothesis as hypothesis_of
from atento.decoding.strategies import Beam, Strategy
from atento.model import Model, load
from atento.networks import build_network
from atento.tasks.text_generation import GeneratedText, TextGenerator
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_world import write
from failing import fails

NETWORK = NetworkConfig(d_model=16, d_ff=32, n_heads=2, n_layers=1, norm="pre")
SENTENCES = [pair.source for pair in write("train", 60)]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    pairs = write("train", 60)
    return train_tokenizer(TokenizerConfig("bpe", 360), (t for p in pairs for t in (p.source, p.target)))


def make(tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> Model:
    """A model with random weights, large enough for its outputs to differ from text to text."""
    config = changed(NETWORK, vocab_size=tokenizer.vocab_size, tokenizer_fingerprint=tokenizer.fingerprint, **changes)
    torch.manual_seed(seed)
    network = build_network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    about = {"model_type": "atento", "version": 2, "atento_version": "0", "task": "translation", "name": "small"}
    decoding = {"beam": 2, "length_penalty": 1.0, "n_best": 1, "max_new_tokens": 8, "batch_tokens": 256}
    full = {**about, "network": network_to_dict(config), "decoding": decoding}
    return Model(network.eval().requires_grad_(False), tokenizer, full, None)


@pytest.fixture(scope="session")
def made(tokenizer: Tokenizer) -> Model:
    return make(tokenizer)


@pytest.fixture(scope="session")
def saved(made: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the model's folder to spoil, without the manifest that would notice first."""
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / "MANIFEST.json").unlink()
    return tmp_path / "model"


def logits(model: Model) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, 300, (3, n), generator=g) for n in (7, 5))
    out: torch.Tensor = model.network(source, target).logits
    return out


# Saved and loaded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"output": {"tied": False}}, {"norm": "post", "n_decoder_layers": 2}])
def test_f5_a_saved_model_loads_with_bit_equal_logits(tokenizer: Tokenizer, tmp_path: Path, changes: Any) -> None:
    model = make(tokenizer, **changes)
    assert model.save(tmp_path / "a") == tmp_path / "a"
    back = atento.load(tmp_path / "a")
    assert torch.equal(logits(back), logits(model))
    assert not back.network.training and not any(p.requires_grad for p in back.network.parameters())
    assert back.config == model.config and back.translate(SENTENCES[:3]) == model.translate(SENTENCES[:3])
    back.save(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "MANIFEST.json")
    }
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_model_card_the_parts_and_loading_in_another_precision(saved: Path, made: Model) -> None:
    card = (saved / "README.md").read_text(encoding="utf-8")
    assert "# small" in card and "Task: translation. Architecture: encoder-decoder, 16 wide, 1 + 1 layers" in card
    assert "atento.load('.')" in card
    model = load(saved)
    count = sum(one.numel() for one in model.network.parameters())
    assert repr(model) == f"Model('small', translation, {count:,} parameters, float32 on cpu)"
    assert model.tokenizer is not None and made.tokenizer is not None
    assert model.tokenizer.fingerprint == made.tokenizer.fingerprint
    assert model.decoding == made.decoding and model.decoding.max_new_tokens == 8
    exact, short = load(saved, precision="float64"), load(saved, device="cpu", precision="bfloat16")
    assert {p.dtype for p in exact.network.parameters()} == {torch.float64}
    assert {p.dtype for p in short.network.parameters()} == {torch.bfloat16}
    assert (logits(exact) - logits(made)).abs().max() < 1e-4 and len(short.translate(SENTENCES[:2])) == 2
    with pytest.raises(UsageError, match="`precision` must be one of float32, bfloat16, float64, int8: got 'int4'"):
        load(saved, precision="int4")
    fails(UsageError, "`device` must exist on this machine: got 'toaster'", load, saved, device="toaster")


def test_saving_never_writes_over_anything(made: Model, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for name in ("there", "file"):
        fails(UsageError, f"{name} exists already; give another folder", made.save, tmp_path / name)
    (tmp_path / "empty").mkdir()
    made.save(tmp_path / "empty")
    assert load(tmp_path / "empty").config == made.config
    with pytest.raises(UsageError, match="`layout` must be 'atento' or 'huggingface': got 'gguf'"):
        made.save(tmp_path / "other", layout="gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "there"]


# A folder that is not as it should be -------------------------------------------------------------------------------


def test_one_flipped_bit_in_any_file_is_named(saved: Path, tmp_path: Path) -> None:
    for path in saved.iterdir():
        spoilt = tmp_path / path.name.replace(".", "-")
        shutil.copytree(saved, spoilt)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        (spoilt / path.name).write_bytes(content)
        fails(CheckpointError, path.name, load, spoilt)


def spoil_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return spoil


def spoil_config(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for key, value in changes.items():
            part, _, name = key.partition("__")
            config[part] = value if not name else {**config[part], name: value}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    return spoil


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def take(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def folder_for(name: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return spoil


THIN = {"encoder.norm.bias": torch.zeros(3)}
SPOILT: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (take("config.json"), UsageError, "is neither a run .no checkpoints. nor a model folder .no config.json."),
    (take("model.safetensors"), ModelError, "model: model.safetensors is missing"),
    (folder_for("config.json"), ModelError, "config.json cannot be read: Is a directory"),
    (folder_for("model.safetensors"), ModelError, "model.safetensors cannot be read: "),
    (put("config.json", b"{"), CheckpointError, "config.json is damaged: Expecting property name"),
    (put("config.json", b"\xff"), CheckpointError, "config.json is damaged: 'utf-8' codec"),
    (put("config.json", b"[" * 100_000), CheckpointError, "config.json is damaged: "),
    (put("config.json", b"[1]"), ModelError, "config.json must hold one JSON object: got list"),
    (put("model.safetensors", b"12345"), CheckpointError, "model.safetensors is damaged: "),
    (spoil_config(model_type="brt"), ModelError, "model_type 'brt' is a network that is not known here"),
    (spoil_config(network=None), ModelError, "config.json is not Atento's own"),
    (spoil_config(network__moe=8), ModelError, r"unknown network keys \['moe'\]; was it written by a newer version?"),
    (spoil_config(network__n_heads=3), ModelError, "`n_heads` must divide `d_model`: got 3 and 16"),
    (spoil_config(network__d_model="16"), ModelError, "network.d_model must be an integer: got '16'"),
    (spoil_config(network__n_layers=True), ModelError, "network.n_layers must be an integer: got true"),
    (spoil_config(network__norm="prre"), ModelError, "network.norm must be one of pre, post: got 'prre'"),
    (spoil_config(network__feed_forward={"activation": "swish"}), ModelError, "activation must be one of relu, gelu"),
    (spoil_config(network__positions={"kind": "rotari"}), ModelError, "network.positions.kind must be one of"),
    (spoil_config(network__positions={"kin": "none"}), ModelError, "unknown key 'kin' in network.positions"),
    (spoil_config(network__architecture="decoders"), ModelError, "network.architecture must be one of encoder-decoder"),
    (spoil_config(network__ids={"eos": 4096}), ModelError, "network.ids.eos must be below network.vocab_size"),
    (spoil_config(network__vocab_size=0), ModelError, "must be below network.vocab_size: got 0 and 0"),
    (spoil_config(network__vocab_size=9), TokenizerError, "the tokenizer has 360 pieces and the model 9"),
    (spoil_config(network__vocab_size=400), ModelError, r"embedding.weight has shape \(360, 16\), config.json says"),
    (spoil_config(network__d_ff=64), ModelError, r"has shape \(32.*, config.json says \(64"),
    (spoil_config(decoding=[4]), ModelError, "decoding must be a mapping: got a list of 1"),
    (spoil_config(decoding={"beam": "4"}), ModelError, "decoding.beam must be an integer: got '4'"),
    (spoil_config(decoding={"beam": 0}), ModelError, "`decoding.beam` must be at least 1: got 0"),
    (spoil_config(network__tokenizer_fingerprint="0" * 64), TokenizerError, "not the one the model was trained with"),
    (put("tokenizer.json", b"{}"), TokenizerError, "tokenizer.json must hold a model with a vocabulary"),
    (spoil_weights(lambda w: w.pop("encoder.norm.weight")), ModelError, r"1 missing \['encoder.norm.weight'\], 0 une"),
    (spoil_weights(lambda w: w.update(extra=torch.zeros(2))), ModelError, r"0 missing \[\], 1 unexpected \['extra'\]"),
    (spoil_weights(lambda w: w.update(THIN)), ModelError, r"encoder.norm.bias has shape \(3,\), .* says \(16,\)"),
]


@pytest.mark.parametrize(("spoil", "kind", "said"), SPOILT, ids=[said[:40] for _, _, said in SPOILT])
def test_what_is_wrong_is_said(folder: Path, spoil: Callable[[Path], object], kind: type[Exception], said: str) -> None:
    spoil(folder)
    with pytest.raises(kind, match=said) as found:
        load(folder)
    assert str(folder) in str(found.value) and "\n" not in str(found.value)


def test_keys_of_other_versions_are_passed_over_and_another_tokenizer_is_refused(folder: Path) -> None:
    spoil_config(decoding={"beam": 3, "diversity": 0.5})(folder)
    assert load(folder).decoding.beam == 3
    train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=340), SENTENCES).save(folder)
    fails(TokenizerError, "the tokenizer is not the one the model was trained with", load, folder)


def test_without_tokenizer_files_it_loads_and_cannot_read(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    model = load(folder)
    assert model.tokenizer is None and logits(model).shape == (3, 5, 360)
    for use in (model.translate, model.attend):
        fails(TokenizerError, "the model has no tokenizer files, so it cannot read text", use, "a")
    model.save(folder.parent / "again")
    assert load(folder.parent / "again").tokenizer is None


# Text in, text out --------------------------------------------------------------------------------------------------


def test_text_in_text_out_list_in_list_out_and_n_best_comes_best_first(made: Model) -> None:
    one = made.translate(SENTENCES[0])
    assert isinstance(one, str) and made.translate(SENTENCES[:1]) == [one] and made.translate((SENTENCES[0],)) == [one]
    assert made.translate(iter(SENTENCES[:1])) == [one]  # type: ignore[call-overload]
    assert made.translate([]) == []
    two = made.translate(SENTENCES[0], n_best=2)
    assert isinstance(two, list) and len(two) == 2 and two[0] == one  # the recipe's beam of 2
    assert made.translate(SENTENCES[:3], n_best=1) == [[text] for text in made.translate(SENTENCES[:3])]
    assert made.translate(["", " "], n_best=2) == [[""], [""]]
    for found in made.translations(SENTENCES[:10], n_best=4, beam=4):
        scores = [one.hypothesis.score for one in found]
        assert scores == sorted(scores, reverse=True) and len({tuple(one.hypothesis.ids) for one in found}) == 4
    wide = Model(made.network, made.tokenizer, {**made.config, "decoding": {"beam": 5, "n_best": 4}}, None)
    assert isinstance(wide.translate(SENTENCES[0], beam=2, max_new_tokens=3), str)
    assert len(wide.translations(SENTENCES[:1], max_new_tokens=3)[0]) == 4
    assert len(wide.translations(SENTENCES[:1], max_new_tokens=3, beam=2)[0]) == 2


def test_what_a_wider_beam_adds_stands_by_its_score_and_a_hypothesis_tells_how_probable_it_is(made: Model) -> None:
    def written(scores: dict[str, float]) -> list[GeneratedText]:
        return [GeneratedText(text, hypothesis_of([5], [score], True, 0.0)) for text, score in scores.items()]

    def searched(strategy: Strategy, rows: list[int]) -> list[list[GeneratedText]]:
        return [written(first | {"c": -2.0, "d": -5.0}) for _ in rows]

    generator = TextGenerator(made, made.network.config, DecodingConfig(n_best=4), str, torch.device("cpu"))
    for first, expected in (({"a": -1.0, "b": -3.0}, "acbd"), ({"a": -3.0, "b": -1.0}, "abcd")):  # ranked by penalties
        results = [written(first)]
        generator._fill_up(results, [3], Beam(4), searched)
        assert "".join(one.text for one in results[0]) == expected
    # The token scores of a translation are the network's own, gold prefixes given
    tokenizer, config = made.tokenizer, made.network.config
    assert tokenizer is not None
    for text, (found,) in zip(SENTENCES[:8], made.translations(SENTENCES[:8], beam=1)):
        hypothesis = found.hypothesis
        assert found.text == tokenizer.decode(hypothesis.ids)
        written = hypothesis.ids + ([config.eos_id] if hypothesis.finished else [])
        source = torch.tensor([[*tokenizer.encode(text), config.eos_id]])
        prefix = torch.tensor([[config.start_id, *written[:-1]]])
        right = made.network(source, prefix).logits[0].log_softmax(-1)[range(len(written)), written]
        assert hypothesis.token_scores == pytest.approx(right.tolist(), abs=1e-4)
        assert hypothesis.log_prob == pytest.approx(float(right.sum()), abs=1e-3)


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 3}, pytest.param({"beam": 4, "length_penalty": 0.0}, marks=pytest.mark.slow)]
)
def test_v9_neither_batch_size_nor_order_changes_a_translation(made: Model, options: Any) -> None:
    texts = [SENTENCES[n % 20] if n % 7 else "" for n in range(40)]
    right = [made.translate(text, **options) for text in texts]
    for batch_tokens in (1, 37, 512, 100_000):
        assert made.translate(texts, batch_tokens=batch_tokens, **options) == right
    order = np.random.default_rng(3).permutation(len(texts)).tolist()
    assert made.translate([texts[n] for n in order], **options) == [right[n] for n in order]
    assert [text == "" for text in texts] == [out == "" and text == "" for out, text in zip(right, texts)]


STRANGE = [
    *("", " ", "\t", "\n", "\r\n", "\u2028", "\u00a0", "\u3000", "▁"),
    *("\x07", "\x1b[31m", "\u200b", "\u202e", "\ufeff", "\u0301" * 1000, "\U0010ffff", "\x85"),
    *("😀", "👩‍👩‍👧‍👦", "🇧🇷", "e\u0301", "日本語", "ﷺ", "Ω" * 50, "<s>", "</s>", "<pad>", "[MASK]", "##", "<0x0A>"),
]


def test_d1_strange_texts_are_answered_recorded_and_never_make_special_ids(made: Model) -> None:
    answers = made.translate(STRANGE)
    assert len(answers) == len(STRANGE) and all(isinstance(answer, str) for answer in answers)
    assert all(answers[n] == "" for n, text in enumerate(STRANGE) if not text.strip())
    assert answers == [made.translate(text) for text in STRANGE] and made.tokenizer is not None
    special = set(made.tokenizer.specials.ids.values()) - {made.tokenizer.unk_id}
    for text in STRANGE:
        assert not special & set(made.tokenizer.encode(text))
    # A word of ten thousand characters
    answer = made.translate(["a" * 10_000, SENTENCES[0]], beam=1, max_new_tokens=4)
    assert answer[1] == made.translate(SENTENCES[0], beam=1, max_new_tokens=4)
    with pytest.raises(UsageError, match="give a list of texts: got the text 'a a a"):
        made.translations("a " * 2000, beam=1, max_new_tokens=3)
    # Line n answers line n: different texts, long and short in turn, each with the answer it has alone
    texts = [" ".join(SENTENCES[n : n + 1 + 3 * (n % 3)]) for n in range(30)]
    alone = [made.translate(text) for text in texts]
    assert len(set(alone)) > 10  # or the test would not see a mix-up
    assert made.translate(texts) == alone
    for blank in ("", " ", "\n"):
        fails(UsageError, "give a text to look at: got an empty one", made.attend, blank)
    for text in ("\x07", "😀", "<s> </s>", "a" * 500):
        record = made.attend(text, "")
        assert record.tokens == ["<s>"] and record.weights(0, 0, "cross").shape == (1, len(record.source_tokens))
    fails(TokenizerError, "lone surrogate", made.attend, "\ud800")
    # Without a target it looks at its own translation
    own = made.attend(SENTENCES[0])
    given = made.attend(SENTENCES[0], made.translate(SENTENCES[0]))
    assert own.tokens == given.tokens and np.array_equal(own.weights(0, 0), given.weights(0, 0))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=12), max_size=4))
def test_d1_any_text(made: Model, texts: list[str]) -> None:
    """Any Unicode text has an answer, the same in company; half a surrogate pair or a NUL is refused by its place."""
    nul = next((i for i, text in enumerate(texts) if "\0" in text), None)
    if nul is not None:
        fails(DataError, f"text {nul} must not have a NUL character", made.translate, texts, beam=1, max_new_tokens=3)
        return
    broken = next(((i, j) for i, t in enumerate(texts) for j, c in enumerate(t) if "\ud800" <= c <= "\udfff"), None)
    if broken is not None:
        with pytest.raises(TokenizerError, match=f"text {broken[0]} must be Unicode text: .* at character {broken[1]}"):
            made.translate(texts, beam=1, max_new_tokens=3)
        return
    alone = [made.translate(text, beam=1, max_new_tokens=3) for text in texts]
    assert made.translate(texts, beam=1, max_new_tokens=3) == alone


def test_the_longest_output_is_bounded_texts_are_the_first_rows_and_what_is_none_refused(made: Model) -> None:
    """2 x source + 16 unless told otherwise (contract)."""
    assert made.tokenizer is not None
    free = Model(made.network, made.tokenizer, {**made.config, "decoding": {"beam": 1}}, None)
    for found, text in zip(free.translations(SENTENCES[:10]), SENTENCES):
        assert len(found[0].hypothesis.ids) <= 2 * len(made.tokenizer.encode(text)) + 16
    for most in (1, 5):
        assert all(len(row[0].hypothesis.ids) <= most for row in made.translations(SENTENCES[:10], max_new_tokens=most))
    texts = [pair.source for pair in write("valid", 3)]
    drawn: dict[str, Any] = {"sample": True, "seed": 3}
    ids = [one[0].hypothesis.ids for one in made.translations(texts, **drawn)]
    assert ids == [one[0].hypothesis.ids for one in made.translations(texts, row=0, **drawn)]
    assert ids[1:] == [one[0].hypothesis.ids for one in made.translations(texts[1:], row=1, **drawn)]
    assert ids[:2] != [one[0].hypothesis.ids for one in made.translations(texts[:2], row=1, **drawn)]
    for value, name in ((None, "NoneType"), (5, "int"), (b"a", "bytes")):
        fails(UsageError, f"give a text or a list of texts: got {name}", made.translate, value)
    fails(UsageError, "a text must be a str: got NoneType in place of text 1", made.translate, ["a", None])
    with pytest.raises(TokenizerError, match=r"text 1 must be Unicode text: got the lone surrogate U\+D800"):
        made.translate(["a", "b\ud800"])
    other = Model(made.network, made.tokenizer, {**made.config, "task": "classification"}, None)
    fails(CapabilityError, "this model does classification, not translation", other.translate, "a")


def test_options_that_cannot_be_right(made: Model) -> None:
    for options, kind, said in (
        ({"bean": 4}, UsageError, "unknown decoding option 'bean'; did you mean 'beam'.* Known: banned_tokens, "),
        ({"num_beams": 4}, UsageError, "unknown decoding option 'num_beams'; did you mean 'beam'"),
        ({"max_length": 4}, UsageError, "unknown decoding option 'max_length'; did you mean 'max_new_tokens'"),
        ({"early_stopping": True}, UsageError, "did you mean 'until'"),
        ({"beam": 0}, RecipeError, "`decoding.beam` must be at least 1: got 0"),
        ({"beam": "4"}, RecipeError, "decoding.beam must be an integer: got '4'"),
        ({"beam": 2.5}, RecipeError, "decoding.beam must be an integer: got 2.5"),
        ({"beam": None}, RecipeError, "decoding.beam must be an integer: got null"),
        ({"n_best": 3}, RecipeError, "`decoding.n_best` must not exceed `beam`: got 3 and 2"),
        ({"n_best": 2, "beam": 1}, RecipeError, "`decoding.n_best` must not exceed `beam`: got 2 and 1"),
        ({"n_best": 0}, RecipeError, "`decoding.n_best` must be at least 1: got 0"),
        ({"max_new_tokens": 0}, RecipeError, "`decoding.max_new_tokens` must be at least 1: got 0"),
        ({"max_new_tokens": "x"}, RecipeError, "decoding.max_new_tokens must be an integer or null"),
        ({"length_penalty": math.nan}, RecipeError, "decoding.length_penalty must be a finite number: got nan"),
        ({"batch_tokens": 0}, RecipeError, "`decoding.batch_tokens` must be at least 1: got 0"),
    ):
        fails(kind, said, made.translate, "a", **options)


# Looking ------------------------------------------------------------------------------------------------------------


def test_a11_a_record_of_every_layer_and_head_names_its_mask(tokenizer: Tokenizer) -> None:
    record = make(tokenizer, n_layers=2, n_decoder_layers=3).attend(SENTENCES[0], "O gato dorme.")
    source, target = len(record.source_tokens), len(record.tokens)
    assert record.source_tokens[-1] == "</s>" and record.tokens[0] == "<s>" and record.output_tokens[-1] == "</s>"
    assert len(record.output_tokens) == target and record.tokens[1:] == record.output_tokens[:-1]
    shapes = {"encoder": (2, source, source), "decoder": (3, target, target), "cross": (3, target, source)}
    for kind, (layers, rows, columns) in shapes.items():
        for layer in range(layers):
            for head in range(2):
                weights = record.weights(layer, head, kind)
                assert weights.shape == (rows, columns)
                assert weights.sum(axis=1) == pytest.approx(np.ones(rows), abs=1e-5)
                if kind == "decoder":
                    assert not np.triu(weights, 1).any()
    assert record.title == f"{SENTENCES[0]} → O gato dorme."
    for architecture, mask, name in (
        ("encoder-decoder", None, "bidirectional"),
        ("encoder-decoder", MaskConfig("window", left=2), "window of 2 before and all after"),
        ("encoder-decoder", MaskConfig("lookahead", ahead=1), "causal with 1 token ahead"),
        ("encoder-decoder", MaskConfig("prefix", length=3), "prefix of 3 tokens, then causal"),
        ("decoder", None, "causal"),
        ("decoder", MaskConfig("window", left=2, layers=(1,)), "causal, window of 2 before in layer 1; else causal"),
    ):
        record = make(tokenizer, n_layers=2, architecture=architecture, mask=mask).attend(SENTENCES[0])
        assert record.masks["decoder" if architecture == "decoder" else "encoder"] == name
        assert "causal" in record.masks["decoder"]
