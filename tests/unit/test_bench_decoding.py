"""The decoding, generation, agreement and encoding benches at tiny sizes: all sides do the same work; rows by hand."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.errors import AtentoError, CapabilityError
from atento.config import presets
from atento.decoding import Beam, Greedy
from atento.inference.packed_linear import Precision
from atento.inference.plain import PlainStepFunction
from atento.model import Model
from atento.networks import EncoderDecoder
from atento.text import Tokenizer
from benchmarks import decoding, encoding, encoding_sides, generation
from benchmarks.agreement import measure_agreement, search, share, top_tokens
from benchmarks.decoding import compare, same_tokens
from benchmarks.decoding_parts import measure_parts
from benchmarks.decoding_sides import Conversion, CTranslate2, Ours, Transformers, Work, write_weights
from benchmarks.encoding import natural_sentences, padding, relative_error
from benchmarks.generation import prompt_lengths
from benchmarks.graphs import bytes_a_step, measure_graphs
from benchmarks.processes import Measurement, Side, alternate, best_seconds, median_seconds, peak_mib
from failing import fails

CELLS = [Work((7,) * 3, beam, 9) for beam in (1, 4)]


class Toy:
    """A side that takes a set time and writes set tokens; it notes its turns in a file."""

    def load(self, notes: Path, name: str, seconds: float, token: int) -> None:
        if name == "unable":
            raise CapabilityError("no such thing here")
        self.notes, self.name, self.seconds, self.token = notes, name, seconds, token

    def run(self, work: Work) -> list[list[int]]:
        with self.notes.open("a", encoding="utf-8") as file:
            file.write(f"{self.name}\n")
        time.sleep(self.seconds)
        return [[self.token] * (work.new_tokens - (self.token == 13))] * len(work.lengths)


def loaded(side: Any, *arguments: Any) -> Any:
    side.load(*arguments)
    return side


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding") / "weights"
    write_weights(folder, decoding.SIZES["tiny"])
    return folder


@pytest.fixture(scope="module")
def written(weights: Path) -> list[list[list[int]]]:
    """What the plain network writes in each cell."""
    side = loaded(Ours(), weights, "plain")
    return [side.run(work) for work in CELLS]


def test_outputs_have_the_length_asked_for_and_differ(written: list[list[list[int]]]) -> None:
    """Else sides that ignore source or past would agree too; the end (3) and padding (0) cannot come."""
    for work, found in zip(CELLS, written):
        assert [len(row) for row in found] == [work.new_tokens] * len(work.lengths)
        assert len({tuple(row) for row in found}) > 1 and all(len(set(row)) > 1 for row in found)
        assert not {0, 3} & {token for row in found for token in row}


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_h1_h6_the_fast_twin_is_a_side(weights: Path, written: list[list[list[int]]], precision: Precision) -> None:
    side = loaded(Ours(), weights, precision)
    found = [side.run(work) for work in CELLS]
    if precision == "float32":
        assert found == written
    assert [[len(row) for row in cell] for cell in found] == [[9] * 3] * 2


def test_h1_h6_transformers_writes_the_same_from_the_same_folder(weights: Path, written: list[list[list[int]]]) -> None:
    pytest.importorskip("transformers")
    side = loaded(Transformers(), weights)
    assert [side.run(work) for work in CELLS] == written


def test_h1_h6_ctranslate2_writes_the_same_tokens(
    weights: Path, written: list[list[list[int]]], tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    conversion = Conversion()
    for kind in ("float32", "int8"):
        conversion.run((weights, tmp_path / kind, kind))
        side = loaded(CTranslate2(), tmp_path / kind, kind)
        found = [side.run(work) for work in CELLS]
        if kind == "float32":
            assert found == written
        assert [[len(row) for row in cell] for cell in found] == [[9] * 3] * 2


def test_h1_generation_continues_prompts_of_any_length_alike(tmp_path: Path) -> None:
    """Padded on the left, with the end forbidden on both sides."""
    pytest.importorskip("transformers")
    write_weights(tmp_path / "weights", generation.SIZES["tiny"])
    work = Work((3, 11, 6), 1, 8)
    found = loaded(Ours(), tmp_path / "weights", "plain").run(work)
    assert found == loaded(Transformers(), tmp_path / "weights").run(work)
    assert [len(row) for row in found] == [8, 8, 8] and len({tuple(row) for row in found}) == 3


@pytest.mark.slow  # four sides, each in a process that imports torch or transformers
def test_h12_captured_steps_are_measured_beside_plain_ones() -> None:
    """On the CPU, where nothing is captured: the same sides, tokens and rows as on a GPU."""
    pytest.importorskip("transformers")
    rows = list(measure_graphs(0.01, device="cpu", size="tiny", cells=CELLS, rounds=1))
    ours = [row for row in rows if row.get("who") == "atento bfloat16" and "tokens_per_second" in row]
    assert rows[0]["copy_gb_s"] > 0 and len(ours) == 2 and all(row["read_gb_s"] > 0 for row in ours)
    peers = {row["ratio_to"] for row in rows if "ratio" in row}
    assert peers == {"transformers bfloat16", "transformers float32", "atento plain"}


def test_bytes_a_step_by_hand_and_natural_prompt_lengths() -> None:
    """Two layers of width 32: 8 attention matrices, less two read once, 2 of the inner network, biases, norms."""
    layer = 2 * 4 * 32 * 33 - 2 * 32 * 32 + 2 * 32 * 64 + 64 + 32 + 3 * 64
    caches = 12 * 2 * 2 * 32 * (64 + 7)  # outputs, keys and values, layers, width, tokens
    assert bytes_a_step(decoding.SIZES["tiny"], CELLS[1], "float32") == 4 * (2 * layer + 200 * 32 + caches)
    if not torch.cuda.is_available():  # that is said
        assert [row["skipped"] for row in measure_graphs(1)] == ["needs a CUDA GPU"]
    found = prompt_lengths(400)
    assert found == prompt_lengths(400) and min(found) >= 4 and max(found) <= 60
    assert 20 <= np.median(found) <= 28 and prompt_lengths(1) == (24,)


def test_sides_take_turns_and_ratios_come_last(tmp_path: Path) -> None:
    """A B, A B ...; the ratio is that of the rates, and those are no higher than each side was made to be."""
    notes = tmp_path / "notes"
    contenders: dict[str, tuple[type[Any], tuple[Any, ...]]] = {
        "transformers float32": (Toy, (notes, "t", 0.02, 7)),
        "ctranslate2 int8": (Toy, (notes, "unable", 0.0, 7)),
        "atento int8": (Toy, (notes, "a", 0.005, 8)),
    }
    works = [Work((5,), 1, 4), Work((5, 5), 2, 4)]
    rows = list(compare("decoding", contenders, works, 0.0, 2, decoding.COMPARISONS))
    assert notes.read_text(encoding="utf-8").split() == ["t", "a"] * 2 * (1 + 2)  # to warm up, then two rounds
    skipped, *measured = rows[:5]
    assert skipped == {"bench": "decoding", "who": "ctranslate2 int8", "skipped": "no such thing here"}
    assert [row["who"] for row in measured] == ["transformers float32", "atento int8"] * 2
    assert [row["same_tokens"] for row in measured] == [1.0, 0.0] * 2
    assert [row["same_sentences"] for row in measured] == ["1/1", "0/1", "2/2", "0/2"]
    rates = [row["tokens_per_second"] for row in measured]
    assert all(row["rounds"] == 2 and 0 < row["middle_round"] <= row["tokens_per_second"] for row in measured)
    assert rates[0] <= 4 / 0.02 and rates[2] <= 8 / 0.02  # one sentence of four tokens, two of them
    for row, goal, theirs, ours in zip(rows[5:], (5.0, 3.0), rates[::2], rates[1::2], strict=True):
        assert row["who"] == "atento int8 (fastest)" and row["ratio_to"] == "transformers float32"
        assert row["ratio"] == pytest.approx(ours / theirs, rel=0.1) and row["goal"] == goal


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [
        ("atento float32", 8, "atento float32 generates 0% of the tokens of transformers float32"),
        ("atento int8", 13, r"atento int8 must generate 4 tokens per sentence: got \[3\]"),
    ],
)
def test_sides_that_do_other_work_stop_the_measurement(tmp_path: Path, name: str, token: int, message: str) -> None:
    contenders: dict[str, tuple[type[Any], tuple[Any, ...]]] = {
        "transformers float32": (Toy, (tmp_path / "n", "t", 0.0, 7)),
        name: (Toy, (tmp_path / "n", "a", 0.0, token)),
    }
    fails(AtentoError, message, list, compare("decoding", contenders, [Work((5,), 1, 4)], 0.0, 1, decoding.COMPARISONS))


def test_figures_of_turns_by_hand_and_a_side_that_fails(tmp_path: Path) -> None:
    """Here its folder for notes is not there; that itself stands on standard error."""
    with Side(Toy, tmp_path / "no" / "notes", "a", 0.0, 7) as side, pytest.raises(AtentoError, match="ended with 1"):
        alternate({"a": side}, Work((5,), 1, 4), 0.0)
    runs = [Measurement(3.0, None, 10.2), Measurement(1.0, None, 11.7), Measurement(2.5, None, 11.7)]
    assert (best_seconds(runs), median_seconds(runs), peak_mib(runs)) == (1.0, 2.5, 12)
    assert peak_mib([Measurement(1.0, None, None)]) is None
    assert same_tokens([[1, 2, 3], [4]], [[1, 9, 3], [4]]) == 0.75
    assert same_tokens([[1]], [[1, 9]]) == 0.5  # what is not written is not the same
    assert share([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == 0.75
    assert padding([4, 2, 3], [[0, 2], [1]]) == pytest.approx(1 / 10)
    assert relative_error(np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[3.0, 4.0], [0.0, 1.0]])) == 1.0


def trained_like(folder: Path, seed: int = 0) -> tuple[Model, EncoderDecoder]:
    """A tiny translator of large random weights over letters, saved; its outputs vary and most end."""
    tokenizer = Tokenizer.from_vocabulary("word", tuple("abcdefghijklmnop"))
    roles = ("pad", "bos", "eos", "unk")
    ids: dict[str, Any] = {role: getattr(tokenizer, f"{role}_id") for role in roles}
    ids["start"] = tokenizer.bos_id
    config = presets.transformer_tiny(vocab_size=tokenizer.vocab_size, d_model=16, d_ff=32, n_heads=2, ids=ids)
    torch.manual_seed(seed)
    network = EncoderDecoder(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.7)
    model = Model(network, tokenizer, {"task": "translation", "name": "tiny"}, None)
    model.save(folder)
    return model, network


def sources(model: Model) -> tuple[list[str], list[list[int]]]:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghijklmnop"), rng.integers(1, 7))) for _ in range(12)]
    assert model.tokenizer is not None
    return texts, [[*ids, model.network.config.eos_id] for ids in model.tokenizer.encode_batch(texts)]


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3)])
def test_h11_top_tokens_are_those_of_one_pass_over_the_whole_output(tmp_path: Path, strategy: Greedy | Beam) -> None:
    """Step by step with a cache, rows of all lengths in a batch; along greedy's own output they are that output."""
    model, network = trained_like(tmp_path / "model")
    _, rows = sources(model)
    outputs = search(PlainStepFunction(network), rows, strategy)
    found = top_tokens(PlainStepFunction(network), rows, outputs)
    for row, output, top in zip(rows, outputs, found, strict=True):
        read = torch.tensor([[network.config.start_id, *output[:-1]]])
        with torch.no_grad():
            logits = network(torch.tensor([row]), read).logits
        assert logits is not None and top == logits[0].argmax(dim=-1).tolist()
    assert len({len(row) for row in outputs}) > 1 and len({tuple(row) for row in outputs}) > 3
    assert (found == outputs) == isinstance(strategy, Greedy)


def test_agreement_of_exact_steps_is_whole(tmp_path: Path, encoder: tuple[Path, list[str], Any]) -> None:
    """References of which half are its own outputs give a BLEU that is neither 0 nor 100."""
    model, _ = trained_like(tmp_path / "model")
    texts, _ = sources(model)
    answers = [answer if row % 2 else "a b c d" for row, answer in enumerate(model.translate(texts, beam=3))]
    for name, lines in (("source", texts), ("target", answers)):
        (tmp_path / name).write_text("".join(f"{line or 'a'}\n" for line in lines), encoding="utf-8")
    files = (tmp_path / "source", tmp_path / "target")
    plain, exact, rough = measure_agreement(tmp_path / "model", *files, precisions=("float32", "int8"), beam=3)
    assert plain["sentences"] == 12 and 0 < plain["bleu"] < 100
    assert exact["same_top_token"] == exact["same_outputs"] == 1.0 and exact["bleu_difference"] == 0.0
    assert exact["steps"] == rough["steps"] > 12 and 0.5 < rough["same_top_token"] <= 1.0
    fails(CapabilityError, "agreement is measured on an encoder-decoder", next, measure_agreement(encoder[0], *files))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], Any]:
    config = encoding.SIZES["tiny"]
    folder = tmp_path_factory.mktemp("encoding") / "model"
    encoding_sides.write_encoder(folder, config, ())
    texts = natural_sentences(9, config)
    side = loaded(encoding_sides.OurEncoder(), folder, "float32")
    return folder, texts, side.run(texts)


def test_g8_sentences_are_a_token_a_word(encoder: tuple[Path, list[str], Any]) -> None:
    folder, texts, vectors = encoder
    tokenizer = Tokenizer.load(folder)
    for text in texts:
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.split()) and tokenizer.unk_id not in ids
    assert vectors.shape == (9, 32) and len({len(text.split()) for text in texts}) > 4
    assert encoding_sides.vocabulary(106, ("o", "[PAD]", "gato", "o"))[:3] == ["[PAD]", "o", "gato"]
    assert encoding_sides.vocabulary(106, ("o",))[100:] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "w104", "w105"]


def test_g8_sentence_transformers_gives_the_same_vectors(encoder: tuple[Path, list[str], Any]) -> None:
    pytest.importorskip("sentence_transformers")
    folder, texts, vectors = encoder
    side = loaded(encoding_sides.SentenceTransformers(), folder)
    assert relative_error(side.run(texts), vectors) < 1e-5


@pytest.fixture
def exported(encoder: tuple[Path, list[str], Any], tmp_path: Path) -> Iterator[Path]:
    for package in ("onnx", "onnxruntime", "transformers"):
        pytest.importorskip(package)
    encoding_sides.OnnxExport().run((encoder[0], encoding.SIZES["tiny"], tmp_path / "onnx"))
    yield tmp_path / "onnx"


def test_g8_onnx_runtime_gives_the_same_vectors(encoder: tuple[Path, list[str], Any], exported: Path) -> None:
    """In int8 they are near, and not the same: it is another computation."""
    folder, texts, vectors = encoder
    errors = {}
    for kind in ("float32", "int8"):
        side = loaded(encoding_sides.OnnxRuntime(), folder, exported / f"{kind}.onnx")
        errors[kind] = relative_error(side.run(texts), vectors)
    assert errors["float32"] < 1e-5 < errors["int8"] < 0.2


@pytest.mark.parametrize("side", ["fixed scales", "openvino"])
def test_g8_int8_with_scales_of_texts_is_near(encoder: tuple[Path, list[str], Any], side: str, tmp_path: Path) -> None:
    """Ours and OpenVINO's by NNCF: near in float32, and not the same."""
    folder, texts, vectors = encoder
    samples = natural_sentences(100, encoding.SIZES["tiny"], seed=2)
    if side == "fixed scales":
        encoding_sides.FixedScales().run((folder, samples, tmp_path / "fixed"))
        ours = loaded(encoding_sides.OurEncoder(), tmp_path / "fixed", "int8")
        assert 1e-5 < relative_error(ours.run(texts), vectors) < 0.2
        return
    for package in ("openvino", "nncf", "transformers"):
        pytest.importorskip(package)
    encoding_sides.OpenVinoExport().run((folder, samples, tmp_path / "network.xml"))
    peer = loaded(encoding_sides.OpenVino(), folder, tmp_path / "network.xml")
    assert 1e-5 < relative_error(peer.run(texts), vectors) < 0.2


def test_h12_parts_of_a_step_add_up_to_it(weights: Path) -> None:
    """Clocks change nothing that is written, and what they read is the whole."""
    work = Work((5, 3), 2, 6)
    [row] = measure_parts(0.2, size="tiny", cells=(work,), precisions=("float32",))
    assert {"projection to the vocabulary", "attention itself", "norms", "the search"} <= set(row["parts"])
    times = [float(text.split(" ms")[0]) for text in row["parts"].values()]
    assert sum(times) == pytest.approx(row["ms_a_step"], abs=0.001 * len(times)) and min(times) >= 0
    assert times == sorted(times, reverse=True) and row["ms_reading_the_source"] > 0


def test_g8_goals_of_encoding_name_the_fastest_precision_that_is_near_enough() -> None:
    """By hand: int8 is faster than bfloat16, but further from float32 than the peer's int8."""
    sides = {"atento float32": (4.0, 0.0), "atento bfloat16": (2.0, 0.01), "atento int8": (1.0, 0.03)}
    sides |= {"sentence-transformers float32": (8.0, 0.0), "onnxruntime float32": (5.0, 0.0)}
    sides |= {"onnxruntime int8": (3.0, 0.02)}
    measurements = {who: [Measurement(s, np.array([[1 + error]]), None, s / 2)] for who, (s, error) in sides.items()}
    tokenizer = Tokenizer.from_vocabulary("word", ("a", "b"))
    rows = [row for row in encoding._rows(measurements, ["a b"], tokenizer) if "goal" in row]
    assert [(row["who"], row["ratio_to"], row["ratio"], row["by_processor_time"], row["goal"]) for row in rows] == [
        ("atento bfloat16", "onnxruntime int8", 1.5, 1.5, 1.3),
        ("atento float32", "onnxruntime float32", 1.25, 1.25, 1.1),
        ("atento bfloat16", "sentence-transformers float32", 4.0, 4.0, 4.0),
    ]
